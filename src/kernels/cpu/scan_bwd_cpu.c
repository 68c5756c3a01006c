/* scan_bwd_cpu.c - gradients of the selective scan in f32 vectors.
 *
 *   A_t = exp(dt_t a);  H_t = A_t H_{t-1} + dt_t B_t x_t;  p_t = <C_t, H_t> + D x_t;  y_t = p_t, or p_t silu(z_t)
 * from the last token to the first:
 *   g_p = g_y silu(z);  g_z = g_y p_t silu'(z);  G += C_t g_p
 *   g_C_t += g_p H_t;  g_B_t += G dt_t x_t;  g_D += g_p x_t
 *   g_x_t = dt_t <G, B_t> + D g_p;  g_dt_t = x_t <G, B_t> + <A_t G, a H_{t-1}>;  g_a += dt_t A_t G H_{t-1};  G = A_t G
 *
 * A unit of work is a span of channels of one group, through a run of sequences with RUN_TOKENS tokens in total. Each block
 * of channels runs forward through a sequence to obtain the state before every segment of tokens, then backward from segment
 * to segment; a segment is processed twice: forward, to store all its H and A, then backward. Sums over several units are
 * stored as partial results, which are added in order after all units have finished: g_b and g_c (over spans), g_a and g_d
 * (over runs). Values of one sequence depend on that sequence alone.
 *
 * Arrays named [.. c] have SCAN_CHANNELS floats for each preceding index; those beyond the block's channels are 0.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/scan_block.h"

/* ---- a segment of tokens of a block of channels ---- */

enum {
    SCAN_SEGMENT = 16,             /* tokens whose states are stored at a time */
    SCAN_UNROLL = VF == 16 ? 4 : 2 /* vectors of channels whose sums are held in registers */
};

/* Bound of |dt a| up to which exp_in_range is valid, with the bits of vf_exp. */
#define SCAN_SMALL 100.0f

/* Stride in floats between the states of adjacent tokens: one row more than the states need, so that they do not all
 * map to the same few sets of the cache. */
#define SCAN_ROWS(nr) (((nr) + 1) * SCAN_CHANNELS)

/* The scratch of a worker. */
typedef struct scan_scratch {
    float *a, *g_state;            /* [r c] */
    float *g_a, *g_d;              /* [r c], [c]: of a segment */
    double *all_g_a, *all_g_d;     /* the same, of all segments and sequences of a unit */
    float *x, *dt, *g_p, *sigmoid; /* [t c] of a segment; sigmoid(z) with a gate */
    float *lanes;                  /* [2 r VF]: g_B and g_C of a token, not yet summed over lanes */
    float *states, *decays;        /* [t+1 r c], [t r c] of a segment */
    float *entries;                /* [n r c]: the state before each segment of a sequence */
} scan_scratch;

/* Tokens first .. first+count-1 (rows of [b s]) of a block of channels. */
typedef struct scan_segment {
    const kr_scan_bwd_args *args;
    const scan_scratch *m;
    scan_channels k;
    int64_t first, count;
    float largest_a;  /* of the block's |a| */
    float *g_b, *g_c; /* [b s g r]: output of this block's sums, NULL when not wanted */
    bool adds;        /* adds to existing sums */
} scan_segment;

/* Copies x and dt of the segment to the worker's scratch; returns the largest |dt|. */
static inline float scan_fetch(const scan_segment *u)
{
    const kr_scan_bwd_args *s = u->args;
    const int64_t n = u->k.count;
    vf largest = vf_zero();
    for (int64_t t = 0; t < u->count; t++) {
        const float *from_x = (const float *)s->x.data + (u->first + t) * s->x.row + u->k.first;
        const float *from_dt = (const float *)s->dt.data + (u->first + t) * s->dt.row + u->k.first;
        for (int64_t c = 0; c < n; c += VF) {
            vf dt = scan_load(from_dt + c, n - c);
            largest = vf_max(vf_abs(dt), largest);
            vf_store(u->m->dt + t * SCAN_CHANNELS + c, dt);
            vf_store(u->m->x + t * SCAN_CHANNELS + c, scan_load(from_x + c, n - c));
        }
    }
    return vf_max_lanes(largest);
}

