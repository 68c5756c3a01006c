/* cases.h - every differentiable op in all its variants, as small programs that tests differentiate, compare and starve.
 *
 *   KR_CASE(add_row, kr_add, "3 4 | 4", 0, y[0] = kr_add(t, x[0], x[1]))
 *
 * A row is a name, the op it is about, the float inputs, an argument for the body, and the body, which computes
 * y[0..] from x[0..]. Inputs are sizes between bars; a first sign says where the values lie: none [-2, 2], + [0.5, 2.5],
 * w [-9, 9], t [15, 25] (around softplus' threshold).
 */
#ifndef KR_TESTS_OPS_CASES_H
#define KR_TESTS_OPS_CASES_H

#include "tests/harness.h"

enum { CASE_MAX_IN = 5, CASE_MAX_OUT = 4 };

typedef struct kr_case {
    const char *name, *op, *inputs;
    int arg;
    void (*build)(kr_tape *t, int arg, kr_tensor *const *x, kr_tensor **y);
} kr_case;

extern const kr_case kr_cases[];
extern const int kr_ncases;

/* An input's shape and where its values lie. */
typedef struct case_input {
    kr_shape shape;
    double low, high;
    double *values; /* row-major */
    int64_t count;
} case_input;

/* The inputs of a case with their values: all distinct and evenly spread, in random order, so that no step of a
 * difference quotient crosses the place where two are equal. Returns how many; free them by case_inputs_free. */
int case_inputs_make(const kr_case *c, case_input *in);

/* Rounds the values to what `dtype` can hold, so that runs in several types start from the same numbers. */
void case_inputs_round(kr_ctx *ctx, kr_dtype dtype, int count, case_input *in);
void case_inputs_free(int count, case_input *in);

/* How the inputs come to the op. */
typedef enum case_layout {
    LAYOUT_PLAIN,    /* row-major leaves */
    LAYOUT_REVERSED, /* views of leaves with all axes in reverse order */
    LAYOUT_SLICED,   /* views into a wider last axis */
    LAYOUT_FLIPPED,  /* views that run backwards along the first axis */
    LAYOUT_PARAMS,   /* parameters, differentiated twice, so that gradients accumulate */
    NLAYOUTS
} case_layout;

typedef struct case_run {
    kr_dtype dtype;
    case_layout layout;
    int only;      /* the one input that wants a gradient; < 0: all */
    bool backward; /* gradients too, starting from what case_seed gives */
} case_run;

/* Values of the outputs and gradients of the inputs (zeros where none arrived), as doubles. */
typedef struct case_result {
    int n_in, n_out;
    int64_t y_count[CASE_MAX_OUT], g_count[CASE_MAX_IN];
    kr_shape y_shape[CASE_MAX_OUT], g_shape[CASE_MAX_IN];
    double *y[CASE_MAX_OUT], *g[CASE_MAX_IN];
} case_result;

/* Runs a case; false (and a failed check) after an error. */
bool case_execute(kr_ctx *ctx, const kr_case *c, int n_in, const case_input *in, case_run run, case_result *result);
void case_result_free(case_result *r);

/* The i-th element of the gradient that output `out` starts from; exact in every float type. */
double case_seed(int out, int64_t i);

/* Leaves on the tape in the plain layout, for tests that run a case by themselves. */
void case_leaves(kr_tape *tape, kr_dtype dtype, int n_in, const case_input *in, kr_tensor **x);
int case_build(const kr_case *c, kr_tape *tape, kr_tensor *const *x, kr_tensor **y); /* number of outputs */
void case_seeds(kr_tape *tape, int n_out, kr_tensor *const *y, kr_tensor **g_y);

/* The instruction sets that this machine runs, "ref" first; returns how many. */
int case_isas(const char *names[8]);

#endif
