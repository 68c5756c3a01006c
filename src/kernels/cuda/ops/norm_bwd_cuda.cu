/* norm_bwd_cuda.cu - the gradients of the RMS norm (norm_cuda.cu); all architectures, f32 and f64.
 *
 *   x, z, g_y [no ni]    gain [ni] or none (1)    q [no ng]
 *   x, z, g_y, g_x, g_z may be 16-bit, all but g_y with row strides
 * with w = gain g_y (norm first: gain g_y silu(z)):
 *   g_u = q w - q^3 u mean_group(w u), which is eps q^3 w in a group of one channel
 *   gate first: g_x = g_u silu(z), g_z = g_u x silu'(z);   norm first: g_x = g_u, g_z = u q gain g_y silu'(z)
 *   g_gain[i] = sum over rows of g_y u q (silu(z) if norm first)
 *
 * A unit (norm.cuh) has some consecutive rows, and keeps its partial g_gain in registers; the partial sums go to scratch
 * and are added in order. The number of rows depends on the sizes alone.
 */
#include "kernels/cuda/prim/reduce_partials.cuh"
#include "kernels/cuda/ops/norm.cuh"

/* Vectors per multiprocessor, for CTA units and warp units; units per group: they fill an H200 three times. */
enum {
    VECS_PER_SM = 1152,
    WARP_VECS_PER_SM = 768,
    UNITS = 1188,
    WARP_UNITS = 4 * UNITS,
    LONG_UNITS = 2048,
    LONG_ROWS = 64
};

template <typename T> struct bwd_job {
    int64_t no, ni, ng, width;
    int64_t rows, chunks; /* rows per unit; units per group */
    int64_t x_padding, z_padding;
    int64_t x_step, z_step, g_y_step, g_x_step, g_z_step; /* row strides in bytes */
    const void *x, *z, *g_y;
    kr_dtype x_dtype, z_dtype, g_y_dtype;
    const T *gain, *q;
    kr_operand g_x, g_z;
    T *parts;    /* [chunks ni], or NULL: g_gain is not wanted */
    bool adds;   /* to g_x */
    T per_width; /* 1 / width */
    T eps;
    bool fast;
};

/* silu(z) and its slope at one element. */
template <int KIND, typename T>
static __device__ __forceinline__ void gate_at(const bwd_job<T> &k, int64_t at, T *silu, T *slope)
{
    *silu = *slope = 0;
    if (KIND == PLAIN) return;
    const T z = kr_element<T>(k.z, at, k.z_dtype);
    if (k.fast) kr_silu_slope_fast(z, silu, slope);
    else kr_silu_slope(z, silu, slope);
}

/* Terms of one channel's gradients. */
template <typename T> struct channel_terms {
    T u, w, out; /* out: gain g_y */
    T of_u, of_y, slope;
};

template <int KIND, typename T>
static __device__ __forceinline__ channel_terms<T> terms_of(T x, T silu, T slope, T gain, T g_y)
{
    channel_terms<T> t = { x, 0, gain * g_y, 1, 1, slope };
    if (KIND == GATE_FIRST) t.of_u = silu, t.u = x * silu;
    if (KIND == NORM_FIRST) t.of_y = silu;
    t.w = t.out * t.of_y;
    return t;
}

/* g_u; shrink: q^2 mean_group(w u). */
template <typename T> static __device__ __forceinline__ T grad_u(const channel_terms<T> &t, T q, T shrink)
{
    return q * (t.w - shrink * t.u);
}

template <int KIND, typename T>
static __device__ __forceinline__ void store_row(const channel_terms<T> &t, T x, T q, T g_u, T *g_x, T *g_z)
{
    *g_x = g_u * t.of_u;
    *g_z = (KIND == NORM_FIRST ? t.u * q * t.out : g_u * x) * t.slope;
}

/* A thread's operands of one row, loaded ahead. */
template <typename T, int VECS> struct row_ahead {
    kr_raw16 x[VECS], z[VECS], g_y[VECS], g_x[VECS]; /* g_x: what it is added to */
    T q;
};

