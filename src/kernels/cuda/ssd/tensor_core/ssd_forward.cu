/* ssd_forward.cu - the SSD core on tensor cores, forward: y of a sequence and head, chunk by chunk, the state in registers.
 * sm_80 and later (mma.sync), bf16 operands, f32 sums.
 *
 *   y_i = e^a_i C_i H^T + sum over j of W[i, j] V_j            4 warps, 16 rows i each; W from C B^T in registers
 *   H   = e^a_end H + sum over j of DECAY_OUT_W_j V_j (x) B_j   4 warps, 16 rows p each, f32; bf16 copy in shared memory
 *   V, y [b s m h p], B, C [b s m g r], H [q h p r]
 *
 * One CTA per sequence (or segment of it) and head (or 64 columns of its p). Both halves work on the same chunk; the second
 * stores the new H only after the first has read the old one.
 */
#include "kernels/cuda/ssd/tensor_core/ssd_forward_parts.cuh"

/* Shared memory in bytes: two stages of (B, C, V, factors), H, and a staging buffer for y if it fits. */
template <int R, bool STAGED> struct layout {
    static const int map = 64 * R * 2, c = map, v = 2 * map, factors = v + V_TILE, stage = factors + FACTORS;
    static const int h = 2 * stage, staging = h + map, bytes = staging + (STAGED ? V_TILE : 0);
};

template <int R, bool ONE>
static __device__ __forceinline__ void load_stage(const kr_ssd_forward &o, const task &t, int i, uint32_t stage)
{
    typedef layout<R, true> at;
    const int thread = (int)threadIdx.x;
    const chunk_rows x = rows_at(o, t, i, ONE ? 1 : o.nm);
    kr_load_rows<R, THREADS>(stage, x.b, x.nf, thread);
    kr_load_rows<R, THREADS>(stage + at::c, x.c, x.nf, thread);
    kr_load_rows<64, THREADS>(stage + at::v, x.v, x.nf, thread);
    kr_ssd_load_factors<0, KR_SSD_FACTORS>(stage + at::factors, o.factors, (t.first + i) * o.nh + t.h, thread);
}

/* H in bf16 to shared memory. */
template <int R>
static __device__ __forceinline__ void store_state(const float acc[R / 8][4], const task &t, uint32_t h)
{
#pragma unroll
    for (int c = 0; c < R / 8; c++) {
        kr_store_shared4(h + kr_tile_at<R>(t.row, c) + (t.lane & 3) * 4, kr_pair_of(acc[c][0], acc[c][1]));
        kr_store_shared4(h + kr_tile_at<R>(t.row + 8, c) + (t.lane & 3) * 4, kr_pair_of(acc[c][2], acc[c][3]));
    }
}

/* The warps of y: acc = e^a_i C_i H^T; then they release H, at the barrier before which the state warps do not write it. */
template <int R>
static __device__ __forceinline__ void read_state(float acc[8][4], const task &t, uint32_t c, uint32_t h,
                                                  const float *f)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4; k++) acc[i][k] = 0;
#pragma unroll
    for (int k = 0; k < R / 16; k++) {
        uint32_t left[4];
        kr_load_a_mk<R>(left, c, t.warp * 16, k * 16);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            uint32_t right[4];
            kr_load_b_nk<R>(right, h, i * 8, k * 16);
            kr_mma_pair(acc[i], acc[i + 1], left, right);
        }
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
    float scale0 = f[KR_SSD_DECAY_IN * 64 + t.row], scale8 = f[KR_SSD_DECAY_IN * 64 + t.row + 8];
#pragma unroll
    for (int i = 0; i < 8; i++) acc[i][0] *= scale0, acc[i][1] *= scale0, acc[i][2] *= scale8, acc[i][3] *= scale8;
}

/* acc += W V */
template <int R>
static __device__ __forceinline__ void add_pairs(float acc[8][4], const task &t, uint32_t stage, const float *f, int nm,
                                                 float d, int k_blocks)
{
    typedef layout<R, true> at;
    float cb[8][4];
#pragma unroll
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4; k++) cb[i][k] = 0;
#pragma unroll
    for (int k = 0; k < R / 16; k++) {
        uint32_t left[4];
        kr_load_a_mk<R>(left, stage + at::c, t.warp * 16, k * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i >= k_blocks) continue;
            uint32_t right[4];
            kr_load_b_nk<R>(right, stage, i * 16, k * 16);
            kr_mma_pair(cb[2 * i], cb[2 * i + 1], left, right);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j >= k_blocks) continue;
        uint32_t a[4];
        kr_ssd_weigh(a, cb[2 * j], cb[2 * j + 1], f, t.row, j * 16, nm, d);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            uint32_t right[4];
            kr_load_b_kn<64>(right, stage + at::v, i * 8, j * 16);
            kr_mma_pair(acc[i], acc[i + 1], a, right);
        }
    }
}

