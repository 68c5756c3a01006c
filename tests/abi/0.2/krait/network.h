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
 */
#ifndef KRAIT_NETWORK_H
#define KRAIT_NETWORK_H

#include <krait/layers.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
