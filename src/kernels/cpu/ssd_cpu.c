/* ssd_cpu.c - the state space core in f32 for all families, in one pass over each sequence, chunk by chunk; chunks of few
 * tokens token by token.
 *
 *   v, y [b s m h p]    b, c [b s m g r]    da, w, diag_weight [b s h]    d [h]    initial, final [q h p r]
 *
 * With rows i = t nm + m of a chunk, t(i) the token of row i, a the sum of da within the chunk up to t(i), and H [r p]
 * the state before the chunk (docs/ssd.md):
 *
 *   W[i, j] = <C_i, B_j> e^(a_i - a_j) w_j            t(j) < t(i)
 *             <C_i, B_j> w_j, strict: diag_weight_i   t(j) = t(i), and D more where i = j
 *             0                                       t(j) > t(i)
 *   y_i     = sum over r of e^a_i C[i, r] H[r] + sum over j of W[i, j] V[j]
 *   H       = e^a_end H + sum over j of B[j] (x) e^(a_end - a_j) w_j V[j]
 *
 * y is one product [e^a C | W] [H ; V]: the left side is formed one tile of rows at a time, with as many columns of W
 * as the tile's last token sees; the right side is stored in panels of p, the state in place between chunks. No
 * exponent is a difference to a later token.
 *
 * A chunk's bits do not depend on where the call begins (ssd_args.h): its length alone selects how it is processed, and with
 * `carry` its last token has the weight diag_weight, the rest of which is added to H before the next chunk.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ssd_parts.h"
#include "kernels/cpu/vec_lanes.h"

/* Chunks of few tokens: the recurrence itself, token by token, on the state in place.
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

typedef struct forward {
    const kr_ssd_args *a;
    ssd_dims d;
    int64_t panel; /* floats of a panel: [r + f][GEMM_NR] */
} forward;

/* A worker's scratch. */
typedef struct workspace {
    float *right[SSD_HEADS]; /* [panel][r + f][GEMM_NR]: state, then V */
    ssd_decays decays[SSD_HEADS];
    float *weighted_v; /* e^(a_end - a) w V, [panel][f][GEMM_NR] */
    float *c;          /* [f][r_line] */
    float *b_t;        /* B transposed [r][f_line] */
    float *cb;         /* C B^T of a tile's rows, [GEMM_MR][f_line] */
    float *left;       /* [GEMM_MR][left_line] */
    int64_t left_line;
    float *decay;  /* e^(a_t - a_j) w_j of one token t, [f] */
    float *states; /* [heads][p][r] where the final states are not wanted */
    ssd_token_memory tokens;
} workspace;

static int64_t take_workspace(const forward *f, workspace *w, float *base)
{
    const ssd_dims *d = &f->d;
    ssd_memory m = { base, 0 };
    for (int64_t k = 0; k < d->heads; k++) {
        w->right[k] = ssd_take(&m, d->panels * f->panel);
        w->decays[k] = ssd_decays_take(&m, d->nf);
    }
    w->weighted_v = ssd_take(&m, d->panels * d->nf * GEMM_NR);
    w->c = ssd_take(&m, d->nf * d->r_line);
    w->b_t = ssd_take(&m, d->nr * d->f_line);
    w->cb = ssd_take(&m, GEMM_MR * d->f_line);
    w->left_line = ssd_stride(d->nr + d->nf);
    w->left = ssd_take(&m, GEMM_MR * w->left_line);
    w->decay = ssd_take(&m, d->nf);
    w->states = ssd_take(&m, f->a->final ? 0 : d->heads * d->np * d->nr);
    w->tokens.zeros = ssd_take(&m, d->nr);
    w->tokens.rows = ssd_take(&m, SSD_TILE_ROWS * d->nr);
    return m.used;
}

/* ---- tokens that only add to the state ---- */

/* Of a head: V and B of the token before the call, or of the last token of the previous chunk, with the weight that is left.
 * v NULL: none. */
static ssd_token boundary_at(const kr_ssd_args *a, const ssd_unit *u, int64_t h)
{
    int64_t at = u->q * a->nm * a->nh + h;
    if (!a->boundary) return (ssd_token){ .v = NULL };
    return (ssd_token){ .v = (const float *)a->boundary_v + at * a->np,
                        .b = (const float *)a->boundary_b + at * a->nr,
                        .decay = 1,
                        .weight = ((const float *)a->boundary)[u->q * a->nh + h],
                        .nm = a->nm,
                        .np = a->np,
                        .nr = a->nr,
                        .v_row = a->nh * a->np,
                        .b_row = a->nh * a->nr };
}

