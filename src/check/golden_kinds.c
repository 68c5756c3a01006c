/* golden_kinds.c - the kinds of case that are known, and in how many variants each is computed. */
#include "check/golden.h"

static const char *const one_variant[] = { "", NULL };
static const char *const calls[] = { "one call", "two calls", NULL };
static const char *const algorithms[] = { "minimal", "serial", "recalculated", NULL };
static const char *const updates[] = { "ops", "minimal", "serial", "recalculated", NULL };
static const char *const pathways[] = { "single minimal",
                                        "single serial",
                                        "single recalculated",
                                        "double minimal",
                                        "double serial",
                                        "double recalculated",
                                        NULL };
static const char *const packed_and_single[] = { "packed single minimal",
                                                 "packed single serial",
                                                 "packed single recalculated",
                                                 "packed double minimal",
                                                 "packed double serial",
                                                 "packed double recalculated",
                                                 "strided single minimal",
                                                 "strided single serial",
                                                 "strided single recalculated",
                                                 "strided double minimal",
                                                 "strided double serial",
                                                 "strided double recalculated",
                                                 NULL };

const golden_kind golden_kinds[] = {
    { "rmsnorm_gated", one_variant, golden_rmsnorm_gated },
    { "selective_scan", calls, golden_selective_scan },
    { "state_update", updates, golden_state_update },
    { "ssd_minimal", algorithms, golden_ssd_minimal },
    { "ssd_combined", algorithms, golden_ssd_combined },
    { "mamba3_siso_fwd", pathways, golden_mamba3_siso },
    { "mamba3_siso_step", pathways, golden_mamba3_siso_step },
    { "mamba3_siso_varlen", packed_and_single, golden_mamba3_siso_varlen },
    { "mamba3_mimo_chunk", pathways, golden_mamba3_mimo },
    { "mamba3_mimo_step", pathways, golden_mamba3_mimo_step },
    { 0 },
};
