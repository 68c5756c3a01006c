/* token_args.h - the argument structs of kernels for one token of each row, where nothing is recorded: steps of
 * generation. */
#ifndef KR_KERNELS_TOKEN_ARGS_H
#define KR_KERNELS_TOKEN_ARGS_H

#include "kernels/exec.h"
#include "kernels/matmul_args.h"

/* y = base + norm(x, z) W^T + bias, and some of the outputs through a convolution that remembers its last inputs:
 *   u = x silu(z), q = (mean_group(u^2) + eps)^-1/2, norm = u q gain;   norm_first: u = x, norm = u q gain silu(z)
 *   without has_norm: q = 1.   v[m, n] = base[m, n] + sum over k of norm[m, k] w[n, k] + bias[n]
 *   y[m, n] = v, but for n = conv_from + c with c < nc:
 *   window[m, c, 0 .. nt-1] <- window[m, c, 1 .. nt-1], v;   y = silu(conv_bias[c] + sum over t of taps[c, t]
 * window[m, c, t]) x, z [m k], w [n k], gain [k], bias [n], base, y [m n], taps [c t], conv_bias [c], window [m c t].
 * Rows of x, z, base, y begin x_m, z_m, base_m, y_m elements apart. z, gain, bias, base, conv_bias may be NULL; base
 * may be y. nc = 0: no convolution. Group e of ng holds channels e nk/ng ... On CUDA with exec.precision the product
 * may round norm, as matmul. */
typedef struct kr_token_linear_args {
    kr_exec exec;
    int64_t nm, nn, nk, ng, x_m, z_m, base_m, y_m;
    const void *x, *z, *gain, *w, *bias, *base;
    void *y;
    kr_half w_half, taps_half;
    bool has_norm, norm_first;
    double eps;
    int64_t conv_from, nc, nt;
    const void *taps, *conv_bias;
    void *window;
} kr_token_linear_args;

/* One token of Mamba-2's state space core, in place, with what goes before it. For row b and head h of group e = h /
 * (nh/ng):
 *   s = clamp(softplus(dt[b, h] + dt_bias[h]), dt_min, dt_max);   H <- exp(-s exp(a_log[h])) H + s x (outer) B[e]
 *   y = H C[e] + D x;   D is d[h], or d[h, p] with d_per_dim
 * x [h p], b, c [g r], dt [h] in rows that begin `stride` elements apart; state H [b h p r]; y [b h p], rows y_stride
 * apart. */
typedef struct kr_token_ssd_args {
    kr_exec exec;
    int64_t nb, nh, np, ng, nr, stride, y_stride;
    const void *x, *b, *c, *dt, *dt_bias, *a_log, *d;
    bool d_per_dim;
    double dt_min, dt_max;
    void *state, *y;
} kr_token_ssd_args;

/* A token for each row of logits x, and its log-probability (generate/sampler_choose.c has the rules):
 *   temperature 0: the first of the largest. Else weights e^((x - max) / temperature) of the top_k largest (0: all), of
 *   those the fewest largest that add up to top_p of their sum, of those the ones of min_p at least; the token at u
 * times
 *   their sum, in the order of ids, u from Philox (seed, row, drawn). Of equals the smaller id is the larger one.
 *   logprob = x[id] - log(sum over all nw of e^x)
 * x [b w], of which the first `vocab` may be chosen; rows begin `stride` elements apart, of any sign, or 0. row, drawn
 * [b] and the results id, logprob [b] lie where host and device reach them. id = -1: a NaN or +infinity among the
 * logits, or nothing but -infinity to choose from. */
typedef struct kr_sample_args {
    kr_exec exec;
    int64_t nb, nw, vocab, stride, top_k;
    double temperature, top_p, min_p;
    uint64_t seed;
    const void *x;
    const int64_t *row, *drawn;
    int32_t *id;
    void *logprob;
} kr_sample_args;

#endif
