/* generate.cpp - the C++ interface: a network and its state, a model folder that continues a prompt in two contexts, and a
 * gradient. */
#include <krait/krait.hpp>

#include <cstdio>
#include <string>

static kr_mamba2_config small_mamba2()
{
    kr_mamba2_config config;
    kr_mamba2_config_init(&config);
    config.d_model = 64;
    config.state_rank = 16;
    config.per_head_dim = 32;
    return config;
}

/* Eight tokens in one call, then a step from their state. */
static void run_network(kr_ctx *ctx)
{
    const kr_mamba2_config mamba = small_mamba2();
    kr_layers_config stack;
    kr_layers_config_init(&stack);
    stack.block = kr_mamba2_block(&mamba);
    stack.n_layers = 2;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &stack;
    config.vocab_size = 256;
    krait::network net(ctx, config);

    krait::tape tape(ctx, KR_TAPE_NO_GRAD);
    krait::state state(ctx, net.layers(), 1);
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    const std::vector<int32_t> ids = { 1, 2, 3, 4, 5, 6, 7, 8 };
    state.copy(net.forward(tape, tape.from(ids, { 1, 8 }), &call).state);
    tape.reset();
    krait::tensor logits = net.step(tape, tape.from(std::vector<int32_t>{ 9 }, { 1 }), &call).y;
    std::printf("%lld logits, state of %zu bytes\n", (long long)logits.count(), state.bytes());
}

/* Saves a byte-level model with initial weights, opens it with its tokenizer, and generates. */
static void run_model(kr_ctx *ctx, const std::string &folder)
{
    krait::handle<kr_model_config, kr_model_config_destroy> owner(krait::check(ctx, kr_model_config_create(ctx)));
    kr_model_config *config = owner;
    config->family = KR_FAMILY_MAMBA2;
    *config->mamba2 = small_mamba2();
    config->layers->n_layers = 2;
    config->network->vocab_size = 256;
    krait::model(ctx, *config).save(folder);

    krait::text_model lm(ctx, folder);
    kr_generate_options options;
    kr_generate_options_init(&options);
    options.max_tokens = 16;
    krait::generation generation = lm.generate("Once upon a time", &options);
    krait::context other; /* of another thread, for example */
    krait::text_model shared = lm.share(other);
    krait::generation second = shared.generate("Once upon a time", &options);
    int tokens = 0;
    while (generation.next() && second.next()) tokens += 2;
    std::printf("%d tokens\n", tokens);
}

/* The gradient of a block, and an error that is caught. */
static void run_block(kr_ctx *ctx)
{
    krait::block block(ctx, small_mamba2());
    krait::tape tape(ctx);
    krait::tensor x = tape(kr_input(tape, tape.randn({ 1, 8, 64 })));
    krait::tensor y = block.forward(tape, x).y;
    tape.backward(tape(kr_mean(tape, y, KR_ALL_AXES, false)));
    std::printf("gradient with %zu elements\n", x.grad().read<float>().size());
    try {
        block.forward(tape, tape.randn({ 1, 8, 32 }));
    } catch (const krait::error &e) {
        std::printf("%s: %s\n", kr_status_name(e.status()), e.what());
    }
}

int main()
{
    try {
        krait::context ctx;
        ctx.seed(1);
        run_network(ctx);
        const std::string folder = "generate-cpp-model";
        run_model(ctx, folder);
        for (const char *file : { "/config.json", "/model.safetensors", "" }) std::remove((folder + file).c_str());
        run_block(ctx);
        return 0;
    } catch (const krait::error &e) {
        std::fprintf(stderr, "krait: %s\n", e.what());
        return 1;
    }
}
