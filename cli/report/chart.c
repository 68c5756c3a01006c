/* chart.c - which columns a chart shows, in what colours, on what axes. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "cli/report/chart.h"

#include "cli/common/cli_files.h"
#include "cli/common/cli_options.h"
#include "cli/common/cli_utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- runs ---- */

/* As much of a text as fits, whole characters only. */
static void copy_short(char *to, size_t bytes, const char *text)
{
    size_t n = 0;
    for (size_t more; text[n]; n += more) {
        more = cli_utf8_bytes(text + n, strlen(text + n));
        if (!more) more = 1;
        if (n + more + 4 > bytes) break;
    }
    memcpy(to, text, n);
    strcpy(to + n, text[n] ? "..." : "");
}

/* The last part of a path: of the real one, where it is "." or "..". */
static void name_of(const char *folder, char *name)
{
    char *real = NULL;
    char path[CLI_PATH_BYTES];
    snprintf(path, sizeof path, "%s", folder);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/';) path[--n] = 0;
    const char *last = strrchr(path, '/');
    last = last && last[1] ? last + 1 : path;
    if (!strcmp(last, ".") || !strcmp(last, "..")) {
        real = realpath(folder, NULL);
        if (real && strrchr(real, '/')[1]) last = strrchr(real, '/') + 1;
    }
    copy_short(name, CHART_SHORT_NAME, last);
    free(real);
}

static void make_names_unique(training_run *runs, int count)
{
    bool is_twice[CLI_MAX_TEXTS] = { false };
    for (int i = 0; i < count; i++)
        for (int k = 0; k < count; k++) is_twice[i] = is_twice[i] || (i != k && !strcmp(runs[i].name, runs[k].name));
    for (int i = 0; i < count; i++)
        if (is_twice[i]) copy_short(runs[i].name, CHART_SHORT_NAME, runs[i].folder);
}

bool training_runs_read(training_run *runs, const char *const *folders, int count)
{
    char path[CLI_PATH_BYTES];
    if (count > CLI_MAX_TEXTS) {
        cli_complain(NULL, "%d runs are too many for one report, which has at most %d", count, CLI_MAX_TEXTS);
        return false;
    }
    for (int i = 0; i < count; i++) {
        runs[i] = (training_run){ .folder = folders[i] };
        bool ok = cli_join(path, folders[i], "metrics.csv");
        if (ok && cli_is_folder(folders[i]) && !cli_exists(path)) {
            cli_complain("krait train and krait task write one into the folder that --out names",
                         "%s is not a training run: it has no metrics.csv", folders[i]);
            ok = false;
        }
        if (!ok || !curves_read(&runs[i].curves, path)) {
            training_runs_free(runs, i);
            return false;
        }
        name_of(folders[i], runs[i].name);
    }
    make_names_unique(runs, count);
    return true;
}

void training_runs_free(training_run *runs, int count)
{
    for (int i = 0; i < count; i++) curves_free(&runs[i].curves);
}

/* ---- series ---- */

typedef enum y_kind {
    Y_FREE,     /* logarithmic above 1.5 decades */
    Y_PER_CENT, /* 0 to 100 */
    Y_ZERO,     /* linear, from 0 */
} y_kind;

static const struct chart_kind {
    const char *name, *title, *unit;
    y_kind y;
    series_style first_style; /* of the first column; the others are measured now and then */
    const char *first, *second;
    bool has_more; /* "SECOND_..." too */
} kinds[CHARTS] = {
    [CHART_LOSS] = { "loss", "Loss", "", Y_FREE, SERIES_NOISY, "loss", "eval_loss", false },
    [CHART_ACCURACY] = { "accuracy", "Accuracy", " %", Y_PER_CENT, SERIES_NOISY, "accuracy", "eval_accuracy", true },
    [CHART_LEARNING_RATE] = { "learning-rate", "Learning rate", "", Y_ZERO, SERIES_LINE, "lr", NULL, false },
    [CHART_GRADIENT_NORM] = { "gradient-norm", "Gradient norm", "", Y_FREE, SERIES_NOISY, "grad_norm", NULL, false },
    [CHART_SPEED] = { "speed", "Positions a second", "", Y_ZERO, SERIES_NOISY, "positions_per_second", NULL, false },
};

/* Does a chart show this column? *label is its label. */
static bool shows(const struct chart_kind *kind, const char *column, const char **label)
{
    *label = "train";
    if (!strcmp(column, kind->first)) return true;
    *label = "validation";
    if (!kind->second) return false;
    const size_t n = strlen(kind->second);
    if (!strcmp(column, kind->second)) return true;
    *label = column + n + 1;
    return kind->has_more && !strncmp(column, kind->second, n) && column[n] == '_';
}

