/* state.c - recurrent state of a stack: a cache for each slot, owned by the caller or on a tape.
 *
 * The caller's tensors are frozen parameters, which every tape takes as constants. A state on a tape is allocated in
 * the tape's arena of headers, and the tape owns its tensors. Struct, slots and the cursors of layers are one block
 * either way.
 */
#include "nn/state_impl.h"

#include "nn/layers_impl.h"
#include "nn/state_rows.h"

#include <string.h>

/* ---- making one ---- */

static size_t box_bytes(int64_t nslots)
{
    return sizeof(kr_state) + (size_t)nslots * (sizeof(kr_cache) + sizeof(int64_t));
}

static void forget_cursors(kr_cursors *cursors, int64_t nslots)
{
    cursors->is_on = false;
    cursors->full_len = KR_LENGTH_UNKNOWN;
    cursors->network = cursors->stack = 0;
    memset(cursors->layers, 0, (size_t)nslots * sizeof *cursors->layers);
}

static void copy_cursors(kr_state *to, const kr_state *from)
{
    int64_t *layers = to->cursors.layers;
    memcpy(layers, from->cursors.layers, (size_t)to->nslots * sizeof *layers);
    to->cursors = from->cursors;
    to->cursors.layers = layers;
}

/* An initial state in box_bytes(nslots) bytes at `box`. */
static kr_state *lay_out(void *box, kr_ctx *ctx, kr_tape *tape, const kr_state_layout *layout, int64_t batch)
{
    const int64_t nslots = layout->nslots;
    memset(box, 0, box_bytes(nslots));
    kr_state *state = box;
    state->ctx = ctx;
    state->tape = tape;
    state->nslots = nslots;
    state->batch = batch;
    state->slots = (kr_cache *)(state + 1);
    state->cursors.layers = (int64_t *)(state->slots + nslots);
    for (int64_t i = 0; i < nslots; i++) state->slots[i].family = kr_state_slot_family(layout, i);
    forget_cursors(&state->cursors, nslots);
    return state;
}

kr_state *kr_state_allocate(kr_ctx *ctx, const char *op, const kr_state_layout *layout, int64_t batch)
{
    if (!kr_require(ctx, batch >= 1, KR_ERR_ARG, "%s: batch = %lld, but must be at least 1", op, (long long)batch))
        return NULL;
    void *box = kr_memory_alloc(&ctx->memory, box_bytes(layout->nslots));
    if (box) return lay_out(box, ctx, NULL, layout, batch);
    kr_fail(ctx, KR_ERR_NOMEM, "%s: no memory for a state of %lld slots", op, (long long)layout->nslots);
    return NULL;
}

kr_state *kr_state_create(kr_ctx *ctx, const kr_layers *layers, int64_t batch)
{
    const char *op = "state.create";
    if (kr_ctx_failed(ctx) || !kr_require(ctx, layers != NULL, KR_ERR_ARG, "%s: layers is NULL", op) ||
        !kr_require(ctx, layers->ctx == ctx, KR_ERR_STATE, "%s: the layers belong to another context", op))
        return NULL;
    const kr_state_layout layout = kr_layers_layout(layers);
    return kr_state_allocate(ctx, op, &layout, batch);
}

kr_state *kr_state_new(kr_tape *tape, const kr_state_layout *layout, int64_t batch)
{
    if (!kr_tape_ready(tape, "state")) return NULL;
    void *box = kr_arena_alloc(&tape->heads, box_bytes(layout->nslots));
    if (box) return lay_out(box, tape->ctx, tape, layout, batch);
    kr_fail(tape->ctx, KR_ERR_NOMEM, "state: no memory on the tape for a state of %lld slots",
            (long long)layout->nslots);
    return NULL;
}

/* A state on the tape with as many slots, which are to be filled in. */
static kr_state *new_like(kr_tape *tape, int64_t nslots, int64_t batch)
{
    return kr_state_new(tape, &(kr_state_layout){ .nslots = nslots }, batch);
}

