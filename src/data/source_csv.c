/* source_csv.c - a table of numbers as a source: a row is a position, a sequence a document.
 *
 * The file stays mapped and rows are parsed when they are asked for. In memory are where each sequence begins, and where
 * in the file every ROWS_APART-th row does. All rows are parsed once when the source is made, so that a fault is told
 * then, and not in the middle of a training.
 */
#include "base/sized.h"
#include "io/bytes.h"
#include "data/csv.h"
#include "io/quote.h"
#include "data/source.h"

#include <stdio.h>
#include <string.h>

enum { ROWS_APART = 256, MOST_COLUMNS = 1 << 16, MOST_CLASSES = 1 << 24 };

typedef struct csv_source {
    kr_source base;
    kr_csv csv;
    kr_bytes path;
    kr_csv_options options;
    int64_t n_columns;
    kr_bytes fields;            /* n_columns kr_csv_field: of the row that is read */
    kr_bytes names;             /* the same: of the header */
    kr_bytes features, targets; /* int64_t: their columns */
    int64_t sequence;           /* the column; -1: none */
    kr_bytes starts;            /* int64_t: the row where each sequence begins */
    kr_bytes places;            /* kr_csv_place of every ROWS_APART-th row */
} csv_source;

KR_DEFAULTS(kr_csv_options) = {
    .size = sizeof(kr_csv_options), .delimiter = ',', .has_header = true, .memory_budget = KR_DATA_BUDGET
};

static const csv_source *of(const kr_source *source)
{
    return (const csv_source *)(const void *)source;
}

static int64_t count_of(const kr_bytes *numbers)
{
    return (int64_t)(numbers->used / sizeof(int64_t));
}

static int64_t number_at(const kr_bytes *numbers, int64_t i)
{
    int64_t n;
    memcpy(&n, numbers->data + (size_t)i * sizeof n, sizeof n);
    return n;
}

static bool add_number(csv_source *s, kr_bytes *numbers, int64_t n)
{
    void *at = kr_bytes_more(s->base.ctx, numbers, sizeof n, s->csv.path);
    if (at) memcpy(at, &n, sizeof n);
    return at;
}

static kr_csv_field *fields_of(const csv_source *s)
{
    return (kr_csv_field *)(void *)s->fields.data;
}

/* ---- rows ---- */

/* The next row, behind any blank lines. 1: there is one; 0: the end; -1: an error. */
static int next_row(const csv_source *s, kr_csv_place *place, bool *was_blank)
{
    for (;;) {
        int64_t count;
        switch (kr_csv_next(&s->csv, place, fields_of(s), s->n_columns, &count)) {
        case KR_CSV_END: return 0;
        case KR_CSV_BAD: return -1;
        case KR_CSV_BLANK: *was_blank = true; break;
        default:
            return kr_require(s->base.ctx, count == s->n_columns, KR_ERR_FORMAT,
                              "%s, line %lld: %lld columns, but there are %lld in the first line", s->csv.path,
                              (long long)place->line, (long long)count, (long long)s->n_columns)
                       ? 1
                       : -1;
        }
    }
}

static bool parse(const csv_source *s, const kr_csv_place *place, const kr_bytes *columns, float *x)
{
    for (int64_t i = 0; i < count_of(columns); i++) {
        const int64_t column = number_at(columns, i);
        if (!kr_csv_number(&s->csv, place, fields_of(s) + column, column, x + i)) return false;
    }
    return true;
}

static bool parse_class(const csv_source *s, const kr_csv_place *place, int32_t *label)
{
    float value;
    const int64_t column = number_at(&s->targets, 0);
    if (!parse(s, place, &s->targets, &value) ||
        !kr_require(s->base.ctx, value >= 0 && value < MOST_CLASSES && value == (float)(int32_t)value, KR_ERR_FORMAT,
                    "%s, line %lld, column %lld: %g is not a class, a whole number from 0 to %d", s->csv.path,
                    (long long)place->line, (long long)column + 1, (double)value, MOST_CLASSES - 1))
        return false;
    *label = (int32_t)value;
    return true;
}

static bool parse_row(const csv_source *s, const kr_csv_place *place, int64_t i, const kr_positions *out)
{
    return parse(s, place, &s->features, out->x + i * s->base.info.n_features) &&
           (!out->labels || parse_class(s, place, out->labels + i)) &&
           (!out->targets || parse(s, place, &s->targets, out->targets + i * s->base.info.n_targets));
}

