/* columns.c - means, offsets and scales of a table's columns: computed, written, read. */
#include "data/columns.h"

#include "io/file.h"
#include "io/file_write.h"
#include "io/json_write.h"
#include "io/quote.h"
#include "io/utf8.h"

#include <krait/experimental/json.h>

#include <math.h>
#include <string.h>

static const char format_name[] = "krait.scales";
enum { FORMAT_VERSION = 1 };

static const char *scaling_name(kr_csv_scaling scaling)
{
    return scaling == KR_CSV_SCALING_STANDARD ? "standard" : scaling == KR_CSV_SCALING_MIN_MAX ? "min-max" : "none";
}

static const char *role_name(const kr_column *column)
{
    return column->is_target ? "target" : "feature";
}

/* ---- values ---- */

void kr_column_put(kr_column_sum *sum, double x)
{
    const double before = x - sum->mean;
    sum->min = sum->count == 0 || x < sum->min ? x : sum->min;
    sum->max = sum->count == 0 || x > sum->max ? x : sum->max;
    sum->count++;
    sum->mean += before / (double)sum->count;
    sum->squares += before * (x - sum->mean);
}

void kr_column_fit(kr_column *column, const kr_column_sum *sum, kr_csv_scaling scaling)
{
    column->mean = sum->mean;
    column->offset = 0;
    column->scale = 1;
    if (scaling == KR_CSV_SCALING_STANDARD) {
        column->offset = sum->mean;
        column->scale = sqrt(sum->squares / (double)sum->count);
    } else if (scaling == KR_CSV_SCALING_MIN_MAX) {
        column->offset = sum->min;
        column->scale = sum->max - sum->min;
    }
    if (column->scale == 0) column->scale = 1;
}

/* ---- writing ---- */

static size_t compose(const kr_column *columns, int64_t count, kr_csv_scaling scaling, char *text, size_t bytes)
{
    kr_json_writer w;
    kr_json_write_begin(&w, text, bytes);
    kr_json_write_open(&w, NULL, '{');
    kr_json_write_string(&w, "format", format_name);
    kr_json_write_integer(&w, "version", FORMAT_VERSION);
    kr_json_write_string(&w, "scaling", scaling_name(scaling));
    kr_json_write_open(&w, "columns", '[');
    for (int64_t i = 0; i < count; i++) {
        kr_json_write_open(&w, NULL, '{');
        kr_json_write_string(&w, "name", columns[i].name);
        kr_json_write_string(&w, "role", role_name(&columns[i]));
        kr_json_write_number(&w, "mean", columns[i].mean);
        kr_json_write_number(&w, "offset", columns[i].offset);
        kr_json_write_number(&w, "scale", columns[i].scale);
        kr_json_write_close(&w, '}');
    }
    kr_json_write_close(&w, ']');
    kr_json_write_close(&w, '}');
    kr_json_write_end(&w);
    return w.length;
}

static bool write_text(kr_ctx *ctx, const char *text, size_t bytes, const char *path)
{
    kr_file_writer w;
    if (!kr_file_create(&w, ctx, path)) return false;
    if (kr_file_write(&w, text, bytes)) return kr_file_commit(&w);
    kr_file_discard(&w);
    return false;
}

bool kr_columns_save(kr_ctx *ctx, const kr_column *columns, int64_t count, kr_csv_scaling scaling, const char *path)
{
    for (int64_t i = 0; i < count; i++)
        if (!kr_require(ctx, kr_utf8_is_valid(columns[i].name, strlen(columns[i].name)), KR_ERR_FORMAT,
                        "the name of column '%s' is not UTF-8",
                        kr_quote_of(columns[i].name, strlen(columns[i].name)).text))
            return false;
    const size_t length = compose(columns, count, scaling, NULL, 0);
    char *text = kr_memory_alloc(&ctx->memory, length + 1);
    if (!kr_require(ctx, text != NULL, KR_ERR_NOMEM, "no memory for the scales of %lld columns", (long long)count))
        return false;
    compose(columns, count, scaling, text, length + 1);
    const bool saved = write_text(ctx, text, length, path);
    kr_memory_free(&ctx->memory, text, length + 1);
    return saved;
}

