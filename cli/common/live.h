/* live.h - progress of a run on stdout: one line that is rewritten at a terminal, else a plain line at intervals.
 *
 *   cli_live live;
 *   cli_live_open(&live, "tok", 10, false);
 *   cli_live_say(&live, "mamba3 %s 4 layers", cli_dot(&live));
 *   cli_live_show(&live, &(cli_live_row){ .step = 420, .steps = 2000, .positions = 860160, .loss = 1.832, ... });
 *   cli_live_close(&live);
 *
 *    step   420/2000 [=======         ] loss 1.832  eval 1.901  18.4 k tok/s  920 MiB  eta 1:12
 *
 * The line is as wide as the terminal at most; the least important parts are dropped first. It is rewritten by a
 * carriage return only. On a dumb terminal lines are plain, and bars and dots are ASCII unless the locale is UTF-8.
 */
#ifndef KR_CLI_COMMON_LIVE_H
#define KR_CLI_COMMON_LIVE_H

#include <krait/base.h>

typedef struct cli_live {
    const char *unit; /* of positions, as in "18.4 k tok/s" */
    bool is_quiet;    /* shows no progress; messages are still printed */
    bool is_terminal, is_utf8;
    double log_seconds; /* between plain lines */
    int columns;        /* of the current line; 0: none */
    double shown;       /* when that was */
    /* How fast it goes: sums in which the past fades. */
    double last_seconds, steps, seconds, positions, reading_seconds;
    int64_t last_step, last_positions; /* -1: none yet */
} cli_live;

/* NaN, or 0 in the integers but step: not shown. */
typedef struct cli_live_row {
    int64_t step, steps;
    int64_t positions; /* read since the run began, in training */
    double loss, accuracy, eval_loss, eval_accuracy;
    size_t memory_bytes;
    bool is_slow; /* the time since the last row includes an evaluation or a save: it gives no speed */
    bool is_due;  /* always gets a plain line: an evaluation, the last step */
} cli_live_row;

void cli_live_open(cli_live *live, const char *unit, double log_seconds, bool is_quiet);

/* Draws at most ten times a second at a terminal, each log_seconds elsewhere, and where it is due. */
void cli_live_show(cli_live *live, const cli_live_row *row);

/* A line of text that stays; the live line, if there is one, is wiped for it. Said in silence too. */
void cli_live_say(cli_live *live, const char *format, ...) KR_PRINTF(2, 3);

/* Keeps the live line and starts a new one; wipe removes it instead. The next show redraws. */
void cli_live_close(cli_live *live);
void cli_live_wipe(cli_live *live);

/* Time that is no training (a sample, a save) does not count. */
void cli_live_pause(cli_live *live);

/* Separator of headings, and the sign before a number of threads: a middle dot and a cross, or ASCII. */
const char *cli_dot(const cli_live *live);
const char *cli_times(const cli_live *live);

/* Does the locale say that text is UTF-8? */
bool cli_is_utf8(void);

/* "1:12", "3:04:05", "2 d 3:04:05". */
typedef struct cli_span {
    char text[40];
} cli_span;
cli_span cli_span_text(double seconds);

#endif
