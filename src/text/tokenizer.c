/* tokenizer.c - creation and destruction of a tokenizer, its tokens, and ids back to bytes. */
#include "text/tokenizer_impl.h"

kr_tokenizer *kr_tokenizer_new(kr_ctx *ctx)
{
    enum { BLOCK_BYTES = 1 << 14 };
    kr_tokenizer *tok = kr_memory_alloc_zeroed(&ctx->memory, sizeof *tok);
    if (!tok) {
        kr_fail(ctx, KR_ERR_NOMEM, "tokenizer: no memory for a tokenizer");
        return NULL;
    }
    tok->ctx = ctx;
    tok->self = tok;
    tok->unknown = -1;
    tok->is_first = true;
    tok->shared = kr_shared_create(&ctx->memory, sizeof *tok->shared);
    if (tok->shared) {
        kr_arena_init(&tok->arena, &tok->shared->memory, BLOCK_BYTES);
        return tok;
    }
    kr_fail(ctx, KR_ERR_NOMEM, "tokenizer: no memory for a tokenizer");
    kr_memory_free(&ctx->memory, tok, sizeof *tok);
    return NULL;
}

/* The regular expressions of `tok`, which are still those of `from`. */
static bool share_regexes(kr_tokenizer *tok, const kr_tokenizer *from)
{
    tok->word = NULL;
    for (int i = 0; i < tok->nstages; i++) tok->stages[i].regex = NULL;
    for (int i = 0; i < tok->nstages; i++)
        if (from->stages[i].regex && !(tok->stages[i].regex = kr_regex_share(tok->ctx, from->stages[i].regex)))
            return false;
    return !from->word || (tok->word = kr_regex_share(tok->ctx, from->word));
}

kr_tokenizer *kr_tokenizer_share(kr_ctx *ctx, const kr_tokenizer *from)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, from, KR_ERR_ARG, "tokenizer.share: tok is NULL")) return NULL;
    kr_tokenizer *tok = kr_memory_alloc_zeroed(&ctx->memory, sizeof *tok);
    if (!kr_require(ctx, tok, KR_ERR_NOMEM, "tokenizer.share: no memory for a tokenizer")) return NULL;
    memcpy(tok, from, offsetof(kr_tokenizer, work));
    tok->ctx = ctx;
    tok->self = tok;
    tok->is_first = false;
    kr_shared_add(tok->shared);
    if (share_regexes(tok, from)) return tok;
    kr_tokenizer_destroy(tok);
    return NULL;
}

void kr_tokenizer_destroy(kr_tokenizer *tok)
{
    if (!tok) return;
    kr_memory *memory = &tok->ctx->memory;
    for (int i = 0; i < tok->nstages; i++) kr_regex_destroy(tok->stages[i].regex);
    kr_regex_destroy(tok->word);
    if (kr_shared_leave(tok->shared, tok->is_first)) {
        kr_arena_deinit(&tok->arena);
        kr_shared_free(tok->shared, sizeof *tok->shared);
    }
    kr_memory_free(memory, tok, sizeof *tok);
}

kr_tokenizer *kr_tokenizer_bytes(kr_ctx *ctx)
{
    enum { NBYTES = 256 };
    if (kr_ctx_failed(ctx)) return NULL;
    kr_tokenizer *tok = kr_tokenizer_new(ctx);
    if (!tok) return NULL;
    tok->is_bytes = true;
    char *text = kr_arena_alloc(&tok->arena, NBYTES);
    tok->tokens = kr_arena_alloc(&tok->arena, NBYTES * sizeof *tok->tokens);
    tok->by_id = kr_arena_alloc(&tok->arena, NBYTES * sizeof *tok->by_id);
    if (!text || !tok->tokens || !tok->by_id) {
        kr_fail(ctx, KR_ERR_NOMEM, "tokenizer: no memory for a tokenizer");
        kr_tokenizer_destroy(tok);
        return NULL;
    }
    for (int i = 0; i < NBYTES; i++) {
        text[i] = (char)i;
        tok->tokens[i] = (kr_token){ .text = text + i, .bytes = 1, .id = i };
        tok->by_id[i] = (uint32_t)i + 1;
    }
    tok->ntokens = tok->size = NBYTES;
    tok->longest = 1;
    return tok;
}

/* ---- tokens ---- */

int64_t kr_tokenizer_size(const kr_tokenizer *tok)
{
    return tok ? tok->size : 0;
}

kr_token_info kr_tokenizer_token_info(const kr_tokenizer *tok, int32_t id)
{
    const kr_token *token = tok ? kr_token_of(tok, id) : NULL;
    if (!token) return (kr_token_info){ .text = NULL };
    return (kr_token_info){ .text = token->text, .bytes = token->bytes, .is_special = token->is_special };
}

int32_t kr_tokenizer_find(const kr_tokenizer *tok, const char *text)
{
    if (!tok || !text || tok->nadded == 0) return -1;
    const int32_t path = kr_token_map_find(&tok->by_name, text, strlen(text));
    return path < 0 ? -1 : tok->names[path].id;
}

size_t kr_tokenizer_decode(const kr_tokenizer *tok, const int32_t *ids, int64_t count, bool skip_special, char *text,
                           size_t capacity)
{
    size_t bytes = 0;
    if (!text) capacity = 0;
    if (tok && count > 0 && !ids) kr_fail(tok->ctx, KR_ERR_ARG, "tokenizer_decode: ids is NULL");
    for (int64_t i = 0; tok && ids && i < count; i++) {
        const kr_token *token = kr_token_of(tok, ids[i]);
        if (!token || (token->is_special && skip_special)) continue;
        if (bytes < capacity) {
            const size_t free_bytes = capacity - bytes;
            memcpy(text + bytes, token->text, token->bytes < free_bytes ? token->bytes : free_bytes);
        }
        bytes += token->bytes;
    }
    return bytes;
}
