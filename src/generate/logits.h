/* logits.h - one row of logits, of any float type and stride, as f64, with its log softmax. */
#ifndef KR_GENERATE_LOGITS_H
#define KR_GENERATE_LOGITS_H

#include "tensor/tensor_impl.h"

typedef struct kr_logits {
    kr_tensor row; /* [w], a view */
    double max;
    double log_sum; /* of all w: log softmax(x) = x - log_sum */
} kr_logits;

/* Reads row `row` of logits [b w] or [w]: the first `vocab` to x, and all of them for log_sum. weights [vocab] is
 * scratch. False after an error: a NaN, +infinity, or only -infinity in x. */
bool kr_logits_read(kr_logits *logits, const char *op, const kr_tensor *logits_bw, int64_t row, int64_t vocab,
                    double *x, double *weights);

/* The log softmax of token id. */
double kr_logits_logprob(const kr_logits *logits, int32_t id);

/* [.. w] of a float type in this context, w >= vocab? The caller has looked at the rank. */
bool kr_logits_check(kr_ctx *ctx, const char *op, const kr_tensor *logits, int64_t vocab);

#endif
