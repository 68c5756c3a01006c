/* generate.c - text generation: a prompt, three sampled continuations, and the same ones resumed from a state file.
 *
 *   generate                    an untrained byte-level model, which is made first; its text is random letters
 *   generate MODEL [PROMPT]     a model folder with a tokenizer.json, or a byte-level model
 */
#include <krait/krait.h>

#include <stdio.h>
#include <string.h>

enum { ROWS = 3, MAX_TOKENS = 60, TEXT_BYTES = 2000 };

static const char untrained[] = "generate-untrained", state_file[] = "generate.state";

/* Saves a small byte-level model with initial weights. */
static kr_status save_untrained(kr_ctx *ctx)
{
    kr_model_config *config = kr_model_config_create(ctx);
    if (!config) return kr_ctx_status(ctx);
    config->family = KR_FAMILY_MAMBA3;
    kr_model_config_set_d_model(config, 32);
    config->mamba3->state_rank = 16;
    config->mamba3->per_head_dim = 16;
    config->layers->n_layers = 2;
    config->network->vocab_size = 256;
    config->network->tie_embeddings = false;
    config->network->embedding_std = 0.5; /* larger than for training: the logits of tokens differ more */
    kr_ctx_seed(ctx, 7);
    kr_model *model = kr_model_create(ctx, config);
    const kr_status status = kr_model_save(model, untrained, NULL);
    kr_model_destroy(model);
    kr_model_config_destroy(config);
    return status;
}

static void remove_untrained(void)
{
    remove("generate-untrained/config.json");
    remove("generate-untrained/model.safetensors");
    remove(untrained);
}

/* Excludes all bytes but letters and spaces: the bytes of an untrained model are rarely printable. */
static int exclude_all_but_letters(kr_logit_bias *biases)
{
    int n = 0;
    for (int32_t id = 0; id < 256; id++)
        if (id != ' ' && (id < 'a' || id > 'z')) biases[n++] = (kr_logit_bias){ .id = id, .bias = -1e9 };
    return n;
}

/* Generates to the end and appends the text of each row. */
static void collect_text(kr_generation *g, char text[ROWS][TEXT_BYTES])
{
    while (kr_generation_next(g) == KR_OK)
        for (int row = 0; row < ROWS; row++) {
            const size_t used = strlen(text[row]);
            snprintf(text[row] + used, TEXT_BYTES - used, "%s", kr_generation_row(g, row)->text);
        }
}

static void generate(kr_ctx *ctx, const kr_text_model *lm, const kr_generate_options *options, const char *prompt)
{
    char text[ROWS][TEXT_BYTES] = { "" }, resumed[ROWS][TEXT_BYTES] = { "" };
    const kr_network *net = kr_model_network(kr_text_model_model(lm));
    const kr_tokenizer *tok = kr_text_model_tokenizer(lm);
    kr_generation *g = kr_generation_create(ctx, net, tok, options);
    kr_text_model_feed(lm, g, prompt, strlen(prompt)); /* with BOS, if the model has one */
    if (kr_generation_save(g, state_file) == KR_OK) collect_text(g, text);
    for (int row = 0; row < ROWS; row++) printf("%s|%s\n", prompt, text[row]);
    printf("%lld tokens read, %lld generated\n", (long long)kr_generation_prompt_tokens(g),
           (long long)kr_generation_tokens(g));
    kr_generation_destroy(g);

    g = kr_generation_create(ctx, net, tok, options); /* could be another process */
    if (kr_generation_load(g, state_file) == KR_OK) collect_text(g, resumed);
    if (!kr_ctx_failed(ctx))
        printf("resumed from the file: %s\n", memcmp(text, resumed, sizeof text) ? "different text" : "same text");
    kr_generation_destroy(g);
    remove(state_file);
}

int main(int argc, char **argv)
{
    const bool is_untrained = argc < 2;
    kr_ctx *ctx = kr_ctx_create(NULL);
    const bool is_saved = is_untrained && save_untrained(ctx) == KR_OK;
    const char *folder = is_untrained ? untrained : argv[1];
    kr_text_model *lm =
        is_saved || !is_untrained ? kr_text_model_open(ctx, folder, NULL) : NULL; /* with its tokenizer */

    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    sampler.temperature = 0.8;
    sampler.top_p = 0.95;
    sampler.seed = 1;
    kr_logit_bias biases[256];
    if (is_untrained) {
        sampler.n_biases = exclude_all_but_letters(biases);
        sampler.biases = biases;
    }
    kr_generate_options options;
    kr_generate_options_init(&options);
    options.n_samples = ROWS;
    options.max_tokens = MAX_TOKENS;
    options.sampler = &sampler;
    kr_text_model_set_stops(lm, &options);
    if (lm) generate(ctx, lm, &options, argc > 2 ? argv[2] : "once upon a time");

    const bool failed = kr_ctx_failed(ctx);
    if (failed) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    kr_text_model_destroy(lm);
    if (is_untrained) remove_untrained();
    kr_ctx_destroy(ctx);
    return failed;
}
