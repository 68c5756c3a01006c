/* ssd_chunk.cuh - shared by the tensor-core kernels over chunks: causal mask and decay weights, and the step from one state
 * to the next. */
#ifndef KR_KERNELS_CUDA_SSD_SSD_CHUNK_CUH
#define KR_KERNELS_CUDA_SSD_SSD_CHUNK_CUH

#include "kernels/cuda/prim/tile_io.cuh"
#include "kernels/cuda/ssd/ssd_plan.cuh"

static __device__ __forceinline__ int kr_ssd_token(int row, int nm)
{
    return nm == 1 ? row : row / nm;
}

/* First row of the token of `row`, and of the next token. */
static __device__ __forceinline__ int kr_ssd_first_row(int row, int nm)
{
    return nm == 1 ? row : row / nm * nm;
}

static __device__ __forceinline__ int kr_ssd_next_row(int row, int nm)
{
    return nm == 1 ? row + 1 : (row / nm + 1) * nm;
}

/* 64 factors of each of COUNT kinds from kind FIRST on, of chunk n and head h, by the first 16 COUNT threads. */
template <int FIRST, int COUNT>
static __device__ __forceinline__ void kr_ssd_load_factors(uint32_t to, const float *factors, int64_t at, int thread)
{
    if (thread < 16 * COUNT)
        kr_copy_async16(to + thread * 16, factors + at * KR_SSD_FACTORS * 64 + FIRST * 64 + thread * 4, 16);
}

/* initial + boundary at (p, r) of sequence q and head h; 0 past the state. O has start, boundary, boundary_v, boundary_b
 * and sizes. */
template <typename O>
static __device__ __forceinline__ float kr_ssd_start_value(const O &o, int64_t q, int64_t h, int p, int r)
{
    if (p >= o.np || r >= o.nr) return 0;
    int64_t at = q * o.nh + h;
    float x = o.start ? o.start[(at * o.np + p) * o.nr + r] : 0.0f;
    for (int m = 0; o.boundary && m < o.nm; m++) {
        int64_t row = (q * o.nm + m) * o.nh + h;
        x += o.boundary[at] * __bfloat162float(o.boundary_v[row * o.np + p]) *
             __bfloat162float(o.boundary_b[row * o.nr + r]);
    }
    return x;
}

/* Loads accumulators of COLUMNS columns from a tile [64][COLUMNS] of f32 in shared memory; row: the lane's first. */
template <int COLUMNS>
static __device__ __forceinline__ void kr_ssd_load_tile(float acc[COLUMNS / 8][4], const float *tile, int row, int lane)
{
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float2 x = *(const float2 *)(tile + (row + 8 * k) * COLUMNS + c * 8 + (lane & 3) * 2);
            acc[c][2 * k] = x.x, acc[c][2 * k + 1] = x.y;
        }
}

/* Two elements times s in bf16; low: the rounding error, in bf16. */
template <bool LOW> static __device__ __forceinline__ void kr_ssd_scale(uint32_t *x, uint32_t *low, float2 s)
{
    const float2 y = kr_unpack(*x);
    *x = kr_pair_of(y.x * s.x, y.y * s.y);
    if (!LOW) return;
    const float2 high = kr_unpack(*x);
    *low = kr_pair_of(fmaf(y.x, s.x, -high.x), fmaf(y.y, s.y, -high.y));
}

/* The warp's 16 columns of X [64][64], rows k0 .. k0 + 15, times the factors of the rows: an A operand. */
template <int X, bool LOW>
static __device__ __forceinline__ void kr_ssd_scaled_columns(uint32_t a[4], uint32_t low[4], uint32_t x,
                                                             const float *factor, int warp, int k0, int lane)
{
    kr_load_a_km<X>(a, x, warp * 16, k0);
    float2 scale0 = *(const float2 *)(factor + k0 + (lane & 3) * 2);
    float2 scale8 = *(const float2 *)(factor + k0 + 8 + (lane & 3) * 2);
#pragma unroll
    for (int i = 0; i < 4; i++) kr_ssd_scale<LOW>(&a[i], &low[i], i < 2 ? scale0 : scale8);
}

/* acc = e^a_end acc + (factor X)^T M for the warp's 16 columns of X [64][64] and COLUMNS of M, a tile of rows of R. The
 * order of sums does not depend on the columns. end2 is a_end log2(e). LOW: factor X as the sum of two bf16, 16 bits. */
template <int COLUMNS, int X, int R = COLUMNS, bool LOW = false>
static __device__ __forceinline__ void kr_ssd_pass(float acc[COLUMNS / 8][4], uint32_t x, uint32_t m,
                                                   const float *factor, float end2, int warp, int lane)
{
    const float chunk_decay = kr_exp2(end2);
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[c][k] *= chunk_decay;
#pragma unroll
    for (int k0 = 0; k0 < 64; k0 += 16) {
        uint32_t a[4], low[4];
        kr_ssd_scaled_columns<X, LOW>(a, low, x, factor, warp, k0, lane);
#pragma unroll
        for (int c = 0; c < COLUMNS / 8; c += 2) {
            uint32_t b[4];
            kr_load_b_kn<R>(b, m, c * 8, k0);
            kr_mma_pair(acc[c], acc[c + 1], a, b);
            if (LOW) kr_mma_pair(acc[c], acc[c + 1], low, b);
        }
    }
}

/* W of rows i0, i0 + 8 and 16 columns from j0 on, from C B^T, as an A operand; d is added on the diagonal. Blocks of
 * columns entirely before or after the warp's 16 rows are known to the whole warp. */
static __device__ __forceinline__ void kr_ssd_weigh(uint32_t a[4], const float left[4], const float right[4],
                                                    const float *f, int i0, int j0, int nm, float d)
{
    const int lane = (int)threadIdx.x & 31, first = i0 - lane / 4;
    const float a_i[2] = { f[KR_SSD_A2 * 64 + i0], f[KR_SSD_A2 * 64 + i0 + 8] };
    const bool before = j0 + 16 <= kr_ssd_first_row(first, nm);
    if (j0 >= kr_ssd_next_row(first + 15, nm)) {
        a[0] = a[1] = a[2] = a[3] = 0;
        return;
    }
    float w[2][4];
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const float *g = side ? right : left;
        const int j = j0 + side * 8 + (lane & 3) * 2;
        const float2 a_j = *(const float2 *)(f + KR_SSD_A2 * 64 + j), w_j = *(const float2 *)(f + KR_SSD_W * 64 + j);
        if (before) {
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[side][k] = g[k] * (kr_exp2(a_i[k / 2] - (k & 1 ? a_j.y : a_j.x)) * (k & 1 ? w_j.y : w_j.x));
            continue;
        }
        const float2 diag_weight = *(const float2 *)(f + KR_SSD_DIAG_WEIGHT * 64 + j);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int i = i0 + (k / 2) * 8, col = j + (k & 1), ti = kr_ssd_token(i, nm), tj = kr_ssd_token(col, nm);
            float decay = kr_exp2(a_i[k / 2] - (k & 1 ? a_j.y : a_j.x)) * (k & 1 ? w_j.y : w_j.x);
            float x = ti > tj ? g[k] * decay : ti == tj ? g[k] * (k & 1 ? diag_weight.y : diag_weight.x) : 0.0f;
            w[side][k] = i == col ? x + d : x;
        }
    }
    kr_mma_d_to_a(a, w[0], w[1]);
}

#endif