/* ---- families ---- */

const char *kr_state_layout_family(const kr_state_layout *layout)
{
    for (int64_t i = 1; i < layout->nslots; i++)
        if (kr_state_slot_family(layout, i) != kr_state_slot_family(layout, 0)) return "mixed";
    return kr_family_name(kr_state_slot_family(layout, 0));
}

const char *kr_state_family(const kr_state *state)
{
    for (int64_t i = 1; i < state->nslots; i++)
        if (state->slots[i].family != state->slots[0].family) return "mixed";
    return kr_family_name(state->slots[0].family);
}

bool kr_state_fits(const kr_state *state, const kr_state_layout *layout)
{
    if (state->nslots != layout->nslots) return false;
    for (int64_t i = 0; i < state->nslots; i++)
        if (state->slots[i].family != kr_state_slot_family(layout, i)) return false;
    return true;
}

bool kr_state_same_slots(const kr_state *a, const kr_state *b)
{
    if (a->nslots != b->nslots) return false;
    for (int64_t i = 0; i < a->nslots; i++)
        if (a->slots[i].family != b->slots[i].family) return false;
    return true;
}

/* Everything but the tensors. */
static void take_frame(kr_state *to, const kr_state *like)
{
    copy_cursors(to, like);
    for (int64_t s = 0; s < like->nslots; s++) {
        to->slots[s] = like->slots[s];
        for (int i = 0; i < kr_cache_count(like->slots[s].family); i++) to->slots[s].tensors[i] = NULL;
    }
}

kr_state *kr_state_allocate_like(kr_ctx *ctx, const char *op, const kr_state *like, int64_t batch)
{
    const kr_state_layout layout = { like->nslots, like->slots[0].family, NULL };
    kr_state *state = kr_state_allocate(ctx, op, &layout, batch);
    if (state) take_frame(state, like);
    return state;
}

kr_state *kr_state_new_like(kr_tape *tape, const kr_state *like, int64_t batch)
{
    kr_state *state = new_like(tape, like->nslots, batch);
    if (state) take_frame(state, like);
    return state;
}

bool kr_state_is_usable(const char *op, const kr_state *state)
{
    return kr_require(
        state->ctx, !state->is_inconsistent, KR_ERR_STATE,
        "%s: the state is inconsistent: a call that updated it failed midway; reset it with kr_state_zero, or "
        "overwrite it with kr_state_copy",
        op);
}

/* Tensors are freed with all their rows. */
static void use_all_rows(kr_state *state)
{
    if (state->capacity) kr_state_rows_use(state, state->capacity);
    state->capacity = 0;
}

static void drop_tensors(kr_cache *cache)
{
    for (int i = 0; i < kr_cache_count(cache->family); i++) {
        kr_param_destroy(cache->tensors[i]);
        cache->tensors[i] = NULL;
    }
}

void kr_state_destroy(kr_state *state)
{
    if (!state) return;
    if (state->tape) {
        kr_fail(state->ctx, KR_ERR_ARG, "state.destroy: the state is on a tape, which frees it by itself");
        return;
    }
    use_all_rows(state);
    for (int64_t i = 0; i < state->nslots; i++) drop_tensors(&state->slots[i]);
    kr_memory_free(&state->ctx->memory, state, box_bytes(state->nslots));
}

/* ---- changing one ---- */

/* Is it there, the caller's, and its context without an error? */
static bool is_changeable(const kr_state *state, const char *op, const char *remedy)
{
    return state && !kr_ctx_failed(state->ctx) &&
           kr_require(state->ctx, !state->tape, KR_ERR_ARG,
                      "%s: the state is on a tape, where states do not change; %s", op, remedy);
}

static kr_status status_of(const kr_state *state)
{
    return state ? state->ctx->status : KR_ERR_ARG;
}

