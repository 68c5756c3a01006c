/* arena.c - a chain of blocks, filled in order; a mark is a place in that chain. */
#include "base/arena.h"

#include "base/poison.h"

struct kr_arena_block {
    kr_arena_block *next;
    size_t bytes; /* of data */
    size_t offset;
    char *data;
};

enum { HEADER = KR_ALIGN }; /* the struct above, padded so that data stays aligned */
_Static_assert(sizeof(kr_arena_block) <= HEADER, "a block's header fits its padding");

void kr_arena_init(kr_arena *arena, kr_memory *memory, size_t block_bytes)
{
    *arena = (kr_arena){ .memory = memory, .block_bytes = block_bytes };
}

static kr_arena_block *block_create(kr_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX - HEADER) return NULL;
    kr_arena_block *block = kr_memory_alloc(arena->memory, HEADER + bytes);
    if (!block) return NULL;
    *block = (kr_arena_block){ .bytes = bytes, .data = (char *)block + HEADER };
    KR_POISON(block->data, bytes);
    return block;
}

static void chain_destroy(kr_arena *arena, kr_arena_block *block)
{
    while (block) {
        kr_arena_block *next = block->next;
        KR_UNPOISON(block->data, block->bytes);
        kr_memory_free(arena->memory, block, HEADER + block->bytes);
        block = next;
    }
}

void kr_arena_deinit(kr_arena *arena)
{
    chain_destroy(arena, arena->first);
    *arena = (kr_arena){ .memory = arena->memory, .block_bytes = arena->block_bytes };
}

/* The next block of the chain if the request fits it, else a new one put in its place. */
static kr_arena_block *advance(kr_arena *arena, size_t bytes)
{
    kr_arena_block **link = arena->current ? &arena->current->next : &arena->first;
    if (!*link || (*link)->bytes < bytes) {
        kr_arena_block *block = block_create(arena, bytes > arena->block_bytes ? bytes : arena->block_bytes);
        if (!block) return NULL;
        block->next = *link;
        *link = block;
    }
    (*link)->offset = 0;
    return *link;
}

void *kr_arena_alloc(kr_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX - KR_ALIGN) return NULL;
    bytes = bytes ? (bytes + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN : KR_ALIGN;
    kr_arena_block *block = arena->current;
    if (!block || block->bytes - block->offset < bytes) {
        block = advance(arena, bytes);
        if (!block) return NULL;
        arena->current = block;
    }
    void *p = block->data + block->offset;
    block->offset += bytes;
    KR_UNPOISON(p, bytes);
    arena->used += bytes;
    if (arena->used > arena->peak) arena->peak = arena->used;
    return p;
}

kr_arena_mark kr_arena_mark_now(const kr_arena *arena)
{
    return (kr_arena_mark){ arena->current, arena->current ? arena->current->offset : 0, arena->used };
}

void kr_arena_release(kr_arena *arena, kr_arena_mark mark)
{
    for (kr_arena_block *block = mark.block ? mark.block->next : arena->first; block; block = block->next)
        KR_POISON(block->data, block->bytes);
    if (mark.block) {
        mark.block->offset = mark.offset;
        KR_POISON(mark.block->data + mark.offset, mark.block->bytes - mark.offset);
    }
    arena->current = mark.block;
    arena->used = mark.used;
}

bool kr_arena_is_after(const kr_arena *arena, kr_arena_mark mark, const void *p)
{
    if (!arena->current) return false;
    const uintptr_t at = (uintptr_t)p;
    size_t from = mark.block ? mark.offset : 0;
    for (const kr_arena_block *block = mark.block ? mark.block : arena->first; block; block = block->next, from = 0) {
        if (at >= (uintptr_t)block->data + from && at < (uintptr_t)block->data + block->offset) return true;
        if (block == arena->current) break; /* later blocks are kept for reuse */
    }
    return false;
}

void kr_arena_reset(kr_arena *arena)
{
    kr_arena_release(arena, (kr_arena_mark){ NULL, 0, 0 });
    if (arena->first && arena->first->next) {
        chain_destroy(arena, arena->first);
        arena->first = NULL;
        if (arena->peak > arena->block_bytes) arena->block_bytes = arena->peak;
    }
}
