/* bidi_cases.h - small stacks in both directions, of every family, for the tests. */
#ifndef KR_TESTS_NN_BIDI_CASES_H
#define KR_TESTS_NN_BIDI_CASES_H

#include "tests/harness.h"

enum { BIDI_ND = 8, BIDI_FAMILIES = 3 };

/* Blocks of each family; a kr_block_config points into it. */
typedef struct bidi_blocks {
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
} bidi_blocks;
bidi_blocks bidi_blocks_of(kr_dtype dtype);
kr_block_config bidi_block(const bidi_blocks *blocks, int family);

/* A stack of 4 layers of that block, all else by default. */
kr_bidi_config bidi_small(const bidi_blocks *blocks, int family);

/* Moves all parameters off their initial values, of which many are alike. The same numbers each time, whatever the type
 * of the stack. */
void bidi_scatter(const kr_params *params);

/* kr_bidi_forward that begins from these caches. */
kr_bidi_out bidi_forward_from(kr_tape *tape, const kr_bidi *bidi, kr_tensor *x, const kr_cache *caches);

#endif
