/* metrics.c - writes metrics.csv, or continues that of a resumed run. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "cli/common/metrics.h"

#include "cli/common/cli_machine.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char columns[] = "step,epoch,positions,loss,accuracy,lr,grad_norm,eval_loss,eval_accuracy,seconds,"
                              "positions_per_second,memory_bytes";
enum { SECONDS_COLUMN = 9, LINE_BYTES = 1024 };

cli_metrics_row cli_metrics_row_init(int64_t step)
{
    return (cli_metrics_row){ .step = step,
                              .epoch = -1,
                              .positions = -1,
                              .loss = NAN,
                              .accuracy = NAN,
                              .lr = NAN,
                              .grad_norm = NAN,
                              .eval_loss = NAN,
                              .eval_accuracy = NAN,
                              .memory_bytes = -1 };
}

/* ---- the file ---- */

static bool header_text(char *text, int n_extra, const char *const *extra)
{
    int n = snprintf(text, LINE_BYTES, "%s", columns);
    for (int i = 0; i < n_extra && n < LINE_BYTES; i++)
        n += snprintf(text + n, (size_t)(LINE_BYTES - n), ",%s", extra[i]);
    return n < LINE_BYTES - 1 && n_extra <= CLI_METRICS_EXTRA;
}

/* The seconds of a line; 0 if it has none. */
static double seconds_of(const char *line)
{
    for (int i = 0; i < SECONDS_COLUMN && line; i++) {
        line = strchr(line, ',');
        if (line) line++;
    }
    return line ? strtod(line, NULL) : 0;
}

/* How many bytes of the file are whole lines of steps up to last_step; -1 if it does not begin with the header. */
static long long bytes_to_keep(cli_metrics *metrics, const char *header, int64_t last_step, double *seconds)
{
    char line[LINE_BYTES + 2];
    long long kept = -1;
    while (fgets(line, sizeof line, metrics->file)) {
        const size_t length = strlen(line);
        if (!length || line[length - 1] != '\n') break; /* a line that was not finished */
        char *end;
        if (kept < 0) {
            line[length - 1] = 0;
            if (strcmp(line, header) != 0) return -1;
            kept = (long long)length;
            continue;
        }
        const long long step = strtoll(line, &end, 10);
        if (end == line || step > last_step) break;
        metrics->last_step = step;
        *seconds = seconds_of(line);
        kept += (long long)length;
    }
    return kept;
}

static bool reopen(cli_metrics *metrics, const char *header, int64_t last_step)
{
    double seconds = 0;
    metrics->file = fopen(metrics->path, "r+b");
    if (!metrics->file) return cli_cannot("open", metrics->path, errno);
    const long long kept = bytes_to_keep(metrics, header, last_step, &seconds);
    if (kept < 0) {
        cli_complain("move it away to start a new file", "%s does not begin with the line \"%.200s\"", metrics->path,
                     header);
        return false;
    }
    if (ftruncate(fileno(metrics->file), (off_t)kept) != 0 || fseeko(metrics->file, (off_t)kept, SEEK_SET) != 0)
        return cli_cannot("write", metrics->path, errno);
    metrics->began -= seconds;
    metrics->last_seconds = seconds;
    return true;
}

bool cli_metrics_open(cli_metrics *metrics, const char *folder, int64_t last_step, int n_extra,
                      const char *const *extra)
{
    char header[LINE_BYTES];
    *metrics = (cli_metrics){ .n_extra = n_extra, .last_positions = -1, .last_step = -1, .began = cli_seconds() };
    if (!cli_join(metrics->path, folder, "metrics.csv")) return false;
    if (!header_text(header, n_extra, extra)) {
        cli_complain(NULL, "%s would have too many columns", metrics->path);
        return false;
    }
    bool is_open;
    if (last_step >= 0 && cli_exists(metrics->path)) {
        is_open = reopen(metrics, header, last_step);
    } else {
        metrics->file = fopen(metrics->path, "wb");
        is_open = metrics->file && fprintf(metrics->file, "%s\n", header) > 0 && !fflush(metrics->file);
        if (!is_open) cli_cannot("write", metrics->path, errno);
    }
    if (!is_open && metrics->file) fclose(metrics->file);
    if (!is_open) metrics->file = NULL;
    return is_open;
}

bool cli_metrics_close(cli_metrics *metrics)
{
    FILE *file = metrics->file;
    metrics->file = NULL;
    return !file || !fclose(file) || cli_cannot("write", metrics->path, errno);
}

/* ---- lines ---- */

static bool is_due(const cli_metrics_row *row)
{
    int64_t every = 1;
    for (int64_t bound = 10000; row->step >= bound && bound <= INT64_MAX / 10; bound *= 10) every *= 10;
    return row->must_stay || !isnan(row->eval_loss) || row->step % every == 0;
}

static void add_count(char *line, int64_t value)
{
    const size_t n = strlen(line);
    if (value < 0) snprintf(line + n, LINE_BYTES - n, ",");
    else snprintf(line + n, LINE_BYTES - n, ",%" PRId64, value);
}

static void add_number(char *line, double value)
{
    const size_t n = strlen(line);
    if (isnan(value)) snprintf(line + n, LINE_BYTES - n, ",");
    else snprintf(line + n, LINE_BYTES - n, ",%.9g", value);
}

void cli_metrics_pause(cli_metrics *metrics)
{
    metrics->last_seconds = cli_seconds() - metrics->began;
}

bool cli_metrics_put(cli_metrics *metrics, const cli_metrics_row *row)
{
    const double seconds = cli_seconds() - metrics->began, passed = seconds - metrics->last_seconds;
    double rate = NAN;
    if (metrics->last_positions >= 0 && row->positions > metrics->last_positions && passed > 0 && !row->is_slow)
        rate = (double)(row->positions - metrics->last_positions) / passed;
    metrics->last_seconds = seconds;
    metrics->last_positions = row->positions;
    if (!is_due(row)) return true;

    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%" PRId64, row->step);
    add_count(line, row->epoch);
    add_count(line, row->positions);
    const double numbers[] = { row->loss,      row->accuracy,      row->lr, row->grad_norm,
                               row->eval_loss, row->eval_accuracy, seconds, rate };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) add_number(line, numbers[i]);
    add_count(line, row->memory_bytes);
    for (int i = 0; i < metrics->n_extra; i++) add_number(line, row->extra ? row->extra[i] : NAN);
    if (fprintf(metrics->file, "%s\n", line) < 0 || fflush(metrics->file) != 0)
        return cli_cannot("write", metrics->path, errno);
    metrics->last_step = row->step;
    return true;
}
