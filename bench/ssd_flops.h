/* ssd_flops.h - the useful floating-point operations of the state space core in its causal form (case_ssd.c). */
#ifndef KR_BENCH_SSD_FLOPS_H
#define KR_BENCH_SSD_FLOPS_H

#include "kernels/args/ssd_args.h"

/* Of one row of a->ns tokens. */
double ssd_flops(const kr_ssd_args *a, bool backward);

#endif
