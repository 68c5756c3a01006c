/* tasks.h - small made-up tasks that tell what a state can hold; all draws are SplitMix64's.
 *
 *   int32_t symbols_bs[4 * 32], labels_bs[4 * 32];
 *   kr_task task = kr_task_of(KR_TASK_ROTOR);
 *   task.seed = KR_TASK_EVAL_SEED;
 *   kr_task_fill(&task, 4, symbols_bs, labels_bs);
 *   kr_source *source = kr_source_task(ctx, &task, 512, true);           // the same, for a loader: one-hot features
 *   kr_source_destroy(source);
 *
 * majority  - + R   the sign of (#+ - #-) since the last R: 0 negative, 1 positive; not scored where it is 0
 * rotor     - + R   (#+ - #-) since the last R, modulo 3
 * spinor    i j R   the product of quaternions since the last R, the newest on the left: 1 i j k -1 -i -j -k
 * a5        c t R   the product of even permutations of five, the newest on the left: c = [1 2 3 4 0], t = [1 2 0 3 4];
 *  R, always and only the first, is the identity. The class is the place among all 60 in lexicographic order
 * modular   0..p-1  the sum of all symbols modulo p, scored at the last
 */
#ifndef KRAIT_TASKS_H
#define KRAIT_TASKS_H

#include <krait/data.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_task_kind { KR_TASK_MAJORITY = 0, KR_TASK_ROTOR = 1, KR_TASK_SPINOR = 2, KR_TASK_A5 = 3 } kr_task_kind;

/* The reset is symbol 2 of 3. The first three tasks have four families of sequences, the last of which, KR_TASK_MIXED,
 * draws one of the others for each row; a5 has one. */
enum { KR_TASK_SYMBOLS = 3, KR_TASK_RESET = 2, KR_TASK_MIXED = 3 };
#define KR_TASK_TRAIN_SEED UINT64_C(0xC0FFEE)
#define KR_TASK_EVAL_SEED UINT64_C(0xBEEF)

typedef struct kr_task {
    kr_task_kind kind;
    int family;
    int64_t length; /* of a row; at least 12, of a5 at least 1 */
    uint64_t seed;  /* of one generator for all rows */
} kr_task;

/* The mixed family, 32 symbols (a5: 13), KR_TASK_TRAIN_SEED. */
KR_API kr_task kr_task_of(kr_task_kind kind);

KR_API const char *kr_task_name(kr_task_kind kind);               /* "majority", ...; NULL for a value that is none */
KR_API int kr_task_families(kr_task_kind kind);                   /* 0 for a value that is none */
KR_API const char *kr_task_family(kr_task_kind kind, int family); /* "random", ...; NULL likewise */
KR_API int kr_task_classes(kr_task_kind kind);

/* Writes n_rows rows of task->length; labels are classes or KR_NOT_SCORED. KR_ERR_ARG for what is no task. */
KR_API kr_status kr_task_fill(const kr_task *task, int64_t n_rows, int32_t *symbols, int32_t *labels);

/* The same as a source, a document a row: ids, or features that are 1 for the symbol and else 0. */
KR_API kr_source *kr_source_task(kr_ctx *ctx, const kr_task *task, int64_t n_rows, bool is_one_hot);

/* All p^n_terms rows of n_terms symbols below p, shuffled by SplitMix64; the first round(train_fraction p^n_terms) are
 * for KR_DATA_TRAIN, the others for KR_DATA_VALIDATION. At most 2,000,000 rows. */
typedef struct kr_modular_task {
    int64_t p, n_terms;
    double train_fraction;
    uint64_t split_seed;
    kr_data_part part;
} kr_modular_task;
KR_API kr_modular_task kr_modular_task_default(void); /* 97, 2, 0.5, 0, KR_DATA_TRAIN */
KR_API kr_source *kr_source_modular(kr_ctx *ctx, const kr_modular_task *task);

/* The pieces: the generator's next draw, the product of two classes of spinor (left times right) and the quaternion
 * (w, x, y, z) that one stands for. */
KR_API uint64_t kr_splitmix64(uint64_t *state);
KR_API int kr_q8_product(int left, int right);
KR_API void kr_q8_quaternion(int q8, double quaternion[4]);

#ifdef __cplusplus
}
#endif
#endif