/* ---- reading ---- */

static bool is_text(const kr_json *value, const char *want)
{
    const char *text = kr_json_text(value);
    return text && kr_json_length(value) == (int64_t)strlen(want) && strcmp(text, want) == 0;
}

static bool read_number(kr_ctx *ctx, const kr_json *object, const char *key, const char *name, double *x)
{
    const kr_json *value = kr_json_find(object, key);
    *x = kr_json_number(value, (double)NAN);
    return kr_require(ctx, isfinite(*x), KR_ERR_FORMAT, "column '%s': %s is not a finite number",
                      kr_quote_of(name, strlen(name)).text, key);
}

/* Numbers of one column; `to` NULL: they are only checked. */
static bool read_column(kr_ctx *ctx, const kr_json *object, int64_t i, const kr_column *own, kr_column *to)
{
    kr_column got = *own;
    if (!kr_require(ctx, is_text(kr_json_find(object, "name"), own->name), KR_ERR_FORMAT,
                    "column %lld of the table is '%s', but that of the file has another name", (long long)i + 1,
                    kr_quote_of(own->name, strlen(own->name)).text) ||
        !kr_require(ctx, is_text(kr_json_find(object, "role"), role_name(own)), KR_ERR_FORMAT,
                    "column '%s' is a %s of the table, but not of the file",
                    kr_quote_of(own->name, strlen(own->name)).text, role_name(own)) ||
        !read_number(ctx, object, "mean", own->name, &got.mean) ||
        !read_number(ctx, object, "offset", own->name, &got.offset) ||
        !read_number(ctx, object, "scale", own->name, &got.scale) ||
        !kr_require(ctx, got.scale > 0, KR_ERR_FORMAT, "column '%s': scale = %g, but must be above 0",
                    kr_quote_of(own->name, strlen(own->name)).text, got.scale))
        return false;
    if (to) *to = got;
    return true;
}

static bool read_root(kr_ctx *ctx, const kr_json *root, kr_column *columns, int64_t count, kr_csv_scaling scaling)
{
    const kr_json *list = kr_json_find(root, "columns");
    if (!kr_require(ctx, is_text(kr_json_find(root, "format"), format_name), KR_ERR_FORMAT,
                    "not a file of scales: 'format' is not '%s'", format_name) ||
        !kr_require(ctx, kr_json_integer(kr_json_find(root, "version"), 0) == FORMAT_VERSION, KR_ERR_FORMAT,
                    "'version' is not %d, which this library reads", FORMAT_VERSION) ||
        !kr_require(ctx, is_text(kr_json_find(root, "scaling"), scaling_name(scaling)), KR_ERR_FORMAT,
                    "the scales are of another kind than '%s', which the table has", scaling_name(scaling)) ||
        !kr_require(ctx, kr_json_kind_of(list) == KR_JSON_ARRAY && kr_json_length(list) == count, KR_ERR_FORMAT,
                    "the file has %lld columns, but the table reads %lld", (long long)kr_json_length(list),
                    (long long)count))
        return false;
    for (int takes = 0; takes < 2; takes++) {
        const kr_json *object = kr_json_first(list);
        for (int64_t i = 0; i < count; i++, object = kr_json_next(object))
            if (!read_column(ctx, object, i, &columns[i], takes ? &columns[i] : NULL)) return false;
    }
    return true;
}

bool kr_columns_load(kr_ctx *ctx, kr_column *columns, int64_t count, kr_csv_scaling scaling, const char *path)
{
    kr_file file;
    if (!kr_file_open(&file, ctx, path, false)) return false;
    kr_json *root = kr_json_parse(ctx, (const char *)file.data, file.bytes, NULL);
    const bool loaded = root && read_root(ctx, root, columns, count, scaling);
    kr_json_destroy(root);
    kr_file_close(&file);
    if (!loaded) kr_blame(ctx, "%s", path);
    return loaded;
}
