/* generate.cpp - the C++ interface: a small model with initial weights continues a prompt, then a block computes a gradient. */
#include <krait/krait.hpp>

#include <cstdio>

int main()
{
    try {
        krait::context ctx;
        ctx.seed(1);

        kr_mamba2_config mamba;
        kr_mamba2_config_init(&mamba);
        mamba.d_model = 64;
        mamba.state_rank = 16;
        mamba.per_head_dim = 32;
        kr_layers_config stack;
        kr_layers_config_init(&stack);
        stack.block = kr_mamba2_block(&mamba);
        stack.n_layers = 2;
        kr_network_config config;
        kr_network_config_init(&config);
        config.layers = &stack;
        config.vocab_size = 256;
        krait::handle<kr_network, kr_network_destroy> net(krait::check(ctx, kr_network_create(ctx, &config)));

        krait::tokenizer bytes(ctx);
        kr_generate_options options;
        kr_generate_options_init(&options);
        options.max_tokens = 16;
        krait::generation generation(ctx, net, bytes, &options);
        generation.feed("Once upon a time");
        int tokens = 0;
        while (generation.next()) tokens++;
        std::printf("%d tokens\n", tokens);

        krait::block block(ctx, mamba);
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
        return 0;
    } catch (const krait::error &e) {
        std::fprintf(stderr, "krait: %s\n", e.what());
        return 1;
    }
}
