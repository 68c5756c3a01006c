/* norm_cuda.cu - RMS norm over groups of the last axis, with an optional gate; all architectures, f32 and f64.
 *
 *   x, z, y [no ni]    gain [ni] or none (1)    q [no ng]    z none: no gate
 *   x, z and y may be 16-bit, x and z with row strides
 *   gate first: u = x silu(z);  q = (mean_group(u^2) + eps)^-1/2;  y = u q gain
 *   norm first: u = x;          q as above;                        y = u q gain silu(z)
 *
 * The grid is as large as the device holds at once; its units share the rows (norm.cuh).
 */
#include "kernels/cuda/ops/norm.cuh"
#include "kernels/cuda/prim/pdl.cuh"

enum { VECS_PER_SM = 1536 }; /* vectors per multiprocessor */

template <typename T> struct norm_job {
    int64_t no, ni, ng, width;
    int64_t walkers; /* units per group */
    int64_t x_padding, z_padding;
    int64_t x_step, z_step, y_step; /* strides between a unit's rows in bytes */
    const void *x, *z;
    const T *gain;
    void *y;
    kr_dtype x_dtype, z_dtype, y_dtype;
    T *q;
    T eps, per_width; /* 1 / width */
    bool fast;
};

/* z is silu(z) already. */
template <int KIND, typename T> static __device__ __forceinline__ T gated(T x, T z)
{
    return KIND == GATE_FIRST ? x * z : x;
}

template <int KIND, typename T> static __device__ __forceinline__ T normed(T u, T q, T gain, T z)
{
    const T y = u * q * gain;
    return KIND == NORM_FIRST ? y * z : y;
}

/* A thread's operands of one row, loaded ahead, and its cursor over rows. */
template <int VECS> struct row_ahead {
    kr_raw16 x[VECS], z[VECS];
};

template <typename T, int THREADS, int VECS, int KIND, bool WHOLE> struct row_feed {
    enum { N = kr_vec16<T>::N };
    const char *x, *z;
    int left; /* channels from the thread's first on */

    __device__ __forceinline__ void start(const norm_job<T> &k, int64_t row, int64_t channel)
    {
        const int64_t in = channel + threadIdx.x % THREADS * N, of_x = kr_element_bytes<T>(k.x_dtype);
        left = (int)(k.width - threadIdx.x % THREADS * N);
        x = (const char *)k.x + (row * (k.ni + k.x_padding) + in) * of_x;
        z = (const char *)k.z + (row * (k.ni + k.z_padding) + in) * kr_element_bytes<T>(k.z_dtype);
    }

    __device__ __forceinline__ void load_ahead(const norm_job<T> &k, row_ahead<VECS> *row)
    {
#pragma unroll
        for (int p = 0; p < VECS; p++) {
            const int at = p * THREADS * N;
            row->x[p] = kr_load_raw16<T, WHOLE>(x + at * kr_element_bytes<T>(k.x_dtype), k.x_dtype, left - at);
            if (KIND != PLAIN)
                row->z[p] = kr_load_raw16<T, WHOLE>(z + at * kr_element_bytes<T>(k.z_dtype), k.z_dtype, left - at);
        }
        x += k.x_step;
        if (KIND != PLAIN) z += k.z_step;
    }
};

template <typename T, int THREADS, int VECS, int KIND, bool WHOLE>
static __global__ void __launch_bounds__(block_of(THREADS), ctas_per_sm<T>(THREADS, VECS, VECS_PER_SM))
    norm_kernel(const norm_job<T> k)
{
    enum { N = kr_vec16<T>::N };
    __shared__ __align__(16) T shared[64];
    const int64_t unit = unit_of<THREADS>(), group = unit % k.ng, walker = unit / k.ng;
    kr_pdl_wait();
    if (walker >= k.walkers) return;
    const int lane = threadIdx.x % THREADS;
    row_feed<T, THREADS, VECS, KIND, WHOLE> feed;
    feed.start(k, walker, group * k.width);
    kr_vec16<T> gain[VECS];
#pragma unroll
    for (int p = 0; p < VECS; p++) {
        const int64_t in = (p * THREADS + lane) * N;
        gain[p] = load_gain(k.gain ? k.gain + group * k.width + in : NULL, k.width - in, WHOLE);
    }
    char *y = (char *)k.y + (walker * k.ni + group * k.width + lane * N) * kr_element_bytes<T>(k.y_dtype);
    row_ahead<VECS> next;
    feed.load_ahead(k, &next);
    int parity = 0;
    for (int64_t o = walker; o < k.no; o += k.walkers, y += k.y_step, parity ^= 1) {
        const row_ahead<VECS> row = next;
        if (o + k.walkers < k.no) feed.load_ahead(k, &next);
        kr_vec16<T> u[VECS], z[VECS];
        T squares = 0;
#pragma unroll
        for (int p = 0; p < VECS; p++) {
            u[p] = kr_unpack_raw16<T, WHOLE>(row.x[p], k.x_dtype);
            if (KIND != PLAIN) z[p] = kr_silu_of(kr_unpack_raw16<T, WHOLE>(row.z[p], k.z_dtype), k.fast);
#pragma unroll
            for (int i = 0; i < N; i++) {
                u[p].v[i] = gated<KIND>(u[p].v[i], z[p].v[i]);
                squares += u[p].v[i] * u[p].v[i];
            }
        }
        const T q = kr_rsqrt_newton(kr_block_sum_alternating<THREADS>(squares, shared, parity) * k.per_width + k.eps);
        if (lane == 0) k.q[o * k.ng + group] = q;
#pragma unroll
        for (int p = 0; p < VECS; p++) {
            const int at = p * THREADS * N;
#pragma unroll
            for (int i = 0; i < N; i++) u[p].v[i] = normed<KIND>(u[p].v[i], q, gain[p].v[i], z[p].v[i]);
            kr_store_raw16<T, WHOLE>(y + at * kr_element_bytes<T>(k.y_dtype), u[p], k.y_dtype, feed.left - at);
        }
    }
}

