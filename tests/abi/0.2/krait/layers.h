/* layers.h - stacks of blocks: pre-norm layers with residuals.
 *
 *   kr_mamba2_config mamba;
 *   kr_mamba2_config_init(&mamba);
 *   mamba.d_model = 256;
 *   kr_layers_config config;
 *   kr_layers_config_init(&config);
 *   config.block = kr_mamba2_block(&mamba);      // or kr_mamba1_block, kr_mamba3_block
 *   config.n_layers = 2;
 *   kr_layers *layers = kr_layers_create(ctx, &config);
 *   kr_layers_out out = kr_layers_forward(tape, layers, x_bsd, NULL);
 *   kr_layers_destroy(layers);
 *
 * A layer computes delta(x) = h1 + h2, h1 = block(norm(x)), h2 = mlp(norm2(x + h1)) if there is an MLP; the stack adds
 * it to the residual stream. Calls are pure: a state is read, a new one is returned; but for `advance`.
 */
#ifndef KRAIT_LAYERS_H
#define KRAIT_LAYERS_H

#include <krait/markers.h>
#include <krait/state.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- which weights a virtual layer uses ---- */

typedef enum kr_schedule {
    KR_SCHEDULE_CYCLIC = 0,    /* v mod n_layers */
    KR_SCHEDULE_STRETCHED = 1, /* v n_layers / n_virtual, rounded down */
    KR_SCHEDULE_CUSTOM = 2     /* by a list */
} kr_schedule;

/* Of stacks in both directions: virtual layers come in pairs, the even one of each from left to right. */
typedef enum kr_bidi_schedule {
    KR_BIDI_SCHEDULE_STRIDED_CYCLIC = 0, /* even weights go right, odd ones left; each cyclic */
    KR_BIDI_SCHEDULE_STRIDED_STRETCHED = 1,
    KR_BIDI_SCHEDULE_SYMMETRIC_CYCLIC = 2, /* both directions of a pair share weights */
    KR_BIDI_SCHEDULE_SYMMETRIC_STRETCHED = 3,
    KR_BIDI_SCHEDULE_CUSTOM = 4
} kr_bidi_schedule;

/* The weights of virtual layer v; -1 for arguments out of range. */
KR_API int64_t kr_schedule_at(kr_schedule schedule, const int64_t *custom, int64_t v, int64_t n_virtual,
                              int64_t n_layers);
KR_API int64_t kr_bidi_schedule_at(kr_bidi_schedule schedule, const int64_t *custom, int64_t v, int64_t n_virtual,
                                   int64_t n_layers);

/* ---- how layers are added up ---- */

typedef enum kr_residual_kind {
    KR_RESIDUAL_STANDARD = 0,  /* x <- x + delta(x) */
    KR_RESIDUAL_MULTI_GATE = 1 /* n_stream streams, mixed by gates and pooled by attention over them */
} kr_residual_kind;

typedef struct kr_residual {
    kr_residual_kind kind;
    int64_t n_stream; /* multi-gate, all four: streams at most */
    double init_bias; /* of the gates: init_bias + q init_bias_step for stream q */
    double init_bias_step;
    bool per_virtual_layer; /* gates for each virtual layer instead of for each set of weights */
    uint64_t reserved[2];   /* must be 0; for later versions */
} kr_residual;

/* The init_bias that lets n_mix mixing layers (depth - (n_stream - 1)) keep a stream as 21 layers with bias -3 would:
 * -ln(sqrt(n_mix / 21) (e^3 + 1) - n_stream). NaN if there are too few. */
KR_API double kr_multi_gate_depth_bias(int64_t n_mix, int64_t n_stream);

/* ---- keeping or recomputing what the backward pass needs ---- */

typedef enum kr_recompute {
    KR_RECOMPUTE_NONE = 0,  /* everything is kept */
    KR_RECOMPUTE_ALL = 1,   /* every layer is run again in the backward pass */
    KR_RECOMPUTE_BUDGET = 2 /* as few as keep forward and backward within recompute_budget bytes of the tape */
} kr_recompute;

/* ---- a stack ---- */

/* A marker of its own for one set of weights. */
typedef struct kr_layer_marker {
    int64_t layer;
    kr_class_token marker;
} kr_layer_marker;

#define KR_NO_HORIZON (-1)

