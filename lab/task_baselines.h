/* task_baselines.h - the accuracy possible in a task without the state that it requires. */
#ifndef KR_LAB_TASK_BASELINES_H
#define KR_LAB_TASK_BASELINES_H

#include "lab/task_sequence.h"

enum { TASK_MOST_BASELINES = 8 };

/* One baseline, with the reference's figures. */
typedef struct task_baseline {
    task_figures here;
    double of_reference[TASK_FIGURES]; /* NaN: none */
    const char *remark;                /* NULL, or why the two need not agree */
} task_baseline;

/* Their number; -1 after an error message: out of memory. */
int task_baselines(const task_spec *spec, const task_values *values, task_baseline list[TASK_MOST_BASELINES]);

#endif