kr_status kr_state_zero(kr_state *state)
{
    if (!is_changeable(state, "state.zero", "call with state NULL to start from the initial state"))
        return status_of(state);
    const int64_t batch = state->batch;
    use_all_rows(state);
    state->batch = batch;
    for (int64_t i = 0; i < state->nslots; i++) drop_tensors(&state->slots[i]);
    forget_cursors(&state->cursors, state->nslots);
    state->is_inconsistent = false;
    return KR_OK;
}

kr_status kr_state_announce(kr_state *state, int64_t full_len)
{
    if (is_changeable(state, "state.announce", "announce to one of kr_state_create and pass it to the first call") &&
        kr_require(state->ctx, full_len == KR_LENGTH_UNKNOWN || (full_len >= 0 && full_len <= KR_CURSOR_MAX),
                   KR_ERR_ARG, "state.announce: full_len = %lld, but must be from 0 to %lld, or KR_LENGTH_UNKNOWN",
                   (long long)full_len, (long long)KR_CURSOR_MAX)) {
        forget_cursors(&state->cursors, state->nslots);
        state->cursors.is_on = true;
        state->cursors.full_len = full_len;
    }
    return status_of(state);
}

static bool fits(const kr_tensor *to, const kr_tensor *from)
{
    if (!to || !from) return to == from;
    const kr_shape a = kr_tensor_shape(to), b = kr_tensor_shape(from);
    return to->dtype == from->dtype && kr_shape_equal(&a, &b);
}

static bool assign_tensor(kr_ctx *ctx, kr_tensor *to, const kr_tensor *from)
{
    /* a detached state, or one that a call returned unchanged, uses this same memory */
    if (!to || to->data == from->data) return true;
    kr_wrote(to);
    return kr_assign(ctx, to, from);
}

kr_tensor *kr_state_tensor(kr_ctx *ctx, const char *name, kr_dtype dtype, kr_shape shape)
{
    kr_tensor *x = kr_param_create(ctx, dtype, shape);
    if (!x) return NULL;
    kr_param_freeze(x, true);
    x->storage->name = name;
    x->flags.is_state = true;
    return x;
}

/* New tensors where those of `to` do not fit, into new_caches [nslots], NULL elsewhere. */
static bool make_tensors(const kr_state *to, const kr_state *from, kr_cache *new_caches)
{
    for (int64_t s = 0; s < to->nslots; s++)
        for (int i = 0; i < kr_slot_kind(to, s)->ncache; i++) {
            const kr_tensor *x = from->slots[s].tensors[i];
            if (!x || fits(to->slots[s].tensors[i], x)) continue;
            new_caches[s].tensors[i] =
                kr_state_tensor(to->ctx, kr_slot_kind(to, s)->cache_names[i], x->dtype, kr_tensor_shape(x));
            if (!new_caches[s].tensors[i]) return kr_blame(to->ctx, "state.copy");
        }
    return true;
}

/* Allocates tensors of from's shapes in `to`: all of them or, after an error, none. */
static bool reshape_tensors(kr_state *to, const kr_state *from)
{
    kr_memory *memory = &to->ctx->memory;
    const size_t bytes = (size_t)to->nslots * sizeof(kr_cache);
    kr_cache *new_caches = kr_memory_alloc_zeroed(memory, bytes);
    if (!new_caches) return kr_fail(to->ctx, KR_ERR_NOMEM, "state.copy: no memory for a plan of %zu bytes", bytes);
    const bool made = make_tensors(to, from, new_caches);
    for (int64_t s = 0; s < to->nslots; s++)
        for (int i = 0; i < kr_slot_kind(to, s)->ncache; i++) {
            kr_tensor **own = &to->slots[s].tensors[i], *spare = new_caches[s].tensors[i];
            if (made && !fits(*own, from->slots[s].tensors[i])) {
                kr_tensor *old = *own;
                *own = spare;
                spare = old;
            }
            kr_param_destroy(spare);
        }
    kr_memory_free(memory, new_caches, bytes);
    return made;
}

