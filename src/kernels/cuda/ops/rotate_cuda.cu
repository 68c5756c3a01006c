/* rotate_cuda.cu - rotary embedding: pairs of a row rotated by their angles, and the gradients; all architectures, f32 and
 * f64.
 *
 *   x [no nm ng nr]    bias [nh nm nr]    y [no nm nh nr]    angle [no nh na]
 *   u = x + bias, x repeated for the heads of its group; pair i is (2i, 2i + 1), or with split_pairs (i, i + nr/2)
 *   (y0, y1) = (u0 cos - u1 sin, u0 sin + u1 cos); other entries are copied
 * backward: (g_u0, g_u1) = (g_y0 cos + g_y1 sin, g_y1 cos - g_y0 sin);   g_angle = sum over m of u0 g_u1 - u1 g_u0
 *           g_x = sum over the group's heads of g_u;   g_bias = sum over o of g_u
 *
 * A unit is V consecutive pairs of a row: V = 2 if rows allow vector accesses, else 1. A thread has one unit, or (E = 2) if
 * the second half of a row is copied, one of each half, so that all threads rotate something. Forward: one thread per
 * (token, head, its units), for all ranks. y may be bf16. Backward: one thread per (head, its units), which loops over its
 * CTA's tokens, several at once, so that g_bias is summed in registers: each CTA has one partial sum, and these are added
 * last. g_x is summed over the heads of the CTA through shared memory. Heads that do not fit are processed in further
 * slices, ranks RANKS at a time; from the second slice of a group on g_x is added to, from the second time on g_angle.
 */
#include "kernels/cuda/prim/column_sum.cuh"
#include "kernels/args/mamba3_args.h"

#include <cuda_bf16.h>

enum { THREADS = 256, PARTS = 528, TOKENS = 4, WIDEST = 512, MAX_LANES = 64, SHARED = 48 * 1024 };

typedef struct sizes {
    int64_t no, nm, nh, ng, nr, na;
    int64_t lanes;          /* threads per row: its units / E */
    kr_divisor units, each; /* lanes; heads per group */
} sizes;

/* A unit's entries: e0[v], e1[v] are pair v. */
template <typename T, int V> struct alignas(sizeof(T) * 2 * V > 16 ? 16 : sizeof(T) * 2 * V) entries {
    T e0[V], e1[V];
};

/* Unit u of a row; entries past its end are 0. Only a unit of one pair can lack one: the last of an odd row. */
template <typename T, int V, bool SPLIT_PAIRS> KR_DEVICE entries<T, V> load_unit(const T *row, int64_t u, int64_t nr)
{
    entries<T, V> e;
    if (SPLIT_PAIRS) {
        const kr_vector<T, V> p0 = kr_load_vector<T, V>(row + u * V), p1 = kr_load_vector<T, V>(row + nr / 2 + u * V);
        for (int v = 0; v < V; v++) e.e0[v] = p0.v[v], e.e1[v] = p1.v[v];
    } else if (V == 1) {
        e.e0[0] = row[2 * u];
        e.e1[0] = 2 * u + 1 < nr ? row[2 * u + 1] : (T)0;
    } else {
        const kr_vector<T, 2 *V> p = kr_load_vector<T, 2 * V>(row + u * 2 * V);
        for (int v = 0; v < V; v++) e.e0[v] = p.v[2 * v], e.e1[v] = p.v[2 * v + 1];
    }
    return e;
}

template <typename T, int V, bool SPLIT_PAIRS>
KR_DEVICE void store_unit(T *row, int64_t u, int64_t nr, const entries<T, V> &e)
{
    if (SPLIT_PAIRS) {
        kr_vector<T, V> p0, p1;
        for (int v = 0; v < V; v++) p0.v[v] = e.e0[v], p1.v[v] = e.e1[v];
        kr_store_vector<T, V>(row + u * V, p0);
        kr_store_vector<T, V>(row + nr / 2 + u * V, p1);
    } else if (V == 1) {
        row[2 * u] = e.e0[0];
        if (2 * u + 1 < nr) row[2 * u + 1] = e.e1[0];
    } else {
        kr_vector<T, 2 * V> p;
        for (int v = 0; v < V; v++) p.v[2 * v] = e.e0[v], p.v[2 * v + 1] = e.e1[v];
        kr_store_vector<T, 2 * V>(row + u * 2 * V, p);
    }
}

