/* optimizer_cuda.cu - steps of AdamW and of SGD with momentum, and exponential moving averages.
 *
 *   adamw:  m += (1 - beta1) (h - m);   v += (1 - beta2) (h^2 - v);   w -= decay w + rate m / (root v^1/2 + eps)
 *   sgd:    velocity = momentum velocity + gain h;   d = velocity or h + momentum velocity;   w -= decay w + rate d
 *   lerp:   y += c (x - y)
 *
 * See kernels/args/optimizer_args.h. A thread has a 16-byte vector of adjacent elements; constants are rounded once, on the
 * host.
 */
#include "kernels/cuda/prim/block_reduce.cuh"

enum { THREADS = 256 };

/* A gradient as the step uses it. */
template <typename T> struct taken {
    void *g;
    kr_dtype dtype;
    T scale, clip;
    bool clears;
};

template <typename T> static taken<T> taken_of(const kr_taken_grad *grad)
{
    return { grad->g.data, grad->g.dtype, (T)grad->scale, (T)grad->clip, grad->clears };
}

template <typename T>
static __device__ __forceinline__ kr_vec16<T> take(const taken<T> &grad, int64_t i, int64_t left, bool aligned)
{
    enum { N = kr_vec16<T>::N };
    kr_vec16<T> h;
    if (kr_is_16bit(grad.dtype)) {
        const uint16_t *g = (const uint16_t *)grad.g + i;
#pragma unroll
        for (int e = 0; e < N; e++) h.v[e] = e < left ? (T)kr_from_16bit(g[e], grad.dtype) : (T)0;
    } else {
        h = kr_load_vec16((const T *)grad.g + i, left, aligned);
    }
#pragma unroll
    for (int e = 0; e < N; e++) {
        const T scaled = grad.scale * h.v[e];
        h.v[e] = scaled > grad.clip ? grad.clip : scaled < -grad.clip ? -grad.clip : scaled;
    }
    return h;
}

/* Zeroes the gradient, if requested. */
template <typename T>
static __device__ __forceinline__ void clear(const taken<T> &grad, int64_t i, int64_t left, bool aligned)
{
    kr_vec16<T> zero;
#pragma unroll
    for (int e = 0; e < kr_vec16<T>::N; e++) zero.v[e] = 0;
    if (!grad.clears) return;
    if (!kr_is_16bit(grad.dtype)) kr_store_vec16((T *)grad.g + i, zero, left, aligned);
    else
        for (int e = 0; e < kr_vec16<T>::N && e < left; e++) ((uint16_t *)grad.g)[i + e] = 0;
}

#define VEC_OF_THREAD()                                                                                                \
    enum { N = kr_vec16<T>::N };                                                                                       \
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N, left = k.n - i;                               \
    if (left <= 0) return

template <typename T> static unsigned blocks_of(int64_t n)
{
    return (unsigned)kr_ceil_div(n, THREADS * kr_vec16<T>::N);
}

/* ---- adamw ---- */

template <typename T> struct adamw_job {
    int64_t n;
    taken<T> grad;
    T *w, *m, *v;
    T of_mean, of_square, eps, rate, root, decay; /* 1 - beta1, 1 - beta2 */
    bool cautious, aligned;
};

/* EACH vectors that begin at i, THREADS apart: all are loaded before any is written. */
enum { EACH = 4 };
template <typename T> static __device__ __forceinline__ void adamw_vecs(const adamw_job<T> &k, int64_t i)
{
    enum { N = kr_vec16<T>::N };
    kr_vec16<T> w[EACH], m[EACH], v[EACH], h[EACH];
#pragma unroll
    for (int p = 0; p < EACH; p++) {
        const int64_t at = i + p * THREADS * N, left = k.n - at;
        w[p] = kr_load_vec16(k.w + at, left, k.aligned);
        m[p] = kr_load_vec16(k.m + at, left, k.aligned);
        v[p] = kr_load_vec16(k.v + at, left, k.aligned);
        h[p] = take(k.grad, at, left, k.aligned);
    }
#pragma unroll
    for (int p = 0; p < EACH; p++) {
        const int64_t at = i + p * THREADS * N, left = k.n - at;
#pragma unroll
        for (int e = 0; e < N; e++) {
            T *mean = &m[p].v[e], *square = &v[p].v[e], *weight = &w[p].v[e];
            const T g = h[p].v[e];
            *mean += k.of_mean * (g - *mean);
            *square += k.of_square * (g * g - *square);
            const bool decays = !k.cautious || (*weight >= 0) == (*mean >= 0);
            const T step = k.rate * *mean / (k.root * kr_sqrt(*square) + k.eps);
            *weight -= decays ? fma(k.decay, *weight, step) : step; /* the same bits whether or not some decay */
        }
        kr_store_vec16(k.w + at, w[p], left, k.aligned);
        kr_store_vec16(k.m + at, m[p], left, k.aligned);
        kr_store_vec16(k.v + at, v[p], left, k.aligned);
        clear(k.grad, at, left, k.aligned);
    }
}

/* Several tensors in one launch: the CTAs of tensor i begin with number first[i]. */
enum { MAX_TENSORS = 24 };
template <typename T> struct adamw_jobs {
    adamw_job<T> of[MAX_TENSORS];
    unsigned first[MAX_TENSORS];
    int count;
};

template <typename T>
static __global__ void __launch_bounds__(THREADS) adamw_kernel(const __grid_constant__ adamw_jobs<T> k)
{
    int i = 0;
    while (i + 1 < k.count && k.first[i + 1] <= blockIdx.x) i++;
    adamw_vecs(k.of[i], ((int64_t)(blockIdx.x - k.first[i]) * THREADS * EACH + threadIdx.x) * kr_vec16<T>::N);
}

