/* norm_cuda.cu - RMS norm over groups of the last axis, with an optional gate.
 *
 *   x, z, y [no ni]    gain [ni] or none (1)    q [no ng]    z none: no gate; x, y, g_y may be of halves, rows of x and z apart
 *   gate first: u = x silu(z);  q = (mean_group(u^2) + eps)^-1/2;  y = u q gain
 *   norm first: u = x;          q as above;                        y = u q gain silu(z)
 * backward, w = gain g_y (norm first: gain g_y silu(z)):
 *   g_u = q w - q^3 u mean_group(w u)
 *   gate first: g_x = g_u silu(z), g_z = g_u x silu'(z);   norm first: g_x = g_u, g_z = u q gain g_y silu'(z)
 *   g_gain[i] = sum over rows of g_y u q (silu(z) if norm first)
 *
 * A group of a row is one unit of work: of a warp, or of a block that is as wide as the group needs for its packs to stay
 * in registers between the two passes. Groups that are wider than a block can hold are read twice. A warp has some groups
 * at once, whose loads are on their way together.
 * Backward, a unit walks down some rows of its group, one load ahead, and keeps its part of g_gain in registers; the parts
 * go to scratch and are added in order. How many rows that are depends on the sizes alone.
 */
#include "kernels/cuda/gates.cuh"

enum { PLAIN, GATE_FIRST, NORM_FIRST }; /* which of the three norms */
enum { UNITS = 2048, LONG_ROWS = 64, WARP_GROUPS = 4 };

template <typename T> struct norm_job {
    int64_t no, ni, ng, width;
    int64_t x_gap, z_gap;
    const void *x;
    const T *z, *gain;
    void *y;
    kr_half x_half, y_half;
    T *q;
    T eps;
    bool aligned, quick;
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

template <typename T> static __device__ __forceinline__ kr_pack<T> load_gain(const T *gain, int64_t left, bool aligned)
{
    kr_pack<T> p;
    if (gain) return kr_load_pack(gain, left, aligned);
#pragma unroll
    for (int i = 0; i < kr_pack<T>::N; i++) p.v[i] = 1;
    return p;
}

/* Where the elements of row o lie beyond those of rows without gaps. */
static __device__ __forceinline__ int64_t gap_before(int64_t gap, int64_t o)
{
    return gap ? o * gap : 0;
}

template <int THREADS> static __device__ __forceinline__ int64_t unit_of(void)
{
    return THREADS == 32 ? (int64_t)blockIdx.x * 4 + threadIdx.x / 32 : (int64_t)blockIdx.x;
}

/* GROUPS groups that follow one another. */
template <typename T, int THREADS, int PACKS, int GROUPS, int KIND>
static __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS) norm_kernel(const norm_job<T> k)
{
    enum { N = kr_pack<T>::N };
    __shared__ T room[32];
    const int64_t first = unit_of<THREADS>() * GROUPS, groups = k.no * k.ng;
    const int lane = threadIdx.x % THREADS;
    if (first >= groups) return;
    kr_pack<T> u[GROUPS][PACKS], z[GROUPS][PACKS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int64_t in = (p * THREADS + lane) * N, at = (first + g) * k.width + in;
            const int64_t left = first + g < groups ? k.width - in : 0;
            const int64_t row = k.x_gap || (KIND != PLAIN && k.z_gap) ? (first + g) / k.ng : 0;
            u[g][p] = kr_load_pack_as<T>(k.x, at + row * k.x_gap, k.x_half, left, k.aligned);
            if (KIND != PLAIN) z[g][p] = kr_load_pack(k.z + at + row * k.z_gap, left, k.aligned);
        }
#pragma unroll
    for (int g = 0; KIND != PLAIN && g < GROUPS; g++)
#pragma unroll
        for (int p = 0; p < PACKS; p++) z[g][p] = kr_silu_of(z[g][p], k.quick);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        T squares = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                u[g][p].v[i] = gated<KIND>(u[g][p].v[i], z[g][p].v[i]);
                squares += u[g][p].v[i] * u[g][p].v[i];
            }
        squares = kr_block_sum<THREADS>(squares, room);
        if (first + g >= groups) return;
        const T q = 1 / kr_root(squares / (T)k.width + k.eps);
        if (lane == 0) k.q[first + g] = q;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int64_t in = (p * THREADS + lane) * N, left = k.width - in;
            const T *of_group = k.gain ? k.gain + (first + g) % k.ng * k.width + in : NULL;
            const kr_pack<T> gain = load_gain(of_group, left, k.aligned);
