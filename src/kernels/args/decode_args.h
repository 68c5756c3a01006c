/* decode_args.h - the argument structs of decode kernels: one token per row, without a tape. An operand that is not given is
 * absent: its data is NULL. */
#ifndef KR_KERNELS_ARGS_DECODE_ARGS_H
#define KR_KERNELS_ARGS_DECODE_ARGS_H

#include "kernels/exec.h"
#include "kernels/args/matmul_args.h"

/* y = base + norm(x, z) W^T + bias, and some of the outputs through a causal convolution with a carried window:
 *   u = x silu(z), q = (mean_group(u^2) + eps)^-1/2, norm = u q gain;   norm_first: u = x, norm = u q gain silu(z)
 *   without has_norm: q = 1.   v[m, n] = base[m, n] + sum over k of norm[m, k] w[n, k] + bias[n]
 *   y[m, n] = v, but for n = conv_from + c with c < nc:
 *   window[m, c, 0 .. nt-1] <- window[m, c, 1 .. nt-1], v
 *   y = silu(conv_bias[c] + sum over t of taps[c, t] window[m, c, t])
 * x, z [m k], w [n k], contiguous, gain [k], bias [n], base, y [m n], taps [c t], contiguous, conv_bias [c], window [m c t].
 * z, gain, bias, base, conv_bias may be absent; base may be y, and is older than x: the preceding kernel does not write it.
 * nc = 0: no convolution, and no taps. Group e of ng holds channels e nk/ng ... On CUDA with exec.precision the product may
 * round norm, as matmul. With squares [m nsquares] the mean is their sum in a row over nk, instead of that of u^2: x is
 * already gated and multiplied by its gain (then ng is 1, z and gain are absent). */
typedef struct kr_decode_linear_args {
    kr_exec exec;
    int64_t nm, nn, nk, ng;
    kr_operand x, z, w, base, y;
    const void *gain, *bias, *squares;
    int64_t nsquares;
    bool has_norm, norm_first;
    double eps;
    int64_t conv_from, nc, nt;
    kr_operand taps;
    const void *conv_bias;
    void *window;
} kr_decode_linear_args;

/* One token of the Mamba-2 SSD core, in place, with its step size and gate. For row b and head h of group e = h / (nh/ng):
 *   s = clamp(softplus(dt[b, h] + dt_bias[h]), dt_min, dt_max);   H <- exp(-s exp(a_log[h])) H + s x (outer) B[e]
 *   y = H C[e] + D x;   D is d[h], or d[h, p] with d_per_dim
 *   with z: u = y silu(z), y <- u gain (NULL: 1), and squares, unless NULL, gets the sums of u^2 over 8 rows p each:
 *   squares[b, h, i] for p = 8 i .. 8 i + 7, the last of which may be fewer
 * x, z [b h p], b, c [b g r], dt [b h], which have one row stride; y [b h p], its rows being those of the batch; gain [h p],
 * d, squares may be NULL; state H [b h p r].
 *
 * Deferred state updates: with `deferred` a state is read at every token, but written only at one of KR_DEFERRED_TOKENS;
 * until then the tokens since are pending. A tile, eight rows p of a head, has a record in `deferred`: weights s x and
 * decay of token i at index i % KR_DEFERRED_TOKENS, and the count t of tokens since the last flush, which wraps from 2
 * KR_DEFERRED_TOKENS to KR_DEFERRED_TOKENS; B of a token is stored per group. At token t the pending tokens of tile i are
 * the last
 *   min(t, (t + KR_DEFERRED_PHASE(i)) % KR_DEFERRED_TOKENS)
 * and the tile is written if that remainder is KR_DEFERRED_TOKENS - 1, so that pairs of tiles take turns. Pending tokens
 * are applied one by one: H has the same bits as without `deferred`. x absent: no token; all pending tokens are applied and
 * the records cleared (flush), and nothing else is read or written.
 */
typedef struct kr_decode_ssd_args {
    kr_exec exec;
    int64_t nb, nh, np, ng, nr;
    kr_operand x, b, c, dt, z, y;
    const void *dt_bias, *a_log, *d, *gain;
    bool d_per_dim;
    double dt_min, dt_max;
    void *state, *squares, *deferred;
} kr_decode_ssd_args;

enum { KR_DECODE_TILE = 8 }; /* rows p of a tile, whose squares are one sum */
enum { KR_DEFERRED_TOKENS = 8 };
#define KR_DEFERRED_PHASE(tile) ((tile) / 2)

/* Layout of `deferred`, in elements. Per row b: records [h, tiles of p], then B [g KR_DEFERRED_TOKENS r]. A record: weights
 * [KR_DEFERRED_TOKENS KR_DECODE_TILE], decays [KR_DEFERRED_TOKENS], the count. */