static bool all_fit(const kr_state *to, const kr_state *from)
{
    for (int64_t s = 0; s < to->nslots; s++)
        for (int i = 0; i < kr_slot_kind(to, s)->ncache; i++)
            if (!fits(to->slots[s].tensors[i], from->slots[s].tensors[i])) return false;
    return true;
}

/* The cache's fields besides its n tensors. */
static void copy_cache_fields(kr_cache *to, const kr_cache *from, int n)
{
    kr_tensor *own[KR_CACHE_TENSORS];
    const size_t bytes = (size_t)n * sizeof *own;
    memcpy(own, to->tensors, bytes);
    *to = *from;
    memcpy(to->tensors, own, bytes);
}

kr_status kr_state_copy(kr_state *to, const kr_state *from)
{
    if (!is_changeable(to, "state.copy", "copy into one of kr_state_create")) return status_of(to);
    kr_ctx *ctx = to->ctx;
    if (!kr_require(ctx, from != NULL, KR_ERR_ARG, "state.copy: from is NULL") ||
        !kr_require(ctx, from->ctx == ctx, KR_ERR_STATE, "state.copy: from belongs to another context") ||
        !kr_require(ctx, kr_state_same_slots(to, from), KR_ERR_ARG,
                    "state.copy: from has %lld slots of the family %s, but to has %lld of %s; create it for the stack "
                    "that from is of",
                    (long long)from->nslots, kr_state_family(from), (long long)to->nslots, kr_state_family(to)) ||
        !kr_state_is_usable("state.copy", from) || to == from)
        return ctx->status;
    if (to->capacity >= from->batch) kr_state_rows_use(to, from->batch);
    if (!all_fit(to, from)) {
        use_all_rows(to);
        if (!reshape_tensors(to, from)) return ctx->status;
    }
    for (int64_t s = 0; s < to->nslots; s++) {
        copy_cache_fields(&to->slots[s], &from->slots[s], kr_slot_kind(to, s)->ncache);
        for (int i = 0; i < kr_slot_kind(to, s)->ncache; i++)
            if (!assign_tensor(ctx, to->slots[s].tensors[i], from->slots[s].tensors[i])) return ctx->status;
    }
    to->batch = from->batch;
    to->is_inconsistent = false;
    copy_cursors(to, from);
    return ctx->status;
}

/* ---- new ones on a tape ---- */

typedef struct row_list {
    int64_t count;
    const int64_t *rows;
} row_list;

typedef kr_tensor *tensor_fn(kr_tape *tape, kr_tensor *x, const row_list *list);

/* The state of `batch` rows whose tensors are fn of this one's. */
static kr_state *derive(kr_tape *tape, const kr_state *state, int64_t batch, tensor_fn *fn, const row_list *list)
{
    kr_state *y = new_like(tape, state->nslots, batch);
    if (!y) return NULL;
    copy_cursors(y, state);
    for (int64_t s = 0; s < state->nslots; s++) {
        y->slots[s] = state->slots[s];
        for (int i = 0; i < kr_slot_kind(state, s)->ncache; i++) {
            kr_tensor *x = state->slots[s].tensors[i];
            if (x && !(y->slots[s].tensors[i] = fn(tape, x, list))) return NULL;
        }
    }
    return y;
}

bool kr_state_usable(kr_tape *tape, const char *op, const kr_state *state)
{
    return kr_tape_ready(tape, op) && kr_require(tape->ctx, state != NULL, KR_ERR_ARG, "%s: state is NULL", op) &&
           kr_require(tape->ctx, state->ctx == tape->ctx, KR_ERR_STATE, "%s: the state belongs to another context",
                      op) &&
           kr_require(tape->ctx, !state->tape || state->tape == tape, KR_ERR_STATE,
                      "%s: the state is on another tape; carry it over with kr_state_copy into one of kr_state_create",
                      op) &&
           kr_state_is_usable(op, state);
}

static kr_tensor *select_tensor(kr_tape *tape, kr_tensor *x, const row_list *list)
{
    return kr_select_rows(tape, x, list->count, list->rows);
}

