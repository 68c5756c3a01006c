/* ssd_tiled_bwd.cu - gradients of the tiled SSD core in arithmetic of F; formulas in kernels/cpu/ssd_bwd_cpu.c, H before
 * the chunk, G after it, both from ssd_tiled_states.cu.
 *
 *   pairs      S[i, j] = <g_y_i, V_j>;  g_V = DECAY_OUT_W_j B_j G^T + W^T g_y
 *              P[i, j] = W[i, j] S[i, j] / <C_i, B_j>, summed over heads
 *              x[i, j] = S <C_i, B_j> e^(a_i - a_j) of earlier tokens j, summed by rows and columns
 *   bc         T_i = g_y_i H, U_j = V_j G;  g_C = DECAY_IN T + P B,  g_B = DECAY_OUT_W U + P^T C;  <T, C>, <U, B>, <G, H>
 *   scalars    from these sums g_da, g_w, g_diag_weight, in double
 *
 * A CTA of the first two kernels has HEADS heads of a group; their sums are added in order.
 */
#include "kernels/cuda/ssd/tiled/ssd_tiled_parts.cuh"

enum { HEADS = 8, SUMS = 192 }; /* SUMS: per chunk and head, rows of x w, columns of x, diagonal terms */

template <typename F> struct tile_grads {
    kr_ssd_map map;
    int nm, np, nr, slices, slabs;
    int64_t nh, ng;
    int heads_of_group, blocks; /* heads (h, slice) of a group, and blocks of HEADS */
    const F *v, *b, *c, *g_y, *d;
    int64_t v_stride, b_stride, c_stride, tokens;
    bool v_aligned, b_aligned, c_aligned, y_aligned, g_v_aligned, g_bc_aligned, strict;
    const factors<F> *by;
    const F *states, *g_states;
    F *pairs;           /* P [chunks][g][blocks][64][64] */
    F *sums;            /* [chunks][heads][SUMS] */
    F *t, *u, *gh;      /* of kernel bc [chunks][heads][slabs][64], gh without 64 */
    F *own_d;           /* <g_y, V> [chunks][heads] */
    F *part_d;          /* [chunks][h] */
    F *g_v, *g_b, *g_c; /* g_b and g_c: or partial sums of blocks */
    F *g_da, *g_w, *g_diag_weight;
};

/* The work of a CTA of the first two kernels. */
typedef struct task {
    int64_t n, e;
    kr_ssd_chunk at;
    int nf, block, first, count; /* block of heads; its first head, and their number */
} task;

template <typename F> KR_DEVICE task task_of(const tile_grads<F> &o, unsigned unit)
{
    task t;
    t.block = (int)(unit % (unsigned)o.blocks), unit /= (unsigned)o.blocks;
    t.e = unit % (unsigned)o.ng, t.n = unit / (unsigned)o.ng;
    t.at = kr_ssd_chunk_of(o.map, t.n), t.nf = t.at.nt * o.nm;
    t.first = t.block * HEADS, t.count = min(HEADS, o.heads_of_group - t.first);
    return t;
}

/* Rows of a chunk: of B or C of the CTA's group, and of a head. */
template <typename F> KR_DEVICE rows<F> bc_rows(const tile_grads<F> &o, const task &t, bool of_b)
{
    const int64_t stride = of_b ? o.b_stride : o.c_stride;
    const rows<F> r = { (of_b ? o.b : o.c) + t.at.at * stride + t.e * o.nr,
                        stride,
                        o.ng * o.nr,
                        o.nm,
                        o.nr,
                        of_b ? o.b_aligned : o.c_aligned };
    return r;
}

typedef struct head {
    int64_t h, head;
    int p0;
} head;

template <typename F> KR_DEVICE head head_of(const tile_grads<F> &o, const task &t, int i)
{
    head x;
    x.head = t.e * o.heads_of_group + t.first + i, x.h = x.head / o.slices;
    x.p0 = (int)(x.head - x.h * o.slices) * 64;
    return x;
}

