/* train_plan.h - a model of data-parallel training: the time, memory and traffic of a step on many GPUs, before it is run.
 *
 *   kr_model_config *config = kr_model_config_create(ctx);
 *   kr_model_config_set_d_model(config, 768);
 *   config->layers->n_layers = 24;
 *   config->network->vocab_size = 50277;
 *   kr_plan_options options;
 *   kr_plan_options_init(&options);
 *   options.ranks = 64;
 *   kr_plan plan;
 *   if (kr_plan_make(ctx, config, &options, &plan) == KR_OK)
 *       printf("%.1f ms a step, %.0f %%\n", 1e3 * plan.step, 100 * plan.efficiency);
 *   kr_model_config_destroy(config);
 *
 * docs/plan.md has the formulas and what they leave out. `krait plan` is these functions as a command.
 */
#ifndef KRAIT_EXPERIMENTAL_TRAIN_PLAN_H
#define KRAIT_EXPERIMENTAL_TRAIN_PLAN_H

#include <krait/experimental/static_only.h>
#include <krait/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What each rank holds a share of. The others have a copy of everything. */
typedef enum kr_plan_shards {
    KR_PLAN_SHARDS_NONE = 0,      /* gradients are summed, each rank updates all weights */
    KR_PLAN_SHARDS_OPTIMIZER = 1, /* ZeRO-1: a rank updates its share of the weights, which is then gathered */
    KR_PLAN_SHARDS_GRADIENTS = 2  /* ZeRO-2: the same, and gradients of other shares are dropped after their sum */
} kr_plan_shards;

#define KR_PLAN_ALL (-1)

/* How an array is exchanged, which is half of a sum. */
typedef enum kr_plan_exchange {
    KR_PLAN_EXCHANGE_DIRECT = 0, /* every rank sends its slice to every other rank; ordered sums */
    KR_PLAN_EXCHANGE_HOSTS =
        1, /* inside a host, then between hosts in log2(hosts) rounds; ordered sums, as kr_comm has them */
    KR_PLAN_EXCHANGE_RINGS = 2 /* pipelined rings, as an engine's own sums do it */
} kr_plan_exchange;

typedef struct kr_plan_options {
    size_t size;               /* set by kr_plan_options_init */
    int64_t ranks;             /* 8: GPUs */
    int64_t ranks_per_host;    /* 8; ranks are a multiple of it, or at most as many */
    double flops;              /* 296e12: FLOP/s of a GPU in training, optimizer included */
    double link_bytes;         /* 370e9: bytes/s between GPUs of a host, each way */
    double nic_bytes;          /* 45e9: bytes/s of a host's NICs together, each way */
    double latency;            /* 15e-6: seconds of a message between hosts */
    double overhead;           /* 1e-6: seconds that each message of a direct exchange keeps a rank busy */
    int64_t tokens;            /* 16384: of a micro-batch */
    int64_t length;            /* 2048: tokens of a row; divides tokens */
    int64_t micro_batches;     /* 0: one for each rank; of all ranks in a step, a multiple of ranks */
    int64_t bucket_bytes;      /* 25 MiB: gradients summed at once, cut at parameters */
    kr_dtype reduce_dtype;     /* KR_DTYPE_F32, or KR_DTYPE_BF16: of gradients on the network */
    kr_plan_exchange exchange; /* KR_PLAN_EXCHANGE_DIRECT */
    kr_plan_shards shards;     /* KR_PLAN_SHARDS_NONE */
    int64_t recompute; /* 0; layers that are recomputed in the backward pass, from the first on; KR_PLAN_ALL: all */
    double activation_scale; /* 1; activations of this machine / those of kr_model_measure, which are f32 */
    bool gather_ahead;       /* false; true: new weights are gathered layer by layer while the next forward pass runs */
    bool split_embedding;    /* false; true: of a tied embedding the head's gradient is summed early */
    int64_t lookup_rows;     /* 0: as many as there may be; split: different tokens of a host's ranks in a step */
    int64_t steps;           /* 4; simulated */
    double jitter;           /* 0; simulated: standard deviation of a rank's compute time, as a part of its mean */
    uint64_t seed;           /* 1; of the jitter */
    int64_t n_slow;          /* 0; simulated: ranks that compute more slowly than the others ... */
    const int64_t *slow_ranks;  /* ... [n_slow], each from 0 to ranks - 1 ... */
    const double *slow_factors; /* ... [n_slow]: and the factor of their compute time, above 0 */
} kr_plan_options;
#define kr_plan_options_init(options) KR_STRUCT_INIT(PLAN_OPTIONS, kr_plan_options, options)

