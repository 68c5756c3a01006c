/* ssd_grads_parts.cuh - shared by the gradient kernels of a chunk: heads, sums over warps, gradients of scalars. */
#ifndef KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_GRADS_PARTS_CUH
#define KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_GRADS_PARTS_CUH

#include "kernels/cuda/ssd/ssd_chunk.cuh"
#include "kernels/cuda/ssd/tensor_core/ssd_grads.cuh"

enum { P_TILE = 64 * 64 * 2 };

/* Sums of one head over warps: rows by row of warps, columns by the PARTS they are split into. */
template <int PARTS, int WARPS> struct sums {
    float z[4][64];
    float t[PARTS][64], u[PARTS][64], x[PARTS][64], own[PARTS][64];
    float gh[WARPS], d[WARPS];
};

typedef struct head {
    int64_t h, head;
    int slice, p0;
} head;

static __device__ __forceinline__ head head_at(const kr_ssd_grads &o, int64_t e, int i)
{
    head x;
    const unsigned at = (unsigned)e * (unsigned)o.heads_of_group + (unsigned)i, slices = (unsigned)o.slices;
    const unsigned h = slices == 1 ? at : at / slices;
    x.head = at, x.h = h;
    x.slice = (int)(at - h * slices);
    x.p0 = x.slice * 64;
    return x;
}

/* A head's factors in global memory. */
static __device__ __forceinline__ const float *factors_at(const kr_ssd_grads &o, int64_t n, const head &x)
{
    return o.factors + (n * o.nh + x.h) * KR_SSD_FACTORS * 64;
}

/* Gradients of a head's scalars from the sums, by one warp. Tokens of a lane: lane and lane + 32. f: its factors; nm: rows
 * per token. */
template <int PARTS, int WARPS>
static __device__ void grad_scalars(const kr_ssd_grads &o, int nm, int64_t n, const kr_ssd_chunk &c, head x,
                                    const sums<PARTS, WARPS> *s, const float *f)
{
    const int lane = (int)threadIdx.x & 31;
    float gh = kr_warp_sum(lane < WARPS ? s->gh[lane] : 0.0f) * kr_exp2(f[KR_SSD_A2 * 64 + 63]);
    float d = kr_warp_sum(lane < WARPS ? s->d[lane] : 0.0f);
    if (lane == 0 && o.part_d) o.part_d[n * o.nh * o.slices + x.head] = d;
    float inside[2] = { 0, 0 }, out[2] = { 0, 0 }, g_w[2] = { 0, 0 }, own[2] = { 0, 0 };
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int t = lane + 32 * k;
        if (t >= c.nt) continue;
        float w = f[KR_SSD_W * 64 + t * nm], z = 0, u = 0, column = 0;
        for (int i = t * nm; i < (t + 1) * nm; i++) {
#pragma unroll
            for (int part = 0; part < 4; part++) z += s->z[part][i];
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                z += s->t[part][i];
                u += s->u[part][i];
                column += s->x[part][i];
                own[k] += s->own[part][i];
            }
        }
        inside[k] = z - w * column;
        out[k] = w * u;
        g_w[k] = u + column + (o.strict ? 0.0f : own[k]);
    }
    float after[2] = { inside[0], inside[1] }, before[2] = { out[0], out[1] };
    for (int step = 1; step < 32; step *= 2)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float next = __shfl_down_sync(~0u, after[k], step), last = __shfl_up_sync(~0u, before[k], step);
            if (lane + step < 32) after[k] += next;
            if (lane >= step) before[k] += last;
        }
    after[0] += __shfl_sync(~0u, after[1], 0);
    before[1] += __shfl_sync(~0u, before[0], 31);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int t = lane + 32 * k;
        if (t >= c.nt) continue;
        int64_t at = x.slice * o.slice + (c.at + t) * o.nh + x.h;
        if (o.g_da) o.g_da[at] = gh + after[k] + (before[k] - out[k]);
        if (o.g_w) o.g_w[at] = g_w[k];
        if (o.g_diag_weight) o.g_diag_weight[at] = o.strict ? own[k] : 0.0f;
    }
}

#endif
