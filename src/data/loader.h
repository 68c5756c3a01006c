/* loader.h - internals of a loader: which positions make the rows of a batch.
 *
 *   packed     windows of `length` through [from, to)
 *   documents  windows of `length` within each document of the part (pack = false)
 *   carried    row b of all batches walks [from + b n / batch, from + (b + 1) n / batch), n = the part's positions
 *
 * Where the next position is predicted, the last one of [from, to), or of a document without `pack`, begins no row and
 * occurs only as a target.
 */
#ifndef KR_DATA_LOADER_H
#define KR_DATA_LOADER_H

#include "base/sized.h"
#include "data/source.h"

KR_DECLARE_DEFAULTS(kr_loader_options);

/* A document of the part; windows before it in the part. */
typedef struct kr_loader_document {
    int64_t from, count, before;
} kr_loader_document;

struct kr_loader {
    kr_ctx *ctx;
    const kr_source *source;
    kr_loader_options options;
    int64_t from, count;           /* packed and carried: the part */
    kr_loader_document *documents; /* else */
    int64_t n_documents;
    int64_t n_rows; /* in an epoch; carried: one for each in the batch */
    int64_t steps;  /* in an epoch */
    int64_t epoch, step;
    kr_arena arena; /* of the batch under construction */
};

/* Positions that a row shows. */
typedef struct kr_loader_row {
    int64_t from, count;
} kr_loader_row;

/* Batches until the loader ends; INT64_MAX: it repeats. */
int64_t kr_loader_left(const kr_loader *loader);

/* `position`, `count` batches later. */
kr_loader_position kr_loader_after(kr_loader_position position, int64_t count);

/* Row b of the next batch. */
kr_loader_row kr_loader_row_at(const kr_loader *loader, int64_t b);

#endif
