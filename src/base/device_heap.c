/* device_heap.c - a list of spans, used and free, that covers all chunks. */
#include "base/device_heap.h"

enum { UNIT = 256 }; /* alignment of the widest device accesses */

void kr_device_heap_init(kr_device_heap *heap, kr_memory *memory, kr_memory *heads, size_t chunk_bytes)
{
    *heap = (kr_device_heap){ .memory = memory, .heads = heads, .chunk_bytes = chunk_bytes };
}

static kr_device_span *new_span(kr_device_heap *heap)
{
    kr_device_span *span = heap->spare;
    if (!span) return kr_memory_alloc(heap->heads, sizeof *span);
    heap->spare = span->next;
    return span;
}

static void drop_span(kr_device_heap *heap, kr_device_span *span)
{
    span->next = heap->spare;
    heap->spare = span;
}

static void insert(kr_device_heap *heap, kr_device_span *prev, kr_device_span *span)
{
    span->prev = prev;
    span->next = prev ? prev->next : heap->spans;
    if (span->next) span->next->prev = span;
    if (prev) prev->next = span;
    else heap->spans = span;
}

static void take_out(kr_device_heap *heap, kr_device_span *span)
{
    if (span->next) span->next->prev = span->prev;
    if (span->prev) span->prev->next = span->next;
    else heap->spans = span->next;
}

/* Bytes of the chunk that begins with this span. */
static size_t chunk_bytes_at(const kr_device_span *first)
{
    size_t bytes = first->bytes;
    for (const kr_device_span *span = first->next; span && !span->begins_chunk; span = span->next) bytes += span->bytes;
    return bytes;
}

void kr_device_heap_deinit(kr_device_heap *heap)
{
    for (kr_device_span *span = heap->spans; span; span = span->next)
        if (span->begins_chunk) kr_memory_free(heap->memory, span->data, chunk_bytes_at(span));
    kr_device_span *lists[] = { heap->spans, heap->spare };
    for (int i = 0; i < 2; i++) {
        for (kr_device_span *span = lists[i]; span;) {
            kr_device_span *next = span->next;
            kr_memory_free(heap->heads, span, sizeof *span);
            span = next;
        }
    }
    *heap = (kr_device_heap){
        .memory = heap->memory, .heads = heap->heads, .chunk_bytes = heap->chunk_bytes, .peak = heap->peak
    };
}

static kr_device_span *grow(kr_device_heap *heap, size_t bytes)
{
    const size_t size = bytes > heap->chunk_bytes ? bytes : heap->chunk_bytes;
    kr_device_span *span = new_span(heap);
    char *data = span ? kr_memory_alloc(heap->memory, size) : NULL;
    if (!data) {
        if (span) drop_span(heap, span);
        return NULL;
    }
    *span = (kr_device_span){ .data = data, .bytes = size, .is_free = true, .begins_chunk = true };
    insert(heap, NULL, span);
    return span;
}

static kr_device_span *best_fit(const kr_device_heap *heap, size_t bytes)
{
    kr_device_span *best = NULL;
    for (kr_device_span *span = heap->spans; span; span = span->next)
        if (span->is_free && span->bytes >= bytes && (!best || span->bytes < best->bytes)) best = span;
    return best;
}

kr_device_span *kr_device_heap_alloc(kr_device_heap *heap, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = bytes ? (bytes + UNIT - 1) / UNIT * UNIT : UNIT;
    kr_device_span *span = best_fit(heap, bytes);
    if (!span && !(span = grow(heap, bytes))) return NULL;
    if (span->bytes > bytes) {
        kr_device_span *rest = new_span(heap);
        if (!rest) return NULL;
        *rest = (kr_device_span){ .data = span->data + bytes, .bytes = span->bytes - bytes, .is_free = true };
        insert(heap, span, rest);
        span->bytes = bytes;
    }
    span->is_free = false;
    heap->used += span->bytes;
    if (heap->used > heap->peak) heap->peak = heap->used;
    return span;
}

/* Joins a free span with the free one behind it in its chunk. */
static void join(kr_device_heap *heap, kr_device_span *span)
{
    kr_device_span *next = span->next;
    if (!span->is_free || !next || !next->is_free || next->begins_chunk) return;
    span->bytes += next->bytes;
    take_out(heap, next);
    drop_span(heap, next);
}

void kr_device_heap_free(kr_device_heap *heap, kr_device_span *span)
{
    if (!span) return;
    heap->used -= span->bytes;
    span->is_free = true;
    join(heap, span);
    if (!span->begins_chunk && span->prev) join(heap, span->prev);
}

void kr_device_heap_reset(kr_device_heap *heap)
{
    size_t total = 0;
    int nchunks = 0;
    for (kr_device_span *span = heap->spans; span; span = span->next) {
        total += span->bytes;
        nchunks += span->begins_chunk;
    }
    if (nchunks > 1) {
        kr_device_heap_deinit(heap);
        heap->chunk_bytes = total;
        return;
    }
    for (kr_device_span *span = heap->spans; span; span = span->next)
        if (!span->is_free) heap->used -= span->bytes, span->is_free = true;
    while (heap->spans && heap->spans->next) join(heap, heap->spans);
}
