/* network.h - a stack with something at both ends: tokens to logits, or features to features.
 *
 *   kr_network_config config;
 *   kr_network_config_init(&config);
 *   config.layers = &stack;                      // a kr_layers_config
 *   config.vocab_size = 256;
 *   kr_network *net = kr_network_create(ctx, &config);
 *   kr_network_out out = kr_network_forward(tape, net, id_bs, NULL);           // logits [b s w]
 *   kr_network_destroy(net);
 *
 * Vocabulary networks: embedding, stack, norm, head. Latent networks: in_proj, stack, a norm if asked, out_proj.
 *
 * Sections: States, class tokens, stacks, networks, stacks in both directions.
 */
#ifndef KRAIT_NETWORK_H
#define KRAIT_NETWORK_H

#include <krait/base.h>
#include <krait/block.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== States ====
 *
 * What a whole stack remembers of the sequences it has read: all its caches as one object.
 *
 *   kr_state *state = kr_state_create(ctx, kr_network_layers(net), 1);
 *   kr_call call;
 *   kr_call_init(&call);
 *   call.state = state;
 *   kr_network_out out = kr_network_step(tape, net, id_b, &call);      // reads the state, makes a new one on the tape
 *   kr_state_copy(state, out.state);                                   // which is kept beyond the tape's reset
 *   if (kr_state_save(state, net, "chat.state") != KR_OK) fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_state_destroy(state);
 *
 * Two kinds: made by kr_state_create or kr_state_load, the caller's to destroy; and made on a tape by a call, gone with
 * the tape's step, through which gradients flow from one call to the next. Every function reads both; those that change
 * a state (destroy, zero, copy, announce, and calls by their field `advance`) take the caller's own only. Calls read
 * such a state where it lies, and so does their backward pass: change it after that. A copy into it or an `advance` before
 * that is an error of kr_backward.
 *
 * Where nothing is recorded, call.advance = state instead of call.state moves the caller's state on in place: the same
 * as the step and the copy above, without either copy.
 */

typedef struct kr_state kr_state;
typedef struct kr_layers kr_layers;
typedef struct kr_network kr_network;

/* An initial state. The caller destroys it. NULL after an error. */
KR_API kr_state *kr_state_create(kr_ctx *ctx, const kr_layers *layers, int64_t batch);
KR_API void kr_state_destroy(kr_state *state);

/* Resets the state to the initial one, including announced lengths. */
KR_API kr_status kr_state_zero(kr_state *state);

/* Makes `to`, one of kr_state_create or kr_state_load, equal to `from`, of any batch. */
KR_API kr_status kr_state_copy(kr_state *to, const kr_state *from);

/* On the tape, with gradients: the given rows, in that order, any of them more than once; or one row, `count` times. */
KR_API kr_state *kr_state_select(kr_tape *tape, const kr_state *state, int64_t count, const int64_t *rows);
KR_API kr_state *kr_state_fork(kr_tape *tape, const kr_state *state, int64_t row, int64_t count);

/* On the tape, with gradients: the rows of several states, one after another. All of them have got equally far with
 * class tokens, and either all or none of them are initial. */
KR_API kr_state *kr_state_join(kr_tape *tape, int count, kr_state *const *states);

/* On the tape: the same values as leaves whose gradients are wanted (kr_input), or without a gradient (kr_detach). */
KR_API kr_state *kr_state_input(kr_tape *tape, const kr_state *state);
KR_API kr_state *kr_state_detach(kr_tape *tape, const kr_state *state);

