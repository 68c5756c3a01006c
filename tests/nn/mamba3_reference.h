/* mamba3_reference.h - Mamba-3 token by token in plain C and f64, straight from its recurrence, and the variants that
 * the tests hold against it. */
#ifndef KR_TESTS_NN_MAMBA3_REFERENCE_H
#define KR_TESTS_NN_MAMBA3_REFERENCE_H

#include "tests/harness.h"

/* A cache as numbers: [b h p r], [b m h r], [b h p], [b h a] or [b h j 4]. */
enum { SSM, K, V, ROTATION, NFIELDS };
extern const char *const field_names[NFIELDS];
typedef struct numbers_cache {
    double *field[NFIELDS];
    kr_shape shape[NFIELDS];
} numbers_cache;

/* The parameters as f64, by row of the table. */
enum { MAX_ROWS = 16 };
typedef struct numbers_params {
    int64_t count;
    char name[MAX_ROWS][32];
    double *values[MAX_ROWS];
    int64_t elements[MAX_ROWS];
} numbers_params;
numbers_params read_params(const kr_params *params);
void free_params(numbers_params *p);

numbers_cache new_cache(const kr_mamba3_config *c, int64_t nb);    /* zeros, quaternions 1 */
numbers_cache random_cache(const kr_mamba3_config *c, int64_t nb); /* states about 1/3 */
numbers_cache copy_cache(const numbers_cache *from);
numbers_cache read_cache(const kr_mamba3_cache *cache);
void free_cache(numbers_cache *cache);

/* The same cache on a tape; inputs, so that each field has a gradient. */
kr_mamba3_cache cache_on(kr_tape *tape, kr_dtype dtype, const numbers_cache *cache, kr_mamba3_pathway pathway);

/* x [b s d] -> y [b s d]; the cache is carried on in its place. */
void reference_forward(const kr_mamba3_config *c, const numbers_params *p, int64_t nb, int64_t ns, const double *x,
                       numbers_cache *cache, double *y);

/* Variants of a small block: NULL after the last. */
typedef struct variant {
    const char *name;
    kr_mamba3_config config;
} variant;
const variant *variant_at(int i);

/* A block whose parameters are all drawn, so that each of them shows. */
kr_mamba3 *shaken_block(kr_ctx *ctx, const kr_mamba3_config *config, kr_dtype dtype);

/* Angles taken modulo whole turns: got moved next to want. */
void nearest_turns(double *got, const double *want, int64_t count);

#endif
