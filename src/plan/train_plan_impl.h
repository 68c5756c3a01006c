/* train_plan_impl.h - what the formulas and the simulation share: a model as stages of a step, its gradients as buckets, and
 * the network between ranks.
 *
 * Stages are numbered in order of the backward pass: 0 the head, 1 to n_virtual the layers, the last one first, and behind
 * them what is before the stack, n_virtual + 1: the embedding.
 */
#ifndef KR_PLAN_TRAIN_PLAN_IMPL_H
#define KR_PLAN_TRAIN_PLAN_IMPL_H

#include "base/arena.h"
#include "base/sized.h"

#include <krait/experimental/train_plan.h>

KR_DECLARE_DEFAULTS(kr_plan_options);

/* A parameter. */
typedef struct kr_plan_row {
    double elements, bytes; /* bytes of the weight */
    int64_t stage;          /* its gradient is complete at the end of this stage */
    bool is_table;          /* a tied embedding */
} kr_plan_row;

typedef struct kr_plan_model {
    kr_arena arena;
    int64_t n_virtual, n_rows;
    kr_plan_row *rows; /* [n_rows], in the reverse order of the table */
    /* forward operations of a token: of one layer, of the head, and before the stack */
    double layer_flops, head_flops, input_flops;
    double elements, weight_bytes, short_elements; /* the last: with an f32 copy in the optimizer */
    double layer_bytes, stream_bytes;              /* of a token: activations of a layer, and its input */
    double n_outputs, n_inputs;                    /* logits of a token; rows of the embedding */
} kr_plan_model;

/* Gradients that are summed by one call. */
typedef struct kr_plan_bucket {
    double scatter, gather; /* bytes: of the sum's two halves */
    double weights;         /* bytes of its weights, which are gathered if the optimizer is sharded */
    int64_t stage;          /* it is complete at the end of this one; buckets are in order of stages */
} kr_plan_bucket;

/* The network: hosts with `per_host` ranks each. */
typedef struct kr_plan_network {
    kr_plan_exchange exchange;
    int64_t ranks, per_host, hosts, rounds; /* rounds: ceil(log2(hosts)) */
    double inside,
        between; /* of one exchange of an array: bytes that a rank sends in its host, that a host sends; a byte */
    double piece, call; /* seconds of each piece's messages; of each call's */
    double norm;        /* seconds until all ranks have a number of each */
} kr_plan_network;

/* Everything of one call. */
typedef struct kr_plan_job {
    kr_ctx *ctx;
    kr_plan_options options; /* micro_batches, lookup_rows and recompute are resolved */
    kr_plan_model model;
    kr_plan_network network;
    int64_t n_buckets;
    kr_plan_bucket *buckets;
    int64_t per_rank;          /* micro-batches of a rank */
    double layer, head, input; /* seconds of a micro-batch: forward; of the head, both ways */
    double back, micro;        /* of all layers backward; of everything */
} kr_plan_job;

/* Checks options and config, and fills the job; false after an error. kr_plan_end in both cases. */
bool kr_plan_begin(kr_ctx *ctx, const char *op, const kr_model_config *config, const kr_plan_options *options,
                   kr_plan_job *job);
void kr_plan_end(kr_plan_job *job);

/* The stages and sizes of a config; false after an error. length: tokens of a row. */
bool kr_plan_read_model(kr_ctx *ctx, const char *op, const kr_model_config *config, int64_t length,
                        kr_plan_model *model);

/* The messages of an array of so many bytes: buckets larger than bucket_bytes are exchanged in pieces of about that size. */
double kr_plan_pieces(const kr_plan_options *options, double bytes);

/* Seconds of one exchange, which is half a sum, that nothing disturbs. */
double kr_plan_exchange_seconds(const kr_plan_job *job, double bytes);

#endif
