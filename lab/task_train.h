/* task_train.h - one training run of a task over symbols. */
#ifndef KR_LAB_TASK_TRAIN_H
#define KR_LAB_TASK_TRAIN_H

#include "lab/task_score.h"

typedef struct task_run {
    const task_spec *spec;
    const task_values *values;
    const char *folder; /* NULL: nothing is saved */
    bool is_resumed;
    kr_ctx *ctx;
    kr_model *model;
    task_sets sets; /* as they were evaluated last */
    /* What came of it. */
    bool is_solved;      /* two evaluations in a row without a mistake, or all that there were */
    bool is_interrupted; /* before its end */
    int64_t epochs;      /* that were made, also before it was resumed */
    double seconds;      /* in this part of the run */
} task_run;

/* The spec's network by the options. */
void task_set_config(const task_spec *spec, const task_values *values, kr_model_config *config);

/* Keeps the state's decay free of the input: its rows of the projections are zero, and what is left of it is a bias. */
void task_hold_decay(const kr_network *net);

/* "mamba3, complex rotation, 86 parameters". */
typedef struct task_words {
    char text[160];
} task_words;
task_words task_network_words(const kr_model *model, bool has_fixed_decay);

/* Trains run->model, which is there already, as are context and sets. False after a complaint. */
bool task_train(task_run *run);

#endif
