/* philox.h - Philox 4x32-10, the counter-based generator behind every random tensor.
 *
 *   key = seed (low, high);   counter = (block low, block high, stream low, stream high)
 *
 * Four 32-bit words come from one counter with no state between blocks, so any block can be computed alone and any
 * partition of the work gives the same numbers. Plain integer arithmetic, valid C11 and CUDA C. Algorithm: Salmon,
 * Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
 */
#ifndef KR_BASE_PHILOX_H
#define KR_BASE_PHILOX_H

#include "base/host_device.h"

#include <stdint.h>

typedef struct kr_philox_block {
    uint32_t word[4];
} kr_philox_block;

KR_EVERYWHERE kr_philox_block kr_philox(kr_philox_block counter, uint32_t key0, uint32_t key1)
{
    kr_philox_block c = counter;
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c.word[0];
        uint64_t product1 = (uint64_t)0xCD9E8D57u * c.word[2];
        kr_philox_block next;
        next.word[0] = (uint32_t)(product1 >> 32) ^ c.word[1] ^ key0;
        next.word[1] = (uint32_t)product1;
        next.word[2] = (uint32_t)(product0 >> 32) ^ c.word[3] ^ key1;
        next.word[3] = (uint32_t)product0;
        c = next;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

/* Block number `block` of stream `stream` under `seed`. */
KR_EVERYWHERE kr_philox_block kr_philox_at(uint64_t seed, uint64_t stream, uint64_t block)
{
    kr_philox_block counter;
    counter.word[0] = (uint32_t)block;
    counter.word[1] = (uint32_t)(block >> 32);
    counter.word[2] = (uint32_t)stream;
    counter.word[3] = (uint32_t)(stream >> 32);
    return kr_philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
}

#endif
