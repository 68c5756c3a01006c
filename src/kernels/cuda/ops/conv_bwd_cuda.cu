/* conv_bwd_cuda.cu - the gradients of the causal depthwise convolution (conv_cuda.cu); all architectures, f32 and f64.
 *
 *   x, g_y, g_x [b s v]    weight, g_weight [v k]    bias, g_bias [v]    window, g_window, g_window_out [q v k]
 * Within a sequence of length n, with g_u = g_y silu'(u), u recomputed:
 *   g_past(t, v) = sum over j of weight[v, j] g_u[t + (nk-1) - j, v] + g_window_out[q, v, t - (n - nk)]
 *   g_x is g_past at t >= 0, g_window[q, v, nk + t] is g_past at t < 0
 *   g_weight[v, j] = sum over (q, s) of g_u[s, v] past(s - (nk-1) + j, v);   g_bias[v] = sum of g_u
 *
 * A thread has one 16-byte vector of channels and processes a tile of tokens, and nk-1 more, with the last inputs and g_u
 * in registers; the next ones are loaded by cp.async through a ring in shared memory that is private to it. Tokens are
 * processed in groups of four where no sequence begins or ends, else one by one; g_x follows nk-1 tokens behind. A tile's
 * partial g_weight and g_bias go to scratch; they are added in order. More than MAX_TAPS taps take one thread per element,
 * with g_u in scratch.
 */
#include "kernels/cuda/ops/conv.cuh"
#include "kernels/cuda/prim/reduce_partials.cuh"

/* RESIDENT_THREADS: threads that an H200 holds at once, from which tile sizes are derived. */
enum { THREADS = 128, CTAS_PER_SM = 3, SHORT_TILE = 16, LONG_TILE = 256, RESIDENT_THREADS = 50688 };

template <typename T> struct bwd_job {
    conv_input<T> in;
    int64_t tile, tiles_per_row, tiles;
    uint32_t vecs; /* per token */
    const T *g_window_out;
    int ng_y;
    const void *g_y[KR_CONV_PARTS]; /* parts of g_y, along the channels */
    int64_t from[KR_CONV_PARTS + 1];
    kr_dtype g_y_dtype; /* of all of them */
    void *g_x;
    int64_t g_x_stride;       /* token stride */
    int64_t x_step, g_x_step; /* token strides in bytes */
    kr_dtype g_x_dtype;
    T *g_window;
    T *parts; /* [tiles, nk + 1, nv], or NULL: neither g_weight nor g_bias is wanted */
    T *g_u;   /* [b s v] with many taps, else NULL */
    bool g_aligned;
};

/* The operand of g_y that has channel v: its address, first element, and token stride. */
typedef struct g_y_column {
    const void *x;
    int64_t at, stride;
} g_y_column;

template <typename T> static __device__ __forceinline__ g_y_column g_y_of(const bwd_job<T> &k, int64_t v)
{
    if (k.ng_y == 1) return { k.g_y[0], v, k.in.nv };
    int i = 0;
    while (i + 1 < k.ng_y && v >= k.from[i + 1]) i++;
    return { k.g_y[i], v - k.from[i], k.from[i + 1] - k.from[i] };
}

template <typename T> static __device__ __forceinline__ T g_y_one(const bwd_job<T> &k, int64_t token, int64_t v)
{
    const g_y_column c = g_y_of(k, v);
    return kr_element<T>(c.x, token * c.stride + c.at, k.g_y_dtype);
}

template <typename T> static __device__ __forceinline__ T slope_of(T u, bool fast)
{
    T silu, slope;
    if (fast) kr_silu_slope_fast(u, &silu, &slope);
    else kr_silu_slope(u, &silu, &slope);
    return slope;
}

