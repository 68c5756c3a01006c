/* ssd_grads.cu - gradients of a chunk on tensor cores, sm_80 and later (mma.sync); formulas in kernels/cpu/ssd_bwd_cpu.c, H
 * before the chunk, G after it.
 *
 * One CTA per chunk and some heads of a group; 16 warps, 4 by rows of 16 and 4 by columns. Kept in registers over the
 * heads: B C^T, the sum of its gradient, and the sums of g_B and g_C. For each head:
 *
 *   S[j, i] = <V_j, g_y_i>  ->  W^T (to shared memory), x and z, their sums by rows and by columns
 *   T_i = DECAY_IN_i g_y_i H     g_C += T     t_i = <T_i, C_i>
 *   U_j = V_j G                  g_B += DECAY_OUT_W_j U_j     u_j = DECAY_OUT_j <U_j, B_j>
 *   g_V = DECAY_OUT_W_j B_j G^T + W^T g_y
 *   g_da_t = e^a_end <G, H> + sum over tokens k >= t of (t + row sums of z - column sums of z)_k + sum k < t of w_k u_k
 *
 * the last being the gradients of a and a_end summed from t on, without the terms that cancel: no term is the difference of
 * two differently rounded ones.
 */
#include "kernels/cuda/ssd/tensor_core/ssd_grads_parts.cuh"

enum { THREADS = 512 };

typedef sums<4, 16> head_sums; /* two of these alternate if there are two stages */

/* Shared memory in bytes. Per chunk: B, C; per head: V, g_y, H, G, factors. */
template <int R, int STAGES> struct layout {
    static const int map = 64 * R * 2;
    static const int g_y = P_TILE, h = 2 * P_TILE, g = h + map, factors = g + map;
    static const int stage = factors + KR_SSD_FACTORS * 256;
    static const int c = map, bc = 2 * map, stages = STAGES * bc, w = stages + STAGES * stage, staging = w + P_TILE;
    static const int sum = STAGES == 1 ? staging : staging + P_TILE, bytes = sum + STAGES * (int)sizeof(head_sums);
};

/* The lane's position: 16 rows of its warp from r0 on; which quarter of the columns. */
typedef struct lane_pos {
    int warp, lane, r0, part, row, col; /* row: r0 + lane/4; col: 2 (lane % 4) */
} lane_pos;

static __device__ __forceinline__ lane_pos lane_pos_of(void)
{
    lane_pos w;
    w.warp = (int)threadIdx.x / 32, w.lane = (int)threadIdx.x & 31;
    w.r0 = (w.warp & 3) * 16, w.part = w.warp >> 2;
    w.row = w.r0 + w.lane / 4, w.col = (w.lane & 3) * 2;
    return w;
}

template <int R, int STAGES>
static __device__ __forceinline__ void load_stage(const kr_ssd_grads &o, int nm, int64_t n, const kr_ssd_chunk &c,
                                                  head x, uint32_t stage)
{
    typedef layout<R, STAGES> at;
    const int thread = (int)threadIdx.x, nf = c.nt * nm, width = o.np - x.p0;
    const int64_t row = o.nh * o.np;
    kr_rows v = { o.v + c.at * o.v_stride + x.h * o.np + x.p0, o.v_stride, row, nm, width, o.v_aligned };
    kr_rows g_y = { o.g_y + c.at * nm * row + x.h * o.np + x.p0, nm * row, row, nm, width, o.y_aligned };
    kr_load_rows<64, THREADS>(stage, v, nf, thread);
    kr_load_rows<64, THREADS>(stage + at::g_y, g_y, nf, thread);
    const int64_t state = (n * o.nh * o.slices + x.head) * 64 * R;
    kr_load_image<R, THREADS>(stage + at::h, o.states + state, thread);
    kr_load_image<R, THREADS>(stage + at::g, o.g_states + state, thread);
    kr_ssd_load_factors<0, KR_SSD_FACTORS>(stage + at::factors, o.factors, n * o.nh + x.h, thread);
}

