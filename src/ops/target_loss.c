/* target_loss.c - losses of outputs y against float targets t, composed of other ops: gradients reach both.
 *
 *   soft_cross_entropy  [.. w]: -sum over w of t log p for each row;   log p = log_softmax(y), or log(y + eps)
 *   bce                 -t log p - (1 - t) log(1 - p);   log p = log_sigmoid(y), log(1 - p) = log_sigmoid(-y),
 *                       or log(y + eps), log(1 + eps - y)
 *   mse                 (y - t)^2
 *   l1_loss             |y - t|
 *   huber_loss          c (e - c / 2), e = y - t, c = e clamped to [-delta, delta]; its gradient is c
 *   quantile_loss       max(q e, (q - 1) e), e = t - y
 *
 * Elements that are not scored are replaced before the computation, and their losses by 0 after it: their loss and
 * gradients are 0 for any value.
 */
#include "ops/loss_impl.h"

#include "base/sized.h"

#include <math.h>

KR_DEFAULTS(kr_loss_options) = { .size = sizeof(kr_loss_options), .huber_delta = 1, .quantile = 0.5 };

/* State of a loss computation. */
typedef struct job {
    kr_tape *tape;
    const char *op;
    kr_loss_options o;
    kr_tensor *y, *t;
    kr_tensor *mask; /* NULL, or of a shape that broadcasts to y's */
    int64_t count;   /* scored outputs, or rows */
} job;

static bool check_options(const job *j, bool has_logits, bool has_target_logits)
{
    kr_ctx *ctx = j->tape->ctx;
    const kr_loss_options *o = &j->o;
    return kr_require(ctx, o->reduction == KR_REDUCTION_MEAN || o->reduction == KR_REDUCTION_SUM, KR_ERR_ARG,
                      "%s: reduction = %d is neither KR_REDUCTION_MEAN nor KR_REDUCTION_SUM", j->op,
                      (int)o->reduction) &&
           kr_require(ctx, has_logits || !o->has_probabilities, KR_ERR_ARG,
                      "%s: has_probabilities is set, but outputs are taken as they are", j->op) &&
           kr_require(ctx, has_target_logits || !o->has_target_logits, KR_ERR_ARG,
                      "%s: has_target_logits is set, but is for soft_cross_entropy", j->op) &&
           kr_require(ctx, o->eps >= 0 && o->eps < 1, KR_ERR_ARG, "%s: eps = %g, but must be from 0 to below 1", j->op,
                      o->eps) &&
           kr_require(ctx, o->huber_delta > 0 && isfinite(o->huber_delta), KR_ERR_ARG,
                      "%s: huber_delta = %g, but must be above 0 and finite", j->op, o->huber_delta) &&
           kr_require(ctx, o->quantile > 0 && o->quantile < 1, KR_ERR_ARG,
                      "%s: quantile = %g, but must be above 0 and below 1", j->op, o->quantile);
}

/* Elements of mask that are not 0. */
static int64_t count_of(const kr_tensor *mask)
{
    int64_t count = 0;
    const int64_t all = kr_count_of(mask);
    for (int64_t i = 0; i < all; i++) count += kr_integer_at(mask, i) != 0;
    return count;
}

/* Checks that mask broadcasts to `shape`; the number of scored elements. */
static bool take_mask(job *j, const kr_shape *shape, const char *rule)
{
    const int64_t all = kr_shape_count(shape);
    j->count = all;
    if (!j->o.mask) return true;
    if (!kr_bind_any(j->tape, j->op, j->o.mask) || !(j->mask = kr_integers(j->tape, j->op, "mask", j->o.mask)))
        return false;
    const kr_shape own = kr_tensor_shape(j->mask);
    bool fits = own.rank <= shape->rank;
    for (int i = 0; fits && i < own.rank; i++) {
        const int64_t want = shape->dims[shape->rank - own.rank + i];
        fits = own.dims[i] == want || own.dims[i] == 1;
    }
    if (!kr_require(j->tape->ctx, fits, KR_ERR_SHAPE, "%s: mask %s does not repeat to %s, %s", j->op,
                    KR_TEXT_OF(j->mask), KR_TEXT_OF_SHAPE(shape), rule))
        return false;
    const int64_t counted = kr_count_of(j->mask);
    j->count = counted > 0 ? count_of(j->mask) * (all / counted) : 0;
    return true;
}