/* What g_window_out adds to token t of sequence q, channels v and on. */
template <typename T>
static __device__ __forceinline__ void add_window(const bwd_job<T> &k, int64_t q, int64_t token, int64_t v,
                                                  int64_t left, kr_vec16<T> *g)
{
    const int64_t nk = k.in.nk, column = token - (conv_end(k.in.at, q) - nk);
    if (column < 0 || column >= nk) return;
#pragma unroll
    for (int e = 0; e < kr_vec16<T>::N; e++)
        if (e < left) g->v[e] += k.g_window_out[(q * k.in.nv + v + e) * nk + column];
}

/* A thread's channels, its last inputs and gradients of u, and its position. */
template <typename T, int NK> struct conv_walk {
    kr_vec16<T> w[NK], bias;
    kr_vec16<T> before[NK - 1 + GROUP]; /* past(s - (NK-1) + j) */
    kr_vec16<T> g_u[NK - 1 + GROUP];    /* of tokens s - (NK-1) and on */
    int32_t of[NK];                     /* sequences of tokens s - (NK-1) .. s; -1: none */
    kr_vec16<T> g_w[NK], g_b;
    const char *x, *g_y; /* token 0 of the tile */
    char *g_x;
    int64_t g_y_step, base, row, v, left; /* base: number of token 0 */
    int count, last;                      /* tokens of the tile; tokens read, including those after it */
};

template <typename T, int NK>
static __device__ __forceinline__ void walk_begin(const conv_input<T> &c, conv_walk<T, NK> *w)
{
    conv_weights<T, NK>(c, w->v, w->left, w->w);
#pragma unroll
    for (int e = 0; e < kr_vec16<T>::N; e++) {
        w->bias.v[e] = c.bias && e < w->left ? c.bias[w->v + e] : (T)0;
        w->g_b.v[e] = 0;
#pragma unroll
        for (int j = 0; j < NK; j++) w->g_w[j].v[e] = w->g_u[j].v[e] = w->before[j].v[e] = 0;
    }
#pragma unroll
    for (int j = 0; j < NK; j++) w->of[j] = -1;
}

/* g_x of the first token of g_u; g_u is 0 past a row's end. */
template <typename T, int NK, bool PACKED>
static __device__ __forceinline__ kr_vec16<T> walk_gradient(const conv_walk<T, NK> &w, const kr_vec16<T> *g_u)
{
    kr_vec16<T> g;
#pragma unroll
    for (int e = 0; e < kr_vec16<T>::N; e++) {
        g.v[e] = 0;
#pragma unroll
        for (int j = 0; j < NK; j++)
            if (!PACKED || (w.of[0] >= 0 && w.of[NK - 1 - j] == w.of[0])) g.v[e] += w.w[j].v[e] * g_u[NK - 1 - j].v[e];
    }
    return g;
}

/* u of the token whose inputs are the first of `before`. */
template <typename T, int NK>
static __device__ __forceinline__ kr_vec16<T> walk_sum(const conv_walk<T, NK> &w, const kr_vec16<T> *before)
{
    kr_vec16<T> u = w.bias;
#pragma unroll
    for (int j = 0; j < NK; j++)
#pragma unroll
        for (int e = 0; e < kr_vec16<T>::N; e++) u.v[e] += w.w[j].v[e] * before[j].v[e];
    return u;
}

/* Adds a token with inputs `before` to the sums. */
template <typename T, int NK>
static __device__ __forceinline__ void walk_add(const kr_vec16<T> *before, const kr_vec16<T> &g_u, conv_walk<T, NK> *w)
{
#pragma unroll
    for (int e = 0; e < kr_vec16<T>::N; e++) {
        w->g_b.v[e] += g_u.v[e];
#pragma unroll
        for (int j = 0; j < NK; j++) w->g_w[j].v[e] += g_u.v[e] * before[j].v[e];
    }
}

