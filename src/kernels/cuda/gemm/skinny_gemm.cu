/* skinny_gemm.cu - skinny GEMM C = A B for up to 64 rows, at the bandwidth of reading B, with an optional fused RMS norm of
 * A. sm_90a.
 *
 *   A [m k] f32, optionally normalised, rounded to bf16, or bf16; B [n k] bf16, contiguous; C [m n] f32; k = 256 .. 1024
 *
 * The product is C^T = B A^T: 64 rows of B, a tile, are the rows of a warpgroup's wgmma (wgmma.cuh). Each multiprocessor
 * runs one persistent CTA of two warpgroups: it keeps all of A in shared memory, as panels of 64 of k, and its warpgroups
 * take one tile after another, independently. A warp loads its own 16 rows of B, which no other reads, 64 of k at a time,
 * through a ring of cp.async stages in shared memory, from where they go to registers as operands: no warp waits for the
 * copies of another. Normalised rows of A are rounded after multiplication with the gain alone, and their sums are divided
 * by their RMS. The ring continues from one tile to the next, and copies in flight always fill the shared memory.
 */
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/prim/tile_io.cuh"
#include "kernels/cuda/prim/tma.cuh"
#include "kernels/cuda/prim/pdl.cuh"
#include "kernels/cuda/prim/wgmma.cuh"

enum { GROUP = 128, GROUPS = 2, THREADS = GROUPS * GROUP, WARPS = THREADS / 32 };
enum {
    ROWS = 64,
    COLUMNS = 64,
    WARP_ROWS = 16,
    PANEL = 64,
    STAGE_BYTES = WARP_ROWS * PANEL * 2,
    UNIT = 256,
    MAX_UNITS = 4
};
enum { PANELS_BYTES = 224 << 10, ALIGN = 1024 };         /* A and the rings, aligned to ALIGN */
enum { SHARED_BYTES = ALIGN + PANELS_BYTES + ROWS * 4 }; /* with the scales of rows */
enum { PREFETCH_ROWS = 16 };                             /* rows of B per prefetch */

typedef struct skinny_job {
    kr_matmul_args p;
    int tiles;
    const float *gain; /* NULL: A is not normalised */
    float eps;
} skinny_job;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* By k: panels of A, and of a tile; stages of a warp's ring, of STAGE_BYTES each. */
template <int UNITS> struct parts {
    static const int panels = UNITS * UNIT / PANEL,
                     stages = (PANELS_BYTES - panels * KR_WG_PANEL) / (WARPS * STAGE_BYTES);
};

/* ---- A ---- */

/* Eight adjacent elements of a row of A, as loaded and in bf16. */
template <bool IS_BF16> struct unit;
template <> struct unit<true> {
    uint4 v;
    __device__ __forceinline__ void read(const kr_matmul_args &p, int m, int k)
    {
        v = *(const uint4 *)(const void *)((const uint16_t *)p.a.data + (m * p.a.row + k));
    }
    __device__ __forceinline__ uint4 rounded(const float4 *, float *) const { return v; }
};
template <> struct unit<false> {
    float4 x, y;
    __device__ __forceinline__ void read(const kr_matmul_args &p, int m, int k)
    {
        const float *from = (const float *)p.a.data + (m * p.a.row + k);
        x = *(const float4 *)from, y = *(const float4 *)(from + 4);
    }
    __device__ __forceinline__ uint4 rounded(const float4 gain[2], float *squares) const
    {
        *squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w + y.x * y.x + y.y * y.y + y.z * y.z + y.w * y.w;
        return make_uint4(kr_pair_of(x.x * gain[0].x, x.y * gain[0].y), kr_pair_of(x.z * gain[0].z, x.w * gain[0].w),
                          kr_pair_of(y.x * gain[1].x, y.y * gain[1].y), kr_pair_of(y.z * gain[1].z, y.w * gain[1].w));
    }
};

/* Stores all of A to its panels [64 m][64 k], zeros past the last row. Eight threads per row of a panel. scales [m]: 1/RMS,
 * factors of the sums. */
