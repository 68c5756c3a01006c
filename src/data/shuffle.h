/* shuffle.h - a permutation of 0 .. n-1 by seed and stream, computed per index, without a table.
 *
 * A Feistel network of Philox rounds permutes the numbers of 2 h bits; a result that is not below n is permuted again,
 * until one is. That is a permutation of the numbers below n, because the network's cycles are walked in one direction.
 */
#ifndef KR_DATA_SHUFFLE_H
#define KR_DATA_SHUFFLE_H

#include "base/philox.h"

static inline int64_t kr_shuffled(int64_t n, uint64_t seed, uint64_t stream, int64_t i)
{
    enum { ROUNDS = 6, LEAST_HALF = 4 };
    int half = LEAST_HALF;
    while (half < 32 && (uint64_t)n > UINT64_C(1) << (2 * half)) half++;
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t value = (uint64_t)i;
    do {
        uint64_t left = value >> half, right = value & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            const uint64_t mixed = left ^ (kr_philox_at(seed, stream, round << 32 | right).word[0] & mask);
            left = right;
            right = mixed;
        }
        value = left << half | right;
    } while (value >= (uint64_t)n);
    return (int64_t)value;
}

#endif
