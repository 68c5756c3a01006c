/* owed.c - making, settling and forgetting what a state owes. */
#include "nn/owed.h"

#include "nn/layers.h"

static size_t box_bytes(int64_t nslots)
{
    return sizeof(kr_owed) + (size_t)nslots * sizeof(kr_owed_slot);
}

void kr_owed_drop(kr_state *state)
{
    kr_owed *owed = state->owed;
    if (!owed) return;
    for (int64_t s = 0; s < owed->nslots; s++) kr_param_destroy(owed->slots[s].tokens);
    kr_memory_free(&state->ctx->memory, owed, box_bytes(owed->nslots));
    state->owed = NULL;
}

/* Room for what the slot's block says it may owe. */
static bool open_slot(kr_state *state, const kr_layers *layers, int64_t s)
{
    kr_owed_slot *slot = &state->owed->slots[s];
    if (!state->kind->may_owe(layers->layers[layers->real[s]].block, state->batch, slot)) return true;
    slot->tokens = kr_state_tensor(state->ctx, KR_F32, KR_SHAPE(slot->elements));
    return slot->tokens != NULL;
}

/* Of a state that owes nothing yet. */
static bool make(kr_state *state, const kr_layers *layers)
{
    kr_ctx *ctx = state->ctx;
    state->owed = kr_memory_alloc_zeroed(&ctx->memory, box_bytes(state->nslots));
    if (!kr_require(ctx, state->owed != NULL, KR_ERR_NOMEM, "state: no memory for what %lld slots owe",
                    (long long)state->nslots))
        return false;
    state->owed->batch = state->batch;
    state->owed->nslots = state->nslots;
    for (int64_t s = 0; s < state->nslots; s++)
        if (!open_slot(state, layers, s)) {
            kr_owed_drop(state);
            return false;
        }
    return true;
}

bool kr_owed_begin(kr_state *state, const kr_layers *layers)
{
    if (!state->kind->may_owe || state->tape) return true;
    if (state->owed && state->owed->batch != state->batch) kr_owed_drop(state);
    if (!state->owed && !make(state, layers)) return false;
    state->owed->is_open = true;
    return true;
}

void kr_owed_end(kr_state *state)
{
    if (!state->owed) return;
    state->owed->is_open = false;
    state->owed->is_due = true;
}

kr_owed_slot *kr_owed_slot_of(const kr_state *state, int64_t slot)
{
    kr_owed *owed = state ? state->owed : NULL;
    return owed && owed->is_open && owed->slots[slot].tokens ? &owed->slots[slot] : NULL;
}

bool kr_owed_settle(const kr_state *state)
{
    kr_owed *owed = state->owed;
    if (!owed || owed->is_open || !owed->is_due) return true;
    for (int64_t s = 0; s < owed->nslots; s++)
        if (owed->slots[s].is_used && !state->kind->settle(state->ctx, &state->slots[s], &owed->slots[s])) return false;
    owed->is_due = false;
    return true;
}
