/* ssd_grads_wgmma.cu - the gradients of ssd_grads.cu with wgmma: sm_90a.
 *
 * Three warpgroups: the first computes the pairs of rows, W^T and g_v, which takes longest; the second T and g_C, the third
 * U and g_B, and both issue the loads of the next head. Operands are panels of 64 columns (wgmma.cuh). They synchronise at
 * the start of a head and at the end of a chunk. The kernel is one loop without duplicated code: exceeding the instruction
 * cache costs more than anything else.
 */
#include "kernels/cuda/ssd/tensor_core/ssd_grads_wgmma.cuh"

enum { THREADS = 384, LOADERS = 256, FIRST = 128 }; /* the loaders start at thread FIRST */

typedef sums<1, 8> head_sums;

/* Shared memory in bytes. Per chunk: B, C; per head: V, g_y, H, G, factors; two of each. Low parts of H and G: one of each,
 * since one warpgroup uses it and then loads the next. */
template <int R> struct layout {
    static const int map = 64 * R * 2, c = map, bc = 2 * map;
    static const int g_y = stage_at<R>::g_y, h = stage_at<R>::h, g = stage_at<R>::g;
    static const int factors = stage_at<R>::factors, stage = stage_at<R>::bytes;
    static const int stages = 2 * bc, w = stages + 2 * stage, low = w + P_TILE;
    static const int sum = low + 2 * map;
    static const int bytes = sum + 2 * (int)sizeof(head_sums) + 1024;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* ---- first warpgroup: pairs of rows ---- */

typedef struct pair_sums {
    float x[2], own[2], d;
} pair_sums;

/* S of 8 columns i from i0 on and the lane's two rows j: W^T in its place, the gradient of B C^T, and sums. `before`: the
 * tokens of all these rows are before those of the columns. */
static __device__ __forceinline__ void pairs(float s[4], const float bct[4], float g_bct[4], const float *f,
                                             const lane_pos &w, int i0, int nm, bool before, float d,
                                             const float a_j[2], const float w_j[2], pair_sums *sum, float z[2])
{
    const float2 a_i = *(const float2 *)(f + KR_SSD_A2 * 64 + i0);
    z[0] = z[1] = 0;
    if (before) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float decay = kr_exp2((k & 1 ? a_i.y : a_i.x) - a_j[k / 2]), x = s[k] * bct[k] * decay;
            const float weight = decay * w_j[k / 2];
            sum->x[k / 2] += x;
            z[k & 1] += x * w_j[k / 2];
            g_bct[k] += s[k] * weight;
            s[k] = bct[k] * weight;
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int j = w.row + 8 * (k / 2), i = i0 + (k & 1), t_i = kr_ssd_token(i, nm), t_j = kr_ssd_token(j, nm);
        const bool later = t_i > t_j, own = t_i == t_j, diagonal = i == j;
        float decay = kr_exp2((k & 1 ? a_i.y : a_i.x) - a_j[k / 2]);
        decay = later ? decay : 0.0f;
        const float weight = later ? decay * w_j[k / 2] : own ? f[KR_SSD_DIAG_WEIGHT * 64 + j] : 0.0f;
        const float dot = s[k] * bct[k], x = dot * decay;
        sum->x[k / 2] += x;
        sum->own[k / 2] += own ? dot : 0.0f;
        z[k & 1] += x * w_j[k / 2];
        sum->d += diagonal ? s[k] : 0.0f;
        g_bct[k] += s[k] * weight;
        s[k] = bct[k] * weight + (diagonal ? d : 0.0f);
    }
}

/* All pairs of a head; s becomes W^T. */
static __device__ __forceinline__ void all_pairs(float s[8][4], const float bct[8][4], float g_bct[8][4],
                                                 const float *f, const lane_pos &w, int nm, float d, head_sums *sum)
{
    pair_sums p = {};
    float a_j[2], w_j[2], z[16];
#pragma unroll
    for (int k = 0; k < 2; k++) a_j[k] = f[KR_SSD_A2 * 64 + w.row + 8 * k], w_j[k] = f[KR_SSD_W * 64 + w.row + 8 * k];
    const int r0 = w.warp * 16, first = kr_ssd_first_row(r0, nm), next = kr_ssd_next_row(r0 + 15, nm);
#pragma unroll
    for (int c = 0; c < 8; c++) {
        if (c * 8 + 7 < first) { /* the tokens of these columns are before those of the rows */
            s[c][0] = s[c][1] = s[c][2] = s[c][3] = z[2 * c] = z[2 * c + 1] = 0;
            continue;
        }
        pairs(s[c], bct[c], g_bct[c], f, w, c * 8 + w.col, nm, c * 8 >= next, d, a_j, w_j, &p, z + 2 * c);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float x = kr_quad_sum(p.x[k]), own = kr_quad_sum(p.own[k]);
        if (w.col == 0) sum->x[0][w.row + 8 * k] = x, sum->own[0][w.row + 8 * k] = own;
    }
    column_sums(z, w.lane);
    *(float2 *)&sum->z[w.warp][(w.lane >> 2) * 8 + w.col] = make_float2(z[0], z[1]);
    p.d = kr_warp_sum(p.d);
    if (w.lane == 0) sum->d[w.warp] = p.d, sum->d[w.warp + 4] = 0;
}