/* Adds token t, and stores g_x of the token NK-1 before it. A token of no sequence has g_u = 0. */
template <typename T, int NK, bool PACKED, bool ALIGNED>
static __device__ __forceinline__ void walk_one(const bwd_job<T> &k, int t, const kr_raw16 *slot, conv_walk<T, NK> *w)
{
    const conv_input<T> &c = k.in;
    kr_vec16<T> g_y = {}, silu, slope;
    if (t < w->last) {
        w->before[NK - 1] = ALIGNED ? kr_unpack_raw16<T, true>(slot[0], c.x_dtype)
                                    : kr_load_vec16_as<T>(w->x + t * k.x_step, 0, c.x_dtype, w->left, c.aligned);
        g_y = ALIGNED ? kr_unpack_raw16<T, true>(slot[THREADS], k.g_y_dtype)
                      : kr_load_vec16_as<T>(w->g_y + t * w->g_y_step, 0, k.g_y_dtype, w->left, k.g_aligned);
    }
    const int32_t q = t >= w->last ? -1 : PACKED && c.at.of_token ? c.at.of_token[w->base + t] : (int32_t)w->row;
    if (q >= 0 && q != w->of[NK - 1]) {
        const int64_t start = conv_start(c.at, q), s = w->base + t - start;
#pragma unroll
        for (int j = 0; j < NK - 1; j++) w->before[j] = conv_past(c, q, start, s - (NK - 1) + j, w->v, w->left);
    }
#pragma unroll
    for (int j = 0; j < NK - 1; j++) w->of[j] = w->of[j + 1];
    w->of[NK - 1] = q;
    const kr_vec16<T> u = walk_sum<T, NK>(*w, w->before);
    if (c.silu) kr_slopes_of(u, c.fast, &silu, &slope);
#pragma unroll
    for (int e = 0; e < kr_vec16<T>::N; e++)
        w->g_u[NK - 1].v[e] = q < 0 ? (T)0 : c.silu ? g_y.v[e] * slope.v[e] : g_y.v[e];
    if (t < w->count && q >= 0) walk_add<T, NK>(w->before, w->g_u[NK - 1], w);
    if (k.g_x && t >= NK - 1) {
        kr_vec16<T> g = walk_gradient<T, NK, PACKED>(*w, w->g_u);
        if (k.g_window_out && w->of[0] >= 0) add_window(k, w->of[0], w->base + t - (NK - 1), w->v, w->left, &g);
        kr_store_raw16<T, ALIGNED>(w->g_x + (t - (NK - 1)) * k.g_x_step, g, k.g_x_dtype, w->left);
    }
#pragma unroll
    for (int j = 0; j < NK - 1; j++) w->before[j] = w->before[j + 1], w->g_u[j] = w->g_u[j + 1];
}

/* The same for tokens t .. t+GROUP-1, which are in the tile and, like the NK-1 tokens before them, in one sequence.
 * HAS_16BIT: some operand may be 16-bit. */
template <typename T, int NK, bool HAS_16BIT>
static __device__ __forceinline__ void walk_group(const bwd_job<T> &k, int t, const kr_raw16 (*slots)[2][THREADS],
                                                  conv_walk<T, NK> *w)
{
    enum { N = kr_vec16<T>::N };
    const conv_input<T> &c = k.in;
    kr_vec16<T> u[GROUP], silu[GROUP], slope[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        w->before[NK - 1 + i] =
            kr_unpack_raw16<T, true>(slots[i][0][threadIdx.x], HAS_16BIT ? c.x_dtype : kr_dtype_of<T>());
        w->g_u[NK - 1 + i] =
            kr_unpack_raw16<T, true>(slots[i][1][threadIdx.x], HAS_16BIT ? k.g_y_dtype : kr_dtype_of<T>());
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++) u[i] = walk_sum<T, NK>(*w, w->before + i);
    if (c.silu) {
        kr_slopes_of<T, GROUP>(u, c.fast, silu, slope);
#pragma unroll
        for (int i = 0; i < GROUP * N; i++) w->g_u[NK - 1 + i / N].v[i % N] *= slope[i / N].v[i % N];
    }
    char *g_x = w->g_x + (t - (NK - 1)) * k.g_x_step;
#pragma unroll
    for (int i = 0; i < GROUP; i++, g_x += k.g_x_step) {
        walk_add<T, NK>(w->before + i, w->g_u[NK - 1 + i], w);
        if (k.g_x)
            kr_store_raw16<T, true>(g_x, walk_gradient<T, NK, false>(*w, w->g_u + i),
                                    HAS_16BIT ? k.g_x_dtype : kr_dtype_of<T>(), N);
    }
#pragma unroll
    for (int j = 0; j < NK - 1; j++) w->before[j] = w->before[GROUP + j], w->g_u[j] = w->g_u[GROUP + j];
}

