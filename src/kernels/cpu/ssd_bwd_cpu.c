/* ssd_bwd_cpu.c - gradients of the state space core in f32: states recomputed, then one backward pass over the chunks.
 *
 *   v, g_y, g_v [b s m h p]    b, c, g_b, g_c [b s m g r]    da, w, diag_weight and their gradients [b s h]    d, g_d [h]
 *   initial, g_final, g_initial [q h p r]
 *
 * Names as in ssd_cpu.c; H [p r] the state before the chunk, G [p r] the gradient of the state after it, E[i, j] =
 * e^(a_i - a_j). t(i) is the token of row i. Per head and chunk:
 *
 *   off the chunk   T_i = e^a_i g_y_i H;            g_C_i += T_i
 *   chunk's state   U_j = e^(a_end - a_j) V_j G;    g_B_j += w_j U_j;  u_j = <U_j, B_j>;  g_w_j += u_j
 *   in the chunk    S[j, i] = <V_j, g_y_i>;         g_V_j = w_j e^(a_end - a_j) B_j G^T + sum over i of W[i, j] g_y_i
 *     t(j) < t(i)   g_CB[j, i] += S E w_j;  x[i, j] = S <C_i, B_j> E;  g_w_j += x[i, j]
 *     t(j) = t(i)   with w_j (strict: diag_weight_j) for E w_j;  g_w_j (g_diag_weight_j) += S <C_i, B_j>
 *     i = j         g_d += S
 *   of the group    g_C_i += sum over j of g_CB[j, i] B_j;   g_B_j += sum over i of g_CB[j, i] C_i
 *   passing         G = e^a_end G + sum over i of e^a_i g_y_i (x) C_i
 *   decays          g_da_t = sum over t(j) < t <= t(i) of w_j x[i, j]  +  sum over t <= t(i) of <T_i, C_i>
 *                          + sum over t(j) < t of w_j u_j  +  e^a_end <G, H>
 *
 * Every term of g_da_t has the factor e^da_t. The reverse prefix sum of the gradient of a has the same value, as a
 * difference of row and column sums of w_j x[i, j] over the chunk (the form of the CUDA kernels). That difference keeps
 * the rounding errors of terms without the factor, which exceed g_da_t by orders of magnitude where step sizes differ.
 * The sum over pairs costs one addition per pair: rows j are processed in order, and after the last row of token t the
 * sum of their accumulators over later rows i is the value for token t + 1.
 *
 * A block of heads adds to g_b and g_c of its group: the first block in place, the others in scratch, which a second
 * run adds in order. Partials of g_d are stored for each (q, h) and added in order.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ssd_parts.h"

/* Sizes of the backward of the state space core, and the scratch of a worker. */

typedef struct backward {
    const kr_ssd_bwd_args *a;
    ssd_dims d;
    int64_t state;                /* floats of a state [p][r_line] */
    int64_t r_whole;              /* nr in whole vectors */
    int64_t most_chunks;          /* of a sequence */
    int64_t panel;                /* floats of a panel [f + r][GEMM_NR] */
    int64_t bc_floats;            /* floats of g_b */
    int64_t worker_floats;        /* of a workspace */
    double *partial_d;            /* [q h] */
    float *partial_b, *partial_c; /* of the blocks of heads after the first [blocks - 1][b s m g r] */
    float *workers;
} backward;

/* A worker's scratch. */
typedef struct workspace {
    float *states;    /* before each chunk [heads][chunks][p][r_line] */
    float *g_state;   /* G [heads][p][r_line] */
    float *b, *c;     /* [f][r_line] */
    float *c_t;       /* [r][f_line] */
    float *bc, *g_cb; /* <B_j, C_i> and its gradient, rows j [f][f_line] */
    float *g_b, *g_c; /* [f][r_line] */
    ssd_decays decays;
    float *v, *g_y_decayed; /* V, e^a g_y [f][p_line] */
    float *g_y_t;           /* [p][f_line] */
    float *right;           /* g_y, then G^T [panel][f + r][GEMM_NR] */
    float *rows;            /* T or U of a tile [GEMM_MR][r_line] */
    float *s;               /* S of a tile [GEMM_MR][f_line] */
    float *left;            /* [GEMM_MR][left_line] */
    int64_t left_line;
    float *decay;                 /* e^(a_i - a_t) of one token t [f] */
    float *column;                /* sums of w_j x[i, j] over the rows j already processed [f] */
    double *crossing;             /* of each token t: sum of w_j x[i, j] over t(j) < t <= t(i) [l] */
    double *read_dot, *state_dot; /* <T_i, C_i> and w_j u_j, summed over the rows of a token [l] */
    double *g_w, *g_diag_weight;  /* [l] */
} workspace;

