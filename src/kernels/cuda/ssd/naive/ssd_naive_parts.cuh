/* ssd_naive_parts.cuh - shared by both directions of ssd_naive: operands, sums of da, states, products of B and C. */
#ifndef KR_KERNELS_CUDA_SSD_NAIVE_SSD_NAIVE_PARTS_CUH
#define KR_KERNELS_CUDA_SSD_NAIVE_SSD_NAIVE_PARTS_CUH

#include "kernels/cuda/ssd/naive/ssd_naive.cuh"

enum { NAIVE_THREADS = 256 };

/* The sum of da from the chunk's first token on, as a pair of doubles: differences keep the precision of small decays next
 * to a large one. */
typedef double2 double_sum;

static __device__ __forceinline__ double sum_difference(double_sum from, double_sum to)
{
    return (to.x - from.x) + (to.y - from.y);
}

/* Operands of both directions, and scratch. */
template <typename F> struct naive_core {
    kr_ssd_map map;
    int64_t nm, nh, np, ng, nr, nf, v_stride, b_stride, c_stride; /* nf: rows of a full chunk */
    const F *v, *b, *c, *g_y;
    const F *da, *w, *diag_weight, *d;
    double_sum *a; /* [b s h] */
    F *cb;         /* <C_i, B_j> [chunks][g][nf][nf] */
    F *states;     /* before each chunk [chunks][h][p][r] */
    F *g_states;   /* after it */
    F *weights;    /* W [chunks][h][nf][nf] */
};

template <typename F>
static __device__ __forceinline__ const F *v_at(const naive_core<F> &k, int64_t at, int64_t row, int64_t h)
{
    return k.v + (at + row / k.nm) * k.v_stride + (row % k.nm * k.nh + h) * k.np;
}

template <typename F>
static __device__ __forceinline__ const F *b_at(const naive_core<F> &k, int64_t at, int64_t row, int64_t e)
{
    return k.b + (at + row / k.nm) * k.b_stride + (row % k.nm * k.ng + e) * k.nr;
}

template <typename F>
static __device__ __forceinline__ const F *c_at(const naive_core<F> &k, int64_t at, int64_t row, int64_t e)
{
    return k.c + (at + row / k.nm) * k.c_stride + (row % k.nm * k.ng + e) * k.nr;
}

template <typename F>
static __device__ __forceinline__ const F *g_y_at(const naive_core<F> &k, int64_t at, int64_t row, int64_t h)
{
    return k.g_y + ((at * k.nm + row) * k.nh + h) * k.np;
}

template <typename F>
static __device__ __forceinline__ double a_at(const naive_core<F> &k, int64_t at, int64_t t, int64_t h)
{
    const double_sum a = k.a[(at + t) * k.nh + h];
    return a.x + a.y;
}

/* The log-decay from token t to token `to`. */
template <typename F>
static __device__ __forceinline__ double decay_of(const naive_core<F> &k, int64_t at, int64_t t, int64_t to, int64_t h)
{
    return sum_difference(k.a[(at + t) * k.nh + h], k.a[(at + to) * k.nh + h]);
}

template <typename F> static __device__ __forceinline__ F w_at(const naive_core<F> &k, int64_t at, int64_t t, int64_t h)
{
    return k.w ? k.w[(at + t) * k.nh + h] : (F)1;
}

template <typename F> static __device__ __forceinline__ F dot(const F *x, const F *y, int64_t count)
{
    F sum = 0;
    for (int64_t i = 0; i < count; i++) sum += x[i] * y[i];
    return sum;
}

/* Grid-stride loop over elements. */
#define FOR_EACH(index, count)                                                                                         \
    for (int64_t index = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; index < (count);                              \
         index += (int64_t)gridDim.x * blockDim.x)

static inline unsigned naive_ctas(int64_t count)
{
    int64_t blocks = (count + NAIVE_THREADS - 1) / NAIVE_THREADS;
    return (unsigned)(blocks < 1 ? 1 : blocks < (1 << 30) ? blocks : 1 << 30);
}

/* Elements (chunk, h). */
template <typename F> static __global__ void naive_sums(const naive_core<F> k)
{
    FOR_EACH(i, k.map.chunks * k.nh)
    {
        kr_ssd_chunk c = kr_ssd_chunk_of(k.map, i / k.nh);
        double_sum sum = { 0, 0 };
        for (int64_t t = 0; t < c.nt; t++) {
            int64_t at = (c.at + t) * k.nh + i % k.nh;
            const double da = (double)k.da[at], next = sum.x + da, part = next - sum.x;
            if (isfinite(next))
                sum.y += (sum.x - (next - part)) + (da - part); /* exact rounding error of the addition */
            sum.x = next;
            k.a[at] = sum;
        }
    }
}

/* <C_i, B_j>: elements (chunk, e, i, j). */
template <typename F> static __global__ void naive_cb(const naive_core<F> k)
{
    FOR_EACH(index, k.map.chunks * k.ng * k.nf * k.nf)
    {
        int64_t j = index % k.nf, i = index / k.nf % k.nf, e = index / (k.nf * k.nf) % k.ng;
        kr_ssd_chunk c = kr_ssd_chunk_of(k.map, index / (k.nf * k.nf * k.ng));
        if (i / k.nm < j / k.nm || i >= c.nt * k.nm) continue;
        k.cb[index] = dot<F>(c_at(k, c.at, i, e), b_at(k, c.at, j, e), k.nr);
    }
}

