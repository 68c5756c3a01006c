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
 *   window[m, c, 0 .. nt-1] <- window[m, c, 1 .. nt-1], v
 *   y = silu(conv_bias[c] + sum over t of taps[c, t] window[m, c, t])
 * x, z [m k], w [n k], gain [k], bias [n], base, y [m n], taps [c t], conv_bias [c], window [m c t]. Rows of x, z, base, y
 * begin x_m, z_m, base_m, y_m elements apart. z, gain, bias, base, conv_bias may be NULL; base may be y, and is older than
 * x: the kernel before this one does not write it. nc = 0: no convolution. Group e of ng holds channels e nk/ng ... On CUDA
 * with exec.precision the product may round norm, as matmul.
 * With squares [m nsquares] the mean is that of all of a row's, over nk, and not of u: x has been gated, and has its gain
 * (ng is 1 then, z and gain are NULL). x_half: of x; the f32 slot of CUDA alone takes them. */
typedef struct kr_token_linear_args {
    kr_exec exec;
    int64_t nm, nn, nk, ng, x_m, z_m, base_m, y_m;
    const void *x, *z, *gain, *w, *bias, *base;
    void *y;
    const void *squares;
    int64_t nsquares;
    kr_half w_half, taps_half, x_half;
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
 *   with z: u = y silu(z), y <- u gain (NULL: 1), and squares, unless NULL, gets the sums of u^2 over 8 rows p each:
 *   squares[b, h, i] for p = 8 i .. 8 i + 7, the last of which may be fewer
 * x, z [h p], b, c [g r], dt [h] in rows that begin `stride` elements apart; gain [h p]; state H [b h p r]; y [b h p],
 * rows y_stride apart, of y_half, which the f32 slot of CUDA alone writes.
 *
 * With `owed` a state is read at every token, but written at one of KR_OWED_TOKENS alone: until then it owes the tokens
 * that came since. Eight rows p of a head have a record of them in owed: token i's weights s x and its decay in place
 * i % KR_OWED_TOKENS, and the count t of tokens that came since they owed none, from 2 KR_OWED_TOKENS back to
 * KR_OWED_TOKENS; B of a token is its group's. At token t tile i of the state owes the last
 *   min(t, (t + KR_OWED_TURN(i)) % KR_OWED_TOKENS) tokens, and is written if that remainder is KR_OWED_TOKENS - 1
 * which takes pairs of tiles in turn. H gets its tokens one by one, whenever it does: it has the bits that it has without
 * owed. x NULL: no token comes, all rows get what they owe and owe none, and nothing else is read or written. */
typedef struct kr_token_ssd_args {
    kr_exec exec;
    int64_t nb, nh, np, ng, nr, stride, y_stride;
    const void *x, *b, *c, *dt, *dt_bias, *a_log, *d, *z, *gain;
    bool d_per_dim;
    double dt_min, dt_max;
    void *state, *y, *squares;
    kr_half y_half;
    void *owed;
} kr_token_ssd_args;

/* Layers of Mamba-2, of which each has its token of all rows after the one before it: enter makes what core reads, and
 * leave reads what that makes and adds it to the stream, which the next layer enters with. Run together, what enter and
 * core make between them need not be found where they say. */
typedef struct kr_token_layer {
    kr_token_linear_args enter;
    kr_token_ssd_args core;
    kr_token_linear_args leave;
    struct kr_embedding_args *lookup; /* first layer: what makes its stream is still to be run; NULL: it is there */
} kr_token_layer;

enum { KR_TOKEN_TILE = 8 }; /* rows p whose squares are one sum */
enum { KR_OWED_TOKENS = 8 };
#define KR_OWED_TURN(tile) ((tile) / 2)

/* owed, in elements. A row b of it: records [h, tiles of p], then B [g KR_OWED_TOKENS r]. A record: weights [KR_OWED_TOKENS
 * KR_TOKEN_TILE], decays [KR_OWED_TOKENS], the count. */
enum {
    KR_OWED_DECAY = KR_OWED_TOKENS * KR_TOKEN_TILE,
    KR_OWED_COUNT = KR_OWED_DECAY + KR_OWED_TOKENS,
    KR_OWED_RECORD = KR_OWED_COUNT + 8 /* a multiple of 16 bytes */
};

typedef struct kr_owed_parts {
    int64_t tiles, b, row; /* of a head; where B begins; all of a row */
} kr_owed_parts;

static inline kr_owed_parts kr_owed_parts_of(int64_t nh, int64_t np, int64_t ng, int64_t nr)
{
    const int64_t tiles = (np + KR_TOKEN_TILE - 1) / KR_TOKEN_TILE, b = nh * tiles * KR_OWED_RECORD;
    const kr_owed_parts parts = { tiles, b, b + ng * KR_OWED_TOKENS * nr };
    return parts;
}

/* One token of Mamba-1's selective scan, in place, with what goes before and after it. For row b and channel i:
 *   low, B, C <- each divided by (mean of its squares + eps)^1/2; eps 0: as they are
 *   s = clamp(softplus(sum over x of low[x] w[i, x] + dt_bias[i]), dt_min, dt_max)
 *   H[r] <- exp(-s exp(a_log[i, r])) H[r] + s B[r] x[i];   y = (sum over r of C[r] H[r] + D[i] x[i]) silu(z[i])
 * x, z [i] in rows x_stride apart; low [x], b, c [r] in rows `stride` apart; w [i x], a_log [i r], dt_bias, d [i]; state H
 * [b i r]; y [b i]. */
typedef struct kr_token_scan_args {
    kr_exec exec;
    int64_t nb, ni, nr, nx, x_stride, stride;
    const void *x, *z, *low, *b, *c, *w, *dt_bias, *a_log, *d;
    kr_half w_half;
    double eps, dt_min, dt_max;
    void *state, *y;
} kr_token_scan_args;

/* One token of Mamba-3's state space core, in place, with what goes before and after it. For row b and head h of group
 * e = h / (nh/ng), ranks m:
 *   s, da, gamma, carry        of dt + dt_bias, a, lambda: see kr_trapezoid_args
 *   angle[i] <- wrap(angle[i] + s range pi tanh(theta[i]));   B[m] = turned(norm(b[m, e]) b_gain + b_bias[h, m]), C
 *   likewise, by the first `nturned` angles: see kr_rotate_args, kr_angles_args; norm divides by (mean square + eps)^1/2
 *   V[m] = x mimo_x[h, m], V'[m] = v mimo_x[h, m]
 *   H <- exp(da) (H + carry sum_m V'[m] (outer) k[m]) + gamma sum_m V[m] (outer) B[m];   y[m] = H C[m] + D V[m]
 *   k <- B, v <- x;   y = sum_m mimo_o[h, m] norm(y[m]) gain silu(z mimo_z[h, m]), the norm over p with has_norm alone
 * x, z [h p], b, c [m g r], dt, a, lambda [h], theta [na] in rows `stride` apart; gains [r], biases [h m r], mimo_* [h m p]
 * or all NULL (1), gain [h p], or [p] with shared_gain, or NULL; state H [b h p r], k [b m h r], v, y [b h p], angle
 * [b h na]. Pairs are halves of r apart with `half`, neighbours without. */
typedef struct kr_token_mamba3_args {
    kr_exec exec;
    int64_t nb, nm, nh, np, ng, nr, na, nturned, stride;
    const void *z, *x, *b, *c, *dt, *a, *lambda, *theta;
    const void *dt_bias, *b_gain, *c_gain, *b_bias, *c_bias, *mimo_x, *mimo_z, *mimo_o, *d, *gain;
    bool softplus, half, has_norm, shared_gain;
    double eps, a_floor, dt_min, dt_max, range;
    void *state, *k, *v, *angle, *y;
} kr_token_mamba3_args;

/* What a head has that is not its state, in elements: sizes for which a GPU has room beside it, in f32, have at most
 * KR_TOKEN_MAMBA3_MOST; others are for other kernels. */
enum { KR_TOKEN_MAMBA3_MOST = 24000 };
static inline int64_t kr_token_mamba3_elements(int64_t nm, int64_t nr, int64_t np, int64_t na)
{
    return 3 * nm * ((nr + 3) / 4 * 4) + nm * np + 2 * na;
}

/* A token for each row of logits x, and its log-probability (generate/sampler_choose.c has the rules):
 *   temperature 0: the first of the largest. Else weights e^((x - max) / temperature) of the top_k largest (0: all), of
 *   those the fewest largest that add up to top_p of their sum, of those the ones of min_p at least; the token at u
 *   times their sum, in the order of ids, u from Philox (seed, row, drawn). Of equals the smaller id is the larger one.
 *   logprob = x[id] - log(sum over all nw of e^x)
 * x [b w], of which the first `vocab` may be chosen; rows begin `stride` elements apart, of any sign, or 0.
 * id = -1: a NaN or +infinity among the logits, or nothing but -infinity to choose from.
 * The results lie where host and device reach them. Choices may be queued one behind another: drawn [b]
 * is one more afterwards, id and logprob have two places for each row, of which they take the first if drawn was even,
 * the second, `apart` elements behind it, if it was odd, and the id goes to next [b], too, in the device's memory, 0 for
 * -1. */
typedef struct kr_sample_args {
    kr_exec exec;
    int64_t nb, nw, vocab, stride, top_k;
    double temperature, top_p, min_p;
    uint64_t seed;
    const void *x;
    const int64_t *row;
    int64_t *drawn, apart;
    int32_t *id, *next;
    void *logprob;
} kr_sample_args;

#endif
