/* conv_bwd_cuda.cu - the gradients of the causal depthwise convolution (conv_cuda.cu).
 *
 *   x, g_y, g_x [b s v]    weight, g_weight [v k]    bias, g_bias [v]    window, g_window, g_window_out [q v k]
 * Within a sequence of length n, with g_u = g_y silu'(u), u recomputed:
 *   g_past(t, v) = sum over j of weight[v, j] g_u[t + (nk-1) - j, v] + g_window_out[q, v, t - (n - nk)]
 *   g_x is g_past at t >= 0, g_window[q, v, nk + t] is g_past at t < 0
 *   g_weight[v, j] = sum over (q, s) of g_u[s, v] past(s - (nk-1) + j, v);   g_bias[v] = sum of g_u
 *
 * A thread has one pack of channels and walks along a tile of tokens, and nk-1 further ones, with the last inputs and the
 * last g_u in registers; g_x follows nk-1 tokens behind. Its tile's part of g_weight and g_bias goes to scratch; the parts
 * are added in order. More than MOST_TAPS taps take one thread for each element, and g_u is kept in scratch.
 */
#include "kernels/cuda/conv.cuh"

enum { THREADS = 128, STEP = 2, MOST_TAPS = 4, LONG_TILE = 64, SHORT_TILE = 16, MANY_TOKENS = 8192 };

template <typename T> struct back_job {
    conv_input<T> in;
    int64_t tile, tiles_per_row, tiles;
    uint32_t packs; /* of a token */
    const T *g_y, *g_window_out;
    kr_columns columns; /* of g_y, which is NULL then */
    void *g_x;
    int64_t g_x_stride; /* of tokens */
    kr_half g_x_half;
    T *g_window;
    T *parts; /* [tiles, nk + 1, nv], or NULL: neither g_weight nor g_bias is wanted */
    T *g_u;   /* [b s v] with many taps, else NULL */
    bool g_aligned;
};

/* Where g_y has channel v: of what, from which element on, and the elements between two tokens. */
typedef struct g_y_column {
    const void *x;
    int64_t at, stride;
} g_y_column;

template <typename T> static __device__ __forceinline__ g_y_column g_y_of(const back_job<T> &k, int64_t v)
{
    if (k.columns.count == 0) return { k.g_y, v, k.in.nv };
    int i = 0;
    while (i + 1 < k.columns.count && v >= k.columns.from[i + 1]) i++;
    return { k.columns.x[i], v - k.columns.from[i], k.columns.from[i + 1] - k.columns.from[i] };
}

template <typename T> static __device__ __forceinline__ T g_y_one(const back_job<T> &k, int64_t token, int64_t v)
{
    const g_y_column c = g_y_of(k, v);
    return kr_element<T>(c.x, token * c.stride + c.at, k.columns.half);
}

template <typename T> static __device__ __forceinline__ T slope_of(T u, bool quick)
{
    T silu, slope;
    if (quick) kr_silu_slope_quick(u, &silu, &slope);
    else kr_silu_slope(u, &silu, &slope);
    return slope;
}

/* What g_window_out adds to token t of sequence q, channels v and on. */
template <typename T>
static __device__ __forceinline__ void add_window(const back_job<T> &k, int64_t q, int64_t token, int64_t v,
                                                  int64_t left, kr_pack<T> *g)
{
    const int64_t nk = k.in.nk, column = token - (conv_end(k.in.at, q) - nk);
    if (column < 0 || column >= nk) return;
#pragma unroll
    for (int e = 0; e < kr_pack<T>::N; e++)
        if (e < left) g->v[e] += k.g_window_out[(q * k.in.nv + v + e) * nk + column];
}

/* A thread's place: its channels and the last inputs and gradients of u. */
template <typename T, int NK> struct conv_walk {
    int64_t v, left;
    kr_pack<T> w[NK], bias;
    kr_pack<T> before[NK]; /* past(s - (NK-1) + j) */
    kr_pack<T> g_u[NK];    /* of tokens s - (NK-1) .. s */
    int32_t of[NK];        /* their sequences; -1: none */
    kr_pack<T> g_w[NK], g_b;
};

template <typename T, int NK>
static __device__ __forceinline__ void walk_begin(const conv_input<T> &c, int64_t v, conv_walk<T, NK> *w)
{
    w->v = v;
    w->left = c.nv - v;
    conv_weights<T, NK>(c, v, w->left, w->w);
#pragma unroll
    for (int e = 0; e < kr_pack<T>::N; e++) {
        w->bias.v[e] = c.bias && e < w->left ? c.bias[v + e] : (T)0;
        w->g_b.v[e] = 0;
#pragma unroll
        for (int j = 0; j < NK; j++) w->g_w[j].v[e] = w->g_u[j].v[e] = w->before[j].v[e] = 0;
    }
#pragma unroll
    for (int j = 0; j < NK; j++) w->of[j] = -1;
}