/* May tokens t .. t+GROUP-1 be processed as a group? */
template <typename T, int NK, bool PACKED>
static __device__ __forceinline__ bool can_take_group(const bwd_job<T> &k, int t, const conv_walk<T, NK> &w)
{
    const int32_t q = w.of[NK - 1];
    if (t < NK - 1 || t + GROUP > w.count || q < 0) return false;
    bool same = true;
    if (PACKED) {
#pragma unroll
        for (int j = 1; j < NK - 1; j++) same = same && w.of[j] == q;
#pragma unroll
        for (int i = 0; i < GROUP; i++) same = same && (!k.in.at.of_token || k.in.at.of_token[w.base + t + i] == q);
    }
    return same && (!k.g_window_out || w.base + t < conv_end(k.in.at, q) - NK);
}

/* PACKED: rows may hold several sequences. ALIGNED: all vectors are complete and 16-byte aligned. */
template <typename T, int NK, bool PACKED, bool ALIGNED, bool HAS_16BIT>
static __global__ void __launch_bounds__(THREADS, sizeof(T) == 4 ? CTAS_PER_SM : 1) conv_bwd_kernel(const bwd_job<T> k)
{
    enum { N = kr_vec16<T>::N };
    __shared__ kr_raw16 ring[ALIGNED ? STAGES : 1][2][THREADS];
    const conv_input<T> &c = k.in;
    const uint32_t unit = blockIdx.x * THREADS + threadIdx.x, tile = unit / k.vecs;
    if (tile >= k.tiles) return;
    conv_walk<T, NK> w;
    const int64_t first = tile % (uint32_t)k.tiles_per_row * k.tile, ends = c.at.ns - first;
    w.v = (int64_t)(unit % k.vecs) * N, w.left = ALIGNED ? (int64_t)N : c.nv - w.v;
    w.row = tile / (uint32_t)k.tiles_per_row, w.base = w.row * c.at.ns + first;
    w.count = (int)kr_least(k.tile, ends);
    const int stop = k.g_x ? w.count + NK - 1 : w.count;
    w.last = (int)kr_least(stop, ends);
    const g_y_column of = g_y_of(k, w.v);
    const kr_dtype x_dtype = HAS_16BIT ? c.x_dtype : kr_dtype_of<T>(),
                   g_dtype = HAS_16BIT ? k.g_y_dtype : kr_dtype_of<T>();
    w.g_y_step = of.stride * kr_element_bytes<T>(g_dtype);
    w.x = (const char *)c.x + (w.row * c.x_batch + w.v) * kr_element_bytes<T>(x_dtype) + first * k.x_step;
    w.g_y = (const char *)of.x + of.at * kr_element_bytes<T>(g_dtype) + w.base * w.g_y_step;
    w.g_x = (char *)k.g_x + w.v * kr_element_bytes<T>(HAS_16BIT ? k.g_x_dtype : kr_dtype_of<T>()) + w.base * k.g_x_step;
#define ASK(t, slot)                                                                                                   \
    if ((t) < w.last) {                                                                                                \
        kr_copy_raw16<T>(&(slot)[0][threadIdx.x], w.x + (t)*k.x_step, x_dtype);                                        \
        kr_copy_raw16<T>(&(slot)[1][threadIdx.x], w.g_y + (t)*w.g_y_step, g_dtype);                                    \
    }
#pragma unroll
    for (int i = 0; ALIGNED && i < STAGES; i++) {
        ASK(i, ring[i])
        if (i % GROUP == GROUP - 1) kr_copy_commit();
    }
    walk_begin(c, &w);
    bool by_groups = true; /* the last copies were those of a group */
    for (int t = 0; t < stop;) {
        if (ALIGNED && t % GROUP == 0 && can_take_group<T, NK, PACKED>(k, t, w)) {
            if (by_groups) kr_copy_wait<STAGES / GROUP - 1>();
            else kr_copy_wait<0>();
            kr_raw16(*slots)[2][THREADS] = ring + t % STAGES;
            walk_group<T, NK, HAS_16BIT>(k, t, slots, &w);
#pragma unroll
            for (int i = 0; i < GROUP; i++) ASK(t + STAGES + i, slots[i])
            t += GROUP, by_groups = true;
        } else {
            kr_raw16(*slot)[THREADS] = ring[ALIGNED ? t % STAGES : 0];
            if (ALIGNED) kr_copy_wait<0>();
            walk_one<T, NK, PACKED, ALIGNED>(k, t, &slot[0][threadIdx.x], &w);
            if (ALIGNED) ASK(t + STAGES, slot)
            t += 1, by_groups = false;
        }
        if (ALIGNED) kr_copy_commit();
    }
#undef ASK
    if (!k.parts) return;
    T *part = k.parts + (int64_t)tile * (NK + 1) * c.nv + w.v;
#pragma unroll
    for (int j = 0; j < NK; j++) kr_store_vec16(part + j * c.nv, w.g_w[j], w.left, ALIGNED || k.g_aligned);
    kr_store_vec16(part + NK * c.nv, w.g_b, w.left, ALIGNED || k.g_aligned);
}

