/* arena.h - bump allocation with mark and release, for memory whose lifetime is a step or a call.
 *
 * Blocks come from kr_memory and are kept for reuse until the arena is reset or destroyed. Sizes are rounded up to
 * 64 bytes and every pointer is 64-byte aligned. Under AddressSanitizer what was released is poisoned. `used` and
 * `peak` are exact: the rounded bytes handed out and not released, now and at most. Over memory that the processor
 * cannot touch, what the arena itself remembers of its blocks lies in another one.
 */
#ifndef KR_BASE_ARENA_H
#define KR_BASE_ARENA_H

#include "base/alloc.h"

#define KR_ALIGN 64

typedef struct kr_arena_block kr_arena_block;

typedef struct kr_arena {
    kr_memory *memory;
    kr_memory *heads;   /* where the blocks' headers are; NULL: in front of their data */
    size_t block_bytes; /* smallest block that is asked of memory */
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

void *kr_arena_alloc(kr_arena *arena, size_t bytes); /* NULL when memory refuses */

kr_arena_mark kr_arena_mark_now(const kr_arena *arena);
void kr_arena_release(kr_arena *arena, kr_arena_mark mark);

/* Was p handed out after the mark, and not released since? */
bool kr_arena_is_after(const kr_arena *arena, kr_arena_mark mark, const void *p);

/* Lets the next use up to the peak need no further memory: one block of that size. Nothing is in use. */
bool kr_arena_reserve(kr_arena *arena);

/* Where the first block begins; NULL: there is none. */
const void *kr_arena_base(const kr_arena *arena);

/* Releases everything; what had been spread over several blocks becomes one block of the peak's size at the next need.
 * */
void kr_arena_reset(kr_arena *arena);

#endif
