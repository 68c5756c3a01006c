/* ssd_grads_rotary.cu - the gradients of ssd_grads_wgmma.cu with rotary embedding: B and C of each head are those of its
 * group, rotated by the head's angles (ssd_rotate.cuh). sm_90a, bf16.
 *
 *   V, g_y [b s h p], B, C [b s g r], angle [b s h a], H, G [chunks][h][64][r]
 *   -> g_V, g_B, g_C, g_angle, partial sums of g_bias, gradients of scalars
 *
 * One CTA per chunk and some heads of a group. Its four warpgroups have parts of a head that take about the same time:
 *
 *   first: pairs of rows          second: g_C, third: g_B             fourth: everything but products
 *   ---------------------------------------------------------- barrier of all: the head's operands have arrived
 *   S = V g_y^T, its decays,      start T or U; rotate B and C        starts the loads of the next head, stores
 *   the gradient of B C^T                                             the previous one; <G, H>
 *   ------------------------------------------- barrier of these three
 *   B C^T, W^T, sums, B G^T       sums of T or U; add the pairs' part
 *   ---------------------------------------------------------- barrier of all: H, G and V are free
 *   g_v                           rotate back, sums over the heads    scalars, edges
 *
 * With (x y) = x0 y1 - x1 y0 of a pair:
 *
 *   g_angle_t = (C_t g_C_t) + (B_t g_B_t)                 of the rotated B and C as rounded
 *   g_bias    = sum over the chunk's tokens of the gradients rotated back
 *
 * The increment of an angle affects all later tokens: its gradient is the sum of g_angle over these, most of which cancels.
 * That sum is (G H) of the state before the token and its gradient, since rotating all later tokens rotates that state
 * back. H and G are rounded to bf16 here, so adjacent chunks disagree about (G H) between them, and the disagreement would
 * accumulate over the sequence. `edges` has both values, which ssd_rotary_bwd.cu averages:
 *
 *   first   e^a_end (G H) + sum of (C_t T_t)         (G H) before the chunk: of H rounded, T its part of g_C
 *   second  e^a_end (G H) - sum of (B_t U_t)         (G H) after it: of G rounded, U its part of g_B
 */
#include "kernels/cuda/ssd/rotary/ssd_rotate.cuh"
#include "kernels/cuda/ssd/tensor_core/ssd_grads_wgmma.cuh"

typedef sums<1, 4> rotated_sums;

/* Column sums of one head, by warp. */
template <int R> struct column_sums_of {
    float x[4][R / 2];        /* (G H) */
    float state[2][4][R / 2]; /* (C T), (B U) */
    float bias[2][4][R];      /* g_C, g_B rotated back */
};

/* Shared memory in bytes: B and C of the group and, from `rotated` on, of the head; two stages of a head's operands, its
 * biases and angles, which become (cos, sin); the gradient of B C^T; sums; `spilled`: of the sums over the heads those of
 * each panel's last unit, for which registers do not suffice, [panel][thread][4]. Tiles of R columns are panels, those of
 * angles too. */
