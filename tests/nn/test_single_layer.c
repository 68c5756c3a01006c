/* test_single_layer.c - a layer on its own: stacks of them against kr_layers to the bit, pieces, gradients, errors. */
#include "tests/harness.h"

#include "nn/layers_impl.h"

enum { D = 8, LAYERS = 3, B = 2, S = 7 };

typedef struct kind {
    kr_family family;
    bool has_mlp, is_16bit;
} kind;

static const kind kinds[] = { { KR_FAMILY_MAMBA1, false, false },
                              { KR_FAMILY_MAMBA2, true, false },
                              { KR_FAMILY_MAMBA3, true, false },
                              { KR_FAMILY_MAMBA2, false, true } };
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct configs {
    kr_mamba1_config m1;
    kr_mamba2_config m2;
    kr_mamba3_config m3;
} configs;

static kr_block_config block_config(configs *c, kr_family family, bool is_16bit)
{
    kr_mamba1_config_init(&c->m1);
    kr_mamba2_config_init(&c->m2);
    kr_mamba3_config_init(&c->m3);
    c->m1.d_model = c->m2.d_model = c->m3.d_model = D;
    c->m1.state_rank = c->m2.state_rank = c->m3.state_rank = 4;
    c->m2.per_head_dim = c->m3.per_head_dim = 4;
    if (is_16bit) c->m2.dtype = KR_DTYPE_BF16;
    return family == KR_FAMILY_MAMBA1   ? kr_mamba1_block(&c->m1)
           : family == KR_FAMILY_MAMBA2 ? kr_mamba2_block(&c->m2)
                                        : kr_mamba3_block(&c->m3);
}

static kr_layer *make_layer(kr_ctx *ctx, const kind *k)
{
    configs c;
    kr_layer_config config;
    kr_layer_config_init(&config);
    config.block = block_config(&c, k->family, k->is_16bit);
    config.d_intermediate = k->has_mlp ? 6 : 0;
    config.mlp_multiple_of = 2;
    config.has_mlp_bias = k->has_mlp;
    return kr_layer_create(ctx, &config);
}

/* A stack, and layers with its weights. */
typedef struct pair {
    kr_ctx *ctx;
    kr_layers *stack;
    kr_layer *layers[LAYERS];
} pair;

static void copy_weights(const kr_params *from, int64_t layer, const kr_params *to)
{
    char name[200];
    for (int64_t i = 0; i < kr_params_count(to); i++) {
        const kr_param_row *row = kr_params_at(to, i);
        snprintf(name, sizeof name, "layers.%lld.%s", (long long)layer, row->name);
        const kr_param_row *own = kr_params_find(from, name);
        if (!CHECK(own != NULL, "the stack has no %s", name)) continue;
        double *values = kr_test_values(own->tensor);
        kr_param_write(row->tensor, KR_DTYPE_F64, values, kr_tensor_count(row->tensor));
        free(values);
    }
    CHECK(kr_params_count(from) == LAYERS * kr_params_count(to), "the stack has other parameters");
}

static pair make_pair(const kind *k)
{
    pair p = { .ctx = kr_test_ctx(1, NULL) };
    configs c;
    kr_layers_config config;
    kr_layers_config_init(&config);
    config.block = block_config(&c, k->family, k->is_16bit);
    config.n_layers = LAYERS;
    config.d_intermediate = k->has_mlp ? 6 : 0;
    config.mlp_multiple_of = 2;
    config.has_mlp_bias = k->has_mlp;
    p.stack = kr_layers_create(p.ctx, &config);
    for (int64_t i = 0; i < LAYERS; i++) {
        p.layers[i] = make_layer(p.ctx, k);
        copy_weights(kr_layers_params(p.stack), i, kr_layer_params(p.layers[i]));
    }
    CHECK_OK(p.ctx);
    return p;
}

static void drop_pair(pair *p)
{
    CHECK_OK(p->ctx);
    for (int i = 0; i < LAYERS; i++) kr_layer_destroy(p->layers[i]);
    kr_layers_destroy(p->stack);
    kr_ctx_destroy(p->ctx);
}