/* Token s of sequence q joins: its g_u, and what it adds to the sums if it is one of the tile's. begins: nothing is known of
 * the tokens before it. */
template <typename T, int NK>
static __device__ __forceinline__ void walk_token(const conv_input<T> &c, int32_t q, int64_t token, bool begins,
                                                  bool counts, const kr_pack<T> &x, const kr_pack<T> &g_y,
                                                  conv_walk<T, NK> *w)
{
    enum { N = kr_pack<T>::N };
    if (begins) {
        const int64_t start = conv_start(c.at, q), s = token - start;
#pragma unroll
        for (int j = 0; j < NK - 1; j++) w->before[j + 1] = conv_past(c, q, start, s - (NK - 1) + j, w->v, w->left);
    }
#pragma unroll
    for (int j = 0; j < NK - 1; j++) {
        w->before[j] = w->before[j + 1];
        w->g_u[j] = w->g_u[j + 1];
        w->of[j] = w->of[j + 1];
    }
    w->before[NK - 1] = x;
    w->of[NK - 1] = q;
    kr_pack<T> u = w->bias, silu, slope;
#pragma unroll
    for (int e = 0; e < N; e++)
#pragma unroll
        for (int j = 0; j < NK; j++) u.v[e] += w->w[j].v[e] * w->before[j].v[e];
    if (c.silu) kr_slopes_of(u, c.quick, &silu, &slope);
#pragma unroll
    for (int e = 0; e < N; e++) {
        T g = 0;
        if (q >= 0) g = c.silu ? g_y.v[e] * slope.v[e] : g_y.v[e];
        w->g_u[NK - 1].v[e] = g;
        if (!counts || q < 0) continue;
        w->g_b.v[e] += g;
#pragma unroll
        for (int j = 0; j < NK; j++) w->g_w[j].v[e] += g * w->before[j].v[e];
    }
}

/* g_x of the token NK-1 before the last; g_u is 0 past a row's end. */
template <typename T, int NK, bool PACKED>
static __device__ __forceinline__ kr_pack<T> walk_gradient(const back_job<T> &k, int64_t token,
                                                           const conv_walk<T, NK> *w)
{
    kr_pack<T> g;
#pragma unroll
    for (int e = 0; e < kr_pack<T>::N; e++) {
        g.v[e] = 0;
#pragma unroll
        for (int j = 0; j < NK; j++)
            if (!PACKED || (w->of[0] >= 0 && w->of[NK - 1 - j] == w->of[0]))
                g.v[e] += w->w[j].v[e] * w->g_u[NK - 1 - j].v[e];
    }
    if (k.g_window_out && w->of[0] >= 0) add_window(k, w->of[0], token, w->v, w->left, &g);
    return g;
}

/* PACKED: rows may hold several sequences. ALIGNED: all packs are whole and allow 16-byte steps. */
template <typename T, int NK, bool PACKED, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS, 4) conv_bwd_kernel(const back_job<T> k)
{
    enum { N = kr_pack<T>::N };
    const conv_input<T> &c = k.in;
    const uint32_t unit = blockIdx.x * THREADS + threadIdx.x, tile = unit / k.packs;
    if (tile >= k.tiles) return;
    conv_walk<T, NK> w;
    walk_begin(c, (int64_t)(unit % k.packs) * N, &w);
    if (ALIGNED) w.left = N;
    const int64_t row = tile / (uint32_t)k.tiles_per_row, first = tile % (uint32_t)k.tiles_per_row * k.tile;
    const int64_t base = row * c.at.ns, end = kr_least(first + k.tile, c.at.ns);
    const int64_t stop = k.g_x ? end + NK - 1 : end, last = kr_least(stop, c.at.ns);
    int64_t x = row * c.x_batch + first * c.x_stride + w.v;
    const g_y_column of = g_y_of(k, w.v);
    int64_t g_y = (base + first) * of.stride + of.at;
    int64_t g_x = (base + first - (NK - 1)) * k.g_x_stride + w.v;
    for (int64_t t0 = first; t0 < stop; t0 += STEP) {
        kr_pack<T> x_ahead[STEP], g_ahead[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i++, x += c.x_stride, g_y += of.stride)
            if (t0 + i < last) {
                x_ahead[i] = kr_load_pack_as<T>(c.x, x, c.x_half, w.left, ALIGNED || c.aligned);
                g_ahead[i] = kr_load_pack_as<T>(of.x, g_y, k.columns.half, w.left, ALIGNED || k.g_aligned);
            }
#pragma unroll
        for (int i = 0; i < STEP; i++, g_x += k.g_x_stride) {
            const int64_t t = t0 + i;
            if (t >= stop) break;
            const int32_t q = t >= last ? -1 : PACKED && c.at.of_token ? c.at.of_token[base + t] : (int32_t)row;
            const bool begins = PACKED ? q >= 0 && q != w.of[NK - 1] : t == first;
            walk_token(c, q, base + t, begins, t < end, x_ahead[i], g_ahead[i], &w);
            if (k.g_x && t - (NK - 1) >= first)
                kr_store_pack_as(k.g_x, g_x, walk_gradient<T, NK, PACKED>(k, base + t - (NK - 1), &w), k.g_x_half,
                                 w.left, ALIGNED || k.g_aligned);
        }
    }
    if (!k.parts) return;
    T *part = k.parts + (int64_t)tile * (NK + 1) * c.nv + w.v;
#pragma unroll
    for (int j = 0; j < NK; j++) kr_store_pack(part + j * c.nv, w.g_w[j], w.left, ALIGNED || k.g_aligned);
    kr_store_pack(part + NK * c.nv, w.g_b, w.left, ALIGNED || k.g_aligned);
}

