/* ref_silu.h - the functions of gates in double: sigmoid, silu and its slope. */
#ifndef KR_KERNELS_REF_REF_SILU_H
#define KR_KERNELS_REF_REF_SILU_H

#include <math.h>

static inline double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static inline double sigmoid_slope(double x) /* e^-|x| / (1 + e^-|x|)^2: no cancellation on either side */
{
    double e = exp(-fabs(x));
    return e / ((1.0 + e) * (1.0 + e));
}

/* Beyond 750 sigmoid is 0 or 1 to the last bit; its product with an infinite x would be NaN. */
static inline double silu(double x)
{
    return x < -750.0 ? -0.0 : x * sigmoid(x);
}

static inline double silu_slope(double x)
{
    return fabs(x) > 750.0 ? sigmoid(x) : sigmoid(x) + x * sigmoid_slope(x);
}

#endif
