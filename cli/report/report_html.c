/* report_html.c - reads runs, draws their charts, writes the page and a file for each chart. */
#define _POSIX_C_SOURCE 200809L
#include "cli/report/report_html.h"

#include "cli/report/chart_svg.h"
#include "cli/common/cli_files.h"
#include "cli/common/cli_machine.h"
#include "cli/common/cli_options.h"
#include "cli/report/report_page.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    WIDE = 920,
    WIDE_HEIGHT = 360,
    NARROW = 300,
    NARROW_HEIGHT = 226,
    SAMPLES_HEAD = 16 << 10,
    SAMPLES_TAIL = 48 << 10
};

/* ---- files of a folder ---- */

/* Shortens a long text to its beginning and end, at line ends if possible, with a note about the omitted part. */
static size_t cut_middle(char *text, size_t count, size_t head, size_t tail)
{
    char words[64];
    size_t from = head, to = count - tail;
    while (from > 0 && text[from - 1] != '\n') from--;
    while (to < count && text[to - 1] != '\n') to++;
    if (from == 0) from = head;
    if (to == count) to = count - tail;
    const size_t n = (size_t)snprintf(words, sizeof words, "\n[... %zu bytes ...]\n\n", to - from);
    memcpy(text + from, words, n);
    memmove(text + from + n, text + to, count - to);
    return from + n + (count - to);
}

static void read_samples(report_run *r)
{
    char path[CLI_PATH_BYTES];
    if (!cli_join(path, r->run->folder, "samples.txt") || !cli_exists(path)) return;
    r->samples = cli_read_file(path, (size_t)64 << 20, &r->samples_bytes);
    if (r->samples && r->samples_bytes > SAMPLES_HEAD + SAMPLES_TAIL + 256)
        r->samples_bytes = cut_middle(r->samples, r->samples_bytes, SAMPLES_HEAD, SAMPLES_TAIL);
}

static void read_folder(report_run *r, const training_run *run, kr_ctx *ctx)
{
    char path[CLI_PATH_BYTES];
    *r = (report_run){ .run = run, .settings_name = "task.json" };
    facts_read(&r->settings, ctx, run->folder, "task.json");
    if (!r->settings.count) {
        facts_free(&r->settings);
        r->settings_name = "train.json";
        facts_read(&r->settings, ctx, run->folder, "train.json");
    }
    facts_read(&r->config, ctx, run->folder, "config.json");
    facts_model(ctx, run->folder, r->model, sizeof r->model);
    r->has_weights = r->model[0] && cli_join(path, run->folder, "model.safetensors") && cli_exists(path);
    read_samples(r);
}

static void free_folder(report_run *r)
{
    facts_free(&r->settings);
    facts_free(&r->config);
    free(r->samples);
}

/* ---- charts ---- */

static bool write_chart_file(const char *out, const chart *c)
{
    char path[CLI_PATH_BYTES], name[32];
    markup m = { 0 };
    snprintf(name, sizeof name, "%s.svg", c->name);
    chart_svg(&m, c, WIDE, 400, true);
    const bool ok = cli_join(path, out, name) && markup_write(&m, path);
    markup_free(&m);
    return ok;
}

/* The charts that there is something for: into the page, and each into a file. */
static bool put_charts(markup *m, const training_run *runs, int count, const char *out)
{
    bool has_any = false, ok = true;
    markup_add(m, "<div class=\"charts\">\n");
    for (int id = 0; id < CHARTS && ok; id++) {
        chart c;
        const bool is_wide = id == CHART_LOSS || id == CHART_ACCURACY;
        if (!chart_make(&c, (chart_id)id, runs, count, is_wide ? 90 : 36, is_wide ? 20 : 12)) return false;
        if (c.count) {
            has_any = true;
            markup_format(m, "<figure%s>\n", is_wide ? " class=\"wide\"" : "");
            chart_svg(m, &c, is_wide ? WIDE : NARROW, is_wide ? WIDE_HEIGHT : NARROW_HEIGHT, false);
            markup_add(m, "</figure>\n");
            ok = write_chart_file(out, &c);
        }
        chart_free(&c);
    }
    markup_add(m, "</div>\n");
    if (!has_any) markup_add(m, "<p class=\"faint\">metrics.csv has no values to draw.</p>\n");
    return ok;
}

/* ---- the page ---- */

static const char *title_of(const training_run *runs, int count, char *text, size_t bytes)
{
    size_t n = 0;
    if (count > 4) snprintf(text, bytes, "%d runs", count);
    for (int i = 0; i < count && count <= 4; i++)
        n += (size_t)snprintf(text + n, bytes - n, "%s%s", i == 0 ? "" : i + 1 == count ? " and " : ", ", runs[i].name);
    return text;
}

static bool write_page(const report_run *folders, const training_run *runs, int count, const char *out,
                       const char *title)
{
    char path[CLI_PATH_BYTES], text[4 * CHART_SHORT_NAME + 32];
    markup m = { 0 };
    page_begin(&m, title ? title : title_of(runs, count, text, sizeof text), folders, count);
    page_figures(&m, folders, count);
    bool ok = put_charts(&m, runs, count, out);
    page_samples(&m, folders, count);
    page_settings(&m, folders, count);
    page_next(&m, folders, count);
    page_end(&m);
    ok = ok && cli_join(path, out, "report.html") && markup_write(&m, path);
    markup_free(&m);
    return ok;
}

static bool make_folder(const char *out)
{
    if (mkdir(out, 0777) == 0 || (errno == EEXIST && cli_is_folder(out))) return true;
    return cli_cannot("write to", out, errno == EEXIST ? ENOTDIR : errno);
}

bool cli_write_reports(const char *const *folders, int count, const char *out, const char *title)
{
    training_run *runs = calloc((size_t)count + 1, sizeof *runs);
    report_run *found = calloc((size_t)count + 1, sizeof *found);
    if (!runs || !found || !training_runs_read(runs, folders, count)) {
        if (!runs || !found) cli_complain(NULL, "out of memory for a report of %d runs", count);
        free(runs);
        free(found);
        return false;
    }
    kr_ctx *ctx = cli_open_for_files(NULL, NULL);
    bool ok = !kr_ctx_failed(ctx);
    if (!ok) cli_complain(NULL, "%s", kr_ctx_message(ctx));
    for (int i = 0; i < count && ok; i++) read_folder(&found[i], &runs[i], ctx);
    ok = ok && make_folder(out) && write_page(found, runs, count, out, title);
    for (int i = 0; i < count; i++) free_folder(&found[i]);
    kr_ctx_destroy(ctx);
    training_runs_free(runs, count);
    free(runs);
    free(found);
    return ok;
}

bool cli_write_report(const char *folder)
{
    return cli_write_reports(&folder, 1, folder, NULL);
}
