/* finite_ref.c - the index of the first NaN or infinity. */
#include "kernels/ref/ref.h"

#include <math.h>

static int64_t first_f32(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return i;
    return -1;
}

static int64_t first_f64(const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return i;
    return -1;
}

/* 16-bit floats that are not finite have all exponent bits set. */
static int64_t first_half(const uint16_t *x, int64_t n, unsigned exponent)
{
    for (int64_t i = 0; i < n; i++)
        if ((x[i] & exponent) == exponent) return i;
    return -1;
}

void kr_ref_finite(const kr_finite_args *a)
{
    switch (a->dtype) {
    case KR_DTYPE_F32: *a->first = first_f32(a->x, a->n); break;
    case KR_DTYPE_F64: *a->first = first_f64(a->x, a->n); break;
    case KR_DTYPE_BF16: *a->first = first_half(a->x, a->n, 0x7f80); break;
    case KR_DTYPE_F16: *a->first = first_half(a->x, a->n, 0x7c00); break;
    default: *a->first = -1; break; /* integers are finite */
    }
}
