/* gemm_rows.cu - C = A B for up to 64 rows, at the speed at which B is read: sm_90a.
 *
 *   A [m k] f32, which is normed, or not, and rounded, or bf16; B [n k] bf16, its rows one behind another; C [m n] f32;
 *   k = 256 .. 1024
 *
 * The product is C^T = B A^T: 64 rows of B, a tile, are the rows of a warpgroup's products (wgmma.cuh). Each
 * multiprocessor has a block of two warpgroups, which stays: it keeps all of A in shared memory, as panels of 64 of k,
 * and its warpgroups take one tile after the other, each by itself. A warp brings its own 16 rows of B, which no other
 * one reads, a piece of 64 of k at a time, through a ring of stages in shared memory, from where they go to registers
 * as operands: so nobody waits for others' copies. Rows of A that are normed are rounded times their gain alone, and
 * their sums are divided by their roots of mean squares. The ring runs on from a tile into the next, and what is asked for is
 * always as much as shared memory has room for.
 */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/load.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/token.cuh"
#include "kernels/cuda/wgmma.cuh"

enum { GROUP = 128, GROUPS = 2, THREADS = GROUPS * GROUP, WARPS = THREADS / 32 };
enum { ROWS = 64, COLUMNS = 64, OF_WARP = 16, PANEL = 64, PIECE = OF_WARP * PANEL * 2, UNIT = 256, MOST_UNITS = 4 };
enum { PANELS_BYTES = 224 << 10, ALIGN = 1024 };         /* A and the rings, which begin at a multiple of ALIGN */
enum { SHARED_BYTES = ALIGN + PANELS_BYTES + ROWS * 4 }; /* with the scales of rows */
enum { FETCHED = 16 };                                   /* rows of B to a piece that is brought to the cache */

typedef struct rows_job {
    kr_matmul_args p;
    int tiles;
    const float *gain; /* NULL: A is not normed */
    float eps;
} rows_job;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* By k: panels of A, and of a tile; stages of a warp's ring, of PIECE bytes each. */
template <int UNITS> struct parts {
    static const int panels = UNITS * UNIT / PANEL, stages = (PANELS_BYTES - panels * KR_WG_PANEL) / (WARPS * PIECE);
};

/* ---- A ---- */

/* Eight neighbours of a row of A, as they come and rounded. */
template <bool IS_HALF> struct unit;
template <> struct unit<true> {
    uint4 v;
    __device__ __forceinline__ void read(const kr_matmul_args &p, int m, int k)
    {
        v = *(const uint4 *)(const void *)((const uint16_t *)p.a + (m * p.a_m + k));
    }
    __device__ __forceinline__ uint4 rounded(const float4 *, float *) const { return v; }
};
template <> struct unit<false> {
    float4 x, y;
    __device__ __forceinline__ void read(const kr_matmul_args &p, int m, int k)
    {
        const float *from = (const float *)p.a + (m * p.a_m + k);
        x = *(const float4 *)from, y = *(const float4 *)(from + 4);
    }
    __device__ __forceinline__ uint4 rounded(const float4 gain[2], float *squares) const
    {
        *squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w + y.x * y.x + y.y * y.y + y.z * y.z + y.w * y.w;
        return make_uint4(kr_pair_of(x.x * gain[0].x, x.y * gain[0].y), kr_pair_of(x.z * gain[0].z, x.w * gain[0].w),
                          kr_pair_of(y.x * gain[1].x, y.y * gain[1].y), kr_pair_of(y.z * gain[1].z, y.w * gain[1].w));
    }
};

/* All of A to its panels [64 m][64 k], zeros past the last row. Eight threads have a row of a panel. scales [m]: what
 * sums are to be multiplied by. */
