/* generate.c - text out of a model: a prompt, three continuations of it side by side, and one that goes on from a file.
 *
 *   generate                    a fresh model of bytes: its words are not of this world
 *   generate MODEL [PROMPT]     a model folder, with tokenizer.json in it if its tokens are not bytes
 */
#include <krait/krait.h>

#include <stdio.h>
#include <string.h>

enum { ROWS = 3, LETTERS = 60 };

static kr_network *fresh_network(kr_ctx *ctx)
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

static kr_tokenizer *tokenizer_of(kr_ctx *ctx, const char *folder)
{
    char path[1000];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    FILE *file = fopen(path, "rb");
    if (!file) return kr_tokenizer_bytes(ctx);
    fclose(file);
    return kr_tokenizer_load(ctx, path);
}

/* All that the rows say, each from its own place on. */
static void listen(kr_generation *g, char text[ROWS][2000])
{
    while (kr_generation_next(g))
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
    kr_generation_save(g, "talk.state"); /* all that is needed to go on from here */
    listen(g, text);
    for (int row = 0; row < ROWS; row++) printf("%s|%s\n", prompt, text[row]);
    printf("%lld tokens read, %lld generated\n", (long long)kr_generation_prompt_tokens(g),
           (long long)kr_generation_tokens(g));
    kr_generation_destroy(g);

    g = kr_generation_create(ctx, net, tok, options); /* on another day */
    kr_generation_load(g, "talk.state");
    listen(g, again);
    if (!kr_ctx_failed(ctx))
        printf("from the file: %s\n", memcmp(text, again, sizeof text) ? "something else" : "the same");
    kr_generation_destroy(g);
    remove("talk.state");
}

int main(int argc, char **argv)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_model *model = argc > 1 ? kr_model_load(ctx, argv[1], NULL) : NULL;
    kr_network *own = argc > 1 ? NULL : fresh_network(ctx);
    kr_tokenizer *tok = argc > 1 ? tokenizer_of(ctx, argv[1]) : kr_tokenizer_bytes(ctx);
    kr_logit_bias biases[256];

    kr_generate_options options;
    kr_generate_options_init(&options);
    options.n_samples = ROWS;
    options.max_tokens = LETTERS;
    options.sampler.temperature = 0.8;
    options.sampler.top_p = 0.95;
    options.sampler.seed = 1;
    if (own) {
        options.sampler.n_biases = biases_for_letters(biases);
        options.sampler.biases = biases;
    }
    talk(ctx, own ? own : kr_model_network(model), tok, &options, argc > 2 ? argv[2] : "once upon a time");

    const bool ok = !kr_ctx_failed(ctx);
    if (!ok) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    kr_tokenizer_destroy(tok);
    kr_network_destroy(own);
    kr_model_destroy(model);
    kr_ctx_destroy(ctx);
    return !ok;
}
