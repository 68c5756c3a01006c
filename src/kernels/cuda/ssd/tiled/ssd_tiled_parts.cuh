/* ssd_tiled_parts.cuh - shared by the ssd_tiled kernels: tiles and their products, decay factors of a chunk, the walk over
 * states.
 *
 * A tile has 64 rows of COLS elements, in units of 4 that are stored at unit ^ (row / 4 % 8) of their row: 8 threads that
 * read one column of units, 4 rows apart, hit 8 different banks. A CTA has 16 threads across and 64 / ROWS down; thread (x,
 * y) has rows y ROWS .. and columns 4 x .. of every 64 by 64 sum.
 *
 *   multiply_nt    D += A B^T    A [i][k], B [j][k]
 *   multiply_nn    D += A B      A [i][k], B [k][j]
 *   multiply_tn    D += A^T B    A [k][i], B [k][j]
 */
#ifndef KR_KERNELS_CUDA_SSD_TILED_SSD_TILED_PARTS_CUH
#define KR_KERNELS_CUDA_SSD_TILED_SSD_TILED_PARTS_CUH

#include "kernels/cuda/prim/math.cuh"
#include "kernels/cuda/ssd/tiled/ssd_tiled.cuh"

template <typename F> struct tiling;

template <> struct tiling<float> {
    enum { ROWS = 8, THREADS = 128, WARPS = 4 };
};

template <> struct tiling<double> {
    enum { ROWS = 4, THREADS = 256, WARPS = 8 };
};

enum { TILE = 64 * 64, SLAB = 32, SLAB_TILE = 64 * SLAB }; /* elements; columns of a narrow tile */

template <typename F> struct alignas(16) vec4 {
    F v[4];
};

template <typename F, int COLS> KR_DEVICE vec4<F> *unit_at(F *tile, int row, int unit)
{
    return (vec4<F> *)(tile + row * COLS + (unit ^ (row >> 2 & 7)) * 4);
}

template <typename F, int COLS> KR_DEVICE vec4<F> get(const F *tile, int row, int unit)
{
    return *unit_at<F, COLS>((F *)tile, row, unit);
}

/* A thread's part of a 64 by 64 sum. */
template <typename F> struct part {
    F v[tiling<F>::ROWS][4];
};

KR_DEVICE int column_of(void)
{
    return ((int)threadIdx.x & 15) * 4;
}

template <typename F> KR_DEVICE int row_of(void)
{
    return (int)threadIdx.x / 16 * tiling<F>::ROWS;
}

template <typename F> KR_DEVICE void clear(part<F> *d)
{
#pragma unroll
    for (int m = 0; m < tiling<F>::ROWS; m++)
#pragma unroll
        for (int n = 0; n < 4; n++) d->v[m][n] = 0;
}

template <typename F, int COLS> KR_DEVICE void multiply_nt(part<F> *d, const F *a, const F *b)
{
    enum { ROWS = tiling<F>::ROWS };
    const int row = row_of<F>(), column = column_of();
#pragma unroll 2
    for (int k = 0; k < COLS / 4; k++) {
        vec4<F> y[4];
#pragma unroll
        for (int n = 0; n < 4; n++) y[n] = get<F, COLS>(b, column + n, k);
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            const vec4<F> x = get<F, COLS>(a, row + m, k);
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) d->v[m][n] = kr_fma(x.v[i], y[n].v[i], d->v[m][n]);
        }
    }
}

/* k: [0, end), end rounded up to a multiple of 4. */
template <typename F> KR_DEVICE void multiply_nn(part<F> *d, const F *a, const F *b, int end)
{
    enum { ROWS = tiling<F>::ROWS };
    const int row = row_of<F>(), unit = (int)threadIdx.x & 15;
#pragma unroll 2
    for (int k = 0; k < (end + 3) / 4; k++) {
        vec4<F> y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = get<F, 64>(b, k * 4 + i, unit);
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            const vec4<F> x = get<F, 64>(a, row + m, k);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int n = 0; n < 4; n++) d->v[m][n] = kr_fma(x.v[i], y[i].v[n], d->v[m][n]);
        }
    }
}

/* k: [begin, 64). */
template <typename F> KR_DEVICE void multiply_tn(part<F> *d, const F *a, const F *b, int begin)
{
    enum { ROWS = tiling<F>::ROWS };
    const int down = row_of<F>() / 4, unit = (int)threadIdx.x & 15;
#pragma unroll 4
    for (int k = begin; k < 64; k++) {
        const vec4<F> y = get<F, 64>(b, k, unit);
#pragma unroll
        for (int q = 0; q < ROWS / 4; q++) {
            const vec4<F> x = get<F, 64>(a, k, down + q);
#pragma unroll
            for (int m = 0; m < 4; m++)
#pragma unroll
                for (int n = 0; n < 4; n++) d->v[q * 4 + m][n] = kr_fma(x.v[m], y.v[n], d->v[q * 4 + m][n]);
        }
    }
}

template <typename F> KR_DEVICE void store_tile(F *tile, const part<F> &d)
{
    const int row = row_of<F>(), unit = (int)threadIdx.x & 15;
#pragma unroll
    for (int m = 0; m < tiling<F>::ROWS; m++) {
        const vec4<F> q = { { d.v[m][0], d.v[m][1], d.v[m][2], d.v[m][3] } };
        *unit_at<F, 64>(tile, row + m, unit) = q;
    }
}

