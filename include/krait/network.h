/* network.h - networks: embedding, stack and LM head (tokens to logits), or projections around a stack (features to
 * features).
 *
 *   kr_network_config config;
 *   kr_network_config_init(&config);
 *   config.layers = &stack;                      // a kr_layers_config
 *   config.vocab_size = 256;
 *   kr_network *net = kr_network_create(ctx, &config);
 *   kr_network_out out = kr_network_forward(tape, net, id_bs, NULL);           // logits [b s w]
 *   kr_network_destroy(net);
 *
 * A vocabulary network is an embedding, a stack, a norm and an LM head. A latent network is in_proj, a stack, an
 * optional norm and out_proj.
 *
 * Sections: States, class tokens, stacks, networks, stacks in both directions. */
#ifndef KRAIT_NETWORK_H
#define KRAIT_NETWORK_H

#include <krait/base.h>
#include <krait/block.h>
#include <krait/seq_parallel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== States ====
 *
 * The recurrent state of a stack: the caches of all layers as one object.
 *
 *   kr_state *state = kr_state_create(ctx, kr_network_layers(net), 1);
 *   kr_call call;
 *   kr_call_init(&call);
 *   call.state = state;
 *   kr_network_out out = kr_network_step(tape, net, id_b, &call);      // reads the state, returns a new one
 *   kr_state_copy(state, out.state);                                   // survives the reset of the tape
 *   if (kr_state_save(state, net, "chat.state") != KR_OK) fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_state_destroy(state);
 *
 * A state is owned either by the caller (kr_state_create, kr_state_load) or by a tape (returned by a call, valid until
 * the tape is reset; gradients flow through it from one call to the next). Every function reads both kinds. Functions
 * that change a state (destroy, zero, copy, announce, and calls with `advance`) take a state of the caller only. A call
 * reads such a state without copying it, and so does its backward pass: do not change the state before the backward
 * pass. If it was changed by a copy or an `advance`, kr_backward fails.
 *
 * Without gradients, set call.advance = state instead of call.state: the call updates the caller's state in place. The
 * result is that of the step and the copy above, without copies. */

typedef struct kr_state kr_state;
typedef struct kr_layers kr_layers;
typedef struct kr_network kr_network;

/* Creates an initial state. The caller destroys it. NULL after an error. */
KR_API kr_state *kr_state_create(kr_ctx *ctx, const kr_layers *layers, int64_t batch);
KR_API void kr_state_destroy(kr_state *state);

/* Resets the state to the initial one, including announced lengths. */
KR_API kr_status kr_state_zero(kr_state *state);

/* Copies `from`, of any batch size, to `to`, a state of kr_state_create or kr_state_load. */
KR_API kr_status kr_state_copy(kr_state *to, const kr_state *from);

/* On the tape, with gradients. select: the given rows in the given order; a row may occur more than once. fork: one
 * row, repeated `count` times. */
KR_API kr_state *kr_state_select(kr_tape *tape, const kr_state *state, int64_t count, const int64_t *rows);
KR_API kr_state *kr_state_fork(kr_tape *tape, const kr_state *state, int64_t row, int64_t count);

/* On the tape, with gradients: concatenates the rows of several states. All must have the same class-token positions,
 * and either all or none may be initial. */
KR_API kr_state *kr_state_join(kr_tape *tape, int count, kr_state *const *states);

/* On the tape: the same values as leaves that require gradients (kr_input), or without gradients (kr_detach). */
KR_API kr_state *kr_state_input(kr_tape *tape, const kr_state *state);
KR_API kr_state *kr_state_detach(kr_tape *tape, const kr_state *state);

