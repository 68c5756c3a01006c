/* scan_cpu.c - the selective scan of Mamba-1, in f32 vectors over channels.
 *
 *   x, dt, z, y [b s i]   a [i r]   b, c [b s g r]   d [i] or none   z none: no gate   initial, final [q i r]
 *   H_t = exp(dt_t a) H_{t-1} + dt_t B_t x_t;   y_t = <C_t, H_t> + D x_t, times silu(z_t) with a gate
 *
 * A unit of work is a block of channels of one sequence, from the first token to the last with its states [r c] in
 * cache. The cost is the exponential: one for each token, channel and state.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/scan_block.h"

enum { AHEAD = 4 }; /* prefetch distance in tokens */

/* One step of state r of a vector of channels; returns y + C H. */
KR_INLINE vf step(float *h, const float *a, vf dt, vf dtx, float b, float c, vf y)
{
    vf decay = vf_exp(vf_mul(dt, vf_load(a)));
    vf state = vf_fma(decay, vf_load(h), vf_mul(dtx, vf_set1(b)));
    vf_store(h, state);
    return vf_fma(state, vf_set1(c), y);
}

/* One step of all states of n <= VF channels; returns <C, H>, summed over four interleaved sets of states. */
KR_INLINE vf step_all(float *h, const float *a, vf dt, vf dtx, const float *b, const float *c, int64_t nr)
{
    enum { NC = SCAN_CHANNELS };
    vf y0 = vf_zero(), y1 = vf_zero(), y2 = vf_zero(), y3 = vf_zero();
    int64_t r = 0;
    for (; r + 4 <= nr; r += 4) {
        y0 = step(h + r * NC, a + r * NC, dt, dtx, b[r], c[r], y0);
        y1 = step(h + (r + 1) * NC, a + (r + 1) * NC, dt, dtx, b[r + 1], c[r + 1], y1);
        y2 = step(h + (r + 2) * NC, a + (r + 2) * NC, dt, dtx, b[r + 2], c[r + 2], y2);
        y3 = step(h + (r + 3) * NC, a + (r + 3) * NC, dt, dtx, b[r + 3], c[r + 3], y3);
    }
    for (; r < nr; r++) y0 = step(h + r * NC, a + r * NC, dt, dtx, b[r], c[r], y0);
    return vf_add(vf_add(y0, y1), vf_add(y2, y3));
}

/* A token's channels from the block's first on, and its B and C. */
typedef struct inputs {
    const float *x, *dt, *z, *b, *c;
    float *y;
} inputs;

/* One token for n <= VF channels from `lane` of the block on; d is at the block's first channel, or NULL. */
KR_INLINE void token(const inputs *p, float *h, const float *a, const float *d, int64_t nr, int64_t lane, int64_t n)
{
    vf x = scan_load(p->x + lane, n), dt = scan_load(p->dt + lane, n);
    vf y = step_all(h + lane, a + lane, dt, vf_mul(dt, x), p->b, p->c, nr);
    if (d) y = vf_fma(scan_load(d + lane, n), x, y);
    if (p->z) y = vf_mul(y, vf_silu(scan_load(p->z + lane, n)));
    scan_store(p->y + lane, n, y);
}

KR_INLINE void advance(const kr_scan_args *s, inputs *p)
{
    p->x += s->x.row;
    p->dt += s->dt.row;
    if (p->z) p->z += s->z.row;
    p->b += s->b.row;
    p->c += s->c.row;
    p->y += s->ni;
}

static void scan_sequence(const kr_scan_args *s, int64_t q, const scan_channels *k, float *h, const float *a)
{
    const kr_sequence *tokens = &s->sequences[q];
    if (tokens->start == tokens->end) return;
    const int64_t row = tokens->row * s->ns + tokens->start, bc_offset = k->group * s->nr;
    const float *d = s->d ? (const float *)s->d + k->first : NULL;
    inputs p = { .x = (const float *)s->x.data + row * s->x.row + k->first,
                 .dt = (const float *)s->dt.data + row * s->dt.row + k->first,
                 .z = s->z.data ? (const float *)s->z.data + row * s->z.row + k->first : NULL,
                 .b = (const float *)s->b.data + row * s->b.row + bc_offset,
                 .c = (const float *)s->c.data + row * s->c.row + bc_offset,
                 .y = (float *)s->y + row * s->ni + k->first };
    for (int64_t left = tokens->end - tokens->start; left > 0; left--) {
        scan_prefetch(p.x, AHEAD * s->x.row, k->count);
        scan_prefetch(p.dt, AHEAD * s->dt.row, k->count);
        if (p.z) scan_prefetch(p.z, AHEAD * s->z.row, k->count);
        scan_prefetch(p.y, AHEAD * s->ni, k->count);
        int64_t lane = 0;
        for (; lane + VF <= k->count; lane += VF) token(&p, h, a, d, s->nr, lane, VF);
        if (lane < k->count) token(&p, h, a, d, s->nr, lane, k->count - lane);
        if (left > 1) advance(s, &p);
    }
}

/* Units are blocks of channels of sequences, those of one sequence one after another. Scratch: a and H of a worker. */
static void scan_units(const void *args, int64_t first, int64_t end, int worker)
{
    const kr_scan_args *s = args;
    const int64_t width = s->ni / s->ng, nblocks = s->ng * kr_blocks(width, SCAN_CHANNELS), nr = s->nr;
    float *a = (float *)s->exec.scratch + worker * 2 * nr * SCAN_CHANNELS, *h = a + nr * SCAN_CHANNELS;
    for (int64_t unit = first; unit < end; unit++) {
        const int64_t q = unit / nblocks, states = q * s->ni * nr;
        const scan_channels k = scan_channels_of(width, SCAN_CHANNELS, unit % nblocks);
        scan_transpose_in(s->a, &k, nr, a);
        scan_transpose_in(s->initial ? (const float *)s->initial + states : NULL, &k, nr, h);
        scan_sequence(s, q, &k, h, a);
        if (s->final) scan_transpose_out(h, &k, nr, (float *)s->final + states);
    }
}

size_t KR_FN(scan_scratch)(const kr_scan_args *s)
{
    return (size_t)(kr_pool_size(s->exec.pool) * 2 * s->nr * SCAN_CHANNELS) * sizeof(float);
}

void KR_FN(scan)(const kr_scan_args *s)
{
    if (s->ni == 0 || s->nq == 0) return;
    const int64_t nblocks = s->ng * kr_blocks(s->ni / s->ng, SCAN_CHANNELS);
    const int64_t length = kr_larger(1, s->nb * s->ns / s->nq); /* of a sequence, on average */
    kr_ranges_run(s->exec.pool, s->nq * nblocks, length * SCAN_CHANNELS * s->nr, scan_units, s);
}