static int64_t take_workspace(const backward *k, workspace *w, float *base)
{
    const ssd_dims *d = &k->d;
    ssd_memory m = { base, 0 };
    w->states = ssd_take(&m, d->heads * k->most_chunks * k->state);
    w->g_state = ssd_take(&m, d->heads * k->state);
    w->b = ssd_take(&m, d->nf * d->r_line);
    w->c = ssd_take(&m, d->nf * d->r_line);
    w->c_t = ssd_take(&m, d->nr * d->f_line);
    w->bc = ssd_take(&m, d->nf * d->f_line);
    w->g_cb = ssd_take(&m, d->nf * d->f_line);
    w->g_b = ssd_take(&m, d->nf * d->r_line);
    w->g_c = ssd_take(&m, d->nf * d->r_line);
    w->decays = ssd_decays_take(&m, d->nf);
    w->v = ssd_take(&m, d->nf * d->p_line);
    w->g_y_decayed = ssd_take(&m, d->nf * d->p_line);
    w->g_y_t = ssd_take(&m, d->np * d->f_line);
    w->right = ssd_take(&m, d->panels * k->panel);
    w->rows = ssd_take(&m, GEMM_MR * d->r_line);
    w->s = ssd_take(&m, GEMM_MR * d->f_line);
    w->left_line = ssd_stride(d->nf + d->nr + SSD_LINE);
    w->left = ssd_take(&m, GEMM_MR * w->left_line);
    w->decay = ssd_take(&m, d->nf);
    w->column = ssd_take(&m, d->nf);
    w->crossing = (double *)(void *)ssd_take(&m, 2 * d->nl);
    w->read_dot = (double *)(void *)ssd_take(&m, 2 * d->nl);
    w->state_dot = (double *)(void *)ssd_take(&m, 2 * d->nl);
    w->g_w = (double *)(void *)ssd_take(&m, 2 * d->nl);
    w->g_diag_weight = (double *)(void *)ssd_take(&m, 2 * d->nl);
    return m.used;
}

static float *state_before(const backward *k, const workspace *w, int64_t i, int64_t chunk)
{
    return w->states + (i * k->most_chunks + chunk) * k->state;
}

/* Gradients of one chunk and head of the state space core; formulas and names above. */

/* H is 0 before the first chunk, and G after the last one, if the caller passes none: products with them are skipped. */
typedef struct ends {
    bool h_is_zero, g_is_zero;
    bool g_is_done; /* G before the chunk is not wanted */
} ends;

/* The chunk's rows of head h of v, and of group e of b or c, with token stride `stride`. */
static ssd_rows_of rows_of_v(const backward *k, const ssd_chunk *c, int64_t h)
{
    const kr_ssd_bwd_args *a = k->a;
    return ssd_rows_at((const float *)a->v.data + c->at * a->v.row + h * k->d.np, k->d.nh * k->d.np, a->v.row, k->d.nm);
}

static ssd_rows_of rows_of_bc(const backward *k, const void *x, int64_t stride, const ssd_chunk *c, int64_t e)
{
    return ssd_rows_at((const float *)x + c->at * stride + e * k->d.nr, k->d.ng * k->d.nr, stride, k->d.nm);
}

static void fill_decays(const backward *k, const ssd_unit *u, const ssd_chunk *c, workspace *w, int64_t i)
{
    int64_t at = c->at * k->d.nh + u->h0 + i;
    ssd_decays_fill(&w->decays, (const float *)k->a->da + at, k->a->w ? (const float *)k->a->w + at : NULL, k->d.nh,
                    c->nt, k->d.nm);
}

