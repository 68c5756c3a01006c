/* layer_norm_cuda.cu - layer norm over groups of the last axis, and its gradients; all architectures, f32 and f64.
 *
 *   x, y [no ni]    gain [ni] or none (1)    bias [ni] or none (0)    mean, q [no ng]
 *   mean = mean_group(x);  q = (mean_group((x - mean)^2) + eps)^-1/2;  y = (x - mean) q gain + bias
 * backward, u = (x - mean) q, w = gain g_y:
 *   g_x = q (w - mean_group(w) - u mean_group(w u));   g_gain = sum over rows of g_y u;   g_bias = sum over rows of g_y
 *
 * A group of a row is one unit of work: of a warp, or if it is wide of a CTA. A unit reads its group several times, all but
 * the first from a cache. Sums over rows: a thread walks down some rows of one channel, and the
 * parts are added in order (reduce_partials.cuh).
 */
#include "kernels/cuda/prim/reduce_partials.cuh"

enum {
    WIDE = 512,    /* channels from which on a group has a CTA */
    THREADS = 256, /* of a CTA */
    CHUNKS = 256,  /* of rows, at most */
    LEAST_ROWS = 16
};

template <typename T> struct norm_job {
    int64_t no, ni, ng, width, x_padding;
    const T *x, *gain, *bias, *given_mean, *given_q, *g_y;
    T *y, *mean, *q; /* forward */
    T *g_x;          /* backward */
    T *gain_parts, *bias_parts;
    int64_t rows; /* of a chunk */
    T eps;
};

/* Of all threads of a unit. */
template <int UNIT, typename T> static __device__ __forceinline__ T unit_sum(T x, T *shared)
{
    return kr_block_sum<UNIT>(x, shared);
}