template <typename F> KR_DEVICE rows<F> value_rows(const tile_grads<F> &o, const task &t, const head &x, bool of_y)
{
    const int64_t line = o.nh * o.np, stride = of_y ? o.nm * line : o.v_stride;
    const rows<F> r = { (of_y ? o.g_y : o.v) + t.at.at * stride + x.h * o.np + x.p0,
                        stride,
                        line,
                        o.nm,
                        o.np - x.p0,
                        of_y ? o.y_aligned : o.v_aligned };
    return r;
}

/* Over the 16 threads of a row. */
template <typename F> KR_DEVICE F row_sum(F x)
{
#pragma unroll
    for (int step = 8; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

/* ---- pairs ---- */

template <typename F> struct pairs_shared {
    F tiles[2 * TILE];
    factors<F> f;
    F columns[tiling<F>::WARPS][2][64], d[tiling<F>::WARPS];
};

/* D += A B^T over all columns of r, through two narrow tiles. */
template <typename F>
KR_DEVICE void multiply_bc(part<F> *d, F *tiles, const rows<F> &a, int a_rows, const rows<F> &b, int b_rows, int nr)
{
    for (int r0 = 0; r0 < nr; r0 += SLAB) {
        __syncthreads();
        load_tile<F, SLAB>(tiles, a, r0, a_rows);
        load_tile<F, SLAB>(tiles + SLAB_TILE, b, r0, b_rows);
        __syncthreads();
        multiply_nt<F, SLAB>(d, tiles, tiles + SLAB_TILE);
    }
}

/* S becomes W with d on the diagonal; adds to P; the head's sums of x. */
template <typename F>
KR_DEVICE void weigh(part<F> *s, part<F> *p, const part<F> &cb, pairs_shared<F> *smem, int nm, F d, F *sums)
{
    enum { ROWS = tiling<F>::ROWS };
    const factors<F> *f = &smem->f;
    const int row = row_of<F>(), column = column_of(), warp = (int)threadIdx.x / 32;
    F columns[2][4] = {}, diagonal = 0;
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        F z = 0;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int i = row + m, j = column + n, ti = token_of(i, nm), tj = token_of(j, nm);
            const F dot = s->v[m][n] * cb.v[m][n];
            F weight = 0;
            if (ti > tj) {
                const F decay = pair_decay(f, i, j), x = dot * decay;
                weight = decay * f->w[j];
                z += x * f->w[j], columns[0][n] += x;
            } else if (ti == tj) {
                weight = f->diag_weight[j];
                columns[1][n] += dot;
            }
            if (i == j) diagonal += s->v[m][n];
            p->v[m][n] += weight * s->v[m][n];
            s->v[m][n] = weight * cb.v[m][n] + (i == j ? d : (F)0);
        }
        z = row_sum(z);
        if (column == 0) sums[row + m] = z;
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            columns[k][n] += __shfl_xor_sync(~0u, columns[k][n], 16);
            if ((threadIdx.x & 16) == 0) smem->columns[warp][k][column + n] = columns[k][n];
        }
    diagonal = row_sum(diagonal);
    diagonal += __shfl_xor_sync(~0u, diagonal, 16);
    if ((threadIdx.x & 31) == 0) smem->d[warp] = diagonal;
}

/* Sums over the warps, in order. */
template <typename F> KR_DEVICE void sum_columns(const pairs_shared<F> *smem, F *sums, F *d)
{
    enum { WARPS = tiling<F>::WARPS };
    const int i = (int)threadIdx.x;
    if (i < 128) {
        F sum = 0;
        for (int w = 0; w < WARPS; w++) sum += smem->columns[w][i / 64][i % 64];
        sums[64 + i] = sum;
    }
    if (i == 0) {
        F sum = 0;
        for (int w = 0; w < WARPS; w++) sum += smem->d[w];
        *d = sum;
    }
}

