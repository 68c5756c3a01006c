/* ssd_cpu.c - the state space core in f32 for all families, in one pass over each sequence: token by token for short
 * ones (ssd_tokens.h), else chunk by chunk.
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
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ssd_tokens.h"

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
    float *decay; /* e^(a_t - a_j) w_j of one token t, [f] */
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
    w->tokens.zeros = ssd_take(&m, d->nr);
    w->tokens.rows = ssd_take(&m, SSD_TILE_ROWS * d->nr);
    return m.used;
}

/* H += boundary boundary_b (x) boundary_v, of the unit's head k. */
static void add_boundary(const forward *f, const ssd_unit *u, workspace *w, int64_t k)
{
    const ssd_dims *d = &f->d;
    int64_t h = u->h0 + k, at = u->q * d->nm * d->nh + h, panel = d->nm * GEMM_NR;
    ssd_copy_panels((const float *)f->a->boundary_v + at * d->np, d->nh * d->np, d->nm, d->np, w->weighted_v, panel);
    ssd_scale(w->weighted_v, d->panels * panel, ((const float *)f->a->boundary)[u->q * d->nh + h]);
    ssd_multiply(d->nr, ssd_round_up(d->np, VF), d->nm,
                 ssd_columns((const float *)f->a->boundary_b + at * d->nr, d->nh * d->nr),
                 ssd_panels(w->weighted_v, panel), (ssd_out){ w->right[k], GEMM_NR, f->panel, true });
}

static void load_states(const forward *f, const ssd_unit *u, workspace *w)
{
    const ssd_dims *d = &f->d;
    const float *initial = f->a->initial;
    for (int64_t k = 0; k < u->nheads; k++) {
        int64_t at = (u->q * d->nh + u->h0 + k) * d->np * d->nr;
        if (initial) {
            ssd_transpose_to_panels(initial + at, d->nr, d->np, d->nr, w->right[k], f->panel);
        } else {
            for (int64_t i = 0; i < d->panels; i++)
                memset(w->right[k] + i * f->panel, 0, (size_t)(d->nr * GEMM_NR) * sizeof(float));
        }
        if (f->a->boundary) add_boundary(f, u, w, k);
    }
}

static void store_states(const forward *f, const ssd_unit *u, const workspace *w)
{
    const ssd_dims *d = &f->d;
    float *final = f->a->final;
    for (int64_t k = 0; final && k < u->nheads; k++) {
        float *final_pr = final + (u->q * d->nh + u->h0 + k) * d->np * d->nr;
        for (int64_t i = 0; i < d->panels; i++)
            kr_transpose(w->right[k] + i * f->panel, GEMM_NR, d->nr, ssd_panel_columns(d->np, i),
                         final_pr + i * GEMM_NR * d->nr, d->nr);
    }
}

