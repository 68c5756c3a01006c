/* conv_cpu.c - causal depthwise convolution with a carried window and its gradients, in f32 vectors of channels.
 *
 *   x, y [b s v]    weight [v k]    bias [v] or none    window, window_out [q v k] or none: the last nk inputs
 * Within a sequence q of length n, tokens numbered from its first:
 *   past(t, v) = x[t, v], for t < 0 window[q, v, nk + t] (0 if there is no window)
 *   u[s, v] = bias[v] + sum over j of weight[v, j] past(s - (nk-1) + j, v);   y = u, or silu(u)
 *   window_out[q, v, j] = past(n - nk + j, v)
 * backward, g_u = g_y silu'(u), u recomputed:
 *   g_past(t, v) = sum over j of weight[v, j] g_u[t + (nk-1) - j, v] + g_window_out[q, v, t - (n - nk)]
 *   g_x is g_past at t >= 0, g_window[q, v, nk + t] is g_past at t < 0
 *   g_weight[v, j] = sum over (q, s) of g_u[s, v] past(s - (nk-1) + j, v);   g_bias[v] = sum of g_u
 *
 * A unit of work is a group of blocks of tokens and some channels. Weights, and the window of a block
 * that needs it, are transposed, so that channels are adjacent. A backward block computes g_u for its rows and the nk-1
 * after them, which its g_x needs; a group's partial g_weight and g_bias are stored in scratch, and the partials are
 * added in order.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"

/* Splits sequences into blocks of rows, and gathers short blocks into groups: the units of the
 * convolution.
 *
 * A block is up to KR_CONV_ROWS tokens of one sequence (a sequence without tokens is one empty block). A group is a run
 * of blocks with KR_CONV_ROWS tokens at most, so that sequences of any length make units of about one size. Groups
 * depend on the lengths of the sequences alone.
 */

enum { KR_CONV_ROWS = 64 };

/* A block: tokens s0 .. s1-1 of sequence q, counted from its first. */
typedef struct kr_conv_block {
    int64_t q, s0, s1;
} kr_conv_block;

static inline int64_t kr_conv_length(const kr_sequence *sequence)
{
    return sequence->end - sequence->start;
}

static inline kr_conv_block kr_conv_block_at(const kr_sequence *sequences, int64_t nq, int64_t q, int64_t s0)
{
    kr_conv_block block = { q, s0, s0 };
    if (q < nq) block.s1 = kr_smaller(s0 + KR_CONV_ROWS, kr_conv_length(&sequences[q]));
    return block;
}

/* The block after this one; q = nq past the last. */
static inline kr_conv_block kr_conv_next(const kr_sequence *sequences, int64_t nq, kr_conv_block block)
{
    bool more = block.s1 < kr_conv_length(&sequences[block.q]);
    return kr_conv_block_at(sequences, nq, more ? block.q : block.q + 1, more ? block.s1 : 0);
}

/* Returns the number of groups. If `first` [groups + 1] is not NULL, writes the first block of each, then the end. */
static inline int64_t kr_conv_groups(const kr_sequence *sequences, int64_t nq, kr_conv_block *first)
{
    int64_t count = 0, rows = 0;
    kr_conv_block block = kr_conv_block_at(sequences, nq, 0, 0);
    for (; block.q < nq; block = kr_conv_next(sequences, nq, block)) {
        int64_t more = block.s1 - block.s0;
        if (count == 0 || (rows > 0 && rows + more > KR_CONV_ROWS)) {
            if (first) first[count] = block;
            count++;
            rows = 0;
        }
        rows += more;
    }
    if (first) first[count] = block;
    return count;
}

/* Weighted sums of neighbouring rows: the inner loop of the causal convolution and of its gradients.
 *
 *   for each output t in [first, end) and each channel v:
 *     u[t][v] = bias[v] + sum over j < nk, in order, of weight[j][v] row(t + j)[v]
 *     out[t][v] = u, or silu(u), or g[t][v] silu'(u)
 *
 * Rows are numbered through `before` and then `body`. A vector of channels loads nk + 3 inputs and nk weights for four
 * outputs; they stay in registers, for nk is known to the compiler up to KR_CONV_TAPS. The arithmetic of an output is
 * the same whether it is computed in a four or alone.
 */

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

