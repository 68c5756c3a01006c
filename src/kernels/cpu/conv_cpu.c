/* conv_cpu.c - causal depthwise convolution with a carried window and its gradients, in f32 vectors of channels.
 *
 *   x, y [b s v]    weight [v k]    bias [v] or none    window, window_out [b v k] or none: the last nk inputs
 *   past(b, t, v) = x[b, t, v], for t < 0 window[b, v, nk + t] (0 if there is no window)
 *   u[b, s, v] = bias[v] + sum over j of weight[v, j] past(b, s - (nk-1) + j, v);   y = u, or silu(u)
 *   window_out[b, v, j] = past(b, ns - nk + j, v)
 * backward, g_u = g_y silu'(u), u recomputed:
 *   g_past(b, t, v) = sum over j of weight[v, j] g_u[b, t + (nk-1) - j, v] + g_window_out[b, v, t - (ns - nk)]
 *   g_x is g_past at t >= 0, g_window[b, v, nk + t] is g_past at t < 0
 *   g_weight[v, j] = sum over (b, s) of g_u[b, s, v] past(b, s - (nk-1) + j, v);   g_bias[v] = sum of g_u
 *
 * Work is cut into blocks of (b, s, v). Weights and window are first transposed, so that channels are adjacent.
 * A backward block computes g_u for its rows and the nk-1 after them, which its g_x needs; its part of g_weight and
 * g_bias goes to scratch, and the parts are added in order of (b, s).
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/conv_rows.h"

enum {
    ROWS = 64,       /* of a block */
    CHANNELS = 512,  /* of a forward block */
    G_CHANNELS = 256 /* of a backward block: its inputs and g_u stay in the second-level cache */
};

/* What both directions read, with the transposed copies in scratch. */
typedef struct conv {
    int64_t nb, ns, nv, nk;
    const float *x, *weight, *bias, *window;
    float *weight_kv;  /* [k v] */
    float *before_btv; /* the inputs at t = -(nk-1) .. -1 [b nk-1 v]; without a window one row of zeros */
} conv;

static int64_t padded(int64_t n) /* floats in whole cache lines */
{
    return kr_blocks(n, 16) * 16;
}

static int64_t before_floats(int64_t nb, int64_t nk, int64_t nv)
{
    return kr_larger(1, nb * (nk - 1)) * nv;
}

static int64_t conv_floats(int64_t nb, int64_t nk, int64_t nv) /* of the transposed copies */
{
    return padded(nk * nv) + padded(before_floats(nb, nk, nv));
}

static void transpose_weight(const conv *c)
{
    const float *weight = c->weight;
    float *out = c->weight_kv;
    if (c->nk == 4) { /* the usual width, in one pass */
        for (int64_t v = 0; v < c->nv; v++)
            for (int64_t j = 0; j < 4; j++) out[j * c->nv + v] = weight[v * 4 + j];
        return;
    }
    for (int64_t j = 0; j < c->nk; j++)
        for (int64_t v = 0; v < c->nv; v++) out[j * c->nv + v] = weight[v * c->nk + j];
}

static void conv_prepare(conv *c, float *scratch)
{
    c->weight_kv = scratch;
    c->before_btv = scratch + padded(c->nk * c->nv);
    transpose_weight(c);
    if (!c->window) {
        memset(c->before_btv, 0, (size_t)c->nv * sizeof(float));
        return;
    }
    for (int64_t b = 0; b < c->nb; b++)
        for (int64_t t = 0; t < c->nk - 1; t++)
            for (int64_t v = 0; v < c->nv; v++)
                c->before_btv[(b * (c->nk - 1) + t) * c->nv + v] = c->window[(b * c->nv + v) * c->nk + t + 1];
}

/* The rows of sequence b, channels from v0, for u of places s0 .. s1-1. */
static kr_conv_rows rows_of(const conv *c, int64_t b, int64_t s0, int64_t s1, int64_t v0, int64_t nchannels)
{
    kr_conv_rows r = { .body = c->x + b * c->ns * c->nv + v0,
                       .body_stride = c->nv,
                       .nbefore = c->nk - 1,
                       .before = c->before_btv + v0,
                       .weight = c->weight_kv + v0,
                       .weight_stride = c->nv,
                       .nk = c->nk,
                       .first = s0,
                       .end = s1,
                       .nchannels = nchannels };
    if (c->window) {
        r.before += b * (c->nk - 1) * c->nv;
        r.before_stride = c->nv;
    }
    if (c->bias) r.bias = c->bias + v0;
    return r;
}