KR_INLINE const float *scan_z(const scan_segment *u, int64_t t)
{
    return (const float *)u->args->z.data + (u->first + t) * u->args->z.row + u->k.first;
}

/* The gradient of p for the segment, and sigmoid(z). */
static inline void scan_fetch_g_p(const scan_segment *u)
{
    const kr_scan_bwd_args *s = u->args;
    const int64_t n = u->k.count;
    for (int64_t t = 0; t < u->count; t++) {
        const int64_t at = (u->first + t) * s->ni + u->k.first, to = t * SCAN_CHANNELS;
        for (int64_t c = 0; c < n; c += VF) {
            vf g = scan_load((const float *)s->g_y + at + c, n - c);
            if (s->z.data) {
                vf z = scan_load(scan_z(u, t) + c, n - c), sigmoid = vf_sigmoid(z);
                vf_store(u->m->sigmoid + to + c, sigmoid);
                g = vf_mul(g, vf_mul(z, sigmoid));
            }
            vf_store(u->m->g_p + to + c, g);
        }
    }
}

KR_INLINE const float *scan_b(const scan_segment *u, int64_t t)
{
    return (const float *)u->args->b.data + (u->first + t) * u->args->b.row + u->k.group * u->args->nr;
}

KR_INLINE const float *scan_c(const scan_segment *u, int64_t t)
{
    return (const float *)u->args->c.data + (u->first + t) * u->args->c.row + u->k.group * u->args->nr;
}

/* State r of a vector of channels: *to = A *from + dt B x. `small`: |dt a| <= SCAN_SMALL. */
KR_INLINE void scan_step(const float *from, float *to, float *decay_to, vf a, vf dt, vf dtx, float b, bool small)
{
    vf decay = small ? exp_in_range(vf_mul(dt, a)) : vf_exp(vf_mul(dt, a));
    if (decay_to) vf_store(decay_to, decay);
    vf_store(to, vf_fma(decay, vf_load(from), vf_mul(dtx, vf_set1(b))));
}

/* Runs the states through the segment: h in place, or (keep) from m->states[0] to those after it, with the decays. */
KR_INLINE void scan_forward_as(const scan_segment *u, float *h, bool keep, bool small)
{
    enum { NC = SCAN_CHANNELS };
    const int64_t nr = u->args->nr;
    const scan_scratch *m = u->m;
    for (int64_t t = 0; t < u->count; t++) {
        const float *b = scan_b(u, t);
        const int64_t ahead = u->first + t + SCAN_SEGMENT;
        if (!keep) scan_prefetch(u->args->x.data, ahead * u->args->x.row + u->k.first, u->k.count);
        if (!keep) scan_prefetch(u->args->dt.data, ahead * u->args->dt.row + u->k.first, u->k.count);
        for (int64_t c = 0; c < u->k.count; c += VF) {
            const float *a = m->a + c, *from = (keep ? m->states + t * SCAN_ROWS(nr) : h) + c;
            float *to = (keep ? m->states + (t + 1) * SCAN_ROWS(nr) : h) + c;
            float *decays = keep ? m->decays + t * SCAN_ROWS(nr) + c : NULL;
            const vf dt = vf_load(m->dt + t * NC + c), dtx = vf_mul(dt, vf_load(m->x + t * NC + c));
            for (int64_t r = 0; r < nr; r++, a += NC, from += NC, to += NC) {
                scan_step(from, to, decays, vf_load(a), dt, dtx, b[r], small);
                if (keep) decays += NC;
            }
        }
    }
}