/* V, e^a g_y, g_y^T and the right side [g_y ; G^T]. */
static void load_head(const backward *k, const ssd_unit *u, const ssd_chunk *c, workspace *w, int64_t i, ends e)
{
    const ssd_dims *d = &k->d;
    const float *g_y = (const float *)k->a->g_y.data + (c->at * d->nm * d->nh + u->h0 + i) * d->np;
    int64_t row = d->nh * d->np;
    fill_decays(k, u, c, w, i);
    ssd_fetch_rows(rows_of_v(k, c, u->h0 + i), NULL, c->nf, d->np, w->v, d->p_line);
    ssd_copy_rows(g_y, row, w->decays.from_start, c->nf, d->np, w->g_y_decayed, d->p_line);
    ssd_copy_panels(g_y, row, c->nf, d->np, w->right, k->panel);
    ssd_transpose_chunk(g_y, row, c->nf, d->np, w->g_y_t, d->f_line);
    if (!e.g_is_zero)
        ssd_transpose_to_panels(w->g_state + i * k->state, d->r_line, d->np, d->nr, w->right + c->nf * GEMM_NR,
                                k->panel);
    memset(w->column, 0, (size_t)c->nf * sizeof(float));
    for (int64_t t = 0; t < c->nt; t++)
        w->crossing[t] = w->read_dot[t] = w->state_dot[t] = w->g_w[t] = w->g_diag_weight[t] = 0;
}

/* sum += factor x; returns <x, y>. n is in whole vectors. */
static float add_and_dot(const float *x, float factor, const float *y, float *sum, int64_t n)
{
    vf dot = vf_zero(), f = vf_set1(factor);
    for (int64_t r = 0; r < n; r += VF) {
        vf x_r = vf_load(x + r);
        dot = vf_fma(x_r, vf_load(y + r), dot);
        vf_store(sum + r, vf_fma(f, x_r, vf_load(sum + r)));
    }
    return vf_sum(dot);
}

/* Rows i0 .. i1-1 of X M, X [f][p_line] and M [p][r_line], into w->rows. */
static void multiply_state(const backward *k, const workspace *w, const float *x, const float *state, int64_t i0,
                           int64_t i1)
{
    const ssd_dims *d = &k->d;
    ssd_multiply(i1 - i0, k->r_whole, d->np, ssd_rows(x + i0 * d->p_line, d->p_line), ssd_matrix(state, d->r_line),
                 ssd_to(w->rows, d->r_line));
}

/* The terms of T. */
static void read_bwd(const backward *k, const ssd_chunk *c, const workspace *w, const float *before)
{
    const ssd_dims *d = &k->d;
    for (int64_t tile = 0; tile < ssd_tiles(c->nf); tile++) {
        int64_t i0 = ssd_tile_begin(c->nf, tile), i1 = ssd_tile_begin(c->nf, tile + 1);
        multiply_state(k, w, w->g_y_decayed, before, i0, i1);
        for (int64_t i = i0; i < i1; i++) {
            int64_t at = i * d->r_line;
            w->read_dot[i / d->nm] +=
                (double)add_and_dot(w->rows + (i - i0) * d->r_line, 1, w->c + at, w->g_c + at, k->r_whole);
        }
    }
}

/* The terms of U. */
static void state_bwd(const backward *k, const ssd_chunk *c, const workspace *w, const float *g_state)
{
    const ssd_dims *d = &k->d;
    for (int64_t tile = 0; tile < ssd_tiles(c->nf); tile++) {
        int64_t i0 = ssd_tile_begin(c->nf, tile), i1 = ssd_tile_begin(c->nf, tile + 1);
        multiply_state(k, w, w->v, g_state, i0, i1);
        for (int64_t j = i0; j < i1; j++) {
            int64_t at = j * d->r_line, t = j / d->nm;
            double u = (double)w->decays.to_end[j] * (double)add_and_dot(w->rows + (j - i0) * d->r_line,
                                                                         w->decays.weight_to_end[j], w->b + at,
                                                                         w->g_b + at, k->r_whole);
            w->g_w[t] += u;
            w->state_dot[t] += (double)w->decays.weight[j] * u;
        }
    }
}

/* decay[i] = e^(a_i - a_t) for the rows i from `from` on, the first after token t; row is one of t's. */
static void fill_decay(const ssd_decays *d, int64_t row, int64_t from, int64_t nf, float *decay)
{
    vf high = vf_set1(d->high[row]), low = vf_set1(d->low[row]);
    for (int64_t i = from; i < nf; i += VF) {
        vf left = ssd_exp_difference(vf_load_n(d->high + i, nf - i), vf_load_n(d->low + i, nf - i), high, low);
        vf_store_n(decay + i, nf - i, left);
    }
}

