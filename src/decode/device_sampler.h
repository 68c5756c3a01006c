/* device_sampler.h - samples tokens from the logits of decode steps on the device: ids and log-probabilities are copied back,
 * the logits stay there. Rows have rules of their own (kr_sample_args). Logits of a type that the kernel does not take are left to the host.
 *
 * Rules, counts of tokens and tables lie in device memory at fixed addresses, so that a captured step samples by whatever
 * rules its rows have. Two things are part of a captured step: whether any row so far had a temperature, and the tables
 * of biases, counts and masks, which are allocated when the first row needs one. Steps are captured again after such a
 * first row, and not after any other change of rules.
 *
 * Samples of one step may be queued before those of the step before it are taken.
 */
#ifndef KR_DECODE_DEVICE_SAMPLER_H
#define KR_DECODE_DEVICE_SAMPLER_H

#include "base/ctx_impl.h"
#include "kernels/args/decode_args.h"
#include "tensor/tensor_impl.h"

/* Rules of a row, and its tokens so far. */
typedef struct kr_sample_row {
    kr_sample_rules rules; /* flags: KR_SAMPLE_BIASES, _PENALTIES, _MASK */
    uint64_t n_sampled;
    const double *biases;   /* [vocab], with KR_SAMPLE_BIASES */
    const uint32_t *counts; /* [vocab], with KR_SAMPLE_PENALTIES */
} kr_sample_row;

typedef struct kr_device_sampler {
    kr_ctx *ctx;
    int64_t nrows, vocab;
    char *results; /* in pinned memory */

    /* places 0 .. nrows - 1, as the host knows them, and the same in device memory */
    char *host, *device;
    uint64_t *stamps; /* [nrows] of the row that each place has; 0: none */
    uint64_t n_stamps;
    bool is_stale; /* the device's is older */

    /* parts of captured steps */
    bool is_greedy;   /* no row had a temperature so far */
    double *biases;   /* [nrows vocab] in device memory; NULL: no row had any so far */
    uint32_t *counts; /* [nrows vocab] */
    uint32_t *mask;   /* [nrows (vocab + 31) / 32] */
} kr_device_sampler;

/* For up to nrows rows. NULL after an error. */
kr_device_sampler *kr_device_sampler_create(kr_ctx *ctx, int64_t nrows, int64_t vocab);
void kr_device_sampler_destroy(kr_device_sampler *sampler);

/* Can it sample from such logits? */
bool kr_device_sampler_reads(const kr_tensor *logits);

/* ---- places: while no sample is queued that was not taken ---- */

/* Puts a row into place i. Returns its stamp, by which `has` knows it; 0 after an error. */
uint64_t kr_device_sampler_set(kr_device_sampler *sampler, int64_t i, const kr_sample_row *row);

/* Does place i have the row that was put there with this stamp, with so many tokens sampled? */
bool kr_device_sampler_has(const kr_device_sampler *sampler, int64_t i, uint64_t stamp, uint64_t n_sampled);

/* The tokens that place i may sample next, as bits [(vocab + 31) / 32]. False after an error. */
bool kr_device_sampler_mask(kr_device_sampler *sampler, int64_t i, const uint32_t *allowed);

/* Leaves place i out, until a row is put there; what it had is forgotten. */
void kr_device_sampler_clear(kr_device_sampler *sampler, int64_t i);

/* Moves what place `from` has to place `to`. False after an error. */
bool kr_device_sampler_move(kr_device_sampler *sampler, int64_t to, int64_t from);

/* Before the first of several consecutive samples of the first `count` places: others are left out. */
bool kr_device_sampler_begin(kr_device_sampler *sampler, int64_t count);

/* ---- samples ---- */

/* Hash of what is part of a captured step. */
uint64_t kr_device_sampler_signature(const kr_device_sampler *sampler);

/* Samples from logits [count w], by a kernel that also stores the ids in next; does nothing for logits that it cannot
 * read. */
bool kr_device_sampler_queue(kr_device_sampler *sampler, const kr_tensor *logits, int32_t *next);

/* The next sample of place i, which was waited for; false if there is none: a NaN or an infinity among its logits, or
 * -infinity for all tokens that may be sampled. */
bool kr_device_sampler_take(kr_device_sampler *sampler, kr_dtype dtype, int64_t i, int32_t *id, double *logprob);

#endif
