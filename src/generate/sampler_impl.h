/* sampler_impl.h - sampling of a row, and the struct of a sampler: rows with the same options. */
#ifndef KR_GENERATE_SAMPLER_IMPL_H
#define KR_GENERATE_SAMPLER_IMPL_H

#include "base/ctx_impl.h"
#include "base/sized.h"
#include "decode/device_sampler.h"
#include "generate/select_top.h"
#include "generate/token_counts.h"

#include <krait/generate.h>

KR_DECLARE_DEFAULTS(kr_sampler_options);

static inline bool kr_sampler_penalises(const kr_sampler_options *o)
{
    return o->repetition_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0;
}

/* One row: the rules by which its tokens are sampled, and its tokens so far. */
typedef struct kr_row_sampler {
    const kr_sampler_options *options;
    uint64_t stream;    /* of the seed: rows with the same seed and other streams are independent */
    uint64_t n_sampled; /* tokens sampled so far */
    uint64_t stamp;     /* of its place in a device's sampler, which has its rules and counts; 0: none has */
    kr_token_counts counts;
    /* Changes the logits [vocab] after biases and penalties; false after an error of the row. NULL: nothing to change. */
    bool (*change)(void *user, kr_ctx *ctx, double *logits, int64_t vocab);
    void *user;
} kr_row_sampler;

/* Scratch for one row at a time: its tokens in the order of their ids, fewer after each filter. */
typedef struct kr_sampler_work {
    kr_ctx *ctx;
    int64_t vocab;
    double *logits, *weights; /* [vocab] */
    int32_t *ids;             /* [vocab] */
    kr_ranked *ranked;        /* [vocab] */
} kr_sampler_work;

struct kr_sampler {
    kr_ctx *ctx;
    kr_arena arena;             /* the arrays below, and biases */
    kr_sampler_options options; /* biases is a copy */
    int64_t nrows, vocab;
    kr_row_sampler *rows; /* [nrows]: row i has stream i */
    kr_sampler_work work;
};

/* *own <- the options, checked; biases is still the caller's. False after an error; op names the call in messages. */
bool kr_sampler_take_options(kr_ctx *ctx, const char *op, const kr_sampler_options *options, int64_t vocab,
                             kr_sampler_options *own);

/* Arrays for a vocabulary in the arena; false if the allocation fails. */
bool kr_sampler_work_init(kr_sampler_work *work, kr_ctx *ctx, kr_arena *arena, int64_t vocab);

/* Chooses the token of a row out of work->logits [vocab], which holds the model's own logits, finite or -infinity, the
 * largest of which is max; it is changed. -1 after an error. */
int32_t kr_sampler_choose(kr_sampler_work *work, const kr_row_sampler *row, double max);

/* Samples from row `index` of logits [b w]: *sample, which is not counted yet. False after an error. */
bool kr_sampler_sample_row(kr_sampler_work *work, const kr_row_sampler *row, const char *op, const kr_tensor *logits_bw,
                           int64_t index, kr_sample *sample);

/* reserve: capacity for counting more tokens; false if the allocation fails. count: a sampled token, within the
 * capacity. */
bool kr_row_sampler_reserve(kr_row_sampler *row, kr_ctx *ctx, const char *op, int64_t more);
void kr_row_sampler_count(kr_row_sampler *row, int32_t id);
void kr_row_sampler_accept(kr_row_sampler *row, int32_t id); /* of the prompt */

/* Can a device sample for the row? What callbacks change, and numbers out of range of a float, are the host's. A callback that
 * allows tokens is not asked here. */
bool kr_row_sampler_fits_device(const kr_row_sampler *row);

/* Puts rules and tokens of the row into a place of a device's sampler, unless they are there; has_mask: it will be given masks.
 * False after an error. */
bool kr_row_sampler_on_device(kr_sampler_work *work, kr_row_sampler *row, bool has_mask, kr_device_sampler *device,
                              int64_t place);

#endif
