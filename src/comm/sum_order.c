/* sum_order.c - ordered sums: a binary tree over the slots, element by element.
 *
 * Slot i of step s = 1, 2, 4, ... holds the sum of slots [i, i + s) where i is a multiple of s. What is left over at
 * the end, blocks of falling powers of two, is added to the first in that order. This is also the order of a counter
 * of micro-batches, so that 2^k terms on each of R ranks and 2^k R terms on one rank have the same sum.
 */
#include "comm/sum_order.h"

/* Elements whose slots stay in the cache between the levels of the tree. */
enum { BLOCK = 2048 };

static void add_f32(float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) a[i] += b[i];
}

static void add_f64(double *a, const double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) a[i] += b[i];
}

static void add(kr_dtype dtype, void *const *slots, int a, int b, int64_t first, int64_t n)
{
    if (dtype == KR_DTYPE_F64) add_f64((double *)slots[a] + first, (const double *)slots[b] + first, n);
    else add_f32((float *)slots[a] + first, (const float *)slots[b] + first, n);
}

static void sum_block(kr_dtype dtype, void *const *slots, int nslots, int64_t first, int64_t n)
{
    int step = 1;
    for (; step <= nslots / 2; step *= 2)
        for (int i = 0; i + 2 * step <= nslots; i += 2 * step) add(dtype, slots, i, i + step, first, n);
    for (int at = step; at < nslots; at += step) {
        while (step > nslots - at) step /= 2;
        add(dtype, slots, 0, at, first, n);
    }
}

void kr_sum_slots(kr_dtype dtype, void *const *slots, int nslots, int64_t n)
{
    for (int64_t first = 0; first < n; first += BLOCK)
        sum_block(dtype, slots, nslots, first, n - first < BLOCK ? n - first : BLOCK);
}
