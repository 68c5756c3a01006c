/* loss.c - common code of losses: options, labels, and the final sum. */
#include "ops/loss_impl.h"

#include "base/sized.h"

KR_DEFAULTS(kr_cross_entropy_options) = { .size = sizeof(kr_cross_entropy_options), .ignore_index = -100 };

bool kr_cross_entropy_take(kr_tape *tape, const char *op, kr_cross_entropy_options *own,
                           const kr_cross_entropy_options *given)
{
    return kr_tape_ready(tape, op) && KR_TAKE(tape->ctx, op, kr_cross_entropy_options, given, own);
}

bool kr_cross_entropy_check(kr_tape *tape, const char *op, const kr_cross_entropy_options *o, const char *name,
                            const kr_tensor *x, int64_t nw)
{
    kr_ctx *ctx = tape->ctx;
    return kr_require(ctx, nw >= 1, KR_ERR_SHAPE, "%s: %s %s has no class; w must be at least 1", op, name,
                      KR_TEXT_OF(x)) &&
           kr_require(ctx, o->label_smoothing >= 0 && o->label_smoothing <= 1, KR_ERR_ARG,
                      "%s: label_smoothing = %g, but must be from 0 to 1", op, o->label_smoothing) &&
           kr_require(ctx, o->reduction == KR_REDUCTION_MEAN || o->reduction == KR_REDUCTION_SUM, KR_ERR_ARG,
                      "%s: reduction = %d is neither KR_REDUCTION_MEAN nor KR_REDUCTION_SUM", op, (int)o->reduction) &&
           kr_require(ctx, o->n_classes >= 0 && o->n_classes <= nw, KR_ERR_ARG,
                      "%s: n_classes = %lld, but %s %s says w = %lld", op, (long long)o->n_classes, name, KR_TEXT_OF(x),
                      (long long)nw);
}

int64_t kr_cross_entropy_columns(const kr_cross_entropy_options *o, int64_t nw)
{
    return o->exclude_padding && o->n_classes > 0 ? o->n_classes : nw;
}

kr_tensor *kr_integers(kr_tape *tape, const char *op, const char *name, kr_tensor *x)
{
    if (!kr_require(tape->ctx, x->dtype == KR_DTYPE_I32 || x->dtype == KR_DTYPE_I64, KR_ERR_DTYPE,
                    "%s: %s %s is %s, but must be i32 or i64", op, name, KR_TEXT_OF(x), kr_dtype_name(x->dtype)))
        return NULL;
    return kr_integers_ready(tape->ctx) ? kr_contiguous(tape, x) : NULL;
}

/* Is row r scored? Fills in its label; *ok is false after an error. */
static bool is_scored(kr_tape *tape, const char *op, const kr_tensor *labels, const kr_tensor *mask,
                      const kr_cross_entropy_options *o, int64_t limit, int64_t r, int64_t *label, bool *ok)
{
    *label = kr_integer_at(labels, r);
    if ((mask && kr_integer_at(mask, r) == 0) || *label == o->ignore_index) return false;
    char text[KR_SHAPE_TEXT_BYTES];
    *ok = kr_require(tape->ctx, *label >= 0 && *label < limit, KR_ERR_ARG,
                     "%s: label %s is %lld, but must be from 0 to %lld, or ignore_index = %lld", op,
                     kr_index_text(labels, r, text, sizeof text), (long long)*label, (long long)limit - 1,
                     (long long)o->ignore_index);
    return *ok;
}

bool kr_labels_from(kr_tape *tape, const char *op, kr_tensor *labels, const kr_cross_entropy_options *o, int64_t nw,
                    bool compact, kr_labels *out)
{
    kr_tensor *mask = o->mask;
    const int64_t rows = kr_count_of(labels), limit = o->n_classes > 0 ? o->n_classes : nw;
    if (!(labels = kr_integers(tape, op, "labels", labels)) || (mask && !(mask = kr_integers(tape, op, "mask", mask))))
        return false;
    *out = (kr_labels){ .of_r = kr_new(tape, KR_DTYPE_I64, KR_SHAPE(rows)) };
    if (compact) out->rows = kr_new(tape, KR_DTYPE_I64, KR_SHAPE(rows));
    if (!out->of_r || (compact && !out->rows)) return false;
    int64_t *of_r = (int64_t *)(void *)out->of_r->data, *which = compact ? (int64_t *)(void *)out->rows->data : NULL;
    bool ok = true;
    for (int64_t r = 0; r < rows; r++) {
        int64_t label;
        const bool scored = is_scored(tape, op, labels, mask, o, limit, r, &label, &ok);
        if (!ok) return false;
        if (!compact) of_r[r] = scored ? label : -1;
        if (compact && scored) {
            of_r[out->count] = label;
            which[out->count] = r;
        }
        out->count += scored;
    }
    if (compact && out->count == rows) out->rows = NULL;
    out->alpha = o->reduction == KR_REDUCTION_SUM ? 1 : out->count > 0 ? 1 / (double)out->count : 0;
    return true;
}

static bool count_values(void *user, int64_t first, const double *values, int64_t count)
{
    (void)first;
    int64_t *right = user;
    for (int64_t i = 0; i < count; i++) *right += values[i] > 0;
    return true;
}

/* The sum over rows on the device: one number is fetched instead of one per row. */
static bool sum_device(const kr_tensor *stats, int64_t count, int64_t *right)
{
    kr_tensor *sums = kr_new(stats->tape, stats->dtype, KR_SHAPE(KR_ROW_STATS));
    kr_reduce_args args = {
        .no = 1, .nr = count, .ni = KR_ROW_STATS, .x = stats->data, .y = kr_tensor_data(sums), .alpha = 1
    };
    if (!sums || !KR_RUN(stats->ctx, sum[kr_real_of(stats->dtype)], &args)) return false;
    *right = (int64_t)kr_tensor_at(sums, (int64_t[]){ KR_ROW_RIGHT });
    return true;
}

int64_t kr_count_right(const kr_tensor *stats, int64_t count)
{
    enum { EXACT_IN_F32 = 1 << 24 };
    int64_t right = 0;
    if (kr_ctx_on_device(stats->ctx) && count > 0 && count <= EXACT_IN_F32)
        return sum_device(stats, count, &right) ? right : 0;
    kr_tensor column = *stats; /* the one of KR_ROW_RIGHT */
    column.rank = 1;
    column.dims[0] = count;
    column.strides[0] = KR_ROW_STATS;
    column.data += KR_ROW_RIGHT * kr_dtype_bytes(stats->dtype);
    kr_each_value(&column, count_values, &right);
    return right;
}

kr_tensor *kr_loss_sum(kr_tape *tape, const kr_tensor *x, double alpha)
{
    kr_tensor *y = kr_new(tape, x->dtype, KR_SCALAR);
    kr_reduce_args args = {
        .no = 1, .nr = kr_count_of(x), .ni = 1, .x = x->data, .y = kr_tensor_data(y), .alpha = alpha
    };
    return y && KR_RUN(tape->ctx, sum[kr_real_of(x->dtype)], &args) ? y : NULL;
}
