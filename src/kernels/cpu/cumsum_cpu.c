/* cumsum_cpu.c - prefix sums along one axis, in f32 vectors.
 *
 *   x, y [no nr ni]    y[o, r, i] = sum of x[o, q, i] over q <= r  (reverse: q >= r), added in that order
 *
 * ni = 1: rows are scalar chains in double, four rows interleaved to hide the latency of an addition.
 * ni > 1: vectors of columns are chains in float, four vectors interleaved.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"

enum { UNROLL = 4 };

/* `count` rows of stride nr; x and y point at the element where the sums begin, step is 1 or -1. */
KR_INLINE void sum_rows(const float *x, float *y, int64_t nr, int64_t step, int count)
{
    double sum[UNROLL] = { 0 };
    for (int64_t r = 0; r < nr; r++) {
        for (int row = 0; row < count; row++) {
            sum[row] += (double)x[row * nr + r * step];
            y[row * nr + r * step] = (float)sum[row];
        }
    }
}

/* Units are groups of UNROLL rows. */
static void cumsum_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_cumsum_args *a = args;
    int64_t nr = a->nr, start = a->reverse ? nr - 1 : 0, step = a->reverse ? -1 : 1;
    for (int64_t unit = first; unit < end; unit++) {
        int64_t o = unit * UNROLL;
        const float *x = (const float *)a->x + o * nr + start;
        float *y = (float *)a->y + o * nr + start;
        if (o + UNROLL <= a->no) sum_rows(x, y, nr, step, UNROLL);
        else
            for (; o < a->no; o++, x += nr, y += nr) sum_rows(x, y, nr, step, 1);
    }
}

/* One or UNROLL vectors of columns; n < VF only with one. */
KR_INLINE void sum_columns(const float *x, float *y, int64_t nr, int64_t stride, int count, int64_t n)
{
    vf sum[UNROLL];
    for (int c = 0; c < UNROLL; c++) sum[c] = vf_zero();
    for (int64_t r = 0; r < nr; r++, x += stride, y += stride) {
        for (int c = 0; c < count; c++) {
            sum[c] = vf_add(sum[c], n < VF ? vf_load_n(x, n) : vf_load(x + c * VF));
            if (n < VF) vf_store_n(y, n, sum[c]);
            else vf_store(y + c * VF, sum[c]);
        }
    }
}

/* Units are (o, UNROLL vectors of columns). */
static void cumsum_columns(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_cumsum_args *a = args;
    int64_t npanels = kr_blocks(a->ni, UNROLL * VF);
    int64_t start = a->reverse ? (a->nr - 1) * a->ni : 0, stride = a->reverse ? -a->ni : a->ni;
    for (int64_t unit = first; unit < end; unit++) {
        int64_t i = unit % npanels * UNROLL * VF, stop = kr_smaller(i + UNROLL * VF, a->ni);
        int64_t at = unit / npanels * a->nr * a->ni + start;
        const float *x = (const float *)a->x + at;
        float *y = (float *)a->y + at;
        if (i + UNROLL * VF <= stop) {
            sum_columns(x + i, y + i, a->nr, stride, UNROLL, VF);
            continue;
        }
        for (; i + VF <= stop; i += VF) sum_columns(x + i, y + i, a->nr, stride, 1, VF);
        if (i < stop) sum_columns(x + i, y + i, a->nr, stride, 1, stop - i);
    }
}

void KR_FN(cumsum)(const kr_cumsum_args *a)
{
    if (a->nr == 0) return;
    if (a->ni == 1) kr_ranges_run(a->exec.pool, kr_blocks(a->no, UNROLL), UNROLL * a->nr, cumsum_rows, a);
    else kr_ranges_run(a->exec.pool, a->no * kr_blocks(a->ni, UNROLL * VF), UNROLL * VF * a->nr, cumsum_columns, a);
}