template <int UNITS, bool IS_HALF>
static __device__ __forceinline__ void put_a(const rows_job &j, uint32_t to, float *scales)
{
    const int AT_ONCE = 4, row = (int)threadIdx.x / 8, at = (int)threadIdx.x % 8, last = (int)j.p.nm - 1;
    float squares[2] = { 0, 0 };
    static_assert(2 * THREADS / 8 == ROWS && parts<UNITS>::panels % AT_ONCE == 0, "a thread has two rows of a panel");
#pragma unroll 1
    for (int first = 0; first < parts<UNITS>::panels; first += AT_ONCE) {
        unit<IS_HALF> v[2 * AT_ONCE];
        float4 gain[AT_ONCE][2];
#pragma unroll
        for (int i = 0; i < 2 * AT_ONCE; i++) /* without a branch, so that they are all on their way at once */
            v[i].read(j.p, min(row + i % 2 * (ROWS / 2), last), (first + i / 2) * PANEL + at * 8);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float4 *from = (const float4 *)(const void *)(j.gain + ((first + i) * PANEL + at * 8));
            gain[i][0] = j.gain ? from[0] : make_float4(1, 1, 1, 1);
            gain[i][1] = j.gain ? from[1] : make_float4(1, 1, 1, 1);
        }
#pragma unroll
        for (int i = 0; i < 2 * AT_ONCE; i++) {
            const int m = row + i % 2 * (ROWS / 2);
            const uint32_t keep = m <= last ? ~0u : 0u;
            const uint4 own = v[i].rounded(gain[i / 2], &squares[i % 2]);
            const uint32_t words[4] = { own.x & keep, own.y & keep, own.z & keep, own.w & keep };
            kr_store_shared16(to + (uint32_t)((first + i / 2) * KR_WG_PANEL) + kr_tile_at<PANEL>(m, at), words);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int away = 4; away > 0; away /= 2) squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], away);
        const float mean = squares[i] * (1.0f / (UNITS * UNIT));
        if (at == 0) scales[row + i * (ROWS / 2)] = j.gain ? kr_inverse_root(mean + j.eps) : 1.0f;
    }
}

/* ---- B ---- */

/* What comes first, to the cache, while the kernel before this one ends: it may write B, but not behind the cache. */
static __device__ __forceinline__ void fetch(const rows_job &j, int tile)
{
    const int end = min((tile + 1) * COLUMNS, (int)j.p.nn), row = (int)j.p.nk * 2;
#pragma unroll 1
    for (int n = tile * COLUMNS; n < end; n += FETCHED)
        kr_bulk_fetch((const char *)j.p.b + (int64_t)n * row, (uint32_t)(min(FETCHED, end - n) * row));
}

/* What a warp asks for next, and the stage where it goes. */
typedef struct order {
    int tile, panel, stage;
} order;

/* 16 bytes that are read once leave the cache to others. */
static __device__ __forceinline__ void copy_once(uint32_t to, const void *from, uint64_t once)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(once)
                 : "memory");
}

/* The warp's piece [16 n][64 k] of a panel, the last row instead of those behind it; nothing past the last tile. It is
 * a group of copies in any case, so that groups count stages. */
template <int UNITS>
static __device__ __forceinline__ void ask(const rows_job &j, order *o, uint32_t ring, uint64_t once)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x % GROUP / 32, unit = lane % 8;
    if (o->tile < j.tiles) {
        const char *from = (const char *)j.p.b + (o->panel * PANEL + unit * 8) * 2;
        const int n0 = o->tile * COLUMNS + warp * OF_WARP, last = (int)j.p.nn - 1;
#pragma unroll
        for (int i = 0; i < OF_WARP / 4; i++) {
            const int row = lane / 8 + 4 * i;
            copy_once(ring + (uint32_t)(o->stage * PIECE) + kr_tile_at<PANEL>(row, unit),
                      from + (int64_t)min(n0 + row, last) * (UNITS * UNIT * 2), once);
        }
    }
    kr_copy_commit();
    if (++o->stage == parts<UNITS>::stages) o->stage = 0;
    if (++o->panel == parts<UNITS>::panels) o->panel = 0, o->tile += GROUPS * (int)gridDim.x;
}

/* ---- a tile ---- */

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