template <int UNITS, bool IS_BF16>
static __device__ __forceinline__ void store_a(const skinny_job &j, uint32_t to, float *scales)
{
    const int IN_FLIGHT = 4, row = (int)threadIdx.x / 8, at = (int)threadIdx.x % 8, last = (int)j.p.nm - 1;
    float squares[2] = { 0, 0 };
    static_assert(2 * THREADS / 8 == ROWS && parts<UNITS>::panels % IN_FLIGHT == 0, "a thread has two rows of a panel");
#pragma unroll 1
    for (int first = 0; first < parts<UNITS>::panels; first += IN_FLIGHT) {
        unit<IS_BF16> v[2 * IN_FLIGHT];
        float4 gain[IN_FLIGHT][2];
#pragma unroll
        for (int i = 0; i < 2 * IN_FLIGHT; i++) /* without a branch, so that all loads are in flight at once */
            v[i].read(j.p, min(row + i % 2 * (ROWS / 2), last), (first + i / 2) * PANEL + at * 8);
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            const float4 *from = (const float4 *)(const void *)(j.gain + ((first + i) * PANEL + at * 8));
            gain[i][0] = j.gain ? from[0] : make_float4(1, 1, 1, 1);
            gain[i][1] = j.gain ? from[1] : make_float4(1, 1, 1, 1);
        }
#pragma unroll
        for (int i = 0; i < 2 * IN_FLIGHT; i++) {
            const int m = row + i % 2 * (ROWS / 2);
            const uint32_t mask = m <= last ? ~0u : 0u;
            const uint4 own = v[i].rounded(gain[i / 2], &squares[i % 2]);
            const uint32_t words[4] = { own.x & mask, own.y & mask, own.z & mask, own.w & mask };
            kr_store_shared16(to + (uint32_t)((first + i / 2) * KR_WG_PANEL) + kr_tile_at<PANEL>(m, at), words);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int offset = 4; offset > 0; offset /= 2) squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], offset);
        const float mean = squares[i] * (1.0f / (UNITS * UNIT));
        if (at == 0) scales[row + i * (ROWS / 2)] = j.gain ? kr_rsqrt_newton(mean + j.eps) : 1.0f;
    }
}

/* ---- B ---- */

/* Prefetches the first rows to L2 while the preceding kernel ends: it may write B, but L2 is coherent. */
static __device__ __forceinline__ void prefetch(const skinny_job &j, int tile)
{
    const int end = min((tile + 1) * COLUMNS, (int)j.p.nn), row = (int)j.p.nk * 2;
#pragma unroll 1
    for (int n = tile * COLUMNS; n < end; n += PREFETCH_ROWS)
        kr_bulk_prefetch_l2((const char *)j.p.b.data + (int64_t)n * row, (uint32_t)(min(PREFETCH_ROWS, end - n) * row));
}

/* The next copy of a warp, and its stage. */
typedef struct cursor {
    int tile, panel, stage;
} cursor;

/* 16 bytes that are read once: L2 evict-first. */
static __device__ __forceinline__ void copy_evict_first(uint32_t to, const void *from, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
                 : "memory");
}

/* Copies the warp's rows [16 n][64 k] of a panel, the last row repeated past the end; nothing past the last tile. Always
 * commits a group, so that groups count stages. */
template <int UNITS>
static __device__ __forceinline__ void load_stage(const skinny_job &j, cursor *o, uint32_t ring, uint64_t policy)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x % GROUP / 32, unit = lane % 8;
    if (o->tile < j.tiles) {
        const char *from = (const char *)j.p.b.data + (o->panel * PANEL + unit * 8) * 2;
        const int n0 = o->tile * COLUMNS + warp * WARP_ROWS, last = (int)j.p.nn - 1;
#pragma unroll
        for (int i = 0; i < WARP_ROWS / 4; i++) {
            const int row = lane / 8 + 4 * i;
            copy_evict_first(ring + (uint32_t)(o->stage * STAGE_BYTES) + kr_tile_at<PANEL>(row, unit),
                             from + (int64_t)min(n0 + row, last) * (UNITS * UNIT * 2), policy);
        }
    }
    kr_copy_commit();
    if (++o->stage == parts<UNITS>::stages) o->stage = 0;
    if (++o->panel == parts<UNITS>::panels) o->panel = 0, o->tile += GROUPS * (int)gridDim.x;
}

/* ---- tile product ---- */

