/* ssd_tiles_parts.cuh - what the kernels of ssd_tiles share: tiles, products of them, factors of a chunk, the walk.
 *
 * A tile has 64 rows of COLS elements, in units of 4 that are stored at unit ^ (row / 4 % 8) of their row: 8 threads
 * that read one column of units, 4 rows apart, find it in 8 places. A block has 16 threads across and 64 / ROWS down;
 * thread (x, y) has rows y ROWS .. and columns 4 x .. of every 64 by 64 sum.
 *
 *   by_nt    D += A B^T    A [i][k], B [j][k]
 *   by_nn    D += A B      A [i][k], B [k][j]
 *   by_tn    D += A^T B    A [k][i], B [k][j]
 */
#ifndef KR_KERNELS_CUDA_SSD_TILES_PARTS_CUH
#define KR_KERNELS_CUDA_SSD_TILES_PARTS_CUH

#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ssd_tiles.cuh"

template <typename F> struct tiling;

template <> struct tiling<float> {
    enum { ROWS = 8, THREADS = 128, WARPS = 4 };
};

template <> struct tiling<double> {
    enum { ROWS = 4, THREADS = 256, WARPS = 8 };
};

enum { TILE = 64 * 64, SLAB = 32, SLAB_TILE = 64 * SLAB }; /* elements; columns of a narrow tile */

template <typename F> struct alignas(16) quad {
    F v[4];
};

template <typename F, int COLS> KR_DEVICE quad<F> *unit_at(F *tile, int row, int unit)
{
    return (quad<F> *)(tile + row * COLS + (unit ^ (row >> 2 & 7)) * 4);
}

template <typename F, int COLS> KR_DEVICE quad<F> get(const F *tile, int row, int unit)
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

template <typename F, int COLS> KR_DEVICE void by_nt(part<F> *d, const F *a, const F *b)
{
    enum { ROWS = tiling<F>::ROWS };
    const int row = row_of<F>(), column = column_of();
#pragma unroll 2
    for (int k = 0; k < COLS / 4; k++) {
        quad<F> y[4];
#pragma unroll
        for (int n = 0; n < 4; n++) y[n] = get<F, COLS>(b, column + n, k);
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            const quad<F> x = get<F, COLS>(a, row + m, k);
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) d->v[m][n] = kr_fma(x.v[i], y[n].v[i], d->v[m][n]);
        }
    }
}

/* k: [0, end), end rounded up to a multiple of 4. */
template <typename F> KR_DEVICE void by_nn(part<F> *d, const F *a, const F *b, int end)
{
    enum { ROWS = tiling<F>::ROWS };
    const int row = row_of<F>(), unit = (int)threadIdx.x & 15;
#pragma unroll 2
    for (int k = 0; k < (end + 3) / 4; k++) {
        quad<F> y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = get<F, 64>(b, k * 4 + i, unit);
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            const quad<F> x = get<F, 64>(a, row + m, k);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int n = 0; n < 4; n++) d->v[m][n] = kr_fma(x.v[i], y[i].v[n], d->v[m][n]);
        }
    }
}

/* k: [begin, 64). */
template <typename F> KR_DEVICE void by_tn(part<F> *d, const F *a, const F *b, int begin)
{
    enum { ROWS = tiling<F>::ROWS };
    const int down = row_of<F>() / 4, unit = (int)threadIdx.x & 15;
#pragma unroll 4
    for (int k = begin; k < 64; k++) {
        const quad<F> y = get<F, 64>(b, k, unit);
#pragma unroll
        for (int q = 0; q < ROWS / 4; q++) {
            const quad<F> x = get<F, 64>(a, k, down + q);
#pragma unroll
            for (int m = 0; m < 4; m++)
#pragma unroll
                for (int n = 0; n < 4; n++) d->v[q * 4 + m][n] = kr_fma(x.v[m], y.v[n], d->v[q * 4 + m][n]);
        }
    }
}

template <typename F> KR_DEVICE void put_tile(F *tile, const part<F> &d)
{
    const int row = row_of<F>(), unit = (int)threadIdx.x & 15;
#pragma unroll
    for (int m = 0; m < tiling<F>::ROWS; m++) {
        const quad<F> q = { { d.v[m][0], d.v[m][1], d.v[m][2], d.v[m][3] } };
        *unit_at<F, 64>(tile, row + m, unit) = q;
    }
}

