/* state.h - what a whole stack remembers of the sequences it has read: all its caches as one object.
 *
 *   kr_state *state = kr_state_create(ctx, kr_network_layers(net), 1);
 *   kr_call call;
 *   kr_call_init(&call);
 *   call.state = state;
 *   kr_network_out out = kr_network_step(tape, net, id_b, &call);      // reads the state, makes a new one on the tape
 *   kr_state_copy(state, out.state);                                   // which is kept beyond the tape's reset
 *   if (kr_state_save(state, net, "chat.state") != KR_OK) fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_state_destroy(state);
 *
 * Two kinds: made by kr_state_create or kr_state_load, the caller's to destroy; and made on a tape by a call, gone with
 * the tape's step, through which gradients flow from one call to the next. Every function reads both; those that change
 * a state (destroy, zero, copy, announce, and calls by their field `advance`) take the caller's own only. Calls read
 * such a state where it lies, and so does their backward pass: change it after that. A copy into it or an `advance` before
 * that is an error of kr_backward.
 *
 * Where nothing is recorded, call.advance = state instead of call.state moves the caller's state on in place: the same
 * as the step and the copy above, without either copy.
 */
#ifndef KRAIT_STATE_H
#define KRAIT_STATE_H

#include <krait/block.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_state kr_state;
typedef struct kr_layers kr_layers;
typedef struct kr_network kr_network;

/* An initial state. The caller destroys it. NULL after an error. */
KR_API kr_state *kr_state_create(kr_ctx *ctx, const kr_layers *layers, int64_t batch);
KR_API void kr_state_destroy(kr_state *state);

/* Resets the state to the initial one, including announced lengths. */
KR_API kr_status kr_state_zero(kr_state *state);

/* Makes `to`, one of kr_state_create or kr_state_load, equal to `from`, of any batch. */
KR_API kr_status kr_state_copy(kr_state *to, const kr_state *from);

/* On the tape, with gradients: the given rows, in that order, any of them more than once; or one row, `count` times. */
KR_API kr_state *kr_state_select(kr_tape *tape, const kr_state *state, int64_t count, const int64_t *rows);
KR_API kr_state *kr_state_fork(kr_tape *tape, const kr_state *state, int64_t row, int64_t count);

/* On the tape, with gradients: the rows of several states, one after another. All of them have got equally far with
 * class tokens, and either all or none of them are initial. */
KR_API kr_state *kr_state_join(kr_tape *tape, int count, kr_state *const *states);

/* On the tape: the same values as leaves whose gradients are wanted (kr_input), or without a gradient (kr_detach). */
KR_API kr_state *kr_state_input(kr_tape *tape, const kr_state *state);
KR_API kr_state *kr_state_detach(kr_tape *tape, const kr_state *state);

typedef struct kr_state_info {
    int64_t batch;        /* rows */
    int64_t slots;        /* caches, one for each virtual layer */
    size_t bytes;         /* of the tensors */
    bool is_initial;      /* nothing went through it; true for NULL */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_state_info;

/* Properties of a state, and each by itself. */
KR_API kr_state_info kr_state_info_of(const kr_state *state);
KR_API_INLINE int64_t kr_state_batch(const kr_state *state)
{
    return kr_state_info_of(state).batch;
}
KR_API_INLINE int64_t kr_state_slots(const kr_state *state)
{
    return kr_state_info_of(state).slots;
}
KR_API_INLINE bool kr_state_is_initial(const kr_state *state)
{
    return kr_state_info_of(state).is_initial;
}
KR_API_INLINE size_t kr_state_bytes(const kr_state *state)
{
    return kr_state_info_of(state).bytes;
}

/* The cache of a slot; its tensors are NULL while nothing went through it. NULL for a slot that there is not. */
KR_API const kr_cache *kr_state_cache(const kr_state *state, int64_t slot);

/* Parts of the state of a network put together by hand (kr_network_custom). The slots from `first` on as a state on the
 * tape, for a stack's kr_call; and its new state put back. Both have the same rows. The cache of a block or layer is read by
 * kr_state_cache, and put back by kr_state_set_cache. A state on a tape takes the tensors, the caller's own a copy. */
KR_API kr_state *kr_state_part(kr_tape *tape, const kr_state *state, int64_t first, int64_t count);
KR_API kr_status kr_state_set_part(kr_state *state, int64_t first, const kr_state *part);
KR_API kr_status kr_state_set_cache(kr_state *state, int64_t slot, const kr_cache *cache);

/* How many of the caller's own tokens the sequence will have, for class markers whose place depends on it; with
 * KR_LENGTH_UNKNOWN only those that do not can be placed. From then on a call continues the sequence where the last one
 * stopped. Without an announcement each forward is a whole sequence, as far as markers are concerned. */
#define KR_LENGTH_UNKNOWN (-1)
KR_API kr_status kr_state_announce(kr_state *state, int64_t full_len);

/* Writes a state to a file, and reads one back. The file has a checksum and knows its network: another architecture,
 * other weights, a truncated or changed file are refused with a reason. The write is atomic: the path holds the old
 * file or the whole new one. */
KR_API KR_MUST_CHECK kr_status kr_state_save(const kr_state *state, const kr_network *net, const char *path);
KR_API kr_state *kr_state_load(kr_ctx *ctx, const kr_network *net, const char *path);

#ifdef __cplusplus
}
#endif
#endif
