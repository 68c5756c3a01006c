/* chart_svg.c - draws a chart in SVG. Coordinates are pixels with one decimal; the order of things is that of the chart,
 * so that the same chart gives the same bytes. */
#include "cli/report/chart_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    LETTER = 7,
    LEGEND_LETTER = 8,
    LEGEND_GAP = 12,
    LEGEND_ROW = 20,
    SWATCH = 22,
    MOST_RAW_RUNS = 4,
    MOST_POINTS = 80,
    MOST_LABEL = 34,
    LEGEND_FROM = 500
};

typedef struct plot {
    markup *m;
    const chart *c;
    int width, height;
    double left, right, top, bottom;
    bool has_no_legend;
} plot;

/* ---- style ---- */

/* Eight colours that are distinct for any colour vision, after Okabe and Ito, dark enough on white and bright enough on
 * black. Plain properties, no variables: viewers of files know few of them. */
static const char *const light[CHART_COLORS] = { "#0072b2", "#d55e00", "#00896b", "#b0569e",
                                                 "#a97800", "#3a9ad9", "#5d6872", "#8a4b2a" };
static const char *const dark[CHART_COLORS] = { "#5ab4f5", "#ff9452", "#3dd1a5", "#e59fd3",
                                                "#f2c14b", "#a5d8ff", "#aeb8c2", "#d3a27f" };

static void color_rules(markup *m, const char *const *colors)
{
    for (int i = 0; i < CHART_COLORS; i++) markup_format(m, ".k%d{stroke:%s}.p%d{fill:%s}", i, colors[i], i, colors[i]);
    markup_add(m, "\n");
}

void chart_svg_style(markup *m)
{
    markup_add(m, ".chart text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;"
                  "fill:#59636e}\n"
                  ".chart .name{font-size:15px;font-weight:600;fill:#1c2127}.chart .value{fill:#1c2127}\n"
                  ".chart .note{font-size:11px;font-style:italic}.chart .end{text-anchor:end}"
                  ".chart .mid{text-anchor:middle}\n"
                  ".chart .paper{fill:#ffffff}.chart .grid{stroke:#e3e7eb;stroke-width:1}"
                  ".chart .base{stroke:#8d97a1;stroke-width:1}\n"
                  ".main,.raw,.key{fill:none;stroke-linejoin:round;stroke-linecap:round}.main{stroke-width:2}"
                  ".raw{stroke-width:1;opacity:.32}.thin{stroke-width:1.5}\n"
                  ".dash{stroke-dasharray:7 5}.dots{stroke-dasharray:1.5 4.5}.point{stroke-width:1.5}"
                  ".point.best{stroke-width:2.5}.key{stroke-width:2.5}.plain{stroke:#59636e}\n");
    color_rules(m, light);
    markup_add(m, "@media (prefers-color-scheme:dark){\n"
                  ".chart text{fill:#a3adb8}.chart .name,.chart .value{fill:#e8ecf0}.chart .paper{fill:#171b20}"
                  ".chart .grid{stroke:#2b3138}.chart .base{stroke:#6b757f}.plain{stroke:#a3adb8}\n");
    color_rules(m, dark);
    markup_add(m, "}\n");
}

/* ---- places ---- */

static double px(const plot *p, double value)
{
    const double at = axis_at(&p->c->x, value);
    return p->left + fmax(-9, fmin(9, at)) * (p->right - p->left);
}

static double py(const plot *p, double value)
{
    const double at = axis_at(&p->c->y, value);
    return p->bottom - fmax(-9, fmin(9, at)) * (p->bottom - p->top);
}