/* d[64 64] = A B (add: +=), A in registers, B with k last. */
static __device__ __forceinline__ void product(float d[8][4], const uint32_t a[4], uint64_t b, int add)
{
    asm volatile(
        "{.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"
        "%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
        : KR_D4(0), KR_D4(1), KR_D4(2), KR_D4(3), KR_D4(4), KR_D4(5), KR_D4(6), KR_D4(7)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* d[64 n][64 m]. The stage that is refilled is the previous one, which all lanes have read. */
template <int UNITS>
static __device__ __forceinline__ void multiply(float (&d)[8][4], const skinny_job &j, cursor *o, int *stage,
                                                uint32_t a, uint32_t ring, uint64_t policy)
{
#pragma unroll 1
    for (int panel = 0; panel < parts<UNITS>::panels; panel++) {
        uint32_t b[PANEL / 16][4];
        kr_copy_wait<parts<UNITS>::stages - 2>();
        __syncwarp();
        load_stage<UNITS>(j, o, ring, policy);
#pragma unroll
        for (int i = 0; i < PANEL / 16; i++)
            kr_load_a_mk<PANEL>(b[i], ring + (uint32_t)(*stage * STAGE_BYTES), 0, i * 16);
        const uint32_t of_a = a + (uint32_t)(panel * KR_WG_PANEL);
        kr_wg_hold<8>(d);
        kr_wg_begin();
#pragma unroll
        for (int i = 0; i < PANEL / 16; i++) product(d, b[i], kr_wg_k_last(of_a, i * 16), i > 0 || panel > 0);
        kr_wg_commit();
        kr_wg_wait<0>();
        kr_wg_hold<8>(d);
        if (++*stage == parts<UNITS>::stages) *stage = 0;
    }
}

/* A lane has the sums of columns n and n + 8, in two adjacent rows of each eight: eight lanes write 32 bytes. */
static __device__ __forceinline__ void store_c(const kr_matmul_args &p, const float (&d)[8][4], int n0,
                                               const float *scales)
{
    const int thread = (int)threadIdx.x % GROUP, m0 = thread % 4 * 2;
#pragma unroll
    for (int low = 0; low < 2; low++) {
        const int n = n0 + thread / 32 * 16 + thread % 32 / 4 + 8 * low, rows = n < (int)p.nn ? (int)p.nm - m0 : 0;
        const float bias = p.bias && rows > 0 ? ((const float *)p.bias)[n] : 0.0f;
        float *c = (float *)p.c.data + m0 * p.c.row + n;
#pragma unroll
        for (int i = 0; i < 8; i++, c += 8 * p.c.row) {
            const float2 scale = *(const float2 *)(const void *)(scales + m0 + 8 * i);
            if (8 * i < rows) c[0] = kr_fma(d[i][2 * low], scale.x, bias);
            if (8 * i + 1 < rows) c[p.c.row] = kr_fma(d[i][2 * low + 1], scale.y, bias);
        }
    }
}

#endif

/* ---- CTA ---- */

template <int UNITS>
static __global__ void __launch_bounds__(THREADS, 1) skinny_kernel(const __grid_constant__ skinny_job j)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char unaligned[];
    const int PANELS = parts<UNITS>::panels, STAGES = parts<UNITS>::stages;
    const uint32_t skipped = (ALIGN - kr_shared_address(unaligned) % ALIGN) % ALIGN;
    const uint32_t a = kr_shared_address(unaligned) + skipped;
    float *scales = (float *)(void *)(unaligned + skipped + PANELS_BYTES);
    const uint32_t ring = a + (uint32_t)(PANELS * KR_WG_PANEL + (int)threadIdx.x / 32 * STAGES * STAGE_BYTES);
    int tile = (int)threadIdx.x / GROUP * (int)gridDim.x + (int)blockIdx.x, stage = 0;
    cursor o = { tile, 0, 0 };
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    if (threadIdx.x % GROUP == 0) prefetch(j, tile);
    kr_pdl_wait();
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) load_stage<UNITS>(j, &o, ring, policy);
    if (kr_is_16bit(j.p.a.dtype)) store_a<UNITS, true>(j, a, scales);
    else store_a<UNITS, false>(j, a, scales);
    kr_wg_proxy_fence();
    __syncthreads();
#pragma unroll 1
    for (; tile < j.tiles; tile += GROUPS * (int)gridDim.x) {
        float d[8][4];
        multiply<UNITS>(d, j, &o, &stage, a, ring, policy);
        store_c(j.p, d, tile * COLUMNS, scales);
    }
#endif
}

/* ---- dispatch ---- */

bool kr_skinny_gemm_can(const kr_matmul_args *p)
{
    const kr_cuda *own = (const kr_cuda *)p->exec.own;
    const int64_t of_a = kr_is_16bit(p->a.dtype) ? 8 : 4; /* elements in 16 bytes */
    return own->arch == 90 && p->nm > 0 && p->nm <= ROWS && p->nk % UNIT == 0 && p->nk > 0 &&
           p->nk <= MAX_UNITS * UNIT && !p->accumulate && !kr_is_16bit(p->c.dtype) &&
           p->nn >= COLUMNS * own->multiprocessors && p->nn <= INT32_MAX / 2 && p->batch_rank == 0 &&
           p->b.dtype == KR_DTYPE_BF16 && p->b.row == 1 && p->b.column == p->nk && kr_is_aligned16(p->b.data) &&
           p->a.dtype != KR_DTYPE_F16 && p->a.column == 1 && p->a.row % of_a == 0 && kr_is_aligned16(p->a.data) &&
           SHARED_BYTES <= own->shared_bytes;
}

void kr_skinny_gemm(const kr_matmul_args *p, const float *gain, float eps)
{
    const kr_cuda *own = (const kr_cuda *)p->exec.own;
    const skinny_job j = { *p, (int)kr_ceil_div(p->nn, COLUMNS), gain, eps };
    const dim3 blocks((unsigned)own->multiprocessors);
#define CASE(units)                                                                                                    \
    case units: kr_pdl_launch(&p->exec, skinny_kernel<units>, blocks, THREADS, SHARED_BYTES, j); break
    switch (p->nk / UNIT) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
    }
#undef CASE
}
