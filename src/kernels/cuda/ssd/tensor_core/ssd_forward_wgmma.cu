/* ssd_forward_wgmma.cu - the forward pass of ssd_forward.cu with wgmma: sm_90a.
 *
 * The first warpgroup computes y, which takes longer; the second H, and issues the loads. B, C and H are panels of 64
 * columns (wgmma.cuh). With ROTATE both rotate B and C in place (ssd_rotate.cuh), by angles that are prefetched two chunks
 * ahead.
 */
#include "kernels/cuda/ssd/tensor_core/ssd_forward_parts.cuh"
#include "kernels/cuda/ssd/rotary/ssd_rotate.cuh"
#include "kernels/cuda/prim/wgmma.cuh"

/* Shared memory in bytes: two stages of (B, C, V, factors), H, and a staging buffer for y. */
template <int R> struct layout {
    static const int map = 64 * R * 2, c = map, v = 2 * map, factors = v + V_TILE, stage = factors + 2048;
    static const int h = 2 * stage, staging = h + map, bias = staging + V_TILE, bytes = bias + 1024;
    static const int with_bias = bytes + 2 * kr_rotate_bias<R>::bytes;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int R, bool ONE>
static __device__ __forceinline__ void load_stage(const kr_ssd_forward &o, const task &t, int i, uint32_t stage)
{
    typedef layout<R> at;
    const int LOADERS = THREADS / 2, thread = (int)threadIdx.x - LOADERS;
    const chunk_rows x = rows_at(o, t, i, ONE ? 1 : o.nm);
    kr_load_panels<R, LOADERS>(stage, x.b, x.nf, thread);
    kr_load_panels<R, LOADERS>(stage + at::c, x.c, x.nf, thread);
    kr_load_panels<64, LOADERS>(stage + at::v, x.v, x.nf, thread);
    kr_ssd_load_factors<0, KR_SSD_FACTORS>(stage + at::factors, o.factors, (t.first + i) * o.nh + t.h, thread);
}

/* Waits for chunk i and starts the loads of the next, by the second warpgroup; returns its stage. */
template <int R, bool ONE>
static __device__ __forceinline__ int next_stage(const kr_ssd_forward &o, const task &t, int i, uint32_t base)
{
    typedef layout<R> at;
    kr_copy_wait<0>();
    kr_wg_proxy_fence();
    __syncthreads();
    if (i + 1 < t.count) load_stage<R, ONE>(o, t, i + 1, base + (uint32_t)((i + 1) & 1) * at::stage);
    kr_copy_commit();
    return (i & 1) * at::stage;
}

/* A thread's angles of a chunk. */
template <int R> struct angle_regs {
    float4 of[kr_rotate_units<R, THREADS>::rows];
};

static __device__ __forceinline__ const float *angles_at(const kr_ssd_forward &o, const task &t, int i)
{
    return o.rotate.angle + ((t.at + (int64_t)i * o.map.nt) * o.nh + t.h) * o.rotate.na;
}

/* Loads those of chunk i, and prefetches the next. */
template <int R>
static __device__ __forceinline__ void load_angles(const kr_ssd_forward &o, const task &t, int i, angle_regs<R> *to)
{
    const int64_t token = o.nh * o.rotate.na;
    if (i >= t.count) return;
    kr_rotate_load<R, THREADS>(to->of, angles_at(o, t, i), token, o.rotate.na, rows_of(o, t, i, 1), (int)threadIdx.x);
    if (i + 1 < t.count && threadIdx.x < THREADS / 2)
        kr_rotate_request(angles_at(o, t, i + 1), token, o.rotate.na, rows_of(o, t, i + 1, 1), (int)threadIdx.x);
}

/* Rotates B and C of chunk i from the group's to the head's. */
template <int R>
static __device__ __forceinline__ void rotate_stage(const kr_ssd_forward &o, const task &t, int i, uint32_t stage,
                                                    uint32_t bias, const angle_regs<R> *by)
{
    kr_rotate_tiles<R, THREADS, true, 2>(stage, layout<R>::c, by->of, bias, rows_of(o, t, i, 1), (int)threadIdx.x);
    kr_wg_proxy_fence();
    __syncthreads();
}

/* y of one chunk. */
template <int R, bool ONE>
static __device__ __forceinline__ void outputs(float y[8][4], const kr_ssd_forward &o, const task &t, uint32_t stage,
                                               uint32_t h, const float *f, float d)
{
    typedef layout<R> at;
    const int nm = ONE ? 1 : o.nm;
    float cb[8][4];
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < R; k += 16)
        kr_wg_ss<0, 0>(y, kr_wg_k_last(stage + at::c + k / 64 * KR_WG_PANEL, k % 64),
                       kr_wg_k_last(h + k / 64 * KR_WG_PANEL, k % 64), k > 0);
    kr_wg_commit();
#pragma unroll
    for (int k = 0; k < R; k += 16)
        kr_wg_ss<0, 0>(cb, kr_wg_k_last(stage + at::c + k / 64 * KR_WG_PANEL, k % 64),
                       kr_wg_k_last(stage + k / 64 * KR_WG_PANEL, k % 64), k > 0);
    kr_wg_commit();
    kr_wg_wait<1>();
    kr_wg_hold<8>(y);
    asm volatile("bar.arrive 1, 256;" ::: "memory");
    const float scale0 = f[KR_SSD_DECAY_IN * 64 + t.row], scale8 = f[KR_SSD_DECAY_IN * 64 + t.row + 8];
#pragma unroll
    for (int i = 0; i < 8; i++) y[i][0] *= scale0, y[i][1] *= scale0, y[i][2] *= scale8, y[i][3] *= scale8;
    kr_wg_wait<0>();
    kr_wg_hold<8>(cb);
    uint32_t w[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++) kr_ssd_weigh(w[j], cb[2 * j], cb[2 * j + 1], f, t.row, j * 16, nm, d);
    kr_wg_hold<8>(y);
    kr_wg_begin();
#pragma unroll
    for (int j = 0; j < 4; j++) kr_wg_64_rs(y, w[j], kr_wg_n_last(stage + at::v, j * 16));
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(y);
}

