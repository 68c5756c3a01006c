/* ssd_tokens.h - sequences of few tokens: the recurrence itself, token by token, on the state in place.
 *
 *   of one head: H [p r];   V, y [m p]   B, C [m r]   direct [m m]
 *   K = e^da H;   H = K + sum over m of w V[m] (x) B[m]
 *   y[m] = H C[m], strict: K C[m];   y[m] += sum over m' of direct[m, m'] V[m']
 *   direct[m, m'] = D where m = m', strict: + diag_weight <C[m], B[m']>
 *
 * SSD_TILE_ROWS rows p of the state are processed at a time, and stay in the first-level cache until all tokens have been
 * applied: the state is read once and written once. A pass over such rows has up to SSD_RANKS ranks in registers. A
 * row's arithmetic does not depend on the other rows.
 */
#ifndef KR_KERNELS_CPU_SSD_TOKENS_H
#define KR_KERNELS_CPU_SSD_TOKENS_H

#include "kernels/cpu/ssd_parts.h"
#include "kernels/cpu/vec_lanes.h"

enum {
    SSD_MAX_TOKENS = 4, /* tokens at most: more are faster as a chunk */
    SSD_TILE_ROWS = 4,  /* rows of the state per pass */
    SSD_RANKS = 4       /* of a pass at most */
};

/* One token of a head, its operands at rank 0: rank stride v_row for v and y, b_row for b and c. */
typedef struct ssd_token {
    const float *v, *b, *c;
    float *y;
    float decay, weight, diag_weight; /* e^da, w, diag_weight */
    bool strict;
    int64_t nm, np, nr, v_row, b_row;
} ssd_token;

/* Rows p .. p + SSD_TILE_ROWS - 1 of the state before and after a pass. Strides of 0: all are row p. */
typedef struct ssd_state_rows {
    const float *from;
    float *to;
    int64_t p, p_step, from_row, to_row;
} ssd_state_rows;

/* Ranks are added to the state, or read it, or both. */
typedef enum ssd_pass { SSD_ADD, SSD_READ, SSD_ADD_READ, SSD_READ_ADD } ssd_pass;

KR_INLINE vf ssd_load(const float *x, int64_t n)
{
    return n >= VF ? vf_load(x) : vf_load_n(x, n);
}

/* sum[i, m] += h[i] c[m] */
KR_INLINE void ssd_read_columns(const float *c, int64_t c_row, int64_t n, const vf *h, vf *sum, const int ranks)
{
    GEMM_UNROLL
    for (int m = 0; m < ranks; m++) {
        vf c_m = ssd_load(c + m * c_row, n);
        GEMM_UNROLL
        for (int i = 0; i < SSD_TILE_ROWS; i++) sum[i * ranks + m] = vf_fma(h[i], c_m, sum[i * ranks + m]);
    }
}

/* h[i] = decay h[i] + sum over m of v[i, m] b[m] */
KR_INLINE void ssd_add_columns(const float *b, int64_t b_row, int64_t n, vf decay, const vf *v, vf *h, const int ranks)
{
    GEMM_UNROLL
    for (int i = 0; i < SSD_TILE_ROWS; i++) h[i] = vf_mul(decay, h[i]);
    GEMM_UNROLL
    for (int m = 0; m < ranks; m++) {
        vf b_m = ssd_load(b + m * b_row, n);
        GEMM_UNROLL
        for (int i = 0; i < SSD_TILE_ROWS; i++) h[i] = vf_fma(v[i * ranks + m], b_m, h[i]);
    }
}

