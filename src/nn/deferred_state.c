/* deferred_state.c - allocates, flushes and drops deferred state updates. */
#include "nn/deferred_state.h"

#include "nn/layers_impl.h"

static size_t box_bytes(int64_t nslots)
{
    return sizeof(kr_deferred) + (size_t)nslots * sizeof(kr_deferred_slot);
}

void kr_deferred_drop(kr_state *state)
{
    kr_deferred *deferred = state->deferred;
    if (!deferred) return;
    for (int64_t s = 0; s < deferred->nslots; s++) kr_param_destroy(deferred->slots[s].tokens);
    kr_memory_free(&state->ctx->memory, deferred, box_bytes(deferred->nslots));
    state->deferred = NULL;
}

/* Allocates the records of a slot, if its block defers updates. */
static bool open_slot(kr_state *state, const kr_layers *layers, int64_t s)
{
    kr_deferred_slot *slot = &state->deferred->slots[s];
    if (!layers->kind->may_defer(layers->layers[layers->real[s]].block, state->batch, slot)) return true;
    slot->tokens = kr_state_tensor(state->ctx, "tokens", KR_DTYPE_F32, KR_SHAPE(slot->elements));
    return slot->tokens != NULL;
}

/* For a state without pending updates. */
static bool make(kr_state *state, const kr_layers *layers)
{
    kr_ctx *ctx = state->ctx;
    state->deferred = kr_memory_alloc_zeroed(&ctx->memory, box_bytes(state->nslots));
    if (!kr_require(ctx, state->deferred != NULL, KR_ERR_NOMEM,
                    "state: out of memory for the deferred updates of %lld slots", (long long)state->nslots))
        return false;
    state->deferred->batch = state->batch;
    state->deferred->nslots = state->nslots;
    for (int64_t s = 0; s < state->nslots; s++)
        if (!open_slot(state, layers, s)) {
            kr_deferred_drop(state);
            return false;
        }
    return true;
}

bool kr_deferred_begin(kr_state *state, const kr_layers *layers)
{
    if (!layers->kind->may_defer || state->tape) return true;
    if (state->deferred && state->deferred->batch != state->batch) kr_deferred_drop(state);
    if (!state->deferred && !make(state, layers)) return false;
    state->deferred->is_open = true;
    return true;
}

void kr_deferred_end(kr_state *state)
{
    if (!state->deferred) return;
    state->deferred->is_open = false;
    state->deferred->is_pending = true;
}

kr_deferred_slot *kr_deferred_slot_of(const kr_state *state, int64_t slot)
{
    kr_deferred *deferred = state ? state->deferred : NULL;
    return deferred && deferred->is_open && deferred->slots[slot].tokens ? &deferred->slots[slot] : NULL;
}

bool kr_deferred_flush(const kr_state *state)
{
    kr_deferred *deferred = state->deferred;
    if (!deferred || deferred->is_open || !deferred->is_pending) return true;
    for (int64_t s = 0; s < deferred->nslots; s++)
        if (deferred->slots[s].is_used &&
            !kr_slot_kind(state, s)->flush(state->ctx, &state->slots[s], &deferred->slots[s]))
            return false;
    deferred->is_pending = false;
    return true;
}