/* The weight of <C_i, B_j> V_j in y_i without D; 0 where j is later. */
template <typename F>
static __device__ __forceinline__ F weight_of(const naive_core<F> &k, int64_t at, int64_t h, int64_t i, int64_t j)
{
    int64_t ti = i / k.nm, tj = j / k.nm;
    if (ti < tj) return 0;
    if (ti == tj) return k.diag_weight ? k.diag_weight[(at + tj) * k.nh + h] : w_at(k, at, tj, h);
    return kr_exp((F)decay_of(k, at, tj, ti, h)) * w_at(k, at, tj, h);
}

/* States, one thread per element (q, h, p, r), token by token: before each chunk, and at the end. */
template <typename F> struct naive_walk {
    const F *start, *boundary;
    const F *boundary_v, *boundary_b;
    F *end;
    int64_t nq;
};

template <typename F> static __global__ void naive_states(const naive_core<F> k, const naive_walk<F> w)
{
    const int64_t size = k.np * k.nr;
    FOR_EACH(index, w.nq * k.nh * size)
    {
        int64_t r = index % k.nr, p = index / k.nr % k.np, h = index / size % k.nh, q = index / (size * k.nh);
        int64_t e = h / (k.nh / k.ng);
        kr_ssd_span s = kr_ssd_span_of(k.map, q);
        F x = w.start ? w.start[index] : (F)0;
        for (int64_t m = 0; w.boundary && m < k.nm; m++) {
            int64_t at = (q * k.nm + m) * k.nh + h;
            x += w.boundary[q * k.nh + h] * w.boundary_v[at * k.np + p] * w.boundary_b[at * k.nr + r];
        }
        for (int64_t n = s.first; n < s.first + s.count; n++) {
            kr_ssd_chunk c = kr_ssd_chunk_of(k.map, n);
            k.states[(n * k.nh + h) * size + p * k.nr + r] = x;
            for (int64_t t = 0; t < c.nt; t++) {
                F sum = 0;
                for (int64_t m = 0; m < k.nm; m++)
                    sum += v_at(k, c.at, t * k.nm + m, h)[p] * b_at(k, c.at, t * k.nm + m, e)[r];
                x = kr_exp(k.da[(c.at + t) * k.nh + h]) * x + w_at(k, c.at, t, h) * sum;
            }
        }
        if (w.end) w.end[index] = x;
    }
}

/* Their gradients, backwards: after each chunk, and at the beginning. */
template <typename F> static __global__ void naive_g_states(const naive_core<F> k, const naive_walk<F> w)
{
    const int64_t size = k.np * k.nr;
    FOR_EACH(index, w.nq * k.nh * size)
    {
        int64_t r = index % k.nr, p = index / k.nr % k.np, h = index / size % k.nh, q = index / (size * k.nh);
        int64_t e = h / (k.nh / k.ng);
        kr_ssd_span s = kr_ssd_span_of(k.map, q);
        F x = w.start ? w.start[index] : (F)0;
        for (int64_t n = s.first + s.count - 1; n >= s.first; n--) {
            kr_ssd_chunk c = kr_ssd_chunk_of(k.map, n);
            k.g_states[(n * k.nh + h) * size + p * k.nr + r] = x;
            for (int64_t t = c.nt - 1; t >= 0; t--) {
                F sum = x;
                for (int64_t m = 0; m < k.nm; m++)
                    sum += g_y_at(k, c.at, t * k.nm + m, h)[p] * c_at(k, c.at, t * k.nm + m, e)[r];
                x = kr_exp(k.da[(c.at + t) * k.nh + h]) * sum;
            }
        }
        if (w.end) w.end[index] = x;
    }
}

/* Operands of either direction's arguments, and their scratch. */
template <typename F, typename A>
static naive_core<F> naive_core_of(const A *a, const kr_ssd_dims *d, kr_cuda_scratch *m, cudaStream_t stream)
{
    naive_core<F> k = {};
    k.map = kr_ssd_map_make(d, a->sequences, m, stream);
    k.nm = a->nm, k.nh = a->nh, k.np = a->np, k.ng = a->ng, k.nr = a->nr, k.nf = d->nt * a->nm;
    k.v_stride = a->v.row, k.b_stride = a->b.row, k.c_stride = a->c.row;
    k.v = (const F *)a->v.data, k.b = (const F *)a->b.data, k.c = (const F *)a->c.data;
    k.da = (const F *)a->da, k.w = (const F *)a->w, k.diag_weight = (const F *)a->diag_weight, k.d = (const F *)a->d;
    const int64_t size = (int64_t)sizeof(F), pairs = k.nf * k.nf;
    k.a = (double_sum *)kr_scratch_take(m, a->nb * a->ns * a->nh * (int64_t)sizeof(double_sum));
    k.cb = (F *)kr_scratch_take(m, d->chunks * a->ng * pairs * size);
    k.states = (F *)kr_scratch_take(m, d->chunks * a->nh * a->np * a->nr * size);
    k.weights = (F *)kr_scratch_take(m, d->chunks * a->nh * pairs * size);
    return k;
}

#endif
