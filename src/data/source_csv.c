/* source_csv.c - a table of numbers as a source: a row is a position, a sequence a document.
 *
 * The file stays mapped and rows are parsed on demand. An index in memory has the start of each sequence, and the file
 * offset of every ROWS_APART-th row. All rows are parsed once when the source is created, so that errors are reported
 * then and not during training.
 *
 * A missing value is a NaN from the parser to finish_row, which fills in features and scales all values by the columns'
 * statistics; NaNs of targets are passed to the loader. Where the last value of a column is filled in, the index also
 * has the last values before every ROWS_APART-th row.
 */
#include "base/sized.h"
#include "io/bytes.h"
#include "data/columns.h"
#include "data/csv.h"
#include "data/loader.h"
#include "io/quote.h"

#include <float.h>
#include <math.h>
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
    kr_bytes positions;         /* kr_csv_position of every ROWS_APART-th row */
    kr_bytes texts;             /* the names of the columns below, each with a final 0 */
    kr_bytes columns;           /* kr_column: of the features, then of targets that are numbers */
    bool is_fitted;             /* they are known, or not needed */
    kr_bytes row;               /* float: features and targets of one row, to work with */
    kr_bytes last;              /* float [n_features]: the last values in the sequence, NaN: none yet */
    kr_bytes carried;           /* the same, before every ROWS_APART-th row; only where they are filled in */
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

static float *floats_of(const kr_bytes *bytes)
{
    return (float *)(void *)bytes->data;
}

static kr_column *columns_of(const csv_source *s)
{
    return (kr_column *)(void *)s->columns.data;
}

static int64_t count_columns(const csv_source *s)
{
    return (int64_t)(s->columns.used / sizeof(kr_column));
}

static bool fills_forward(const csv_source *s)
{
    return s->options.missing == KR_CSV_MISSING_FORWARD;
}

/* Are numbers of the columns needed? */
static bool needs_fit(const csv_source *s)
{
    return s->options.scaling != KR_CSV_SCALING_NONE || s->options.missing == KR_CSV_MISSING_MEAN || fills_forward(s);
}

/* ---- rows ---- */

/* Does a field that is read have no value? */
static bool misses_any(const csv_source *s)
{
    const kr_bytes *const lists[] = { &s->features, &s->targets };
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < count_of(lists[k]); i++)
            if (kr_csv_is_missing(fields_of(s) + number_at(lists[k], i))) return true;
    return false;
}

/* The next row, after blank lines and skipped rows. 1: there is one; 0: the end; -1: an error. */
static int next_row(const csv_source *s, kr_csv_position *position, bool *was_blank)
{
    for (;;) {
        int64_t count;
        switch (kr_csv_next(&s->csv, position, fields_of(s), s->n_columns, &count)) {
        case KR_CSV_END: return 0;
        case KR_CSV_BAD: return -1;
        case KR_CSV_BLANK: *was_blank = true; break;
        default:
            if (!kr_require(s->base.ctx, count == s->n_columns, KR_ERR_FORMAT,
                            "%s, line %lld: %lld columns, but there are %lld in the first line", s->csv.path,
                            (long long)position->line, (long long)count, (long long)s->n_columns))
                return -1;
            if (s->options.missing != KR_CSV_MISSING_DROP || !misses_any(s)) return 1;
        }
    }
}

static bool parse(const csv_source *s, const kr_csv_position *position, const kr_bytes *columns, float *x)
{
    for (int64_t i = 0; i < count_of(columns); i++) {
        const int64_t column = number_at(columns, i);
        const bool is_missing = kr_csv_is_missing(fields_of(s) + column);
        if (is_missing && s->options.missing != KR_CSV_MISSING_ERROR) {
            x[i] = (float)NAN;
            continue;
        }
        if (!kr_require(s->base.ctx, !is_missing, KR_ERR_FORMAT,
                        "%s, line %lld, column %lld: '%s' is a missing value, and kr_csv_options.missing is error",
                        s->csv.path, (long long)position->line, (long long)column + 1,
                        kr_quote_of(fields_of(s)[column].text, fields_of(s)[column].length).text) ||
            !kr_csv_number(&s->csv, position, fields_of(s) + column, column, x + i))
            return false;
    }
    return true;
}

static bool parse_class(const csv_source *s, const kr_csv_position *position, int32_t *label)
{
    float value;
    const int64_t column = number_at(&s->targets, 0);
    if (!parse(s, position, &s->targets, &value)) return false;
    if (isnan(value)) {
        *label = KR_NOT_SCORED;
        return true;
    }
    if (!kr_require(s->base.ctx, value >= 0 && value < MOST_CLASSES && value == (float)(int32_t)value, KR_ERR_FORMAT,
                    "%s, line %lld, column %lld: %g is not a class, a whole number from 0 to %d", s->csv.path,
                    (long long)position->line, (long long)column + 1, (double)value, MOST_CLASSES - 1))
        return false;
    *label = (int32_t)value;
    return true;
}

