/* numbers.cuh - functions of float and double under one name, vectors of 16 bytes, division by a constant, and scratch
 * that is handed out piece by piece. */
#ifndef KR_KERNELS_CUDA_NUMBERS_CUH
#define KR_KERNELS_CUDA_NUMBERS_CUH

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#define KR_PI 3.14159265358979323846
#define KR_DEVICE static __device__ __forceinline__

/* ---- functions ---- */

KR_DEVICE float exp_of(float x)
{
    return expf(x);
}
KR_DEVICE double exp_of(double x)
{
    return exp(x);
}
KR_DEVICE float log1p_of(float x)
{
    return log1pf(x);
}
KR_DEVICE double log1p_of(double x)
{
    return log1p(x);
}
KR_DEVICE float tanh_of(float x)
{
    return tanhf(x);
}
KR_DEVICE double tanh_of(double x)
{
    return tanh(x);
}
KR_DEVICE float sqrt_of(float x)
{
    return sqrtf(x);
}
KR_DEVICE double sqrt_of(double x)
{
    return sqrt(x);
}
KR_DEVICE float rsqrt_of(float x)
{
    return rsqrtf(x);
}
KR_DEVICE double rsqrt_of(double x)
{
    return rsqrt(x);
}
KR_DEVICE float abs_of(float x)
{
    return fabsf(x);
}
KR_DEVICE double abs_of(double x)
{
    return fabs(x);
}
KR_DEVICE void sincos_of(float x, float *s, float *c)
{
    sincosf(x, s, c);
}
KR_DEVICE void sincos_of(double x, double *s, double *c)
{
    sincos(x, s, c);
}
KR_DEVICE float fma_of(float a, float b, float c)
{
    return fmaf(a, b, c);
}
KR_DEVICE double fma_of(double a, double b, double c)
{
    return fma(a, b, c);
}

template <typename T> KR_DEVICE T sigmoid_of(T x)
{
    return (T)1 / ((T)1 + exp_of(-x));
}

template <typename T> KR_DEVICE T softplus_of(T x)
{
    return x > (T)20 ? x : log1p_of(exp_of(x));
}

/* ---- memory ---- */

/* n elements that one access moves when their address is a multiple of their size. */
template <typename T, int n> struct alignas(sizeof(T) * n) kr_pack {
    T v[n];
};

template <typename T, int n> KR_DEVICE kr_pack<T, n> load_pack(const T *from)
{
    return *(const kr_pack<T, n> *)from;
}

template <typename T, int n> KR_DEVICE void store_pack(T *to, const kr_pack<T, n> &v)
{
    *(kr_pack<T, n> *)to = v;
}

static inline bool kr_is_aligned(const void *p, size_t bytes)
{
    return (uintptr_t)p % bytes == 0;
}

/* Hands out scratch in 256-byte steps; base NULL only counts. */
typedef struct kr_cuda_scratch {
    char *base;
    size_t used;
} kr_cuda_scratch;

static inline void *kr_take(kr_cuda_scratch *m, int64_t bytes)
{
    char *at = m->base ? m->base + m->used : NULL;
    m->used += ((size_t)bytes + 255) / 256 * 256;
    return at;
}

/* ---- sizes ---- */

static inline int64_t kr_ceil_div(int64_t n, int64_t d)
{
    return (n + d - 1) / d;
}

static inline int64_t kr_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t kr_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Threads of a block for n elements: whole warps, at most `most`. */
static inline int kr_threads_for(int64_t n, int most)
{
    return (int)kr_least(kr_ceil_div(kr_most(n, 1), 32) * 32, most);
}

/* n / d for 0 <= n < 2^31, 1 <= d < 2^31, by a product: the processor has no division. */
typedef struct kr_divisor {
    uint32_t d, factor, shift;
} kr_divisor;

static inline kr_divisor kr_divisor_of(int64_t d)
{
    kr_divisor r = { (uint32_t)d, 0, 0 };
    while (((uint64_t)1 << r.shift) < (uint64_t)d) r.shift++;
    /* ceil(2^(31 + shift) / d), which fits 32 bits; n (factor d - 2^(31 + shift)) < 2^(31 + shift) makes it exact */
    r.factor = (uint32_t)((((uint64_t)1 << (31 + r.shift)) + (uint64_t)d - 1) / (uint64_t)d);
    return r;
}

KR_DEVICE uint32_t quotient(uint32_t n, const kr_divisor &d)
{
    return (uint32_t)(((uint64_t)n * d.factor) >> (31 + d.shift));
}

#endif
