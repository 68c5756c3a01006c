/* grokking_loss.c - cross-entropy of the sum, and optional auxiliary terms.
 *
 *   loss = CE + sum over target matrices W of  lambda PR(W^T W) + l2 |W|^2 + noise <W, e>,  e ~ N(0, 1) resampled each step
 */
#include "lab/grokking.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

double grok_pr_lambda(const grok_values *v, int64_t step)
{
    if (step < v->start_step) return 0;
    if (!v->sine_period) return v->pr_lambda;
    const int64_t phase = (step - v->start_step) % v->sine_period;
    return v->pr_lambda * sin(2 * pi * (double)phase / (double)v->sine_period);
}

static bool is_target(grok_target target, grok_matrix_kind kind)
{
    switch (target) {
    case GROK_EMB: return kind == GROK_EMBEDDING;
    case GROK_EMB_HEAD: return kind == GROK_EMBEDDING || kind == GROK_HEAD;
    case GROK_BC: return kind == GROK_B || kind == GROK_C;
    case GROK_ALL: break;
    }
    return true;
}

/* sum + scale term; either may be NULL (0). */
static kr_tensor *add_term(kr_tape *tape, kr_tensor *sum, kr_tensor *term, double scale)
{
    if (!term) return sum;
    kr_tensor *scaled = kr_scale(tape, term, scale);
    return sum ? kr_add(tape, sum, scaled) : scaled;
}

static kr_tensor *inner_product(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    return kr_sum(tape, kr_mul(tape, a, b), KR_ALL_AXES, false);
}

kr_tensor *grok_auxiliary(kr_tape *tape, const grok *g, int64_t step)
{
    const grok_values *v = g->v;
    const double lambda = grok_pr_lambda(v, step);
    kr_tensor *sum = NULL;
    for (int i = 0; i < g->n_matrices; i++) {
        if (!is_target((grok_target)v->pr_target, g->matrices[i].kind)) continue;
        kr_tensor *w = grok_matrix_of(tape, &g->matrices[i]);
        if (lambda != 0) sum = add_term(tape, sum, cli_participation(tape, w), lambda);
        if (v->l2_lambda != 0) sum = add_term(tape, sum, inner_product(tape, w, w), v->l2_lambda);
        if (v->noise_lambda != 0) {
            kr_tensor *noise = kr_randn(tape, kr_tensor_dtype(w), kr_tensor_shape(w));
            sum = add_term(tape, sum, inner_product(tape, w, noise), v->noise_lambda);
        }
    }
    return sum;
}

kr_loss_out grok_loss(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state)
{
    (void)state;
    grok *g = user;
    const int64_t ns = g->v->k;
    kr_loss_out out = { 0 };
    kr_cross_entropy_options options;
    kr_cross_entropy_options_init(&options);
    options.scores = &out.scores;
    kr_tensor *labels_b = kr_reshape(tape, kr_slice(tape, batch->labels_bs, 1, ns - 1, ns), KR_SHAPE(-1));
    kr_tensor *hidden_bd = grok_hidden(tape, g, batch->ids_bs);
    out.loss = kr_head_cross_entropy(tape, hidden_bd, g->matrices[1].weight, NULL, labels_b, &options);
    if (!kr_requires_grad(out.loss)) return out;
    g->ce = kr_item(out.loss);
    g->auxiliary = NAN;
    kr_tensor *more = g->trainer ? grok_auxiliary(tape, g, kr_trainer_progress(g->trainer).step + 1) : NULL;
    if (!more) return out;
    g->auxiliary = kr_item(more);
    out.loss = kr_add(tape, out.loss, more);
    return out;
}
