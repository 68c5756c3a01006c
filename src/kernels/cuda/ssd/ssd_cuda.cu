/* ssd_cuda.cu - the SSD core, forward: dispatch and scratch.
 *
 *   a few tokens a row    the recurrence (ssd_recurrence.cu)
 *   bf16 precision        tensor cores (tensor_core/ssd_forward*.cu); f32 operands are cast first
 *   others                tiled (tiled/ssd_tiled.cu); bf16 operands are widened first, and y is cast after it
 *   more than 64 ranks    naive (naive/ssd_naive.cu)
 */
#include "kernels/cuda/ssd/naive/ssd_naive.cuh"
#include "kernels/cuda/ssd/ssd_cuda.h"
#include "kernels/cuda/ssd/tensor_core/ssd_forward.cuh"
#include "kernels/cuda/ssd/ssd_cast.cuh"
#include "kernels/cuda/ssd/tensor_core/ssd_states.cuh"
#include "kernels/cuda/ssd/ssd_recurrence.cuh"
#include "kernels/cuda/ssd/tiled/ssd_tiled.cuh"
#include "kernels/cuda/ssd/rotary/ssd_rotary.cuh"

#include <cuda_bf16.h>

typedef __nv_bfloat16 bf16;

/* Do the tensor-core kernels support these sizes? */
static bool fits_tensor_cores(const kr_ssd_args *a, const kr_ssd_dims *d)
{
    if (a->angle && !kr_ssd_rotate_fits(a, d)) return false;
    return a->nm >= 1 && a->nm <= 64 && a->nr >= 1 && a->nr <= 256 && a->np >= 1 && kr_ssd_forward_fits(d);
}

typedef struct scratch {
    kr_ssd_map map;
    float *factors, *segment_states;
    int64_t segments, every;
} scratch;

/* Sequences are split into segments if they alone do not fill the device. The states between segments come from the same
 * operations in the same order as without them: the split changes no bits. */
static void split_segments(const kr_ssd_args *a, const kr_ssd_dims *d, scratch *s)
{
    int64_t max_chunks = 1, units = d->nq * d->heads, slots = kr_ssd_forward_slots(d);
    for (int64_t q = 0; q < d->nq; q++) {
        int64_t chunks = (a->sequences[q].end - a->sequences[q].start + d->nt - 1) / d->nt;
        max_chunks = chunks > max_chunks ? chunks : max_chunks;
    }
    s->segments = units > 0 && units * 3 < slots * 2 ? slots / units : 1;
    if (s->segments * 4 > max_chunks) s->segments = max_chunks / 4;
    if (s->segments < 1) s->segments = 1;
    s->every = (max_chunks + s->segments - 1) / s->segments;
    s->segments = (max_chunks + s->every - 1) / s->every;
}

static scratch take_scratch(const kr_ssd_args *a, const kr_ssd_dims *d, kr_cuda_scratch *m)
{
    scratch s = {};
    split_segments(a, d, &s);
    s.map = kr_ssd_map_make(d, a->sequences, m, (cudaStream_t)a->exec.stream);
    s.factors = (float *)kr_scratch_take(m, kr_ssd_factors_bytes(d));
    if (s.segments > 1)
        s.segment_states =
            (float *)kr_scratch_take(m, d->nq * s.segments * d->heads * 64 * d->r_line * (int64_t)sizeof(float));
    return s;
}

