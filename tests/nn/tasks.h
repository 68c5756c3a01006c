/* tasks.h - three tasks over a reset and two other symbols that no block without the right state can do.
 *
 *   majority   - + R   the sign of (#+ - #-) since the last R: 0 negative, 1 positive; not scored where it is 0
 *   rotor      - + R   (#+ - #-) since the last R, modulo 3
 *   spinor     i j R   the product of the quaternions since the last R, the newest on the left: 1 i j k -1 -i -j -k
 *
 * Each comes in four families of sequences, the last of which mixes the others. The draws are SplitMix64's, one
 * generator for all rows of a set: the same seed, family and length give the same set.
 */
#ifndef KR_TESTS_NN_TASKS_H
#define KR_TESTS_NN_TASKS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum task_kind { TASK_MAJORITY, TASK_ROTOR, TASK_SPINOR, TASK_KINDS } task_kind;

enum { TASK_FAMILIES = 4, TASK_MIXED = 3, TASK_SYMBOLS = 3, TASK_RESET = 2, TASK_NOT_SCORED = -1 };
enum { TASK_LENGTH = 32, TASK_TRAIN_ROWS = 4096, TASK_EVAL_ROWS = 512 };
#define TASK_TRAIN_SEED UINT64_C(0xC0FFEE)
#define TASK_EVAL_SEED UINT64_C(0xBEEF)

const char *task_name(task_kind task);
const char *task_family_name(task_kind task, int family);
int task_classes(task_kind task);

typedef struct task_data {
    task_kind task;
    int family;
    int64_t nb, ns;
    int32_t *symbol_bs;
    int32_t *target_bs; /* a class, or TASK_NOT_SCORED */
} task_data;

/* To be freed. ns >= 12. */
task_data task_make(task_kind task, int family, uint64_t seed, int64_t nb, int64_t ns);
void task_free(task_data *data);

uint64_t task_splitmix64(uint64_t *state);

/* In the classes of spinor: left times right, and the quaternion (w, x, y, z) that a class stands for. */
int task_q8_product(int left, int right);
void task_q8_quaternion(int q8, double quaternion[4]);

#endif
