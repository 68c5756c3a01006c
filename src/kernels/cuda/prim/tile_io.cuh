/* tile_io.cuh - loads and stores rows of global memory to and from shared memory tiles, by cp.async where 16-byte alignment
 * allows. */
#ifndef KR_KERNELS_CUDA_PRIM_TILE_IO_CUH
#define KR_KERNELS_CUDA_PRIM_TILE_IO_CUH

#include "kernels/cuda/prim/cp_async.cuh"
#include "kernels/cuda/prim/mma.cuh"

/* Rows of a chunk: row f is rank f % nm of token f / nm. x: the chunk's first row; token, rank: strides in elements.
 * aligned: x, token, rank and width all allow 16-byte accesses. */
typedef struct kr_rows {
    const kr_bf16 *x;
    int64_t token, rank;
    int nm, width;
    bool aligned;
} kr_rows;

static __device__ __forceinline__ int64_t kr_row_at(int64_t token, int64_t rank, int nm, int row)
{
    if (nm == 1) return row * token;
    return (row / nm) * token + (row % nm) * rank;
}

static __device__ __forceinline__ void kr_store_shared16(uint32_t to, const uint32_t x[4])
{
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

static __device__ __forceinline__ void kr_store_shared4(uint32_t to, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

static __device__ __forceinline__ uint4 kr_load_shared16(uint32_t from)
{
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

static __device__ __forceinline__ uint32_t kr_load_shared4(uint32_t from)
{
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}

/* Eight elements one by one, zeros past `left`. */
static __device__ __forceinline__ void kr_gather8(uint32_t to, const kr_bf16 *from, int left)
{
    const uint16_t *x = (const uint16_t *)from;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        uint32_t low = 2 * i < left ? x[2 * i] : 0u, high = 2 * i + 1 < left ? x[2 * i + 1] : 0u;
        kr_store_shared4(to + 4 * (uint32_t)i, low | high << 16);
    }
}

/* Offset of 8-element unit `unit` of a row of W elements: in one tile of rows of W, or in panels of 64 columns. */
template <int W, bool PANELS> static __device__ __forceinline__ uint32_t kr_unit_at(int row, int unit)
{
    return PANELS ? (uint32_t)(unit / 8) * (64 * 64 * 2) + kr_tile_at<64>(row, unit % 8) : kr_tile_at<W>(row, unit);
}

/* Loads 64 rows of W elements of the tile from rows of s.width; rows from nf on and columns past the width become zeros. */
template <int W, int THREADS, bool PANELS = false>
static __device__ __forceinline__ void kr_load_rows(uint32_t tile, const kr_rows s, int nf, int thread)
{
    const unsigned units = W / 8, step = THREADS / units, row0 = (unsigned)thread / units,
                   unit = (unsigned)thread % units;
    const int left = s.width - (int)unit * 8;
    const kr_bf16 *x = s.x + unit * 8;
    const uint32_t to =
        tile + kr_unit_at<W, PANELS>((int)row0, (int)unit); /* rows of one lane agree in the last 3 bits */
    static_assert(step % 8 == 0, "the rows of a lane have one position in the swizzle");
    const uint32_t line = (PANELS ? 64 : W) * 2 * step;
    if (__builtin_expect(s.aligned && nf == 64 && s.width >= W && (s.nm == 1 || s.token == s.nm * s.rank), 1)) {
        const int64_t next = s.nm == 1 ? s.token : s.rank;
        x += row0 * next;
#pragma unroll
        for (unsigned k = 0; k < 64 / step; k++, x += step * next) kr_copy_async16(to + k * line, x, 16);
    } else if (s.aligned) {
#pragma unroll 1
        for (int row = (int)row0, k = 0; row < 64; row += (int)step, k++) {
            bool some = row < nf && left > 0;
            kr_copy_async16(to + (uint32_t)k * line, some ? x + kr_row_at(s.token, s.rank, s.nm, row) : s.x,
                            some ? 16 : 0);
        }
    } else {
#pragma unroll 1
        for (int row = (int)row0, k = 0; row < 64; row += (int)step, k++)
            kr_gather8(to + (uint32_t)k * line, x + kr_row_at(s.token, s.rank, s.nm, row), row < nf ? left : 0);
    }
}

template <int W, int THREADS>
static __device__ __forceinline__ void kr_load_panels(uint32_t panels, const kr_rows s, int nf, int thread)
{
    kr_load_rows<W, THREADS, true>(panels, s, nf, thread);
}

/* Loads a contiguous image [64][W] from global memory, 16-byte aligned. */
template <int W, int THREADS, bool PANELS = false>
static __device__ __forceinline__ void kr_load_image(uint32_t tile, const kr_bf16 *from, int thread)
{
    const unsigned units = W / 8, step = THREADS / units, row = (unsigned)thread / units,
                   unit = (unsigned)thread % units;
    static_assert(step % 8 == 0, "the rows of a lane have one position in the swizzle");
    const uint32_t to = tile + kr_unit_at<W, PANELS>((int)row, (int)unit), line = (PANELS ? 64 : W) * 2 * step;
    from += (unsigned)thread * 8;
#pragma unroll
    for (unsigned k = 0; k < 64 / step; k++) kr_copy_async16(to + k * line, from + k * (THREADS * 8), 16);
}

static __device__ __forceinline__ void kr_store_global16(void *to, uint4 x)
{
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

/* Stores eight elements of a row, those before `left`. */
static __device__ __forceinline__ void kr_store8(kr_bf16 *to, uint4 x, int left, bool aligned)
{
    if (__builtin_expect(aligned, 1)) {
        if (left > 0) kr_store_global16(to, x);
        return;
    }
    uint32_t word[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < left) ((uint16_t *)to)[i] = (uint16_t)(word[i / 2] >> (16 * (i & 1)));
}

/* Stores a lane's 16 elements of a row of 64, accumulators c of 8 columns each, those before `left`. */
static __device__ __forceinline__ void kr_store_row(float *row, const float acc[8][4], int k, int col, int left,
                                                    bool paired)
{
    if (__builtin_expect(paired, 1)) {
#pragma unroll
        for (int c = 0; c < 8; c++)
            if (c * 8 + col < left) *(float2 *)(row + c * 8 + col) = make_float2(acc[c][2 * k], acc[c][2 * k + 1]);
        return;
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (c * 8 + col + i < left) row[c * 8 + col + i] = acc[c][2 * k + i];
}

/* Stores two adjacent elements of a row of f32 (wide) or bf16 at element `at` of `to`, those before `left`. */
static __device__ __forceinline__ void kr_store2(void *to, bool wide, int64_t at, float x, float y, int left,
                                                 bool paired)
{
    if (left <= 0) return;
    if (wide) {
        float *f = (float *)to + at;
        if (paired) {
            *(float2 *)f = make_float2(x, y);
        } else {
            f[0] = x;
            if (left > 1) f[1] = y;
        }
    } else {
        kr_bf16 *b = (kr_bf16 *)to + at;
        if (paired) {
            *(uint32_t *)b = kr_pair_of(x, y);
        } else {
            b[0] = __float2bfloat16_rn(x);
            if (left > 1) b[1] = __float2bfloat16_rn(y);
        }
    }
}

#endif