/* x where it is scored, else value. */
static kr_tensor *scored(const job *j, kr_tensor *x, double value)
{
    if (!j->mask || !x) return x;
    return kr_where(j->tape, j->mask, x, kr_full(j->tape, x->dtype, KR_SCALAR, value));
}

/* The sum or mean of the losses x of single outputs or rows. */
static kr_tensor *finish(const job *j, kr_tensor *x)
{
    x = kr_sum(j->tape, scored(j, x, 0), KR_ALL_AXES, false);
    if (x && j->o.n_scored) *j->o.n_scored = j->count;
    if (j->o.reduction == KR_REDUCTION_SUM) return x;
    return kr_scale(j->tape, x, j->count > 0 ? 1 / (double)j->count : 0);
}

/* log(alpha p + beta + eps). */
static kr_tensor *log_of(const job *j, kr_tensor *p, double alpha, double beta)
{
    const double eps = j->o.eps > 0 ? j->o.eps : j->y->dtype == KR_DTYPE_F64 ? 0x1p-52 : 0x1p-23;
    return kr_log(j->tape, kr_affine(j->tape, p, alpha, beta + eps));
}

/* Checks options, shapes and types. */
static bool enter(job *j, kr_tape *tape, const char *op, kr_tensor *outputs, kr_tensor *targets,
                  const kr_loss_options *given, bool has_logits, bool has_target_logits)
{
    kr_dims d;
    kr_dtype result;
    *j = (job){ .tape = tape, .op = op, .y = outputs, .t = targets };
    return kr_tape_ready(tape, op) && KR_TAKE(tape->ctx, op, kr_loss_options, given, &j->o) &&
           check_options(j, has_logits, has_target_logits) &&
           kr_bind(tape, op, &d, has_target_logits ? "outputs:..w targets:..w" : "outputs:.. targets:..", outputs,
                   targets) &&
           KR_REALS(tape, op, "outputs targets", &result, &j->y, &j->t);
}

static kr_tensor *soft_cross_entropy(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets,
                                     const kr_loss_options *options)
{
    job j;
    if (!enter(&j, tape, "soft_cross_entropy", outputs, targets, options, true, true)) return NULL;
    kr_shape rows = kr_tensor_shape(j.y);
    rows.rank--;
    if (!take_mask(&j, &rows, "a number for each row")) return NULL;
    kr_tensor *mask_r = j.mask;
    if (mask_r) {
        kr_shape column = kr_tensor_shape(mask_r);
        column.dims[column.rank++] = 1;
        j.mask = kr_reshape(tape, mask_r, column);
    }
    kr_tensor *y = scored(&j, j.y, 0.5), *t = scored(&j, j.t, 0);
    kr_tensor *log_p = j.o.has_probabilities ? log_of(&j, y, 1, 0) : kr_log_softmax(tape, y, -1);
    if (j.o.has_target_logits) t = kr_softmax(tape, t, -1);
    j.mask = mask_r;
    return finish(&j, kr_neg(tape, kr_sum(tape, kr_mul(tape, t, log_p), KR_AXES(-1), false)));
}

