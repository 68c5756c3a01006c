/* ssd_bwd_cuda.cu - gradients of the SSD core: dispatch, scratch and final reductions.
 *
 *   bf16 precision        tensor cores (tensor_core/ssd_grads*.cu, rotary/ssd_rotary_bwd.cu); f32 operands are cast first
 *   others                tiled (tiled/ssd_tiled_bwd.cu); bf16 operands are widened first, bf16 results cast after it
 *   more than 64 ranks    naive (naive/ssd_naive_bwd.cu)
 */
#include "kernels/cuda/ssd/naive/ssd_naive.cuh"
#include "kernels/cuda/ssd/ssd_cuda.h"
#include "kernels/cuda/ssd/tensor_core/ssd_grads.cuh"
#include "kernels/cuda/ssd/ssd_cast.cuh"
#include "kernels/cuda/ssd/tensor_core/ssd_states.cuh"
#include "kernels/cuda/ssd/ssd_reduce.cuh"
#include "kernels/cuda/ssd/tiled/ssd_tiled.cuh"
#include "kernels/cuda/ssd/rotary/ssd_rotary.cuh"

#include <cuda_bf16.h>

typedef __nv_bfloat16 bf16;

static bool fits_tensor_cores(const kr_ssd_bwd_args *a, const kr_ssd_dims *d)
{
    if (a->angle && !kr_ssd_rotate_fits(a, d)) return false;
    return a->nm >= 1 && a->nm <= 64 && a->nr >= 1 && a->nr <= 256 && a->np >= 1 && kr_ssd_grads_fits(d);
}

typedef struct scratch {
    kr_ssd_map map;
    float *factors, *part_b, *part_c, *part_d;
    float *slices[3]; /* g_da, g_w, g_diag_weight per slice of p, if there are several */
    bf16 *states, *g_states, *low, *g_low;
    int64_t block, blocks; /* of heads */
} scratch;

/* With one B and C per head, these may have been rotated by angles that accumulate over the tokens (Mamba-3). The gradient
 * of such an angle is a difference of what g_b and g_c contribute for all later tokens, and is only as exact as these are
 * consistent: H in g_c and G in g_b must then be the states before rounding to bf16. */
static bool needs_low(const kr_ssd_bwd_args *a)
{
    return !kr_is_16bit(a->g_b.dtype) && a->ng == a->nh && (a->g_b.data || a->g_c.data);
}

static scratch take_scratch(const kr_ssd_bwd_args *a, const kr_ssd_dims *d, kr_cuda_scratch *m)
{
    scratch s = {};
    int64_t heads = d->heads / a->ng, bc = a->nb * a->ns * a->nm * a->ng * a->nr * (int64_t)sizeof(float);
    s.blocks = (heads + KR_SSD_HEADS - 1) / KR_SSD_HEADS;
    s.block = s.blocks ? (heads + s.blocks - 1) / s.blocks : 0;
    s.map = kr_ssd_map_make(d, a->sequences, m, (cudaStream_t)a->exec.stream);
    s.factors = (float *)kr_scratch_take(m, kr_ssd_factors_bytes(d));
    s.states = (bf16 *)kr_scratch_take(m, kr_ssd_states_bytes(d));
    s.g_states = (bf16 *)kr_scratch_take(m, kr_ssd_states_bytes(d));
    if (needs_low(a)) {
        s.low = (bf16 *)kr_scratch_take(m, kr_ssd_states_bytes(d));
        s.g_low = (bf16 *)kr_scratch_take(m, kr_ssd_states_bytes(d));
    }
    s.part_d = (float *)kr_scratch_take(m, d->chunks * d->heads * (int64_t)sizeof(float));
    if (s.blocks > 1 && a->g_b.data) s.part_b = (float *)kr_scratch_take(m, s.blocks * bc);
    if (s.blocks > 1 && a->g_c.data) s.part_c = (float *)kr_scratch_take(m, s.blocks * bc);
    const void *wanted[3] = { a->g_da, a->g_w, a->g_diag_weight };
    for (int i = 0; i < 3; i++)
        if (d->slices > 1 && wanted[i])
            s.slices[i] = (float *)kr_scratch_take(m, d->slices * a->nb * a->ns * a->nh * (int64_t)sizeof(float));
    return s;
}

