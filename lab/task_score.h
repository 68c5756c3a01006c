/* task_score.h - accuracy of a network on a task's evaluation rows, family by family. */
#ifndef KR_LAB_TASK_SCORE_H
#define KR_LAB_TASK_SCORE_H

#include "lab/task_sequence.h"

#include <krait/data.h>

/* Rows of one family, and their last evaluation. */
typedef struct task_set {
    const char *family;
    kr_source *source;
    kr_loader *loader;
    int64_t ns;
    int64_t scored, right;
    int64_t *scored_s, *right_s; /* the same of each position */
    double loss;                 /* the mean over scored positions */
} task_set;

typedef struct task_sets {
    kr_ctx *ctx;
    kr_tape *tape;
    int count;
    task_set set[TASK_MOST_FAMILIES]; /* if there are several, the last one is the mixed family */
} task_sets;

/* False after an error message; free in any case. */
bool task_sets_make(task_sets *sets, kr_ctx *ctx, lab_task_kind kind, int64_t n_rows, int64_t length);
void task_sets_free(task_sets *sets);

/* Runs the network over all of them; false after an error of the context. */
bool task_sets_score(task_sets *sets, const kr_network *net);

bool task_sets_all_right(const task_sets *sets);
double task_set_accuracy(const task_set *set); /* from 0 to 1 */

#endif
