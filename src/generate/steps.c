/* steps.c - a step of a generation: run, recorded, replayed.
 *
 * What a recording reads and writes lies on a tape of its own, in the state, in the parameters and in the sampler: only
 * the ids are new each time. Kernels read them in the device's memory: each block that asks the host for its ids waits
 * for microseconds. The sampler leaves those of the next step there, and counts on: a step may be queued behind another
 * before the host knows its tokens.
 */
#include "generate/steps.h"

#include "base/hash.h"
#include "nn/layers.h"
#include "nn/owed.h"

#include <string.h>

/* Of what a recording holds of its state; never 0. */
static uint64_t signature_of(const kr_state *state, const kr_sampler *sampler)
{
    uint64_t hash = kr_hash_word((uint64_t)state->batch, (uint64_t)(uintptr_t)state);
    for (int64_t s = 0; s < state->nslots; s++)
        for (int i = 0; i < state->kind->ncache; i++)
            hash = kr_hash_word(hash, (uint64_t)(uintptr_t)kr_tensor_data(state->slots[s].tensors[i]));
    for (int64_t s = 0; state->owed && s < state->nslots; s++)
        hash = kr_hash_word(hash, (uint64_t)(uintptr_t)kr_tensor_data(state->owed->slots[s].tokens) |
                                      state->owed->slots[s].is_used);
    if (sampler) hash = kr_hash_word(hash, sampler->options.seed);
    return kr_hash_word(hash, (uint64_t)(uintptr_t)sampler) | 1;
}

bool kr_steps_are_for(const kr_steps *steps, const kr_network *net, const kr_state *state)
{
    const kr_device *device = net->ctx->device;
    return !steps->cannot && device->verbs && device->verbs->begin_record && !net->ctx->check_finite &&
           !net->has_markers && !state->cursors.is_on && !kr_state_is_fresh(state);
}

void kr_steps_free(kr_steps *steps, kr_ctx *ctx)
{
    kr_record_destroy(ctx, steps->recording);
    kr_tape_destroy(steps->tape);
    *steps = (kr_steps){ .tape = NULL };
}

/* A recording has no ids in it: they are given before each replay. */
static bool give_ids(const kr_steps *steps, kr_ctx *ctx, const int32_t *ids)
{
    kr_tensor *to = steps->ids;
    const size_t bytes = (size_t)to->dims[0] * sizeof *ids;
    memcpy(to->data, ids, bytes);
    return ctx->device->is_recording || kr_store(ctx, to->far_ids, to->data, bytes);
}

static kr_tensor *step(kr_steps *steps, const kr_network *net, kr_state *state, const int32_t *ids)
{
    const kr_shape shape = KR_SHAPE(state->batch);
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    call.skips_hidden = true;
    steps->ids = kr_new(steps->tape, KR_I32, shape);
    const kr_tensor *room = kr_new(steps->tape, KR_F32, shape); /* far, of as many bytes */
    if (!steps->ids || !room) return NULL;
    steps->ids->far_ids = room->data;
    if (!give_ids(steps, net->ctx, ids)) return NULL;
    return kr_network_step(steps->tape, net, steps->ids, &call).y;
}

static kr_tensor *step_and_choose(kr_steps *steps, const kr_network *net, kr_state *state, const int32_t *ids,
                                  kr_sampler *sampler)
{
    kr_tensor *logits = step(steps, net, state, ids);
    return logits && sampler && !kr_sampler_queue(sampler, logits, (int32_t *)(void *)steps->ids->far_ids) ? NULL
                                                                                                           : logits;
}

/* Nothing that is run now may find that memory is short: the tape has one block of what the step took before. */
static bool make_room(kr_tape *tape)
{
    kr_tape_reset(tape);
    return kr_arena_reserve(&tape->data) && kr_arena_reserve(&tape->shared);
}

static bool record(kr_steps *steps, const kr_network *net, kr_state *state, const int32_t *ids, kr_sampler *sampler)
{
    kr_ctx *ctx = net->ctx;
    steps->cannot = true;
    if (!make_room(steps->tape) || !kr_record_begin(ctx)) return false;
    steps->logits = step_and_choose(steps, net, state, ids, sampler);
    steps->recording = kr_record_end(ctx);
    steps->cannot = !steps->recording || kr_ctx_failed(ctx);
    return !steps->cannot;
}

static kr_tensor *replay(kr_steps *steps, kr_ctx *ctx, const int32_t *ids)
{
    if (!kr_wait(ctx) || !give_ids(steps, ctx, ids)) return NULL;
    return kr_record_replay(ctx, steps->recording) ? steps->logits : NULL;
}

/* A step by a recording, or one that may be recorded next. */
static kr_tensor *run(kr_steps *steps, const kr_network *net, kr_state *state, const int32_t *ids, kr_sampler *sampler)
{
    kr_ctx *ctx = net->ctx;
    const uint64_t signature = signature_of(state, sampler);
    if (steps->signature == signature) {
        if (steps->recording && kr_record_is_whole(ctx, steps->recording)) return replay(steps, ctx, ids);
        kr_record_destroy(ctx, steps->recording);
        steps->recording = NULL;
        if (record(steps, net, state, ids, sampler)) return replay(steps, ctx, ids);
        if (kr_ctx_failed(ctx)) return NULL;
    }
    kr_record_destroy(ctx, steps->recording);
    steps->recording = NULL;
    steps->signature = signature;
    kr_tape_reset(steps->tape);
    return step_and_choose(steps, net, state, ids, sampler);
}

/* One more choice is queued. */
static bool note(kr_steps *steps, kr_ctx *ctx)
{
    return kr_mark(ctx, (int)(steps->queued++ % KR_MARKS));
}

kr_tensor *kr_steps_run(kr_steps *steps, const kr_network *net, kr_state *state, const int32_t *ids,
                        kr_sampler *sampler, const int64_t *rows)
{
    if (!steps->tape && !(steps->tape = kr_tape_create(net->ctx, KR_NO_GRAD))) return NULL;
    if (sampler && !kr_sampler_prepare(sampler, state->batch, rows)) return NULL;
    if (!kr_owed_begin(state, net->layers)) return NULL;
    steps->logits = run(steps, net, state, ids, sampler);
    kr_owed_end(state);
    return steps->logits && sampler && kr_sampler_reads(steps->logits) && !note(steps, net->ctx) ? NULL : steps->logits;
}

bool kr_steps_go_ahead(kr_steps *steps, const kr_network *net, kr_state *state, kr_sampler *sampler)
{
    kr_ctx *ctx = net->ctx;
    if (!steps->recording || !kr_sampler_reads(steps->logits) || steps->signature != signature_of(state, sampler) ||
        !kr_record_is_whole(ctx, steps->recording) || !kr_owed_begin(state, net->layers))
        return false;
    const bool runs = kr_record_replay(ctx, steps->recording);
    kr_owed_end(state);
    return runs && note(steps, ctx);
}

bool kr_steps_take(kr_steps *steps, const kr_sampler *sampler, int64_t count, const int64_t *rows, kr_sample *samples)
{
    return kr_wait_mark(sampler->ctx, (int)(steps->taken++ % KR_MARKS)) &&
           kr_sampler_take(sampler, steps->logits->dtype, count, rows, samples);
}

void kr_steps_forget(kr_steps *steps, kr_ctx *ctx)
{
    kr_wait(ctx);
    steps->taken = steps->queued;
}
