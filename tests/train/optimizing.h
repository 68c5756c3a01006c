/* optimizing.h - a parameter table with every sort of row, gradients that are put there by hand, and a plain optimizer
 * in double to compare with.
 *
 *   norm.weight  [6]                     embed.weight  [7 5]  decays          conv.weight  [4 1 3]  decays
 *   in_proj.weight  [24 12]  decays, segments z:14 x:6 dt:3* rotation:1   out_proj.weight  [9 4]  decays, segment out:9
 */
#ifndef KR_TESTS_TRAIN_OPTIMIZING_H
#define KR_TESTS_TRAIN_OPTIMIZING_H

#include "nn/params_impl.h"
#include "tests/harness.h"

/* Matrices of `dtype`, an f32 vector among 16-bit matrices. Values are normal draws of the test's generator. Not NULL. */
kr_params *optimizing_table(kr_ctx *ctx, kr_dtype dtype);

/* Adds g (one double for each element, rounded to the parameter's type) to a parameter's gradient. */
void optimizing_give(kr_ctx *ctx, kr_tensor *param, const double *g);

/* A normal draw, times size, for each element of each row; what was given, in the parameters' own types, is in g (all
 * elements of the table one after another) unless it is NULL. */
void optimizing_give_all(kr_ctx *ctx, const kr_params *params, double size, double *g);

/* All elements of the table one after another, to be freed. */
double *optimizing_values(const kr_params *params);

/* The same bits in both tables, and in a file of either optimizer. */
bool optimizing_same_weights(const kr_params *a, const kr_params *b);

/* ---- a plain optimizer ---- */

/* Double, one element after another, matrices by three loops; nothing of the library's code. */
typedef struct plain_optimizer {
    kr_optimizer_options options;
    const kr_params *params;
    int64_t count; /* elements */
    double *w, *m, *v, *u, *ema;
    int64_t t;
    double grad_norm;
} plain_optimizer;

plain_optimizer *plain_create(const kr_params *params, const kr_optimizer_options *options);
void plain_destroy(plain_optimizer *plain);

/* One step; g as by optimizing_give_all. */
void plain_step(plain_optimizer *plain, const double *g, double lr, double grad_scale);

/* x [rows cols] becomes orthogonal, as Muon has it, by `steps` steps with the coefficients c. */
void plain_orthogonalise(double *x, int64_t rows, int64_t cols, int steps, const double c[3]);

#endif
