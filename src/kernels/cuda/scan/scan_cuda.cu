/* scan_cuda.cu - the selective scan of Mamba-1; all architectures, f32 and f64.
 *
 *   x, dt, z, y [b s i]   a [i r]   b, c [b s g r]   d [i] or none   z none: no gate   initial, final [q i r]
 *   H_t = exp(dt_t a) H_{t-1} + dt_t B_t x_t;   y_t = <C_t, H_t> + D x_t, times silu(z_t) with a gate
 *
 * Partition: scan_parts.cuh; the scan of a segment: scan_walk.cuh. The cost is one exponential per token, channel and
 * state, and four passes over [b s i]. If sequences have segments, these run twice: for their end states, and from the
 * states derived from them.
 */
#include "kernels/cuda/scan/scan_chain.cuh"
#include "kernels/cuda/scan/scan_walk.cuh"

/* Scratch for segments: states before them, and sums of dt. */
template <typename T> static void take_scratch(const scan_plan &p, kr_cuda_scratch *m, scan_walk_args<T> *w)
{
    if (p.segments == 1) return;
    w->ends = (T *)kr_scratch_take(m, p.nq * p.segments * p.ni * p.nr * (int64_t)sizeof(T));
    w->steps = (T *)kr_scratch_take(m, p.nq * p.segments * p.ni * (int64_t)sizeof(T));
}

template <typename T> static size_t scratch(const kr_scan_args *a)
{
    kr_cuda_scratch m = { NULL, 0 };
    scan_walk_args<T> w = {};
    if (a->ni > 0 && a->nq > 0) take_scratch<T>(scan_plan_of(a), &m, &w);
    return m.used;
}

template <typename T> static void run(const kr_scan_args *a)
{
    if (a->ni == 0 || a->nq == 0) return;
    const cudaStream_t stream = (cudaStream_t)a->exec.stream;
    kr_cuda_scratch m = { (char *)a->exec.scratch, 0 };
    scan_walk_args<T> w = {};
    w.plan = scan_plan_of(a);
    const int64_t step = a->ng == 1 ? 0 : w.plan.width, bc = a->ng == 1 ? 0 : a->nr;
    w.x = scan_rows_of<T>(a->x.data, a->x.row, step);
    w.dt = scan_rows_of<T>(a->dt.data, a->dt.row, step);
    w.z = scan_rows_of<T>(a->z.data, a->z.row, step);
    w.b = scan_rows_of<T>(a->b.data, a->b.row, bc);
    w.c = scan_rows_of<T>(a->c.data, a->c.row, bc);
    w.a = (const T *)a->a, w.d = (const T *)a->d;
    w.starts = (const T *)a->initial;
    w.y = (T *)a->y, w.final = (T *)a->final;
    take_scratch<T>(w.plan, &m, &w);
    if (w.plan.segments > 1) {
        scan_walk_run<T, SCAN_ENDS>(w, stream);
        const scan_chain<T> c = { w.plan, w.a, w.starts, NULL, w.steps, w.ends, NULL };
        scan_chain_run<T>(c, stream);
        w.starts = w.ends;
    }
    scan_walk_run<T, SCAN_OUTPUTS>(w, stream);
}

extern "C" void kr_cuda_f32_scan(const kr_scan_args *a)
{
    run<float>(a);
}
extern "C" void kr_cuda_f64_scan(const kr_scan_args *a)
{
    run<double>(a);
}
extern "C" size_t kr_cuda_f32_scan_scratch(const kr_scan_args *a)
{
    return scratch<float>(a);
}
extern "C" size_t kr_cuda_f64_scan_scratch(const kr_scan_args *a)
{
    return scratch<double>(a);
}