enum {
    CHANNELS = 512,  /* of a forward unit */
    G_CHANNELS = 256 /* of a backward unit: its inputs and g_u stay in the second-level cache */
};

/* Inputs and scratch of both directions. */
typedef struct conv {
    int64_t nv, nk, nq, x_batch, x_stride;
    int64_t channels; /* of a unit */
    const kr_sequence *sequences;
    const float *x, *weight, *bias, *window;
    float *weight_kv;      /* [k v] */
    float *before;         /* a block's inputs at t = -nk .. -1 [worker, nk, channels]; no window: a row of zeros */
    kr_conv_block *groups; /* [ngroups + 1] */
    int64_t ngroups;
} conv;

static int64_t padded(int64_t n) /* floats in whole cache lines */
{
    return kr_blocks(n, 16) * 16;
}

static int64_t before_floats(const conv *c) /* of a worker */
{
    return padded((c->window ? c->nk : 1) * c->channels);
}

/* Lays out the scratch of both directions from `scratch` on, and returns its size in floats; with NULL it only counts. */
static int64_t conv_lay_out(conv *c, const kr_pool *pool, float *scratch)
{
    int64_t groups = padded(kr_conv_groups(c->sequences, c->nq, NULL) + 1) * (int64_t)(sizeof(kr_conv_block) / 4);
    int64_t weight = padded(c->nk * c->nv), before = (c->window ? kr_pool_size(pool) : 1) * before_floats(c);
    if (scratch) {
        c->groups = (kr_conv_block *)(void *)scratch;
        c->weight_kv = scratch + groups;
        c->before = c->weight_kv + weight;
    }
    return groups + weight + before;
}

static void conv_prepare(conv *c)
{
    c->ngroups = kr_conv_groups(c->sequences, c->nq, c->groups);
    kr_transpose(c->weight, c->nk, c->nv, c->nk, c->weight_kv, c->nv);
    if (!c->window) memset(c->before, 0, (size_t)c->channels * sizeof(float));
}

/* A block's channels v0 .. v1-1. */
typedef struct block {
    kr_conv_block at;
    int64_t n;     /* tokens of the sequence */
    int64_t token; /* its first, in [b s] */
    int64_t v0, v1;
    const float *x; /* the sequence's first token, channel v0 */
    const float *before;
    int64_t before_stride;
    float *g_u_sv;     /* backward: g_u of its rows and of nk-1 more (0 beyond the sequence) */
    float *partial_kv; /* partial sums of its group */
} block;

/* Reads the inputs before the sequence from its window, if the block needs them. */
static block block_of(const conv *c, kr_conv_block at, int64_t ns, int64_t v0, int64_t v1, int worker)
{
    const kr_sequence *q = &c->sequences[at.q];
    block k = { .at = at, .n = kr_conv_length(q), .token = q->row * ns + q->start, .v0 = v0, .v1 = v1 };
    k.x = c->x + q->row * c->x_batch + q->start * c->x_stride + v0;
    k.before = c->before;
    if (!c->window) return k;
    float *before = c->before + worker * before_floats(c);
    k.before = before + c->channels; /* no sum reaches t = -nk */
    k.before_stride = c->channels;
    if (at.s0 < c->nk - 1)
        kr_transpose(c->window + (at.q * c->nv + v0) * c->nk, c->nk, v1 - v0, c->nk, before, c->channels);
    return k;
}

/* The rows of a block's sequence, for u at positions s0 .. s1-1. */
static kr_conv_rows rows_of(const conv *c, const block *k, int64_t s0, int64_t s1)
{
    kr_conv_rows r = { .body = k->x,
                       .body_stride = c->x_stride,
                       .nbefore = c->nk - 1,
                       .before = k->before,
                       .before_stride = k->before_stride,
                       .weight = c->weight_kv + k->v0,
                       .weight_stride = c->nv,
                       .nk = c->nk,
                       .first = s0,
                       .end = s1,
                       .nchannels = k->v1 - k->v0 };
    if (c->bias) r.bias = c->bias + k->v0;
    return r;
}