static bool has_values(const curve *c)
{
    return c->count || c->n_bad;
}

/* The index of a column in the chart; a new column is added. */
static int place_of(chart *c, const char *label)
{
    for (int i = 0; i < c->n_columns; i++)
        if (!strcmp(c->column_label[i], label)) return i;
    if (c->n_columns == CURVES_MOST) return CURVES_MOST - 1;
    c->column_label[c->n_columns] = label;
    return c->n_columns++;
}

static bool fill_line(chart_series *s, bool in_log)
{
    enum { FEW = 32 };
    const curve *c = s->curve;
    s->n = c->n;
    if (!c->n) return true;
    s->x = malloc(sizeof *s->x * (size_t)c->n);
    s->y = malloc(sizeof *s->y * (size_t)c->n);
    if (!s->x || !s->y) return false;
    s->is_smoothed = s->style == SERIES_NOISY && c->n >= FEW;
    if (s->is_smoothed && !curve_smooth(c, in_log, s->y)) return false;
    for (int i = 0; i < c->n; i++) {
        const curve_bucket *b = &c->bucket[i];
        s->x[i] = b->x_sum / (double)b->count;
        s->y[i] = s->scale * (s->is_smoothed ? s->y[i] : b->sum / (double)b->count);
    }
    return true;
}

static void add_series(chart *c, const curve *from, int run, const char *label)
{
    const struct chart_kind *kind = &kinds[c->id];
    chart_series *s = &c->series[c->count++];
    const bool is_first = !strcmp(from->name, kind->first);
    *s = (chart_series){ .curve = from,
                         .style = is_first ? kind->first_style : SERIES_POINTS,
                         .run = run,
                         .column = place_of(c, label),
                         .scale = kind->y == Y_PER_CENT ? 100 : 1 };
}

/* Colours and labels, when it is known how many runs and columns there are. */
static void name_series(chart *c, const training_run *runs)
{
    for (int i = 0; i < c->count; i++) {
        chart_series *s = &c->series[i];
        const char *run = s->run_name = runs[s->run].name, *column = c->column_label[s->column];
        s->color = c->n_runs > 1 ? s->run : s->column;
        if (c->n_runs == 1) snprintf(s->label, sizeof s->label, "%s", c->has_columns ? column : run);
        else if (c->n_columns == 1) snprintf(s->label, sizeof s->label, "%s", run);
        else snprintf(s->label, sizeof s->label, "%.*s %.*s", CHART_SHORT_NAME, run, CURVE_NAME - 2, column);
    }
}

/* ---- axes ---- */

typedef struct extent {
    bool has_any;
    double low, high, least_positive; /* 0: none is above 0 */
} extent;

static void widen(extent *e, double value)
{
    e->low = e->has_any ? fmin(e->low, value) : value;
    e->high = e->has_any ? fmax(e->high, value) : value;
    e->has_any = true;
    if (value > 0 && (e->least_positive == 0 || value < e->least_positive)) e->least_positive = value;
}

static void x_axis(chart *c, int width)
{
    extent e = { 0 };
    for (int i = 0; i < c->count; i++) {
        const curve *v = c->series[i].curve;
        if (!v->count) continue;
        widen(&e, v->first_x);
        widen(&e, v->last_x);
    }
    if (e.low > 0 && e.low < 0.1 * e.high) e.low = 0;
    axis_whole(&c->x, e.low, e.high > e.low ? e.high : e.low + 1, width / 7);
}

/* Of everything that is drawn, raw lines too; or of the main lines only. */
static extent y_extent(const chart *c, bool of_main)
{
    extent e = { 0 };
    for (int i = 0; i < c->count; i++) {
        const chart_series *s = &c->series[i];
        for (int k = 0; of_main && k < s->n; k++) widen(&e, s->y[k]);
        if (of_main || !s->curve->count) continue;
        widen(&e, s->scale * s->curve->low);
        widen(&e, s->scale * s->curve->high);
        if (s->curve->least_positive > 0) widen(&e, s->scale * s->curve->least_positive);
    }
    if (!e.has_any) e.high = 1;
    return e;
}

static void y_axis(chart *c, int height, bool of_main)
{
    const extent e = y_extent(c, of_main);
    const int wanted = height / 3 > 2 ? height / 3 : 2;
    if (kinds[c->id].y == Y_PER_CENT) {
        axis_linear(&c->y, 0, 100, wanted < 5 ? wanted : 5, true);
        axis_unit(&c->y, c->unit);
    } else if (kinds[c->id].y == Y_ZERO) {
        const double high = e.high > 0 ? 1.04 * e.high : e.low < 0 ? 0 : 1;
        axis_linear(&c->y, fmin(1.04 * e.low, 0), high, wanted, false);
    } else if (e.low >= 0 && e.least_positive > 0 && e.high > 31.6227766 * e.least_positive) {
        const double margin = pow(e.high / e.least_positive, 0.04);
        axis_log(&c->y, e.least_positive / margin, e.high * margin, wanted);
    } else {
        const double margin = 0.04 * (e.high - e.low);
        const bool from_zero = e.low >= 0 && e.low <= 0.3 * e.high;
        axis_linear(&c->y, from_zero ? 0 : e.low - margin, e.high + margin, wanted, false);
    }
}

