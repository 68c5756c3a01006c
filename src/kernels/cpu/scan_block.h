/* scan_block.h - how the selective scan is split: blocks of adjacent channels of one group, lanes over channels.
 *
 * x, dt, z, y are [b s i], so that a vector of channels is one load, while B and C are scalars. Operands [i r] (a,
 * initial and final states) are transposed for a block to [r c]: SCAN_CHANNELS floats for each state, 0 beyond the
 * block's channels. A block does not cross groups, so that its channels share B and C.
 */
#ifndef KR_KERNELS_CPU_SCAN_BLOCK_H
#define KR_KERNELS_CPU_SCAN_BLOCK_H

#include "kernels/cpu/ranges.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"
#include "kernels/args/ssd_args.h"

enum { SCAN_CHANNELS = 64 };

typedef struct scan_channels {
    int64_t first, count, group;
} scan_channels;

/* Channels first .. first+count-1 are block `index` of the blocks of `length` channels in groups of `width` channels. */
static inline scan_channels scan_channels_of(int64_t width, int64_t length, int64_t index)
{
    const int64_t per_group = kr_blocks(width, length), group = index / per_group;
    const int64_t offset = index % per_group * length;
    return (scan_channels){ group * width + offset, kr_smaller(length, width - offset), group };
}

/* to [r c] = from [c r]; from NULL is 0. */
static inline void scan_transpose_in(const float *from, const scan_channels *k, int64_t nr, float *to)
{
    if (!from || k->count < SCAN_CHANNELS) memset(to, 0, (size_t)(nr * SCAN_CHANNELS) * sizeof *to);
    if (from) kr_transpose(from + k->first * nr, nr, k->count, nr, to, SCAN_CHANNELS);
}

static inline void scan_transpose_out(const float *from, const scan_channels *k, int64_t nr, float *to)
{
    kr_transpose(from, SCAN_CHANNELS, nr, k->count, to + k->first * nr, nr);
}

KR_INLINE vf scan_load(const float *p, int64_t n)
{
    return n >= VF ? vf_load(p) : vf_load_n(p, n);
}

KR_INLINE void scan_store(float *p, int64_t n, vf v)
{
    if (n >= VF) vf_store(p, v);
    else vf_store_n(p, n, v);
}

/* Prefetches the cache lines of n floats from p on, which need not be addressable. The channels of adjacent tokens have
 * a stride of a row, beyond the reach of hardware prefetchers. */
KR_INLINE void scan_prefetch(const void *p, int64_t offset, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16)
        _mm_prefetch((const char *)(const void *)((uintptr_t)p + (uintptr_t)(offset + i) * sizeof(float)), _MM_HINT_T1);
}

#endif