template <typename F>
static __global__ void __launch_bounds__(tiling<F>::THREADS, sizeof(F) == 4 ? 2 : 1)
    pairs(const __grid_constant__ tile_grads<F> o)
{
    extern __shared__ __align__(16) char shared[];
    enum { ROWS = tiling<F>::ROWS };
    pairs_shared<F> *smem = (pairs_shared<F> *)shared;
    F *y_tile = smem->tiles, *v_tile = y_tile + TILE;
    const task t = task_of(o, blockIdx.x);
    const int row = row_of<F>(), column = column_of();
    const int64_t heads = o.nh * o.slices, line = o.nh * o.np;
    part<F> cb, p;
    clear(&cb);
    clear(&p);
    multiply_bc(&cb, v_tile, bc_rows(o, t, false), t.nf, bc_rows(o, t, true), t.nf, o.nr);
    for (int k = 0; k < t.count; k++) {
        const head x = head_of(o, t, k);
        const int64_t at = t.n * heads + x.head;
        part<F> g_v, s;
        clear(&g_v);
        clear(&s);
        if (o.g_v)
            multiply_bc(&g_v, v_tile, bc_rows(o, t, true), t.nf, state_rows(o.g_states, t.n, heads, x.head, o.slabs),
                        64, o.nr);
        __syncthreads();
        load_tile<F, 64>(y_tile, value_rows(o, t, x, true), 0, t.nf);
        load_tile<F, 64>(v_tile, value_rows(o, t, x, false), 0, t.nf);
        load_factors(&smem->f, o.by + t.n * o.nh + x.h);
        __syncthreads();
        multiply_nt<F, 64>(&s, y_tile, v_tile);
        __syncthreads();
        weigh(&s, &p, cb, smem, o.nm, o.d ? o.d[x.h] : (F)0, o.sums + at * SUMS);
        store_tile(v_tile, s);
        __syncthreads();
        sum_columns(smem, o.sums + at * SUMS, o.own_d + at);
        if (!o.g_v) continue;
#pragma unroll
        for (int m = 0; m < ROWS; m++)
#pragma unroll
            for (int n = 0; n < 4; n++) g_v.v[m][n] *= smem->f.decay_out_w[row + m];
        multiply_tn(&g_v, v_tile, y_tile, token_of(row, o.nm) * o.nm);
        F *to = o.g_v + (t.at.at * o.nm + row) * line + x.h * o.np + x.p0 + column;
#pragma unroll
        for (int m = 0; m < ROWS; m++)
            if (row + m < t.nf) store_vec4(to + m * line, g_v.v[m], o.np - x.p0 - column, o.g_v_aligned);
    }
    F *to = o.pairs + (((t.n * o.ng + t.e) * o.blocks + t.block) * 64 + row) * 64 + column;
#pragma unroll
    for (int m = 0; m < ROWS; m++) store_vec4(to + m * 64, p.v[m], 4, true);
}

/* ---- g_b, g_c ---- */

/* sum += factor D; dots = <D, other> of each row times `out`, over the CTA's 64 columns from r0 on. */
template <typename F>
KR_DEVICE void add_rows(part<F> *sum, const part<F> &d, const rows<F> &other, int r0, int nf, const F *factor,
                        const F *out, F *dots)
{
    const int row = row_of<F>(), column = column_of();
#pragma unroll
    for (int m = 0; m < tiling<F>::ROWS; m++) {
        vec4<F> y = {};
        if (row + m < nf) y = load_vec4(other, row + m, r0 + column);
        F dot = 0;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            dot = kr_fma(d.v[m][n], y.v[n], dot);
            sum->v[m][n] = kr_fma(factor[row + m], d.v[m][n], sum->v[m][n]);
        }
        dot = row_sum(dot);
        if (column == 0) dots[row + m] = out[row + m] * dot;
    }
}

