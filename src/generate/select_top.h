/* select_top.h - the largest of many numbers, without sorting the rest. */
#ifndef KR_GENERATE_SELECT_TOP_H
#define KR_GENERATE_SELECT_TOP_H

#include <stdbool.h>
#include <stdint.h>

/* A token and its rank key. The largest value comes first; among equals, the smallest id. No two are equal. */
typedef struct kr_ranked {
    double value;
    int32_t id;
} kr_ranked;

static inline bool kr_ranks_before(kr_ranked a, kr_ranked b)
{
    return (a.value > b.value) | ((a.value == b.value) & (a.id < b.id));
}

/* Moves the smallest set of first items whose measures add up to at least `target` to the front, in any order, and
 * returns the last of them; all items if their total is smaller. The measure of an item is 1, or with by_value its
 * value, which must not be negative. count >= 1, target > 0. Expected linear time. */
kr_ranked kr_rank_first(kr_ranked *items, int64_t count, double target, bool by_value);

/* All of them in their order. */
void kr_rank_all(kr_ranked *items, int64_t count);

#endif
