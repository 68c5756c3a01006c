/* device_heap.h - device memory that is freed out of order, for gradients.
 *
 * Best fit over spans in order of address, neighbours joined, as in heap.h; but the span descriptors are separate, in
 * host memory. Spans begin and end at multiples of 256 bytes. `used` counts the rounded bytes in use.
 */
#ifndef KR_BASE_DEVICE_HEAP_H
#define KR_BASE_DEVICE_HEAP_H

#include "base/alloc.h"

typedef struct kr_device_span {
    char *data;
    size_t bytes;
    bool is_free, begins_chunk;
    struct kr_device_span *prev, *next; /* all spans; those of a chunk one after another, by address */
} kr_device_span;

typedef struct kr_device_heap {
    kr_memory *memory, *heads; /* of the spans' data, and of their descriptors */
    size_t chunk_bytes;        /* smallest chunk that is requested from memory */
    kr_device_span *spans, *spare;
    size_t used, peak;
} kr_device_heap;

void kr_device_heap_init(kr_device_heap *heap, kr_memory *memory, kr_memory *heads, size_t chunk_bytes);
void kr_device_heap_deinit(kr_device_heap *heap);

kr_device_span *kr_device_heap_alloc(kr_device_heap *heap, size_t bytes); /* NULL if the allocation fails */
void kr_device_heap_free(kr_device_heap *heap, kr_device_span *span);

/* Frees everything. Several chunks are replaced by one of their total size at the next allocation. */
void kr_device_heap_reset(kr_device_heap *heap);

#endif
