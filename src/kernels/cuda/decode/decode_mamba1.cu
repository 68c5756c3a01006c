/* decode_mamba1.cu - one token of the Mamba-1 selective scan, in place: dt projection, scan, gate; all architectures, f32
 * and f64.
 *
 *   s = clamp(softplus(low w^T + dt_bias));   H <- exp(-s exp(a_log)) H + s B x;   y = (C H + D x) silu(z)
 *   x, z [i], low [x], b, c [r] in rows; w [i x]; H [b i r]; formulas: kernels/args/decode_args.h
 *
 * Four lanes per channel: lane l has elements 4 l .. 4 l + 3 of r and every 16 further, and elements l, l + 4, .. of x. The
 * first of them are loaded before the kernel that makes low, B and C ends. Lanes are added pairwise.
 */
#include "kernels/cuda/prim/pdl.cuh"

enum { THREADS = 128, LANES = 4, CHANNELS = THREADS / LANES, FIRST = 16 /* elements of w that a lane loads early */ };

template <typename T> struct scan_job {
    int64_t ni, nr, nx, x_stride, stride;
    const T *x, *z, *low, *b, *c, *dt_bias, *a_log, *d;
    const void *w;
    kr_dtype w_dtype;
    T eps, dt_min, dt_max;
    T *state, *y;
};

template <typename T> static __device__ __forceinline__ T softplus(T x)
{
    return x > (T)20 ? x : log1p(kr_exp(x));
}

template <typename T> static __device__ __forceinline__ T lanes4_sum(T x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 2);
    return x + __shfl_xor_sync(0xffffffffu, x, 1);
}

/* 1 / RMS of n elements, by a warp; eps 0: 1. */
template <typename T> static __device__ __forceinline__ T scale_of(const T *x, int64_t n, T eps)
{
    if (!(eps > 0)) return (T)1;
    T squares = 0;
    for (int64_t i = threadIdx.x % 32; i < n; i += 32) squares += x[i] * x[i];
    return 1 / kr_sqrt(kr_warp_sum(squares) / (T)n + eps);
}

/* Updates elements r .. r + 3 of a channel; returns their contribution to y. */
template <typename T>
static __device__ __forceinline__ T update_state(const scan_job<T> &k, T *state, const T *a_log, const T *b, const T *c,
                                                 int64_t r, const T held[LANES], const T rate[LANES], T step, T weight)
{
    T sum = 0;
#pragma unroll
    for (int e = 0; e < LANES; e++) {
        if (r + e >= k.nr) break;
        const T h = kr_exp(-step * kr_exp(rate[e])) * held[e] + weight * b[r + e];
        state[r + e] = h;
        sum += h * c[r + e];
    }
    return sum;
}

template <typename T>
static __device__ __forceinline__ void load_four(const T *state, const T *a_log, int64_t r, int64_t nr, T held[LANES],
                                                 T rate[LANES])
{
#pragma unroll
    for (int e = 0; e < LANES; e++) {
        held[e] = r + e < nr ? state[r + e] : (T)0;
        rate[e] = r + e < nr ? a_log[r + e] : (T)0;
    }
}

/* Grid: channels by CHANNELS, rows. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) decode_scan_kernel(const __grid_constant__ scan_job<T> k)
{
    const int lane = threadIdx.x % LANES;
    const int64_t row = blockIdx.y, own = (int64_t)blockIdx.x * CHANNELS + threadIdx.x / LANES;
    const int64_t i = kr_least(own, k.ni - 1); /* lanes past the end repeat the last channel and store nothing */
    T *state = k.state + (row * k.ni + i) * k.nr;
    const T *a_log = k.a_log + i * k.nr;
    T w[FIRST], held[LANES], rate[LANES];
#pragma unroll
    for (int e = 0; e < FIRST; e++) {
        const int64_t x = lane + e * LANES;
        w[e] = x < k.nx ? kr_element<T>(k.w, i * k.nx + x, k.w_dtype) : (T)0;
    }
    load_four(state, a_log, lane * LANES, k.nr, held, rate);
    const T bias = k.dt_bias[i], d = k.d[i];
    kr_pdl_wait();
    const T *low = k.low + row * k.stride, *b = k.b + row * k.stride, *c = k.c + row * k.stride;
    const T x = k.x[row * k.x_stride + i], z = k.z[row * k.x_stride + i];
    T raw = 0;
#pragma unroll
    for (int e = 0; e < FIRST; e++)
        if (lane + e * LANES < k.nx) raw += low[lane + e * LANES] * w[e];
    for (int64_t e = lane + FIRST * LANES; e < k.nx; e += LANES)
        raw += low[e] * kr_element<T>(k.w, i * k.nx + e, k.w_dtype);
    T step = softplus(lanes4_sum(raw) * scale_of(low, k.nx, k.eps) + bias);
    step = step < k.dt_min ? k.dt_min : step;
    step = step > k.dt_max ? k.dt_max : step;
    const T weight = step * x * scale_of(b, k.nr, k.eps), of_c = scale_of(c, k.nr, k.eps);
    if (own >= k.ni) return; /* groups of four lanes leave together */
    T sum = 0;
    for (int64_t r = lane * LANES; r - lane * LANES < k.nr; r += LANES * LANES) {
        if (r >= LANES * LANES) load_four(state, a_log, r, k.nr, held, rate);
        sum += update_state(k, state, a_log, b, c, r, held, rate, step, weight);
    }
    const unsigned group = 0xfu << threadIdx.x % 32 / LANES * LANES;
    sum += __shfl_xor_sync(group, sum, 2);
    sum += __shfl_xor_sync(group, sum, 1);
    if (lane == 0) k.y[row * k.ni + i] = (sum * of_c + d * x) * kr_silu(z);
}

template <typename T> static void decode_scan_run(const kr_decode_scan_args *a)
{
    if (a->nb * a->ni == 0) return;
    scan_job<T> k = {};
    k.ni = a->ni, k.nr = a->nr, k.nx = a->nx, k.x_stride = a->x.row, k.stride = a->low.row;
    k.x = (const T *)a->x.data, k.z = (const T *)a->z.data, k.low = (const T *)a->low.data;
    k.b = (const T *)a->b.data, k.c = (const T *)a->c.data;
    k.dt_bias = (const T *)a->dt_bias, k.a_log = (const T *)a->a_log, k.d = (const T *)a->d;
    k.w = a->w.data, k.w_dtype = a->w.dtype;
    k.eps = (T)a->eps, k.dt_min = (T)a->dt_min, k.dt_max = (T)a->dt_max;
    k.state = (T *)a->state, k.y = (T *)a->y.data;
    const int64_t most = 65535;
    for (int64_t row = 0; row < a->nb; row += most) {
        const dim3 grid((unsigned)kr_ceil_div(k.ni, CHANNELS), (unsigned)kr_least(a->nb - row, most));
        kr_pdl_launch(&a->exec, decode_scan_kernel<T>, grid, THREADS, 0, k);
        k.x += most * k.x_stride, k.z += most * k.x_stride;
        k.low += most * k.stride, k.b += most * k.stride, k.c += most * k.stride;
        k.state += most * k.ni * k.nr, k.y += most * k.ni;
    }
}

KR_CUDA_ENTRY(decode_scan, kr_decode_scan_args)
