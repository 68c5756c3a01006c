/* handmade.c - a custom network: an embedding, a Mamba-2 layer, a Mamba-3 block with norm and residual, an LM head. It is
 * trained for a few steps, saved and loaded, and generates text with a sampler and a stop; the generation is saved midway
 * and resumed.
 */
#include <krait/krait.h>

#include <stdio.h>
#include <string.h>

enum { WIDTH = 32, TOKENS = 256, STEPS = 120, BATCH = 4, LENGTH = 32 };

static const char corpus[] = "to be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the "
                             "slings and arrows of outrageous fortune, or to take arms against a sea of troubles. ";

typedef struct handmade {
    kr_layer *layer;
    kr_block *block;
    kr_params *params;
    kr_tensor *embedding_wd, *gain_d, *last_gain_d, *head_wd;
    kr_network *net;
} handmade;

/* Logits [b s w] of ids [b s]. Part 0 of the state is the layer's cache, part 1 the block's. */
static kr_tensor *forward(void *user, kr_tape *tape, kr_tensor *ids_bs, kr_state *state, const kr_call *call)
{
    const handmade *m = user;
    const kr_block_call first = { .cache = kr_state_cache(state, 0), .reset_bs = call->reset_bs };
    const kr_block_call second = { .cache = kr_state_cache(state, 1), .reset_bs = call->reset_bs };

    kr_tensor *x_bsd = kr_embedding(tape, m->embedding_wd, ids_bs);
    kr_block_out layer = kr_layer_forward(tape, m->layer, x_bsd, &first);
    kr_block_out block = kr_block_forward(tape, m->block, kr_rms_norm(tape, layer.y, m->gain_d, NULL), &second);
    x_bsd = kr_add(tape, layer.y, block.y);

    kr_state_set_cache(state, 0, &layer.cache);
    kr_state_set_cache(state, 1, &block.cache);
    return kr_linear(tape, kr_rms_norm(tape, x_bsd, m->last_gain_d, NULL), m->head_wd, NULL);
}

static void make_parameters(kr_ctx *ctx, handmade *m)
{
    kr_param_options embedding, gain;
    kr_param_options_init(&embedding);
    embedding.init = (kr_init){ KR_INIT_NORMAL, 0, 0.1, 0 };
    kr_param_options_init(&gain);
    gain.init = (kr_init){ KR_INIT_FILL, 1, 0, 0 };
    m->params = kr_params_create(ctx);
    kr_params_join(m->params, "layer.", kr_layer_params(m->layer));
    kr_params_join(m->params, "block.", kr_block_params(m->block));
    m->embedding_wd = kr_params_make(m->params, "embedding", KR_DTYPE_F32, KR_SHAPE(TOKENS, WIDTH), &embedding);
    m->gain_d = kr_params_make(m->params, "norm", KR_DTYPE_F32, KR_SHAPE(WIDTH), &gain);
    m->last_gain_d = kr_params_make(m->params, "last_norm", KR_DTYPE_F32, KR_SHAPE(WIDTH), &gain);
    m->head_wd = kr_params_linear(m->params, "head", KR_DTYPE_F32, TOKENS, WIDTH, NULL);
}

static void make(kr_ctx *ctx, handmade *m)
{
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    kr_layer_config config;
    kr_mamba2_config_init(&mamba2);
    kr_mamba3_config_init(&mamba3);
    kr_layer_config_init(&config);
    mamba2.d_model = mamba3.d_model = WIDTH;
    mamba2.state_rank = mamba3.state_rank = 16;
    mamba2.per_head_dim = mamba3.per_head_dim = 16;
    config.block = kr_mamba2_block(&mamba2);
    config.d_intermediate = 2 * WIDTH; /* an MLP in the layer */
    m->layer = kr_layer_create(ctx, &config);
    const kr_block_config block = kr_mamba3_block(&mamba3);
    m->block = kr_block_create(ctx, &block);
    make_parameters(ctx, m);

    const kr_network_part parts[] = { { .block = kr_layer_block(m->layer) }, { .block = m->block } };
    kr_custom_network custom;
    kr_custom_network_init(&custom);
    custom.params = m->params;
    custom.n_parts = 2;
    custom.parts = parts;
    custom.vocab_size = TOKENS;
    custom.forward = forward;
    custom.user = m;
    m->net = kr_network_custom(ctx, &custom);
}

