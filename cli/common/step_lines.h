/* step_lines.h - small CSV files of a run whose lines begin with a step: pr.csv, weights.csv.
 *
 *   cli_step_lines lines;
 *   if (!cli_step_lines_open(&lines, "runs/a", "pr.csv", "step,layer,ratio", -1)) return CLI_FAILED;
 *   cli_step_lines_put(&lines, 250, 1, (int64_t[]){ 0 }, 1, (double[]){ 1.5 });       250,0,1.5
 *   cli_step_lines_close(&lines);
 *
 * Numbers are written by %.9g; one that is NaN leaves its field empty.
 */
#ifndef KR_CLI_COMMON_STEP_LINES_H
#define KR_CLI_COMMON_STEP_LINES_H

#include "cli/common/cli_files.h"

#include <stdint.h>
#include <stdio.h>

typedef struct cli_step_lines {
    FILE *file;
    char path[CLI_PATH_BYTES];
} cli_step_lines;

/* FOLDER/NAME: with last_step < 0 a new file; otherwise the existing one, truncated after that step, or a new one.
 * False after an error message. */
bool cli_step_lines_open(cli_step_lines *lines, const char *folder, const char *name, const char *header,
                         int64_t last_step);

/* Adds a line. Not open: nothing happens. False after an error message: the disk is full. */
bool cli_step_lines_put(cli_step_lines *lines, int64_t step, int n_keys, const int64_t *keys, int count,
                        const double *values);

/* False after an error message. Not open: nothing happens. */
bool cli_step_lines_close(cli_step_lines *lines);

#endif