static void write_window(const kr_conv_args *a, int64_t b, int64_t v0, int64_t v1)
{
    const float *x_sv = (const float *)a->x + b * a->ns * a->nv;
    for (int64_t v = v0; v < v1; v++) {
        const float *window_k = a->window ? (const float *)a->window + (b * a->nv + v) * a->nk : NULL;
        float *out_k = (float *)a->window_out + (b * a->nv + v) * a->nk;
        for (int64_t j = 0; j < a->nk; j++) {
            int64_t t = a->ns - a->nk + j;
            out_k[j] = t >= 0 ? x_sv[t * a->nv + v] : window_k ? window_k[a->nk + t] : 0.0f;
        }
    }
}

typedef struct forward {
    const kr_conv_args *a;
    conv c;
    int64_t nblocks_s, nblocks_v;
} forward;

/* Units are blocks (b, s, v), v fastest. The last block of a sequence writes its window. */
static void conv_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const forward *f = args;
    const kr_conv_args *a = f->a;
    for (int64_t unit = first; unit < end; unit++) {
        int64_t v0 = unit % f->nblocks_v * CHANNELS, v1 = kr_smaller(v0 + CHANNELS, a->nv);
        int64_t s0 = unit / f->nblocks_v % f->nblocks_s * ROWS, s1 = kr_smaller(s0 + ROWS, a->ns);
        int64_t b = unit / f->nblocks_v / f->nblocks_s;
        kr_conv_rows r = rows_of(&f->c, b, s0, s1, v0, v1 - v0);
        r.out = (float *)a->y + (b * a->ns + s0) * a->nv + v0;
        r.out_stride = a->nv;
        if (a->silu) kr_conv_run(&r, KR_CONV_SILU);
        else kr_conv_run(&r, KR_CONV_SUM);
        if (a->window_out && s1 == a->ns) write_window(a, b, v0, v1);
    }
}

size_t KR_FN(conv_scratch)(const kr_conv_args *a)
{
    return (size_t)conv_floats(a->nb, a->nk, a->nv) * sizeof(float);
}

void KR_FN(conv)(const kr_conv_args *a)
{
    if (a->nb == 0 || a->nv == 0) return;
    forward f = { .a = a, .nblocks_s = kr_larger(1, kr_blocks(a->ns, ROWS)), .nblocks_v = kr_blocks(a->nv, CHANNELS) };
    f.c = (conv){ .nb = a->nb,
                  .ns = a->ns,
                  .nv = a->nv,
                  .nk = a->nk,
                  .x = a->x,
                  .weight = a->weight,
                  .bias = a->bias,
                  .window = a->window };
    conv_prepare(&f.c, a->exec.scratch);
    int64_t block = kr_smaller(ROWS, kr_larger(1, a->ns)) * kr_smaller(CHANNELS, a->nv);
    kr_ranges_run(a->exec.pool, a->nb * f.nblocks_s * f.nblocks_v, block, conv_blocks, &f);
}

typedef struct backward {
    const kr_conv_bwd_args *a;
    conv c;
    int64_t nblocks_s, nblocks_v;
    float *partial; /* [b, blocks of s, nk + 1, v]: g_weight by tap, then g_bias */
    float *g_u;     /* [worker, ROWS + nk - 1, G_CHANNELS] */
} backward;

/* A block: places s0 .. s1-1 of sequence b, channels v0 .. v1-1; g_u of its rows and of nk-1 more (0 beyond ns). */
typedef struct block {
    int64_t b, s0, s1, v0, v1;
    float *g_u_sv;
    float *partial_kv;
} block;

static void fill_g_u(const backward *f, const block *k)
{
    const kr_conv_bwd_args *a = f->a;
    int64_t n = k->v1 - k->v0, s2 = kr_smaller(k->s1 + a->nk - 1, a->ns);
    const float *g_y = (const float *)a->g_y + (k->b * a->ns + k->s0) * a->nv + k->v0;
    if (a->silu) {
        kr_conv_rows r = rows_of(&f->c, k->b, k->s0, s2, k->v0, n);
        r.g = g_y;
        r.g_stride = a->nv;
        r.out = k->g_u_sv;
        r.out_stride = G_CHANNELS;
        kr_conv_run(&r, KR_CONV_SLOPE);
    } else {
        for (int64_t s = k->s0; s < s2; s++)
            memcpy(k->g_u_sv + (s - k->s0) * G_CHANNELS, g_y + (s - k->s0) * a->nv, (size_t)n * sizeof(float));
    }
    for (int64_t s = kr_larger(s2, k->s0); s < k->s1 + a->nk - 1; s++)
        memset(k->g_u_sv + (s - k->s0) * G_CHANNELS, 0, (size_t)n * sizeof(float));
}

