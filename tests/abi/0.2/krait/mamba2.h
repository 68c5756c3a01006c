/* mamba2.h - the Mamba-2 block: projection, short convolution, state space core, gated norm, projection.
 *
 *   kr_mamba2_config config;
 *   kr_mamba2_config_init(&config);                              // the official defaults
 *   config.d_model = 256;
 *   kr_mamba2 *block = kr_mamba2_create(ctx, &config);
 *   kr_mamba2_out whole = kr_mamba2_forward(tape, block, x_bsd, NULL, kr_mamba2_path(block));
 *   kr_mamba2_out next = kr_mamba2_step(tape, block, x_bd, &whole.cache);
 *   kr_mamba2_destroy(block);
 *
 * Calls are pure: a cache is read, a new one is returned. Any mix of forwards and steps over one sequence gives the
 * same outputs, final cache and gradients.
 */
#ifndef KRAIT_MAMBA2_H
#define KRAIT_MAMBA2_H

#include <krait/params.h>
#include <krait/ssd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_mamba2_config {
    size_t size;    /* set by kr_mamba2_config_init */
    kr_dtype dtype; /* f32; of the matrices. With bf16 or f16 the small parameters stay in f32 */
    int64_t d_model;
    int64_t state_rank;    /* 128 */
    int64_t conv_kernel;   /* 4 */
    double conv_init;      /* 0: +-1/sqrt(conv_kernel); else the bound of the initial taps */
    int64_t expand;        /* 2 */
    int64_t per_head_dim;  /* 64 */
    int64_t d_ssm;         /* 0: all of d_inner; less: the rest of the width is a gated MLP in parallel with the SSM */
    int64_t ngroups;       /* 1 */
    double a_init_min;     /* 1: range of the initial decay rates */
    double a_init_max;     /* 16 */
    bool has_d_per_dim;    /* false: a skip for each head; true: for each head and channel (D_has_hdim) */
    bool has_norm;         /* true: gated RMS norm; false: the gate alone (rmsnorm) */
    bool norm_before_gate; /* false */
    bool norm_per_group;   /* true: each of the ngroups by itself; false: the whole width */
    double norm_eps;       /* 1e-5 */
    bool has_proj_bias;    /* false: in_proj and out_proj */
    bool has_conv_bias;    /* true */
    double dt_min;         /* 1e-3: range of the initial steps ... */
    double dt_max;         /* 0.1 */
    double dt_init_floor;  /* 1e-4: ... and their least */
    double dt_limit_min;   /* 0, infinity: the step is kept between them, in forward and in step */
    double dt_limit_max;
    bool has_learnable_init_state; /* false; the state before the first token of a sequence is a parameter [h p r] */
    kr_ssd_path path;              /* what stacks run it by: SerialRecalculated with the optimal chunk length */
} kr_mamba2_config;
#define kr_mamba2_config_init(config) KR_STRUCT_INIT(MAMBA2_CONFIG, kr_mamba2_config, config)

typedef struct kr_mamba2 kr_mamba2;

/* Recurrent state after a sequence: convolution window and SSM state. */
typedef struct kr_mamba2_cache {
    kr_tensor *conv_bvk; /* the last k inputs of the convolution, newest last */
    kr_tensor *ssm_bhpr;
} kr_mamba2_cache;

typedef struct kr_mamba2_out {
    kr_tensor *y; /* of x's shape */
    kr_mamba2_cache cache;
} kr_mamba2_out;

#ifdef __cplusplus
}
#endif

#include <krait/block.h> /* kr_mamba2_create, kr_mamba2_forward, ... over kr_block */
#endif