static bool read_rows(const kr_source *source, int64_t from, int64_t count, const kr_positions *out)
{
    const csv_source *s = of(source);
    kr_csv_place place;
    memcpy(&place, s->places.data + (size_t)(from / ROWS_APART) * sizeof place, sizeof place);
    for (int64_t row = from / ROWS_APART * ROWS_APART; row < from + count; row++) {
        bool was_blank;
        const int got = next_row(s, &place, &was_blank);
        if (!kr_require(source->ctx, got != 0, KR_ERR_IO, "%s: ended while it was used", s->csv.path)) return false;
        if (got < 0 || (row >= from && !parse_row(s, &place, row - from, out))) return false;
    }
    return true;
}

static int64_t find_start(const kr_source *source, int64_t from, int64_t to)
{
    const csv_source *s = of(source);
    int64_t low = 0, high = count_of(&s->starts);
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (number_at(&s->starts, middle) < from) low = middle + 1;
        else high = middle;
    }
    const int64_t start = low < count_of(&s->starts) ? number_at(&s->starts, low) : to;
    return start < to ? start : to;
}

static void deinit(kr_source *source)
{
    csv_source *s = (csv_source *)(void *)source;
    if (s->csv.ctx) kr_csv_close(&s->csv);
    kr_bytes *const all[] = { &s->path, &s->fields, &s->names, &s->features, &s->targets, &s->starts, &s->places };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kr_bytes_free(source->ctx, all[i]);
}

static const kr_source_kind csv_kind = { sizeof(csv_source), read_rows, find_start, deinit };

/* ---- columns ---- */

/* Counts the columns by the first line that is not blank, and takes it as the header if there is one. */
static bool read_header(csv_source *s, kr_csv_place *place)
{
    kr_ctx *ctx = s->base.ctx;
    kr_csv_place first = *place;
    kr_csv_line kind;
    int64_t count;
    while ((kind = kr_csv_next(&s->csv, &first, NULL, 0, &count)) == KR_CSV_BLANK) *place = first;
    if (kind == KR_CSV_BAD || !kr_require(ctx, kind == KR_CSV_ROW, KR_ERR_FORMAT, "%s: has no rows", s->csv.path) ||
        !kr_require(ctx, count <= MOST_COLUMNS, KR_ERR_FORMAT, "%s, line %lld: %lld columns, but %d are the most",
                    s->csv.path, (long long)first.line, (long long)count, MOST_COLUMNS))
        return false;
    s->n_columns = count;
    const size_t bytes = (size_t)count * sizeof(kr_csv_field);
    if (!kr_bytes_more(ctx, &s->fields, bytes, s->csv.path)) return false;
    if (!s->options.has_header) return true;
    kr_csv_field *names = kr_bytes_more(ctx, &s->names, bytes, s->csv.path);
    if (!names) return false;
    kr_csv_next(&s->csv, place, names, count, &count);
    return true;
}

static bool is_called(const csv_source *s, int64_t column, const char *name, size_t length)
{
    char number[24];
    kr_csv_field own = { number, 0 };
    if (s->options.has_header) memcpy(&own, s->names.data + (size_t)column * sizeof own, sizeof own);
    else own.length = (size_t)snprintf(number, sizeof number, "%lld", (long long)column + 1);
    return own.length == length && !memcmp(own.text, name, length);
}

/* -1 with the context's error set. */
static int64_t find_column(const csv_source *s, const char *name, size_t length)
{
    for (int64_t column = 0; column < s->n_columns; column++)
        if (is_called(s, column, name, length)) return column;
    kr_fail(s->base.ctx, KR_ERR_ARG, "%s: there is no column '%s' among %lld", s->csv.path,
            kr_quote_of(name, length).text, (long long)s->n_columns);
    return -1;
}

static bool find_columns(csv_source *s, const char *names, kr_bytes *columns)
{
    for (const char *name = names; name;) {
        const char *end = strchr(name, ',');
        const int64_t column = find_column(s, name, end ? (size_t)(end - name) : strlen(name));
        if (column < 0 || !add_number(s, columns, column)) return false;
        name = end ? end + 1 : NULL;
    }
    return true;
}

static bool is_among(const kr_bytes *columns, int64_t column)
{
    for (int64_t i = 0; i < count_of(columns); i++)
        if (number_at(columns, i) == column) return true;
    return false;
}

