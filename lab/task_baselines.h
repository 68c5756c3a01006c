/* task_baselines.h - what is possible in a task without the state that it asks for. */
#ifndef KR_LAB_TASK_BASELINES_H
#define KR_LAB_TASK_BASELINES_H

#include "lab/task_sequence.h"

enum { TASK_MOST_BASELINES = 8 };

/* One of them, beside what the reference says of its own. */
typedef struct task_baseline {
    task_figures here;
    double of_reference[TASK_FIGURES]; /* NaN: it has none */
    const char *remark;                /* NULL, or why the two need not agree */
} task_baseline;

/* How many there are; -1 after a complaint: no memory. */
int task_baselines(const task_spec *spec, const task_values *values, task_baseline list[TASK_MOST_BASELINES]);

#endif