/* Stores the gradient of B C^T in bf16, for the other warpgroups. */
static __device__ __forceinline__ void store_pairs(const float g_bct[8][4], uint32_t to, const lane_pos &w)
{
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 8; c++) {
        kr_store_shared4(to + kr_tile_at<64>(w.row, c) + w.col * 2, kr_pair_of(g_bct[c][0], g_bct[c][1]));
        kr_store_shared4(to + kr_tile_at<64>(w.row + 8, c) + w.col * 2, kr_pair_of(g_bct[c][2], g_bct[c][3]));
    }
    kr_wg_proxy_fence();
}

template <int R>
static __device__ __forceinline__ void head_pairs(const kr_ssd_grads &o, const item &t, int nm, const float bct[8][4],
                                                  float g_bct[8][4], uint32_t b, uint32_t stage, uint32_t staging,
                                                  const float *f, head_sums *sum, const lane_pos &w)
{
    typedef layout<R> at;
    float s[8][4], g_v[8][4];
    kr_wg_begin();
    multiply_rows<64>(s, stage, stage + at::g_y);
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(s);
    all_pairs(s, bct, g_bct, f, w, nm, o.d ? o.d[t.x.h] : 0.0f, sum);
    if (!o.g_v) return;
    uint32_t a[4][4];
#pragma unroll
    for (int k = 0; k < 4; k++) kr_mma_d_to_a(a[k], s[2 * k], s[2 * k + 1]);
    kr_wg_begin();
    multiply_rows<R>(g_v, b, stage + at::g);
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(g_v);
    const float scale0 = f[KR_SSD_DECAY_OUT_W * 64 + w.row], scale8 = f[KR_SSD_DECAY_OUT_W * 64 + w.row + 8];
#pragma unroll
    for (int c = 0; c < 8; c++) g_v[c][0] *= scale0, g_v[c][1] *= scale0, g_v[c][2] *= scale8, g_v[c][3] *= scale8;
    kr_wg_hold<8>(g_v);
    kr_wg_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) kr_wg_64_rs(g_v, a[k], kr_wg_n_last(stage + at::g_y, k * 16));
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(g_v);
    store_v(o, t, nm, g_v, staging, w);
}

/* ---- other warpgroups: T, U ---- */

/* sum += factor X M; dots[k] = <X M, other> of the lane's two rows. X [64][64], M and other [64][R]; low: of M, 0: none. */
template <int R>
static __device__ __forceinline__ void multiply_state(float sum[R / 8][4], uint32_t x, uint32_t m, uint32_t low,
                                                      uint32_t other, const float factor[2], const lane_pos &w,
                                                      float dots[2])
{
    float acc[R / 8][4];
    multiply<R>(acc, x, m, false);
    if (low) multiply<R>(acc, x, low, true);
    dots[0] = dots[1] = 0;
#pragma unroll
    for (int c = 0; c < R / 8; c++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float2 y = kr_unpack(
                kr_load_shared4(other + c / 8 * KR_WG_PANEL + kr_tile_at<64>(w.row + 8 * k, c % 8) + w.col * 2));
            dots[k] += acc[c][2 * k] * y.x + acc[c][2 * k + 1] * y.y;
            sum[c][2 * k] += factor[k] * acc[c][2 * k];
            sum[c][2 * k + 1] += factor[k] * acc[c][2 * k + 1];
        }
    dots[0] = kr_quad_sum(dots[0]);
    dots[1] = kr_quad_sum(dots[1]);
}

/* <G, H> of the thread's part, 256 threads. */
template <int R> static __device__ __forceinline__ float multiply_states(uint32_t g, uint32_t h, unsigned thread)
{
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 64 * R / 8 / 256; k++) {
        const uint32_t at = (thread + k * 256) * 16;
        const uint4 x = kr_load_shared16(g + at), y = kr_load_shared16(h + at);
        const uint32_t a[4] = { x.x, x.y, x.z, x.w }, b[4] = { y.x, y.y, y.z, y.w };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 p = kr_unpack(a[i]), q = kr_unpack(b[i]);
            sum += p.x * q.x + p.y * q.y;
        }
    }
    return sum;
}