/* ---- one thread per element ---- */

template <typename T>
static __device__ __forceinline__ T g_u_one(const bwd_job<T> &k, int64_t q, int64_t start, int64_t s, int64_t v)
{
    if (k.g_u) return k.g_u[(start + s) * k.in.nv + v];
    const T g = g_y_one(k, start + s, v);
    return k.in.silu ? g * slope_of(conv_sum_one(k.in, q, start, s, v), k.in.fast) : g;
}

/* g_past(t, v). */
template <typename T>
static __device__ __forceinline__ T g_past_one(const bwd_job<T> &k, int64_t q, int64_t t, int64_t v)
{
    const int64_t start = conv_start(k.in.at, q), n = conv_end(k.in.at, q) - start, nk = k.in.nk;
    T sum = 0;
    for (int64_t j = 0; j < nk; j++) {
        const int64_t s = t + (nk - 1) - j;
        if (s >= 0 && s < n) sum += k.in.weight[v * nk + j] * g_u_one(k, q, start, s, v);
    }
    const int64_t column = t - (n - nk);
    if (k.g_window_out && column >= 0 && column < nk) sum += k.g_window_out[(q * k.in.nv + v) * nk + column];
    return sum;
}

template <typename T> static __global__ void __launch_bounds__(THREADS) g_u_kernel(const bwd_job<T> k)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, token = i / k.in.nv, v = i % k.in.nv;
    if (token >= k.in.at.nb * k.in.at.ns) return;
    const int64_t q = conv_sequence(k.in.at, token), start = q < 0 ? 0 : conv_start(k.in.at, q);
    const T g = g_y_one(k, token, v);
    k.g_u[i] = q < 0 ? (T)0 : k.in.silu ? g * slope_of(conv_sum_one(k.in, q, start, token - start, v), k.in.fast) : g;
}

template <typename T> static __global__ void __launch_bounds__(THREADS) g_x_kernel(const bwd_job<T> k)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, token = i / k.in.nv, v = i % k.in.nv;
    if (token >= k.in.at.nb * k.in.at.ns) return;
    const int64_t q = conv_sequence(k.in.at, token);
    kr_store_as(k.g_x, token * k.g_x_stride + v, q < 0 ? (T)0 : g_past_one(k, q, token - conv_start(k.in.at, q), v),
                k.g_x_dtype);
}