typedef struct kr_state_info {
    int64_t batch;        /* rows */
    int64_t slots;        /* caches, one for each virtual layer */
    size_t bytes;         /* of the tensors */
    bool is_initial;      /* nothing went through it; true for NULL */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_state_info;

/* Properties of a state, and each by itself. */
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

/* The cache of a slot; its tensors are NULL while nothing went through it. NULL for a slot that there is not. */
KR_API const kr_cache *kr_state_cache(const kr_state *state, int64_t slot);

/* Parts of the state of a network put together by hand (kr_network_custom). The slots from `first` on as a state on the
 * tape, for a stack's kr_call; and its new state put back. Both have the same rows. The cache of a block or layer is read by
 * kr_state_cache, and put back by kr_state_set_cache. A state on a tape takes the tensors, the caller's own a copy. */
KR_API kr_state *kr_state_part(kr_tape *tape, const kr_state *state, int64_t first, int64_t count);
KR_API kr_status kr_state_set_part(kr_state *state, int64_t first, const kr_state *part);
KR_API kr_status kr_state_set_cache(kr_state *state, int64_t slot, const kr_cache *cache);

/* How many of the caller's own tokens the sequence will have, for class tokens whose place depends on it; with
 * KR_LENGTH_UNKNOWN only those that do not can be placed. From then on a call continues the sequence where the last one
 * stopped. Without an announcement each forward is a whole sequence, as far as class tokens are concerned. */
#define KR_LENGTH_UNKNOWN (-1)
KR_API kr_status kr_state_announce(kr_state *state, int64_t full_len);

/* Writes a state to a file, and reads one back. The file has a checksum and knows its network: another architecture,
 * other weights, a truncated or changed file are refused with a reason. The write is atomic: the path holds the old
 * file or the whole new one. */
KR_API KR_MUST_CHECK kr_status kr_state_save(const kr_state *state, const kr_network *net, const char *path);
KR_API kr_state *kr_state_load(kr_ctx *ctx, const kr_network *net, const char *path);

/* ==== Class tokens ====
 *
 * Class tokens: learned rows that are spliced into a sequence at a place of their own.
 *
 *   const kr_class_token class_tokens[] = { { .kind = KR_CLASS_TOKEN_START }, { .kind = KR_CLASS_TOKEN_END } };
 *   int64_t at = kr_class_token_index(class_tokens, 2, 1, 4); // 5: the output of the end token, of 4 tokens
 */

typedef enum kr_class_token_kind {
    KR_CLASS_TOKEN_START = 0,  /* before the first token */
    KR_CLASS_TOKEN_MIDDLE = 1, /* before token len / 2 */
    KR_CLASS_TOKEN_END = 2,    /* after the last token */
    KR_CLASS_TOKEN_CUSTOM = 3  /* before token `at`; past the end it waits for a token that may never come */
} kr_class_token_kind;

typedef struct kr_class_token {
    kr_class_token_kind kind;
    int64_t at;           /* KR_CLASS_TOKEN_CUSTOM */
    uint64_t reserved[2]; /* must be 0; for later versions */
} kr_class_token;

/* Where class token `which` of `count` stands in the output for `len` tokens. Class tokens of one place are in the order start,
 * middle, end, custom, then in that of the list. -1 for arguments out of range. */
KR_API int64_t kr_class_token_index(const kr_class_token *class_tokens, int count, int which, int64_t len);

/* ==== Stacks ====
 *
 * Stacks of blocks: pre-norm layers with residuals.
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

/* A class token of its own for one set of weights. */
typedef struct kr_layer_class_token {
    int64_t layer;
    kr_class_token token;
} kr_layer_class_token;

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
    const kr_layer_class_token *layer_latents;
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
     * for each sequence. Not together with class tokens. */
    kr_tensor *seq_start_bs;
    /* Rows that forget what was before a token; the state has a row for each row. Not together with class tokens. */
    kr_tensor *reset_bs;
    const kr_ssd_path *path; /* NULL: the block's */
    bool drop_state;         /* the new state is not wanted: less memory */
    bool last_logits_only;   /* networks: forward's y is [b w], of the last token */
    /* Padded rows, forward only: 1, or 0 where a token is padding (i32 or i64), as Hugging Face's attention_mask. The
     * input of each block, and what its convolution gives, are multiplied by it; step, gate and residual stream are not.
     * A row padded on the left gives what it gives without its padding, unless there is a bias of in_proj or a learned
     * initial state. Not together with class tokens. */
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

/* x [b s d] -> y [b s' d], s' = s and the class tokens that were spliced in. */
KR_API_INLINE kr_layers_out kr_layers_forward(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bsd,
                                              const kr_call *call)
{
    return kr_layers_call(tape, layers, KR_CALL_FORWARD, x_bsd, call);
}

/* x [b d] -> y [b d]: one token, and the class tokens that are due with it; y is of the last of them. */
KR_API_INLINE kr_layers_out kr_layers_step(kr_tape *tape, const kr_layers *layers, kr_tensor *x_bd, const kr_call *call)
{
    return kr_layers_call(tape, layers, KR_CALL_STEP, x_bd, call);
}

/* Runs only the class tokens that stand before the next token; y is of the last of them, NULL if there is none. A step after
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

/* ==== Networks ==== */

typedef struct kr_network_config {
    size_t size;                    /* set by kr_network_config_init */
    const kr_layers_config *layers; /* must stay until the network is made */

    int64_t vocab_size;              /* > 0: a vocabulary network */
    int64_t pad_vocab_size_multiple; /* 8: the table has vocab_size rows rounded up to this; so have the logits */
    bool tie_embeddings;             /* true: the head is the embedding */
    double embedding_std;            /* 0.02: of the initial embedding */
    bool rescale_residual;           /* true: initial out_proj and fc2 are divided by sqrt(n_residuals n_virtual) */
    int64_t n_residuals;             /* 1, as the official code has it in effect, with an MLP too */
    bool zero_proj_biases;           /* true: projection biases begin at 0, and not with the usual draw */

    int64_t input_size;  /* > 0: a latent network, from input_size ... */
    int64_t output_size; /* ... to output_size features */
    bool has_final_norm; /* false; vocabulary networks always have it */
    int n_class_tokens;  /* learned rows spliced into the input of a latent network */
    const kr_class_token *class_tokens;
} kr_network_config;
#define kr_network_config_init(config) KR_STRUCT_INIT(NETWORK_CONFIG, kr_network_config, config)

/* NULL after an error that names field, value and rule. The caller destroys the result before the context. */
KR_API kr_network *kr_network_create(kr_ctx *ctx, const kr_network_config *config);
KR_API void kr_network_destroy(kr_network *net);
KR_API kr_params *kr_network_params(const kr_network *net);
KR_API const kr_layers *kr_network_layers(const kr_network *net); /* for kr_state_create */

/* The parameter table as text; see kr_params_describe. */
KR_API size_t kr_network_describe(const kr_network *net, char *text, size_t bytes);

/* The initial state of a network of any kind. The caller destroys it. NULL after an error. */
KR_API kr_state *kr_network_state(const kr_network *net, int64_t batch);

typedef struct kr_network_out {
    kr_tensor *y;      /* logits [b s w], or [b w] with last_logits_only and from step; outputs [b s o] or [b o];
                          NULL with skip_head */
    kr_tensor *hidden; /* what the head was applied to, or would be; NULL with skip_hidden and y */
    kr_state *state;   /* on the tape, or call.advance; NULL with drop_state */
    void *reserved[4]; /* NULL; for later versions */
} kr_network_out;

/* Runs the network; y is NULL after an error, which names the operand and the rule. x is as below, NULL for
 * KR_CALL_PRIME. */
KR_API kr_network_out kr_network_call(kr_tape *tape, const kr_network *net, kr_call_kind kind, kr_tensor *x,
                                      const kr_call *call);

/* x: ids [b s] (i32 or i64), or features [b s input_size]. */
KR_API_INLINE kr_network_out kr_network_forward(kr_tape *tape, const kr_network *net, kr_tensor *x, const kr_call *call)
{
    return kr_network_call(tape, net, KR_CALL_FORWARD, x, call);
}

/* x: ids [b], or features [b input_size]: one token. */
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
KR_API kr_tensor *kr_network_step_infinite(kr_tape *tape, const kr_network *net, kr_tensor *x);

KR_API int64_t kr_network_width(const kr_network *net); /* of y: vocab_size with its padding, or output_size */

/* ---- networks put together by hand ---- */

/* What has a cache: a block (that of a layer: kr_layer_block), which has one slot of the state, or a stack, which has one
 * for each virtual layer. One of the two; reserved must be NULL. */
typedef struct kr_network_part {
    const kr_block *block;
    const kr_layers *layers; /* without class tokens and latents */
    void *reserved[2];
} kr_network_part;

/* Reads x, ids [b s] or features [b s f], s >= 1, and returns y [b s width]; with call->last_logits_only [b 1 width] will
 * do. `state` is on the tape and holds the caches before x: the function replaces all of them, by kr_state_set_cache or
 * kr_state_set_part. call: what the caller asked for besides (marks, mask, path), without a state. The same arguments must
 * give the same y; a sequence read in pieces must give the outputs of the whole. NULL after an error (kr_ctx_fail). */
typedef kr_tensor *kr_network_fn(void *user, kr_tape *tape, kr_tensor *x, kr_state *state, const kr_call *call);

typedef struct kr_custom_network {
    size_t size;                  /* set by kr_custom_network_init */
    kr_params *params;            /* all its parameters: files of its states know them */
    int n_parts;                  /* at least 1: what has caches, in order of the state's slots; copied */
    const kr_network_part *parts; /* params and parts must outlive the network */
    int64_t vocab_size;           /* > 0: x are ids below it; or ... */
    int64_t input_size;           /* ... > 0: x are that many features */
    int64_t width;                /* of y; 0: vocab_size */
    kr_network_fn *forward;       /* NULL: the network is for states and their files only */
    void (*destroy)(void *user);  /* by kr_network_destroy; NULL: nothing to free */
    void *user;
} kr_custom_network;
#define kr_custom_network_init(custom) KR_STRUCT_INIT(CUSTOM_NETWORK, kr_custom_network, custom)

/* A network of the program's own blocks, layers, stacks and ops, for what takes a kr_network: kr_network_forward and
 * kr_network_step, kr_network_loss, kr_generation_create, kr_state_save and kr_state_load. It has no kr_network_layers, and
 * skip_head, streams, prime and step_infinite are errors. examples/handmade.c is a whole program. NULL after an error;
 * `destroy` is not called then. */
KR_API kr_network *kr_network_custom(kr_ctx *ctx, const kr_custom_network *custom);

/* ==== Stacks in both directions ====
 *
 * Stacks that read a sequence in both directions.
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
 * Layers come in pairs: delta(x) = merge(block_s(norm_s(x)), flip(block_r(norm_r(flip(x))))). The residual is added to
 * a pair.
 */

typedef enum kr_bidi_merge {
    KR_BIDI_MERGE_MEAN = 0,      /* (a + b) / 2 */
    KR_BIDI_MERGE_CAT_LINEAR = 1 /* [a b] W^T + bias, for each pair of weights */
} kr_bidi_merge;

typedef struct kr_bidi_config {
    size_t size; /* set by kr_bidi_config_init */
    kr_block_config block;
    int64_t n_layers;               /* sets of weights; even */
    int64_t n_virtual;              /* 0: n_layers; how many are run; even */
    kr_bidi_schedule schedule;      /* KR_BIDI_SCHEDULE_STRIDED_CYCLIC */
    const int64_t *custom_schedule; /* KR_BIDI_SCHEDULE_CUSTOM: n_virtual numbers below n_layers */
    kr_bidi_merge merge;            /* KR_BIDI_MERGE_MEAN */
    double norm_eps;                /* 1e-5 */
    bool ignore_first_residual;     /* false; of the first pair */
    bool ignore_last_residual;      /* false; of the last one */
    kr_residual residual;           /* standard; the pair is the unit */
    int n_latents;                  /* learned rows spliced into the stack's input */
    const kr_class_token *latents;
} kr_bidi_config;
#define kr_bidi_config_init(config) KR_STRUCT_INIT(BIDI_CONFIG, kr_bidi_config, config)

typedef struct kr_bidi kr_bidi;

/* NULL after an error that names field, value and rule. The caller destroys the result before the context. */
KR_API kr_bidi *kr_bidi_create(kr_ctx *ctx, const kr_bidi_config *config);
KR_API void kr_bidi_destroy(kr_bidi *bidi);
KR_API kr_params *kr_bidi_params(const kr_bidi *bidi);

typedef struct kr_bidi_out {
    kr_tensor *y;
    kr_cache *caches;  /* [n_virtual], on the tape: what each direction's reading left behind */
    void *reserved[4]; /* NULL; for later versions */
} kr_bidi_out;

/* How a bidirectional stack is to be run; NULL in its place: all defaults. */
typedef struct kr_bidi_call {
    size_t size;            /* set by kr_bidi_call_init */
    const kr_cache *caches; /* [n_virtual], the caches to start from; NULL: initial caches */
    /* Dropout with this probability, in [0, 1), of the stack's input and of the output of each pair (kr_dropout).
     * 0, the default: none. */
    double dropout;
} kr_bidi_call;
#define kr_bidi_call_init(call) KR_STRUCT_INIT(BIDI_CALL, kr_bidi_call, call)

/* x [b s d] -> y [b s' d], s' = s and the class tokens. 16-bit inputs are accumulated in f32, and y is f32. */
KR_API kr_bidi_out kr_bidi_forward(kr_tape *tape, const kr_bidi *bidi, kr_tensor *x_bsd, const kr_bidi_call *call);

#ifdef __cplusplus
}
#endif
#endif
