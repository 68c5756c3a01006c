/* csv.c - tables in text. */
#include "data/csv.h"

#include "io/decimal.h"
#include "io/quote.h"

#include <float.h>
#include <math.h>
#include <string.h>

bool kr_csv_open(kr_csv *csv, kr_ctx *ctx, const char *path, char delimiter)
{
    *csv = (kr_csv){ .ctx = ctx, .path = path, .delimiter = delimiter };
    return kr_file_open(&csv->file, ctx, path, true);
}

void kr_csv_close(kr_csv *csv)
{
    kr_file_close(&csv->file);
}

kr_csv_position kr_csv_begin(const kr_csv *csv)
{
    const bool has_mark = csv->file.bytes >= 3 && !memcmp(csv->file.data, "\xef\xbb\xbf", 3);
    return (kr_csv_position){ has_mark ? 3 : 0, 0 };
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The field that begins at text[*at]; *at is then its delimiter or the end. False: its quotes do not match. */
static bool take_field(const kr_csv *csv, const char *text, size_t length, size_t *at, kr_csv_field *field)
{
    size_t i = *at;
    while (i < length && is_space(text[i]) && text[i] != csv->delimiter) i++;
    if (i < length && text[i] == '"') {
        const char *close = memchr(text + i + 1, '"', length - i - 1);
        if (!close) return false;
        *field = (kr_csv_field){ text + i + 1, (size_t)(close - text) - i - 1 };
        i = (size_t)(close - text) + 1;
        while (i < length && is_space(text[i]) && text[i] != csv->delimiter) i++;
        *at = i;
        return i == length || text[i] == csv->delimiter;
    }
    const char *stop = memchr(text + i, csv->delimiter, length - i);
    *at = stop ? (size_t)(stop - text) : length;
    size_t end = *at;
    while (end > i && is_space(text[end - 1])) end--;
    *field = (kr_csv_field){ text + i, end - i };
    return true;
}

kr_csv_line kr_csv_next(const kr_csv *csv, kr_csv_position *position, kr_csv_field *fields, int64_t capacity,
                        int64_t *count)
{
    *count = 0;
    if (position->at >= csv->file.bytes) return KR_CSV_END;
    const char *text = (const char *)csv->file.data + position->at;
    const char *end = memchr(text, '\n', csv->file.bytes - position->at);
    const size_t length = end ? (size_t)(end - text) : csv->file.bytes - position->at;
    position->at += length + (end != NULL);
    position->line++;
    bool is_blank = true;
    for (size_t i = 0; i < length && is_blank; i++) is_blank = is_space(text[i]);
    if (is_blank) return KR_CSV_BLANK;
    for (size_t at = 0;; at++) {
        kr_csv_field field;
        if (!kr_require(csv->ctx, take_field(csv, text, length, &at, &field), KR_ERR_FORMAT,
                        "%s, line %lld, column %lld: a double quote is not closed at the end of the field", csv->path,
                        (long long)position->line, (long long)*count + 1))
            return KR_CSV_BAD;
        if (*count < capacity) fields[*count] = field;
        ++*count;
        if (at >= length) return KR_CSV_ROW;
    }
}

static size_t digits(const char *text, size_t length, size_t at)
{
    size_t n = 0;
    while (at + n < length && text[at + n] >= '0' && text[at + n] <= '9') n++;
    return n;
}

static bool is_number(const char *text, size_t length)
{
    size_t at = length > 0 && text[0] == '-', n = digits(text, length, at);
    if (n == 0) return false;
    at += n;
    if (at < length && text[at] == '.') {
        n = digits(text, length, ++at);
        if (n == 0) return false;
        at += n;
    }
    if (at < length && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        at += at < length && (text[at] == '+' || text[at] == '-');
        n = digits(text, length, at);
        if (n == 0) return false;
        at += n;
    }
    return at == length;
}

bool kr_csv_is_missing(const kr_csv_field *field)
{
    static const char *const words[] = { "", "na", "n/a", "nan", "null" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *word = words[i];
        size_t n = 0;
        while (n < field->length && word[n] &&
               word[n] ==
                   (field->text[n] >= 'A' && field->text[n] <= 'Z' ? field->text[n] + ('a' - 'A') : field->text[n]))
            n++;
        if (n == field->length && !word[n]) return true;
    }
    return false;
}

bool kr_csv_number(const kr_csv *csv, const kr_csv_position *position, const kr_csv_field *field, int64_t column,
                   float *x)
{
    const bool has_plus = field->length > 1 && field->text[0] == '+' && field->text[1] != '-';
    const char *text = field->text + has_plus;
    const size_t length = field->length - has_plus;
    double value = 0;
    if (!kr_require(csv->ctx, is_number(text, length), KR_ERR_FORMAT,
                    "%s, line %lld, column %lld: '%s' is not a decimal number", csv->path, (long long)position->line,
                    (long long)column + 1, kr_quote_of(field->text, field->length).text) ||
        !kr_require(csv->ctx, kr_decimal_read(text, length, &value) && fabs(value) <= (double)FLT_MAX, KR_ERR_FORMAT,
                    "%s, line %lld, column %lld: '%s' is beyond the largest f32", csv->path, (long long)position->line,
                    (long long)column + 1, kr_quote_of(field->text, field->length).text))
        return false;
    *x = (float)value;
    return true;
}
