/* block_impl.h - the interface of a block family: a table of functions over its struct and a kr_cache.
 *
 * Adding a family is one file that fills a kr_block_kind, and its line in block_kinds.c. Programs add theirs by
 * kr_block_kind_register, and block_registered.c fills the same table for them.
 */
#ifndef KR_NN_BLOCK_IMPL_H
#define KR_NN_BLOCK_IMPL_H

#include "nn/params_impl.h"
#include "ops/ops_impl.h"

#include <krait/block.h>

/* The first member of every family's struct. */
struct kr_block {
    kr_ctx *ctx;
    const struct kr_block_kind *kind;
    size_t bytes;      /* of the whole struct */
    kr_params *params; /* of a standalone block; NULL: they are in its network's table */
    int64_t d_model;
    kr_dtype dtype; /* of its matrices */
};

enum { KR_N_FAMILIES = 3 };

typedef struct kr_block_input {
    const char *op; /* for messages: "mamba2.forward" */
    kr_tensor *x_bsd;
    const kr_cache *cache;   /* NULL: the initial one */
    kr_tensor *seq_start_bs; /* caches are then one for each sequence; NULL: each row is one */
    kr_tensor *mask_bs1;     /* 1, or 0 where a token is padding: multiplies x and the convolution's output; NULL: 1 */
    kr_ssd_path path;        /* of no meaning to Mamba-1 */
    bool in_place;           /* unrecorded: the cache's own state may be overwritten by the new one */
    /* Not NULL: x is a piece of rows, and the block finds the state before it by a scan over the pieces; the cache, one for each
     * row, is that before the first piece. Only where scans_pieces; the block then does the resets itself. */
    struct kr_seq_parallel *seq;
    kr_tensor *reset_bs;
} kr_block_input;

typedef struct kr_block_result {
    kr_tensor *y_bsd;
    kr_cache cache;
} kr_block_result;

struct kr_registered_kind;

/* The names of a family's calls, for messages: "mamba2.forward". */
typedef struct kr_block_calls {
    const char *forward, *packed, *reset, *step, *step_infinite;
} kr_block_calls;
#define KR_BLOCK_CALLS(name)                                                                                           \
    {                                                                                                                  \
        name ".forward", name ".forward_packed", name ".forward_reset", name ".step", name ".step_infinite"            \
    }

typedef struct kr_block_kind {
    kr_family family;
    const char *name;
    kr_block_calls calls;
    const struct kr_registered_kind *registered; /* NULL: a family of the library (nn/block_kinds.h) */
    bool has_varying_steps;                      /* a device cannot capture a step and replay it */
    bool (*scans_pieces)(const void *block);     /* forward takes input.seq; NULL: it does not */
    int ncache;
    const char *cache_names[KR_CACHE_TENSORS];

    /* Declares the parameters in `params`, under its prefix. NULL after an error; free with kr_block_free. Call it by
     * kr_block_declare. NULL for a registered family. */
    void *(*create)(kr_ctx *ctx, kr_params *params, const void *config);

    const void *(*config)(const void *block); /* the config that it was created with, complete */
    kr_ssd_path (*path)(const void *block);
    int64_t (*optimal_chunk_len)(const void *block); /* NULL: the family has no chunks */
    kr_shape (*cache_shape)(const void *block, int i, int64_t batch);
    kr_cache (*initial_cache)(kr_tape *tape, const void *block, int64_t batch);
    kr_block_result (*forward)(kr_tape *tape, const void *block, const kr_block_input *input);
    kr_tensor *(*step_infinite)(kr_tape *tape, const void *block, kr_tensor *x_bd);
} kr_block_kind;

extern const kr_block_kind kr_mamba1_kind, kr_mamba2_kind, kr_mamba3_kind;

/* NULL for a value that is no family. */
const kr_block_kind *kr_block_kind_of(kr_family family);

/* A block of the family whose parameters are declared in `params`, under its prefix. NULL after an error; free with
 * kr_block_free. */
void *kr_block_declare(kr_ctx *ctx, const kr_block_kind *kind, kr_params *params, const void *config);

