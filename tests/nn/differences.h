/* differences.h - gradients of a program over parameters against difference quotients in f64. */
#ifndef KR_TESTS_NN_DIFFERENCES_H
#define KR_TESTS_NN_DIFFERENCES_H

#include "tests/harness.h"

/* Computes a tensor of one element from parameters, the same each time. */
typedef kr_tensor *differences_program(kr_tape *tape, void *user);

/* The gradient of each f64 parameter, at most `most` of its elements spread over it, against central differences.
 * Clears the gradients first. A parameter that none reaches fails. */
void differences_check(kr_ctx *ctx, differences_program *program, void *user, int count, kr_tensor *const *params,
                       const char *const *names, int64_t most, double tolerance);

/* The same for all rows of a table. */
void differences_check_table(kr_ctx *ctx, differences_program *program, void *user, const kr_params *params,
                             int64_t most, double tolerance);

/* The sum of y's elements, each times a fixed number of its own; n tells several outputs of a program apart. */
kr_tensor *differences_weigh(kr_tape *tape, kr_tensor *y, int n);

#endif
