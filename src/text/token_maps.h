/* token_maps.h - hash tables of a vocabulary: bytes -> token, and two tokens -> their merge.
 *
 * Open addressing, at most half full. A table's hash is seeded with a number that depends on the whole file, so that a
 * file cannot be crafted to fill few slots.
 */
#ifndef KR_TEXT_TOKEN_MAPS_H
#define KR_TEXT_TOKEN_MAPS_H

#include "base/arena.h"
#include "base/hash.h"

/* A token; tokens are identified by their index in the table, which need not be their id. */
typedef struct kr_token {
    const char *text; /* its bytes */
    uint32_t bytes;
    int32_t id;
    bool is_added, is_special;
    /* Do its bytes, as a piece of text, encode to this one token? A kr_whole, computed when needed; every thread that encodes
     * computes the same. */
    _Atomic uint8_t is_whole;
} kr_token;
typedef enum kr_whole { KR_WHOLE_UNKNOWN = 0, KR_WHOLE_YES, KR_WHOLE_NO } kr_whole;

typedef struct kr_token_map {
    uint64_t seed, mask;
    const kr_token *tokens;
    uint32_t *slots; /* 1 + index in tokens; 0: free */
} kr_token_map;

/* Capacity for `count` tokens; false if out of memory. */
bool kr_token_map_init(kr_token_map *map, kr_arena *arena, uint64_t seed, const kr_token *tokens, int64_t count);

/* Adds tokens[path]; false if one with the same bytes exists. */
bool kr_token_map_add(kr_token_map *map, int32_t path);

/* The index of the token with these bytes; -1: none. */
int32_t kr_token_map_find(const kr_token_map *map, const char *text, size_t bytes);

typedef struct kr_merge {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* merges of lower rank come first; KR_NO_MERGE: the slot is free */
    int32_t merged;
} kr_merge;
#define KR_NO_MERGE UINT32_MAX

typedef struct kr_merge_map {
    uint64_t seed, mask;
    kr_merge *slots;
} kr_merge_map;

bool kr_merge_map_init(kr_merge_map *map, kr_arena *arena, uint64_t seed, int64_t count);
bool kr_merge_map_add(kr_merge_map *map, int32_t left, int32_t right, uint32_t rank, int32_t merged);

static inline uint64_t kr_merge_map_slot(const kr_merge_map *map, uint64_t pair)
{
    const uint64_t hash = (pair ^ map->seed) * UINT64_C(0x9E3779B97F4A7C15);
    return (hash ^ hash >> 32) & map->mask;
}

/* The merge of two tokens, or a free slot: check its rank. */
static inline const kr_merge *kr_merge_map_find(const kr_merge_map *map, int32_t left, int32_t right)
{
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t slot = kr_merge_map_slot(map, pair);
    while (map->slots[slot].rank != KR_NO_MERGE && map->slots[slot].pair != pair) slot = (slot + 1) & map->mask;
    return &map->slots[slot];
}

#endif
