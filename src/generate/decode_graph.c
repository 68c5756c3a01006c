/* decode_graph.c - a decode step: run, captured as a CUDA graph, launched again.
 *
 * A captured step reads and writes its own tape, the state, the parameters and the sampler: only the ids are new each time.
 * Kernels read them in device memory: reading them from host memory would cost every CTA microseconds. The sampler stores
 * those of the next step there, and increments its counters: a step may be queued behind another before the host knows its
 * tokens.
 */
#include "generate/decode_graph.h"

#include "base/hash.h"
#include "nn/layers_impl.h"
#include "nn/deferred_state.h"

#include <string.h>

/* Hash of the addresses that a captured step depends on; never 0. */
static uint64_t signature_of(const kr_state *state, const kr_sampler *sampler)
{
    uint64_t hash = kr_hash_word((uint64_t)state->batch, (uint64_t)(uintptr_t)state);
    for (int64_t s = 0; s < state->nslots; s++)
        for (int i = 0; i < kr_slot_kind(state, s)->ncache; i++)
            hash = kr_hash_word(hash, (uint64_t)(uintptr_t)kr_tensor_data(state->slots[s].tensors[i]));
    for (int64_t s = 0; state->deferred && s < state->nslots; s++)
        hash = kr_hash_word(hash, (uint64_t)(uintptr_t)kr_tensor_data(state->deferred->slots[s].tokens) |
                                      state->deferred->slots[s].is_used);
    if (sampler) hash = kr_hash_word(hash, sampler->options.seed);
    return kr_hash_word(hash, (uint64_t)(uintptr_t)sampler) | 1;
}

bool kr_decode_graph_applies(const kr_decode_graph *graph, const kr_network *net, const kr_state *state)
{
    const kr_device *device = net->ctx->device;
    return !graph->cannot && !net->is_custom && device->vtable && device->vtable->capture_begin &&
           !net->ctx->check_finite && !net->has_class_tokens && !state->cursors.is_on && !kr_state_is_initial(state);
}

void kr_decode_graph_free(kr_decode_graph *graph, kr_ctx *ctx)
{
    kr_graph_destroy(ctx, graph->captured);
    kr_tape_destroy(graph->tape);
    *graph = (kr_decode_graph){ .tape = NULL };
}

/* A captured step contains no ids: they are uploaded before each launch. */
static bool upload_ids(const kr_decode_graph *graph, kr_ctx *ctx, const int32_t *ids)
{
    kr_tensor *to = graph->ids;
    const size_t bytes = (size_t)to->dims[0] * sizeof *ids;
    memcpy(to->data, ids, bytes);
    return ctx->device->is_capturing || kr_store(ctx, to->storage->device_ids, to->data, bytes);
}

static kr_tensor *step(kr_decode_graph *graph, const kr_network *net, kr_state *state, const int32_t *ids)
{
    const kr_shape shape = KR_SHAPE(state->batch);
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    call.skip_hidden = true;
    graph->ids = kr_new(graph->tape, KR_DTYPE_I32, shape);
    const kr_tensor *buffer = kr_new(graph->tape, KR_DTYPE_F32, shape); /* device memory, of the same size */
    if (!graph->ids || !buffer) return NULL;
    graph->ids->storage->device_ids = buffer->data;
    if (!upload_ids(graph, net->ctx, ids)) return NULL;
    return kr_network_step(graph->tape, net, graph->ids, &call).y;
}

static kr_tensor *step_and_sample(kr_decode_graph *graph, const kr_network *net, kr_state *state, const int32_t *ids,
                                  kr_sampler *sampler)
{
    kr_tensor *logits = step(graph, net, state, ids);
    return logits && sampler && !kr_sampler_queue(sampler, logits, (int32_t *)(void *)graph->ids->storage->device_ids)
               ? NULL
               : logits;
}

/* No allocation may happen during capture: the tape reserves one block of the size that the previous step needed. */
static bool reserve_tape(kr_tape *tape)
{
    kr_tape_reset(tape);
    return kr_arena_reserve(&tape->data) && kr_arena_reserve(&tape->shared);
}

