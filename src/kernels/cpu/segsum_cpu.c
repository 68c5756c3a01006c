/* segsum_cpu.c - sums over all segments of a row, in f32 vectors.
 *
 *   x [no nl]    y [no nl nl]
 *   y[t, u] = sum of x[q] over u < q <= t for t >= u (0 on the diagonal), -inf for t < u
 *     row by row: y[t, u] = y[t-1, u] + x[t] for u < t. Differences of prefix sums would cancel.
 *   backward: g_x[q] = sum of g_y[t, u] over u < q <= t
 *     with column sums S[u] of the rows t >= q, from the last row to the first: g_x[q] = sum of S[u] over u < q
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"

#include <math.h>

static void segsum_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_segsum_args *a = args;
    int64_t nl = a->nl;
    vf nothing = vf_set1(-INFINITY);
    for (int64_t o = first; o < end; o++) {
        const float *x = (const float *)a->x + o * nl;
        for (int64_t t = 0; t < nl; t++) {
            float *y_u = (float *)a->y + (o * nl + t) * nl;
            vf added = vf_set1(x[t]);
            int64_t u = 0;
            for (; u + VF <= t; u += VF) vf_store(y_u + u, vf_add(vf_load(y_u - nl + u), added));
            if (u < t) vf_store_n(y_u + u, t - u, vf_add(vf_load_n(y_u - nl + u, t - u), added));
            y_u[t] = 0;
            for (u = t + 1; u + VF <= nl; u += VF) vf_store(y_u + u, nothing);
            if (u < nl) vf_store_n(y_u + u, nl - u, nothing);
        }
    }
}

void KR_FN(segsum)(const kr_segsum_args *a)
{
    kr_ranges_run(a->exec.pool, a->no, a->nl * a->nl, segsum_rows, a);
}

static int64_t row_floats(int64_t nl) /* of a worker's S, whole cache lines */
{
    return kr_blocks(nl, 16) * 16;
}

/* S += g over u < n; returns the sum of S. */
static float add_row(float *s_u, const float *g_u, int64_t n)
{
    vf sum0 = vf_zero(), sum1 = vf_zero();
    int64_t u = 0;
    for (; u + 2 * VF <= n; u += 2 * VF) {
        vf s0 = vf_add(vf_load(s_u + u), vf_load(g_u + u));
        vf s1 = vf_add(vf_load(s_u + u + VF), vf_load(g_u + u + VF));
        vf_store(s_u + u, s0);
        vf_store(s_u + u + VF, s1);
        sum0 = vf_add(sum0, s0);
        sum1 = vf_add(sum1, s1);
    }
    for (; u < n; u += VF) {
        vf s0 = vf_add(vf_load_n(s_u + u, n - u), vf_load_n(g_u + u, n - u));
        vf_store_n(s_u + u, n - u, s0);
        sum0 = vf_add(sum0, s0);
    }
    return vf_sum(vf_add(sum0, sum1));
}

static void segsum_bwd_rows(const void *args, int64_t first, int64_t end, int worker)
{
    const kr_segsum_args *a = args;
    int64_t nl = a->nl;
    float *s_u = (float *)a->exec.scratch + worker * row_floats(nl);
    for (int64_t o = first; o < end; o++) {
        const float *g_tu = (const float *)a->x + o * nl * nl;
        float *y = (float *)a->y + o * nl;
        memset(s_u, 0, (size_t)nl * sizeof(float));
        for (int64_t q = nl - 1; q >= 0; q--) y[q] = add_row(s_u, g_tu + q * nl, q);
    }
}

size_t KR_FN(segsum_bwd_scratch)(const kr_segsum_args *a)
{
    return (size_t)(kr_pool_size(a->exec.pool) * row_floats(a->nl)) * sizeof(float);
}

void KR_FN(segsum_bwd)(const kr_segsum_args *a)
{
    kr_ranges_run(a->exec.pool, a->no, a->nl * a->nl, segsum_bwd_rows, a);
}
