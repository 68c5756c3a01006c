/* decode_mamba3.cu - one token of the Mamba-3 SSD core, in place, with its norms, rotary embedding and gate; all
 * architectures, f32 and f64.
 *
 *   H <- e^da (H + carry sum_m V'[m] (outer) k[m]) + gamma sum_m V[m] (outer) B[m];   y[m] = H C[m] + D V[m]
 *   x, z [h p], b, c [m g r], dt, a, lambda [h], theta [a] in rows; H [b h p r], k [b m h r]
 *   formulas: kernels/args/decode_args.h
 *
 * One CTA per head of a row: no other CTA reads what it overwrites. It forms B and C in shared memory; then a warp has ROWS
 * rows p at a time, lane l elements 4 l .. 4 l + 3 of r and every 128 further. The first elements are loaded before the
 * kernel that makes x, B and C ends. A lane sums along r, then lanes are added pairwise.
 */
#include "kernels/cuda/prim/gemv_parts.cuh"
#include "kernels/cuda/prim/float4.cuh"
#include "kernels/cuda/prim/pdl.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, ROWS = 8, SPAN = 32 * KR_VEC4 };

template <typename T> struct core_job {
    int64_t nm, nh, np, ng, nr, na, nrotated, stride;
    const T *z, *x, *b, *c, *dt, *a, *lambda, *theta;
    const T *dt_bias, *b_gain, *c_gain, *b_bias, *c_bias, *mimo_x, *mimo_z, *mimo_o, *d, *gain;
    bool softplus, split_pairs, has_norm, shared_gain, aligned;
    T eps, a_floor, dt_min, dt_max;
    double range;
    T *state, *k, *v, *angle, *y;
};

/* Shared memory of a CTA: B, C and the previous token's B [m r], rows padded to float4; y [m p]; cosines and sines. */
template <typename T> struct workspace {
    T *b, *c, *prev, *y, *cosine, *sine;
    int64_t row_stride;
};

static __device__ __forceinline__ int64_t row_stride_of(int64_t nr)
{
    return kr_ceil_div(nr, KR_VEC4) * KR_VEC4;
}

template <typename T> static __device__ __forceinline__ workspace<T> workspace_of(const core_job<T> &k, void *shared)
{
    workspace<T> s;
    s.row_stride = row_stride_of(k.nr);
    s.b = (T *)shared;
    s.c = s.b + k.nm * s.row_stride;
    s.prev = s.c + k.nm * s.row_stride;
    s.y = s.prev + k.nm * s.row_stride;
    s.cosine = s.y + k.nm * k.np;
    s.sine = s.cosine + k.na;
    return s;
}

/* The head of a CTA. */
struct head {
    int64_t row, h, group, number; /* number: row * nh + h */
};

template <typename T> static __device__ __forceinline__ T softplus(T x)
{
    return x > (T)20 ? x : log1p(kr_exp(x));
}

static __device__ __forceinline__ void angle_sincos(double angle, float *cosine, float *sine)
{
    sincosf((float)angle, sine, cosine);
}
static __device__ __forceinline__ void angle_sincos(double angle, double *cosine, double *sine)
{
    sincos(angle, sine, cosine);
}

/* ---- B, C and step sizes ---- */

template <typename T> struct token_scale {
    T dt, decay, gamma, carry;
};

template <typename T>
static __device__ __forceinline__ token_scale<T> token_scale_of(const core_job<T> &k, const head &n)
{
    const int64_t i = n.row * k.stride + n.h;
    const T raw = k.a[i], lambda = k.lambda[i];
    const T rate = k.softplus ? softplus(raw) : raw < (T)0 ? (T)1 / ((T)1 - raw) : (T)1 + raw;
    T dt = softplus(k.dt[i] + (k.dt_bias ? k.dt_bias[n.h] : (T)0));
    dt = dt < k.dt_min ? k.dt_min : dt;
    dt = dt > k.dt_max ? k.dt_max : dt;
    return { dt, kr_exp(-dt * (rate < k.a_floor ? k.a_floor : rate)), dt / ((T)1 + kr_exp(-lambda)),
             dt / ((T)1 + kr_exp(lambda)) };
}

static __device__ __forceinline__ double wrap(double x)
{
    const double pi = 3.14159265358979323846;
    return fma(rint(x * (1 / (2 * pi))), -2 * pi, x);
}

