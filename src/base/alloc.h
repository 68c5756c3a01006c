/* alloc.h - all memory comes from the context's allocator and is counted.
 *
 * kr_memory wraps the user's hooks with exact counters and with fault injection: with fail_in = n the n-th next
 * allocation (1 is the next) fails, and only that one. Only the thread that uses the context allocates.
 */
#ifndef KR_BASE_ALLOC_H
#define KR_BASE_ALLOC_H

#include <krait/ctx.h>

typedef struct kr_memory {
    kr_allocator hooks;
    void (*release)(void *user, void *p, size_t bytes); /* instead of hooks.free; NULL: none */
    void (*zero)(void *user, void *p, size_t bytes); /* NULL: memset. For device memory, which the host cannot write */
    kr_memory_stats stats;
    size_t refused;               /* bytes of the last refused allocation; 0: none since the last report */
    size_t fail_in;               /* 0: never; n: the n-th next allocation is refused */
    struct kr_memory *fail_in_of; /* NULL, or the memory whose fail_in counts for this one too */
    struct kr_memory *counted_in; /* NULL, or the memory whose figures include those of this one */
    bool is_device;               /* of a device or pinned for it: a forked child cannot touch or free it */
    unsigned nforks;              /* is_device: kr_fork_count of the process that has it */
} kr_memory;

void kr_memory_init(kr_memory *memory, const kr_allocator *hooks);

/* Memory by the same hooks with figures of its own, which those of `memory` include until kr_memory_leave: for what may
 * outlive the context. kr_memory_join lets another memory include them. */
void kr_memory_branch(kr_memory *branch, kr_memory *memory);
void kr_memory_leave(kr_memory *branch);
void kr_memory_join(kr_memory *branch, kr_memory *memory);

/* Is it host-accessible? */
bool kr_memory_is_host(const kr_memory *memory);

/* Does it belong to the parent of this process? Frees do nothing then. */
bool kr_memory_is_parents(const kr_memory *memory);

/* 64-byte aligned; NULL when refused. bytes = 0 gives a unique pointer. */
void *kr_memory_alloc(kr_memory *memory, size_t bytes);
void *kr_memory_alloc_zeroed(kr_memory *memory, size_t bytes);
void kr_memory_free(kr_memory *memory, void *p, size_t bytes);

#endif
