/* far_heap.h - memory that is freed out of order and that the processor cannot touch: gradients on a device.
 *
 * Best fit over spans in order of address, neighbours joined, as in heap.h; but what is known of a span lies apart from
 * it. Spans begin and end at multiples of 256 bytes. `used` counts the rounded bytes handed out and not freed.
 */
#ifndef KR_BASE_FAR_HEAP_H
#define KR_BASE_FAR_HEAP_H

#include "base/alloc.h"

typedef struct kr_far_span {
    char *data;
    size_t bytes;
    bool is_free, begins_chunk;
    struct kr_far_span *prev, *next; /* all spans; those of a chunk one after another, by address */
} kr_far_span;

typedef struct kr_far_heap {
    kr_memory *memory, *heads; /* of the spans, and of what is known of them */
    size_t chunk_bytes;        /* smallest chunk that is asked of memory */
    kr_far_span *spans, *spare;
    size_t used, peak;
} kr_far_heap;

void kr_far_heap_init(kr_far_heap *heap, kr_memory *memory, kr_memory *heads, size_t chunk_bytes);
void kr_far_heap_deinit(kr_far_heap *heap);

kr_far_span *kr_far_heap_alloc(kr_far_heap *heap, size_t bytes); /* NULL when memory refuses */
void kr_far_heap_free(kr_far_heap *heap, kr_far_span *span);

/* Frees everything; several chunks become one of their size at the next need. */
void kr_far_heap_reset(kr_far_heap *heap);

#endif
