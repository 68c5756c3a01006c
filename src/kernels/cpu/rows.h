/* rows.h - rows of floats, processed one vector at a time: whole or partial loads and stores, and prefetching loads. */
#ifndef KR_KERNELS_CPU_ROWS_H
#define KR_KERNELS_CPU_ROWS_H

#include "kernels/cpu/vec.h"

#include <math.h>

/* The first n of VF lanes; a whole vector, a constant when inlined, needs no mask. */
KR_INLINE vf row_load(const float *p, int64_t n)
{
    return n >= VF ? vf_load(p) : vf_load_n(p, n);
}

KR_INLINE void row_store(float *p, int64_t n, vf v)
{
    if (n >= VF) vf_store(p, v);
    else vf_store_n(p, n, v);
}

enum { ROWS_AHEAD = 4 };

/* row_load from a row of nr floats, with a prefetch of the next rows: strided rows defeat the hardware prefetcher. The
 * prefetched address may be outside of the operand. */
KR_INLINE vf row_load_ahead(const float *p, int64_t n, int64_t nr)
{
    __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)(ROWS_AHEAD * nr) * sizeof *p));
    return row_load(p, n);
}

KR_INLINE void row_copy(float *to, const float *from, int64_t n)
{
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vf_store(to + i, vf_load(from + i));
    if (i < n) vf_store_n(to + i, n - i, vf_load_n(from + i, n - i));
}

/* The largest element; NaN is ignored. */
KR_INLINE float row_max(const float *x, int64_t n)
{
    const vf lowest = vf_set1(-(float)INFINITY);
    vf even = lowest, odd = lowest;
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        even = vf_max(vf_load(x + i), even);
        odd = vf_max(vf_load(x + i + VF), odd);
    }
    for (; i < n; i += VF) even = vf_max(vf_select(vm_first(n - i), row_load(x + i, n - i), lowest), even);
    return vf_max_lanes(vf_max(even, odd));
}

#endif
