/* ssd_recurrence.cu - a few tokens of the SSD core by the recurrence, the state in registers, at memory bandwidth; all
 * architectures, f32 and f64.
 *
 *   H_t = e^da_t H_{t-1} + w_t sum_m V_t[m] (outer) B_t[m];   y_t[m] = H_t C_t[m] + D V_t[m]
 *   v, y [b s m h p], b, c [b s m g r], da, w, diag_weight [b s h], H [q h p r]; formulas: kernels/args/ssd_args.h
 *
 * A warp has ROWS rows p of a state; a lane has VEC adjacent columns r, and as many again 32 VEC further. Sums over r are
 * reduced over lanes by halving: at each shuffle a lane keeps half of its ROWS sums, until it has one.
 */
#include "kernels/cuda/prim/math.cuh"
#include "kernels/cuda/ssd/ssd_recurrence.cuh"

enum { ROWS = 8, WARPS = 4 };

/* WHOLE: every row is a sequence, p is a multiple of ROWS, a lane has VEC K columns, and all operands are aligned: the
 * common case, without bounds checks. */
template <typename F, bool WHOLE> struct recurrence_args {
    kr_ssd_map map;
    int64_t nq, nm, nh, np, ng, nr, tiles; /* tiles of ROWS rows */
    int64_t v_stride, b_stride, c_stride;
    const F *v, *b, *c, *da, *w, *diag_weight, *d, *initial, *boundary, *boundary_v, *boundary_b;
    F *y, *final;
    bool states_aligned, b_aligned, c_aligned; /* rows allow vector accesses */
};

template <int VEC, int K, typename F, bool WHOLE> KR_DEVICE int64_t width_of(const recurrence_args<F, WHOLE> &o)
{
    return WHOLE ? 32 * VEC * K : o.nr;
}

template <typename F, bool WHOLE> KR_DEVICE bool in_range(const recurrence_args<F, WHOLE> &o, int64_t p)
{
    return WHOLE || p < o.np;
}

/* Columns of a lane. */
template <typename F, int VEC, int K> struct columns {
    F v[K][VEC];
};

template <typename F, int VEC, int K> KR_DEVICE columns<F, VEC, K> load_columns(const F *row, int64_t nr, bool aligned)
{
    columns<F, VEC, K> x = {};
    const int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int r = (k * 32 + lane) * VEC;
        if (aligned) {
            if (r >= nr) continue;
            const kr_vector<F, VEC> p = kr_load_vector<F, VEC>(row + r);
#pragma unroll
            for (int i = 0; i < VEC; i++) x.v[k][i] = p.v[i];
        } else {
#pragma unroll
            for (int i = 0; i < VEC; i++)
                if (r + i < nr) x.v[k][i] = row[r + i];
        }
    }
    return x;
}

template <typename F, int VEC, int K>
KR_DEVICE void store_columns(F *row, const columns<F, VEC, K> &x, int64_t nr, bool aligned)
{
    const int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int r = (k * 32 + lane) * VEC;
        if (aligned) {
            kr_vector<F, VEC> p;
#pragma unroll
            for (int i = 0; i < VEC; i++) p.v[i] = x.v[k][i];
            if (r < nr) kr_store_vector<F, VEC>(row + r, p);
        } else {
#pragma unroll
            for (int i = 0; i < VEC; i++)
                if (r + i < nr) row[r + i] = x.v[k][i];
        }
    }
}

/* Over the columns within nr: past them a state is 0 times v, which is NaN if v is infinite. */
template <typename F, int VEC, int K>
KR_DEVICE F dot(const columns<F, VEC, K> &x, const columns<F, VEC, K> &y, int64_t nr)
{
    const int lane = (int)threadIdx.x & 31;
    F sum = 0;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if ((k * 32 + lane) * VEC + i < nr) sum = kr_fma(x.v[k][i], y.v[k][i], sum);
    return sum;
}

/* x += s y */
template <typename F, int VEC, int K> KR_DEVICE void add(columns<F, VEC, K> *x, F s, const columns<F, VEC, K> &y)
{
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int i = 0; i < VEC; i++) x->v[k][i] = kr_fma(s, y.v[k][i], x->v[k][i]);
}

