/* ssd_rotary_bwd.cu - gradients of the SSD core with rotary embedding, on tensor cores: slices of batch rows one after
 * another, to bound the memory of the states between chunks; and the final reductions. sm_90a. */
#include "kernels/cuda/prim/column_sum.cuh"
#include "kernels/cuda/ssd/tensor_core/ssd_grads.cuh"
#include "kernels/cuda/ssd/tensor_core/ssd_states.cuh"
#include "kernels/cuda/ssd/ssd_reduce.cuh"
#include "kernels/cuda/ssd/rotary/ssd_rotary.cuh"

typedef __nv_bfloat16 bf16;

enum { STATES_BYTES = 256 << 20 }; /* of H and G together, unless a row has more */

/* A slice of batch rows, with its arguments. */
typedef struct slice {
    kr_ssd_bwd_args a;
    kr_ssd_dims d;
    int64_t chunk; /* the first */
} slice;

typedef struct scratch {
    kr_ssd_map map;
    float *factors, *part_b, *part_c, *edges, *part_bias[2];
    bf16 *states, *g_states;
    int64_t block, blocks; /* of heads */
} scratch;

static void *offset_pointer(const void *x, int64_t bytes)
{
    return x ? (char *)(uintptr_t)x + bytes : NULL;
}

/* Rows row0 .. row0+rows-1, whose sequences are those from q0 on; advances q0 and chunk past them. */
static slice slice_of(const kr_ssd_bwd_args *all, int64_t row0, int64_t rows, int64_t *q0, int64_t *chunk)
{
    slice s = { *all, {}, *chunk };
    kr_ssd_bwd_args *a = &s.a;
    const int64_t at = row0 * a->ns, of_v = kr_is_16bit(a->g_v.dtype) ? 2 : 4,
                  bc_bytes = kr_is_16bit(a->g_b.dtype) ? 2 : 4;
    const int64_t state = *q0 * a->nh * a->np * a->nr * 4;
    int64_t q = *q0;
    while (q < all->nq && all->sequences[q].row < row0 + rows) q++;
    a->nb = rows, a->nq = q - *q0, a->sequences += *q0;
    a->v.data = offset_pointer(a->v.data, at * a->v.row * 2), a->b.data = offset_pointer(a->b.data, at * a->b.row * 2);
    a->c.data = offset_pointer(a->c.data, at * a->c.row * 2),
    a->g_y.data = offset_pointer(a->g_y.data, at * a->nh * a->np * 2);
    a->da = offset_pointer(a->da, at * a->nh * 4), a->w = offset_pointer(a->w, at * a->nh * 4),
    a->diag_weight = offset_pointer(a->diag_weight, at * a->nh * 4);
    a->initial = offset_pointer(a->initial, state), a->g_final = offset_pointer(a->g_final, state);
    a->g_initial = offset_pointer(a->g_initial, state);
    a->g_v.data = offset_pointer(a->g_v.data, at * a->g_v.row * of_v);
    a->g_b.data = offset_pointer(a->g_b.data, at * a->ng * a->nr * bc_bytes),
    a->g_c.data = offset_pointer(a->g_c.data, at * a->ng * a->nr * bc_bytes);
    a->g_da = offset_pointer(a->g_da, at * a->nh * 4), a->g_w = offset_pointer(a->g_w, at * a->nh * 4);
    a->g_diag_weight = offset_pointer(a->g_diag_weight, at * a->nh * 4);
    a->angle = offset_pointer(a->angle, at * a->nh * a->na * 4),
    a->g_angle = offset_pointer(a->g_angle, at * a->nh * a->na * 4);
    s.d = kr_ssd_dims_of(a, row0);
    *q0 = q, *chunk += s.d.chunks;
    return s;
}

/* Rows per slice: depends on the sizes alone. */
static int64_t rows_of_slice(const kr_ssd_bwd_args *a, const kr_ssd_dims *d)
{
    int64_t max_used = 1, row = -1, chunks = 0;
    for (int64_t q = 0; q < a->nq; q++) {
        const kr_sequence *s = &a->sequences[q];
        if (s->row != row) row = s->row, chunks = 0;
        chunks += (s->end - s->start + d->nt - 1) / d->nt;
        max_used = chunks > max_used ? chunks : max_used;
    }
    const int64_t rows = STATES_BYTES / (2 * max_used * d->heads * 64 * d->r_line * 2);
    return rows < 1 ? 1 : rows < a->nb ? rows : a->nb;
}

