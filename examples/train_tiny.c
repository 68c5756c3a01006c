/* train_tiny.c - a training loop: a byte-level Mamba-3 learns a text, then generates from it.
 *
 *   train_tiny             sums of two numbers
 *   train_tiny FILE        a text file
 */
#include <krait/krait.h>
#include <stdio.h>

enum { STEPS = 400, BATCH = 8, LENGTH = 128 };

/* Lines such as "7 + 5 = 12". */
static kr_source *make_sums(kr_ctx *ctx, const kr_tokenizer *tok)
{
    static char text[8192];
    size_t n = 0;
    for (int a = 0; a < 20; a++)
        for (int b = 0; b < 20; b++) n += (size_t)snprintf(text + n, sizeof text - n, "%d + %d = %d\n", a, b, a + b);
    return kr_source_string(ctx, text, n, tok, NULL);
}

static kr_model *make_model(kr_ctx *ctx)
{
    kr_model_config *config = kr_model_config_create(ctx);
    if (!config) return NULL;
    config->family = KR_FAMILY_MAMBA3;
    kr_model_config_set_d_model(config, 64);
    config->mamba3->state_rank = 32;
    config->mamba3->per_head_dim = 32;
    config->layers->n_layers = 2;
    config->network->vocab_size = 256;
    kr_model *model = kr_model_create(ctx, config);
    kr_model_config_destroy(config);
    return model;
}

static void train(kr_ctx *ctx, const kr_network *net, kr_loader *loader)
{
    kr_optimizer_options options;
    kr_optimizer_options_init(&options);
    options.weight_decay = 0.01; /* little, for so few steps */
    kr_optimizer *optimizer = kr_optimizer_create(ctx, kr_network_params(net), &options);
    kr_lr_schedule schedule;
    kr_lr_schedule_init(&schedule);
    schedule.max_lr = 1e-2;
    schedule.warmup_steps = 10;
    schedule.total_steps = STEPS;
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_batch batch;
    for (int step = 1; step <= STEPS && kr_loader_next(tape, loader, &batch) == KR_OK; step++) {
        kr_loss_call call;
        kr_loss_call_init(&call);
        kr_call how;
        kr_call_init(&how);
        call.call = &how;
        call.ids_bs = batch.ids_bs;
        call.labels = batch.labels_bs;
        how.reset_bs = batch.reset_bs;
        how.drop_state = true;
        kr_tensor *loss = kr_network_loss(tape, net, &call).loss; /* never stores all logits at once */
        kr_backward(tape, loss);
        if (kr_optimizer_step(optimizer, kr_lr_at(&schedule, step), 1) != KR_OK) break;
        if (step == 1 || step % 100 == 0) printf("step %4d  loss %.3f\n", step, kr_item(loss));
        kr_tape_reset(tape);
    }
    kr_tape_destroy(tape);
    kr_optimizer_destroy(optimizer);
}

static void generate(kr_ctx *ctx, const kr_network *net, const kr_tokenizer *tok)
{
    kr_generate_options options;
    kr_generate_options_init(&options);
    kr_sampler_options greedy;
    kr_sampler_options_init(&greedy);
    greedy.temperature = 0;
    options.max_tokens = 48;
    options.sampler = &greedy;
    kr_generation *g = kr_generation_create(ctx, net, tok, &options);
    kr_generation_feed_text(g, "\n", 1);
    while (kr_generation_next(g) == KR_OK)
        fwrite(kr_generation_row(g, 0)->text, 1, kr_generation_row(g, 0)->bytes, stdout);
    printf("\n");
    kr_generation_destroy(g);
}

int main(int argc, char **argv)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_tokenizer *tok = kr_tokenizer_bytes(ctx);
    kr_source *source = argc > 1 ? kr_source_text(ctx, argv[1], tok, NULL) : make_sums(ctx, tok);
    kr_loader_options options;
    kr_loader_options_init(&options);
    options.batch = BATCH;
    options.length = LENGTH;
    kr_loader *loader = kr_loader_create(source, &options);
    kr_model *model = make_model(ctx);
    if (!kr_ctx_failed(ctx)) train(ctx, kr_model_network(model), loader);
    if (!kr_ctx_failed(ctx)) generate(ctx, kr_model_network(model), tok);
    const int failed = kr_ctx_failed(ctx);
    if (failed) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    kr_model_destroy(model);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    kr_tokenizer_destroy(tok);
    kr_ctx_destroy(ctx);
    return failed;
}