/* acc[N][4] += A[16 rows][K] B[K][N 8 columns]; LOAD_A and LOAD_B load `left` and `right`. */
#define MULTIPLY(acc, N, K_FROM, K, LOAD_A, LOAD_B)                                                                    \
    _Pragma("unroll") for (int k0 = 0; k0 < (K); k0 += 16)                                                             \
    {                                                                                                                  \
        if (k0 < (K_FROM)) continue;                                                                                   \
        uint32_t left[4];                                                                                              \
        LOAD_A;                                                                                                        \
        _Pragma("unroll") for (int c8 = 0; c8 < (N); c8 += 2)                                                          \
        {                                                                                                              \
            uint32_t right[4];                                                                                         \
            LOAD_B;                                                                                                    \
            kr_mma_pair(acc[c8], acc[c8 + 1], left, right);                                                            \
        }                                                                                                              \
    }

template <int N> static __device__ __forceinline__ void clear(float acc[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 4; k++) acc[i][k] = 0;
}

/* Sums over the 8 lanes of a column, of 4 columns: lanes (b4 b3 ..) get column 2 b4 + b3. */
static __device__ __forceinline__ float column_sums(float x[4])
{
    const int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int half = 2, bit = 16; half; half /= 2, bit /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) {
            bool upper = lane & bit;
            float keep = upper ? x[i + half] : x[i], send = upper ? x[i] : x[i + half];
            x[i] = keep + __shfl_xor_sync(~0u, send, bit);
        }
    return x[0] + __shfl_xor_sync(~0u, x[0], 4);
}

/* From S, rows j and columns i: W^T, the gradient of B C^T, and the sums. */
typedef struct pair_sums {
    float x[2], own[2], z[4], d;
} pair_sums;

static __device__ __forceinline__ void pairs(float s[2][4], const float bct[2][4], float g_bct[2][4], const float *f,
                                             const lane_pos &w, int nm, float d, pair_sums *sum)
{
    float a_j[2], w_j[2], diag_weight[2];
    int t_j[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int j = w.row + 8 * k;
        a_j[k] = f[KR_SSD_A2 * 64 + j], w_j[k] = f[KR_SSD_W * 64 + j], diag_weight[k] = f[KR_SSD_DIAG_WEIGHT * 64 + j];
        t_j[k] = kr_ssd_token(j, nm);
        sum->x[k] = sum->own[k] = 0;
    }
    sum->d = 0;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        int i0 = w.part * 16 + c * 8 + w.col;
        float2 a_i = *(const float2 *)(f + KR_SSD_A2 * 64 + i0);
        int t_i[2] = { kr_ssd_token(i0, nm), kr_ssd_token(i0 + 1, nm) };
        sum->z[2 * c] = sum->z[2 * c + 1] = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int row = k / 2, col = k & 1;
            bool later = t_i[col] > t_j[row], own = t_i[col] == t_j[row], diagonal = i0 + col == w.row + 8 * row;
            float decay = kr_exp2((col ? a_i.y : a_i.x) - a_j[row]);
            decay = later ? decay : 0.0f;
            float weight = later ? decay * w_j[row] : own ? diag_weight[row] : 0.0f;
            float dot = s[c][k] * bct[c][k], x = dot * decay;
            sum->x[row] += x;
            sum->own[row] += own ? dot : 0.0f;
            sum->z[2 * c + col] += x * w_j[row];
            sum->d += diagonal ? s[c][k] : 0.0f;
            g_bct[c][k] += s[c][k] * weight;
            s[c][k] = bct[c][k] * weight + (diagonal ? d : 0.0f);
        }
    }
}

