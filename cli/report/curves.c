/* curves.c - reads metrics.csv, byte by byte, into buckets. */
#include "cli/report/curves.h"

#include "cli/common/cli_files.h"
#include "cli/common/cli_options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Beyond this nothing can be drawn, and sums of squares or products would overflow. */
#define LARGEST 1e100

/* ---- buckets ---- */

static curve_bucket joined(const curve_bucket *a, const curve_bucket *b)
{
    const bool low_is_b = b->low < a->low;
    const bool high_is_b = b->high > a->high;
    return (curve_bucket){ a->count + b->count,
                           a->x_sum + b->x_sum,
                           a->sum + b->sum,
                           low_is_b ? b->low_x : a->low_x,
                           low_is_b ? b->low : a->low,
                           high_is_b ? b->high_x : a->high_x,
                           high_is_b ? b->high : a->high };
}

static void halve(curve *c)
{
    for (int i = 0; i < c->n / 2; i++) c->bucket[i] = joined(&c->bucket[2 * i], &c->bucket[2 * i + 1]);
    c->n /= 2;
    c->per_bucket *= 2;
}

static bool add_to_buckets(curve *c, double x, double value)
{
    const curve_bucket alone = { 1, x, value, x, value, x, value };
    curve_bucket *last = c->n ? &c->bucket[c->n - 1] : NULL;
    if (last && last->count < c->per_bucket) {
        *last = joined(last, &alone);
        return true;
    }
    if (c->n == CURVE_BUCKETS) halve(c);
    const bool is_power = (c->n & (c->n - 1)) == 0; /* the capacity doubles: 8, 16, ... CURVE_BUCKETS */
    if (!c->bucket || (c->n >= 8 && is_power && c->per_bucket == 1)) {
        curve_bucket *grown = realloc(c->bucket, sizeof *grown * (size_t)(c->n ? 2 * c->n : 8));
        if (!grown) return false;
        c->bucket = grown;
    }
    c->bucket[c->n++] = alone;
    return true;
}

bool curve_add(curve *c, double x, double value)
{
    if (!c->per_bucket) c->per_bucket = 1;
    if (!(fabs(value) <= LARGEST)) {
        if (!c->n_bad++) c->first_bad_x = x;
        return true;
    }
    if (fabs(value) < 1 / LARGEST) value = 0;
    if (!c->count++) {
        c->first_x = x;
        c->low = c->high = value;
        c->low_x = c->high_x = x;
    }
    if (value < c->low) {
        c->low = value;
        c->low_x = x;
    }
    if (value > c->high) {
        c->high = value;
        c->high_x = x;
    }
    if (value > 0 && (c->least_positive == 0 || value < c->least_positive)) c->least_positive = value;
    c->last_x = x;
    c->last = value;
    return add_to_buckets(c, x, value);
}

static double mean_x(const curve_bucket *b)
{
    return b->x_sum / (double)b->count;
}

/* The averaged value of the smoothed curve: a bucket's mean, or its logarithm. */
static double level(const curve *c, int i, bool in_log)
{
    const double mean = c->bucket[i].sum / (double)c->bucket[i].count;
    return in_log ? log(fmax(mean, c->least_positive)) : mean;
}

