/* ranges.h - distributes n units of work to the pool in contiguous ranges; and sums partial results in order.
 *
 * The number of units per task depends on their size alone, never on the number of threads.
 */
#ifndef KR_KERNELS_CPU_RANGES_H
#define KR_KERNELS_CPU_RANGES_H

#include "kernels/kernels.h"

enum {
    KR_TASK_ELEMENTS = 16384, /* of one task: some 5 to 20 us in cheap kernels */
    KR_UNIT_ELEMENTS = 16 /* overhead of a unit, in elements: many rows of two numbers are work for several threads */
};

/* Runs units first .. end-1. */
typedef void kr_range_fn(const void *args, int64_t first, int64_t end, int worker);

typedef struct kr_ranges {
    kr_range_fn *fn;
    const void *args;
    int64_t nunits, per_task;
} kr_ranges;

static inline int64_t kr_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t kr_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t kr_blocks(int64_t n, int64_t length) /* of `length`, the last one may be shorter */
{
    return (n + length - 1) / length;
}

static inline void kr_ranges_task(void *arg, int64_t index, int worker)
{
    const kr_ranges *r = arg;
    int64_t first = index * r->per_task;
    r->fn(r->args, first, kr_smaller(first + r->per_task, r->nunits), worker);
}

static inline void kr_ranges_run(kr_pool *pool, int64_t nunits, int64_t unit_elements, kr_range_fn *fn,
                                 const void *args)
{
    kr_ranges r = { .fn = fn, .args = args, .nunits = nunits };
    r.per_task = kr_larger(1, KR_TASK_ELEMENTS / (KR_UNIT_ELEMENTS + unit_elements));
    if (nunits > 0) kr_pool_run(pool, kr_blocks(nunits, r.per_task), kr_ranges_task, &r);
}

enum { KR_PARTIAL_COLUMNS = 64 }; /* that kr_add_partials sums at a time */

/* sum[i] = sum over blocks, in order, of partial[block * stride + i], for i < n <= KR_PARTIAL_COLUMNS. */
static inline void kr_add_partials(const float *partial, int64_t nblocks, int64_t stride, int64_t n, double *sum)
{
    for (int64_t i = 0; i < n; i++) sum[i] = 0;
    for (int64_t block = 0; block < nblocks; block++)
        for (int64_t i = 0; i < n; i++) sum[i] += (double)partial[block * stride + i];
}

#endif