/* S, then W^T to shared memory and the sums over pairs. Warps whose rows are all later than their columns have none. */
static __device__ __forceinline__ void pairs_of_head(uint32_t v, uint32_t g_y, uint32_t w_t, const float bct[2][4],
                                                     float g_bct[2][4], const float *f, const lane_pos &w, int nm,
                                                     float d, head_sums *sum)
{
    float s[2][4];
    pair_sums p = {};
    clear<2>(s);
    if (w.part * 16 + 15 >= kr_ssd_first_row(w.r0, nm)) {
        MULTIPLY(s, 2, 0, 64, kr_load_a_mk<64>(left, v, w.r0, k0),
                 kr_load_b_nk<64>(right, g_y, w.part * 16 + c8 * 8, k0));
        pairs(s, bct, g_bct, f, w, nm, d, &p);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            kr_store_shared4(w_t + kr_tile_at<64>(w.row, w.part * 2 + c) + w.col * 2, kr_pair_of(s[c][0], s[c][1]));
            kr_store_shared4(w_t + kr_tile_at<64>(w.row + 8, w.part * 2 + c) + w.col * 2, kr_pair_of(s[c][2], s[c][3]));
        }
#pragma unroll
        for (int k = 0; k < 2; k++) p.x[k] = kr_quad_sum(p.x[k]), p.own[k] = kr_quad_sum(p.own[k]);
        p.z[0] = column_sums(p.z);
        p.d = kr_warp_sum(p.d);
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (w.col == 0) sum->x[w.part][w.row + 8 * k] = p.x[k], sum->own[w.part][w.row + 8 * k] = p.own[k];
    int b4 = (w.lane >> 4) & 1, b3 = (w.lane >> 3) & 1;
    if (!(w.lane & 4)) sum->z[w.r0 / 16][w.part * 16 + b4 * 8 + w.col + b3] = p.z[0];
    if (w.lane == 0) sum->d[w.warp] = p.d;
}

/* sum += factor X M for the warp's rows of X [64][64] and its quarter of the columns of M [64][R]; dots[k] = <X M, other>
 * of its two rows. */
template <int R>
static __device__ __forceinline__ void multiply_state(float sum[R / 32][4], uint32_t x, uint32_t m, uint32_t other,
                                                      const float factor[2], const lane_pos &w, float dots[2])
{
    const int N = R / 32, col0 = w.part * (R / 4);
    float acc[N][4];
    clear<N>(acc);
    MULTIPLY(acc, N, 0, 64, kr_load_a_mk<64>(left, x, w.r0, k0), kr_load_b_kn<R>(right, m, col0 + c8 * 8, k0));
    dots[0] = dots[1] = 0;
#pragma unroll
    for (int c = 0; c < N; c++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float2 y = kr_unpack(kr_load_shared4(other + kr_tile_at<R>(w.row + 8 * k, col0 / 8 + c) + w.col * 2));
            dots[k] += acc[c][2 * k] * y.x + acc[c][2 * k + 1] * y.y;
            sum[c][2 * k] += factor[k] * acc[c][2 * k];
            sum[c][2 * k + 1] += factor[k] * acc[c][2 * k + 1];
        }
    dots[0] = kr_quad_sum(dots[0]);
    dots[1] = kr_quad_sum(dots[1]);
}

/* <G, H> of the thread's part. */
template <int R> static __device__ __forceinline__ float multiply_states(uint32_t g, uint32_t h)
{
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 64 * R / 8 / THREADS; k++) {
        uint32_t at = (uint32_t)(threadIdx.x + k * THREADS) * 16;
        uint4 x = kr_load_shared16(g + at), y = kr_load_shared16(h + at);
        uint32_t a[4] = { x.x, x.y, x.z, x.w }, b[4] = { y.x, y.y, y.z, y.w };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 p = kr_unpack(a[i]), q = kr_unpack(b[i]);
            sum += p.x * q.x + p.y * q.y;
        }
    }
    return sum;
}