/* Seconds, bytes and operations of one step and one rank, unless a comment says otherwise. */
typedef struct kr_plan {
    int64_t parameters, micro_batches, buckets, layers; /* layers: virtual ones */
    bool is_exact;                                      /* kr_plan_is_exact, and sums are ordered, in f32 */
    double token_flops;       /* of a token: forward, backward, and without recomputed layers */
    double flops;             /* with them */
    double sum_bytes;         /* gradients as they are summed */
    double link_traffic;      /* sent to the other GPUs of the host */
    double nic_traffic;       /* sent to other hosts, by a host */
    double compute;           /* seconds of the arithmetic */
    double sums;              /* seconds of the sums, and of gathering weights, if nothing disturbs them */
    double window;            /* seconds of the backward pass that can hide sums */
    double last;              /* seconds of the sums that cannot begin before the backward pass ends */
    double exposed;           /* seconds that compute waits */
    double step;              /* compute + exposed */
    double efficiency;        /* compute without recomputed layers / step */
    double tokens_per_second; /* of all ranks */
    /* memory of a rank: buffers are logits of the head, and buckets; memory_bytes is all together */
    double weight_bytes, gradient_bytes, optimizer_bytes, activation_bytes, buffer_bytes, memory_bytes;
    uint64_t reserved[8]; /* 0; for later versions */
} kr_plan;

/* Computes a plan by the formulas of docs/plan.md, without creating the model. NULL options: all defaults. The optimizer is
 * AdamW. Errors name the field, its value and the rule; *plan is then zero. */
KR_EXPERIMENTAL_API kr_status kr_plan_make(kr_ctx *ctx, const kr_model_config *config, const kr_plan_options *options,
                                           kr_plan *plan);

typedef struct kr_plan_simulation {
    double step;          /* seconds of a step: mean over all but the first */
    double compute;       /* mean over ranks */
    double exposed;       /* step - compute of a rank without jitter and slow factor */
    double communication; /* seconds that the communication thread of a rank is busy or waits for other ranks; mean */
    double wait;          /* of it: waiting for ranks that come later */
    double efficiency;    /* as in kr_plan */
    int64_t slowest_rank; /* the one with the most compute */
    double slowest;       /* its compute */
    uint64_t reserved[8]; /* 0; for later versions */
} kr_plan_simulation;

/* Runs the schedule of a plan on a modelled network, rank by rank and bucket by bucket: layers go backward one after
 * the other, buckets are posted when their last gradient is final, and one communication thread of each rank exchanges them
 * in that order. At most 65536 ranks. The same options give the same result. Errors as those of kr_plan_make. */
KR_EXPERIMENTAL_API kr_status kr_plan_simulate(kr_ctx *ctx, const kr_model_config *config,
                                               const kr_plan_options *options, kr_plan_simulation *simulation);

/* Does a step of so many micro-batches give the same bits on these ranks as on one? Sums are a binary tree over the
 * numbers of the micro-batches, and a rank's block must be a whole subtree: 2^k of them. False for numbers below 1. */
KR_EXPERIMENTAL_API bool kr_plan_is_exact(int64_t micro_batches, int64_t ranks);

#ifdef __cplusplus
}
#endif
#endif