static kr_tensor *bce(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets, const kr_loss_options *options)
{
    job j;
    if (!enter(&j, tape, "bce", outputs, targets, options, true, false)) return NULL;
    const kr_shape shape = kr_tensor_shape(j.y);
    if (!take_mask(&j, &shape, "the outputs' shape")) return NULL;
    kr_tensor *y = scored(&j, j.y, 0.5), *t = scored(&j, j.t, 0), *log_p, *log_rest;
    if (j.o.has_probabilities) {
        log_p = log_of(&j, y, 1, 0);
        log_rest = log_of(&j, y, -1, 1);
    } else {
        log_p = kr_log_sigmoid(tape, y);
        log_rest = kr_log_sigmoid(tape, kr_neg(tape, y));
    }
    kr_tensor *rest = kr_mul(tape, kr_affine(tape, t, -1, 1), log_rest);
    return finish(&j, kr_neg(tape, kr_add(tape, kr_mul(tape, t, log_p), rest)));
}

/* Outputs and targets that are compared one by one: y - t where it is scored, 0 elsewhere. NULL after an error. */
static kr_tensor *enter_difference(job *j, kr_tape *tape, const char *op, kr_tensor *outputs, kr_tensor *targets,
                                   const kr_loss_options *options)
{
    if (!enter(j, tape, op, outputs, targets, options, false, false)) return NULL;
    const kr_shape shape = kr_tensor_shape(j->y);
    if (!take_mask(j, &shape, "the outputs' shape")) return NULL;
    return kr_sub(tape, scored(j, j->y, 0), scored(j, j->t, 0));
}

static kr_tensor *mse(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets, const kr_loss_options *options)
{
    job j;
    kr_tensor *e = enter_difference(&j, tape, "mse", outputs, targets, options);
    return e ? finish(&j, kr_mul(tape, e, e)) : NULL;
}

static kr_tensor *l1_loss(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets, const kr_loss_options *options)
{
    job j;
    kr_tensor *e = enter_difference(&j, tape, "l1_loss", outputs, targets, options);
    return e ? finish(&j, kr_abs(tape, e)) : NULL;
}

static kr_tensor *huber_loss(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets, const kr_loss_options *options)
{
    job j;
    kr_tensor *e = enter_difference(&j, tape, "huber_loss", outputs, targets, options);
    if (!e) return NULL;
    const double delta = j.o.huber_delta;
    kr_tensor *c = kr_clamp(tape, kr_detach(tape, e), -delta, delta); /* a constant: the gradient is c itself */
    return finish(&j, kr_mul(tape, c, kr_sub(tape, e, kr_scale(tape, c, 0.5))));
}

static kr_tensor *quantile_loss(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets, const kr_loss_options *options)
{
    job j;
    kr_tensor *e = enter_difference(&j, tape, "quantile_loss", outputs, targets, options);
    if (!e) return NULL;
    const double q = j.o.quantile;
    return finish(&j, kr_maximum(tape, kr_scale(tape, e, -q), kr_scale(tape, e, 1 - q)));
}

kr_tensor *kr_target_loss(kr_tape *tape, kr_loss_kind kind, kr_tensor *outputs, kr_tensor *targets,
                          const kr_loss_options *options)
{
    switch (kind) {
    case KR_LOSS_SOFT_CROSS_ENTROPY: return soft_cross_entropy(tape, outputs, targets, options);
    case KR_LOSS_BCE: return bce(tape, outputs, targets, options);
    case KR_LOSS_MSE: return mse(tape, outputs, targets, options);
    case KR_LOSS_L1: return l1_loss(tape, outputs, targets, options);
    case KR_LOSS_HUBER: return huber_loss(tape, outputs, targets, options);
    case KR_LOSS_QUANTILE: return quantile_loss(tape, outputs, targets, options);
    case KR_LOSS_CROSS_ENTROPY: break;
    }
    if (!kr_tape_ready(tape, "target_loss")) return NULL;
    kr_fail(tape->ctx, KR_ERR_ARG,
            kind == KR_LOSS_CROSS_ENTROPY
                ? "target_loss: kind = %d is cross-entropy, which has labels, not targets; use kr_cross_entropy"
                : "target_loss: kind = %d is not a kr_loss_kind",
            (int)kind);
    return NULL;
}