/* d[64 n][64 m]. The stage that is asked for again is the one before, which all lanes have read. */
template <int UNITS>
static __device__ __forceinline__ void multiply(float (&d)[8][4], const rows_job &j, order *o, int *stage, uint32_t a,
                                                uint32_t ring, uint64_t once)
{
#pragma unroll 1
    for (int panel = 0; panel < parts<UNITS>::panels; panel++) {
        uint32_t b[PANEL / 16][4];
        kr_copy_wait<parts<UNITS>::stages - 2>();
        __syncwarp();
        ask<UNITS>(j, o, ring, once);
#pragma unroll
        for (int i = 0; i < PANEL / 16; i++) kr_load_a_mk<PANEL>(b[i], ring + (uint32_t)(*stage * PIECE), 0, i * 16);
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

/* A lane has the sums of columns n and n + 8, in two neighbouring rows of each eight: eight lanes write 32 bytes. */
static __device__ __forceinline__ void put_c(const kr_matmul_args &p, const float (&d)[8][4], int n0,
                                             const float *scales)
{
    const int thread = (int)threadIdx.x % GROUP, m0 = thread % 4 * 2;
#pragma unroll
    for (int low = 0; low < 2; low++) {
        const int n = n0 + thread / 32 * 16 + thread % 32 / 4 + 8 * low, rows = n < (int)p.nn ? (int)p.nm - m0 : 0;
        const float bias = p.bias && rows > 0 ? ((const float *)p.bias)[n] : 0.0f;
        float *c = (float *)p.c + m0 * p.c_m + n;
#pragma unroll
        for (int i = 0; i < 8; i++, c += 8 * p.c_m) {
            const float2 scale = *(const float2 *)(const void *)(scales + m0 + 8 * i);
            if (8 * i < rows) c[0] = kr_fma(d[i][2 * low], scale.x, bias);
            if (8 * i + 1 < rows) c[p.c_m] = kr_fma(d[i][2 * low + 1], scale.y, bias);
        }
    }
}

#endif

/* ---- the block ---- */

template <int UNITS>
static __global__ void __launch_bounds__(THREADS, 1) rows_kernel(const __grid_constant__ rows_job j)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) char unaligned[];
    const int PANELS = parts<UNITS>::panels, STAGES = parts<UNITS>::stages;
    const uint32_t skipped = (ALIGN - kr_shared_address(unaligned) % ALIGN) % ALIGN;
    const uint32_t a = kr_shared_address(unaligned) + skipped;
    float *scales = (float *)(void *)(unaligned + skipped + PANELS_BYTES);
    const uint32_t ring = a + (uint32_t)(PANELS * KR_WG_PANEL + (int)threadIdx.x / 32 * STAGES * PIECE);
    int tile = (int)threadIdx.x / GROUP * (int)gridDim.x + (int)blockIdx.x, stage = 0;
    order o = { tile, 0, 0 };
    uint64_t once;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    if (threadIdx.x % GROUP == 0) fetch(j, tile);
    kr_token_wait();
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) ask<UNITS>(j, &o, ring, once);
    if (j.p.a_half) put_a<UNITS, true>(j, a, scales);
    else put_a<UNITS, false>(j, a, scales);
    kr_wg_publish();
    __syncthreads();
#pragma unroll 1
    for (; tile < j.tiles; tile += GROUPS * (int)gridDim.x) {
        float d[8][4];
        multiply<UNITS>(d, j, &o, &stage, a, ring, once);
        put_c(j.p, d, tile * COLUMNS, scales);
    }
#endif
}

/* ---- choosing ---- */

bool kr_gemm_rows_can(const kr_matmul_args *p)
{
    const kr_cuda *own = (const kr_cuda *)p->exec.own;
    const int64_t of_a = p->a_half ? 8 : 4; /* elements of 16 bytes */
    return own->arch == 90 && p->nm > 0 && p->nm <= ROWS && p->nk % UNIT == 0 && p->nk > 0 &&
           p->nk <= MOST_UNITS * UNIT && !p->accumulate && !p->c_half && p->nn >= COLUMNS * own->multiprocessors &&
           p->nn <= INT32_MAX / 2 && p->batch_rank == 0 && p->b_half == KR_HALF_BF16 && p->b_k == 1 &&
           p->b_n == p->nk && kr_allows16(p->b) && p->a_half != KR_HALF_F16 && p->a_k == 1 && p->a_m % of_a == 0 &&
           kr_allows16(p->a) && SHARED_BYTES <= own->shared_bytes;
}

void kr_gemm_rows(const kr_matmul_args *p, const float *gain, float eps)
{
    const kr_cuda *own = (const kr_cuda *)p->exec.own;
    const rows_job j = { *p, (int)kr_ceil_div(p->nn, COLUMNS), gain, eps };
    const dim3 blocks((unsigned)own->multiprocessors);
#define CASE(units)                                                                                                    \
    case units: kr_token_launch(&p->exec, rows_kernel<units>, blocks, THREADS, SHARED_BYTES, j); break
    switch (p->nk / UNIT) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
    }
#undef CASE
}
