/* chart_text.c - draws a chart in characters. A cell of braille has 2 x 4 dots, a cell of letters is one. */
#define _POSIX_C_SOURCE 200809L
#include "cli/report/chart_text.h"

#include "cli/common/cli_utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_COLUMNS = 200, MOST_ROWS = 60, MOST_SHOWN = 64, LABEL_COLUMNS = 26, Y_COLUMNS = 8 };

typedef struct cell {
    unsigned char dots; /* braille: bits of U+2800; letters: the letter, 0: none */
    signed char color;  /* -1: none */
} cell;

typedef struct canvas {
    FILE *out;
    const chart *c;
    const text_style *style;
    int columns, rows, y_columns; /* of the space for curves, in cells; of the labels at its left */
    int wide, high;               /* dots of a cell */
    int n_shown;
    const chart_series *shown[MOST_SHOWN];
    int end_row[MOST_SHOWN], label_row[MOST_SHOWN];
    cell cell[MOST_ROWS][MOST_COLUMNS];
} canvas;

text_style text_style_of(FILE *out)
{
    const char *no_color = getenv("NO_COLOR");
    return (text_style){ 80, 12, cli_locale_is_utf8(), isatty(fileno(out)) && !(no_color && *no_color) };
}

/* ---- text ---- */

/* At most `most` characters; control characters, and characters that the locale cannot show, become '?'. */
static int put_clean(const canvas *v, const char *text, int most)
{
    int columns = 0;
    for (size_t n; *text && columns < most; text += n, columns++) {
        n = cli_utf8_bytes(text, strlen(text));
        const bool is_shown = n && !cli_utf8_is_control(text, n) && (n == 1 || v->style->is_utf8);
        if (is_shown) fwrite(text, 1, n, v->out);
        else fputc('?', v->out);
        if (!n) n = 1;
    }
    return columns;
}

static void color_on(const canvas *v, int color)
{
    static const int codes[CHART_COLORS] = { 36, 33, 35, 32, 94, 91, 37, 95 };
    if (v->style->has_color && color >= 0) fprintf(v->out, "\033[%dm", codes[color % CHART_COLORS]);
}

static void color_off(const canvas *v, int color)
{
    if (v->style->has_color && color >= 0) fputs("\033[0m", v->out);
}

static char letter_of(int color)
{
    return "*o+x#@%&"[color % CHART_COLORS];
}

/* ---- dots ---- */

/* In colour all lines are whole; without, they differ by their gaps. */
static bool is_gap(const canvas *v, int color, int along)
{
    if (v->style->has_color || !v->style->is_utf8) return false;
    return color % 3 == 1 ? along % 4 > 1 : color % 3 == 2 ? along % 8 > 4 : false;
}

static void dot(canvas *v, int x, int y, int color, int along)
{
    static const unsigned char bits[4][2] = { { 0x01, 0x08 }, { 0x02, 0x10 }, { 0x04, 0x20 }, { 0x40, 0x80 } };
    if (x < 0 || y < 0 || x >= v->columns * v->wide || y >= v->rows * v->high || is_gap(v, color, along)) return;
    cell *at = &v->cell[y / v->high][x / v->wide];
    if (v->style->is_utf8) at->dots = (unsigned char)(at->dots | bits[y % 4][x % 2]);
    else at->dots = (unsigned char)letter_of(color);
    at->color = (signed char)(color % CHART_COLORS);
}

/* In dots, a little outside at most. */
static double x_dot(const canvas *v, double x)
{
    const double last = v->columns * v->wide - 1;
    return fmax(-1, fmin(last + 1, axis_at(&v->c->x, x) * last));
}

static double y_dot(const canvas *v, double y)
{
    const double last = v->rows * v->high - 1;
    return fmax(0, fmin(last, (1 - axis_at(&v->c->y, y)) * last));
}

static void line(canvas *v, const chart_series *s)
{
    int along = 0;
    for (int i = 0; i < s->n; i++) {
        const double x1 = x_dot(v, s->x[i]), y1 = y_dot(v, s->y[i]);
        const double x0 = i ? x_dot(v, s->x[i - 1]) : x1, y0 = i ? y_dot(v, s->y[i - 1]) : y1;
        const int steps = (int)ceil(fmax(fabs(x1 - x0), fabs(y1 - y0)));
        for (int k = steps ? 1 : 0; k <= steps; k++, along++) {
            const double t = steps ? (double)k / steps : 0;
            dot(v, (int)lround(x0 + t * (x1 - x0)), (int)lround(y0 + t * (y1 - y0)), s->color, along);
        }
    }
}

/* ---- output ---- */

static void choose(canvas *v)
{
    const chart *c = v->c;
    while (v->n_shown < c->count && v->n_shown < MOST_SHOWN) {
        v->shown[v->n_shown] = &c->series[v->n_shown];
        v->n_shown++;
    }
    fprintf(v->out, "%*s  %s", v->y_columns, "", c->title);
    if (c->only) {
        fputs(", ", v->out);
        put_clean(v, c->only, CURVE_NAME);
    }
    fputs(c->y.is_log ? ", logarithmic\n" : "\n", v->out);
}

/* Labels are at the ends of their curves, one per row: placed from the top down, moved down if the row is taken, then
 * up from the bottom if they overflow. */
