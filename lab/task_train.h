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
    task_sets sets; /* as of the last evaluation */
    /* Results. */
    bool is_solved;      /* two consecutive evaluations without an error, or all if there are fewer */
    bool is_interrupted; /* before its end */
    int64_t epochs;      /* completed, including those before it was resumed */
    double seconds;      /* in this part of the run */
} task_run;

/* The spec's network with the options applied. */
void task_set_config(const task_spec *spec, const task_values *values, kr_model_config *config);

/* Makes the state's decay independent of the input: its rows of the projections are zero, so that only a bias remains. */
void task_hold_decay(const kr_network *net);

/* "mamba3, complex rotation, 86 parameters". */
typedef struct task_words {
    char text[160];
} task_words;
task_words task_network_words(const kr_model *model, bool has_fixed_decay);

/* Trains run->model; model, context and sets must exist. False after an error message. */
bool task_train(task_run *run);

#endif