static bool parse_row(const csv_source *s, const kr_csv_position *position, int64_t i, const kr_positions *out)
{
    return parse(s, position, &s->features, out->x + i * s->base.info.n_features) &&
           (!out->labels || parse_class(s, position, out->labels + i)) &&
           (!out->targets || parse(s, position, &s->targets, out->targets + i * s->base.info.n_targets));
}

/* ---- filling in and scaling ---- */

static void forget_last(const csv_source *s)
{
    for (int64_t i = 0; i < s->base.info.n_features; i++) floats_of(&s->last)[i] = (float)NAN;
}

static void keep_last(const csv_source *s, const float *x)
{
    for (int64_t i = 0; i < s->base.info.n_features; i++)
        if (!isnan(x[i])) floats_of(&s->last)[i] = x[i];
}

static bool scale(const csv_source *s, const kr_csv_position *position, int64_t column, float *x)
{
    const kr_column *c = columns_of(s) + column;
    const double scaled = ((double)*x - c->offset) / c->scale;
    const bool fits = fabs(scaled) <= (double)FLT_MAX;
    if (!kr_require(s->base.ctx, fits, KR_ERR_FORMAT,
                    "%s, line %lld, column '%s': %g is beyond the largest f32, scaled", s->csv.path,
                    (long long)position->line, kr_quote_of(c->name, strlen(c->name)).text, (double)*x))
        return false;
    *x = (float)scaled;
    return true;
}

/* Row i of `out` as it is parsed -> as it is read. */
static bool finish_row(const csv_source *s, const kr_csv_position *position, int64_t i, const kr_positions *out)
{
    const int64_t nf = s->base.info.n_features, no = out->targets ? s->base.info.n_targets : 0;
    float *x = out->x + i * nf, *targets = no ? out->targets + i * no : NULL;
    const float *last = floats_of(&s->last);
    if (fills_forward(s)) keep_last(s, x);
    if (!needs_fit(s)) return true;
    for (int64_t k = 0; k < nf; k++) {
        if (isnan(x[k])) {
            if (out->is_filled) out->is_filled[i] = true;
            x[k] = fills_forward(s) && !isnan(last[k]) ? last[k] : (float)columns_of(s)[k].mean;
        }
        if (!scale(s, position, k, x + k)) return false;
    }
    for (int64_t k = 0; k < no; k++)
        if (!isnan(targets[k]) && !scale(s, position, nf + k, targets + k)) return false;
    return true;
}

/* ---- reading ---- */

static int64_t find_start(const kr_source *source, int64_t from, int64_t to);

/* Takes one row, whose fields are in s->fields; false after an error. */
typedef bool row_fn(void *user, const csv_source *s, const kr_csv_position *position, int64_t row);

/* A row before the requested ones: only the values that later rows may be filled with. */
static bool pass_row(const csv_source *s, const kr_csv_position *position)
{
    if (!fills_forward(s)) return true;
    if (!parse(s, position, &s->features, floats_of(&s->row))) return false;
    keep_last(s, floats_of(&s->row));
    return true;
}

static bool visit(const csv_source *s, int64_t from, int64_t count, row_fn *take, void *user)
{
    kr_csv_position position;
    const int64_t stretch = from / ROWS_APART, nf = s->base.info.n_features;
    memcpy(&position, s->positions.data + (size_t)stretch * sizeof position, sizeof position);
    if (fills_forward(s)) memcpy(s->last.data, floats_of(&s->carried) + stretch * nf, (size_t)nf * sizeof(float));
    for (int64_t row = stretch * ROWS_APART; row < from + count; row++) {
        bool was_blank;
        const int got = next_row(s, &position, &was_blank);
        if (!kr_require(s->base.ctx, got != 0, KR_ERR_IO, "%s: ended while it was used", s->csv.path)) return false;
        if (got < 0) return false;
        if (fills_forward(s) && find_start(&s->base, row, row + 1) == row) forget_last(s);
        if (row < from ? !pass_row(s, &position) : !take(user, s, &position, row)) return false;
    }
    return true;
}

typedef struct reading {
    int64_t from;
    const kr_positions *out;
} reading;

static bool read_row(void *user, const csv_source *s, const kr_csv_position *position, int64_t row)
{
    const reading *r = user;
    return parse_row(s, position, row - r->from, r->out) && finish_row(s, position, row - r->from, r->out);
}

