/* gemm_rows.cu - C = A B for up to 64 rows, at the speed at which B is read: sm_90.
 *
 *   A [m k] f32, which is rounded, or bf16; B [n k] bf16, its rows one behind another; C [m n] f32; k = 256 .. 1024
 *
 * Each multiprocessor has a block, which stays. A tile is 16 columns of C: 16 rows of B, one piece of memory, which comes
 * by one copy into one of the slots of a ring. A stays in registers: each of eight warps has half of the rows and a
 * quarter of k, and the quarters' sums meet in shared memory, where they are added in order.
 *
 * Which element of k is where in a product does not matter, as long as A and B agree: a lane has 16 neighbours of each 64,
 * two units of 16 bytes, for four products. Rows of B lie whole lines apart, so lanes of odd rows read their units in the
 * other order, from the other banks.
 */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/token.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, ALL_THREADS = THREADS + 32 };
enum { ROWS = 64, COLUMNS = 16, QUARTERS = 4, MOST_SLOTS = 16, MOST_UNITS = 4, UNIT = 64 * QUARTERS };
enum { SUMS = QUARTERS * ROWS * COLUMNS, TURNS = 4 }; /* floats; so many of them take turns */

typedef struct control {
    uint64_t full[MOST_SLOTS], free[MOST_SLOTS], summed[TURNS];
} control;

typedef struct rows_job {
    kr_matmul_args p;
    int tiles, slots;
    bool in_fours; /* C is written so, and is nothing but the sums */
} rows_job;

extern __shared__ uint4 shared_memory[];

static __device__ __forceinline__ control &ctl(void)
{
    return *(control *)(void *)shared_memory;
}
static __device__ __forceinline__ float *sums(int turn)
{
    return (float *)(void *)((char *)shared_memory + sizeof(control)) + turn * SUMS;
}
static __device__ __forceinline__ char *slot_at(const rows_job &j, int slot)
{
    return (char *)sums(TURNS) + slot * COLUMNS * (int)j.p.nk * 2;
}

/* ---- operands ---- */

static __device__ __forceinline__ uint32_t two(float low, float high)
{
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)(const void *)&both;
}

/* Eight neighbours of a row of A; zeros past the last row. */
static __device__ __forceinline__ uint4 unit_of_a(const kr_matmul_args &p, int m, int k)
{
    if (m >= (int)p.nm) return make_uint4(0, 0, 0, 0);
    const int64_t at = m * p.a_m + k;
    if (p.a_half) return *(const uint4 *)(const void *)((const uint16_t *)p.a + at);
    const float4 x = *(const float4 *)((const float *)p.a + at), y = *(const float4 *)((const float *)p.a + at + 4);
    return make_uint4(two(x.x, x.y), two(x.z, x.w), two(y.x, y.y), two(y.z, y.w));
}

/* Where a lane of a warp is: its quarter of k, its rows of A, its row and place in pieces of 8 columns and 64 of k. */
typedef struct place {
    int quarter, m0, row, k;
} place;

static __device__ __forceinline__ place place_of(int units)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, quarter = warp % QUARTERS;
    return { quarter, warp / QUARTERS * (ROWS / 2), lane / 4, quarter * 64 * units + lane % 4 * 16 };
}

/* a[16 rows][product][register] */
template <int UNITS>
static __device__ __forceinline__ void load_a(const kr_matmul_args &p, const place &w, uint32_t (&a)[2][4 * UNITS][4])
{
#pragma unroll
    for (int i = 0; i < 2 * 2 * UNITS * 2; i++) {
        const int block = i / (4 * UNITS), low = i / (2 * UNITS) % 2, unit = i % (2 * UNITS);
        const uint4 v = unit_of_a(p, w.m0 + 16 * block + 8 * low + w.row, w.k + unit / 2 * 64 + unit % 2 * 8);
        a[block][2 * unit][low] = v.x, a[block][2 * unit][2 + low] = v.y;
        a[block][2 * unit + 1][low] = v.z, a[block][2 * unit + 1][2 + low] = v.w;
    }
}

/* ---- a tile ---- */