/* Columns r .. r + n - 1, n <= VF; ranks and pass are constants. b and c are at the pass's first rank. */
KR_INLINE void ssd_pass_columns(const ssd_token *t, const ssd_state_rows *s, const float *b, const float *c, int64_t r,
                                int64_t n, vf decay, const vf *v, vf *sum, const int ranks, const ssd_pass pass)
{
    vf h[SSD_TILE_ROWS];
    GEMM_UNROLL
    for (int i = 0; i < SSD_TILE_ROWS; i++) h[i] = ssd_load(s->from + i * s->from_row + r, n);
    if (pass == SSD_READ || pass == SSD_READ_ADD) ssd_read_columns(c + r, t->b_row, n, h, sum, ranks);
    if (pass == SSD_READ) return;
    ssd_add_columns(b + r, t->b_row, n, decay, v, h, ranks);
    GEMM_UNROLL
    for (int i = 0; i < SSD_TILE_ROWS; i++) {
        if (n < VF) h[i] = vf_keep(vm_first(n), h[i]); /* 0 times an infinite value is not 0 */
        if (n < VF) vf_store_n(s->to + i * s->to_row + r, n, h[i]);
        else vf_store(s->to + i * s->to_row + r, h[i]);
    }
    if (pass == SSD_ADD_READ) ssd_read_columns(c + r, t->b_row, n, h, sum, ranks);
}

/* Ranks m0 .. m0 + ranks - 1. The local copies tell the compiler that the stores do not alias them. */
KR_INLINE void ssd_pass_rows(const ssd_token *token, const ssd_state_rows *rows, int64_t m0, float decay,
                             const int ranks, const ssd_pass pass)
{
    const ssd_token t = *token;
    const ssd_state_rows s = *rows;
    const float *b = t.b + m0 * t.b_row, *c = t.c + m0 * t.b_row;
    int64_t at = m0 * t.v_row + s.p, r = 0; /* in v and y */
    vf v[SSD_TILE_ROWS * SSD_RANKS], sum[SSD_TILE_ROWS * SSD_RANKS], decays = vf_set1(decay);
    GEMM_UNROLL
    for (int k = 0; k < SSD_TILE_ROWS * ranks; k++) {
        v[k] = vf_set1(t.weight * t.v[at + k / ranks * s.p_step + k % ranks * t.v_row]);
        sum[k] = vf_zero();
    }
    for (; r + VF <= t.nr; r += VF) ssd_pass_columns(&t, &s, b, c, r, VF, decays, v, sum, ranks, pass);
    if (r < t.nr) ssd_pass_columns(&t, &s, b, c, r, t.nr - r, decays, v, sum, ranks, pass);
    if (pass == SSD_ADD) return;
    float sums[SSD_TILE_ROWS * SSD_RANKS], factor = t.strict ? t.decay : 1.0f;
    GEMM_UNROLL
    for (int k = 0; k < SSD_TILE_ROWS * ranks; k += 4) vf_sums_4(sum + k, sums + k);
    GEMM_UNROLL
    for (int k = 0; k < SSD_TILE_ROWS * ranks; k++)
        t.y[at + k / ranks * s.p_step + k % ranks * t.v_row] = factor * sums[k];
}

KR_INLINE void ssd_pass_ranks(const ssd_token *t, const ssd_state_rows *s, int64_t m0, float decay, int ranks,
                              const ssd_pass pass)
{
    if (ranks == 4) ssd_pass_rows(t, s, m0, decay, 4, pass);
    else if (ranks == 2) ssd_pass_rows(t, s, m0, decay, 2, pass);
    else ssd_pass_rows(t, s, m0, decay, 1, pass);
}