/* ---- one thread for each element ---- */

template <typename T>
static __device__ __forceinline__ T g_u_one(const back_job<T> &k, int64_t q, int64_t start, int64_t s, int64_t v)
{
    if (k.g_u) return k.g_u[(start + s) * k.in.nv + v];
    const T g = g_y_one(k, start + s, v);
    return k.in.silu ? g * slope_of(conv_sum_one(k.in, q, start, s, v), k.in.quick) : g;
}

/* g_past(t, v). */
template <typename T>
static __device__ __forceinline__ T g_past_one(const back_job<T> &k, int64_t q, int64_t t, int64_t v)
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

template <typename T> static __global__ void __launch_bounds__(THREADS) g_u_kernel(const back_job<T> k)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, token = i / k.in.nv, v = i % k.in.nv;
    if (token >= k.in.at.nb * k.in.at.ns) return;
    const int64_t q = conv_sequence(k.in.at, token), start = q < 0 ? 0 : conv_start(k.in.at, q);
    const T g = g_y_one(k, token, v);
    k.g_u[i] = q < 0 ? (T)0 : k.in.silu ? g * slope_of(conv_sum_one(k.in, q, start, token - start, v), k.in.quick) : g;
}

template <typename T> static __global__ void __launch_bounds__(THREADS) g_x_kernel(const back_job<T> k)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, token = i / k.in.nv, v = i % k.in.nv;
    if (token >= k.in.at.nb * k.in.at.ns) return;
    const int64_t q = conv_sequence(k.in.at, token);
    kr_put_as(k.g_x, token * k.g_x_stride + v, q < 0 ? (T)0 : g_past_one(k, q, token - conv_start(k.in.at, q), v),
              k.g_x_half);
}

template <typename T> static __global__ void __launch_bounds__(THREADS) g_window_kernel(const back_job<T> k)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, nv = k.in.nv, nk = k.in.nk;
    if (i < k.in.at.nq * nv * nk) k.g_window[i] = g_past_one(k, i / (nv * nk), i % nk - nk, i / nk % nv);
}

/* Part of one tap's gradient (tap nk: of the bias) of a tile. */
template <typename T> static __global__ void __launch_bounds__(THREADS) parts_kernel(const back_job<T> k)
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

template <typename T> static void many_taps(const back_job<T> &k, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)kr_ceil_div(k.in.at.nb * k.in.at.ns * k.in.nv, THREADS);
    g_u_kernel<T><<<blocks, THREADS, 0, stream>>>(k);
    if (k.g_x) g_x_kernel<T><<<blocks, THREADS, 0, stream>>>(k);
    const dim3 grid((unsigned)(k.tiles * (k.in.nk + 1)), (unsigned)kr_ceil_div(k.in.nv, THREADS));
    if (k.parts) parts_kernel<T><<<grid, THREADS, 0, stream>>>(k);
}

/* ---- the kernel ---- */

/* Where things lie in scratch, in bytes; tiles are cut by sizes alone. */
typedef struct back_plan {
    int64_t tile, tiles_per_row, tiles;
    size_t parts, g_u, bytes;
} back_plan;

