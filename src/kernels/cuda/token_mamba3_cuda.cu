/* token_mamba3_cuda.cu - one token of Mamba-3's state space core, in place, with what goes before and after it.
 *
 *   H <- e^da (H + carry sum_m V'[m] (outer) k[m]) + gamma sum_m V[m] (outer) B[m];   y[m] = H C[m] + D V[m]
 *   x, z [h p], b, c [m g r], dt, a, lambda [h], theta [a] in rows; H [b h p r], k [b m h r]; formulas: kernels/token_args.h
 *
 * A block has a head of a row: nobody else reads what it overwrites. It forms B and C in shared memory; then a warp has
 * ROWS rows p at a time, lane l elements 4 l .. 4 l + 3 of r, and 128 on from there. The first rows' first elements are on
 * their way before the kernel that makes x, B and C has ended. A lane's sum runs along r, then lanes are added by halves.
 */
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/quad.cuh"
#include "kernels/cuda/token.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, ROWS = 8, SPAN = 32 * KR_QUAD };

template <typename T> struct core_job {
    int64_t nm, nh, np, ng, nr, na, nturned, stride;
    const T *z, *x, *b, *c, *dt, *a, *lambda, *theta;
    const T *dt_bias, *b_gain, *c_gain, *b_bias, *c_bias, *mimo_x, *mimo_z, *mimo_o, *d, *gain;
    bool softplus, half, has_norm, shared_gain, aligned;
    T eps, a_floor, dt_min, dt_max;
    double range;
    T *state, *k, *v, *angle, *y;
};

/* A block's shared memory: B, C and the last token's B [m r] each, lines of whole vectors; y [m p]; cosines and sines. */
template <typename T> struct room {
    T *b, *c, *before, *y, *cosine, *sine;
    int64_t line;
};

static __device__ __forceinline__ int64_t line_of(int64_t nr)
{
    return kr_ceil_div(nr, KR_QUAD) * KR_QUAD;
}

template <typename T> static __device__ __forceinline__ room<T> room_in(const core_job<T> &k, void *shared)
{
    room<T> s;
    s.line = line_of(k.nr);
    s.b = (T *)shared;
    s.c = s.b + k.nm * s.line;
    s.before = s.c + k.nm * s.line;
    s.y = s.before + k.nm * s.line;
    s.cosine = s.y + k.nm * k.np;
    s.sine = s.cosine + k.na;
    return s;
}

/* Where a block is. */
struct head {
    int64_t row, h, group, number; /* number: of the head among all rows' */
};

template <typename T> static __device__ __forceinline__ T softplus(T x)
{
    return x > (T)20 ? x : log1p(kr_exp(x));
}

static __device__ __forceinline__ void turn_of(double angle, float *cosine, float *sine)
{
    sincosf((float)angle, sine, cosine);
}
static __device__ __forceinline__ void turn_of(double angle, double *cosine, double *sine)
{
    sincos(angle, sine, cosine);
}

/* ---- before the states ---- */

template <typename T> struct steps {
    T dt, decay, gamma, carry;
};

template <typename T> static __device__ __forceinline__ steps<T> steps_of(const core_job<T> &k, const head &n)
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
static __device__ __forceinline__ void turn_angles(const core_job<T> &k, const head &n, T dt, const room<T> &s)
{
    T *angle = k.angle + n.number * k.na;
    for (int64_t i = threadIdx.x; i < k.na; i += THREADS) {
        const double turn = k.range * 3.14159265358979323846 * tanh((double)k.theta[n.row * k.stride + i]);
        const double phi = wrap(wrap((double)angle[i]) + (double)dt * turn);
        turn_of(phi, &s.cosine[i], &s.sine[i]);
        angle[i] = (T)phi;
    }
}

/* B and C after norm and bias: a warp has a row of r. */
template <typename T>
static __device__ __forceinline__ void form_maps(const core_job<T> &k, const head &n, const room<T> &s)
{
    const int lane = threadIdx.x % 32;
    for (int64_t v = threadIdx.x / 32; v < 2 * k.nm; v += WARPS) {
        const bool is_c = v >= k.nm;
        const int64_t m = is_c ? v - k.nm : v, bias_at = (n.h * k.nm + m) * k.nr;
        const T *x = (is_c ? k.c : k.b) + n.row * k.stride + (m * k.ng + n.group) * k.nr;
        const T *gain = is_c ? k.c_gain : k.b_gain, *bias = is_c ? k.c_bias : k.b_bias;
        T *to = (is_c ? s.c : s.b) + m * s.line, squares = 0;
        for (int64_t r = lane; r < k.nr; r += 32) squares += x[r] * x[r];
        const T q = 1 / kr_root(kr_warp_sum(squares) / (T)k.nr + k.eps);
        for (int64_t r = lane; r < s.line; r += 32)
            to[r] = r < k.nr ? x[r] * q * (gain ? gain[r] : (T)1) + (bias ? bias[bias_at + r] : (T)0) : (T)0;
    }
}