template <int R> struct layout {
    static const int map = 64 * R * 2, rotated = 2 * map, stages = 4 * map;
    static const int angles = stage_at<R>::bytes, bias = angles + map, stage = bias + 1024;
    static const int pairs = stages + 2 * stage, sum = pairs + P_TILE, columns = sum + (int)sizeof(rotated_sums);
    static const int spilled = columns + (int)sizeof(column_sums_of<R>), bytes = spilled + R / 64 * 4096 + 1024;
    static_assert(spilled % 16 == 0 && bytes <= 227 << 10, "what sm_90 has");
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Reads the thread index again, so that values derived from it are not kept in registers from head to head. */
static __device__ __forceinline__ int thread_now(void)
{
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t & 127;
}

static __device__ __forceinline__ lane_pos lane_pos_now(void)
{
    const int t = thread_now();
    lane_pos w;
    w.warp = t / 32, w.lane = t & 31;
    w.row = w.warp * 16 + w.lane / 4, w.col = (w.lane & 3) * 2;
    return w;
}

/* A head's stage, and the rest of shared memory. */
typedef struct head_smem {
    char *shared;
    uint32_t base, stage;
    const float *f; /* the head's factors */
} head_smem;

template <int R> static __device__ __forceinline__ head_smem head_smem_of(char *shared, int j)
{
    const int slot = layout<R>::stages + (j & 1) * layout<R>::stage;
    const uint32_t base = kr_shared_address(shared);
    const head_smem s = { shared, base, base + slot, (const float *)(shared + slot + stage_at<R>::factors) };
    return s;
}

template <int R> static __device__ __forceinline__ rotated_sums *sums_at(const head_smem &s)
{
    return (rotated_sums *)(s.shared + layout<R>::sum);
}

template <int R> static __device__ __forceinline__ column_sums_of<R> *columns_at(const head_smem &s)
{
    return (column_sums_of<R> *)(s.shared + layout<R>::columns);
}

/* Head j of the CTA's partition. */
static __device__ __forceinline__ item item_at(const kr_ssd_grads &o, const partition &b, const kr_ssd_chunk &c, int j)
{
    const item t = { b.n, c, head_at(o, b.e, b.first + j) };
    return t;
}

/* The lane's offset in the first unit of a tile of panels; that of unit i is this ^ i 16. */
static __device__ __forceinline__ uint32_t lane_at(const lane_pos &w)
{
    return (uint32_t)(w.row * 128 + ((w.row & 7) << 4) + w.col * 2);
}

/* Barrier of all but the fourth warpgroup: B and C are rotated, the gradient of their products is stored. */
static __device__ __forceinline__ void sync_adders(void)
{
    asm volatile("bar.sync 2, 384;" ::: "memory");
}

/* ---- first warpgroup: pairs of rows, g_v ---- */

/* From S^T in s, rows j and columns i: decay[i j] = e^(a_i - a_j) of tokens i after j, 0 otherwise; stores the gradient of
 * B C^T. */
static __device__ __forceinline__ void store_decays(const float s[8][4], float decay[8][4], const float *f, uint32_t to,
                                                    const lane_pos &w)
{
    const uint32_t mine = to + lane_at(w);
    const float a_j[2] = { f[KR_SSD_A2 * 64 + w.row], f[KR_SSD_A2 * 64 + w.row + 8] };
    const float w_j[2] = { f[KR_SSD_W * 64 + w.row], f[KR_SSD_W * 64 + w.row + 8] };
    const float diag_weight[2] = { f[KR_SSD_DIAG_WEIGHT * 64 + w.row], f[KR_SSD_DIAG_WEIGHT * 64 + w.row + 8] };
#pragma unroll
    for (int c = 0; c < 8; c++) {
        const int i0 = c * 8 + w.col,
                  ahead = c / 2 - w.warp; /* > 0: all these columns are after all rows of the warp */
        float g[4] = { 0, 0, 0, 0 };
        if (ahead >= 0) {
            const float2 a_i = *(const float2 *)(f + KR_SSD_A2 * 64 + i0);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int ahead_of = i0 + (k & 1) - w.row - 8 * (k / 2);
                decay[c][k] = kr_exp2((k & 1 ? a_i.y : a_i.x) - a_j[k / 2]);
                float weight = decay[c][k] * w_j[k / 2];
                if (ahead == 0) {
                    decay[c][k] = ahead_of > 0 ? decay[c][k] : 0.0f;
                    weight = ahead_of > 0 ? weight : ahead_of == 0 ? diag_weight[k / 2] : 0.0f;
                }
                g[k] = s[c][k] * weight;
            }
        }
        kr_store_shared4(mine ^ (uint32_t)(c << 4), kr_pair_of(g[0], g[1]));
        kr_store_shared4((mine ^ (uint32_t)(c << 4)) + 1024, kr_pair_of(g[2], g[3]));
    }
    kr_wg_proxy_fence();
}

/* bct, B C^T, becomes W^T; and the sums over pairs. */
static __device__ __forceinline__ void weigh_pairs(const float s[8][4], const float decay[8][4], float bct[8][4],
                                                   const float *f, float d, rotated_sums *sum, const lane_pos &w)
{
    float x[2] = { 0, 0 }, own[2] = { 0, 0 }, of_d = 0, z[16];
    const float w_j[2] = { f[KR_SSD_W * 64 + w.row], f[KR_SSD_W * 64 + w.row + 8] };
    const float diag_weight[2] = { f[KR_SSD_DIAG_WEIGHT * 64 + w.row], f[KR_SSD_DIAG_WEIGHT * 64 + w.row + 8] };
#pragma unroll
    for (int c = 0; c < 8; c++) {
        const int ahead = c / 2 - w.warp;
        z[2 * c] = z[2 * c + 1] = 0;
        if (ahead < 0) {
            bct[c][0] = bct[c][1] = bct[c][2] = bct[c][3] = 0;
            continue;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float dot = s[c][k] * bct[c][k], weighed = bct[c][k] * (decay[c][k] * w_j[k / 2]);
            const bool diagonal = ahead == 0 && c * 8 + w.col + (k & 1) == w.row + 8 * (k / 2);
            x[k / 2] = fmaf(dot, decay[c][k], x[k / 2]);
            z[2 * c + (k & 1)] = fmaf(s[c][k], weighed, z[2 * c + (k & 1)]);
            if (diagonal) own[k / 2] = dot, of_d += s[c][k];
            bct[c][k] = diagonal ? fmaf(bct[c][k], diag_weight[k / 2], d) : weighed;
        }
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float all = kr_quad_sum(x[k]), of_own = kr_quad_sum(own[k]);
        if (w.col == 0) sum->x[0][w.row + 8 * k] = all, sum->own[0][w.row + 8 * k] = of_own;
    }
    column_sums(z, w.lane);
    *(float2 *)&sum->z[w.warp][(w.lane >> 2) * 8 + w.col] = make_float2(z[0], z[1]);
    of_d = kr_warp_sum(of_d);
    if (w.lane == 0) sum->d[w.warp] = of_d;
}