KR_DEVICE float narrowed(float x, float)
{
    return x;
}
KR_DEVICE double narrowed(double x, double)
{
    return x;
}
KR_DEVICE __nv_bfloat16 narrowed(float x, __nv_bfloat16)
{
    return __float2bfloat16_rn(x);
}

/* The same as elements of Out. */
template <typename Out, typename T, int V> KR_DEVICE entries<Out, V> entries_of(const entries<T, V> &e)
{
    entries<Out, V> r;
    for (int v = 0; v < V; v++) r.e0[v] = narrowed(e.e0[v], Out()), r.e1[v] = narrowed(e.e1[v], Out());
    return r;
}

template <typename T, int V> KR_DEVICE entries<T, V> sum_of(entries<T, V> a, const entries<T, V> &b)
{
    for (int v = 0; v < V; v++) a.e0[v] += b.e0[v], a.e1[v] += b.e1[v];
    return a;
}

template <typename T, int V> struct rotations {
    T s[V], c[V];
    bool some[V]; /* false: the pair is copied */
};

/* The angles of a unit; past the end the last is repeated. */
template <typename T, int V> KR_DEVICE void load_angles(const T *angle, int64_t u, int64_t na, T *to)
{
    for (int v = 0; v < V; v++) to[v] = na > 0 ? angle[u * V + v < na ? u * V + v : na - 1] : (T)0;
}

template <typename T, int V> KR_DEVICE rotations<T, V> rotations_of(const T *angle, int64_t u, int64_t na)
{
    rotations<T, V> t;
    for (int v = 0; v < V; v++) {
        t.some[v] = u * V + v < na;
        t.s[v] = 0, t.c[v] = 1;
        if (t.some[v]) kr_sincos(angle[v], &t.s[v], &t.c[v]);
    }
    return t;
}

/* ---- forward ---- */

/* u of the thread's units. */
template <typename T, int V, bool SPLIT_PAIRS, int E>
KR_DEVICE void load_sums(const sizes &n, const T *x, const T *bias, int64_t u, entries<T, V> a[E])
{
#pragma unroll
    for (int k = 0; k < E; k++) a[k] = load_unit<T, V, SPLIT_PAIRS>(x, u + k * n.lanes, n.nr);
#pragma unroll
    for (int k = 0; k < E; k++)
        if (bias) a[k] = sum_of(a[k], load_unit<T, V, SPLIT_PAIRS>(bias, u + k * n.lanes, n.nr));
}

template <typename T, typename Out, int V, bool SPLIT_PAIRS, int E>
static __global__ void __launch_bounds__(THREADS)
    rotate(const sizes n, const T *x, const T *bias, const T *angle, Out *y)
{
    const int64_t o = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (o >= n.no) return;
    for (uint32_t i = threadIdx.x; i < n.nh * n.lanes; i += blockDim.x) {
        const int64_t h = kr_quotient(i, n.units), u = i - h * n.lanes, e = kr_quotient((uint32_t)h, n.each);
        const T *from = x + (o * n.nm * n.ng + e) * n.nr, *and_bias = bias ? bias + h * n.nm * n.nr : NULL;
        T by[V];
        entries<T, V> a[E];
        load_angles<T, V>(angle + (o * n.nh + h) * n.na, u, n.na, by);
        const rotations<T, V> t = rotations_of<T, V>(by, u, n.na);
        for (int64_t m = 0; m < n.nm; m++) {
            load_sums<T, V, SPLIT_PAIRS, E>(n, from, and_bias, u, a);
            for (int v = 0; v < V; v++) {
                const T u0 = a[0].e0[v], u1 = a[0].e1[v];
                a[0].e0[v] = t.some[v] ? kr_fma(-u1, t.s[v], u0 * t.c[v]) : u0;
                a[0].e1[v] = t.some[v] ? kr_fma(u0, t.s[v], u1 * t.c[v]) : u1;
            }
#pragma unroll
            for (int k = 0; k < E; k++)
                store_unit<Out, V, SPLIT_PAIRS>(y + ((o * n.nm + m) * n.nh + h) * n.nr, u + k * n.lanes, n.nr,
                                                entries_of<Out>(a[k]));
            from += n.ng * n.nr;
            if (bias) and_bias += n.nr;
        }
    }
}

/* ---- backward ---- */