/* Sum of the blocks of P, in order. */
template <typename F> KR_DEVICE void load_pairs(F *tile, const tile_grads<F> &o, const task &t)
{
    const int row = row_of<F>(), column = column_of();
    part<F> p;
    clear(&p);
    for (int k = 0; k < o.blocks; k++) {
        const F *from = o.pairs + (((t.n * o.ng + t.e) * o.blocks + k) * 64 + row) * 64 + column;
#pragma unroll
        for (int m = 0; m < tiling<F>::ROWS; m++) {
            const vec4<F> q = *(const vec4<F> *)(from + m * 64);
            for (int n = 0; n < 4; n++) p.v[m][n] += q.v[n];
        }
    }
    store_tile(tile, p);
}

template <typename F> KR_DEVICE void store_bc(const tile_grads<F> &o, const task &t, F *to, int r0, const part<F> &sum)
{
    const int row = row_of<F>(), column = r0 + column_of();
    if (!to) return;
    to += t.block * o.tokens * o.nm * o.ng * o.nr;
#pragma unroll
    for (int m = 0; m < tiling<F>::ROWS; m++)
        if (row + m < t.nf)
            store_vec4(to + ((t.at.at * o.nm + row + m) * o.ng + t.e) * o.nr + column, sum.v[m], o.nr - column,
                       o.g_bc_aligned);
}

/* <G, H> over a CTA's columns. */
template <typename F> KR_DEVICE void multiply_states(const F *g, const F *h, F *parts, F *to)
{
    enum { THREADS = tiling<F>::THREADS, WARPS = tiling<F>::WARPS };
    F sum = 0;
    for (int i = threadIdx.x; i < TILE; i += THREADS) sum = kr_fma(g[i], h[i], sum);
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    sum = 0;
    for (int w = 0; w < WARPS; w++) sum += parts[w];
    *to = sum;
}

template <typename F> struct bc_shared {
    F x[TILE], h[TILE], g[TILE], parts[tiling<F>::WARPS];
};

/* A CTA has 64 columns of r. */
template <typename F>
static __global__ void __launch_bounds__(tiling<F>::THREADS, sizeof(F) == 4 ? 2 : 1)
    bc(const __grid_constant__ tile_grads<F> o)
{
    extern __shared__ __align__(16) char shared[];
    bc_shared<F> *smem = (bc_shared<F> *)shared;
    const unsigned unit = blockIdx.x / (unsigned)o.slabs, slab = blockIdx.x - unit * (unsigned)o.slabs;
    const int r0 = (int)slab * 64;
    const task t = task_of(o, unit);
    const rows<F> b = bc_rows(o, t, true), c = bc_rows(o, t, false);
    const int64_t heads = o.nh * o.slices;
    part<F> g_b, g_c, acc;
    clear(&g_b);
    clear(&g_c);
    for (int k = 0; k < t.count; k++) {
        const head x = head_of(o, t, k);
        const factors<F> *f = o.by + t.n * o.nh + x.h;
        const int64_t at = (t.n * heads + x.head) * o.slabs + slab;
        __syncthreads();
        load_tile<F, 64>(smem->x, value_rows(o, t, x, true), 0, t.nf);
        load_tile<F, 64>(smem->h, state_rows(o.states, t.n, heads, x.head, o.slabs), r0, 64);
        __syncthreads();
        clear(&acc);
        multiply_nn(&acc, smem->x, smem->h, 64);
        add_rows(&g_c, acc, c, r0, t.nf, f->decay_in, f->decay_in, o.t + at * 64);
        __syncthreads();
        load_tile<F, 64>(smem->x, value_rows(o, t, x, false), 0, t.nf);
        load_tile<F, 64>(smem->g, state_rows(o.g_states, t.n, heads, x.head, o.slabs), r0, 64);
        __syncthreads();
        clear(&acc);
        multiply_nn(&acc, smem->x, smem->g, 64);
        add_rows(&g_b, acc, b, r0, t.nf, f->decay_out_w, f->decay_out, o.u + at * 64);
        multiply_states(smem->g, smem->h, smem->parts, o.gh + at);
    }
    if (t.block == 0) {
        __syncthreads();
        load_pairs(smem->x, o, t);
        load_tile<F, 64>(smem->h, b, r0, t.nf);
        load_tile<F, 64>(smem->g, c, r0, t.nf);
        __syncthreads();
        multiply_nn(&g_c, smem->x, smem->h, 64);
        multiply_tn(&g_b, smem->x, smem->g, 0);
    }
    store_bc(o, t, o.g_c, r0, g_c);
    store_bc(o, t, o.g_b, r0, g_b);
}

