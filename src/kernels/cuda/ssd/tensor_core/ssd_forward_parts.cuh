/* ssd_forward_parts.cuh - shared by both forward kernels: a CTA's task, its rows, start and end states. */
#ifndef KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_FORWARD_PARTS_CUH
#define KR_KERNELS_CUDA_SSD_TENSOR_CORE_SSD_FORWARD_PARTS_CUH

#include "kernels/cuda/ssd/ssd_chunk.cuh"
#include "kernels/cuda/ssd/tensor_core/ssd_forward.cuh"

enum { THREADS = 256, V_TILE = 64 * 64 * 2, FACTORS = KR_SSD_FACTORS * 256 };

typedef struct task {
    int64_t q, h, e, head;
    int64_t first, at; /* the segment's first chunk and token */
    int count, tokens; /* its chunks and tokens */
    int segment, p0;
    int warp, lane, row; /* warp within its half of the CTA; row: the lane's first of the warp's 16 */
    bool last;           /* the sequence's last segment */
} task;

static __device__ __forceinline__ task task_of(const kr_ssd_forward &o)
{
    task t;
    const unsigned heads = (unsigned)(o.nh * o.slices), unit = blockIdx.x / heads;
    t.head = blockIdx.x % heads;
    t.segment = (int)(unit % (unsigned)o.segments), t.q = unit / (unsigned)o.segments;
    t.h = t.head / o.slices, t.e = t.h / (o.nh / o.ng);
    t.p0 = (int)(t.head - t.h * o.slices) * 64;
    const kr_ssd_span s = kr_ssd_span_of(o.map, t.q);
    const int64_t skip = (int64_t)t.segment * o.every;
    t.first = s.first + skip;
    t.count = (int)(s.count - skip < o.every ? s.count - skip : o.every);
    t.last = skip + o.every >= s.count;
    t.at = 0, t.tokens = 0;
    if (t.count > 0) {
        const kr_ssd_chunk end = kr_ssd_chunk_of(o.map, t.first + t.count - 1);
        t.at = kr_ssd_chunk_of(o.map, t.first).at;
        t.tokens = (int)(end.at - t.at) + end.nt;
    }
    t.warp = (int)(threadIdx.x / 32) & 3, t.lane = (int)threadIdx.x & 31, t.row = t.warp * 16 + t.lane / 4;
    return t;
}

/* Rows of the segment's chunk i. */
static __device__ __forceinline__ int rows_of(const kr_ssd_forward &o, const task &t, int i, int nm)
{
    return min((int)o.map.nt, t.tokens - i * (int)o.map.nt) * nm;
}

/* Is there an initial state? */
static __device__ __forceinline__ bool has_start(const kr_ssd_forward &o)
{
    return o.segment_states || o.start || o.boundary;
}

/* Loads the initial state to shared memory of 64 R floats, by the threads from FIRST on, 0 or half of them, which
 * synchronise afterwards. */
template <int R, int FIRST>
static __device__ __forceinline__ void load_start(const kr_ssd_forward &o, const task &t, float *tile)
{
    const int thread = (int)threadIdx.x - FIRST, threads = THREADS - FIRST;
    if (!has_start(o)) return;
    if (o.segment_states) {
        const int64_t at = (t.q * o.segments + t.segment) * o.nh * o.slices + t.head;
        const float4 *from = (const float4 *)(o.segment_states + at * 64 * R);
#pragma unroll 8
        for (int i = thread; i < 16 * R; i += threads) ((float4 *)tile)[i] = from[i];
    } else {
#pragma unroll 4
        for (int i = thread; i < 64 * R; i += threads) tile[i] = kr_ssd_start_value(o, t.q, t.h, t.p0 + i / R, i % R);
    }
    if (FIRST) asm volatile("bar.sync 2, 128;" ::: "memory");
    else __syncthreads();
}

/* Loads the initial state to the accumulators of the state warps. */
template <int R>
static __device__ __forceinline__ void load_start_acc(float acc[R / 8][4], const kr_ssd_forward &o, const task &t,
                                                      const float *tile)
{
#pragma unroll
    for (int c = 0; c < R / 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[c][k] = 0;
    if (has_start(o)) kr_ssd_load_tile<R>(acc, tile, t.row, t.lane);
}

template <int R>
static __device__ __forceinline__ void store_end_state(const float acc[R / 8][4], const kr_ssd_forward &o,
                                                       const task &t)
{
    if (!o.end || !t.last) return;
    float *end = o.end + (t.q * o.nh + t.h) * o.np * o.nr;
#pragma unroll
    for (int c = 0; c < R / 8; c++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int p = t.p0 + t.row + (k / 2) * 8, r = c * 8 + (t.lane & 3) * 2 + (k & 1);
            if (p < o.np && r < o.nr) end[(int64_t)p * o.nr + r] = acc[c][k];
        }
}

/* Stores the warp's 16 rows of y of chunk i. */
template <bool STAGED>
static __device__ __forceinline__ void store_rows(const kr_ssd_forward &o, const task &t, int i, int nm,
                                                  const float acc[8][4], uint32_t staging)
{
    const int nf = rows_of(o, t, i, nm), width = o.np - t.p0;
    const int64_t line = o.nh * o.np;
    const int64_t at = (t.at + (int64_t)i * o.map.nt) * nm * line + t.h * o.np + t.p0;
    if (o.wide) {
#pragma unroll
        for (int k = 0; k < 2; k++)
            kr_store_row((float *)o.y + at + (t.row + 8 * k) * line, acc, k, (t.lane & 3) * 2,
                         t.row + 8 * k < nf ? width : 0, o.y_aligned);
        return;
    }
    kr_bf16 *y = (kr_bf16 *)o.y + at;
    if (!STAGED) {
#pragma unroll
        for (int c = 0; c < 8; c++)
            for (int k = 0; k < 4; k++) {
                int row = t.row + (k / 2) * 8, col = c * 8 + (t.lane & 3) * 2 + (k & 1);
                if (row < nf && col < width) y[row * line + col] = __float2bfloat16_rn(acc[c][k]);
            }
        return;
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 8; c++) {
        kr_store_shared4(staging + kr_tile_at<64>(t.row, c) + (t.lane & 3) * 4, kr_pair_of(acc[c][0], acc[c][1]));
        kr_store_shared4(staging + kr_tile_at<64>(t.row + 8, c) + (t.lane & 3) * 4, kr_pair_of(acc[c][2], acc[c][3]));
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int row = t.warp * 16 + k * 4 + t.lane / 8, unit = t.lane & 7;
        if (row < nf)
            kr_store8(y + row * line + unit * 8, kr_load_shared16(staging + kr_tile_at<64>(row, unit)),
                      width - unit * 8, o.y_aligned);
    }
}

/* Rows of B, C and V of chunk i. */
typedef struct chunk_rows {
    kr_rows b, c, v;
    int nf;
} chunk_rows;

static __device__ __forceinline__ chunk_rows rows_at(const kr_ssd_forward &o, const task &t, int i, int nm)
{
    const int64_t at = t.at + (int64_t)i * o.map.nt;
    chunk_rows x = { { o.b + at * o.b_stride + t.e * o.nr, o.b_stride, o.ng * o.nr, nm, o.nr, o.b_aligned },
                     { o.c + at * o.c_stride + t.e * o.nr, o.c_stride, o.ng * o.nr, nm, o.nr, o.c_aligned },
                     { o.v + at * o.v_stride + t.h * o.np + t.p0, o.v_stride, o.nh * o.np, nm, o.np - t.p0,
                       o.v_aligned },
                     rows_of(o, t, i, nm) };
    return x;
}

#endif
