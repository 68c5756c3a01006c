/* ssd_grads_wgmma.cuh - shared by the gradient kernels with wgmma: loads, column sums, and stores of gradient rows. sm_90a.
 */
#ifndef KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_GRADS_WGMMA_CUH
#define KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_GRADS_WGMMA_CUH

#include "kernels/cuda/ssd/tensor_core/ssd_grads_parts.cuh"
#include "kernels/cuda/prim/wgmma.cuh"

/* Offsets of a head's operands in its stage, in bytes; V is first. */
template <int R> struct stage_at {
    static const int map = 64 * R * 2;
    static const int g_y = P_TILE, h = 2 * P_TILE, g = h + map, factors = g + map, bytes = factors + 2048;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* The thread's position in its warpgroup. */
typedef struct lane_pos {
    int warp, lane, row, col; /* row: the lane's first of the warp's 16; col: 2 (lane % 4) */
} lane_pos;

/* The chunk and head of a CTA. */
typedef struct item {
    int64_t n;
    kr_ssd_chunk c;
    head x;
} item;

/* B and C of a chunk, consecutive; by COUNT threads from FIRST on. */
template <int R, int COUNT, int FIRST>
static __device__ __forceinline__ void load_bc(const kr_ssd_grads &o, int nm, const kr_ssd_chunk &c, int64_t e,
                                               uint32_t bc)
{
    const int thread = (int)threadIdx.x - FIRST;
    kr_rows b = { o.b + c.at * o.b_stride + e * o.nr, o.b_stride, o.ng * o.nr, nm, o.nr, o.b_aligned };
    kr_rows c_rows = { o.c + c.at * o.c_stride + e * o.nr, o.c_stride, o.ng * o.nr, nm, o.nr, o.c_aligned };
    kr_load_panels<R, COUNT>(bc, b, c.nt * nm, thread);
    kr_load_panels<R, COUNT>(bc + 64 * R * 2, c_rows, c.nt * nm, thread);
}

/* A head's V, g_y and factors. */
template <int R, int COUNT, int FIRST>
static __device__ __forceinline__ void load_values(const kr_ssd_grads &o, int nm, const item &t, uint32_t stage)
{
    typedef stage_at<R> at;
    const int thread = (int)threadIdx.x - FIRST, nf = t.c.nt * nm, width = o.np - t.x.p0;
    const int64_t row = o.nh * o.np;
    kr_rows v = { o.v + t.c.at * o.v_stride + t.x.h * o.np + t.x.p0, o.v_stride, row, nm, width, o.v_aligned };
    kr_rows g_y = { o.g_y + t.c.at * nm * row + t.x.h * o.np + t.x.p0, nm * row, row, nm, width, o.y_aligned };
    kr_load_panels<64, COUNT>(stage, v, nf, thread);
    kr_load_panels<64, COUNT>(stage + at::g_y, g_y, nf, thread);
    kr_ssd_load_factors<0, KR_SSD_FACTORS>(stage + at::factors, o.factors, t.n * o.nh + t.x.h, thread);
}

/* Its H and G. */
template <int R, int COUNT, int FIRST>
static __device__ __forceinline__ void load_states(const kr_ssd_grads &o, const item &t, uint32_t stage)
{
    const int thread = (int)threadIdx.x - FIRST;
    const int64_t state = (t.n * o.nh * o.slices + t.x.head) * 64 * R;
    kr_load_image<R, COUNT, true>(stage + stage_at<R>::h, o.states + state, thread);
    kr_load_image<R, COUNT, true>(stage + stage_at<R>::g, o.g_states + state, thread);
}

template <int N> static __device__ __forceinline__ void clear(float acc[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[i][k] = 0;
}

/* acc[64 64] = A B^T, both panels of R columns. */
template <int R> static __device__ __forceinline__ void multiply_rows(float acc[8][4], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int k = 0; k < R; k += 16)
        kr_wg_ss<0, 0>(acc, kr_wg_k_last(a + k / 64 * KR_WG_PANEL, k % 64),
                       kr_wg_k_last(b + k / 64 * KR_WG_PANEL, k % 64), k > 0);
}

/* Halves the columns of a lane: it keeps those of its side of `BIT`, summed with its partner's. */
template <int HALF, int BIT> static __device__ __forceinline__ void reduce_half(float x[16], int lane)
{
    const bool upper = lane & BIT;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float keep = upper ? x[i + HALF] : x[i], send = upper ? x[i] : x[i + HALF];
        x[i] = keep + __shfl_xor_sync(~0u, send, BIT);
    }
}

/* Sums over the 8 lanes of a column, of 16 columns: lane (b4 b3 b2 ..) gets columns 8 b4 + 4 b3 + 2 b2 and the next. */
static __device__ __forceinline__ void column_sums(float x[16], int lane)
{
    reduce_half<8, 16>(x, lane);
    reduce_half<4, 8>(x, lane);
    reduce_half<2, 4>(x, lane);
}

