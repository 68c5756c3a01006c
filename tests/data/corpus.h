/* corpus.h - sources whose ids tell their positions, and batches as plain arrays. */
#ifndef KR_TESTS_DATA_CORPUS_H
#define KR_TESTS_DATA_CORPUS_H

#include "tests/harness.h"
#include "data/source_tokens.h"

/* Ids 0 .. count - 1, in documents of the given lengths, by turns; n_lengths 0: one document. */
static inline kr_source *counting_source(kr_ctx *ctx, int64_t count, const int64_t *lengths, int n_lengths)
{
    kr_token_writer w;
    kr_tokens tokens;
    if (!kr_token_writer_begin(&w, ctx, NULL, count < 70000 ? 70000 : count)) return NULL;
    bool ok = true;
    int64_t next = 0;
    for (int32_t id = 0, turn = 0; ok && id < count; id++) {
        if (n_lengths && id == next) {
            ok = kr_token_writer_document(&w);
            next += lengths[turn++ % n_lengths];
        }
        ok = ok && kr_token_writer_put(&w, &id, 1);
    }
    return kr_token_writer_end(&w, ok, &tokens) ? kr_source_of_tokens(ctx, &tokens) : NULL;
}

static inline bool is_start(const kr_source *source, int64_t position)
{
    return source->kind->find_start(source, position, position + 1) == position;
}

static inline const int32_t *ints(const kr_tensor *x)
{
    return kr_tensor_data(x);
}

/* Everything that a batch holds, as one number. */
static inline uint64_t batch_hash(const kr_batch *batch)
{
    uint64_t h = 14695981039346656037u;
    const kr_tensor *all[] = { batch->ids_bs,    batch->x_bsf,    batch->labels_bs, batch->targets_bso,
                               batch->scored_bs, batch->reset_bs, batch->mask_bs };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const unsigned char *data = kr_test_copy(all[i]);
        const size_t bytes = all[i] ? (size_t)kr_tensor_count(all[i]) * 4 : 0;
        for (size_t j = 0; j < bytes; j++) h = (h ^ data[j]) * 1099511628211u;
        h = (h ^ (uint64_t)bytes ^ (uint64_t)kr_tensor_dim(all[i], 0) << 32) * 1099511628211u;
    }
    return (h ^ (uint64_t)batch->epoch ^ (uint64_t)batch->step << 32) * 1099511628211u;
}

#endif
