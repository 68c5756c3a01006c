/* metrics.h - metrics.csv: metrics of a run's steps, one line each, for `krait report` and other tools.
 *
 *   cli_metrics metrics;
 *   if (!cli_metrics_open(&metrics, "runs/notes", CLI_METRICS_NEW, 0, NULL)) return CLI_FAILED;
 *   cli_metrics_row row = cli_metrics_row_init(step);
 *   row.loss = 1.25;
 *   cli_metrics_put(&metrics, &row);
 *   cli_metrics_close(&metrics);
 *
 * Columns: step,epoch,positions,loss,accuracy,lr,grad_norm,eval_loss,eval_accuracy,seconds,positions_per_second,
 * memory_bytes, and those that the caller adds. A field without a value is empty; numbers are written by %.9g.
 */
#ifndef KR_CLI_COMMON_METRICS_H
#define KR_CLI_COMMON_METRICS_H

#include "cli/common/cli_files.h"

#include <stdint.h>
#include <stdio.h>

enum { CLI_METRICS_EXTRA = 16, CLI_METRICS_NEW = -1 };

typedef struct cli_metrics {
    FILE *file;
    char path[CLI_PATH_BYTES];
    int n_extra;
    double began;           /* on the clock of cli_seconds, earlier parts of the run counted in */
    double last_seconds;    /* when the last row came ... */
    int64_t last_positions; /* ... and its positions; -1: no row yet */
    int64_t last_step;      /* of the last line in the file; -1: none */
} cli_metrics;

/* NaN, or -1 in the integers but step: no value. */
typedef struct cli_metrics_row {
    int64_t step, epoch;
    int64_t positions; /* read since the run began, in training */
    double loss, accuracy, lr, grad_norm;
    double eval_loss, eval_accuracy;
    int64_t memory_bytes;
    bool is_slow;        /* the time of this step includes an evaluation or a save: it gives no speed */
    bool must_stay;      /* is written, however many lines there are */
    const double *extra; /* of the columns that the caller added, in their order; NULL: no values */
} cli_metrics_row;
cli_metrics_row cli_metrics_row_init(int64_t step);

/* FOLDER/metrics.csv with these columns behind the usual ones: a new file, or with last_step >= 0 the existing one,
 * truncated after that step. False after an error message. */
bool cli_metrics_open(cli_metrics *metrics, const char *folder, int64_t last_step, int n_extra,
                      const char *const *extra);

/* Adds a line; seconds and positions_per_second are the clock's. Of steps from 10,000 on only each tenth is written,
 * from 100,000 on each hundredth, and so on, but for those that have an evaluation or must stay. False after an error
 * message: the disk is full. */
bool cli_metrics_put(cli_metrics *metrics, const cli_metrics_row *row);

/* Time that is no training (a sample, say) does not count for the speed of the next step. */
void cli_metrics_pause(cli_metrics *metrics);

/* False after an error message. Not open: nothing happens. */
bool cli_metrics_close(cli_metrics *metrics);

#endif
