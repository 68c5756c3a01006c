/* squares_ref.c - the sum of squares, in double, in the order that kernels/args/optimizer_args.h prescribes. */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"

static double element(const kr_squares_args *a, int64_t i)
{
    switch (a->dtype) {
    case KR_DTYPE_F32: return (double)((const float *)a->x)[i];
    case KR_DTYPE_F64: return ((const double *)a->x)[i];
    default: return kr_ref_widened(a->x, i, a->dtype);
    }
}

static double block_sum(const kr_squares_args *a, int64_t first, int64_t end)
{
    double lane[KR_SQUARES_LANES] = { 0 };
    for (int64_t i = first; i < end; i++) {
        const double x = element(a, i);
        lane[(i - first) % KR_SQUARES_LANES] += x * x;
    }
    for (int half = KR_SQUARES_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

void kr_ref_squares(const kr_squares_args *a)
{
    double sum = 0;
    for (int64_t first = 0; first < a->n; first += KR_SQUARES_BLOCK)
        sum += block_sum(a, first, kr_ref_min(first + KR_SQUARES_BLOCK, a->n));
    *a->sum = sum;
}
