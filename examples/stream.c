/* stream.c - processes a sequence in chunks; halfway the state is saved to a file, and a second run resumes from it.
 *
 *   stream [FILE]     FILE is where the state is saved (default: stream.state, removed at the end)
 */
#include <krait/krait.h>

#include <math.h>
#include <stdio.h>

enum { TOKENS = 200, MIDDLE = 117, VOCAB = 64 };

/* The same seed gives the same weights in every context. */
static kr_network *make_network(kr_ctx *ctx)
{
    kr_mamba2_config mamba;
    kr_mamba2_config_init(&mamba);
    mamba.d_model = 64;
    mamba.state_rank = 16;
    mamba.per_head_dim = 16;
    kr_layers_config stack;
    kr_layers_config_init(&stack);
    stack.block = kr_mamba2_block(&mamba);
    stack.n_layers = 2;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &stack;
    config.vocab_size = VOCAB;
    kr_ctx_seed(ctx, 7);
    return kr_network_create(ctx, &config);
}

/* Processes tokens from .. to - 1 in chunks of several sizes; writes the logits of the last token. */
static void process(kr_ctx *ctx, const kr_network *net, kr_state *state, const int32_t *ids, int from, int to,
                    float *logits)
{
    static const int sizes[] = { 30, 1, 1, 17, 1, 5 };
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    call.last_logits_only = true;
    for (int i = 0; from < to && !kr_ctx_failed(ctx); i++) {
        int size = sizes[i % 6];
        if (size > to - from) size = to - from;
        kr_tape_reset(tape);
        kr_tensor *id_bs = kr_from_data(tape, KR_DTYPE_I32, KR_SHAPE(1, size), ids + from);
        kr_network_out out = size == 1 ? kr_network_step(tape, net, kr_reshape(tape, id_bs, KR_SHAPE(1)), &call)
                                       : kr_network_forward(tape, net, id_bs, &call);
        kr_state_copy(state, out.state); /* the tape is reset; the state is kept */
        kr_tensor_read(out.y, KR_DTYPE_F32, logits, VOCAB);
        from += size;
    }
    kr_tape_destroy(tape);
}

/* One run, with its own context, network and state. */
static bool run(const char *path, bool resumes, const int32_t *ids, int from, int to, float *logits)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_network *net = make_network(ctx);
    kr_state *state = resumes ? kr_state_load(ctx, net, path) : kr_state_create(ctx, kr_network_layers(net), 1);
    process(ctx, net, state, ids, from, to, logits);
    if (path && !resumes && kr_state_save(state, net, path) == KR_OK)
        printf("after %d tokens: %zu bytes of state in %s\n", to, kr_state_bytes(state), path);
    const bool ok = !kr_ctx_failed(ctx);
    if (!ok) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    kr_state_destroy(state);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    return ok;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "stream.state";
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * i + 3 * i) % VOCAB;

    float chunked[VOCAB] = { 0 }, whole[VOCAB] = { 0 };
    const bool ok = run(path, false, ids, 0, MIDDLE, chunked) && run(path, true, ids, MIDDLE, TOKENS, chunked) &&
                    run(NULL, false, ids, 0, TOKENS, whole);
    if (argc <= 1) remove(path);
    if (!ok) return 1;
    double worst = 0;
    for (int w = 0; w < VOCAB; w++) worst = fmax(worst, fabs((double)chunked[w] - (double)whole[w]));
    printf("after %d tokens: logits differ by %.1e from an uninterrupted run\n", TOKENS, worst);
    return !(worst < 1e-5);
}