/* g_v of the warp's rows and 16 columns. */
template <int R, int STAGES>
static __device__ __forceinline__ void grad_v(const kr_ssd_grads &o, const kr_ssd_chunk &c, head x, uint32_t base,
                                              uint32_t b, uint32_t stage, const float *f, const lane_pos &w, int nm)
{
    typedef layout<R, STAGES> at;
    float acc[2][4];
    const int col0 = w.part * 16;
    clear<2>(acc);
    MULTIPLY(acc, 2, 0, R, kr_load_a_mk<R>(left, b, w.r0, k0),
             kr_load_b_nk<R>(right, stage + at::g, col0 + c8 * 8, k0));
    float scale0 = f[KR_SSD_DECAY_OUT_W * 64 + w.row], scale8 = f[KR_SSD_DECAY_OUT_W * 64 + w.row + 8];
#pragma unroll
    for (int i = 0; i < 2; i++) acc[i][0] *= scale0, acc[i][1] *= scale0, acc[i][2] *= scale8, acc[i][3] *= scale8;
    const int from = kr_ssd_first_row(w.r0, nm) / 16 * 16;
    MULTIPLY(acc, 2, from, 64, kr_load_a_mk<64>(left, base + at::w, w.r0, k0),
             kr_load_b_kn<64>(right, stage + at::g_y, col0 + c8 * 8, k0));
    const int nf = c.nt * nm, width = o.np - x.p0;
    const int64_t line = o.g_v_line, g_v_at = c.at * nm * line + x.h * o.np + x.p0;
    kr_bf16 *g_v = (kr_bf16 *)o.g_v + g_v_at;
    if (o.wide_v || STAGES == 1) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int row = w.row + 8 * k, col = col0 + i * 8 + w.col;
                if (row < nf)
                    kr_store2(o.g_v, o.wide_v, g_v_at + row * line + col, acc[i][2 * k], acc[i][2 * k + 1], width - col,
                              o.wide_v && o.g_v_aligned);
            }
        return;
    }
    uint32_t staging = base + at::staging;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        kr_store_shared4(staging + kr_tile_at<64>(w.row, col0 / 8 + i) + w.col * 2, kr_pair_of(acc[i][0], acc[i][1]));
        kr_store_shared4(staging + kr_tile_at<64>(w.row + 8, col0 / 8 + i) + w.col * 2,
                         kr_pair_of(acc[i][2], acc[i][3]));
    }
    __syncwarp();
    int row = w.r0 + w.lane / 2, unit = col0 / 8 + (w.lane & 1);
    if (row < nf)
        kr_store8(g_v + row * line + unit * 8, kr_load_shared16(staging + kr_tile_at<64>(row, unit)), width - unit * 8,
                  o.g_v_aligned);
}

/* Stores rows of g_b or g_c: rounded, or this CTA's partial sum over heads. */
template <int R>
static __device__ __forceinline__ void store_bc(const kr_ssd_grads &o, const kr_ssd_chunk &c, int64_t e,
                                                float sum[R / 32][4], const lane_pos &w, void *to, float *part)
{
    const int nf = c.nt * o.nm;
#pragma unroll
    for (int i = 0; i < R / 32; i++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int row = w.row + 8 * k, col = w.part * (R / 4) + i * 8 + w.col;
            if (row >= nf || col >= o.nr) continue;
            const int64_t at = ((c.at * o.nm + row) * o.ng + e) * o.nr + col;
            kr_store2(part ? part : to, part || o.wide_bc, at, sum[i][2 * k], sum[i][2 * k + 1], o.nr - col,
                      o.r_aligned);
        }
}

/* g_C += (gradient of B C^T)^T B, g_B += (gradient of B C^T) C; it goes through the tile w_t in bf16. */
template <int R>
static __device__ __forceinline__ void grad_bc(float g_bct[2][4], float g_b[R / 32][4], float g_c[R / 32][4],
                                               uint32_t b, uint32_t c, uint32_t w_t, const lane_pos &w, int nm)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        kr_store_shared4(w_t + kr_tile_at<64>(w.row, w.part * 2 + i) + w.col * 2, kr_pair_of(g_bct[i][0], g_bct[i][1]));
        kr_store_shared4(w_t + kr_tile_at<64>(w.row + 8, w.part * 2 + i) + w.col * 2,
                         kr_pair_of(g_bct[i][2], g_bct[i][3]));
    }
    __syncthreads();
    const int col0 = w.part * (R / 4), from = kr_ssd_first_row(w.r0, nm) / 16 * 16,
              end = kr_ssd_next_row(w.r0 + 15, nm);
    MULTIPLY(g_b, R / 32, from, 64, kr_load_a_mk<64>(left, w_t, w.r0, k0),
             kr_load_b_kn<R>(right, c, col0 + c8 * 8, k0));