/* g_v = DECAY_OUT_W g_v + W^T g_y, staged through the space of V. */
template <int R>
static __device__ __forceinline__ void head_values(const kr_ssd_grads &o, const item &t, const uint32_t a[4][4],
                                                   float g_v[8][4], const head_smem &s, const lane_pos &w)
{
    const float scale0 = s.f[KR_SSD_DECAY_OUT_W * 64 + w.row], scale8 = s.f[KR_SSD_DECAY_OUT_W * 64 + w.row + 8];
#pragma unroll
    for (int c = 0; c < 8; c++) g_v[c][0] *= scale0, g_v[c][1] *= scale0, g_v[c][2] *= scale8, g_v[c][3] *= scale8;
    kr_wg_hold<8>(g_v);
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) kr_wg_64_rs(g_v, a[k], kr_wg_n_last(s.stage + stage_at<R>::g_y, k * 16));
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(g_v);
    store_v(o, t, 1, g_v, s.stage, w);
}

/* acc = A B^T of R columns, completed. */
template <int R> static __device__ __forceinline__ void product_of_rows(float acc[8][4], uint32_t a, uint32_t b)
{
    kr_wg_begin();
    multiply_rows<R>(acc, a, b);
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(acc);
}

template <int R>
static __device__ __forceinline__ void do_values(const kr_ssd_grads &o, const item &t, const head_smem &at,
                                                 const lane_pos &w)
{
    const uint32_t b = at.base + layout<R>::rotated;
    float s[8][4], decay[8][4], bct[8][4], g_v[8][4];
    uint32_t w_t[4][4];
    product_of_rows<64>(s, at.stage, at.stage + stage_at<R>::g_y);
    store_decays(s, decay, at.f, at.base + layout<R>::pairs, w);
    sync_adders();
    product_of_rows<R>(bct, b, b + layout<R>::map);
    weigh_pairs(s, decay, bct, at.f, o.d ? o.d[t.x.h] : 0.0f, sums_at<R>(at), w);
#pragma unroll
    for (int k = 0; k < 4; k++) kr_mma_d_to_a(w_t[k], bct[2 * k], bct[2 * k + 1]);
    product_of_rows<R>(g_v, b, at.stage + stage_at<R>::g);
    __syncthreads();
    if (o.g_v) head_values<R>(o, t, w_t, g_v, at, w);
}

#endif

enum { THREADS = 512, AUX = 384 }; /* threads, and the first of the fourth warpgroup */

/* Registers per thread, by warpgroup: each starts with 128. */
enum { REGISTERS_OF_VALUES = 128, REGISTERS_OF_BC = 160, REGISTERS_OF_AUX = 64 };
static_assert(REGISTERS_OF_VALUES + 2 * REGISTERS_OF_BC + REGISTERS_OF_AUX == 4 * 128, "no more than there are");

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ---- rotation, by the second and third warpgroups ---- */

static __device__ __forceinline__ uint32_t pack_rotation(float2 by)
{
    const __half2 x = __floats2half2_rn(by.x, by.y);
    return *(const uint32_t *)&x;
}

/* A unit of B or C without rotation: adds the bias. */
static __device__ __forceinline__ void shift_unit(uint32_t to, uint4 raw, const kr_rotate_row &bias)
{
    const uint32_t word[4] = { raw.x, raw.y, raw.z, raw.w };
    uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 u = kr_unpack(word[i]);
        y[i] = kr_pair_of(u.x + bias.x[2 * i], u.y + bias.x[2 * i + 1]);
    }
    kr_store_shared16(to, y);
}

