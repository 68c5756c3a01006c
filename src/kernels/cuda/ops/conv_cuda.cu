/* conv_cuda.cu - causal depthwise convolution with a carried window; all architectures, f32 and f64.
 *
 *   x, y [b s v]    weight [v k]    bias [v] or none    window, window_out [q v k] or none: the last nk inputs
 * Within a sequence q of length n, tokens numbered from its first:
 *   u[s, v] = bias[v] + sum over j of weight[v, j] past(s - (nk-1) + j, v);   y = u, or silu(u)
 *   window_out[q, v, j] = past(n - nk + j, v)
 *
 * A thread has one 16-byte vector of channels and processes a tile of tokens with the last inputs in registers; the next
 * ones are loaded by cp.async through a ring in shared memory that is private to it. Tokens are processed in groups of four
 * where no sequence begins or ends, else one by one. Tiles are sized so that the device holds all of them at once, or a few
 * times over. Threads after those of the tiles write window_out. More than MAX_TAPS taps take one thread per element.
 */
#include "kernels/cuda/ops/conv.cuh"

enum { THREADS = 128, CTAS_PER_SM = 6, LONG_TILE = 64, SHORT_TILE = 8, MIN_TILES = 8 };

template <typename T> struct conv_job {
    conv_input<T> in;
    uint32_t vecs; /* per token */
    uint32_t tiles_per_row, tiles;
    int64_t tile;           /* tokens */
    int64_t x_step, y_step; /* token strides in bytes */
    void *y;
    kr_dtype y_dtype;
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
        const kr_vec16<T> p = conv_past(c, q, start, n - c.nk + j, v, left);
#pragma unroll
        for (int e = 0; e < kr_vec16<T>::N; e++)
            if (e < left) window_out[(q * c.nv + v + e) * c.nk + j] = p.v[e];
    }
}

/* A thread's channels and position. */
template <typename T, int NK> struct conv_walk {
    kr_vec16<T> w[NK], bias;
    kr_vec16<T> before[NK - 1 + GROUP]; /* before[j] is past(s - (NK-1) + j) */
    const char *x;                      /* token 0 of the tile */
    char *y;
    int64_t base, row, v, left, current; /* base: number of token 0; current: the last token's sequence */
};

/* Loads the inputs before token t of the tile, which is in sequence q. */
template <typename T, int NK>
static __device__ __forceinline__ void conv_begin(const conv_input<T> &c, int64_t q, int t, conv_walk<T, NK> *w)
{
    const int64_t start = conv_start(c.at, q), s = w->base + t - start;
#pragma unroll
    for (int j = 0; j < NK - 1; j++) w->before[j] = conv_past(c, q, start, s - (NK - 1) + j, w->v, w->left);
    w->current = q;
}

/* Token t of the tile. */
template <typename T, int NK, bool PACKED, bool ALIGNED>
static __device__ __forceinline__ void conv_one(const conv_job<T> &k, int t, const kr_raw16 *slot, conv_walk<T, NK> *w)
{
    const conv_input<T> &c = k.in;
    const kr_vec16<T> own = ALIGNED ? kr_unpack_raw16<T, true>(*slot, c.x_dtype)
                                    : kr_load_vec16_as<T>(w->x + t * k.x_step, 0, c.x_dtype, w->left, c.aligned);
    const int64_t q = PACKED && c.at.of_token ? (int64_t)c.at.of_token[w->base + t] : w->row;
    if (PACKED && q != w->current && q >= 0) conv_begin<T, NK>(c, q, t, w);
    w->current = q;
    if (PACKED && q < 0) return;
    w->before[NK - 1] = own;
    kr_vec16<T> u = w->bias;
#pragma unroll
    for (int j = 0; j < NK; j++)
#pragma unroll
        for (int e = 0; e < kr_vec16<T>::N; e++) u.v[e] += w->w[j].v[e] * w->before[j].v[e];
    if (c.silu) u = kr_silu_of(u, c.fast);
    kr_store_raw16<T, ALIGNED>(w->y + t * k.y_step, u, k.y_dtype, w->left);
#pragma unroll
    for (int j = 0; j < NK - 1; j++) w->before[j] = w->before[j + 1];
}