static void run_states(const kr_ssd_bwd_args *a, const kr_ssd_dims *d, const scratch *s)
{
    kr_ssd_walk w = {};
    w.map = s->map;
    w.nm = (int)a->nm, w.np = (int)a->np, w.nr = (int)a->nr, w.r_line = (int)d->r_line, w.slices = (int)d->slices;
    w.nh = a->nh, w.ng = a->ng;
    w.factors = s->factors;
    w.x = (const bf16 *)a->v.data, w.x_stride = a->v.row, w.x_aligned = kr_ssd_aligned(a->v.data, a->v.row, a->np);
    w.bc = (const bf16 *)a->b.data, w.bc_stride = a->b.row;
    w.bc_aligned = kr_ssd_aligned(a->b.data, a->b.row, a->nr);
    w.start = (const float *)a->initial;
    w.states = s->states, w.low = s->low;
    kr_ssd_walk back = w;
    back.back = true;
    back.x = (const bf16 *)a->g_y.data, back.x_stride = a->nm * a->nh * a->np;
    back.x_aligned = kr_ssd_aligned(a->g_y.data, 0, a->np);
    back.bc = (const bf16 *)a->c.data, back.bc_stride = a->c.row;
    back.bc_aligned = kr_ssd_aligned(a->c.data, a->c.row, a->nr);
    back.start = (const float *)a->g_final;
    back.states = s->g_states, back.low = s->g_low;
    back.end = (float *)a->g_initial;
    kr_ssd_walk_both(&w, &back, d, (cudaStream_t)a->exec.stream);
}

/* Several chunks per CTA if a chunk has little work: the next one is loaded while one is processed. The bits do not change.
 */
static int64_t chunks_per_cta(const kr_ssd_dims *d, const scratch *s)
{
    const int64_t items = 8, units = d->chunks * d->ng * s->blocks;
    const int64_t fill = 4 * d->limits.processors;
    int64_t chunks = s->block < items ? (items + s->block - 1) / s->block : 1;
    while (chunks > 1 && units / chunks < fill) chunks--;
    return chunks;
}

static void run_grads(const kr_ssd_bwd_args *a, const kr_ssd_dims *d, const scratch *s)
{
    kr_ssd_grads o = kr_ssd_grads_of(a);
    o.map = s->map;
    o.slices = (int)d->slices;
    o.heads_of_group = (int)(d->heads / a->ng), o.block = (int)s->block;
    o.chunks = (int)chunks_per_cta(d, s);
    o.factors = s->factors;
    o.states = s->states, o.g_states = s->g_states, o.low = s->low, o.g_low = s->g_low;
    o.part_b = s->part_b, o.part_c = s->part_c, o.part_d = s->part_d;
    if (s->slices[0]) o.g_da = s->slices[0];
    if (s->slices[1]) o.g_w = s->slices[1];
    if (s->slices[2]) o.g_diag_weight = s->slices[2];
    kr_ssd_grads_run(&o, d, (cudaStream_t)a->exec.stream);
}

template <typename T> static void run_sums(const kr_ssd_bwd_args *a, const kr_ssd_dims *d, const scratch *s)
{
    cudaStream_t stream = (cudaStream_t)a->exec.stream;
    const int64_t tokens = a->nb * a->ns, bc = a->nm * a->ng * a->nr;
    float *scalars[3] = { (float *)a->g_da, (float *)a->g_w, (float *)a->g_diag_weight };
    kr_ssd_add_both<T>(&s->map, bc, { s->part_b, (T *)a->g_b.data }, { s->part_c, (T *)a->g_c.data }, s->blocks,
                       tokens * bc, stream);
    for (int i = 0; i < 3; i++)
        kr_ssd_add_parts(&s->map, a->nh, s->slices[i], d->slices, tokens * a->nh, scalars[i], stream);
    kr_ssd_add_d(s->part_d, d->chunks, a->nh, d->slices, (float *)a->g_d, stream);
}

/* The arguments with f32 operands cast to bf16. */
static kr_ssd_bwd_args cast_args(const kr_ssd_bwd_args *a, kr_cuda_scratch *m)
{
    kr_ssd_casts r = {};
    kr_ssd_bwd_args n = *a;
    kr_ssd_cast_operands(&n, &r, m, false);
    if (!kr_is_16bit(a->g_y.dtype))
        n.g_y.data = kr_ssd_cast_add(&r, m, false, a->g_y.data, a->nb * a->ns, a->nm * a->nh * a->np, NULL);
    n.g_y.dtype = KR_DTYPE_BF16;
    if (m->base) kr_ssd_casts_run(&r, (cudaStream_t)a->exec.stream);
    return n;
}

static size_t tensor_core_scratch(const kr_ssd_bwd_args *a, const kr_ssd_dims *d)
{
    kr_cuda_scratch m = { NULL, 0 };
    const kr_ssd_bwd_args n = cast_args(a, &m);
    if (a->angle) kr_ssd_rotary_bwd(&n, &m);
    else take_scratch(&n, d, &m);
    return m.used;
}

static void run_tensor_core(const kr_ssd_bwd_args *given, const kr_ssd_dims *d)
{
    cudaStream_t stream = (cudaStream_t)given->exec.stream;
    kr_cuda_scratch m = { (char *)given->exec.scratch, 0 };
    const kr_ssd_bwd_args a = cast_args(given, &m);
    if (!d->covered) kr_ssd_clear(&a, sizeof(float), stream);
    if (a.angle) {
        kr_ssd_rotary_bwd(&a, &m);
        return;
    }
    const scratch s = take_scratch(&a, d, &m);
    kr_ssd_factors_make(d, &s.map, (const float *)a.da, (const float *)a.w, (const float *)a.diag_weight, s.factors,
                        stream);
    run_states(&a, d, &s);
    run_grads(&a, d, &s);
    if (kr_is_16bit(a.g_b.dtype)) run_sums<bf16>(&a, d, &s);
    else run_sums<float>(&a, d, &s);
}