static void run_states(const kr_ssd_args *a, const kr_ssd_dims *d, const scratch *s)
{
    kr_ssd_walk w = {};
    w.map = s->map;
    w.nm = (int)a->nm, w.np = (int)a->np, w.nr = (int)a->nr, w.r_line = (int)d->r_line, w.slices = (int)d->slices;
    w.nh = a->nh, w.ng = a->ng;
    w.x = (const bf16 *)a->v.data, w.x_stride = a->v.row, w.x_aligned = kr_ssd_aligned(a->v.data, a->v.row, a->np);
    w.bc = (const bf16 *)a->b.data, w.bc_stride = a->b.row;
    w.bc_aligned = kr_ssd_aligned(a->b.data, a->b.row, a->nr);
    w.factors = s->factors;
    w.start = (const float *)a->initial;
    w.boundary = (const float *)a->boundary, w.boundary_v = (const bf16 *)a->boundary_v,
    w.boundary_b = (const bf16 *)a->boundary_b;
    w.rotate = kr_ssd_rotate_of(a);
    w.segment_states = s->segment_states, w.segments = (int)s->segments, w.every = (int)s->every;
    kr_ssd_walk_run(&w, d, (cudaStream_t)a->exec.stream);
}

static void run_forward(const kr_ssd_args *a, const kr_ssd_dims *d, const scratch *s)
{
    const bool wide = !kr_is_16bit(a->y.dtype);
    kr_ssd_forward o = {};
    o.map = s->map;
    o.nm = (int)a->nm, o.np = (int)a->np, o.nr = (int)a->nr, o.slices = (int)d->slices;
    o.nh = a->nh, o.ng = a->ng, o.nq = a->nq;
    o.segments = (int)s->segments, o.every = (int)s->every;
    o.v = (const bf16 *)a->v.data, o.b = (const bf16 *)a->b.data, o.c = (const bf16 *)a->c.data;
    o.v_stride = a->v.row, o.b_stride = a->b.row, o.c_stride = a->c.row;
    o.v_aligned = kr_ssd_aligned(a->v.data, a->v.row, a->np);
    o.b_aligned = kr_ssd_aligned(a->b.data, a->b.row, a->nr);
    o.c_aligned = kr_ssd_aligned(a->c.data, a->c.row, a->nr);
    o.y_aligned = wide ? kr_ssd_paired(a->y.data, a->np) : kr_ssd_aligned(a->y.data, 0, a->np);
    o.factors = s->factors, o.d = (const float *)a->d;
    o.start = (const float *)a->initial;
    o.boundary = (const float *)a->boundary, o.boundary_v = (const bf16 *)a->boundary_v,
    o.boundary_b = (const bf16 *)a->boundary_b;
    o.rotate = kr_ssd_rotate_of(a);
    o.segment_states = s->segment_states;
    o.y = a->y.data, o.wide = wide, o.end = (float *)a->final;
    kr_ssd_forward_run(&o, d, (cudaStream_t)a->exec.stream);
}

/* The arguments with f32 operands cast to bf16. */
static kr_ssd_args cast_args(const kr_ssd_args *a, kr_cuda_scratch *m)
{
    kr_ssd_casts r = {};
    kr_ssd_args n = *a;
    kr_ssd_cast_operands(&n, &r, m, false);
    if (a->boundary) {
        n.boundary_v = kr_ssd_cast_add(&r, m, false, a->boundary_v, a->nq, a->nm * a->nh * a->np, NULL);
        n.boundary_b = kr_ssd_cast_add(&r, m, false, a->boundary_b, a->nq, a->nm * a->nh * a->nr, NULL);
    }
    if (m->base) kr_ssd_casts_run(&r, (cudaStream_t)a->exec.stream);
    return n;
}

static size_t tensor_core_scratch(const kr_ssd_args *a, const kr_ssd_dims *d)
{
    kr_cuda_scratch m = { NULL, 0 };
    cast_args(a, &m);
    take_scratch(a, d, &m);
    return m.used;
}

static void run_tensor_core(const kr_ssd_args *given, const kr_ssd_dims *d)
{
    kr_cuda_scratch m = { (char *)given->exec.scratch, 0 };
    const kr_ssd_args a = cast_args(given, &m);
    const scratch s = take_scratch(&a, d, &m);
    kr_ssd_factors_make(d, &s.map, (const float *)a.da, (const float *)a.w, (const float *)a.diag_weight, s.factors,
                        (cudaStream_t)a.exec.stream);
    if (s.segments > 1) run_states(&a, d, &s);
    run_forward(&a, d, &s);
}