#pragma unroll
    for (int k0 = 0; k0 < 64; k0 += 16) {
        if (k0 >= end) continue;
        uint32_t left[4];
        kr_load_a_km<64>(left, w_t, w.r0, k0);
#pragma unroll
        for (int c8 = 0; c8 < R / 32; c8 += 2) {
            uint32_t right[4];
            kr_load_b_kn<R>(right, b, col0 + c8 * 8, k0);
            kr_mma_pair(g_c[c8], g_c[c8 + 1], left, right);
        }
    }
}

template <int R>
static __device__ __forceinline__ void load_bc(const kr_ssd_grads &o, int nm, const kr_ssd_chunk &c, int64_t e,
                                               uint32_t bc)
{
    kr_rows b = { o.b + c.at * o.b_stride + e * o.nr, o.b_stride, o.ng * o.nr, nm, o.nr, o.b_aligned };
    kr_rows c_rows = { o.c + c.at * o.c_stride + e * o.nr, o.c_stride, o.ng * o.nr, nm, o.nr, o.c_aligned };
    kr_load_rows<R, THREADS>(bc, b, c.nt * nm, (int)threadIdx.x);
    kr_load_rows<R, THREADS>(bc + 64 * R * 2, c_rows, c.nt * nm, (int)threadIdx.x);
}

/* Loads the item after head first + j of chunk n, which is c: the next head of it, or (ends) the first of the next chunk, with
 * B and C. */
template <int R, int STAGES>
static __device__ __forceinline__ void load_next(const kr_ssd_grads &o, int nm, int64_t n, const kr_ssd_chunk &c,
                                                 const kr_ssd_chunk &next, bool ends, int64_t e, int first, int j,
                                                 uint32_t bc, uint32_t stage)
{
    if (ends) load_bc<R>(o, nm, next, e, bc);
    load_stage<R, STAGES>(o, nm, ends ? n + 1 : n, ends ? next : c, head_at(o, e, ends ? first : first + j + 1), stage);
}

/* Accumulators over the heads of a chunk. */
template <int R> struct chunk_acc {
    float bct[2][4], g_bct[2][4], g_b[R / 32][4], g_c[R / 32][4];
};

template <int R>
static __device__ __forceinline__ void begin_chunk(chunk_acc<R> *k, uint32_t b, uint32_t c, const lane_pos &w, int nm)
{
    clear<2>(k->bct);
    clear<2>(k->g_bct);
    clear<R / 32>(k->g_b);
    clear<R / 32>(k->g_c);
    if (w.part * 16 + 15 >= kr_ssd_first_row(w.r0, nm)) {
        MULTIPLY(k->bct, 2, 0, R, kr_load_a_mk<R>(left, b, w.r0, k0),
                 kr_load_b_nk<R>(right, c, w.part * 16 + c8 * 8, k0));
    }
}

/* Adds the contribution of the low parts of H and G to g_C and g_B; they are loaded over H and G once these are no longer
 * needed. */
template <int R, int STAGES>
static __device__ __forceinline__ void add_low(const kr_ssd_grads &o, int64_t n, head x, chunk_acc<R> *acc_, uint32_t b,
                                               uint32_t stage, const float *f, const lane_pos &w)
{
    typedef layout<R, STAGES> at;
    const int64_t state = (n * o.nh * o.slices + x.head) * 64 * R;
    float factor[2], dots[2];
    __syncthreads();
    kr_load_image<R, THREADS>(stage + at::h, o.low + state, (int)threadIdx.x);
    kr_load_image<R, THREADS>(stage + at::g, o.g_low + state, (int)threadIdx.x);
    kr_copy_commit();
    kr_copy_wait<0>();
    __syncthreads();
    for (int k = 0; k < 2; k++) factor[k] = f[KR_SSD_DECAY_IN * 64 + w.row + 8 * k];
    multiply_state<R>(acc_->g_c, stage + at::g_y, stage + at::h, b + at::c, factor, w, dots);
    for (int k = 0; k < 2; k++) factor[k] = f[KR_SSD_DECAY_OUT_W * 64 + w.row + 8 * k];
    multiply_state<R>(acc_->g_b, stage, stage + at::g, b, factor, w, dots);
}