static inline void scan_forward(const scan_segment *u, float *h, bool keep, bool small)
{
    if (keep && small) scan_forward_as(u, h, true, true);
    else if (keep) scan_forward_as(u, h, true, false);
    else if (small) scan_forward_as(u, h, false, true);
    else scan_forward_as(u, h, false, false);
}

/* Writes the gradients of token t for n channels at column c of the block, from the sums over states. */
KR_INLINE void scan_store_grads(const scan_segment *u, int64_t t, int64_t c, vf along_b, vf g_step, vf p)
{
    const kr_scan_bwd_args *s = u->args;
    const int64_t n = u->k.count - c, i = u->k.first + c, at = (u->first + t) * s->ni + i;
    const vf x = vf_load(u->m->x + t * SCAN_CHANNELS + c), dt = vf_load(u->m->dt + t * SCAN_CHANNELS + c);
    const vf g_p = vf_load(u->m->g_p + t * SCAN_CHANNELS + c);
    const vf skip = s->d ? scan_load((const float *)s->d + i, n) : vf_zero();
    if (s->g_x) scan_store((float *)s->g_x + at, n, vf_fma(dt, along_b, vf_mul(skip, g_p)));
    if (s->g_dt) scan_store((float *)s->g_dt + at, n, vf_fma(x, along_b, g_step));
    if (s->z.data && s->g_z) {
        vf z = scan_load(scan_z(u, t) + c, n), g_y = scan_load((const float *)s->g_y + at, n);
        vf sigmoid = vf_load(u->m->sigmoid + t * SCAN_CHANNELS + c), one = vf_set1(1);
        vf slope = vf_mul(sigmoid, vf_fma(z, vf_sub(one, sigmoid), one));
        scan_store((float *)s->g_z + at, n, vf_mul(vf_mul(g_y, vf_fma(skip, x, p)), slope));
    }
    vf_store(u->m->g_d + c, vf_fma(g_p, x, vf_load(u->m->g_d + c)));
}

/* Token t backward for nv vectors of channels from column c on; `adds`: to the lanes of earlier columns. */
KR_INLINE void scan_token_back(const scan_segment *u, int64_t t, int64_t c, const int nv, bool adds, bool gated)
{
    enum { NC = SCAN_CHANNELS, NA = SCAN_UNROLL };
    const int64_t nr = u->args->nr;
    const float *b = scan_b(u, t), *token_c = scan_c(u, t);
    const float *before = u->m->states + t * SCAN_ROWS(nr) + c, *after = before + SCAN_ROWS(nr);
    const float *decays = u->m->decays + t * SCAN_ROWS(nr) + c, *a = u->m->a + c;
    float *g_state = u->m->g_state + c, *g_a = u->m->g_a + c, *lanes = u->m->lanes;
    vf along_b[NA], g_step[NA], p[NA], g_p[NA], dt[NA], dtx[NA];
    for (int v = 0; v < nv; v++) {
        const int64_t at = t * NC + c + v * VF;
        along_b[v] = g_step[v] = p[v] = vf_zero();
        g_p[v] = vf_load(u->m->g_p + at);
        dt[v] = vf_load(u->m->dt + at);
        dtx[v] = vf_mul(dt[v], vf_load(u->m->x + at));
    }
    for (int64_t r = 0; r < nr; r++, lanes += 2 * VF) {
        vf g_b = adds ? vf_load(lanes) : vf_zero(), g_c = adds ? vf_load(lanes + VF) : vf_zero();
        const vf b_r = vf_set1(b[r]), c_r = vf_set1(token_c[r]);
        for (int v = 0; v < nv; v++) {
            const int64_t at = r * NC + v * VF;
            const vf state = vf_load(after + at);
            vf g = vf_fma(c_r, g_p[v], vf_load(g_state + at));
            g_c = vf_fma(g_p[v], state, g_c);
            g_b = vf_fma(g, dtx[v], g_b);
            if (gated) p[v] = vf_fma(c_r, state, p[v]);
            along_b[v] = vf_fma(g, b_r, along_b[v]);
            g = vf_mul(g, vf_load(decays + at));
            vf_store(g_state + at, g);
            g = vf_mul(g, vf_load(before + at));
            g_step[v] = vf_fma(g, vf_load(a + at), g_step[v]);
            vf_store(g_a + at, vf_fma(g, dt[v], vf_load(g_a + at)));
        }
        vf_store(lanes, g_b);
        vf_store(lanes + VF, g_c);
    }
    for (int v = 0; v < nv; v++) scan_store_grads(u, t, c + v * VF, along_b[v], g_step[v], p[v]);
}

