/* arena.h - bump allocation with mark and release, for memory whose lifetime is a step or a call.
 *
 * Blocks come from kr_memory and are kept for reuse until the arena is reset or destroyed. Sizes are rounded up to 64
 * bytes and every pointer is 64-byte aligned. Under AddressSanitizer released memory is poisoned. `used` and `peak` are
 * exact: the rounded bytes in use, current and maximum. For device memory the headers of the blocks are allocated
 * separately, in host memory.
 */
#ifndef KR_BASE_ARENA_H
#define KR_BASE_ARENA_H

#include "base/alloc.h"

#define KR_ALIGN 64

typedef struct kr_arena_block kr_arena_block;

typedef struct kr_arena {
    kr_memory *memory;
    kr_memory *heads;   /* where the blocks' headers are; NULL: in front of their data */
    size_t block_bytes; /* smallest block that is requested from memory */
    kr_arena_block *first, *current;
    size_t used, peak;
} kr_arena;

typedef struct kr_arena_mark {
    kr_arena_block *block;
    size_t offset, used;
} kr_arena_mark;

void kr_arena_init(kr_arena *arena, kr_memory *memory, size_t block_bytes);
void kr_arena_init_device(kr_arena *arena, kr_memory *memory, kr_memory *heads, size_t block_bytes);
void kr_arena_deinit(kr_arena *arena);

void *kr_arena_alloc(kr_arena *arena, size_t bytes); /* NULL if the allocation fails */

kr_arena_mark kr_arena_mark_now(const kr_arena *arena);
void kr_arena_release(kr_arena *arena, kr_arena_mark mark);

/* Was p allocated after the mark and not released since? */
bool kr_arena_is_after(const kr_arena *arena, kr_arena_mark mark, const void *p);

/* Allocates one block of the peak's size, so that the next use up to the peak allocates nothing. The arena must be
 * empty. */
bool kr_arena_reserve(kr_arena *arena);

/* Start of the first block; NULL without a block. */
const void *kr_arena_base(const kr_arena *arena);

/* Releases everything. Several blocks are replaced by one block of the peak's size at the next allocation.
 */
void kr_arena_reset(kr_arena *arena);

#endif
