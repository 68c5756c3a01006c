/* quaternion_scan_cuda.cu - cumulative products of quaternions along each sequence, and the gradients; all architectures,
 * f32 and f64.
 *
 *   q, cum [b s h j 4]    initial, final [q h j 4]    (w, x, y, z); (x) is the Hamilton product
 *   cum_t = p / |p|,  p = q_t (x) cum_{t-1}
 * backward, from the last token to the first, G starting as g_final:
 *   G += g_cum_t;  P = (G - c <c, G>) / |p|, c = p / |p|;  g_q_t = P (x) conj(cum_{t-1});  G = conj(q_t) (x) P
 *   g_initial = G in the end
 *
 * Sequences are split into chunks (seq_chunks.cuh); one thread per lane (h, j) of a chunk. All products are in double, so
 * that they do not drift over long sequences. Forward: the product of each chunk, normalised at every token; then every
 * chunk from the product of those before it. Backward: the map of a chunk on the G at its end is linear, G -> M G + g. M,
 * four columns, and g are computed side by side; then chained from chunk to chunk; then every chunk from its own G.
 */
#include "kernels/cuda/prim/seq_chunks.cuh"
#include "kernels/cuda/ops/quaternion.cuh"
#include "kernels/args/mamba3_args.h"

enum { THREADS = 128 };

typedef quaternion<double> wide;

/* a / |a|; 1 / |a| is returned in *inverse. */
KR_DEVICE wide normalise(const wide &a, double *inverse)
{
    *inverse = rsqrt(dot(a, a));
    return times(a, *inverse);
}

/* ---- forward ---- */

template <typename T> struct forward {
    kr_chunks chunks;
    int64_t width; /* lanes: nh nj */
    const T *q, *initial;
    T *cum, *final;
    double *total; /* [chunks lanes 4] */
};

enum { BATCH = 4 }; /* tokens whose factors are loaded at once, one batch ahead of their use */

/* The factors of up to BATCH tokens of a lane; past the end the last is repeated. */
template <typename T, bool VECTOR> KR_DEVICE void load_batch(const T *q, int64_t width, int64_t left, quaternion<T> *to)
{
#pragma unroll
    for (int j = 0; j < BATCH; j++)
        to[j] = load_quaternion<T, VECTOR>(q, (j < left ? j : left > 0 ? left - 1 : 0) * width);
}

KR_DEVICE wide widen(const quaternion<float> &a)
{
    return wide{ a.w, a.x, a.y, a.z };
}
KR_DEVICE wide widen(const quaternion<double> &a)
{
    return a;
}

/* cum after the tokens of a chunk, from `cum` on; to (NULL: not wanted): destination of each. */
template <typename T, bool VECTOR>
KR_DEVICE wide run_lane(const forward<T> &k, const kr_chunk &c, int64_t lane, wide cum, T *to)
{
    const T *q = k.q + (c.token * k.width + lane) * 4;
    quaternion<T> next[BATCH], of[BATCH];
    double inverse;
    if (c.count > 0) load_batch<T, VECTOR>(q, k.width, c.count, next);
    for (int32_t t = 0; t < c.count; t += BATCH) {
#pragma unroll
        for (int j = 0; j < BATCH; j++) of[j] = next[j];
        if (t + BATCH < c.count)
            load_batch<T, VECTOR>(q + (t + BATCH) * k.width * 4, k.width, c.count - t - BATCH, next);
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            if (t + j >= c.count) break;
            cum = normalise(product(widen(of[j]), cum), &inverse);
            if (to) store_quaternion<VECTOR>(to, (c.token + t + j) * k.width + lane, cum);
        }
    }
    return cum;
}

/* Products of chunks; the last one of a sequence needs none. */
template <typename T, bool VECTOR> static __global__ void __launch_bounds__(THREADS) chunk_products(const forward<T> k)
{
    const kr_chunk c = kr_chunk_of(k.chunks, blockIdx.x);
    const int64_t lane = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (lane >= k.width || c.index == c.of - 1) return;
    const wide all = run_lane<T, VECTOR>(k, c, lane, wide{ 1, 0, 0, 0 }, NULL);
    store_quaternion<true>(k.total, blockIdx.x * k.width + lane, all);
}