/* Sums the lanes of token t and writes them to g_b and g_c. */
KR_INLINE void scan_sum_lanes(const scan_segment *u, int64_t t)
{
    const int64_t nr = u->args->nr, at = ((u->first + t) * u->args->ng + u->k.group) * nr;
    const float *lanes = u->m->lanes;
    for (int64_t r = 0; u->g_b && r < nr; r++)
        u->g_b[at + r] = vf_sum(vf_load(lanes + 2 * r * VF)) + (u->adds ? u->g_b[at + r] : 0);
    for (int64_t r = 0; u->g_c && r < nr; r++)
        u->g_c[at + r] = vf_sum(vf_load(lanes + (2 * r + 1) * VF)) + (u->adds ? u->g_c[at + r] : 0);
}

/* Prefetches the operands of token t - SCAN_SEGMENT, which the next segment reads. */
KR_INLINE void scan_prefetch_back(const scan_segment *u, int64_t t)
{
    const kr_scan_bwd_args *s = u->args;
    const int64_t token = u->first + t - SCAN_SEGMENT, ahead = token * s->ni + u->k.first;
    scan_prefetch(s->x.data, token * s->x.row + u->k.first, u->k.count);
    scan_prefetch(s->dt.data, token * s->dt.row + u->k.first, u->k.count);
    scan_prefetch(s->g_y, ahead, u->k.count);
    if (s->z.data) scan_prefetch(s->z.data, token * s->z.row + u->k.first, u->k.count);
    if (s->g_x) scan_prefetch(s->g_x, ahead, u->k.count);
    if (s->g_dt) scan_prefetch(s->g_dt, ahead, u->k.count);
    if (s->g_z) scan_prefetch(s->g_z, ahead, u->k.count);
}

KR_INLINE void scan_backward_as(const scan_segment *u, bool gated)
{
    for (int64_t t = u->count - 1; t >= 0; t--) {
        scan_prefetch_back(u, t);
        int64_t c = 0;
        for (; c + SCAN_UNROLL * VF <= u->k.count; c += SCAN_UNROLL * VF)
            scan_token_back(u, t, c, SCAN_UNROLL, c > 0, gated);
        for (; c < u->k.count; c += VF) scan_token_back(u, t, c, 1, c > 0, gated);
        scan_sum_lanes(u, t);
    }
}

/* All tokens of the segment backward; its states, decays and g_p are known. */
static inline void scan_backward(const scan_segment *u)
{
    if (u->args->z.data) scan_backward_as(u, true);
    else scan_backward_as(u, false);
}

/* ---- the split of the work, and the sums of partial results ---- */

enum {
    SPAN_CHANNELS = 2 * SCAN_CHANNELS, /* wider spans make fewer partial results and fewer tasks */
    RUN_TOKENS = 256,
    LINE = 16 /* floats of a cache line */
};

/* Sizes and shared scratch of a call. */
typedef struct plan {
    const kr_scan_bwd_args *args;
    int64_t width, nspans; /* channels and spans of a group */
    int64_t most_runs, nruns;
    int64_t n_bc, n_a;            /* elements of b, of a */
    int64_t *runs;                /* [nruns+1]: the first sequence of each, and the end */
    float *g_b, *g_c, *g_a, *g_d; /* partial results [span b s g r], [run i r], [run i]; NULL when not wanted */
    float *workers;
    int64_t worker_floats;
} plan;

