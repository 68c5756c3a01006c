/* ssd_ref.c - the state space core, token by token, and its gradient.
 *
 *   v, y [b s m h p]    b, c [b s m g r]    da, w, gamma [b s h]    d [h]    initial, final [q h p r]
 *   head h reads group h / (nh/ng); w NULL is 1, initial NULL is 0; gamma is diag_weight
 *
 * forward, each (q, h), t = start .. end-1        | backward, t = end-1 .. start; G [p r] starts as g_final
 *   K   = exp(da_t) H_{t-1}                       |   strict:    G gets its g_y terms after the lines of H_t
 *   H_t = K + w_t sum_m V_t[m] (x) B_t[m]         |   inclusive: before them
 *   inclusive: y_t[m] = H_t C_t[m]                |   g_y terms: G += g_y_t[m] (x) C_t[m],
 *   strict:    y_t[m] = K C_t[m] + gamma_t        |     g_C_t[m] += g_y_t[m] H_t (inclusive), g_y_t[m] K (strict)
 *       sum_m' <C_t[m], B_t[m']> V_t[m']          |   H_t: g_w_t = sum_m <G, V_t[m] (x) B_t[m]>,
 *   y_t[m] += D V_t[m]                            |     g_V_t[m] = w_t G B_t[m],  g_B_t[m] += w_t V_t[m] G
 *   final = H_{end-1}                             |   K: g_da_t = <G, K>,  G = exp(da_t) G; in the end g_initial = G
 *
 * and of gamma_t, with s = <g_y_t[m], V_t[m']> and k = <C_t[m], B_t[m']>: g_gamma_t += s k,
 * g_V_t[m'] += gamma_t k g_y_t[m], g_C_t[m] += gamma_t s B_t[m'], g_B_t[m'] += gamma_t s C_t[m].
 *
 * A task is a sequence and a head, in the gradient a sequence and a group: its g_b and g_c are summed in double before
 * they are rounded. States are recomputed in blocks of about ns^1/2 tokens from the state at each block's start.
 * With angles, B and C of each head are rotated first, by rotate_ref.c, and their gradients rotated back last. Forward, the
 * end of a chunk of nl tokens is as the end of a call: see ssd_args.h, also for carry and pair.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"
#include "kernels/args/ssd_args.h"

#include <math.h>
#include <string.h>

/* Operands of both directions, and the current head. */
typedef struct head {
    int64_t nm, nh, np, ng, nr;
    int64_t v_stride, b_stride, c_stride;
    int64_t h, e; /* head and its group */
    const real *v, *b, *c, *da, *w, *diag_weight, *d;
} head;

/* Head `head_` of the arguments of either direction. */
#define HEAD(a, head_)                                                                                                 \
    {                                                                                                                  \
        .nm = (a)->nm, .nh = (a)->nh, .np = (a)->np, .ng = (a)->ng, .nr = (a)->nr, .v_stride = (a)->v.row,             \
        .b_stride = (a)->b.row, .c_stride = (a)->c.row, .h = (head_), .e = (head_) / ((a)->nh / (a)->ng),              \
        .v = (a)->v.data, .b = (a)->b.data, .c = (a)->c.data, .da = (a)->da, .w = (a)->w,                              \
        .diag_weight = (a)->diag_weight, .d = (a)->d                                                                   \
    }

/* One token of a head. at is its index in [b s]. */
static const real *v_at(const head *n, int64_t at, int64_t m)
{
    return n->v + at * n->v_stride + (m * n->nh + n->h) * n->np;
}

static const real *b_at(const head *n, int64_t at, int64_t m)
{
    return n->b + at * n->b_stride + (m * n->ng + n->e) * n->nr;
}

static const real *c_at(const head *n, int64_t at, int64_t m)
{
    return n->c + at * n->c_stride + (m * n->ng + n->e) * n->nr;
}

static const real *g_y_at(const head *n, const real *g_y, int64_t at, int64_t m)
{
    return g_y + ((at * n->nm + m) * n->nh + n->h) * n->np;
}

static double scalar(const head *n, const real *x_h, int64_t at, double fallback)
{
    return x_h ? (double)x_h[at * n->nh + n->h] : fallback;
}

