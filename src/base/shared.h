/* shared.h - what objects of several contexts use and none changes, counted by reference.
 *
 *   typedef struct tables { kr_shared shared; ... } tables;      // the first member
 *   tables *t = kr_shared_create(&ctx->memory, sizeof *t);       // all else from &t->shared.memory
 *   kr_shared_add(&t->shared);                                   // for another context, which may be in another thread
 *   if (kr_shared_leave(&t->shared, is_counted)) { ...; kr_shared_free(&t->shared, sizeof *t); }
 *
 * The memory of the context that creates it includes it until that context leaves.
 */
#ifndef KR_BASE_SHARED_H
#define KR_BASE_SHARED_H

#include "base/alloc.h"

#include <stdatomic.h>

typedef struct kr_shared {
    atomic_uint users;
    kr_memory memory;
} kr_shared;

/* Zeroed, with one user; NULL if there is no memory. */
void *kr_shared_create(kr_memory *memory, size_t bytes);
void kr_shared_add(kr_shared *shared);

/* True: this was the last user, which frees everything. False: it must not be touched any more. is_counted: of the context
 * that created it. */
bool kr_shared_leave(kr_shared *shared, bool is_counted);
void kr_shared_free(kr_shared *shared, size_t bytes);

#endif
