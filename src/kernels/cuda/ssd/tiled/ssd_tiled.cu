/* ssd_tiled.cu - the tiled SSD core in arithmetic of F, forward: states between chunks, then all chunks in parallel.
 *
 *   y_i = e^a_i C_i H^T + sum over j of W[i, j] V_j,   W[i, j] = <C_i, B_j> e^(a_i - a_j) w_j for earlier tokens j
 */
#include "kernels/cuda/ssd/tiled/ssd_tiled_parts.cuh"

template <typename F> struct tile_outputs {
    kr_ssd_map map;
    int nm, np, nr, slices, slabs;
    int64_t nh, ng;
    const F *v, *b, *c, *d;
    int64_t v_stride, b_stride, c_stride;
    bool v_aligned, b_aligned, c_aligned, y_aligned;
    const factors<F> *by;
    const F *states;
    F *y;
};

/* Shared memory in bytes: C, B, H in narrow tiles; W and V reuse their space. */
template <typename F> struct layout {
    static const int factors_at = 2 * TILE * (int)sizeof(F), bytes = factors_at + (int)sizeof(factors<F>);
};

/* W from C B^T, d on the diagonal. */
template <typename F> KR_DEVICE void weigh(part<F> *cb, const factors<F> *f, int nm, F d)
{
    const int row = row_of<F>(), column = column_of();
#pragma unroll
    for (int m = 0; m < tiling<F>::ROWS; m++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int i = row + m, j = column + n, ti = token_of(i, nm), tj = token_of(j, nm);
            F w = 0;
            if (ti > tj) w = cb->v[m][n] * (pair_decay(f, i, j) * f->w[j]);
            else if (ti == tj) w = cb->v[m][n] * f->diag_weight[j];
            cb->v[m][n] = i == j ? w + d : w;
        }
}

/* One CTA per chunk and head (64 columns of its p). */
template <typename F>
static __global__ void __launch_bounds__(tiling<F>::THREADS, sizeof(F) == 4 ? 3 : 1)
    outputs(const __grid_constant__ tile_outputs<F> o)
{
    extern __shared__ __align__(16) char shared[];
    enum { ROWS = tiling<F>::ROWS };
    F *first = (F *)shared, *second = first + SLAB_TILE, *third = second + SLAB_TILE, *v_tile = first + TILE;
    factors<F> *f = (factors<F> *)(shared + layout<F>::factors_at);
    const unsigned heads = (unsigned)(o.nh * o.slices);
    const int64_t n = blockIdx.x / heads, head = blockIdx.x % heads, h = head / o.slices, e = h / (o.nh / o.ng);
    const int p0 = (int)(head - h * o.slices) * 64, row = row_of<F>(), column = column_of();
    const kr_ssd_chunk at = kr_ssd_chunk_of(o.map, n);
    const int nf = at.nt * o.nm;
    const rows<F> c = { o.c + at.at * o.c_stride + e * o.nr, o.c_stride, o.ng * o.nr, o.nm, o.nr, o.c_aligned };
    const rows<F> b = { o.b + at.at * o.b_stride + e * o.nr, o.b_stride, o.ng * o.nr, o.nm, o.nr, o.b_aligned };
    const rows<F> v = {
        o.v + at.at * o.v_stride + h * o.np + p0, o.v_stride, o.nh * o.np, o.nm, o.np - p0, o.v_aligned
    };
    const rows<F> state = state_rows(o.states, n, heads, head, o.slabs);
    part<F> cb, y;
    clear(&cb);
    clear(&y);
    load_factors(f, o.by + n * o.nh + h);
    for (int r0 = 0; r0 < o.nr; r0 += SLAB) {
        __syncthreads();
        load_tile<F, SLAB>(first, c, r0, nf);
        load_tile<F, SLAB>(second, b, r0, nf);
        load_tile<F, SLAB>(third, state, r0, 64);
        __syncthreads();
        multiply_nt<F, SLAB>(&cb, first, second);
        multiply_nt<F, SLAB>(&y, first, third);
    }
#pragma unroll
    for (int m = 0; m < ROWS; m++)
#pragma unroll
        for (int k = 0; k < 4; k++) y.v[m][k] *= f->decay_in[row + m];
    weigh(&cb, f, o.nm, o.d ? o.d[h] : (F)0);
    __syncthreads();
    store_tile(first, cb);
    load_tile<F, 64>(v_tile, v, 0, nf);
    __syncthreads();
    multiply_nn(&y, first, v_tile, min(64, (token_of(row + ROWS - 1, o.nm) + 1) * o.nm));
    const int64_t line = o.nh * o.np;
    F *to = o.y + (at.at * o.nm + row) * line + h * o.np + p0 + column;
#pragma unroll
    for (int m = 0; m < ROWS; m++)
        if (row + m < nf) store_vec4(to + m * line, y.v[m], o.np - p0 - column, o.y_aligned);
}