template <typename T> static adamw_job<T> job_of(const kr_adamw_args *a)
{
    return { a->n,
             taken_of<T>(&a->grad),
             (T *)a->w,
             (T *)a->m,
             (T *)a->v,
             (T)(1 - a->beta1),
             (T)(1 - a->beta2),
             (T)a->eps,
             (T)a->rate,
             (T)a->root,
             (T)a->decay,
             a->cautious,
             kr_is_aligned16(a->w) && kr_is_aligned16(a->m) && kr_is_aligned16(a->v) &&
                 kr_is_aligned16(a->grad.g.data) };
}

template <typename T> static void adamw_each(const kr_exec *exec, int64_t count, const kr_adamw_args *each)
{
    for (int64_t i = 0; i < count;) {
        adamw_jobs<T> k;
        int64_t blocks = 0;
        for (k.count = 0; i < count && k.count < MAX_TENSORS; i++) {
            if (each[i].n == 0) continue;
            const int64_t own = kr_ceil_div(each[i].n, THREADS * EACH * kr_vec16<T>::N);
            if (blocks + own > INT32_MAX) break;
            k.first[k.count] = (unsigned)blocks;
            k.of[k.count++] = job_of<T>(&each[i]);
            blocks += own;
        }
        if (k.count > 0) adamw_kernel<T><<<(unsigned)blocks, THREADS, 0, kr_stream_of(exec)>>>(k);
    }
}

template <typename T> static void adamw_run(const kr_adamw_args *a)
{
    adamw_each<T>(&a->exec, 1, a);
}

KR_CUDA_ENTRY(adamw, kr_adamw_args)

extern "C" void kr_cuda_f32_adamw_each(const kr_exec *exec, int64_t count, const kr_adamw_args *each)
{
    adamw_each<float>(exec, count, each);
}

extern "C" void kr_cuda_f64_adamw_each(const kr_exec *exec, int64_t count, const kr_adamw_args *each)
{
    adamw_each<double>(exec, count, each);
}

/* ---- sgd ---- */

template <typename T> struct sgd_job {
    int64_t n;
    taken<T> grad;
    T *w, *velocity, *direction;
    T momentum, gain, penalty, rate, decay;
    bool is_first, nesterov, aligned;
};

template <typename T> static __global__ void __launch_bounds__(THREADS) sgd_kernel(const sgd_job<T> k)
{
    VEC_OF_THREAD();
    kr_vec16<T> h = take(k.grad, i, left, k.aligned), w, velocity, d;
    if (k.penalty != 0 || !k.direction) w = kr_load_vec16(k.w + i, left, k.aligned);
    if (k.velocity && !k.is_first) velocity = kr_load_vec16(k.velocity + i, left, k.aligned);
#pragma unroll
    for (int e = 0; e < N; e++) {
        if (k.penalty != 0) h.v[e] += k.penalty * w.v[e];
        d.v[e] = h.v[e];
        if (k.velocity) {
            velocity.v[e] = k.is_first ? h.v[e] : k.momentum * velocity.v[e] + k.gain * h.v[e];
            d.v[e] = k.nesterov ? h.v[e] + k.momentum * velocity.v[e] : velocity.v[e];
        }
        if (!k.direction) w.v[e] -= k.decay * w.v[e] + k.rate * d.v[e];
    }
    clear(k.grad, i, left, k.aligned);
    if (k.velocity) kr_store_vec16(k.velocity + i, velocity, left, k.aligned);
    if (k.direction) kr_store_vec16(k.direction + i, d, left, k.aligned);
    else kr_store_vec16(k.w + i, w, left, k.aligned);
}

template <typename T> static void sgd_run(const kr_sgd_args *a)
{
    if (a->n == 0) return;
    const sgd_job<T> k = { a->n,
                           taken_of<T>(&a->grad),
                           (T *)a->w,
                           (T *)a->velocity,
                           (T *)a->direction,
                           (T)a->momentum,
                           (T)a->gain,
                           (T)a->penalty,
                           (T)a->rate,
                           (T)a->decay,
                           a->is_first,
                           a->nesterov,
                           kr_is_aligned16(a->w) && kr_is_aligned16(a->velocity) && kr_is_aligned16(a->direction) &&
                               kr_is_aligned16(a->grad.g.data) };
    sgd_kernel<T><<<blocks_of<T>(a->n), THREADS, 0, kr_stream_of(&a->exec)>>>(k);
}

KR_CUDA_ENTRY(sgd, kr_sgd_args)

/* ---- lerp ---- */

template <typename T> struct lerp_job {
    int64_t n;
    const T *x;
    T *y, c;
    bool aligned;
};

template <typename T> static __global__ void __launch_bounds__(THREADS) lerp_kernel(const lerp_job<T> k)
{
    VEC_OF_THREAD();
    const kr_vec16<T> x = kr_load_vec16(k.x + i, left, k.aligned);
    kr_vec16<T> y = kr_load_vec16(k.y + i, left, k.aligned);
#pragma unroll
    for (int e = 0; e < N; e++) y.v[e] += k.c * (x.v[e] - y.v[e]);
    kr_store_vec16(k.y + i, y, left, k.aligned);
}

template <typename T> static void lerp_run(const kr_lerp_args *a)
{
    if (a->n == 0) return;
    const lerp_job<T> k = { a->n, (const T *)a->x, (T *)a->y, (T)a->c, kr_is_aligned16(a->x) && kr_is_aligned16(a->y) };
    lerp_kernel<T><<<blocks_of<T>(a->n), THREADS, 0, kr_stream_of(&a->exec)>>>(k);
}

KR_CUDA_ENTRY(lerp, kr_lerp_args)
