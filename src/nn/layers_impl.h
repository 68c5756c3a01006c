/* layers_impl.h - internals of a stack. */
#ifndef KR_NN_LAYERS_IMPL_H
#define KR_NN_LAYERS_IMPL_H

#include "base/sized.h"
#include "nn/class_tokens.h"
#include "nn/mlp.h"
#include "nn/multi_gate.h"
#include "nn/state_impl.h"

#include <krait/network.h>

#include <stdatomic.h>

KR_DECLARE_DEFAULTS(kr_call);

enum { KR_STREAMS_MAX = 32 };

/* One set of weights. */
typedef struct kr_layer_weights {
    void *block;
    kr_tensor *norm_d, *norm2_d;
    kr_mlp mlp;
    int nlatents; /* the layer's own class tokens */
    kr_class_token *latents;
    kr_tensor *latents_nd;
} kr_layer_weights;

/* Tape memory of one layer for x [b s d]: after a recorded forward pass, after one that will be recomputed, the peak
 * while a layer is recomputed and differentiated, and the gradient of its initial state, which is kept after that. */
typedef struct kr_layer_costs {
    size_t recorded, recomputed, backward, state_grad;
} kr_layer_costs;

/* Key of the measured costs. */
typedef struct kr_layer_load {
    int64_t nb, ns; /* 0: none was measured */
    kr_dtype dtype;
    kr_ssd_path path;
    kr_precision precision;
    bool has_state, drop_state, has_mask, has_dropout;
} kr_layer_load;

/* The last measurement; the two belong together, so both are read and written while `is_busy` is held. */
typedef struct kr_layer_measured {
    atomic_flag is_busy;
    kr_layer_load load;
    kr_layer_costs costs;
} kr_layer_measured;

struct kr_layers {
    kr_ctx *ctx;
    kr_params *params;       /* the table that its parameters are in ... */
    bool owns_params;        /* ... its own, or its network's */
    kr_arena arena;          /* the arrays below */
    kr_layers_config config; /* its lists are copies */
    const kr_block_kind *kind;
    int64_t nvirtual, nd;
    kr_norm_options norm;
    int64_t *real; /* [nvirtual]: the weights of each virtual layer */
    kr_layer_weights *layers;
    kr_multi_gate *gates; /* [n_layers] or [nvirtual]; NULL: standard residuals */
    kr_tensor *latents_nd;
    bool has_class_tokens, has_length_class_tokens; /* any; any whose position depends on the sequence's length */
    struct kr_layer_measured *measured;             /* last measurement, shared by calls on any thread */
};

static inline kr_state_layout kr_layers_layout(const kr_layers *layers)
{
    return (kr_state_layout){ layers->nvirtual, layers->kind->family, NULL };
}

/* A stack whose parameters are declared in `params`, under its prefix; not sealed. is_single: its one layer's names
 * have no "layers.0." before them. */
kr_layers *kr_layers_declare(kr_ctx *ctx, kr_params *params, const kr_layers_config *config, bool is_single);
void kr_layers_free(kr_layers *layers);

/* ---- one layer ---- */

/* The residual stream between two layers: the next one's input, [b c d], and with multi-gate the streams. All NULL: no
 * tokens. */
typedef struct kr_flow {
    kr_tensor *x;
    int64_t nstreams;
    kr_tensor *streams[KR_STREAMS_MAX];
} kr_flow;

/* The arguments of a virtual layer's run. */
typedef struct kr_layer_job {
    const kr_layers *layers;
    int64_t v;
    const char *op;
    kr_ssd_path path;
    kr_tensor *seq_start_bs, *reset_bs;
    kr_tensor *mask_bs1;  /* see kr_block_input */
    double dropout;       /* of h1 and h2 */
    bool drop_state;      /* *after is not wanted */
    bool is_infinite;     /* x is [b d], a constant input (steady state); no cache */
    kr_seq_parallel *seq; /* x is a piece whose state before it the block finds by a scan; NULL: by `cache` */
    bool in_place;        /* unrecorded: the new cache goes into the tensors of the old one, where they fit */
} kr_layer_job;

/* flow <- layer(flow). cache: before the tokens, NULL for the initial one; *after: after the tokens. */
void kr_layer_run(kr_tape *tape, const kr_layer_job *job, kr_flow *flow, const kr_cache *cache, kr_cache *after);