template <typename T, bool VECTOR> static __global__ void __launch_bounds__(THREADS) scan_chunks(const forward<T> k)
{
    const kr_chunk c = kr_chunk_of(k.chunks, blockIdx.x);
    const int64_t lane = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (lane >= k.width) return;
    wide cum = { 1, 0, 0, 0 };
    if (k.initial) cum = load_quaternion<double, VECTOR>(k.initial, c.q * k.width + lane);
    double inverse;
#pragma unroll 4
    for (int32_t j = 0; j < c.index; j++)
        cum =
            normalise(product(load_quaternion<double, true>(k.total, (blockIdx.x - c.index + j) * k.width + lane), cum),
                      &inverse);
    cum = run_lane<T, VECTOR>(k, c, lane, cum, k.cum);
    if (c.index == c.of - 1) store_quaternion<VECTOR>(k.final, c.q * k.width + lane, cum);
}

template <typename T> static forward<T> forward_of(const kr_quaternion_scan_args *a, kr_cuda_scratch *m)
{
    forward<T> k = {};
    k.chunks = kr_chunks_make(a->sequences, a->nq, a->nb, a->ns, m, (cudaStream_t)a->exec.stream);
    k.width = a->nh * a->nj;
    k.q = (const T *)a->q, k.initial = (const T *)a->initial;
    k.cum = (T *)a->cum, k.final = (T *)a->final;
    k.total = (double *)kr_scratch_take(m, k.chunks.count * k.width * 4 * (int64_t)sizeof(double));
    return k;
}

template <typename T, bool VECTOR> static void launch(const forward<T> &k, cudaStream_t stream)
{
    const dim3 grid((unsigned)k.chunks.count, (unsigned)kr_ceil_div(k.width, THREADS));
    chunk_products<T, VECTOR><<<grid, THREADS, 0, stream>>>(k);
    scan_chunks<T, VECTOR><<<grid, THREADS, 0, stream>>>(k);
}

template <typename T> static size_t scratch(const kr_quaternion_scan_args *a)
{
    kr_cuda_scratch m = { NULL, 0 };
    if (a->nq * a->nh * a->nj > 0) forward_of<T>(a, &m);
    return m.used;
}

template <typename T> static bool is_whole(const void *p)
{
    return kr_is_aligned(p, 4 * sizeof(T));
}

template <typename T> static void run(const kr_quaternion_scan_args *a)
{
    if (a->nq * a->nh * a->nj == 0) return;
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    const forward<T> k = forward_of<T>(a, &m);
    if (is_whole<T>(k.q) && is_whole<T>(k.initial) && is_whole<T>(k.cum) && is_whole<T>(k.final))
        launch<T, true>(k, (cudaStream_t)a->exec.stream);
    else launch<T, false>(k, (cudaStream_t)a->exec.stream);
}

/* ---- backward ---- */

enum { COLUMNS = 5 }; /* of M, and g */

template <typename T> struct backward {
    kr_chunks chunks;
    int64_t width, nq;
    const T *q, *initial, *cum, *g_cum, *g_final;
    T *g_q, *g_initial; /* NULL: not wanted */
    double *maps;       /* M and g of each chunk [chunks 5 lanes 4] */
    double *enters;     /* the G at the end of a chunk [chunks lanes 4] */
};

/* A lane's operands of a token: q_t, cum_{t-1} and g_cum_t, loaded one token ahead. */
template <typename T> struct operands {
    quaternion<T> q, before, g;
};