/* y = sum of `parts` rows of `count`, in order, for the tokens of sequences; one CTA per chunk. */
template <typename F>
static __global__ void add_parts(const kr_ssd_map map, int64_t token, const F *part, int64_t parts, int64_t count, F *y)
{
    const kr_ssd_chunk c = kr_ssd_chunk_of(map, blockIdx.x);
    for (int64_t i = threadIdx.x; i < c.nt * token; i += blockDim.x) {
        F sum = 0;
        for (int64_t k = 0; k < parts; k++) sum += part[k * count + c.at * token + i];
        y[c.at * token + i] = sum;
    }
}

/* ---- scalars ---- */

/* A CTA of 64 threads per (chunk, h), one thread per token. */
template <typename F> static __global__ void __launch_bounds__(64) scalars(const __grid_constant__ tile_grads<F> o)
{
    __shared__ double inside[64], out[64];
    const int64_t n = blockIdx.x / o.nh, h = blockIdx.x % o.nh, heads = o.nh * o.slices;
    const kr_ssd_chunk c = kr_ssd_chunk_of(o.map, n);
    const factors<F> *f = o.by + n * o.nh + h;
    const int t = (int)threadIdx.x;
    double z = 0, column = 0, own = 0, u = 0, gh = 0, d = 0;
    for (int64_t head = h * o.slices; head < (h + 1) * o.slices; head++) {
        const F *sums = o.sums + (n * heads + head) * SUMS;
        for (int i = t * o.nm; t < c.nt && i < (t + 1) * o.nm; i++) {
            z += (double)sums[i], column += (double)sums[64 + i], own += (double)sums[128 + i];
            for (int slab = 0; slab < o.slabs; slab++) {
                const int64_t at = ((n * heads + head) * o.slabs + slab) * 64 + i;
                z += (double)o.t[at], u += (double)o.u[at];
            }
        }
        for (int slab = 0; slab < o.slabs; slab++) gh += (double)o.gh[(n * heads + head) * o.slabs + slab];
        d += (double)o.own_d[n * heads + head];
    }
    const double w = t < c.nt ? (double)f->w[t * o.nm] : 0;
    inside[t] = z - w * column, out[t] = w * u;
    const int64_t at = (c.at + t) * o.nh + h;
    if (t < c.nt && o.g_w) o.g_w[at] = (F)(u + column + (o.strict ? 0.0 : own));
    if (t < c.nt && o.g_diag_weight) o.g_diag_weight[at] = o.strict ? (F)own : (F)0;
    if (t == 0) o.part_d[n * o.nh + h] = (F)d;
    __syncthreads();
    if (t > 0 || !o.g_da) return;
    double after = exp(f->a[63]) * gh;
    for (int k = 0; k < c.nt; k++) after += inside[k];
    for (int k = 0; k < c.nt; k++) {
        o.g_da[(c.at + k) * o.nh + h] = (F)after;
        after += out[k] - inside[k];
    }
}

/* A CTA of 256 threads per head. */
template <typename F> static __global__ void sum_d(const F *part, int64_t chunks, int64_t nh, F *g_d)
{
    __shared__ double sums[256];
    double sum = 0;
    for (int64_t n = threadIdx.x; n < chunks; n += 256) sum += (double)part[n * nh + blockIdx.x];
    sums[threadIdx.x] = sum;
    for (int step = 128; step; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    }
    if (threadIdx.x == 0) g_d[blockIdx.x] = (F)sums[0];
}