/* d[16 rows][8 columns] of the warp's quarter of k. */
template <int UNITS>
static __device__ __forceinline__ void multiply(const uint32_t (&a)[2][4 * UNITS][4], const char *slot, const place &w,
                                                float (&d)[2][2][4])
{
    const bool is_odd = w.row % 2 != 0;
#pragma unroll
    for (int i = 0; i < 2 * 2 * 4; i++) d[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
    for (int unit = 0; unit < UNITS; unit++) {
        uint32_t b[2][8];
#pragma unroll
        for (int piece = 0; piece < 2; piece++) {
            const char *at = slot + ((8 * piece + w.row) * (UNIT * UNITS) + w.k + unit * 64) * 2;
            const uint4 one = *(const uint4 *)(const void *)(at + (is_odd ? 16 : 0));
            const uint4 other = *(const uint4 *)(const void *)(at + (is_odd ? 0 : 16));
            const uint4 first = is_odd ? other : one, second = is_odd ? one : other;
            b[piece][0] = first.x, b[piece][1] = first.y, b[piece][2] = first.z, b[piece][3] = first.w;
            b[piece][4] = second.x, b[piece][5] = second.y, b[piece][6] = second.z, b[piece][7] = second.w;
        }
#pragma unroll
        for (int i = 0; i < 4 * 4; i++) /* neighbours do not wait for one another */
            kr_mma(d[i / 2 % 2][i % 2], a[i / 2 % 2][4 * unit + i / 4], b[i % 2][i / 4 * 2], b[i % 2][i / 4 * 2 + 1]);
    }
}

/* Four neighbours of a row of sums; two rows that share banks have them in the other half. */
static __device__ __forceinline__ float *sum_at(float *of_quarter, int row, int four)
{
    return of_quarter + row * COLUMNS + (four ^ (row >> 1 & 1) << 1) * 4;
}

static __device__ __forceinline__ void put_sums(float *to, const place &w, const float (&d)[2][2][4])
{
    const int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * 2 * 2; i++) {
        const int block = i / 4, piece = i / 2 % 2, low = i % 2, row = w.m0 + 16 * block + 8 * low + w.row;
        float *at = sum_at(to + w.quarter * ROWS * COLUMNS, row, 2 * piece + column / 4) + column % 4;
        *(float2 *)(void *)at = make_float2(d[block][piece][2 * low], d[block][piece][2 * low + 1]);
    }
}

/* Four columns of C for each thread. */
static __device__ __forceinline__ void put_c(const kr_matmul_args &p, float *from, int n0, bool in_fours)
{
    const int m = (int)threadIdx.x / 4, four = (int)threadIdx.x % 4, n = n0 + 4 * four;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
        const float4 x = *(const float4 *)(void *)sum_at(from + quarter * ROWS * COLUMNS, m, four);
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    if (m >= (int)p.nm) return;
    if (in_fours) {
        if (n < (int)p.nn) *(float4 *)((float *)p.c + m * p.c_m + n) = sum;
        return;
    }
    const float each[4] = { sum.x, sum.y, sum.z, sum.w };
    for (int i = 0; i < 4; i++)
        if (n + i < (int)p.nn) kr_gemm_store<float>(p, 0, m, n + i, each[i]);
}

/* The block's tile number `count`, when all warps have their sums of it. A warp is a tile ahead of that, and no warp writes
 * sums over those that another one reads: it is past the tile TURNS - 2 before, for which all had come with that reading
 * behind them. */
static __device__ __forceinline__ void put_tile(const rows_job &j, int count)
{
    kr_latch_wait(kr_shared_address(&ctl().summed[count % TURNS]), (uint32_t)(count / TURNS));
    put_c(j.p, sums(count % TURNS), ((int)blockIdx.x + count * (int)gridDim.x) * COLUMNS, j.in_fours);
}

/* ---- the block ---- */

/* What comes first, to the cache, while the kernel before this one ends: it may write B, but not behind the cache. */
static __device__ __forceinline__ void fetch(const rows_job &j)
{
    int tile = (int)blockIdx.x;
    for (int i = 0; i < j.slots && tile < j.tiles; i++, tile += (int)gridDim.x)
        kr_bulk_fetch((const uint16_t *)j.p.b + (int64_t)tile * COLUMNS * j.p.nk,
                      (uint32_t)(kr_least(COLUMNS, (int)j.p.nn - tile * COLUMNS) * (int)j.p.nk * 2));
}