template <typename T> struct bwd_job {
    sizes n;
    const T *x, *bias, *angle, *g_y;
    T *g_x, *g_angle; /* NULL: not wanted */
    T *parts;         /* of g_bias [CTAs nh nm nr], or NULL */
    int64_t tokens;   /* per CTA */
    int row, heads;   /* threads of a row in a CTA, a power of 2; heads per slice */
    bool is_autocast; /* y was used in bf16: g_angle is the gradient for that */
    bool adds;        /* to g_angle */
};

/* A thread's head and first unit, and the ranks m0 .. m0+RANKS-1. */
typedef struct position {
    int64_t h, u, m0, group;
} position;

/* A thread's operands of a token. */
template <typename T, int V, int E, int RANKS> struct token {
    entries<T, V> g[RANKS][E], x[RANKS];
    T angle[V], g_angle[V]; /* g_angle: what it is added to */
};

KR_DEVICE int64_t within(int64_t i, int64_t n)
{
    return i < n ? i : n - 1;
}

/* Without branches, so that all loads are in flight at once: a rank past the end repeats the last. */
template <typename T, int V, bool SPLIT_PAIRS, int E, int RANKS>
KR_DEVICE void load_token(const bwd_job<T> &k, const position &at, int64_t o, token<T, V, E, RANKS> *to)
{
    load_angles<T, V>(k.angle + (o * k.n.nh + at.h) * k.n.na, at.u, k.n.na, to->angle);
    if (k.adds) load_angles<T, V>(k.g_angle + (o * k.n.nh + at.h) * k.n.na, at.u, k.n.na, to->g_angle);
#pragma unroll
    for (int m = 0; m < RANKS; m++) {
        const int64_t om = o * k.n.nm + within(at.m0 + m, k.n.nm);
        to->x[m] = load_unit<T, V, SPLIT_PAIRS>(k.x + (om * k.n.ng + at.group) * k.n.nr, at.u, k.n.nr);
#pragma unroll
        for (int e = 0; e < E; e++)
            to->g[m][e] =
                load_unit<T, V, SPLIT_PAIRS>(k.g_y + (om * k.n.nh + at.h) * k.n.nr, at.u + e * k.n.lanes, k.n.nr);
    }
}

KR_DEVICE float in_bf16(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}
KR_DEVICE double in_bf16(double x)
{
    return x;
}

/* g_u replaces g_y; g_angle is computed along the way. If the core rounded y to bf16, the contributions of a pair of tokens
 * to B's and C's angles cancel only if they use the rounded y: sums over all later tokens (angles_bwd) then keep only those
 * between earlier and later tokens. */
template <typename T, int V, int E, int RANKS>
KR_DEVICE void rotate_back(const bwd_job<T> &k, const position &at, int64_t o, const entries<T, V> *bias,
                           token<T, V, E, RANKS> *of)
{
    const rotations<T, V> t = rotations_of<T, V>(of->angle, at.u, k.n.na);
    T g_angle[V] = {};
#pragma unroll
    for (int m = 0; m < RANKS; m++) {
        entries<T, V> &g = of->g[m][0];
        for (int v = 0; v < V; v++) {
            const T g0 = g.e0[v], g1 = g.e1[v];
            g.e0[v] = t.some[v] ? kr_fma(g1, t.s[v], g0 * t.c[v]) : g0;
            g.e1[v] = t.some[v] ? kr_fma(-g0, t.s[v], g1 * t.c[v]) : g1;
            if (at.m0 + m >= k.n.nm) continue;
            const T u0 = of->x[m].e0[v] + bias[m].e0[v], u1 = of->x[m].e1[v] + bias[m].e1[v];
            if (k.is_autocast) {
                const T y0 = in_bf16(kr_fma(-u1, t.s[v], u0 * t.c[v])), y1 = in_bf16(kr_fma(u0, t.s[v], u1 * t.c[v]));
                g_angle[v] = kr_fma(y0, g1, g_angle[v]);
                g_angle[v] = kr_fma(-y1, g0, g_angle[v]);
            } else {
                g_angle[v] = kr_fma(u0, g.e1[v], g_angle[v]);
                g_angle[v] = kr_fma(-u1, g.e0[v], g_angle[v]);
            }
        }
    }
    if (!k.g_angle) return;
    T *to = k.g_angle + (o * k.n.nh + at.h) * k.n.na + at.u * V;
    for (int v = 0; v < V; v++) {
        if (!t.some[v]) continue;
        if (at.m0 > 0) to[v] += g_angle[v];
        else to[v] = k.adds ? of->g_angle[v] + g_angle[v] : g_angle[v];
    }
}