template <typename F> struct tile_scratch {
    kr_ssd_map map;
    factors<F> *by;
    F *states;
};

template <typename F>
static tile_scratch<F> take_scratch(const kr_ssd_args *a, const kr_ssd_dims *d, kr_cuda_scratch *m)
{
    tile_scratch<F> s;
    s.map = kr_ssd_map_make(d, a->sequences, m, (cudaStream_t)a->exec.stream);
    s.by = (factors<F> *)kr_scratch_take(m, d->chunks * d->nh * (int64_t)sizeof(factors<F>));
    s.states = (F *)kr_scratch_take(m, tile_states_bytes<F>(d));
    return s;
}

template <typename F> size_t kr_ssd_tiled_scratch(const kr_ssd_args *a)
{
    const kr_ssd_dims d = kr_ssd_dims_of(a);
    kr_cuda_scratch m = { NULL, 0 };
    take_scratch<F>(a, &d, &m);
    return m.used;
}

template <typename F> static tile_walk<F> walk_of(const kr_ssd_args *a, const kr_ssd_dims *d, const tile_scratch<F> *s)
{
    tile_walk<F> w = {};
    w.map = s->map;
    w.nm = (int)a->nm, w.np = (int)a->np, w.nr = (int)a->nr, w.slices = (int)d->slices,
    w.slabs = (int)tile_slabs(a->nr);
    w.nq = a->nq, w.nh = a->nh, w.ng = a->ng;
    w.x = (const F *)a->v.data, w.x_stride = a->v.row, w.x_aligned = is_aligned<F>(a->v.data, a->v.row, a->np);
    w.bc = (const F *)a->b.data, w.bc_stride = a->b.row, w.bc_aligned = is_aligned<F>(a->b.data, a->b.row, a->nr);
    w.by = s->by, w.start = (const F *)a->initial;
    w.boundary = (const F *)a->boundary, w.boundary_v = (const F *)a->boundary_v,
    w.boundary_b = (const F *)a->boundary_b;
    w.states = s->states, w.end = (F *)a->final;
    return w;
}

template <typename F> void kr_ssd_tiled(const kr_ssd_args *a)
{
    cudaStream_t stream = (cudaStream_t)a->exec.stream;
    const kr_ssd_dims d = kr_ssd_dims_of(a);
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    const tile_scratch<F> s = take_scratch<F>(a, &d, &m);
    tile_factors_make<F>(&d, &s.map, (const F *)a->da, (const F *)a->w, (const F *)a->diag_weight, s.by, stream);
    const tile_walk<F> w = walk_of<F>(a, &d, &s);
    tile_walk_run<F>(&w, stream);
    if (d.chunks * d.heads == 0) return;
    tile_outputs<F> o = {};
    o.map = s.map;
    o.nm = w.nm, o.np = w.np, o.nr = w.nr, o.slices = w.slices, o.slabs = w.slabs, o.nh = a->nh, o.ng = a->ng;
    o.v = w.x, o.b = w.bc, o.c = (const F *)a->c.data, o.d = (const F *)a->d;
    o.v_stride = a->v.row, o.b_stride = a->b.row, o.c_stride = a->c.row;
    o.v_aligned = w.x_aligned, o.b_aligned = w.bc_aligned, o.c_aligned = is_aligned<F>(a->c.data, a->c.row, a->nr);
    o.y_aligned = is_aligned<F>(a->y.data, 0, a->np);
    o.by = s.by, o.states = s.states, o.y = (F *)a->y.data;
    static_assert(layout<F>::bytes <= KR_CUDA_LEAST_SHARED, "too much for sm_86");
    cudaFuncSetAttribute(outputs<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, layout<F>::bytes);
    outputs<F><<<(unsigned)(d.chunks * d.heads), tiling<F>::THREADS, layout<F>::bytes, stream>>>(o);
}

#define INSTANCE(F)                                                                                                    \
    template size_t kr_ssd_tiled_scratch<F>(const kr_ssd_args *);                                                      \
    template void kr_ssd_tiled<F>(const kr_ssd_args *);
INSTANCE(float)
INSTANCE(double)
