/* select_top.c - selection and sorting by partition around a pivot: items before it, the pivot, items after it. */
#include "generate/select_top.h"

/* The middle one of three at pseudo-random indices. */
static int64_t choose_pivot(const kr_ranked *items, int64_t count)
{
    uint64_t mixed = (uint64_t)count * UINT64_C(0x9E3779B97F4A7C15);
    int64_t at[3];
    for (int i = 0; i < 3; i++) {
        mixed = (mixed ^ (mixed >> 29)) * UINT64_C(0xBF58476D1CE4E5B9);
        at[i] = (int64_t)((mixed >> 16) % (uint64_t)count);
    }
    const bool ab = kr_ranks_before(items[at[0]], items[at[1]]), bc = kr_ranks_before(items[at[1]], items[at[2]]),
               ac = kr_ranks_before(items[at[0]], items[at[2]]);
    return ab == bc ? at[1] : ab == ac ? at[2] : at[0];
}

/* Returns the pivot's index; *measure is the total of the items before it. The loop has no branch to mispredict. */
static int64_t partition(kr_ranked *items, int64_t count, bool by_value, double *measure)
{
    const int64_t chosen = choose_pivot(items, count);
    const kr_ranked pivot = items[chosen];
    items[chosen] = items[count - 1];
    int64_t index = 0;
    double sum = 0;
    for (int64_t i = 0; i < count - 1; i++) {
        const kr_ranked item = items[i];
        const bool is_before = kr_ranks_before(item, pivot);
        items[i] = items[index];
        items[index] = item;
        index += is_before;
        sum += is_before ? item.value : 0;
    }
    items[count - 1] = items[index];
    items[index] = pivot;
    *measure = by_value ? sum : (double)index;
    return index;
}

kr_ranked kr_rank_first(kr_ranked *items, int64_t count, double target, bool by_value)
{
    int64_t from = 0, to = count; /* the last one is in here, or items[to - 1] */
    double before = 0;            /* total of items[0..from): less than the target */
    while (from < to) {
        double measure;
        const int64_t index = from + partition(items + from, to - from, by_value, &measure);
        const double with_pivot = before + measure + (by_value ? items[index].value : 1);
        if (before + measure >= target) {
            to = index;
        } else if (with_pivot >= target) {
            return items[index];
        } else {
            before = with_pivot;
            from = index + 1;
        }
    }
    return items[to - 1];
}

void kr_rank_all(kr_ranked *items, int64_t count)
{
    while (count > 1) {
        double measure;
        const int64_t index = partition(items, count, false, &measure), after = count - index - 1;
        if (index < after) { /* recursion on the smaller part only: the depth is logarithmic */
            kr_rank_all(items, index);
            items += index + 1;
            count = after;
        } else {
            kr_rank_all(items + index + 1, after);
            count = index;
        }
    }
}