enum {
    KR_DEFERRED_DECAY = KR_DEFERRED_TOKENS * KR_DECODE_TILE,
    KR_DEFERRED_COUNT = KR_DEFERRED_DECAY + KR_DEFERRED_TOKENS,
    KR_DEFERRED_RECORD = KR_DEFERRED_COUNT + 8 /* a multiple of 16 bytes */
};

typedef struct kr_deferred_parts {
    int64_t tiles, b, row; /* tiles per head; offset of B; elements per row */
} kr_deferred_parts;

static inline kr_deferred_parts kr_deferred_parts_of(int64_t nh, int64_t np, int64_t ng, int64_t nr)
{
    const int64_t tiles = (np + KR_DECODE_TILE - 1) / KR_DECODE_TILE, b = nh * tiles * KR_DEFERRED_RECORD;
    const kr_deferred_parts parts = { tiles, b, b + ng * KR_DEFERRED_TOKENS * nr };
    return parts;
}

/* One token of the Mamba-1 selective scan, in place, with dt projection and gate. For row b and channel i:
 *   low, B, C <- each divided by (mean of its squares + eps)^1/2; eps 0: as they are
 *   s = clamp(softplus(sum over x of low[x] w[i, x] + dt_bias[i]), dt_min, dt_max)
 *   H[r] <- exp(-s exp(a_log[i, r])) H[r] + s B[r] x[i];   y = (sum over r of C[r] H[r] + D[i] x[i]) silu(z[i])
 * x, z [b i], which have one row stride; low [b x], b, c [b r], which have another one; w [i x], y [b i], contiguous; a_log
 * [i r], dt_bias, d [i]; state H [b i r]. */
typedef struct kr_decode_scan_args {
    kr_exec exec;
    int64_t nb, ni, nr, nx;
    kr_operand x, z, low, b, c, w, y;
    const void *dt_bias, *a_log, *d;
    double eps, dt_min, dt_max;
    void *state;
} kr_decode_scan_args;

/* One token of the Mamba-3 SSD core, in place, with its norms, rotary embedding and gate. For row b and head h of group e =
 * h / (nh/ng), ranks m:
 *   s, da, gamma, carry        of dt + dt_bias, a, lambda: see kr_trapezoid_args
 *   angle[i] <- wrap(angle[i] + s range pi tanh(theta[i]));   B[m] = rotate(norm(b[m, e]) b_gain + b_bias[h, m]), C
 *   likewise, by the first `nrotated` angles: see kr_rotate_args, kr_angles_args; norm divides by (mean square + eps)^1/2
 *   V[m] = x mimo_x[h, m], V'[m] = v mimo_x[h, m]
 *   H <- exp(da) (H + carry sum_m V'[m] (outer) k[m]) + gamma sum_m V[m] (outer) B[m];   y[m] = H C[m] + D V[m]
 *   k <- B, v <- x;   y = sum_m mimo_o[h, m] norm(y[m]) gain silu(z mimo_z[h, m]), the norm over p only with has_norm
 * x, z [b h p], b, c [b m g r], dt, a, lambda [b h], theta [b na], which have one row stride; y [b h p], contiguous; gains
 * [r], biases [h m r], mimo_* [h m p] or all NULL (1), gain [h p], or [p] with shared_gain, or NULL; state H [b h p r], k [b
 * m h r], v [b h p], angle [b h na]. Pairs are (i, i + nr/2) with `split_pairs`, (2i, 2i + 1) without. */
typedef struct kr_decode_mamba3_args {
    kr_exec exec;
    int64_t nb, nm, nh, np, ng, nr, na, nrotated;
    kr_operand z, x, b, c, dt, a, lambda, theta, y;
    const void *dt_bias, *b_gain, *c_gain, *b_bias, *c_bias, *mimo_x, *mimo_z, *mimo_o, *d, *gain;
    bool softplus, split_pairs, has_norm, shared_gain;
    double eps, a_floor, dt_min, dt_max, range;
    void *state, *k, *v, *angle;
} kr_decode_mamba3_args;

/* Elements of a head other than its state: sizes that fit in the shared memory of a GPU, in f32, have at most
 * KR_DECODE_MAMBA3_MAX; others take other kernels. */
enum { KR_DECODE_MAMBA3_MAX = 24000 };
static inline int64_t kr_decode_mamba3_elements(int64_t nm, int64_t nr, int64_t np, int64_t na)
{
    return 3 * nm * ((nr + 3) / 4 * 4) + nm * np + 2 * na;
}

