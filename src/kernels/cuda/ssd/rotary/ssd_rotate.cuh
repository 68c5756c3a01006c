/* ssd_rotate.cuh - bias and rotary embedding of B and C in shared memory, from those of a group to those of a head, in
 * bf16.
 *
 *   (y0, y1) = (u0 cos - u1 sin, u0 sin + u1 cos),   u = x + bias[h],   pair i is (2i, 2i + 1), angle[b s h a]
 *
 * A thread has units of 8 columns, 4 pairs, of some rows of a tile (mma.cuh). All kernels rotate by these functions, so
 * that they get the same bits of B and C. One rank, adjacent pairs, rows of whole units (kr_ssd_rotate_fits).
 */
#ifndef KR_KERNELS_CUDA_SSD_ROTARY_SSD_ROTATE_CUH
#define KR_KERNELS_CUDA_SSD_ROTARY_SSD_ROTATE_CUH

#include "kernels/cuda/prim/tile_io.cuh"
#include "kernels/cuda/ssd/ssd_plan.cuh"

#include <cuda_fp16.h>

/* cos and sin, to 2^-20 for |angle| up to 2 pi. */
static __device__ __forceinline__ float2 kr_rotate_by(float angle)
{
    return make_float2(__cosf(angle), __sinf(angle));
}

/* The thread's units in a tile of rows of W elements: one unit, and rows from `row` on in steps of `step`. */
template <int W, int THREADS> struct kr_rotate_units {
    static const int units = W / 8, step = THREADS / units, rows = 64 / step;
};

/* Angles of the thread's rows of a chunk; angle: of the chunk's first token, the head and the tile's first column, of which
 * `left` remain. */
template <int W, int THREADS>
static __device__ __forceinline__ void kr_rotate_load(float4 *to, const float *angle, int64_t token, int left, int nf,
                                                      int thread)
{
    typedef kr_rotate_units<W, THREADS> at;
    const int unit = thread % at::units, row = thread / at::units;
    angle += row * token + unit * 4;
#pragma unroll
    for (int k = 0; k < at::rows; k++, angle += at::step * token)
        to[k] = row + k * at::step < nf && unit * 4 < left ? __ldcs((const float4 *)angle)
                                                           : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* Prefetches the angles of a chunk to L2; by 128 threads. */
static __device__ __forceinline__ void kr_rotate_request(const float *angle, int64_t token, int left, int nf,
                                                         int thread)
{
    const int row = thread / 2, at = thread % 2 * 32;
    if (row < nf && at < left) asm volatile("prefetch.global.L2 [%0];" ::"l"(angle + row * token + at));
}

/* A head's bias of W columns in shared memory is two rows: the first four columns of every unit, and the other four. */
template <int W> struct kr_rotate_bias {
    static const int bytes = W * 4, other = W / 8 * 16;
};

/* From col of a row of nr on; zeros past it. */
template <int W, int THREADS>
static __device__ __forceinline__ void kr_rotate_load_bias(float *to, const float *bias, int64_t h, int col, int nr,
                                                           int thread)
{
    for (int i = thread; i < W; i += THREADS)
        to[i % 8 / 4 * (W / 2) + i / 8 * 4 + i % 4] = bias && col + i < nr ? bias[h * nr + col + i] : 0.0f;
}

typedef struct kr_rotate_row {
    float x[8];
} kr_rotate_row;

/* The bias of a unit's columns; bias: its address in shared memory. */
template <int W> static __device__ __forceinline__ kr_rotate_row kr_rotate_bias_of(uint32_t bias)
{
    const uint4 low = kr_load_shared16(bias), high = kr_load_shared16(bias + kr_rotate_bias<W>::other);
    const kr_rotate_row b = { { __uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(low.z),
                                __uint_as_float(low.w), __uint_as_float(high.x), __uint_as_float(high.y),
                                __uint_as_float(high.z), __uint_as_float(high.w) } };
    return b;
}

/* Rotates a unit of u. */
static __device__ __forceinline__ void kr_rotate_words(uint32_t y[4], uint4 raw, const kr_rotate_row &bias,
                                                       const float2 by[4])
{
    const uint32_t word[4] = { raw.x, raw.y, raw.z, raw.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 u = kr_unpack(word[i]);
        u.x += bias.x[2 * i], u.y += bias.x[2 * i + 1];
        y[i] = kr_pair_of(fmaf(-u.y, by[i].y, u.x * by[i].x), fmaf(u.x, by[i].y, u.y * by[i].x));
    }
}

static __device__ __forceinline__ void kr_rotate_unit(uint32_t to, uint4 raw, const kr_rotate_row &bias,
                                                      const float2 by[4])
{
    uint32_t y[4];
    kr_rotate_words(y, raw, bias, by);
    kr_store_shared16(to, y);
}

/* Rotates COUNT tiles of 64 rows, `stride` bytes apart, in place, with consecutive biases. Rows from nf on stay zero. */
template <int W, int THREADS, bool PANELS, int COUNT>
static __device__ __forceinline__ void kr_rotate_tiles(uint32_t tile, uint32_t stride, const float4 *angle,
                                                       uint32_t bias, int nf, int thread)
{
    typedef kr_rotate_units<W, THREADS> at;
    const int unit = thread % at::units, row = thread / at::units;
#pragma unroll
    for (int k = 0; k < at::rows; k++) {
        if (row + k * at::step >= nf) continue;
        const float2 by[4] = { kr_rotate_by(angle[k].x), kr_rotate_by(angle[k].y), kr_rotate_by(angle[k].z),
                               kr_rotate_by(angle[k].w) };
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const uint32_t address = tile + i * stride + kr_unit_at<W, PANELS>(row + k * at::step, unit);
            const uint4 raw = kr_load_shared16(address);
            kr_rotate_unit(address, raw, kr_rotate_bias_of<W>(bias + i * kr_rotate_bias<W>::bytes + unit * 16), by);
        }
    }
}

#endif
