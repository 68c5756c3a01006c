/* ssd_cast.cu - casts f32 to bf16 and back, eight elements per thread; see ssd_cast.cuh. */
#include "kernels/cuda/ssd/ssd_cast.cuh"

#include <cuda_bf16.h>

enum { THREADS = 256, UNIT = 8 };

static __device__ __forceinline__ uint32_t bf16x2(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* Eight elements of a row from `at` on. */
static __device__ __forceinline__ void narrow(const kr_ssd_cast &o, int64_t row, int64_t at)
{
    const float *from = (const float *)o.from + row * o.stride + at;
    __nv_bfloat16 *to = (__nv_bfloat16 *)o.to + row * o.width + at;
    if (o.aligned) {
        const float4 x = ((const float4 *)from)[0], y = ((const float4 *)from)[1];
        *(uint4 *)to = make_uint4(bf16x2(x.x, x.y), bf16x2(x.z, x.w), bf16x2(y.x, y.y), bf16x2(y.z, y.w));
        return;
    }
    for (int64_t k = 0; k < UNIT && at + k < o.width; k++) to[k] = __float2bfloat16_rn(from[k]);
}

static __device__ __forceinline__ float2 unpack2(uint32_t pair)
{
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

static __device__ __forceinline__ void widen(const kr_ssd_cast &o, int64_t row, int64_t at)
{
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)o.from + row * o.stride + at;
    float *to = (float *)o.to + row * o.width + at;
    if (o.aligned) {
        const uint4 q = *(const uint4 *)from;
        const float2 a = unpack2(q.x), b = unpack2(q.y), c = unpack2(q.z), d = unpack2(q.w);
        ((float4 *)to)[0] = make_float4(a.x, a.y, b.x, b.y);
        ((float4 *)to)[1] = make_float4(c.x, c.y, d.x, d.y);
        return;
    }
    for (int64_t k = 0; k < UNIT && at + k < o.width; k++) to[k] = __bfloat162float(from[k]);
}

static __global__ void __launch_bounds__(THREADS) cast_rows(const __grid_constant__ kr_ssd_casts r)
{
    int i = 0;
    while (i + 1 < r.count && (int64_t)blockIdx.x >= r.of[i + 1].first) i++;
    const kr_ssd_cast &o = r.of[i];
    const int64_t unit = ((int64_t)blockIdx.x - o.first) * THREADS + threadIdx.x;
    if (unit >= o.units) return;
    const int64_t row = o.units <= INT32_MAX ? kr_quotient((uint32_t)unit, o.line) : unit / o.line.d;
    const int64_t at = (unit - row * o.line.d) * UNIT;
    if (o.widens) widen(o, row, at);
    else narrow(o, row, at);
}

void *kr_ssd_cast_add(kr_ssd_casts *r, kr_cuda_scratch *m, bool widens, const void *x, int64_t rows, int64_t width,
                      int64_t *stride)
{
    if (!x) return NULL;
    const int64_t line = kr_most(1, kr_ceil_div(width, UNIT)), row_stride = stride ? *stride : width;
    kr_ssd_cast o = { x,
                      kr_scratch_take(m, rows * width * (widens ? 4 : 2)),
                      width,
                      row_stride,
                      rows * line,
                      r->blocks,
                      kr_divisor_of(line),
                      widens,
                      kr_is_aligned(x, 16) && row_stride % (widens ? 8 : 4) == 0 && width % UNIT == 0 };
    if (stride) *stride = width;
    r->blocks += kr_ceil_div(o.units, THREADS);
    r->of[r->count++] = o;
    return o.to;
}

void kr_ssd_casts_run(const kr_ssd_casts *r, cudaStream_t stream)
{
    if (r->blocks) cast_rows<<<(unsigned)r->blocks, THREADS, 0, stream>>>(*r);
}

/* ---- results ---- */

/* A CTA stores some elements of a chunk's tokens. */
static __global__ void __launch_bounds__(THREADS) store_tokens(const kr_ssd_map map, const kr_ssd_result o)
{
    const kr_ssd_chunk c = kr_ssd_chunk_of(map, blockIdx.x);
    for (int64_t i = blockIdx.y * THREADS + threadIdx.x; i < c.nt * o.width; i += gridDim.y * THREADS) {
        const int64_t token = c.at + i / o.width, at = token * o.stride + i % o.width;
        const float x = o.from[c.at * o.width + i];
        if (kr_is_16bit(o.dtype)) ((__nv_bfloat16 *)o.to)[at] = __float2bfloat16_rn(x);
        else ((float *)o.to)[at] = x;
    }
}

void *kr_ssd_result_add(kr_ssd_results *r, kr_cuda_scratch *m, void *to, int64_t tokens, int64_t width, int64_t stride,
                        kr_dtype dtype)
{
    void *from = kr_scratch_take(m, tokens * width * (int64_t)sizeof(float));
    const kr_ssd_result o = { (const float *)from, to, width, stride, dtype };
    r->of[r->count++] = o;
    return m->base ? from : to;
}

void kr_ssd_results_store(const kr_ssd_results *r, cudaStream_t stream)
{
    for (int i = 0; i < r->count; i++) {
        const int64_t rounds = kr_ceil_div(r->map.nt * r->of[i].width, THREADS);
        const dim3 grid((unsigned)r->map.chunks, (unsigned)(rounds < 16 ? rounds : 16));
        if (r->map.chunks && rounds) store_tokens<<<grid, THREADS, 0, stream>>>(r->map, r->of[i]);
    }
}