/* Values that are not finite cannot be drawn; a note names the first series that has some. */
static void make_note(chart *c)
{
    char at[AXIS_LABEL];
    for (int i = 0; i < c->count && !c->note[0]; i++) {
        const curve *v = c->series[i].curve;
        if (!v->n_bad) continue;
        snprintf(at, sizeof at, "%.9g", v->first_bad_x);
        snprintf(c->note, sizeof c->note, "%s: %lld value%s not finite, the first at step %s", c->series[i].label,
                 (long long)v->n_bad, v->n_bad == 1 ? " is" : "s are", at);
    }
}

/* ---- the chart ---- */

static void free_series(chart_series *s)
{
    free(s->x);
    free(s->y);
}

/* Details of the validation are for a chart of one run. */
static void add_run(chart *c, const training_run *runs, int run, bool is_alone)
{
    const struct chart_kind *kind = &kinds[c->id];
    const curves *all = &runs[run].curves;
    const bool has_second = kind->second && curves_find(all, kind->second);
    const int before = c->count;
    for (int i = 0; i < all->count; i++) {
        const char *label, *name = all->curve[i].name;
        if (!has_values(&all->curve[i]) || !shows(kind, name, &label)) continue;
        const bool is_detail = strcmp(name, kind->first) != 0 && strcmp(name, kind->second) != 0;
        if (!is_detail || is_alone || !has_second) add_series(c, &all->curve[i], run, label);
    }
    c->n_runs += c->count > before;
}

bool chart_make(chart *c, chart_id id, const training_run *runs, int n_runs, int width, int height)
{
    const struct chart_kind *kind = &kinds[id];
    *c = (chart){ .id = id, .name = kind->name, .title = kind->title, .unit = kind->unit, .has_columns = kind->second };
    int most = 1;
    for (int i = 0; i < n_runs; i++) most += runs[i].curves.count;
    c->series = calloc((size_t)most, sizeof *c->series);
    bool ok = c->series;
    for (int i = 0; i < n_runs && ok; i++) add_run(c, runs, i, n_runs == 1);
    if (c->has_columns && c->n_runs > 1 && c->n_columns == 1) c->only = c->column_label[0];
    name_series(c, runs);
    x_axis(c, width);
    y_axis(c, height, false);
    for (int i = 0; i < c->count && ok; i++) ok = fill_line(&c->series[i], c->y.is_log);
    make_note(c);
    if (ok) return true;
    cli_complain(NULL, "out of memory for a chart of %d runs", n_runs);
    chart_free(c);
    return false;
}

static bool is_often(const chart *c, int column)
{
    for (int i = 0; i < c->count; i++)
        if (c->series[i].column == column && c->series[i].n < 8) return false;
    return true;
}

void chart_reduce(chart *c, int width, int height)
{
    int column = 0, kept = 0;
    for (int i = 0; i < c->n_columns; i++)
        if (!strcmp(c->column_label[i], "validation") && is_often(c, i)) column = i;
    const bool is_chosen = c->n_runs > 1 && c->n_columns > 1;
    for (int i = 0; i < c->count && is_chosen; i++) {
        chart_series *s = &c->series[i];
        if (s->column != column) {
            free_series(s);
            continue;
        }
        snprintf(s->label, sizeof s->label, "%s", s->run_name);
        c->series[kept++] = *s;
    }
    if (is_chosen) {
        c->only = c->column_label[column];
        c->count = kept;
    }
    x_axis(c, width);
    y_axis(c, height, true);
}

void chart_free(chart *c)
{
    for (int i = 0; c->series && i < c->count; i++) free_series(&c->series[i]);
    free(c->series);
    c->series = NULL;
    c->count = 0;
}

const char *chart_last(const chart *c, const chart_series *s, char text[AXIS_LABEL])
{
    if (!s->n) return strcpy(text, "-");
    const double last = s->is_smoothed || s->curve->per_bucket == 1 ? s->y[s->n - 1] : s->scale * s->curve->last;
    if (!*c->unit) return axis_number(last, text);
    snprintf(text, AXIS_LABEL, "%.*f%s", last < 99.95 && last > -99 ? 1 : 0, fmax(-1e9, fmin(1e9, last)), c->unit);
    return text;
}