/* Rotates a unit of the head's B and C, and replaces its angles by (cos, sin); address: offset of the unit in a tile.
 * Panels that are not `rotated` have no angles. */
template <int R>
static __device__ __forceinline__ void rotate_unit_of(const head_smem &s, uint32_t address, uint32_t bias, bool inside,
                                                      bool rotated)
{
    typedef layout<R> at;
    const uint32_t from = s.base + address, to = from + at::rotated, angles = s.stage + at::angles + address;
    if (!inside) {
        const uint32_t none[4] = { 0, 0, 0, 0 };
        kr_store_shared16(angles, none);
        kr_store_shared16(to, none);
        kr_store_shared16(to + at::map, none);
    } else if (rotated) {
        const uint4 a = kr_load_shared16(angles), b = kr_load_shared16(from), c = kr_load_shared16(from + at::map);
        const float2 by[4] = { kr_rotate_by(__uint_as_float(a.x)), kr_rotate_by(__uint_as_float(a.y)),
                               kr_rotate_by(__uint_as_float(a.z)), kr_rotate_by(__uint_as_float(a.w)) };
        const uint32_t packed[4] = { pack_rotation(by[0]), pack_rotation(by[1]), pack_rotation(by[2]),
                                     pack_rotation(by[3]) };
        kr_store_shared16(angles, packed);
        kr_rotate_unit(to, b, kr_rotate_bias_of<R>(bias), by);
        kr_rotate_unit(to + at::map, c, kr_rotate_bias_of<R>(bias + kr_rotate_bias<R>::bytes), by);
    } else {
        const uint4 b = kr_load_shared16(from), c = kr_load_shared16(from + at::map);
        shift_unit(to, b, kr_rotate_bias_of<R>(bias));
        shift_unit(to + at::map, c, kr_rotate_bias_of<R>(bias + kr_rotate_bias<R>::bytes));
    }
}

/* 32 rows of the head's B and C from row0 on. One loop without unrolling, for the instruction cache: see
 * ssd_grads_wgmma.cu. */
template <int R>
static __device__ __forceinline__ void rotate_bc(const kr_ssd_chunk &c, const head_smem &s, int row0, int panels)
{
    const int thread = thread_now(), unit = thread % 8, first = row0 + thread / 8;
    const uint32_t address = kr_tile_at<64>(first, unit), bias = s.stage + layout<R>::bias + unit * 16;
#pragma unroll 1
    for (int i = 0; i < R / 32; i++) {
        const int panel = i / 2, down = i % 2 * 16; /* rows of a lane agree in the swizzle */
        rotate_unit_of<R>(s, address + panel * KR_WG_PANEL + down * 128, bias + panel * 128, first + down < c.nt,
                          panel < panels);
    }
    kr_wg_proxy_fence();
}

/* ---- second and third warpgroups: g_C, g_B ---- */

/* Scales acc, T or with of_b U of a head, by its factors; and its sums. bc: C or B. */
template <int R>
static __device__ __forceinline__ void sum_states(float acc[R / 8][4], bool of_b, int panels, uint32_t bc,
                                                  const head_smem &s, const lane_pos &w)
{
    rotated_sums *to = sums_at<R>(s);
    const float *from = s.f + (of_b ? KR_SSD_DECAY_OUT_W : KR_SSD_DECAY_IN) * 64 + w.row;
    const float *out = s.f + (of_b ? KR_SSD_DECAY_OUT : KR_SSD_DECAY_IN) * 64 + w.row;
    const float by[2] = { from[0], from[8] };
    float dots[2] = { 0, 0 };
    const uint32_t mine = bc + lane_at(w);
#pragma unroll
    for (int p = 0; p < R / 64; p++) {
        float cross[8];
#pragma unroll
        for (int unit = 0; unit < 8; unit++) {
            const int c = p * 8 + unit;
            const uint32_t address = (mine ^ (uint32_t)(unit << 4)) + p * KR_WG_PANEL;
            const uint32_t pair[2] = { kr_load_shared4(address), kr_load_shared4(address + 1024) };
            cross[unit] = 0;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float2 y = kr_unpack(pair[k]);
                dots[k] = fmaf(acc[c][2 * k], y.x, fmaf(acc[c][2 * k + 1], y.y, dots[k]));
                acc[c][2 * k] *= by[k], acc[c][2 * k + 1] *= by[k];
                cross[unit] = fmaf(y.x, acc[c][2 * k + 1], fmaf(-y.y, acc[c][2 * k], cross[unit]));
            }
        }
        if (p > 0 && p >= panels) continue;
        reduce_half<4, 16>(cross, w.lane);
        reduce_half<2, 8>(cross, w.lane);
        reduce_half<1, 4>(cross, w.lane);
        columns_at<R>(s)->state[of_b][w.warp][(p * 8 + (w.lane >> 2)) * 4 + (w.lane & 3)] = cross[0];
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float dot = kr_quad_sum(dots[k]);
        if (w.col == 0) (of_b ? to->u : to->t)[0][w.row + 8 * k] = out[8 * k] * dot;
    }
}

