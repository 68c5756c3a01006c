/* source.c - common code of all sources. */
#include "data/source.h"

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