static ssd_token carry_at(const kr_ssd_args *a, const ssd_unit *u, int64_t h, int64_t at)
{
    if (!a->carry) return (ssd_token){ .v = NULL };
    return (ssd_token){ .v = (const float *)a->v.data + (at - 1) * a->v.row + h * a->np,
                        .b = (const float *)a->b.data + (at - 1) * a->b.row + u->e * a->nr,
                        .decay = 1,
                        .weight = ((const float *)a->carry)[at * a->nh + h],
                        .nm = a->nm,
                        .np = a->np,
                        .nr = a->nr,
                        .v_row = a->nh * a->np,
                        .b_row = a->ng * a->nr };
}

/* Before the chunk that begins at `at`. */
static ssd_token token_before(const kr_ssd_args *a, const ssd_unit *u, int64_t h, int64_t at, bool is_first)
{
    return is_first ? boundary_at(a, u, h) : carry_at(a, u, h, at);
}

/* H += w B (x) V, of the unit's head k. */
static void add_token(const forward *f, const ssd_token *t, const workspace *w, int64_t k)
{
    const ssd_dims *d = &f->d;
    int64_t panel = d->nm * GEMM_NR;
    ssd_copy_panels(t->v, t->v_row, d->nm, d->np, w->weighted_v, panel);
    ssd_scale(w->weighted_v, d->panels * panel, t->weight);
    ssd_multiply(d->nr, ssd_round_up(d->np, VF), d->nm, ssd_columns(t->b, t->b_row), ssd_panels(w->weighted_v, panel),
                 (ssd_out){ w->right[k], GEMM_NR, f->panel, true });
}

/* ---- states ---- */

/* The state of the unit's head k between chunks, [p r]: in the final states, or in scratch. */
static float *state_of(const forward *f, const ssd_unit *u, const workspace *w, int64_t k)
{
    int64_t size = f->d.np * f->d.nr;
    return f->a->final ? (float *)f->a->final + (u->q * f->d.nh + u->h0 + k) * size : w->states + k * size;
}

/* The state before the first chunk; NULL: 0. */
static const float *initial_of(const forward *f, const ssd_unit *u, int64_t k)
{
    const float *initial = f->a->initial;
    return initial ? initial + (u->q * f->d.nh + u->h0 + k) * f->d.np * f->d.nr : NULL;
}

static void load_states(const forward *f, const ssd_unit *u, const workspace *w, bool is_first)
{
    const ssd_dims *d = &f->d;
    for (int64_t k = 0; k < u->nheads; k++) {
        const float *from = is_first ? initial_of(f, u, k) : state_of(f, u, w, k);
        if (from) {
            ssd_transpose_to_panels(from, d->nr, d->np, d->nr, w->right[k], f->panel);
        } else {
            for (int64_t i = 0; i < d->panels; i++)
                memset(w->right[k] + i * f->panel, 0, (size_t)(d->nr * GEMM_NR) * sizeof(float));
        }
    }
}

static void store_states(const forward *f, const ssd_unit *u, const workspace *w)
{
    const ssd_dims *d = &f->d;
    for (int64_t k = 0; k < u->nheads; k++) {
        float *state_pr = state_of(f, u, w, k);
        for (int64_t i = 0; i < d->panels; i++)
            kr_transpose(w->right[k] + i * f->panel, GEMM_NR, d->nr, ssd_panel_columns(d->np, i),
                         state_pr + i * GEMM_NR * d->nr, d->nr);
    }
}

/* ---- a chunk ---- */

/* Where a pass over a sequence is. */
typedef struct position {
    ssd_chunk chunk;
    bool is_first,
        is_last; /* chunk of the sequence; the first of a pair's second core always begins with a state of 0 */
} position;

/* The last token of the chunk has the weight diag_weight, and the rest follows as a token before the next chunk. */
static bool leaves_carry(const forward *f, const position *at)
{
    return f->a->carry && !at->is_last;
}

static void set_last_weight(const forward *f, const ssd_decays *decays, int64_t nf, float weight)
{
    for (int64_t i = nf - f->d.nm; i < nf; i++) {
        decays->weight[i] = weight;
        decays->weight_to_end[i] = decays->to_end[i] * weight;
    }
}

