/* test_mamba3_laws.c - the laws of blocks over the variants of Mamba-3, by both pathways. */
#include "tests/nn/block_laws.h"
#include "tests/nn/mamba3_reference.h"

/* In a quick run every fourth of them, from the first given. */
static void each_variant(void (*law)(const block_case *c), int first)
{
    const bool quick = kr_test_quick();
    for (int i = quick ? first : 0; variant_at(i); i += quick ? 4 : 1) {
        const variant v = *variant_at(i);
        law(&(block_case){ v.name, kr_mamba3_block(&v.config) });
    }
}

TEST(mamba3_laws)
{
    each_variant(block_laws, 0);
}

TEST(mamba3_laws_16bit)
{
    each_variant(block_laws_16bit, 3);
}

/* The double pathway as the config's own: sequences, rows and paths go that way too. */
TEST(mamba3_laws_double)
{
    static const char *const names[] = { "base", "mimo 2, n_groups 2", "quaternion, rope 0.5", "learned state",
                                         "everything" };
    for (int i = 0; variant_at(i); i++) {
        variant v = *variant_at(i);
        v.config.pathway = KR_MAMBA3_PATHWAY_DOUBLE;
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (strcmp(names[k], v.name) == 0 && (!kr_test_quick() || k % 2))
                block_laws(&(block_case){ v.name, kr_mamba3_block(&v.config) });
    }
}

TEST(mamba3_laws_threads)
{
    static const char *const names[] = { "base", "quaternion, mimo, n_groups 2", "everything" };
    for (int i = 0; variant_at(i); i++) {
        variant v = *variant_at(i);
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            if (strcmp(names[k], v.name) != 0) continue;
            v.config.pathway = k % 2 ? KR_MAMBA3_PATHWAY_DOUBLE : KR_MAMBA3_PATHWAY_SINGLE;
            v.config.d_model = 36; /* rows wide enough to be cut into tasks */
            block_laws_threads(&(block_case){ v.name, kr_mamba3_block(&v.config) });
        }
    }
}