static scratch take_scratch(const slice *s, kr_cuda_scratch *m)
{
    const kr_ssd_bwd_args *a = &s->a;
    const kr_ssd_dims *d = &s->d;
    const int64_t heads = a->nh / a->ng, bc = a->nb * a->ns * a->ng * a->nr * (int64_t)sizeof(float);
    scratch n = {};
    n.blocks = (heads + KR_SSD_HEADS - 1) / KR_SSD_HEADS;
    n.block = (heads + n.blocks - 1) / n.blocks;
    n.map = kr_ssd_map_make(d, a->sequences, m, (cudaStream_t)a->exec.stream);
    n.factors = (float *)kr_scratch_take(m, kr_ssd_factors_bytes(d));
    n.states = (bf16 *)kr_scratch_take(m, kr_ssd_states_bytes(d));
    n.g_states = (bf16 *)kr_scratch_take(m, kr_ssd_states_bytes(d));
    n.edges = (float *)kr_scratch_take(m, d->chunks * a->nh * 2 * a->na * (int64_t)sizeof(float));
    for (int i = 0; i < 2; i++)
        n.part_bias[i] = (float *)kr_scratch_take(m, d->chunks * a->nh * a->nr * (int64_t)sizeof(float));
    if (n.blocks > 1 && a->g_b.data) n.part_b = (float *)kr_scratch_take(m, n.blocks * bc);
    if (n.blocks > 1 && a->g_c.data) n.part_c = (float *)kr_scratch_take(m, n.blocks * bc);
    return n;
}

static void run_states(const slice *s, const scratch *n)
{
    const kr_ssd_bwd_args *a = &s->a;
    kr_ssd_walk w = {};
    w.map = n->map;
    w.nm = 1, w.np = (int)a->np, w.nr = (int)a->nr, w.r_line = (int)s->d.r_line, w.slices = 1;
    w.nh = a->nh, w.ng = a->ng;
    w.factors = n->factors;
    w.exact = true;
    w.rotate = kr_ssd_rotate_of(a);
    kr_ssd_walk back = w;
    w.x = (const bf16 *)a->v.data, w.x_stride = a->v.row, w.x_aligned = kr_ssd_aligned(a->v.data, a->v.row, a->np);
    w.bc = (const bf16 *)a->b.data, w.bc_stride = a->b.row;
    w.bc_aligned = kr_ssd_aligned(a->b.data, a->b.row, a->nr);
    w.start = (const float *)a->initial;
    w.states = n->states;
    back.back = true;
    back.rotate.bias_b = back.rotate.bias_c;
    back.x = (const bf16 *)a->g_y.data, back.x_stride = a->nh * a->np,
    back.x_aligned = kr_ssd_aligned(a->g_y.data, 0, a->np);
    back.bc = (const bf16 *)a->c.data, back.bc_stride = a->c.row;
    back.bc_aligned = kr_ssd_aligned(a->c.data, a->c.row, a->nr);
    back.start = (const float *)a->g_final;
    back.states = n->g_states;
    back.end = (float *)a->g_initial;
    kr_ssd_walk_both(&w, &back, &s->d, (cudaStream_t)a->exec.stream);
}

static void run_grads(const slice *s, const scratch *n, float *part_d)
{
    const kr_ssd_bwd_args *a = &s->a;
    kr_ssd_grads o = kr_ssd_grads_of(a);
    o.map = n->map;
    o.slices = 1;
    o.heads_of_group = (int)(a->nh / a->ng), o.block = (int)n->block, o.chunks = 1;
    o.factors = n->factors;
    o.states = n->states, o.g_states = n->g_states;
    o.part_b = n->part_b, o.part_c = n->part_c, o.part_d = part_d + s->chunk * a->nh;
    o.rotate = kr_ssd_rotate_of(a);
    o.g_angle = (float *)a->g_angle, o.edges = n->edges;
    o.part_bias[0] = n->part_bias[0], o.part_bias[1] = n->part_bias[1];
    kr_ssd_grads_rotary(&o, &s->d, (cudaStream_t)a->exec.stream);
}

/* Adds half of the difference between the two values at a chunk edge (ssd_grads_rotary.cu) to the last token before it and
 * half to the first after it: their sum over all earlier tokens is then the mean of both. A CTA has some angles of the edge
 * after chunk n. */
