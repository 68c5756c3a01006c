/* quaternion_cuda.cu - unit quaternions from generators, and rows rotated by quaternions; gradients. All architectures, f32
 * and f64.
 *
 *   raw [no nj 3]    dt [no]    q [no nj 4];   x, y [no nm nh nr]    cum [no nh nj 4]
 *   exp:    q = (cos f, n sin f),  f = dt k tanh(rho),  k = range pi/2,  rho = |raw|, n = raw / rho
 *   rotate: y = conj(cum) (x) x for the first nj blocks of four of a row, the rest is copied
 * backward:
 *   exp:    g_raw = n g_f dt k (1 - tanh^2(rho)) + s (g_v - n <n, g_v>),  g_dt = sum_j g_f k tanh(rho),
 *           g_f = cos f <n, g_v> - sin f g_w,  s = sin f / rho
 *   rotate: g_x = cum (x) g_y,  g_cum = sum over m of x (x) conj(g_y)
 *
 * exp: one thread per quaternion; generators, three elements each, go through shared memory, so that accesses are
 * coalesced. Backward a CTA has whole tokens o, or a part of one, and sums their terms of g_dt. rotate: one thread per
 * (token, head, block of four), for all ranks; blocks beyond nj are copied.
 */
#include "kernels/cuda/ops/quaternion.cuh"
#include "kernels/args/mamba3_args.h"

#include <cuda_bf16.h>

enum { THREADS = 256 };

/* ---- exp ---- */

template <typename T> struct generator {
    T x, y, z; /* direction, 0 where there is none */
    T rho, u;  /* length, its tanh */
    T dt_k;    /* dt k */
    T sin_f, cos_f;
};

/* Powers of 2 by which vectors beyond `limit` or below 1 / limit are scaled, so that squares neither overflow nor
 * underflow. */
KR_DEVICE void range_limits(float *limit, float *factor)
{
    *limit = 0x1p60f, *factor = 0x1p100f;
}
KR_DEVICE void range_limits(double *limit, double *factor)
{
    *limit = 0x1p400, *factor = 0x1p700;
}

/* A NaN in any entry stays in the length. */
template <typename T> KR_DEVICE generator<T> generator_of(T x, T y, T z, T dt_k)
{
    generator<T> g;
    T limit, factor, most = kr_abs(x);
    range_limits(&limit, &factor);
    most = kr_abs(y) < most ? most : kr_abs(y);
    most = kr_abs(z) < most ? most : kr_abs(z);
    const T scale = most > limit ? 1 / factor : most < 1 / limit ? factor : (T)1;
    const T bwd_job = most > limit ? factor : most < 1 / limit ? 1 / factor : (T)1;
    x *= scale, y *= scale, z *= scale;
    const T square = kr_fma(z, z, kr_fma(y, y, x * x)), inverse = square == (T)0 ? (T)0 : kr_rsqrt(square);
    g.x = x * inverse, g.y = y * inverse, g.z = z * inverse;
    g.rho = square * inverse * bwd_job;
    g.u = kr_tanh(g.rho);
    g.dt_k = dt_k;
    kr_sincos(dt_k * g.u, &g.sin_f, &g.cos_f);
    return g;
}

/* Loads elements first .. first+count-1 of an array of three numbers each, to shared memory. */
template <typename T> KR_DEVICE void load_threes(const T *from, int64_t first, int64_t count, T *to)
{
    for (int i = threadIdx.x; i < 3 * count; i += THREADS) to[i] = from[3 * first + i];
    __syncthreads();
}

KR_DEVICE int64_t token_of(int64_t n, const kr_divisor &nj)
{
    return n < INT32_MAX ? kr_quotient((uint32_t)n, nj) : n / nj.d;
}

KR_DEVICE int64_t left_of(int64_t count, int64_t first)
{
    return count - first < THREADS ? count - first : THREADS;
}

template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(THREADS)
    quaternion_exp(int64_t count, const kr_divisor nj, const T *raw, const T *dt, T *q, T factor)
{
    __shared__ T threes[3 * THREADS];
    const int64_t first = (int64_t)blockIdx.x * THREADS, n = first + threadIdx.x, left = left_of(count, first);
    const int i = threadIdx.x;
    load_threes(raw, first, left, threes);
    if (i >= left) return;
    const generator<T> g =
        generator_of(threes[3 * i], threes[3 * i + 1], threes[3 * i + 2], dt[token_of(n, nj)] * factor);
    store_quaternion<VECTOR>(q, n, quaternion<T>{ g.cos_f, g.x * g.sin_f, g.y * g.sin_f, g.z * g.sin_f });
}