/* The thread's spilled sums. */
template <int R> static __device__ __forceinline__ float4 *spilled_at(char *shared, bool of_b, int panel)
{
    return (float4 *)(shared + layout<R>::spilled) + panel * 256 + of_b * 128 + thread_now();
}

template <int R>
static __device__ __forceinline__ void load_spilled(float sum[R / 8][4], char *shared, bool of_b, int panel)
{
    const float4 x = *spilled_at<R>(shared, of_b, panel);
    float *to = sum[panel * 8 + 7];
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

template <int R>
static __device__ __forceinline__ void store_spilled(const float sum[R / 8][4], char *shared, bool of_b, int panel)
{
    const float *x = sum[panel * 8 + 7];
    *spilled_at<R>(shared, of_b, panel) = make_float4(x[0], x[1], x[2], x[3]);
}

/* Adds x, two adjacent elements of row k of the lane's two, to the sums over the heads, and over the rows in acc[0 1]. */
static __device__ __forceinline__ void add_back(float sum[4], float acc[4], int k, float x0, float x1)
{
    sum[2 * k] += x0, sum[2 * k + 1] += x1;
    acc[0] = k ? acc[0] + x0 : x0, acc[1] = k ? acc[1] + x1 : x1;
}

/* Rotates back two units of a panel of acc, g_C or g_B of the head. Their part of g_angle goes to the space of H or G, `to`
 * bytes on. address: of the first of the lane's rows of each. */
static __device__ __forceinline__ void rotate_units_bwd(float sum[2][4], float acc[2][4], const uint32_t address[2],
                                                        uint32_t angles, uint32_t to)
{
    uint32_t rotate[4], pair[4]; /* all loads before the first use */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        pair[i] = kr_load_shared4(address[i / 2] + i % 2 * 1024);
        rotate[i] = kr_load_shared4(address[i / 2] + i % 2 * 1024 + angles);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int c = i / 2, k = i % 2;
        const float2 by = __half22float2(*(const __half2 *)&rotate[i]), y = kr_unpack(pair[i]);
        const float g0 = acc[c][2 * k], g1 = acc[c][2 * k + 1];
        kr_store_shared4(address[c] + k * 1024 + to, __float_as_uint(y.x * g1 - y.y * g0));
        add_back(sum[c], acc[c], k, g0 * by.x + g1 * by.y, g1 * by.x - g0 * by.y);
    }
}

/* Rotates all of acc back and adds it to `sum`; acc[..][0 1]: sums of the lane's two rows. */
template <int R>
static __device__ __forceinline__ void rotate_back(float sum[R / 8][4], float acc[R / 8][4], bool of_b, int panels,
                                                   uint32_t bc, const head_smem &s, const lane_pos &w)
{
    const uint32_t mine = bc + lane_at(w), angles = s.stage + layout<R>::angles - bc;
    const uint32_t to = s.stage + (of_b ? stage_at<R>::g : stage_at<R>::h) - bc;
#pragma unroll
    for (int p = 0; p < R / 64; p++) {
        const bool rotated = p == 0 || p < panels;
#pragma unroll
        for (int unit = 0; unit < 8; unit += 2) {
            const int c = p * 8 + unit;
            const uint32_t address[2] = { (mine ^ (uint32_t)(unit << 4)) + p * KR_WG_PANEL,
                                          (mine ^ (uint32_t)(unit + 1 << 4)) + p * KR_WG_PANEL };
            if (unit == 6) load_spilled<R>(sum, s.shared, of_b, p);
            if (rotated) {
                rotate_units_bwd(sum + c, acc + c, address, angles, to);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    add_back(sum[c + i / 2], acc[c + i / 2], i % 2, acc[c + i / 2][i % 2 * 2],
                             acc[c + i / 2][i % 2 * 2 + 1]);
            }
            if (unit == 6) store_spilled<R>(sum, s.shared, of_b, p);
        }
    }
}

