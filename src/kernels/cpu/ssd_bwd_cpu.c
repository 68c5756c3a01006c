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
#include "kernels/cpu/ssd_bwd_chunk.h"

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
        ssd_fetch_rows(rows_of_bc(k, k->a->b, k->a->b_stride, &c, u->e), NULL, c.nf, k->d.nr, w->b, k->d.r_line);
        for (int64_t i = 0; i < u->nheads; i++) pass_state(k, u, &c, w, i, n);
    }
}

/* ---- backward over the chunks ---- */

/* B, C, C^T and B C^T of the chunk; clears its sums over heads. */
static void load_chunk(const backward *k, const ssd_unit *u, const ssd_chunk *c, workspace *w)
{
    const ssd_dims *d = &k->d;
    ssd_fetch_rows(rows_of_bc(k, k->a->b, k->a->b_stride, c, u->e), NULL, c->nf, d->nr, w->b, d->r_line);
    ssd_fetch_rows(rows_of_bc(k, k->a->c, k->a->c_stride, c, u->e), NULL, c->nf, d->nr, w->c, d->r_line);
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
    store_rows(k, u, &c, w->g_b, k->a->g_b, k->partial_b);
    store_rows(k, u, &c, w->g_c, k->a->g_c, k->partial_c);
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
        add_blocks(k, k->a->g_b, k->partial_b, (s->row * d->ns + t0) * token, (t1 - t0) * token);
        add_blocks(k, k->a->g_c, k->partial_c, (s->row * d->ns + t0) * token, (t1 - t0) * token);
    }
}

static void clear_tokens(void *g, int64_t token, int64_t first, int64_t end)
{
    if (g && first < end) memset((float *)g + first * token, 0, (size_t)((end - first) * token) * sizeof(float));
}

/* Zeros for the tokens first .. end-1 of [b s]. */
static void clear_gap(const kr_ssd_bwd_args *a, int64_t first, int64_t end)
{
    clear_tokens(a->g_v, a->nm * a->nh * a->np, first, end);
    clear_tokens(a->g_b, a->nm * a->ng * a->nr, first, end);
    clear_tokens(a->g_c, a->nm * a->ng * a->nr, first, end);
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
    k->partial_b = ssd_take(&m, k->a->g_b ? (d->blocks - 1) * k->bc_floats : 0);
    k->partial_c = ssd_take(&m, k->a->g_c ? (d->blocks - 1) * k->bc_floats : 0);
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
    k.most_chunks = kr_larger(1, kr_blocks(k.d.ns, k.d.nl));
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
