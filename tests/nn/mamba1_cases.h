/* mamba1_cases.h - the Mamba-1 blocks that the tests make. */
#ifndef KR_TESTS_NN_MAMBA1_CASES_H
#define KR_TESTS_NN_MAMBA1_CASES_H

#include "tests/harness.h"

/* What differs from the defaults at d_model = 32; 0 and false: nothing. */
typedef struct mamba1_case {
    const char *name;
    int64_t d_model, state_rank, conv_kernel, expand, d_inner, dt_rank;
    bool without_conv_bias, with_proj_bias, with_dt_limits, with_init_state, with_constant_dt, with_bcdt_norm;
} mamba1_case;

enum { NCASES = 15 };
extern const mamba1_case mamba1_cases[NCASES];

kr_mamba1_config mamba1_case_config(const mamba1_case *c, kr_dtype dtype);

/* All parameters that a block may have, in the order of its table. */
enum { A_LOG, SKIP_D, IN, IN_BIAS, CONV, CONV_BIAS, X_PROJ, DT_PROJ, DT_BIAS, OUT, OUT_BIAS, INIT_STATE, NPARAMS };
extern const char *const mamba1_names[NPARAMS];

/* NULL where the block has no such parameter. */
kr_tensor *mamba1_param(const kr_mamba1 *block, int i);

/* A block whose parameters differ all over: those that begin alike everywhere (ones, zeros, the same row again) would
 * hide a wrong index. The steps are of all sizes, so that limits hold some and let some pass. */
kr_mamba1 *mamba1_scattered(kr_ctx *ctx, const kr_mamba1_config *config);

/* No error; one is forgotten, for the cases that follow. */
bool went_well(kr_ctx *ctx);

#endif
