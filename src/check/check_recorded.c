/* check_recorded.c - tensors of a file against computed ones: the worst element of each, as a table.
 *
 *   error = max |got - want| / max |want|, over one tensor
 *
 * Elements of f32 and f64 are read directly from the mapped file; others are widened to f32 first.
 */
#include "check/check_model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- one tensor ---- */

void recorded_trouble(recorded_check *check, const char *format, ...)
{
    if (check->trouble[0]) return;
    va_list args;
    va_start(args, format);
    vsnprintf(check->trouble, sizeof check->trouble, format, args);
    va_end(args);
}

static double want_at(const recorded_check *check, int64_t at)
{
    double wide;
    float narrow;
    if (check->dtype == KR_DTYPE_F64) {
        memcpy(&wide, check->data + (size_t)at * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&narrow, check->data + (size_t)at * sizeof narrow, sizeof narrow);
    return (double)narrow;
}

static const char *shape_text(const kr_shape *shape, char *text, size_t bytes)
{
    size_t n = (size_t)snprintf(text, bytes, "[");
    for (int i = 0; i < shape->rank && n < bytes; i++)
        n += (size_t)snprintf(text + n, bytes - n, "%s%lld", i ? ", " : "", (long long)shape->dims[i]);
    if (n < bytes) snprintf(text + n, bytes - n, "]");
    return text;
}

/* Where the elements are, as f32 or f64. */
static void find_elements(recorded_check *check, const kr_tensor_file *file)
{
    const kr_tensor_file_item *item = check->item;
    check->dtype = item->dtype == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32;
    if (!item->is_readable || item->dtype == KR_DTYPE_I32 || item->dtype == KR_DTYPE_I64) {
        recorded_trouble(check, "its elements are %s, which cannot be compared", item->type);
        return;
    }
    check->data = item->data;
    if (item->is_native && item->dtype == check->dtype) return;
    check->own = check_alloc(check->ctx, (size_t)item->count * sizeof(float) + 1);
    check->data = check->own;
    if (!check->own || kr_tensor_file_read(file, item, KR_DTYPE_F32, check->own, item->count) != KR_OK)
        recorded_trouble(check, "cannot be read");
}

recorded_check recorded_begin(kr_ctx *ctx, const kr_tensor_file *file, const kr_tensor_file_item *item,
                              recorded_part part, int lead, int64_t rows, int64_t tokens, double most)
{
    recorded_check check = { .ctx = ctx, .part = part, .item = item, .note = "", .lead = lead, .most = most, .at = -1 };
    char text[120];
    if (part == RECORDED_GENERATED) return check;
    if (item->shape.rank < lead || (lead > 0 && item->shape.dims[0] != rows) ||
        (lead > 1 && item->shape.dims[1] != tokens))
        recorded_trouble(&check,
                         lead > 1 ? "is %s, but there are %lld rows of %lld tokens" : "is %s, but there are %lld rows",
                         shape_text(&item->shape, text, sizeof text), (long long)rows, (long long)tokens);
    if (!check.trouble[0]) find_elements(&check, file);
    for (int64_t i = 0; !check.trouble[0] && i < item->count; i++)
        check.scale = fmax(check.scale, fabs(want_at(&check, i)));
    return check;
}

void recorded_end(recorded_check *check)
{
    check_free(check->own);
}

void recorded_compare_value(recorded_check *check, int64_t at, double got)
{
    const double want = want_at(check, at), difference = fabs(got - want);
    check->seen++;
    if (check->at >= 0 && !(difference > check->difference) && !(isnan(difference) && !isnan(check->difference)))
        return;
    check->difference = difference;
    check->at = at;
    check->got = got;
    check->want = want;
}

/* Is a piece of this shape, from `from` on, inside the whole? All axes behind `lead` must agree. */
static bool fits(const kr_shape *piece, const kr_shape *whole, int lead, const int64_t *from)
{
    if (piece->rank != whole->rank) return false;
    for (int i = 0; i < piece->rank; i++)
        if (i < lead ? from[i] + piece->dims[i] > whole->dims[i] : piece->dims[i] != whole->dims[i]) return false;
    return true;
}

void recorded_compare(recorded_check *check, const kr_tensor *got, int64_t row, int64_t token)
{
    if (check->trouble[0] || !got) return;
    const kr_shape *whole = &check->item->shape, shape = kr_tensor_shape(got);
    char ours[120], theirs[120];
    if (!fits(&shape, whole, check->lead, (int64_t[]){ row, token })) {
        recorded_trouble(check, "is %s, but the model gives %s", shape_text(whole, theirs, sizeof theirs),
                         shape_text(&shape, ours, sizeof ours));
        return;
    }
    const int64_t nb = check->lead > 0 ? shape.dims[0] : 1, ns = check->lead > 1 ? shape.dims[1] : 1;
    const int64_t whole_ns = check->lead > 1 ? whole->dims[1] : 1;
    const int64_t count = kr_tensor_count(got), rest = count / (nb * ns > 0 ? nb * ns : 1);
    double *values = check_alloc(check->ctx, (size_t)count * sizeof *values + 1);
    if (!values || kr_tensor_read(got, KR_DTYPE_F64, values, count) != KR_OK) recorded_trouble(check, "out of memory");
    for (int64_t i = 0; !check->trouble[0] && i < count; i++) {
        const int64_t b = i / (ns * rest), s = i / rest % ns;
        recorded_compare_value(check, ((row + b) * whole_ns + token + s) * rest + i % rest, values[i]);
    }
    check_free(values);
}

/* ---- the table ---- */

static double error_of(const recorded_check *check)
{
    return check->scale > 0 ? check->difference / check->scale : check->difference;
}

bool recorded_is_ok(const recorded_check *check)
{
    return !check->trouble[0] && check->seen == check->item->count && error_of(check) <= check->most;
}

recorded_name recorded_shown(const char *name)
{
    recorded_name s;
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof s.text; n++) s.text[n] = name[n] > ' ' && name[n] <= '~' ? name[n] : '?';
    s.text[n] = '\0';
    return s;
}

