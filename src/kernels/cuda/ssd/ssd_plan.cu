/* ssd_plan.cu - writes the chunk tables and the decay factors of their tokens, see ssd_plan.cuh. */
#include "kernels/cuda/ssd/ssd_plan.cuh"

enum { SEQUENCES = 100 }; /* per launch, passed by value: no host memory must outlive the call */

typedef struct sequences {
    int64_t at[SEQUENCES], tokens[SEQUENCES], chunk[SEQUENCES];
} sequences;

/* One CTA per sequence. */
static __global__ void write_tables(const sequences s, int64_t q0, int64_t nt, kr_ssd_chunk *chunk_table,
                                    kr_ssd_span *spans)
{
    int64_t i = blockIdx.x, tokens = s.tokens[i], count = (tokens + nt - 1) / nt;
    if (threadIdx.x == 0) spans[q0 + i] = { s.chunk[i], count };
    for (int64_t n = threadIdx.x; n < count; n += blockDim.x) {
        int64_t left = tokens - n * nt;
        chunk_table[s.chunk[i] + n] = { s.at[i] + n * nt, (int32_t)(q0 + i), (int32_t)(left < nt ? left : nt) };
    }
}

kr_ssd_map kr_ssd_map_make(const kr_ssd_dims *d, const kr_sequence *list, kr_cuda_scratch *m, cudaStream_t stream)
{
    kr_ssd_map map = { d->ns, d->nt, (d->ns + d->nt - 1) / d->nt, d->chunks, NULL, NULL };
    if (d->rows) return map;
    kr_ssd_chunk *chunk_table = (kr_ssd_chunk *)kr_scratch_take(m, d->chunks * (int64_t)sizeof(kr_ssd_chunk));
    kr_ssd_span *spans = (kr_ssd_span *)kr_scratch_take(m, d->nq * (int64_t)sizeof(kr_ssd_span));
    map.chunk_table = chunk_table;
    map.spans = spans;
    int64_t chunk = 0;
    for (int64_t q0 = 0; m->base && q0 < d->nq; q0 += SEQUENCES) {
        int64_t count = d->nq - q0 < SEQUENCES ? d->nq - q0 : (int64_t)SEQUENCES;
        sequences s;
        for (int64_t i = 0; i < count; i++) {
            const kr_sequence *q = &list[q0 + i];
            s.at[i] = (q->row - d->row0) * d->ns + q->start;
            s.tokens[i] = q->end - q->start;
            s.chunk[i] = chunk;
            chunk += (s.tokens[i] + d->nt - 1) / d->nt;
        }
        write_tables<<<(unsigned)count, 64, 0, stream>>>(s, q0, d->nt, chunk_table, spans);
    }
    return map;
}

enum { HEADS = 8, STRIDE = 68 }; /* heads per CTA, one warp each; row stride of tokens in shared memory, in floats */

/* da, w and diag_weight of a chunk's tokens and HEADS heads from h0 on, which are adjacent in a token: [3][heads][tokens].
 * Defaults are 0, 1 and w; past the chunk all are 0. */
static __device__ __forceinline__ void load_scalars(float to[3][HEADS][STRIDE], const kr_ssd_chunk &chunk, int64_t nh,
                                                    int64_t h0, const float *da, const float *w,
                                                    const float *diag_weight)
{
    for (int i = (int)threadIdx.x; i < HEADS * 64; i += HEADS * 32) {
        const int t = i / HEADS, k = i % HEADS;
        const bool some = t < chunk.nt && h0 + k < nh;
        const int64_t at = (chunk.at + t) * nh + h0 + k;
        const float weight = some ? (w ? w[at] : 1.0f) : 0.0f;
        to[0][k][t] = some ? da[at] : 0.0f;
        to[1][k][t] = weight;
        to[2][k][t] = some && diag_weight ? diag_weight[at] : weight;
    }
    __syncthreads();
}

/* A factor of the lane's two tokens, for all of their ranks. */
static __device__ __forceinline__ void write_rows(float *out, int kind, int nm, int lane, float first, float second)
{
    if (nm == 1) {
        *(float2 *)(out + kind * 64 + lane * 2) = make_float2(first, second);
        return;
    }
    for (int m = 0; m < 2 * nm && lane * 2 * nm + m < 64; m++)
        out[kind * 64 + lane * 2 * nm + m] = m < nm ? first : second;
}

