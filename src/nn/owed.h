/* owed.h - tokens that a state owes.
 *
 * A step of many rows spends its time on states, and half of it on writing them. It may keep the token instead, beside
 * the state, and give a head its last eight tokens at once (kernels/token_args.h). The numbers are the same to the bit;
 * but whoever else reads the state has to see all tokens in it first: kr_state_make_whole.
 */
#ifndef KR_NN_OWED_H
#define KR_NN_OWED_H

#include "nn/state.h"

/* What a slot owes; tokens NULL: nothing, ever. */
typedef struct kr_owed_slot {
    kr_tensor *tokens;
    int64_t elements, ngroups; /* of tokens; of the block's B */
    bool is_used;              /* the block's steps keep their tokens here */
} kr_owed_slot;

typedef struct kr_owed {
    bool is_open; /* a step is on its way that may keep its token */
    bool is_due;  /* one has been, since the state was whole */
    int64_t batch, nslots;
    kr_owed_slot slots[];
} kr_owed;

/* Between begin and end a step of this state, in place, may keep its token where blocks can. False after an error. */
bool kr_owed_begin(kr_state *state, const kr_layers *layers);
void kr_owed_end(kr_state *state);

/* The slot's, while a step may owe; else NULL. */
kr_owed_slot *kr_owed_slot_of(const kr_state *state, int64_t slot);

/* All slots get what they owe. Outside of steps that owe; false after an error. */
bool kr_owed_settle(const kr_state *state);

/* Whatever was owed is forgotten: the state's tensors are new ones, or get new numbers. */
void kr_owed_drop(kr_state *state);

#endif