/* In arithmetic of F. */
template <typename F> static size_t exact_scratch(const kr_ssd_args *a)
{
    if (kr_ssd_recurrence_fits(a)) return kr_ssd_recurrence_scratch(a);
    return kr_ssd_tiled_fits(a->nm, a->np, a->nr) ? kr_ssd_tiled_scratch<F>(a) : kr_ssd_naive_scratch<F>(a);
}

template <typename F> static void run_exact(const kr_ssd_args *a)
{
    if (kr_ssd_recurrence_fits(a)) kr_ssd_recurrence<F>(a);
    else if (kr_ssd_tiled_fits(a->nm, a->np, a->nr)) kr_ssd_tiled<F>(a);
    else kr_ssd_naive<F>(a);
}

/* Does the tensor-core path apply, with f32 operands rounded to bf16? */
static bool uses_tensor_cores(const kr_ssd_args *a, const kr_ssd_dims *d)
{
    return a->exec.precision == KR_PRECISION_BF16 && fits_tensor_cores(a, d) && !kr_ssd_recurrence_fits(a);
}

/* The arguments in f32; their scratch is the rest of m's. */
static kr_ssd_args widened_args(const kr_ssd_args *a, const kr_ssd_dims *d, kr_cuda_scratch *m, kr_ssd_results *r)
{
    kr_ssd_args n = *a;
    kr_ssd_casts o = {};
    kr_ssd_cast_operands(&n, &o, m, true);
    if (m->base) kr_ssd_casts_run(&o, (cudaStream_t)a->exec.stream);
    const int64_t values = a->nm * a->nh * a->np;
    if (kr_is_16bit(a->y.dtype))
        n.y.data = kr_ssd_result_add(r, m, a->y.data, a->nb * a->ns, values, values, a->y.dtype);
    n.y.dtype = KR_DTYPE_F32;
    if (r->count) r->map = kr_ssd_map_make(d, a->sequences, m, (cudaStream_t)a->exec.stream);
    n.exec.scratch = m->base + m->used;
    return n;
}

size_t kr_cuda_f32_ssd_scratch(const kr_ssd_args *a)
{
    kr_ssd_dims d = kr_ssd_dims_of(a);
    if (uses_tensor_cores(a, &d)) return tensor_core_scratch(a, &d);
    if (a->angle) return kr_ssd_rotate_separate_scratch<float>(a);
    kr_cuda_scratch m = { NULL, 0 };
    kr_ssd_results r = {};
    const kr_ssd_args n = widened_args(a, &d, &m, &r);
    return m.used + exact_scratch<float>(&n);
}

void kr_cuda_f32_ssd(const kr_ssd_args *a)
{
    kr_ssd_dims d = kr_ssd_dims_of(a);
    if (uses_tensor_cores(a, &d)) {
        run_tensor_core(a, &d);
        return;
    }
    if (a->angle) {
        kr_ssd_rotate_separate<float>(a);
        return;
    }
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    kr_ssd_results r = {};
    const kr_ssd_args n = widened_args(a, &d, &m, &r);
    run_exact<float>(&n);
    kr_ssd_results_store(&r, (cudaStream_t)a->exec.stream);
}

size_t kr_cuda_f64_ssd_scratch(const kr_ssd_args *a)
{
    return a->angle ? kr_ssd_rotate_separate_scratch<double>(a) : exact_scratch<double>(a);
}

void kr_cuda_f64_ssd(const kr_ssd_args *a)
{
    if (a->angle) kr_ssd_rotate_separate<double>(a);
    else run_exact<double>(a);
}

const char *kr_cuda_ssd_path(const kr_ssd_args *a)
{
    const kr_ssd_dims d = kr_ssd_dims_of(a);
    if (uses_tensor_cores(a, &d)) return "tensor cores";
    if (a->angle) return "B and C rotated before";
    if (kr_ssd_recurrence_fits(a)) return "the recurrence";
    return kr_ssd_tiled_fits(a->nm, a->np, a->nr) ? "tiled" : "naive";
}