static int64_t lines(int64_t nfloats)
{
    return kr_blocks(nfloats, LINE) * LINE;
}

static int64_t worker_floats(const kr_scan_bwd_args *s)
{
    const int64_t of_states = 5 + 2 * SCAN_SEGMENT + 1 + kr_blocks(s->ns, SCAN_SEGMENT);
    return (of_states * (s->nr + 1) + 3 + 4 * SCAN_SEGMENT) * SCAN_CHANNELS + lines(2 * s->nr * VF);
}

static scan_scratch memory_of(const plan *p, int worker)
{
    const int64_t nc = SCAN_CHANNELS, rc = SCAN_ROWS(p->args->nr), tc = SCAN_SEGMENT * nc;
    scan_scratch m = { .a = p->workers + worker * p->worker_floats };
    m.g_state = m.a + rc;
    m.g_a = m.g_state + rc;
    m.g_d = m.g_a + rc;
    m.all_g_a = (double *)(void *)(m.g_d + nc);
    m.all_g_d = m.all_g_a + rc;
    m.x = (float *)(void *)(m.all_g_d + nc);
    m.dt = m.x + tc;
    m.g_p = m.dt + tc;
    m.sigmoid = m.g_p + tc;
    m.states = m.sigmoid + tc;
    m.decays = m.states + (SCAN_SEGMENT + 1) * rc;
    m.entries = m.decays + SCAN_SEGMENT * rc;
    m.lanes = m.entries + kr_blocks(p->args->ns, SCAN_SEGMENT) * rc;
    return m;
}

/* The plan without memory. A run ends with the sequence that fills it, so that there are at most most_runs runs. */
static plan sizes_of(const kr_scan_bwd_args *s)
{
    plan p = { .args = s, .width = s->ni / s->ng };
    p.nspans = kr_blocks(p.width, SPAN_CHANNELS);
    p.most_runs = kr_smaller(s->nq, s->nb * s->ns / RUN_TOKENS + 1);
    p.n_bc = s->nb * s->ns * s->ng * s->nr;
    p.n_a = s->ni * s->nr;
    p.worker_floats = worker_floats(s);
    return p;
}

/* Floats of partial results; a single one is written directly to the result. */
static int64_t partial_floats(int64_t nparts, int64_t n)
{
    return nparts == 1 ? 0 : lines(nparts * n);
}

size_t KR_FN(scan_bwd_scratch)(const kr_scan_bwd_args *s)
{
    if (s->ni == 0) return 0;
    const plan p = sizes_of(s);
    const int64_t sums =
        2 * partial_floats(p.nspans, p.n_bc) + partial_floats(p.most_runs, p.n_a) + partial_floats(p.most_runs, s->ni);
    return (size_t)(2 * lines(p.most_runs + 1) + sums + kr_pool_size(s->exec.pool) * p.worker_floats) * sizeof(float);
}

/* Destination of partial results: scratch, or the result itself. */
static float *partial_sums(float **free, void *result, int64_t nparts, int64_t n)
{
    float *scratch = *free;
    *free += partial_floats(nparts, n);
    return !result || nparts == 1 ? result : scratch;
}

static plan make_plan(const kr_scan_bwd_args *s)
{
    plan p = sizes_of(s);
    p.runs = s->exec.scratch;
    float *free = (float *)s->exec.scratch + 2 * lines(p.most_runs + 1);
    p.g_b = partial_sums(&free, s->g_b, p.nspans, p.n_bc);
    p.g_c = partial_sums(&free, s->g_c, p.nspans, p.n_bc);
    p.g_a = partial_sums(&free, s->g_a, p.most_runs, p.n_a);
    p.g_d = partial_sums(&free, s->g_d, p.most_runs, s->ni);
    p.workers = free;
    int64_t ntokens = 0;
    p.runs[0] = 0;
    for (int64_t q = 0; q < s->nq; q++) {
        ntokens += s->sequences[q].end - s->sequences[q].start;
        if (ntokens < RUN_TOKENS && q + 1 < s->nq) continue;
        p.runs[++p.nruns] = q + 1;
        ntokens = 0;
    }
    return p;
}

