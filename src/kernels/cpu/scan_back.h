/* scan_back.h - backward of the selective scan for one segment of tokens of a block of channels.
 *
 *   A_t = exp(dt_t a);  H_t = A_t H_{t-1} + dt_t B_t x_t;  p_t = <C_t, H_t> + D x_t;  y_t = p_t, or p_t silu(z_t)
 * from the last token to the first:
 *   g_p = g_y silu(z);  g_z = g_y p_t silu'(z);  G += C_t g_p
 *   g_C_t += g_p H_t;  g_B_t += G dt_t x_t;  g_D += g_p x_t
 *   g_x_t = dt_t <G, B_t> + D g_p;  g_dt_t = x_t <G, B_t> + <A_t G, a H_{t-1}>;  g_a += dt_t A_t G H_{t-1};  G = A_t G
 *
 * A segment is processed twice: forward, to store all its H and A, then backward. Arrays named [.. c] have
 * SCAN_CHANNELS floats for each preceding index; those beyond the block's channels are 0.
 */
#ifndef KR_KERNELS_CPU_SCAN_BACK_H
#define KR_KERNELS_CPU_SCAN_BACK_H

#include "kernels/cpu/scan_block.h"

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
        const float *from_x = (const float *)s->x + (u->first + t) * s->x_stride + u->k.first;
        const float *from_dt = (const float *)s->dt + (u->first + t) * s->dt_stride + u->k.first;
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
    return (const float *)u->args->z + (u->first + t) * u->args->z_stride + u->k.first;
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
            if (s->z) {
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
    return (const float *)u->args->b + (u->first + t) * u->args->b_stride + u->k.group * u->args->nr;
}

KR_INLINE const float *scan_c(const scan_segment *u, int64_t t)
{
    return (const float *)u->args->c + (u->first + t) * u->args->c_stride + u->k.group * u->args->nr;
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
        if (!keep) scan_prefetch(u->args->x, ahead * u->args->x_stride + u->k.first, u->k.count);
        if (!keep) scan_prefetch(u->args->dt, ahead * u->args->dt_stride + u->k.first, u->k.count);
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
    if (s->z && s->g_z) {
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
    scan_prefetch(s->x, token * s->x_stride + u->k.first, u->k.count);
    scan_prefetch(s->dt, token * s->dt_stride + u->k.first, u->k.count);
    scan_prefetch(s->g_y, ahead, u->k.count);
    if (s->z) scan_prefetch(s->z, token * s->z_stride + u->k.first, u->k.count);
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
    if (u->args->z) scan_backward_as(u, true);
    else scan_backward_as(u, false);
}

#endif