typedef struct kr_layers_config {
    size_t size; /* set by kr_layers_config_init */
    kr_block_config block;
    int64_t n_layers;               /* sets of weights */
    int64_t n_virtual;              /* 0: n_layers; how many layers are run */
    kr_schedule schedule;           /* KR_SCHEDULE_CYCLIC */
    const int64_t *custom_schedule; /* KR_SCHEDULE_CUSTOM: n_virtual numbers below n_layers */
    double norm_eps;                /* 1e-5 */
    int64_t d_intermediate;         /* 0: no MLP; else its width ... */
    int64_t mlp_multiple_of;        /* 128: ... rounded up to a multiple of this */
    bool has_mlp_bias;              /* false */
    bool ignore_first_residual;     /* false; the first layer: x <- delta(x) */
    bool ignore_last_residual;      /* false; the last one */
    kr_residual residual;           /* standard */
    bool residual_in_f32;           /* true: half-precision inputs are added up in f32 */
    int64_t grad_horizon;           /* KR_NO_HORIZON; else only the last that many virtual layers are differentiated */
    kr_recompute recompute;
    size_t recompute_budget; /* KR_RECOMPUTE_BUDGET: bytes of the tape; what follows on the stack, a head or a loss,
                              * comes on top */
    int n_latents;           /* learned rows spliced into the stack's input ... */
    const kr_class_token *latents;
    int n_layer_latents; /* ... and into the input of single layers */
    const kr_layer_marker *layer_latents;
} kr_layers_config;
#define kr_layers_config_init(config) KR_STRUCT_INIT(LAYERS_CONFIG, kr_layers_config, config)

/* NULL after an error that names field, value and rule. The caller destroys the result before the context. */
KR_API kr_layers *kr_layers_create(kr_ctx *ctx, const kr_layers_config *config);
KR_API void kr_layers_destroy(kr_layers *layers);
KR_API kr_params *kr_layers_params(const kr_layers *layers);

/* ---- one layer ---- */

/* The unit of a stack on its own: y = x + h1 + h2, h1 = block(norm(x)), h2 = mlp(norm2(x + h1)) if there is an MLP. A
 * sequence of layers with the weights of a stack gives the stack's bits.
 *
 *   kr_layer_config config;
 *   kr_layer_config_init(&config);
 *   config.block = kr_mamba2_block(&mamba);
 *   kr_layer *layer = kr_layer_create(ctx, &config);
 *   kr_block_out whole = kr_layer_forward(tape, layer, x_bsd, NULL);
 *   kr_block_out next = kr_layer_step(tape, layer, x_bd, &whole.cache);
 *   kr_layer_destroy(layer);
 */
typedef struct kr_layer kr_layer;

typedef struct kr_layer_config {
    size_t size; /* set by kr_layer_config_init */
    kr_block_config block;
    double norm_eps;         /* 1e-5 */
    int64_t d_intermediate;  /* 0: no MLP; else its width ... */
    int64_t mlp_multiple_of; /* 128: ... rounded up to a multiple of this */
    bool has_mlp_bias;       /* false */
    bool ignore_residual;    /* false; true: y = h1 + h2 */
    bool residual_in_f32;    /* true: a half-precision x is added up in f32, and y is f32 */
} kr_layer_config;
#define kr_layer_config_init(config) KR_STRUCT_INIT(LAYER_CONFIG, kr_layer_config, config)

/* NULL after an error that names field, value and rule. The caller destroys the result before the context. */
KR_API kr_layer *kr_layer_create(kr_ctx *ctx, const kr_layer_config *config);
KR_API void kr_layer_destroy(kr_layer *layer);

/* Its parameters: "norm.weight", "mixer....", "norm2.weight", "mlp....". Its block, for kr_block_path,
 * kr_block_initial_cache and kr_network_part; the block's own table is NULL. Both live as long as the layer. */
KR_API kr_params *kr_layer_params(const kr_layer *layer);
KR_API const kr_block *kr_layer_block(const kr_layer *layer);

/* As kr_block_forward, kr_block_step and kr_block_step_infinite, for the whole layer. */
KR_API kr_block_out kr_layer_forward(kr_tape *tape, const kr_layer *layer, kr_tensor *x_bsd, const kr_block_call *call);
KR_API kr_block_out kr_layer_step(kr_tape *tape, const kr_layer *layer, kr_tensor *x_bd, const kr_cache *cache);
KR_API kr_tensor *kr_layer_step_infinite(kr_tape *tape, const kr_layer *layer, kr_tensor *x_bd);

/* ---- calls ---- */

