/* ssd_turn.cuh - B and C of a group that become a head's own on their way to the matrix units: plus bias, turned, rounded.
 *
 *   (y0, y1) = (u0 cos - u1 sin, u0 sin + u1 cos),   u = x + bias[h],   pair i is (2i, 2i + 1), angle[b s h a]
 *
 * A thread has units of 8 columns, which are 4 pairs, of some rows of a tile (mma.cuh). Every kernel turns by these functions,
 * so that all have the same bits of B and C. Ranks are 1, pairs are neighbours, rows are whole units (kr_ssd_turn_fits).
 */
#ifndef KR_KERNELS_CUDA_SSD_TURN_CUH
#define KR_KERNELS_CUDA_SSD_TURN_CUH

#include "kernels/cuda/load.cuh"
#include "kernels/cuda/ssd_plan.cuh"

#include <cuda_fp16.h>

/* cos and sin, to 2^-20 for angles of a turn or less. */
static __device__ __forceinline__ float2 kr_turn_by(float angle)
{
    return make_float2(__cosf(angle), __sinf(angle));
}

/* The thread's place in a tile of rows of W elements: a unit, and rows from `row` on in steps of `step`. */
template <int W, int THREADS> struct kr_turn_place {
    static const int units = W / 8, step = THREADS / units, rows = 64 / step;
};

/* Angles of the thread's rows of a chunk; angle: of the chunk's first token and the head, and the tile's first column, of
 * which there are `left` from there on. */
template <int W, int THREADS>
static __device__ __forceinline__ void kr_turn_load(float4 *to, const float *angle, int64_t token, int left, int nf,
                                                    int thread)
{
    typedef kr_turn_place<W, THREADS> at;
    const int unit = thread % at::units, row = thread / at::units;
    angle += row * token + unit * 4;
#pragma unroll
    for (int k = 0; k < at::rows; k++, angle += at::step * token)
        to[k] = row + k * at::step < nf && unit * 4 < left ? __ldcs((const float4 *)angle)
                                                           : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* Asks for the angles of a chunk ahead of time; by 128 threads. */
static __device__ __forceinline__ void kr_turn_ask(const float *angle, int64_t token, int left, int nf, int thread)
{
    const int row = thread / 2, at = thread % 2 * 32;
    if (row < nf && at < left) asm volatile("prefetch.global.L2 [%0];" ::"l"(angle + row * token + at));
}

/* A head's bias of W columns lies in shared memory as two rows: the first four of every unit, and the others. */
template <int W> struct kr_turn_bias {
    static const int bytes = W * 4, other = W / 8 * 16;
};

/* From col of a row of nr on; zeros past it. */
template <int W, int THREADS>
static __device__ __forceinline__ void kr_turn_load_bias(float *to, const float *bias, int64_t h, int col, int nr,
                                                         int thread)
{
    for (int i = thread; i < W; i += THREADS)
        to[i % 8 / 4 * (W / 2) + i / 8 * 4 + i % 4] = bias && col + i < nr ? bias[h * nr + col + i] : 0.0f;
}

typedef struct kr_turn_row {
    float x[8];
} kr_turn_row;

/* The bias of a unit's columns; bias: its place in shared memory. */
template <int W> static __device__ __forceinline__ kr_turn_row kr_turn_bias_of(uint32_t bias)
{
    const uint4 low = kr_load_shared16(bias), high = kr_load_shared16(bias + kr_turn_bias<W>::other);
    const kr_turn_row b = { { __uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(low.z),
                              __uint_as_float(low.w), __uint_as_float(high.x), __uint_as_float(high.y),
                              __uint_as_float(high.z), __uint_as_float(high.w) } };
    return b;
}

/* A unit of u turned. */
static __device__ __forceinline__ void kr_turn_words(uint32_t y[4], uint4 raw, const kr_turn_row &bias,
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

static __device__ __forceinline__ void kr_turn_unit(uint32_t to, uint4 raw, const kr_turn_row &bias, const float2 by[4])
{
    uint32_t y[4];
    kr_turn_words(y, raw, bias, by);
    kr_store_shared16(to, y);
}

/* COUNT tiles of 64 rows, `apart` bytes apart, turned in place, with their biases one behind the other. Rows from nf on stay
 * zeros. */
template <int W, int THREADS, bool PANELS, int COUNT>
static __device__ __forceinline__ void kr_turn_tiles(uint32_t tile, uint32_t apart, const float4 *angle, uint32_t bias,
                                                     int nf, int thread)
{
    typedef kr_turn_place<W, THREADS> at;
    const int unit = thread % at::units, row = thread / at::units;
#pragma unroll
    for (int k = 0; k < at::rows; k++) {
        if (row + k * at::step >= nf) continue;
        const float2 by[4] = { kr_turn_by(angle[k].x), kr_turn_by(angle[k].y), kr_turn_by(angle[k].z),
                               kr_turn_by(angle[k].w) };
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const uint32_t place = tile + i * apart + kr_unit_at<W, PANELS>(row + k * at::step, unit);
            const uint4 raw = kr_load_shared16(place);
            kr_turn_unit(place, raw, kr_turn_bias_of<W>(bias + i * kr_turn_bias<W>::bytes + unit * 16), by);
        }
    }
}

#endif