/* A thread's cursor over rows: address of its first channel. */
template <typename T, int THREADS, int VECS, int KIND, bool WHOLE> struct row_feed {
    enum { N = kr_vec16<T>::N };
    const char *x, *z, *g_y;
    char *g_x, *g_z;
    const char *added; /* g_x of the next row, if it is added to */
    const T *q;
    int left; /* channels from the thread's first on */

    __device__ __forceinline__ void start(const bwd_job<T> &k, int64_t row, int64_t group)
    {
        const int64_t in = group * k.width + threadIdx.x % THREADS * N;
        left = (int)(k.width - threadIdx.x % THREADS * N);
        x = (const char *)k.x + row * k.x_step + in * kr_element_bytes<T>(k.x_dtype);
        z = (const char *)k.z + row * k.z_step + in * kr_element_bytes<T>(k.z_dtype);
        g_y = (const char *)k.g_y + row * k.g_y_step + in * kr_element_bytes<T>(k.g_y_dtype);
        g_x = (char *)k.g_x.data + row * k.g_x_step + in * kr_element_bytes<T>(k.g_x.dtype);
        g_z = (char *)k.g_z.data + row * k.g_z_step + in * kr_element_bytes<T>(k.g_z.dtype);
        added = g_x;
        q = k.q + row * k.ng + group;
    }

    __device__ __forceinline__ void load_ahead(const bwd_job<T> &k, row_ahead<T, VECS> *row)
    {
#pragma unroll
        for (int p = 0; p < VECS; p++) {
            const int at = p * THREADS * N;
            row->x[p] = kr_load_raw16<T, WHOLE>(x + at * kr_element_bytes<T>(k.x_dtype), k.x_dtype, left - at);
            if (KIND != PLAIN)
                row->z[p] = kr_load_raw16<T, WHOLE>(z + at * kr_element_bytes<T>(k.z_dtype), k.z_dtype, left - at);
            row->g_y[p] = kr_load_raw16<T, WHOLE>(g_y + at * kr_element_bytes<T>(k.g_y_dtype), k.g_y_dtype, left - at);
            if (KIND == PLAIN && k.adds)
                row->g_x[p] = kr_load_raw16<T, WHOLE>(added + at * (int)sizeof(T), kr_dtype_of<T>(), left - at);
        }
        row->q = *q;
        x += k.x_step, g_y += k.g_y_step, q += k.ng;
        if (KIND != PLAIN) z += k.z_step;
        if (KIND == PLAIN) added += k.g_x_step;
    }

    __device__ __forceinline__ void store_vec(const bwd_job<T> &k, int p, const kr_vec16<T> &to_x,
                                              const kr_vec16<T> &to_z)
    {
        const int at = p * THREADS * N;
        if (k.g_x.data)
            kr_store_raw16<T, WHOLE>(g_x + at * kr_element_bytes<T>(k.g_x.dtype), to_x, k.g_x.dtype, left - at);
        if (KIND != PLAIN && k.g_z.data)
            kr_store_raw16<T, WHOLE>(g_z + at * kr_element_bytes<T>(k.g_z.dtype), to_z, k.g_z.dtype, left - at);
    }

    /* g_x and g_z of a row, and on to the next row; shrink: q^2 mean_group(w u). */
    __device__ __forceinline__ void store_grads(const bwd_job<T> &k, const row_ahead<T, VECS> &row,
                                                const channel_terms<T> (&t)[VECS][N], const kr_vec16<T> (&x_of)[VECS],
                                                T shrink, bool is_single)
    {
#pragma unroll
        for (int p = 0; p < VECS; p++) {
            kr_vec16<T> to_x, to_z;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const T g_u = is_single ? k.eps * row.q * row.q * row.q * t[p][i].w : grad_u(t[p][i], row.q, shrink);
                store_row<KIND>(t[p][i], x_of[p].v[i], row.q, g_u, &to_x.v[i], &to_z.v[i]);
            }
            if (KIND == PLAIN && k.adds) {
                const kr_vec16<T> to = kr_unpack_raw16<T, WHOLE>(row.g_x[p], kr_dtype_of<T>());
#pragma unroll
                for (int i = 0; i < N; i++) to_x.v[i] += to.v[i];
            }
            store_vec(k, p, to_x, to_z);
        }
        g_x += k.g_x_step;
        if (KIND != PLAIN) g_z += k.g_z_step;
    }
};