/* The unit of this thread; < 0: none. */
template <int UNIT> static __device__ __forceinline__ int64_t unit_of(int64_t count)
{
    const int64_t unit = UNIT == 32 ? (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32 : (int64_t)blockIdx.x;
    return unit < count ? unit : -1;
}

template <typename T, int UNIT> static __global__ void __launch_bounds__(THREADS) layer_norm_kernel(const norm_job<T> k)
{
    __shared__ T shared[32];
    const int64_t group = unit_of<UNIT>(k.no * k.ng);
    if (group < 0) return;
    const int64_t lane = threadIdx.x % UNIT, row = group / k.ng, channel = group % k.ng * k.width;
    const T *x = k.x + row * (k.ni + k.x_padding) + channel;
    T sum = 0, squares = 0;
    for (int64_t i = lane; i < k.width; i += UNIT) sum += x[i];
    const T mean = unit_sum<UNIT>(sum, shared) / (T)k.width;
    for (int64_t i = lane; i < k.width; i += UNIT) squares += (x[i] - mean) * (x[i] - mean);
    const T q = kr_rsqrt_newton(unit_sum<UNIT>(squares, shared) / (T)k.width + k.eps);
    if (lane == 0) {
        k.mean[group] = mean;
        k.q[group] = q;
    }
    T *y = k.y + group * k.width;
    for (int64_t i = lane; i < k.width; i += UNIT) {
        const T u = (x[i] - mean) * q, scaled = k.gain ? u * k.gain[channel + i] : u;
        y[i] = k.bias ? scaled + k.bias[channel + i] : scaled;
    }
}

template <typename T, int UNIT> static __global__ void __launch_bounds__(THREADS) grad_x_kernel(const norm_job<T> k)
{
    __shared__ T shared[32];
    const int64_t group = unit_of<UNIT>(k.no * k.ng);
    if (group < 0) return;
    const int64_t lane = threadIdx.x % UNIT, row = group / k.ng, channel = group % k.ng * k.width;
    const T *x = k.x + row * (k.ni + k.x_padding) + channel, *g_y = k.g_y + group * k.width;
    const T mean = k.given_mean[group], q = k.given_q[group];
    T w_sum = 0, wu_sum = 0;
    for (int64_t i = lane; i < k.width; i += UNIT) {
        const T w = k.gain ? k.gain[channel + i] * g_y[i] : g_y[i];
        w_sum += w;
        wu_sum += w * ((x[i] - mean) * q);
    }
    const T of_w = unit_sum<UNIT>(w_sum, shared) / (T)k.width, of_wu = unit_sum<UNIT>(wu_sum, shared) / (T)k.width;
    for (int64_t i = lane; i < k.width; i += UNIT) {
        const T w = k.gain ? k.gain[channel + i] * g_y[i] : g_y[i], u = (x[i] - mean) * q;
        k.g_x[group * k.width + i] = q * (w - of_w - u * of_wu);
    }
}

/* Parts of g_gain and g_bias: of the rows of chunk blockIdx.y. */
template <typename T> static __global__ void __launch_bounds__(128) parameter_kernel(const norm_job<T> k)
{
    const int64_t i = (int64_t)blockIdx.x * 128 + threadIdx.x, chunk = blockIdx.y;
    if (i >= k.ni) return;
    T gain = 0, bias = 0;
    for (int64_t o = chunk * k.rows; o < kr_least((chunk + 1) * k.rows, k.no); o++) {
        const int64_t group = o * k.ng + i / k.width;
        const T g_y = k.g_y[o * k.ni + i], x = k.x[o * (k.ni + k.x_padding) + i];
        gain += g_y * ((x - k.given_mean[group]) * k.given_q[group]);
        bias += g_y;
    }
    if (k.gain_parts) k.gain_parts[chunk * k.ni + i] = gain;
    if (k.bias_parts) k.bias_parts[chunk * k.ni + i] = bias;
}

static unsigned blocks_of(int64_t units, int64_t width)
{
    return (unsigned)(width < WIDE ? kr_ceil_div(units, THREADS / 32) : units);
}

template <typename T> static void layer_norm_run(const kr_layer_norm_args *a)
{
    if (a->no * a->ni == 0) return;
    norm_job<T> k = {};
    k.no = a->no, k.ni = a->ni, k.ng = a->ng, k.width = a->ni / a->ng, k.x_padding = a->x.row - a->ni;
    k.x = (const T *)a->x.data, k.gain = (const T *)a->gain, k.bias = (const T *)a->bias;
    k.y = (T *)a->y, k.mean = (T *)a->mean, k.q = (T *)a->q, k.eps = (T)a->eps;
    const unsigned blocks = blocks_of(k.no * k.ng, k.width);
    if (k.width < WIDE) layer_norm_kernel<T, 32><<<blocks, THREADS, 0, kr_stream_of(&a->exec)>>>(k);
    else layer_norm_kernel<T, THREADS><<<blocks, THREADS, 0, kr_stream_of(&a->exec)>>>(k);
}

static int64_t rows_of_chunk(const kr_layer_norm_bwd_args *a)
{
    return kr_most(LEAST_ROWS, kr_ceil_div(a->no, CHUNKS));
}

template <typename T> static int64_t part_bytes(const kr_layer_norm_bwd_args *a)
{
    return kr_ceil_div(a->no, rows_of_chunk(a)) * a->ni * (int64_t)sizeof(T);
}

template <typename T> static size_t layer_norm_bwd_scratch(const kr_layer_norm_bwd_args *a)
{
    kr_cuda_scratch m = { NULL, 0 };
    if (a->g_gain) kr_scratch_take(&m, part_bytes<T>(a));
    if (a->g_bias) kr_scratch_take(&m, part_bytes<T>(a));
    return m.used;
}

template <typename T> static void layer_norm_bwd_run(const kr_layer_norm_bwd_args *a)
{
    cudaStream_t stream = kr_stream_of(&a->exec);
    if (a->no * a->ni == 0) { /* sums of nothing */
        if (a->g_gain && a->ni > 0) cudaMemsetAsync(a->g_gain, 0, (size_t)a->ni * sizeof(T), stream);
        if (a->g_bias && a->ni > 0) cudaMemsetAsync(a->g_bias, 0, (size_t)a->ni * sizeof(T), stream);
        return;
    }
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    norm_job<T> k = {};
    k.no = a->no, k.ni = a->ni, k.ng = a->ng, k.width = a->ni / a->ng, k.x_padding = a->x.row - a->ni;
    k.x = (const T *)a->x.data, k.gain = (const T *)a->gain, k.g_y = (const T *)a->g_y;
    k.given_mean = (const T *)a->mean, k.given_q = (const T *)a->q, k.g_x = (T *)a->g_x;
    k.rows = rows_of_chunk(a);
    if (a->g_gain) k.gain_parts = (T *)kr_scratch_take(&m, part_bytes<T>(a));
    if (a->g_bias) k.bias_parts = (T *)kr_scratch_take(&m, part_bytes<T>(a));
    const unsigned blocks = blocks_of(k.no * k.ng, k.width);
    if (k.g_x && k.width < WIDE) grad_x_kernel<T, 32><<<blocks, THREADS, 0, stream>>>(k);
    else if (k.g_x) grad_x_kernel<T, THREADS><<<blocks, THREADS, 0, stream>>>(k);
    if (!k.gain_parts && !k.bias_parts) return;
    const int64_t chunks = kr_ceil_div(k.no, k.rows);
    parameter_kernel<T><<<dim3((unsigned)kr_ceil_div(k.ni, 128), (unsigned)chunks), 128, 0, stream>>>(k);
    if (a->g_gain) kr_reduce_partials_run<T>(stream, k.gain_parts, chunks, k.ni, { (T *)a->g_gain, NULL, k.ni, 1 });
    if (a->g_bias) kr_reduce_partials_run<T>(stream, k.bias_parts, chunks, k.ni, { (T *)a->g_bias, NULL, k.ni, 1 });
}

KR_CUDA_ENTRY(layer_norm, kr_layer_norm_args)
KR_CUDA_ENTRY_SCRATCH(layer_norm_bwd, kr_layer_norm_bwd_args)