/* All gradients of a head but its scalars. */
template <int R, int STAGES>
static __device__ __forceinline__ void head_grads(const kr_ssd_grads &o, const kr_ssd_chunk &c, head x,
                                                  chunk_acc<R> *acc_, uint32_t base, uint32_t b, uint32_t stage,
                                                  const float *f, head_sums *sum, const lane_pos &w, int nm)
{
    typedef layout<R, STAGES> at;
    pairs_of_head(stage, stage + at::g_y, base + at::w, acc_->bct, acc_->g_bct, f, w, nm, o.d ? o.d[x.h] : 0.0f, sum);
    float factor[2], dots[2];
    for (int k = 0; k < 2; k++) factor[k] = f[KR_SSD_DECAY_IN * 64 + w.row + 8 * k];
    multiply_state<R>(acc_->g_c, stage + at::g_y, stage + at::h, b + at::c, factor, w, dots);
    for (int k = 0; k < 2; k++)
        if (w.col == 0) sum->t[w.part][w.row + 8 * k] = factor[k] * dots[k];
    for (int k = 0; k < 2; k++) factor[k] = f[KR_SSD_DECAY_OUT_W * 64 + w.row + 8 * k];
    multiply_state<R>(acc_->g_b, stage, stage + at::g, b, factor, w, dots);
    for (int k = 0; k < 2; k++)
        if (w.col == 0) sum->u[w.part][w.row + 8 * k] = f[KR_SSD_DECAY_OUT * 64 + w.row + 8 * k] * dots[k];
    float gh = kr_warp_sum(multiply_states<R>(stage + at::g, stage + at::h));
    if (w.lane == 0) sum->gh[w.warp] = gh;
    __syncthreads();
    if (o.g_v) grad_v<R, STAGES>(o, c, x, base, b, stage, f, w, nm);
}

template <int R>
static __device__ __forceinline__ void end_chunk(const kr_ssd_grads &o, const kr_ssd_chunk &c, int64_t e, int block,
                                                 chunk_acc<R> *k, uint32_t b, uint32_t w_t, const lane_pos &w, int nm)
{
    if (!o.g_b && !o.g_c) return;
    __syncthreads();
    grad_bc<R>(k->g_bct, k->g_b, k->g_c, b, b + 64 * R * 2, w_t, w, nm);
    const int64_t bc = block * (o.slice / o.nh) * o.nm * o.ng * o.nr;
    if (o.g_b) store_bc<R>(o, c, e, k->g_b, w, o.g_b, o.part_b ? o.part_b + bc : NULL);
    if (o.g_c) store_bc<R>(o, c, e, k->g_c, w, o.g_c, o.part_c ? o.part_c + bc : NULL);
}