static bool read_rows(const kr_source *source, int64_t from, int64_t count, const kr_positions *out)
{
    const csv_source *s = of(source);
    reading r = { from, out };
    return kr_require(
               source->ctx, s->is_fitted, KR_ERR_STATE,
               "%s: means and scales of its columns are not known; call kr_source_fit, or kr_source_load_scales, "
               "before the first batch",
               s->csv.path) &&
           visit(s, from, count, read_row, &r);
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
    kr_bytes *const all[] = { &s->path,      &s->fields, &s->names,   &s->features, &s->targets, &s->starts,
                              &s->positions, &s->texts,  &s->columns, &s->row,      &s->last,    &s->carried };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kr_bytes_free(source->ctx, all[i]);
}

static const kr_source_kind csv_kind = { sizeof(csv_source), read_rows, find_start, deinit };

/* ---- columns ---- */

/* Counts the columns by the first line that is not blank, and takes it as the header if there is one. */
static bool read_header(csv_source *s, kr_csv_position *position)
{
    kr_ctx *ctx = s->base.ctx;
    kr_csv_position first = *position;
    kr_csv_line kind;
    int64_t count;
    while ((kind = kr_csv_next(&s->csv, &first, NULL, 0, &count)) == KR_CSV_BLANK) *position = first;
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
    kr_csv_next(&s->csv, position, names, count, &count);
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
        !kr_require(ctx, !o->is_class || n_targets == 1, KR_ERR_ARG, "%s: is_class needs one target, not %lld",
                    s->csv.path, (long long)n_targets))
        return false;
    s->base.info.n_features = n_features;
    s->base.info.predict_next = n_targets == 0;
    s->base.info.n_targets = o->is_class ? 0 : n_targets ? n_targets : n_features;
    return true;
}

/* The name of a column with a final 0, behind s->texts; its position there, -1 after an error. */
static int64_t add_name(csv_source *s, int64_t column)
{
    char number[24];
    kr_csv_field own = { number, 0 };
    if (s->options.has_header) memcpy(&own, s->names.data + (size_t)column * sizeof own, sizeof own);
    else own.length = (size_t)snprintf(number, sizeof number, "%lld", (long long)column + 1);
    const int64_t at = (int64_t)s->texts.used;
    char *text = kr_bytes_more(s->base.ctx, &s->texts, own.length + 1, s->csv.path);
    if (!text) return -1;
    memcpy(text, own.text, own.length);
    text[own.length] = '\0';
    return at;
}

static bool add_columns(csv_source *s, const kr_bytes *list, bool is_target)
{
    for (int64_t i = 0; i < count_of(list); i++) {
        const kr_column column = { .is_target = is_target, .scale = 1 };
        void *at = kr_bytes_more(s->base.ctx, &s->columns, sizeof column, s->csv.path);
        if (!at) return false;
        memcpy(at, &column, sizeof column);
    }
    return true;
}

/* The names of the columns that are read. */
static bool make_columns(csv_source *s)
{
    kr_ctx *ctx = s->base.ctx;
    const bool has_targets = !s->options.is_class && s->targets.used;
    if (!add_columns(s, &s->features, false) || (has_targets && !add_columns(s, &s->targets, true))) return false;
    for (int pass = 0; pass < 2; pass++) { /* the texts move while they grow */
        size_t at = 0;
        for (int64_t i = 0; i < count_columns(s); i++) {
            const int64_t nf = count_of(&s->features);
            if (pass == 0 && add_name(s, i < nf ? number_at(&s->features, i) : number_at(&s->targets, i - nf)) < 0)
                return false;
            if (pass == 0) continue;
            columns_of(s)[i].name = (const char *)s->texts.data + at;
            at += strlen(columns_of(s)[i].name) + 1;
        }
    }
    const size_t width = (size_t)(s->base.info.n_features + s->base.info.n_targets) * sizeof(float);
    if (!kr_bytes_more(ctx, &s->row, width, s->csv.path) ||
        !kr_bytes_more(ctx, &s->last, (size_t)s->base.info.n_features * sizeof(float), s->csv.path))
        return false;
    s->is_fitted = !needs_fit(s);
    forget_last(s);
    return true;
}

/* ---- the first pass ---- */