/* Pairs of B and C turned where they lie. */
template <typename T> static __device__ __forceinline__ void turn_maps(const core_job<T> &k, const room<T> &s)
{
    const int64_t apart = k.half ? k.nr / 2 : 1, step = k.half ? 1 : 2;
    for (int64_t i = threadIdx.x; i < 2 * k.nm * k.nturned; i += THREADS) {
        const int64_t v = i / k.nturned, pair = i % k.nturned;
        T *at = s.b + v * s.line + pair * step; /* C follows B */
        const T y0 = at[0], y1 = at[apart], c = s.cosine[pair], sine = s.sine[pair];
        at[0] = y0 * c - y1 * sine;
        at[apart] = y0 * sine + y1 * c;
    }
}

/* The last token's B is taken, and this one's left in its place. */
template <typename T>
static __device__ __forceinline__ void take_before(const core_job<T> &k, const head &n, const room<T> &s)
{
    for (int64_t i = threadIdx.x; i < k.nm * s.line; i += THREADS) {
        const int64_t m = i / s.line, r = i % s.line;
        s.before[i] = r < k.nr ? k.k[((n.row * k.nm + m) * k.nh + n.h) * k.nr + r] : (T)0;
    }
}

template <typename T>
static __device__ __forceinline__ void leave_maps(const core_job<T> &k, const head &n, const room<T> &s)
{
    for (int64_t i = threadIdx.x; i < k.nm * k.nr; i += THREADS) {
        const int64_t m = i / k.nr, r = i % k.nr;
        k.k[((n.row * k.nm + m) * k.nh + n.h) * k.nr + r] = s.b[m * s.line + r];
    }
}

/* ---- states ---- */

template <typename T>
static __device__ __forceinline__ void load_rows(const core_job<T> &k, const T *state, int64_t r, int rows,
                                                 kr_quad<T> held[ROWS])
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (i < rows) held[i] = kr_load_quad(state + i * k.nr, r, k.nr, k.aligned);
}

/* V[m] and V'[m] of the rows from p0 on. */
template <typename T> struct values {
    T now[ROWS], before[ROWS];
};

template <typename T>
static __device__ __forceinline__ values<T> values_of(const core_job<T> &k, const head &n, int64_t m, int64_t p0,
                                                      int rows)
{
    values<T> v;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        v.now[i] = v.before[i] = 0;
        if (i >= rows) continue;
        const T share = k.mimo_x ? k.mimo_x[(n.h * k.nm + m) * k.np + p0 + i] : (T)1;
        v.now[i] = k.x[n.row * k.stride + n.h * k.np + p0 + i] * share;
        v.before[i] = k.v[n.number * k.np + p0 + i] * share;
    }
    return v;
}

/* Elements r .. r + 3 of rows p0 .. moved on. */
template <typename T>
static __device__ __forceinline__ void move_rows(const core_job<T> &k, const head &n, const room<T> &s,
                                                 const steps<T> &now, int64_t p0, int rows, int64_t r,
                                                 kr_quad<T> held[ROWS])
{
    for (int64_t m = 0; m < k.nm; m++) {
        const values<T> v = values_of(k, n, m, p0, rows);
        const kr_quad<T> before = kr_load_quad(s.before + m * s.line, r, k.nr, true),
                         b = kr_load_quad(s.b + m * s.line, r, k.nr, true);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int e = 0; e < KR_QUAD; e++) {
                if (m == 0) held[i].v[e] *= now.decay;
                held[i].v[e] += now.decay * now.carry * v.before[i] * before.v[e] + now.gamma * v.now[i] * b.v[e];
            }
    }
}

/* Sums of rows p0 .. with C of each rank, added to y [m p] in shared memory; with r = 0 first. */
template <typename T>
static __device__ __forceinline__ void read_rows(const core_job<T> &k, const room<T> &s, int64_t p0, int rows,
                                                 int64_t r, const kr_quad<T> held[ROWS])
{
    const int lane = threadIdx.x % 32, own = lane / (32 / ROWS);
    for (int64_t m = 0; m < k.nm; m++) {
        const kr_quad<T> c = kr_load_quad(s.c + m * s.line, r, k.nr, true);
        T sums[ROWS] = {};
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int e = 0; e < KR_QUAD; e++)
                if (r + e < k.nr) sums[i] += held[i].v[e] * c.v[e]; /* past them 0 times an infinite x is no number */
        const T whole = kr_sum_lanes<ROWS, 16>(sums, lane);
        T *y = s.y + m * k.np + p0 + own;
        if (lane % (32 / ROWS) == 0 && own < rows) *y = r < SPAN ? whole : *y + whole;
    }
}

/* ---- after the states ---- */