/* The same as one node that is run again in the backward pass. */
void kr_layer_run_recomputed(kr_tape *tape, const kr_layer_job *job, kr_flow *flow, const kr_cache *cache,
                             kr_cache *after);

/* The same, unrecorded, of which only the results stay allocated. destinations: tensors of the tape for the results of one
 * layer after another; all NULL before the first. */
void kr_layer_run_released(kr_tape *tape, const kr_layer_job *job, kr_flow *flow, kr_flow *destinations,
                           const kr_cache *cache, kr_cache *after);

/* Is the residual of the first or the last virtual layer ignored? Its output then replaces the stream. */
bool kr_layer_ignores_residual(const kr_layers *layers, int64_t v);

/* The number of streams before virtual layer v. */
int64_t kr_layer_streams(const kr_layers *layers, int64_t v);

/* ---- a call ---- */

typedef enum kr_run_mode { KR_RUN_FORWARD, KR_RUN_STEP, KR_RUN_PRIME } kr_run_mode;

/* State of a call from the level that was called down to the blocks. */
typedef struct kr_run {
    const char *op;
    kr_run_mode mode;
    kr_call call;          /* all its fields */
    kr_state *state;       /* the new one */
    bool has_class_tokens; /* they are spliced in by this call */
    kr_cursors cursors;    /* their positions; of the new state, or for this call only */
    int64_t full_len;      /* of the whole sequence, as the level that is running sees it; KR_LENGTH_UNKNOWN */
    int64_t batch;
} kr_run;

/* x [b c ..] of c tokens, or NULL with c = 0. has_length_class_tokens and the rest are the caller's level's own. */
bool kr_run_begin(kr_tape *tape, kr_run *run, const char *op, kr_run_mode mode, kr_state_layout layout,
                  const kr_call *call, kr_tensor *x, bool has_class_tokens, bool has_length_class_tokens);

/* The first virtual layer from job->v on that is recorded; those before it are recomputed. -1 after an error: no choice
 * fits the budget. */
int64_t kr_recompute_until(kr_tape *tape, const kr_layer_job *job, const kr_flow *flow, const kr_run *run);

/* Space on the tape for the plan of `count` class tokens; NULL after an error. */
kr_splice *kr_run_plan(kr_tape *tape, const kr_run *run, int count);

/* One level: inserts the due class tokens into x and advances the level's cursor. *x may become or stay NULL. */
bool kr_run_splice(kr_tape *tape, kr_run *run, const kr_class_token *class_tokens, int count, kr_tensor *table_nd,
                   int64_t *offset, kr_splice *plan, int *nplan, kr_tensor **x);

/* The stack over x [b c d] (NULL: c = 0): y [b c' d], or NULL if nothing was run. */
kr_tensor *kr_layers_run(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bcd, kr_run *run);

/* What runs the stack of a call whose arguments have been checked: kr_layers_run, or a variant with other kernels for some
 * calls. */
typedef kr_tensor *kr_stack_fn(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bcd, kr_run *run);

/* kr_layers_call and kr_layer_call. */
kr_layers_out kr_layers_run_call(kr_tape *tape, const kr_layers *layers, kr_call_kind kind, kr_tensor *x,
                                 const kr_call *call, kr_stack_fn *run_stack);
kr_block_out kr_layer_run_call(kr_tape *tape, const kr_layer *layer, kr_call_kind kind, kr_tensor *x,
                               const kr_block_call *call, kr_stack_fn *run_stack);

/* kr_layers_info.grid. */
int64_t kr_layers_grid_of(const kr_layers *layers);

/* A steady state takes no options; op names the call. */
bool kr_call_is_absent(kr_ctx *ctx, const char *op, const kr_call *call);

/* x [b d], a constant input: the limit of the stack's output (steady state). */
kr_tensor *kr_layers_run_infinite(kr_tape *tape, const char *op, const kr_layers *layers, kr_tensor *x_bd);

/* The width and type of x against the stack's. */
bool kr_layers_check_input(kr_tape *tape, const char *op, const kr_layers *layers, kr_tensor *x);

/* Can the blocks read x's type? f64 mixes with no other. */
bool kr_layers_take_type(kr_tape *tape, const char *op, const kr_layers *layers, const kr_tensor *x);

/* The state for the caller: with its cursors, or NULL where it was not wanted. */
kr_state *kr_run_end(kr_run *run);

/* y [b c d] -> [b d], the last token. */
kr_tensor *kr_last_token(kr_tape *tape, kr_tensor *y_bcd);

#endif
