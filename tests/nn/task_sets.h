/* task_sets.h - sets of the reset tasks of lab/tasks.h for tests, in memory of their own. */
#ifndef KR_TESTS_NN_TASK_SETS_H
#define KR_TESTS_NN_TASK_SETS_H

#include "lab/tasks.h"

#include <stdlib.h>
#include <string.h>

typedef lab_task_kind task_kind;

enum { TASK_KINDS = 3 }; /* majority, rotor and spinor */
enum { TASK_FAMILIES = 4, TASK_MIXED = LAB_TASK_MIXED, TASK_SYMBOLS = LAB_TASK_SYMBOLS, TASK_RESET = LAB_TASK_RESET };
enum { TASK_NOT_SCORED = KR_NOT_SCORED, TASK_LENGTH = 32, TASK_TRAIN_ROWS = 4096, TASK_EVAL_ROWS = 512 };
#define TASK_TRAIN_SEED LAB_TASK_TRAIN_SEED
#define TASK_EVAL_SEED LAB_TASK_EVAL_SEED

typedef struct task_data {
    task_kind task;
    int family;
    int64_t nb, ns;
    int32_t *symbol_bs;
    int32_t *target_bs; /* a class, or TASK_NOT_SCORED */
} task_data;

/* To be freed. ns >= 12. */
static inline task_data task_make(task_kind task, int family, uint64_t seed, int64_t nb, int64_t ns)
{
    task_data data = { .task = task, .family = family, .nb = nb, .ns = ns };
    data.symbol_bs = malloc((size_t)(nb * ns) * sizeof *data.symbol_bs);
    data.target_bs = malloc((size_t)(nb * ns) * sizeof *data.target_bs);
    const lab_task wanted = { .kind = task, .family = family, .length = ns, .seed = seed };
    if (lab_task_fill(&wanted, nb, data.symbol_bs, data.target_bs) != KR_OK) abort();
    return data;
}

static inline void task_free(task_data *data)
{
    free(data->symbol_bs);
    free(data->target_bs);
    memset(data, 0, sizeof *data);
}

#endif