/* Items of a CTA: its chunks, one after another, and of each its heads; the next item is loaded while one is processed. */
template <int R, int STAGES, bool ONE>
static __global__ void __launch_bounds__(THREADS, 1) grads(const __grid_constant__ kr_ssd_grads o)
{
    extern __shared__ __align__(1024) char shared[];
    typedef layout<R, STAGES> at;
    const lane_pos w = lane_pos_of();
    const int nm = ONE ? 1 : o.nm;
    const int64_t e = blockIdx.y % (unsigned)o.ng;
    const int block = (int)(blockIdx.y / (unsigned)o.ng), first = block * o.block;
    const int heads = min(o.block, o.heads_of_group - first);
    int64_t n = (int64_t)blockIdx.x * o.chunks;
    const int items = heads * (int)min((int64_t)o.chunks, o.map.chunks - n);
    const uint32_t base = kr_shared_address(shared);
    head_sums *all = (head_sums *)(shared + at::sum);
    kr_ssd_chunk c = kr_ssd_chunk_of(o.map, n), next = c, last = c;
    int64_t last_n = n;
    head last_head = head_at(o, e, first);
    load_bc<R>(o, nm, c, e, base);
    load_stage<R, STAGES>(o, nm, n, c, last_head, base + at::stages);
    kr_copy_commit();
    chunk_acc<R> k;

    for (int i = 0, j = 0, parity = 0; i < items; i++, parity ^= 1) { /* j: head of the chunk */
        const int slot = at::stages + (STAGES == 1 ? 0 : parity * at::stage);
        const uint32_t bc = base + (STAGES == 1 ? 0u : (uint32_t)((n - (int64_t)blockIdx.x * o.chunks) & 1) * at::bc);
        const float *f = (const float *)(shared + slot + at::factors);
        const head x = head_at(o, e, first + j);
        const bool ends = j + 1 == heads, more = i + 1 < items;
        head_sums *sum = all + (STAGES == 1 ? 0 : parity);
        kr_copy_wait<0>();
        __syncthreads();
        if (ends && more) next = kr_ssd_chunk_of(o.map, n + 1);
        if (STAGES > 1 && more) {
            const uint32_t other = base + at::stages + (parity ^ 1) * at::stage;
            load_next<R, STAGES>(o, nm, n, c, next, ends, e, first, j, base + at::bc - (bc - base), other);
        }
        kr_copy_commit();
        if (STAGES > 1 && i > 0 && w.warp == 3)
            grad_scalars(o, o.nm, last_n, last, last_head, all + (parity ^ 1), factors_at(o, last_n, last_head));
        if (j == 0) begin_chunk<R>(&k, bc, bc + at::c, w, nm);
        head_grads<R, STAGES>(o, c, x, &k, base, bc, base + slot, f, sum, w, nm);
        if (o.low) add_low<R, STAGES>(o, n, x, &k, bc, base + slot, f, w);
        if (STAGES == 1 && w.warp == 3) grad_scalars(o, o.nm, n, c, x, sum, factors_at(o, n, x));
        if (ends) end_chunk<R>(o, c, e, block, &k, bc, base + at::w, w, nm);
        if (STAGES == 1 && more) {
            __syncthreads();
            load_next<R, STAGES>(o, nm, n, c, next, ends, e, first, j, base, base + slot);
            kr_copy_commit();
        }
        last = c, last_n = n, last_head = x;
        j++;
        if (ends) c = next, n++, j = 0;
    }
    if (STAGES == 1) return;
    __syncthreads();
    if (w.warp == 3)
        grad_scalars(o, o.nm, last_n, last, last_head, all + ((items - 1) & 1), factors_at(o, last_n, last_head));
}

template <int R, int STAGES, bool ONE>
static void launch(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    const int bytes = layout<R, STAGES>::bytes;
    cudaFuncSetAttribute(grads<R, STAGES, ONE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    dim3 grid((unsigned)((d->chunks + o->chunks - 1) / o->chunks),
              (unsigned)(d->ng * ((o->heads_of_group + o->block - 1) / o->block)));
    grads<R, STAGES, ONE><<<grid, THREADS, bytes, stream>>>(*o);
}

bool kr_ssd_grads_fits(const kr_ssd_dims *d)
{
    return d->r_line < 256 || d->limits.shared >= layout<256, 1>::bytes;
}

template <bool ONE> static void run(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (d->r_line == 64) launch<64, 2, ONE>(o, d, stream);
    else if (d->r_line == 256) launch<256, 1, ONE>(o, d, stream);
    else if (d->limits.shared < layout<128, 2>::bytes) launch<128, 1, ONE>(o, d, stream);
    else launch<128, 2, ONE>(o, d, stream);
}

void kr_ssd_grads_run(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (d->chunks == 0 || d->heads == 0) return;
    if (kr_ssd_grads_wgmma(o, d, stream)) return;
    if (o->nm == 1) run<true>(o, d, stream);
    else run<false>(o, d, stream);
}
