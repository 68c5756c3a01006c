/* report_html.h - the results of training runs as one page: report.html, and each chart as an SVG file.
 *
 *   cli_write_report("runs/notes");     runs/notes/report.html, runs/notes/loss.svg, runs/notes/accuracy.svg, ...
 *
 * A run is a folder with a metrics.csv; train.json or task.json, config.json and samples.txt are shown if they exist. A
 * page is self-contained: no script, no font, no network. The same files give the same bytes.
 */
#ifndef KR_CLI_REPORT_REPORT_HTML_H
#define KR_CLI_REPORT_REPORT_HTML_H

#include <stdbool.h>

/* Writes the report of one run into its own folder. Files are replaced atomically. False after an error message: there is no
 * metrics.csv, or the folder cannot be written to. */
bool cli_write_report(const char *folder);

/* One report of several runs, with their curves in the same charts, into the folder `out`, which is created if needed.
 * NULL title: made from the folders' names. False after an error message. */
bool cli_write_reports(const char *const *folders, int count, const char *out, const char *title);

#endif