static void clear(void *g, int64_t nfloats)
{
    if (g) memset(g, 0, (size_t)nfloats * sizeof(float));
}

/* Tokens of no sequence have gradient 0. */
static void clear_unused(const plan *p)
{
    const kr_scan_bwd_args *s = p->args;
    int64_t unused = s->nb * s->ns;
    for (int64_t q = 0; q < s->nq; q++) unused -= s->sequences[q].end - s->sequences[q].start;
    if (unused == 0) return;
    clear(s->g_x, s->nb * s->ns * s->ni);
    clear(s->g_dt, s->nb * s->ns * s->ni);
    clear(s->g_z, s->nb * s->ns * s->ni);
    clear(p->g_b, p->nspans * p->n_bc);
    clear(p->g_c, p->nspans * p->n_bc);
}

/* Adds the sums of a segment to those in double, and clears them. */
static void flush_sums(const scan_scratch *m, int64_t nr)
{
    for (int64_t j = 0; j < nr * SCAN_CHANNELS; j++) m->all_g_a[j] += (double)m->g_a[j];
    for (int64_t c = 0; c < SCAN_CHANNELS; c++) m->all_g_d[c] += (double)m->g_d[c];
    clear(m->g_a, nr * SCAN_CHANNELS);
    clear(m->g_d, SCAN_CHANNELS);
}

static void set_segment(scan_segment *u, const kr_sequence *tokens, int64_t n)
{
    u->first = tokens->row * u->args->ns + tokens->start + n * SCAN_SEGMENT;
    u->count = kr_smaller(SCAN_SEGMENT, tokens->end - tokens->start - n * SCAN_SEGMENT);
}

/* A block of channels through one sequence. */
static void sequence_back(scan_segment *u, int64_t q)
{
    const kr_scan_bwd_args *s = u->args;
    const scan_scratch *m = u->m;
    const kr_sequence *tokens = &s->sequences[q];
    const int64_t nr = s->nr, rc = SCAN_ROWS(nr), at = q * s->ni * nr;
    const int64_t n_segments = kr_blocks(tokens->end - tokens->start, SCAN_SEGMENT);
    scan_transpose_in(s->g_final ? (const float *)s->g_final + at : NULL, &u->k, nr, m->g_state);
    scan_transpose_in(s->initial ? (const float *)s->initial + at : NULL, &u->k, nr, m->states);
    for (int64_t n = 0; n < n_segments; n++) {
        memcpy(m->entries + n * rc, m->states, (size_t)rc * sizeof(float));
        if (n + 1 == n_segments) break;
        set_segment(u, tokens, n);
        const bool small = scan_fetch(u) * u->largest_a <= SCAN_SMALL;
        scan_forward(u, m->states, false, small);
    }
    for (int64_t n = n_segments - 1; n >= 0; n--) {
        set_segment(u, tokens, n);
        memcpy(m->states, m->entries + n * rc, (size_t)rc * sizeof(float));
        const bool small = scan_fetch(u) * u->largest_a <= SCAN_SMALL;
        scan_fetch_g_p(u);
        scan_forward(u, NULL, true, small);
        scan_backward(u);
        flush_sums(m, nr);
    }
    if (s->g_initial) scan_transpose_out(m->g_state, &u->k, nr, (float *)s->g_initial + at);
}

static float largest_of(const float *a, int64_t n)
{
    vf largest = vf_zero();
    for (int64_t j = 0; j < n; j += VF) largest = vf_max(vf_abs(vf_load(a + j)), largest);
    return vf_max_lanes(largest);
}