/* ---- rows of global memory ---- */

/* Rows f = token nm + rank of a chunk: x is the first; aligned: all can be walked in quads. */
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
template <typename F> KR_DEVICE quad<F> load_quad(const rows<F> &s, int row, int column)
{
    const int t = token_of(row, s.nm);
    const F *x = s.x + t * s.token + (row - t * s.nm) * s.rank + column;
    quad<F> q = {};
    if (s.aligned) {
        if (column < s.width) q = *(const quad<F> *)x;
        return q;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (column + i < s.width) q.v[i] = x[i];
    return q;
}

/* A tile of the rows before nf and COLS columns from `column` on, zeros past them; scale: of the rows, or NULL. */
template <typename F, int COLS>
KR_DEVICE void load_tile(F *tile, const rows<F> &s, int column, int nf, const F *scale = NULL)
{
    enum { THREADS = tiling<F>::THREADS, UNITS = COLS / 4 };
#pragma unroll
    for (int k = 0; k < 64 * UNITS / THREADS; k++) {
        const int i = (int)threadIdx.x + k * THREADS, row = i / UNITS, unit = i % UNITS;
        quad<F> q = {};
        if (row < nf) q = load_quad(s, row, column + unit * 4);
        if (scale) {
            const F by = scale[row];
            for (int n = 0; n < 4; n++) q.v[n] *= by;
        }
        *unit_at<F, COLS>(tile, row, unit) = q;
    }
}

/* A row's 4 elements, those before `left`. */
template <typename F> KR_DEVICE void store_quad(F *to, const F v[4], int left, bool aligned)
{
    if (aligned) {
        const quad<F> q = { { v[0], v[1], v[2], v[3] } };
        if (left > 0) *(quad<F> *)to = q;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < left) to[i] = v[i];
}

/* ---- factors ---- */

/* Of a chunk and head, by row; a + low is the sum of da from the chunk's first token on, to twice the digits of double:
 * a difference of two of them keeps its digits whatever came before. Rows past the chunk repeat its last token's and
 * have weights 0. */
template <typename F> struct alignas(16) factors {
    double a[64], low[64];
    F enter[64]; /* e^a */
    F stay[64];  /* e^(a_end - a) w */
    F leave[64]; /* e^(a_end - a) */
    F w[64];
    F same[64]; /* the weight of the token's own part */
};

template <typename F>
void tile_factors_make(const kr_ssd_dims *d, const kr_ssd_map *map, const F *da, const F *w, const F *same,
                       factors<F> *to, cudaStream_t stream);

template <typename F> KR_DEVICE void load_factors(factors<F> *to, const factors<F> *from)
{
    for (int i = threadIdx.x; i < (int)(sizeof *to / 16); i += tiling<F>::THREADS)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
}

/* e^(a_i - a_j) */
KR_DEVICE float fade_of(const factors<float> *f, int i, int j)
{
    return expf((float)(f->a[i] - f->a[j])); /* what low could add is less than a float has */
}

KR_DEVICE double fade_of(const factors<double> *f, int i, int j)
{
    return exp((f->a[i] - f->a[j]) + (f->low[i] - f->low[j]));
}

/* ---- the walk ---- */

/* As ssd_states.cuh's: states before chunks, or back: gradients of those after them, [chunks][heads][64][line]. */
template <typename F> struct tile_walk {
    kr_ssd_map map;
    bool back;
    int nm, np, nr, slices, slabs; /* slabs of 64 columns: line = 64 slabs */
    int64_t nq, nh, ng;
    const F *x, *maps; /* V, B or g_y, C */
    int64_t x_stride, maps_stride;
    bool x_aligned, maps_aligned;
    const factors<F> *by;
    const F *start, *seed, *seed_v, *seed_b; /* as in ssd_args.h */
    F *states, *end;                         /* end NULL: not wanted */
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

/* Where a state's tile is: chunk n, head. */
template <typename F> KR_DEVICE rows<F> state_rows(const F *states, int64_t n, int64_t heads, int64_t head, int slabs)
{
    const int64_t line = 64 * slabs;
    const rows<F> r = { states + (n * heads + head) * 64 * line, line, 0, 1, (int)line, true };
    return r;
}

#endif
