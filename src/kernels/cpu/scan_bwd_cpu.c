/* scan_bwd_cpu.c - gradients of the selective scan in f32 vectors: the split of the work, and the sums of the partials.
 *
 * Formulas: scan_back.h. A unit of work is a span of channels of one group, through a run of sequences with RUN_TOKENS
 * tokens in total. Each block of channels runs forward through a sequence to obtain the state before every segment of
 * tokens, then backward from segment to segment. Sums over several units are stored as partial results, which are added
 * in order after all units have finished: g_b and g_c (over spans), g_a and g_d (over runs). Values of one sequence
 * depend on that sequence alone.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/scan_back.h"

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
static float *place(float **free, void *result, int64_t nparts, int64_t n)
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
    p.g_b = place(&free, s->g_b, p.nspans, p.n_bc);
    p.g_c = place(&free, s->g_c, p.nspans, p.n_bc);
    p.g_a = place(&free, s->g_a, p.most_runs, p.n_a);
    p.g_d = place(&free, s->g_d, p.most_runs, s->ni);
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