static kr_tensor *through_layers(kr_tape *tape, const pair *p, kr_tensor *x, kr_cache *caches, const kr_block_call *how)
{
    for (int i = 0; i < LAYERS; i++) {
        kr_block_call call = *how;
        if (caches[i].tensors[0]) call.cache = &caches[i];
        const kr_block_out out = kr_layer_forward(tape, p->layers[i], x, &call);
        x = out.y;
        caches[i] = out.cache;
    }
    return x;
}

TEST(single_layers_are_a_stack)
{
    for (int k = 0; k < KINDS; k++) {
        pair p = make_pair(&kinds[k]);
        kr_tape *tape = kr_tape_create(p.ctx, KR_TAPE_GRAD);
        const kr_dtype dtype = kinds[k].is_16bit ? KR_DTYPE_BF16 : KR_DTYPE_F32;
        kr_tensor *x = kr_input(tape, kr_cast(tape, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D)), dtype));
        kr_tensor *own = kr_input(tape, x);
        kr_cache caches[LAYERS];
        memset(caches, 0, sizeof caches);
        const kr_block_call how = { 0 };
        const kr_layers_out want = kr_layers_forward(tape, p.stack, x, NULL);
        kr_tensor *got = through_layers(tape, &p, own, caches, &how);
        CHECK_SAME_BITS("y", got, want.y);
        for (int64_t i = 0; i < LAYERS; i++)
            for (int t = 0; t < kr_cache_count(kinds[k].family); t++)
                CHECK_SAME_BITS("cache", caches[i].tensors[t], kr_state_cache(want.state, i)->tensors[t]);
        kr_backward(tape, kr_add(tape, kr_sum(tape, kr_mul(tape, got, got), KR_ALL_AXES, false),
                                 kr_sum(tape, kr_mul(tape, want.y, want.y), KR_ALL_AXES, false)));
        CHECK_SAME_BITS("gradient of x", kr_grad(own), kr_grad(x));
        for (int64_t i = 0; i < kr_params_count(kr_layer_params(p.layers[1])); i++) {
            char name[200];
            const kr_param_row *row = kr_params_at(kr_layer_params(p.layers[1]), i);
            snprintf(name, sizeof name, "layers.1.%s", row->name);
            CHECK_SAME_BITS(name, kr_grad(row->tensor),
                            kr_grad(kr_params_find(kr_layers_params(p.stack), name)->tensor));
        }
        kr_tape_destroy(tape);
        drop_pair(&p);
    }
}

/* Marks and masks go the same way as in a stack. */
TEST(single_layers_take_marks)
{
    static const int32_t marks[B * S] = { 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0 };
    static const int32_t mask[B * S] = { 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    for (int which = 0; which < 3; which++) {
        pair p = make_pair(&kinds[1]);
        kr_tape *tape = kr_tape_create(p.ctx, KR_TAPE_GRAD);
        kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D));
        kr_tensor *marks_bs = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(B, S), which == 2 ? mask : marks);
        const kr_ssd_path path = { KR_SSD_SERIAL, 4 };
        kr_call call;
        kr_call_init(&call);
        kr_block_call how = { .path = &path };
        call.path = &path;
        if (which == 0) call.seq_start_bs = how.seq_start_bs = marks_bs;
        if (which == 1) call.reset_bs = how.reset_bs = marks_bs;
        if (which == 2) call.mask_bs = how.mask_bs = marks_bs;
        kr_cache caches[LAYERS];
        memset(caches, 0, sizeof caches);
        CHECK_SAME_BITS("y", through_layers(tape, &p, x, caches, &how), kr_layers_forward(tape, p.stack, x, &call).y);
        kr_tape_destroy(tape);
        drop_pair(&p);
    }
}