template <typename T> struct exp_bwd {
    int64_t count, nj; /* no nj, nj */
    kr_divisor blocks; /* nj */
    const T *raw, *dt, *g_q;
    T *g_raw, *g_dt; /* NULL: not wanted */
    T factor;
};

/* Gradients of one block of three, stored in `three`; returns its term of g_dt. */
template <typename T> KR_DEVICE T exp_gradient(T *three, T dt_k, T factor, const quaternion<T> &g_q)
{
    const generator<T> g = generator_of(three[0], three[1], three[2], dt_k);
    const T along = kr_fma(g.z, g_q.z, kr_fma(g.y, g_q.y, g.x * g_q.x));
    const T g_f = kr_fma(-g.sin_f, g_q.w, g.cos_f * along);
    /* below this length sin f / rho is dt k to the last place, and rho may have lost precision */
    const bool is_short = g.rho < (sizeof(T) == 4 ? (T)1e-30 : (T)1e-300);
    const T s = is_short ? dt_k : g.sin_f / g.rho;
    const T along_n = kr_fma(-s, along, g_f * (dt_k * kr_fma(-g.u, g.u, (T)1)));
    three[0] = kr_fma(g.x, along_n, s * g_q.x);
    three[1] = kr_fma(g.y, along_n, s * g_q.y);
    three[2] = kr_fma(g.z, along_n, s * g_q.z);
    return g_f * (factor * g.u);
}

/* A CTA has `each` quaternions: whole tokens, or all of one token's, THREADS at a time. */
template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(THREADS) quaternion_exp_bwd(const exp_bwd<T> k, int64_t each)
{
    __shared__ T threes[3 * THREADS], terms[THREADS];
    const int64_t begin = (int64_t)blockIdx.x * each, end = begin + each < k.count ? begin + each : k.count;
    const int i = threadIdx.x;
    T sum = 0;
    for (int64_t first = begin; first < end; first += THREADS) {
        const int64_t n = first + i, left = left_of(end, first);
        load_threes(k.raw, first, left, threes);
        if (i < left)
            terms[i] = exp_gradient(threes + 3 * i, k.dt[token_of(n, k.blocks)] * k.factor, k.factor,
                                    load_quaternion<T, VECTOR>(k.g_q, n));
        __syncthreads();
        for (int j = i; k.g_raw && j < 3 * left; j += THREADS) k.g_raw[3 * first + j] = threes[j];
        /* the thread of a token adds its terms in order */
        const int64_t own = each > THREADS ? left : k.nj;
        if (k.g_dt && i * k.nj < left)
            for (int64_t j = 0; j < own && (each <= THREADS || i == 0); j++) sum += terms[i * own + j];
        __syncthreads();
    }
    const int64_t tokens = each > THREADS ? 1 : (end - begin) / k.nj;
    if (k.g_dt && i < tokens) k.g_dt[begin / k.nj + i] = sum;
}

template <typename T> static void run_exp(const kr_quaternion_exp_args *a)
{
    const int64_t count = a->no * a->nj;
    if (count == 0) return;
    const T factor = (T)(a->range * (KR_PI / 2));
    const unsigned blocks = (unsigned)kr_ceil_div(count, THREADS);
    const kr_divisor nj = kr_divisor_of(a->nj);
    const cudaStream_t stream = (cudaStream_t)a->exec.stream;
    if (kr_is_aligned(a->q, 4 * sizeof(T)))
        quaternion_exp<T, true>
            <<<blocks, THREADS, 0, stream>>>(count, nj, (const T *)a->raw, (const T *)a->dt, (T *)a->q, factor);
    else
        quaternion_exp<T, false>
            <<<blocks, THREADS, 0, stream>>>(count, nj, (const T *)a->raw, (const T *)a->dt, (T *)a->q, factor);
}

