/* generate.c - text out of a model: a prompt, three continuations of it side by side, and one that goes on from a file.
 *
 *   generate                    a fresh model of bytes: its words are not of this world
 *   generate MODEL [PROMPT]     a model folder, with tokenizer.json in it if its tokens are not bytes
 */
#include <krait/krait.h>

#include <stdio.h>
#include <string.h>

enum { ROWS = 3, LETTERS = 60 };

static kr_network *new_network(kr_ctx *ctx)
{
    kr_mamba3_config mamba;
    kr_mamba3_config_init(&mamba);
    mamba.d_model = 32;
    mamba.state_rank = 16;
    mamba.per_head_dim = 16;
    kr_layers_config stack;
    kr_layers_config_init(&stack);
    stack.block = kr_mamba3_block(&mamba);
    stack.n_layers = 2;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &stack;
    config.vocab_size = 256;
    config.tie_embeddings = false;
    config.embedding_std = 0.5; /* far from how training begins: it is to prefer something */
    kr_ctx_seed(ctx, 7);
    return kr_network_create(ctx, &config);
}

/* A fresh model knows no letters: all other bytes are excluded. */
static int biases_for_letters(kr_logit_bias *biases)
{
    int n = 0;
    for (int32_t id = 0; id < 256; id++)
        if (id != ' ' && (id < 'a' || id > 'z')) biases[n++] = (kr_logit_bias){ .id = id, .bias = -1e9 };
    return n;
}

/* All that the rows say, each from its own place on. */
static void listen(kr_generation *g, char text[ROWS][2000])
{
    while (kr_generation_next(g) == KR_OK)
        for (int row = 0; row < ROWS; row++) {
            const size_t used = strlen(text[row]);
            snprintf(text[row] + used, 2000 - used, "%s", kr_generation_row(g, row)->text);
        }
}

static void talk(kr_ctx *ctx, const kr_network *net, const kr_tokenizer *tok, kr_generate_options *options,
                 const char *prompt)
{
    char text[ROWS][2000] = { "" }, again[ROWS][2000] = { "" };
    kr_generation *g = kr_generation_create(ctx, net, tok, options);
    kr_generation_feed_text(g, prompt, strlen(prompt));
    if (kr_generation_save(g, "talk.state") == KR_OK) listen(g, text); /* all that is needed to continue from here */
    for (int row = 0; row < ROWS; row++) printf("%s|%s\n", prompt, text[row]);
    printf("%lld tokens read, %lld generated\n", (long long)kr_generation_prompt_tokens(g),
           (long long)kr_generation_tokens(g));
    kr_generation_destroy(g);

    g = kr_generation_create(ctx, net, tok, options); /* on another day */
    if (kr_generation_load(g, "talk.state") == KR_OK) listen(g, again);
    if (!kr_ctx_failed(ctx))
        printf("from the file: %s\n", memcmp(text, again, sizeof text) ? "something else" : "the same");
    kr_generation_destroy(g);
    remove("talk.state");
}

int main(int argc, char **argv)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_text_model *lm = argc > 1 ? kr_text_model_open(ctx, argv[1], NULL) : NULL; /* with its tokenizer and EOS */
    kr_network *own = argc > 1 ? NULL : new_network(ctx);
    kr_tokenizer *bytes = argc > 1 ? NULL : kr_tokenizer_bytes(ctx);
    kr_logit_bias biases[256];

    kr_generate_options options;
    kr_generate_options_init(&options);
    options.n_samples = ROWS;
    options.max_tokens = LETTERS;
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    sampler.temperature = 0.8;
    sampler.top_p = 0.95;
    sampler.seed = 1;
    kr_text_model_set_stops(lm, &options);
    if (own) {
        sampler.n_biases = biases_for_letters(biases);
        sampler.biases = biases;
    }
    options.sampler = &sampler;
    talk(ctx, own ? own : kr_model_network(kr_text_model_model(lm)), own ? bytes : kr_text_model_tokenizer(lm),
         &options, argc > 2 ? argv[2] : "once upon a time");

    const bool ok = !kr_ctx_failed(ctx);
    if (!ok) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    kr_tokenizer_destroy(bytes);
    kr_network_destroy(own);
    kr_text_model_destroy(lm);
    kr_ctx_destroy(ctx);
    return !ok;
}