/* Number of ranks of the next pass, of `left` remaining ones. */
static inline int ssd_next_ranks(int64_t left)
{
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static void ssd_read_ranks(const ssd_token *t, const ssd_state_rows *s)
{
    int ranks;
    for (int64_t m = 0; m < t->nm; m += ranks) {
        ranks = ssd_next_ranks(t->nm - m);
        ssd_pass_ranks(t, s, m, t->decay, ranks, SSD_READ);
    }
}

/* The next pass begins where this one ended. */
static inline void ssd_rows_after(ssd_state_rows *s)
{
    s->from = s->to;
    s->from_row = s->to_row;
}

static void ssd_add_ranks(const ssd_token *t, ssd_state_rows *s)
{
    int ranks;
    float decay = t->decay;
    for (int64_t m = 0; m < t->nm; m += ranks) {
        ranks = ssd_next_ranks(t->nm - m);
        ssd_pass_ranks(t, s, m, decay, ranks, SSD_ADD);
        decay = 1;
        ssd_rows_after(s);
    }
}

/* One token over rows of the state; y without the direct term. Leaves the rows updated. */
static void ssd_token_rows(const ssd_token *t, ssd_state_rows *s)
{
    int ranks = ssd_next_ranks(t->nm);
    if (ranks == t->nm) {
        if (t->strict) ssd_pass_ranks(t, s, 0, t->decay, ranks, SSD_READ_ADD);
        else ssd_pass_ranks(t, s, 0, t->decay, ranks, SSD_ADD_READ);
        ssd_rows_after(s);
        return;
    }
    if (t->strict) ssd_read_ranks(t, s);
    ssd_add_ranks(t, s);
    if (!t->strict) ssd_read_ranks(t, s);
}

/* ---- the direct term of a token ---- */

static inline float ssd_dot(const float *x, const float *y, int64_t n)
{
    vf sum = vf_zero();
    int64_t i = 0;
    for (; i + VF <= n; i += VF) sum = vf_fma(vf_load(x + i), vf_load(y + i), sum);
    if (i < n) sum = vf_fma(vf_load_n(x + i, n - i), vf_load_n(y + i, n - i), sum);
    return vf_sum(sum);
}

static inline void ssd_add_scaled(float *y, float scale, const float *x, int64_t n)
{
    vf factor = vf_set1(scale);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vf_store(y + i, vf_fma(factor, vf_load(x + i), vf_load(y + i)));
    if (i < n) vf_store_n(y + i, n - i, vf_fma(factor, vf_load_n(x + i, n - i), vf_load_n(y + i, n - i)));
}

/* y[m] += sum over m' of direct[m, m'] V[m'] */
static void ssd_add_direct(const ssd_token *t, const float *d)
{
    for (int64_t m = 0; m < t->nm; m++) {
        for (int64_t from = 0; from < t->nm; from++) {
            if (!t->strict && (!d || from != m)) continue;
            float direct =
                t->strict ? t->diag_weight * ssd_dot(t->c + m * t->b_row, t->b + from * t->b_row, t->nr) : 0.0f;
            if (d && from == m) direct += *d;
            ssd_add_scaled(t->y + m * t->v_row, direct, t->v + from * t->v_row, t->np);
        }
    }
}

/* ---- one head of a sequence ---- */

/* A worker's scratch. */
typedef struct ssd_token_memory {
    float *zeros; /* [r]: the row of a state that is 0 */
    float *rows;  /* [SSD_TILE_ROWS r]: for a final state that is not wanted, or an initial one that is overwritten */
} ssd_token_memory;

static inline float ssd_exp_of(float x)
{
    float y;
    vf_store_n(&y, 1, ssd_exp(vf_set1(x)));
    return y;
}

/* All tokens of a head over its state: initial and final [p r], either may be NULL, or both the same. boundary is a
 * token that only adds to the initial state, or NULL. */
static void ssd_tokens_run(const ssd_token *boundary, const ssd_token *tokens, int64_t count, const float *initial,
                           float *final, const ssd_token_memory *memory, const float *d)
{
    int64_t np = tokens->np, nr = tokens->nr;
    int64_t step = np < SSD_TILE_ROWS ? 0 : 1, rows_per_pass = step ? SSD_TILE_ROWS : 1;
    const bool starts_over = initial && initial == final && np % rows_per_pass != 0;
    if (starts_over)
        memcpy(memory->rows, initial + (np - rows_per_pass) * nr, (size_t)(rows_per_pass * nr) * sizeof(float));
    for (int64_t next = 0; next < np; next += rows_per_pass) {
        int64_t p = kr_smaller(next, np - rows_per_pass); /* the last rows overlap the previous ones: they start over */
        ssd_state_rows s = { .p = p, .p_step = step, .from_row = initial ? step * nr : 0, .to_row = step * nr };
        s.from = initial ? initial + p * nr : memory->zeros;
        if (starts_over && p < next) s.from = memory->rows;
        s.to = final ? final + p * nr : memory->rows;
        if (boundary) ssd_add_ranks(boundary, &s);
        for (int64_t t = 0; t < count; t++) ssd_token_rows(&tokens[t], &s);
    }
    for (int64_t t = 0; t < count; t++) ssd_add_direct(&tokens[t], d);
}

#endif
