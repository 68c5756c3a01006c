/* task_folder.h - the folder of a task's run: created, replaced by another run, and its past evaluations. */
#ifndef KR_LAB_TASK_FOLDER_H
#define KR_LAB_TASK_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

/* Creates the folder, or checks that it holds no run; with force removes the run that it holds, and nothing else. False
 * after an error message. */
bool task_folder_begin(const char *command, const char *folder, bool force);

/* Moves the run in the folder to FOLDER/seed-SEED, to make space for the next one. False after an error message. */
bool task_folder_set_aside(const char *folder, uint64_t seed);

/* The number of consecutive evaluations, the last up to a step, without an error in any of the n_extra columns after
 * the common ones of metrics.csv; 0 without such a file. */
int task_folder_streak(const char *folder, int64_t last_step, int n_extra);

#endif
