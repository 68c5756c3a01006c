/* ssd_grads_turned.cuh - what ssd_grads_turned.cu's warpgroups share, and the part of the first: pairs of rows, g_v. */
#ifndef KR_KERNELS_CUDA_SSD_GRADS_TURNED_CUH
#define KR_KERNELS_CUDA_SSD_GRADS_TURNED_CUH

#include "kernels/cuda/ssd_grads_wgmma.cuh"
#include "kernels/cuda/ssd_turn.cuh"

typedef sums<1, 4> turned_sums;

/* Sums of columns of one head, by warp. */
template <int R> struct column_sums_of {
    float x[4][R / 2];        /* (G H) */
    float state[2][4][R / 2]; /* (C T), (B U) */
    float bias[2][4][R];      /* g_C, g_B turned back */
};

/* Shared memory in bytes: B and C as they came and, from `turned` on, the head's; two stages of a head's operands, its
 * biases and angles, which become (cos, sin); the gradient of B C^T; sums; `kept`: of the sums over the heads those of
 * each panel's last unit, for which there are no registers, [panel][thread][4]. Tiles of R columns are panels, those of
 * angles too. */
template <int R> struct layout {
    static const int map = 64 * R * 2, turned = 2 * map, stages = 4 * map;
    static const int angles = stage_at<R>::bytes, bias = angles + map, stage = bias + 1024;
    static const int pairs = stages + 2 * stage, sum = pairs + P_TILE, columns = sum + (int)sizeof(turned_sums);
    static const int kept = columns + (int)sizeof(column_sums_of<R>), bytes = kept + R / 64 * 4096 + 1024;
    static_assert(kept % 16 == 0 && bytes <= 227 << 10, "what sm_90 has");
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* The thread, read anew: what follows from it is not kept in registers from head to head. */
static __device__ __forceinline__ int thread_now(void)
{
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t & 127;
}

static __device__ __forceinline__ place place_now(void)
{
    const int t = thread_now();
    place w;
    w.warp = t / 32, w.lane = t & 31;
    w.row = w.warp * 16 + w.lane / 4, w.col = (w.lane & 3) * 2;
    return w;
}

/* Of a head's walk through the block: where its stage begins, and in shared memory all else. */
typedef struct spot {
    char *shared;
    uint32_t base, stage;
    const float *f; /* the head's factors */
} spot;

template <int R> static __device__ __forceinline__ spot spot_of(char *shared, int j)
{
    const int slot = layout<R>::stages + (j & 1) * layout<R>::stage;
    const uint32_t base = kr_shared_address(shared);
    const spot s = { shared, base, base + slot, (const float *)(shared + slot + stage_at<R>::factors) };
    return s;
}

template <int R> static __device__ __forceinline__ turned_sums *sums_at(const spot &s)
{
    return (turned_sums *)(s.shared + layout<R>::sum);
}

template <int R> static __device__ __forceinline__ column_sums_of<R> *columns_at(const spot &s)
{
    return (column_sums_of<R> *)(s.shared + layout<R>::columns);
}

/* Where a block is: head j of its share. */
static __device__ __forceinline__ item item_at(const kr_ssd_grads &o, const share &b, const kr_ssd_place &c, int j)
{
    const item t = { b.n, c, head_at(o, b.e, b.first + j) };
    return t;
}

/* The lane's place in the first unit of a tile of panels; that of unit i is this ^ i 16. */
static __device__ __forceinline__ uint32_t lane_at(const place &w)
{
    return (uint32_t)(w.row * 128 + ((w.row & 7) << 4) + w.col * 2);
}

/* B and C are turned, the gradient of their products is made: all but the fourth. */
static __device__ __forceinline__ void meet_to_add(void)
{
    asm volatile("bar.sync 2, 384;" ::: "memory");
}

/* ---- the first warpgroup ---- */

/* Of S^T in s, rows j and columns i: fade[i j] = e^(a_i - a_j) of tokens i after j, 0 of others; the gradient of B C^T
 * goes to its tile. */
static __device__ __forceinline__ void put_fades(const float s[8][4], float fade[8][4], const float *f, uint32_t to,
                                                 const place &w)
{
    const uint32_t mine = to + lane_at(w);
    const float a_j[2] = { f[KR_SSD_A2 * 64 + w.row], f[KR_SSD_A2 * 64 + w.row + 8] };
    const float w_j[2] = { f[KR_SSD_W * 64 + w.row], f[KR_SSD_W * 64 + w.row + 8] };
    const float same[2] = { f[KR_SSD_SAME * 64 + w.row], f[KR_SSD_SAME * 64 + w.row + 8] };
#pragma unroll
    for (int c = 0; c < 8; c++) {
        const int i0 = c * 8 + w.col,
                  ahead = c / 2 - w.warp; /* > 0: all these columns are after all rows of the warp */
        float g[4] = { 0, 0, 0, 0 };
        if (ahead >= 0) {
            const float2 a_i = *(const float2 *)(f + KR_SSD_A2 * 64 + i0);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int past = i0 + (k & 1) - w.row - 8 * (k / 2);
                fade[c][k] = kr_exp2((k & 1 ? a_i.y : a_i.x) - a_j[k / 2]);
                float weight = fade[c][k] * w_j[k / 2];
                if (ahead == 0) {
                    fade[c][k] = past > 0 ? fade[c][k] : 0.0f;
                    weight = past > 0 ? weight : past == 0 ? same[k / 2] : 0.0f;
                }
                g[k] = s[c][k] * weight;
            }
        }
        kr_store_shared4(mine ^ (uint32_t)(c << 4), kr_pair_of(g[0], g[1]));
        kr_store_shared4((mine ^ (uint32_t)(c << 4)) + 1024, kr_pair_of(g[2], g[3]));
    }
    kr_wg_publish();
}