/* ---- entry points ---- */

template <typename F>
static tile_grads<F> grads_of(const kr_ssd_bwd_args *a, const kr_ssd_dims *d, kr_cuda_scratch *m, cudaStream_t stream)
{
    tile_grads<F> o = {};
    const int64_t size = (int64_t)sizeof(F), units = d->chunks * d->heads, slabs = tile_slabs(a->nr);
    o.map = kr_ssd_map_make(d, a->sequences, m, stream);
    o.nm = (int)a->nm, o.np = (int)a->np, o.nr = (int)a->nr, o.slices = (int)d->slices, o.slabs = (int)slabs;
    o.nh = a->nh, o.ng = a->ng, o.tokens = a->nb * a->ns;
    o.heads_of_group = (int)(d->heads / a->ng), o.blocks = (o.heads_of_group + HEADS - 1) / HEADS;
    o.v = (const F *)a->v.data, o.b = (const F *)a->b.data, o.c = (const F *)a->c.data, o.g_y = (const F *)a->g_y.data,
    o.d = (const F *)a->d;
    o.v_stride = a->v.row, o.b_stride = a->b.row, o.c_stride = a->c.row;
    o.v_aligned = is_aligned<F>(a->v.data, a->v.row, a->np), o.y_aligned = is_aligned<F>(a->g_y.data, 0, a->np);
    o.b_aligned = is_aligned<F>(a->b.data, a->b.row, a->nr), o.c_aligned = is_aligned<F>(a->c.data, a->c.row, a->nr);
    o.g_v_aligned = is_aligned<F>(a->g_v.data, 0, a->np);
    o.g_bc_aligned = is_aligned<F>(a->g_b.data, 0, a->nr) && is_aligned<F>(a->g_c.data, 0, a->nr);
    o.strict = a->diag_weight != NULL;
    o.by = (const factors<F> *)kr_scratch_take(m, d->chunks * d->nh * (int64_t)sizeof(factors<F>));
    o.states = (const F *)kr_scratch_take(m, tile_states_bytes<F>(d));
    o.g_states = (const F *)kr_scratch_take(m, tile_states_bytes<F>(d));
    o.pairs = (F *)kr_scratch_take(m, d->chunks * a->ng * o.blocks * TILE * size);
    o.sums = (F *)kr_scratch_take(m, units * SUMS * size);
    o.t = (F *)kr_scratch_take(m, units * slabs * 64 * size);
    o.u = (F *)kr_scratch_take(m, units * slabs * 64 * size);
    o.gh = (F *)kr_scratch_take(m, units * slabs * size);
    o.own_d = (F *)kr_scratch_take(m, units * size);
    o.part_d = (F *)kr_scratch_take(m, d->chunks * a->nh * size);
    const int64_t bc = o.tokens * a->nm * a->ng * a->nr;
    o.g_v = (F *)a->g_v.data, o.g_da = (F *)a->g_da, o.g_w = (F *)a->g_w, o.g_diag_weight = (F *)a->g_diag_weight;
    o.g_b = (F *)a->g_b.data, o.g_c = (F *)a->g_c.data;
    if (o.blocks > 1 && a->g_b.data) o.g_b = (F *)kr_scratch_take(m, o.blocks * bc * size);
    if (o.blocks > 1 && a->g_c.data) o.g_c = (F *)kr_scratch_take(m, o.blocks * bc * size);
    return o;
}

template <typename F> size_t kr_ssd_tiled_bwd_scratch(const kr_ssd_bwd_args *a)
{
    const kr_ssd_dims d = kr_ssd_dims_of(a);
    kr_cuda_scratch m = { NULL, 0 };
    grads_of<F>(a, &d, &m, NULL);
    return m.used;
}

