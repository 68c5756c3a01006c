/* angles_cuda.cu - rotary angles that accumulate along each sequence, wrapped, and their gradients; all architectures, f32
 * and f64.
 *
 *   theta [b s a]    dt [b s h]    angle [b s h a]    initial, final [q h a]
 *   phi_t = wrap(phi_{t-1} + dt_t[h] rate_t[a]),   rate = range pi tanh(theta),   wrap(x) = x - 2 pi round(x / 2 pi)
 * backward, G_t = g_final + sum of g_angle_k over k >= t:
 *   g_initial = G_start;   g_dt_t[h] = sum_a G_t rate_t[a];   g_theta_t[a] = range pi (1 - tanh^2) sum_h dt_t[h] G_t
 *
 * Sequences are split into chunks (seq_chunks.cuh). A first kernel sums each chunk; the second adds the sums of the few
 * chunks before (backward: after) its own, and processes its tokens. Forward all sums are in double and wrapped at every
 * step. Backward they are in the element type, in double from chunk to chunk.
 */
#include "kernels/cuda/prim/seq_chunks.cuh"
#include "kernels/cuda/prim/dtype16.cuh"
#include "kernels/args/mamba3_args.h"

enum { THREADS = 256 };

/* ---- forward ---- */

template <typename T> struct forward {
    kr_chunks chunks;
    int64_t nh, na, width; /* width = nh na */
    int64_t line;          /* token stride of theta */
    kr_divisor angles;     /* na */
    const T *theta, *dt, *initial;
    T *angle, *final;
    double *rate;  /* [b s a] */
    double *total; /* of each chunk [chunks h a] */
    double range;
};

/* Rounds by adding 1.5 2^52: exact below 2^51, and keeps NaN. */
KR_DEVICE double wrap(double x)
{
    const double shifted = fma(x, 1 / (2 * KR_PI), 0x1.8p52), rates = shifted - 0x1.8p52;
    return fma(rates, -2 * KR_PI, x);
}

enum { BATCH = 8 }; /* tokens whose loads are in flight at once */

/* phi from token t on, BATCH of them or fewer; angle (NULL: not wanted): destination of token t. */
template <typename T>
KR_DEVICE double run_batch(const forward<T> &k, const T *dt, const double *rate, int64_t count, double phi, T *angle)
{
    double by[BATCH];
    T step[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; j++) {
        by[j] = j < count ? rate[j * k.na] : 0;
        step[j] = j < count ? dt[j * k.nh] : (T)0;
    }
#pragma unroll
    for (int j = 0; j < BATCH; j++) {
        if (j >= count) break;
        phi = wrap(fma((double)step[j], by[j], phi));
        if (angle) angle[j * k.width] = (T)phi;
    }
    return phi;
}

/* One CTA per chunk: the rates of its tokens, then its sums. */
template <typename T> static __global__ void __launch_bounds__(THREADS, 3) sum_chunks(const forward<T> k)
{
    const kr_chunk c = kr_chunk_of(k.chunks, blockIdx.x);
    const T *theta = k.theta + c.token * k.line, *dt = k.dt + c.token * k.nh;
    double *rate = k.rate + c.token * k.na;
    for (uint32_t i = threadIdx.x; i < c.count * k.na; i += blockDim.x) {
        const int64_t t = kr_quotient(i, k.angles);
        rate[i] = k.range * KR_PI * tanh((double)theta[i + t * (k.line - k.na)]);
    }
    __syncthreads();
    if (c.index == c.of - 1) return; /* the last chunk has no successor */
    for (uint32_t i = threadIdx.x; i < k.width; i += blockDim.x) {
        const uint32_t h = kr_quotient(i, k.angles), a = i - h * k.angles.d;
        double sum = 0;
        for (int64_t t = 0; t < c.count; t += BATCH)
            sum = run_batch<T>(k, dt + t * k.nh + h, rate + t * k.na + a, c.count - t, sum, NULL);
        k.total[blockIdx.x * k.width + i] = sum;
    }
}