/* Column sums over the warp's rows, from those of rotate_back. */
template <int R>
static __device__ __forceinline__ void store_bias(const float acc[R / 8][4], float *to, const lane_pos &w)
{
#pragma unroll
    for (int c0 = 0; c0 < R / 8; c0 += 8) {
        float x[16];
#pragma unroll
        for (int i = 0; i < 16; i++) x[i] = acc[c0 + i / 2][i & 1];
        column_sums(x, w.lane);
        *(float2 *)(to + (c0 + (w.lane >> 2)) * 8 + w.col) = make_float2(x[0], x[1]);
    }
}

/* sum: of g_C or g_B over the heads; panels: number of panels with rotated pairs. */
template <int R>
static __device__ __forceinline__ void do_bc(const kr_ssd_chunk &c, const head_smem &s, float sum[R / 8][4], bool of_b,
                                             int panels, const lane_pos &w)
{
    typedef layout<R> at;
    const uint32_t bc = s.base + at::rotated + (of_b ? 0 : at::map);
    const uint32_t x = of_b ? s.stage : s.stage + stage_at<R>::g_y;
    const uint32_t m = s.stage + (of_b ? stage_at<R>::g : stage_at<R>::h);
    float acc[R / 8][4];
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < 64; k += 16) kr_wg_product<R, 0, 1>::run(acc, kr_wg_k_last(x, k), kr_wg_n_last(m, k), k > 0);
    kr_wg_commit();
    rotate_bc<R>(c, s, of_b ? 32 : 0, panels);
    kr_wg_wait<0>();
    kr_wg_hold<R / 8>(acc);
    sync_adders();
    sum_states<R>(acc, of_b, panels, bc, s, w);
    add_bc<R>(acc, of_b, s.base + at::rotated, s.base + at::pairs);
    __syncthreads();
    rotate_back<R>(sum, acc, of_b, panels, bc, s, w);
    store_bias<R>(acc, columns_at<R>(s)->bias[of_b][w.warp], w);
}

/* ---- fourth warpgroup: loads, stores, scalars ---- */

/* Loads a head's angles; zeros past them. */
template <int R> static __device__ __forceinline__ void load_angles(const kr_ssd_grads &o, const item &t, uint32_t to)
{
    typedef kr_rotate_units<R, 128> mine;
    const int thread = thread_now(), unit = thread % mine::units, first = thread / mine::units;
    const int bytes = unit * 4 < o.rotate.na ? 16 : 0;
    const int64_t token = o.nh * o.rotate.na, step = mine::step * token;
    const float *from = o.rotate.angle + (t.c.at * o.nh + t.x.h) * o.rotate.na;
    to += kr_unit_at<R, true>(first, unit);
    if (__builtin_expect(t.c.nt == 64, 1)) {
        from += bytes ? first * token + unit * 4 : 0;
#pragma unroll
        for (int k = 0; k < mine::rows; k++, from += step) kr_copy_async16(to + k * mine::step * 128, from, bytes);
        return;
    }
#pragma unroll 1
    for (int k = 0; k < mine::rows; k++) {
        const bool some = bytes && first + k * mine::step < t.c.nt;
        kr_copy_async16(to + (uint32_t)k * mine::step * 128, some ? from + first * token + unit * 4 + k * step : from,
                        some ? 16 : 0);
    }
}

/* Loads a head's operands whose space holds nothing still to be stored. */
template <int R> static __device__ __forceinline__ void load_head(const kr_ssd_grads &o, const item &t, uint32_t stage)
{
    typedef layout<R> at;
    const int thread = thread_now(), of_c = thread / (R / 4), col = thread % (R / 4) * 4;
    load_values<R, 128, AUX>(o, 1, t, stage);
    load_angles<R>(o, t, stage + at::angles);
    if (of_c > 1) return;
    const float *bias = of_c ? o.rotate.bias_c : o.rotate.bias_b;
    const bool some = bias && col < o.nr;
    const uint32_t to =
        (uint32_t)(of_c * kr_rotate_bias<R>::bytes + col / 4 % 2 * kr_rotate_bias<R>::other + col / 8 * 16);
    kr_copy_async16(stage + at::bias + to, some ? bias + t.x.h * o.nr + col : o.rotate.angle, some ? 16 : 0);
}

