/* heap.h - memory that is freed out of order: gradients during the backward pass.
 *
 * Best fit over an address-ordered free list, neighbours joined. Pointers are 64-byte aligned. `used` counts the
 * rounded bytes in use, headers included. Under AddressSanitizer free memory is poisoned.
 */
#ifndef KR_BASE_HEAP_H
#define KR_BASE_HEAP_H

#include "base/alloc.h"

typedef struct kr_heap_chunk kr_heap_chunk;
typedef struct kr_heap_span kr_heap_span;

typedef struct kr_heap {
    kr_memory *memory;
    size_t chunk_bytes; /* smallest chunk that is requested from memory */
    kr_heap_chunk *chunks;
    kr_heap_span *free; /* by ascending address */
    size_t used, peak;
} kr_heap;

void kr_heap_init(kr_heap *heap, kr_memory *memory, size_t chunk_bytes);
void kr_heap_deinit(kr_heap *heap);

void *kr_heap_alloc(kr_heap *heap, size_t bytes); /* NULL if the allocation fails */
void kr_heap_free(kr_heap *heap, void *p);

/* Frees everything. Several chunks are replaced by one of the peak's size at the next allocation. */
void kr_heap_reset(kr_heap *heap);

#endif