/* One thread per angle of a head, through a chunk. */
template <typename T> static __global__ void __launch_bounds__(THREADS, 3) run_chunks(const forward<T> k)
{
    const kr_chunk c = kr_chunk_of(k.chunks, blockIdx.x);
    const uint32_t i = blockIdx.y * THREADS + threadIdx.x;
    if (i >= k.width) return;
    const uint32_t h = kr_quotient(i, k.angles), a = i - h * k.angles.d;
    double phi = k.initial ? wrap((double)k.initial[c.q * k.width + i]) : 0;
    const double *total = k.total + ((int64_t)blockIdx.x - c.index) * k.width + i;
#pragma unroll 4
    for (int32_t j = 0; j < c.index; j++) phi = wrap(phi + total[j * k.width]);
    const double *rate = k.rate + c.token * k.na + a;
    const T *dt = k.dt + c.token * k.nh + h;
    T *angle = k.angle + c.token * k.width + i;
    for (int64_t t = 0; t < c.count; t += BATCH)
        phi = run_batch<T>(k, dt + t * k.nh, rate + t * k.na, c.count - t, phi, angle + t * k.width);
    if (c.index == c.of - 1) k.final[c.q * k.width + i] = (T)phi;
}

template <typename T> static forward<T> forward_of(const kr_angles_args *n, kr_cuda_scratch *m)
{
    forward<T> k = {};
    k.chunks = kr_chunks_make(n->sequences, n->nq, n->nb, n->ns, m, (cudaStream_t)n->exec.stream);
    k.nh = n->nh, k.na = n->na, k.width = n->nh * n->na, k.line = n->theta.row;
    k.angles = kr_divisor_of(n->na);
    k.theta = (const T *)n->theta.data, k.dt = (const T *)n->dt, k.initial = (const T *)n->initial;
    k.angle = (T *)n->angle, k.final = (T *)n->final;
    k.rate = (double *)kr_scratch_take(m, n->nb * n->ns * n->na * (int64_t)sizeof(double));
    k.total = (double *)kr_scratch_take(m, k.chunks.count * k.width * (int64_t)sizeof(double));
    k.range = n->range;
    return k;
}

template <typename T> static size_t scratch(const kr_angles_args *n)
{
    kr_cuda_scratch m = { NULL, 0 };
    if (n->nq > 0 && n->nh > 0 && n->na > 0) forward_of<T>(n, &m);
    return m.used;
}

template <typename T> static void run(const kr_angles_args *n)
{
    if (n->nq == 0 || n->nh == 0 || n->na == 0) return;
    kr_cuda_scratch m = { (char *)n->exec.scratch, 0 };
    const forward<T> k = forward_of<T>(n, &m);
    const dim3 grid((unsigned)k.chunks.count, (unsigned)kr_ceil_div(k.width, THREADS));
    sum_chunks<T><<<grid.x, kr_threads_for(k.width, THREADS), 0, (cudaStream_t)n->exec.stream>>>(k);
    run_chunks<T><<<grid, THREADS, 0, (cudaStream_t)n->exec.stream>>>(k);
}

/* ---- backward ---- */

enum { TILE = 8 }; /* tokens at most */

template <typename T> struct backward {
    kr_chunks chunks;
    int64_t nh, na, width;
    int64_t line; /* as above */
    kr_divisor angles, heads;
    const T *theta, *dt, *g_angle, *g_final;
    kr_operand g_theta;  /* absent: not wanted */
    T *g_dt, *g_initial; /* NULL: not wanted */
    T *total;            /* sums of g_angle [chunks h a] */
    T *tiles;            /* tiles of the CTAs in scratch if shared memory is too small, else NULL */
    int64_t row, tokens; /* a tile: `tokens` tokens of nh rows with stride `row` = na or na + 1, and na rates */
    double range;
};

template <typename T> static __global__ void __launch_bounds__(THREADS, 4) sum_gradients(const backward<T> k)
{
    const kr_chunk c = kr_chunk_of(k.chunks, blockIdx.x);
    const int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (i >= k.width || c.index == 0) return;
    const T *g = k.g_angle + c.token * k.width + i;
    T sum = 0;
#pragma unroll 8
    for (int32_t t = 0; t < c.count; t++) sum += g[t * k.width];
    k.total[blockIdx.x * k.width + i] = sum;
}

