/* conv_groups.h - splits sequences into blocks of rows, and gathers short blocks into groups: the units of the
 * convolution.
 *
 * A block is up to KR_CONV_ROWS tokens of one sequence (a sequence without tokens is one empty block). A group is a run
 * of blocks with KR_CONV_ROWS tokens at most, so that sequences of any length make units of about one size. Groups
 * depend on the lengths of the sequences alone.
 */
#ifndef KR_KERNELS_CPU_CONV_GROUPS_H
#define KR_KERNELS_CPU_CONV_GROUPS_H

#include "kernels/cpu/ranges.h"

enum { KR_CONV_ROWS = 64 };

/* A block: tokens s0 .. s1-1 of sequence q, counted from its first. */
typedef struct kr_conv_block {
    int64_t q, s0, s1;
} kr_conv_block;

static inline int64_t kr_conv_length(const kr_sequence *sequence)
{
    return sequence->end - sequence->start;
}

static inline kr_conv_block kr_conv_block_at(const kr_sequence *sequences, int64_t nq, int64_t q, int64_t s0)
{
    kr_conv_block block = { q, s0, s0 };
    if (q < nq) block.s1 = kr_smaller(s0 + KR_CONV_ROWS, kr_conv_length(&sequences[q]));
    return block;
}

/* The block after this one; q = nq past the last. */
static inline kr_conv_block kr_conv_next(const kr_sequence *sequences, int64_t nq, kr_conv_block block)
{
    bool more = block.s1 < kr_conv_length(&sequences[block.q]);
    return kr_conv_block_at(sequences, nq, more ? block.q : block.q + 1, more ? block.s1 : 0);
}

/* Returns the number of groups. If `first` [groups + 1] is not NULL, writes the first block of each, then the end. */
static inline int64_t kr_conv_groups(const kr_sequence *sequences, int64_t nq, kr_conv_block *first)
{
    int64_t count = 0, rows = 0;
    kr_conv_block block = kr_conv_block_at(sequences, nq, 0, 0);
    for (; block.q < nq; block = kr_conv_next(sequences, nq, block)) {
        int64_t more = block.s1 - block.s0;
        if (count == 0 || (rows > 0 && rows + more > KR_CONV_ROWS)) {
            if (first) first[count] = block;
            count++;
            rows = 0;
        }
        rows += more;
    }
    if (first) first[count] = block;
    return count;
}

#endif