TEST(single_layer_steps_are_its_forward)
{
    for (int k = 0; k < 3; k++) {
        kr_ctx *ctx = kr_test_ctx(1, NULL);
        kr_layer *layer = make_layer(ctx, &kinds[k]);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D)), *y[S];
        const kr_block_out whole = kr_layer_forward(tape, layer, x, NULL);
        kr_cache cache = { .family = kinds[k].family }; /* no tensors: the initial one */
        for (int64_t s = 0; s < S; s++) {
            kr_tensor *token = kr_reshape(tape, kr_slice(tape, x, 1, s, s + 1), KR_SHAPE(B, D));
            const kr_block_out one = kr_layer_step(tape, layer, token, &cache);
            y[s] = kr_reshape(tape, one.y, KR_SHAPE(B, 1, D));
            cache = one.cache;
        }
        /* sums of seven terms in another order: a few units of the last place */
        CHECK_TENSORS("steps", kr_concat(tape, 1, S, y), whole.y, 2e-6, 1);
        for (int t = 0; t < kr_cache_count(kinds[k].family); t++)
            CHECK_TENSORS("cache", cache.tensors[t], whole.cache.tensors[t], 2e-6, 1);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_layer_destroy(layer);
        kr_ctx_destroy(ctx);
    }
}

TEST(single_layer_without_residual)
{
    configs c;
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_layer_config config;
    kr_layer_config_init(&config);
    config.block = block_config(&c, KR_FAMILY_MAMBA2, false);
    kr_ctx_seed(ctx, 3);
    kr_layer *with = kr_layer_create(ctx, &config);
    config.ignore_residual = true;
    kr_ctx_seed(ctx, 3);
    kr_layer *without = kr_layer_create(ctx, &config);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D));
    kr_tensor *delta = kr_layer_forward(tape, without, x, NULL).y, *y = kr_layer_forward(tape, with, x, NULL).y;
    CHECK_SAME_BITS("x + delta", y, kr_add(tape, x, delta));
    kr_tensor *token = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, D));
    CHECK_SAME_BITS("steady state", kr_layer_step_infinite(tape, with, token),
                    kr_add(tape, token, kr_layer_step_infinite(tape, without, token)));
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_layer_destroy(with);
    kr_layer_destroy(without);
    kr_ctx_destroy(ctx);
}

TEST(single_layer_errors)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    configs c;
    kr_layer_config config;
    kr_layer_config_init(&config);
    CHECK(!kr_layer_create(ctx, NULL), "no config");
    CHECK_ERROR(ctx, KR_ERR_ARG, "layer.create: config is NULL");
    CHECK(!kr_layer_create(ctx, &config), "no block");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "layer.create: layers.create: block.config is NULL");
    config.block = block_config(&c, KR_FAMILY_MAMBA2, false);
    config.norm_eps = 0;
    CHECK(!kr_layer_create(ctx, &config), "no eps");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "norm_eps = 0");
    kr_layer *layer = make_layer(ctx, &kinds[1]), *other = make_layer(ctx, &kinds[0]);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D));
    CHECK(!kr_layer_forward(tape, NULL, x, NULL).y, "no layer");
    CHECK_ERROR(ctx, KR_ERR_ARG, "layer.forward: the layer is NULL");
    kr_tape_reset(tape);
    x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D));
    CHECK(!kr_layer_forward(tape, layer, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D + 1)), NULL).y, "width");
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "layer.forward: axis d of x [2, 7, 9] is 9, but the stack has d_model = 8");
    kr_tape_reset(tape);
    x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D));
    kr_block_out foreign = kr_layer_forward(tape, other, x, NULL);
    CHECK(!kr_layer_forward(tape, layer, x, &(kr_block_call){ .cache = &foreign.cache }).y, "family");
    CHECK_ERROR(ctx, KR_ERR_ARG, "layer.forward: the cache is of the family mamba1, but the block is mamba2");
    kr_tape_reset(tape);
    x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D));
    kr_block_out own = kr_layer_forward(tape, layer, x, NULL);
    CHECK(!kr_layer_step(tape, layer, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B + 1, D)), &own.cache).y, "rows");
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "layer.step: the state has 2 rows, but there are 3 rows in x");
    kr_tape_reset(tape);
    x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D));
    own = kr_layer_forward(tape, layer, x, NULL);
    const kr_block_call step = { .cache = &own.cache, .reset_bs = kr_zeros(tape, KR_DTYPE_I32, KR_SHAPE(B, 1)) };
    kr_tensor *token = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, D));
    CHECK(!kr_layer_call(tape, layer, KR_CALL_STEP, token, &step).y, "a reset in a step");
    CHECK_ERROR(ctx, KR_ERR_ARG, "layer.step: call.reset_bs is set, but this call takes no option except the cache");
    kr_tape_reset(tape);
    own = kr_layer_forward(tape, layer, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D)), NULL);
    const kr_block_call from = { .cache = &own.cache };
    token = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, D));
    CHECK(!kr_layer_call(tape, layer, KR_CALL_STEP_INFINITE, token, &from).y, "a steady state from a cache");
    CHECK_ERROR(ctx, KR_ERR_ARG, "layer.step_infinite: call.cache is set, but this call takes no options");
    kr_tape_reset(tape);
    CHECK(!kr_layer_call(tape, layer, KR_CALL_PRIME, NULL, NULL).y, "class tokens of a layer");
    CHECK_ERROR(ctx, KR_ERR_ARG, "layer.call: kind = 2 is not a call of a layer");
    kr_tape_reset(tape);
    x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D));
    own = kr_layer_forward(tape, layer, x, NULL);
    own.cache.mamba2.ssm_bhpr = NULL;
    CHECK(!kr_layer_forward(tape, layer, x, &(kr_block_call){ .cache = &own.cache }).y, "half a cache");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "is NULL; a cache has all its tensors");
    kr_tape_reset(tape);
    x = kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(B, S, D));
    kr_tape_destroy(tape);
    kr_layer_destroy(layer);
    kr_layer_destroy(other);
    kr_layer_destroy(NULL);
    CHECK(!kr_layer_params(NULL) && !kr_layer_block(NULL) && !kr_layer_info_of(NULL).block, "of nothing");
    kr_ctx_destroy(ctx);
}

