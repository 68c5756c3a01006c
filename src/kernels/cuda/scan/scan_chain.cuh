/* scan_chain.cuh - the selective scan from segment to segment: states before each, gradients of those after it. */
#ifndef KR_KERNELS_CUDA_SCAN_SCAN_CHAIN_CUH
#define KR_KERNELS_CUDA_SCAN_SCAN_CHAIN_CUH

#include "kernels/cuda/scan/scan_parts.cuh"

/* One thread per state of a channel of a sequence. Overwrites `ends` with the states before each segment, and `g` (NULL:
 * none) with the gradients of those after it. */
template <typename T> struct scan_chain {
    scan_plan plan;
    const T *a, *initial, *g_final; /* NULL: 0 */
    const T *steps;
    T *ends, *g;
};

template <typename T> static __global__ void __launch_bounds__(256) scan_chain_kernel(const scan_chain<T> c)
{
    const int64_t n = c.plan.ni * c.plan.nr, at = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (at >= c.plan.nq * n) return;
    const int64_t q = at / n, j = at - q * n, i = j / c.plan.nr;
    kr_sequence s = { q, 0, c.plan.ns };
    if (c.plan.sequences) s = c.plan.sequences[q];
    const int64_t length = scan_segment(c.plan.wanted, s.end - s.start);
    const int64_t segments = s.end - s.start > length ? (s.end - s.start + length - 1) / length : 1;
    const int64_t first = q * c.plan.segments;
    const T rate = c.a[j];
    T h = c.initial ? c.initial[at] : (T)0;
    for (int64_t u = first; u < first + segments; u++) {
        const T end = u < first + segments - 1 ? c.ends[u * n + j] : (T)0;
        c.ends[u * n + j] = h;
        if (u < first + segments - 1) h = kr_fma(kr_exp(rate * c.steps[u * c.plan.ni + i]), h, end);
    }
    if (!c.g) return;
    T g = c.g_final ? c.g_final[at] : (T)0;
    for (int64_t u = first + segments - 1; u >= first; u--) {
        const T own = segments > 1 ? c.g[u * n + j] : (T)0;
        c.g[u * n + j] = g;
        if (u > first) g = kr_fma(kr_exp(rate * c.steps[u * c.plan.ni + i]), g, own);
    }
}

template <typename T> static void scan_chain_run(const scan_chain<T> &c, cudaStream_t stream)
{
    const int64_t count = c.plan.nq * c.plan.ni * c.plan.nr;
    if (count > 0) scan_chain_kernel<T><<<(unsigned)kr_ceil_div(count, 256), 256, 0, stream>>>(c);
}

#endif
