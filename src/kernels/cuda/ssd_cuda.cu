/* ssd_cuda.cu - the state space core, forward: which kernels run, and their scratch.
 *
 *   a few tokens a row    the recurrence itself (ssd_step.cu)
 *   bf16 precision        the matrix units (ssd_forward*.cu); f32 operands are rounded first
 *   others                tiles (ssd_tiles.cu); bf16 operands are widened first, and y is rounded after it
 *   more than 64 ranks    plain arithmetic (ssd_any.cu)
 */
#include "kernels/cuda/ssd_any.cuh"
#include "kernels/cuda/ssd_cuda.h"
#include "kernels/cuda/ssd_forward.cuh"
#include "kernels/cuda/ssd_round.cuh"
#include "kernels/cuda/ssd_states.cuh"
#include "kernels/cuda/ssd_step.cuh"
#include "kernels/cuda/ssd_tiles.cuh"
#include "kernels/cuda/ssd_turned.cuh"

#include <cuda_bf16.h>

typedef __nv_bfloat16 bf16;

/* Can the matrix units have it? */
static bool is_fast(const kr_ssd_args *a, const kr_ssd_dims *d)
{
    if (a->angle && !kr_ssd_turn_fits(a, d)) return false;
    return a->nm >= 1 && a->nm <= 64 && a->nr >= 1 && a->nr <= 256 && a->np >= 1 && kr_ssd_forward_fits(d);
}

typedef struct scratch {
    kr_ssd_map map;
    float *factors, *between;
    int64_t segments, every;
} scratch;

/* Sequences are cut into segments where they alone do not fill the device. The states between segments come from the
 * same operations in the same order as without them: the cut changes no bits. */
static void cut_segments(const kr_ssd_args *a, const kr_ssd_dims *d, scratch *s)
{
    int64_t most = 1, units = d->nq * d->heads, slots = kr_ssd_forward_slots(d);
    for (int64_t q = 0; q < d->nq; q++) {
        int64_t chunks = (a->sequences[q].end - a->sequences[q].start + d->nt - 1) / d->nt;
        most = chunks > most ? chunks : most;
    }
    s->segments = units > 0 && units * 3 < slots * 2 ? slots / units : 1;
    if (s->segments * 4 > most) s->segments = most / 4;
    if (s->segments < 1) s->segments = 1;
    s->every = (most + s->segments - 1) / s->segments;
    s->segments = (most + s->every - 1) / s->every;
}

static scratch take_scratch(const kr_ssd_args *a, const kr_ssd_dims *d, kr_cuda_scratch *m)
{
    scratch s = {};
    cut_segments(a, d, &s);
    s.map = kr_ssd_map_make(d, a->sequences, m, (cudaStream_t)a->exec.stream);
    s.factors = (float *)kr_take(m, kr_ssd_factors_bytes(d));
    if (s.segments > 1)
        s.between = (float *)kr_take(m, d->nq * s.segments * d->heads * 64 * d->r_line * (int64_t)sizeof(float));
    return s;
}

static void run_states(const kr_ssd_args *a, const kr_ssd_dims *d, const scratch *s)
{
    kr_ssd_walk w = {};
    w.map = s->map;
    w.nm = (int)a->nm, w.np = (int)a->np, w.nr = (int)a->nr, w.r_line = (int)d->r_line, w.slices = (int)d->slices;
    w.nh = a->nh, w.ng = a->ng;
    w.x = (const bf16 *)a->v, w.x_stride = a->v_stride, w.x_aligned = kr_ssd_aligned(a->v, a->v_stride, a->np);
    w.maps = (const bf16 *)a->b, w.maps_stride = a->b_stride;
    w.maps_aligned = kr_ssd_aligned(a->b, a->b_stride, a->nr);
    w.factors = s->factors;
    w.start = (const float *)a->initial;
    w.seed = (const float *)a->seed, w.seed_v = (const bf16 *)a->seed_v, w.seed_b = (const bf16 *)a->seed_b;
    w.turn = kr_ssd_turn_of(a);
    w.between = s->between, w.segments = (int)s->segments, w.every = (int)s->every;
    kr_ssd_walk_run(&w, d, (cudaStream_t)a->exec.stream);
}

static void run_forward(const kr_ssd_args *a, const kr_ssd_dims *d, const scratch *s)
{
    const bool wide = a->y_half == KR_NO_HALF;
    kr_ssd_forward o = {};
    o.map = s->map;
    o.nm = (int)a->nm, o.np = (int)a->np, o.nr = (int)a->nr, o.slices = (int)d->slices;
    o.nh = a->nh, o.ng = a->ng, o.nq = a->nq;
    o.segments = (int)s->segments, o.every = (int)s->every;
    o.v = (const bf16 *)a->v, o.b = (const bf16 *)a->b, o.c = (const bf16 *)a->c;
    o.v_stride = a->v_stride, o.b_stride = a->b_stride, o.c_stride = a->c_stride;
    o.v_aligned = kr_ssd_aligned(a->v, a->v_stride, a->np);
    o.b_aligned = kr_ssd_aligned(a->b, a->b_stride, a->nr);
    o.c_aligned = kr_ssd_aligned(a->c, a->c_stride, a->nr);
    o.y_aligned = wide ? kr_ssd_paired(a->y, a->np) : kr_ssd_aligned(a->y, 0, a->np);
    o.factors = s->factors, o.d = (const float *)a->d;
    o.start = (const float *)a->initial;
    o.seed = (const float *)a->seed, o.seed_v = (const bf16 *)a->seed_v, o.seed_b = (const bf16 *)a->seed_b;
    o.turn = kr_ssd_turn_of(a);
    o.between = s->between;
    o.y = a->y, o.wide = wide, o.end = (float *)a->final;
    kr_ssd_forward_run(&o, d, (cudaStream_t)a->exec.stream);
}

