/* decode_linear.cuh - shared by the code paths of y = base + norm(x, z) W^T + bias: the job, and the epilogue of an output.
 */
#ifndef KR_KERNELS_CUDA_DECODE_DECODE_LINEAR_CUH
#define KR_KERNELS_CUDA_DECODE_DECODE_LINEAR_CUH

#include "kernels/cuda/prim/gemv_parts.cuh"
#include "kernels/cuda/prim/pdl.cuh"

enum { KR_MOST_TAPS = 4 };

template <typename T> struct kr_linear_job {
    int64_t nm, nn, nk, padded, width, ng, x_m, z_m, base_m, y_m; /* padded: nk rounded up to chunks */
    const void *x;                                                /* of T, bf16 or f16 */
    const T *z, *gain, *bias, *base, *conv_bias;
    const void *w, *taps;
    T *y, *window;
    T eps;
    int64_t conv_from, nc, nt;
    const T *squares; /* [m nsquares]; NULL: computed from x */
    int64_t nsquares;
    kr_dtype taps_dtype, x_dtype;
    bool has_norm, norm_first, aligned; /* aligned: rows of w allow 16-byte loads */
};

template <typename T> static inline kr_linear_job<T> kr_linear_job_of(const kr_decode_linear_args *a)
{
    kr_linear_job<T> k = {};
    k.nm = a->nm, k.nn = a->nn, k.nk = a->nk, k.ng = a->ng, k.width = a->nk / a->ng;
    k.padded = kr_ceil_div(a->nk, KR_CHUNK) * KR_CHUNK;
    k.aligned = a->nk % KR_CHUNK == 0 && kr_is_aligned16(a->w.data);
    k.x_m = a->x.row, k.z_m = a->z.row, k.base_m = a->base.row, k.y_m = a->y.row;
    k.x = a->x.data, k.x_dtype = a->x.dtype, k.z = (const T *)a->z.data, k.gain = (const T *)a->gain;
    k.bias = (const T *)a->bias, k.base = (const T *)a->base.data, k.conv_bias = (const T *)a->conv_bias;
    k.w = a->w.data, k.taps = a->taps.data, k.taps_dtype = a->taps.dtype;
    k.y = (T *)a->y.data, k.window = (T *)a->window;
    k.eps = (T)a->eps;
    k.squares = (const T *)a->squares, k.nsquares = a->nsquares;
    k.conv_from = a->conv_from, k.nc = a->nc, k.nt = a->nt;
    k.has_norm = a->has_norm, k.norm_first = a->norm_first;
    return k;
}

/* Sum of the given squares of row m, by the lanes of a warp. */
template <typename T> static __device__ __forceinline__ T kr_row_squares(const kr_linear_job<T> &k, int64_t m)
{
    T sum = 0;
    for (int64_t i = threadIdx.x % 32; i < k.nsquares; i += 32) sum += k.squares[m * k.nsquares + i];
    return kr_warp_sum(sum);
}

/* Does the product round its operands to bf16? */
static inline bool kr_decode_autocasts(const kr_decode_linear_args *a)
{
    return a->exec.precision == KR_PRECISION_BF16 && a->w.dtype == KR_DTYPE_BF16;
}

/* ---- epilogue ---- */

/* Operands of an output's epilogue, loaded before its sum is known. */
template <typename T> struct kr_extras {
    T base, conv_bias, past[KR_MOST_TAPS], tap[KR_MOST_TAPS];
};

template <typename T> static __device__ __forceinline__ bool kr_is_convolved(const kr_linear_job<T> &k, int64_t n)
{
    return n >= k.conv_from && n - k.conv_from < k.nc;
}

template <typename T>
static __device__ __forceinline__ kr_extras<T> kr_fetch_extras(const kr_linear_job<T> &k, int64_t m, int64_t n,
                                                               bool in_range)
{
    kr_extras<T> x = {};
    if (!in_range) return x;
    if (k.bias) x.base = k.bias[n];
    if (k.base) x.base += k.base[m * k.base_m + n];
    if (!kr_is_convolved(k, n)) return x;
    const int64_t c = n - k.conv_from, at = (m * k.nc + c) * k.nt;
    if (k.conv_bias) x.conv_bias = k.conv_bias[c];
    if (k.nt != KR_MOST_TAPS) return x;
#pragma unroll
    for (int t = 0; t < KR_MOST_TAPS; t++) {
        x.past[t] = t + 1 < KR_MOST_TAPS ? k.window[at + t + 1] : (T)0;
        x.tap[t] = kr_element<T>(k.taps, c * KR_MOST_TAPS + t, k.taps_dtype);
    }
    return x;
}

/* Any number of taps; same summation order as the four-tap case. */
template <typename T> static __device__ T kr_convolve_long(const kr_linear_job<T> &k, int64_t at, int64_t c, T sum, T v)
{
    for (int64_t t = 0; t < k.nt; t++) {
        const T past = t + 1 < k.nt ? k.window[at + t + 1] : v;
        k.window[at + t] = past;
        sum += past * kr_element<T>(k.taps, c * k.nt + t, k.taps_dtype);
    }
    return sum;
}

template <typename T>
static __device__ __forceinline__ void kr_store_output(const kr_linear_job<T> &k, int64_t m, int64_t n, T v,
                                                       kr_extras<T> x)
{
    v += x.base;
    if (kr_is_convolved(k, n)) {
        const int64_t c = n - k.conv_from, at = (m * k.nc + c) * k.nt;
        T sum = x.conv_bias;
        x.past[KR_MOST_TAPS - 1] = v;
        if (k.nt == KR_MOST_TAPS) {
#pragma unroll
            for (int t = 0; t < KR_MOST_TAPS; t++) {
                k.window[at + t] = x.past[t];
                sum += x.past[t] * x.tap[t];
            }
        } else {
            sum = kr_convolve_long(k, at, c, sum, v);
        }
        v = kr_silu(sum);
    }
    k.y[m * k.y_m + n] = v;
}

#endif