/* Stores g_v of a head: f32, or bf16 through shared memory. */
static __device__ __forceinline__ void store_v(const kr_ssd_grads &o, const item &t, int nm, const float acc[8][4],
                                               uint32_t staging, const lane_pos &w)
{
    const int nf = t.c.nt * nm, width = o.np - t.x.p0;
    const int64_t line = o.g_v_line;
    const int64_t at = t.c.at * nm * line + t.x.h * o.np + t.x.p0;
    if (o.wide_v) {
#pragma unroll
        for (int k = 0; k < 2; k++)
            kr_store_row((float *)o.g_v + at + (w.row + 8 * k) * line, acc, k, w.col, w.row + 8 * k < nf ? width : 0,
                         o.g_v_aligned);
        return;
    }
    kr_bf16 *g_v = (kr_bf16 *)o.g_v + at;
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 8; c++) {
        kr_store_shared4(staging + kr_tile_at<64>(w.row, c) + w.col * 2, kr_pair_of(acc[c][0], acc[c][1]));
        kr_store_shared4(staging + kr_tile_at<64>(w.row + 8, c) + w.col * 2, kr_pair_of(acc[c][2], acc[c][3]));
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int row = w.warp * 16 + k * 4 + w.lane / 8, unit = w.lane & 7;
        if (row < nf)
            kr_store8(g_v + row * line + unit * 8, kr_load_shared16(staging + kr_tile_at<64>(row, unit)),
                      width - unit * 8, o.g_v_aligned);
    }
}

/* acc = X M (add: +=). X [64][64], M [64][R]. */
template <int R> static __device__ __forceinline__ void multiply(float acc[R / 8][4], uint32_t x, uint32_t m, bool add)
{
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < 64; k += 16)
        kr_wg_product<R, 0, 1>::run(acc, kr_wg_k_last(x, k), kr_wg_n_last(m, k), add || k > 0);
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<R / 8>(acc);
}

/* Stores rows of g_c or, with of_b, of g_b: rounded, or this CTA's partial sum over heads, which begins at `part`. */
template <int R>
static __device__ __forceinline__ void store_bc(const kr_ssd_grads &o, const item &t, int64_t e, int64_t part,
                                                bool of_b, const float sum[R / 8][4], const lane_pos &w)
{
    const int nf = t.c.nt * o.nm;
    void *to = of_b ? o.g_b : o.g_c;
    float *parts = of_b ? o.part_b : o.part_c;
    if (!to) return;
    if (parts) to = parts + part;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int row = w.row + 8 * k;
        if (row >= nf) continue;
        const int64_t at = ((t.c.at * o.nm + row) * o.ng + e) * o.nr;
#pragma unroll
        for (int i = 0; i < R / 8; i++) {
            const int col = i * 8 + w.col;
            kr_store2(to, parts || o.wide_bc, at + col, sum[i][2 * k], sum[i][2 * k + 1], o.nr - col, o.r_aligned);
        }
    }
}

/* g_C += (gradient of B C^T)^T B, or g_B += (gradient of B C^T) C; it is in the tile g [j][i] in bf16. */
template <int R> static __device__ __forceinline__ void add_bc(float sum[R / 8][4], bool of_b, uint32_t bc, uint32_t g)
{
    kr_wg_hold<R / 8>(sum);
    if (of_b) {
        kr_wg_begin();
#pragma unroll
        for (int k = 0; k < 64; k += 16)
            kr_wg_product<R, 0, 1>::run(sum, kr_wg_k_last(g, k), kr_wg_n_last(bc + 64 * R * 2, k), 1);
        kr_wg_commit();
        kr_wg_wait<0>();
    } else {
        kr_wg_begin();
#pragma unroll
        for (int k = 0; k < 64; k += 16) kr_wg_product<R, 1, 1>::run(sum, kr_wg_n_last(g, k), kr_wg_n_last(bc, k), 1);
        kr_wg_commit();
        kr_wg_wait<0>();
    }
    kr_wg_hold<R / 8>(sum);
}

/* The partition of a CTA: heads of a group, of some chunks. */
typedef struct partition {
    int64_t e, n;     /* the group; the first chunk */
    int64_t part;     /* offset of the CTA's partial sums of g_b and g_c */
    int first, heads; /* of the group's heads */
    int items;
} partition;

static __device__ __forceinline__ partition partition_of(const kr_ssd_grads &o)
{
    partition b;
    const int block = (int)(blockIdx.y / (unsigned)o.ng);
    b.e = blockIdx.y % (unsigned)o.ng, b.n = (int64_t)blockIdx.x * o.chunks;
    b.part = block * (o.slice / o.nh) * o.nm * o.ng * o.nr;
    b.first = block * o.block, b.heads = min(o.block, o.heads_of_group - b.first);
    b.items = b.heads * (int)min((int64_t)o.chunks, o.map.chunks - b.n);
    return b;
}

#endif
#endif
