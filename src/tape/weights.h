/* weights.h - the memory of a parameter table, which tables of other contexts may use, too: slabs, mapped files and packed
 * panels, counted by reference.
 *
 * Each table over it is a user; the last one frees it, on any thread and with its context's allocator, which may be gone.
 * Only a single user may write. Writers (a write, an optimizer for its whole life) are counted with the users in one atomic
 * number, so that sharing and writing exclude each other without a lock. Readers count nowhere.
 */
#ifndef KR_TAPE_WEIGHTS_H
#define KR_TAPE_WEIGHTS_H

#include "base/ctx_impl.h"
#include "tensor/tensor_impl.h"

#include <stdatomic.h>

typedef struct kr_weights_slab {
    void *data;
    size_t bytes;
} kr_weights_slab;

/* A mapped file; data NULL: none. */
typedef struct kr_weights_map {
    void *data;
    size_t bytes;
    void (*release)(void *data, size_t bytes);
} kr_weights_map;

typedef struct kr_weights {
    atomic_uint_least64_t state; /* users, and writers in the upper half */
    atomic_uint_least64_t
        written; /* kr_ctx.nwrites of the last write, which a device may not have finished; 0: shared since */
    kr_memory host, device;             /* branches of those of the context that made it */
    kr_memory *floats;                  /* the one of the slabs */
    kr_weights_slab slabs[KR_N_DTYPES]; /* by kr_dtype */
    int nmaps;
    kr_weights_map *maps;
} kr_weights;

/* Empty, with one user; NULL after an error. */
kr_weights *kr_weights_create(kr_ctx *ctx);

/* A zeroed slab; false if there is no memory. Each type has one at most. */
bool kr_weights_allocate(kr_weights *weights, kr_dtype dtype, size_t bytes);

/* A list for `count` maps, zeroed, which are released with the weights; NULL if there is no memory. Once at most. */
kr_weights_map *kr_weights_add_maps(kr_weights *weights, int count);

/* Adds a user, of context ctx; false while a writer exists, or, with an error, without memory. Writes must have reached the
 * memory before: see `written`. */
bool kr_weights_share(kr_weights *weights, kr_ctx *ctx);
uint32_t kr_weights_users(const kr_weights *weights);

/* One user less. True: it was the last, which frees the panels of its parameters and then calls kr_weights_free. False: the
 * weights must not be touched any more. is_counted: the memories of `ctx` include those of the weights. */
bool kr_weights_leave(kr_weights *weights, kr_ctx *ctx, bool is_counted);
void kr_weights_free(kr_weights *weights);

/* Before and after a parameter is written: false, with an error, if other tables use its weights. A parameter with memory of
 * its own may always be written. */
bool kr_weights_begin_write(const kr_tensor *param, const char *op);
void kr_weights_end_write(const kr_tensor *param);

/* The same without a parameter, which may be destroyed before the end. NULL: nothing to do. */
bool kr_weights_hold(kr_weights *weights);
bool kr_weights_are_held(const kr_weights *weights);
void kr_weights_release(kr_weights *weights, kr_ctx *ctx);

#endif
