/* token_ssd_cuda.cu - one token of Mamba-2's state space core, in place, at the speed of memory.
 *
 *   s = clamp(softplus(dt + dt_bias));   H <- exp(-s exp(a_log)) H + s x (outer) B;   y = H C + D x
 *   x [h p], b, c [g r], dt [h] in rows; H [b h p r]; y [b h p]
 *
 * A warp has ROWS rows p of one head; lane l has elements 4 l .. 4 l + 3 of r, and 128 on from there. The rows' first
 * elements are on their way before the kernel that makes x, B and C has ended. A lane's sum runs along r, then lanes
 * are added by halves: the order depends on r alone.
 */
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/token.cuh"

enum { WARPS = 4, VECTOR = 4, SPAN = 32 * VECTOR, MANY_ROWS = 8192 };

template <typename T> struct ssd_job {
    int64_t nb, nh, np, ng, nr, stride, y_stride;
    const T *x, *b, *c, *dt, *dt_bias, *a_log, *d;
    T dt_min, dt_max;
    T *state, *y;
    bool d_per_dim;
    uint32_t blocks; /* of a row */
};

template <typename T> static __device__ __forceinline__ T softplus(T x)
{
    return x > (T)20 ? x : log1p(kr_exp(x));
}

template <typename T> struct quad {
    T v[VECTOR];
};

/* Elements r .. r + 3 of a row of nr; beyond its end 0. */
template <typename T, bool ALIGNED> static __device__ __forceinline__ quad<T> load(const T *row, int64_t r, int64_t nr)
{
    quad<T> q;
    if (ALIGNED && sizeof(T) == 4) {
        const float4 bits = r < nr ? *(const float4 *)(const void *)(row + r) : make_float4(0, 0, 0, 0);
        memcpy(&q, &bits, sizeof bits);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) q.v[i] = r + i < nr ? row[r + i] : (T)0;
    }
    return q;
}

template <typename T, bool ALIGNED>
static __device__ __forceinline__ void store(T *row, int64_t r, int64_t nr, const quad<T> &q)
{
    if (ALIGNED && sizeof(T) == 4) {
        float4 bits;
        memcpy(&bits, &q, sizeof bits);
        if (r < nr) *(float4 *)(void *)(row + r) = bits;
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (r + i < nr) row[r + i] = q.v[i];
    }
}

/* H of `rows` rows from r on, moved on by one token; their products with C are added to sum. */
template <typename T, int ROWS, bool ALIGNED>
static __device__ __forceinline__ void advance(const ssd_job<T> &k, T *state, int64_t r, const quad<T> *held, int rows,
                                               const T *b, const T *c, T decay, const T *weight, T *sum)
{
    const quad<T> b_r = load<T, ALIGNED>(b, r, k.nr), c_r = load<T, ALIGNED>(c, r, k.nr);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (i >= rows) break;
        quad<T> s = held[i];
#pragma unroll
        for (int e = 0; e < VECTOR; e++) {
            s.v[e] = decay * s.v[e] + weight[i] * b_r.v[e];
            sum[i] += s.v[e] * c_r.v[e];
        }
        store<T, ALIGNED>(state + i * k.nr, r, k.nr, s);
    }
}

template <typename T, int ROWS, bool ALIGNED>
static __device__ __forceinline__ void load_rows(const T *state, int64_t r, int64_t nr, int rows, quad<T> *held)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (i < rows) held[i] = load<T, ALIGNED>(state + i * nr, r, nr);
}

