/* ssd_bwd_chunk.h - gradients of one chunk and head of the state space core; formulas and names in ssd_bwd_cpu.c. */
#ifndef KR_KERNELS_CPU_SSD_BWD_CHUNK_H
#define KR_KERNELS_CPU_SSD_BWD_CHUNK_H

#include "kernels/cpu/ssd_bwd_work.h"

/* H is 0 before the first chunk, and G after the last one, if the caller passes none: products with them are skipped. */
typedef struct ends {
    bool h_is_zero, g_is_zero;
    bool g_is_done; /* G before the chunk is not wanted */
} ends;

/* The chunk's rows of head h of v, and of group e of b or c, with token stride `stride`. */
static ssd_rows_of rows_of_v(const backward *k, const ssd_chunk *c, int64_t h)
{
    const kr_ssd_bwd_args *a = k->a;
    return ssd_rows_at((const float *)a->v + c->at * a->v_stride + h * k->d.np, k->d.nh * k->d.np, a->v_stride,
                       k->d.nm);
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
    const float *g_y = (const float *)k->a->g_y + (c->at * d->nm * d->nh + u->h0 + i) * d->np;
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
        if (!k->a->g_v) continue;
        float *g_v = (float *)k->a->g_v + ((c->at * d->nm + j0) * d->nh + u->h0 + h) * d->np;
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

#endif
