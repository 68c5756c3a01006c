/* heapsort.h - sorts pointers: heap sort, O(n log n) for any input and in place. */
#ifndef KR_IO_HEAPSORT_H
#define KR_IO_HEAPSORT_H

#include <stdint.h>

/* < 0: a comes before b. */
typedef int kr_compare_fn(const void *a, const void *b);

void kr_sort_pointers(const void **items, int64_t count, kr_compare_fn *compare);

#endif
