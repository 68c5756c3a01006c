/* decoder.h - steps of a network, one token of each row, planned once.
 *
 * A decoder belongs to a network and its device. Its constructor decides how steps run. The first step for a number of rows
 * and a state fixes buffers and kernel arguments, the second is captured as a graph if the device supports it, and later ones
 * launch that. On the CPU a step is a forward over one token, in place, in memory that is allocated once, with the same bits.
 *
 *   kr_decoder *d = kr_decoder_create(net, 8);
 *   kr_tensor *logits = kr_decoder_step(d, state, ids);
 *   kr_decoder_flush(d, state);                         // before other code reads, changes or destroys the state
 *
 * A step of n rows runs with the number of rows of the next bucket (1 2 3 4 6 8 12 16 24 ...), if the state has memory for
 * them (nn/state_rows.h); the results of the additional rows are not used. This keeps graphs few and lets a number of rows
 * that occurs again reuse its graph. Plans and graphs of a few states and numbers of rows are kept, least recently used out
 * first.
 *
 * On devices updates of a state may be deferred (decode/lazy_state.h): the decoder holds them until the flush. One thread
 * uses a decoder, that of the network's context. The decoder is destroyed before its network.
 */
#ifndef KR_DECODE_DECODER_H
#define KR_DECODE_DECODER_H

#include "decode/device_sampler.h"
#include "decode/lazy_state.h"
#include "decode/plan.h"
#include "device/device.h"

enum { KR_DECODER_STEPS = 12, KR_DECODER_STEPS_ON_CPU = 2 }; /* that are kept; without graphs, for their buffers only */

typedef struct kr_decode_step kr_decode_step;

typedef struct kr_decoder {
    kr_ctx *ctx;
    const kr_network *net;
    int64_t max_rows;
    const char *fallback;      /* why steps are not planned, or their layers run op by op; NULL */
    bool is_planned, is_fused; /* by kept steps; their layers by fused kernels */
    bool can_capture;          /* until capture fails */
    kr_tape *tape;             /* of steps that are not planned */
    int most_kept;
    kr_decode_step *kept[KR_DECODER_STEPS]; /* the one used last comes first; NULL after the last */
    kr_lazy_state lazy;
    kr_tensor *logits;     /* of the last step, all its rows; NULL: none */
    int64_t queued, taken; /* steps with a sample; steps whose sample was taken: at most KR_EVENTS fewer */
    int64_t n_planned, n_captured;
} kr_decoder;

/* For a network of tokens and at most max_rows rows. NULL after an error. */
kr_decoder *kr_decoder_create(const kr_network *net, int64_t max_rows);
void kr_decoder_destroy(kr_decoder *d);

/* Why the tape runs the steps, or their layers, op by op; NULL: they are planned. */
const char *kr_decoder_fallback(const kr_decoder *d);

/* Logits [n w] of one more token for each of the state's n rows, which are updated; ids [n]. They live until the next step.
 * NULL after an error. */
kr_tensor *kr_decoder_step(kr_decoder *d, kr_state *state, const int32_t *ids);

/* Applies deferred updates of the state, if there are any. False after an error. */
bool kr_decoder_flush(kr_decoder *d, const kr_state *state);

/* Drops deferred updates of the state: it is about to be overwritten or destroyed. */
void kr_decoder_forget(kr_decoder *d, const kr_state *state);

/* ---- sampling on the device ---- */

/* Can steps of this state be captured, with their sampling? */
bool kr_decoder_samples(const kr_decoder *d, const kr_state *state);

/* A step whose logits are sampled on the device, for the rows that the sampler has; row i of the state is in its place i. If it
 * cannot read the logits (kr_device_sampler_reads), nothing is sampled. */
kr_tensor *kr_decoder_step_and_sample(kr_decoder *d, kr_state *state, const int32_t *ids, kr_device_sampler *sampler);

/* Queues one more step that reads the sample of the previous one, which was not taken yet, so that the device continues
 * while the host processes it. False if the step is not captured, or after an error. */
bool kr_decoder_run_ahead(kr_decoder *d, kr_state *state, kr_device_sampler *sampler);
static inline bool kr_decoder_is_ahead(const kr_decoder *d)
{
    return d->queued > d->taken;
}

/* Waits for the oldest sample that was not taken, which kr_device_sampler_take then returns; drops samples that were queued
 * and not taken. */
bool kr_decoder_wait(kr_decoder *d);
void kr_decoder_drop_samples(kr_decoder *d);

/* Kernels of the captured step that was run last; -1: it is not captured. */
int64_t kr_decoder_launches(const kr_decoder *d);

#endif