static bool index_row(csv_source *s, const kr_csv_position *before, bool begins)
{
    kr_ctx *ctx = s->base.ctx;
    if (begins && !add_number(s, &s->starts, s->base.info.count)) return false;
    if (s->base.info.count % ROWS_APART == 0) {
        void *at = kr_bytes_more(ctx, &s->positions, sizeof *before, s->csv.path);
        if (!at) return false;
        memcpy(at, before, sizeof *before);
        if (fills_forward(s)) {
            void *values = kr_bytes_more(ctx, &s->carried, s->last.used, s->csv.path);
            if (!values) return false;
            memcpy(values, s->last.data, s->last.used);
        }
    }
    s->base.info.count++;
    return kr_require(ctx, s->starts.used + s->positions.used + s->carried.used <= s->options.memory_budget, KR_ERR_ARG,
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

static void count_missing(csv_source *s, const float *x)
{
    for (int64_t i = 0; i < count_columns(s); i++) columns_of(s)[i].n_missing += isnan(x[i]) != 0;
}

static bool scan(csv_source *s, kr_csv_position position)
{
    const int64_t nf = s->base.info.n_features;
    float *x = floats_of(&s->row);
    kr_csv_field last = { "", 0 };
    for (;;) {
        bool was_blank = false;
        const kr_csv_position before = position;
        const int got = next_row(s, &position, &was_blank);
        if (got <= 0)
            return got == 0 &&
                   kr_require(s->base.ctx, s->base.info.count > 0, KR_ERR_FORMAT, "%s: has no rows", s->csv.path);
        int32_t label = 0;
        const kr_positions out = { .x = x,
                                   .labels = s->options.is_class ? &label : NULL,
                                   .targets = !s->options.is_class && s->targets.used ? x + nf : NULL };
        if (!parse_row(s, &position, 0, &out)) return false;
        count_missing(s, x);
        if (s->options.is_class && label >= s->base.info.n_classes) s->base.info.n_classes = label + 1;
        const bool is_other = is_other_sequence(s, was_blank, &last);
        if (!index_row(s, &before, is_other || s->base.info.count == 0)) return false;
        if (is_other) forget_last(s);
        keep_last(s, x);
    }
}

static bool check_options(kr_ctx *ctx, const kr_csv_options *o)
{
    const char d = o->delimiter;
    return kr_require(ctx, d != '\0' && d != '\n' && d != '\r' && d != '"', KR_ERR_ARG,
                      "csv: the delimiter cannot be a zero, a line break or a double quote") &&
           kr_require(ctx, o->missing >= KR_CSV_MISSING_ERROR && o->missing <= KR_CSV_MISSING_MEAN, KR_ERR_ARG,
                      "csv: missing = %d is not a kr_csv_missing", (int)o->missing) &&
           kr_require(ctx, o->scaling >= KR_CSV_SCALING_NONE && o->scaling <= KR_CSV_SCALING_MIN_MAX, KR_ERR_ARG,
                      "csv: scaling = %d is not a kr_csv_scaling", (int)o->scaling);
}

static bool build(csv_source *s, const char *path)
{
    kr_ctx *ctx = s->base.ctx;
    if (!kr_require(ctx, path, KR_ERR_ARG, "csv: path is NULL") || !check_options(ctx, &s->options)) return false;
    char *name = kr_bytes_more(ctx, &s->path, strlen(path) + 1, "csv");
    if (!name) return false;
    memcpy(name, path, strlen(path) + 1);
    if (!kr_csv_open(&s->csv, ctx, name, s->options.delimiter)) return false;
    kr_csv_position position = kr_csv_begin(&s->csv);
    return read_header(s, &position) && choose_columns(s) && make_columns(s) && scan(s, position);
}

kr_source *kr_source_open_csv(kr_ctx *ctx, const kr_source_options *o)
{
    kr_csv_options own;
    if (!KR_TAKE(ctx, "csv", kr_csv_options, o->csv, &own)) return NULL;
    kr_source *source = kr_source_new(ctx, &csv_kind);
    if (!source) return NULL;
    csv_source *s = (csv_source *)(void *)source;
    s->options = own;
    const bool ok = build(s, o->path);
    s->options.features = s->options.targets = s->options.sequence = NULL; /* the caller's, not needed any longer */
    if (ok) return source;
    kr_source_destroy(source);
    return NULL;
}

/* ---- numbers of the columns ---- */

/* NULL: the source is no table. */
static csv_source *table_of(kr_source *source)
{
    return source && source->kind == &csv_kind ? (csv_source *)(void *)source : NULL;
}

static bool put_row(void *user, const csv_source *s, const kr_csv_position *position, int64_t row)
{
    kr_column_sum *sums = user;
    float *x = floats_of(&s->row);
    const int64_t nf = s->base.info.n_features;
    (void)row;
    if (!parse(s, position, &s->features, x) || (count_columns(s) > nf && !parse(s, position, &s->targets, x + nf)))
        return false;
    for (int64_t i = 0; i < count_columns(s); i++)
        if (!isnan(x[i])) kr_column_put(&sums[i], (double)x[i]);
    return true;
}

/* All rows of the training part, with those that are predicted only. */
static bool put_part(csv_source *s, const kr_loader_options *options, kr_column_sum *sums)
{
    const int64_t more = s->base.info.predict_next;
    kr_loader_options part;
    if (!options) return visit(s, 0, s->base.info.count, put_row, sums);
    if (!KR_TAKE(s->base.ctx, "source.fit", kr_loader_options, options, &part)) return false;
    part.part = KR_DATA_PART_TRAIN;
    kr_loader *loader = kr_loader_create(&s->base, &part);
    bool ok = loader != NULL;
    if (ok && !loader->documents) ok = visit(s, loader->from, loader->count + more, put_row, sums);
    for (int64_t i = 0; ok && i < loader->n_documents; i++)
        ok = visit(s, loader->documents[i].from, loader->documents[i].count + more, put_row, sums);
    kr_loader_destroy(loader);
    return ok;
}

static bool fit(csv_source *s, const kr_loader_options *options, kr_column_sum *sums)
{
    if (!put_part(s, options, sums)) return false;
    for (int64_t i = 0; i < count_columns(s); i++)
        if (!kr_require(s->base.ctx, sums[i].count > 0, KR_ERR_FORMAT,
                        "%s: column '%s' has no value in the training rows", s->csv.path,
                        kr_quote_of(columns_of(s)[i].name, strlen(columns_of(s)[i].name)).text))
            return false;
    for (int64_t i = 0; i < count_columns(s); i++) kr_column_fit(&columns_of(s)[i], &sums[i], s->options.scaling);
    s->is_fitted = true;
    return true;
}

kr_status kr_source_fit(kr_source *source, const kr_loader_options *options)
{
    if (!source) return KR_ERR_ARG;
    kr_ctx *ctx = source->ctx;
    csv_source *s = table_of(source);
    if (kr_ctx_failed(ctx) || !s || !needs_fit(s)) return ctx->status;
    const size_t bytes = (size_t)count_columns(s) * sizeof(kr_column_sum);
    kr_column_sum *sums = kr_memory_alloc_zeroed(&ctx->memory, bytes);
    if (!kr_require(ctx, sums != NULL, KR_ERR_NOMEM, "source.fit: no memory for %lld columns",
                    (long long)count_columns(s)))
        return ctx->status;
    if (!fit(s, options, sums)) kr_blame(ctx, "source.fit");
    kr_memory_free(&ctx->memory, sums, bytes);
    return ctx->status;
}

kr_status kr_source_save_scales(const kr_source *source, const char *path)
{
    if (!source) return KR_ERR_ARG;
    kr_ctx *ctx = source->ctx;
    const csv_source *s = source->kind == &csv_kind ? of(source) : NULL;
    if (!kr_ctx_failed(ctx) &&
        !(kr_require(ctx, path != NULL, KR_ERR_ARG, "path is NULL") &&
          kr_require(ctx, s != NULL, KR_ERR_ARG, "the source is not a table") &&
          kr_require(ctx, s->is_fitted, KR_ERR_STATE, "there are no scales yet; call kr_source_fit first") &&
          kr_columns_save(ctx, columns_of(s), count_columns(s), s->options.scaling, path)))
        kr_blame(ctx, "source.save_scales");
    return ctx->status;
}

kr_status kr_source_load_scales(kr_source *source, const char *path)
{
    if (!source) return KR_ERR_ARG;
    kr_ctx *ctx = source->ctx;
    csv_source *s = table_of(source);
    if (kr_ctx_failed(ctx)) return ctx->status;
    if (kr_require(ctx, path != NULL, KR_ERR_ARG, "path is NULL") &&
        kr_require(ctx, s != NULL, KR_ERR_ARG, "the source is not a table") &&
        kr_columns_load(ctx, columns_of(s), count_columns(s), s->options.scaling, path))
        s->is_fitted = true;
    else kr_blame(ctx, "source.load_scales");
    return ctx->status;
}

kr_csv_column kr_source_column(const kr_source *source, int64_t i)
{
    const csv_source *s = source && source->kind == &csv_kind ? of(source) : NULL;
    if (!s || i < 0 || i >= count_columns(s)) return (kr_csv_column){ 0 };
    const kr_column *c = columns_of(s) + i;
    return (kr_csv_column){ c->name, c->is_target, c->n_missing, c->mean, c->offset, c->scale, { 0 } };
}