/* Sums over the later rows i of a row j: of x[i, j], and of the columns after row j. */
typedef struct later_sums {
    float x, columns;
} later_sums;

/* One row j of S and of B C^T, against the rows of later tokens, i = from .. nf-1: w_i = W[i, j]; adds to g_CB and to
 * the columns. The columns are summed only if sums_columns. */
KR_INLINE later_sums later_bwd(const workspace *w, const float *s, const float *bc, float weight, int64_t from,
                               int64_t nf, float *w_i, float *g_cb, bool sums_columns)
{
    vf sum = vf_zero(), columns = vf_zero(), w_j = vf_set1(weight);
    for (int64_t i = from; i < nf; i += VF) {
        int64_t n = nf - i;
        vf decay = vf_load_n(w->decay + i, n), s_i = vf_load_n(s + i, n);
        vf left = vf_mul(vf_load_n(bc + i, n), decay);
        vf x = vf_mul(s_i, left), column = vf_fma(w_j, x, vf_load_n(w->column + i, n));
        sum = vf_add(sum, x);
        if (sums_columns) columns = vf_add(columns, column);
        vf_store_n(w_i + i, n, vf_mul(left, w_j));
        vf_store_n(w->column + i, n, column);
        vf_store_n(g_cb + i, n, vf_fma(vf_mul(s_i, decay), w_j, vf_load_n(g_cb + i, n)));
    }
    return (later_sums){ vf_sum(sum), sums_columns ? vf_sum(columns) : 0 };
}

/* One row j of S: fills its row of the left side except the part of B, whose columns are the rows i from `from` on.
 * Returns its part of g_d. */
static double row_bwd(const backward *k, const ssd_unit *u, const ssd_chunk *c, const workspace *w, int64_t h,
                      int64_t j, const float *s, float *w_i, int64_t from)
{
    const kr_ssd_bwd_args *a = k->a;
    int64_t nm = k->d.nm, t = j / nm, token_row = t * nm, later = token_row + nm;
    const float *bc = w->bc + j * k->d.f_line;
    float *g_cb = w->g_cb + j * k->d.f_line;
    float weight = w->decays.weight[j];
    float diag_weight = a->diag_weight ? ((const float *)a->diag_weight)[(c->at + t) * a->nh + u->h0 + h] : weight;
    double g_direct = 0;
    memset(w_i + from, 0, (size_t)(token_row - from) * sizeof(float));
    for (int64_t i = token_row; i < later; i++) {
        w_i[i] = diag_weight * bc[i];
        g_cb[i] += diag_weight * s[i];
        g_direct += (double)s[i] * (double)bc[i];
    }
    if (a->d) w_i[j] += ((const float *)a->d)[u->h0 + h];
    const bool is_last = j + 1 == later; /* row of its token: the columns are complete up to t */
    later_sums sums = is_last ? later_bwd(w, s, bc, weight, later, c->nf, w_i, g_cb, true)
                              : later_bwd(w, s, bc, weight, later, c->nf, w_i, g_cb, false);
    if (is_last && t + 1 < c->nt) w->crossing[t + 1] = (double)sums.columns;
    w->g_w[t] += a->diag_weight ? (double)sums.x : (double)sums.x + g_direct;
    if (a->diag_weight) w->g_diag_weight[t] += g_direct;
    return (double)s[j];
}

