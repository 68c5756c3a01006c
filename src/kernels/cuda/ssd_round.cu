/* ssd_round.cu - f32 to bf16 and back, eight elements to a thread; see ssd_round.cuh. */
#include "kernels/cuda/ssd_round.cuh"

#include <cuda_bf16.h>

enum { THREADS = 256, UNIT = 8 };

static __device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* Eight elements from `at` of a row on. */
static __device__ __forceinline__ void narrow(const kr_ssd_rounding &o, int64_t row, int64_t at)
{
    const float *from = (const float *)o.from + row * o.stride + at;
    __nv_bfloat16 *to = (__nv_bfloat16 *)o.to + row * o.width + at;
    if (o.aligned) {
        const float4 x = ((const float4 *)from)[0], y = ((const float4 *)from)[1];
        *(uint4 *)to = make_uint4(pack(x.x, x.y), pack(x.z, x.w), pack(y.x, y.y), pack(y.z, y.w));
        return;
    }
    for (int64_t k = 0; k < UNIT && at + k < o.width; k++) to[k] = __float2bfloat16_rn(from[k]);
}

static __device__ __forceinline__ float2 widened(uint32_t pair)
{
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

static __device__ __forceinline__ void widen(const kr_ssd_rounding &o, int64_t row, int64_t at)
{
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)o.from + row * o.stride + at;
    float *to = (float *)o.to + row * o.width + at;
    if (o.aligned) {
        const uint4 q = *(const uint4 *)from;
        const float2 a = widened(q.x), b = widened(q.y), c = widened(q.z), d = widened(q.w);
        ((float4 *)to)[0] = make_float4(a.x, a.y, b.x, b.y);
        ((float4 *)to)[1] = make_float4(c.x, c.y, d.x, d.y);
        return;
    }
    for (int64_t k = 0; k < UNIT && at + k < o.width; k++) to[k] = __bfloat162float(from[k]);
}

static __global__ void __launch_bounds__(THREADS) round_rows(const __grid_constant__ kr_ssd_roundings r)
{
    int i = 0;
    while (i + 1 < r.count && (int64_t)blockIdx.x >= r.of[i + 1].first) i++;
    const kr_ssd_rounding &o = r.of[i];
    const int64_t unit = ((int64_t)blockIdx.x - o.first) * THREADS + threadIdx.x;
    if (unit >= o.units) return;
    const int64_t row = o.units <= INT32_MAX ? kr_quotient((uint32_t)unit, o.line) : unit / o.line.d;
    const int64_t at = (unit - row * o.line.d) * UNIT;
    if (o.widens) widen(o, row, at);
    else narrow(o, row, at);
}

const void *kr_ssd_round_later(kr_ssd_roundings *r, kr_cuda_scratch *m, bool widens, const void *x, int64_t rows,
                               int64_t width, int64_t *stride)
{
    if (!x) return NULL;
    const int64_t line = kr_most(1, kr_ceil_div(width, UNIT)), apart = stride ? *stride : width;
    kr_ssd_rounding o = { x,
                          kr_take(m, rows * width * (widens ? 4 : 2)),
                          width,
                          apart,
                          rows * line,
                          r->blocks,
                          kr_divisor_of(line),
                          widens,
                          kr_is_aligned(x, 16) && apart % (widens ? 8 : 4) == 0 && width % UNIT == 0 };
    if (stride) *stride = width;
    r->blocks += kr_ceil_div(o.units, THREADS);
    r->of[r->count++] = o;
    return o.to;
}

void kr_ssd_round_now(const kr_ssd_roundings *r, cudaStream_t stream)
{
    if (r->blocks) round_rows<<<(unsigned)r->blocks, THREADS, 0, stream>>>(*r);
}

/* ---- results ---- */

/* A block has some elements of a chunk's tokens. */
static __global__ void __launch_bounds__(THREADS) bring_tokens(const kr_ssd_map map, const kr_ssd_result o)
{
    const kr_ssd_place c = kr_ssd_place_of(map, blockIdx.x);
    for (int64_t i = blockIdx.y * THREADS + threadIdx.x; i < c.nt * o.width; i += gridDim.y * THREADS) {
        const int64_t token = c.at + i / o.width, at = token * o.stride + i % o.width;
        const float x = o.from[c.at * o.width + i];
        if (o.half) ((__nv_bfloat16 *)o.to)[at] = __float2bfloat16_rn(x);
        else ((float *)o.to)[at] = x;
    }
}

void *kr_ssd_result_later(kr_ssd_results *r, kr_cuda_scratch *m, void *to, int64_t tokens, int64_t width,
                          int64_t stride, kr_half half)
{
    void *from = kr_take(m, tokens * width * (int64_t)sizeof(float));
    const kr_ssd_result o = { (const float *)from, to, width, stride, half };
    r->of[r->count++] = o;
    return m->base ? from : to;
}

void kr_ssd_results_bring(const kr_ssd_results *r, cudaStream_t stream)
{
    for (int i = 0; i < r->count; i++) {
        const int64_t rounds = kr_ceil_div(r->map.nt * r->of[i].width, THREADS);
        const dim3 grid((unsigned)r->map.chunks, (unsigned)(rounds < 16 ? rounds : 16));
        if (r->map.chunks && rounds) bring_tokens<<<grid, THREADS, 0, stream>>>(r->map, r->of[i]);
    }
}