static back_plan plan_of(const kr_conv_bwd_args *a, int64_t element)
{
    back_plan p = { a->nb * a->ns >= MANY_TOKENS ? LONG_TILE : SHORT_TILE, 0, 0, 0, 0, 0 };
    p.tiles_per_row = kr_ceil_div(a->ns, p.tile);
    p.tiles = a->nb * p.tiles_per_row;
    p.parts = conv_map_bytes(a->sequences, a->nq, a->nb, a->ns);
    p.g_u = p.parts + (a->g_weight || a->g_bias ? kr_padded_bytes(p.tiles * (a->nk + 1) * a->nv * element) : 0);
    p.bytes = p.g_u + (a->nk > MOST_TAPS ? kr_padded_bytes(a->nb * a->ns * a->nv * element) : 0);
    return p;
}

template <typename T> static size_t conv_bwd_scratch(const kr_conv_bwd_args *a)
{
    return plan_of(a, sizeof(T)).bytes;
}

template <typename T> static void launch_tiles(const back_job<T> &k, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)kr_ceil_div(k.tiles * k.packs, THREADS);
    const bool aligned = k.in.aligned && k.g_aligned;
    switch (k.in.nk) {
    case 1: conv_bwd_kernel<T, 1, true, false><<<blocks, THREADS, 0, stream>>>(k); return;
    case 2: conv_bwd_kernel<T, 2, true, false><<<blocks, THREADS, 0, stream>>>(k); return;
    case 3: conv_bwd_kernel<T, 3, true, false><<<blocks, THREADS, 0, stream>>>(k); return;
    case MOST_TAPS: break;
    default: many_taps(k, stream); return;
    }
    if (!aligned) conv_bwd_kernel<T, MOST_TAPS, true, false><<<blocks, THREADS, 0, stream>>>(k);
    else if (k.in.at.of_token) conv_bwd_kernel<T, MOST_TAPS, true, true><<<blocks, THREADS, 0, stream>>>(k);
    else conv_bwd_kernel<T, MOST_TAPS, false, true><<<blocks, THREADS, 0, stream>>>(k);
}

template <typename T> static void conv_bwd_run(const kr_conv_bwd_args *a)
{
    cudaStream_t stream = kr_stream_of(&a->exec);
    char *scratch = (char *)a->exec.scratch;
    const back_plan p = plan_of(a, sizeof(T));
    const int64_t n = kr_pack<T>::N;
    if (a->nv == 0) return;
    const conv_places at = conv_place(stream, scratch, a->sequences, a->nq, a->nb, a->ns);
    const bool sums = a->g_weight || a->g_bias;
    back_job<T> k = { { at, a->nv, a->nk, a->x_batch, a->x_stride, a->x, a->x_half, (const T *)a->weight,
                        (const T *)a->bias, (const T *)a->window,
                        kr_allows16(a->x) && a->x_batch % n == 0 && a->x_stride % n == 0, a->silu,
                        kr_is_quick<T>(&a->exec) },
                      p.tile,
                      p.tiles_per_row,
                      p.tiles,
                      (uint32_t)kr_ceil_div(a->nv, n),
                      (const T *)a->g_y,
                      (const T *)a->g_window_out,
                      a->g_y_columns,
                      a->g_x,
                      a->nv + a->g_x_place.gap,
                      a->g_x_place.half,
                      (T *)a->g_window,
                      sums ? (T *)(void *)(scratch + p.parts) : NULL,
                      a->nk > MOST_TAPS ? (T *)(void *)(scratch + p.g_u) : NULL,
                      kr_allows16(a->g_y) && kr_allows16(a->g_x) && a->nv % n == 0 && a->g_x_place.gap % n == 0 };
    for (int i = 0; i < a->g_y_columns.count; i++)
        k.g_aligned = k.g_aligned && kr_allows16(a->g_y_columns.x[i]) && a->g_y_columns.from[i] % n == 0;
    if (p.tiles > 0 && (sums || a->g_x || k.g_u)) launch_tiles(k, stream);
    if (a->g_window && a->nq > 0)
        g_window_kernel<T><<<(unsigned)kr_ceil_div(a->nq * a->nv * a->nk, THREADS), THREADS, 0, stream>>>(k);
    const kr_fold_to<T> to = { (T *)a->g_weight, (T *)a->g_bias, a->nv, a->nk };
    if (sums) kr_fold_run(stream, k.parts, p.tiles, (a->nk + 1) * a->nv, to);
}

KR_CUDA_ENTRY_SCRATCH(conv_bwd, kr_conv_bwd_args)