/* The terms of S; g_v is one product [W^T | w e^(a_end - a) B] [g_y ; G^T]. Returns the head's part of g_d. */
static double pairs_bwd(const backward *k, const ssd_unit *u, const ssd_chunk *c, const workspace *w, int64_t h, ends e)
{
    const ssd_dims *d = &k->d;
    double g_d = 0;
    for (int64_t tile = 0; tile < ssd_tiles(c->nf); tile++) {
        int64_t j0 = ssd_tile_begin(c->nf, tile), j1 = ssd_tile_begin(c->nf, tile + 1), from = j0 / d->nm * d->nm;
        int64_t faded = -1;
        ssd_multiply(j1 - j0, c->nf - from, d->np, ssd_rows(w->v + j0 * d->p_line, d->p_line),
                     ssd_matrix(w->g_y_t + from, d->f_line), ssd_to(w->s + from, d->f_line));
        for (int64_t j = j0; j < j1; j++) {
            float *left = w->left + (j - j0) * w->left_line; /* column i is at left[i] */
            if (j / d->nm != faded) fill_decay(&w->decays, j, (j / d->nm + 1) * d->nm, c->nf, w->decay);
            faded = j / d->nm;
            g_d += row_bwd(k, u, c, w, h, j, w->s + (j - j0) * d->f_line, left, from);
            if (!e.g_is_zero)
                ssd_copy_rows(w->b + j * d->r_line, 0, w->decays.weight_to_end + j, 1, d->nr, left + c->nf, 0);
        }
        if (!k->a->g_v.data) continue;
        float *g_v = (float *)k->a->g_v.data + ((c->at * d->nm + j0) * d->nh + u->h0 + h) * d->np;
        int64_t steps = c->nf - from + (e.g_is_zero ? 0 : d->nr);
        ssd_multiply(j1 - j0, d->np, steps, ssd_rows(w->left + from, w->left_line),
                     ssd_panels(w->right + from * GEMM_NR, k->panel), ssd_to(g_v, d->nh * d->np));
    }
    return g_d;
}

/* G = e^a_end G + (e^a g_y)^T C; returns e^a_end <G, H>. */
static double pass_gradient(const backward *k, const ssd_chunk *c, const workspace *w, const float *before,
                            float *g_state, ends e)
{
    const ssd_dims *d = &k->d;
    vf chunk_decay = vf_set1(w->decays.chunk);
    double dot = 0;
    for (int64_t p = 0; p < d->np && !e.g_is_zero; p++) {
        vf sum = vf_zero();
        for (int64_t r = p * d->r_line; r < p * d->r_line + k->r_whole; r += VF) {
            vf g = vf_mul(chunk_decay, vf_load(g_state + r));
            sum = vf_fma(g, vf_load(before + r), sum);
            vf_store(g_state + r, g);
        }
        dot += (double)vf_sum(sum);
    }
    if (!e.g_is_done)
        ssd_multiply(d->np, k->r_whole, c->nf, ssd_columns(w->g_y_decayed, d->p_line), ssd_matrix(w->c, d->r_line),
                     ssd_add_to(g_state, d->r_line));
    return dot;
}

/* Writes g_da, g_w, g_diag_weight of the chunk; passing is e^a_end <G, H>. */
static void store_scalars(const backward *k, const ssd_unit *u, const ssd_chunk *c, const workspace *w, int64_t h,
                          double passing)
{
    const kr_ssd_bwd_args *a = k->a;
    double state_sum = passing, read = 0;
    for (int64_t t = 0; t < c->nt; t++) {
        w->crossing[t] += state_sum;
        state_sum += w->state_dot[t];
    }
    for (int64_t t = c->nt - 1; t >= 0; t--) {
        int64_t at = (c->at + t) * a->nh + u->h0 + h;
        read += w->read_dot[t];
        if (a->g_da) ((float *)a->g_da)[at] = (float)(w->crossing[t] + read);
        if (a->g_w) ((float *)a->g_w)[at] = (float)w->g_w[t];
        if (a->g_diag_weight) ((float *)a->g_diag_weight)[at] = (float)w->g_diag_weight[t];
    }
}

/* All gradients of chunk n and the unit's head h except those of the group's products; returns the part of g_d. */
static double ssd_head_bwd(const backward *k, const ssd_unit *u, const ssd_chunk *c, workspace *w, int64_t h, int64_t n,
                           ends e)
{
    const float *before = state_before(k, w, h, n);
    float *g_state = w->g_state + h * k->state;
    load_head(k, u, c, w, h, e);
    if (!e.h_is_zero) read_bwd(k, c, w, before);
    if (!e.g_is_zero) state_bwd(k, c, w, g_state);
    double g_d = pairs_bwd(k, u, c, w, h, e);
    store_scalars(k, u, c, w, h, pass_gradient(k, c, w, before, g_state, e));
    return g_d;
}

/* ---- states, forward ---- */

