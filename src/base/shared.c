/* shared.c - counting the users of shared memory. */
#include "base/shared.h"

void *kr_shared_create(kr_memory *memory, size_t bytes)
{
    kr_memory branch;
    kr_memory_branch(&branch, memory);
    kr_shared *shared = kr_memory_alloc_zeroed(&branch, bytes);
    if (!shared) return NULL;
    shared->memory = branch;
    atomic_init(&shared->users, 1);
    return shared;
}

void kr_shared_add(kr_shared *shared)
{
    atomic_fetch_add_explicit(&shared->users, 1, memory_order_relaxed);
}

bool kr_shared_leave(kr_shared *shared, bool is_counted)
{
    if (is_counted && atomic_load_explicit(&shared->users, memory_order_acquire) > 1) kr_memory_leave(&shared->memory);
    return atomic_fetch_sub_explicit(&shared->users, 1, memory_order_acq_rel) == 1;
}

void kr_shared_free(kr_shared *shared, size_t bytes)
{
    kr_memory memory = shared->memory;
    kr_memory_free(&memory, shared, bytes);
}
