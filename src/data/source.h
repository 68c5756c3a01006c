/* source.h - internals of a source: the interface between a loader and every kind of source.
 *
 * A kind has its own struct with kr_source as the first member; kr_source_new allocates it, `bytes` is its size.
 */
#ifndef KR_DATA_SOURCE_H
#define KR_DATA_SOURCE_H

#include "base/ctx_impl.h"

#include <krait/data.h>

typedef struct kr_source_kind {
    size_t bytes;
    bool (*read)(const kr_source *source, int64_t from, int64_t count, const kr_positions *out);
    /* The first position in [from, to) where a document begins; `to` if there is none. One begins at 0. */
    int64_t (*find_start)(const kr_source *source, int64_t from, int64_t to);
    void (*deinit)(kr_source *source);
} kr_source_kind;

struct kr_source {
    kr_ctx *ctx;
    const kr_source_kind *kind;
    kr_source_info info;
};

/* Zeros but for ctx and kind; NULL with the context's error set. */
kr_source *kr_source_new(kr_ctx *ctx, const kr_source_kind *kind);

/* kr_source_open for one format each: the fields of the options that the format has. */
kr_source *kr_source_open_text(kr_ctx *ctx, const kr_source_options *o);
kr_source *kr_source_open_string(kr_ctx *ctx, const kr_source_options *o);
kr_source *kr_source_open_jsonl(kr_ctx *ctx, const kr_source_options *o);
kr_source *kr_source_open_tokens(kr_ctx *ctx, const kr_source_options *o);
kr_source *kr_source_open_raw_tokens(kr_ctx *ctx, const kr_source_options *o);
kr_source *kr_source_open_csv(kr_ctx *ctx, const kr_source_options *o);
kr_source *kr_source_open_idx(kr_ctx *ctx, const kr_source_options *o);

/* Documents of the same length, one after another. */
static inline int64_t kr_next_multiple(int64_t from, int64_t to, int64_t length)
{
    const int64_t start = (from + length - 1) / length * length;
    return start < to ? start : to;
}

#endif
