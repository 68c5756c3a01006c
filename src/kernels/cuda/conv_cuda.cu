/* conv_cuda.cu - causal depthwise convolution with a carried window.
 *
 *   x, y [b s v]    weight [v k]    bias [v] or none    window, window_out [q v k] or none: the last nk inputs
 * Within a sequence q of length n, tokens numbered from its first:
 *   u[s, v] = bias[v] + sum over j of weight[v, j] past(s - (nk-1) + j, v);   y = u, or silu(u)
 *   window_out[q, v, j] = past(n - nk + j, v)
 *
 * A thread has one pack of channels and walks along a tile of tokens with the last inputs in registers, STEP loads ahead.
 * Threads behind those of the tiles write window_out. More than MOST_TAPS taps take one thread for each element.
 */
#include "kernels/cuda/conv.cuh"

enum { THREADS = 128, STEP = 4, MOST_TAPS = 4, LONG_TILE = 32, SHORT_TILE = 8, MANY_TOKENS = 4096 };

template <typename T> struct conv_job {
    conv_input<T> in;
    uint32_t packs; /* of a token */
    uint32_t tiles_per_row, tiles;
    int64_t tile; /* tokens */
    void *y;
    kr_half y_half;
    T *window_out;
    bool y_aligned;
};

/* The last inputs of one sequence, channels v and on. */
template <typename T>
static __device__ void write_window(const conv_input<T> &c, T *window_out, int64_t q, int64_t v, int64_t left)
{
    const int64_t start = conv_start(c.at, q), n = conv_end(c.at, q) - start;
#pragma unroll 1
    for (int64_t j = 0; j < c.nk; j++) {
        const kr_pack<T> p = conv_past(c, q, start, n - c.nk + j, v, left);
#pragma unroll
        for (int e = 0; e < kr_pack<T>::N; e++)
            if (e < left) window_out[(q * c.nv + v + e) * c.nk + j] = p.v[e];
    }
}

/* PACKED: rows may hold several sequences. ALIGNED: all packs are whole and allow 16-byte steps. */
template <typename T, int NK, bool PACKED, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS, 5) conv_kernel(const conv_job<T> k)
{
    enum { N = kr_pack<T>::N };
    const conv_input<T> &c = k.in;
    const uint32_t unit = blockIdx.x * THREADS + threadIdx.x, tile = unit / k.packs;
    const int64_t v = (int64_t)(unit % k.packs) * N, left = ALIGNED ? (int64_t)N : c.nv - v;
    if (tile >= k.tiles) {
        if (k.window_out && tile - k.tiles < c.at.nq) write_window(c, k.window_out, tile - k.tiles, v, left);
        return;
    }
    kr_pack<T> w[NK], bias, before[NK]; /* before[j] is past(s - (NK-1) + j); the last one is the token's own */
    conv_weights<T, NK>(c, v, left, w);
#pragma unroll
    for (int e = 0; e < N; e++) bias.v[e] = c.bias && e < left ? c.bias[v + e] : (T)0;
    const int64_t row = tile / k.tiles_per_row, first = tile % k.tiles_per_row * k.tile;
    const int64_t end = kr_least(first + k.tile, c.at.ns), base = row * c.at.ns;
    int64_t x = row * c.x_batch + first * c.x_stride + v;
    int64_t y = (base + first) * c.nv + v;
    int64_t current = -1;
    for (int64_t t0 = first; t0 < end; t0 += STEP) {
        kr_pack<T> ahead[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i++, x += c.x_stride)
            if (t0 + i < end) ahead[i] = kr_load_pack_as<T>(c.x, x, c.x_half, left, ALIGNED || c.aligned);
#pragma unroll
        for (int i = 0; i < STEP; i++, y += c.nv) {
            if (t0 + i >= end) break;
            const int64_t q = PACKED && c.at.of_token ? (int64_t)c.at.of_token[base + t0 + i] : row;
            if (PACKED ? q != current && q >= 0 : t0 + i == first) {
                const int64_t start = conv_start(c.at, q), s = base + t0 + i - start;
#pragma unroll
                for (int j = 0; j < NK - 1; j++) before[j] = conv_past(c, q, start, s - (NK - 1) + j, v, left);
            }
            current = q;
            if (PACKED && q < 0) continue;
            before[NK - 1] = ahead[i];
            kr_pack<T> u = bias;
#pragma unroll
            for (int j = 0; j < NK; j++)
#pragma unroll
                for (int e = 0; e < N; e++) u.v[e] += w[j].v[e] * before[j].v[e];
            if (c.silu) u = kr_silu_of(u, c.quick);
            kr_store_pack_as(k.y, y, u, k.y_half, left, ALIGNED || k.y_aligned);
#pragma unroll
            for (int j = 0; j < NK - 1; j++) before[j] = before[j + 1];
        }
    }
}

