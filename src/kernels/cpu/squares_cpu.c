/* squares_cpu.c - the sum of squares, in double, in the order that kernels/args/optimizer_args.h prescribes. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec_double.h"
#include "kernels/cpu/vec_widen.h"

enum { NVECTORS = KR_SQUARES_LANES / VF }; /* one lane per partial sum */

static double sum_of_lanes(double lane[KR_SQUARES_LANES])
{
    for (int half = KR_SQUARES_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

/* Elements past the end are 0, and add nothing. */
KR_INLINE double block_sum(const void *x, int64_t first, int64_t n, kr_dtype dtype)
{
    vd sum[NVECTORS][2];
    for (int k = 0; k < NVECTORS; k++) sum[k][0] = sum[k][1] = vd_zero();
    int64_t i = 0;
    for (; i + KR_SQUARES_LANES <= n; i += KR_SQUARES_LANES)
        for (int k = 0; k < NVECTORS; k++) vd_add_squares(sum[k], load_widened(x, first + i + k * VF, VF, dtype));
    for (int k = 0; k < NVECTORS && i + k * VF < n; k++)
        vd_add_squares(sum[k], load_widened(x, first + i + k * VF, n - i - k * VF, dtype));
    double lane[KR_SQUARES_LANES];
    for (int k = 0; k < 2 * NVECTORS; k++) vd_store(lane + k * VD, sum[k / 2][k % 2]);
    return sum_of_lanes(lane);
}

static double block_sum_f64(const double *x, int64_t n)
{
    double lane[KR_SQUARES_LANES] = { 0 };
    int64_t i = 0;
    for (; i + KR_SQUARES_LANES <= n; i += KR_SQUARES_LANES)
        for (int j = 0; j < KR_SQUARES_LANES; j++) lane[j] += x[i + j] * x[i + j];
    for (int j = 0; i + j < n; j++) lane[j] += x[i + j] * x[i + j];
    return sum_of_lanes(lane);
}

static void sum_blocks(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_squares_args *a = args;
    double *partial = a->exec.scratch;
    for (int64_t block = first; block < end; block++) {
        const int64_t at = block * KR_SQUARES_BLOCK, n = kr_smaller(KR_SQUARES_BLOCK, a->n - at);
        switch (a->dtype) {
        case KR_DTYPE_F64: partial[block] = block_sum_f64((const double *)a->x + at, n); break;
        case KR_DTYPE_BF16: partial[block] = block_sum(a->x, at, n, KR_DTYPE_BF16); break;
        case KR_DTYPE_F16: partial[block] = block_sum(a->x, at, n, KR_DTYPE_F16); break;
        default: partial[block] = block_sum(a->x, at, n, KR_DTYPE_F32); break;
        }
    }
}

size_t KR_FN(squares_scratch)(const kr_squares_args *a)
{
    return (size_t)kr_blocks(a->n, KR_SQUARES_BLOCK) * sizeof(double);
}

void KR_FN(squares)(const kr_squares_args *a)
{
    const double *partial = a->exec.scratch;
    double sum = 0;
    kr_ranges_run(a->exec.pool, kr_blocks(a->n, KR_SQUARES_BLOCK), KR_SQUARES_BLOCK, sum_blocks, a);
    for (int64_t block = 0; block < kr_blocks(a->n, KR_SQUARES_BLOCK); block++) sum += partial[block];
    *a->sum = sum;
}