static void destroy(handmade *m)
{
    kr_network_destroy(m->net);
    kr_params_destroy(m->params);
    kr_block_destroy(m->block);
    kr_layer_destroy(m->layer);
}

static void train(kr_ctx *ctx, const handmade *m, const kr_tokenizer *tok)
{
    kr_source *source = kr_source_string(ctx, corpus, sizeof corpus - 1, tok, NULL);
    kr_loader_options reading;
    kr_loader_options_init(&reading);
    reading.batch = BATCH;
    reading.length = LENGTH;
    kr_loader *loader = kr_loader_create(source, &reading);
    kr_optimizer *optimizer = kr_optimizer_create(ctx, m->params, NULL);
    kr_lr_schedule schedule;
    kr_lr_schedule_init(&schedule);
    schedule.max_lr = 2e-2;
    schedule.total_steps = STEPS;
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_batch batch;
    for (int step = 1; step <= STEPS && kr_loader_next(tape, loader, &batch) == KR_OK; step++) {
        kr_loss_call call;
        kr_loss_call_init(&call);
        call.ids_bs = batch.ids_bs;
        call.labels = batch.labels_bs;
        kr_tensor *loss = kr_network_loss(tape, m->net, &call).loss;
        kr_backward(tape, loss);
        if (kr_optimizer_step(optimizer, kr_lr_at(&schedule, step), 1) != KR_OK) break;
        if (step == 1 || step == STEPS) printf("step %3d  loss %.2f\n", step, kr_item(loss));
        kr_tape_reset(tape);
    }
    kr_tape_destroy(tape);
    kr_optimizer_destroy(optimizer);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
}

/* Appends up to max_tokens generated tokens to text. */
static void append_tokens(kr_generation *g, char *text, size_t bytes, int max_tokens)
{
    for (int i = 0; i < max_tokens && kr_generation_next(g) == KR_OK; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, bytes - used, "%s", kr_generation_row(g, 0)->text);
    }
}

static void generate(kr_ctx *ctx, const handmade *m, const kr_tokenizer *tok)
{
    static const char *const stops[] = { ":" };
    char whole[400] = "", resumed[400] = "";
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    sampler.temperature = 0.3;
    kr_generate_options options;
    kr_generate_options_init(&options);
    options.sampler = &sampler;
    options.max_tokens = 60;
    options.n_stops = 1;
    options.stops = stops;
    kr_generation *g = kr_generation_create(ctx, m->net, tok, &options);
    kr_generation_feed_text(g, "to be", 5);
    append_tokens(g, whole, sizeof whole, 10);
    strcpy(resumed, whole);
    if (kr_generation_save(g, "handmade.state") == KR_OK) append_tokens(g, whole, sizeof whole, 60);
    printf("to be|%s\n", whole);

    kr_generation *other = kr_generation_create(ctx, m->net, tok, &options); /* could be another process */
    if (kr_generation_load(other, "handmade.state") == KR_OK) append_tokens(other, resumed, sizeof resumed, 60);
    printf("resumed: %s\n", strcmp(whole, resumed) ? "different text" : "same text");
    kr_generation_destroy(other);
    kr_generation_destroy(g);
}

int main(void)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_ctx_seed(ctx, 1);
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    handmade m = { 0 }, loaded = { 0 };
    make(ctx, &m);
    make(ctx, &loaded);
    train(ctx, &m, tok);
    if (kr_params_save(m.params, "handmade.safetensors") == KR_OK &&
        kr_params_load(loaded.params, "handmade.safetensors") == KR_OK)
        generate(ctx, &loaded, tok); /* with the weights of the file */
    const bool failed = kr_ctx_failed(ctx);
    if (failed) fprintf(stderr, "%s\n", kr_ctx_message(ctx));
    remove("handmade.safetensors");
    remove("handmade.state");
    destroy(&loaded);
    destroy(&m);
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
    return failed;
}
