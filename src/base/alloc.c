/* alloc.c - counted allocation through the user's hooks, with fault injection for tests. */
#if defined(__linux__)
#define _DEFAULT_SOURCE /* madvise */
#endif
#include "base/alloc.h"

#include "base/fork.h"

#include <stdlib.h>
#include <string.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { ALIGN = 64 }; /* a cache line, and the widest vector */

/* Large blocks use huge pages if the system has them: weights that are streamed once are read up to 1.5 times as fast
 * (docs/dependencies.md), and new memory causes fewer page faults. */
static const size_t large_page = (size_t)2 << 20, large_block = (size_t)4 << 20;

static void *libc_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    const bool is_large = bytes >= large_block;
    if (is_large) align = large_page;
    if (bytes > SIZE_MAX - align) return NULL;
    const size_t whole = (bytes + align - 1) / align * align;
    void *p = aligned_alloc(align, whole);
#if defined(__linux__)
    if (p && is_large) madvise(p, whole, MADV_HUGEPAGE); /* advice: a refusal changes nothing */
#endif
    return p;
}

static void libc_free(void *user, void *p)
{
    (void)user;
    free(p);
}

void kr_memory_init(kr_memory *memory, const kr_allocator *hooks)
{
    memset(memory, 0, sizeof *memory);
    memory->hooks = hooks && hooks->alloc ? *hooks : (kr_allocator){ libc_alloc, libc_free, NULL };
}

static void count_peak(kr_memory_stats *stats)
{
    if (stats->live_bytes > stats->peak_bytes) stats->peak_bytes = stats->live_bytes;
}

void kr_memory_branch(kr_memory *branch, kr_memory *memory)
{
    *branch = *memory;
    branch->stats = (kr_memory_stats){ 0 };
    branch->refused = branch->fail_in = 0;
    branch->counted_in = memory;
    if (!branch->fail_in_of) branch->fail_in_of = memory;
}

void kr_memory_leave(kr_memory *branch)
{
    if (branch->counted_in) {
        branch->counted_in->stats.live_bytes -= branch->stats.live_bytes;
        branch->counted_in->stats.live_blocks -= branch->stats.live_blocks;
    }
    branch->counted_in = branch->fail_in_of = NULL;
}

void kr_memory_join(kr_memory *branch, kr_memory *memory)
{
    memory->stats.live_bytes += branch->stats.live_bytes;
    memory->stats.live_blocks += branch->stats.live_blocks;
    count_peak(&memory->stats);
    branch->counted_in = branch->fail_in_of = memory;
}

bool kr_memory_is_host(const kr_memory *memory)
{
    return !memory->zero;
}

bool kr_memory_is_parents(const kr_memory *memory)
{
    return memory->is_device && memory->nforks != kr_fork_count();
}

static bool refused(kr_memory *memory)
{
    size_t *fail_in = memory->fail_in_of ? &memory->fail_in_of->fail_in : &memory->fail_in;
    return *fail_in != 0 && --*fail_in == 0;
}

void *kr_memory_alloc(kr_memory *memory, size_t bytes)
{
    void *p = refused(memory) ? NULL : memory->hooks.alloc(memory->hooks.user, bytes ? bytes : 1, ALIGN);
    for (kr_memory *m = memory; m; m = m->counted_in) {
        if (!p) {
            m->refused = bytes ? bytes : 1;
            continue;
        }
        m->stats.live_bytes += bytes;
        m->stats.live_blocks++;
        m->stats.total_blocks++;
        count_peak(&m->stats);
    }
    return p;
}

void *kr_memory_alloc_zeroed(kr_memory *memory, size_t bytes)
{
    void *p = kr_memory_alloc(memory, bytes);
    if (p && memory->zero) memory->zero(memory->hooks.user, p, bytes);
    else if (p) memset(p, 0, bytes);
    return p;
}

void kr_memory_free(kr_memory *memory, void *p, size_t bytes)
{
    if (!p) return;
    for (kr_memory *m = memory; m; m = m->counted_in) {
        m->stats.live_bytes -= bytes;
        m->stats.live_blocks--;
    }
    if (kr_memory_is_parents(memory)) return;
    if (memory->release) memory->release(memory->hooks.user, p, bytes ? bytes : 1);
    else memory->hooks.free(memory->hooks.user, p);
}