/* A layer for one token of all rows, by kernels that run in this order. The stream is the residual stream, [m d]:
 *
 *   in_proj    stream -> row      its norm and projection, for Mamba-1 and 2 with the convolution
 *   x_proj     row -> low, B, C   Mamba-1
 *   core       row -> y           state updated in place, output gated, or for Mamba-2 left to out_proj
 *   out_proj   stream + y W       -> stream
 *
 * Mamba-2: *_at are the columns of the core's operands in the row that in_proj writes. */
typedef enum kr_decode_kind { KR_DECODE_MAMBA1, KR_DECODE_MAMBA2, KR_DECODE_MAMBA3 } kr_decode_kind;

typedef struct kr_decode_mamba1 {
    kr_decode_linear_args x_proj;
    kr_decode_scan_args core;
} kr_decode_mamba1;

typedef struct kr_decode_mamba2 {
    kr_decode_ssd_args core;
    int64_t z_at, x_at, b_at, c_at, dt_at;
} kr_decode_mamba2;

typedef struct kr_decode_layer {
    kr_decode_kind kind;
    kr_decode_linear_args in_proj, out_proj;
    union {
        kr_decode_mamba1 mamba1;
        kr_decode_mamba2 mamba2;
        kr_decode_mamba3_args mamba3;
    };
} kr_decode_layer;

/* Mamba-2 layers, one after another, that a device may run in one kernel. `stream` is x of every in_proj, and base and y of
 * every out_proj; core reads the row of in_proj, out_proj reads y and squares of core. What in_proj and core write need not
 * be stored at their addresses. */
typedef struct kr_decode_stack {
    int64_t count;
    kr_decode_layer *layers;
    kr_operand stream;
    struct kr_embedding_args *lookup; /* writes the stream before the first layer; NULL: it is written */
} kr_decode_stack;

/* Rules by which one row is sampled. */
enum {
    KR_SAMPLE_ON = 1,        /* without it the row is left out: nothing of it is read or written */
    KR_SAMPLE_BIASES = 2,    /* it has a row in `biases` */
    KR_SAMPLE_PENALTIES = 4, /* in `counts` */
    KR_SAMPLE_MASK = 8,      /* in `mask` */
    KR_SAMPLE_CHANGES = KR_SAMPLE_BIASES | KR_SAMPLE_PENALTIES | KR_SAMPLE_MASK
};
typedef struct kr_sample_rules {
    double temperature, top_p, min_p, repetition, presence, frequency;
    int64_t top_k;         /* 0: all */
    uint64_t seed, stream; /* of the random numbers */
    uint64_t flags;        /* KR_SAMPLE_ */
} kr_sample_rules;

/* Entry of a table of counts: how often the token was generated, and whether it occurred in the prompt. */
#define KR_SAMPLE_IN_PROMPT UINT32_C(0x80000000)
#define KR_SAMPLE_COUNT_MOST UINT32_C(0x7fffffff)

/* Samples a token from each row of logits x, with its log-probability. For row b with rules[b], as its flags say:
 *   y = x + biases;   y = y > 0 ? y / repetition : y repetition, of tokens whose entry of counts is not 0;
 *   y -= presence + frequency n, of those generated n > 0 times;   y = -infinity of those whose bit of the mask is 0
 *   temperature 0: the first of the largest. Otherwise weights e^((y - max) / temperature) of the top_k largest,
 *   of those the fewest largest whose sum is top_p of the total, of those the ones of at least min_p; the token at u
 *   times their sum, in the order of ids, u from Philox (seed, stream, n_sampled). Among equals the smaller id counts as
 *   larger.
 *   logprob = x[id] - log(sum over all nw of e^x): of the model itself
 * y is computed in double, and may be rounded to the slot's type. is_greedy: all rows that are on have temperature 0.
 * x [b w], of which the first `vocab` may be sampled. biases, counts [b vocab],
 * mask [b (vocab + 31) / 32], bit id % 32 of word id / 32; NULL if no row has any. id = -1: a NaN or +infinity among x or y,
 * or all y are -infinity. Results are in pinned memory. Several calls may be queued: each increments n_sampled [b], and the
 * count of the token where there are penalties; id and logprob have two buffers, of which a call writes the first if
 * n_sampled was even, the second, `n_sampled_stride` elements after it, if it was odd; the id also goes to next [b], in
 * device memory, 0 for -1.
 */
typedef struct kr_sample_args {
    kr_exec exec;
    int64_t nb, nw, vocab;
    kr_operand x;
    const kr_sample_rules *rules;
    bool is_greedy;
    const double *biases;
    uint32_t *counts;
    const uint32_t *mask;
    int64_t *n_sampled, n_sampled_stride;
    int32_t *id, *next;
    void *logprob;
} kr_sample_args;

#endif