/* Stores g_angle and g_bias of a head that the other warpgroups have finished. */
template <int R>
static __device__ __forceinline__ void store_head(const kr_ssd_grads &o, const item &t, const head_smem &s)
{
    typedef kr_rotate_units<R, 128> mine;
    const int thread = thread_now(), unit = thread % mine::units, first = thread / mine::units;
    const int64_t step = mine::step * o.nh * o.rotate.na;
    const uint32_t from = s.stage + kr_unit_at<R, true>(first, unit);
    if (thread < o.nr)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float(*bias)[R] = columns_at<R>(s)->bias[1 - i];
            o.part_bias[i][(t.n * o.nh + t.x.h) * o.nr + thread] =
                bias[0][thread] + bias[1][thread] + bias[2][thread] + bias[3][thread];
        }
    if (!o.g_angle || unit * 4 >= o.rotate.na) return;
    float *g_angle = o.g_angle + ((t.c.at + first) * o.nh + t.x.h) * o.rotate.na + unit * 4;
#pragma unroll 1
    for (int k0 = 0; k0 < mine::rows; k0 += 4) {
        uint4 x[4], y[4]; /* all loads before the first use */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t address = from + (uint32_t)(k0 + k) * mine::step * 128;
            x[k] = kr_load_shared16(address + stage_at<R>::h), y[k] = kr_load_shared16(address + stage_at<R>::g);
        }
#pragma unroll
        for (int k = 0; k < 4; k++, g_angle += step) {
            const float4 sum = { __uint_as_float(x[k].x) + __uint_as_float(y[k].x),
                                 __uint_as_float(x[k].y) + __uint_as_float(y[k].y),
                                 __uint_as_float(x[k].z) + __uint_as_float(y[k].z),
                                 __uint_as_float(x[k].w) + __uint_as_float(y[k].w) };
            if (first + (k0 + k) * mine::step < t.c.nt) __stcs((float4 *)g_angle, sum);
        }
    }
}

/* <G, H>, and (G H) by warp. */
template <int R> static __device__ __forceinline__ void multiply_states(const head_smem &s, const lane_pos &w)
{
    typedef kr_rotate_units<R, 128> mine;
    const int thread = thread_now(), unit = thread % mine::units;
    const uint32_t from = s.stage + kr_unit_at<R, true>(thread / mine::units, unit);
    float dots[4] = { 0, 0, 0, 0 }, cross[4] = { 0, 0, 0, 0 };
#pragma unroll 1
    for (int k0 = 0; k0 < mine::rows; k0 += 4) {
        uint4 g[4], h[4]; /* all loads before the first use */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t address = from + (uint32_t)(k0 + k) * mine::step * 128;
            g[k] = kr_load_shared16(address + stage_at<R>::g), h[k] = kr_load_shared16(address + stage_at<R>::h);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t a[4] = { g[k].x, g[k].y, g[k].z, g[k].w }, b[4] = { h[k].x, h[k].y, h[k].z, h[k].w };
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 p = kr_unpack(a[i]), q = kr_unpack(b[i]);
                dots[i] = fmaf(p.x, q.x, fmaf(p.y, q.y, dots[i]));
                cross[i] = fmaf(p.x, q.y, fmaf(-p.y, q.x, cross[i]));
            }
        }
    }
    float *to = columns_at<R>(s)->x[w.warp] + unit * 4;
    reduce_half<2, 16>(cross, w.lane);
    if (R == 128) {
        *(float2 *)(to + (w.lane >> 4) * 2) = make_float2(cross[0], cross[1]);
    } else {
        reduce_half<1, 8>(cross, w.lane);
        to[(w.lane >> 4) * 2 + (w.lane >> 3 & 1)] = cross[0];
    }
    const float dot = kr_warp_sum((dots[0] + dots[1]) + (dots[2] + dots[3]));
    if (w.lane == 0) sums_at<R>(s)->gh[w.warp] = dot;
}

/* Both values of (G H), by 64 threads, one pair each. */
template <int R>
static __device__ __forceinline__ void store_edges(const kr_ssd_grads &o, const item &t, const head_smem &s, int pair)
{
    if (pair >= o.rotate.na) return;
    const column_sums_of<R> *columns = columns_at<R>(s);
    float x = 0, of_c = 0, of_b = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        x += columns->x[k][pair];
        of_c += columns->state[0][k][pair], of_b += columns->state[1][k][pair];
    }
    x *= kr_exp2(s.f[KR_SSD_A2 * 64 + 63]);
    float *to = o.edges + (t.n * o.nh + t.x.h) * 2 * o.rotate.na + pair;
    to[0] = x + of_c;
    to[o.rotate.na] = x - of_b;
}