static void load_initial(const backward *k, const ssd_unit *u, workspace *w)
{
    const ssd_dims *d = &k->d;
    const float *initial = k->a->initial, *g_final = k->a->g_final;
    for (int64_t i = 0; i < u->nheads; i++) {
        int64_t at = (u->q * d->nh + u->h0 + i) * d->np * d->nr;
        float *first = state_before(k, w, i, 0), *g = w->g_state + i * k->state;
        if (initial) ssd_copy_rows(initial + at, d->nr, NULL, d->np, d->nr, first, d->r_line);
        else memset(first, 0, (size_t)k->state * sizeof(float));
        if (g_final) ssd_copy_rows(g_final + at, d->nr, NULL, d->np, d->nr, g, d->r_line);
        else memset(g, 0, (size_t)k->state * sizeof(float));
    }
}

/* The state after chunk n of the unit's head i: e^a_end H + (e^(a_end - a) w V)^T B. */
static void pass_state(const backward *k, const ssd_unit *u, const ssd_chunk *c, workspace *w, int64_t i, int64_t n)
{
    const ssd_dims *d = &k->d;
    const float *before = state_before(k, w, i, n);
    float *after = state_before(k, w, i, n + 1);
    fill_decays(k, u, c, w, i);
    ssd_fetch_rows(rows_of_v(k, c, u->h0 + i), w->decays.weight_to_end, c->nf, d->np, w->v, d->p_line);
    vf chunk_decay = vf_set1(w->decays.chunk);
    for (int64_t at = 0; at < k->state; at += VF) vf_store(after + at, vf_mul(chunk_decay, vf_load(before + at)));
    ssd_multiply(d->np, k->r_whole, c->nf, ssd_columns(w->v, d->p_line), ssd_matrix(w->b, d->r_line),
                 ssd_add_to(after, d->r_line));
}

static void find_states(const backward *k, const ssd_unit *u, const kr_sequence *s, workspace *w)
{
    load_initial(k, u, w);
    for (int64_t n = 0; n + 1 < ssd_chunks(&k->d, s); n++) {
        ssd_chunk c = ssd_chunk_at(&k->d, s, n);
        ssd_fetch_rows(rows_of_bc(k, k->a->b.data, k->a->b.row, &c, u->e), NULL, c.nf, k->d.nr, w->b, k->d.r_line);
        for (int64_t i = 0; i < u->nheads; i++) pass_state(k, u, &c, w, i, n);
    }
}

/* ---- backward over the chunks ---- */

/* B, C, C^T and B C^T of the chunk; clears its sums over heads. */
static void load_chunk(const backward *k, const ssd_unit *u, const ssd_chunk *c, workspace *w)
{
    const ssd_dims *d = &k->d;
    ssd_fetch_rows(rows_of_bc(k, k->a->b.data, k->a->b.row, c, u->e), NULL, c->nf, d->nr, w->b, d->r_line);
    ssd_fetch_rows(rows_of_bc(k, k->a->c.data, k->a->c.row, c, u->e), NULL, c->nf, d->nr, w->c, d->r_line);
    ssd_transpose_chunk(w->c, d->r_line, c->nf, d->nr, w->c_t, d->f_line);
    for (int64_t tile = 0; tile < ssd_tiles(c->nf); tile++) {
        int64_t j0 = ssd_tile_begin(c->nf, tile), j1 = ssd_tile_begin(c->nf, tile + 1), from = j0 / d->nm * d->nm;
        ssd_multiply(j1 - j0, c->nf - from, d->nr, ssd_rows(w->b + j0 * d->r_line, d->r_line),
                     ssd_matrix(w->c_t + from, d->f_line), ssd_to(w->bc + j0 * d->f_line + from, d->f_line));
    }
    memset(w->g_cb, 0, (size_t)(c->nf * d->f_line) * sizeof(float));
    memset(w->g_b, 0, (size_t)(c->nf * d->r_line) * sizeof(float));
    memset(w->g_c, 0, (size_t)(c->nf * d->r_line) * sizeof(float));
}

