/* multi_gate.h - residual streams that are mixed by gates and pooled by a softmax over them. */
#ifndef KR_NN_MULTI_GATE_H
#define KR_NN_MULTI_GATE_H

#include "nn/params_impl.h"
#include "ops/ops_impl.h"

#include <krait/network.h>

typedef struct kr_multi_gate {
    kr_tensor *w_beta_d, *w_alpha_d, *b_beta_q;
    double eps;
} kr_multi_gate;

/* Rows w_beta, w_alpha, b_beta under the table's prefix. */
void kr_multi_gate_declare(kr_multi_gate *gate, kr_params *params, kr_dtype dtype, int64_t d_model, double eps,
                           const kr_residual *residual);

/* sum_q alpha_q S_q, alpha = softmax_q(score(S_q, w_alpha)); any number of streams [.. d]. */
kr_tensor *kr_multi_gate_pool(kr_tape *tape, const kr_multi_gate *gate, int64_t n, kr_tensor *const *streams);

/* S_q <- (1 - beta_q) S_q + beta_q F, beta_q = sigmoid(score(S_q, w_beta) + b_beta[q]), for all n_stream streams. */
void kr_multi_gate_mix(kr_tape *tape, const kr_multi_gate *gate, int64_t n, kr_tensor **streams, kr_tensor *f);

/* The config's fields against their rules. */
bool kr_residual_check(kr_ctx *ctx, const char *op, const kr_residual *residual);

#endif