template <typename T>
static __device__ __forceinline__ void rotate_angles(const core_job<T> &k, const head &n, T dt, const workspace<T> &s)
{
    T *angle = k.angle + n.number * k.na;
    for (int64_t i = threadIdx.x; i < k.na; i += THREADS) {
        const double omega = k.range * 3.14159265358979323846 * tanh((double)k.theta[n.row * k.stride + i]);
        const double phi = wrap(wrap((double)angle[i]) + (double)dt * omega);
        angle_sincos(phi, &s.cosine[i], &s.sine[i]);
        angle[i] = (T)phi;
    }
}

/* B and C after norm and bias: one warp per row of r. */
template <typename T>
static __device__ __forceinline__ void norm_bc(const core_job<T> &k, const head &n, const workspace<T> &s)
{
    const int lane = threadIdx.x % 32;
    for (int64_t v = threadIdx.x / 32; v < 2 * k.nm; v += WARPS) {
        const bool is_c = v >= k.nm;
        const int64_t m = is_c ? v - k.nm : v, bias_at = (n.h * k.nm + m) * k.nr;
        const T *x = (is_c ? k.c : k.b) + n.row * k.stride + (m * k.ng + n.group) * k.nr;
        const T *gain = is_c ? k.c_gain : k.b_gain, *bias = is_c ? k.c_bias : k.b_bias;
        T *to = (is_c ? s.c : s.b) + m * s.row_stride, squares = 0;
        for (int64_t r = lane; r < k.nr; r += 32) squares += x[r] * x[r];
        const T q = 1 / kr_sqrt(kr_warp_sum(squares) / (T)k.nr + k.eps);
        for (int64_t r = lane; r < s.row_stride; r += 32)
            to[r] = r < k.nr ? x[r] * q * (gain ? gain[r] : (T)1) + (bias ? bias[bias_at + r] : (T)0) : (T)0;
    }
}

/* Rotates pairs of B and C in place. */
template <typename T> static __device__ __forceinline__ void rotate_bc(const core_job<T> &k, const workspace<T> &s)
{
    const int64_t pair_stride = k.split_pairs ? k.nr / 2 : 1, step = k.split_pairs ? 1 : 2;
    for (int64_t i = threadIdx.x; i < 2 * k.nm * k.nrotated; i += THREADS) {
        const int64_t v = i / k.nrotated, pair = i % k.nrotated;
        T *at = s.b + v * s.row_stride + pair * step; /* C follows B */
        const T y0 = at[0], y1 = at[pair_stride], c = s.cosine[pair], sine = s.sine[pair];
        at[0] = y0 * c - y1 * sine;
        at[pair_stride] = y0 * sine + y1 * c;
    }
}

/* The previous token's B, before it is overwritten with the current one. */
template <typename T>
static __device__ __forceinline__ void load_prev_b(const core_job<T> &k, const head &n, const workspace<T> &s)
{
    for (int64_t i = threadIdx.x; i < k.nm * s.row_stride; i += THREADS) {
        const int64_t m = i / s.row_stride, r = i % s.row_stride;
        s.prev[i] = r < k.nr ? k.k[((n.row * k.nm + m) * k.nh + n.h) * k.nr + r] : (T)0;
    }
}

template <typename T>
static __device__ __forceinline__ void store_b(const core_job<T> &k, const head &n, const workspace<T> &s)
{
    for (int64_t i = threadIdx.x; i < k.nm * k.nr; i += THREADS) {
        const int64_t m = i / k.nr, r = i % k.nr;
        k.k[((n.row * k.nm + m) * k.nh + n.h) * k.nr + r] = s.b[m * s.row_stride + r];
    }
}

/* ---- state update ---- */

template <typename T>
static __device__ __forceinline__ void load_rows(const core_job<T> &k, const T *state, int64_t r, int rows,
                                                 kr_vec4<T> held[ROWS])
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (i < rows) held[i] = kr_load_vec4(state + i * k.nr, r, k.nr, k.aligned);
}

/* V[m] and V'[m] of the rows from p0 on. */
template <typename T> struct values {
    T token[ROWS], prev[ROWS];
};

