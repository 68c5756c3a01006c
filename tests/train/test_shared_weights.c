/* test_shared_weights.c - training keeps one owner: weights that an optimizer or a trainer holds are not shared, and shared
 * ones are not trained.
 */
#include "tests/harness.h"

static kr_network *make(kr_ctx *ctx)
{
    kr_mamba2_config block;
    kr_mamba2_config_init(&block);
    block.d_model = 8;
    block.state_rank = block.per_head_dim = 4;
    kr_layers_config layers;
    kr_layers_config_init(&layers);
    layers.block = kr_mamba2_block(&block);
    layers.n_layers = 1;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = 16;
    return kr_network_create(ctx, &config);
}

#define HELD "network.share: the weights are being trained or written; destroy their optimizer or trainer first"

TEST(weights_of_an_optimizer_are_not_shared)
{
    kr_ctx *one = kr_test_ctx(1, NULL), *two = kr_test_ctx(1, NULL);
    kr_network *own = make(one);
    kr_params *params = kr_network_params(own);
    kr_optimizer *a = kr_optimizer_create(one, params, NULL), *b = kr_optimizer_create(one, params, NULL);
    CHECK(!kr_network_share(two, own), "two optimizers");
    CHECK_ERROR_HAS(two, KR_ERR_STATE, HELD);
    kr_optimizer_destroy(a);
    CHECK(!kr_network_share(two, own), "one optimizer");
    CHECK_ERROR_HAS(two, KR_ERR_STATE, HELD);
    CHECK(kr_params_reset(params) == KR_OK, "the trainer's own program may write: %s", kr_ctx_message(one));
    kr_optimizer_destroy(b);
    CHECK(kr_ctx_wait(one) == KR_OK, "%s", kr_ctx_message(one));
    kr_network *shared = kr_network_share(two, own);
    CHECK(shared != NULL, "%s", kr_ctx_message(two));
    CHECK(!kr_optimizer_create(one, params, NULL), "shared weights");
    CHECK_ERROR_HAS(one, KR_ERR_STATE, "optimizer: the weights of ");
    CHECK(!kr_optimizer_create(two, kr_network_params(shared), NULL), "shared weights");
    CHECK_ERROR_HAS(two, KR_ERR_STATE,
                    " are shared by 2 models, and only weights of a single one may change; destroy the");
    kr_network_destroy(own);
    a = kr_optimizer_create(two, kr_network_params(shared), NULL);
    CHECK(a != NULL, "the last one may be trained: %s", kr_ctx_message(two));
    kr_network_destroy(shared); /* the optimizer after its network */
    kr_optimizer_destroy(a);
    CHECK_OK(one);
    CHECK_OK(two);
    kr_ctx_destroy(two);
    kr_ctx_destroy(one);
}

/* Several networks and one optimizer by a joint table: each of them is held. */
TEST(weights_of_joined_tables_are_held)
{
    kr_ctx *one = kr_test_ctx(1, NULL), *two = kr_test_ctx(1, NULL);
    kr_network *nets[2] = { make(one), make(one) };
    kr_params *both = kr_params_create(one);
    kr_params_join(both, "a.", kr_network_params(nets[0]));
    kr_params_join(both, "b.", kr_network_params(nets[1]));
    kr_network *shared = kr_network_share(two, nets[1]);
    CHECK(!kr_optimizer_create(one, both, NULL), "one of them is shared");
    CHECK_ERROR_HAS(one, KR_ERR_STATE, "optimizer: the weights of ");
    CHECK(kr_params_reset(both) == KR_ERR_STATE, "reset");
    CHECK_ERROR_HAS(one, KR_ERR_STATE, "params.reset: the weights of ");
    kr_network *other = kr_network_share(two, nets[0]);
    CHECK(other != NULL, "what failed holds nothing: %s", kr_ctx_message(two));
    kr_network_destroy(other);
    kr_network_destroy(shared);
    kr_optimizer *opt = kr_optimizer_create(one, both, NULL);
    for (int i = 0; i < 2; i++) {
        CHECK(opt && !kr_network_share(two, nets[i]), "%s", kr_ctx_message(one));
        CHECK_ERROR_HAS(two, KR_ERR_STATE, HELD);
    }
    kr_optimizer_destroy(opt);
    kr_params_destroy(both);
    kr_network_destroy(nets[0]);
    kr_network_destroy(nets[1]);
    kr_ctx_destroy(two);
    kr_ctx_destroy(one);
}