/* How a stack or a network is to be run; NULL in its place: all defaults. */
typedef struct kr_call {
    size_t size;           /* set by kr_call_init */
    const kr_state *state; /* NULL: the initial state */
    /* Packed rows: not 0 where a sequence begins; the first token of a row begins one. The state, in and out, has a row
     * for each sequence. Not together with markers. */
    kr_tensor *seq_start_bs;
    /* Rows that forget what was before a token; the state has a row for each row. Not together with markers. */
    kr_tensor *reset_bs;
    const kr_ssd_path *path; /* NULL: the block's */
    bool drop_state;         /* the new state is not wanted: less memory */
    bool last_logits_only;   /* networks: forward's y is [b w], of the last token */
    /* Padded rows, forward only: 1, or 0 where a token is padding (i32 or i64), as Hugging Face's attention_mask. The
     * input of each block, and what its convolution gives, are multiplied by it; step, gate and residual stream are not.
     * A row padded on the left gives what it gives without its padding, unless there is a bias of in_proj or a learned
     * initial state. Not together with markers. */
    kr_tensor *mask_bs;
    /* An array for one tensor per virtual layer: the residual stream after it, [b s d], with the class tokens so far; of
     * several streams (multi-gate) what the next layer reads, their pool. NULL where no token came by. On the tape, also
     * where layers are not recorded; not to be read after an error. */
    kr_tensor **streams;
    /* Instead of state, for decoding: one of kr_state_create, which the call moves on in place; out.state is it. The same
     * bits without the copies. Unrecorded calls only. If the call fails midway the state is inconsistent: it is
     * rejected from
     * then on, until kr_state_zero, or kr_state_copy into it. */
    kr_state *advance;
    bool skip_head;   /* networks: y is NULL; hidden is what the head would be applied to */
    bool skip_hidden; /* networks: hidden is NULL where y is not, which may be faster */
    /* Packed rows by their cumulative lengths instead of seq_start_bs: i32 or i64 [q+1]; see
     * kr_seq_start_from_cu_seqlens. */
    kr_tensor *cu_seqlens;
    /* Forward only: dropout with this probability, in [0, 1), of the stack's input and of what each block and MLP adds to
     * the residual stream (kr_dropout). 0: none, as evaluation and generation want it. */
    double dropout;
} kr_call;
#define kr_call_init(call) KR_STRUCT_INIT(CALL, kr_call, call)

typedef struct kr_layers_out {
    kr_tensor *y;
    kr_state *state;   /* on the tape, or call.advance; NULL with drop_state */
    void *reserved[4]; /* NULL; for later versions */
} kr_layers_out;

/* What a call runs: a sequence, one token, or only the class tokens before the next token. Values are fixed. */
typedef enum kr_call_kind { KR_CALL_FORWARD = 0, KR_CALL_STEP = 1, KR_CALL_PRIME = 2 } kr_call_kind;

/* Runs the stack; y is NULL after an error, which names the operand and the rule. x is as below, NULL for KR_CALL_PRIME. */
KR_API kr_layers_out kr_layers_call(kr_tape *tape, const kr_layers *layers, kr_call_kind kind, kr_tensor *x,
                                    const kr_call *call);

/* x [b s d] -> y [b s' d], s' = s and the markers that were spliced in. */
KR_API_INLINE kr_layers_out kr_layers_forward(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bsd,
                                              const kr_call *call)
{
    return kr_layers_call(tape, layers, KR_CALL_FORWARD, x_bsd, call);
}

/* x [b d] -> y [b d]: one token, and the markers that are due with it; y is of the last of them. */
KR_API_INLINE kr_layers_out kr_layers_step(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bd, const kr_call *call)
{
    return kr_layers_call(tape, layers, KR_CALL_STEP, x_bd, call);
}

/* Runs only the markers that stand before the next token; y is of the last of them, NULL if there is none. A step after
 * it gives what the step alone would have given. Needs a state with an announced length. */
KR_API_INLINE kr_layers_out kr_layers_prime(kr_tape *tape, const kr_layers *layers, const kr_call *call)
{
    return kr_layers_call(tape, layers, KR_CALL_PRIME, NULL, call);
}

/* The limit of step's output for a constant input (steady state), layer by layer; without class tokens. */
KR_API kr_tensor *kr_layers_step_infinite(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bd);

/* The number of virtual layers, which is the number of slots of its states, and the width of its hidden states. */
KR_API int64_t kr_layers_virtual(const kr_layers *layers);
KR_API int64_t kr_layers_d_model(const kr_layers *layers);

#ifdef __cplusplus
}
#endif
#endif