/* ---- forward ---- */

/* The newest columns are the sequence's last tokens, the others come from the old window, shifted by the sequence's
 * length. */
static void write_window(const kr_conv_args *a, const block *k)
{
    int64_t nk = a->nk, nv = k->v1 - k->v0, first = (k->at.q * a->nv + k->v0) * nk, n_new = kr_smaller(k->n, nk);
    float *out = (float *)a->window_out + first;
    if (n_new < nk && a->window)
        memcpy(out, (const float *)a->window + first + n_new, (size_t)(nv * nk - n_new) * sizeof(float));
    else if (n_new < nk) memset(out, 0, (size_t)(nv * nk) * sizeof(float));
    for (int64_t j = nk - n_new; j < nk; j++) {
        const float *x = k->x + (k->n - nk + j) * a->x.row;
        for (int64_t v = 0; v < nv; v++) out[v * nk + j] = x[v];
    }
}

typedef struct forward {
    const kr_conv_args *a;
    conv c;
    int64_t nblocks_v;
} forward;

/* Units are (group, channels), channels fastest. The last block of a sequence writes its window. */
static void conv_units(const void *args, int64_t first, int64_t end, int worker)
{
    const forward *f = args;
    const kr_conv_args *a = f->a;
    for (int64_t unit = first; unit < end; unit++) {
        int64_t v0 = unit % f->nblocks_v * CHANNELS, v1 = kr_smaller(v0 + CHANNELS, a->nv);
        const kr_conv_block *group = &f->c.groups[unit / f->nblocks_v];
        kr_conv_block at = group[0];
        for (; at.q != group[1].q || at.s0 != group[1].s0; at = kr_conv_next(a->sequences, a->nq, at)) {
            block k = block_of(&f->c, at, a->ns, v0, v1, worker);
            kr_conv_rows r = rows_of(&f->c, &k, at.s0, at.s1);
            r.out = (float *)a->y.data + (k.token + at.s0) * a->nv + v0;
            r.out_stride = a->nv;
            if (a->silu) kr_conv_run(&r, KR_CONV_SILU);
            else kr_conv_run(&r, KR_CONV_SUM);
            if (a->window_out && at.s1 == k.n) write_window(a, &k);
        }
    }
}

static conv conv_of(const kr_conv_args *a)
{
    return (conv){ .nv = a->nv,
                   .nk = a->nk,
                   .nq = a->nq,
                   .x_batch = a->x_batch,
                   .x_stride = a->x.row,
                   .channels = kr_smaller(CHANNELS, a->nv),
                   .sequences = a->sequences,
                   .x = a->x.data,
                   .weight = a->weight,
                   .bias = a->bias,
                   .window = a->window };
}

/* Elements of a unit: the tokens of a group on average. */
static int64_t unit_elements(const conv *c, int64_t tokens)
{
    return kr_larger(1, tokens / kr_larger(1, c->ngroups)) * c->channels;
}

size_t KR_FN(conv_scratch)(const kr_conv_args *a)
{
    conv c = conv_of(a);
    return (size_t)conv_lay_out(&c, a->exec.pool, NULL) * sizeof(float);
}

void KR_FN(conv)(const kr_conv_args *a)
{
    if (a->nq == 0 || a->nv == 0) return;
    forward f = { .a = a, .c = conv_of(a), .nblocks_v = kr_blocks(a->nv, CHANNELS) };
    conv_lay_out(&f.c, a->exec.pool, a->exec.scratch);
    conv_prepare(&f.c);
    kr_ranges_run(a->exec.pool, f.c.ngroups * f.nblocks_v, unit_elements(&f.c, a->nb * a->ns), conv_units, &f);
}

/* ---- backward ---- */

