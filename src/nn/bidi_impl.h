/* bidi_impl.h - internals of a stack that reads in both directions. */
#ifndef KR_NN_BIDI_IMPL_H
#define KR_NN_BIDI_IMPL_H

#include "nn/block_impl.h"
#include "nn/class_tokens.h"
#include "nn/multi_gate.h"

#include <krait/network.h>

/* One set of weights. */
typedef struct kr_bidi_layer {
    void *block;
    kr_tensor *norm_d;
} kr_bidi_layer;

/* The module that merges the two directions of a real pair; NULL for the mean. */
typedef struct kr_bidi_join {
    kr_tensor *weight, *bias;
} kr_bidi_join;

struct kr_bidi {
    kr_ctx *ctx;
    kr_params *params;
    kr_arena arena;        /* the arrays below */
    kr_bidi_config config; /* its lists are copies */
    const kr_block_kind *kind;
    int64_t nvirtual, nd;
    kr_norm_options norm;
    int64_t *real;         /* [nvirtual]: the weights of each virtual layer */
    kr_bidi_layer *layers; /* [n_layers] */
    kr_bidi_join *joins;   /* [n_layers / 2] */
    kr_multi_gate *gates;  /* [n_layers / 2] or [nvirtual / 2]; NULL: standard residuals */
    kr_tensor *latents_nd;
};

#endif