#pragma unroll
            for (int i = 0; i < N; i++) u[g][p].v[i] = normed<KIND>(u[g][p].v[i], q, gain.v[i], z[g][p].v[i]);
            kr_store_pack_as(k.y, (first + g) * k.width + in, u[g][p], k.y_half, left, k.aligned);
        }
    }
}

/* A group of any width, in two passes over it. */
template <typename T, int THREADS, int KIND>
static __global__ void __launch_bounds__(THREADS) norm_long_kernel(const norm_job<T> k)
{
    enum { N = kr_pack<T>::N };
    __shared__ T room[32];
    const int64_t first = blockIdx.x * k.width, channel = blockIdx.x % k.ng * k.width;
    const int64_t first_z = first + gap_before(k.z_gap, blockIdx.x / k.ng);
    const int64_t first_x = first + gap_before(k.x_gap, blockIdx.x / k.ng);
    T squares = 0;
    for (int64_t at = threadIdx.x * N; at < k.width; at += THREADS * N) {
        kr_pack<T> u = kr_load_pack_as<T>(k.x, first_x + at, k.x_half, k.width - at, k.aligned), z;
        if (KIND == GATE_FIRST) z = kr_silu_of(kr_load_pack(k.z + first_z + at, k.width - at, k.aligned), k.quick);
#pragma unroll
        for (int i = 0; i < N; i++) {
            u.v[i] = gated<KIND>(u.v[i], z.v[i]);
            squares += u.v[i] * u.v[i];
        }
    }
    squares = kr_block_sum<THREADS>(squares, room);
    const T q = 1 / kr_root(squares / (T)k.width + k.eps);
    if (threadIdx.x == 0) k.q[blockIdx.x] = q;
    for (int64_t at = threadIdx.x * N; at < k.width; at += THREADS * N) {
        kr_pack<T> u = kr_load_pack_as<T>(k.x, first_x + at, k.x_half, k.width - at, k.aligned), z;
        if (KIND != PLAIN) z = kr_silu_of(kr_load_pack(k.z + first_z + at, k.width - at, k.aligned), k.quick);
        const kr_pack<T> gain = load_gain(k.gain ? k.gain + channel + at : NULL, k.width - at, k.aligned);
#pragma unroll
        for (int i = 0; i < N; i++) u.v[i] = normed<KIND>(gated<KIND>(u.v[i], z.v[i]), q, gain.v[i], z.v[i]);
        kr_store_pack_as(k.y, first + at, u, k.y_half, k.width - at, k.aligned);
    }
}

/* Threads that hold a group, a pack each: one of these; a warp holds two at most, and so does the largest block. */
#define EACH_WIDTH(X) X(128) X(192) X(256) X(384) X(512) X(768) X(1024)
enum { WARP_ONE = 1, WARP_TWO = 32, BLOCK_TWO = 2048, NO_BLOCK = 0 };

template <typename T> static int threads_for(int64_t width)
{
    const int64_t packs = kr_ceil_div(width, kr_pack<T>::N);
    if (packs <= 32) return WARP_ONE;
    if (packs <= 64) return WARP_TWO;
#define X(threads)                                                                                                     \
    if (packs <= threads) return threads;
    EACH_WIDTH(X)
#undef X
    return packs <= BLOCK_TWO ? BLOCK_TWO : NO_BLOCK;
}