/* g_x[t] = sum over i of weight[nk-1-i] g_u[t + i]: the same sums with the taps reversed. */
static void input_gradient(const backward *f, const block *k)
{
    const kr_conv_bwd_args *a = f->a;
    float *g_x = (float *)a->g_x + (k->b * a->ns + k->s0) * a->nv + k->v0;
    kr_conv_rows r = { .body = k->g_u_sv,
                       .body_stride = G_CHANNELS,
                       .nk = a->nk,
                       .weight = f->c.weight_kv + (a->nk - 1) * a->nv + k->v0,
                       .weight_stride = -a->nv,
                       .out = g_x,
                       .out_stride = a->nv,
                       .first = 0,
                       .end = k->s1 - k->s0,
                       .nchannels = k->v1 - k->v0 };
    kr_conv_run(&r, KR_CONV_SUM);
    if (!a->g_window_out) return;
    for (int64_t t = kr_larger(k->s0, a->ns - a->nk); t < k->s1; t++)
        for (int64_t v = 0; v < k->v1 - k->v0; v++)
            g_x[(t - k->s0) * a->nv + v] +=
                ((const float *)a->g_window_out)[(k->b * a->nv + k->v0 + v) * a->nk + t - (a->ns - a->nk)];
}

/* Only the first block of a sequence reaches t < 0. */
static void window_gradient(const backward *f, const block *k)
{
    const kr_conv_bwd_args *a = f->a;
    for (int64_t v = k->v0; v < k->v1; v++) {
        float *g_window_k = (float *)a->g_window + (k->b * a->nv + v) * a->nk;
        for (int64_t column = 0; column < a->nk; column++) {
            int64_t t = column - a->nk, end = kr_smaller(t + a->nk, a->ns), from = t - (a->ns - a->nk);
            float sum = 0;
            for (int64_t s = 0; s < end; s++)
                sum += f->c.weight_kv[(t + a->nk - 1 - s) * a->nv + v] * k->g_u_sv[s * G_CHANNELS + v - k->v0];
            if (a->g_window_out && from >= 0)
                sum += ((const float *)a->g_window_out)[(k->b * a->nv + v) * a->nk + from];
            g_window_k[column] = sum;
        }
    }
}

/* Rows s .. s + count - 1 of n <= VF channels at v (of the block), added to g_weight of nk <= KR_CONV_TAPS taps and to
 * g_bias. row[i] is row(s + i). */
KR_INLINE void add_few_taps(const backward *f, const block *k, const float *const *row, int64_t s, int64_t v, int64_t n,
                            int nk, int count)
{
    const float *g_u = k->g_u_sv + (s - k->s0) * G_CHANNELS + v;
    vf g[KR_CONV_ABREAST], in[KR_CONV_TAPS + KR_CONV_ABREAST - 1];
    for (int i = 0; i < count; i++) g[i] = kr_conv_load(g_u + i * G_CHANNELS, n);
    for (int i = 0; i < nk + count - 1; i++) in[i] = kr_conv_load(row[i] + v, n);
    for (int j = 0; j <= nk; j++) {
        float *partial = k->partial_kv + j * f->c.nv + v;
        vf sum = kr_conv_load(partial, n);
        for (int i = 0; i < count; i++) sum = j < nk ? vf_fma(g[i], in[i + j], sum) : vf_add(g[i], sum);
        if (n >= VF) vf_store(partial, sum);
        else vf_store_n(partial, n, sum);
    }
}

KR_INLINE void few_tap_gradients(const backward *f, const block *k, const kr_conv_rows *r, int64_t s, int nk, int count)
{
    const float *row[KR_CONV_TAPS + KR_CONV_ABREAST - 1];
    for (int i = 0; i < nk + count - 1; i++) row[i] = kr_conv_row(r, s + i);
    int64_t v = 0;
    for (; v + VF <= r->nchannels; v += VF) add_few_taps(f, k, row, s, v, VF, nk, count);
    if (v < r->nchannels) add_few_taps(f, k, row, s, v, r->nchannels - v, nk, count);
}

KR_INLINE void block_gradients(const backward *f, const block *k, const kr_conv_rows *r, int nk)
{
    int64_t s = k->s0;
    for (; s + KR_CONV_ABREAST <= k->s1; s += KR_CONV_ABREAST) few_tap_gradients(f, k, r, s, nk, KR_CONV_ABREAST);
    for (; s < k->s1; s++) few_tap_gradients(f, k, r, s, nk, 1);
}

static void many_tap_gradients(const backward *f, const block *k, const kr_conv_rows *r)
{
    for (int64_t j = 0; j <= r->nk; j++) {
        for (int64_t v = 0; v < r->nchannels; v += VF) {
            int64_t n = r->nchannels - v;
            vf sum = vf_zero();
            for (int64_t s = k->s0; s < k->s1; s++) {
                vf in = j < r->nk ? vf_load_n(kr_conv_row(r, s + j) + v, n) : vf_set1(1);
                sum = vf_fma(vf_load_n(k->g_u_sv + (s - k->s0) * G_CHANNELS + v, n), in, sum);
            }
            vf_store_n(k->partial_kv + j * f->c.nv + v, n, sum);
        }
    }
}

