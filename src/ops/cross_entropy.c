/* cross_entropy.c - cross-entropy of logits with labels, and how many labels the logits get right.
 *
 *   logits [.. w], labels [..]:  loss = alpha sum over scored rows of -log softmax(logits)[label], alpha = 1 / scored or 1
 *   g_logits = alpha g (softmax(logits) - 1 at the label), 0 in rows that are not scored; with smoothing see
 *   kernels/kernels.h.   saved: stats [rows 4], labels
 */
#include "ops/loss_impl.h"

#define OP "cross_entropy"

typedef struct attrs {
    int64_t nv;
    double smoothing, alpha;
} attrs;

static void cross_entropy_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const attrs *at = kr_back_attrs(back);
    const kr_tensor *x = kr_back_in(back, 0), *stats = kr_back_saved(back, 0);
    kr_tensor *g_x = kr_new(tape, x->dtype, kr_tensor_shape(x));
    if (!g_x) return;
    kr_cross_entropy_bwd_args args = { .no = stats->dims[0],
                                       .nr = x->dims[x->rank - 1],
                                       .nv = at->nv,
                                       .x = x->data,
                                       .stats = stats->data,
                                       .g_y = kr_back_grad(back, 0)->data,
                                       .label = (const int64_t *)(const void *)kr_back_saved(back, 1)->data,
                                       .smoothing = at->smoothing,
                                       .alpha = at->alpha,
                                       .g_x = g_x->data };
    if (KR_RUN(tape->ctx, cross_entropy_bwd[kr_real_of(x->dtype)], &args)) kr_back_accumulate(back, 0, g_x);
}

static const kr_rule cross_entropy_rule = { .name = OP, .backward = cross_entropy_backward };

/* Losses of the rows of a contiguous x, and their stats [rows 4]; NULL after an error. */
static kr_tensor *score(kr_tape *tape, const kr_tensor *x, const kr_labels *labels, int64_t nv, double smoothing,
                        kr_tensor **stats)
{
    const int64_t rows = kr_count_of(labels->of_r);
    kr_tensor *loss_r = kr_new(tape, x->dtype, KR_SHAPE(rows));
    *stats = kr_new(tape, x->dtype, KR_SHAPE(rows, KR_ROW_STATS));
    if (!loss_r || !*stats) return NULL;
    kr_cross_entropy_args args = { .no = rows,
                                   .nr = x->dims[x->rank - 1],
                                   .nv = nv,
                                   .x = x->data,
                                   .label = (const int64_t *)(const void *)labels->of_r->data,
                                   .smoothing = smoothing,
                                   .loss = loss_r->data,
                                   .stats = (*stats)->data };
    return KR_RUN(tape->ctx, cross_entropy[kr_real_of(x->dtype)], &args) ? loss_r : NULL;
}

/* Checks options, shapes, types and labels. *logits becomes contiguous and of a type to compute in. */
static bool enter(kr_tape *tape, const char *op, kr_tensor **logits, kr_tensor *labels,
                  const kr_cross_entropy_options *given, kr_cross_entropy_options *o, kr_labels *out)
{
    kr_dims d;
    kr_dtype result;
    return kr_cross_entropy_take(tape, op, o, given) &&
           kr_bind(tape, op, &d, "logits:..w labels:.. mask:..?", *logits, labels, o->mask) &&
           kr_cross_entropy_check(tape, op, o, "logits", *logits, d.w) &&
           KR_REALS(tape, op, "logits", &result, logits) && (*logits = kr_contiguous(tape, *logits)) != NULL &&
           kr_labels_from(tape, op, labels, o, d.w, false, out);
}

kr_tensor *kr_cross_entropy(kr_tape *tape, kr_tensor *logits, kr_tensor *labels,
                            const kr_cross_entropy_options *options)
{
    kr_cross_entropy_options o;
    kr_labels own;
    kr_tensor *stats;
    if (!enter(tape, OP, &logits, labels, options, &o, &own)) return NULL;
    const attrs at = { kr_cross_entropy_columns(&o, kr_dim_of(logits, -1)), o.label_smoothing, own.alpha };
    kr_tensor *loss_r = score(tape, logits, &own, at.nv, at.smoothing, &stats);
    kr_tensor *loss = loss_r ? kr_loss_sum(tape, loss_r, own.alpha) : NULL;
    if (!loss) return NULL;
    if (o.scores) *o.scores = (kr_scores){ .scored = own.count, .right = kr_count_right(stats, kr_dim_of(stats, 0)) };
    const kr_record_args record = { .rule = &cross_entropy_rule,
                                    .n_in = 1,
                                    .in = &logits,
                                    .n_out = 1,
                                    .out = &loss,
                                    .n_saved = 2,
                                    .saved = (kr_tensor *[]){ stats, own.of_r },
                                    .attrs = &at,
                                    .attrs_bytes = sizeof at };
    return kr_record_node(tape, &record, false) ? loss : NULL;
}

kr_scores kr_accuracy(kr_tape *tape, kr_tensor *logits, kr_tensor *labels, const kr_cross_entropy_options *options)
{
    kr_scores scores = { .scored = 0 };
    kr_cross_entropy_options o;
    kr_labels own;
    kr_tensor *stats;
    if (!kr_tape_ready(tape, "accuracy")) return scores;
    const kr_scope scope = kr_no_grad_begin(tape);
    if (enter(tape, "accuracy", &logits, labels, options, &o, &own) &&
        score(tape, logits, &own, kr_cross_entropy_columns(&o, kr_dim_of(logits, -1)), 0, &stats))
        scores = (kr_scores){ .scored = own.count, .right = kr_count_right(stats, kr_dim_of(stats, 0)) };
    kr_no_grad_end(tape, scope, 0, NULL);
    return scores;
}