bool curve_smooth(const curve *c, bool in_log, double *y)
{
    enum { MOST_PARTS = 100, VALUES = 4 }; /* reach: a hundredth of the x range, but at least four values */
    const int parts = c->n < VALUES * MOST_PARTS ? c->n / VALUES + 1 : MOST_PARTS;
    const double reach = fabs(c->last_x - c->first_x) / parts;
    double *weights = malloc(sizeof *weights * (size_t)(c->n ? c->n : 1));
    double sum = 0, weight = 0;
    if (!weights) return false;
    in_log = in_log && c->least_positive > 0;
    for (int i = 0; i < c->n; i++) {
        const curve_bucket *b = &c->bucket[i];
        const double keep = i && reach > 0 ? exp(-fabs(mean_x(b) - mean_x(b - 1)) / reach) : 1;
        sum = y[i] = keep * sum + (double)b->count * level(c, i, in_log);
        weight = weights[i] = keep * weight + (double)b->count;
    }
    sum = weight = 0; /* of the buckets after i, weighted from i */
    for (int i = c->n - 1; i >= 0; i--) {
        const curve_bucket *b = &c->bucket[i];
        const double keep = i && reach > 0 ? exp(-fabs(mean_x(b) - mean_x(b - 1)) / reach) : 1;
        const double own = (double)b->count * level(c, i, in_log);
        y[i] = (y[i] + sum) / (weights[i] + weight);
        if (in_log) y[i] = exp(y[i]);
        sum = keep * (sum + own);
        weight = keep * (weight + (double)b->count);
    }
    free(weights);
    return true;
}

/* ---- numbers ---- */

/* A decimal of at most 15 digits and a power of ten of at most 22 is one exact product or quotient: no strtod, which is
 * ten times as slow. */