template <typename T>
static __device__ __forceinline__ values<T> values_of(const core_job<T> &k, const head &n, int64_t m, int64_t p0,
                                                      int rows)
{
    values<T> v;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        v.token[i] = v.prev[i] = 0;
        if (i >= rows) continue;
        const T mimo = k.mimo_x ? k.mimo_x[(n.h * k.nm + m) * k.np + p0 + i] : (T)1;
        v.token[i] = k.x[n.row * k.stride + n.h * k.np + p0 + i] * mimo;
        v.prev[i] = k.v[n.number * k.np + p0 + i] * mimo;
    }
    return v;
}

/* Updates elements r .. r + 3 of rows p0 ... */
template <typename T>
static __device__ __forceinline__ void update_rows(const core_job<T> &k, const head &n, const workspace<T> &s,
                                                   const token_scale<T> &token, int64_t p0, int rows, int64_t r,
                                                   kr_vec4<T> held[ROWS])
{
    for (int64_t m = 0; m < k.nm; m++) {
        const values<T> v = values_of(k, n, m, p0, rows);
        const kr_vec4<T> prev = kr_load_vec4(s.prev + m * s.row_stride, r, k.nr, true),
                         b = kr_load_vec4(s.b + m * s.row_stride, r, k.nr, true);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int e = 0; e < KR_VEC4; e++) {
                if (m == 0) held[i].v[e] *= token.decay;
                held[i].v[e] += token.decay * token.carry * v.prev[i] * prev.v[e] + token.gamma * v.token[i] * b.v[e];
            }
    }
}

/* y [m p] in shared memory += H C[m] of rows p0 ...; stored for the first r. */
template <typename T>
static __device__ __forceinline__ void dot_rows(const core_job<T> &k, const workspace<T> &s, int64_t p0, int rows,
                                                int64_t r, const kr_vec4<T> held[ROWS])
{
    const int lane = threadIdx.x % 32, own = lane / (32 / ROWS);
    for (int64_t m = 0; m < k.nm; m++) {
        const kr_vec4<T> c = kr_load_vec4(s.c + m * s.row_stride, r, k.nr, true);
        T sums[ROWS] = {};
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int e = 0; e < KR_VEC4; e++)
                if (r + e < k.nr)
                    sums[i] += held[i].v[e] * c.v[e]; /* past the end, 0 times an infinite x would be NaN */
        const T total = kr_lanes_sum<ROWS, 16>(sums, lane);
        T *y = s.y + m * k.np + p0 + own;
        if (lane % (32 / ROWS) == 0 && own < rows) *y = r < SPAN ? total : *y + total;
    }
}

/* ---- norm and gate ---- */

/* y[m] = (y[m] + D V[m]) / RMS: one warp per rank. */
template <typename T>
static __device__ __forceinline__ void norm_ranks(const core_job<T> &k, const head &n, const workspace<T> &s)
{
    const int lane = threadIdx.x % 32;
    const T d = k.d ? k.d[n.h] : (T)0;
    for (int64_t m = threadIdx.x / 32; m < k.nm; m += WARPS) {
        T *y = s.y + m * k.np, squares = 0;
        for (int64_t p = lane; p < k.np; p += 32) {
            const T mimo = k.mimo_x ? k.mimo_x[(n.h * k.nm + m) * k.np + p] : (T)1;
            y[p] += d * (k.x[n.row * k.stride + n.h * k.np + p] * mimo);
            squares += y[p] * y[p];
        }
        const T q = 1 / kr_sqrt(kr_warp_sum(squares) / (T)k.np + k.eps);
        for (int64_t p = lane; k.has_norm && p < k.np; p += 32) y[p] *= q;
    }
}