typedef struct kr_state_info {
    int64_t batch;        /* rows */
    int64_t slots;        /* caches, one for each virtual layer */
    size_t bytes;         /* size of the tensors */
    bool is_initial;      /* no token has been processed; true for NULL */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_state_info;

/* Properties of a state. The functions below return one field each. */
KR_API kr_state_info kr_state_info_of(const kr_state *state);
KR_API_INLINE int64_t kr_state_batch(const kr_state *state)
{
    return kr_state_info_of(state).batch;
}
KR_API_INLINE int64_t kr_state_slots(const kr_state *state)
{
    return kr_state_info_of(state).slots;
}
KR_API_INLINE bool kr_state_is_initial(const kr_state *state)
{
    return kr_state_info_of(state).is_initial;
}
KR_API_INLINE size_t kr_state_bytes(const kr_state *state)
{
    return kr_state_info_of(state).bytes;
}

/* The cache of a slot. Its tensors are NULL while the slot is initial. NULL if there is no such slot. */
KR_API const kr_cache *kr_state_cache(const kr_state *state, int64_t slot);

/* Access to parts of a state, for networks composed by hand (kr_network_custom). kr_state_part returns `count` slots
 * from `first` on as a state on the tape, for the kr_call of a stack; kr_state_set_part writes the new state back. Both
 * states have the same number of rows. kr_state_cache reads the cache of a block or layer, and kr_state_set_cache
 * writes it back. A state on a tape takes the tensors; a state of the caller takes a copy. */
KR_API kr_state *kr_state_part(kr_tape *tape, const kr_state *state, int64_t first, int64_t count);
KR_API kr_status kr_state_set_part(kr_state *state, int64_t first, const kr_state *part);
KR_API kr_status kr_state_set_cache(kr_state *state, int64_t slot, const kr_cache *cache);

/* Announces the number of tokens of the sequence, which middle and end class tokens need. With KR_LENGTH_UNKNOWN only
 * start and custom class tokens can be inserted. After an announcement each call continues the sequence of the previous
 * call. Without one, class tokens treat each forward call as a whole sequence. */
#define KR_LENGTH_UNKNOWN (-1)
KR_API kr_status kr_state_announce(kr_state *state, int64_t full_len);

/* Saves a state to a file, and loads it. The file has a checksum and identifies its network: loading fails with a
 * reason if the architecture or the weights differ, or if the file is truncated or damaged. The write is atomic: the
 * path holds either the old file or the complete new one. */
KR_API KR_MUST_CHECK kr_status kr_state_save(const kr_state *state, const kr_network *net, const char *path);
KR_API kr_state *kr_state_load(kr_ctx *ctx, const kr_network *net, const char *path);

/* The same with the bytes of the file in the caller's memory. *needed is their number; out NULL: the state is only
 * measured. KR_ERR_ARG if the memory is too small; after an error its contents are undefined. Loading keeps no reference
 * to the memory, and untrusted bytes are safe. */
KR_API KR_MUST_CHECK kr_status kr_state_save_memory(const kr_state *state, const kr_network *net, void *out,
                                                    size_t bytes, size_t *needed);
KR_API kr_state *kr_state_load_memory(kr_ctx *ctx, const kr_network *net, const void *data, size_t bytes);

/* ==== Class tokens ====
 *
 * Class tokens: learned rows inserted into a sequence at given positions.
 *
 *   const kr_class_token class_tokens[] = { { .kind = KR_CLASS_TOKEN_START }, { .kind = KR_CLASS_TOKEN_END } };
 *   int64_t at = kr_class_token_index(class_tokens, 2, 1, 4); // 5: the output of the end token, of 4 tokens
 */

typedef enum kr_class_token_kind {
    KR_CLASS_TOKEN_START = 0,  /* before the first token */
    KR_CLASS_TOKEN_MIDDLE = 1, /* before token len / 2 */
    KR_CLASS_TOKEN_END = 2,    /* after the last token */
    KR_CLASS_TOKEN_CUSTOM = 3  /* before token `at`; not inserted if the sequence is shorter */
} kr_class_token_kind;

typedef struct kr_class_token {
    kr_class_token_kind kind;
    int64_t at;           /* position, for KR_CLASS_TOKEN_CUSTOM */
    uint64_t reserved[2]; /* must be 0; for later versions */
} kr_class_token;

/* Index of class token `which` of `count` in the output for `len` tokens. Class tokens at the same position are ordered
 * start, middle, end, custom, then as listed. -1 for arguments out of range. */
KR_API int64_t kr_class_token_index(const kr_class_token *class_tokens, int count, int which, int64_t len);

/* ==== Stacks ====
 *
 * Stacks of blocks: pre-norm layers with residual connections.
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
 * it to the residual stream. Calls are pure: they read a state and return a new one. `advance` updates in place. */

/* ---- schedules: the weights of each virtual layer ---- */

typedef enum kr_schedule {
    KR_SCHEDULE_CYCLIC = 0,    /* v mod n_layers */
    KR_SCHEDULE_STRETCHED = 1, /* v n_layers / n_virtual, rounded down */
    KR_SCHEDULE_CUSTOM = 2     /* custom_schedule[v] */
} kr_schedule;

/* Schedules of bidirectional stacks. Virtual layers form pairs; the even layer of a pair reads from left to right. */
typedef enum kr_bidi_schedule {
    /* Even real layers read left to right, odd ones right to left; both halves are cyclic. */
    KR_BIDI_SCHEDULE_STRIDED_CYCLIC = 0,
    KR_BIDI_SCHEDULE_STRIDED_STRETCHED = 1,
    /* Both directions of a pair share weights. */
    KR_BIDI_SCHEDULE_SYMMETRIC_CYCLIC = 2,
    KR_BIDI_SCHEDULE_SYMMETRIC_STRETCHED = 3,
    KR_BIDI_SCHEDULE_CUSTOM = 4
} kr_bidi_schedule;

/* Index of the real layer whose weights virtual layer v uses; -1 for arguments out of range. */
KR_API int64_t kr_schedule_at(kr_schedule schedule, const int64_t *custom, int64_t v, int64_t n_virtual,
                              int64_t n_layers);
KR_API int64_t kr_bidi_schedule_at(kr_bidi_schedule schedule, const int64_t *custom, int64_t v, int64_t n_virtual,
                                   int64_t n_layers);

/* ---- residual connections ---- */

typedef enum kr_residual_kind {
    KR_RESIDUAL_STANDARD = 0,  /* x <- x + delta(x) */
    KR_RESIDUAL_MULTI_GATE = 1 /* n_stream streams, mixed by gates and pooled by attention over them */
} kr_residual_kind;

typedef struct kr_residual {
    kr_residual_kind kind;
    int64_t n_stream; /* multi-gate, as the fields below: maximum number of streams */
    double init_bias; /* gate bias of stream q: init_bias + q init_bias_step */
    double init_bias_step;
    bool per_virtual_layer; /* one gate per virtual layer instead of one per real layer */
    uint64_t reserved[2];   /* must be 0; for later versions */
} kr_residual;

/* The init_bias with which n_mix mixing layers (depth - (n_stream - 1)) retain a stream as 21 layers with bias -3 do:
 * -ln(sqrt(n_mix / 21) (e^3 + 1) - n_stream). NaN if n_mix is too small. */
KR_API double kr_multi_gate_depth_bias(int64_t n_mix, int64_t n_stream);

/* ---- gradient checkpointing ---- */

typedef enum kr_recompute {
    KR_RECOMPUTE_NONE = 0,  /* store all activations */
    KR_RECOMPUTE_ALL = 1,   /* recompute every layer in the backward pass */
    KR_RECOMPUTE_BUDGET = 2 /* recompute as few layers as fit in recompute_budget */
} kr_recompute;

/* ---- stacks ---- */

/* A class token inserted into the input of one real layer. */
typedef struct kr_layer_class_token {
    int64_t layer;
    kr_class_token token;
} kr_layer_class_token;

#define KR_NO_HORIZON (-1)

typedef struct kr_layers_config {
    size_t size; /* set by kr_layers_config_init */
    kr_block_config block;
    int64_t n_layers;               /* real layers, each with its own weights */
    int64_t n_virtual;              /* 0: n_layers; number of layers executed */
    kr_schedule schedule;           /* KR_SCHEDULE_CYCLIC */
    const int64_t *custom_schedule; /* KR_SCHEDULE_CUSTOM: n_virtual indices below n_layers */
    double norm_eps;                /* 1e-5 */
    int64_t d_intermediate;         /* 0: no MLP; width of the MLP ... */
    int64_t mlp_multiple_of;        /* 128: ... rounded up to a multiple of this */
    bool has_mlp_bias;              /* false */
    bool ignore_first_residual;     /* false; true: the first layer computes x <- delta(x) */
    bool ignore_last_residual;      /* false; true: so does the last layer */
    kr_residual residual;           /* standard */
    bool residual_in_f32;           /* true: the residual stream of bf16 and f16 inputs is f32 */
    /* KR_NO_HORIZON; otherwise the backward pass is limited to the last grad_horizon virtual layers. */
    int64_t grad_horizon;
    kr_recompute recompute;
    /* KR_RECOMPUTE_BUDGET: bytes of the tape for forward and backward pass of the stack. A head or loss after the stack
     * needs additional memory. */
    size_t recompute_budget;
    int n_latents; /* learned rows inserted into the stack's input ... */
    const kr_class_token *latents;
    int n_layer_latents; /* ... and into the input of single layers */
    const kr_layer_class_token *layer_latents;
} kr_layers_config;
#define kr_layers_config_init(config) KR_STRUCT_INIT(LAYERS_CONFIG, kr_layers_config, config)

/* Creates a stack. NULL after an error that names field, value and rule. The caller destroys the stack before the
 * context. */
KR_API kr_layers *kr_layers_create(kr_ctx *ctx, const kr_layers_config *config);
KR_API void kr_layers_destroy(kr_layers *layers);

typedef struct kr_layers_info {
    kr_params *params;    /* the parameter table, valid as long as the stack; NULL for the stack of a network */
    int64_t n_virtual;    /* virtual layers, which is the number of slots of a state */
    int64_t d_model;      /* width of the residual stream */
    int64_t grid;         /* see kr_network_grid */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_layers_info;

/* Properties of a stack; all 0 for NULL. The functions below return one field each. */
KR_API kr_layers_info kr_layers_info_of(const kr_layers *layers);
KR_API_INLINE kr_params *kr_layers_params(const kr_layers *layers)
{
    return kr_layers_info_of(layers).params;
}
KR_API_INLINE int64_t kr_layers_virtual(const kr_layers *layers)
{
    return kr_layers_info_of(layers).n_virtual;
}
KR_API_INLINE int64_t kr_layers_d_model(const kr_layers *layers)
{
    return kr_layers_info_of(layers).d_model;
}
KR_API_INLINE int64_t kr_layers_grid(const kr_layers *layers)
{
    return kr_layers_info_of(layers).grid;
}

/* ---- single layers ---- */

/* One layer of a stack: y = x + h1 + h2, h1 = block(norm(x)), h2 = mlp(norm2(x + h1)) if there is an MLP. A sequence of
 * layers with the weights of a stack gives the same bits as the stack.
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
    int64_t d_intermediate;  /* 0: no MLP; width of the MLP ... */
    int64_t mlp_multiple_of; /* 128: ... rounded up to a multiple of this */
    bool has_mlp_bias;       /* false */
    bool ignore_residual;    /* false; true: y = h1 + h2 */
    bool residual_in_f32;    /* true: for a bf16 or f16 x the sum and y are f32 */
} kr_layer_config;
#define kr_layer_config_init(config) KR_STRUCT_INIT(LAYER_CONFIG, kr_layer_config, config)

/* Creates a layer. NULL after an error that names field, value and rule. The caller destroys the layer before the
 * context. */
KR_API kr_layer *kr_layer_create(kr_ctx *ctx, const kr_layer_config *config);
KR_API void kr_layer_destroy(kr_layer *layer);

typedef struct kr_layer_info {
    kr_params *params; /* "norm.weight", "mixer....", "norm2.weight", "mlp...." */
    /* For kr_block_path, kr_block_initial_cache and kr_network_part; its own parameter table is NULL. */
    const kr_block *block;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_layer_info;

/* The parts of a layer, valid as long as the layer; NULL for NULL. The functions below return one field each. */
KR_API kr_layer_info kr_layer_info_of(const kr_layer *layer);
KR_API_INLINE kr_params *kr_layer_params(const kr_layer *layer)
{
    return kr_layer_info_of(layer).params;
}
KR_API_INLINE const kr_block *kr_layer_block(const kr_layer *layer)
{
    return kr_layer_info_of(layer).block;
}

/* kr_block_run, kr_block_forward, kr_block_step and kr_block_step_infinite for the whole layer. */
KR_API kr_block_out kr_layer_call(kr_tape *tape, const kr_layer *layer, kr_call_kind kind, kr_tensor *x,
                                  const kr_block_call *call);
KR_API_INLINE kr_block_out kr_layer_forward(kr_tape *tape, const kr_layer *layer, kr_tensor *x_bsd,
                                            const kr_block_call *call)
{
    return kr_layer_call(tape, layer, KR_CALL_FORWARD, x_bsd, call);
}
KR_API_INLINE kr_block_out kr_layer_step(kr_tape *tape, const kr_layer *layer, kr_tensor *x_bd, const kr_cache *cache)
{
    const kr_block_call call = { cache, 0, 0, 0, 0, 0, { 0, 0, 0 } };
    return kr_layer_call(tape, layer, KR_CALL_STEP, x_bd, &call);
}
KR_API_INLINE kr_tensor *kr_layer_step_infinite(kr_tape *tape, const kr_layer *layer, kr_tensor *x_bd)
{
    return kr_layer_call(tape, layer, KR_CALL_STEP_INFINITE, x_bd, 0).y;
}

/* ---- calls ---- */

/* Options of a call of a stack or network. NULL instead of a kr_call selects all defaults. */
typedef struct kr_call {
    size_t size;           /* set by kr_call_init */
    const kr_state *state; /* NULL: the initial state */
    /* Packed rows: nonzero where a sequence starts; the first token of a row always starts one. Input and output state
     * have one row per sequence. Cannot be combined with class tokens. */
    kr_tensor *seq_start_bs;
    /* State resets: where reset_bs != 0 the state is cleared before that token. One state per row. Cannot be combined
     * with class tokens. */
    kr_tensor *reset_bs;
    const kr_ssd_path *path; /* NULL: the path of the block */
    bool drop_state;         /* do not return the new state; saves memory */
    bool last_logits_only;   /* networks: y of forward is [b w], for the last token */
    /* Padded rows, forward only: 1 for a token, 0 for padding (i32 or i64), as Hugging Face's attention_mask. The input
     * of each block and the output of its convolution are multiplied by the mask; dt, gate and residual stream are not.
     * A row padded on the left gives the outputs of the row without padding, unless in_proj has a bias or the initial
     * state is learned. Cannot be combined with class tokens. */
    kr_tensor *mask_bs;
    /* Array that receives one tensor per virtual layer: the residual stream after it, [b s d], including the class
     * tokens inserted so far. With multi-gate residuals it is the pooled stream that the next layer reads. NULL if no
     * token reached this layer. The tensors belong to the tape, also where layers are not recorded. Do not read them
     * after an error. */
    kr_tensor **streams;
    /* For decoding, instead of `state`: a caller-owned state that the call updates in place; out.state is the same
     * pointer. Same bits, no copies. Only without gradients. If the call fails midway the state is inconsistent and is
     * rejected until kr_state_zero resets it or kr_state_copy overwrites it. */
    kr_state *advance;
    bool skip_head; /* networks: do not apply the head: y is NULL */
    /* Packed rows as cumulative lengths, instead of seq_start_bs: i32 or i64 [q+1]; see
     * kr_seq_start_from_cu_seqlens. */
    kr_tensor *cu_seqlens;
    /* Forward only: dropout probability, in [0, 1), for the stack's input and for the outputs of each block and MLP
     * before they are added to the residual stream (kr_dropout). 0, the default, for evaluation and generation. */
    double dropout;
    /* Precision of matrix products of this call and of its backward pass; KR_PRECISION_UNSET, the default: that of the
     * context (kr_ctx_options.precision). */
    kr_precision precision;
    /* Forward only: x and all tensors of a number for each token are this rank's piece of each row. `state` counts on the
     * first piece only; the new state is that after the piece, of one row for each row of x, also for packed rows: a sequence
     * that begins before the piece continues unless its first token is marked. Cannot be combined with class tokens and
     * `advance`. NULL, the default: the whole rows. */
    kr_seq_parallel *seq_parallel;
} kr_call;
#define kr_call_init(call) KR_STRUCT_INIT(CALL, kr_call, call)

typedef struct kr_layers_out {
    kr_tensor *y;
    kr_state *state;   /* belongs to the tape, or is call.advance; NULL with drop_state */
    void *reserved[4]; /* NULL; for later versions */
} kr_layers_out;

/* Runs the stack. x is as below, and NULL for KR_CALL_PRIME; call is NULL for KR_CALL_STEP_INFINITE. y is NULL after an
 * error, which names the operand and the rule. */
KR_API kr_layers_out kr_layers_call(kr_tape *tape, const kr_layers *layers, kr_call_kind kind, kr_tensor *x,
                                    const kr_call *call);

/* x [b s d] -> y [b s' d]; s' is s plus the number of inserted class tokens. */
KR_API_INLINE kr_layers_out kr_layers_forward(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bsd,
                                              const kr_call *call)
{
    return kr_layers_call(tape, layers, KR_CALL_FORWARD, x_bsd, call);
}

/* x [b d] -> y [b d]: one token and the class tokens inserted with it; y is the last output. */
KR_API_INLINE kr_layers_out kr_layers_step(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bd, const kr_call *call)
{
    return kr_layers_call(tape, layers, KR_CALL_STEP, x_bd, call);
}

/* Runs only the class tokens before the next token; y is the last output, or NULL if there are none. A step after it
 * gives the same output as the step alone. Needs a state with an announced length. */
KR_API_INLINE kr_layers_out kr_layers_prime(kr_tape *tape, const kr_layers *layers, const kr_call *call)
{
    return kr_layers_call(tape, layers, KR_CALL_PRIME, NULL, call);
}

/* Limit of the output of step for a constant input (steady state), layer by layer. Without class tokens. */
KR_API_INLINE kr_tensor *kr_layers_step_infinite(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bd)
{
    return kr_layers_call(tape, layers, KR_CALL_STEP_INFINITE, x_bd, 0).y;
}

/* ==== Networks ==== */

typedef struct kr_network_config {
    size_t size;                    /* set by kr_network_config_init */
    const kr_layers_config *layers; /* used only by kr_network_create */

    int64_t vocab_size; /* > 0: a vocabulary network */
    /* 8: the embedding table has vocab_size rounded up to a multiple of this rows, and as many logits. */
    int64_t pad_vocab_size_multiple;
    bool tie_embeddings;  /* true: the LM head is tied to the embedding */
    double embedding_std; /* 0.02: initial standard deviation of the embedding */
    /* true: initial weights of out_proj and fc2 are divided by sqrt(n_residuals n_virtual). */
    bool rescale_residual;
    int64_t n_residuals;   /* 1, as in the official code, also with an MLP */
    bool zero_proj_biases; /* true: projection biases start at 0; false: uniformly random */

    int64_t input_size;  /* > 0: a latent network, from input_size ... */
    int64_t output_size; /* ... to output_size features */
    bool has_final_norm; /* false; vocabulary networks always have one */
    int n_class_tokens;  /* learned rows inserted into the input of a latent network */
    const kr_class_token *class_tokens;
} kr_network_config;
#define kr_network_config_init(config) KR_STRUCT_INIT(NETWORK_CONFIG, kr_network_config, config)

/* Creates a network. NULL after an error that names field, value and rule. The caller destroys the network before the
 * context. */
KR_API kr_network *kr_network_create(kr_ctx *ctx, const kr_network_config *config);
KR_API void kr_network_destroy(kr_network *net);

/* Creates a network in `ctx` over the weights of `net`, which belongs to any context on the same device. Only headers are
 * created: values, mapped files and packed panels (kr_params_pack) are shared. Results have the same bits as those of
 * `net`, up to the options of `ctx` (isa, precision).
 *
 * Ownership: the caller destroys the result before `ctx`; it may outlive `net` and its context. The last of the networks
 * frees the weights, on its thread, with the allocator of the context that created them: with a custom allocator,
 * `free` must then be callable from that thread, and `user` be valid until then.
 * Thread safety: may be called while other threads use `net`, except to write, pack or destroy it.
 * Errors: NULL. KR_ERR_STATE if the contexts are on different devices, or if an optimizer or a trainer holds the weights.
 * While several networks share weights, writing, packing, training and unfreezing them are KR_ERR_STATE too, and the
 * parameters of the result are frozen (kr_params_freeze). Custom networks cannot be shared. */
KR_API kr_network *kr_network_share(kr_ctx *ctx, const kr_network *net);

typedef struct kr_network_info {
    kr_params *params;       /* the parameter table */
    const kr_layers *layers; /* for kr_state_create; NULL for a custom network */
    int64_t width;           /* of y: vocab_size with padding, or output_size */
    int64_t grid;            /* see kr_network_grid */
    uint64_t reserved[8];    /* 0; for later versions */
} kr_network_info;

/* Properties of a network, valid as long as the network; all 0 for NULL. The functions below return one field each. */
KR_API kr_network_info kr_network_info_of(const kr_network *net);
KR_API_INLINE kr_params *kr_network_params(const kr_network *net)
{
    return kr_network_info_of(net).params;
}
KR_API_INLINE const kr_layers *kr_network_layers(const kr_network *net)
{
    return kr_network_info_of(net).layers;
}
KR_API_INLINE int64_t kr_network_width(const kr_network *net)
{
    return kr_network_info_of(net).width;
}

/* The smallest number of tokens at whose multiples a text can be cut without changing a bit: on the CPU and with the paths
 * of the blocks, forward calls over the pieces, with the state passed on, give the outputs and the final state of one
 * forward call over the text. 1 for Mamba-1, otherwise the least common multiple of the chunk lengths of all layers. For
 * a custom network that of its parts; its forward function must process everything else token by token. 0 if there is no
 * such number: for Minimal and Serial paths, for class tokens, for NULL. Constant; any thread may call it. */
KR_API_INLINE int64_t kr_network_grid(const kr_network *net)
{
    return kr_network_info_of(net).grid;
}

/* Formats the parameter table as text; see kr_params_describe. */
KR_API_INLINE size_t kr_network_describe(const kr_network *net, char *text, size_t bytes)
{
    return kr_params_describe(kr_network_params(net), text, bytes);
}

/* Creates an initial state for a network of any kind. The caller destroys it. NULL after an error. */
KR_API kr_state *kr_network_state(const kr_network *net, int64_t batch);

typedef struct kr_network_out {
    /* Logits [b s w], or [b w] from step and with last_logits_only; or outputs [b s o] or [b o]. NULL with
     * skip_head. */
    kr_tensor *y;
    kr_tensor *hidden; /* input of the head */
    kr_state *state;   /* belongs to the tape, or is call.advance; NULL with drop_state */
    void *reserved[4]; /* NULL; for later versions */
} kr_network_out;

/* Runs the network. x is as below, and NULL for KR_CALL_PRIME; call is NULL for KR_CALL_STEP_INFINITE. y is NULL after an
 * error, which names the operand and the rule. */
KR_API kr_network_out kr_network_call(kr_tape *tape, const kr_network *net, kr_call_kind kind, kr_tensor *x,
                                      const kr_call *call);

/* x: ids [b s] (i32 or i64), or features [b s input_size]. */
KR_API_INLINE kr_network_out kr_network_forward(kr_tape *tape, const kr_network *net, kr_tensor *x, const kr_call *call)
{
    return kr_network_call(tape, net, KR_CALL_FORWARD, x, call);
}

/* One token. x: ids [b], or features [b input_size]. */
KR_API_INLINE kr_network_out kr_network_step(kr_tape *tape, const kr_network *net, kr_tensor *x, const kr_call *call)
{
    return kr_network_call(tape, net, KR_CALL_STEP, x, call);
}

/* See kr_layers_prime. */
KR_API_INLINE kr_network_out kr_network_prime(kr_tape *tape, const kr_network *net, const kr_call *call)
{
    return kr_network_call(tape, net, KR_CALL_PRIME, NULL, call);
}

/* See kr_layers_step_infinite. */
KR_API_INLINE kr_tensor *kr_network_step_infinite(kr_tape *tape, const kr_network *net, kr_tensor *x)
{
    return kr_network_call(tape, net, KR_CALL_STEP_INFINITE, x, 0).y;
}

/* ---- custom networks ---- */

/* A part with a cache: a block (for a layer: kr_layer_block) with one slot of the state, or a stack with one slot per
 * virtual layer. Set one of the two; reserved must be NULL. */
typedef struct kr_network_part {
    const kr_block *block;
    const kr_layers *layers; /* without class tokens and latents */
    void *reserved[2];
} kr_network_part;

/* The forward function of a custom network. Reads x, ids [b s] or features [b s f], s >= 1, and returns y [b s width];
 * with call->last_logits_only, [b 1 width] is enough. `state` is on the tape and holds the caches before x; the
 * function must replace all of them with kr_state_set_cache or kr_state_set_part. call: the caller's other options
 * (packed rows, resets, mask, path); its state is NULL. The function must be deterministic, and a sequence processed in
 * pieces must give the outputs of the whole. Returns NULL after an error (kr_ctx_fail). */
typedef kr_tensor *kr_network_fn(void *user, kr_tape *tape, kr_tensor *x, kr_state *state, const kr_call *call);

typedef struct kr_custom_network {
    size_t size;       /* set by kr_custom_network_init */
    kr_params *params; /* all parameters; state files identify the network by them */
    int n_parts;       /* at least 1: parts with caches, in the order of the state's slots; the array is copied */
    const kr_network_part *parts; /* params, blocks and stacks must outlive the network */
    int64_t vocab_size;           /* > 0: x holds ids below vocab_size; or ... */
    int64_t input_size;           /* ... > 0: x holds input_size features */
    int64_t width;                /* width of y; 0: vocab_size */
    kr_network_fn *forward;       /* NULL: the network serves only for states and state files */
    void (*destroy)(void *user);  /* called with user by kr_network_destroy; may be NULL */
    void *user;
} kr_custom_network;
#define kr_custom_network_init(custom) KR_STRUCT_INIT(CUSTOM_NETWORK, kr_custom_network, custom)

/* Creates a network from custom blocks, layers, stacks and ops, for kr_network_forward and kr_network_step,
 * kr_network_loss, kr_generation_create, kr_state_save and kr_state_load. kr_network_layers is NULL, and skip_head,
 * streams, prime and step_infinite are errors. examples/handmade.c is a complete program. NULL after an error;
 * `destroy` is not called then. */
KR_API kr_network *kr_network_custom(kr_ctx *ctx, const kr_custom_network *custom);

/* ==== Stacks in both directions ====
 *
 * Bidirectional stacks.
 *
 *   kr_mamba2_config mamba;
 *   kr_mamba2_config_init(&mamba);
 *   mamba.d_model = 256;
 *   kr_bidi_config config;
 *   kr_bidi_config_init(&config);
 *   config.block = kr_mamba2_block(&mamba);
 *   config.n_layers = 2;
 *   kr_bidi *bidi = kr_bidi_create(ctx, &config);
 *   kr_bidi_out out = kr_bidi_forward(tape, bidi, x_bsd, NULL);
 *   kr_bidi_destroy(bidi);
 *
 * Layers form pairs: delta(x) = merge(block_s(norm_s(x)), flip(block_r(norm_r(flip(x))))). The residual connection is
 * around a pair. */

typedef enum kr_bidi_merge {
    KR_BIDI_MERGE_MEAN = 0,      /* (a + b) / 2 */
    KR_BIDI_MERGE_CAT_LINEAR = 1 /* [a b] W^T + bias, with one W per real pair */
} kr_bidi_merge;

typedef struct kr_bidi_config {
    size_t size; /* set by kr_bidi_config_init */
    kr_block_config block;
    int64_t n_layers;               /* real layers, each with its own weights; even */
    int64_t n_virtual;              /* 0: n_layers; number of layers executed; even */
    kr_bidi_schedule schedule;      /* KR_BIDI_SCHEDULE_STRIDED_CYCLIC */
    const int64_t *custom_schedule; /* KR_BIDI_SCHEDULE_CUSTOM: n_virtual indices below n_layers */
    kr_bidi_merge merge;            /* KR_BIDI_MERGE_MEAN */
    double norm_eps;                /* 1e-5 */
    bool ignore_first_residual;     /* false; true: the first pair computes x <- delta(x) */
    bool ignore_last_residual;      /* false; true: so does the last pair */
    kr_residual residual;           /* standard; around a pair */
    int n_latents;                  /* learned rows inserted into the stack's input */
    const kr_class_token *latents;
} kr_bidi_config;
#define kr_bidi_config_init(config) KR_STRUCT_INIT(BIDI_CONFIG, kr_bidi_config, config)

typedef struct kr_bidi kr_bidi;

/* Creates a stack. NULL after an error that names field, value and rule. The caller destroys the stack before the
 * context. */
KR_API kr_bidi *kr_bidi_create(kr_ctx *ctx, const kr_bidi_config *config);
KR_API void kr_bidi_destroy(kr_bidi *bidi);
KR_API kr_params *kr_bidi_params(const kr_bidi *bidi);

typedef struct kr_bidi_out {
    kr_tensor *y;
    kr_cache *caches;  /* [n_virtual], on the tape: the final cache of each layer */
    void *reserved[4]; /* NULL; for later versions */
} kr_bidi_out;

/* Options of a call of a bidirectional stack. NULL instead of a kr_bidi_call selects all defaults. */
typedef struct kr_bidi_call {
    size_t size;            /* set by kr_bidi_call_init */
    const kr_cache *caches; /* [n_virtual], initial caches; NULL: zero state */
    /* Dropout probability, in [0, 1), for the stack's input and the output of each pair (kr_dropout). 0 by default. */
    double dropout;
    kr_precision precision; /* as that of kr_call */
} kr_bidi_call;
#define kr_bidi_call_init(call) KR_STRUCT_INIT(BIDI_CALL, kr_bidi_call, call)

/* x [b s d] -> y [b s' d]; s' is s plus the number of class tokens. For 16-bit inputs the residual stream and y are
 * f32. */
KR_API kr_bidi_out kr_bidi_forward(kr_tape *tape, const kr_bidi *bidi, kr_tensor *x_bsd, const kr_bidi_call *call);

#ifdef __cplusplus
}
#endif
#endif