/* ---- rows of global memory ---- */

/* Rows f = token nm + rank of a chunk: x is the first; token, rank: strides; aligned: vec4 accesses are allowed. */
template <typename F> struct rows {
    const F *x;
    int64_t token, rank;
    int nm, width;
    bool aligned;
};

template <typename F> static inline bool is_aligned(const void *x, int64_t stride, int64_t width)
{
    return kr_is_aligned(x, 16) && stride % 4 == 0 && width % 4 == 0;
}

KR_DEVICE int token_of(int row, int nm)
{
    return nm == 1 ? row : row / nm;
}

/* Four columns from `column` on; zeros past the width. */
template <typename F> KR_DEVICE vec4<F> load_vec4(const rows<F> &s, int row, int column)
{
    const int t = token_of(row, s.nm);
    const F *x = s.x + t * s.token + (row - t * s.nm) * s.rank + column;
    vec4<F> q = {};
    if (s.aligned) {
        if (column < s.width) q = *(const vec4<F> *)x;
        return q;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (column + i < s.width) q.v[i] = x[i];
    return q;
}

/* Loads a tile of the rows before nf and COLS columns from `column` on, zeros past them; scale: per row, or NULL. */
template <typename F, int COLS>
KR_DEVICE void load_tile(F *tile, const rows<F> &s, int column, int nf, const F *scale = NULL)
{
    enum { THREADS = tiling<F>::THREADS, UNITS = COLS / 4 };
#pragma unroll
    for (int k = 0; k < 64 * UNITS / THREADS; k++) {
        const int i = (int)threadIdx.x + k * THREADS, row = i / UNITS, unit = i % UNITS;
        vec4<F> q = {};
        if (row < nf) q = load_vec4(s, row, column + unit * 4);
        if (scale) {
            const F by = scale[row];
            for (int n = 0; n < 4; n++) q.v[n] *= by;
        }
        *unit_at<F, COLS>(tile, row, unit) = q;
    }
}

/* Stores 4 elements of a row, those before `left`. */
template <typename F> KR_DEVICE void store_vec4(F *to, const F v[4], int left, bool aligned)
{
    if (aligned) {
        const vec4<F> q = { { v[0], v[1], v[2], v[3] } };
        if (left > 0) *(vec4<F> *)to = q;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < left) to[i] = v[i];
}

/* ---- decay factors ---- */

/* Of a chunk and head, by row; a + low is the sum of da from the chunk's first token on, in double-double: differences of
 * two of them keep their precision whatever came before. Rows past the chunk repeat its last token's and have weight 0. */
template <typename F> struct alignas(16) factors {
    double a[64], low[64];
    F decay_in[64];    /* e^a */
    F decay_out_w[64]; /* e^(a_end - a) w */
    F decay_out[64];   /* e^(a_end - a) */
    F w[64];
    F diag_weight[64]; /* weight of the token's own term */
};

template <typename F>
void tile_factors_make(const kr_ssd_dims *d, const kr_ssd_map *map, const F *da, const F *w, const F *diag_weight,
                       factors<F> *to, cudaStream_t stream);

template <typename F> KR_DEVICE void load_factors(factors<F> *to, const factors<F> *from)
{
    for (int i = threadIdx.x; i < (int)(sizeof *to / 16); i += tiling<F>::THREADS)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
}

/* e^(a_i - a_j) */
KR_DEVICE float pair_decay(const factors<float> *f, int i, int j)
{
    return expf((float)(f->a[i] - f->a[j])); /* low is below the precision of float */
}

KR_DEVICE double pair_decay(const factors<double> *f, int i, int j)
{
    return exp((f->a[i] - f->a[j]) + (f->low[i] - f->low[j]));
}

/* ---- walk over states ---- */

/* As in ssd_states.cuh: states before chunks, or with back gradients of the states after them, [chunks][heads][64][line]. */
template <typename F> struct tile_walk {
    kr_ssd_map map;
    bool back;
    int nm, np, nr, slices, slabs; /* slabs of 64 columns: row stride 64 slabs */
    int64_t nq, nh, ng;
    const F *x, *bc; /* V, B or g_y, C */
    int64_t x_stride, bc_stride;
    bool x_aligned, bc_aligned;
    const factors<F> *by;
    const F *start, *boundary, *boundary_v, *boundary_b; /* as in ssd_args.h */
    F *states, *end;                                     /* end NULL: not wanted */
};

template <typename F> void tile_walk_run(const tile_walk<F> *w, cudaStream_t stream);

static inline int64_t tile_slabs(int64_t nr)
{
    return (nr + 63) / 64;
}

template <typename F> static inline int64_t tile_states_bytes(const kr_ssd_dims *d)
{
    return d->chunks * d->heads * TILE * tile_slabs(d->nr) * (int64_t)sizeof(F);
}

/* Tile of a state: chunk n, head. */
template <typename F> KR_DEVICE rows<F> state_rows(const F *states, int64_t n, int64_t heads, int64_t head, int slabs)
{
    const int64_t line = 64 * slabs;
    const rows<F> r = { states + (n * heads + head) * 64 * line, line, 0, 1, (int)line, true };
    return r;
}

#endif