/* A block of channels through a run of sequences. */
static void block_back(const plan *p, scan_segment *u, int64_t run)
{
    const int64_t nr = p->args->nr, nc = SCAN_CHANNELS;
    const scan_scratch *m = u->m;
    scan_transpose_in(p->args->a, &u->k, nr, m->a);
    u->largest_a = largest_of(m->a, nr * nc);
    for (int64_t j = 0; j < nr * nc; j++) m->all_g_a[j] = 0;
    for (int64_t c = 0; c < nc; c++) m->all_g_d[c] = 0;
    clear(m->g_a, nr * nc);
    clear(m->g_d, nc);
    for (int64_t q = p->runs[run]; q < p->runs[run + 1]; q++) sequence_back(u, q);
    for (int64_t c = 0; c < u->k.count; c++) {
        const int64_t i = run * p->args->ni + u->k.first + c;
        for (int64_t r = 0; p->g_a && r < nr; r++) p->g_a[i * nr + r] = (float)m->all_g_a[r * nc + c];
        if (p->g_d) p->g_d[i] = (float)m->all_g_d[c];
    }
}

/* Units are spans of channels in runs of sequences, those of one run one after another. */
static void scan_bwd_units(const void *args, int64_t first, int64_t end, int worker)
{
    const plan *p = args;
    const scan_scratch m = memory_of(p, worker);
    for (int64_t unit = first; unit < end; unit++) {
        const int64_t nspans = p->args->ng * p->nspans, part = unit % p->nspans * p->n_bc;
        const scan_channels span = scan_channels_of(p->width, SPAN_CHANNELS, unit % nspans);
        for (int64_t c = 0; c < span.count; c += SCAN_CHANNELS) {
            scan_segment u = { .args = p->args, .m = &m, .adds = c > 0 };
            u.k = (scan_channels){ span.first + c, kr_smaller(SCAN_CHANNELS, span.count - c), span.group };
            u.g_b = p->g_b ? p->g_b + part : NULL;
            u.g_c = p->g_c ? p->g_c + part : NULL;
            block_back(p, &u, unit / nspans);
        }
    }
}

/* result[j] = sum of the parts in order. */
typedef struct combination {
    const float *parts;
    int64_t nparts, n;
    float *result;
} combination;

static void combine_columns(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const combination *m = args;
    for (int64_t unit = first; unit < end; unit++) {
        const int64_t j = unit * KR_PARTIAL_COLUMNS, n = kr_smaller(KR_PARTIAL_COLUMNS, m->n - j);
        double sum[KR_PARTIAL_COLUMNS];
        kr_add_partials(m->parts + j, m->nparts, m->n, n, sum);
        for (int64_t i = 0; i < n; i++) m->result[j + i] = (float)sum[i];
    }
}

static void combine(kr_pool *pool, const float *parts, int64_t nparts, int64_t n, float *result)
{
    const combination m = { parts, nparts, n, result };
    if (result && parts != result)
        kr_ranges_run(pool, kr_blocks(n, KR_PARTIAL_COLUMNS), nparts * KR_PARTIAL_COLUMNS, combine_columns, &m);
}

void KR_FN(scan_bwd)(const kr_scan_bwd_args *s)
{
    if (s->ni == 0) return;
    const plan p = make_plan(s);
    clear_unused(&p);
    kr_ranges_run(s->exec.pool, p.nruns * s->ng * p.nspans, RUN_TOKENS * SPAN_CHANNELS * s->nr, scan_bwd_units, &p);
    combine(s->exec.pool, p.g_b, p.nspans, p.n_bc, s->g_b);
    combine(s->exec.pool, p.g_c, p.nspans, p.n_bc, s->g_c);
    combine(s->exec.pool, p.g_a, p.nruns, p.n_a, s->g_a);
    combine(s->exec.pool, p.g_d, p.nruns, s->ni, s->g_d);
}
