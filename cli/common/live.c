/* live.c - draws the live line, or prints plain ones. */
#define _POSIX_C_SOURCE 200809L
#include "cli/common/live.h"

#include "cli/common/cli_machine.h"
#include "cli/commands/cmd_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- the terminal ---- */

bool cli_is_utf8(void)
{
    static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (!value || !*value) continue;
        const char *set = strchr(value, '.');
        return set && (!strncasecmp(set, ".utf-8", 6) || !strncasecmp(set, ".utf8", 5));
    }
    return false;
}

static int terminal_columns(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    const char *columns = getenv("COLUMNS");
    const int number = columns ? atoi(columns) : 0;
    return number > 0 ? number : 80;
}

/* Columns of a text: characters; wide ones do not occur here. */
static int columns_of(const char *text)
{
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

void cli_live_open(cli_live *live, const char *unit, double log_seconds, bool is_quiet)
{
    const char *term = getenv("TERM");
    *live = (cli_live){ .unit = unit, .is_quiet = is_quiet, .log_seconds = log_seconds };
    live->is_terminal = isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
    live->is_utf8 = cli_is_utf8();
    live->last_step = live->last_positions = -1;
    live->shown = cli_seconds();
}

const char *cli_dot(const cli_live *live)
{
    return live->is_utf8 ? "\xC2\xB7" : "-";
}

const char *cli_times(const cli_live *live)
{
    return live->is_utf8 ? "\xC3\x97" : "x";
}

void cli_live_close(cli_live *live)
{
    if (live->columns) putchar('\n');
    live->columns = 0;
    fflush(stdout);
}

void cli_live_wipe(cli_live *live)
{
    if (live->columns) printf("\r%*s\r", live->columns, "");
    live->columns = 0;
    fflush(stdout);
}

void cli_live_say(cli_live *live, const char *format, ...)
{
    va_list args;
    cli_live_wipe(live);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

/* ---- how fast ---- */

/* Time constant in seconds of the exponential average. */
static const double memory_seconds = 10;

static void measure(cli_live *live, const cli_live_row *row, double now)
{
    if (live->last_step >= 0 && row->step >= live->last_step && now > live->last_seconds) {
        const double passed = now - live->last_seconds, fades = exp(-passed / memory_seconds);
        live->steps = live->steps * fades + (double)(row->step - live->last_step);
        live->seconds = live->seconds * fades + passed;
        live->positions *= fades;
        live->reading_seconds *= fades;
        if (!row->is_slow) live->positions += (double)(row->positions - live->last_positions);
        if (!row->is_slow) live->reading_seconds += passed;
    }
    live->last_seconds = now;
    live->last_step = row->step;
    live->last_positions = row->positions;
}

void cli_live_pause(cli_live *live)
{
    live->last_seconds = cli_seconds();
}

cli_span cli_span_text(double seconds)
{
    cli_span span;
    const int64_t all = seconds > 0 && seconds < 1e15 ? (int64_t)(seconds + 0.5) : 0;
    const int64_t days = all / 86400, hours = all / 3600 % 24, minutes = all / 60 % 60, rest = all % 60;
    if (days)
        snprintf(span.text, sizeof span.text, "%" PRId64 " d %" PRId64 ":%02d:%02d", days, hours, (int)minutes,
                 (int)rest);
    else if (hours) snprintf(span.text, sizeof span.text, "%" PRId64 ":%02d:%02d", hours, (int)minutes, (int)rest);
    else snprintf(span.text, sizeof span.text, "%d:%02d", (int)minutes, (int)rest);
    return span;
}

/* ---- the line ---- */

/* A part of the line; those with the largest number are dropped first. */
typedef struct live_part {
    char text[96];
    int leaves;
} live_part;
enum { NPARTS = 7, BAR_CELLS = 16 };

static void bar_text(const cli_live *live, const cli_live_row *row, char *text, size_t bytes)
{
    static const char *const eighths[] = { "",
                                           "\xE2\x96\x8F",
                                           "\xE2\x96\x8E",
                                           "\xE2\x96\x8D",
                                           "\xE2\x96\x8C",
                                           "\xE2\x96\x8B",
                                           "\xE2\x96\x8A",
                                           "\xE2\x96\x89" };
    const double part = row->steps ? fmin(1, (double)row->step / (double)row->steps) : 0;
    const int filled = (int)(part * BAR_CELLS * 8), whole = filled / 8;
    size_t n = (size_t)snprintf(text, bytes, " %s", live->is_utf8 ? "\xE2\x96\x95" : "[");
    for (int cell = 0; cell < BAR_CELLS; cell++) {
        const char *c = " ";
        if (cell < whole) c = live->is_utf8 ? "\xE2\x96\x88" : "=";
        else if (cell == whole && live->is_utf8 && filled % 8) c = eighths[filled % 8];
        n += (size_t)snprintf(text + n, bytes - n, "%s", c);
    }
    snprintf(text + n, bytes - n, "%s", live->is_utf8 ? "\xE2\x96\x8F" : "]");
}

/* " loss 1.832 (93.1 %)", or the known part of it. */
static void value_text(const char *name, double value, double accuracy, char *text, size_t bytes)
{
    text[0] = 0;
    if (!isnan(value) && !isnan(accuracy)) snprintf(text, bytes, "  %s %#.4g (%.1f %%)", name, value, 100 * accuracy);
    else if (!isnan(value)) snprintf(text, bytes, "  %s %#.4g", name, value);
    else if (!isnan(accuracy)) snprintf(text, bytes, "  %s %.1f %%", name, 100 * accuracy);
}

static void fill_parts(const cli_live *live, const cli_live_row *row, live_part *parts)
{
    static const int leaves[NPARTS] = { 0, 5, 1, 2, 3, 6, 4 };
    char bound[32];
    for (int i = 0; i < NPARTS; i++) parts[i] = (live_part){ "", leaves[i] };
    snprintf(bound, sizeof bound, "%" PRId64, row->steps);
    if (row->steps && live->is_terminal) {
        snprintf(parts[0].text, sizeof parts[0].text, " step %*" PRId64 "/%s", (int)strlen(bound) + 2, row->step,
                 bound);
        bar_text(live, row, parts[1].text, sizeof parts[1].text);
    } else {
        snprintf(parts[0].text, sizeof parts[0].text, "%sstep %" PRId64 "%s%s", live->is_terminal ? " " : "", row->step,
                 row->steps ? "/" : "", row->steps ? bound : "");
    }
    value_text("loss", row->loss, row->accuracy, parts[2].text, sizeof parts[2].text);
    if (parts[1].text[0])
        memmove(parts[2].text, parts[2].text + 1, strlen(parts[2].text)); /* a bar ends with a space */
    value_text("eval", row->eval_loss, row->eval_accuracy, parts[3].text, sizeof parts[3].text);
    if (live->reading_seconds > 0 && live->positions > 0)
        snprintf(parts[4].text, sizeof parts[4].text, "  %s %s/s",
                 cli_count_text(live->positions / live->reading_seconds).text, live->unit);
    if (row->memory_bytes)
        snprintf(parts[5].text, sizeof parts[5].text, "  %s", cli_bytes_text((double)row->memory_bytes).text);
    if (live->seconds > 0 && live->steps > 0 && row->steps > row->step)
        snprintf(parts[6].text, sizeof parts[6].text, "  eta %s",
                 cli_span_text((double)(row->steps - row->step) * live->seconds / live->steps).text);
}

/* All parts that fit into `columns`. */
static void join_parts(live_part *parts, int columns, char *line, size_t bytes)
{
    int total = 0;
    for (int i = 0; i < NPARTS; i++) total += columns_of(parts[i].text);
    while (total > columns) {
        live_part *last = &parts[0];
        for (int i = 0; i < NPARTS; i++)
            if (parts[i].text[0] && parts[i].leaves > last->leaves) last = &parts[i];
        if (last == &parts[0]) {
            parts[0].text[columns] = 0; /* this one is ASCII */
            break;
        }
        total -= columns_of(last->text);
        last->text[0] = 0;
    }
    size_t n = 0;
    line[0] = 0;
    for (int i = 0; i < NPARTS && n < bytes; i++) n += (size_t)snprintf(line + n, bytes - n, "%s", parts[i].text);
}

void cli_live_show(cli_live *live, const cli_live_row *row)
{
    const double now = cli_seconds();
    measure(live, row, now);
    const double wait = live->is_terminal ? 0.1 : live->log_seconds;
    if (live->is_quiet || (!row->is_due && now - live->shown < wait)) return;
    live_part parts[NPARTS];
    char line[NPARTS * sizeof parts[0].text];
    fill_parts(live, row, parts);
    if (live->is_terminal) {
        join_parts(parts, terminal_columns() - 1, line, sizeof line); /* a full line would wrap */
        const int columns = columns_of(line);
        printf("\r%s%*s", line, live->columns > columns ? live->columns - columns : 0, "");
        live->columns = columns;
    } else {
        join_parts(parts, 1000, line, sizeof line);
        puts(line);
    }
    fflush(stdout);
    live->shown = now;
}
