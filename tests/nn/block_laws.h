/* block_laws.h - what holds for a block of every family, whatever its config.
 *
 *   kr_mamba2_config config = small();
 *   config.n_groups = 2;
 *   block_laws(&(block_case){ "ngroups 2", kr_mamba2_block(&config) });
 */
#ifndef KR_TESTS_NN_BLOCK_LAWS_H
#define KR_TESTS_NN_BLOCK_LAWS_H

#include <krait/block.h>

typedef struct block_case {
    const char *name;
    kr_block_config config; /* of f32, with small sizes: the checker makes copies of other types */
} block_case;

/* From initial and from random caches, outputs, final caches and gradients of x, caches and parameters:
 *   any mix of forwards and steps is the same; any path and chunk length; both pathways of Mamba-3
 *   packed rows are their sequences one by one; rows that forget are their pieces one by one
 *   a row has the same bits alone and in a batch (outputs, caches)
 *   gradients are those of differences in f64
 *   a cache matters */
void block_laws(const block_case *c);

/* Blocks of bf16 and f16: splits and sequences as above, and near the block of f32. */
void block_laws_16bit(const block_case *c);

/* Any number of threads gives the same bits. Apart, for tests with "threads" in their name. */
void block_laws_threads(const block_case *c);

#endif