template <typename T, bool VECTOR>
KR_DEVICE operands<T> load_token(const backward<T> &k, const kr_chunk &c, int32_t t, int64_t lane)
{
    operands<T> o;
    const int64_t at = (c.token + t) * k.width + lane;
    o.q = load_quaternion<T, VECTOR>(k.q, at);
    o.g = load_quaternion<T, VECTOR>(k.g_cum, at);
    if (t > 0 || c.index > 0) o.before = load_quaternion<T, VECTOR>(k.cum, at - k.width);
    else if (k.initial) o.before = load_quaternion<T, VECTOR>(k.initial, c.q * k.width + lane);
    else o.before = quaternion<T>{ 1, 0, 0, 0 };
    return o;
}

/* The same in double, with p / |p| and 1 / |p|. */
typedef struct step {
    wide q, before, g, c;
    double inverse;
} step;

template <typename T> KR_DEVICE step step_of(const operands<T> &o)
{
    step s = { widen(o.q), widen(o.before), widen(o.g) };
    s.c = normalise(product(s.q, s.before), &s.inverse);
    return s;
}

/* P of G. */
KR_DEVICE wide tangent(const step &s, const wide &g)
{
    return times(plus(g, -dot(s.c, g), s.c), s.inverse);
}

/* M and g of each chunk; the first one of a sequence needs none. */
template <typename T, bool VECTOR> static __global__ void __launch_bounds__(THREADS, 3) chunk_maps(const backward<T> k)
{
    const kr_chunk c = kr_chunk_of(k.chunks, blockIdx.x);
    const int64_t lane = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (lane >= k.width || c.index == 0) return;
    wide g[COLUMNS] = { { 1, 0, 0, 0 }, { 0, 1, 0, 0 }, { 0, 0, 1, 0 }, { 0, 0, 0, 1 }, { 0, 0, 0, 0 } };
    operands<T> next = load_token<T, VECTOR>(k, c, c.count - 1, lane); /* a chunk after another is not empty */
    for (int32_t t = c.count - 1; t >= 0; t--) {
        const step s = step_of(next);
        if (t > 0) next = load_token<T, VECTOR>(k, c, t - 1, lane);
        g[4] = plus(g[4], 1.0, s.g);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) g[i] = product(conjugate(s.q), tangent(s, g[i]));
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) store_quaternion<true>(k.maps, (blockIdx.x * COLUMNS + i) * k.width + lane, g[i]);
}

/* One thread per lane of a sequence, from chunk to chunk. The chunks of a sequence are found at its first. */
template <typename T, bool VECTOR> static __global__ void __launch_bounds__(THREADS) pass_on(const backward<T> k)
{
    const kr_chunk c = kr_chunk_of(k.chunks, blockIdx.x);
    const int64_t lane = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (lane >= k.width || c.index > 0) return;
    wide g = { 0, 0, 0, 0 };
    if (k.g_final) g = load_quaternion<double, VECTOR>(k.g_final, c.q * k.width + lane);
    for (int64_t n = blockIdx.x + c.of - 1; n > blockIdx.x; n--) {
        store_quaternion<true>(k.enters, n * k.width + lane, g);
        wide m[COLUMNS];
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            m[i] = load_quaternion<double, true>(k.maps, (n * COLUMNS + i) * k.width + lane);
        g = plus(plus(plus(plus(m[4], g.w, m[0]), g.x, m[1]), g.y, m[2]), g.z, m[3]);
    }
    store_quaternion<true>(k.enters, blockIdx.x * k.width + lane, g);
}

template <typename T, bool VECTOR>
static __global__ void __launch_bounds__(THREADS) chunk_gradients(const backward<T> k)
{
    const kr_chunk c = kr_chunk_of(k.chunks, blockIdx.x);
    const int64_t lane = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (lane >= k.width) return;
    wide g = load_quaternion<double, true>(k.enters, blockIdx.x * k.width + lane);
    operands<T> next;
    if (c.count > 0) next = load_token<T, VECTOR>(k, c, c.count - 1, lane);
    for (int32_t t = c.count - 1; t >= 0; t--) {
        const step s = step_of(next);
        if (t > 0) next = load_token<T, VECTOR>(k, c, t - 1, lane);
        const wide p = tangent(s, plus(g, 1.0, s.g));
        if (k.g_q) store_quaternion<VECTOR>(k.g_q, (c.token + t) * k.width + lane, product(p, conjugate(s.before)));
        g = product(conjugate(s.q), p);
    }
    if (k.g_initial && c.index == 0) store_quaternion<VECTOR>(k.g_initial, c.q * k.width + lane, g);
}