/* Tokens t .. t+GROUP-1 of the tile, in the sequence of the one before them. HAS_16BIT: x or y may be 16-bit. */
template <typename T, int NK, bool HAS_16BIT>
static __device__ __forceinline__ void conv_group(const conv_job<T> &k, int t, const kr_raw16 (*slots)[THREADS],
                                                  conv_walk<T, NK> *w)
{
    const conv_input<T> &c = k.in;
    kr_vec16<T> u[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        w->before[NK - 1 + i] =
            kr_unpack_raw16<T, true>(slots[i][threadIdx.x], HAS_16BIT ? c.x_dtype : kr_dtype_of<T>());
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        u[i] = w->bias;
#pragma unroll
        for (int j = 0; j < NK; j++)
#pragma unroll
            for (int e = 0; e < kr_vec16<T>::N; e++) u[i].v[e] += w->w[j].v[e] * w->before[i + j].v[e];
    }
    if (c.silu) kr_silus_of<T, GROUP>(u, c.fast);
    char *y = w->y + t * k.y_step;
#pragma unroll
    for (int i = 0; i < GROUP; i++, y += k.y_step)
        kr_store_raw16<T, true>(y, u[i], HAS_16BIT ? k.y_dtype : kr_dtype_of<T>(), kr_vec16<T>::N);
#pragma unroll
    for (int j = 0; j < NK - 1; j++) w->before[j] = w->before[GROUP + j];
}

/* Are tokens t .. t+GROUP-1 of the tile in the current sequence? */
template <typename T, int NK>
static __device__ __forceinline__ bool is_same_sequence(const conv_sequences &at, int t, const conv_walk<T, NK> &w)
{
    bool same = w.current >= 0;
#pragma unroll
    for (int i = 0; i < GROUP; i++) same = same && (!at.of_token || at.of_token[w.base + t + i] == w.current);
    return same;
}

/* The tokens of a tile; the first copies to the ring are in flight. PACKED: rows may hold several sequences. ALIGNED: all
 * vectors are complete and 16-byte aligned. */
template <typename T, int NK, bool PACKED, bool ALIGNED, bool HAS_16BIT>
static __device__ __forceinline__ void conv_tile(const conv_job<T> &k, int count, kr_raw16 (*ring)[THREADS],
                                                 conv_walk<T, NK> *w)
{
    const kr_dtype half = HAS_16BIT ? k.in.x_dtype : kr_dtype_of<T>();
    bool by_groups = true; /* the last copies were those of a group */
    for (int t = 0; t < count;) {
        if (ALIGNED && t % GROUP == 0 && t + GROUP <= count && (!PACKED || is_same_sequence<T, NK>(k.in.at, t, *w))) {
            if (by_groups) kr_copy_wait<STAGES / GROUP - 1>();
            else kr_copy_wait<0>();
            kr_raw16(*slots)[THREADS] = ring + t % STAGES;
            conv_group<T, NK, HAS_16BIT>(k, t, slots, w);
            const char *x = w->x + (t + STAGES) * k.x_step;
#pragma unroll
            for (int i = 0; i < GROUP; i++, x += k.x_step)
                if (t + STAGES + i < count) kr_copy_raw16<T>(&slots[i][threadIdx.x], x, half);
            t += GROUP, by_groups = true;
        } else {
            kr_raw16 *slot = &ring[ALIGNED ? t % STAGES : 0][threadIdx.x];
            if (ALIGNED) kr_copy_wait<0>();
            conv_one<T, NK, PACKED, ALIGNED>(k, t, slot, w);
            if (ALIGNED && t + STAGES < count) kr_copy_raw16<T>(slot, w->x + (t + STAGES) * k.x_step, half);
            t += 1, by_groups = false;
        }
        if (ALIGNED) kr_copy_commit();
    }
}