static void place_labels(canvas *v)
{
    int order[MOST_SHOWN];
    for (int i = 0; i < v->n_shown; i++) {
        const chart_series *s = v->shown[i];
        v->end_row[i] = s->n ? (int)lround(y_dot(v, s->y[s->n - 1])) / v->high : v->rows - 1;
        int k = i;
        for (; k > 0 && v->end_row[order[k - 1]] > v->end_row[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    for (int i = 0, next = 0; i < v->n_shown; i++) {
        const int row = v->end_row[order[i]] > next ? v->end_row[order[i]] : next;
        v->label_row[order[i]] = row;
        next = row + 1;
    }
    for (int i = v->n_shown - 1, last = v->rows - 1; i >= 0; i--) {
        if (v->label_row[order[i]] > last) v->label_row[order[i]] = last;
        last = v->label_row[order[i]] - 1;
    }
}

/* ---- output ---- */

static void put_cell(const canvas *v, const cell *at)
{
    if (!at->dots) fputc(' ', v->out);
    else if (!v->style->is_utf8) fputc(at->dots, v->out);
    else fprintf(v->out, "\xe2%c%c", 0xa0 + (at->dots >> 6), 0x80 + (at->dots & 0x3f));
}

static void put_cells(const canvas *v, int row, bool has_label)
{
    int color = -1, columns = v->columns;
    while (!has_label && columns > 0 && !v->cell[row][columns - 1].dots) columns--;
    for (int i = 0; i < columns; i++) {
        const cell *at = &v->cell[row][i];
        const int next = at->dots ? at->color : -1;
        if (next != color) {
            color_off(v, color);
            color_on(v, next);
            color = next;
        }
        put_cell(v, at);
    }
    color_off(v, color);
}

static void put_label(const canvas *v, int row)
{
    char last[AXIS_LABEL];
    for (int i = 0; i < v->n_shown; i++) {
        const chart_series *s = v->shown[i];
        if (v->label_row[i] != row) continue;
        fputc(' ', v->out);
        color_on(v, s->color % CHART_COLORS);
        if (!v->style->is_utf8) fprintf(v->out, "%c ", letter_of(s->color));
        const char *value = chart_last(v->c, s, last);
        const int columns = LABEL_COLUMNS - (int)strlen(value) - 4;
        if (put_clean(v, s->label, columns)) fputc(' ', v->out);
        fputs(value, v->out);
        color_off(v, s->color % CHART_COLORS);
        return;
    }
}

static void put_row(const canvas *v, int row)
{
    const axis *y = &v->c->y;
    const char *label = "", *border = v->style->is_utf8 ? "\xe2\x94\x82" : "|";
    for (int i = 0; i < y->count; i++) {
        if ((int)lround(y_dot(v, y->tick[i])) / v->high != row) continue;
        label = y->label[i];
        border = v->style->is_utf8 ? "\xe2\x94\xa4" : "+";
    }
    fprintf(v->out, "%*s %s", v->y_columns, label, border);
    bool has_label = false;
    for (int i = 0; i < v->n_shown; i++) has_label = has_label || v->label_row[i] == row;
    put_cells(v, row, has_label);
    put_label(v, row);
    fputc('\n', v->out);
}

/* The line below the curves, and the steps below it. */
static void put_x_axis(const canvas *v)
{
    const axis *x = &v->c->x;
    bool is_tick[MOST_COLUMNS] = { false };
    char labels[MOST_COLUMNS + AXIS_LABEL + 1];
    const int width = v->columns + 4;
    int next = 0;
    memset(labels, ' ', sizeof labels);
    for (int i = 0; i < x->count; i++) {
        const int at = (int)lround(x_dot(v, x->tick[i])) / v->wide, length = (int)strlen(x->label[i]);
        if (at < 0 || at >= v->columns) continue;
        is_tick[at] = true;
        int from = at - length / 2 > 0 ? at - length / 2 : 0;
        if (from + length > width) from = width - length;
        if (from < next) continue;
        memcpy(labels + from, x->label[i], (size_t)length);
        next = from + length + 1;
    }
    labels[next > 0 ? next - 1 : 0] = 0;
    fprintf(v->out, "%*s %s", v->y_columns, "", v->style->is_utf8 ? "\xe2\x94\x94" : "+");
    for (int i = 0; i < v->columns; i++)
        fputs(!v->style->is_utf8 ? (is_tick[i] ? "+" : "-") : is_tick[i] ? "\xe2\x94\xac" : "\xe2\x94\x80", v->out);
    fprintf(v->out, "\n%*s  %s%s\n", v->y_columns, "", labels, next + 6 < v->columns + LABEL_COLUMNS ? "  step" : "");
}

void chart_text(FILE *out, const chart *c, const text_style *style)
{
    canvas *v = calloc(1, sizeof *v);
    if (!v) return;
    *v = (canvas){ .out = out, .c = c, .style = style, .y_columns = Y_COLUMNS };
    v->rows = style->rows < MOST_ROWS ? style->rows : MOST_ROWS;
    v->columns = style->columns - Y_COLUMNS - 2 - LABEL_COLUMNS - 1;
    if (v->columns < 16) v->columns = 16;
    if (v->columns > MOST_COLUMNS) v->columns = MOST_COLUMNS;
    v->wide = style->is_utf8 ? 2 : 1;
    v->high = style->is_utf8 ? 4 : 1;
    choose(v);
    for (int i = v->n_shown - 1; i >= 0; i--) line(v, v->shown[i]);
    place_labels(v);
    for (int row = 0; row < v->rows; row++) put_row(v, row);
    put_x_axis(v);
    if (c->note[0]) {
        fprintf(out, "%*s  ", v->y_columns, "");
        put_clean(v, c->note, 68);
        fputc('\n', out);
    }
    free(v);
}