/* Any number of taps. */
template <typename T> static __global__ void __launch_bounds__(THREADS) conv_any_kernel(const conv_job<T> k)
{
    const conv_input<T> &c = k.in;
    const int64_t elements = c.at.nb * c.at.ns * c.nv;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elements; i += (int64_t)gridDim.x * THREADS) {
        const int64_t token = i / c.nv, v = i % c.nv, q = conv_sequence(c.at, token);
        if (q < 0) continue;
        const int64_t start = conv_start(c.at, q);
        const T u = conv_sum_one(c, q, start, token - start, v);
        T silu = u, slope;
        if (c.silu && c.quick) kr_silu_slope_quick(u, &silu, &slope);
        else if (c.silu) silu = kr_silu(u);
        kr_put_as(k.y, i, silu, k.y_half);
    }
    const int64_t windows = k.window_out ? c.at.nq * c.nv * c.nk : 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < windows; i += (int64_t)gridDim.x * THREADS) {
        const int64_t q = i / (c.nv * c.nk), start = conv_start(c.at, q), n = conv_end(c.at, q) - start;
        k.window_out[i] = conv_past_one(c, q, start, n - c.nk + i % c.nk, i / c.nk % c.nv);
    }
}

template <typename T> static size_t conv_scratch(const kr_conv_args *a)
{
    return conv_map_bytes(a->sequences, a->nq, a->nb, a->ns);
}

template <typename T> static void launch_tiles(const conv_job<T> &k, int64_t windows, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)kr_ceil_div((k.tiles + windows) * k.packs, THREADS);
    const bool packed = k.in.at.of_token, aligned = k.in.aligned && k.y_aligned;
    switch (k.in.nk) {
    case 1: conv_kernel<T, 1, true, false><<<blocks, THREADS, 0, stream>>>(k); return;
    case 2: conv_kernel<T, 2, true, false><<<blocks, THREADS, 0, stream>>>(k); return;
    case 3: conv_kernel<T, 3, true, false><<<blocks, THREADS, 0, stream>>>(k); return;
    default: break;
    }
    if (!aligned) conv_kernel<T, MOST_TAPS, true, false><<<blocks, THREADS, 0, stream>>>(k);
    else if (packed) conv_kernel<T, MOST_TAPS, true, true><<<blocks, THREADS, 0, stream>>>(k);
    else conv_kernel<T, MOST_TAPS, false, true><<<blocks, THREADS, 0, stream>>>(k);
}

template <typename T> static void conv_run(const kr_conv_args *a)
{
    cudaStream_t stream = kr_stream_of(&a->exec);
    const int64_t n = kr_pack<T>::N, tokens = a->nb * a->ns, windows = a->window_out ? a->nq : 0;
    if ((tokens == 0 && windows == 0) || a->nv == 0) return;
    const conv_places at = conv_place(stream, (char *)a->exec.scratch, a->sequences, a->nq, a->nb, a->ns);
    conv_job<T> k = { { at, a->nv, a->nk, a->x_batch, a->x_stride, a->x, a->x_half, (const T *)a->weight,
                        (const T *)a->bias, (const T *)a->window,
                        kr_allows16(a->x) && a->x_batch % n == 0 && a->x_stride % n == 0, a->silu,
                        kr_is_quick<T>(&a->exec) },
                      (uint32_t)kr_ceil_div(a->nv, n),
                      0,
                      0,
                      tokens >= MANY_TOKENS ? LONG_TILE : SHORT_TILE,
                      a->y,
                      a->y_half,
                      (T *)a->window_out,
                      kr_allows16(a->y) && a->nv % n == 0 };
    k.tiles_per_row = (uint32_t)kr_ceil_div(a->ns, k.tile);
    k.tiles = (uint32_t)a->nb * k.tiles_per_row;
    if (a->nk <= MOST_TAPS) {
        launch_tiles(k, windows, stream);
        return;
    }
    const int64_t elements = tokens * a->nv + windows * a->nv * a->nk;
    conv_any_kernel<T><<<(unsigned)kr_least(kr_ceil_div(elements, THREADS), 1 << 20), THREADS, 0, stream>>>(k);
}

KR_CUDA_ENTRY_SCRATCH(conv, kr_conv_args)