static bool choose_columns(csv_source *s)
{
    const kr_csv_options *o = &s->options;
    kr_ctx *ctx = s->base.ctx;
    s->sequence = o->sequence ? find_column(s, o->sequence, strlen(o->sequence)) : -1;
    if (kr_ctx_failed(ctx) || !find_columns(s, o->targets, &s->targets) || !find_columns(s, o->features, &s->features))
        return false;
    for (int64_t column = 0; !o->features && column < s->n_columns; column++) {
        if (column == s->sequence || is_among(&s->targets, column)) continue;
        if (!add_number(s, &s->features, column)) return false;
    }
    const int64_t n_features = count_of(&s->features), n_targets = count_of(&s->targets);
    if (!kr_require(ctx, n_features > 0, KR_ERR_ARG, "%s: no column is left for the features", s->csv.path) ||
        !kr_require(ctx, !o->is_class || n_targets == 1, KR_ERR_ARG, "%s: is_class wants one target, not %lld",
                    s->csv.path, (long long)n_targets))
        return false;
    s->base.info.n_features = n_features;
    s->base.info.predicts_next = n_targets == 0;
    s->base.info.n_targets = o->is_class ? 0 : n_targets ? n_targets : n_features;
    return true;
}

/* ---- the first pass ---- */

static bool index_row(csv_source *s, const kr_csv_place *before, bool begins)
{
    kr_ctx *ctx = s->base.ctx;
    if (begins && !add_number(s, &s->starts, s->base.info.count)) return false;
    if (s->base.info.count % ROWS_APART == 0) {
        void *at = kr_bytes_more(ctx, &s->places, sizeof *before, s->csv.path);
        if (!at) return false;
        memcpy(at, before, sizeof *before);
    }
    s->base.info.count++;
    return kr_require(ctx, s->starts.used + s->places.used <= s->options.memory_budget, KR_ERR_ARG,
                      "%s: the index of its sequences takes more than memory_budget = %zu", s->csv.path,
                      s->options.memory_budget);
}

/* Does the row in s->fields belong to another sequence than the last one did? */
static bool is_other_sequence(const csv_source *s, bool was_blank, kr_csv_field *last)
{
    if (s->sequence < 0) return was_blank;
    const kr_csv_field now = fields_of(s)[s->sequence];
    const bool differs = now.length != last->length || memcmp(now.text, last->text, now.length) != 0;
    *last = now;
    return differs;
}

static bool scan(csv_source *s, kr_csv_place place, float *row)
{
    kr_csv_field last = { "", 0 };
    for (;;) {
        bool was_blank = false;
        const kr_csv_place before = place;
        const int got = next_row(s, &place, &was_blank);
        if (got <= 0)
            return got == 0 &&
                   kr_require(s->base.ctx, s->base.info.count > 0, KR_ERR_FORMAT, "%s: has no rows", s->csv.path);
        int32_t label = 0;
        const kr_positions out = { .x = row,
                                   .labels = s->options.is_class ? &label : NULL,
                                   .targets = !s->options.is_class && s->targets.used ? row : NULL };
        if (!parse_row(s, &place, 0, &out)) return false;
        if (s->options.is_class && label >= s->base.info.n_classes) s->base.info.n_classes = label + 1;
        const bool is_other = is_other_sequence(s, was_blank, &last);
        if (!index_row(s, &before, is_other || s->base.info.count == 0)) return false;
    }
}

static bool build(csv_source *s, const char *path)
{
    kr_ctx *ctx = s->base.ctx;
    const char d = s->options.delimiter;
    if (!kr_require(ctx, path, KR_ERR_ARG, "csv: path is NULL") ||
        !kr_require(ctx, d != '\0' && d != '\n' && d != '\r' && d != '"', KR_ERR_ARG,
                    "csv: the delimiter cannot be a zero, a line break or a double quote"))
        return false;
    char *name = kr_bytes_more(ctx, &s->path, strlen(path) + 1, "csv");
    if (!name) return false;
    memcpy(name, path, strlen(path) + 1);
    if (!kr_csv_open(&s->csv, ctx, name, d)) return false;
    kr_csv_place place = kr_csv_begin(&s->csv);
    kr_bytes row = { NULL, 0, 0 };
    bool ok = read_header(s, &place) && choose_columns(s);
    const int64_t width =
        s->base.info.n_features > s->base.info.n_targets ? s->base.info.n_features : s->base.info.n_targets;
    ok = ok && kr_bytes_more(ctx, &row, (size_t)width * sizeof(float), path);
    ok = ok && scan(s, place, (float *)(void *)row.data);
    kr_bytes_free(ctx, &row);
    return ok;
}

kr_source *kr_source_csv(kr_ctx *ctx, const char *path, const kr_csv_options *options)
{
    kr_csv_options own;
    if (kr_ctx_failed(ctx) || !KR_TAKE(ctx, "csv", kr_csv_options, options, &own)) return NULL;
    kr_source *source = kr_source_new(ctx, &csv_kind);
    if (!source) return NULL;
    csv_source *s = (csv_source *)(void *)source;
    s->options = own;
    const bool ok = build(s, path);
    s->options.features = s->options.targets = s->options.sequence = NULL; /* the caller's, not needed any longer */
    if (ok) return source;
    kr_source_destroy(source);
    return NULL;
}