/* bc, B C^T, becomes W^T; and the sums over pairs. */
static __device__ __forceinline__ void weigh_pairs(const float s[8][4], const float fade[8][4], float bc[8][4],
                                                   const float *f, float d, turned_sums *sum, const place &w)
{
    float x[2] = { 0, 0 }, own[2] = { 0, 0 }, of_d = 0, z[16];
    const float w_j[2] = { f[KR_SSD_W * 64 + w.row], f[KR_SSD_W * 64 + w.row + 8] };
    const float same[2] = { f[KR_SSD_SAME * 64 + w.row], f[KR_SSD_SAME * 64 + w.row + 8] };
#pragma unroll
    for (int c = 0; c < 8; c++) {
        const int ahead = c / 2 - w.warp;
        z[2 * c] = z[2 * c + 1] = 0;
        if (ahead < 0) {
            bc[c][0] = bc[c][1] = bc[c][2] = bc[c][3] = 0;
            continue;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float dot = s[c][k] * bc[c][k], weighed = bc[c][k] * (fade[c][k] * w_j[k / 2]);
            const bool diagonal = ahead == 0 && c * 8 + w.col + (k & 1) == w.row + 8 * (k / 2);
            x[k / 2] = fmaf(dot, fade[c][k], x[k / 2]);
            z[2 * c + (k & 1)] = fmaf(s[c][k], weighed, z[2 * c + (k & 1)]);
            if (diagonal) own[k / 2] = dot, of_d += s[c][k];
            bc[c][k] = diagonal ? fmaf(bc[c][k], same[k / 2], d) : weighed;
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

/* g_v = STAY g_v + W^T g_y. V's place takes it on its way out. */
template <int R>
static __device__ __forceinline__ void head_values(const kr_ssd_grads &o, const item &t, const uint32_t a[4][4],
                                                   float g_v[8][4], const spot &s, const place &w)
{
    const float near = s.f[KR_SSD_STAY * 64 + w.row], far = s.f[KR_SSD_STAY * 64 + w.row + 8];
#pragma unroll
    for (int c = 0; c < 8; c++) g_v[c][0] *= near, g_v[c][1] *= near, g_v[c][2] *= far, g_v[c][3] *= far;
    kr_wg_hold<8>(g_v);
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) kr_wg_64_rs(g_v, a[k], kr_wg_n_last(s.stage + stage_at<R>::g_y, k * 16));
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(g_v);
    store_v(o, t, 1, g_v, s.stage, w);
}

/* acc = A B^T of R columns, waited for. */
template <int R> static __device__ __forceinline__ void product_of_rows(float acc[8][4], uint32_t a, uint32_t b)
{
    kr_wg_begin();
    multiply_rows<R>(acc, a, b);
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(acc);
}

template <int R>
static __device__ __forceinline__ void do_values(const kr_ssd_grads &o, const item &t, const spot &at, const place &w)
{
    const uint32_t b = at.base + layout<R>::turned;
    float s[8][4], fade[8][4], bc[8][4], g_v[8][4];
    uint32_t w_t[4][4];
    product_of_rows<64>(s, at.stage, at.stage + stage_at<R>::g_y);
    put_fades(s, fade, at.f, at.base + layout<R>::pairs, w);
    meet_to_add();
    product_of_rows<R>(bc, b, b + layout<R>::map);
    weigh_pairs(s, fade, bc, at.f, o.d ? o.d[t.x.h] : 0.0f, sums_at<R>(at), w);
#pragma unroll
    for (int k = 0; k < 4; k++) kr_pack_a(w_t[k], bc[2 * k], bc[2 * k + 1]);
    product_of_rows<R>(g_v, b, at.stage + stage_at<R>::g);
    __syncthreads();
    if (o.g_v) head_values<R>(o, t, w_t, g_v, at, w);
}

#endif
#endif
