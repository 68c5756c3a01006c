/* test_conformance.c - for each entry of kernels.def: its values on every set, the same bits for 1, 2 and 3 threads,
 * and the same bits for a row computed alone. The framework is in conformance.c, the cases are in the files cases_. */
#include "tests/kernels/conformance.h"

/* Kernels that sum over rows have no row that could be computed alone. */
static bool rows_meet(const char *kernel)
{
    return strcmp(kernel, "embedding_bwd") == 0 || strcmp(kernel, "finite") == 0 || strcmp(kernel, "squares") == 0;
}

#define KR_KERNEL(name, args)                                                                                          \
    static void values_##name(void)                                                                                    \
    {                                                                                                                  \
        CHECK(kr_sweep_run(#name, KR_SWEEP_VALUES) > 0, "no cases");                                                   \
    }                                                                                                                  \
    static void threads_##name(void)                                                                                   \
    {                                                                                                                  \
        CHECK(kr_sweep_run(#name, KR_SWEEP_THREADS) > 0, "no cases that make several tasks");                          \
    }                                                                                                                  \
    static void row_##name(void)                                                                                       \
    {                                                                                                                  \
        CHECK(kr_sweep_run(#name, KR_SWEEP_ROWS) > 0 || rows_meet(#name), "no cases that can be cut to one row");      \
    }
#define KR_KERNEL_ANY(name, args) KR_KERNEL(name, args)
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY

#define KR_KERNEL(name, args)                                                                                          \
    kr_test_register("test_conformance.c", "values_" #name, values_##name);                                            \
    kr_test_register("test_conformance.c", "threads_" #name, threads_##name);                                          \
    kr_test_register("test_conformance.c", "row_" #name, row_##name);
#define KR_KERNEL_ANY(name, args) KR_KERNEL(name, args)
__attribute__((constructor)) static void register_all(void){
#include "kernels/kernels.def"
}
#undef KR_KERNEL
#undef KR_KERNEL_ANY

TEST(at_least_the_reference_runs)
{
    CHECK(kr_runnable_set(0) && strcmp(kr_runnable_set(0)->name, "ref") == 0, "the first set is not the reference");
    if (getenv("KR_TEST_VERBOSE"))
        for (int n = 0; kr_runnable_set(n); n++) printf("set %s\n", kr_runnable_set(n)->name);
}
