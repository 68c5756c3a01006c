/* cmd_plan.h - the parts of krait plan: its options, the measured steps, the report. */
#ifndef KR_CLI_COMMANDS_CMD_PLAN_H
#define KR_CLI_COMMANDS_CMD_PLAN_H

#include "cli/common/cli_machine.h"
#include "cli/common/model_options.h"

#include <krait/experimental/train_plan.h>

typedef enum plan_device { PLAN_H200, PLAN_MEASURED } plan_device;

typedef struct plan_values {
    cli_model_values model;
    cli_machine machine; /* of the measured steps */
    const char *name, *nic, *memory, *bucket;
    int64_t gpus, per_host, nics, tokens, length, micro_batches, distinct, steps;
    double link, latency, overhead, rate, jitter; /* rate, jitter: NaN if not given */
    int device, reduce, reduce_dtype, shard;
    bool recompute, splits_embedding, gathers_ahead, is_direct, simulates, is_json;
    cli_texts slow;
    uint64_t seed;
} plan_values;

/* Three training steps on this machine. */
typedef struct plan_measured {
    double flops;      /* FLOP/s: mean of the last two steps */
    double seconds[3]; /* of each step */
    double memory;     /* peak bytes */
    char machine[160];
} plan_measured;

/* Runs them with a micro-batch of the options; false after an error message. */
bool plan_measure(const plan_values *values, const kr_model_config *config, const kr_plan_options *options,
                  plan_measured *measured);

enum { PLAN_CHOICES = 9 };

/* A plan for each choice of shares and recomputation. */
typedef struct plan_choice {
    kr_plan_shards shards;
    int64_t recompute; /* layers */
    bool fits;
    kr_plan plan;
} plan_choice;

typedef struct plan_job {
    const plan_values *values;
    const kr_model_config *config;
    kr_plan_options options;
    double memory; /* bytes of a GPU; 0: not known */
    int count, best;
    plan_choice choices[PLAN_CHOICES];
    const plan_measured *measured;        /* NULL: none */
    const kr_plan_simulation *simulation; /* NULL: none */
} plan_job;

void plan_print(const plan_job *job);

#endif