template <typename T, int KIND> static void norm_launch(const norm_job<T> &k, cudaStream_t stream)
{
    const int64_t groups = k.no * k.ng;
    const unsigned each = (unsigned)groups;
    switch (threads_for<T>(k.width)) {
    case WARP_ONE:
        norm_kernel<T, 32, 1, WARP_GROUPS, KIND><<<(unsigned)kr_ceil_div(groups, 4 * WARP_GROUPS), 128, 0, stream>>>(k);
        break;
    case WARP_TWO: norm_kernel<T, 32, 2, 1, KIND><<<(unsigned)kr_ceil_div(groups, 4), 128, 0, stream>>>(k); break;
#define X(threads)                                                                                                     \
    case threads: norm_kernel<T, threads, 1, 1, KIND><<<each, threads, 0, stream>>>(k); break;
        EACH_WIDTH(X)
#undef X
    case BLOCK_TWO: norm_kernel<T, 1024, 2, 1, KIND><<<each, 1024, 0, stream>>>(k); break;
    default: norm_long_kernel<T, 1024, KIND><<<each, 1024, 0, stream>>>(k);
    }
}

template <typename T> static void norm_run(const kr_norm_args *a)
{
    if (a->no * a->ng == 0) return;
    norm_job<T> k = {};
    k.no = a->no, k.ni = a->ni, k.ng = a->ng, k.width = a->ni / a->ng, k.x_gap = a->x_gap, k.z_gap = a->z_gap;
    k.x = a->x, k.z = (const T *)a->z, k.gain = (const T *)a->gain, k.x_half = a->x_half;
    k.y = a->y, k.y_half = a->y_half, k.q = (T *)a->q, k.eps = (T)a->eps, k.quick = kr_is_quick<T>(&a->exec);
    k.aligned = kr_allows16(k.x) && kr_allows16(k.z) && kr_allows16(k.gain) && kr_allows16(k.y) &&
                k.width % kr_pack<T>::N == 0 && k.z_gap % kr_pack<T>::N == 0 && k.x_gap % kr_pack<T>::N == 0;
    cudaStream_t stream = kr_stream_of(&a->exec);
    if (!k.z) norm_launch<T, PLAIN>(k, stream);
    else if (a->norm_first) norm_launch<T, NORM_FIRST>(k, stream);
    else norm_launch<T, GATE_FIRST>(k, stream);
}

KR_CUDA_ENTRY(norm, kr_norm_args)

/* ---- backward ---- */

template <typename T> struct back_job {
    int64_t no, ni, ng, width;
    int64_t rows, chunks; /* rows of a unit; units down a group */
    int64_t x_gap, z_gap;
    const void *x, *g_y;
    kr_half x_half, g_y_half;
    const T *z, *gain, *q;
    void *g_x, *g_z;
    kr_place g_x_place, g_z_place;
    T *parts;  /* [chunks ni], or NULL: g_gain is not wanted */
    bool adds; /* to g_x */
    bool aligned, quick;
};

/* silu(z) and its slope at one place. */
template <int KIND, typename T>
static __device__ __forceinline__ void gate_at(const back_job<T> &k, int64_t at, T *silu, T *slope)
{
    *silu = *slope = 0;
    if (KIND == PLAIN) return;
    const T z = k.z[at];
    if (k.quick) kr_silu_slope_quick(z, silu, slope);
    else kr_silu_slope(z, silu, slope);
}

/* What one channel's gradients are made of. */
template <typename T> struct channel_terms {
    T u, w, out; /* out: gain g_y */
    T of_u, of_y, slope;
};

template <int KIND, typename T>
static __device__ __forceinline__ channel_terms<T> terms_of(T x, T silu, T slope, T gain, T g_y)
{
    channel_terms<T> t = { x, 0, gain * g_y, 1, 1, slope };
    if (KIND == GATE_FIRST) t.of_u = silu, t.u = x * silu;
    if (KIND == NORM_FIRST) t.of_y = silu;
    t.w = t.out * t.of_y;
    return t;
}

template <int KIND, typename T>
static __device__ __forceinline__ void give(const channel_terms<T> &t, T x, T q, T mean, T *g_x, T *g_z)
{
    const T g_u = q * (t.w - q * q * mean * t.u);
    *g_x = g_u * t.of_u;
    *g_z = (KIND == NORM_FIRST ? t.u * q * t.out : g_u * x) * t.slope;
}

