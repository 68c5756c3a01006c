/* ssd_tiled_states.cu - decay factors of chunks and the states between them, in arithmetic of F; see ssd_tiled_parts.cuh. */
#include "kernels/cuda/ssd/tiled/ssd_tiled_parts.cuh"

enum { HEADS = 8 }; /* per CTA, one warp each: they share the sectors of a token */

/* A sum as an unevaluated pair of doubles. */
typedef struct double_double {
    double high, low;
} double_double;

KR_DEVICE double_double plus(double_double x, double_double y)
{
    const double sum = x.high + y.high, part = sum - x.high;
    const double low = (x.high - (sum - part)) + (y.high - part) + (x.low + y.low), high = sum + low;
    const double_double r = { high, low - (high - sum) };
    return r;
}

KR_DEVICE double minus(double_double x, double_double y)
{
    return (x.high - y.high) + (x.low - y.low);
}

template <typename F>
static __global__ void __launch_bounds__(HEADS * 32)
    write_factors(const kr_ssd_map map, int64_t nh, int nm, const F *da, const F *w, const F *diag_weight,
                  factors<F> *all)
{
    const int64_t n = blockIdx.x, h = (int64_t)blockIdx.y * HEADS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x & 31;
    if (h >= nh) return;
    const kr_ssd_chunk chunk = kr_ssd_chunk_of(map, n);
    double_double sum[2] = {};
    for (int k = 0; k < 2; k++)
        if (lane * 2 + k < chunk.nt) sum[k].high = (double)da[(chunk.at + lane * 2 + k) * nh + h];
    double_double before = plus(sum[0], sum[1]);
    for (int step = 1; step < 32; step *= 2) {
        const double_double other = { __shfl_up_sync(~0u, before.high, step), __shfl_up_sync(~0u, before.low, step) };
        if (lane >= step) before = plus(before, other);
    }
    const double_double end = { __shfl_sync(~0u, before.high, 31), __shfl_sync(~0u, before.low, 31) };
    before = { __shfl_up_sync(~0u, before.high, 1), __shfl_up_sync(~0u, before.low, 1) };
    if (lane == 0) before = {};
    factors<F> *out = all + n * nh + h;
    for (int k = 0; k < 2; k++) {
        const int t = lane * 2 + k;
        const bool some = t < chunk.nt;
        before = plus(before, sum[k]);
        const double_double a = some ? before : end;
        const F weight = some ? (w ? w[(chunk.at + t) * nh + h] : (F)1) : (F)0;
        const F own = some && diag_weight ? diag_weight[(chunk.at + t) * nh + h] : weight;
        const F decay_in = kr_exp((F)a.high), decay_out = kr_exp((F)minus(end, a));
        for (int f = t * nm; f < (t + 1) * nm && f < 64; f++) {
            out->a[f] = a.high, out->low[f] = a.low;
            out->decay_in[f] = decay_in, out->decay_out_w[f] = decay_out * weight, out->decay_out[f] = decay_out;
            out->w[f] = weight, out->diag_weight[f] = own;
        }
    }
}

template <typename F>
void tile_factors_make(const kr_ssd_dims *d, const kr_ssd_map *map, const F *da, const F *w, const F *diag_weight,
                       factors<F> *to, cudaStream_t stream)
{
    if (d->chunks == 0 || d->nh == 0) return;
    const dim3 grid((unsigned)d->chunks, (unsigned)((d->nh + HEADS - 1) / HEADS));
    write_factors<F><<<grid, HEADS * 32, 0, stream>>>(*map, d->nh, (int)d->nm, da, w, diag_weight, to);
}

/* initial + boundary at (p, r) of sequence q and head h; 0 past the state. */
template <typename F> KR_DEVICE F start_value(const tile_walk<F> &w, int64_t q, int64_t h, int p, int r)
{
    if (p >= w.np || r >= w.nr) return 0;
    const int64_t at = q * w.nh + h;
    F x = w.start ? w.start[(at * w.np + p) * w.nr + r] : (F)0;
    for (int m = 0; w.boundary && m < w.nm; m++) {
        const int64_t row = (q * w.nm + m) * w.nh + h;
        x += w.boundary[at] * w.boundary_v[row * w.np + p] * w.boundary_b[row * w.nr + r];
    }
    return x;
}

