/* task_folder.h - the folder of a task's run: a new one, one that gives way to another, and what it remembers. */
#ifndef KR_LAB_TASK_FOLDER_H
#define KR_LAB_TASK_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

/* Makes the folder, or sees that it holds no run; with force the run that it holds is removed, and nothing else. False
 * after a complaint. */
bool task_folder_begin(const char *command, const char *folder, bool force);

/* Moves the run that the folder holds to FOLDER/seed-SEED, for the next one to begin. False after a complaint. */
bool task_folder_set_aside(const char *folder, uint64_t seed);

/* How many evaluations in a row, the last up to a step, had no mistake in any of the n_extra columns behind the usual
 * ones of metrics.csv; 0 if there is no such file. */
int task_folder_streak(const char *folder, int64_t last_step, int n_extra);

#endif