/* Grid: for each row b, the rows p of all its heads by WARPS ROWS. SHORT: nr <= SPAN. */
template <typename T, int ROWS, bool ALIGNED, bool SHORT>
static __global__ void __launch_bounds__(32 * WARPS, sizeof(T) == 4 ? 6 : 2)
    token_ssd_kernel(const __grid_constant__ ssd_job<T> k)
{
    const int lane = threadIdx.x % 32;
    const uint32_t per_head = ((uint32_t)k.np + ROWS - 1) / ROWS, row = blockIdx.x / k.blocks;
    const uint32_t unit = blockIdx.x % k.blocks * WARPS + threadIdx.x / 32, h = unit / per_head;
    const int64_t p0 = unit % per_head * ROWS;
    if (h >= k.nh) {
        kr_token_wait();
        return;
    }
    T *state = k.state + (((int64_t)row * k.nh + h) * k.np + p0) * k.nr;
    const int rows = (int)kr_least(ROWS, k.np - p0);
    quad<T> held[ROWS];
    load_rows<T, ROWS, ALIGNED>(state, lane * VECTOR, k.nr, rows, held);
    const T bias = k.dt_bias[h], rate = kr_exp(k.a_log[h]);
    kr_token_wait();
    const int64_t from = row * k.stride, group = h / (uint32_t)(k.nh / k.ng);
    const T *b = k.b + from + group * k.nr, *c = k.c + from + group * k.nr, *x = k.x + from + h * k.np + p0;
    T step = softplus(k.dt[from + h] + bias);
    step = step < k.dt_min ? k.dt_min : step;
    step = step > k.dt_max ? k.dt_max : step;
    const T decay = kr_exp(step * -rate);
    T weight[ROWS], sum[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        weight[i] = i < rows ? step * x[i] : (T)0;
        sum[i] = 0;
    }
    advance<T, ROWS, ALIGNED>(k, state, lane * VECTOR, held, rows, b, c, decay, weight, sum);
    for (int64_t r = lane * VECTOR + SPAN; !SHORT && r - lane * VECTOR < k.nr; r += SPAN) {
        load_rows<T, ROWS, ALIGNED>(state, r, k.nr, rows, held);
        advance<T, ROWS, ALIGNED>(k, state, r, held, rows, b, c, decay, weight, sum);
    }
    const T whole = kr_sum_lanes<ROWS, 16>(sum, lane);
    const int i = lane / (32 / ROWS);
    if (lane % (32 / ROWS) || i >= rows) return;
    const T d = !k.d ? (T)0 : k.d_per_dim ? k.d[h * k.np + p0 + i] : k.d[h];
    k.y[row * k.y_stride + h * k.np + p0 + i] = whole + d * x[i];
}

template <typename T, int ROWS, bool ALIGNED> static void launch(const kr_token_ssd_args *a, ssd_job<T> k)
{
    k.blocks = (uint32_t)kr_ceil_div(k.nh * kr_ceil_div(k.np, ROWS), WARPS);
    const dim3 grid(k.blocks * (unsigned)k.nb);
    if (k.nr <= SPAN) kr_token_launch(&a->exec, token_ssd_kernel<T, ROWS, ALIGNED, true>, grid, 32 * WARPS, 0, k);
    else kr_token_launch(&a->exec, token_ssd_kernel<T, ROWS, ALIGNED, false>, grid, 32 * WARPS, 0, k);
}

template <typename T, bool ALIGNED> static void launch_some(const kr_token_ssd_args *a, const ssd_job<T> &k)
{
    if (k.nb * k.nh * k.np >= MANY_ROWS) launch<T, 8, ALIGNED>(a, k);
    else launch<T, 2, ALIGNED>(a, k);
}

template <typename T> static void token_ssd_run(const kr_token_ssd_args *a)
{
    const ssd_job<T> k = { a->nb,
                           a->nh,
                           a->np,
                           a->ng,
                           a->nr,
                           a->stride,
                           a->y_stride,
                           (const T *)a->x,
                           (const T *)a->b,
                           (const T *)a->c,
                           (const T *)a->dt,
                           (const T *)a->dt_bias,
                           (const T *)a->a_log,
                           (const T *)a->d,
                           (T)a->dt_min,
                           (T)a->dt_max,
                           (T *)a->state,
                           (T *)a->y,
                           a->d_per_dim,
                           0 };
    if (k.nb * k.nh * k.np == 0) return;
    const bool aligned = sizeof(T) == 4 && k.nr % VECTOR == 0 && k.stride % VECTOR == 0 && kr_allows16(k.b) &&
                         kr_allows16(k.c) && kr_allows16(k.state);
    if (aligned) launch_some<T, true>(a, k);
    else launch_some<T, false>(a, k);
}

KR_CUDA_ENTRY(token_ssd, kr_token_ssd_args)