/* g_x of tokens o .. o+count-1: the sums over the heads h0 .. h0+heads-1 of each group, which are in `slices` [tokens heads
 * ranks E row]. */
template <typename T, int V, bool SPLIT_PAIRS, int E, int RANKS>
KR_DEVICE void store_x(const bwd_job<T> &k, const entries<T, V> *slices, int64_t o, int count, int64_t m0, int64_t h0,
                       int64_t heads)
{
    const int64_t each = k.n.nh / k.n.ng, group0 = kr_quotient((uint32_t)h0, k.n.each);
    const int64_t groups = kr_quotient((uint32_t)(h0 + heads - 1), k.n.each) - group0 + 1;
    const int all = RANKS * E * k.row, of_token = (int)groups * all;
    for (int i = threadIdx.x; i < count * of_token; i += blockDim.x) {
        const int own = i / of_token, at = i - own * of_token;
        const int group = at / all, rest = at - group * all, l = rest & (k.row - 1), e = rest / k.row % E;
        const int m = rest / k.row / E;
        const int64_t lane = (int64_t)blockIdx.y * k.row + l;
        if (lane >= k.n.lanes || m0 + m >= k.n.nm) continue;
        const int64_t first = (group0 + group) * each, begin = first < h0 ? h0 : first;
        const int64_t end = first + each < h0 + heads ? first + each : h0 + heads;
        const entries<T, V> *slice = slices + own * k.heads * all;
        T *row = k.g_x + (((o + own) * k.n.nm + m0 + m) * k.n.ng + group0 + group) * k.n.nr;
        entries<T, V> sum = {}; /* head after head, whatever the slices are */
        if (first < h0) sum = load_unit<T, V, SPLIT_PAIRS>(row, lane + e * k.n.lanes, k.n.nr);
#pragma unroll 8
        for (int64_t h = begin; h < end; h++) sum = sum_of(sum, slice[(h - h0) * all + rest]);
        store_unit<T, V, SPLIT_PAIRS>(row, lane + e * k.n.lanes, k.n.nr, sum);
    }
}

/* All tokens of a CTA for the heads from h0 on, BATCH at a time. */
template <typename T, int V, bool SPLIT_PAIRS, int E, int RANKS, int BATCH>
KR_DEVICE void rotate_slice(const bwd_job<T> &k, entries<T, V> *slices, int64_t m0, int64_t h0)
{
    const int64_t heads = k.n.nh - h0 < k.heads ? k.n.nh - h0 : k.heads;
    const int own = threadIdx.x / k.row, l = threadIdx.x & (k.row - 1), whole = k.heads * RANKS * E * k.row;
    const int64_t first = blockIdx.x * k.tokens, end = first + k.tokens < k.n.no ? first + k.tokens : k.n.no;
    const position at = { h0 + own, (int64_t)blockIdx.y * k.row + l, m0, kr_quotient((uint32_t)(h0 + own), k.n.each) };
    const bool is_some = own < heads && at.u < k.n.lanes;
    entries<T, V> bias[RANKS] = {}, total[RANKS][E] = {};
    for (int m = 0; k.bias && is_some && m < RANKS; m++)
        bias[m] =
            load_unit<T, V, SPLIT_PAIRS>(k.bias + (at.h * k.n.nm + within(m0 + m, k.n.nm)) * k.n.nr, at.u, k.n.nr);
    for (int64_t o = first; o < end; o += BATCH) {
        const int count = end - o < BATCH ? (int)(end - o) : BATCH;
        token<T, V, E, RANKS> of[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (is_some) load_token<T, V, SPLIT_PAIRS, E, RANKS>(k, at, within(o + b, end), &of[b]);
        if (k.g_x && o > first) __syncthreads(); /* the last tokens' slices have been read */
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (!is_some || b >= count) continue;
            rotate_back<T, V, E, RANKS>(k, at, o + b, bias, &of[b]);
#pragma unroll
            for (int m = 0; m < RANKS; m++)
#pragma unroll
                for (int e = 0; e < E; e++) {
                    total[m][e] = sum_of(total[m][e], of[b].g[m][e]);
                    if (k.g_x) slices[b * whole + ((own * RANKS + m) * E + e) * k.row + l] = of[b].g[m][e];
                }
        }
        if (!k.g_x) continue;
        __syncthreads();
        store_x<T, V, SPLIT_PAIRS, E, RANKS>(k, slices, o, count, m0, h0, heads);
    }
    __syncthreads();
    if (!k.parts || !is_some) return;
#pragma unroll
    for (int m = 0; m < RANKS; m++)
#pragma unroll
        for (int e = 0; e < E; e++)
            if (m0 + m < k.n.nm)
                store_unit<T, V, SPLIT_PAIRS>(k.parts + ((blockIdx.x * k.n.nh + at.h) * k.n.nm + m0 + m) * k.n.nr,
                                              at.u + e * k.n.lanes, k.n.nr, total[m][e]);
}