static bool capture(kr_decode_graph *graph, const kr_network *net, kr_state *state, const int32_t *ids,
                    kr_sampler *sampler)
{
    kr_ctx *ctx = net->ctx;
    graph->cannot = true;
    if (!reserve_tape(graph->tape) || !kr_graph_capture_begin(ctx)) return false;
    graph->logits = step_and_sample(graph, net, state, ids, sampler);
    graph->captured = kr_graph_capture_end(ctx);
    graph->cannot = !graph->captured || kr_ctx_failed(ctx);
    return !graph->cannot;
}

static kr_tensor *launch(kr_decode_graph *graph, kr_ctx *ctx, const int32_t *ids)
{
    if (!kr_wait(ctx) || !upload_ids(graph, ctx, ids)) return NULL;
    return kr_graph_launch(ctx, graph->captured) ? graph->logits : NULL;
}

/* Launches the captured step, or runs one that may be captured next. */
static kr_tensor *run(kr_decode_graph *graph, const kr_network *net, kr_state *state, const int32_t *ids,
                      kr_sampler *sampler)
{
    kr_ctx *ctx = net->ctx;
    const uint64_t signature = signature_of(state, sampler);
    if (graph->signature == signature) {
        if (graph->captured && kr_graph_is_complete(ctx, graph->captured)) return launch(graph, ctx, ids);
        kr_graph_destroy(ctx, graph->captured);
        graph->captured = NULL;
        if (capture(graph, net, state, ids, sampler)) return launch(graph, ctx, ids);
        if (kr_ctx_failed(ctx)) return NULL;
    }
    kr_graph_destroy(ctx, graph->captured);
    graph->captured = NULL;
    graph->signature = signature;
    kr_tape_reset(graph->tape);
    return step_and_sample(graph, net, state, ids, sampler);
}

/* Records an event after one more queued sample. */
static bool record_event(kr_decode_graph *graph, kr_ctx *ctx)
{
    return kr_event(ctx, (int)(graph->queued++ % KR_EVENTS));
}

kr_tensor *kr_decode_graph_run(kr_decode_graph *graph, const kr_network *net, kr_state *state, const int32_t *ids,
                               kr_sampler *sampler, const int64_t *rows)
{
    if (!graph->tape && !(graph->tape = kr_tape_create(net->ctx, KR_TAPE_NO_GRAD))) return NULL;
    if (sampler && !kr_sampler_prepare(sampler, state->batch, rows)) return NULL;
    if (!kr_deferred_begin(state, net->layers)) return NULL;
    graph->logits = run(graph, net, state, ids, sampler);
    kr_deferred_end(state);
    return graph->logits && sampler && kr_sampler_reads(graph->logits) && !record_event(graph, net->ctx)
               ? NULL
               : graph->logits;
}

bool kr_decode_graph_run_ahead(kr_decode_graph *graph, const kr_network *net, kr_state *state, kr_sampler *sampler)
{
    kr_ctx *ctx = net->ctx;
    if (!graph->captured || !kr_sampler_reads(graph->logits) || graph->signature != signature_of(state, sampler) ||
        !kr_graph_is_complete(ctx, graph->captured) || !kr_deferred_begin(state, net->layers))
        return false;
    const bool runs = kr_graph_launch(ctx, graph->captured);
    kr_deferred_end(state);
    return runs && record_event(graph, ctx);
}

bool kr_decode_graph_take(kr_decode_graph *graph, const kr_sampler *sampler, int64_t count, const int64_t *rows,
                          kr_sample *samples)
{
    return kr_wait_event(sampler->ctx, (int)(graph->taken++ % KR_EVENTS)) &&
           kr_sampler_take(sampler, graph->logits->dtype, count, rows, samples);
}

void kr_decode_graph_forget(kr_decode_graph *graph, kr_ctx *ctx)
{
    kr_wait(ctx);
    graph->taken = graph->queued;
}
