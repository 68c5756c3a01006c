/* source_tokens.c - token files and bare ids as sources, and writing any source of tokens as a token file. */
#include "data/source_tokens.h"

typedef struct token_source {
    kr_source base;
    kr_tokens tokens;
} token_source;

static const kr_tokens *tokens_of(const kr_source *source)
{
    return &((const token_source *)(const void *)source)->tokens;
}

static bool read_tokens(const kr_source *source, int64_t from, int64_t count, const kr_positions *out)
{
    return kr_tokens_read(tokens_of(source), from, count, out->ids);
}

static int64_t find_start(const kr_source *source, int64_t from, int64_t to)
{
    return kr_tokens_find_start(tokens_of(source), from, to);
}

static void deinit(kr_source *source)
{
    kr_tokens_close(&((token_source *)(void *)source)->tokens);
}

static const kr_source_kind token_kind = { sizeof(token_source), read_tokens, find_start, deinit };

kr_source *kr_source_of_tokens(kr_ctx *ctx, const kr_tokens *tokens)
{
    kr_tokens taken = *tokens;
    kr_source *source = kr_source_new(ctx, &token_kind);
    if (!source) {
        kr_tokens_close(&taken);
        return NULL;
    }
    ((token_source *)(void *)source)->tokens = taken;
    source->info =
        (kr_source_info){ .count = taken.count, .n_ids = taken.n_ids, .n_classes = taken.n_ids, .predict_next = true };
    return source;
}

kr_source *kr_source_open_tokens(kr_ctx *ctx, const kr_source_options *o)
{
    kr_tokens tokens;
    return kr_tokens_open(&tokens, ctx, o->path) ? kr_source_of_tokens(ctx, &tokens) : NULL;
}

kr_source *kr_source_open_raw_tokens(kr_ctx *ctx, const kr_source_options *o)
{
    kr_tokens tokens;
    const int id_bytes = o->id_bytes;
    const int64_t n_ids = o->n_ids;
    const int32_t separator = o->separator_id;
    if (!kr_require(ctx, id_bytes == 2 || id_bytes == 4, KR_ERR_ARG,
                    "raw_tokens: id_bytes = %d, but ids have 2 or 4 bytes", id_bytes) ||
        !kr_require(ctx, n_ids > 0 && n_ids <= (id_bytes == 2 ? 65536 : INT32_MAX), KR_ERR_ARG,
                    "raw_tokens: n_ids = %lld must be from 1 to what %d bytes hold", (long long)n_ids, id_bytes) ||
        !kr_require(ctx, separator >= -1 && separator < n_ids, KR_ERR_ARG,
                    "raw_tokens: separator = %d must be -1 or below n_ids = %lld", (int)separator, (long long)n_ids))
        return NULL;
    return kr_tokens_open_raw(&tokens, ctx, o->path, id_bytes, n_ids, separator) ? kr_source_of_tokens(ctx, &tokens)
                                                                                 : NULL;
}

/* ---- saving ---- */

/* Up to the next document, or a block at most. */
static bool copy_block(const kr_source *source, kr_token_writer *w, int64_t *at)
{
    enum { BLOCK = 4096 };
    int32_t ids[BLOCK];
    int64_t end = *at + BLOCK < source->info.count ? *at + BLOCK : source->info.count;
    if (source->kind->find_start(source, *at, *at + 1) == *at && !kr_token_writer_document(w)) return false;
    end = source->kind->find_start(source, *at + 1, end);
    const int64_t from = *at;
    *at = end;
    return source->kind->read(source, from, end - from, &(kr_positions){ .ids = ids }) &&
           kr_token_writer_put(w, ids, end - from);
}

kr_status kr_source_save(const kr_source *source, const char *path)
{
    if (!source) return KR_ERR_ARG;
    kr_ctx *ctx = source->ctx;
    kr_token_writer w;
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (!kr_require(ctx, source->info.n_ids > 0 && source->info.predict_next, KR_ERR_ARG,
                    "source.save: the source has numbers or labels, but a token file holds tokens only") ||
        !kr_require(ctx, path, KR_ERR_ARG, "source.save: path is NULL") ||
        !kr_token_writer_begin(&w, ctx, path, source->info.n_ids))
        return kr_ctx_status(ctx);
    bool ok = true;
    for (int64_t at = 0; ok && at < source->info.count;) ok = copy_block(source, &w, &at);
    kr_token_writer_end(&w, ok, NULL);
    return kr_ctx_status(ctx);
}