static __device__ __forceinline__ void bring(const rows_job &j)
{
    kr_stage s = { 0, 0 };
    for (int tile = (int)blockIdx.x; tile < j.tiles; tile += (int)gridDim.x) {
        const int n0 = tile * COLUMNS, rows = kr_least(COLUMNS, (int)j.p.nn - n0);
        const uint32_t latch = kr_shared_address(&ctl().full[s.at]), bytes = (uint32_t)(rows * (int)j.p.nk * 2);
        if (s.round > 0) kr_latch_wait(kr_shared_address(&ctl().free[s.at]), s.round - 1);
        kr_bulk_expect(latch, bytes);
        kr_bulk_read_once(slot_at(j, s.at), (const uint16_t *)j.p.b + (int64_t)n0 * j.p.nk, bytes, latch);
        if (++s.at == j.slots) s.at = 0, s.round++;
    }
}

template <int UNITS>
static __global__ void __launch_bounds__(ALL_THREADS, 1) rows_kernel(const __grid_constant__ rows_job j)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < j.slots; i++) {
            kr_latch_init(kr_shared_address(&ctl().full[i]), 1);
            kr_latch_init(kr_shared_address(&ctl().free[i]), WARPS);
        }
        for (int i = 0; i < TURNS; i++) kr_latch_init(kr_shared_address(&ctl().summed[i]), WARPS);
        kr_latches_ready();
    }
    if (threadIdx.x == THREADS) fetch(j);
    kr_token_wait();
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        if (threadIdx.x == THREADS) bring(j);
        return;
    }
    const place w = place_of(UNITS);
    uint32_t a[2][4 * UNITS][4];
    load_a<UNITS>(j.p, w, a);
    kr_stage s = { 0, 0 };
    int count = 0;
#pragma unroll 1
    for (int tile = (int)blockIdx.x; tile < j.tiles; tile += (int)gridDim.x, count++) {
        float d[2][2][4];
        kr_latch_wait(kr_shared_address(&ctl().full[s.at]), s.round);
        multiply<UNITS>(a, slot_at(j, s.at), w, d);
        __syncwarp();
        if (threadIdx.x % 32 == 0) kr_latch_come(kr_shared_address(&ctl().free[s.at]));
        if (++s.at == j.slots) s.at = 0, s.round++;
        put_sums(sums(count % TURNS), w, d);
        __syncwarp();
        if (threadIdx.x % 32 == 0) kr_latch_come(kr_shared_address(&ctl().summed[count % TURNS]));
        if (count > 0) put_tile(j, count - 1);
    }
    if (count > 0) put_tile(j, count - 1);
}

/* ---- choosing ---- */

static size_t bytes_of(const kr_matmul_args *p, int slots)
{
    return sizeof(control) + TURNS * SUMS * sizeof(float) + (size_t)(slots * COLUMNS * p->nk * 2);
}

bool kr_gemm_rows_can(const kr_matmul_args *p)
{
    const kr_cuda *own = (const kr_cuda *)p->exec.own;
    const int64_t of_a = p->a_half ? 8 : 4; /* elements of 16 bytes */
    return own->arch >= 90 && p->nm <= ROWS && p->nk % UNIT == 0 && p->nk > 0 && p->nk <= MOST_UNITS * UNIT &&
           !p->accumulate && !p->c_half && p->nn >= 4 * COLUMNS * own->multiprocessors && p->nn <= INT32_MAX / 2 &&
           p->batch_rank == 0 && p->b_half == KR_HALF_BF16 && p->b_k == 1 && p->b_n == p->nk && kr_allows16(p->b) &&
           p->a_half != KR_HALF_F16 && p->a_k == 1 && p->a_m % of_a == 0 && kr_allows16(p->a) &&
           bytes_of(p, 4) <= own->shared_bytes;
}

void kr_gemm_rows(const kr_matmul_args *p)
{
    const kr_cuda *own = (const kr_cuda *)p->exec.own;
    rows_job j = { *p, (int)kr_ceil_div(p->nn, COLUMNS), 4,
                   !p->bias && kr_allows16(p->c) && p->c_m % 4 == 0 && p->nn % 4 == 0 };
    while (j.slots < MOST_SLOTS && bytes_of(p, j.slots + 1) <= own->shared_bytes) j.slots++;
    const size_t bytes = bytes_of(p, j.slots);
#define CASE(units)                                                                                                    \
    case units:                                                                                                        \
        kr_token_launch(&p->exec, rows_kernel<units>, dim3((unsigned)own->multiprocessors), ALL_THREADS, bytes, j);    \
        break
    switch (p->nk / UNIT) {
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
    }
#undef CASE
}