/* One row's operands of a thread. */
template <typename T, int PACKS> struct row_packs {
    kr_pack<T> x[PACKS], z[PACKS], g_y[PACKS], g_x[PACKS]; /* g_x: what it is added to */
    T q;
};

template <typename T, int THREADS, int PACKS, int KIND>
static __device__ __forceinline__ void load_row(const back_job<T> &k, int64_t o, int64_t group,
                                                row_packs<T, PACKS> *row)
{
    row->q = k.q[o * k.ng + group];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int64_t in = (int64_t)(p * THREADS + threadIdx.x % THREADS) * kr_pack<T>::N, left = k.width - in;
        const int64_t at = o * k.ni + group * k.width + in;
        row->x[p] = kr_load_pack_as<T>(k.x, at + o * k.x_gap, k.x_half, left, k.aligned);
        if (KIND != PLAIN) row->z[p] = kr_load_pack(k.z + at + o * k.z_gap, left, k.aligned);
        row->g_y[p] = kr_load_pack_as<T>(k.g_y, at, k.g_y_half, left, k.aligned);
        if (KIND == PLAIN && k.adds) row->g_x[p] = kr_load_pack((const T *)k.g_x + at, left, k.aligned);
    }
}

template <typename T, int THREADS, int PACKS, int KIND>
static __global__ void __launch_bounds__(THREADS == 32 ? 128 : THREADS) norm_bwd_kernel(const back_job<T> k)
{
    enum { N = kr_pack<T>::N };
    __shared__ T room[32];
    const int64_t unit = unit_of<THREADS>();
    if (unit >= k.chunks * k.ng) return;
    const int64_t group = unit % k.ng, chunk = unit / k.ng, channel = group * k.width;
    const int64_t start = chunk * k.rows, end = kr_least(start + k.rows, k.no);
    const int lane = threadIdx.x % THREADS;
    kr_pack<T> gain[PACKS], sums[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int64_t in = (p * THREADS + lane) * N;
        gain[p] = load_gain(k.gain ? k.gain + channel + in : NULL, k.width - in, k.aligned);
#pragma unroll
        for (int i = 0; i < N; i++) sums[p].v[i] = 0;
    }
    row_packs<T, PACKS> next;
    load_row<T, THREADS, PACKS, KIND>(k, start, group, &next);
    for (int64_t o = start; o < end; o++) {
        const row_packs<T, PACKS> row = next;
        if (o + 1 < end) load_row<T, THREADS, PACKS, KIND>(k, o + 1, group, &next);
        channel_terms<T> t[PACKS][N];
        T wu = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            kr_pack<T> silu = {}, slope = {};
            if (KIND != PLAIN) kr_slopes_of(row.z[p], k.quick, &silu, &slope);
#pragma unroll
            for (int i = 0; i < N; i++) {
                t[p][i] = terms_of<KIND>(row.x[p].v[i], silu.v[i], slope.v[i], gain[p].v[i], row.g_y[p].v[i]);
                wu += t[p][i].w * t[p][i].u;
                sums[p].v[i] += row.g_y[p].v[i] * t[p][i].u * row.q * t[p][i].of_y;
            }
        }
        if (!k.g_x && !k.g_z) continue;
        const T mean = kr_block_sum<THREADS>(wu, room) / (T)k.width;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int64_t in = (p * THREADS + lane) * N, left = k.width - in, at = o * k.ni + channel + in;
            kr_pack<T> g_x, g_z;
#pragma unroll
            for (int i = 0; i < N; i++) {
                give<KIND>(t[p][i], row.x[p].v[i], row.q, mean, &g_x.v[i], &g_z.v[i]);
                if (KIND == PLAIN && k.adds) g_x.v[i] += row.g_x[p].v[i];
            }
            if (k.g_x) kr_store_pack_as(k.g_x, at + o * k.g_x_place.gap, g_x, k.g_x_place.half, left, k.aligned);
            if (KIND != PLAIN && k.g_z)
                kr_store_pack_as(k.g_z, at + o * k.g_z_place.gap, g_z, k.g_z_place.half, left, k.aligned);
        }
    }
    if (!k.parts) return;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int64_t in = (p * THREADS + lane) * N;
        kr_store_pack(k.parts + chunk * k.ni + channel + in, sums[p], k.width - in, k.aligned);
    }
}

