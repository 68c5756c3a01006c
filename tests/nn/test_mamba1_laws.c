/* test_mamba1_laws.c - the laws of blocks over the cases of Mamba-1. */
#include "tests/nn/block_laws.h"
#include "tests/nn/mamba1_cases.h"

static void laws(const char *name)
{
    for (int i = 0; i < NCASES; i++) {
        if (strcmp(mamba1_cases[i].name, name) != 0) continue;
        const kr_mamba1_config config = mamba1_case_config(&mamba1_cases[i], KR_DTYPE_F32);
        block_laws(&(block_case){ name, kr_mamba1_block(&config) });
        return;
    }
    CHECK(false, "there is no case \"%s\"", name);
}

#define LAWS(test, name)                                                                                               \
    TEST(mamba1_laws_##test)                                                                                           \
    {                                                                                                                  \
        laws(name);                                                                                                    \
    }
LAWS(base, "base")
LAWS(state_rank_8, "state_rank 8")
LAWS(conv_2, "conv 2")
LAWS(conv_1, "conv 1")
LAWS(expand_1, "expand 1")
LAWS(dt_rank_8, "dt_rank 8")
LAWS(no_conv_bias, "no conv bias")
LAWS(proj_bias, "proj bias")
LAWS(dt_limits, "dt limits")
LAWS(d_inner, "d_inner 40")
LAWS(init_state, "learnable init state")
LAWS(constant_dt, "constant dt")
LAWS(odd_sizes, "odd sizes")
LAWS(normed, "B, C and dt normed")
LAWS(normed_odd_sizes, "normed, odd sizes")

TEST(mamba1_laws_16bit)
{
    for (int i = 0; i < NCASES; i++) {
        const kr_mamba1_config config = mamba1_case_config(&mamba1_cases[i], KR_DTYPE_F32);
        block_laws_16bit(&(block_case){ mamba1_cases[i].name, kr_mamba1_block(&config) });
    }
}

TEST(mamba1_threads)
{
    const kr_mamba1_config config = mamba1_case_config(&mamba1_cases[0], KR_DTYPE_F32);
    block_laws_threads(&(block_case){ "base", kr_mamba1_block(&config) });
}