template <int R> static __device__ __forceinline__ void add_outer(float acc[R / 8][4], const uint32_t a[4], uint64_t b);

template <> __device__ __forceinline__ void add_outer<64>(float acc[8][4], const uint32_t a[4], uint64_t b)
{
    kr_wg_64_rs(acc, a, b);
}

template <> __device__ __forceinline__ void add_outer<128>(float acc[16][4], const uint32_t a[4], uint64_t b)
{
    kr_wg_128_rs(acc, a, b);
}

/* H of the next chunk. */
template <int R>
static __device__ __forceinline__ void pass(float acc[R / 8][4], const task &t, uint32_t stage, const float *f)
{
    typedef layout<R> at;
    const float chunk_decay = kr_exp2(f[KR_SSD_A2 * 64 + 63]);
    uint32_t a[4][4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        kr_ssd_scaled_columns<64, false>(a[k], a[k], stage + at::v, f + KR_SSD_DECAY_OUT_W * 64, t.warp, k * 16,
                                         t.lane);
#pragma unroll
    for (int c = 0; c < R / 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[c][k] *= chunk_decay;
    kr_wg_hold<R / 8>(acc);
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) add_outer<R>(acc, a[k], kr_wg_n_last(stage, k * 16));
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<R / 8>(acc);
}

/* H in bf16 to its panels. */
template <int R>
static __device__ __forceinline__ void store_state(const float acc[R / 8][4], const task &t, uint32_t h)
{
#pragma unroll
    for (int c = 0; c < R / 8; c++) {
        const uint32_t panel = h + c / 8 * KR_WG_PANEL + (t.lane & 3) * 4;
        kr_store_shared4(panel + kr_tile_at<64>(t.row, c % 8), kr_pair_of(acc[c][0], acc[c][1]));
        kr_store_shared4(panel + kr_tile_at<64>(t.row + 8, c % 8), kr_pair_of(acc[c][2], acc[c][3]));
    }
}

#endif

template <int R, bool ONE, bool ROTATE>
static __global__ void __launch_bounds__(THREADS, 2) forward_wgmma(const __grid_constant__ kr_ssd_forward o)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char unaligned[];
    typedef layout<R> at;
    const uint32_t skip = (1024 - kr_shared_address(unaligned) % 1024) % 1024;
    char *shared = unaligned + skip;
    const uint32_t base = kr_shared_address(shared);
    const task t = task_of(o);
    if (t.count < 0 || (t.count == 0 && t.segment > 0)) return;
    angle_regs<R> by;
    if (ROTATE) {
        float *bias = (float *)(shared + at::bias);
        kr_rotate_load_bias<R, THREADS>(bias, o.rotate.bias_b, t.h, 0, o.nr, (int)threadIdx.x);
        kr_rotate_load_bias<R, THREADS>(bias + R, o.rotate.bias_c, t.h, 0, o.nr, (int)threadIdx.x);
        load_angles<R>(o, t, 0, &by);
    }
    if (threadIdx.x < THREADS / 2) {
        const float d = o.d ? o.d[t.h] : 0.0f;
        for (int i = 0; i < t.count; i++) {
            const int stage = (i & 1) * at::stage;
            float y[8][4];
            __syncthreads();
            if (ROTATE) rotate_stage<R>(o, t, i, base + stage, base + at::bias, &by);
            outputs<R, ONE>(y, o, t, base + stage, base + at::h, (const float *)(shared + stage + at::factors), d);
            store_rows<true>(o, t, i, ONE ? 1 : o.nm, y, base + at::staging);
            if (ROTATE) load_angles<R>(o, t, i + 1, &by);
        }
    } else {
        if (t.count > 0) load_stage<R, ONE>(o, t, 0, base);
        kr_copy_commit();
        float acc[R / 8][4];
        load_start<R, THREADS / 2>(o, t, (float *)(shared + at::stage));
        load_start_acc<R>(acc, o, t, (const float *)(shared + at::stage));
        store_state<R>(acc, t, base + at::h);
        for (int i = 0; i < t.count; i++) {
            const int stage = next_stage<R, ONE>(o, t, i, base);
            if (ROTATE) rotate_stage<R>(o, t, i, base + stage, base + at::bias, &by);
            pass<R>(acc, t, base + stage, (const float *)(shared + stage + at::factors));
            asm volatile("bar.sync 1, 256;" ::: "memory");
            store_state<R>(acc, t, base + at::h);
            if (ROTATE) load_angles<R>(o, t, i + 1, &by);
        }
        store_end_state<R>(acc, o, t);
    }
#endif
}

template <int R, bool ONE, bool ROTATE>
static void launch(const kr_ssd_forward *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    const int bytes = ROTATE ? layout<R>::with_bias : layout<R>::bytes;
    cudaFuncSetAttribute(forward_wgmma<R, ONE, ROTATE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    forward_wgmma<R, ONE, ROTATE><<<(unsigned)(d->nq * o->segments * d->heads), THREADS, bytes, stream>>>(*o);
}

bool kr_ssd_forward_wgmma(const kr_ssd_forward *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (!d->limits.warpgroups || d->r_line > 128) return false;
    if (d->r_line == 64 && o->rotate.angle) launch<64, true, true>(o, d, stream);
    else if (o->rotate.angle) launch<128, true, true>(o, d, stream);
    else if (d->r_line == 64 && o->nm == 1) launch<64, true, false>(o, d, stream);
    else if (d->r_line == 64) launch<64, false, false>(o, d, stream);
    else if (o->nm == 1) launch<128, true, false>(o, d, stream);
    else launch<128, false, false>(o, d, stream);
    return true;
}
