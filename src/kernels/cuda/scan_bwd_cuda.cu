/* scan_bwd_cuda.cu - gradients of the selective scan: the passes, their memory, and the sums of the parts.
 *
 * Formulas: scan_back.cuh. Passes over every segment: forward, keeping the
 * states before every tile of tokens; backward. Where sequences have segments a pass for their ends comes first
 * (scan_walk.cuh), and all is done slab after slab where there are many states. Sums over channels and over segments
 * come as parts, which are added up in order at the end.
 * Scratch, in units of x: nr / 16 for the states (f32), at most 4 for the parts of g_B and g_C.
 */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/scan_back.cuh"
#include "kernels/cuda/scan_chain.cuh"

/* g_b and g_c of a slab: [tokens g] rows of 2 STATES numbers, summed over slots. */
template <typename T> struct maps_sum {
    const T *parts;
    int64_t slots, rows, states, some, nr, r0; /* states: of a part's row; some: that there are */
    T *g_b, *g_c;                              /* NULL: not wanted */
};

template <typename T> static __global__ void __launch_bounds__(256) sum_maps(const maps_sum<T> k)
{
    const int64_t at = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 4, all = k.rows * 2 * k.states;
    if (at >= all) return;
    const int64_t row = at / (2 * k.states), j = at - row * 2 * k.states, r = j < k.states ? j : j - k.states;
    T *to = j < k.states ? k.g_b : k.g_c;
    if (!to || r >= k.some) return;
    kr_vector<T, 4> sum = kr_load_vector<T, 4>(k.parts + at);
#pragma unroll 8
    for (int64_t n = 1; n < k.slots; n++) {
        const kr_vector<T, 4> more = kr_load_vector<T, 4>(k.parts + n * all + at);
#pragma unroll
        for (int e = 0; e < 4; e++) sum.v[e] += more.v[e];
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (r + e < k.some) to[row * k.nr + k.r0 + r + e] = sum.v[e];
}

template <typename T> struct memory {
    T *kept, *maps, *g_a, *g_d, *ends, *g, *steps;
};

static int64_t slots_of(const scan_plan &p)
{
    return kr_least(p.blocks, kr_most(16, 2 * p.ni / p.nr));
}

template <typename T> static memory<T> take(const kr_scan_bwd_args *a, const scan_plan &p, kr_cuda_scratch *m)
{
    const int64_t lanes = scan_lanes(p.nr), units = p.nq * p.segments, real = (int64_t)sizeof(T);
    const int64_t tokens = p.nb * p.ns, stretches = tokens / (sizeof(T) == 4 ? 16 : 8) + units + 1;
    memory<T> k = {};
    k.kept = (T *)kr_take(m, stretches * p.ni * 4 * lanes * real);
    if (a->g_b || a->g_c) k.maps = (T *)kr_take(m, slots_of(p) * tokens * p.ng * 8 * lanes * real);
    if (a->g_a) k.g_a = (T *)kr_take(m, units * p.ni * p.nr * real);
    if (a->g_d) k.g_d = (T *)kr_take(m, units * p.ni * real);
    if (p.segments == 1) return k;
    k.ends = (T *)kr_take(m, units * p.ni * p.nr * real);
    k.g = (T *)kr_take(m, units * p.ni * p.nr * real);
    k.steps = (T *)kr_take(m, units * p.ni * real);
    return k;
}

template <typename T> static size_t scratch(const kr_scan_bwd_args *a)
{
    kr_cuda_scratch m = { NULL, 0 };
    if (a->ni > 0) take<T>(a, scan_plan_of(a), &m);
    return m.used;
}

static void clear(void *g, int64_t bytes, cudaStream_t stream)
{
    if (g && bytes > 0) cudaMemsetAsync(g, 0, (size_t)bytes, stream);
}

/* Tokens of no sequence get 0. */
template <typename T> static void clear_unused(const kr_scan_bwd_args *a, const scan_plan &p, const memory<T> &k)
{
    const cudaStream_t stream = (cudaStream_t)a->exec.stream;
    const int64_t values = a->nb * a->ns * a->ni * (int64_t)sizeof(T), lanes = scan_lanes(p.nr);
    clear(a->g_x, values, stream);
    clear(a->g_dt, values, stream);
    clear(a->g_z, values, stream);
    clear(k.maps, slots_of(p) * a->nb * a->ns * a->ng * 8 * lanes * (int64_t)sizeof(T), stream);
}

template <typename T> static void fill_rows(const kr_scan_bwd_args *a, scan_walk_args<T> *w, scan_back_args<T> *k)
{
    const int64_t step = a->ng == 1 ? 0 : w->plan.width, maps = a->ng == 1 ? 0 : a->nr;
    w->x = k->x = scan_rows_of<T>(a->x, a->x_stride, step);
    w->dt = k->dt = scan_rows_of<T>(a->dt, a->dt_stride, step);
    w->z = k->z = scan_rows_of<T>(a->z, a->z_stride, step);
    w->g_y = k->g_y = scan_rows_of<T>(a->g_y, a->ni, step);
    w->b = k->b = scan_rows_of<T>(a->b, a->b_stride, maps);
    w->c = k->c = scan_rows_of<T>(a->c, a->c_stride, maps);
    w->a = k->a = (const T *)a->a;
    w->d = k->d = (const T *)a->d;
}

/* The backward pass of a slab, as many blocks of channels at a time as there are slots, and its g_b and g_c. */
template <typename T> static void run_slab(const kr_scan_bwd_args *a, scan_back_args<T> k, cudaStream_t stream)
{
    scan_plan_slots(&k.plan, slots_of(k.plan));
    for (k.plan.round = 0; k.plan.round * k.plan.slots < k.plan.blocks; k.plan.round++) scan_back_run<T>(k, stream);
    if (!k.g_maps) return;
    const int64_t states = 4 * scan_lanes(k.plan.nr), rows = a->nb * a->ns * a->ng;
    const maps_sum<T> s = { k.g_maps,  k.plan.slots, rows,        states,     k.plan.states,
                            k.plan.nr, k.plan.r0,    (T *)a->g_b, (T *)a->g_c };
    if (rows > 0) sum_maps<T><<<(unsigned)kr_ceil_div(rows * 2 * states, 4 * 256), 256, 0, stream>>>(s);
}

template <typename T> static void run(const kr_scan_bwd_args *a)
{
    if (a->ni == 0) return;
    const cudaStream_t stream = (cudaStream_t)a->exec.stream;
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    scan_walk_args<T> w = {};
    scan_back_args<T> k = {};
    w.plan = k.plan = scan_plan_of(a);
    const memory<T> memory = take<T>(a, w.plan, &m);
    fill_rows<T>(a, &w, &k);
    if (!scan_is_covered(a)) clear_unused<T>(a, w.plan, memory);
    if (!a->z) clear(a->g_z, a->nb * a->ns * a->ni * (int64_t)sizeof(T), stream);
    w.starts = (const T *)a->initial;
    w.kept = memory.kept, w.ends = memory.ends, w.g = memory.g, w.steps = memory.steps;
    k.kept = memory.kept, k.ends = (const T *)a->g_final;
    k.g_x = (T *)a->g_x, k.g_dt = (T *)a->g_dt, k.g_z = a->z ? (T *)a->g_z : NULL, k.g_initial = (T *)a->g_initial;
    k.g_maps = memory.maps, k.g_a = memory.g_a, k.g_d = memory.g_d;
    if (w.plan.segments > 1 && a->nq > 0) {
        scan_walk_run<T, SCAN_BOTH>(w, stream);
        const scan_chain<T> c = { w.plan, w.a, w.starts, k.ends, w.steps, w.ends, w.g };
        scan_chain_run<T>(c, stream);
        w.starts = w.ends, k.ends = w.g;
    }
    const int64_t slab = 4 * scan_lanes(a->nr);
    for (int64_t r0 = 0; a->nq > 0 && r0 < a->nr; r0 += slab) {
        w.plan.r0 = k.plan.r0 = r0;
        w.plan.states = k.plan.states = kr_least(slab, a->nr - r0);
        scan_walk_slab<T, SCAN_STATES>(w, stream);
        run_slab<T>(a, k, stream);
    }
    if (a->nq == 0) { /* no token, or none of a sequence */
        const int64_t maps = a->nb * a->ns * a->ng * a->nr * (int64_t)sizeof(T);
        clear(a->g_b, maps, stream);
        clear(a->g_c, maps, stream);
    }
    const int64_t units = a->nq * w.plan.segments;
    if (a->g_a) kr_columns_run<T>(memory.g_a, units, a->ni * a->nr, (T *)a->g_a, stream);
    if (a->g_d) kr_columns_run<T>(memory.g_d, units, a->ni, (T *)a->g_d, stream);
}

extern "C" void kr_cuda_f32_scan_bwd(const kr_scan_bwd_args *a)
{
    run<float>(a);
}
extern "C" void kr_cuda_f64_scan_bwd(const kr_scan_bwd_args *a)
{
    run<double>(a);
}
extern "C" size_t kr_cuda_f32_scan_bwd_scratch(const kr_scan_bwd_args *a)
{
    return scratch<float>(a);
}
extern "C" size_t kr_cuda_f64_scan_bwd_scratch(const kr_scan_bwd_args *a)
{
    return scratch<double>(a);
}