/* Gates and sums the ranks; stores x as the next token's v. */
template <typename T>
static __device__ __forceinline__ void finish(const core_job<T> &k, const head &n, const workspace<T> &s)
{
    for (int64_t p = threadIdx.x; p < k.np; p += THREADS) {
        const int64_t at = n.row * k.stride + n.h * k.np + p;
        T sum = 0;
        for (int64_t m = 0; m < k.nm; m++) {
            const int64_t hmp = (n.h * k.nm + m) * k.np + p;
            const T z = k.mimo_z ? k.z[at] * k.mimo_z[hmp] : k.z[at];
            sum += s.y[m * k.np + p] * kr_silu(z) * (k.mimo_o ? k.mimo_o[hmp] : (T)1);
        }
        const T gain = k.gain ? k.gain[k.shared_gain ? p : n.h * k.np + p] : (T)1;
        k.y[n.number * k.np + p] = sum * gain;
        k.v[n.number * k.np + p] = k.x[at];
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, sizeof(T) == 4 ? 2 : 1)
    decode_mamba3_kernel(const __grid_constant__ core_job<T> k)
{
    extern __shared__ uint4 shared[];
    const workspace<T> s = workspace_of(k, shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    head n;
    n.number = blockIdx.x, n.row = n.number / k.nh, n.h = n.number % k.nh, n.group = n.h / (k.nh / k.ng);
    T *states = k.state + n.number * k.np * k.nr;
    kr_vec4<T> held[ROWS];
    load_rows(k, states + (int64_t)warp * ROWS * k.nr, lane * KR_VEC4, (int)kr_least(ROWS, k.np - warp * ROWS), held);
    load_prev_b(k, n, s);
    kr_pdl_wait();
    const token_scale<T> token = token_scale_of(k, n);
    rotate_angles(k, n, token.dt, s);
    norm_bc(k, n, s);
    __syncthreads();
    rotate_bc(k, s);
    __syncthreads();
    store_b(k, n, s);
    for (int64_t p0 = warp * ROWS; p0 < k.np; p0 += WARPS * ROWS) {
        const int rows = (int)kr_least(ROWS, k.np - p0);
        for (int64_t r = lane * KR_VEC4; r - lane * KR_VEC4 < k.nr; r += SPAN) {
            T *state = states + p0 * k.nr;
            if (p0 > warp * ROWS || r >= SPAN) load_rows(k, state, r, rows, held);
            update_rows(k, n, s, token, p0, rows, r, held);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (i < rows) kr_store_vec4(state + i * k.nr, r, k.nr, held[i], k.aligned);
            dot_rows(k, s, p0, rows, r, held);
        }
    }
    __syncthreads();
    norm_ranks(k, n, s);
    __syncthreads();
    finish(k, n, s);
}

template <typename T> static core_job<T> job_of(const kr_decode_mamba3_args *a)
{
    core_job<T> k = {};
    k.nm = a->nm, k.nh = a->nh, k.np = a->np, k.ng = a->ng, k.nr = a->nr, k.na = a->na, k.nrotated = a->nrotated;
    k.stride = a->x.row;
    k.z = (const T *)a->z.data, k.x = (const T *)a->x.data, k.b = (const T *)a->b.data, k.c = (const T *)a->c.data;
    k.dt = (const T *)a->dt.data, k.a = (const T *)a->a.data, k.lambda = (const T *)a->lambda.data;
    k.theta = (const T *)a->theta.data;
    k.dt_bias = (const T *)a->dt_bias, k.b_gain = (const T *)a->b_gain, k.c_gain = (const T *)a->c_gain;
    k.b_bias = (const T *)a->b_bias, k.c_bias = (const T *)a->c_bias;
    k.mimo_x = (const T *)a->mimo_x, k.mimo_z = (const T *)a->mimo_z, k.mimo_o = (const T *)a->mimo_o;
    k.d = (const T *)a->d, k.gain = (const T *)a->gain;
    k.softplus = a->softplus, k.split_pairs = a->split_pairs, k.has_norm = a->has_norm, k.shared_gain = a->shared_gain;
    k.aligned = a->nr % KR_VEC4 == 0 && kr_is_aligned16(a->state);
    k.eps = (T)a->eps, k.a_floor = (T)a->a_floor, k.dt_min = (T)a->dt_min, k.dt_max = (T)a->dt_max;
    k.range = a->range;
    k.state = (T *)a->state, k.k = (T *)a->k, k.v = (T *)a->v, k.angle = (T *)a->angle;
    k.y = (T *)a->y.data;
    return k;
}

template <typename T> static void decode_mamba3_run(const kr_decode_mamba3_args *a)
{
    if (a->nb * a->nh * a->np == 0) return;
    const size_t shared = (size_t)kr_decode_mamba3_elements(a->nm, a->nr, a->np, a->na) * sizeof(T);
    kr_pdl_launch(&a->exec, decode_mamba3_kernel<T>, dim3((unsigned)(a->nb * a->nh)), THREADS, shared, job_of<T>(a));
}

KR_CUDA_ENTRY(decode_mamba3, kr_decode_mamba3_args)
