/* arena.c - a chain of blocks, filled in order; a mark is a position in that chain. */
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

/* Blocks with separate headers are not poisoned: their data may be device memory. */
static void poison(const kr_arena *arena, void *p, size_t bytes)
{
    if (!arena->heads) KR_POISON(p, bytes);
}

void kr_arena_init(kr_arena *arena, kr_memory *memory, size_t block_bytes)
{
    *arena = (kr_arena){ .memory = memory, .block_bytes = block_bytes };
}

void kr_arena_init_device(kr_arena *arena, kr_memory *memory, kr_memory *heads, size_t block_bytes)
{
    *arena = (kr_arena){ .memory = memory, .heads = heads, .block_bytes = block_bytes };
}

static kr_arena_block *block_create_split(kr_arena *arena, size_t bytes)
{
    kr_arena_block *block = kr_memory_alloc(arena->heads, sizeof *block);
    char *data = block ? kr_memory_alloc(arena->memory, bytes) : NULL;
    if (data) *block = (kr_arena_block){ .bytes = bytes, .data = data };
    else kr_memory_free(arena->heads, block, sizeof *block);
    return data ? block : NULL;
}

static kr_arena_block *block_create(kr_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX - HEADER) return NULL;
    if (arena->heads) return block_create_split(arena, bytes);
    kr_arena_block *block = kr_memory_alloc(arena->memory, HEADER + bytes);
    if (!block) return NULL;
    *block = (kr_arena_block){ .bytes = bytes, .data = (char *)block + HEADER };
    KR_POISON(block->data, bytes);
    return block;
}

static void block_destroy(kr_arena *arena, kr_arena_block *block)
{
    if (arena->heads) {
        kr_memory_free(arena->memory, block->data, block->bytes);
        kr_memory_free(arena->heads, block, sizeof *block);
        return;
    }
    KR_UNPOISON(block->data, block->bytes);
    kr_memory_free(arena->memory, block, HEADER + block->bytes);
}

static void chain_destroy(kr_arena *arena, kr_arena_block *block)
{
    if (!arena->heads && kr_memory_is_parents(arena->memory)) return; /* the headers are out of reach */
    while (block) {
        kr_arena_block *next = block->next;
        block_destroy(arena, block);
        block = next;
    }
}

void kr_arena_deinit(kr_arena *arena)
{
    chain_destroy(arena, arena->first);
    *arena = (kr_arena){ .memory = arena->memory, .heads = arena->heads, .block_bytes = arena->block_bytes };
}

/* The next block of the chain if the request fits it, else a new block, inserted before it. */
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
    if (!arena->heads) KR_UNPOISON(p, bytes);
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
        poison(arena, block->data, block->bytes);
    if (mark.block) {
        mark.block->offset = mark.offset;
        poison(arena, mark.block->data + mark.offset, mark.block->bytes - mark.offset);
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

bool kr_arena_reserve(kr_arena *arena)
{
    const size_t peak = arena->peak;
    const bool ok = peak == 0 || kr_arena_alloc(arena, peak);
    kr_arena_reset(arena);
    if (ok && peak > 0 && !arena->first) { /* several blocks were in use; one block of the peak's size replaces them */
        const bool again = kr_arena_alloc(arena, peak) != NULL;
        kr_arena_reset(arena);
        return again;
    }
    return ok;
}

const void *kr_arena_base(const kr_arena *arena)
{
    return arena->first ? arena->first->data : NULL;
}
