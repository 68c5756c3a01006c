/* block_run.h - one block of any family, run over the same tokens in different ways, with all results as f64.
 *
 * A rig is a block in a context of its own. A problem is what is computed: rows of tokens, from initial or from given
 * caches, perhaps with several sequences in a row. A plan is a way to compute it: which calls are made. Tokens, caches,
 * parameters and the gradients of the results are noise that depends on the seed, the tensor and the index alone, so
 * that rigs of different types, and plans of different calls, have the same numbers.
 */
#ifndef KR_TESTS_NN_BLOCK_RUN_H
#define KR_TESTS_NN_BLOCK_RUN_H

#include "nn/block_kinds.h"
#include "tests/harness.h"

typedef struct rig {
    const char *name;
    const kr_block_kind *kind;
    kr_dtype dtype;
    kr_ctx *ctx;
    kr_tape *tape;
    kr_params *params;
    void *block;
    bool has_angles, has_quaternions; /* what the cache of Mamba-3 has last */
} rig;

/* The config's copy has the given type. Parameters are moved off their initial values, and steps are made longer: the
 * rules begin some at 0 or 1, and with steps so short that the state hardly matters. False after a failed check. */
bool rig_open(rig *r, const char *name, kr_block_config config, kr_dtype dtype, int threads);
void rig_close(rig *r);

typedef struct problem {
    int64_t nb, ns;
    bool from_cache;       /* random caches; false: initial ones */
    const int32_t *starts; /* [b s] or NULL: where sequences begin ... */
    bool is_reset;         /* ... and forget: caches are one for each row; false: one for each sequence */
} problem;

enum { STEP = -1, MAX_PARTS = 12 };

/* Calls over all tokens of all rows at once, cut along the sequence: parts[i] tokens by a forward, or STEP for one
 * token by a step; all by one forward if there are none. */
typedef struct plan {
    const char *name;
    bool row_by_row;      /* each row alone */
    bool by_sequence;     /* each sequence alone, for problems that have starts; false: packed or reset */
    bool initial_cache;   /* an initial cache is made and passed on, rather than NULL */
    bool other_pathway;   /* Mamba-3: by the pathway that the config does not name (initial_cache, or from_cache) ... */
    bool changes_pathway; /* ... or the other one at each part */
    const kr_ssd_path *path; /* NULL: the block's own */
    int64_t parts[MAX_PARTS];
} plan;

typedef struct entry {
    char name[64];
    bool is_gradient;
    kr_shape shape;
    int64_t count;
    double *values;
} entry;

enum { MAX_ENTRIES = 256 };

/* y, the final caches, then the gradients of x, of the caches and of all parameters. Angles are there as cosine and
 * sine, being compared modulo whole turns. */
typedef struct outcome {
    int count;
    entry entries[MAX_ENTRIES];
} outcome;

/* Runs the plan forwards and backwards. Empty after an error, which is a failed check. */
outcome *run(rig *r, const problem *p, const plan *way);
void outcome_free(outcome *o);

/* Entry by entry, relative to the largest of each or to floor. what names the comparison. */
void compare(const char *what, const outcome *got, const outcome *want, double values, double gradients, double floor);

/* Rows with and without other rows: values to the bit; on a device whose kernels the number of rows chooses, but for the
 * order of sums. */
void compare_rows(const char *what, const outcome *got, const outcome *want);

/* The same to the bit. */
void compare_bits(const char *what, const outcome *got, const outcome *want, bool with_gradients);

/* |got - want| / |want| over all values together, or over all gradients. */
double outcome_distance(const outcome *got, const outcome *want, bool gradients);

/* What is differentiated: results weighed by their gradients, as a number. Targets are x, the caches, the parameters;
 * `delta` is added to one element of one of them (target < 0: none). */
typedef struct nudge {
    int target;
    int64_t index;
    double delta;
} nudge;
double weighed_results(rig *r, const problem *p, const plan *way, nudge by);

/* Sequences of a problem: how many caches there are, and the gradient of a target in an outcome. */
int64_t problem_sequences(const problem *p);
int target_count(const rig *r, const problem *p);
const entry *target_gradient(const outcome *o, int target);

#endif
