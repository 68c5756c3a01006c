/* source.c - common code of all sources, and kr_source_open. */
#include "data/source.h"

#include "base/sized.h"

#include <string.h>

kr_source *kr_source_new(kr_ctx *ctx, const kr_source_kind *kind)
{
    kr_source *source = kr_memory_alloc_zeroed(&ctx->memory, kind->bytes);
    if (!source) {
        kr_fail(ctx, KR_ERR_NOMEM, "source: no memory for %zu bytes", kind->bytes);
        return NULL;
    }
    source->ctx = ctx;
    source->kind = kind;
    return source;
}

KR_DEFAULTS(kr_source_options) = { .size = sizeof(kr_source_options), .id_bytes = 2, .separator_id = -1 };

kr_source *kr_source_open(kr_ctx *ctx, const kr_source_options *options)
{
    kr_source_options o;
    if (kr_ctx_failed(ctx) ||
        !kr_require(ctx, options, KR_ERR_ARG, "source.open: the options are NULL; they say what to open") ||
        !KR_TAKE(ctx, "source.open", kr_source_options, options, &o))
        return NULL;
    switch (o.format) {
    case KR_SOURCE_FORMAT_TEXT: return kr_source_open_text(ctx, &o);
    case KR_SOURCE_FORMAT_STRING: return kr_source_open_string(ctx, &o);
    case KR_SOURCE_FORMAT_JSONL: return kr_source_open_jsonl(ctx, &o);
    case KR_SOURCE_FORMAT_TOKENS: return kr_source_open_tokens(ctx, &o);
    case KR_SOURCE_FORMAT_RAW_TOKENS: return kr_source_open_raw_tokens(ctx, &o);
    case KR_SOURCE_FORMAT_CSV: return kr_source_open_csv(ctx, &o);
    case KR_SOURCE_FORMAT_IDX: return kr_source_open_idx(ctx, &o);
    }
    kr_fail(ctx, KR_ERR_ARG, "source.open: format = %d is not a kr_source_format", (int)o.format);
    return NULL;
}

void kr_source_destroy(kr_source *source)
{
    if (!source) return;
    kr_memory *memory = &source->ctx->memory;
    const size_t bytes = source->kind->bytes;
    source->kind->deinit(source);
    kr_memory_free(memory, source, bytes);
}

kr_source_info kr_source_info_of(const kr_source *source)
{
    return source ? source->info : (kr_source_info){ 0 };
}
