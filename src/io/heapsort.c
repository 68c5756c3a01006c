/* heapsort.c - heap sort over pointers. */
#include "io/heapsort.h"

static void exchange(const void **items, int64_t i, int64_t j)
{
    const void *kept = items[i];
    items[i] = items[j];
    items[j] = kept;
}

static void sift_down(const void **heap, int64_t at, int64_t count, kr_compare_fn *compare)
{
    for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && compare(heap[child], heap[child + 1]) < 0) child++;
        if (compare(heap[at], heap[child]) >= 0) return;
        exchange(heap, at, child);
        at = child;
    }
}

void kr_sort_pointers(const void **items, int64_t count, kr_compare_fn *compare)
{
    int64_t ordered = 1; /* sorted input, the common case of files, is left as it is */
    while (ordered < count && compare(items[ordered - 1], items[ordered]) <= 0) ordered++;
    if (ordered >= count) return;
    for (int64_t i = count / 2; i-- > 0;) sift_down(items, i, count, compare);
    for (int64_t last = count - 1; last > 0; last--) {
        exchange(items, 0, last);
        sift_down(items, 0, last, compare);
    }
}