/* g_C += g_CB^T B, g_B += g_CB C; rows j of g_CB start at the row's token, rows i of g_CB^T end with it. */
static void multiply_group(const backward *k, const ssd_chunk *c, const workspace *w)
{
    const ssd_dims *d = &k->d;
    for (int64_t tile = 0; tile < ssd_tiles(c->nf); tile++) {
        int64_t i0 = ssd_tile_begin(c->nf, tile), i1 = ssd_tile_begin(c->nf, tile + 1);
        int64_t from = i0 / d->nm * d->nm, end = ((i1 - 1) / d->nm + 1) * d->nm;
        ssd_multiply(i1 - i0, k->r_whole, c->nf - from, ssd_rows(w->g_cb + i0 * d->f_line + from, d->f_line),
                     ssd_matrix(w->c + from * d->r_line, d->r_line), ssd_add_to(w->g_b + i0 * d->r_line, d->r_line));
        ssd_multiply(i1 - i0, k->r_whole, end, ssd_columns(w->g_cb + i0, d->f_line), ssd_matrix(w->b, d->r_line),
                     ssd_add_to(w->g_c + i0 * d->r_line, d->r_line));
    }
}

/* Stores rows of a chunk and group in the output of this block of heads. */
static void store_rows(const backward *k, const ssd_unit *u, const ssd_chunk *c, const float *rows, float *to,
                       float *partial)
{
    const ssd_dims *d = &k->d;
    if (!to) return;
    float *out = u->block == 0 ? to : partial + (u->block - 1) * k->bc_floats;
    out += (c->at * d->nm * d->ng + u->e) * d->nr;
    for (int64_t i = 0; i < c->nf; i++)
        memcpy(out + i * d->ng * d->nr, rows + i * d->r_line, (size_t)d->nr * sizeof(float));
}

static void chunk_bwd(const backward *k, const ssd_unit *u, const kr_sequence *s, workspace *w, int64_t n, double *g_d)
{
    ssd_chunk c = ssd_chunk_at(&k->d, s, n);
    const ends e = { .h_is_zero = n == 0 && !k->a->initial,
                     .g_is_zero = n == ssd_chunks(&k->d, s) - 1 && !k->a->g_final,
                     .g_is_done = n == 0 && !k->a->g_initial };
    load_chunk(k, u, &c, w);
    for (int64_t i = 0; i < u->nheads; i++) g_d[i] += ssd_head_bwd(k, u, &c, w, i, n, e);
    multiply_group(k, &c, w);
    store_rows(k, u, &c, w->g_b, k->a->g_b.data, k->partial_b);
    store_rows(k, u, &c, w->g_c, k->a->g_c.data, k->partial_c);
}

static void backward_units(const void *args, int64_t first, int64_t end, int worker)
{
    const backward *k = args;
    const ssd_dims *d = &k->d;
    workspace w;
    take_workspace(k, &w, k->workers + worker * k->worker_floats);
    for (int64_t index = first; index < end; index++) {
        ssd_unit u = ssd_unit_at(d, index);
        const kr_sequence *s = &k->a->sequences[u.q];
        double g_d[SSD_HEADS] = { 0 };
        find_states(k, &u, s, &w);
        for (int64_t n = ssd_chunks(d, s) - 1; n >= 0; n--) chunk_bwd(k, &u, s, &w, n, g_d);
        for (int64_t i = 0; i < u.nheads; i++) {
            int64_t at = u.q * d->nh + u.h0 + i;
            k->partial_d[at] = g_d[i];
            float *g_initial = k->a->g_initial;
            for (int64_t p = 0; g_initial && p < d->np; p++)
                memcpy(g_initial + (at * d->np + p) * d->nr, w.g_state + i * k->state + p * d->r_line,
                       (size_t)d->nr * sizeof(float));
        }
    }
}

/* ---- sums over blocks of heads, and tokens outside of all sequences ---- */

enum { TOKENS = 64 }; /* of a unit of the second run */

static void add_blocks(const backward *k, float *sum, const float *partial, int64_t at, int64_t floats)
{
    for (int64_t block = 1; sum && block < k->d.blocks; block++) {
        const float *part = partial + (block - 1) * k->bc_floats + at;
        int64_t i = 0;
        for (; i + VF <= floats; i += VF) vf_store(sum + at + i, vf_add(vf_load(sum + at + i), vf_load(part + i)));
        for (; i < floats; i++) sum[at + i] += part[i];
    }
}

