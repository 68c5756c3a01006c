/* text_model.c - opens a model folder with its tokenizer, and finds the tokens that begin and end a text. */
#include "base/arena.h"
#include "base/sized.h"
#include "io/file.h"

#include <krait/generate.h>

#include <string.h>

#define OP "text_model"
enum { MOST_BOS = 8, PROBE_IDS = 16, ARENA_BYTES = 512 };

struct kr_text_model {
    kr_ctx *ctx;
    kr_model *model;
    kr_tokenizer *tok;
    int64_t vocab; /* tokens, without the padding of the embedding */
    int n_bos, n_eos;
    int32_t bos[MOST_BOS], eos[KR_MAX_EOS], start;
};

/* ---- tokenizer ---- */

/* Byte models have 256 tokens, or a few more for BOS, EOS and padding. */
static bool is_byte_vocabulary(int64_t vocab)
{
    return vocab >= 256 && vocab <= 264;
}

/* Published models share few tokenizers; the vocabulary size identifies them. */
static const char *likely_tokenizer(const kr_text_model *lm)
{
    const kr_model_config *config = kr_model_config_of(lm->model);
    if (lm->vocab >= 50254 && lm->vocab <= 50304) return "that of GPT-NeoX-20b, by the size of the vocabulary";
    if (lm->vocab == 128256 ||
        (config->family == KR_FAMILY_MAMBA3 && config->layout == KR_LAYOUT_OFFICIAL && lm->vocab > 50304))
        return "that of Llama-3.1, by the size of the vocabulary";
    return "the one that the model was trained with";
}

static bool fail_without_tokenizer(const kr_text_model *lm, const char *folder)
{
    if (!lm->vocab)
        return kr_fail(lm->ctx, KR_ERR_ARG, "%s is a network over features, without tokens; load it with kr_model_load",
                       folder);
    if (lm->vocab < 256)
        return kr_fail(lm->ctx, KR_ERR_ARG,
                       "%s has no tokenizer.json, and its vocabulary of %lld tokens is smaller than the 256 bytes; no "
                       "known tokenizer: use ids",
                       folder, (long long)lm->vocab);
    return kr_fail(lm->ctx, KR_ERR_ARG,
                   "%s has no tokenizer.json, and its vocabulary of %lld tokens is not that of bytes; put "
                   "tokenizer.json into the folder "
                   "or name it: %s",
                   folder, (long long)lm->vocab, likely_tokenizer(lm));
}

static bool load_tokenizer(kr_text_model *lm, const char *folder, const char *name)
{
    lm->tok = strcmp(name, "bytes") ? kr_tokenizer_load(lm->ctx, name) : kr_tokenizer_bytes(lm->ctx);
    return lm->tok &&
           kr_require(lm->ctx, kr_tokenizer_size(lm->tok) <= lm->vocab, KR_ERR_ARG,
                      "tokenizer %s has %lld tokens, but model %s has %lld; the tokenizer does not match the model",
                      name, (long long)kr_tokenizer_size(lm->tok), folder, (long long)lm->vocab);
}

static bool open_tokenizer(kr_text_model *lm, const char *folder, const char *name)
{
    kr_arena arena;
    kr_arena_init(&arena, &lm->ctx->memory, ARENA_BYTES);
    bool is_open = true;
    if (!name) {
        const char *path = kr_path_join(lm->ctx, &arena, folder, "tokenizer.json");
        is_open = path != NULL;
        if (is_open && kr_path_kind_of(path) != KR_PATH_NONE) name = path;
        else if (is_byte_vocabulary(lm->vocab)) name = "bytes";
    }
    if (is_open) is_open = name ? load_tokenizer(lm, folder, name) : fail_without_tokenizer(lm, folder);
    kr_arena_deinit(&arena);
    return is_open;
}

/* ---- special tokens ---- */

/* BOS ids are those before the ids of a text when the tokenizer adds its special tokens. */
static bool find_bos(kr_text_model *lm)
{
    int32_t plain[PROBE_IDS], whole[PROBE_IDS];
    kr_encode_options options;
    kr_encode_options_init(&options);
    const int64_t n_whole = kr_tokenizer_encode(lm->tok, "a", 1, &options, whole, PROBE_IDS);
    options.add_special = false;
    const int64_t n_plain = kr_tokenizer_encode(lm->tok, "a", 1, &options, plain, PROBE_IDS);
    if (kr_ctx_failed(lm->ctx)) return false;
    for (int64_t at = 0; at + n_plain <= n_whole && n_whole <= PROBE_IDS; at++) {
        if (memcmp(whole + at, plain, (size_t)n_plain * sizeof *plain) != 0) continue;
        lm->n_bos = at < MOST_BOS ? (int)at : MOST_BOS;
        memcpy(lm->bos, whole, (size_t)lm->n_bos * sizeof *whole);
        break;
    }
    return true;
}