static void load_chunk(const forward *f, const ssd_unit *u, const position *at, workspace *w)
{
    const ssd_dims *d = &f->d;
    const kr_ssd_args *a = f->a;
    const ssd_chunk *c = &at->chunk;
    int64_t row = d->ng * d->nr;
    const float *b = (const float *)a->b.data + c->at * a->b.row + u->e * d->nr;
    const float *c_0 = (const float *)a->c.data + c->at * a->c.row + u->e * d->nr;
    ssd_fetch_rows(ssd_rows_at(c_0, row, a->c.row, d->nm), NULL, c->nf, d->nr, w->c, d->r_line);
    ssd_fetch_transposed(ssd_rows_at(b, row, a->b.row, d->nm), c->nf, d->nr, w->b_t, d->f_line);
    for (int64_t k = 0; k < u->nheads; k++) {
        int64_t h = u->h0 + k, scalars = c->at * d->nh + h;
        ssd_decays_fill(&w->decays[k], (const float *)a->da + scalars, a->w ? (const float *)a->w + scalars : NULL,
                        d->nh, c->nt, d->nm);
        if (leaves_carry(f, at))
            set_last_weight(f, &w->decays[k], c->nf, ((const float *)a->diag_weight)[scalars + (c->nt - 1) * d->nh]);
        const float *v = (const float *)a->v.data + c->at * a->v.row + h * d->np;
        ssd_fetch_panels(ssd_rows_at(v, d->nh * d->np, a->v.row, d->nm), c->nf, d->np, w->right[k] + d->nr * GEMM_NR,
                         f->panel);
    }
}

/* decay[j] = e^(a_t - a_j) w_j for the n rows j before token t. */
static void fill_decay(const ssd_decays *d, int64_t n, float *decay)
{
    vf high = vf_set1(d->high[n]), low = vf_set1(d->low[n]);
    for (int64_t j = 0; j < n; j += VF) {
        vf left = ssd_exp_difference(high, low, vf_load_n(d->high + j, n - j), vf_load_n(d->low + j, n - j));
        vf_store_n(decay + j, n - j, vf_mul(left, vf_load_n(d->weight + j, n - j)));
    }
}

static void multiply_rows(const float *x, const float *y, int64_t n, float *product)
{
    int64_t j = 0;
    for (; j + VF <= n; j += VF) vf_store(product + j, vf_mul(vf_load(x + j), vf_load(y + j)));
    if (j < n) vf_store_n(product + j, n - j, vf_mul(vf_load_n(x + j, n - j), vf_load_n(y + j, n - j)));
}

/* [e^a C | W] for rows i0 .. i1-1 and the first `seen` columns of W, of the unit's head k; W alone where H is 0. */
static void make_left(const forward *f, const ssd_unit *u, const ssd_chunk *c, const workspace *w, int64_t k,
                      int64_t i0, int64_t i1, int64_t seen, bool is_first)
{
    const kr_ssd_args *a = f->a;
    const ssd_decays *decays = &w->decays[k];
    int64_t nm = f->d.nm, nr = f->d.nr, faded = -1;
    for (int64_t i = i0; i < i1; i++) {
        int64_t t = i / nm, before = t * nm;
        float *left = w->left + (i - i0) * w->left_line, *w_j = left + nr;
        const float *cb = w->cb + (i - i0) * f->d.f_line;
        if (faded != t) fill_decay(decays, before, w->decay);
        faded = t;
        if (!is_first) ssd_copy_rows(w->c + i * f->d.r_line, 0, decays->from_start + i, 1, nr, left, 0);
        multiply_rows(w->decay, cb, before, w_j);
        int64_t scalar = (c->at + t) * a->nh + u->h0 + k;
        float diagonal = a->diag_weight ? ((const float *)a->diag_weight)[scalar] : decays->weight[i];
        for (int64_t j = before; j < before + nm; j++) w_j[j] = diagonal * cb[j];
        if (a->d) w_j[i] += ((const float *)a->d)[u->h0 + k];
        memset(w_j + before + nm, 0, (size_t)(seen - before - nm) * sizeof(float));
    }
}

/* y of a chunk; is_first: the state before it is 0. */
static void read_out(const forward *f, const ssd_unit *u, const ssd_chunk *c, const workspace *w, bool is_first)
{
    const ssd_dims *d = &f->d;
    const int64_t skipped = is_first ? d->nr : 0;
    for (int64_t tile = 0; tile < ssd_tiles(c->nf); tile++) {
        int64_t i0 = ssd_tile_begin(c->nf, tile), i1 = ssd_tile_begin(c->nf, tile + 1);
        int64_t seen = ((i1 - 1) / d->nm + 1) * d->nm; /* rows up to the last row's token */
        ssd_multiply(i1 - i0, seen, d->nr, ssd_rows(w->c + i0 * d->r_line, d->r_line), ssd_matrix(w->b_t, d->f_line),
                     ssd_to(w->cb, d->f_line));
        for (int64_t k = 0; k < u->nheads; k++) {
            make_left(f, u, c, w, k, i0, i1, seen, is_first);
            float *y = (float *)f->a->y.data + ((c->at * d->nm + i0) * d->nh + u->h0 + k) * d->np;
            ssd_multiply(i1 - i0, d->np, d->nr + seen - skipped, ssd_rows(w->left + skipped, w->left_line),
                         ssd_panels(w->right[k] + skipped * GEMM_NR, f->panel), ssd_to(y, d->nh * d->np));
        }
    }
}