static bool check_count(kr_tape *tape, const char *op, int64_t count)
{
    return kr_require(tape->ctx, count >= 1, KR_ERR_ARG, "%s: count = %lld, but must be at least 1", op,
                      (long long)count);
}

kr_state *kr_state_select(kr_tape *tape, const kr_state *state, int64_t count, const int64_t *rows)
{
    const char *op = "state.select";
    if (!kr_state_usable(tape, op, state) || !check_count(tape, op, count) ||
        !kr_require(tape->ctx, rows != NULL, KR_ERR_ARG, "%s: rows is NULL", op))
        return NULL;
    for (int64_t i = 0; i < count; i++)
        if (!kr_require(tape->ctx, rows[i] >= 0 && rows[i] < state->batch, KR_ERR_ARG,
                        "%s: rows[%lld] = %lld, but the state has rows from 0 to %lld", op, (long long)i,
                        (long long)rows[i], (long long)state->batch - 1))
            return NULL;
    return derive(tape, state, count, select_tensor, &(row_list){ count, rows });
}

kr_state *kr_state_fork(kr_tape *tape, const kr_state *state, int64_t row, int64_t count)
{
    const char *op = "state.fork";
    if (!kr_state_usable(tape, op, state) || !check_count(tape, op, count) ||
        !kr_require(tape->ctx, row >= 0 && row < state->batch, KR_ERR_ARG,
                    "%s: row = %lld, but the state has rows from 0 to %lld", op, (long long)row,
                    (long long)state->batch - 1))
        return NULL;
    int64_t *rows = count <= INT64_MAX / 16 ? kr_arena_alloc(&tape->heads, (size_t)count * sizeof *rows) : NULL;
    if (!kr_require(tape->ctx, rows != NULL, KR_ERR_NOMEM, "%s: no memory for %lld rows", op, (long long)count))
        return NULL;
    for (int64_t i = 0; i < count; i++) rows[i] = row;
    return derive(tape, state, count, select_tensor, &(row_list){ count, rows });
}

static kr_tensor *input_tensor(kr_tape *tape, kr_tensor *x, const row_list *list)
{
    (void)list;
    return kr_input(tape, x);
}

static kr_tensor *detach_tensor(kr_tape *tape, kr_tensor *x, const row_list *list)
{
    (void)list;
    return kr_detach(tape, x);
}

kr_state *kr_state_input(kr_tape *tape, const kr_state *state)
{
    return kr_state_usable(tape, "state.input", state) ? derive(tape, state, state->batch, input_tensor, NULL) : NULL;
}

kr_state *kr_state_detach(kr_tape *tape, const kr_state *state)
{
    return kr_state_usable(tape, "state.detach", state) ? derive(tape, state, state->batch, detach_tensor, NULL) : NULL;
}

/* ---- rows of several ---- */

bool kr_state_same_cursors(const kr_state *a, const kr_state *b)
{
    const kr_cursors *x = &a->cursors, *y = &b->cursors;
    return x->is_on == y->is_on && x->full_len == y->full_len && x->network == y->network && x->stack == y->stack &&
           memcmp(x->layers, y->layers, (size_t)a->nslots * sizeof *x->layers) == 0;
}

static bool same_pathway(const kr_state *a, const kr_state *b, int64_t slot)
{
    return a->slots[slot].family != KR_FAMILY_MAMBA3 || kr_state_slot_is_initial(a, slot) ||
           a->slots[slot].mamba3.pathway == b->slots[slot].mamba3.pathway;
}

static const char *slot_status(const kr_state *state, int64_t slot)
{
    return kr_state_slot_is_initial(state, slot) ? "initial" : "in use";
}