/* Units are (q, TOKENS tokens). */
static void add_units(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const backward *k = args;
    const ssd_dims *d = &k->d;
    int64_t per_sequence = kr_blocks(d->ns, TOKENS), token = d->nm * d->ng * d->nr;
    for (int64_t unit = first; unit < end; unit++) {
        const kr_sequence *s = &k->a->sequences[unit / per_sequence];
        int64_t t0 = s->start + unit % per_sequence * TOKENS, t1 = kr_smaller(t0 + TOKENS, s->end);
        if (t0 >= t1) continue;
        add_blocks(k, k->a->g_b.data, k->partial_b, (s->row * d->ns + t0) * token, (t1 - t0) * token);
        add_blocks(k, k->a->g_c.data, k->partial_c, (s->row * d->ns + t0) * token, (t1 - t0) * token);
    }
}

static void clear_tokens(void *g, int64_t token, int64_t first, int64_t end)
{
    if (g && first < end) memset((float *)g + first * token, 0, (size_t)((end - first) * token) * sizeof(float));
}

/* Zeros for the tokens first .. end-1 of [b s]. */
static void clear_gap(const kr_ssd_bwd_args *a, int64_t first, int64_t end)
{
    clear_tokens(a->g_v.data, a->nm * a->nh * a->np, first, end);
    clear_tokens(a->g_b.data, a->nm * a->ng * a->nr, first, end);
    clear_tokens(a->g_c.data, a->nm * a->ng * a->nr, first, end);
    clear_tokens(a->g_da, a->nh, first, end);
    clear_tokens(a->g_w, a->nh, first, end);
    clear_tokens(a->g_diag_weight, a->nh, first, end);
}

static void clear_gaps(const kr_ssd_bwd_args *a)
{
    int64_t done = 0;
    for (int64_t q = 0; q < a->nq; q++) {
        const kr_sequence *s = &a->sequences[q];
        clear_gap(a, done, s->row * a->ns + s->start);
        done = s->row * a->ns + s->end;
    }
    clear_gap(a, done, a->nb * a->ns);
}

static int64_t take_backward(backward *k, float *base)
{
    const ssd_dims *d = &k->d;
    ssd_memory m = { base, 0 };
    workspace w;
    k->worker_floats = take_workspace(k, &w, NULL);
    k->bc_floats = d->nb * d->ns * d->nm * d->ng * d->nr;
    k->partial_d = (double *)(void *)ssd_take(&m, 2 * d->nq * d->nh);
    k->partial_b = ssd_take(&m, k->a->g_b.data ? (d->blocks - 1) * k->bc_floats : 0);
    k->partial_c = ssd_take(&m, k->a->g_c.data ? (d->blocks - 1) * k->bc_floats : 0);
    k->workers = ssd_take(&m, kr_pool_size(k->a->exec.pool) * k->worker_floats);
    return m.used;
}

static backward backward_of(const kr_ssd_bwd_args *a)
{
    backward k = {
        .a = a,
        .d = { .nb = a->nb, .ns = a->ns, .nm = a->nm, .nh = a->nh, .np = a->np, .ng = a->ng, .nr = a->nr, .nq = a->nq }
    };
    ssd_cut(&k.d, a->nl);
    k.state = k.d.np * k.d.r_line;
    k.r_whole = ssd_round_up(k.d.nr, VF);
    k.most_chunks = kr_larger(1, ssd_chunks_of(&k.d, k.d.ns));
    k.panel = (k.d.nf + k.d.nr) * GEMM_NR;
    return k;
}

size_t KR_FN(ssd_bwd_scratch)(const kr_ssd_bwd_args *a)
{
    backward k = backward_of(a);
    return (size_t)take_backward(&k, NULL) * sizeof(float);
}

void KR_FN(ssd_bwd)(const kr_ssd_bwd_args *a)
{
    backward k = backward_of(a);
    take_backward(&k, a->exec.scratch);
    clear_gaps(a);
    kr_ranges_run(a->exec.pool, ssd_units(&k.d), 3 * ssd_unit_elements(&k.d), backward_units, &k);
    if (k.d.blocks > 1)
        kr_ranges_run(a->exec.pool, a->nq * kr_blocks(a->ns, TOKENS), TOKENS * a->nm * a->ng * a->nr * k.d.blocks,
                      add_units, &k);
    for (int64_t h = 0; a->g_d && h < a->nh; h++) {
        double sum = 0;
        for (int64_t q = 0; q < a->nq; q++) sum += k.partial_d[q * a->nh + h];
        ((float *)a->g_d)[h] = (float)sum;
    }
}