template <typename T> static __global__ void __launch_bounds__(THREADS) g_window_kernel(const bwd_job<T> k)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, nv = k.in.nv, nk = k.in.nk;
    if (i < k.in.at.nq * nv * nk) k.g_window[i] = g_past_one(k, i / (nv * nk), i % nk - nk, i / nk % nv);
}

/* Partial gradient of one tap (tap nk: of the bias) of a tile. */
template <typename T> static __global__ void __launch_bounds__(THREADS) parts_kernel(const bwd_job<T> k)
{
    const int64_t v = (int64_t)blockIdx.y * THREADS + threadIdx.x, nk = k.in.nk, j = blockIdx.x % (nk + 1);
    const int64_t tile = blockIdx.x / (nk + 1), ns = k.in.at.ns, row = tile / k.tiles_per_row;
    const int64_t first = row * ns + tile % k.tiles_per_row * k.tile, end = kr_least(first + k.tile, (row + 1) * ns);
    if (v >= k.in.nv) return;
    T sum = 0;
    for (int64_t token = first; token < end; token++) {
        const int64_t q = conv_sequence(k.in.at, token);
        if (q < 0) continue;
        const int64_t start = conv_start(k.in.at, q), t = token - start - (nk - 1) + j;
        sum += k.g_u[token * k.in.nv + v] * (j < nk ? conv_past_one(k.in, q, start, t, v) : (T)1);
    }
    k.parts[(tile * (nk + 1) + j) * k.in.nv + v] = sum;
}

template <typename T> static void many_taps(const bwd_job<T> &k, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)kr_ceil_div(k.in.at.nb * k.in.at.ns * k.in.nv, THREADS);
    g_u_kernel<T><<<blocks, THREADS, 0, stream>>>(k);
    if (k.g_x) g_x_kernel<T><<<blocks, THREADS, 0, stream>>>(k);
    const dim3 grid((unsigned)(k.tiles * (k.in.nk + 1)), (unsigned)kr_ceil_div(k.in.nv, THREADS));
    if (k.parts) parts_kernel<T><<<grid, THREADS, 0, stream>>>(k);
}

/* ---- entry points ---- */

/* Offsets in scratch, in bytes; tiles depend on sizes alone. */
typedef struct bwd_plan {
    int64_t tile, tiles_per_row, tiles;
    size_t parts, g_u, bytes;
} bwd_plan;

static bwd_plan plan_of(const kr_conv_bwd_args *a, int64_t element)
{
    const int64_t vecs = kr_ceil_div(a->nv * element, 16),
                  of_row = RESIDENT_THREADS / kr_least(RESIDENT_THREADS, a->nb * vecs + 1);
    bwd_plan p = { kr_ceil_div(a->ns, of_row), 0, 0, 0, 0, 0 };
    p.tile = kr_most(SHORT_TILE, kr_least(p.tile, LONG_TILE));
    p.tiles_per_row = kr_ceil_div(a->ns, p.tile);
    p.tiles = a->nb * p.tiles_per_row;
    p.parts = conv_map_bytes(a->sequences, a->nq, a->nb, a->ns);
    p.g_u = p.parts + (a->g_weight || a->g_bias ? kr_padded_bytes(p.tiles * (a->nk + 1) * a->nv * element) : 0);
    p.bytes = p.g_u + (a->nk > MAX_TAPS ? kr_padded_bytes(a->nb * a->ns * a->nv * element) : 0);
    return p;
}

template <typename T> static size_t conv_bwd_scratch(const kr_conv_bwd_args *a)
{
    return plan_of(a, sizeof(T)).bytes;
}