/* Prefix sums of da in double: differences of two of them keep their precision whatever came before. */
static __global__ void __launch_bounds__(HEADS * 32)
    write_factors(const kr_ssd_map map, int64_t nh, int nm, const float *da, const float *w, const float *diag_weight,
                  float *factors)
{
    __shared__ __align__(16) float scalars[3][HEADS][STRIDE];
    const int64_t n = blockIdx.x, h0 = (int64_t)blockIdx.y * HEADS;
    const int lane = (int)threadIdx.x & 31, head = (int)threadIdx.x / 32;
    load_scalars(scalars, kr_ssd_chunk_of(map, n), nh, h0, da, w, diag_weight);
    if (h0 + head >= nh) return;
    const float2 steps = *(const float2 *)&scalars[0][head][lane * 2],
                 weight = *(const float2 *)&scalars[1][head][lane * 2],
                 own = *(const float2 *)&scalars[2][head][lane * 2];
    double prefix = (double)steps.x + (double)steps.y;
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(~0u, prefix, step);
        if (lane >= step) prefix += other;
    }
    const double end = __shfl_sync(~0u, prefix, 31);
    prefix = __shfl_up_sync(~0u, prefix, 1);
    if (lane == 0) prefix = 0;
    const double a = prefix + (double)steps.x, b = a + (double)steps.y;
    const float decay_out[2] = { expf((float)(end - a)), expf((float)(end - b)) };
    float *out = factors + (n * nh + h0 + head) * KR_SSD_FACTORS * 64;
    write_rows(out, KR_SSD_A2, nm, lane, (float)(a * 1.4426950408889634), (float)(b * 1.4426950408889634));
    write_rows(out, KR_SSD_DECAY_IN, nm, lane, expf((float)a), expf((float)b));
    write_rows(out, KR_SSD_DECAY_OUT_W, nm, lane, decay_out[0] * weight.x, decay_out[1] * weight.y);
    write_rows(out, KR_SSD_DECAY_OUT, nm, lane, decay_out[0], decay_out[1]);
    write_rows(out, KR_SSD_W, nm, lane, weight.x, weight.y);
    write_rows(out, KR_SSD_DIAG_WEIGHT, nm, lane, own.x, own.y);
}

void kr_ssd_factors_make(const kr_ssd_dims *d, const kr_ssd_map *map, const float *da, const float *w,
                         const float *diag_weight, float *factors, cudaStream_t stream)
{
    if (d->chunks == 0) return;
    dim3 grid((unsigned)d->chunks, (unsigned)((d->nh + HEADS - 1) / HEADS));
    write_factors<<<grid, HEADS * 32, 0, stream>>>(*map, d->nh, (int)d->nm, da, w, diag_weight, factors);
}

static void clear(void *x, int64_t count, size_t size, cudaStream_t stream)
{
    if (x && count) cudaMemsetAsync(x, 0, (size_t)count * size, stream);
}

void kr_ssd_clear(const kr_ssd_bwd_args *a, size_t element, cudaStream_t stream)
{
    const int64_t tokens = a->nb * a->ns, scalars = tokens * a->nh, bc = tokens * a->nm * a->ng * a->nr;
    const size_t of_v = kr_is_16bit(a->g_v.dtype) ? 2 : element, bc_bytes = kr_is_16bit(a->g_b.dtype) ? 2 : element;
    const size_t width = (size_t)(a->nm * a->nh * a->np) * of_v, line = (size_t)a->g_v.row * of_v;
    if (a->g_v.data && width && tokens) cudaMemset2DAsync(a->g_v.data, line, 0, width, (size_t)tokens, stream);
    clear(a->g_b.data, bc, bc_bytes, stream);
    clear(a->g_c.data, bc, bc_bytes, stream);
    clear(a->g_da, scalars, element, stream);
    clear(a->g_w, scalars, element, stream);
    clear(a->g_diag_weight, scalars, element, stream);
    clear(a->g_angle, scalars * a->na, element, stream);
}