/* A group of a row of any width, read twice. */
template <typename T, int THREADS, int KIND>
static __global__ void __launch_bounds__(THREADS) norm_bwd_long_kernel(const back_job<T> k)
{
    __shared__ T room[32];
    const int64_t first = blockIdx.x * k.width, channel = blockIdx.x % k.ng * k.width;
    const int64_t row = blockIdx.x / k.ng;
    const T q = k.q[blockIdx.x];
    const int64_t first_x = first + gap_before(k.x_gap, row), first_z = first + gap_before(k.z_gap, row);
    T wu = 0;
    for (int64_t i = threadIdx.x; i < k.width; i += THREADS) {
        T silu, slope;
        gate_at<KIND>(k, first_z + i, &silu, &slope);
        const channel_terms<T> t =
            terms_of<KIND>(kr_element<T>(k.x, first_x + i, k.x_half), silu, slope, k.gain ? k.gain[channel + i] : (T)1,
                           kr_element<T>(k.g_y, first + i, k.g_y_half));
        wu += t.w * t.u;
    }
    const T mean = kr_block_sum<THREADS>(wu, room) / (T)k.width;
    for (int64_t i = threadIdx.x; i < k.width; i += THREADS) {
        const T x = kr_element<T>(k.x, first_x + i, k.x_half);
        T silu, slope, g_x, g_z;
        gate_at<KIND>(k, first_z + i, &silu, &slope);
        const channel_terms<T> t = terms_of<KIND>(x, silu, slope, k.gain ? k.gain[channel + i] : (T)1,
                                                  kr_element<T>(k.g_y, first + i, k.g_y_half));
        give<KIND>(t, x, q, mean, &g_x, &g_z);
        if (KIND == PLAIN && k.adds) g_x += ((const T *)k.g_x)[first + i];
        if (k.g_x) kr_put_as(k.g_x, first + i + gap_before(k.g_x_place.gap, row), g_x, k.g_x_place.half);
        if (KIND != PLAIN && k.g_z)
            kr_put_as(k.g_z, first + i + gap_before(k.g_z_place.gap, row), g_z, k.g_z_place.half);
    }
}

/* Parts of g_gain where groups are long: a thread walks down the rows of one channel. */
template <typename T, int THREADS, int KIND>
static __global__ void __launch_bounds__(THREADS) norm_gain_kernel(const back_job<T> k)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, chunk = blockIdx.y;
    if (i >= k.ni) return;
    T sum = 0;
    for (int64_t o = chunk * k.rows; o < kr_least((chunk + 1) * k.rows, k.no); o++) {
        const int64_t at = o * k.ni + i;
        const T g_y = kr_element<T>(k.g_y, at, k.g_y_half);
        T silu, slope;
        gate_at<KIND>(k, at + o * k.z_gap, &silu, &slope);
        const channel_terms<T> t =
            terms_of<KIND>(kr_element<T>(k.x, at + o * k.x_gap, k.x_half), silu, slope, (T)1, g_y);
        sum += g_y * t.u * k.q[o * k.ng + i / k.width] * t.of_y;
    }
    k.parts[chunk * k.ni + i] = sum;
}

