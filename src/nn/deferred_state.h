/* deferred_state.h - deferred state updates of decode steps.
 *
 * A step of many rows spends its time on state traffic, half of it on writing. It may store the token next to the state
 * instead, and apply the last eight tokens of a head at once (kernels/args/decode_args.h). The results are bit-identical;
 * but other readers of the state must flush the pending tokens first: kr_state_flush.
 */
#ifndef KR_NN_DEFERRED_STATE_H
#define KR_NN_DEFERRED_STATE_H

#include "nn/state_impl.h"

/* Records of a slot; tokens NULL: never deferred. */
typedef struct kr_deferred_slot {
    kr_tensor *tokens;
    int64_t elements, ngroups; /* of tokens; groups of the block's B */
    bool is_used;              /* the block's steps store their tokens here */
} kr_deferred_slot;

typedef struct kr_deferred {
    bool is_open;    /* the current step may defer its update */
    bool is_pending; /* a step has deferred updates since the last flush */
    int64_t batch, nslots;
    kr_deferred_slot slots[];
} kr_deferred;

/* Between begin and end a step of this state, in place, may defer its update where blocks support it. False after an error.
 */
bool kr_deferred_begin(kr_state *state, const kr_layers *layers);
void kr_deferred_end(kr_state *state);

/* The slot's records, while a step may defer; else NULL. */
kr_deferred_slot *kr_deferred_slot_of(const kr_state *state, int64_t slot);

/* Applies all pending updates. Not during a step that defers; false after an error. */
bool kr_deferred_flush(const kr_state *state);

/* Drops pending updates: the state's tensors are new, or are overwritten. */
void kr_deferred_drop(kr_state *state);

#endif
