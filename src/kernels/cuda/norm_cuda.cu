/* norm_cuda.cu - RMS norm over groups of the last axis, with an optional gate.
 *
 *   x, z, y [no ni]    gain [ni] or none (1)    q [no ng]    z none: no gate
 *   x and y may be of halves, rows of x and z apart
 *   gate first: u = x silu(z);  q = (mean_group(u^2) + eps)^-1/2;  y = u q gain
 *   norm first: u = x;          q as above;                        y = u q gain silu(z)
 *
 * The grid is as large as the device holds at once; its units share the rows (norm.cuh).
 */
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/token.cuh"

enum { ABREAST = 1536 }; /* packs of a multiprocessor */

template <typename T> struct norm_job {
    int64_t no, ni, ng, width;
    int64_t walkers; /* units of a group */
    int64_t x_gap, z_gap;
    int64_t x_step, z_step, y_step; /* bytes from a walker's row to the next */
    const void *x;
    const T *z, *gain;
    void *y;
    kr_half x_half, y_half;
    T *q;
    T eps, per_width; /* 1 / width */
    bool quick;
};

/* z is silu(z) already. */
template <int KIND, typename T> static __device__ __forceinline__ T gated(T x, T z)
{
    return KIND == GATE_FIRST ? x * z : x;
}

template <int KIND, typename T> static __device__ __forceinline__ T normed(T u, T q, T gain, T z)
{
    const T y = u * q * gain;
    return KIND == NORM_FIRST ? y * z : y;
}

/* A thread's operands of one row, on their way, and how it goes from row to row. */
template <int PACKS> struct row_ahead {
    kr_raw x[PACKS], z[PACKS];
};

template <typename T, int THREADS, int PACKS, int KIND, bool WHOLE> struct row_feed {
    enum { N = kr_pack<T>::N };
    const char *x, *z;
    int left; /* channels from the thread's first on */

    __device__ __forceinline__ void start(const norm_job<T> &k, int64_t row, int64_t channel)
    {
        const int64_t in = channel + threadIdx.x % THREADS * N, of_x = kr_bytes_of<T>(k.x_half);
        left = (int)(k.width - threadIdx.x % THREADS * N);
        x = (const char *)k.x + (row * (k.ni + k.x_gap) + in) * of_x;
        z = (const char *)k.z + (row * (k.ni + k.z_gap) + in) * (int64_t)sizeof(T);
    }

    __device__ __forceinline__ void ask(const norm_job<T> &k, row_ahead<PACKS> *row)
    {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int at = p * THREADS * N;
            row->x[p] = kr_ask<T, WHOLE>(x + at * kr_bytes_of<T>(k.x_half), k.x_half, left - at);
            if (KIND != PLAIN) row->z[p] = kr_ask<T, WHOLE>(z + at * (int)sizeof(T), KR_NO_HALF, left - at);
        }
        x += k.x_step;
        if (KIND != PLAIN) z += k.z_step;
    }
};

template <typename T, int THREADS, int PACKS, int KIND, bool WHOLE>
static __global__ void __launch_bounds__(block_of(THREADS), blocks_abreast<T>(THREADS, PACKS, ABREAST))
    norm_kernel(const norm_job<T> k)
{
    enum { N = kr_pack<T>::N };
    __shared__ __align__(16) T room[64];
    const int64_t unit = unit_of<THREADS>(), group = unit % k.ng, walker = unit / k.ng;
    kr_token_wait();
    if (walker >= k.walkers) return;
    const int lane = threadIdx.x % THREADS;
    row_feed<T, THREADS, PACKS, KIND, WHOLE> feed;
    feed.start(k, walker, group * k.width);
    kr_pack<T> gain[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int64_t in = (p * THREADS + lane) * N;
        gain[p] = load_gain(k.gain ? k.gain + group * k.width + in : NULL, k.width - in, WHOLE);
    }
    char *y = (char *)k.y + (walker * k.ni + group * k.width + lane * N) * kr_bytes_of<T>(k.y_half);
    row_ahead<PACKS> next;
    feed.ask(k, &next);
    int turn = 0;
    for (int64_t o = walker; o < k.no; o += k.walkers, y += k.y_step, turn ^= 1) {
        const row_ahead<PACKS> row = next;
        if (o + k.walkers < k.no) feed.ask(k, &next);
        kr_pack<T> u[PACKS], z[PACKS];
        T squares = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u[p] = kr_asked<T, WHOLE>(row.x[p], k.x_half);
            if (KIND != PLAIN) z[p] = kr_silu_of(kr_asked<T, WHOLE>(row.z[p], KR_NO_HALF), k.quick);
#pragma unroll
            for (int i = 0; i < N; i++) {
                u[p].v[i] = gated<KIND>(u[p].v[i], z[p].v[i]);
                squares += u[p].v[i] * u[p].v[i];
            }
        }
        const T q = kr_inverse_root(kr_block_sum_in_turn<THREADS>(squares, room, turn) * k.per_width + k.eps);
        if (lane == 0) k.q[o * k.ng + group] = q;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int at = p * THREADS * N;
#pragma unroll
            for (int i = 0; i < N; i++) u[p].v[i] = normed<KIND>(u[p].v[i], q, gain[p].v[i], z[p].v[i]);
            kr_give<T, WHOLE>(y + at * kr_bytes_of<T>(k.y_half), u[p], k.y_half, feed.left - at);
        }
    }
}

