/* reduce_cpu.c - sums and maxima along one axis, in f32 vectors.
 *
 *   x [no nr ni]    y [no ni]
 *   sum:     y[o, i] = alpha * sum over r of x[o, r, i]
 *   max:     y[o, i] = max over r of x[o, r, i]; NaN if any is NaN
 *   max_bwd: g_x[o, r, i] = g_y[o, i] at the first r of the maximum (or of the first NaN), else 0
 *   argmax:  y[o, i] = that r
 *
 * A sum is split into blocks of fixed length; a block is summed in float by several lanes, the blocks of a sum are
 * added in order in double. With ni = 1 a block is a run of a row, otherwise ROWS rows of adjacent columns.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"

#include <math.h>

enum {
    RUN = 4096,   /* elements of a row in one block */
    ROWS = 128,   /* rows of a block of columns */
    COLUMNS = 512 /* columns of one unit of work */
};

static float run_sum(const float *x, int64_t n)
{
    vf s0 = vf_zero(), s1 = vf_zero(), s2 = vf_zero(), s3 = vf_zero();
    int64_t i = 0;
    for (; i + 4 * VF <= n; i += 4 * VF) {
        s0 = vf_add(s0, vf_load(x + i));
        s1 = vf_add(s1, vf_load(x + i + VF));
        s2 = vf_add(s2, vf_load(x + i + 2 * VF));
        s3 = vf_add(s3, vf_load(x + i + 3 * VF));
    }
    for (; i + VF <= n; i += VF) s0 = vf_add(s0, vf_load(x + i));
    if (i < n) s1 = vf_add(s1, vf_load_n(x + i, n - i));
    return vf_sum(vf_add(vf_add(s0, s1), vf_add(s2, s3)));
}

/* Units are blocks of rows; a row of one block is written directly to y. */
static void sum_runs(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_reduce_args *a = args;
    const float *x = a->x;
    float *y = a->y, *partial = a->exec.scratch;
    int64_t nblocks = kr_larger(1, kr_blocks(a->nr, RUN));
    for (int64_t unit = first; unit < end; unit++) {
        int64_t o = unit / nblocks, r = unit % nblocks * RUN;
        float sum = run_sum(x + o * a->nr + r, kr_smaller(RUN, a->nr - r));
        if (nblocks == 1) y[o] = (float)(a->alpha * (double)sum);
        else partial[unit] = sum;
    }
}

static void add_runs(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_reduce_args *a = args;
    const float *partial = a->exec.scratch;
    float *y = a->y;
    int64_t nblocks = kr_blocks(a->nr, RUN);
    for (int64_t o = first; o < end; o++) {
        double sum = 0;
        for (int64_t block = 0; block < nblocks; block++) sum += (double)partial[o * nblocks + block];
        y[o] = (float)(a->alpha * sum);
    }
}

/* out[i] = sum over r < nr of x[r * ni + i], i < n <= VF: even and odd rows in separate sums. */
KR_INLINE void sum_column(const float *x, int64_t nr, int64_t ni, int64_t n, float *out)
{
    vf even = vf_zero(), odd = vf_zero();
    int64_t r = 0;
    for (; r + 2 <= nr; r += 2) {
        even = vf_add(even, vf_load_n(x + r * ni, n));
        odd = vf_add(odd, vf_load_n(x + (r + 1) * ni, n));
    }
    if (r < nr) even = vf_add(even, vf_load_n(x + r * ni, n));
    vf_store_n(out, n, vf_add(even, odd));
}

/* The same for four vectors of columns. */
KR_INLINE void sum_columns(const float *x, int64_t nr, int64_t ni, float *out)
{
    vf even[4], odd[4];
    for (int c = 0; c < 4; c++) even[c] = odd[c] = vf_zero();
    int64_t r = 0;
    for (; r + 2 <= nr; r += 2) {
        for (int c = 0; c < 4; c++) {
            even[c] = vf_add(even[c], vf_load(x + r * ni + c * VF));
            odd[c] = vf_add(odd[c], vf_load(x + (r + 1) * ni + c * VF));
        }
    }
    for (int c = 0; r < nr && c < 4; c++) even[c] = vf_add(even[c], vf_load(x + r * ni + c * VF));
    for (int c = 0; c < 4; c++) vf_store(out + c * VF, vf_add(even[c], odd[c]));
}

