/* select_top.h - the largest of many numbers, without sorting the rest. */
#ifndef KR_GENERATE_SELECT_TOP_H
#define KR_GENERATE_SELECT_TOP_H

#include <stdbool.h>
#include <stdint.h>

/* A token with what it is ranked by. The largest value comes first; among equals, the smallest id. No two are equal. */
typedef struct kr_ranked {
    double value;
    int32_t id;
} kr_ranked;

static inline bool kr_ranks_before(kr_ranked a, kr_ranked b)
{
    return (a.value > b.value) | ((a.value == b.value) & (a.id < b.id));
}

/* Puts the first ones that together measure at least `target` in front, in any order, and returns the last of them; all
 * of them, if they do not measure so much. Each measures 1, or with by_value its value, none of which is negative then.
 * count >= 1, target > 0. Linear time but for chance. */
kr_ranked kr_rank_first(kr_ranked *items, int64_t count, double target, bool by_value);

/* All of them in their order. */
void kr_rank_all(kr_ranked *items, int64_t count);

#endif