static void load_chunk(const forward *f, const ssd_unit *u, const ssd_chunk *c, workspace *w)
{
    const ssd_dims *d = &f->d;
    const kr_ssd_args *a = f->a;
    int64_t row = d->ng * d->nr;
    const float *b = (const float *)a->b + c->at * a->b_stride + u->e * d->nr;
    const float *c_0 = (const float *)a->c + c->at * a->c_stride + u->e * d->nr;
    ssd_fetch_rows(ssd_rows_at(c_0, row, a->c_stride, d->nm), NULL, c->nf, d->nr, w->c, d->r_line);
    ssd_fetch_transposed(ssd_rows_at(b, row, a->b_stride, d->nm), c->nf, d->nr, w->b_t, d->f_line);
    for (int64_t k = 0; k < u->nheads; k++) {
        int64_t h = u->h0 + k, scalars = c->at * d->nh + h;
        ssd_decays_fill(&w->decays[k], (const float *)a->da + scalars, a->w ? (const float *)a->w + scalars : NULL,
                        d->nh, c->nt, d->nm);
        const float *v = (const float *)a->v + c->at * a->v_stride + h * d->np;
        ssd_fetch_panels(ssd_rows_at(v, d->nh * d->np, a->v_stride, d->nm), c->nf, d->np, w->right[k] + d->nr * GEMM_NR,
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
            float *y = (float *)f->a->y + ((c->at * d->nm + i0) * d->nh + u->h0 + k) * d->np;
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
    return (ssd_token){ .v = (const float *)a->v + at * a->v_stride + h * a->np,
                        .b = (const float *)a->b + at * a->b_stride + u->e * a->nr,
                        .c = (const float *)a->c + at * a->c_stride + u->e * a->nr,
                        .y = (float *)a->y + (at * a->nm * a->nh + h) * a->np,
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

/* The boundary's addition to the initial state, as a token that produces no output. */
static ssd_token boundary_at(const kr_ssd_args *a, int64_t q, int64_t h)
{
    int64_t at = q * a->nm * a->nh + h;
    return (ssd_token){ .v = (const float *)a->boundary_v + at * a->np,
                        .b = (const float *)a->boundary_b + at * a->nr,
                        .decay = 1,
                        .weight = ((const float *)a->boundary)[q * a->nh + h],
                        .nm = a->nm,
                        .np = a->np,
                        .nr = a->nr,
                        .v_row = a->nh * a->np,
                        .b_row = a->nh * a->nr };
}

static void walk_tokens(const forward *f, const ssd_unit *u, const kr_sequence *s, const workspace *w)
{
    const kr_ssd_args *a = f->a;
    int64_t count = s->end - s->start, first = s->row * a->ns + s->start;
    memset(w->tokens.zeros, 0, (size_t)a->nr * sizeof(float));
    for (int64_t h = u->h0; h < u->h0 + u->nheads; h++) {
        ssd_token tokens[SSD_MAX_TOKENS], boundary;
        if (a->boundary) boundary = boundary_at(a, u->q, h);
        for (int64_t t = 0; t < count; t++) tokens[t] = token_at(a, u, h, first + t);
        int64_t state = (u->q * a->nh + h) * a->np * a->nr;
        ssd_tokens_run(a->boundary ? &boundary : NULL, tokens, count,
                       a->initial ? (const float *)a->initial + state : NULL,
                       a->final ? (float *)a->final + state : NULL, &w->tokens, a->d ? (const float *)a->d + h : NULL);
    }
}

static void walk_chunks(const forward *f, const ssd_unit *u, const kr_sequence *s, workspace *w)
{
    const int64_t nchunks = ssd_chunks(&f->d, s);
    load_states(f, u, w);
    for (int64_t n = 0; n < nchunks; n++) {
        ssd_chunk c = ssd_chunk_at(&f->d, s, n);
        load_chunk(f, u, &c, w);
        read_out(f, u, &c, w, n == 0 && !f->a->initial && !f->a->boundary);
        if (n + 1 == nchunks && !f->a->final) break;
        for (int64_t k = 0; k < u->nheads; k++) pass_state(f, &c, w, k);
    }
    store_states(f, u, w);
}

/* The path, by tokens or by chunks, depends on the sequence's length alone. */
static void forward_units(const void *args, int64_t first, int64_t end, int worker)
{
    const forward *f = args;
    workspace w;
    int64_t floats = take_workspace(f, &w, NULL);
    take_workspace(f, &w, (float *)f->a->exec.scratch + worker * floats);
    for (int64_t index = first; index < end; index++) {
        ssd_unit u = ssd_unit_at(&f->d, index);
        const kr_sequence *s = &f->a->sequences[u.q];
        int64_t count = s->end - s->start;
        if (count >= 1 && count <= SSD_MAX_TOKENS) walk_tokens(f, &u, s, &w);
        else walk_chunks(f, &u, s, &w);
    }
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

size_t KR_FN(ssd_scratch)(const kr_ssd_args *a)
{
    forward f = forward_of(a);
    workspace w;
    return (size_t)(kr_pool_size(a->exec.pool) * take_workspace(&f, &w, NULL)) * sizeof(float);
}

void KR_FN(ssd)(const kr_ssd_args *a)
{
    forward f = forward_of(a);
    kr_ranges_run(a->exec.pool, ssd_units(&f.d), ssd_unit_elements(&f.d), forward_units, &f);
}