/* The arguments with f32 operands rounded. */
static kr_ssd_args rounded(const kr_ssd_args *a, kr_cuda_scratch *m)
{
    kr_ssd_roundings r = {};
    kr_ssd_args n = *a;
    kr_ssd_round_operands(&n, &r, m, false);
    if (a->seed) {
        n.seed_v = kr_ssd_round_later(&r, m, false, a->seed_v, a->nq, a->nm * a->nh * a->np, NULL);
        n.seed_b = kr_ssd_round_later(&r, m, false, a->seed_b, a->nq, a->nm * a->nh * a->nr, NULL);
    }
    if (m->base) kr_ssd_round_now(&r, (cudaStream_t)a->exec.stream);
    return n;
}

static size_t fast_scratch(const kr_ssd_args *a, const kr_ssd_dims *d)
{
    kr_cuda_scratch m = { NULL, 0 };
    rounded(a, &m);
    take_scratch(a, d, &m);
    return m.used;
}

static void run_fast(const kr_ssd_args *given, const kr_ssd_dims *d)
{
    kr_cuda_scratch m = { (char *)given->exec.scratch, 0 };
    const kr_ssd_args a = rounded(given, &m);
    const scratch s = take_scratch(&a, d, &m);
    kr_ssd_factors_make(d, &s.map, (const float *)a.da, (const float *)a.w, (const float *)a.same, s.factors,
                        (cudaStream_t)a.exec.stream);
    if (s.segments > 1) run_states(&a, d, &s);
    run_forward(&a, d, &s);
}

/* In arithmetic of F. */
template <typename F> static size_t exact_scratch(const kr_ssd_args *a)
{
    if (kr_ssd_step_fits(a)) return kr_ssd_step_scratch(a);
    return kr_ssd_tiles_fit(a->nm, a->np, a->nr) ? kr_ssd_tiles_scratch<F>(a) : kr_ssd_any_scratch<F>(a);
}

template <typename F> static void run_exact(const kr_ssd_args *a)
{
    if (kr_ssd_step_fits(a)) kr_ssd_step<F>(a);
    else if (kr_ssd_tiles_fit(a->nm, a->np, a->nr)) kr_ssd_tiles<F>(a);
    else kr_ssd_any<F>(a);
}

/* Are its f32 operands to be rounded? */
static bool may_round(const kr_ssd_args *a, const kr_ssd_dims *d)
{
    return a->exec.precision == KR_PRECISION_BF16 && is_fast(a, d) && !kr_ssd_step_fits(a);
}

/* The arguments in f32; their scratch is what is left of m's. */
static kr_ssd_args widened(const kr_ssd_args *a, const kr_ssd_dims *d, kr_cuda_scratch *m, kr_ssd_results *r)
{
    kr_ssd_args n = *a;
    kr_ssd_roundings o = {};
    kr_ssd_round_operands(&n, &o, m, true);
    if (m->base) kr_ssd_round_now(&o, (cudaStream_t)a->exec.stream);
    const int64_t values = a->nm * a->nh * a->np;
    if (a->y_half) n.y = kr_ssd_result_later(r, m, a->y, a->nb * a->ns, values, values, a->y_half);
    n.y_half = KR_NO_HALF;
    if (r->count) r->map = kr_ssd_map_make(d, a->sequences, m, (cudaStream_t)a->exec.stream);
    n.exec.scratch = m->base + m->used;
    return n;
}

size_t kr_cuda_f32_ssd_scratch(const kr_ssd_args *a)
{
    kr_ssd_dims d = kr_ssd_dims_of(a);
    if (may_round(a, &d)) return fast_scratch(a, &d);
    if (a->angle) return kr_ssd_turn_apart_scratch<float>(a);
    kr_cuda_scratch m = { NULL, 0 };
    kr_ssd_results r = {};
    const kr_ssd_args n = widened(a, &d, &m, &r);
    return m.used + exact_scratch<float>(&n);
}

void kr_cuda_f32_ssd(const kr_ssd_args *a)
{
    kr_ssd_dims d = kr_ssd_dims_of(a);
    if (may_round(a, &d)) {
        run_fast(a, &d);
        return;
    }
    if (a->angle) {
        kr_ssd_turn_apart<float>(a);
        return;
    }
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    kr_ssd_results r = {};
    const kr_ssd_args n = widened(a, &d, &m, &r);
    run_exact<float>(&n);
    kr_ssd_results_bring(&r, (cudaStream_t)a->exec.stream);
}

size_t kr_cuda_f64_ssd_scratch(const kr_ssd_args *a)
{
    return a->angle ? kr_ssd_turn_apart_scratch<double>(a) : exact_scratch<double>(a);
}

void kr_cuda_f64_ssd(const kr_ssd_args *a)
{
    if (a->angle) kr_ssd_turn_apart<double>(a);
    else run_exact<double>(a);
}

const char *kr_cuda_ssd_way(const kr_ssd_args *a)
{
    const kr_ssd_dims d = kr_ssd_dims_of(a);
    if (may_round(a, &d)) return "matrix units";
    if (a->angle) return "B and C turned before it";
    if (kr_ssd_step_fits(a)) return "the recurrence";
    return kr_ssd_tiles_fit(a->nm, a->np, a->nr) ? "tiles" : "plain arithmetic";
}