template <typename T> static backward<T> backward_of(const kr_quaternion_scan_bwd_args *a, kr_cuda_scratch *m)
{
    backward<T> k = {};
    k.chunks = kr_chunks_make(a->sequences, a->nq, a->nb, a->ns, m, (cudaStream_t)a->exec.stream);
    k.width = a->nh * a->nj, k.nq = a->nq;
    k.q = (const T *)a->q, k.initial = (const T *)a->initial, k.cum = (const T *)a->cum;
    k.g_cum = (const T *)a->g_cum, k.g_final = (const T *)a->g_final;
    k.g_q = (T *)a->g_q, k.g_initial = (T *)a->g_initial;
    const int64_t lanes = k.chunks.count * k.width * 4 * (int64_t)sizeof(double);
    k.maps = (double *)kr_scratch_take(m, lanes * COLUMNS);
    k.enters = (double *)kr_scratch_take(m, lanes);
    return k;
}

template <typename T, bool VECTOR> static void launch_bwd(const backward<T> &k, cudaStream_t stream)
{
    const dim3 grid((unsigned)k.chunks.count, (unsigned)kr_ceil_div(k.width, THREADS));
    chunk_maps<T, VECTOR><<<grid, THREADS, 0, stream>>>(k);
    pass_on<T, VECTOR><<<grid, THREADS, 0, stream>>>(k);
    chunk_gradients<T, VECTOR><<<grid, THREADS, 0, stream>>>(k);
}

template <typename T> static size_t bwd_scratch(const kr_quaternion_scan_bwd_args *a)
{
    kr_cuda_scratch m = { NULL, 0 };
    if (a->nq * a->nh * a->nj > 0) backward_of<T>(a, &m);
    return m.used;
}

template <typename T> static void run_bwd(const kr_quaternion_scan_bwd_args *a)
{
    if (a->nq * a->nh * a->nj == 0) return;
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    const backward<T> k = backward_of<T>(a, &m);
    if (is_whole<T>(k.q) && is_whole<T>(k.initial) && is_whole<T>(k.cum) && is_whole<T>(k.g_cum) &&
        is_whole<T>(k.g_final) && is_whole<T>(k.g_q) && is_whole<T>(k.g_initial))
        launch_bwd<T, true>(k, (cudaStream_t)a->exec.stream);
    else launch_bwd<T, false>(k, (cudaStream_t)a->exec.stream);
}

#define ENTRIES(T, name)                                                                                               \
    extern "C" void kr_cuda_##name##_quaternion_scan(const kr_quaternion_scan_args *a)                                 \
    {                                                                                                                  \
        run<T>(a);                                                                                                     \
    }                                                                                                                  \
    extern "C" size_t kr_cuda_##name##_quaternion_scan##_scratch(const kr_quaternion_scan_args *a)                     \
    {                                                                                                                  \
        return scratch<T>(a);                                                                                          \
    }                                                                                                                  \
    extern "C" void kr_cuda_##name##_quaternion_scan_bwd(const kr_quaternion_scan_bwd_args *a)                         \
    {                                                                                                                  \
        run_bwd<T>(a);                                                                                                 \
    }                                                                                                                  \
    extern "C" size_t kr_cuda_##name##_quaternion_scan_bwd##_scratch(const kr_quaternion_scan_bwd_args *a)             \
    {                                                                                                                  \
        return bwd_scratch<T>(a);                                                                                      \
    }
ENTRIES(float, f32)
ENTRIES(double, f64)
