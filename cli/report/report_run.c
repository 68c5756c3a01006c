/* report_run.c - krait report: training runs as a page with charts, or as charts in the terminal. */
#include "cli/report/chart_text.h"
#include "cli/common/commands.h"
#include "cli/common/cli_files.h"
#include "cli/report/report_html.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct report_values {
    cli_texts folders;
    const char *out, *title;
    bool is_terminal;
    int chart;
} report_values;

static const cli_operand operands[] = {
    { "DIR...", offsetof(report_values, folders), false,
      "run folders of krait train or krait task (with metrics.csv)" },
    { 0 },
};

static const cli_option options[] = {
    { "out", 'o', "DIR", CLI_TEXT, offsetof(report_values, out), NULL, 0,
      "output folder; required for several runs (default: DIR)" },
    { "title", 0, "TEXT", CLI_TEXT, offsetof(report_values, title), NULL, 0,
      "title of the page (default: the folder names)" },
    { "terminal", 't', NULL, CLI_FLAG, offsetof(report_values, is_terminal), NULL, 0,
      "print the charts as text and write no files" },
    { "chart", 0, "loss|accuracy|learning-rate|gradient-norm|speed", CLI_CHOICE, offsetof(report_values, chart), NULL,
      0, "with --terminal: print only this chart (default: loss and accuracy)" },
    { 0 },
};

static bool print_charts(const training_run *runs, int count, int only)
{
    const text_style style = text_style_of(stdout);
    int printed = 0;
    for (int id = 0; id < CHARTS; id++) {
        chart c;
        if (only >= 0 ? id != only : id > CHART_ACCURACY) continue;
        if (!chart_make(&c, (chart_id)id, runs, count, 45, style.rows)) return false;
        chart_reduce(&c, 45, style.rows);
        if (c.count) {
            if (printed++) putchar('\n');
            chart_text(stdout, &c, &style);
        }
        chart_free(&c);
    }
    if (!printed)
        cli_complain(NULL, "%s has no values to draw%s", count == 1 ? runs->folder : "none of the folders",
                     only >= 0 ? " in this chart" : "");
    return printed > 0;
}

static bool show(const report_values *values)
{
    const int count = values->folders.count;
    training_run *runs = calloc((size_t)count, sizeof *runs);
    if (!runs) cli_complain(NULL, "out of memory for %d runs", count);
    if (!runs || !training_runs_read(runs, values->folders.text, count)) {
        free(runs);
        return false;
    }
    const bool ok = print_charts(runs, count, values->chart);
    training_runs_free(runs, count);
    free(runs);
    return ok;
}

static int run_report(int argc, char **argv)
{
    static const char see[] = "see krait report --help";
    report_values values = { 0 };
    const int status = cli_parse(&cli_report_command, &values, argc, argv);
    if (status >= 0) return status;
    if (values.is_terminal && (values.out || values.title)) {
        cli_complain(see, "report: --out and --title do not apply to --terminal, which writes no page");
        return CLI_USAGE;
    }
    if (!values.is_terminal && values.chart >= 0) {
        cli_complain(see, "report: --chart needs --terminal; a page has all charts");
        return CLI_USAGE;
    }
    if (values.is_terminal) return show(&values) ? CLI_OK : CLI_FAILED;
    if (values.folders.count > 1 && !values.out) {
        cli_complain("give the output folder with --out DIR", "report: there are %d runs, and no --out",
                     values.folders.count);
        return CLI_USAGE;
    }
    const char *out = values.out ? values.out : values.folders.text[0];
    char path[CLI_PATH_BYTES];
    if (!cli_write_reports(values.folders.text, values.folders.count, out, values.title)) return CLI_FAILED;
    if (cli_join(path, out, "report.html")) printf("%s\n", path);
    return CLI_OK;
}

const cli_command cli_report_command = {
    .name = "report",
    .summary = "report training runs as an HTML page with charts, or as charts in the terminal",
    .options = options,
    .run = run_report,
    .operands = operands,
    .more = "Writes report.html, a self-contained page, and each chart as an SVG file. Several runs share the\n"
            "charts. Terminal output has no colours with NO_COLOR or when it is not a terminal.\n",
};
