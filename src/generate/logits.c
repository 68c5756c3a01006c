/* logits.c - rows of logits read and checked.
 *
 *   log_sum = max + log(sum of e^(x - max)), over the tokens and the padding behind them
 */
#include "generate/logits.h"

#include "base/ctx_impl.h"
#include "generate/softmax_f64.h"

#include <math.h>

enum { SPAN = 1024 }; /* of the padding, read piece by piece */

static void read_span(const kr_tensor *row, int64_t from, int64_t count, double *x)
{
    kr_tensor span = *row;
    span.data += from * row->strides[0] * (int64_t)kr_dtype_bytes(row->dtype);
    span.dims[0] = count;
    kr_tensor_read(&span, KR_DTYPE_F64, x, count);
}

static bool check_numbers(const kr_logits *logits, const char *op, const kr_tensor *whole, int64_t row, int64_t from,
                          const double *x, int64_t count)
{
    if (kr_are_logits(x, count)) return true;
    int64_t i = 0;
    while (x[i] < (double)INFINITY) i++;
    return kr_fail(logits->row.ctx, KR_ERR_NUMERIC, "%s: logits %s hold %g for token %lld of row %lld", op,
                   KR_TEXT_OF(whole), x[i], (long long)(from + i), (long long)row);
}

bool kr_logits_check(kr_ctx *ctx, const char *op, const kr_tensor *logits, int64_t vocab)
{
    return kr_require(ctx, logits->ctx == ctx, KR_ERR_STATE, "%s: the logits belong to another context", op) &&
           kr_require(ctx, kr_dtype_is_float(logits->dtype), KR_ERR_DTYPE,
                      "%s: logits %s are %s, but must be f32, f64, bf16 or f16", op, KR_TEXT_OF(logits),
                      kr_dtype_name(logits->dtype)) &&
           kr_require(ctx, logits->dims[logits->rank - 1] >= vocab, KR_ERR_SHAPE,
                      "%s: axis w of logits %s is %lld, but there are %lld tokens", op, KR_TEXT_OF(logits),
                      (long long)logits->dims[logits->rank - 1], (long long)vocab);
}

bool kr_logits_read(kr_logits *logits, const char *op, const kr_tensor *logits_bw, int64_t row, int64_t vocab,
                    double *x, double *weights)
{
    const int w = logits_bw->rank - 1;
    logits->row = *logits_bw;
    logits->row.rank = 1;
    logits->row.dims[0] = logits_bw->dims[w];
    logits->row.strides[0] = logits_bw->strides[w];
    if (w > 0) logits->row.data += row * logits_bw->strides[0] * (int64_t)kr_dtype_bytes(logits_bw->dtype);

    read_span(&logits->row, 0, vocab, x);
    if (!check_numbers(logits, op, logits_bw, row, 0, x, vocab)) return false;
    logits->max = kr_max_of(x, vocab);
    if (!kr_require(logits_bw->ctx, logits->max > -(double)INFINITY, KR_ERR_NUMERIC,
                    "%s: logits %s: all %lld tokens of row %lld are -inf, so no token can be sampled", op,
                    KR_TEXT_OF(logits_bw), (long long)vocab, (long long)row))
        return false;

    double padding[SPAN], max = logits->max;
    const int64_t width = logits->row.dims[0];
    for (int64_t from = vocab; from < width; from += SPAN) {
        const int64_t count = width - from < SPAN ? width - from : SPAN;
        read_span(&logits->row, from, count, padding);
        if (!check_numbers(logits, op, logits_bw, row, from, padding, count)) return false;
        max = fmax(max, kr_max_of(padding, count));
    }
    kr_weights_of(logits->row.ctx->pool, weights, x, vocab, max, 1);
    double sum = kr_sum_of(weights, vocab);
    for (int64_t from = vocab; from < width; from += SPAN) {
        const int64_t count = width - from < SPAN ? width - from : SPAN;
        read_span(&logits->row, from, count, padding);
        kr_weights_of(NULL, padding, padding, count, max, 1);
        sum += kr_sum_of(padding, count);
    }
    logits->log_sum = max + log(sum);
    return true;
}

double kr_logits_logprob(const kr_logits *logits, int32_t id)
{
    double x;
    read_span(&logits->row, id, 1, &x);
    return x - logits->log_sum;
}