static __global__ void average_edges(const kr_ssd_map map, int64_t nh, int64_t na, const float *edges, float *g_angle)
{
    const int64_t n = blockIdx.x, count = nh * na;
    const kr_ssd_chunk here = kr_ssd_chunk_of(map, n), next = kr_ssd_chunk_of(map, n + 1);
    if (here.q != next.q) return;
    float *last = g_angle + (here.at + here.nt - 1) * count, *first = g_angle + next.at * count;
    for (int64_t i = blockIdx.y * blockDim.x + threadIdx.x; i < count; i += gridDim.y * blockDim.x) {
        const int64_t at = i / na * 2 * na + i % na;
        const float half = 0.5f * (edges[n * 2 * count + at + na] - edges[(n + 1) * 2 * count + at]);
        last[i] += half;
        first[i] += half;
    }
}

/* One slice; part_bias: destination of its sums of g_bias, NULL: not wanted. */
static void run_slice(const slice *s, const scratch *n, float *part_d, float *const part_bias[2])
{
    const kr_ssd_bwd_args *a = &s->a;
    cudaStream_t stream = (cudaStream_t)a->exec.stream;
    const int64_t bc = a->ng * a->nr, count = a->nb * a->ns * bc;
    kr_ssd_factors_make(&s->d, &n->map, (const float *)a->da, (const float *)a->w, (const float *)a->diag_weight,
                        n->factors, stream);
    run_states(s, n);
    run_grads(s, n, part_d);
    if (!kr_is_16bit(a->g_b.dtype))
        kr_ssd_add_both<float>(&n->map, bc, { n->part_b, (float *)a->g_b.data }, { n->part_c, (float *)a->g_c.data },
                               n->blocks, count, stream);
    else
        kr_ssd_add_both<bf16>(&n->map, bc, { n->part_b, (bf16 *)a->g_b.data }, { n->part_c, (bf16 *)a->g_c.data },
                              n->blocks, count, stream);
    if (a->g_angle && s->d.chunks > 1)
        average_edges<<<dim3((unsigned)(s->d.chunks - 1), 8), 256, 0, stream>>>(n->map, a->nh, a->na, n->edges,
                                                                                (float *)a->g_angle);
    kr_column_sum_pair<float>(n->part_bias, s->d.chunks, a->nh * a->nr, part_bias, stream);
}

void kr_ssd_rotary_bwd(const kr_ssd_bwd_args *a, kr_cuda_scratch *m)
{
    const kr_ssd_dims d = kr_ssd_dims_of(a);
    const int64_t rows = rows_of_slice(a, &d), slices = a->nb ? (a->nb + rows - 1) / rows : 0, bias = a->nh * a->nr;
    cudaStream_t stream = (cudaStream_t)a->exec.stream;
    float *g_bias[2] = { (float *)a->g_bias_b, (float *)a->g_bias_c }, *parts[2];
    float *part_d = (float *)kr_scratch_take(m, d.chunks * a->nh * (int64_t)sizeof(float));
    for (int i = 0; i < 2; i++)
        parts[i] = slices > 1 ? (float *)kr_scratch_take(m, slices * bias * (int64_t)sizeof(float)) : NULL;
    const size_t before = m->used;
    size_t max_used = before;
    int64_t q = 0, chunk = 0;
    for (int64_t i = 0; i < slices; i++) {
        const int64_t row0 = i * rows;
        const slice s = slice_of(a, row0, a->nb - row0 < rows ? a->nb - row0 : rows, &q, &chunk);
        m->used = before;
        const scratch n = take_scratch(&s, m);
        if (m->used > max_used) max_used = m->used;
        float *const to[2] = { g_bias[0] && slices > 1 ? parts[0] + i * bias : g_bias[0],
                               g_bias[1] && slices > 1 ? parts[1] + i * bias : g_bias[1] };
        if (m->base) run_slice(&s, &n, part_d, to);
    }
    m->used = max_used;
    if (!m->base) return;
    if (slices > 1) kr_column_sum_pair<float>(parts, slices, bias, g_bias, stream);
    for (int i = 0; i < 2; i++)
        if (g_bias[i] && slices == 0) cudaMemsetAsync(g_bias[i], 0, (size_t)bias * sizeof(float), stream);
    kr_ssd_add_d(part_d, d.chunks, a->nh, 1, (float *)a->g_d, stream);
}