/* y[m] = (y[m] + D V[m]) / RMS: a warp has a rank. */
template <typename T>
static __device__ __forceinline__ void norm_ranks(const core_job<T> &k, const head &n, const room<T> &s)
{
    const int lane = threadIdx.x % 32;
    const T d = k.d ? k.d[n.h] : (T)0;
    for (int64_t m = threadIdx.x / 32; m < k.nm; m += WARPS) {
        T *y = s.y + m * k.np, squares = 0;
        for (int64_t p = lane; p < k.np; p += 32) {
            const T share = k.mimo_x ? k.mimo_x[(n.h * k.nm + m) * k.np + p] : (T)1;
            y[p] += d * (k.x[n.row * k.stride + n.h * k.np + p] * share);
            squares += y[p] * y[p];
        }
        const T q = 1 / kr_root(kr_warp_sum(squares) / (T)k.np + k.eps);
        for (int64_t p = lane; k.has_norm && p < k.np; p += 32) y[p] *= q;
    }
}

/* Gate and sum of the ranks; x is left for the next token. */
template <typename T>
static __device__ __forceinline__ void finish(const core_job<T> &k, const head &n, const room<T> &s)
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
    token_mamba3_kernel(const __grid_constant__ core_job<T> k)
{
    extern __shared__ uint4 shared[];
    const room<T> s = room_in(k, shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    head n;
    n.number = blockIdx.x, n.row = n.number / k.nh, n.h = n.number % k.nh, n.group = n.h / (k.nh / k.ng);
    T *states = k.state + n.number * k.np * k.nr;
    kr_quad<T> held[ROWS];
    load_rows(k, states + (int64_t)warp * ROWS * k.nr, lane * KR_QUAD, (int)kr_least(ROWS, k.np - warp * ROWS), held);
    take_before(k, n, s);
    kr_token_wait();
    const steps<T> now = steps_of(k, n);
    turn_angles(k, n, now.dt, s);
    form_maps(k, n, s);
    __syncthreads();
    turn_maps(k, s);
    __syncthreads();
    leave_maps(k, n, s);
    for (int64_t p0 = warp * ROWS; p0 < k.np; p0 += WARPS * ROWS) {
        const int rows = (int)kr_least(ROWS, k.np - p0);
        for (int64_t r = lane * KR_QUAD; r - lane * KR_QUAD < k.nr; r += SPAN) {
            T *state = states + p0 * k.nr;
            if (p0 > warp * ROWS || r >= SPAN) load_rows(k, state, r, rows, held);
            move_rows(k, n, s, now, p0, rows, r, held);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (i < rows) kr_store_quad(state + i * k.nr, r, k.nr, held[i], k.aligned);
            read_rows(k, s, p0, rows, r, held);
        }
    }
    __syncthreads();
    norm_ranks(k, n, s);
    __syncthreads();
    finish(k, n, s);
}

template <typename T> static core_job<T> job_of(const kr_token_mamba3_args *a)
{
    core_job<T> k = {};
    k.nm = a->nm, k.nh = a->nh, k.np = a->np, k.ng = a->ng, k.nr = a->nr, k.na = a->na, k.nturned = a->nturned;
    k.stride = a->stride;
    k.z = (const T *)a->z, k.x = (const T *)a->x, k.b = (const T *)a->b, k.c = (const T *)a->c;
    k.dt = (const T *)a->dt, k.a = (const T *)a->a, k.lambda = (const T *)a->lambda, k.theta = (const T *)a->theta;
    k.dt_bias = (const T *)a->dt_bias, k.b_gain = (const T *)a->b_gain, k.c_gain = (const T *)a->c_gain;
    k.b_bias = (const T *)a->b_bias, k.c_bias = (const T *)a->c_bias;
    k.mimo_x = (const T *)a->mimo_x, k.mimo_z = (const T *)a->mimo_z, k.mimo_o = (const T *)a->mimo_o;
    k.d = (const T *)a->d, k.gain = (const T *)a->gain;
    k.softplus = a->softplus, k.half = a->half, k.has_norm = a->has_norm, k.shared_gain = a->shared_gain;
    k.aligned = a->nr % KR_QUAD == 0 && kr_allows16(a->state);
    k.eps = (T)a->eps, k.a_floor = (T)a->a_floor, k.dt_min = (T)a->dt_min, k.dt_max = (T)a->dt_max;
    k.range = a->range;
    k.state = (T *)a->state, k.k = (T *)a->k, k.v = (T *)a->v, k.angle = (T *)a->angle, k.y = (T *)a->y;
    return k;
}

template <typename T> static void token_mamba3_run(const kr_token_mamba3_args *a)
{
    if (a->nb * a->nh * a->np == 0) return;
    const size_t shared = (size_t)kr_token_mamba3_elements(a->nm, a->nr, a->np, a->na) * sizeof(T);
    kr_token_launch(&a->exec, token_mamba3_kernel<T>, dim3((unsigned)(a->nb * a->nh)), THREADS, shared, job_of<T>(a));
}

KR_CUDA_ENTRY(token_mamba3, kr_token_mamba3_args)
