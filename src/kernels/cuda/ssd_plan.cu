/* ssd_plan.cu - the tables of chunks and the factors of their tokens; contents in ssd_plan.cuh. */
#include "kernels/cuda/ssd_plan.cuh"

enum { SEQUENCES = 100 }; /* of one launch, by value: no host memory must outlive the call */

typedef struct sequences {
    int64_t at[SEQUENCES], tokens[SEQUENCES], chunk[SEQUENCES];
} sequences;

/* A block is a sequence. */
static __global__ void write_tables(const sequences s, int64_t q0, int64_t nt, kr_ssd_place *places, kr_ssd_span *spans)
{
    int64_t i = blockIdx.x, tokens = s.tokens[i], count = (tokens + nt - 1) / nt;
    if (threadIdx.x == 0) spans[q0 + i] = { s.chunk[i], count };
    for (int64_t n = threadIdx.x; n < count; n += blockDim.x) {
        int64_t left = tokens - n * nt;
        places[s.chunk[i] + n] = { s.at[i] + n * nt, (int32_t)(q0 + i), (int32_t)(left < nt ? left : nt) };
    }
}

kr_ssd_map kr_ssd_map_make(const kr_ssd_dims *d, const kr_sequence *list, kr_ssd_memory *m, cudaStream_t stream)
{
    kr_ssd_map map = { d->ns, d->nt, (d->ns + d->nt - 1) / d->nt, d->chunks, NULL, NULL };
    if (d->rows) return map;
    kr_ssd_place *places = (kr_ssd_place *)kr_ssd_take(m, d->chunks * (int64_t)sizeof(kr_ssd_place));
    kr_ssd_span *spans = (kr_ssd_span *)kr_ssd_take(m, d->nq * (int64_t)sizeof(kr_ssd_span));
    map.places = places;
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
        write_tables<<<(unsigned)count, 64, 0, stream>>>(s, q0, d->nt, places, spans);
    }
    return map;
}

enum { HEADS = 8 }; /* of a block, a warp each: they share the sectors of a token */

/* Sums of da in double: a difference of two of them keeps its digits whatever came before. */
static __global__ void __launch_bounds__(HEADS * 32)
    write_factors(const kr_ssd_map map, int64_t nh, int nm, const float *da, const float *w, const float *same,
                  float *factors)
{
    int64_t n = blockIdx.x, h = (int64_t)blockIdx.y * HEADS + threadIdx.x / 32;
    int lane = (int)threadIdx.x & 31;
    if (h >= nh) return;
    kr_ssd_place place = kr_ssd_place_of(map, n);
    double sum[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        int t = lane * 2 + k;
        if (t < place.nt) sum[k] = (double)da[(place.at + t) * nh + h];
    }
    double pair = sum[0] + sum[1], before = pair;
    for (int step = 1; step < 32; step *= 2) {
        double other = __shfl_up_sync(~0u, before, step);
        if (lane >= step) before += other;
    }
    double end = __shfl_sync(~0u, before, 31);
    before = __shfl_up_sync(~0u, before, 1);
    if (lane == 0) before = 0;
    float *out = factors + (n * nh + h) * KR_SSD_FACTORS * 64;
    for (int k = 0; k < 2; k++) {
        int t = lane * 2 + k;
        double a = before + sum[0] + (k ? sum[1] : 0.0);
        bool some = t < place.nt;
        float weight = some ? (w ? w[(place.at + t) * nh + h] : 1.0f) : 0.0f;
        float own = some && same ? same[(place.at + t) * nh + h] : weight;
        float enter = expf((float)a), leave = expf((float)(end - a));
        for (int m = 0; m < nm; m++) {
            int f = t * nm + m;
            if (f >= 64) break;
            out[KR_SSD_A2 * 64 + f] = (float)(a * 1.4426950408889634);
            out[KR_SSD_ENTER * 64 + f] = enter;
            out[KR_SSD_STAY * 64 + f] = leave * weight;
            out[KR_SSD_LEAVE * 64 + f] = leave;
            out[KR_SSD_W * 64 + f] = weight;
            out[KR_SSD_SAME * 64 + f] = own;
        }
    }
}

void kr_ssd_factors_make(const kr_ssd_dims *d, const kr_ssd_map *map, const float *da, const float *w,
                         const float *same, float *factors, cudaStream_t stream)
{
    if (d->chunks == 0) return;
    dim3 grid((unsigned)d->chunks, (unsigned)((d->nh + HEADS - 1) / HEADS));
    write_factors<<<grid, HEADS * 32, 0, stream>>>(*map, d->nh, (int)d->nm, da, w, same, factors);
}

static void clear(void *x, int64_t count, size_t size, cudaStream_t stream)
{
    if (x && count) cudaMemsetAsync(x, 0, (size_t)count * size, stream);
}

void kr_ssd_clear(const kr_ssd_bwd_args *a, size_t element, cudaStream_t stream)
{
    const int64_t tokens = a->nb * a->ns, scalars = tokens * a->nh, maps = tokens * a->nm * a->ng * a->nr;
    const size_t of_v = a->g_v_place.half ? 2 : element, of_maps = a->g_maps_half ? 2 : element;
    const size_t width = (size_t)(a->nm * a->nh * a->np) * of_v, gap = (size_t)a->g_v_place.gap * of_v;
    if (a->g_v && width && tokens) cudaMemset2DAsync(a->g_v, width + gap, 0, width, (size_t)tokens, stream);
    clear(a->g_b, maps, of_maps, stream);
    clear(a->g_c, maps, of_maps, stream);
    clear(a->g_da, scalars, element, stream);
    clear(a->g_w, scalars, element, stream);
    clear(a->g_same, scalars, element, stream);
    clear(a->g_angle, scalars * a->na, element, stream);
}