template <typename T, int V, bool SPLIT_PAIRS, int E, int RANKS>
static __global__ void __launch_bounds__(RANKS == 1 ? WIDEST : 256, sizeof(T) == 4 && RANKS > 1 ? 2 : 1)
    rotate_bwd(const bwd_job<T> k)
{
    extern __shared__ __align__(16) char shared[];
    for (int64_t m0 = 0; m0 < k.n.nm; m0 += RANKS)
        for (int64_t h0 = 0; h0 < k.n.nh; h0 += k.heads)
            rotate_slice<T, V, SPLIT_PAIRS, E, RANKS, RANKS == 1 ? TOKENS : 1>(k, (entries<T, V> *)shared, m0, h0);
}

/* ---- entry points ---- */

/* a: kr_rotate_args or kr_rotate_bwd_args. */
template <typename A> static sizes sizes_of(const A *a, int pairs, int parts)
{
    sizes n = { a->no, a->nm, a->nh, a->ng, a->nr, a->na, 0, {}, {} };
    n.lanes = kr_most(1, a->split_pairs ? a->nr / 2 / pairs : kr_ceil_div(a->nr, 2 * pairs)) / parts;
    n.units = kr_divisor_of(n.lanes);
    n.each = kr_divisor_of(a->nh / a->ng);
    return n;
}

/* Do rows of that many entries allow units of two pairs from p on? */
template <typename T> static bool is_even(const void *p, int64_t nr, bool split_pairs)
{
    return nr % 4 == 0 && kr_is_aligned(p, sizeof(T) * (split_pairs ? 2 : 4));
}

/* Does a row of such units have a second half that is only copied? */
static bool has_rest(int64_t nr, int64_t na)
{
    return nr % 8 == 0 && na <= nr / 4;
}

template <typename T, int V, bool SPLIT_PAIRS, int E> static void launch(const kr_rotate_args *a)
{
    const sizes n = sizes_of(a, V, E);
    const int width = kr_threads_for(n.nh * n.lanes, THREADS), height = THREADS / width;
    const unsigned blocks = (unsigned)kr_ceil_div(n.no, height);
    const dim3 threads((unsigned)width, (unsigned)height);
    cudaStream_t stream = (cudaStream_t)a->exec.stream;
    const T *x = (const T *)a->x, *bias = (const T *)a->bias, *angle = (const T *)a->angle;
    if (kr_is_16bit(a->y.dtype))
        rotate<T, __nv_bfloat16, V, SPLIT_PAIRS, E>
            <<<blocks, threads, 0, stream>>>(n, x, bias, angle, (__nv_bfloat16 *)a->y.data);
    else rotate<T, T, V, SPLIT_PAIRS, E><<<blocks, threads, 0, stream>>>(n, x, bias, angle, (T *)a->y.data);
}

template <typename T> static void run(const kr_rotate_args *a)
{
    if (a->no * a->nm * a->nh * a->nr == 0 || a->ng == 0) return;
    const bool even = is_even<T>(a->x, a->nr, a->split_pairs) && is_even<T>(a->bias, a->nr, a->split_pairs) &&
                      is_even<T>(a->y.data, a->nr, a->split_pairs);
    if (even && a->split_pairs && has_rest(a->nr, a->na)) launch<T, 2, true, 2>(a);
    else if (even && a->split_pairs) launch<T, 2, true, 1>(a);
    else if (even && has_rest(a->nr, a->na)) launch<T, 2, false, 2>(a);
    else if (even) launch<T, 2, false, 1>(a);
    else if (a->split_pairs) launch<T, 1, true, 1>(a);
    else launch<T, 1, false, 1>(a);
}