static void parameter_gradients(const backward *f, const block *k)
{
    kr_conv_rows r = rows_of(&f->c, k->b, k->s0, k->s1, k->v0, k->v1 - k->v0);
    for (int64_t j = 0; j <= r.nk; j++) memset(k->partial_kv + j * f->c.nv, 0, (size_t)r.nchannels * sizeof(float));
    if (r.nk == 4) block_gradients(f, k, &r, 4);
    else if (r.nk == 3) block_gradients(f, k, &r, 3);
    else if (r.nk == 2) block_gradients(f, k, &r, 2);
    else many_tap_gradients(f, k, &r);
}

/* Units are blocks (b, s, v), v fastest. */
static void conv_bwd_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    const backward *f = args;
    const kr_conv_bwd_args *a = f->a;
    for (int64_t unit = first; unit < end; unit++) {
        int64_t row_block = unit / f->nblocks_v;
        block k = { .b = row_block / f->nblocks_s,
                    .s0 = row_block % f->nblocks_s * ROWS,
                    .v0 = unit % f->nblocks_v * G_CHANNELS };
        k.s1 = kr_smaller(k.s0 + ROWS, a->ns);
        k.v1 = kr_smaller(k.v0 + G_CHANNELS, a->nv);
        k.g_u_sv = f->g_u + worker * (ROWS + a->nk - 1) * G_CHANNELS;
        k.partial_kv = f->partial + row_block * (a->nk + 1) * a->nv + k.v0;
        fill_g_u(f, &k);
        if (a->g_x) input_gradient(f, &k);
        if (a->g_window && k.s0 == 0) window_gradient(f, &k);
        if (a->g_weight || a->g_bias) parameter_gradients(f, &k);
    }
}

/* Units are KR_PARTIAL_COLUMNS channels each. */
static void add_parameter_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const backward *f = args;
    const kr_conv_bwd_args *a = f->a;
    for (int64_t unit = first; unit < end; unit++) {
        int64_t v0 = unit * KR_PARTIAL_COLUMNS, n = kr_smaller(KR_PARTIAL_COLUMNS, a->nv - v0);
        for (int64_t j = 0; j <= a->nk; j++) {
            double sum[KR_PARTIAL_COLUMNS];
            const float *partial = f->partial + j * a->nv + v0;
            kr_add_partials(partial, a->nb * f->nblocks_s, (a->nk + 1) * a->nv, n, sum);
            if (j < a->nk && a->g_weight)
                for (int64_t v = 0; v < n; v++) ((float *)a->g_weight)[(v0 + v) * a->nk + j] = (float)sum[v];
            if (j == a->nk && a->g_bias)
                for (int64_t v = 0; v < n; v++) ((float *)a->g_bias)[v0 + v] = (float)sum[v];
        }
    }
}

static int64_t partial_floats(const kr_conv_bwd_args *a)
{
    return padded(a->nb * kr_larger(1, kr_blocks(a->ns, ROWS)) * (a->nk + 1) * a->nv);
}

size_t KR_FN(conv_bwd_scratch)(const kr_conv_bwd_args *a)
{
    int64_t g_u = kr_pool_size(a->exec.pool) * (ROWS + a->nk - 1) * G_CHANNELS;
    return (size_t)(conv_floats(a->nb, a->nk, a->nv) + partial_floats(a) + g_u) * sizeof(float);
}

void KR_FN(conv_bwd)(const kr_conv_bwd_args *a)
{
    if (a->nv == 0) return;
    backward f = { .a = a,
                   .nblocks_s = kr_larger(1, kr_blocks(a->ns, ROWS)),
                   .nblocks_v = kr_blocks(a->nv, G_CHANNELS) };
    f.c = (conv){ .nb = a->nb,
                  .ns = a->ns,
                  .nv = a->nv,
                  .nk = a->nk,
                  .x = a->x,
                  .weight = a->weight,
                  .bias = a->bias,
                  .window = a->window };
    f.partial = (float *)a->exec.scratch + conv_floats(a->nb, a->nk, a->nv);
    f.g_u = f.partial + partial_floats(a);
    conv_prepare(&f.c, a->exec.scratch);
    int64_t size = 2 * kr_smaller(ROWS, kr_larger(1, a->ns)) * kr_smaller(G_CHANNELS, a->nv);
    kr_ranges_run(a->exec.pool, a->nb * f.nblocks_s * f.nblocks_v, size, conv_bwd_blocks, &f);
    if (a->g_weight || a->g_bias) {
        int64_t nblocks = a->nb * f.nblocks_s * (a->nk + 1);
        kr_ranges_run(a->exec.pool, kr_blocks(a->nv, KR_PARTIAL_COLUMNS), nblocks * KR_PARTIAL_COLUMNS,
                      add_parameter_blocks, &f);
    }
}
