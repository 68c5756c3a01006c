/* plan_measure.c - three training steps of the model on this machine: random tokens, AdamW, gradients clipped by norm. */
#include "cli/commands/cmd_plan.h"

#include <krait/krait.h>

#include <stdio.h>
#include <stdlib.h>

typedef struct trainee {
    kr_ctx *ctx;
    kr_model *model;
    kr_optimizer *optimizer;
    kr_tape *tape;
    int32_t *ids;
    int64_t rows, length;
} trainee;

static void fill_ids(const trainee *t, int64_t vocab)
{
    uint64_t x = 1; /* any sequence of tokens takes the same time */
    for (int64_t i = 0; i < t->rows * t->length; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        t->ids[i] = (int32_t)((x >> 33) % (uint64_t)vocab);
    }
}

static void run_step(const trainee *t)
{
    kr_loss_call call;
    kr_loss_call_init(&call);
    kr_call how;
    kr_call_init(&how);
    how.drop_state = true;
    call.call = &how;
    kr_tape_reset(t->tape);
    call.ids_bs = kr_view_data(t->tape, KR_DTYPE_I32, KR_SHAPE(t->rows, t->length), NULL, t->ids);
    kr_backward(t->tape, kr_network_loss(t->tape, kr_model_network(t->model), &call).loss);
    kr_optimizer_step(t->optimizer, 1e-4, 1);
    kr_ctx_wait(t->ctx);
}

/* One rank and one micro-batch: the operations of a measured step. */
static double flops_of_step(kr_ctx *ctx, const kr_model_config *config, const kr_plan_options *options)
{
    kr_plan_options alone = *options;
    kr_plan plan;
    alone.ranks = alone.micro_batches = 1;
    return kr_plan_make(ctx, config, &alone, &plan) == KR_OK ? plan.flops : 0;
}

static void measure(const trainee *t, double flops, plan_measured *m)
{
    for (int i = 0; i < 3 && !kr_ctx_failed(t->ctx); i++) {
        const double begin = cli_seconds();
        run_step(t);
        m->seconds[i] = cli_seconds() - begin;
    }
    m->flops = 2 * flops / (m->seconds[1] + m->seconds[2]); /* the first step allocates memory */
    m->memory = (double)cli_peak_bytes(t->ctx);
    snprintf(m->machine, sizeof m->machine, "%s", cli_machine_text(t->ctx).text);
}

bool plan_measure(const plan_values *v, const kr_model_config *config, const kr_plan_options *options,
                  plan_measured *measured)
{
    if (config->network->input_size) {
        cli_complain("give --rate instead",
                     "plan: --device measured trains on tokens, but the model's inputs are features");
        return false;
    }
    trainee t = { .ctx = cli_open(&v->machine, v->seed), .rows = v->tokens / v->length, .length = v->length };
    t.ids = malloc((size_t)v->tokens * sizeof *t.ids);
    if (!t.ids) kr_ctx_fail(t.ctx, KR_ERR_NOMEM, "no memory for %lld tokens", (long long)v->tokens);
    const kr_recompute recompute = config->layers->recompute;
    if (options->recompute) config->layers->recompute = KR_RECOMPUTE_ALL;
    const double flops = flops_of_step(t.ctx, config, options);
    t.model = kr_ctx_failed(t.ctx) ? NULL : kr_model_create(t.ctx, config);
    t.optimizer = t.model ? kr_optimizer_create(t.ctx, kr_network_params(kr_model_network(t.model)), NULL) : NULL;
    t.tape = t.optimizer ? kr_tape_create(t.ctx, KR_TAPE_GRAD) : NULL;
    if (t.tape) {
        fill_ids(&t, config->network->vocab_size);
        measure(&t, flops, measured);
    }
    config->layers->recompute = recompute;
    kr_tape_destroy(t.tape);
    kr_optimizer_destroy(t.optimizer);
    kr_model_destroy(t.model);
    free(t.ids);
    const bool ok = !cli_model_failed(t.ctx, "plan");
    kr_ctx_destroy(t.ctx);
    return ok;
}
