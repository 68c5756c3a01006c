/* loss_impl.h - common code of losses: options, labels, and the final sum. */
#ifndef KR_OPS_LOSS_IMPL_H
#define KR_OPS_LOSS_IMPL_H

#include "ops/ops_impl.h"

#include <krait/ops.h>

/* own <- options, checked against w columns of x; `name` is x's name in messages. */
bool kr_cross_entropy_take(kr_tape *tape, const char *op, kr_cross_entropy_options *own,
                           const kr_cross_entropy_options *given);
bool kr_cross_entropy_check(kr_tape *tape, const char *op, const kr_cross_entropy_options *o, const char *name,
                            const kr_tensor *x, int64_t nw);

/* Number of the w columns in the softmax. */
int64_t kr_cross_entropy_columns(const kr_cross_entropy_options *o, int64_t nw);

/* Labels, checked. */
typedef struct kr_labels {
    int64_t count;   /* number of scored rows */
    double alpha;    /* factor of their sum */
    kr_tensor *of_r; /* i64 [rows], -1 where not scored; or [count], of the scored ones alone */
    kr_tensor *rows; /* i64 [count]: which rows those are; NULL: all, in order */
} kr_labels;

/* Of labels and mask of one shape; `compact`: the scored ones alone. */
bool kr_labels_from(kr_tape *tape, const char *op, kr_tensor *labels, const kr_cross_entropy_options *o, int64_t nw,
                    bool compact, kr_labels *out);

/* How many rows of stats are right. */
int64_t kr_count_right(const kr_tensor *stats, int64_t count);

/* alpha times the sum of all elements of the contiguous x, not recorded. */
kr_tensor *kr_loss_sum(kr_tape *tape, const kr_tensor *x, double alpha);

/* Element i of the contiguous x, i32 or i64. */
static inline int64_t kr_integer_at(const kr_tensor *x, int64_t i)
{
    return x->dtype == KR_DTYPE_I32 ? ((const int32_t *)(const void *)x->data)[i]
                                    : ((const int64_t *)(const void *)x->data)[i];
}

/* x, contiguous; NULL with an error if it is neither i32 nor i64. */
kr_tensor *kr_integers(kr_tape *tape, const char *op, const char *name, kr_tensor *x);

#endif