/* Waits for chunk i and starts the loads of the next; returns its stage. */
template <int R, bool ONE>
static __device__ __forceinline__ int next_stage(const kr_ssd_forward &o, const task &t, int i, uint32_t base)
{
    typedef layout<R, true> at;
    kr_copy_wait<0>();
    __syncthreads();
    if (i + 1 < t.count) load_stage<R, ONE>(o, t, i + 1, base + (uint32_t)((i + 1) & 1) * at::stage);
    kr_copy_commit();
    return (i & 1) * at::stage;
}

template <int R, bool STAGED, bool ONE>
static __device__ __forceinline__ void walk_outputs(const kr_ssd_forward &o, const task &t, const char *shared)
{
    typedef layout<R, STAGED> at;
    const uint32_t base = kr_shared_address(shared);
    const int nm = ONE ? 1 : o.nm, k_blocks = min(4, (kr_ssd_next_row(t.warp * 16 + 15, nm) + 15) / 16);
    const float d = o.d ? o.d[t.h] : 0.0f;
    for (int i = 0; i < t.count; i++) {
        const int stage = next_stage<R, ONE>(o, t, i, base);
        const float *f = (const float *)(shared + stage + at::factors);
        float acc[8][4];
        read_state<R>(acc, t, base + stage + at::c, base + at::h, f);
        add_pairs<R>(acc, t, base + stage, f, nm, d, k_blocks);
        store_rows<STAGED>(o, t, i, nm, acc, base + at::staging);
    }
}

template <int R, bool STAGED, bool ONE>
static __device__ __forceinline__ void walk_states(const kr_ssd_forward &o, const task &t, const char *shared)
{
    typedef layout<R, STAGED> at;
    const uint32_t base = kr_shared_address(shared);
    float acc[R / 8][4];
    load_start_acc<R>(acc, o, t, (const float *)(shared + at::stage));
    store_state<R>(acc, t, base + at::h);
    for (int i = 0; i < t.count; i++) {
        const int stage = next_stage<R, ONE>(o, t, i, base);
        const float *f = (const float *)(shared + stage + at::factors);
        kr_ssd_pass<R, 64>(acc, base + stage + at::v, base + stage, f + KR_SSD_DECAY_OUT_W * 64, f[KR_SSD_A2 * 64 + 63],
                           t.warp, t.lane);
        asm volatile("bar.sync 1, 256;" ::: "memory");
        store_state<R>(acc, t, base + at::h);
    }
    store_end_state<R>(acc, o, t);
}

template <int R, bool STAGED, bool ONE>
static __global__ void __launch_bounds__(THREADS, R == 256 ? 1 : 2) forward(const __grid_constant__ kr_ssd_forward o)
{
    extern __shared__ __align__(1024) char shared[];
    const task t = task_of(o);
    if (t.count < 0 || (t.count == 0 && t.segment > 0)) return;
    if (t.count > 0) load_stage<R, ONE>(o, t, 0, kr_shared_address(shared));
    kr_copy_commit();
    load_start<R, 0>(o, t, (float *)(shared + layout<R, STAGED>::stage));
    if (threadIdx.x < THREADS / 2) walk_outputs<R, STAGED, ONE>(o, t, shared);
    else walk_states<R, STAGED, ONE>(o, t, shared);
}

bool kr_ssd_forward_fits(const kr_ssd_dims *d)
{
    return d->r_line < 256 || d->limits.shared >= layout<256, true>::bytes;
}

int64_t kr_ssd_forward_slots(const kr_ssd_dims *d)
{
    return (d->r_line < 256 ? 2 : 1) * d->limits.processors;
}

template <int R, bool STAGED, bool ONE>
static void launch(const kr_ssd_forward *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    const int bytes = layout<R, STAGED>::bytes;
    cudaFuncSetAttribute(forward<R, STAGED, ONE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    forward<R, STAGED, ONE><<<(unsigned)(d->nq * o->segments * d->heads), THREADS, bytes, stream>>>(*o);
}

template <bool ONE> static void run(const kr_ssd_forward *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (d->r_line == 64) launch<64, true, ONE>(o, d, stream);
    else if (d->r_line == 256) launch<256, true, ONE>(o, d, stream);
    else if (d->limits.shared < layout<128, true>::bytes) launch<128, false, ONE>(o, d, stream);
    else launch<128, true, ONE>(o, d, stream);
}

void kr_ssd_forward_run(const kr_ssd_forward *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (d->nq == 0 || d->heads == 0) return;
    if (kr_ssd_forward_wgmma(o, d, stream)) return;
    if (o->nm == 1) run<true>(o, d, stream);
    else run<false>(o, d, stream);
}
