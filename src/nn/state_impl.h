/* state_impl.h - internals of a state: a cache for each slot, and the cursors of class tokens. */
#ifndef KR_NN_STATE_IMPL_H
#define KR_NN_STATE_IMPL_H

#include "nn/block_impl.h"

#include <krait/network.h>

#define KR_CURSOR_MAX (INT64_C(1) << 53) /* of announced lengths and of cursors, so that sums of them fit */

/* Positions of the levels of class tokens: outputs already emitted at each. Levels are the network's tokens, the stack's
 * latents, then the latents of each virtual layer. */
typedef struct kr_cursors {
    bool is_on;       /* a length was announced */
    int64_t full_len; /* the caller's own tokens; KR_LENGTH_UNKNOWN */
    int64_t network, stack;
    int64_t *layers; /* [nslots] */
} kr_cursors;

struct kr_state {
    kr_ctx *ctx;
    kr_tape *tape; /* NULL: the caller's */
    int64_t nslots, batch;
    int64_t capacity; /* rows that its tensors have memory for (nn/state_rows.h); 0: the rows of the batch */
    kr_cache *slots;  /* [nslots]: each with its family; all tensors NULL: nothing went through */
    kr_cursors cursors;
    bool is_inconsistent; /* a call that updates it in place failed midway */
};

/* The slots of a state: all of one family, or one for each block of a list. */
typedef struct kr_state_layout {
    int64_t nslots;
    kr_family family;
    const kr_block *const *blocks; /* [nslots]; NULL: all slots are of `family` */
} kr_state_layout;

static inline kr_family kr_state_slot_family(const kr_state_layout *layout, int64_t slot)
{
    return layout->blocks ? layout->blocks[slot]->kind->family : layout->family;
}

static inline const kr_block_kind *kr_slot_kind(const kr_state *state, int64_t slot)
{
    return kr_block_kind_of(state->slots[slot].family);
}

/* Are they the slots of the layout; and of another state? */
bool kr_state_fits(const kr_state *state, const kr_state_layout *layout);
bool kr_state_same_slots(const kr_state *a, const kr_state *b);

/* Are both at the same positions of all class tokens? */
bool kr_state_same_cursors(const kr_state *a, const kr_state *b);

/* The name of the family of all slots, or "mixed". */
const char *kr_state_family(const kr_state *state);
const char *kr_state_layout_family(const kr_state_layout *layout);

/* States of `batch` rows with slots, pathways and cursors of `like`, but no tensors: of the caller, or on the tape. NULL
 * after an error. */
kr_state *kr_state_allocate_like(kr_ctx *ctx, const char *op, const kr_state *like, int64_t batch);
kr_state *kr_state_new_like(kr_tape *tape, const kr_state *like, int64_t batch);

/* An initial state of the caller; op is for messages. NULL after an error. */
kr_state *kr_state_allocate(kr_ctx *ctx, const char *op, const kr_state_layout *layout, int64_t batch);

/* An error if it is inconsistent. */
bool kr_state_is_usable(const char *op, const kr_state *state);

static inline int64_t kr_state_capacity(const kr_state *state)
{
    return state->capacity ? state->capacity : state->batch;
}

/* Can an op on the tape read it? False after an error. */
bool kr_state_usable(kr_tape *tape, const char *op, const kr_state *state);

/* An initial state on the tape, cursors off; NULL after an error. */
kr_state *kr_state_new(kr_tape *tape, const kr_state_layout *layout, int64_t batch);

/* Is the slot without tensors? */
bool kr_state_slot_is_initial(const kr_state *state, int64_t slot);

/* A zeroed tensor for a slot of the caller's states: tapes take it as a constant. The name, of static storage, is for
 * messages. */
kr_tensor *kr_state_tensor(kr_ctx *ctx, const char *name, kr_dtype dtype, kr_shape shape);

#endif
