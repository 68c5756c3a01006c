/* gradcheck.h - a check of gradients: what the backward pass gives against difference quotients in f64.
 *
 * A custom op is checked by a function that applies it to the inputs; docs/add-an-op.md has a complete program.
 */
#ifndef KRAIT_GRADCHECK_H
#define KRAIT_GRADCHECK_H

#include <krait/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_gradcheck_options {
    size_t size;       /* set by kr_gradcheck_options_init */
    double eps;        /* 1e-5: element x moves by eps (1 + |x|) to both sides */
    double atol, rtol; /* 1e-7, 1e-6: gradients may differ by atol + rtol |difference quotient| */
    int64_t
        max_elements; /* 256, at least 1: elements of an input that are moved one by one. Of a larger input they are spread
                             evenly, and a random direction through all its elements is checked as well */
    uint64_t seed;    /* 0; of the directions, and of the weights that make one number of the outputs */
} kr_gradcheck_options;
#define kr_gradcheck_options_init(options) KR_STRUCT_INIT(GRADCHECK_OPTIONS, kr_gradcheck_options, options)

typedef struct kr_gradcheck_result {
    double error;    /* the largest |gradient - quotient| / (atol + rtol |quotient|): above 1, or NaN, is a failure */
    int input;       /* where it is; -1 if nothing was compared */
    int64_t element; /* its row-major number; -1: the random direction */
    double gradient; /* by the backward pass */
    double quotient; /* by differences */
    int64_t n_compared;   /* elements and directions */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_gradcheck_result;

/* Checks the gradients of fn, which fills out[0..n_out) from in[0..n_in) as for kr_checkpoint, on tapes of the check's own. Float
 * inputs are given to fn as leaves in f64, whatever their type; integers as they are. What is differentiated is the sum of
 * all finite elements of the float outputs with random weights from 1/2 to 3/2. Random numbers that fn draws from the
 * context are the same in each run, and the context's stream is left as it was. Errors: KR_ERR_NUMERIC with input, element
 * and both values if a gradient differs, or if fn computes different values when nothing is recorded; those of fn.
 * *result may be NULL. fn must be smooth around the inputs: no kink within eps. */
KR_API kr_status kr_gradcheck(kr_ctx *ctx, kr_checkpoint_fn *fn, void *user, int n_in, kr_tensor *const *in, int n_out,
                              const kr_gradcheck_options *options, kr_gradcheck_result *result);

#ifdef __cplusplus
}
#endif
#endif
