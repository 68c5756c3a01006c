/* token_layers_product.cuh - the products' parts of token_layers_cuda.cu: what becomes of tiles of norm(u) W_in, which enter a
 * layer, and of norm(y) W_out, which leave it.
 *
 * Part i is of half i % HALVES: it leaves layer i / HALVES - 1 and enters layer i / HALVES. It hands on words of that layer's
 * parity, and takes those of the other back.
 */
#ifndef KR_KERNELS_CUDA_TOKEN_LAYERS_PRODUCT_CUH
#define KR_KERNELS_CUDA_TOKEN_LAYERS_PRODUCT_CUH

#include "kernels/cuda/token_layers_tile.cuh"

/* Weights of the block's tile to the cache: they come while there is nothing to wait for. */
template <typename S> static __device__ __forceinline__ void fetch_weights(const linear &k, const tile &t)
{
    if (t.at >= t.count || t.at % t.of_rows != 0) return;
    kr_bulk_fetch((const uint16_t *)k.w + (int64_t)t.n0 * (int)k.nk,
                  (uint32_t)(kr_least(S::COLUMNS, k.nn - t.n0) * k.nk * 2));
}

/* ---- entering ---- */

/* What outputs of a column need besides their sums, in shared memory. */
typedef struct __align__(16) column
{
    uint4 taps; /* as they lie */
    float add, conv_bias, unused[2];
}
column;
static_assert(sizeof(column) * 32 <= COLUMNS_BYTES, "columns have their place");

static __device__ __forceinline__ column *columns(void)
{
    return (column *)(void *)(stage() - WINDOWS_BYTES - COLUMNS_BYTES);
}

/* [rows columns], each a thread's. */
static __device__ __forceinline__ float4 *windows(void)
{
    return (float4 *)(void *)(stage() - WINDOWS_BYTES) + threadIdx.x;
}

static __device__ __forceinline__ float4 *window_of(const linear &k, int m, int c)
{
    return (float4 *)(void *)k.window + ((int64_t)m * (int)k.nc + c);
}

static __device__ __forceinline__ bool is_convolved(const linear &k, int n)
{
    return n >= (int)k.conv_from && n < (int)(k.conv_from + k.nc);
}

static __device__ __forceinline__ void copy_or_zero(float *to, const float *from, int at)
{
    if (from) kr_copy<4>(kr_shared_address(to), from + at);
    else *to = 0;
}

/* Columns and windows of the tile, on their way. */
template <typename S> static __device__ __forceinline__ void fetch_columns(const linear &k, const tile &t)
{
    const int n = t.n0 + (int)threadIdx.x % S::COLUMNS, m = t.m0 + (int)threadIdx.x / S::COLUMNS;
    const int c = n - (int)k.conv_from;
    if (threadIdx.x < S::COLUMNS && n < (int)k.nn) {
        column *to = columns() + threadIdx.x;
        copy_or_zero(&to->add, k.bias, n);
        if (is_convolved(k, n)) {
            copy_or_zero(&to->conv_bias, k.conv_bias, c);
            if (k.taps_half) kr_copy<8>(kr_shared_address(&to->taps), (const uint2 *)k.taps + c);
            else kr_copy<16>(kr_shared_address(&to->taps), (const uint4 *)k.taps + c);
        }
    }
    if (is_convolved(k, n))
#pragma unroll
        for (int i = 0; i < S::EACH; i++)
            kr_copy<16>(kr_shared_address(windows() + i * THREADS), window_of(k, min(m + i * S::APART, t.end - 1), c));
    kr_copy_commit();
}

