/* softmax_f64.h - the weights of a softmax, in f64: plain arithmetic that compilers vectorize and that gives the same
 * bits on every machine and for any number of threads, so that a seed gives the same tokens.
 *
 *   x = k ln 2 + r, |r| <= ln 2 / 2;   e^x = 2^k (1 + r + r^2/2! + .. + r^11/11!), to 1e-14 of it
 */
#ifndef KR_GENERATE_SOFTMAX_F64_H
#define KR_GENERATE_SOFTMAX_F64_H

#include "base/pool.h"

/* y = e^((x - max) / divisor), x <= max, max finite, divisor > 0; exactly 1 for x = max, 0 below e^-708. */
void kr_weights_of(kr_pool *pool, double *y, const double *x, int64_t count, double max, double divisor);

/* Added in one order. */
double kr_sum_of(const double *x, int64_t count);

/* All of them below infinity, and none NaN? */
bool kr_are_logits(const double *x, int64_t count);

/* The largest; NaN is ignored. -infinity for none. */
double kr_max_of(const double *x, int64_t count);

#endif