/* Units are blocks (o, rows, columns), columns fastest; if all rows are one block it is written directly to y. */
static void sum_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_reduce_args *a = args;
    int64_t nblocks = kr_larger(1, kr_blocks(a->nr, ROWS)), nchunks = kr_blocks(a->ni, COLUMNS);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t o = unit / (nblocks * nchunks), r = unit / nchunks % nblocks * ROWS, i = unit % nchunks * COLUMNS;
        int64_t nr = kr_smaller(ROWS, a->nr - r), stop = kr_smaller(i + COLUMNS, a->ni);
        const float *x_ri = (const float *)a->x + (o * a->nr + r) * a->ni;
        float *out_i = (nblocks == 1 ? (float *)a->y : (float *)a->exec.scratch) + unit / nchunks * a->ni;
        int64_t begin = i;
        for (; i + 4 * VF <= stop; i += 4 * VF) sum_columns(x_ri + i, nr, a->ni, out_i + i);
        for (; i < stop; i += VF) sum_column(x_ri + i, nr, a->ni, stop - i, out_i + i);
        for (i = begin; nblocks == 1 && i < stop; i++) out_i[i] = (float)(a->alpha * (double)out_i[i]);
    }
}

static void add_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_reduce_args *a = args;
    const float *partial = a->exec.scratch;
    int64_t nblocks = kr_blocks(a->nr, ROWS), nchunks = kr_blocks(a->ni, KR_PARTIAL_COLUMNS);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t o = unit / nchunks, i0 = unit % nchunks * KR_PARTIAL_COLUMNS;
        int64_t n = kr_smaller(KR_PARTIAL_COLUMNS, a->ni - i0);
        double sum[KR_PARTIAL_COLUMNS];
        kr_add_partials(partial + o * nblocks * a->ni + i0, nblocks, a->ni, n, sum);
        for (int64_t i = 0; i < n; i++) ((float *)a->y)[o * a->ni + i0 + i] = (float)(a->alpha * sum[i]);
    }
}

size_t KR_FN(sum_scratch)(const kr_reduce_args *a)
{
    int64_t nblocks = kr_blocks(a->nr, a->ni == 1 ? RUN : ROWS);
    return nblocks > 1 ? (size_t)(a->no * nblocks * a->ni) * sizeof(float) : 0;
}

void KR_FN(sum)(const kr_reduce_args *a)
{
    kr_pool *pool = a->exec.pool;
    if (a->ni == 1) {
        int64_t nblocks = kr_larger(1, kr_blocks(a->nr, RUN));
        kr_ranges_run(pool, a->no * nblocks, kr_smaller(RUN, a->nr), sum_runs, a);
        if (nblocks > 1) kr_ranges_run(pool, a->no, nblocks, add_runs, a);
        return;
    }
    int64_t nblocks = kr_larger(1, kr_blocks(a->nr, ROWS)), nchunks = kr_blocks(a->ni, COLUMNS);
    int64_t block = kr_smaller(ROWS, a->nr) * kr_smaller(COLUMNS, a->ni);
    kr_ranges_run(pool, a->no * nblocks * nchunks, block, sum_blocks, a);
    if (nblocks > 1)
        kr_ranges_run(pool, a->no * kr_blocks(a->ni, KR_PARTIAL_COLUMNS), nblocks * KR_PARTIAL_COLUMNS, add_blocks, a);
}

static float run_max(const float *x, int64_t n)
{
    vf m0 = vf_set1(-INFINITY), m1 = m0;
    vm nan0 = vf_is_nan(m0), nan1 = nan0;
    int64_t i = 0;
    for (; i + 2 * VF <= n; i += 2 * VF) {
        vf x0 = vf_load(x + i), x1 = vf_load(x + i + VF);
        m0 = vf_max(x0, m0);
        m1 = vf_max(x1, m1);
        nan0 = vm_or(nan0, vf_is_nan(x0));
        nan1 = vm_or(nan1, vf_is_nan(x1));
    }
    for (; i < n; i += VF) {
        vf x0 = vf_select(vm_first(n - i), vf_load_n(x + i, n - i), m0);
        m0 = vf_max(x0, m0);
        nan0 = vm_or(nan0, vf_is_nan(x0));
    }
    return vm_any(vm_or(nan0, nan1)) ? NAN : vf_max_lanes(vf_max(m0, m1));
}

/* The maximum of a column of vectors, lane by lane; a NaN in a lane propagates. */
KR_INLINE vf column_max(const float *x, int64_t nr, int64_t ni, int64_t n)
{
    vf m = vf_set1(-INFINITY);
    for (int64_t r = 0; r < nr; r++) {
        vf v = vf_load_n(x + r * ni, n);
        m = vf_select(vm_or(vf_gt(v, m), vf_is_nan(v)), v, m);
    }
    return m;
}

static void max_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_reduce_args *a = args;
    for (int64_t o = first; o < end; o++) ((float *)a->y)[o] = run_max((const float *)a->x + o * a->nr, a->nr);
}

/* Units are (o, vector of columns). */
static void max_columns(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_reduce_args *a = args;
    int64_t nvectors = kr_blocks(a->ni, VF);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t o = unit / nvectors, i = unit % nvectors * VF, n = a->ni - i;
        const float *x = (const float *)a->x + o * a->nr * a->ni + i;
        vf_store_n((float *)a->y + o * a->ni + i, n, column_max(x, a->nr, a->ni, n));
    }
}