/* y, and windows with the token. */
template <typename S>
static __device__ __forceinline__ void put_column(const linear &k, int parity, const tile &t, float v[S::EACH])
{
    const int n = t.n0 + (int)threadIdx.x % S::COLUMNS, m = t.m0 + (int)threadIdx.x / S::COLUMNS;
    if (n >= (int)k.nn) return;
    const column own = columns()[threadIdx.x % S::COLUMNS];
    const int at = m * (int)k.y_m + n;
#pragma unroll
    for (int i = 0; i < S::EACH; i++) v[i] += own.add;
    if (is_convolved(k, n)) {
        float4 *window = window_of(k, m, n - (int)k.conv_from);
        float tap[KR_MOST_TAPS];
#pragma unroll
        for (int i = 0; i < KR_MOST_TAPS; i++) tap[i] = kr_element<float>(&own.taps, i, k.taps_half);
#pragma unroll
        for (int i = 0; i < S::EACH; i++) {
            const float4 past = windows()[i * THREADS];
            const float4 now = make_float4(past.y, past.z, past.w, v[i]);
            if (m + i * S::APART < t.end) window[i * S::APART * (int)k.nc] = now;
            v[i] = own.conv_bias + now.x * tap[0];
            v[i] += now.y * tap[1];
            v[i] += now.z * tap[2];
            v[i] = kr_silu(v[i] + now.w * tap[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < S::EACH; i++)
        if (m + i * S::APART < t.end) {
            kr_put_word(ctl().to[parity].entered + at + i * S::APART * (int)k.y_m, kr_word_of(v[i]));
            kr_take_back(ctl().to[1 - parity].entered + at + i * S::APART * (int)k.y_m);
        }
}

/* Parts are functions of their own: registers of one are not held through the others. Its job is in the control. Each returns
 * the turn of the stage that comes next. */
template <typename S> static __device__ __noinline__ uint32_t enter(int part, uint32_t turn)
{
    const int l = part / HALVES, half = part % HALVES;
    const linear &k = ctl().enter[l % PARITIES];
    if (half == 0 && l > 0) kr_latch_wait(kr_shared_address(&ctl().prepared[1]), (uint32_t)l - 1);
    const uint64_t seen = look_at(LEFT + half, threadIdx.x == 0);
    tile t = ctl().entering[half];
    bool waits = true;
#pragma unroll 1
    for (; t.at < t.count; t = tile_of<S>(k, half, t.at + gridDim.x)) {
        ask_for_stage<S>(k, t.n0, 0);
        fetch_columns<S>(k, t);
        const operands<S> o = operands_of<S>(k, t);
        if (waits) wait_for_all(LEFT + half, seen, threadIdx.x == 0, sync_products);
        waits = false;
        float sum[S::TILES][S::EIGHTS][4] = {}, whole[S::EACH];
        multiply<S>(k, t, o, &turn, sum);
        if (threadIdx.x == 0 && t.at + (int)gridDim.x >= t.count) come(ENTERED + half);
        add_up<S>(sum, whole);
        put_column<S>(k, l % PARITIES, t, whole);
        kr_shared_handed_over();
        sync_products(); /* the sums have been read */
    }
    if (waits) {
        wait_for_all(LEFT + half, seen, threadIdx.x == 0, sync_products);
        if (threadIdx.x == 0) come(ENTERED + half);
    }
    return turn;
}

/* ---- leaving ---- */

/* The stream that the first layer enters with, by the threads that will add to it. */
template <typename S> static __device__ __forceinline__ void begin_stream(const stack &s, int half)
{
    const linear &first = s.layers[0].enter, &k = s.layers[0].leave;
    const int nk = (int)first.nk;
#pragma unroll 1
    for (tile t = ctl().leaving[half]; t.at < t.count; t = tile_of<S>(k, half, t.at + gridDim.x)) {
        const int m = t.m0 + (int)threadIdx.x / S::COLUMNS, n = t.n0 + (int)threadIdx.x % S::COLUMNS;
        const bool is_there = m < t.end;
        round_stream(s.to[0], m * nk + n, is_there, is_there ? first_stream(s, m, n, nk) : 0.0f, first.gain[n]);
    }
}

template <typename S> static __device__ __noinline__ uint32_t leave(int part, uint32_t turn)
{
    const int l = part / HALVES, half = part % HALVES; /* l: is entered next */
    const linear &k = ctl().leave[(l - 1) % PARITIES];
    const bool is_last = l == ctl().count;
    if (half == 0) kr_latch_wait(kr_shared_address(&ctl().prepared[0]), (uint32_t)l - 1);
    const uint64_t seen = look_at(CORED + half, threadIdx.x == 0);
    tile t = ctl().leaving[half];
    bool waits = true;
#pragma unroll 1
    for (; t.at < t.count; t = tile_of<S>(k, half, t.at + gridDim.x)) {
        const int m = t.m0 + (int)threadIdx.x / S::COLUMNS, n = t.n0 + (int)threadIdx.x % S::COLUMNS;
        ask_for_stage<S>(k, t.n0, 0);
        float base = k.base[(int64_t)min(m, t.end - 1) * (int)k.base_m + n];
        if (k.bias) base += k.bias[n];
        const float gain = is_last ? 0.0f : k.gain[n];
        const operands<S> o = operands_of<S>(k, t);
        if (waits) wait_for_all(CORED + half, seen, threadIdx.x == 0, sync_products);
        waits = false;
        float sum[S::TILES][S::EIGHTS][4] = {}, whole[S::EACH];
        multiply<S>(k, t, o, &turn, sum);
        if (threadIdx.x == 0 && !is_last && t.at + (int)gridDim.x >= t.count) come(LEFT + half);
        add_up<S>(sum, whole);
        const float y = whole[0] + base;
        if (m < t.end) k.y[(int64_t)m * (int)k.y_m + n] = y;
        if (!is_last) {
            const int parity = l % PARITIES;
            round_stream(ctl().to[parity], m * (int)k.nn + n, m < t.end, y, gain);
            take_back_stream(ctl().to[1 - parity], m * (int)k.nn + n, m < t.end);
        }
        kr_shared_handed_over();
        sync_products(); /* the sums have been read */
    }
    if (waits) {
        wait_for_all(CORED + half, seen, threadIdx.x == 0, sync_products);
        if (threadIdx.x == 0 && !is_last) come(LEFT + half);
    }
    return turn;
}

#endif