/* Stores G of tokens t0 .. t0+count-1 of the chunk to the tile, the last first; g: the sum after them, at the end G_t0. */
template <typename T> KR_DEVICE void fill_tile(const backward<T> &k, int64_t token, int64_t count, T *g, T *tile)
{
    for (uint32_t i = threadIdx.x; i < k.width; i += blockDim.x) {
        const uint32_t h = kr_quotient(i, k.angles), a = i - h * k.angles.d;
        const T *from = k.g_angle + token * k.width + i;
        T own[TILE], sum = g[i];
#pragma unroll
        for (int t = 0; t < TILE; t++) own[t] = t < count ? from[t * k.width] : (T)0;
#pragma unroll
        for (int t = TILE - 1; t >= 0; t--) {
            sum += own[t];
            if (t < count) tile[(t * k.nh + h) * k.row + a] = sum;
        }
        g[i] = sum;
    }
    T *u = tile + k.tokens * k.nh * k.row;
    for (uint32_t i = threadIdx.x; i < count * k.na; i += blockDim.x)
        u[i] = kr_tanh(k.theta[token * k.line + i + (int64_t)kr_quotient(i, k.angles) * (k.line - k.na)]);
}

/* Stores the sums over angles and over heads of a tile's tokens. */
template <typename T> KR_DEVICE void store_tile(const backward<T> &k, int64_t token, int64_t count, const T *tile)
{
    const T *u = tile + k.tokens * k.nh * k.row, factor = (T)(k.range * KR_PI);
    for (uint32_t i = threadIdx.x; k.g_dt && i < count * k.nh; i += blockDim.x) {
        const int64_t t = kr_quotient(i, k.heads);
        T sum = 0;
#pragma unroll 8
        for (int64_t a = 0; a < k.na; a++) sum = kr_fma(tile[i * k.row + a], u[t * k.na + a], sum);
        k.g_dt[token * k.nh + i] = factor * sum;
    }
    for (uint32_t i = threadIdx.x; k.g_theta.data && i < count * k.na; i += blockDim.x) {
        const int64_t t = kr_quotient(i, k.angles), a = i - t * k.na;
        T sum = 0;
#pragma unroll 8
        for (int64_t h = 0; h < k.nh; h++)
            sum = kr_fma(tile[(t * k.nh + h) * k.row + a], k.dt[(token + t) * k.nh + h], sum);
        kr_store_as(k.g_theta.data, (token + t) * k.g_theta.row + a, factor * kr_fma(-u[i], u[i], (T)1) * sum,
                    k.g_theta.dtype);
    }
}

/* One CTA per chunk, tile after tile from its end. */
template <typename T> static __global__ void __launch_bounds__(512, 2) run_gradients(const backward<T> k)
{
    extern __shared__ __align__(16) char shared[];
    const kr_chunk c = kr_chunk_of(k.chunks, blockIdx.x);
    const int64_t whole = k.width + k.tokens * (k.nh * k.row + k.na);
    T *g = k.tiles ? k.tiles + blockIdx.x * whole : (T *)shared, *tile = g + k.width;
    for (int64_t i = threadIdx.x; i < k.width; i += blockDim.x) {
        double sum = k.g_final ? (double)k.g_final[c.q * k.width + i] : 0;
        const T *total = k.total + (blockIdx.x - c.index) * k.width + i;
#pragma unroll 4
        for (int32_t j = c.of - 1; j > c.index; j--) sum += (double)total[j * k.width];
        g[i] = (T)sum;
    }
    for (int64_t end = c.count; end > 0; end -= k.tokens) {
        const int64_t first = end > k.tokens ? end - k.tokens : 0;
        fill_tile(k, c.token + first, end - first, g, tile);
        __syncthreads();
        store_tile(k, c.token + first, end - first, tile);
        __syncthreads();
    }
    for (int64_t i = threadIdx.x; k.g_initial && c.index == 0 && i < k.width; i += blockDim.x)
        k.g_initial[c.q * k.width + i] = g[i];
}