template <typename T, int THREADS, int VECS, int KIND, bool WHOLE>
static __global__ void __launch_bounds__(block_of(THREADS),
                                         ctas_per_sm<T>(THREADS, VECS, THREADS == 32 ? WARP_VECS_PER_SM : VECS_PER_SM))
    norm_bwd_kernel(const bwd_job<T> k)
{
    enum { N = kr_vec16<T>::N };
    __shared__ __align__(16) T shared[64];
    const int64_t unit = unit_of<THREADS>();
    if (unit >= k.chunks * k.ng) return;
    const int64_t group = unit % k.ng, chunk = unit / k.ng, channel = group * k.width;
    const int count = (int)kr_least(k.rows, k.no - chunk * k.rows), lane = threadIdx.x % THREADS;
    const bool is_single =
        THREADS == 32 && VECS == 1 && !WHOLE && k.width == 1; /* constant false in all other instances */
    row_feed<T, THREADS, VECS, KIND, WHOLE> feed;
    feed.start(k, chunk * k.rows, group);
    row_ahead<T, VECS> next;
    feed.load_ahead(k, &next);
    kr_vec16<T> gain[VECS], sums[VECS] = {};
#pragma unroll
    for (int p = 0; p < VECS; p++) {
        const int64_t in = (p * THREADS + lane) * N;
        gain[p] = load_gain(k.gain ? k.gain + channel + in : NULL, k.width - in, WHOLE);
    }
    for (int row = 0; row < count; row++) {
        const row_ahead<T, VECS> own = next;
        if (row + 1 < count) feed.load_ahead(k, &next);
        channel_terms<T> t[VECS][N];
        kr_vec16<T> x[VECS];
        T wu = 0;
#pragma unroll
        for (int p = 0; p < VECS; p++) {
            const kr_vec16<T> g_y = kr_unpack_raw16<T, WHOLE>(own.g_y[p], k.g_y_dtype);
            kr_vec16<T> silu = {}, slope = {};
            x[p] = kr_unpack_raw16<T, WHOLE>(own.x[p], k.x_dtype);
            if (KIND != PLAIN) kr_slopes_of(kr_unpack_raw16<T, WHOLE>(own.z[p], k.z_dtype), k.fast, &silu, &slope);
#pragma unroll
            for (int i = 0; i < N; i++) {
                t[p][i] = terms_of<KIND>(x[p].v[i], silu.v[i], slope.v[i], gain[p].v[i], g_y.v[i]);
                wu += t[p][i].w * t[p][i].u;
                sums[p].v[i] += g_y.v[i] * own.q * t[p][i].of_y * t[p][i].u;
            }
        }
        if (!k.g_x.data && !k.g_z.data) continue;
        const T mean = kr_block_sum_alternating<THREADS>(wu, shared, row & 1) * k.per_width,
                shrink = own.q * own.q * mean;
        feed.store_grads(k, own, t, x, shrink, is_single);
    }
    if (!k.parts) return;
#pragma unroll
    for (int p = 0; p < VECS; p++) {
        const int64_t in = (p * THREADS + lane) * N;
        kr_store_vec16(k.parts + chunk * k.ni + channel + in, sums[p], k.width - in, WHOLE);
    }
}

