/* row_queue.c - unread tokens of a row: appended at the end, taken from the front. */
#include "generate/batch_impl.h"

#include <string.h>

/* Capacity for `more` elements behind the `count` from *from on, which move to the front. */
static bool make_capacity(kr_memory *memory, void **items, size_t bytes, int64_t *capacity, int64_t *from,
                          int64_t count, int64_t more)
{
    enum { LEAST = 16 };
    const int64_t most = INT64_MAX / (int64_t)(4 * bytes);
    if (more > most - count) return false;
    if (*from + count + more <= *capacity) return true;
    char *at = *items;
    if (count + more <= *capacity / 2) {
        memmove(at, at + (size_t)*from * bytes, (size_t)count * bytes);
        *from = 0;
        return true;
    }
    int64_t wider = *capacity ? 2 * *capacity : LEAST;
    while (wider < count + more) wider *= 2;
    char *own = kr_memory_alloc(memory, (size_t)wider * bytes);
    if (!own) return false;
    if (count) memcpy(own, at + (size_t)*from * bytes, (size_t)count * bytes);
    if (*capacity) kr_memory_free(memory, at, (size_t)*capacity * bytes);
    *items = own;
    *capacity = wider;
    *from = 0;
    return true;
}

bool kr_row_queue_reserve(kr_row_queue *q, kr_memory *memory, int64_t more_ids, int64_t more_ends)
{
    void *items = q->ids, *ends = q->ends;
    const bool has_capacity =
        make_capacity(memory, &items, sizeof *q->ids, &q->capacity, &q->from, q->count, more_ids) &&
        make_capacity(memory, &ends, sizeof *q->ends, &q->end_capacity, &q->end_from, q->n_ends, more_ends);
    q->ids = items;
    q->ends = ends;
    return has_capacity;
}

void kr_row_queue_put(kr_row_queue *q, int32_t id)
{
    q->ids[q->from + q->count++] = id;
}

void kr_row_queue_put_end(kr_row_queue *q, int64_t end)
{
    q->ends[q->end_from + q->n_ends++] = end;
}

void kr_row_queue_take(kr_row_queue *q, int64_t count)
{
    q->from += count;
    q->count -= count;
    if (q->count == 0) q->from = 0;
}

void kr_row_queue_free(kr_row_queue *q, kr_memory *memory)
{
    if (q->capacity) kr_memory_free(memory, q->ids, (size_t)q->capacity * sizeof *q->ids);
    if (q->end_capacity) kr_memory_free(memory, q->ends, (size_t)q->end_capacity * sizeof *q->ends);
    *q = (kr_row_queue){ .ids = NULL };
}

bool kr_row_queue_copy(kr_row_queue *to, const kr_row_queue *from, kr_memory *memory)
{
    kr_row_queue copy = { .ids = NULL };
    if (!kr_row_queue_reserve(&copy, memory, from->count, from->n_ends)) {
        kr_row_queue_free(&copy, memory);
        return false;
    }
    for (int64_t i = 0; i < from->count; i++) kr_row_queue_put(&copy, from->ids[from->from + i]);
    for (int64_t i = 0; i < from->n_ends; i++) kr_row_queue_put_end(&copy, from->ends[from->end_from + i]);
    kr_row_queue_free(to, memory);
    *to = copy;
    return true;
}