TEST(single_layer_allocation_may_fail)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t before = kr_ctx_memory(ctx).live_bytes;
    size_t n = 0;
    kr_layer *layer = NULL;
    while (!layer && n < 1000) {
        kr_ctx_fail_allocation(ctx, ++n);
        layer = make_layer(ctx, &kinds[2]);
        kr_ctx_fail_allocation(ctx, 0);
        if (layer) break;
        CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, "no memory for");
        CHECK(kr_ctx_memory(ctx).live_bytes == before, "allocation %zu: memory is left", n);
    }
    CHECK(layer && n > 20, "made after %zu refused allocations", n);
    kr_layer_destroy(layer);
    kr_ctx_destroy(ctx);
}

/* ---- calls of a block by their kind ---- */

TEST(block_runs)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    configs c;
    const kr_block_config config = block_config(&c, KR_FAMILY_MAMBA2, false);
    kr_block *block = kr_block_create(ctx, &config);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x_bsd = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(B, S, D)), *x_bd = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(B, D));
    const kr_block_out whole = kr_block_run(t, block, KR_CALL_FORWARD, x_bsd, NULL);
    const kr_block_call from = { .cache = &whole.cache };
    CHECK_SAME_BITS("forward", whole.y, kr_block_forward(t, block, x_bsd, NULL).y);
    CHECK_SAME_BITS("step", kr_block_run(t, block, KR_CALL_STEP, x_bd, &from).y,
                    kr_block_step(t, block, x_bd, &whole.cache).y);
    CHECK_SAME_BITS("first step", kr_block_run(t, block, KR_CALL_STEP, x_bd, NULL).y,
                    kr_block_step(t, block, x_bd, NULL).y);
    CHECK_SAME_BITS("steady state", kr_block_run(t, block, KR_CALL_STEP_INFINITE, x_bd, NULL).y,
                    kr_block_step_infinite(t, block, x_bd));
    CHECK_OK(ctx);
    const kr_block_info info = kr_block_info_of(block), none = kr_block_info_of(NULL);
    CHECK(info.family == KR_FAMILY_MAMBA2 && info.params == kr_block_params(block) &&
              kr_params_count(info.params) > 0 && info.path.chunk_len == kr_block_path(block).chunk_len &&
              info.path.chunk_len > 0,
          "its properties");
    CHECK(none.family == KR_FAMILY_MAMBA1 && !none.params && none.path.chunk_len == 0, "those of NULL");
    static const struct {
        kr_call_kind kind;
        const char *message;
    } wrong[] = { { KR_CALL_STEP, "mamba2.step: call.path is set, but this call takes no option except the cache" },
                  { KR_CALL_STEP_INFINITE, "mamba2.step_infinite: call.path is set, but this call takes no options" },
                  { KR_CALL_PRIME, "block.run: kind = 2 is not a call of a block" },
                  { (kr_call_kind)9, "block.run: kind = 9 is not a call of a block" } };
    const kr_ssd_path path = kr_ssd_path_default();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        kr_tape_reset(t);
        x_bd = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(B, D));
        CHECK(!kr_block_run(t, block, wrong[i].kind, x_bd, &(kr_block_call){ .path = &path }).y, "%s",
              wrong[i].message);
        CHECK_ERROR(ctx, KR_ERR_ARG, wrong[i].message);
    }
    kr_tape_destroy(t);
    kr_block_destroy(block);
    kr_ctx_destroy(ctx);
}

