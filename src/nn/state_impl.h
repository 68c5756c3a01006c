/* state_impl.h - inside of a state: a cache for each slot, and where class markers have got to. */
#ifndef KR_NN_STATE_IMPL_H
#define KR_NN_STATE_IMPL_H

#include "nn/block_impl.h"

#include <krait/state.h>

#define KR_CURSOR_MAX (INT64_C(1) << 53) /* of announced lengths and of cursors, so that sums of them fit */

/* Where the levels of markers stand: outputs already emitted at each. Levels are the network's tokens, the stack's
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
    const kr_block_kind *kind;
    int64_t nslots, batch;
    kr_cache *slots; /* [nslots]; all tensors NULL: nothing went through */
    kr_cursors cursors;
    bool is_inconsistent;         /* a call that moved it on in place failed half-way */
    struct kr_deferred *deferred; /* tokens that it has not been given yet (nn/deferred_state.h); NULL: none, ever */
};

/* Flushes pending updates into the state; an error if it is inconsistent. Call before reading its tensors. */
bool kr_state_flush(const char *op, const kr_state *state);

/* A fresh state on the tape, cursors off; NULL after an error. */
kr_state *kr_state_new(kr_tape *tape, const kr_block_kind *kind, int64_t nslots, int64_t batch);

/* Is the slot without tensors? */
bool kr_state_slot_is_initial(const kr_state *state, int64_t slot);

/* A zeroed tensor for a slot of the caller's states: tapes take it as a constant. */
kr_tensor *kr_state_tensor(kr_ctx *ctx, kr_dtype dtype, kr_shape shape);

#endif