typedef struct label {
    char text[160];
} label;

static label label_of(const recorded_check *check)
{
    label l;
    snprintf(l.text, sizeof l.text, "%s%s", recorded_shown(check->item->name).text, check->note);
    return l;
}

static const char *index_text(const recorded_check *check, char *text, size_t bytes)
{
    kr_shape at = check->item->shape;
    int64_t left = check->at;
    for (int i = at.rank - 1; i >= 0; i--) {
        const int64_t size = at.dims[i];
        at.dims[i] = left % size;
        left /= size;
    }
    return shape_text(&at, text, bytes);
}

static void report_check(const recorded_check *check, check_tally *tally)
{
    char where[120], text[300];
    if (check->trouble[0]) snprintf(text, sizeof text, "%s", check->trouble);
    else if (check->seen != check->item->count)
        snprintf(text, sizeof text, "only %lld of %lld elements were computed", (long long)check->seen,
                 (long long)check->item->count);
    else
        snprintf(text, sizeof text, "%8.1e  %-15s  %16.9g  %16.9g  %8.1e", error_of(check),
                 index_text(check, where, sizeof where), check->got, check->want, check->most);
    const bool is_compared = !check->trouble[0] && check->seen > 0;
    check_report(tally, recorded_is_ok(check), label_of(check).text, text,
                 (check_measure){ is_compared ? error_of(check) : NAN, check->most });
}

void recorded_report(const recorded_check *checks, int64_t count, check_tally *tally)
{
    char heads[100];
    int width = 4;
    for (int64_t i = 0; i < count; i++) {
        const int length = (int)strlen(label_of(&checks[i]).text);
        if (length > width) width = length;
    }
    snprintf(heads, sizeof heads, "%8s  %-15s  %16s  %16s  %8s", "error", "where", "computed", "recorded", "at most");
    tally->name_width = width + 1;
    check_print(tally, KR_CHECK_HEADING, "what", heads);
    for (int part = 0; part < RECORDED_PARTS; part++)
        for (int64_t i = 0; i < count; i++)
            if ((int)checks[i].part == part) report_check(&checks[i], tally);
}
