/* plans.h - configs and plans for the tests of plans. */
#ifndef KR_TESTS_PLAN_PLANS_H
#define KR_TESTS_PLAN_PLANS_H

#include "tests/harness.h"

#include <krait/experimental/train_plan.h>

static kr_ctx *ctx;

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

static kr_model_config *shape(kr_family family, int64_t d_model, int64_t layers, int64_t vocab)
{
    kr_model_config *config = kr_model_config_create(ctx);
    config->family = family;
    kr_model_config_set_d_model(config, d_model);
    config->layers->n_layers = layers;
    config->network->vocab_size = vocab;
    return config;
}

static kr_plan_options options_of(int64_t ranks)
{
    kr_plan_options o;
    kr_plan_options_init(&o);
    o.ranks = ranks;
    return o;
}

static kr_plan made(const kr_model_config *config, const kr_plan_options *options)
{
    kr_plan p;
    CHECK(kr_plan_make(ctx, config, options, &p) == KR_OK, "%s", kr_ctx_message(ctx));
    return p;
}

#endif
