/* random_ref.c - uniform and normal samples from a Philox stream.
 *
 *   y[i] = sample number offset + i;   uniform: alpha + (beta - alpha) u, u in [0, 1);   normal: alpha + beta z
 *
 * Sample d is lane d % 4 of block d / 4 (f64: lane d % 2 of block d / 2; see base/normal.h), computed in double and
 * rounded to f32 or f64; bf16 and f16 are rounded from the f32 sample. A uniform sample that would round to beta
 * becomes the next lower value of its type, so that the interval stays half open.
 */
#include "base/half.h"
#include "base/normal.h"
#include "kernels/ref/ref.h"

#define TASK_BLOCKS 2048

static int lanes_of(kr_dtype dtype)
{
    return dtype == KR_DTYPE_F64 ? 2 : 4;
}

/* The bits of the next lower value of a float type with sign bit `sign`. */
static uint64_t bits_below(uint64_t bits, uint64_t sign)
{
    if (bits == 0) return sign | 1u;
    return bits & sign ? bits + 1 : bits - 1;
}

static void store(const kr_random_args *a, int64_t i, double sample)
{
    bool half_open = !a->normal && a->alpha < a->beta;
    if (a->dtype == KR_DTYPE_F64) {
        uint64_t bits;
        memcpy(&bits, &sample, sizeof bits);
        if (half_open && sample >= a->beta) bits = bits_below(bits, UINT64_C(1) << 63);
        memcpy((double *)a->y + i, &bits, sizeof bits);
        return;
    }
    float single = (float)sample;
    if (a->dtype == KR_DTYPE_F32) {
        uint32_t bits = kr_float_bits(single);
        if (half_open && (double)single >= a->beta) bits = (uint32_t)bits_below(bits, 0x80000000u);
        memcpy((float *)a->y + i, &bits, sizeof bits);
        return;
    }
    bool is_bf16 = a->dtype == KR_DTYPE_BF16;
    uint16_t bits = is_bf16 ? kr_bf16_from_float(single) : kr_f16_from_float(single);
    float rounded = is_bf16 ? kr_float_from_bf16(bits) : kr_float_from_f16(bits);
    if (half_open && (double)rounded >= a->beta) bits = (uint16_t)bits_below(bits, 0x8000u);
    ((uint16_t *)a->y)[i] = bits;
}

static void random_block(const kr_random_args *a, uint64_t number)
{
    kr_philox_block block = kr_philox_at(a->seed, a->stream, number);
    int nlanes = lanes_of(a->dtype);
    double sample[4];
    if (a->normal) (nlanes == 2 ? kr_normals_f64 : kr_normals_f32)(&block, sample);
    else (nlanes == 2 ? kr_uniforms_f64 : kr_uniforms_f32)(&block, sample);
    double scale = a->normal ? a->beta : a->beta - a->alpha;
    for (int lane = 0; lane < nlanes; lane++) {
        int64_t i = (int64_t)(number * (uint64_t)nlanes + (uint64_t)lane - a->offset);
        if (i >= 0 && i < a->n) store(a, i, a->alpha + scale * sample[lane]);
    }
}

static uint64_t block_count(const kr_random_args *a)
{
    uint64_t nlanes = (uint64_t)lanes_of(a->dtype);
    return (a->offset % nlanes + (uint64_t)a->n + nlanes - 1) / nlanes;
}

static void random_task(void *arg, int64_t task, int worker)
{
    (void)worker;
    const kr_random_args *a = *(const kr_random_args **)arg;
    uint64_t start = a->offset / (uint64_t)lanes_of(a->dtype), nblocks = block_count(a);
    uint64_t first = (uint64_t)task * TASK_BLOCKS;
    uint64_t end = first + TASK_BLOCKS < nblocks ? first + TASK_BLOCKS : nblocks;
    for (uint64_t block = first; block < end; block++) random_block(a, start + block);
}

void kr_ref_random(const kr_random_args *a)
{
    if (a->n > 0)
        kr_pool_run(a->exec.pool, (int64_t)((block_count(a) + TASK_BLOCKS - 1) / TASK_BLOCKS), random_task, &a);
}
