/* source.h - inside of a source: what a loader asks of every kind.
 *
 * A kind puts kr_source first in a struct of its own, which kr_source_new allocates and `bytes` is the size of.
 */
#ifndef KR_TRAIN_SOURCE_H
#define KR_TRAIN_SOURCE_H

#include "base/ctx.h"

#include <krait/data.h>

/* Room for what is at some positions, one after another; what the source does not have is NULL. */
typedef struct kr_positions {
    int32_t *ids;
    float *x;        /* n_features for each */
    int32_t *labels; /* labels and targets are only asked of sources that do not predict what is next */
    float *targets;  /* n_targets for each */
} kr_positions;

typedef struct kr_source_kind {
    size_t bytes;
    bool (*read)(const kr_source *source, int64_t from, int64_t count, const kr_positions *out);
    /* The first place in [from, to) where a document begins; `to` if there is none. One begins at 0. */
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

/* The caller's options over the defaults that `own` holds; false for a size that is none. */
bool kr_source_options(kr_ctx *ctx, const char *who, const void *options, void *own, size_t own_size);

/* Images in memory, which the caller fills: [count height width], and their classes [count]. */
typedef struct kr_image_set {
    int64_t count, height, width, n_classes;
} kr_image_set;
kr_source *kr_source_images(kr_ctx *ctx, const char *name, const kr_image_set *set, const kr_idx_options *options,
                            unsigned char **images, unsigned char **labels);

/* Documents of the same length, one after another. */
static inline int64_t kr_next_multiple(int64_t from, int64_t to, int64_t length)
{
    const int64_t start = (from + length - 1) / length * length;
    return start < to ? start : to;
}

#endif