template <typename T> static void launch_tiles(const bwd_job<T> &k, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)kr_ceil_div(k.tiles * k.vecs, THREADS);
    const bool aligned = k.in.aligned && k.g_aligned;
    switch (k.in.nk) {
    case 1: conv_bwd_kernel<T, 1, true, false, true><<<blocks, THREADS, 0, stream>>>(k); return;
    case 2: conv_bwd_kernel<T, 2, true, false, true><<<blocks, THREADS, 0, stream>>>(k); return;
    case 3: conv_bwd_kernel<T, 3, true, false, true><<<blocks, THREADS, 0, stream>>>(k); return;
    case MAX_TAPS: break;
    default: many_taps(k, stream); return;
    }
    const bool half = kr_is_16bit(k.in.x_dtype) || kr_is_16bit(k.g_y_dtype) || kr_is_16bit(k.g_x_dtype);
    if (!aligned) conv_bwd_kernel<T, MAX_TAPS, true, false, true><<<blocks, THREADS, 0, stream>>>(k);
    else if (k.in.at.of_token) conv_bwd_kernel<T, MAX_TAPS, true, true, true><<<blocks, THREADS, 0, stream>>>(k);
    else if (half) conv_bwd_kernel<T, MAX_TAPS, false, true, true><<<blocks, THREADS, 0, stream>>>(k);
    else conv_bwd_kernel<T, MAX_TAPS, false, true, false><<<blocks, THREADS, 0, stream>>>(k);
}

template <typename T> static void conv_bwd_run(const kr_conv_bwd_args *a)
{
    cudaStream_t stream = kr_stream_of(&a->exec);
    char *scratch = (char *)a->exec.scratch;
    const bwd_plan p = plan_of(a, sizeof(T));
    const int64_t n = kr_vec16<T>::N;
    if (a->nv == 0) return;
    const conv_sequences at = conv_sequences_make(stream, scratch, a->sequences, a->nq, a->nb, a->ns);
    const bool sums = a->g_weight || a->g_bias;
    bwd_job<T> k = {};
    k.in = conv_input_of<T>(a, at);
    k.tile = p.tile, k.tiles_per_row = p.tiles_per_row, k.tiles = p.tiles;
    k.vecs = (uint32_t)kr_ceil_div(a->nv, n);
    k.ng_y = a->ng_y, k.g_y_dtype = a->g_y[0].dtype, k.g_window_out = (const T *)a->g_window_out;
    k.g_x = a->g_x.data, k.g_x_dtype = a->g_x.dtype, k.g_window = (T *)a->g_window;
    k.g_x_stride = a->g_x.data ? a->g_x.row : a->nv;
    k.x_step = a->x.row * kr_element_bytes<T>(a->x.dtype), k.g_x_step = k.g_x_stride * kr_element_bytes<T>(k.g_x_dtype);
    k.parts = sums ? (T *)(void *)(scratch + p.parts) : NULL;
    k.g_u = a->nk > MAX_TAPS ? (T *)(void *)(scratch + p.g_u) : NULL;
    k.g_aligned = kr_is_aligned16(a->g_x.data) && a->nv % n == 0 && k.g_x_stride % n == 0;
    for (int i = 0; i < a->ng_y; i++) {
        k.g_y[i] = a->g_y[i].data, k.from[i + 1] = a->from[i + 1];
        k.g_aligned = k.g_aligned && kr_is_aligned16(a->g_y[i].data) && a->from[i] % n == 0;
    }
    if (p.tiles > 0 && (sums || a->g_x.data || k.g_u)) launch_tiles(k, stream);
    if (a->g_window && a->nq > 0)
        g_window_kernel<T><<<(unsigned)kr_ceil_div(a->nq * a->nv * a->nk, THREADS), THREADS, 0, stream>>>(k);
    const kr_reduce_target<T> to = { (T *)a->g_weight, (T *)a->g_bias, a->nv, a->nk };
    if (sums) kr_reduce_partials_run(stream, k.parts, p.tiles, (a->nk + 1) * a->nv, to);
}

KR_CUDA_ENTRY_SCRATCH(conv_bwd, kr_conv_bwd_args)
