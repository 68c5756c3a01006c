/* network_impl.h - internals of a network. */
#ifndef KR_NN_NETWORK_IMPL_H
#define KR_NN_NETWORK_IMPL_H

#include "nn/layers_impl.h"

#include <krait/network.h>

struct kr_network {
    kr_ctx *ctx;
    kr_params *params;
    kr_arena arena;           /* the list of class tokens */
    kr_network_config config; /* layers is NULL; class_tokens is a copy */
    kr_layers *layers;
    bool is_vocab;
    int64_t nw; /* width of y */
    bool has_class_tokens, has_length_class_tokens;
    kr_tensor *embedding_wd, *head_wd;                                              /* vocabulary; head NULL: tied */
    kr_tensor *in_proj, *in_proj_bias, *out_proj, *out_proj_bias, *class_tokens_nf; /* latent */
    kr_tensor *norm_f_d;                                                            /* NULL: none */

    /* Custom: of the fields above only ctx, arena, config's sizes, is_vocab and nw are set. */
    bool is_custom;
    kr_custom_network custom; /* parts is NULL */
    int64_t nslots;
    const kr_block **slots; /* [nslots]: family of each slot of its states */
};

/* The slots of its states, and the block that one is of. */
kr_state_layout kr_network_layout(const kr_network *net);
const kr_block *kr_network_slot(const kr_network *net, int64_t slot);

/* kr_network_info.grid. */
int64_t kr_network_grid_of(const kr_network *net);

/* kr_network_call; run_stack: see layers_impl.h. */
kr_network_out kr_network_run_call(kr_tape *tape, const kr_network *net, kr_call_kind kind, kr_tensor *x,
                                   const kr_call *call, kr_stack_fn *run_stack);

/* A call through a custom network; x [b c ..], of the mode's c. */
kr_network_out kr_custom_run(kr_tape *tape, const char *op, kr_run_mode mode, const kr_network *net, kr_tensor *x,
                             const kr_call *call);

/* A network whose table is complete, but whose parameters have no memory: for kr_params_allocate or kr_params_seal, or
 * to be counted. NULL after an error; kr_network_destroy takes it. */
kr_network *kr_network_declare(kr_ctx *ctx, const kr_network_config *config);

/* The last linear map of a network: out_proj, or the rows of the vocabulary. bias_w may be NULL. */
typedef struct kr_head {
    kr_tensor *weight_wd, *bias_w;
} kr_head;
kr_head kr_network_head(const kr_network *net);

#endif