/* Sums of ROWS values over the warp; a lane gets that of row lane / 4. */
template <typename F> KR_DEVICE F reduce_rows(F x[ROWS])
{
#pragma unroll
    for (int half = ROWS / 2, bit = 16; half; half /= 2, bit /= 2) {
        const bool upper = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const F keep = upper ? x[i + half] : x[i], send = upper ? x[i] : x[i + half];
            x[i] = keep + __shfl_xor_sync(~0u, send, bit);
        }
    }
    x[0] += __shfl_xor_sync(~0u, x[0], 2);
    return x[0] + __shfl_xor_sync(~0u, x[0], 1);
}

template <typename F> KR_DEVICE F warp_sum(F x)
{
#pragma unroll
    for (int recurrence_kernel = 16; recurrence_kernel; recurrence_kernel /= 2)
        x += __shfl_xor_sync(~0u, x, recurrence_kernel);
    return x;
}

/* The warp's rows and the scalars of the current token. */
template <typename F> struct warp_token {
    int64_t q, h, e, p0;
    int64_t at; /* the token */
    F da, w, diag_weight, d;
};

template <typename F, bool WHOLE>
KR_DEVICE F value_at(const recurrence_args<F, WHOLE> &o, const warp_token<F> &t, int64_t m, int64_t p)
{
    return in_range(o, p) ? o.v[t.at * o.v_stride + (m * o.nh + t.h) * o.np + p] : (F)0;
}

template <typename F, int VEC, int K> KR_DEVICE void decay_state(columns<F, VEC, K> state[ROWS], F by)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int n = 0; n < VEC; n++) state[i].v[k][n] *= by;
}

template <typename F, int VEC, int K>
KR_DEVICE F dot_rows(const columns<F, VEC, K> state[ROWS], const columns<F, VEC, K> &c, int64_t nr)
{
    F sums[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) sums[i] = dot(state[i], c, nr);
    return reduce_rows(sums);
}

/* State and y of one token of one rank. All loads are issued before the first use: a warp waits once. */
template <typename F, int VEC, int K, bool WHOLE>
KR_DEVICE void run_one_rank(const recurrence_args<F, WHOLE> &o, const warp_token<F> &t, columns<F, VEC, K> state[ROWS])
{
    const int64_t lane_p = t.p0 + (threadIdx.x & 31) / 4;
    const F *v = o.v + t.at * o.v_stride + t.h * o.np;
    const columns<F, VEC, K> b =
        load_columns<F, VEC, K>(o.b + t.at * o.b_stride + t.e * o.nr, width_of<VEC, K>(o), WHOLE || o.b_aligned);
    const columns<F, VEC, K> c =
        load_columns<F, VEC, K>(o.c + t.at * o.c_stride + t.e * o.nr, width_of<VEC, K>(o), WHOLE || o.c_aligned);
    const F own = in_range(o, lane_p) ? v[lane_p] : (F)0;
    decay_state(state, kr_exp(t.da));
    F y = o.diag_weight ? kr_fma(t.diag_weight * warp_sum(dot(c, b, width_of<VEC, K>(o))), own,
                                 dot_rows(state, c, width_of<VEC, K>(o)))
                        : (F)0;
#pragma unroll
    for (int i = 0; i < ROWS; i++) add(&state[i], t.w * __shfl_sync(~0u, own, i * 4), b);
    if (!o.diag_weight) y = dot_rows(state, c, width_of<VEC, K>(o));
    if (o.d) y = kr_fma(t.d, own, y);
    if ((threadIdx.x & 3) == 0 && in_range(o, lane_p)) o.y[(t.at * o.nh + t.h) * o.np + lane_p] = y;
}

/* y of all ranks from the state; with diag_weight that is the state before the token. */
template <typename F, int VEC, int K, bool WHOLE>
KR_DEVICE void store_ranks(const recurrence_args<F, WHOLE> &o, const warp_token<F> &t,
                           const columns<F, VEC, K> state[ROWS])
{
    const int64_t lane_p = t.p0 + (threadIdx.x & 31) / 4, line = o.ng * o.nr;
    const F *b = o.b + t.at * o.b_stride + t.e * o.nr, *c = o.c + t.at * o.c_stride + t.e * o.nr;
    for (int64_t m = 0; m < o.nm; m++) {
        const columns<F, VEC, K> c_m = load_columns<F, VEC, K>(c + m * line, width_of<VEC, K>(o), WHOLE || o.c_aligned);
        F y = dot_rows(state, c_m, width_of<VEC, K>(o));
        for (int64_t from = 0; o.diag_weight && from < o.nm; from++) {
            const columns<F, VEC, K> b_m =
                load_columns<F, VEC, K>(b + from * line, width_of<VEC, K>(o), WHOLE || o.b_aligned);
            y = kr_fma(t.diag_weight * warp_sum(dot(c_m, b_m, width_of<VEC, K>(o))), value_at(o, t, from, lane_p), y);
        }
        if (o.d) y = kr_fma(t.d, value_at(o, t, m, lane_p), y);
        if ((threadIdx.x & 3) == 0 && in_range(o, lane_p)) o.y[((t.at * o.nm + m) * o.nh + t.h) * o.np + lane_p] = y;
    }
}

