/* cmd_report.h - output of a command: lines for people, or one JSON object for programs, by the same calls.
 *
 *   cli_report r;
 *   cli_report_begin(&r, is_json);
 *   cli_report_text(&r, "family", "%s", "mamba2");            family             mamba2       "family": "mamba2"
 *   cli_report_number(&r, "bytes", 4096, "%s", "4 KiB");      bytes              4 KiB        "bytes": 4096
 *   cli_report_open(&r, "memory", false);                     memory                          "memory": {
 *   cli_report_close(&r);                                                                     }
 *   cli_report_end(&r);
 *
 * Text from files is printed without control characters, so that no name can control a terminal.
 */
#ifndef KR_CLI_COMMANDS_CMD_REPORT_H
#define KR_CLI_COMMANDS_CMD_REPORT_H

#include <krait/base.h>

#include <stdio.h>

enum { CLI_REPORT_DEPTH = 8 };

typedef struct cli_report {
    bool is_json;
    int depth;
    bool is_list[CLI_REPORT_DEPTH], has_any[CLI_REPORT_DEPTH];
} cli_report;

void cli_report_begin(cli_report *r, bool is_json);
void cli_report_end(cli_report *r);

/* An object, or a list, inside another; in lists keys are NULL. A key has '_' between its words; people see ' '. */
void cli_report_open(cli_report *r, const char *key, bool is_list);
void cli_report_close(cli_report *r);

/* A value: JSON has the number, the boolean or the whole text, lines have the formatted text; both have the text of
 * cli_report_text. People see the first 100 characters of a cli_report_string. A number is whole up to 2^53. */
void cli_report_text(cli_report *r, const char *key, const char *format, ...) KR_PRINTF(3, 4);
void cli_report_string(cli_report *r, const char *key, const char *text);
void cli_report_number(cli_report *r, const char *key, double value, const char *format, ...) KR_PRINTF(4, 5);
void cli_report_truth(cli_report *r, const char *key, bool value, const char *format, ...) KR_PRINTF(4, 5);

/* A whole number, or several, the same for both. */
void cli_report_count(cli_report *r, const char *key, int64_t value);
void cli_report_counts(cli_report *r, const char *key, int count, const int64_t *values);

/* For people only: a line, indented as the values around it. */
void cli_report_line(cli_report *r, const char *format, ...) KR_PRINTF(2, 3);

/* "492.6 MiB", "129 M" and the like; the text is returned. */
typedef struct cli_short {
    char text[32];
} cli_short;
cli_short cli_bytes_text(double bytes);
cli_short cli_count_text(double count);

/* Prints a text on stdout, without control characters and invalid UTF-8; returns the number of columns. */
int cli_print_clean(const char *text);
bool cli_is_utf8_text(const char *text);

/* The same of a text of any lines, which keep their ends and tabs. */
void cli_put_clean(FILE *out, const char *text, size_t bytes);

#endif