/* ---- paths from a block ---- */

TEST(optimal_paths_of_blocks)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    configs c;
    block_config(&c, KR_FAMILY_MAMBA2, false);
    c.m2.d_model = c.m3.d_model = 64;
    c.m2.state_rank = c.m3.state_rank = 128;
    c.m2.per_head_dim = c.m3.per_head_dim = 32;
    c.m2.path = (kr_ssd_path){ KR_SSD_SERIAL, 16 }; /* its own, which "optimal" does not mean */
    c.m3.is_mimo = true;
    c.m3.mimo_rank = 4;
    kr_mamba1 *m1 = kr_mamba1_create(ctx, &c.m1);
    kr_mamba2 *m2 = kr_mamba2_create(ctx, &c.m2);
    kr_mamba3 *m3 = kr_mamba3_create(ctx, &c.m3);
    CHECK_OK(ctx);
    const int64_t l2 = kr_ssd_optimal_chunk_len(128, 32);
    const kr_ssd_path a = kr_mamba2_core_optimal(m2), b = kr_mamba2_chunked_optimal(m2),
                      d = kr_mamba2_chunked_recalculated_optimal(m2);
    CHECK(a.algorithm == KR_SSD_MINIMAL && a.chunk_len == l2, "%d, %lld", (int)a.algorithm, (long long)a.chunk_len);
    CHECK(b.algorithm == KR_SSD_SERIAL && b.chunk_len == l2, "%d, %lld", (int)b.algorithm, (long long)b.chunk_len);
    CHECK(d.algorithm == KR_SSD_SERIAL_RECALCULATED && d.chunk_len == l2, "%d", (int)d.algorithm);
    CHECK(kr_mamba2_path(m2).chunk_len == 16, "the config's own path");
    CHECK(kr_ssd_core_optimal_from_block((const kr_block *)m2).chunk_len == l2, "of any block");
    CHECK(kr_mamba3_chunked_optimal(m3).chunk_len == kr_mamba3_path(m3).chunk_len && l2 > kr_mamba3_path(m3).chunk_len,
          "rows of all ranks share a chunk");
    CHECK(kr_mamba3_core_optimal(m3).algorithm == KR_SSD_MINIMAL &&
              kr_mamba3_chunked_recalculated_optimal(m3).algorithm == KR_SSD_SERIAL_RECALCULATED,
          "algorithms");
    CHECK(kr_block_optimal_path((const kr_block *)m1, KR_SSD_SERIAL).chunk_len == 0 &&
              kr_block_optimal_path(NULL, KR_SSD_SERIAL).chunk_len == 0,
          "no chunks");
    kr_mamba1_destroy(m1);
    kr_mamba2_destroy(m2);
    kr_mamba3_destroy(m3);
    kr_ctx_destroy(ctx);
}