void KR_FN(max)(const kr_reduce_args *a)
{
    if (a->ni == 1) kr_ranges_run(a->exec.pool, a->no, a->nr, max_rows, a);
    else kr_ranges_run(a->exec.pool, a->no * kr_blocks(a->ni, VF), a->nr * VF, max_columns, a);
}

/* Index of the first element equal to m, or of the first NaN. */
static int64_t index_of(float m, const float *x, int64_t n)
{
    vf max_value = vf_set1(m);
    int64_t r = 0;
    for (; r + VF <= n; r += VF) {
        vf v = vf_load(x + r);
        if (vm_any(vm_or(vf_eq(v, max_value), vf_is_nan(v)))) break;
    }
    while (r < n - 1 && !(x[r] == m || isnan(x[r]))) r++;
    return r;
}

static void max_bwd_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_max_bwd_args *a = args;
    for (int64_t o = first; o < end; o++) {
        const float *x_r = (const float *)a->x + o * a->nr;
        float *g_x_r = (float *)a->g_x + o * a->nr;
        memset(g_x_r, 0, (size_t)a->nr * sizeof(float));
        g_x_r[index_of(run_max(x_r, a->nr), x_r, a->nr)] = ((const float *)a->g_y)[o];
    }
}

static void max_bwd_columns(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_max_bwd_args *a = args;
    int64_t nvectors = kr_blocks(a->ni, VF);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t o = unit / nvectors, i = unit % nvectors * VF, n = a->ni - i;
        const float *x = (const float *)a->x + o * a->nr * a->ni + i;
        float *g_x = (float *)a->g_x + o * a->nr * a->ni + i;
        vf m = column_max(x, a->nr, a->ni, n);
        vf g = vf_load_n((const float *)a->g_y + o * a->ni + i, n); /* 0 after it has been assigned */
        for (int64_t r = 0; r < a->nr; r++) {
            vf v = vf_load_n(x + r * a->ni, n);
            vm here = vm_or(vf_eq(v, m), vf_is_nan(v));
            vf_store_n(g_x + r * a->ni, n, vf_keep(here, g));
            g = vf_select(here, vf_zero(), g);
        }
    }
}

void KR_FN(max_bwd)(const kr_max_bwd_args *a)
{
    if (a->nr == 0) return;
    if (a->ni == 1) kr_ranges_run(a->exec.pool, a->no, 2 * a->nr, max_bwd_rows, a);
    else kr_ranges_run(a->exec.pool, a->no * kr_blocks(a->ni, VF), 2 * a->nr * VF, max_bwd_columns, a);
}

static void argmax_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_argmax_args *a = args;
    for (int64_t o = first; o < end; o++) {
        const float *x_r = (const float *)a->x + o * a->nr;
        a->y[o] = index_of(run_max(x_r, a->nr), x_r, a->nr);
    }
}

enum { ROWS_PER_PASS = 1 << 24 }; /* rows per pass, whose indices are int32 */

/* Indices are int32 in the bits of a lane, counted from row `from`; -1: before it. */
static void argmax_columns(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_argmax_args *a = args;
    int64_t nvectors = kr_blocks(a->ni, VF);
    for (int64_t unit = first; unit < end; unit++) {
        int64_t o = unit / nvectors, i = unit % nvectors * VF, n = kr_smaller(VF, a->ni - i);
        const float *x = (const float *)a->x + o * a->nr * a->ni + i;
        int64_t *y = a->y + o * a->ni + i;
        for (int64_t lane = 0; lane < n; lane++) y[lane] = 0;
        vf m = vf_load_n(x, n);
        for (int64_t from = 0; from < a->nr; from += ROWS_PER_PASS) {
            const int64_t count = kr_smaller(ROWS_PER_PASS, a->nr - from);
            vf index = vf_of_bits(vi_set1(-1));
            for (int64_t r = 0; r < count; r++) {
                vf v = vf_load_n(x + (from + r) * a->ni, n);
                vm larger = vm_or(vf_gt(v, m), vm_and(vf_is_nan(v), vf_eq(m, m))); /* the first NaN wins */
                m = vf_select(larger, v, m);
                index = vf_select(larger, vf_of_bits(vi_set1((int32_t)r)), index);
            }
            int32_t indices[VF];
            vi_store(indices, vf_bits(index));
            for (int64_t lane = 0; lane < n; lane++)
                if (indices[lane] >= 0) y[lane] = from + indices[lane];
        }
    }
}

void KR_FN(argmax)(const kr_argmax_args *a)
{
    if (a->ni == 1) kr_ranges_run(a->exec.pool, a->no, a->nr, argmax_rows, a);
    else kr_ranges_run(a->exec.pool, a->no * kr_blocks(a->ni, VF), a->nr * VF, argmax_columns, a);
}