/* State and y of one token. */
template <typename F, int VEC, int K, bool WHOLE>
KR_DEVICE void run_all_ranks(const recurrence_args<F, WHOLE> &o, const warp_token<F> &t, columns<F, VEC, K> state[ROWS])
{
    const F *b = o.b + t.at * o.b_stride + t.e * o.nr;
    decay_state(state, kr_exp(t.da));
    if (o.diag_weight) store_ranks(o, t, state);
    for (int64_t m = 0; m < o.nm; m++) {
        const columns<F, VEC, K> b_m =
            load_columns<F, VEC, K>(b + m * o.ng * o.nr, width_of<VEC, K>(o), WHOLE || o.b_aligned);
#pragma unroll
        for (int i = 0; i < ROWS; i++) add(&state[i], t.w * value_at(o, t, m, t.p0 + i), b_m);
    }
    if (!o.diag_weight) store_ranks(o, t, state);
}

template <typename F, int VEC, int K, bool WHOLE>
KR_DEVICE void load_start(const recurrence_args<F, WHOLE> &o, const warp_token<F> &t, columns<F, VEC, K> state[ROWS])
{
    const int64_t at = t.q * o.nh + t.h;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        state[i] = {};
        if (o.initial && in_range(o, t.p0 + i))
            state[i] = load_columns<F, VEC, K>(o.initial + (at * o.np + t.p0 + i) * o.nr, width_of<VEC, K>(o),
                                               WHOLE || o.states_aligned);
    }
    for (int64_t m = 0; o.boundary && m < o.nm; m++) {
        const int64_t row = (t.q * o.nm + m) * o.nh + t.h;
        const columns<F, VEC, K> b_m = load_columns<F, VEC, K>(o.boundary_b + row * o.nr, o.nr, false);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (in_range(o, t.p0 + i)) add(&state[i], o.boundary[at] * o.boundary_v[row * o.np + t.p0 + i], b_m);
    }
}

template <typename F, int VEC, int K, bool ONE, bool WHOLE>
static __global__ void __launch_bounds__(WARPS * 32, sizeof(F) == 4 && VEC * K == 4 ? 6 : 1)
    recurrence_kernel(const __grid_constant__ recurrence_args<F, WHOLE> o)
{
    const unsigned unit = blockIdx.x * WARPS + threadIdx.x / 32, tiles = (unsigned)o.tiles, heads = (unsigned)o.nh;
    if (unit >= o.nq * o.nh * o.tiles) return;
    warp_token<F> t;
    const unsigned head = unit / tiles, q = head / heads, h = head - q * heads;
    t.p0 = (int64_t)(unit - head * tiles) * ROWS, t.q = q, t.h = h, t.e = h / (heads / (unsigned)o.ng);
    const kr_ssd_span span = kr_ssd_span_of(o.map, t.q);
    int64_t first = t.q * o.map.ns, tokens = WHOLE ? o.map.ns : 0;
    if (!WHOLE && span.count > 0) {
        const kr_ssd_chunk last = kr_ssd_chunk_of(o.map, span.first + span.count - 1);
        first = kr_ssd_chunk_of(o.map, span.first).at;
        tokens = last.at + last.nt - first;
    }
    columns<F, VEC, K> state[ROWS];
    load_start(o, t, state);
    t.d = o.d ? o.d[t.h] : (F)0;
    for (int64_t i = 0; i < tokens; i++) {
        t.at = first + i;
        const int64_t scalar = t.at * o.nh + t.h;
        t.da = o.da[scalar];
        t.w = o.w ? o.w[scalar] : (F)1;
        t.diag_weight = o.diag_weight ? o.diag_weight[scalar] : (F)0;
        if (ONE) run_one_rank(o, t, state);
        else run_all_ranks(o, t, state);
    }
    if (!o.final) return;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (in_range(o, t.p0 + i))
            store_columns(o.final + ((t.q * o.nh + t.h) * o.np + t.p0 + i) * o.nr, state[i], width_of<VEC, K>(o),
                          WHOLE || o.states_aligned);
}