/* A group of any width, in two passes over it. */
template <typename T, int THREADS, int KIND>
static __global__ void __launch_bounds__(THREADS) norm_long_kernel(const norm_job<T> k, bool aligned)
{
    enum { N = kr_pack<T>::N };
    __shared__ T room[32];
    const int64_t first = blockIdx.x * k.width, channel = blockIdx.x % k.ng * k.width;
    const int64_t first_z = first + gap_before(k.z_gap, blockIdx.x / k.ng);
    const int64_t first_x = first + gap_before(k.x_gap, blockIdx.x / k.ng);
    T squares = 0;
    for (int64_t at = threadIdx.x * N; at < k.width; at += THREADS * N) {
        kr_pack<T> u = kr_load_pack_as<T>(k.x, first_x + at, k.x_half, k.width - at, aligned), z;
        if (KIND == GATE_FIRST) z = kr_silu_of(kr_load_pack(k.z + first_z + at, k.width - at, aligned), k.quick);
#pragma unroll
        for (int i = 0; i < N; i++) {
            u.v[i] = gated<KIND>(u.v[i], z.v[i]);
            squares += u.v[i] * u.v[i];
        }
    }
    squares = kr_block_sum<THREADS>(squares, room);
    const T q = kr_inverse_root(squares * k.per_width + k.eps);
    if (threadIdx.x == 0) k.q[blockIdx.x] = q;
    for (int64_t at = threadIdx.x * N; at < k.width; at += THREADS * N) {
        kr_pack<T> u = kr_load_pack_as<T>(k.x, first_x + at, k.x_half, k.width - at, aligned), z;
        if (KIND != PLAIN) z = kr_silu_of(kr_load_pack(k.z + first_z + at, k.width - at, aligned), k.quick);
        const kr_pack<T> gain = load_gain(k.gain ? k.gain + channel + at : NULL, k.width - at, aligned);
#pragma unroll
        for (int i = 0; i < N; i++) u.v[i] = normed<KIND>(gated<KIND>(u.v[i], z.v[i]), q, gain.v[i], z.v[i]);
        kr_store_pack_as(k.y, first + at, u, k.y_half, k.width - at, aligned);
    }
}

template <typename T> static void walk_with(norm_job<T> *k, int64_t walkers)
{
    k->walkers = walkers;
    k->x_step = walkers * (k->ni + k->x_gap) * kr_bytes_of<T>(k->x_half);
    k->z_step = walkers * (k->ni + k->z_gap) * (int64_t)sizeof(T);
    k->y_step = walkers * k->ni * kr_bytes_of<T>(k->y_half);
}

template <typename T, int KIND, bool WHOLE> static void norm_launch(norm_job<T> k, const kr_exec *exec)
{
    const int multiprocessors = kr_multiprocessors(exec);
#define CASE(threads, packs)                                                                                           \
    do {                                                                                                               \
        const int64_t each = block_of(threads) / threads;                                                              \
        const int64_t most = multiprocessors * (int64_t)blocks_abreast<T>(threads, packs, ABREAST) * each;             \
        walk_with(&k, kr_least(k.no, kr_ceil_div(most, k.ng)));                                                        \
        kr_token_launch(exec, norm_kernel<T, threads, packs, KIND, WHOLE>,                                             \
                        dim3((unsigned)kr_ceil_div(k.walkers *k.ng, each)), block_of(threads), 0, k);                  \
    } while (0)
#define LONG norm_long_kernel<T, 1024, KIND><<<(unsigned)(k.no * k.ng), 1024, 0, kr_stream_of(exec)>>>(k, WHOLE)
    SWITCH_WIDTH(k.width, CASE, LONG)
#undef CASE
#undef LONG
}

template <typename T> static void norm_run(const kr_norm_args *a)
{
    if (a->no * a->ng == 0) return;
    norm_job<T> k = {};
    k.no = a->no, k.ni = a->ni, k.ng = a->ng, k.width = a->ni / a->ng, k.x_gap = a->x_gap, k.z_gap = a->z_gap;
    k.x = a->x, k.z = (const T *)a->z, k.gain = (const T *)a->gain, k.x_half = a->x_half;
    k.y = a->y, k.y_half = a->y_half, k.q = (T *)a->q, k.eps = (T)a->eps, k.quick = kr_is_quick<T>(&a->exec);
    k.per_width = (T)(1 / (double)k.width);
    const bool whole = kr_allows16(k.x) && kr_allows16(k.z) && kr_allows16(k.gain) && kr_allows16(k.y) &&
                       k.width % kr_pack<T>::N == 0 && k.z_gap % kr_pack<T>::N == 0 && k.x_gap % kr_pack<T>::N == 0;
#define RUN(kind)                                                                                                      \
    do {                                                                                                               \
        if (whole) norm_launch<T, kind, true>(k, &a->exec);                                                            \
        else norm_launch<T, kind, false>(k, &a->exec);                                                                 \
    } while (0)
    if (!k.z) RUN(PLAIN);
    else if (a->norm_first) RUN(NORM_FIRST);
    else RUN(GATE_FIRST);
#undef RUN
}

KR_CUDA_ENTRY(norm, kr_norm_args)
