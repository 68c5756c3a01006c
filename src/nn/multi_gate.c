/* multi_gate.c - residual streams S_q [.. d] of one position, mixed by gates and pooled by attention over them.
 *
 *   score(s, w) = d^-1/2 <s, w> / sqrt(mean(s^2) + eps)         the norm's gain is w, so a sum of its result
 *   pool   h = sum_q alpha_q S_q,                 alpha = softmax_q(score(S_q, w_alpha))
 *   mix    S_q <- S_q + beta_q (F - S_q),         beta_q = sigmoid(score(S_q, w_beta) + b_beta[q])
 * Gates begin at w = 0: the pool is the mean of the streams, and beta is that of the biases alone.
 */
#include "nn/multi_gate.h"

#include "base/sized.h"
#include "nn/block_config.h"

#include <math.h>

double kr_multi_gate_depth_bias(int64_t n_mix, int64_t n_stream)
{
    if (n_mix < 1 || n_stream < 1) return NAN;
    const double exp_minus_bias = sqrt((double)n_mix / 21) * (exp(3) + 1) - (double)n_stream;
    return exp_minus_bias > 0 ? -log(exp_minus_bias) : NAN;
}

bool kr_residual_check(kr_ctx *ctx, const char *op, const kr_residual *residual)
{
    if (!KR_RESERVED(ctx, op, "residual", residual)) return false;
    if (residual->kind == KR_RESIDUAL_STANDARD) return true;
    return kr_require(ctx, residual->kind == KR_RESIDUAL_MULTI_GATE, KR_ERR_ARG,
                      "%s: residual.kind = %d is neither standard nor multi-gate", op, (int)residual->kind) &&
           kr_config_at_least(ctx, op, "residual.n_stream", residual->n_stream, 1) &&
           kr_require(ctx, isfinite(residual->init_bias), KR_ERR_ARG, "%s: residual.init_bias = %g, but must be finite",
                      op, residual->init_bias) &&
           kr_require(ctx, isfinite(residual->init_bias_step), KR_ERR_ARG,
                      "%s: residual.init_bias_step = %g, but must be finite", op, residual->init_bias_step);
}

void kr_multi_gate_declare(kr_multi_gate *gate, kr_params *params, kr_dtype dtype, int64_t d_model, double eps,
                           const kr_residual *residual)
{
    *gate = (kr_multi_gate){ .w_beta_d = kr_params_add_vector(params, "w_beta", "d", dtype, d_model, kr_init_fill(0)),
                             .w_alpha_d = kr_params_add_vector(params, "w_alpha", "d", dtype, d_model, kr_init_fill(0)),
                             .b_beta_q = kr_params_add_vector(
                                 params, "b_beta", "q", dtype, residual->n_stream,
                                 (kr_init){ KR_INIT_RAMP, residual->init_bias, residual->init_bias_step, 0 }),
                             .eps = eps };
}

/* [.. 1] */
static kr_tensor *score(kr_tape *tape, const kr_multi_gate *gate, kr_tensor *stream, kr_tensor *w_d)
{
    kr_norm_options norm;
    kr_norm_options_init(&norm);
    norm.eps = gate->eps;
    kr_tensor *sum = kr_sum(tape, kr_rms_norm(tape, stream, w_d, &norm), KR_AXES(-1), true);
    return kr_scale(tape, sum, 1 / sqrt((double)kr_dim_of(w_d, 0)));
}

kr_tensor *kr_multi_gate_pool(kr_tape *tape, const kr_multi_gate *gate, int64_t n, kr_tensor *const *streams)
{
    if (!kr_tape_ready(tape, "multi_gate.pool")) return NULL;
    if (n == 1) return streams[0];
    kr_tensor **scores = kr_arena_alloc(&tape->heads, (size_t)n * sizeof *scores);
    if (!scores) {
        kr_fail(tape->ctx, KR_ERR_NOMEM, "multi_gate.pool: no memory for %lld scores", (long long)n);
        return NULL;
    }
    for (int64_t q = 0; q < n; q++) scores[q] = score(tape, gate, streams[q], gate->w_alpha_d);
    if (kr_ctx_failed(tape->ctx)) return NULL;
    kr_tensor *alpha = kr_softmax(tape, kr_concat(tape, -1, (int)n, scores), -1);
    kr_tensor *pooled = NULL;
    for (int64_t q = 0; q < n; q++) {
        kr_tensor *part = kr_mul(tape, streams[q], kr_slice(tape, alpha, -1, q, q + 1));
        pooled = q == 0 ? part : kr_add(tape, pooled, part);
    }
    return kr_cast(tape, pooled, streams[0]->dtype); /* gates may be wider than the streams */
}

void kr_multi_gate_mix(kr_tape *tape, const kr_multi_gate *gate, int64_t n, kr_tensor **streams, kr_tensor *f)
{
    for (int64_t q = 0; q < n; q++) {
        if (!streams[q]) continue;
        const kr_dtype dtype = streams[q]->dtype;
        kr_tensor *bias = kr_slice(tape, gate->b_beta_q, 0, q, q + 1);
        kr_tensor *beta = kr_sigmoid(tape, kr_add(tape, score(tape, gate, streams[q], gate->w_beta_d), bias));
        kr_tensor *toward = kr_mul(tape, kr_sub(tape, f, streams[q]), beta);
        streams[q] = kr_cast(tape, kr_add(tape, streams[q], toward), dtype);
    }
}
