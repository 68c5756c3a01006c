/* optimizer_args.h - the argument structs of optimizer kernels; all operands are contiguous. */
#ifndef KR_KERNELS_ARGS_OPTIMIZER_ARGS_H
#define KR_KERNELS_ARGS_OPTIMIZER_ARGS_H

#include "kernels/exec.h"
#include "kernels/args/operand.h"

/* A gradient [n] as a step uses it: clamp(scale g, -clip, clip). clears: g is zeroed afterwards; otherwise it is only
 * read. */
typedef struct kr_taken_grad {
    kr_operand g;
    double scale, clip; /* clip may be infinite */
    bool clears;
} kr_taken_grad;

/* AdamW in place, h being the gradient as above:
 *   m += (1 - beta1) (h - m);   v += (1 - beta2) (h^2 - v);   w -= decay w + rate m / (root v^1/2 + eps)
 * cautious: decay applies to elements with (w >= 0) == (m >= 0), with the new m. w, m, v [n]. If h is finite, so is its
 * square in the slot's type. */
typedef struct kr_adamw_args {
    kr_exec exec;
    int64_t n;
    kr_taken_grad grad;
    void *w, *m, *v;
    double beta1, beta2, eps, rate, root, decay;
    bool cautious;
} kr_adamw_args;

/* SGD with momentum in place, h being the gradient as above plus penalty w:
 *   velocity = is_first ? h : momentum velocity + gain h;   d = nesterov ? h + momentum velocity : velocity
 *   w -= decay w + rate d;   with a direction: direction = d instead, and w is unchanged
 * velocity NULL: d = h. w, velocity, direction [n]; w is not read, and may be NULL, with a direction and no penalty. */
typedef struct kr_sgd_args {
    kr_exec exec;
    int64_t n;
    kr_taken_grad grad;
    void *w, *velocity, *direction;
    double momentum, gain, penalty, rate, decay;
    bool is_first, nesterov;
} kr_sgd_args;

/* y += c (x - y). x, y [n]. */
typedef struct kr_lerp_args {
    kr_exec exec;
    int64_t n;
    const void *x;
    void *y;
    double c;
} kr_lerp_args;

/* *sum = sum of x^2 in double, with the same bits in every kernel set: x [n] of a float type is split into blocks of
 * KR_SQUARES_BLOCK; within a block the elements i, i + KR_SQUARES_LANES, .. are added in order, then these sums pairwise (j
 * with j + KR_SQUARES_LANES / 2, and so on); then the blocks in order. */
enum { KR_SQUARES_BLOCK = 4096, KR_SQUARES_LANES = 32 };
typedef struct kr_squares_args {
    kr_exec exec;
    int64_t n;
    kr_dtype dtype;
    const void *x;
    double *sum;
} kr_squares_args;

#endif