/* T or, with of_b, U of a head. */
template <int R>
static __device__ __forceinline__ void head_states(float sum[R / 8][4], bool of_b, uint32_t bc, uint32_t stage,
                                                   uint32_t low, const float *f, head_sums *to, const lane_pos &w)
{
    typedef layout<R> at;
    float factor[2], dots[2];
    const float *by = f + (of_b ? KR_SSD_DECAY_OUT_W : KR_SSD_DECAY_IN) * 64 + w.row;
    const float *out = f + (of_b ? KR_SSD_DECAY_OUT : KR_SSD_DECAY_IN) * 64 + w.row;
    for (int k = 0; k < 2; k++) factor[k] = by[8 * k];
    multiply_state<R>(sum, of_b ? stage : stage + at::g_y, stage + (of_b ? at::g : at::h), low, of_b ? bc : bc + at::c,
                      factor, w, dots);
    for (int k = 0; k < 2; k++)
        if (w.col == 0) (of_b ? to->u : to->t)[0][w.row + 8 * k] = out[8 * k] * dots[k];
    const float gh = kr_warp_sum(multiply_states<R>(stage + at::g, stage + at::h, threadIdx.x - 128));
    if (w.lane == 0) to->gh[threadIdx.x / 32 - 4] = gh;
}

/* ---- loop over items: a CTA's chunks, one after another, and of each its heads ---- */

/* Accumulators of a warpgroup over the heads of a chunk: B C^T and the sum of its gradient, or the sum of g_C or g_B. */
typedef float chunk_acc[16][4];

template <int R> static __device__ __forceinline__ void begin_chunk(chunk_acc k, int group, uint32_t bc)
{
    clear<16>(k);
    if (group) return;
    kr_wg_hold<8>(k);
    kr_wg_begin();
    multiply_rows<R>(k, bc, bc + layout<R>::c);
    kr_wg_commit();
    kr_wg_wait<0>();
    kr_wg_hold<8>(k);
}

template <int R>
static __device__ __forceinline__ void end_chunk(const kr_ssd_grads &o, const item &t, int64_t e, int64_t part,
                                                 chunk_acc k, int group, uint32_t bc, uint32_t tile, const lane_pos &w)
{
    if (group == 0) store_pairs(k + 8, tile, w);
    asm volatile("bar.sync 1, 384;" ::: "memory");
    if (group == 0) return;
    add_bc<R>(k, group == 2, bc, tile);
    store_bc<R>(o, t, e, part, group == 2, k, w);
}

/* Loads the low parts of H (group 1) or G (group 2), by that warpgroup. */
template <int R>
static __device__ __forceinline__ void load_low(const kr_ssd_grads &o, const item &t, int group, uint32_t base)
{
    const int64_t state = (t.n * o.nh * o.slices + t.x.head) * 64 * R;
    kr_load_image<R, 128, true>(base + layout<R>::low + (uint32_t)(group - 1) * layout<R>::map,
                                (group == 1 ? o.low : o.g_low) + state, (int)threadIdx.x & 127);
}

/* Starts the loads of the item after (chunk, j), which has number i, and returns it. */
template <int R>
static __device__ __forceinline__ item load_next(const kr_ssd_grads &o, int nm, const partition &b, const item &now,
                                                 int i, int j, int chunk, uint32_t base)
{
    typedef layout<R> at;
    const bool ends = j + 1 == b.heads;
    item next = now;
    if (ends) {
        next.n = b.n + chunk + 1;
        next.c = kr_ssd_chunk_of(o.map, next.n);
        load_bc<R, LOADERS, FIRST>(o, nm, next.c, b.e, base + (uint32_t)((chunk + 1) & 1) * at::bc);
    }
    next.x = head_at(o, b.e, ends ? b.first : b.first + j + 1);
    const uint32_t stage = base + at::stages + (uint32_t)(i & 1) * at::stage;
    load_values<R, LOADERS, FIRST>(o, nm, next, stage);
    load_states<R, LOADERS, FIRST>(o, next, stage);
    return next;
}