static double dot(const real *x, const real *y, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

/* H += scale x (x) y, [p r] */
static void add_outer(const head *n, double *state_pr, double scale, const real *x_p, const real *y_r)
{
    for (int64_t p = 0; p < n->np; p++)
        for (int64_t r = 0; r < n->nr; r++) state_pr[p * n->nr + r] += scale * (double)x_p[p] * (double)y_r[r];
}

static void decay(const head *n, double *state_pr, int64_t at)
{
    double factor = exp(scalar(n, n->da, at, 0));
    for (int64_t i = 0; i < n->np * n->nr; i++) state_pr[i] *= factor;
}

/* H_t from K. */
static void receive_weighted(const head *n, double *state_pr, int64_t at, double w)
{
    for (int64_t m = 0; m < n->nm; m++) add_outer(n, state_pr, w, v_at(n, at, m), b_at(n, at, m));
}

static void receive(const head *n, double *state_pr, int64_t at)
{
    receive_weighted(n, state_pr, at, scalar(n, n->w, at, 1));
}

static void load_state(double *state_pr, const real *from, int64_t q, const head *n)
{
    int64_t size = n->np * n->nr;
    for (int64_t i = 0; i < size; i++) state_pr[i] = from ? (double)from[(q * n->nh + n->h) * size + i] : 0;
}

static void store_state(const double *state_pr, real *to, int64_t q, const head *n)
{
    int64_t size = n->np * n->nr;
    for (int64_t i = 0; to && i < size; i++) to[(q * n->nh + n->h) * size + i] = (real)state_pr[i];
}

/* ---- rotated B and C ---- */

/* Elements of B or of C for each head. */
#define ROTATED_COUNT(a) ((a)->nb * (a)->ns * (a)->nm * (a)->nh * (a)->nr)

/* The arguments of either direction for kr_rotate of B (x, bias) or C. */
#define ROTATE_SIZES(a)                                                                                                \
    .no = (a)->nb * (a)->ns, .nm = (a)->nm, .nh = (a)->nh, .ng = (a)->ng, .nr = (a)->nr, .na = (a)->na,                \
    .split_pairs = (a)->split_pairs, .angle = (a)->angle

/* B and C of each head, rotated, stored at `to`, replace those of the groups. */
#define ROTATE_BC(a, to)                                                                                               \
    do {                                                                                                               \
        real *rotated = (to);                                                                                          \
        const kr_rotate_args of_b = { ROTATE_SIZES(a), .x = (a)->b.data, .bias = (a)->bias_b,                          \
                                      .y = { rotated, KR_REF_DTYPE, (a)->nr } };                                       \
        const kr_rotate_args of_c = { ROTATE_SIZES(a), .x = (a)->c.data, .bias = (a)->bias_c,                          \
                                      .y = { rotated + ROTATED_COUNT(a), KR_REF_DTYPE, (a)->nr } };                    \
        KR_REF(rotate)(&of_b);                                                                                         \
        KR_REF(rotate)(&of_c);                                                                                         \
        (a)->b = of_b.y, (a)->c = of_c.y;                                                                              \
        (a)->ng = (a)->nh;                                                                                             \
        (a)->b.row = (a)->c.row = (a)->nm * (a)->nh * (a)->nr;                                                         \
    } while (0)

/* ---- forward ---- */

/* y_t of one head; state is H_t, or K where the mask is strict. */
static void read_out(const head *n, const double *state_pr, int64_t at, real *y)
{
    double d = n->d ? (double)n->d[n->h] : 0, diag_weight = scalar(n, n->diag_weight, at, 0);
    for (int64_t m = 0; m < n->nm; m++) {
        const real *c_r = c_at(n, at, m);
        real *y_p = y + ((at * n->nm + m) * n->nh + n->h) * n->np;
        for (int64_t p = 0; p < n->np; p++) {
            double sum = n->d ? d * (double)v_at(n, at, m)[p] : 0; /* 0 times an infinite value is not 0 */
            for (int64_t r = 0; r < n->nr; r++) sum += state_pr[p * n->nr + r] * (double)c_r[r];
            for (int64_t from = 0; n->diag_weight && from < n->nm; from++)
                sum += diag_weight * dot(c_r, b_at(n, at, from), n->nr) * (double)v_at(n, at, from)[p];
            y_p[p] = (real)sum;
        }
    }
}

static void add_boundary(const head *n, const kr_ssd_args *a, int64_t q, double *state_pr)
{
    const real *boundary = a->boundary, *v = a->boundary_v, *b = a->boundary_b;
    for (int64_t m = 0; boundary && m < n->nm; m++) {
        const int64_t at = (q * n->nm + m) * n->nh + n->h;
        add_outer(n, state_pr, (double)boundary[q * n->nh + n->h], v + at * n->np, b + at * n->nr);
    }
}

/* Tokens first .. end-1, a chunk. leaves_carry: the last one has the weight diag_weight. */
static void run_chunk(const head *n, const kr_ssd_args *a, int64_t first, int64_t end, bool leaves_carry,
                      double *state_pr)
{
    for (int64_t at = first; at < end; at++) {
        decay(n, state_pr, at);
        if (a->diag_weight) read_out(n, state_pr, at, a->y.data);
        if (leaves_carry && at + 1 == end) receive_weighted(n, state_pr, at, scalar(n, n->diag_weight, at, 0));
        else receive(n, state_pr, at);
        if (!a->diag_weight) read_out(n, state_pr, at, a->y.data);
    }
}

static void round_state(const head *n, double *state_pr)
{
    for (int64_t i = 0; i < n->np * n->nr; i++) state_pr[i] = (double)(real)state_pr[i];
}

/* The chunk of a pair's second core, whose state starts from 0, and is left in state_pr. */
static void run_pair(const kr_ssd_args *a, int64_t h, int64_t first, int64_t end, double *state_pr)
{
    const head n = HEAD(a, h);
    memset(state_pr, 0, (size_t)(n.np * n.nr) * sizeof *state_pr);
    run_chunk(&n, a, first, end, false, state_pr);
    round_state(&n, state_pr);
}

static void forward_task(void *arg, int64_t index, int worker)
{
    const kr_ssd_args *a = arg;
    int64_t q = index / a->nh, h = index % a->nh, size = a->np * a->nr;
    const head n = HEAD(a, h);
    double *state_pr = (double *)a->exec.scratch + worker * 2 * size, *pair_pr = state_pr + size;
    const kr_sequence *s = &a->sequences[q];
    const int64_t first = s->row * a->ns + s->start, end = s->row * a->ns + s->end;
    load_state(state_pr, a->initial, q, &n);
    load_state(pair_pr, NULL, q, &n);
    add_boundary(&n, a, q, state_pr);
    for (int64_t from = first, to; from < end; from = to) {
        to = a->nl > 0 && a->nl < end - from ? from + a->nl : end;
        if (from > first && a->carry) receive_weighted(&n, state_pr, from - 1, scalar(&n, a->carry, from, 0));
        run_chunk(&n, a, from, to, a->carry && to < end, state_pr);
        round_state(&n, state_pr);
        if (!a->pair) continue;
        run_pair(a->pair, h, from, to, pair_pr);
        for (int64_t i = 0; to < end && i < size; i++) state_pr[i] += pair_pr[i];
        round_state(&n, state_pr);
    }
    store_state(state_pr, a->final, q, &n);
    if (a->pair) store_state(pair_pr, a->pair->final, q, &n);
}

static size_t forward_bytes(const kr_ssd_args *a)
{
    return (size_t)(kr_pool_size(a->exec.pool) * 2 * a->np * a->nr) * sizeof(double);
}

/* Copies of the operands of either direction that are not of the slot's type. */
#define TOKENS_OF(a) ((a)->nb * (a)->ns)
#define V_ROW(a) ((a)->nm * (a)->nh * (a)->np)
#define BC_ROW(a) ((a)->nm * (a)->ng * (a)->nr)
#define VBC_COPY_BYTES(a)                                                                                              \
    (kr_ref_copy_bytes(&(a)->v, TOKENS_OF(a), V_ROW(a), false) +                                                       \
     kr_ref_copy_bytes(&(a)->b, TOKENS_OF(a), BC_ROW(a), false) +                                                      \
     kr_ref_copy_bytes(&(a)->c, TOKENS_OF(a), BC_ROW(a), false))
#define COPY_VBC(a, at)                                                                                                \
    do {                                                                                                               \
        (a)->v = kr_ref_copied(&(a)->v, TOKENS_OF(a), V_ROW(a), false, (at));                                          \
        (a)->b = kr_ref_copied(&(a)->b, TOKENS_OF(a), BC_ROW(a), false, (at));                                         \
        (a)->c = kr_ref_copied(&(a)->c, TOKENS_OF(a), BC_ROW(a), false, (at));                                         \
    } while (0)

static size_t rotary_bytes(const kr_ssd_args *a)
{
    return a->angle ? 2 * (size_t)ROTATED_COUNT(a) * sizeof(real) : 0;
}

size_t KR_REF(ssd_scratch)(const kr_ssd_args *a)
{
    const size_t of_pair =
        a->pair ? VBC_COPY_BYTES(a->pair) + kr_ref_copy_bytes(&a->pair->y, TOKENS_OF(a), V_ROW(a), false) : 0;
    return forward_bytes(a) + rotary_bytes(a) + 16 + VBC_COPY_BYTES(a) + of_pair +
           kr_ref_copy_bytes(&a->y, TOKENS_OF(a), V_ROW(a), false);
}

void KR_REF(ssd)(const kr_ssd_args *given)
{
    kr_ssd_args copy = *given, *a = &copy;
    char *more = (char *)a->exec.scratch + forward_bytes(a), *copies = more + (rotary_bytes(a) + 15) / 16 * 16;
    COPY_VBC(a, &copies);
    a->y = kr_ref_copied(&given->y, TOKENS_OF(a), V_ROW(a), false, &copies);
    kr_ssd_args of_pair;
    if (a->pair) {
        of_pair = *a->pair;
        COPY_VBC(&of_pair, &copies);
        of_pair.y = kr_ref_copied(&given->pair->y, TOKENS_OF(a), V_ROW(a), false, &copies);
        a->pair = &of_pair;
    }
    if (a->angle) ROTATE_BC(a, (real *)(void *)more);
    if (a->nq > 0 && a->nh > 0) kr_pool_run(a->exec.pool, a->nq * a->nh, forward_task, (void *)(uintptr_t)a);
    kr_ref_write_back(&given->y, &a->y, TOKENS_OF(a), V_ROW(a));
    if (given->pair) kr_ref_write_back(&given->pair->y, &of_pair.y, TOKENS_OF(a), V_ROW(a));
}

/* ---- backward ---- */

/* A worker's scratch, all double. */
typedef struct work {
    int64_t block;       /* tokens */
    double *entries_npr; /* state before each block */
    double *states_tpr;  /* state before each token of one block */
    double *k_pr, *g_pr; /* K, then H_t; and G */
    double *g_b, *g_c;   /* of the group [s m r] */
    double *g_v_mp;      /* of the token */
} work;

static int64_t block_tokens(int64_t ns)
{
    int64_t n = 1;
    while (n * n < ns) n++;
    return n;
}

static int64_t work_doubles(const kr_ssd_bwd_args *a)
{
    int64_t states = 2 * block_tokens(a->ns) + 2;
    return states * a->np * a->nr + 2 * a->ns * a->nm * a->nr + a->nm * a->np;
}

static work work_of(const kr_ssd_bwd_args *a, int worker)
{
    int64_t block = block_tokens(a->ns), state = a->np * a->nr, rows = a->ns * a->nm * a->nr;
    double *at = (double *)a->exec.scratch + a->nq * a->nh + worker * work_doubles(a);
    work w = { .block = block };
    w.entries_npr = at, at += block * state;
    w.states_tpr = at, at += block * state;
    w.k_pr = at, at += state;
    w.g_pr = at, at += state;
    w.g_b = at, at += rows;
    w.g_c = at, at += rows;
    w.g_v_mp = at;
    return w;
}

/* The states before all blocks of a sequence, whose first token is at `first`. */
static void find_entries(const head *n, const work *w, int64_t first, int64_t count)
{
    int64_t size = n->np * n->nr;
    for (int64_t t = 0; t < count; t++) {
        if (t % w->block == 0) memcpy(w->entries_npr + t / w->block * size, w->k_pr, (size_t)size * sizeof(double));
        decay(n, w->k_pr, first + t);
        receive(n, w->k_pr, first + t);
    }
}

/* The states before the tokens t0 .. t1-1 of a block. */
static void find_states(const head *n, const work *w, int64_t first, int64_t t0, int64_t t1)
{
    int64_t size = n->np * n->nr;
    size_t bytes = (size_t)size * sizeof(double);
    memcpy(w->states_tpr, w->entries_npr + t0 / w->block * size, bytes);
    for (int64_t t = t0; t + 1 < t1; t++) {
        double *next = w->states_tpr + (t + 1 - t0) * size;
        memcpy(next, next - size, bytes);
        decay(n, next, first + t);
        receive(n, next, first + t);
    }
}

/* G += g_y (x) C;  g_C += g_y S, S being H_t or K. */
static void read_out_bwd(const head *n, const work *w, const double *state_pr, int64_t at, const real *g_y,
                         double *g_c_mr)
{
    for (int64_t m = 0; m < n->nm; m++) {
        const real *g_y_p = g_y_at(n, g_y, at, m);
        add_outer(n, w->g_pr, 1, g_y_p, c_at(n, at, m));
        for (int64_t p = 0; p < n->np; p++)
            for (int64_t r = 0; r < n->nr; r++) g_c_mr[m * n->nr + r] += (double)g_y_p[p] * state_pr[p * n->nr + r];
    }
}

/* g_w;  g_V += w G B;  g_B += w V G. */
static double receive_bwd(const head *n, const work *w, int64_t at, double *g_b_mr)
{
    double weight = scalar(n, n->w, at, 1), g_w = 0;
    for (int64_t m = 0; m < n->nm; m++) {
        const real *v_p = v_at(n, at, m), *b_r = b_at(n, at, m);
        for (int64_t p = 0; p < n->np; p++) {
            double sum = 0; /* of G B */
            for (int64_t r = 0; r < n->nr; r++) {
                sum += w->g_pr[p * n->nr + r] * (double)b_r[r];
                g_b_mr[m * n->nr + r] += weight * (double)v_p[p] * w->g_pr[p * n->nr + r];
            }
            w->g_v_mp[m * n->np + p] += weight * sum;
            g_w += (double)v_p[p] * sum;
        }
    }
    return g_w;
}

/* The terms of gamma_t; returns g_diag_weight. */
static double diagonal_bwd(const head *n, const work *w, int64_t at, const real *g_y, double *g_b_mr, double *g_c_mr)
{
    double diag_weight = scalar(n, n->diag_weight, at, 0), g_diag_weight = 0;
    for (int64_t to = 0; to < n->nm; to++) {
        for (int64_t from = 0; from < n->nm; from++) {
            const real *g_y_p = g_y_at(n, g_y, at, to), *v_p = v_at(n, at, from);
            const real *c_r = c_at(n, at, to), *b_r = b_at(n, at, from);
            double s = dot(g_y_p, v_p, n->np), k = dot(c_r, b_r, n->nr);
            g_diag_weight += s * k;
            for (int64_t p = 0; p < n->np; p++) w->g_v_mp[from * n->np + p] += diag_weight * k * (double)g_y_p[p];
            for (int64_t r = 0; r < n->nr; r++) {
                g_c_mr[to * n->nr + r] += diag_weight * s * (double)b_r[r];
                g_b_mr[from * n->nr + r] += diag_weight * s * (double)c_r[r];
            }
        }
    }
    return g_diag_weight;
}

/* g_V += D g_y; writes g_v; returns <g_y, V>, the token's part of g_d. */
static double skip_bwd(const head *n, const work *w, int64_t at, const real *g_y, real *g_v)
{
    double d = n->d ? (double)n->d[n->h] : 0, g_d = 0;
    for (int64_t m = 0; m < n->nm; m++) {
        const real *g_y_p = g_y_at(n, g_y, at, m);
        g_d += dot(g_y_p, v_at(n, at, m), n->np);
        for (int64_t p = 0; g_v && p < n->np; p++)
            g_v[((at * n->nm + m) * n->nh + n->h) * n->np + p] =
                (real)(w->g_v_mp[m * n->np + p] + d * (double)g_y_p[p]);
    }
    return g_d;
}

/* One token; G enters as the gradient of H_t and leaves as that of H_{t-1}. Returns its part of g_d. */
static double token_bwd(const kr_ssd_bwd_args *a, const head *n, const work *w, const double *before_pr, int64_t at,
                        double *g_b_mr, double *g_c_mr)
{
    int64_t size = n->np * n->nr;
    double g_w, g_da = 0, g_diag_weight = 0;
    memset(w->g_v_mp, 0, (size_t)(n->nm * n->np) * sizeof(double));
    memcpy(w->k_pr, before_pr, (size_t)size * sizeof(double));
    decay(n, w->k_pr, at);
    if (n->diag_weight) {
        g_w = receive_bwd(n, w, at, g_b_mr);
        read_out_bwd(n, w, w->k_pr, at, a->g_y.data, g_c_mr);
        g_diag_weight = diagonal_bwd(n, w, at, a->g_y.data, g_b_mr, g_c_mr);
    } else {
        receive(n, w->k_pr, at);
        read_out_bwd(n, w, w->k_pr, at, a->g_y.data, g_c_mr);
        g_w = receive_bwd(n, w, at, g_b_mr);
    }
    double factor = exp(scalar(n, n->da, at, 0));
    for (int64_t i = 0; i < size; i++) g_da += w->g_pr[i] * factor * before_pr[i];
    decay(n, w->g_pr, at);
    int64_t offset = at * n->nh + n->h;
    if (a->g_w) ((real *)a->g_w)[offset] = (real)g_w;
    if (a->g_da) ((real *)a->g_da)[offset] = (real)g_da;
    if (a->g_diag_weight) ((real *)a->g_diag_weight)[offset] = (real)g_diag_weight;
    return skip_bwd(n, w, at, a->g_y.data, a->g_v.data);
}

/* One head of a sequence; returns its part of g_d. */
static double head_bwd(const kr_ssd_bwd_args *a, const head *n, const work *w, int64_t q)
{
    const kr_sequence *s = &a->sequences[q];
    int64_t first = s->row * a->ns + s->start, count = s->end - s->start, vectors = n->nm * n->nr;
    double g_d = 0;
    load_state(w->k_pr, a->initial, q, n);
    find_entries(n, w, first, count);
    load_state(w->g_pr, a->g_final, q, n);
    for (int64_t t1 = count; t1 > 0;) {
        int64_t t0 = (t1 - 1) / w->block * w->block;
        find_states(n, w, first, t0, t1);
        for (int64_t t = t1 - 1; t >= t0; t--)
            g_d += token_bwd(a, n, w, w->states_tpr + (t - t0) * n->np * n->nr, first + t, w->g_b + t * vectors,
                             w->g_c + t * vectors);
        t1 = t0;
    }
    store_state(w->g_pr, a->g_initial, q, n);
    return g_d;
}

/* Rows [s m r] of a sequence and group into [b s m g r]. */
static void store_rows(const kr_ssd_bwd_args *a, const double *rows, real *to, const kr_sequence *s, int64_t e)
{
    int64_t nrows = (s->end - s->start) * a->nm, first = (s->row * a->ns + s->start) * a->nm;
    for (int64_t i = 0; to && i < nrows; i++)
        for (int64_t r = 0; r < a->nr; r++) to[((first + i) * a->ng + e) * a->nr + r] = (real)rows[i * a->nr + r];
}

static void backward_task(void *arg, int64_t index, int worker)
{
    const kr_ssd_bwd_args *a = arg;
    int64_t q = index / a->ng, e = index % a->ng, heads = a->nh / a->ng;
    const kr_sequence *s = &a->sequences[q];
    work w = work_of(a, worker);
    size_t bytes = (size_t)((s->end - s->start) * a->nm * a->nr) * sizeof(double);
    memset(w.g_b, 0, bytes);
    memset(w.g_c, 0, bytes);
    for (int64_t h = e * heads; h < (e + 1) * heads; h++) {
        const head n = HEAD(a, h);
        ((double *)a->exec.scratch)[q * a->nh + h] = head_bwd(a, &n, &w, q);
    }
    store_rows(a, w.g_b, a->g_b.data, s, e);
    store_rows(a, w.g_c, a->g_c.data, s, e);
}

static void clear(void *x, int64_t count)
{
    if (x) memset(x, 0, (size_t)count * sizeof(real));
}

static int64_t angle_count(const kr_ssd_bwd_args *a)
{
    return a->nb * a->ns * a->nh * a->na;
}

static size_t backward_bytes(const kr_ssd_bwd_args *a)
{
    return (size_t)(a->nq * a->nh + kr_pool_size(a->exec.pool) * work_doubles(a)) * sizeof(double);
}

static size_t rotary_bwd_bytes(const kr_ssd_bwd_args *a)
{
    return a->angle ? (size_t)(4 * ROTATED_COUNT(a) + angle_count(a)) * sizeof(real) : 0;
}

size_t KR_REF(ssd_bwd_scratch)(const kr_ssd_bwd_args *a)
{
    return backward_bytes(a) + rotary_bwd_bytes(a) + 16 + VBC_COPY_BYTES(a) +
           kr_ref_copy_bytes(&a->g_y, TOKENS_OF(a), V_ROW(a), false) +
           kr_ref_copy_bytes(&a->g_v, TOKENS_OF(a), V_ROW(a), true) +
           kr_ref_copy_bytes(&a->g_b, TOKENS_OF(a), BC_ROW(a), false) +
           kr_ref_copy_bytes(&a->g_c, TOKENS_OF(a), BC_ROW(a), false);
}

/* Without angles: B and C are used as given. */
static void plain_bwd(const kr_ssd_bwd_args *a)
{
    int64_t tokens = a->nb * a->ns;
    clear(a->g_v.data, tokens * a->nm * a->nh * a->np);
    clear(a->g_b.data, tokens * a->nm * a->ng * a->nr);
    clear(a->g_c.data, tokens * a->nm * a->ng * a->nr);
    clear(a->g_da, tokens * a->nh);
    clear(a->g_w, tokens * a->nh);
    clear(a->g_diag_weight, tokens * a->nh);
    if (a->nq > 0 && a->ng > 0) kr_pool_run(a->exec.pool, a->nq * a->ng, backward_task, (void *)(uintptr_t)a);
    for (int64_t h = 0; a->g_d && h < a->nh; h++) {
        double sum = 0;
        for (int64_t q = 0; q < a->nq; q++) sum += ((const double *)a->exec.scratch)[q * a->nh + h];
        ((real *)a->g_d)[h] = (real)sum;
    }
}

/* The gradients of the rotated B and C of each head, back to those of the groups, of the biases and of the angles. */
static void rotate_bwd(const kr_ssd_bwd_args *a, const real *g_b, const real *g_c, real *more)
{
    const kr_rotate_bwd_args of_b = { ROTATE_SIZES(a),    .x = a->b.data,        .bias = a->bias_b,    .g_y = g_b,
                                      .g_x = a->g_b.data, .g_bias = a->g_bias_b, .g_angle = a->g_angle };
    const kr_rotate_bwd_args of_c = { ROTATE_SIZES(a),
                                      .x = a->c.data,
                                      .bias = a->bias_c,
                                      .g_y = g_c,
                                      .g_x = a->g_c.data,
                                      .g_bias = a->g_bias_c,
                                      .g_angle = a->g_angle ? more : NULL };
    KR_REF(rotate_bwd)(&of_b);
    KR_REF(rotate_bwd)(&of_c);
    for (int64_t i = 0; a->g_angle && i < angle_count(a); i++) ((real *)a->g_angle)[i] += more[i];
}

/* All operands are of the slot's type. */
static void run_bwd(const kr_ssd_bwd_args *a)
{
    if (!a->angle) {
        plain_bwd(a);
        return;
    }
    kr_ssd_bwd_args copy = *a, *of_heads = &copy;
    real *rotated_bc = (real *)(void *)((char *)a->exec.scratch + backward_bytes(a));
    const int64_t count = ROTATED_COUNT(a);
    ROTATE_BC(of_heads, rotated_bc);
    copy.g_b.data = rotated_bc + 2 * count, copy.g_c.data = rotated_bc + 3 * count;
    plain_bwd(&copy);
    rotate_bwd(a, copy.g_b.data, copy.g_c.data, rotated_bc + 4 * count);
}

void KR_REF(ssd_bwd)(const kr_ssd_bwd_args *given)
{
    kr_ssd_bwd_args copy = *given, *a = &copy;
    char *copies = (char *)a->exec.scratch + backward_bytes(a) + (rotary_bwd_bytes(a) + 15) / 16 * 16;
    COPY_VBC(a, &copies);
    a->g_y = kr_ref_copied(&given->g_y, TOKENS_OF(a), V_ROW(a), false, &copies);
    a->g_v = kr_ref_copied(&given->g_v, TOKENS_OF(a), V_ROW(a), true, &copies);
    a->g_b = kr_ref_copied(&given->g_b, TOKENS_OF(a), BC_ROW(a), false, &copies);
    a->g_c = kr_ref_copied(&given->g_c, TOKENS_OF(a), BC_ROW(a), false, &copies);
    run_bwd(a);
    kr_ref_write_back(&given->g_v, &a->g_v, TOKENS_OF(a), V_ROW(a));
    kr_ref_write_back(&given->g_b, &a->g_b, TOKENS_OF(a), BC_ROW(a));
    kr_ref_write_back(&given->g_c, &a->g_c, TOKENS_OF(a), BC_ROW(a));
}