template <typename T> static void run_exp_bwd(const kr_quaternion_exp_bwd_args *a)
{
    if (a->nj == 0 && a->g_dt) cudaMemsetAsync(a->g_dt, 0, (size_t)a->no * sizeof(T), (cudaStream_t)a->exec.stream);
    if (a->no == 0 || a->nj == 0) return;
    const exp_bwd<T> k = {
        a->no * a->nj,     a->nj,         kr_divisor_of(a->nj), (const T *)a->raw,          (const T *)a->dt,
        (const T *)a->g_q, (T *)a->g_raw, (T *)a->g_dt,         (T)(a->range * (KR_PI / 2))
    };
    const int64_t each = a->nj > THREADS ? a->nj : THREADS / a->nj * a->nj;
    const unsigned blocks = (unsigned)kr_ceil_div(k.count, each);
    if (kr_is_aligned(a->g_q, 4 * sizeof(T)))
        quaternion_exp_bwd<T, true><<<blocks, THREADS, 0, (cudaStream_t)a->exec.stream>>>(k, each);
    else quaternion_exp_bwd<T, false><<<blocks, THREADS, 0, (cudaStream_t)a->exec.stream>>>(k, each);
}

/* ---- rotate ---- */

typedef struct sizes {
    int64_t no, nm, nh, nr, nj;
    int64_t nunits; /* blocks of four of a row, the last possibly partial */
    kr_divisor units;
} sizes;

/* A thread's block: offsets in cum, and in the row of rank 0. */
typedef struct position {
    int64_t cum, row, u;
    bool is_rotated;
} position;

KR_DEVICE position position_of(const sizes &n, int64_t o, uint32_t i)
{
    const int64_t h = kr_quotient(i, n.units), u = i - h * n.nunits;
    position p = { (o * n.nh + h) * n.nj + u, (o * n.nm * n.nh + h) * n.nr, u, u < n.nj };
    return p;
}

/* Copies the entries of block u that are within the row. */
template <typename T, bool VECTOR> KR_DEVICE void pass(const sizes &n, const T *from, T *to, int64_t u)
{
    if (VECTOR) kr_store_vector<T, 4>(to + 4 * u, kr_load_vector<T, 4>(from + 4 * u));
    else
        for (int64_t r = 4 * u; r < n.nr && r < 4 * u + 4; r++) to[r] = from[r];
}

template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(THREADS) quaternion_rotate(const sizes n, const T *x, const T *cum, T *y)
{
    const int64_t o = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (o >= n.no) return;
    for (uint32_t i = threadIdx.x; i < n.nh * n.nunits; i += blockDim.x) {
        const position p = position_of(n, o, i);
        quaternion<T> c = {};
        if (p.is_rotated) c = conjugate(load_quaternion<T, VECTOR>(cum, p.cum));
        for (int64_t m = 0; m < n.nm; m++) {
            const int64_t row = p.row + m * n.nh * n.nr;
            if (p.is_rotated)
                store_quaternion<VECTOR>(y + row, p.u, product(c, load_quaternion<T, VECTOR>(x + row, p.u)));
            else pass<T, VECTOR>(n, x + row, y + row, p.u);
        }
    }
}

KR_DEVICE quaternion<float> in_bf16(const quaternion<float> &a)
{
    return quaternion<float>{ __bfloat162float(__float2bfloat16_rn(a.w)), __bfloat162float(__float2bfloat16_rn(a.x)),
                              __bfloat162float(__float2bfloat16_rn(a.y)), __bfloat162float(__float2bfloat16_rn(a.z)) };
}

KR_DEVICE quaternion<double> in_bf16(const quaternion<double> &a)
{
    return a;
}

/* is_autocast: y was used in bf16, and g_cum is the gradient for that (as in rotate_cuda.cu): for the x that gives it. */
template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(THREADS)
    quaternion_rotate_bwd(const sizes n, const T *x, const T *cum, const T *g_y, T *g_x, T *g_cum, bool is_autocast)
{
    const int64_t o = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (o >= n.no) return;
    for (uint32_t i = threadIdx.x; i < n.nh * n.nunits; i += blockDim.x) {
        const position p = position_of(n, o, i);
        quaternion<T> c = {}, sum = {};
        if (p.is_rotated && (g_x || is_autocast)) c = load_quaternion<T, VECTOR>(cum, p.cum);
        for (int64_t m = 0; m < n.nm; m++) {
            const int64_t row = p.row + m * n.nh * n.nr;
            if (!p.is_rotated) {
                if (g_x) pass<T, VECTOR>(n, g_y + row, g_x + row, p.u);
                continue;
            }
            const quaternion<T> g = load_quaternion<T, VECTOR>(g_y + row, p.u);
            if (g_x) store_quaternion<VECTOR>(g_x + row, p.u, product(c, g));
            if (!g_cum) continue;
            quaternion<T> from = load_quaternion<T, VECTOR>(x + row, p.u);
            if (is_autocast) from = product(c, in_bf16(product(conjugate(c), from)));
            sum = plus(sum, (T)1, product(from, conjugate(g)));
        }
        if (p.is_rotated && g_cum) store_quaternion<VECTOR>(g_cum, p.cum, sum);
    }
}