/* H = e^a_end H + B^T (e^(a_end - a) w V) */
static void pass_state(const forward *f, const ssd_chunk *c, const workspace *w, int64_t k)
{
    const ssd_dims *d = &f->d;
    const ssd_decays *decays = &w->decays[k];
    for (int64_t i = 0; i < d->panels; i++) {
        float *h = w->right[k] + i * f->panel;
        ssd_scale(h, d->nr * GEMM_NR, decays->chunk);
        ssd_copy_rows(h + d->nr * GEMM_NR, GEMM_NR, decays->weight_to_end, c->nf, GEMM_NR,
                      w->weighted_v + i * c->nf * GEMM_NR, GEMM_NR);
    }
    ssd_multiply(d->nr, ssd_round_up(d->np, VF), c->nf, ssd_rows(w->b_t, d->f_line),
                 ssd_panels(w->weighted_v, c->nf * GEMM_NR), (ssd_out){ w->right[k], GEMM_NR, f->panel, true });
}

static ssd_token token_at(const kr_ssd_args *a, const ssd_unit *u, int64_t h, int64_t at)
{
    int64_t scalar = at * a->nh + h;
    return (ssd_token){ .v = (const float *)a->v.data + at * a->v.row + h * a->np,
                        .b = (const float *)a->b.data + at * a->b.row + u->e * a->nr,
                        .c = (const float *)a->c.data + at * a->c.row + u->e * a->nr,
                        .y = (float *)a->y.data + (at * a->nm * a->nh + h) * a->np,
                        .decay = ssd_exp_of(((const float *)a->da)[scalar]),
                        .weight = a->w ? ((const float *)a->w)[scalar] : 1.0f,
                        .diag_weight = a->diag_weight ? ((const float *)a->diag_weight)[scalar] : 0.0f,
                        .strict = a->diag_weight != NULL,
                        .nm = a->nm,
                        .np = a->np,
                        .nr = a->nr,
                        .v_row = a->nh * a->np,
                        .b_row = a->ng * a->nr };
}

/* ---- a sequence ---- */

/* The chunk token by token, on the state in memory. */
static void walk_tokens(const forward *f, const ssd_unit *u, const position *at, const workspace *w)
{
    const kr_ssd_args *a = f->a;
    const ssd_chunk *c = &at->chunk;
    memset(w->tokens.zeros, 0, (size_t)a->nr * sizeof(float));
    for (int64_t k = 0; k < u->nheads; k++) {
        int64_t h = u->h0 + k;
        ssd_token tokens[SSD_MAX_TOKENS], before = token_before(a, u, h, c->at, at->is_first);
        for (int64_t t = 0; t < c->nt; t++) tokens[t] = token_at(a, u, h, c->at + t);
        if (leaves_carry(f, at)) tokens[c->nt - 1].weight = tokens[c->nt - 1].diag_weight;
        ssd_tokens_run(
            before.v ? &before : NULL, tokens, c->nt, at->is_first ? initial_of(f, u, k) : state_of(f, u, w, k),
            at->is_last && !a->final ? NULL : state_of(f, u, w, k), &w->tokens, a->d ? (const float *)a->d + h : NULL);
    }
}

/* One core over a sequence. */
typedef struct walk {
    const forward *f;
    const ssd_unit *u;
    workspace *w;
    bool in_panels; /* the states are in w->right; false: where state_of says */
} walk;

/* Loads the state before the chunk, and adds the token before it. */
static void enter_chunk(walk *k, const position *at)
{
    if (at->is_first || !k->in_panels) load_states(k->f, k->u, k->w, at->is_first);
    k->in_panels = true;
    for (int64_t i = 0; i < k->u->nheads; i++) {
        const ssd_token before = token_before(k->f->a, k->u, k->u->h0 + i, at->chunk.at, at->is_first);
        if (before.v) add_token(k->f, &before, k->w, i);
    }
}

