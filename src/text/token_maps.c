/* token_maps.c - filling and searching the hash tables of a vocabulary. */
#include "text/token_maps.h"

#include <string.h>

static uint64_t slots_for(int64_t count)
{
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)count + 1) slots *= 2;
    return slots;
}

bool kr_token_map_init(kr_token_map *map, kr_arena *arena, uint64_t seed, const kr_token *tokens, int64_t count)
{
    const uint64_t slots = slots_for(count);
    *map = (kr_token_map){ seed, slots - 1, tokens, kr_arena_alloc(arena, slots * sizeof *map->slots) };
    if (map->slots) memset(map->slots, 0, slots * sizeof *map->slots);
    return map->slots != NULL;
}

/* Slot of the token with these bytes, or the free slot for it. */
static uint64_t token_slot(const kr_token_map *map, const char *text, size_t bytes)
{
    uint64_t slot = kr_hash_bytes(map->seed, text, bytes) & map->mask;
    for (;; slot = (slot + 1) & map->mask) {
        if (map->slots[slot] == 0) return slot;
        const kr_token *token = &map->tokens[map->slots[slot] - 1];
        if (token->bytes == bytes && memcmp(token->text, text, bytes) == 0) return slot;
    }
}

bool kr_token_map_add(kr_token_map *map, int32_t path)
{
    const uint64_t slot = token_slot(map, map->tokens[path].text, map->tokens[path].bytes);
    if (map->slots[slot] != 0) return false;
    map->slots[slot] = (uint32_t)path + 1;
    return true;
}

int32_t kr_token_map_find(const kr_token_map *map, const char *text, size_t bytes)
{
    return (int32_t)map->slots[token_slot(map, text, bytes)] - 1;
}

bool kr_merge_map_init(kr_merge_map *map, kr_arena *arena, uint64_t seed, int64_t count)
{
    const uint64_t slots = slots_for(count);
    *map = (kr_merge_map){ seed, slots - 1, kr_arena_alloc(arena, slots * sizeof *map->slots) };
    for (uint64_t i = 0; map->slots && i < slots; i++) map->slots[i] = (kr_merge){ .rank = KR_NO_MERGE };
    return map->slots != NULL;
}

bool kr_merge_map_add(kr_merge_map *map, int32_t left, int32_t right, uint32_t rank, int32_t merged)
{
    kr_merge *slot = &map->slots[kr_merge_map_find(map, left, right) - map->slots];
    if (slot->rank != KR_NO_MERGE) return false;
    *slot = (kr_merge){ (uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, merged };
    return true;
}
