/* tasks.h - synthetic tasks that probe what a state can represent; all random numbers come from SplitMix64.
 *
 *   int32_t symbols_bs[4 * 32], labels_bs[4 * 32];
 *   lab_task task = lab_task_of(LAB_TASK_ROTOR);
 *   task.seed = LAB_TASK_EVAL_SEED;
 *   lab_task_fill(&task, 4, symbols_bs, labels_bs);
 *   kr_source *source = lab_source_task(ctx, &task, 512, true);           // the same, for a loader: one-hot features
 *   kr_source_destroy(source);
 *
 * majority  - + R   the sign of (#+ - #-) since the last R: 0 negative, 1 positive; not scored where it is 0
 * rotor     - + R   (#+ - #-) since the last R, modulo 3
 * spinor    i j R   the product of quaternions since the last R, the newest on the left: 1 i j k -1 -i -j -k
 * a5        c t R   the product of even permutations of five, the newest on the left: c = [1 2 3 4 0], t = [1 2 0 3 4];
 *  R, always and only the first, is the identity. The class is the index among all 60 in lexicographic order
 * modular   0..p-1  the sum of all symbols modulo p, scored at the last
 */
#ifndef KR_LAB_TASKS_H
#define KR_LAB_TASKS_H

#include <krait/data.h>

/* True, or false with the context's error set. */
#define lab_require(ctx, cond, ...) ((cond) || (kr_ctx_fail((ctx), __VA_ARGS__), false))

typedef enum lab_task_kind {
    LAB_TASK_MAJORITY = 0,
    LAB_TASK_ROTOR = 1,
    LAB_TASK_SPINOR = 2,
    LAB_TASK_A5 = 3
} lab_task_kind;

/* The reset is symbol 2 of 3. The first three tasks have four families of sequences, the last of which, LAB_TASK_MIXED,
 * selects one of the others at random for each row; a5 has one. */
enum { LAB_TASK_SYMBOLS = 3, LAB_TASK_RESET = 2, LAB_TASK_MIXED = 3 };
#define LAB_TASK_TRAIN_SEED UINT64_C(0xC0FFEE)
#define LAB_TASK_EVAL_SEED UINT64_C(0xBEEF)

typedef struct lab_task {
    lab_task_kind kind;
    int family;
    int64_t length; /* of a row; at least 12, of a5 at least 1 */
    uint64_t seed;  /* of one generator for all rows */
} lab_task;

/* The mixed family, 32 symbols (a5: 13), LAB_TASK_TRAIN_SEED. */
lab_task lab_task_of(lab_task_kind kind);

const char *lab_task_name(lab_task_kind kind);               /* "majority", ...; NULL for an invalid value */
int lab_task_families(lab_task_kind kind);                   /* 0 for an invalid value */
const char *lab_task_family(lab_task_kind kind, int family); /* "random", ...; NULL likewise */
int lab_task_classes(lab_task_kind kind);

/* Writes n_rows rows of task->length; labels are classes or KR_NOT_SCORED. KR_ERR_ARG for an invalid task. */
kr_status lab_task_fill(const lab_task *task, int64_t n_rows, int32_t *symbols, int32_t *labels);

/* The same as a source, one document per row: ids, or one-hot features. NULL with the context's error set. */
kr_source *lab_source_task(kr_ctx *ctx, const lab_task *task, int64_t n_rows, bool is_one_hot);

/* All p^n_terms rows of n_terms symbols below p, shuffled by SplitMix64; the first round(train_fraction p^n_terms) are
 * for KR_DATA_PART_TRAIN, the others for KR_DATA_PART_VALIDATION. At most 2,000,000 rows. */
typedef struct lab_modular_task {
    int64_t p, n_terms;
    double train_fraction;
    uint64_t split_seed;
    kr_data_part part;
} lab_modular_task;
lab_modular_task lab_modular_task_default(void); /* 97, 2, 0.5, 0, KR_DATA_PART_TRAIN */
kr_source *lab_source_modular(kr_ctx *ctx, const lab_modular_task *task);

/* The next number of SplitMix64, the product of two classes of spinor (left times right) and the quaternion
 * (w, x, y, z) that one stands for. */
uint64_t lab_splitmix64(uint64_t *state);
int lab_q8_product(int left, int right);
void lab_q8_quaternion(int q8, double quaternion[4]);

#endif