/* Can state i be joined with the first one? */
static bool joins_first(kr_tape *tape, const char *op, const kr_state *first, const kr_state *state, int64_t i)
{
    kr_ctx *ctx = tape->ctx;
    if (!kr_state_usable(tape, op, state) ||
        !kr_require(ctx, kr_state_same_slots(state, first), KR_ERR_ARG,
                    "%s: states[%lld] has %lld slots of the family %s, but states[0] has %lld of %s", op, (long long)i,
                    (long long)state->nslots, kr_state_family(state), (long long)first->nslots,
                    kr_state_family(first)) ||
        !kr_require(
            ctx, kr_state_same_cursors(first, state), KR_ERR_ARG,
            "%s: states[%lld] and states[0] differ in what was announced, or in the class tokens still to be inserted",
            op, (long long)i))
        return false;
    for (int64_t slot = 0; slot < state->nslots; slot++)
        if (!kr_require(ctx, kr_state_slot_is_initial(state, slot) == kr_state_slot_is_initial(first, slot), KR_ERR_ARG,
                        "%s: slot %lld of states[%lld] is %s, but that of states[0] is %s", op, (long long)slot,
                        (long long)i, slot_status(state, slot), slot_status(first, slot)) ||
            !kr_require(ctx, same_pathway(first, state, slot), KR_ERR_ARG,
                        "%s: slot %lld of states[%lld] is of another pathway than that of states[0]", op,
                        (long long)slot, (long long)i))
            return false;
    return true;
}

static bool join_slots(kr_tape *tape, kr_state *y, int count, kr_state *const *states, kr_tensor **parts)
{
    for (int64_t s = 0; s < y->nslots; s++) {
        y->slots[s] = states[0]->slots[s];
        for (int i = 0; i < kr_slot_kind(y, s)->ncache && states[0]->slots[s].tensors[i]; i++) {
            for (int n = 0; n < count; n++) parts[n] = states[n]->slots[s].tensors[i];
            if (!(y->slots[s].tensors[i] = kr_concat(tape, 0, count, parts))) return kr_blame(tape->ctx, "state.join");
        }
    }
    return true;
}

kr_state *kr_state_join(kr_tape *tape, int count, kr_state *const *states)
{
    const char *op = "state.join";
    if (!kr_tape_ready(tape, op) || !check_count(tape, op, count) ||
        !kr_require(tape->ctx, states != NULL, KR_ERR_ARG, "%s: states is NULL", op) ||
        !kr_state_usable(tape, op, states[0]))
        return NULL;
    int64_t batch = 0;
    for (int i = 0; i < count; i++) {
        if (!joins_first(tape, op, states[0], states[i], i)) return NULL;
        batch += states[i]->batch;
    }
    kr_state *y = new_like(tape, states[0]->nslots, batch);
    kr_tensor **parts = y ? kr_arena_alloc(&tape->heads, (size_t)count * sizeof *parts) : NULL;
    if (!kr_require(tape->ctx, parts != NULL, KR_ERR_NOMEM, "%s: no memory for %d states", op, count)) return NULL;
    copy_cursors(y, states[0]);
    return join_slots(tape, y, count, states, parts) ? y : NULL;
}

/* ---- reading one ---- */

const kr_cache *kr_state_cache(const kr_state *state, int64_t slot)
{
    return state && slot >= 0 && slot < state->nslots ? &state->slots[slot] : NULL;
}

bool kr_state_slot_is_initial(const kr_state *state, int64_t slot)
{
    for (int i = 0; i < kr_slot_kind(state, slot)->ncache; i++)
        if (state->slots[slot].tensors[i]) return false;
    return true;
}

kr_state_info kr_state_info_of(const kr_state *state)
{
    kr_state_info info = { .batch = state ? state->batch : 0, .slots = state ? state->nslots : 0, .is_initial = true };
    for (int64_t s = 0; s < info.slots; s++)
        for (int i = 0; i < kr_slot_kind(state, s)->ncache; i++) {
            const kr_tensor *x = state->slots[s].tensors[i];
            if (!x) continue;
            info.is_initial = false;
            info.bytes += kr_dtype_span(x->dtype, kr_count_of(x));
        }
    return info;
}