/* A group of any width, read twice. */
template <typename T, int THREADS, int KIND>
static __global__ void __launch_bounds__(THREADS) norm_bwd_long_kernel(const bwd_job<T> k)
{
    __shared__ T shared[32];
    const int64_t first = blockIdx.x * k.width, channel = blockIdx.x % k.ng * k.width;
    const int64_t row = blockIdx.x / k.ng;
    const T q = k.q[blockIdx.x];
    const int64_t first_x = first + padding_offset(k.x_padding, row),
                  first_z = first + padding_offset(k.z_padding, row);
    T wu = 0;
    for (int64_t i = threadIdx.x; i < k.width; i += THREADS) {
        T silu, slope;
        gate_at<KIND>(k, first_z + i, &silu, &slope);
        const channel_terms<T> t =
            terms_of<KIND>(kr_element<T>(k.x, first_x + i, k.x_dtype), silu, slope, k.gain ? k.gain[channel + i] : (T)1,
                           kr_element<T>(k.g_y, first + i, k.g_y_dtype));
        wu += t.w * t.u;
    }
    const T shrink = q * q * kr_block_sum<THREADS>(wu, shared) * k.per_width;
    for (int64_t i = threadIdx.x; i < k.width; i += THREADS) {
        const T x = kr_element<T>(k.x, first_x + i, k.x_dtype);
        T silu, slope, g_x, g_z;
        gate_at<KIND>(k, first_z + i, &silu, &slope);
        const channel_terms<T> t = terms_of<KIND>(x, silu, slope, k.gain ? k.gain[channel + i] : (T)1,
                                                  kr_element<T>(k.g_y, first + i, k.g_y_dtype));
        store_row<KIND>(t, x, q, grad_u(t, q, shrink), &g_x, &g_z);
        if (KIND == PLAIN && k.adds) g_x += ((const T *)k.g_x.data)[first + i];
        if (k.g_x.data) kr_store_as(k.g_x.data, first + i + padding_offset(k.g_x.row - k.ni, row), g_x, k.g_x.dtype);
        if (KIND != PLAIN && k.g_z.data)
            kr_store_as(k.g_z.data, first + i + padding_offset(k.g_z.row - k.ni, row), g_z, k.g_z.dtype);
    }
}

/* Partial g_gain of long groups: a thread processes the rows of one channel. */
template <typename T, int THREADS, int KIND>
static __global__ void __launch_bounds__(THREADS) norm_gain_kernel(const bwd_job<T> k)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, chunk = blockIdx.y;
    if (i >= k.ni) return;
    T sum = 0;
    for (int64_t o = chunk * k.rows; o < kr_least((chunk + 1) * k.rows, k.no); o++) {
        const int64_t at = o * k.ni + i;
        const T g_y = kr_element<T>(k.g_y, at, k.g_y_dtype);
        T silu, slope;
        gate_at<KIND>(k, at + o * k.z_padding, &silu, &slope);
        const channel_terms<T> t =
            terms_of<KIND>(kr_element<T>(k.x, at + o * k.x_padding, k.x_dtype), silu, slope, (T)1, g_y);
        sum += g_y * t.u * k.q[o * k.ng + i / k.width] * t.of_y;
    }
    k.parts[chunk * k.ni + i] = sum;
}

template <typename T, int KIND, bool WHOLE> static void norm_bwd_launch(const bwd_job<T> &k, cudaStream_t stream)
{
    const int64_t units = k.chunks * k.ng;
#define CASE(threads, vecs)                                                                                            \
    norm_bwd_kernel<T, threads, vecs, KIND, WHOLE>                                                                     \
        <<<(unsigned)kr_ceil_div(units, block_of(threads) / threads), block_of(threads), 0, stream>>>(k)
#define LONG                                                                                                           \
    do {                                                                                                               \
        if (k.g_x.data || k.g_z.data)                                                                                  \
            norm_bwd_long_kernel<T, 1024, KIND><<<(unsigned)(k.no * k.ng), 1024, 0, stream>>>(k);                      \
        if (k.parts)                                                                                                   \
            norm_gain_kernel<T, 128, KIND>                                                                             \
                <<<dim3((unsigned)kr_ceil_div(k.ni, 128), (unsigned)k.chunks), 128, 0, stream>>>(k);                   \
    } while (0)
    SWITCH_WIDTH(k.width, CASE, LONG)
#undef CASE
#undef LONG
}