/* CTAs of tokens: depends on the number of tokens alone, so that sums have the same order for any alignment. */
static int64_t nparts_of(const kr_rotate_bwd_args *a)
{
    return kr_least(a->no, PARTS);
}

template <typename T, int V, bool SPLIT_PAIRS, int E, int RANKS> static void launch_bwd(const kr_rotate_bwd_args *a)
{
    const int64_t nparts = nparts_of(a);
    bwd_job<T> k = { sizes_of(a, V, E),
                     (const T *)a->x,
                     (const T *)a->bias,
                     (const T *)a->angle,
                     (const T *)a->g_y,
                     (T *)a->g_x,
                     (T *)a->g_angle,
                     a->g_bias ? (T *)a->exec.scratch : NULL,
                     kr_ceil_div(a->no, nparts),
                     1,
                     0,
                     a->exec.precision == KR_PRECISION_BF16,
                     a->accumulate };
    while (k.row < MAX_LANES && k.row < k.n.lanes) k.row *= 2;
    const int batch = RANKS == 1 ? TOKENS : 1, head = batch * RANKS * E * k.row * (int)sizeof(entries<T, V>);
    k.heads = (int)kr_least(kr_least(a->nh, (RANKS == 1 ? WIDEST : 256) / k.row), SHARED / head);
    const dim3 grid((unsigned)nparts, (unsigned)kr_ceil_div(k.n.lanes, k.row));
    const int threads = (k.heads * k.row + 31) / 32 * 32;
    rotate_bwd<T, V, SPLIT_PAIRS, E, RANKS><<<grid, threads, k.heads * head, (cudaStream_t)a->exec.stream>>>(k);
}

template <typename T, int V, bool SPLIT_PAIRS, int E> static void launch_ranks(const kr_rotate_bwd_args *a)
{
    if (a->nm == 1) launch_bwd<T, V, SPLIT_PAIRS, E, 1>(a);
    else launch_bwd<T, V, SPLIT_PAIRS, E, 4>(a);
}

static bool is_empty(const kr_rotate_bwd_args *a)
{
    return a->nm * a->nh * a->nr == 0 || a->ng == 0;
}

template <typename T> static size_t bwd_scratch(const kr_rotate_bwd_args *a)
{
    if (is_empty(a) || !a->g_bias) return 0;
    return (size_t)(nparts_of(a) * a->nh * a->nm * a->nr) * sizeof(T);
}

template <typename T> static void run_bwd(const kr_rotate_bwd_args *a)
{
    if (is_empty(a)) return;
    const bool even = is_even<T>(a->x, a->nr, a->split_pairs) && is_even<T>(a->bias, a->nr, a->split_pairs) &&
                      is_even<T>(a->g_y, a->nr, a->split_pairs) && is_even<T>(a->g_x, a->nr, a->split_pairs);
    if (a->no > 0) {
        if (even && a->split_pairs && has_rest(a->nr, a->na)) launch_ranks<T, 2, true, 2>(a);
        else if (even && a->split_pairs) launch_ranks<T, 2, true, 1>(a);
        else if (even && has_rest(a->nr, a->na)) launch_ranks<T, 2, false, 2>(a);
        else if (even) launch_ranks<T, 2, false, 1>(a);
        else if (a->split_pairs) launch_ranks<T, 1, true, 1>(a);
        else launch_ranks<T, 1, false, 1>(a);
    }
    if (a->g_bias)
        kr_column_sum_run<T>((const T *)a->exec.scratch, nparts_of(a), a->nh * a->nm * a->nr, (T *)a->g_bias,
                             (cudaStream_t)a->exec.stream);
}

extern "C" void kr_cuda_f32_rotate(const kr_rotate_args *a)
{
    run<float>(a);
}
extern "C" void kr_cuda_f64_rotate(const kr_rotate_args *a)
{
    run<double>(a);
}
extern "C" void kr_cuda_f32_rotate_bwd(const kr_rotate_bwd_args *a)
{
    run_bwd<float>(a);
}
extern "C" void kr_cuda_f64_rotate_bwd(const kr_rotate_bwd_args *a)
{
    run_bwd<double>(a);
}
extern "C" size_t kr_cuda_f32_rotate_bwd_scratch(const kr_rotate_bwd_args *a)
{
    return bwd_scratch<float>(a);
}
extern "C" size_t kr_cuda_f64_rotate_bwd_scratch(const kr_rotate_bwd_args *a)
{
    return bwd_scratch<double>(a);
}