static void run_chunk(walk *k, const position *at)
{
    const forward *f = k->f;
    const ssd_chunk *c = &at->chunk;
    workspace *w = k->w;
    if (c->nt <= SSD_MAX_TOKENS) {
        if (k->in_panels && !at->is_first) store_states(f, k->u, w);
        k->in_panels = false;
        walk_tokens(f, k->u, at, w);
        return;
    }
    load_chunk(f, k->u, at, w);
    enter_chunk(k, at);
    read_out(f, k->u, c, w, at->is_first && !f->a->initial && !f->a->boundary);
    if (at->is_last && !f->a->final) return;
    for (int64_t i = 0; i < k->u->nheads; i++) pass_state(f, c, w, i);
}

static void add(float *x, const float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vf_store(x + i, vf_add(vf_load(x + i), vf_load(y + i)));
    for (; i < n; i++) x[i] += y[i];
}

/* Adds the states of a pair's second core. */
static void add_states(const walk *to, const walk *from)
{
    const forward *f = to->f;
    const ssd_dims *d = &f->d;
    for (int64_t k = 0; k < to->u->nheads; k++) {
        if (!to->in_panels) add(state_of(f, to->u, to->w, k), state_of(from->f, to->u, from->w, k), d->np * d->nr);
        for (int64_t i = 0; to->in_panels && i < d->panels; i++)
            add(to->w->right[k] + i * f->panel, from->w->right[k] + i * f->panel, d->nr * GEMM_NR);
    }
}

static void finish(walk *k, bool is_empty)
{
    if (is_empty) enter_chunk(k, &(position){ .is_first = true });
    if (k->in_panels && k->f->a->final) store_states(k->f, k->u, k->w);
}

/* pair: the second core, or NULL. */
static void walk_sequence(walk *k, walk *pair, const kr_sequence *s)
{
    const ssd_dims *d = &k->f->d;
    const int64_t nchunks = ssd_chunks(d, s);
    for (int64_t n = 0; n < nchunks; n++) {
        position at = { ssd_chunk_at(d, s, n), n == 0, n + 1 == nchunks };
        run_chunk(k, &at);
        if (!pair) continue;
        at.is_first = true;
        run_chunk(pair, &at);
        if (!at.is_last) add_states(k, pair);
    }
    finish(k, nchunks == 0);
    if (pair) finish(pair, nchunks == 0);
}

static forward forward_of(const kr_ssd_args *a)
{
    forward f = {
        .a = a,
        .d = { .nb = a->nb, .ns = a->ns, .nm = a->nm, .nh = a->nh, .np = a->np, .ng = a->ng, .nr = a->nr, .nq = a->nq }
    };
    ssd_cut(&f.d, a->nl);
    f.panel = (f.d.nr + f.d.nf) * GEMM_NR;
    return f;
}

/* Scratch of a worker, for both cores. */
static int64_t take_workspaces(const forward *f, const forward *pair, workspace w[2], float *base)
{
    int64_t floats = take_workspace(f, &w[0], base);
    return pair ? floats + take_workspace(pair, &w[1], base ? base + floats : NULL) : floats;
}

static void forward_units(const void *args, int64_t first, int64_t end, int worker)
{
    const forward *f = args, *pair = f->a->pair ? f + 1 : NULL;
    workspace w[2];
    int64_t floats = take_workspaces(f, pair, w, NULL);
    take_workspaces(f, pair, w, (float *)f->a->exec.scratch + worker * floats);
    for (int64_t index = first; index < end; index++) {
        const ssd_unit u = ssd_unit_at(&f->d, index);
        walk one = { f, &u, &w[0], false }, two = { pair, &u, &w[1], false };
        walk_sequence(&one, pair ? &two : NULL, &f->a->sequences[u.q]);
    }
}

static void list_cores(const kr_ssd_args *a, forward f[2])
{
    f[0] = forward_of(a);
    f[1] = forward_of(a->pair ? a->pair : a);
}

size_t KR_FN(ssd_scratch)(const kr_ssd_args *a)
{
    forward f[2];
    workspace w[2];
    list_cores(a, f);
    return (size_t)(kr_pool_size(a->exec.pool) * take_workspaces(&f[0], a->pair ? &f[1] : NULL, w, NULL)) *
           sizeof(float);
}

void KR_FN(ssd)(const kr_ssd_args *a)
{
    forward f[2];
    list_cores(a, f);
    kr_ranges_run(a->exec.pool, ssd_units(&f[0].d), ssd_unit_elements(&f[0].d), forward_units, f);
}