/* One CTA per sequence, head (64 rows of its p) and 64 columns of r. */
template <typename F>
static __global__ void __launch_bounds__(tiling<F>::THREADS) walk(const __grid_constant__ tile_walk<F> w)
{
    extern __shared__ __align__(16) char shared[];
    F *x_tile = (F *)shared, *bc_tile = x_tile + TILE;
    enum { ROWS = tiling<F>::ROWS };
    const unsigned heads = (unsigned)(w.nh * w.slices), unit = blockIdx.x / (unsigned)w.slabs;
    const int r0 = (int)(blockIdx.x - unit * (unsigned)w.slabs) * 64;
    const int64_t q = unit / heads, head = unit % heads, h = head / w.slices, e = h / (w.nh / w.ng);
    const int p0 = (int)(head - h * w.slices) * 64, row = row_of<F>(), column = column_of();
    const kr_ssd_span span = kr_ssd_span_of(w.map, q);
    part<F> acc;
    for (int m = 0; m < ROWS; m++)
        for (int n = 0; n < 4; n++) acc.v[m][n] = start_value(w, q, h, p0 + row + m, r0 + column + n);
    for (int64_t i = 0; i < span.count; i++) {
        const int64_t n = span.first + (w.back ? span.count - 1 - i : i), line = 64 * w.slabs;
        const kr_ssd_chunk c = kr_ssd_chunk_of(w.map, n);
        const factors<F> *f = w.by + n * w.nh + h;
        F *state = w.states + ((n * heads + head) * 64 + row) * line + r0 + column;
#pragma unroll
        for (int m = 0; m < ROWS; m++) store_vec4(state + m * line, acc.v[m], 4, true);
        const rows<F> x = {
            w.x + c.at * w.x_stride + h * w.np + p0, w.x_stride, w.nh * w.np, w.nm, w.np - p0, w.x_aligned
        };
        const rows<F> bc = { w.bc + c.at * w.bc_stride + e * w.nr, w.bc_stride, w.ng * w.nr, w.nm, w.nr, w.bc_aligned };
        __syncthreads();
        load_tile<F, 64>(x_tile, x, 0, c.nt * w.nm, w.back ? f->decay_in : f->decay_out_w);
        load_tile<F, 64>(bc_tile, bc, r0, c.nt * w.nm);
        const F chunk_decay = f->decay_in[63];
        __syncthreads();
#pragma unroll
        for (int m = 0; m < ROWS; m++)
#pragma unroll
            for (int k = 0; k < 4; k++) acc.v[m][k] *= chunk_decay;
        multiply_tn(&acc, x_tile, bc_tile, 0);
    }
    if (!w.end) return;
    for (int m = 0; m < ROWS; m++)
        for (int n = 0; n < 4; n++) {
            const int p = p0 + row + m, r = r0 + column + n;
            if (p < w.np && r < w.nr) w.end[((q * w.nh + h) * w.np + p) * w.nr + r] = acc.v[m][n];
        }
}

template <typename F> void tile_walk_run(const tile_walk<F> *w, cudaStream_t stream)
{
    const int64_t blocks = w->nq * w->nh * w->slices * w->slabs;
    const int bytes = 2 * TILE * (int)sizeof(F);
    static_assert(bytes <= KR_CUDA_LEAST_SHARED, "too much for sm_86");
    if (blocks == 0) return;
    cudaFuncSetAttribute(walk<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    walk<F><<<(unsigned)blocks, tiling<F>::THREADS, bytes, stream>>>(*w);
}

#define INSTANCE(F)                                                                                                    \
    template void tile_factors_make<F>(const kr_ssd_dims *, const kr_ssd_map *, const F *, const F *, const F *,       \
                                       factors<F> *, cudaStream_t);                                                    \
    template void tile_walk_run<F>(const tile_walk<F> *, cudaStream_t);
INSTANCE(float)
INSTANCE(double)