template <typename T, int NK, bool PACKED, bool ALIGNED, bool HAS_16BIT>
static __global__ void __launch_bounds__(THREADS, sizeof(T) == 4 ? CTAS_PER_SM : 1) conv_kernel(const conv_job<T> k)
{
    enum { N = kr_vec16<T>::N };
    __shared__ kr_raw16 ring[ALIGNED ? STAGES : 1][THREADS];
    const conv_input<T> &c = k.in;
    const uint32_t unit = blockIdx.x * THREADS + threadIdx.x, tile = unit / k.vecs;
    conv_walk<T, NK> w;
    w.v = (int64_t)(unit % k.vecs) * N, w.left = ALIGNED ? (int64_t)N : c.nv - w.v;
    if (tile >= k.tiles) {
        if (k.window_out && tile - k.tiles < c.at.nq) write_window(c, k.window_out, tile - k.tiles, w.v, w.left);
        return;
    }
    const kr_dtype half = HAS_16BIT ? c.x_dtype : kr_dtype_of<T>();
    const int64_t first = tile % k.tiles_per_row * k.tile;
    const int count = (int)kr_least(k.tile, c.at.ns - first);
    w.row = tile / k.tiles_per_row, w.base = w.row * c.at.ns + first, w.current = -1;
    w.x = (const char *)c.x + (w.row * c.x_batch + w.v) * kr_element_bytes<T>(half) + first * k.x_step;
    w.y = (char *)k.y + w.v * kr_element_bytes<T>(HAS_16BIT ? k.y_dtype : kr_dtype_of<T>()) + w.base * k.y_step;
#pragma unroll
    for (int i = 0; ALIGNED && i < STAGES; i++) {
        if (i < count) kr_copy_raw16<T>(&ring[i][threadIdx.x], w.x + i * k.x_step, half);
        if (i % GROUP == GROUP - 1) kr_copy_commit();
    }
    conv_weights<T, NK>(c, w.v, w.left, w.w);
#pragma unroll
    for (int e = 0; e < N; e++) w.bias.v[e] = c.bias && e < w.left ? c.bias[w.v + e] : (T)0;
    if (!PACKED) conv_begin<T, NK>(c, w.row, 0, &w);
    conv_tile<T, NK, PACKED, ALIGNED, HAS_16BIT>(k, count, ring, &w);
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
        if (c.silu && c.fast) kr_silu_slope_fast(u, &silu, &slope);
        else if (c.silu) silu = kr_silu(u);
        kr_store_as(k.y, i, silu, k.y_dtype);
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
    const unsigned blocks = (unsigned)kr_ceil_div((k.tiles + windows) * k.vecs, THREADS);
    const bool packed = k.in.at.of_token, aligned = k.in.aligned && k.y_aligned;
    switch (k.in.nk) {
    case 1: conv_kernel<T, 1, true, false, true><<<blocks, THREADS, 0, stream>>>(k); return;
    case 2: conv_kernel<T, 2, true, false, true><<<blocks, THREADS, 0, stream>>>(k); return;
    case 3: conv_kernel<T, 3, true, false, true><<<blocks, THREADS, 0, stream>>>(k); return;
    default: break;
    }
    if (!aligned) conv_kernel<T, MAX_TAPS, true, false, true><<<blocks, THREADS, 0, stream>>>(k);
    else if (packed) conv_kernel<T, MAX_TAPS, true, true, true><<<blocks, THREADS, 0, stream>>>(k);
    else if (kr_is_16bit(k.in.x_dtype) || kr_is_16bit(k.y_dtype))
        conv_kernel<T, MAX_TAPS, false, true, true><<<blocks, THREADS, 0, stream>>>(k);
    else conv_kernel<T, MAX_TAPS, false, true, false><<<blocks, THREADS, 0, stream>>>(k);
}

/* Tokens per tile: as many tiles as the device holds at once, if these are short enough for it to matter. */
template <typename T> static int64_t tile_of(const kr_conv_args *a, int64_t vecs)
{
    const int64_t at_once = (int64_t)kr_multiprocessors(&a->exec) * (CTAS_PER_SM * THREADS);
    const int64_t of_row = at_once / (kr_least(a->nb, at_once) * vecs + 1);
    if (of_row < MIN_TILES) return LONG_TILE;
    return kr_most(SHORT_TILE, kr_ceil_div(a->ns, of_row));
}

template <typename T> static void conv_run(const kr_conv_args *a)
{
    cudaStream_t stream = kr_stream_of(&a->exec);
    const int64_t n = kr_vec16<T>::N, tokens = a->nb * a->ns, windows = a->window_out ? a->nq : 0;
    if ((tokens == 0 && windows == 0) || a->nv == 0) return;
    const conv_sequences at = conv_sequences_make(stream, (char *)a->exec.scratch, a->sequences, a->nq, a->nb, a->ns);
    conv_job<T> k = {};
    k.in = conv_input_of<T>(a, at);
    k.vecs = (uint32_t)kr_ceil_div(a->nv, n);
    k.tile = tile_of<T>(a, k.vecs);
    k.tiles_per_row = (uint32_t)kr_ceil_div(a->ns, k.tile);
    k.tiles = (uint32_t)a->nb * k.tiles_per_row;
    k.y = a->y.data, k.y_dtype = a->y.dtype, k.window_out = (T *)a->window_out;
    k.y_aligned = kr_is_aligned16(a->y.data) && a->nv % n == 0;
    k.x_step = a->x.row * kr_element_bytes<T>(a->x.dtype);
    k.y_step = a->nv * kr_element_bytes<T>(a->y.dtype);
    if (a->nk <= MAX_TAPS) {
        launch_tiles(k, windows, stream);
        return;
    }
    const int64_t elements = tokens * a->nv + windows * a->nv * a->nk;
    conv_any_kernel<T><<<(unsigned)kr_least(kr_ceil_div(elements, THREADS), 1 << 20), THREADS, 0, stream>>>(k);
}

KR_CUDA_ENTRY_SCRATCH(conv, kr_conv_args)
