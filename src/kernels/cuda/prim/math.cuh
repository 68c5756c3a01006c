/* math.cuh - shared by all kernels: float and double functions under one name, sizes, division by a constant, vector
 * accesses, scratch allocation. */
#ifndef KR_KERNELS_CUDA_PRIM_MATH_CUH
#define KR_KERNELS_CUDA_PRIM_MATH_CUH

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#define KR_PI 3.14159265358979323846
#define KR_DEVICE static __device__ __forceinline__

/* ---- functions ---- */

/* One name for the float and double functions of the C library. */
#define KR_EITHER(name, of_float, of_double)                                                                           \
    KR_DEVICE float name(float x)                                                                                      \
    {                                                                                                                  \
        return of_float(x);                                                                                            \
    }                                                                                                                  \
    KR_DEVICE double name(double x)                                                                                    \
    {                                                                                                                  \
        return of_double(x);                                                                                           \
    }
KR_EITHER(kr_exp, expf, exp)
KR_EITHER(kr_log, logf, log)
KR_EITHER(kr_log1p, log1pf, log1p)
KR_EITHER(kr_tanh, tanhf, tanh)
KR_EITHER(kr_sqrt, sqrtf, sqrt)
KR_EITHER(kr_rsqrt, rsqrtf, rsqrt)
KR_EITHER(kr_abs, fabsf, fabs)
#undef KR_EITHER

KR_DEVICE void kr_sincos(float x, float *s, float *c)
{
    sincosf(x, s, c);
}
KR_DEVICE void kr_sincos(double x, double *s, double *c)
{
    sincos(x, s, c);
}
KR_DEVICE float kr_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}
KR_DEVICE double kr_fma(double a, double b, double c)
{
    return fma(a, b, c);
}

template <typename T> KR_DEVICE T kr_sigmoid(T x)
{
    return (T)1 / ((T)1 + kr_exp(-x));
}

template <typename T> KR_DEVICE T kr_softplus(T x)
{
    return x > (T)20 ? x : kr_log1p(kr_exp(x));
}

/* Sum over the lanes of a warp, pairwise; all of them get it. */
template <typename T> KR_DEVICE T kr_warp_sum(T x)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* ---- sizes ---- */

static __host__ __device__ inline int64_t kr_ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static __host__ __device__ inline int64_t kr_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static __host__ __device__ inline int64_t kr_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Threads of a CTA for n elements: whole warps, at most `most`. */
static inline int kr_threads_for(int64_t n, int most)
{
    return (int)kr_least(kr_ceil_div(kr_most(n, 1), 32) * 32, most);
}

/* n / d for 0 <= n < 2^31, 1 <= d < 2^31, by a multiplication: the GPU has no integer division. */
typedef struct kr_divisor {
    uint32_t d, factor, shift;
} kr_divisor;

static inline kr_divisor kr_divisor_of(int64_t d)
{
    kr_divisor r = { (uint32_t)d, 0, 0 };
    while (((uint64_t)1 << r.shift) < (uint64_t)d) r.shift++;
    /* ceil(2^(31 + shift) / d), which fits in 32 bits; n (factor d - 2^(31 + shift)) < 2^(31 + shift) makes it exact */
    r.factor = (uint32_t)((((uint64_t)1 << (31 + r.shift)) + (uint64_t)d - 1) / (uint64_t)d);
    return r;
}

KR_DEVICE uint32_t kr_quotient(uint32_t n, const kr_divisor &d)
{
    return (uint32_t)(((uint64_t)n * d.factor) >> (31 + d.shift));
}

/* ---- memory ---- */

/* n elements moved by one access when their address is a multiple of their size. */
template <typename T, int n> struct alignas(sizeof(T) * n) kr_vector {
    T v[n];
};

template <typename T, int n> KR_DEVICE kr_vector<T, n> kr_load_vector(const T *from)
{
    return *(const kr_vector<T, n> *)from;
}

template <typename T, int n> KR_DEVICE void kr_store_vector(T *to, const kr_vector<T, n> &v)
{
    *(kr_vector<T, n> *)to = v;
}

static inline bool kr_is_aligned(const void *p, size_t bytes)
{
    return (uintptr_t)p % bytes == 0;
}

static inline size_t kr_padded_bytes(int64_t bytes) /* allocations begin at multiples of 256 */
{
    return (size_t)kr_ceil_div(bytes, 256) * 256;
}

/* Allocates from the scratch buffer; base NULL: only counts. */
typedef struct kr_cuda_scratch {
    char *base;
    size_t used;
} kr_cuda_scratch;

static inline void *kr_scratch_take(kr_cuda_scratch *m, int64_t bytes)
{
    char *at = m->base ? m->base + m->used : NULL;
    m->used += kr_padded_bytes(bytes);
    return at;
}

#endif