/* Characters, not bytes: how wide a text is going to be, about. */
static int letters(const char *text)
{
    int n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

static void text_at(plot *p, double x, double y, const char *class, const char *text)
{
    markup_format(p->m, "<text x=\"%.1f\" y=\"%.1f\"", x, y);
    if (*class) markup_format(p->m, " class=\"%s\"", class);
    markup_add(p->m, ">");
    markup_text(p->m, text);
    markup_add(p->m, "</text>\n");
}

/* ---- legend ---- */

/* How a column's line differs from the first one's where colours distinguish runs; and a run's from one eight before
 * it. */
static const char *dashes(const chart *c, const chart_series *s)
{
    static const char *const kinds[] = { "", " dash", " dots" };
    const int kind = c->n_runs > 1 ? s->column + s->run / CHART_COLORS : s->color / CHART_COLORS;
    return kinds[kind < 3 ? kind : 2];
}

static void key(plot *p, double x, double y, const char *stroke, const char *dash, bool has_point, const char *fill)
{
    markup_format(p->m, "<path class=\"key %s%s\" d=\"M%.1f %.1fh%d\"/>", stroke, dash, x, y - 4, SWATCH - 6);
    if (has_point)
        markup_format(p->m, "<circle class=\"point %s %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>", stroke, fill,
                      x + (SWATCH - 6) / 2.0, y - 4);
    markup_add(p->m, "\n");
}

/* One entry of the legend, in the next row if this one is full; draws only where p->m is not NULL. */
typedef struct legend {
    plot *p;
    double x, y;
    int rows;
} legend;

static void entry(legend *l, const chart_series *s, const char *label, const char *value, bool is_plain)
{
    char stroke[16], shown[CHART_LABEL + 8];
    const int all = letters(label);
    size_t bytes = 0;
    for (int n = 0; label[bytes] && n < MOST_LABEL + 1; bytes++) n += (label[bytes + 1] & 0xc0) != 0x80;
    if (all > MOST_LABEL) snprintf(shown, sizeof shown, "%.*s\xe2\x80\xa6", (int)bytes, label);
    else snprintf(shown, sizeof shown, "%s", label);
    const double width = SWATCH + LEGEND_LETTER * (letters(shown) + (*value ? letters(value) + 1 : 0)) + LEGEND_GAP;
    if (l->x + width > l->p->width - 8 && l->x > l->p->left) {
        l->x = l->p->left;
        l->y += LEGEND_ROW;
        l->rows++;
    }
    if (l->p->m) {
        markup *m = l->p->m;
        snprintf(stroke, sizeof stroke, is_plain ? "plain" : "k%d", s->color % CHART_COLORS);
        key(l->p, l->x, l->y, stroke,
            is_plain || l->p->c->n_columns == 1 || l->p->c->n_runs == 1 ? dashes(l->p->c, s) : "",
            s->style == SERIES_POINTS && (is_plain || l->p->c->n_runs == 1), "paper");
        markup_format(m, "<text x=\"%.1f\" y=\"%.1f\">", l->x + SWATCH, l->y);
        markup_text(m, shown);
        if (*value) {
            markup_add(m, " <tspan class=\"value\">");
            markup_text(m, value);
            markup_add(m, "</tspan>");
        }
        markup_add(m, "</text>\n");
    }
    l->x += width;
}

static bool is_first_of(const chart *c, int i, bool of_run)
{
    for (int k = 0; k < i; k++)
        if (of_run ? c->series[k].run == c->series[i].run : c->series[k].column == c->series[i].column) return false;
    return true;
}

/* One run: its columns. Several: the runs by colour, then the columns by their kind of line. Returns the rows. */
static int draw_legend(plot *p, double y)
{
    const chart *c = p->c;
    char value[AXIS_LABEL];
    legend l = { p, p->left, y, 1 };
    if (p->has_no_legend || (c->count < 2 && !c->has_columns)) return 0;
    for (int i = 0; i < c->count; i++) {
        const chart_series *s = &c->series[i];
        const bool is_alone = c->n_runs == 1 || c->n_columns == 1;
        if (!is_alone && !is_first_of(c, i, true)) continue;
        entry(&l, s, is_alone ? s->label : s->run_name, is_alone && c->count <= 6 ? chart_last(c, s, value) : "",
              false);
    }
    for (int i = 0; c->n_runs > 1 && c->n_columns > 1 && i < c->count; i++)
        if (is_first_of(c, i, false)) entry(&l, &c->series[i], c->column_label[c->series[i].column], "", true);
    return l.rows;
}

/* ---- curves ---- */

static void move(plot *p, bool is_first, double x, double y)
{
    markup_format(p->m, "%s%.1f %.1f", is_first ? "M" : " ", px(p, x), py(p, y));
}

static void begin_path(plot *p, const chart_series *s, const char *class)
{
    markup_format(p->m, "<path class=\"%s k%d%s\" d=\"", class, s->color % CHART_COLORS, dashes(p->c, s));
}

/* Through the lowest and the highest value within a pixel, in their order: no spike is lost. */
static void raw_line(plot *p, const chart_series *s)
{
    const int n = s->curve->n, together = 1 + n / (int)(p->right - p->left);
    markup_format(p->m, "<path class=\"raw k%d\" d=\"", s->color % CHART_COLORS);
    for (int i = 0; i < n; i += together) {
        const curve_bucket *low = &s->curve->bucket[i], *high = low;
        for (int k = i + 1; k < n && k < i + together; k++) {
            if (s->curve->bucket[k].low < low->low) low = &s->curve->bucket[k];
            if (s->curve->bucket[k].high > high->high) high = &s->curve->bucket[k];
        }
        const bool low_first = low->low_x <= high->high_x;
        if (low_first) move(p, i == 0, low->low_x, s->scale * low->low);
        if (!low_first || low->low < high->high) move(p, i == 0 && !low_first, high->high_x, s->scale * high->high);
        if (!low_first) move(p, false, low->low_x, s->scale * low->low);
    }
    markup_add(p->m, "\"/>\n");
}

static void point(plot *p, const chart_series *s, double x, double y, bool is_best)
{
    markup_format(p->m, "<circle class=\"point%s k%d %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"/>\n", is_best ? " best" : "",
                  s->color % CHART_COLORS, "paper", px(p, x), py(p, y), is_best ? "5" : "2.6");
}

static void main_line(plot *p, const chart_series *s)
{
    const bool has_points = s->style == SERIES_POINTS && s->n <= MOST_POINTS && p->c->count <= 12;
    if (s->n > 1) {
        begin_path(p, s, s->style == SERIES_POINTS ? "main thin" : "main");
        for (int i = 0; i < s->n; i++) move(p, i == 0, s->x[i], s->y[i]);
        markup_add(p->m, "\"/>\n");
    }
    for (int i = 0; i < s->n && (has_points || s->n == 1); i++) point(p, s, s->x[i], s->y[i], false);
    if (p->c->n_runs > 1 || s->n < 2 || strcmp(p->c->column_label[s->column], "validation") != 0) return;
    const bool is_loss = p->c->id == CHART_LOSS;
    point(p, s, is_loss ? s->curve->low_x : s->curve->high_x, s->scale * (is_loss ? s->curve->low : s->curve->high),
          true);
}

static void draw_curves(plot *p)
{
    const chart *c = p->c;
    markup_format(p->m,
                  "<clipPath id=\"%s-clip\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/></clipPath>\n",
                  c->name, p->left - 1, p->top - 6, p->right - p->left + 7, p->bottom - p->top + 8);
    markup_format(p->m, "<g clip-path=\"url(#%s-clip)\">\n", c->name);
    for (int i = 0; i < c->count; i++)
        if (c->series[i].is_smoothed && c->n_runs <= MOST_RAW_RUNS) raw_line(p, &c->series[i]);
    for (int i = 0; i < c->count; i++) main_line(p, &c->series[i]);
    markup_add(p->m, "</g>\n");
}

/* ---- axes ---- */

static void draw_axes(plot *p)
{
    const chart *c = p->c;
    double free_from = -1e9; /* no label over the one before it */
    for (int i = 0; i < c->y.count; i++) {
        const double y = py(p, c->y.tick[i]);
        markup_format(p->m, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", p->left, y, p->right);
        text_at(p, p->left - 8, y + 4, "end", c->y.label[i]);
    }
    markup_format(p->m, "<path class=\"base\" d=\"M%.1f %.1fH%.1f\"/>\n", p->left, p->bottom, p->right);
    for (int i = 0; i < c->x.count; i++) {
        const double x = px(p, c->x.tick[i]), half = letters(c->x.label[i]) * LETTER / 2.0;
        markup_format(p->m, "<path class=\"base\" d=\"M%.1f %.1fv5\"/>\n", x, p->bottom);
        if (x - half < free_from) continue;
        text_at(p, x, p->bottom + 19, "mid", c->x.label[i]);
        free_from = x + half + LETTER;
    }
    text_at(p, (p->left + p->right) / 2, p->bottom + 36, "mid", "step");
    if (c->note[0]) text_at(p, p->left, p->bottom + 52, "note", c->note);
}

/* ---- words ---- */

static void describe(plot *p)
{
    const chart *c = p->c;
    char low[AXIS_LABEL], high[AXIS_LABEL], last[AXIS_LABEL], at[AXIS_LABEL];
    markup_format(p->m, "<title id=\"%s-title\">%s</title>\n<desc id=\"%s-desc\">%s by step, %s scale.", c->name,
                  c->title, c->name, c->title, c->y.is_log ? "logarithmic" : "linear");
    for (int i = 0; i < c->count && i < 12; i++) {
        const chart_series *s = &c->series[i];
        if (!s->n) continue;
        markup_add(p->m, " ");
        markup_text(p->m, s->label);
        markup_format(p->m, ": from %s%s to %s%s, %s at step %s.", axis_number(s->scale * s->curve->low, low), c->unit,
                      axis_number(s->scale * s->curve->high, high), c->unit, chart_last(c, s, last),
                      axis_number(s->curve->last_x, at));
    }
    if (c->note[0]) {
        markup_add(p->m, " ");
        markup_text(p->m, c->note);
        markup_add(p->m, ".");
    }
    markup_add(p->m, "</desc>\n");
}

void chart_svg(markup *m, const chart *c, int width, int height, bool is_file)
{
    plot p = { .c = c,
               .width = width,
               .height = height,
               .right = width - 18,
               .bottom = height - (c->note[0] ? 60 : 44),
               .has_no_legend = !is_file && width < LEGEND_FROM && c->n_runs > 1 };
    int widest = 3;
    for (int i = 0; i < c->y.count; i++)
        if (letters(c->y.label[i]) > widest) widest = letters(c->y.label[i]);
    p.left = 20 + LETTER * widest;
    const int rows = draw_legend(&p, 0);
    p.top = 44 + LEGEND_ROW * rows;
    const double missing = 140 - (p.bottom - p.top); /* a long legend makes a higher chart */
    if (missing > 0) {
        p.bottom += missing;
        height += (int)missing;
    }
    p.m = m;
    markup_format(m, "<svg%s class=\"chart\" viewBox=\"0 0 %d %d\"",
                  is_file ? " xmlns=\"http://www.w3.org/2000/svg\"" : "", width, height);
    if (is_file) markup_format(m, " width=\"%d\" height=\"%d\"", width, height);
    markup_format(m, " role=\"img\" aria-labelledby=\"%s-title %s-desc\">\n", c->name, c->name);
    describe(&p);
    if (is_file) {
        markup_add(m, "<style>\n");
        chart_svg_style(m);
        markup_add(m, "</style>\n");
    }
    markup_format(m, "<rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n", width, height);
    char title[CHART_LABEL];
    snprintf(title, sizeof title, "%s%s%s", c->title, c->only ? ", " : "", c->only ? c->only : "");
    text_at(&p, p.left, 24, "name", title);
    draw_legend(&p, 46);
    draw_axes(&p);
    draw_curves(&p);
    markup_add(m, "</svg>\n");
}