static void find_eos(kr_text_model *lm)
{
    static const char *const texts[] = { "<|endoftext|>", "<|end_of_text|>", "</s>" };
    const kr_model_config *config = kr_model_config_of(lm->model);
    for (int i = 0; i < config->n_eos; i++)
        if (config->eos[i] < lm->vocab) lm->eos[lm->n_eos++] = (int32_t)config->eos[i];
    for (size_t i = 0; !config->n_eos && lm->tok && i < sizeof texts / sizeof *texts; i++) {
        const int32_t id = kr_tokenizer_find(lm->tok, texts[i]);
        if (id >= 0) lm->eos[lm->n_eos++] = id;
    }
    const bool has_bos = config->bos >= 0 && config->bos < lm->vocab;
    lm->start = has_bos ? (int32_t)config->bos : lm->n_eos ? lm->eos[0] : -1;
}

/* ---- life ---- */

kr_text_model *kr_text_model_open(kr_ctx *ctx, const char *folder, const kr_text_model_options *options)
{
    const kr_text_model_options o = options ? *options : (kr_text_model_options){ 0 };
    if (kr_ctx_failed(ctx) || !KR_RESERVED(ctx, OP, "kr_text_model_options", &o)) return NULL;
    kr_text_model *lm = kr_memory_alloc_zeroed(&ctx->memory, sizeof *lm);
    if (!kr_require(ctx, lm, KR_ERR_NOMEM, OP ": no memory for a text model")) return NULL;
    lm->ctx = ctx;
    lm->start = -1;
    lm->model = kr_model_load(ctx, folder, o.load);
    bool is_open = lm->model != NULL;
    if (is_open) lm->vocab = kr_model_config_of(lm->model)->network->vocab_size;
    if (is_open && (o.tokenizer || !o.skip_tokenizer))
        is_open = open_tokenizer(lm, folder, o.tokenizer) && find_bos(lm);
    if (is_open) {
        find_eos(lm);
        return lm;
    }
    kr_text_model_destroy(lm);
    return NULL;
}

kr_text_model *kr_text_model_share(kr_ctx *ctx, const kr_text_model *from)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, from, KR_ERR_ARG, "text_model.share: lm is NULL")) return NULL;
    kr_text_model *lm = kr_memory_alloc_zeroed(&ctx->memory, sizeof *lm);
    if (!kr_require(ctx, lm, KR_ERR_NOMEM, "text_model.share: no memory for a text model")) return NULL;
    *lm = *from;
    lm->ctx = ctx;
    lm->tok = NULL;
    lm->model = kr_model_share(ctx, from->model);
    if (lm->model && (!from->tok || (lm->tok = kr_tokenizer_share(ctx, from->tok)))) return lm;
    kr_text_model_destroy(lm);
    return NULL;
}

void kr_text_model_destroy(kr_text_model *lm)
{
    if (!lm) return;
    kr_tokenizer_destroy(lm->tok);
    kr_model_destroy(lm->model);
    kr_memory_free(&lm->ctx->memory, lm, sizeof *lm);
}

/* ---- use ---- */

kr_text_model_info kr_text_model_info_of(const kr_text_model *lm)
{
    if (!lm) return (kr_text_model_info){ .start = -1 };
    return (kr_text_model_info){ .model = lm->model,
                                 .tokenizer = lm->tok,
                                 .n_bos = lm->n_bos,
                                 .bos = lm->bos,
                                 .n_eos = lm->n_eos,
                                 .eos = lm->eos,
                                 .start = lm->start };
}

kr_status kr_text_model_feed(const kr_text_model *lm, kr_generation *g, const char *text, size_t bytes)
{
    if (!lm) return KR_ERR_ARG;
    if (kr_ctx_failed(lm->ctx)) return kr_ctx_status(lm->ctx);
    if (bytes) return kr_generation_feed_text(g, text, bytes);
    if (lm->n_bos) return kr_generation_feed(g, lm->bos, lm->n_bos);
    if (lm->start >= 0) return kr_generation_feed(g, &lm->start, 1);
    kr_fail(lm->ctx, KR_ERR_ARG, OP ": the prompt is empty, and the model has no BOS or EOS token");
    return KR_ERR_ARG;
}