/* All of item i, head j of the CTA's chunk `chunk`, but its scalars. next: the item after it, known to the loaders. */
template <int R>
static __device__ __forceinline__ void do_item(const kr_ssd_grads &o, int nm, const partition &b, const item &now,
                                               const item &next, int i, int j, int chunk, chunk_acc k, int group,
                                               char *shared, const lane_pos &w)
{
    typedef layout<R> at;
    const uint32_t base = kr_shared_address(shared);
    const int slot = at::stages + (i & 1) * at::stage;
    const uint32_t stage = base + slot, bc = base + (uint32_t)(chunk & 1) * at::bc;
    const float *f = (const float *)(shared + slot + at::factors);
    head_sums *sum = (head_sums *)(shared + at::sum) + (i & 1);
    if (j == 0) begin_chunk<R>(k, group, bc);
    if (group == 0) {
        head_pairs<R>(o, now, nm, k, k + 8, bc, stage, base + at::w, f, sum, w);
    } else {
        const uint32_t low = base + at::low + (uint32_t)(group - 1) * at::map;
        head_states<R>(k, group == 2, bc, stage, o.low ? low : 0u, f, sum, w);
        if (o.low && i + 1 < b.items) {
            if (group == 1) asm volatile("bar.sync 2, 128;" ::: "memory");
            else asm volatile("bar.sync 3, 128;" ::: "memory");
            load_low<R>(o, next, group, base);
            kr_copy_commit();
        }
    }
    if (j + 1 == b.heads) end_chunk<R>(o, now, b.e, b.part, k, group, bc, base + at::w, w);
}

template <int R, bool ONE>
static __device__ __forceinline__ void run(const kr_ssd_grads &o, char *shared, const lane_pos &w)
{
    const int nm = ONE ? 1 : o.nm, group = __shfl_sync(~0u, (int)threadIdx.x / 128,
                                                       0); /* so that the compiler knows it is uniform in a warp */
    const uint32_t base = kr_shared_address(shared);
    const partition b = partition_of(o);
    item now = { b.n, kr_ssd_chunk_of(o.map, b.n), head_at(o, b.e, b.first) }, next = now;
    chunk_acc k;
    for (int i = -1, j = b.heads - 1, chunk = -1;; i++) {
        /* item i: head j of the CTA's chunk `chunk`; -1 is before the first. `next` follows it. */
        const bool ends = j + 1 == b.heads, more = i + 1 < b.items;
        if (i >= 0) {
            kr_copy_wait<0>();
            kr_wg_proxy_fence();
            __syncthreads();
        }
        if (more && group) {
            next = load_next<R>(o, nm, b, now, i + 1, j, chunk, base);
            if (i < 0 && o.low) load_low<R>(o, next, group, base);
            kr_copy_commit();
        }
        if (i >= 0 && i < b.items) do_item<R>(o, nm, b, now, next, i, j, chunk, k, group, shared, w);
        if (i > 0 && threadIdx.x >= THREADS - 32) {  /* last, so that its warpgroup does not wait for this warp */
            const int64_t n = j ? now.n : now.n - 1; /* of the previous item */
            const head x = head_at(o, b.e, b.first + (j ? j : b.heads) - 1);
            grad_scalars(o, nm, n, kr_ssd_chunk_of(o.map, n), x, (head_sums *)(shared + layout<R>::sum) + ((i & 1) ^ 1),
                         factors_at(o, n, x));
        }
        if (i == b.items) break;
        j = ends ? 0 : j + 1;
        if (ends) {
            chunk++;
            now.n = b.n + chunk;
            if (more) now.c = kr_ssd_chunk_of(o.map, now.n);
        }
        now.x = head_at(o, b.e, b.first + j);
    }
}

#endif

template <int R, bool ONE>
static __global__ void __launch_bounds__(THREADS, 1) grads_wgmma(const __grid_constant__ kr_ssd_grads o)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char unaligned[];
    const uint32_t skip = (1024 - kr_shared_address(unaligned) % 1024) % 1024;
    lane_pos w;
    w.warp = (int)(threadIdx.x / 32) & 3, w.lane = (int)threadIdx.x & 31;
    w.row = w.warp * 16 + w.lane / 4, w.col = (w.lane & 3) * 2;
    run<R, ONE>(o, unaligned + skip, w);
#endif
}

template <int R, bool ONE> static void launch(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    const int bytes = layout<R>::bytes;
    cudaFuncSetAttribute(grads_wgmma<R, ONE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    dim3 grid((unsigned)((d->chunks + o->chunks - 1) / o->chunks),
              (unsigned)(d->ng * ((o->heads_of_group + o->block - 1) / o->block)));
    grads_wgmma<R, ONE><<<grid, THREADS, bytes, stream>>>(*o);
}

bool kr_ssd_grads_wgmma(const kr_ssd_grads *o, const kr_ssd_dims *d, cudaStream_t stream)
{
    if (!d->limits.warpgroups || d->r_line > 128) return false;
    if (d->r_line == 64 && o->nm == 1) launch<64, true>(o, d, stream);
    else if (d->r_line == 64) launch<64, false>(o, d, stream);
    else if (o->nm == 1) launch<128, true>(o, d, stream);
    else launch<128, false>(o, d, stream);
    return true;
}