/* In arithmetic of F. */
template <typename F> static size_t exact_scratch(const kr_ssd_bwd_args *a)
{
    return kr_ssd_tiled_fits(a->nm, a->np, a->nr) ? kr_ssd_tiled_bwd_scratch<F>(a) : kr_ssd_naive_bwd_scratch<F>(a);
}

template <typename F> static void run_exact(const kr_ssd_bwd_args *a)
{
    if (kr_ssd_tiled_fits(a->nm, a->np, a->nr)) kr_ssd_tiled_bwd<F>(a);
    else kr_ssd_naive_bwd<F>(a);
}

/* Does the tensor-core path apply, with f32 operands rounded to bf16? */
static bool uses_tensor_cores(const kr_ssd_bwd_args *a, const kr_ssd_dims *d)
{
    return a->exec.precision == KR_PRECISION_BF16 && fits_tensor_cores(a, d);
}

/* The arguments in f32; their scratch is the rest of m's. */
static kr_ssd_bwd_args widened_args(const kr_ssd_bwd_args *a, const kr_ssd_dims *d, kr_cuda_scratch *m,
                                    kr_ssd_results *r)
{
    kr_ssd_bwd_args n = *a;
    kr_ssd_casts o = {};
    const int64_t tokens = a->nb * a->ns, values = a->nm * a->nh * a->np, bc = a->nm * a->ng * a->nr;
    kr_ssd_cast_operands(&n, &o, m, true);
    if (kr_is_16bit(a->g_y.dtype)) n.g_y.data = kr_ssd_cast_add(&o, m, true, a->g_y.data, tokens, values, NULL);
    if (m->base) kr_ssd_casts_run(&o, (cudaStream_t)a->exec.stream);
    if (a->g_v.data && (kr_is_16bit(a->g_v.dtype) || a->g_v.row != values))
        n.g_v.data = kr_ssd_result_add(r, m, a->g_v.data, tokens, values, a->g_v.row, a->g_v.dtype);
    if (a->g_b.data && kr_is_16bit(a->g_b.dtype))
        n.g_b.data = kr_ssd_result_add(r, m, a->g_b.data, tokens, bc, bc, a->g_b.dtype);
    if (a->g_c.data && kr_is_16bit(a->g_c.dtype))
        n.g_c.data = kr_ssd_result_add(r, m, a->g_c.data, tokens, bc, bc, a->g_c.dtype);
    n.g_y.dtype = n.g_v.dtype = n.g_b.dtype = n.g_c.dtype = KR_DTYPE_F32;
    n.g_v.row = values;
    if (r->count) r->map = kr_ssd_map_make(d, a->sequences, m, (cudaStream_t)a->exec.stream);
    n.exec.scratch = m->base + m->used;
    return n;
}

size_t kr_cuda_f32_ssd_bwd_scratch(const kr_ssd_bwd_args *a)
{
    kr_ssd_dims d = kr_ssd_dims_of(a);
    if (uses_tensor_cores(a, &d)) return tensor_core_scratch(a, &d);
    if (a->angle) return kr_ssd_rotate_separate_bwd_scratch<float>(a);
    kr_cuda_scratch m = { NULL, 0 };
    kr_ssd_results r = {};
    const kr_ssd_bwd_args n = widened_args(a, &d, &m, &r);
    return m.used + exact_scratch<float>(&n);
}

void kr_cuda_f32_ssd_bwd(const kr_ssd_bwd_args *a)
{
    kr_ssd_dims d = kr_ssd_dims_of(a);
    if (uses_tensor_cores(a, &d)) {
        run_tensor_core(a, &d);
        return;
    }
    if (a->angle) {
        kr_ssd_rotate_separate_bwd<float>(a);
        return;
    }
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    kr_ssd_results r = {};
    const kr_ssd_bwd_args n = widened_args(a, &d, &m, &r);
    if (r.count && !d.covered) kr_ssd_clear(a, sizeof(float), (cudaStream_t)a->exec.stream);
    run_exact<float>(&n);
    kr_ssd_results_store(&r, (cudaStream_t)a->exec.stream);
}

size_t kr_cuda_f64_ssd_bwd_scratch(const kr_ssd_bwd_args *a)
{
    return a->angle ? kr_ssd_rotate_separate_bwd_scratch<double>(a) : exact_scratch<double>(a);
}

void kr_cuda_f64_ssd_bwd(const kr_ssd_bwd_args *a)
{
    if (a->angle) kr_ssd_rotate_separate_bwd<double>(a);
    else run_exact<double>(a);
}