static bool plain_number(const char *text, double *value)
{
    static const double powers[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                     1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    const bool is_negative = *text == '-';
    const char *at = text + is_negative;
    int64_t digits = 0;
    int count = 0, power = 0;
    for (bool is_fraction = false; (*at >= '0' && *at <= '9') || (*at == '.' && !is_fraction); at++) {
        if (*at == '.') {
            is_fraction = true;
            continue;
        }
        digits = 10 * digits + (*at - '0');
        power -= is_fraction;
        if (++count > 15) return false;
    }
    if (!count) return false;
    if (*at == 'e') {
        const char *sign = ++at;
        int exponent = 0;
        if (*at == '-' || *at == '+') at++;
        if (*at < '0' || *at > '9') return false;
        for (; *at >= '0' && *at <= '9' && exponent < 1000; at++) exponent = 10 * exponent + (*at - '0');
        power += *sign == '-' ? -exponent : exponent;
    }
    if (*at || power < -22 || power > 22) return false;
    const double whole = (double)digits, size = power < 0 ? whole / powers[-power] : whole * powers[power];
    *value = is_negative ? -size : size;
    return true;
}

bool curves_number(const char *text, double *value)
{
    if (plain_number(text, value)) return true;
    while (*text == ' ' || *text == '\t') text++;
    if (!*text) return false;
    char *end;
    *value = strtod(text, &end);
    if (end == text) return false;
    while (*end == ' ' || *end == '\t') end++;
    return !*end;
}

/* ---- lines ---- */

enum { FIELD = 64, COLUMNS = 256 };

typedef struct reader {
    curves *c;
    bool is_header, has_failed;
    int column, n_columns;
    size_t length; /* of the field; FIELD: too long */
    char field[FIELD];
    int curve_of[COLUMNS]; /* the column's place in c->curve; -1: not read */
    int x_column;          /* index of "step"; -1: none */
    bool has[CURVES_MOST];
    double value[CURVES_MOST];
} reader;

static bool is_drawn(const char *name)
{
    static const char *const names[] = { "step",
                                         "epoch",
                                         "positions",
                                         "loss",
                                         "accuracy",
                                         "lr",
                                         "grad_norm",
                                         "eval_loss",
                                         "seconds",
                                         "eval_accuracy",
                                         "positions_per_second",
                                         "memory_bytes" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return true;
    return !strncmp(name, "eval_accuracy_", 14) && name[14];
}

static void end_name(reader *r)
{
    curves *c = r->c;
    char *name = r->field;
    while (*name == ' ') name++;
    for (size_t n = strlen(name); n && name[n - 1] == ' ';) name[--n] = 0;
    if (r->column == 0 && !strncmp(name, "\xef\xbb\xbf", 3)) name += 3; /* the mark with which some editors begin */
    int place = -1;
    bool is_new = r->length < FIELD && strlen(name) < CURVE_NAME && c->count < CURVES_MOST && is_drawn(name);
    for (int i = 0; i < c->count; i++) is_new = is_new && strcmp(c->curve[i].name, name) != 0;
    if (is_new) {
        place = c->count++;
        strcpy(c->curve[place].name, name);
        if (!strcmp(name, "step")) r->x_column = place;
    }
    if (r->column < COLUMNS) r->curve_of[r->column] = place;
}

static void end_field(reader *r)
{
    r->field[r->length < FIELD ? r->length : FIELD - 1] = 0;
    if (r->is_header) {
        end_name(r);
    } else if (r->column < COLUMNS && r->column < r->n_columns && r->curve_of[r->column] >= 0) {
        const int place = r->curve_of[r->column];
        r->has[place] = r->length < FIELD && curves_number(r->field, &r->value[place]);
    }
    r->column++;
    r->length = 0;
}

static void end_line(reader *r)
{
    curves *c = r->c;
    if (r->is_header) {
        r->n_columns = r->column;
        r->is_header = false;
    } else if (r->column > 1 || r->n_columns == 1) {
        double x = (double)++c->n_lines;
        bool has_x = true;
        if (r->x_column >= 0) {
            x = r->value[r->x_column];
            has_x = r->has[r->x_column] && fabs(x) <= LARGEST;
        }
        for (int i = 0; i < c->count && has_x; i++)
            if (r->has[i] && !curve_add(&c->curve[i], x, r->value[i])) r->has_failed = true;
    }
    memset(r->has, 0, sizeof r->has);
    r->column = 0;
    r->length = 0;
}

/* A line that the end of the file cut off: its last field may be half a number. */
static void end_file(reader *r)
{
    if (r->is_header && (r->column || r->length)) end_field(r);
    if (r->is_header || r->column) end_line(r);
}

static void read_bytes(reader *r, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count && !r->has_failed; i++) {
        const char b = bytes[i];
        if (b == ',' || b == '\n') {
            if (b == '\n' && r->length && r->length < FIELD && r->field[r->length - 1] == '\r') r->length--;
            end_field(r);
            if (b == '\n') end_line(r);
        } else if (r->length < FIELD) {
            r->field[r->length] = b ? b : '?';
            if (++r->length == FIELD) r->field[FIELD - 1] = 0;
        }
    }
}

static bool read_file(reader *r, FILE *file, const char *path)
{
    static const char remedy[] = "the first line names the columns: step,loss,...";
    char buffer[1 << 16];
    size_t n;
    bool is_empty = true;
    while ((n = fread(buffer, 1, sizeof buffer, file)) > 0 && !r->has_failed) {
        read_bytes(r, buffer, n);
        is_empty = false;
    }
    if (ferror(file)) return cli_cannot("read", path, errno ? errno : EIO);
    end_file(r);
    if (r->has_failed) return cli_cannot("read", path, ENOMEM);
    if (is_empty) cli_complain(remedy, "%s is empty", path);
    else if (!r->c->count) cli_complain(remedy, "%s has no known column", path);
    return r->c->count > 0;
}

bool curves_read(curves *c, const char *path)
{
    memset(c, 0, sizeof *c);
    if (cli_is_folder(path)) return cli_cannot("open", path, EISDIR);
    FILE *file = fopen(path, "rb");
    if (!file) return cli_cannot("open", path, errno);
    reader r = { .c = c, .is_header = true, .x_column = -1 };
    errno = 0;
    const bool ok = read_file(&r, file, path);
    fclose(file);
    if (!ok) curves_free(c);
    return ok;
}

void curves_free(curves *c)
{
    for (int i = 0; i < c->count; i++) free(c->curve[i].bucket);
    memset(c, 0, sizeof *c);
}

const curve *curves_find(const curves *c, const char *name)
{
    for (int i = 0; i < c->count; i++)
        if (!strcmp(c->curve[i].name, name)) return c->curve[i].count || c->curve[i].n_bad ? &c->curve[i] : NULL;
    return NULL;
}
