/* random_cuda.cu - uniform and normal samples from a Philox stream: the bits of the CPU kernel (kernels/ref/random_ref.c).
 *
 * base/normal.h uses + - * / and sqrt in double alone; this file is compiled with -fmad=false, so that they are not
 * contracted. A thread computes one Philox block: 4 samples of f32, bf16 and f16, 2 of f64.
 */
#include "base/half.h"
#include "base/normal.h"
#include "kernels/cuda/prim/launch.cuh"

namespace
{

/* The bits of the next lower value of a float type with sign bit `sign`. */
__device__ inline uint64_t bits_below(uint64_t bits, uint64_t sign)
{
    if (bits == 0) return sign | 1u;
    return bits & sign ? bits + 1 : bits - 1;
}

/* A uniform sample that rounding would lift to beta takes the next lower value of its type. */
__device__ inline void store(const kr_random_args &a, int64_t i, double sample)
{
    const bool half_open = !a.normal && a.alpha < a.beta;
    if (a.dtype == KR_DTYPE_F64) {
        uint64_t bits = (uint64_t)__double_as_longlong(sample);
        if (half_open && sample >= a.beta) bits = bits_below(bits, UINT64_C(1) << 63);
        ((uint64_t *)a.y)[i] = bits;
        return;
    }
    const float single = (float)sample;
    if (a.dtype == KR_DTYPE_F32) {
        uint32_t bits = kr_float_bits(single);
        if (half_open && (double)single >= a.beta) bits = (uint32_t)bits_below(bits, 0x80000000u);
        ((uint32_t *)a.y)[i] = bits;
        return;
    }
    const bool is_bf16 = a.dtype == KR_DTYPE_BF16;
    uint16_t bits = is_bf16 ? kr_bf16_from_float(single) : kr_f16_from_float(single);
    const float rounded = is_bf16 ? kr_float_from_bf16(bits) : kr_float_from_f16(bits);
    if (half_open && (double)rounded >= a.beta) bits = (uint16_t)bits_below(bits, 0x8000u);
    ((uint16_t *)a.y)[i] = bits;
}

template <int lanes> __device__ inline void draw_block(const kr_random_args &a, uint64_t number)
{
    const kr_philox_block block = kr_philox_at(a.seed, a.stream, number);
    double sample[lanes];
    if (lanes == 2) a.normal ? kr_normals_f64(&block, sample) : kr_uniforms_f64(&block, sample);
    else a.normal ? kr_normals_f32(&block, sample) : kr_uniforms_f32(&block, sample);
    const double scale = a.normal ? a.beta : a.beta - a.alpha;
    for (int lane = 0; lane < lanes; lane++) {
        const int64_t i = (int64_t)(number * (uint64_t)lanes + (uint64_t)lane - a.offset);
        if (i >= 0 && i < a.n) store(a, i, a.alpha + scale * sample[lane]);
    }
}

template <int lanes> void launch(const kr_random_args *args)
{
    const kr_random_args a = *args;
    const uint64_t start = a.offset / lanes, nblocks = (a.offset % lanes + (uint64_t)a.n + lanes - 1) / lanes;
    kr_cuda_each(a.exec, (int64_t)nblocks,
                 [=] __device__(int64_t block) { draw_block<lanes>(a, start + (uint64_t)block); });
}

} // namespace

void kr_cuda_random(const kr_random_args *a)
{
    if (a->n <= 0) return;
    if (a->dtype == KR_DTYPE_F64) launch<2>(a);
    else launch<4>(a);
}
