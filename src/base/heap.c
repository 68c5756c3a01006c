/* heap.c - spans of memory, each preceded by a header with its length. */
#include "base/heap.h"

#include "base/poison.h"

enum { UNIT = 64 }; /* alignment of data, and size of a header */

struct kr_heap_chunk {
    kr_heap_chunk *next;
    size_t bytes; /* of spans, after this header */
};

struct kr_heap_span {
    size_t bytes;       /* header included */
    kr_heap_span *next; /* in the free list */
    kr_heap_chunk *chunk;
};

_Static_assert(sizeof(kr_heap_chunk) <= UNIT && sizeof(kr_heap_span) <= UNIT, "headers fit into a unit");

void kr_heap_init(kr_heap *heap, kr_memory *memory, size_t chunk_bytes)
{
    *heap = (kr_heap){ .memory = memory, .chunk_bytes = chunk_bytes };
}

static kr_heap_span *first_span(kr_heap_chunk *chunk)
{
    return (kr_heap_span *)((char *)chunk + UNIT);
}

static void poison_span(kr_heap_span *span)
{
    KR_POISON((char *)span + UNIT, span->bytes - UNIT);
}

void kr_heap_deinit(kr_heap *heap)
{
    for (kr_heap_chunk *chunk = heap->chunks; chunk;) {
        kr_heap_chunk *next = chunk->next;
        KR_UNPOISON((char *)chunk + UNIT, chunk->bytes);
        kr_memory_free(heap->memory, chunk, UNIT + chunk->bytes);
        chunk = next;
    }
    *heap = (kr_heap){ .memory = heap->memory, .chunk_bytes = heap->chunk_bytes, .peak = heap->peak };
}

static bool adjoin(const kr_heap_span *low, const kr_heap_span *high)
{
    return low->chunk == high->chunk && (const char *)low + low->bytes == (const char *)high;
}

static void insert_free(kr_heap *heap, kr_heap_span *span)
{
    kr_heap_span *before = NULL, *after = heap->free;
    while (after && (uintptr_t)after < (uintptr_t)span) {
        before = after;
        after = after->next;
    }
    span->next = after;
    if (before) before->next = span;
    else heap->free = span;
    if (after && adjoin(span, after)) {
        span->bytes += after->bytes;
        span->next = after->next;
    }
    if (before && adjoin(before, span)) {
        before->bytes += span->bytes;
        before->next = span->next;
        span = before;
    }
    poison_span(span);
}

static bool grow(kr_heap *heap, size_t bytes)
{
    const size_t size = bytes > heap->chunk_bytes ? bytes : heap->chunk_bytes;
    if (size > SIZE_MAX - UNIT) return false;
    kr_heap_chunk *chunk = kr_memory_alloc(heap->memory, UNIT + size);
    if (!chunk) return false;
    *chunk = (kr_heap_chunk){ heap->chunks, size };
    heap->chunks = chunk;
    kr_heap_span *span = first_span(chunk);
    *span = (kr_heap_span){ .bytes = size, .chunk = chunk };
    insert_free(heap, span);
    return true;
}

/* The link that holds the smallest free span of at least `bytes`, or NULL. */
static kr_heap_span **best_fit(kr_heap *heap, size_t bytes)
{
    kr_heap_span **best = NULL;
    for (kr_heap_span **link = &heap->free; *link; link = &(*link)->next)
        if ((*link)->bytes >= bytes && (!best || (*link)->bytes < (*best)->bytes)) best = link;
    return best;
}

void *kr_heap_alloc(kr_heap *heap, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = UNIT + (bytes ? (bytes + UNIT - 1) / UNIT * UNIT : UNIT);
    kr_heap_span **link = best_fit(heap, bytes);
    if (!link) {
        if (!grow(heap, bytes)) return NULL;
        link = best_fit(heap, bytes);
    }
    kr_heap_span *span = *link;
    KR_UNPOISON((char *)span + UNIT, bytes - UNIT);
    if (span->bytes >= bytes + 2 * UNIT) {
        kr_heap_span *rest = (kr_heap_span *)((char *)span + bytes);
        KR_UNPOISON(rest, UNIT);
        *rest = (kr_heap_span){ .bytes = span->bytes - bytes, .next = span->next, .chunk = span->chunk };
        span->bytes = bytes;
        *link = rest;
    } else {
        KR_UNPOISON((char *)span + UNIT, span->bytes - UNIT);
        *link = span->next;
    }
    heap->used += span->bytes;
    if (heap->used > heap->peak) heap->peak = heap->used;
    return (char *)span + UNIT;
}

void kr_heap_free(kr_heap *heap, void *p)
{
    if (!p) return;
    kr_heap_span *span = (kr_heap_span *)((char *)p - UNIT);
    heap->used -= span->bytes;
    insert_free(heap, span);
}

void kr_heap_reset(kr_heap *heap)
{
    if (heap->chunks && heap->chunks->next) {
        size_t total = 0;
        for (kr_heap_chunk *chunk = heap->chunks; chunk; chunk = chunk->next) total += chunk->bytes;
        kr_heap_deinit(heap);
        heap->chunk_bytes = total;
    } else if (heap->chunks) {
        kr_heap_span *span = first_span(heap->chunks);
        KR_UNPOISON(span, heap->chunks->bytes);
        *span = (kr_heap_span){ .bytes = heap->chunks->bytes, .chunk = heap->chunks };
        poison_span(span);
        heap->free = span;
        heap->used = 0;
    }
}