size_t kr_ssd_recurrence_scratch(const kr_ssd_args *a)
{
    const kr_ssd_dims d = kr_ssd_dims_of(a);
    kr_cuda_scratch m = { NULL, 0 };
    kr_ssd_map_make(&d, a->sequences, &m, NULL);
    return m.used;
}

template <typename F, int VEC> static bool states_are_aligned(const kr_ssd_args *a)
{
    const size_t bytes = sizeof(kr_vector<F, VEC>);
    return a->nr % VEC == 0 && kr_is_aligned(a->initial, bytes) && kr_is_aligned(a->final, bytes);
}

template <typename F, int VEC> static bool rows_are_aligned(const kr_ssd_args *a, const void *x, int64_t stride)
{
    return a->nr % VEC == 0 && stride % VEC == 0 && kr_is_aligned(x, sizeof(kr_vector<F, VEC>));
}

template <typename F, int VEC, int K, bool WHOLE> static void launch_as(const kr_ssd_args *a, const kr_ssd_map &map)
{
    recurrence_args<F, WHOLE> o = {};
    o.map = map;
    o.nq = a->nq, o.nm = a->nm, o.nh = a->nh, o.np = a->np, o.ng = a->ng, o.nr = a->nr;
    o.tiles = kr_ceil_div(a->np, ROWS);
    o.v_stride = a->v.row, o.b_stride = a->b.row, o.c_stride = a->c.row;
    o.v = (const F *)a->v.data, o.b = (const F *)a->b.data, o.c = (const F *)a->c.data, o.da = (const F *)a->da,
    o.w = (const F *)a->w;
    o.diag_weight = (const F *)a->diag_weight, o.d = (const F *)a->d, o.initial = (const F *)a->initial;
    o.boundary = (const F *)a->boundary, o.boundary_v = (const F *)a->boundary_v,
    o.boundary_b = (const F *)a->boundary_b;
    o.y = (F *)a->y.data, o.final = (F *)a->final;
    o.states_aligned = states_are_aligned<F, VEC>(a);
    o.b_aligned = rows_are_aligned<F, VEC>(a, a->b.data, a->b.row);
    o.c_aligned = rows_are_aligned<F, VEC>(a, a->c.data, a->c.row);
    const int64_t units = o.nq * o.nh * o.tiles;
    const unsigned blocks = (unsigned)kr_ceil_div(units, WARPS);
    cudaStream_t stream = (cudaStream_t)a->exec.stream;
    if (units && o.nm == 1) recurrence_kernel<F, VEC, K, true, WHOLE><<<blocks, WARPS * 32, 0, stream>>>(o);
    else if (units) recurrence_kernel<F, VEC, K, false, WHOLE><<<blocks, WARPS * 32, 0, stream>>>(o);
}

template <typename F, int VEC, int K> static void launch(const kr_ssd_args *a, const kr_ssd_map &map)
{
    const bool chunk_decay = !map.chunk_table && a->nr == 32 * VEC * K && a->np % ROWS == 0 &&
                             states_are_aligned<F, VEC>(a) && rows_are_aligned<F, VEC>(a, a->b.data, a->b.row) &&
                             rows_are_aligned<F, VEC>(a, a->c.data, a->c.row);
    if (chunk_decay) launch_as<F, VEC, K, true>(a, map);
    else launch_as<F, VEC, K, false>(a, map);
}

template <typename F> void kr_ssd_recurrence(const kr_ssd_args *a)
{
    const kr_ssd_dims d = kr_ssd_dims_of(a);
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    const kr_ssd_map map = kr_ssd_map_make(&d, a->sequences, &m, (cudaStream_t)a->exec.stream);
    if (a->nr <= 64) launch<F, 2, 1>(a, map);
    else if (a->nr <= 128) launch<F, 4, 1>(a, map);
    else launch<F, 4, 2>(a, map);
}

template void kr_ssd_recurrence<float>(const kr_ssd_args *);
template void kr_ssd_recurrence<double>(const kr_ssd_args *);
