/* token_counts.c - a hash table from token ids to counts; at most half of its entries are in use. */
#include "generate/token_counts.h"

#include <string.h>

enum { LEAST_CAPACITY = 64 };

static size_t bytes_of(int64_t capacity)
{
    return (size_t)capacity * sizeof(kr_token_count);
}

/* Multiplication by an odd constant near 2^32 / golden ratio spreads neighbouring ids. */
static int64_t slot_of(int32_t id, int64_t capacity)
{
    return (int64_t)((uint32_t)id * UINT32_C(2654435769) >> 7) & (capacity - 1);
}

static kr_token_count *find(kr_token_count *entries, int64_t capacity, int32_t id)
{
    int64_t at = slot_of(id, capacity);
    while (entries[at].id >= 0 && entries[at].id != id) at = (at + 1) & (capacity - 1);
    return &entries[at];
}

static void make_free(kr_token_count *entries, int64_t capacity)
{
    for (int64_t i = 0; i < capacity; i++) entries[i] = (kr_token_count){ .id = -1 };
}

bool kr_token_counts_reserve(kr_token_counts *counts, kr_memory *memory, int64_t more)
{
    if (more > INT64_MAX / 8 - counts->count) return false;
    int64_t capacity = counts->capacity ? counts->capacity : LEAST_CAPACITY;
    while (capacity / 2 < counts->count + more) capacity *= 2;
    if (capacity == counts->capacity) return true;
    if ((uint64_t)capacity > SIZE_MAX / sizeof(kr_token_count)) return false;
    kr_token_count *entries = kr_memory_alloc(memory, bytes_of(capacity));
    if (!entries) return false;
    make_free(entries, capacity);
    int64_t at = 0;
    for (const kr_token_count *entry; (entry = kr_token_counts_next(counts, &at));)
        *find(entries, capacity, entry->id) = *entry;
    const int64_t count = counts->count;
    kr_token_counts_free(counts, memory);
    *counts = (kr_token_counts){ entries, capacity, count };
    return true;
}

kr_token_count *kr_token_counts_put(kr_token_counts *counts, int32_t id)
{
    kr_token_count *entry = find(counts->entries, counts->capacity, id);
    if (entry->id < 0) {
        *entry = (kr_token_count){ .id = id };
        counts->count++;
    }
    return entry;
}

const kr_token_count *kr_token_counts_next(const kr_token_counts *counts, int64_t *at)
{
    while (*at < counts->capacity) {
        const kr_token_count *entry = &counts->entries[(*at)++];
        if (entry->id >= 0) return entry;
    }
    return NULL;
}

bool kr_token_counts_copy(kr_token_counts *to, const kr_token_counts *from, kr_memory *memory)
{
    kr_token_counts copy = { .entries = NULL };
    if (from->count) {
        if (!kr_token_counts_reserve(&copy, memory, from->count)) return false;
        int64_t at = 0;
        for (const kr_token_count *entry; (entry = kr_token_counts_next(from, &at));)
            *kr_token_counts_put(&copy, entry->id) = *entry;
    }
    kr_token_counts_free(to, memory);
    *to = copy;
    return true;
}

void kr_token_counts_free(kr_token_counts *counts, kr_memory *memory)
{
    if (counts->capacity) kr_memory_free(memory, counts->entries, bytes_of(counts->capacity));
    *counts = (kr_token_counts){ .entries = NULL };
}
