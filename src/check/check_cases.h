/* check_cases.h - the built-in cases of the check suite: a few ops with fixed inputs each. */
#ifndef KR_CHECK_CHECK_CASES_H
#define KR_CHECK_CHECK_CASES_H

#include "check/check_impl.h"

enum { MOST_INPUTS = 8, MOST_OUTPUTS = 4 };

typedef struct vector_run {
    kr_tape *tape;
    kr_dtype dtype;
    uint64_t id; /* of the case: key of its inputs */
    int n_in, n_out;
    kr_tensor *in[MOST_INPUTS], *out[MOST_OUTPUTS];
} vector_run;

typedef struct vector_case {
    const char *name;
    const char *kernels; /* whose results it shows, separated by ", "; NULL: none, but code of the host */
    void (*build)(vector_run *r, kr_tape *t);
} vector_case;

/* The cases of a file. Case i has the id first_id + i, so that appended cases leave recorded results of others as they are. */
typedef struct vector_table {
    const vector_case *cases;
    int count;
    uint64_t first_id;
} vector_table;
extern const vector_table vector_ops, vector_products, vector_packed_rows, vector_kernels;

/* The same word on every machine for the same arguments. */
uint64_t vector_hash(uint64_t a, uint64_t b, uint64_t c);

/* Input `index` of the case, a leaf with a gradient: multiples of 1/1024 in [low, high), which f32 holds exactly. The caller
 * names the index, since C leaves the order in which arguments and initializers are evaluated to the compiler. */
kr_tensor *vector_in(vector_run *r, int index, kr_shape shape, double low, double high);

/* The same numbers without a gradient, in any float type that holds them; `key` is not the index of an input. */
kr_tensor *vector_constant(vector_run *r, int key, kr_shape shape, double low, double high);

/* Multiples of 1/64 in [-1, 1), which bf16 and f16 hold exactly, of that type; a run in f64 gets them widened. No gradient. */
kr_tensor *vector_16bit(vector_run *r, int key, kr_shape shape, kr_dtype dtype);

/* Integers in [0, below); at most 512. */
kr_tensor *vector_ids(vector_run *r, kr_shape shape, int64_t below);

/* The next output of the case; y times input `index`, for a y without a gradient; values that were read back, likewise. */
void vector_out(vector_run *r, kr_tensor *y);
void vector_out_times(vector_run *r, int index, kr_tensor *y);
void vector_out_values(vector_run *r, int index, kr_shape shape, const double *values);

int64_t vector_elements(kr_shape shape);

#define CASE(name) static void build_##name(vector_run *r, kr_tape *t)
#define X(index, low, high, ...) vector_in(r, index, KR_SHAPE(__VA_ARGS__), low, high)
#define ROW(name, kernels)                                                                                             \
    {                                                                                                                  \
#name, kernels, build_##name                                                                                   \
    }

#endif