template <typename T, int KIND> static void norm_bwd_launch(const back_job<T> &k, cudaStream_t stream)
{
    const int64_t units = k.chunks * k.ng;
    const unsigned each = (unsigned)units;
    switch (threads_for<T>(k.width)) {
    case WARP_ONE: norm_bwd_kernel<T, 32, 1, KIND><<<(unsigned)kr_ceil_div(units, 4), 128, 0, stream>>>(k); break;
    case WARP_TWO: norm_bwd_kernel<T, 32, 2, KIND><<<(unsigned)kr_ceil_div(units, 4), 128, 0, stream>>>(k); break;
#define X(threads)                                                                                                     \
    case threads: norm_bwd_kernel<T, threads, 1, KIND><<<each, threads, 0, stream>>>(k); break;
        EACH_WIDTH(X)
#undef X
    case BLOCK_TWO: norm_bwd_kernel<T, 1024, 2, KIND><<<each, 1024, 0, stream>>>(k); break;
    default:
        if (k.g_x || k.g_z) norm_bwd_long_kernel<T, 1024, KIND><<<(unsigned)(k.no * k.ng), 1024, 0, stream>>>(k);
        if (k.parts)
            norm_gain_kernel<T, 128, KIND>
                <<<dim3((unsigned)kr_ceil_div(k.ni, 128), (unsigned)k.chunks), 128, 0, stream>>>(k);
    }
}

/* Rows of a unit: a warp's units are more, being smaller. */
template <typename T> static int64_t rows_of_unit(const kr_norm_bwd_args *a)
{
    const int threads = threads_for<T>(a->ni / a->ng);
    if (threads == NO_BLOCK) return kr_ceil_div(a->no, UNITS) + LONG_ROWS - 1;
    const int64_t units = threads <= WARP_TWO ? 4 * UNITS : threads <= 512 ? UNITS : UNITS / 2;
    return kr_ceil_div(a->no, kr_ceil_div(units, a->ng));
}

template <typename T> static size_t norm_bwd_scratch(const kr_norm_bwd_args *a)
{
    if (a->no * a->ni == 0 || !a->g_gain) return 0;
    return kr_padded_bytes(kr_ceil_div(a->no, rows_of_unit<T>(a)) * a->ni * (int64_t)sizeof(T));
}

template <typename T> static void norm_bwd_run(const kr_norm_bwd_args *a)
{
    cudaStream_t stream = kr_stream_of(&a->exec);
    if (a->no * a->ni == 0) {
        if (a->g_gain && a->ni > 0) cudaMemsetAsync(a->g_gain, 0, (size_t)a->ni * sizeof(T), stream);
        return;
    }
    const int64_t rows = rows_of_unit<T>(a);
    back_job<T> k = {};
    k.no = a->no, k.ni = a->ni, k.ng = a->ng, k.width = a->ni / a->ng;
    k.rows = rows, k.chunks = kr_ceil_div(a->no, rows);
    k.x_gap = a->x_gap, k.z_gap = a->z_gap, k.x = a->x, k.x_half = a->x_half;
    k.z = (const T *)a->z, k.gain = (const T *)a->gain, k.q = (const T *)a->q;
    k.g_y = a->g_y, k.g_y_half = a->g_y_half;
    k.g_x = a->g_x, k.g_z = a->g_z, k.g_x_place = a->g_x_place, k.g_z_place = a->g_z_place;
    k.parts = a->g_gain ? (T *)a->exec.scratch : NULL, k.adds = a->adds, k.quick = kr_is_quick<T>(&a->exec);
    k.aligned = kr_allows16(k.x) && kr_allows16(k.z) && kr_allows16(k.gain) && kr_allows16(k.g_y) &&
                kr_allows16(k.g_x) && kr_allows16(k.g_z) && k.width % kr_pack<T>::N == 0 &&
                k.z_gap % kr_pack<T>::N == 0 && k.g_z_place.gap % kr_pack<T>::N == 0 && k.x_gap % kr_pack<T>::N == 0 &&
                k.g_x_place.gap % kr_pack<T>::N == 0;
    if (!k.z) norm_bwd_launch<T, PLAIN>(k, stream);
    else if (a->norm_first) norm_bwd_launch<T, NORM_FIRST>(k, stream);
    else norm_bwd_launch<T, GATE_FIRST>(k, stream);
    const kr_fold_to<T> to = { (T *)a->g_gain, NULL, a->ni, 1 };
    if (a->g_gain) kr_fold_run(stream, k.parts, k.chunks, a->ni, to);
}

KR_CUDA_ENTRY_SCRATCH(norm_bwd, kr_norm_bwd_args)