/* Rows per unit: warp units are more, being smaller. */
template <typename T> static int64_t rows_of_unit(const kr_norm_bwd_args *a)
{
    const int threads = threads_for<T>(a->ni / a->ng);
    if (threads == NO_BLOCK) return kr_ceil_div(a->no, LONG_UNITS) + LONG_ROWS - 1;
    const int64_t units = threads <= WARP_TWO ? WARP_UNITS : threads <= 512 ? UNITS : UNITS / 2;
    return kr_ceil_div(a->no, kr_ceil_div(units, a->ng));
}

template <typename T> static size_t norm_bwd_scratch(const kr_norm_bwd_args *a)
{
    if (a->no * a->ni == 0 || !a->g_gain) return 0;
    return kr_padded_bytes(kr_ceil_div(a->no, rows_of_unit<T>(a)) * a->ni * (int64_t)sizeof(T));
}

template <typename T> static void norm_bwd_run(const kr_norm_bwd_args *a)
{
    cudaStream_t stream = kr_stream_of(&a->exec);
    if (a->no * a->ni == 0) {
        if (a->g_gain && a->ni > 0) cudaMemsetAsync(a->g_gain, 0, (size_t)a->ni * sizeof(T), stream);
        return;
    }
    const int64_t rows = rows_of_unit<T>(a);
    bwd_job<T> k = {};
    k.no = a->no, k.ni = a->ni, k.ng = a->ng, k.width = a->ni / a->ng;
    k.rows = rows, k.chunks = kr_ceil_div(a->no, rows);
    k.x_padding = a->x.row - a->ni, k.z_padding = a->z.data ? a->z.row - a->ni : 0;
    k.x = a->x.data, k.x_dtype = a->x.dtype;
    k.z = a->z.data, k.z_dtype = a->z.dtype, k.gain = (const T *)a->gain, k.q = (const T *)a->q;
    k.g_y = a->g_y.data, k.g_y_dtype = a->g_y.dtype;
    k.g_x = a->g_x, k.g_z = a->g_z;
    k.parts = a->g_gain ? (T *)a->exec.scratch : NULL, k.adds = a->accumulate, k.fast = kr_is_fast<T>(&a->exec);
    k.x_step = (k.ni + k.x_padding) * kr_element_bytes<T>(k.x_dtype);
    k.z_step = (k.ni + k.z_padding) * kr_element_bytes<T>(k.z_dtype);
    k.g_y_step = k.ni * kr_element_bytes<T>(k.g_y_dtype);
    k.g_x_step = k.g_x.row * kr_element_bytes<T>(k.g_x.dtype);
    k.g_z_step = k.g_z.row * kr_element_bytes<T>(k.g_z.dtype);
    k.per_width = (T)(1 / (double)k.width), k.eps = (T)a->eps;
    const bool whole = kr_is_aligned16(k.x) && kr_is_aligned16(k.z) && kr_is_aligned16(k.gain) &&
                       kr_is_aligned16(k.g_y) && kr_is_aligned16(k.g_x.data) && kr_is_aligned16(k.g_z.data) &&
                       k.width % kr_vec16<T>::N == 0 && k.z_padding % kr_vec16<T>::N == 0 &&
                       k.g_z.row % kr_vec16<T>::N == 0 && k.x_padding % kr_vec16<T>::N == 0 &&
                       k.g_x.row % kr_vec16<T>::N == 0;
#define RUN(kind)                                                                                                      \
    do {                                                                                                               \
        if (whole) norm_bwd_launch<T, kind, true>(k, stream);                                                          \
        else norm_bwd_launch<T, kind, false>(k, stream);                                                               \
    } while (0)
    if (!k.z) RUN(PLAIN);
    else if (a->norm_first) RUN(NORM_FIRST);
    else RUN(GATE_FIRST);
#undef RUN
    const kr_reduce_target<T> to = { (T *)a->g_gain, NULL, a->ni, 1 };
    if (a->g_gain) kr_reduce_partials_run(stream, k.parts, k.chunks, a->ni, to);
}

KR_CUDA_ENTRY_SCRATCH(norm_bwd, kr_norm_bwd_args)