template <int R>
static __device__ __forceinline__ void do_aux(const kr_ssd_grads &o, const partition &b, const kr_ssd_chunk &c, int j,
                                              const head_smem &s, const head_smem &other, const lane_pos &w)
{
    const item t = item_at(o, b, c, j), next = item_at(o, b, c, j + 1);
    const bool more = j + 1 < b.heads;
    if (more) load_head<R>(o, next, other.stage);
    if (j > 0) store_head<R>(o, item_at(o, b, c, j - 1), other);
    asm volatile("bar.sync 1, 128;" ::: "memory"); /* the other stage has been read */
    if (more) load_states<R, 128, AUX>(o, next, other.stage);
    kr_copy_commit();
    multiply_states<R>(s, w);
    __syncthreads();
    if (w.warp == 0) grad_scalars(o, 1, t.n, t.c, t.x, sums_at<R>(s), s.f);
    if (w.warp >= 2) store_edges<R>(o, t, s, w.lane + (w.warp - 2) * 32);
    kr_copy_wait<0>();
    kr_wg_proxy_fence();
}

/* ---- loop over a CTA's heads ---- */

template <int R>
static __device__ __forceinline__ void run_values(const kr_ssd_grads &o, const partition &b, const kr_ssd_chunk &c,
                                                  char *shared)
{
    for (int j = 0; j < b.heads; j++) {
        __syncthreads();
        do_values<R>(o, item_at(o, b, c, j), head_smem_of<R>(shared, j), lane_pos_now());
    }
    __syncthreads();
}

template <int R>
static __device__ __forceinline__ void run_bc(const kr_ssd_grads &o, const partition &b, const kr_ssd_chunk &c,
                                              char *shared, bool of_b)
{
    float sum[R / 8][4];
    clear<R / 8>(sum);
#pragma unroll
    for (int i = 0; i < R / 64; i++) store_spilled<R>(sum, shared, of_b, i);
    const int panels = (o.rotate.na + 31) / 32;
    for (int j = 0; j < b.heads; j++) {
        __syncthreads();
        do_bc<R>(c, head_smem_of<R>(shared, j), sum, of_b, panels, lane_pos_now());
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R / 64; i++) load_spilled<R>(sum, shared, of_b, i);
    store_bc<R>(o, item_at(o, b, c, 0), b.e, b.part, of_b, sum, lane_pos_now());
}

template <int R>
static __device__ __forceinline__ void run_aux(const kr_ssd_grads &o, const partition &b, const kr_ssd_chunk &c,
                                               char *shared)
{
    const item first = item_at(o, b, c, 0);
    const head_smem s = head_smem_of<R>(shared, 0);
    load_bc<R, 128, AUX>(o, 1, c, b.e, s.base);
    load_head<R>(o, first, s.stage);
    load_states<R, 128, AUX>(o, first, s.stage);
    kr_copy_commit();
    kr_copy_wait<0>();
    kr_wg_proxy_fence();
    for (int j = 0; j < b.heads; j++) {
        __syncthreads();
        do_aux<R>(o, b, c, j, head_smem_of<R>(shared, j), head_smem_of<R>(shared, j + 1), lane_pos_now());
    }
    __syncthreads();
    store_head<R>(o, item_at(o, b, c, b.heads - 1), head_smem_of<R>(shared, b.heads - 1));
}

#endif

template <int R>
static __global__ void __launch_bounds__(THREADS, 1) grads_rotary(const __grid_constant__ kr_ssd_grads o)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char unaligned[];
    char *shared = unaligned + (1024 - kr_shared_address(unaligned) % 1024) % 1024;
    const int group =
        __shfl_sync(~0u, (int)threadIdx.x / 128, 0); /* so that the compiler knows it is uniform in a warp */
    const partition b = partition_of(o);
    const kr_ssd_chunk c = kr_ssd_chunk_of(o.map, b.n);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)REGISTERS_OF_VALUES));
        run_values<R>(o, b, c, shared);
    } else if (group == 3) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)REGISTERS_OF_AUX));
        run_aux<R>(o, b, c, shared);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)REGISTERS_OF_BC));
        run_bc<R>(o, b, c, shared, group == 2);
    }
#endif
}

template <int R> static void launch(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    const int bytes = layout<R>::bytes;
    cudaFuncSetAttribute(grads_rotary<R>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    dim3 grid((unsigned)d->chunks, (unsigned)(d->ng * ((o->heads_of_group + o->block - 1) / o->block)));
    grads_rotary<R><<<grid, THREADS, bytes, stream>>>(*o);
}

void kr_ssd_grads_rotary(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (d->chunks == 0 || d->heads == 0) return;
    if (d->r_line == 64) launch<64>(o, d, stream);
    else launch<128>(o, d, stream);
}
