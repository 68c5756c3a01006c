/* optimizer_args.h - the argument structs of the kernels that step parameters; all operands are contiguous. */
#ifndef KR_KERNELS_OPTIMIZER_ARGS_H
#define KR_KERNELS_OPTIMIZER_ARGS_H

#include "kernels/exec.h"
#include "kernels/matmul_args.h"

/* A gradient [n], of the slot's own type or in halves, as a step takes it: clamp(scale g, -clip, clip). clears: g holds
 * 0 afterwards; otherwise it is only read. */
typedef struct kr_taken_grad {
    void *g;
    kr_half half;
    double scale, clip; /* clip may be infinite */
    bool clears;
} kr_taken_grad;

/* AdamW in place, h being the gradient as it is taken:
 *   m += (1 - beta1) (h - m);   v += (1 - beta2) (h^2 - v);   w -= decay w + rate m / (root v^1/2 + eps)
 * cautious: decay is for elements with (w >= 0) == (m >= 0), with the new m. w, m, v [n]. Where h is finite,
 * so is its square in the slot's type. */
typedef struct kr_adamw_args {
    kr_exec exec;
    int64_t n;
    kr_taken_grad grad;
    void *w, *m, *v;
    double beta1, beta2, eps, rate, root, decay;
    bool cautious;
} kr_adamw_args;

/* Gradient descent with momentum in place, h being the gradient as it is taken plus penalty w:
 *   velocity = is_first ? h : momentum velocity + gain h;   d = nesterov ? h + momentum velocity : velocity
 *   w -= decay w + rate d;   with a direction: direction = d instead, and w stays as it is
 * velocity NULL: d = h. w, velocity, direction [n]; w is not read, and may be NULL, where there is a direction and no
 * penalty. */
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

/* *sum = sum of x^2 in double, to the same bits in every set: x [n] of a float type is cut into blocks of
 * KR_SQUARES_BLOCK; of a block the elements i, i + KR_SQUARES_LANES, .. are added in order, then these sums by halves
 * (j with j + KR_SQUARES_LANES / 2, and so on); then the blocks in order. */
enum { KR_SQUARES_BLOCK = 4096, KR_SQUARES_LANES = 32 };
typedef struct kr_squares_args {
    kr_exec exec;
    int64_t n;
    kr_dtype dtype;
    const void *x;
    double *sum;
} kr_squares_args;

#endif