template <typename F> static void run_walks(const kr_ssd_bwd_args *a, const tile_grads<F> *o, cudaStream_t stream)
{
    tile_walk<F> w = {};
    w.map = o->map;
    w.nm = o->nm, w.np = o->np, w.nr = o->nr, w.slices = o->slices, w.slabs = o->slabs;
    w.nq = a->nq, w.nh = a->nh, w.ng = a->ng, w.by = o->by;
    w.x = o->v, w.x_stride = o->v_stride, w.x_aligned = o->v_aligned;
    w.bc = o->b, w.bc_stride = o->b_stride, w.bc_aligned = o->b_aligned;
    w.start = (const F *)a->initial, w.states = (F *)o->states;
    tile_walk_run<F>(&w, stream);
    w.back = true;
    w.x = o->g_y, w.x_stride = a->nm * a->nh * a->np, w.x_aligned = o->y_aligned;
    w.bc = o->c, w.bc_stride = o->c_stride, w.bc_aligned = o->c_aligned;
    w.start = (const F *)a->g_final, w.states = (F *)o->g_states, w.end = (F *)a->g_initial;
    tile_walk_run<F>(&w, stream);
}

template <typename F> static void run_grads(const tile_grads<F> *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    const int64_t units = d->chunks * d->ng * o->blocks;
    const int pairs_bytes = (int)sizeof(pairs_shared<F>), bc_bytes = (int)sizeof(bc_shared<F>);
    static_assert(pairs_bytes <= KR_CUDA_LEAST_SHARED, "too much for sm_86");
    static_assert(bc_bytes <= KR_CUDA_LEAST_SHARED, "too much for sm_86");
    cudaFuncSetAttribute(pairs<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, pairs_bytes);
    cudaFuncSetAttribute(bc<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, bc_bytes);
    pairs<F><<<(unsigned)units, tiling<F>::THREADS, pairs_bytes, stream>>>(*o);
    bc<F><<<(unsigned)(units * o->slabs), tiling<F>::THREADS, bc_bytes, stream>>>(*o);
    scalars<F><<<(unsigned)(d->chunks * d->nh), 64, 0, stream>>>(*o);
}

template <typename F> void kr_ssd_tiled_bwd(const kr_ssd_bwd_args *a)
{
    cudaStream_t stream = (cudaStream_t)a->exec.stream;
    const kr_ssd_dims d = kr_ssd_dims_of(a);
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    const tile_grads<F> o = grads_of<F>(a, &d, &m, stream);
    const int64_t bc = a->nm * a->ng * a->nr;
    if (!d.covered) kr_ssd_clear(a, sizeof(F), stream);
    tile_factors_make<F>(&d, &o.map, (const F *)a->da, (const F *)a->w, (const F *)a->diag_weight, (factors<F> *)o.by,
                         stream);
    run_walks<F>(a, &o, stream);
    if (d.chunks * d.heads > 0) run_grads<F>(&o, &d, stream);
    if (o.blocks > 1 && d.chunks > 0) {
        const unsigned chunks = (unsigned)d.chunks;
        if (a->g_b.data)
            add_parts<F><<<chunks, 256, 0, stream>>>(o.map, bc, o.g_b, o.blocks, o.tokens * bc, (F *)a->g_b.data);
        if (a->g_c.data)
            add_parts<F><<<chunks, 256, 0, stream>>>(o.map, bc, o.g_c, o.blocks, o.tokens * bc, (F *)a->g_c.data);
    }
    if (a->g_d && a->nh) sum_d<F><<<(unsigned)a->nh, 256, 0, stream>>>(o.part_d, d.chunks, a->nh, (F *)a->g_d);
}

#define INSTANCE(F)                                                                                                    \
    template size_t kr_ssd_tiled_bwd_scratch<F>(const kr_ssd_bwd_args *);                                              \
    template void kr_ssd_tiled_bwd<F>(const kr_ssd_bwd_args *);
INSTANCE(float)
INSTANCE(double)
