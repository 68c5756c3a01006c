/* state_parts.c - single slots of a state, and runs of slots as a state: for custom networks. */
#include "nn/state_impl.h"

static bool check_range(const kr_state *state, const char *op, int64_t first, int64_t count)
{
    return kr_require(state->ctx, count >= 1 && first >= 0 && first < state->nslots && count <= state->nslots - first,
                      KR_ERR_ARG, "%s: slots %lld to %lld, but the state has slots 0 to %lld", op, (long long)first,
                      (long long)(first + count - 1), (long long)state->nslots - 1);
}

kr_state *kr_state_part(kr_tape *tape, const kr_state *state, int64_t first, int64_t count)
{
    const char *op = "state.part";
    if (!kr_state_usable(tape, op, state) || !check_range(state, op, first, count)) return NULL;
    kr_state *part = kr_state_new(tape, &(kr_state_layout){ .nslots = count }, state->batch);
    for (int64_t i = 0; part && i < count; i++) part->slots[i] = state->slots[first + i];
    return part;
}

/* The slots of `part` into those of `state`, which are of the same families. */
static void put_slots(kr_state *state, int64_t first, const kr_state *part)
{
    kr_state view = *state;
    view.slots += first;
    view.nslots = part->nslots;
    view.cursors.layers += first;
    for (int64_t i = 0; state->tape && i < part->nslots; i++) view.slots[i] = part->slots[i];
    if (!state->tape) kr_state_copy(&view, part); /* the same memory, seen from slot `first` on */
}

static bool fits_there(const kr_state *state, const char *op, int64_t first, const kr_state *part)
{
    kr_ctx *ctx = state->ctx;
    for (int64_t i = 0; i < part->nslots; i++)
        if (!kr_require(ctx, part->slots[i].family == state->slots[first + i].family, KR_ERR_ARG,
                        "%s: slot %lld of the state is %s, but the new one is %s", op, (long long)(first + i),
                        kr_family_name(state->slots[first + i].family), kr_family_name(part->slots[i].family)))
            return false;
    return kr_require(ctx, part->batch == state->batch, KR_ERR_SHAPE,
                      "%s: the state has %lld rows, but the new slots have %lld", op, (long long)state->batch,
                      (long long)part->batch);
}

static bool is_open(const kr_state *state, const char *op)
{
    return !kr_ctx_failed(state->ctx) && kr_state_is_usable(op, state);
}

kr_status kr_state_set_part(kr_state *state, int64_t first, const kr_state *part)
{
    const char *op = "state.set_part";
    if (!state) return KR_ERR_ARG;
    kr_ctx *ctx = state->ctx;
    if (is_open(state, op) && kr_require(ctx, part != NULL, KR_ERR_ARG, "%s: part is NULL", op) &&
        kr_require(ctx, part->ctx == ctx, KR_ERR_STATE, "%s: part belongs to another context", op) &&
        kr_require(ctx, !state->tape || !part->tape || part->tape == state->tape, KR_ERR_STATE,
                   "%s: part is on another tape than the state", op) &&
        check_range(state, op, first, part->nslots) && fits_there(state, op, first, part) &&
        kr_state_is_usable(op, part))
        put_slots(state, first, part);
    return ctx->status;
}

/* Are all tensors set, of this context, with as many rows as the state? */
static bool check_cache(const kr_state *state, const char *op, const kr_cache *cache)
{
    kr_ctx *ctx = state->ctx;
    const kr_block_kind *kind = kr_block_kind_of(cache->family);
    if (!kr_require(ctx, kind != NULL, KR_ERR_ARG, "%s: cache.family = %d is not a kr_family", op, (int)cache->family))
        return false;
    for (int i = 0; i < kind->ncache; i++) {
        const kr_tensor *x = cache->tensors[i];
        if (!kr_require(ctx, x != NULL, KR_ERR_ARG, "%s: cache.%s is NULL; a cache has all its tensors", op,
                        kind->cache_names[i]) ||
            !kr_require(ctx, x->ctx == ctx, KR_ERR_STATE, "%s: cache.%s belongs to another context", op,
                        kind->cache_names[i]) ||
            !kr_require(ctx, kr_dtype_is_float(x->dtype) && x->rank >= 1 && x->dims[0] == state->batch, KR_ERR_SHAPE,
                        "%s: cache.%s %s must be of a float type, with %lld rows", op, kind->cache_names[i],
                        KR_TEXT_OF(x), (long long)state->batch))
            return false;
    }
    return true;
}

kr_status kr_state_set_cache(kr_state *state, int64_t slot, const kr_cache *cache)
{
    const char *op = "state.set_cache";
    if (!state) return KR_ERR_ARG;
    if (!is_open(state, op) || !kr_require(state->ctx, cache != NULL, KR_ERR_ARG, "%s: cache is NULL", op) ||
        !check_range(state, op, slot, 1) || !check_cache(state, op, cache))
        return state->ctx->status;
    kr_cache own = *cache;
    int64_t cursor = 0;
    const kr_state part = {
        .ctx = state->ctx, .nslots = 1, .batch = state->batch, .slots = &own, .cursors.layers = &cursor
    };
    if (fits_there(state, op, slot, &part)) put_slots(state, slot, &part);
    return state->ctx->status;
}