typedef struct backward {
    const kr_conv_bwd_args *a;
    conv c;
    int64_t nblocks_v;
    float *partial; /* [group, nk + 1, v]: g_weight by tap, then g_bias */
    float *g_u;     /* [worker, KR_CONV_ROWS + nk - 1, G_CHANNELS] */
} backward;

static void fill_g_u(const backward *f, const block *k)
{
    const kr_conv_bwd_args *a = f->a;
    int64_t n = k->v1 - k->v0, s0 = k->at.s0, s2 = kr_smaller(k->at.s1 + a->nk - 1, k->n);
    const float *g_y = (const float *)a->g_y[0].data + (k->token + s0) * a->nv + k->v0;
    if (a->silu) {
        kr_conv_rows r = rows_of(&f->c, k, s0, s2);
        r.g = g_y;
        r.g_stride = a->nv;
        r.out = k->g_u_sv;
        r.out_stride = G_CHANNELS;
        kr_conv_run(&r, KR_CONV_SLOPE);
    } else {
        for (int64_t s = s0; s < s2; s++)
            memcpy(k->g_u_sv + (s - s0) * G_CHANNELS, g_y + (s - s0) * a->nv, (size_t)n * sizeof(float));
    }
    for (int64_t s = s2; s < k->at.s1 + a->nk - 1; s++)
        memset(k->g_u_sv + (s - s0) * G_CHANNELS, 0, (size_t)n * sizeof(float));
}

/* g_x[t] = sum over i of weight[nk-1-i] g_u[t + i]: the same sums with the taps reversed. */
static void input_gradient(const backward *f, const block *k)
{
    const kr_conv_bwd_args *a = f->a;
    int64_t s0 = k->at.s0, s1 = k->at.s1;
    const int64_t row = a->g_x.row;
    float *g_x = (float *)a->g_x.data + (k->token + s0) * row + k->v0;
    kr_conv_rows r = { .body = k->g_u_sv,
                       .body_stride = G_CHANNELS,
                       .nk = a->nk,
                       .weight = f->c.weight_kv + (a->nk - 1) * a->nv + k->v0,
                       .weight_stride = -a->nv,
                       .out = g_x,
                       .out_stride = row,
                       .first = 0,
                       .end = s1 - s0,
                       .nchannels = k->v1 - k->v0 };
    kr_conv_run(&r, KR_CONV_SUM);
    if (!a->g_window_out) return;
    const float *g_window = (const float *)a->g_window_out + (k->at.q * a->nv + k->v0) * a->nk;
    for (int64_t t = kr_larger(s0, k->n - a->nk); t < s1; t++)
        for (int64_t v = 0; v < k->v1 - k->v0; v++) g_x[(t - s0) * row + v] += g_window[v * a->nk + t - (k->n - a->nk)];
}

/* Only the first block of a sequence reaches t < 0. */
static void window_gradient(const backward *f, const block *k)
{
    const kr_conv_bwd_args *a = f->a;
    for (int64_t v = k->v0; v < k->v1; v++) {
        int64_t at = (k->at.q * a->nv + v) * a->nk;
        for (int64_t column = 0; column < a->nk; column++) {
            int64_t t = column - a->nk, end = kr_smaller(t + a->nk, k->n), from = t - (k->n - a->nk);
            float sum = 0;
            for (int64_t s = 0; s < end; s++)
                sum += f->c.weight_kv[(t + a->nk - 1 - s) * a->nv + v] * k->g_u_sv[s * G_CHANNELS + v - k->v0];
            if (a->g_window_out && from >= 0) sum += ((const float *)a->g_window_out)[at + from];
            ((float *)a->g_window)[at + column] = sum;
        }
    }
}

/* Rows s .. s + count - 1 of n <= VF channels at v (of the block), added to g_weight of nk <= KR_CONV_TAPS taps and to
 * g_bias. row[i] is row(s + i). */