enum { SHARED = 48 * 1024 };

/* A tile of up to TILE tokens in shared memory, or in the CTA's part of scratch if it is too large. */
template <typename T> static backward<T> backward_of(const kr_angles_bwd_args *n, kr_cuda_scratch *m, size_t *shared)
{
    backward<T> k = {};
    k.chunks = kr_chunks_make(n->sequences, n->nq, n->nb, n->ns, m, (cudaStream_t)n->exec.stream);
    k.nh = n->nh, k.na = n->na, k.width = n->nh * n->na, k.line = n->theta.row;
    k.angles = kr_divisor_of(n->na), k.heads = kr_divisor_of(n->nh);
    k.theta = (const T *)n->theta.data, k.dt = (const T *)n->dt, k.g_angle = (const T *)n->g_angle;
    k.g_final = (const T *)n->g_final;
    k.g_theta = n->g_theta, k.g_dt = (T *)n->g_dt, k.g_initial = (T *)n->g_initial;
    k.total = (T *)kr_scratch_take(m, k.chunks.count * k.width * (int64_t)sizeof(T));
    k.range = n->range;
    k.row = n->na | 1; /* odd: neither columns nor rows have bank conflicts */
    const int64_t each = n->nh * k.row + n->na, capacity = SHARED / (int64_t)sizeof(T) - k.width;
    k.tokens = kr_least(TILE, capacity / each);
    *shared = (size_t)(k.width + k.tokens * each) * sizeof(T);
    if (k.tokens >= 1) return k;
    k.tokens = TILE;
    *shared = 0;
    k.tiles = (T *)kr_scratch_take(m, k.chunks.count * (k.width + TILE * each) * (int64_t)sizeof(T));
    return k;
}

template <typename T> static size_t bwd_scratch(const kr_angles_bwd_args *n)
{
    kr_cuda_scratch m = { NULL, 0 };
    size_t shared;
    if (n->nq > 0 && n->nh > 0 && n->na > 0) backward_of<T>(n, &m, &shared);
    return m.used;
}

template <typename T> static void run_bwd(const kr_angles_bwd_args *n)
{
    if (n->nq == 0 || n->nh == 0 || n->na == 0) return;
    kr_cuda_scratch m = { (char *)n->exec.scratch, 0 };
    size_t shared;
    const backward<T> k = backward_of<T>(n, &m, &shared);
    const dim3 grid((unsigned)k.chunks.count, (unsigned)kr_ceil_div(k.width, THREADS));
    sum_gradients<T><<<grid, THREADS, 0, (cudaStream_t)n->exec.stream>>>(k);
    run_gradients<T><<<grid.x, kr_threads_for(k.width, 512), shared, (cudaStream_t)n->exec.stream>>>(k);
}

extern "C" void kr_cuda_f32_angles(const kr_angles_args *n)
{
    run<float>(n);
}
extern "C" void kr_cuda_f64_angles(const kr_angles_args *n)
{
    run<double>(n);
}
extern "C" size_t kr_cuda_f32_angles_scratch(const kr_angles_args *n)
{
    return scratch<float>(n);
}
extern "C" size_t kr_cuda_f64_angles_scratch(const kr_angles_args *n)
{
    return scratch<double>(n);
}
extern "C" void kr_cuda_f32_angles_bwd(const kr_angles_bwd_args *n)
{
    run_bwd<float>(n);
}
extern "C" void kr_cuda_f64_angles_bwd(const kr_angles_bwd_args *n)
{
    run_bwd<double>(n);
}
extern "C" size_t kr_cuda_f32_angles_bwd_scratch(const kr_angles_bwd_args *n)
{
    return bwd_scratch<float>(n);
}
extern "C" size_t kr_cuda_f64_angles_bwd_scratch(const kr_angles_bwd_args *n)
{
    return bwd_scratch<double>(n);
}