/* a: kr_quaternion_rotate_args or kr_quaternion_rotate_bwd_args. */
template <typename A> static sizes sizes_of(const A *a)
{
    sizes n = { a->no, a->nm, a->nh, a->nr, a->nj, kr_ceil_div(a->nr, 4), {} };
    n.units = kr_divisor_of(kr_most(1, n.nunits));
    return n;
}

static dim3 threads_of(const sizes &n)
{
    const int width = kr_threads_for(n.nh * n.nunits, THREADS);
    return dim3((unsigned)width, (unsigned)(THREADS / width));
}

template <typename T> static bool is_whole(const void *p, int64_t nr)
{
    return nr % 4 == 0 && kr_is_aligned(p, 4 * sizeof(T));
}

template <typename T> static void run_rotate(const kr_quaternion_rotate_args *a)
{
    const sizes n = sizes_of(a);
    if (n.no * n.nm * n.nh * n.nr == 0) return;
    const dim3 threads = threads_of(n);
    const unsigned blocks = (unsigned)kr_ceil_div(n.no, threads.y);
    const cudaStream_t stream = (cudaStream_t)a->exec.stream;
    const T *x = (const T *)a->x, *cum = (const T *)a->cum;
    if (is_whole<T>(x, n.nr) && is_whole<T>(cum, 0) && is_whole<T>(a->y, n.nr))
        quaternion_rotate<T, true><<<blocks, threads, 0, stream>>>(n, x, cum, (T *)a->y);
    else quaternion_rotate<T, false><<<blocks, threads, 0, stream>>>(n, x, cum, (T *)a->y);
}

template <typename T> static void run_rotate_bwd(const kr_quaternion_rotate_bwd_args *a)
{
    const sizes n = sizes_of(a);
    const bool is_autocast = a->exec.precision == KR_PRECISION_BF16;
    if (n.no * n.nh * n.nr == 0) return;
    const dim3 threads = threads_of(n);
    const unsigned blocks = (unsigned)kr_ceil_div(n.no, threads.y);
    const cudaStream_t stream = (cudaStream_t)a->exec.stream;
    const T *x = (const T *)a->x, *cum = (const T *)a->cum, *g_y = (const T *)a->g_y;
    if (is_whole<T>(x, n.nr) && is_whole<T>(cum, 0) && is_whole<T>(g_y, n.nr) && is_whole<T>(a->g_x, n.nr) &&
        is_whole<T>(a->g_cum, 0))
        quaternion_rotate_bwd<T, true>
            <<<blocks, threads, 0, stream>>>(n, x, cum, g_y, (T *)a->g_x, (T *)a->g_cum, is_autocast);
    else
        quaternion_rotate_bwd<T, false>
            <<<blocks, threads, 0, stream>>>(n, x, cum, g_y, (T *)a->g_x, (T *)a->g_cum, is_autocast);
}

extern "C" void kr_cuda_f32_quaternion_exp(const kr_quaternion_exp_args *a)
{
    run_exp<float>(a);
}
extern "C" void kr_cuda_f64_quaternion_exp(const kr_quaternion_exp_args *a)
{
    run_exp<double>(a);
}
extern "C" void kr_cuda_f32_quaternion_exp_bwd(const kr_quaternion_exp_bwd_args *a)
{
    run_exp_bwd<float>(a);
}
extern "C" void kr_cuda_f64_quaternion_exp_bwd(const kr_quaternion_exp_bwd_args *a)
{
    run_exp_bwd<double>(a);
}
extern "C" void kr_cuda_f32_quaternion_rotate(const kr_quaternion_rotate_args *a)
{
    run_rotate<float>(a);
}
extern "C" void kr_cuda_f64_quaternion_rotate(const kr_quaternion_rotate_args *a)
{
    run_rotate<double>(a);
}
extern "C" void kr_cuda_f32_quaternion_rotate_bwd(const kr_quaternion_rotate_bwd_args *a)
{
    run_rotate_bwd<float>(a);
}
extern "C" void kr_cuda_f64_quaternion_rotate_bwd(const kr_quaternion_rotate_bwd_args *a)
{
    run_rotate_bwd<double>(a);
}