KR_INLINE void add_taps(const backward *f, const block *k, const float *const *row, int64_t s, int64_t v, int64_t n,
                        int nk, int count)
{
    const float *g_u = k->g_u_sv + (s - k->at.s0) * G_CHANNELS + v;
    vf g[KR_CONV_UNROLL], in[KR_CONV_TAPS + KR_CONV_UNROLL - 1];
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

KR_INLINE void small_kernel_gradients(const backward *f, const block *k, const kr_conv_rows *r, int64_t s, int nk,
                                      int count)
{
    const float *row[KR_CONV_TAPS + KR_CONV_UNROLL - 1];
    for (int i = 0; i < nk + count - 1; i++) row[i] = kr_conv_row(r, s + i);
    int64_t v = 0;
    for (; v + VF <= r->nchannels; v += VF) add_taps(f, k, row, s, v, VF, nk, count);
    if (v < r->nchannels) add_taps(f, k, row, s, v, r->nchannels - v, nk, count);
}

KR_INLINE void block_gradients(const backward *f, const block *k, const kr_conv_rows *r, int nk)
{
    int64_t s = k->at.s0;
    for (; s + KR_CONV_UNROLL <= k->at.s1; s += KR_CONV_UNROLL) small_kernel_gradients(f, k, r, s, nk, KR_CONV_UNROLL);
    for (; s < k->at.s1; s++) small_kernel_gradients(f, k, r, s, nk, 1);
}

static void many_tap_gradients(const backward *f, const block *k, const kr_conv_rows *r)
{
    for (int64_t j = 0; j <= r->nk; j++) {
        for (int64_t v = 0; v < r->nchannels; v += VF) {
            int64_t n = r->nchannels - v;
            float *partial = k->partial_kv + j * f->c.nv + v;
            vf sum = vf_load_n(partial, n);
            for (int64_t s = k->at.s0; s < k->at.s1; s++) {
                vf in = j < r->nk ? vf_load_n(kr_conv_row(r, s + j) + v, n) : vf_set1(1);
                sum = vf_fma(vf_load_n(k->g_u_sv + (s - k->at.s0) * G_CHANNELS + v, n), in, sum);
            }
            vf_store_n(partial, n, sum);
        }
    }
}

static void parameter_gradients(const backward *f, const block *k)
{
    kr_conv_rows r = rows_of(&f->c, k, k->at.s0, k->at.s1);
    if (r.nk == 4) block_gradients(f, k, &r, 4);
    else if (r.nk == 3) block_gradients(f, k, &r, 3);
    else if (r.nk == 2) block_gradients(f, k, &r, 2);
    else many_tap_gradients(f, k, &r);
}

static void block_bwd(const backward *f, const block *k)
{
    const kr_conv_bwd_args *a = f->a;
    fill_g_u(f, k);
    if (a->g_x.data) input_gradient(f, k);
    if (a->g_window && k->at.s0 == 0) window_gradient(f, k);
    if (a->g_weight || a->g_bias) parameter_gradients(f, k);
}

/* Units are (group, channels), channels fastest. */
static void conv_bwd_units(const void *args, int64_t first, int64_t end, int worker)
{
    const backward *f = args;
    const kr_conv_bwd_args *a = f->a;
    for (int64_t unit = first; unit < end; unit++) {
        int64_t g = unit / f->nblocks_v, v0 = unit % f->nblocks_v * G_CHANNELS, v1 = kr_smaller(v0 + G_CHANNELS, a->nv);
        const kr_conv_block *group = &f->c.groups[g];
        float *partial_kv = f->partial + g * (a->nk + 1) * a->nv + v0;
        for (int64_t j = 0; j <= a->nk; j++) memset(partial_kv + j * a->nv, 0, (size_t)(v1 - v0) * sizeof(float));
        kr_conv_block at = group[0];
        for (; at.q != group[1].q || at.s0 != group[1].s0; at = kr_conv_next(a->sequences, a->nq, at)) {
            block k = block_of(&f->c, at, a->ns, v0, v1, worker);
            k.g_u_sv = f->g_u + worker * (KR_CONV_ROWS + a->nk - 1) * G_CHANNELS;
            k.partial_kv = partial_kv;
            block_bwd(f, &k);
        }
    }
}

/* Units are KR_PARTIAL_COLUMNS channels each. */
static void add_groups(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const backward *f = args;
    const kr_conv_bwd_args *a = f->a;
    for (int64_t unit = first; unit < end; unit++) {
        int64_t v0 = unit * KR_PARTIAL_COLUMNS, n = kr_smaller(KR_PARTIAL_COLUMNS, a->nv - v0);
        for (int64_t j = 0; j <= a->nk; j++) {
            double sum[KR_PARTIAL_COLUMNS];
            kr_add_partials(f->partial + j * a->nv + v0, f->c.ngroups, (a->nk + 1) * a->nv, n, sum);
            if (j < a->nk && a->g_weight)
                for (int64_t v = 0; v < n; v++) ((float *)a->g_weight)[(v0 + v) * a->nk + j] = (float)sum[v];
            if (j == a->nk && a->g_bias)
                for (int64_t v = 0; v < n; v++) ((float *)a->g_bias)[v0 + v] = (float)sum[v];
        }
    }
}

/* Zeros for g_x of the tokens first .. end-1 of [b s]. */
static void clear_gap(const kr_conv_bwd_args *a, int64_t first, int64_t end)
{
    for (int64_t token = first; token < end; token++)
        memset((float *)a->g_x.data + token * a->g_x.row, 0, (size_t)a->nv * sizeof(float));
}

static void clear_gaps(const kr_conv_bwd_args *a)
{
    int64_t done = 0;
    for (int64_t q = 0; q < a->nq; q++) {
        const kr_sequence *s = &a->sequences[q];
        clear_gap(a, done, s->row * a->ns + s->start);
        done = s->row * a->ns + s->end;
    }
    clear_gap(a, done, a->nb * a->ns);
}

static backward backward_of(const kr_conv_bwd_args *a)
{
    backward f = { .a = a, .nblocks_v = kr_blocks(a->nv, G_CHANNELS) };
    f.c = (conv){ .nv = a->nv,
                  .nk = a->nk,
                  .nq = a->nq,
                  .x_batch = a->x_batch,
                  .x_stride = a->x.row,
                  .channels = kr_smaller(G_CHANNELS, a->nv),
                  .sequences = a->sequences,
                  .x = a->x.data,
                  .weight = a->weight,
                  .bias = a->bias,
                  .window = a->window };
    return f;
}

/* conv_lay_out, and the scratch of the gradients. */
static int64_t backward_lay_out(backward *f, float *scratch)
{
    const kr_conv_bwd_args *a = f->a;
    int64_t common = conv_lay_out(&f->c, a->exec.pool, scratch);
    int64_t partial = padded(kr_conv_groups(a->sequences, a->nq, NULL) * (a->nk + 1) * a->nv);
    if (scratch) {
        f->partial = scratch + common;
        f->g_u = f->partial + partial;
    }
    return common + partial + kr_pool_size(a->exec.pool) * (KR_CONV_ROWS + a->nk - 1) * G_CHANNELS;
}

size_t KR_FN(conv_bwd_scratch)(const kr_conv_bwd_args *a)
{
    backward f = backward_of(a);
    return (size_t)backward_lay_out(&f, NULL) * sizeof(float);
}

void KR_FN(conv_bwd)(const kr_conv_bwd_args *a)
{
    if (a->nv == 0) return;
    backward f = backward_of(a);
    backward_lay_out(&f, a->exec.scratch);
    conv_prepare(&f.c);
    if (a->g_x.data) clear_gaps(a);
    kr_ranges_run(a->exec.pool, f.c.ngroups * f.nblocks_v, 2 * unit_elements(&f.c, a->nb * a->ns), conv_bwd_units, &f);
    if (a->g_weight || a->g_bias)
        kr_ranges_run(a->exec.pool, kr_blocks(a->nv, KR_PARTIAL_COLUMNS),
                      f.c.ngroups * (a->nk + 1) * KR_PARTIAL_COLUMNS, add_groups, &f);
}
