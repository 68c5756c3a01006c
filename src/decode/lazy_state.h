/* lazy_state.h - state updates that decode steps defer.
 *
 * A step of many rows spends its time on state traffic, half of it on writing. It may append its token to records next to
 * the state instead, and apply the last eight tokens of a head at once (kernels/args/decode_args.h). The results are
 * bit-identical, but the state's tensors lag behind until the updates are flushed, which must happen before anything else
 * reads or writes the state. The records belong to one state at a time.
 */
#ifndef KR_DECODE_LAZY_STATE_H
#define KR_DECODE_LAZY_STATE_H

#include "nn/layers_impl.h"

typedef struct kr_lazy_state {
    const kr_layers *layers;
    kr_state *state;     /* that the records belong to; NULL: none */
    int64_t capacity;    /* rows that the records have memory for */
    int64_t rows;        /* the first rows, which may have pending updates; 0: nothing is pending */
    kr_tensor **records; /* [nslots] f32; NULL: not allocated */
} kr_lazy_state;

void kr_lazy_init(kr_lazy_state *lazy, const kr_layers *layers);
void kr_lazy_free(kr_lazy_state *lazy);

/* Does a step of so many rows defer its update? */
bool kr_lazy_defers(const kr_layers *layers, int64_t rows);

/* Allocates the records of a state, if they are not those of the last one. Nothing is pending. False after an error. */
bool kr_lazy_open(kr_lazy_state *lazy, kr_state *state);

/* A step appends the tokens of the first `rows` rows. */
void kr_lazy_append(kr_lazy_state *lazy, int64_t rows);

/* Applies all pending updates. False after an error. */
bool kr_lazy_flush(kr_lazy_state *lazy);

/* Drops the records: the state is overwritten or destroyed. */
void kr_lazy_forget(kr_lazy_state *lazy);

#endif