/* A group of any width, in two passes. */
template <typename T, int THREADS, int KIND>
static __global__ void __launch_bounds__(THREADS) norm_long_kernel(const norm_job<T> k, bool aligned)
{
    enum { N = kr_vec16<T>::N };
    __shared__ T shared[32];
    const int64_t first = blockIdx.x * k.width, channel = blockIdx.x % k.ng * k.width;
    const int64_t first_z = first + padding_offset(k.z_padding, blockIdx.x / k.ng);
    const int64_t first_x = first + padding_offset(k.x_padding, blockIdx.x / k.ng);
    T squares = 0;
    for (int64_t at = threadIdx.x * N; at < k.width; at += THREADS * N) {
        kr_vec16<T> u = kr_load_vec16_as<T>(k.x, first_x + at, k.x_dtype, k.width - at, aligned), z;
        if (KIND == GATE_FIRST)
            z = kr_silu_of(kr_load_vec16_as<T>(k.z, first_z + at, k.z_dtype, k.width - at, aligned), k.fast);
#pragma unroll
        for (int i = 0; i < N; i++) {
            u.v[i] = gated<KIND>(u.v[i], z.v[i]);
            squares += u.v[i] * u.v[i];
        }
    }
    squares = kr_block_sum<THREADS>(squares, shared);
    const T q = kr_rsqrt_newton(squares * k.per_width + k.eps);
    if (threadIdx.x == 0) k.q[blockIdx.x] = q;
    for (int64_t at = threadIdx.x * N; at < k.width; at += THREADS * N) {
        kr_vec16<T> u = kr_load_vec16_as<T>(k.x, first_x + at, k.x_dtype, k.width - at, aligned), z;
        if (KIND != PLAIN)
            z = kr_silu_of(kr_load_vec16_as<T>(k.z, first_z + at, k.z_dtype, k.width - at, aligned), k.fast);
        const kr_vec16<T> gain = load_gain(k.gain ? k.gain + channel + at : NULL, k.width - at, aligned);
#pragma unroll
        for (int i = 0; i < N; i++) u.v[i] = normed<KIND>(gated<KIND>(u.v[i], z.v[i]), q, gain.v[i], z.v[i]);
        kr_store_vec16_as(k.y, first + at, u, k.y_dtype, k.width - at, aligned);
    }
}

template <typename T> static void walk_with(norm_job<T> *k, int64_t walkers)
{
    k->walkers = walkers;
    k->x_step = walkers * (k->ni + k->x_padding) * kr_element_bytes<T>(k->x_dtype);
    k->z_step = walkers * (k->ni + k->z_padding) * kr_element_bytes<T>(k->z_dtype);
    k->y_step = walkers * k->ni * kr_element_bytes<T>(k->y_dtype);
}

template <typename T, int KIND, bool WHOLE> static void norm_launch(norm_job<T> k, const kr_exec *exec)
{
    const int multiprocessors = kr_multiprocessors(exec);
#define CASE(threads, vecs)                                                                                            \
    do {                                                                                                               \
        const int64_t each = block_of(threads) / threads;                                                              \
        const int64_t most = multiprocessors * (int64_t)ctas_per_sm<T>(threads, vecs, VECS_PER_SM) * each;             \
        walk_with(&k, kr_least(k.no, kr_ceil_div(most, k.ng)));                                                        \
        kr_pdl_launch(exec, norm_kernel<T, threads, vecs, KIND, WHOLE>,                                                \
                      dim3((unsigned)kr_ceil_div(k.walkers *k.ng, each)), block_of(threads), 0, k);                    \
    } while (0)
#define LONG norm_long_kernel<T, 1024, KIND><<<(unsigned)(k.no * k.ng), 1024, 0, kr_stream_of(exec)>>>(k, WHOLE)
    SWITCH_WIDTH(k.width, CASE, LONG)
#undef CASE
#undef LONG
}

template <typename T> static void norm_run(const kr_norm_args *a)
{
    if (a->no * a->ng == 0) return;
    norm_job<T> k = {};
    k.no = a->no, k.ni = a->ni, k.ng = a->ng, k.width = a->ni / a->ng;
    k.x_padding = a->x.row - a->ni, k.z_padding = a->z.data ? a->z.row - a->ni : 0;
    k.x = a->x.data, k.x_dtype = a->x.dtype, k.z = a->z.data, k.z_dtype = a->z.dtype, k.gain = (const T *)a->gain;
    k.y = a->y.data, k.y_dtype = a->y.dtype, k.q = (T *)a->q, k.eps = (T)a->eps, k.fast = kr_is_fast<T>(&a->exec);
    k.per_width = (T)(1 / (double)k.width);
    const bool whole = kr_is_aligned16(k.x) && kr_is_aligned16(k.z) && kr_is_aligned16(k.gain) &&
                       kr_is_aligned16(k.y) && k.width % kr_vec16<T>::N == 0 && k.z_padding % kr_vec16<T>::N == 0 &&
                       k.x_padding % kr_vec16<T>::N == 0;
#define RUN(kind)                                                                                                      \
    do {                                                                                                               \
        if (whole) norm_launch<T, kind, true>(k, &a->exec);                                                            \
        else norm_launch<T, kind, false>(k, &a->exec);                                                                 \
    } while (0)
    if (!k.z) RUN(PLAIN);
    else if (a->norm_first) RUN(NORM_FIRST);
    else RUN(GATE_FIRST);
#undef RUN
}

KR_CUDA_ENTRY(norm, kr_norm_args)