/* A valid family and a config; op begins the message: "layers.create: block". */
bool kr_block_config_check(kr_ctx *ctx, const char *op, const kr_block_config *block);

/* The zeroed struct of a family, its head filled in; NULL after an error. */
void *kr_block_alloc(kr_ctx *ctx, const kr_block_kind *kind, size_t bytes, int64_t d_model, kr_dtype dtype);
void kr_block_free(void *block);

int64_t kr_block_d_model(const void *block);
kr_dtype kr_block_dtype(const void *block);

/* The tokens at whose multiples a sequence can be cut without changing a bit on the CPU, by the block's own path; 0: none. */
int64_t kr_block_grid(const void *block);

/* Does `call` suit a call of this kind, other than a forward: the cache alone for a step, nothing for a steady state? */
bool kr_block_call_fits(kr_ctx *ctx, const char *op, kr_call_kind kind, const kr_block_call *call);

/* A config that is not NULL; op names the constructor in the message. */
bool kr_config_given(kr_ctx *ctx, const char *op, const void *config);

/* The entry of a forward: a block that exists, x [b s d] of its width and type, a cache of its family with one for each
 * row, or for each sequence with seq_start_bs. */
bool kr_block_begin(kr_tape *tape, const kr_block_kind *kind, const void *block, const kr_block_input *input,
                    kr_dims *d);

/* The same for x [b d], and for an initial cache. */
bool kr_block_begin_token(kr_tape *tape, const char *op, const void *block, kr_tensor *x_bd, kr_dims *d);
bool kr_block_begin_initial(kr_tape *tape, const kr_block_kind *kind, const void *block, int64_t batch);

/* x [b s ..] times the input's mask, in x's type; x itself without one. */
kr_tensor *kr_block_masked(kr_tape *tape, const kr_block_input *input, kr_tensor *x);

/* Where the new state may go, of the cache's tensor `state`: itself in place, else NULL (mixer/core.h). */
kr_tensor *kr_block_state_destination(const kr_block_input *input, kr_tensor *state);

/* Are all tensors of a cache NULL? Calls begin from the initial cache then. */
bool kr_cache_is_initial(const kr_cache *cache);

/* The cache against the block and the number of rows or sequences: family, shapes. */
bool kr_cache_check(kr_tape *tape, const char *op, const kr_block_kind *kind, const void *block, const kr_cache *cache,
                    int64_t count, const char *rule);

/* x [b d] as one token through forward. */
kr_block_result kr_block_run_step(kr_tape *tape, const kr_block_kind *kind, const void *block, const char *op,
                                  kr_tensor *x_bd, const kr_cache *cache);

/* The sequences of rows with resets: for each the row of [caches; initial] that it begins from, where initial is row nb; for
 * each row its last sequence. */
typedef struct kr_reset_plan {
    int64_t nb, count;
    int64_t *from, *last;
} kr_reset_plan;
bool kr_block_plan_resets(kr_tape *tape, const char *op, kr_tensor *reset_bs, int64_t nb, int64_t ns,
                          kr_reset_plan *plan);

/* The cache tensor of each sequence: that of its row, [nb ..], or the initial one, [1 ..]. */
kr_tensor *kr_block_begin_sequences(kr_tape *tape, const kr_reset_plan *plan, kr_tensor *rows, kr_tensor *initial);

/* forward with state resets at reset_bs; caches are one for each row. */
kr_block_result kr_block_run_reset(kr_tape *tape, const kr_block_kind *kind, const void *block,
                                   const kr_block_input *input, kr_tensor *reset_bs);

/* weight / (1 - exp(da)): weight of a constant input in the limit of infinitely many steps of decay exp(da), da <= 0. 0
 * if the weight is 0. */
kr_tensor *kr_geometric_sum(kr_tape *tape, kr_tensor *weight, kr_tensor *da);

/* Rows of x by number: x [n ..] -> [count ..]; differentiable. ids are on the host. */
kr_tensor *kr_select_rows(kr_tape *tape, kr_tensor *x, int64_t count, const int64_t *ids);

#endif
