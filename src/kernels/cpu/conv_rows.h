/* conv_rows.h - weighted sums of neighbouring rows: the inner loop of the causal convolution and of its gradients.
 *
 *   for each output t in [first, end) and each channel v:
 *     u[t][v] = bias[v] + sum over j < nk, in order, of weight[j][v] row(t + j)[v]
 *     out[t][v] = u, or silu(u), or g[t][v] silu'(u)
 *
 * Rows are numbered through `before` and then `body`. A vector of channels loads nk + 3 inputs and nk weights for four
 * outputs; they stay in registers, for nk is known to the compiler up to KR_CONV_TAPS. The arithmetic of an output is
 * the same whether it is computed in a four or alone.
 */
#ifndef KR_KERNELS_CPU_CONV_ROWS_H
#define KR_KERNELS_CPU_CONV_ROWS_H

#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"

typedef enum kr_conv_out { KR_CONV_SUM, KR_CONV_SILU, KR_CONV_SLOPE } kr_conv_out;

enum {
    KR_CONV_UNROLL = 4, /* outputs per pass */
    KR_CONV_TAPS = 4    /* largest nk with a specialised loop */
};

/* All pointers are at the first of `nchannels` channels. */
typedef struct kr_conv_rows {
    const float *before, *body;
    int64_t nbefore, before_stride, body_stride;
    const float *weight;
    int64_t nk, weight_stride;
    const float *bias; /* or NULL */
    const float *g;    /* KR_CONV_SLOPE: row `first` and on */
    float *out;        /* row `first` and on */
    int64_t g_stride, out_stride;
    int64_t first, end, nchannels;
} kr_conv_rows;

KR_INLINE const float *kr_conv_row(const kr_conv_rows *c, int64_t t)
{
    return t < c->nbefore ? c->before + t * c->before_stride : c->body + (t - c->nbefore) * c->body_stride;
}

KR_INLINE vf kr_conv_load(const float *p, int64_t n)
{
    return n >= VF ? vf_load(p) : vf_load_n(p, n);
}

KR_INLINE void kr_conv_finish(const kr_conv_rows *c, int64_t t, int64_t v, int64_t n, vf u, kr_conv_out what)
{
    float *out = c->out + (t - c->first) * c->out_stride + v;
    if (what == KR_CONV_SILU) u = vf_silu(u);
    if (what == KR_CONV_SLOPE) {
        vf s = vf_sigmoid(u), one = vf_set1(1);
        u = vf_mul(s, vf_fma(u, vf_sub(one, s), one));
        u = vf_mul(u, kr_conv_load(c->g + (t - c->first) * c->g_stride + v, n));
    }
    if (n >= VF) vf_store(out, u);
    else vf_store_n(out, n, u);
}

/* Outputs t .. t + count - 1 of n <= VF channels at v; nk <= KR_CONV_TAPS, row[i] is row(t + i). */
KR_INLINE void kr_conv_vector(const kr_conv_rows *c, const float *const *row, int64_t t, int64_t v, int64_t n, int nk,
                              int count, kr_conv_out what)
{
    vf weight[KR_CONV_TAPS], in[KR_CONV_TAPS + KR_CONV_UNROLL - 1];
    for (int j = 0; j < nk; j++) weight[j] = kr_conv_load(c->weight + j * c->weight_stride + v, n);
    for (int i = 0; i < nk + count - 1; i++) in[i] = kr_conv_load(row[i] + v, n);
    vf bias = c->bias ? kr_conv_load(c->bias + v, n) : vf_zero();
    for (int i = 0; i < count; i++) {
        vf u = bias;
        for (int j = 0; j < nk; j++) u = vf_fma(weight[j], in[i + j], u);
        kr_conv_finish(c, t + i, v, n, u, what);
    }
}

KR_INLINE void kr_conv_taps(const kr_conv_rows *c, int64_t t, int nk, int count, kr_conv_out what)
{
    const float *row[KR_CONV_TAPS + KR_CONV_UNROLL - 1];
    for (int i = 0; i < nk + count - 1; i++) row[i] = kr_conv_row(c, t + i);
    int64_t v = 0;
    for (; v + VF <= c->nchannels; v += VF) kr_conv_vector(c, row, t, v, VF, nk, count, what);
    if (v < c->nchannels) kr_conv_vector(c, row, t, v, c->nchannels - v, nk, count, what);
}

KR_INLINE void kr_conv_many_taps(const kr_conv_rows *c, int64_t t, kr_conv_out what)
{
    for (int64_t v = 0; v < c->nchannels; v += VF) {
        int64_t n = c->nchannels - v;
        vf u = c->bias ? vf_load_n(c->bias + v, n) : vf_zero();
        for (int64_t j = 0; j < c->nk; j++)
            u = vf_fma(vf_load_n(c->weight + j * c->weight_stride + v, n), vf_load_n(kr_conv_row(c, t + j) + v, n), u);
        kr_conv_finish(c, t, v, n, u, what);
    }
}

KR_INLINE void kr_conv_run_taps(const kr_conv_rows *c, int nk, kr_conv_out what)
{
    int64_t t = c->first;
    for (; t + KR_CONV_UNROLL <= c->end; t += KR_CONV_UNROLL) kr_conv_taps(c, t, nk, KR_CONV_UNROLL, what);
    for (; t < c->end; t++) kr_conv_taps(c, t, nk, 1, what);
}

KR_INLINE void kr_conv_run(const kr_conv_rows *c, kr_conv_out what)
{
    if (c->nk == 4) kr_conv_run_taps(c, 4, what);
    else if (c->nk == 3) kr_conv_run_taps(c, 3, what);
    else if (c->nk == 2) kr_conv_run_taps(c, 2, what);
    else
        for (int64_t t = c->first; t < c->end; t++) kr_conv_many_taps(c, t, what);
}

#endif
