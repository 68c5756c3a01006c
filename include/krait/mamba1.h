/* mamba1.h - the Mamba-1 block: projection, short convolution, selective scan, gate, projection.
 *
 *   kr_mamba1_config config;
 *   kr_mamba1_config_init(&config);                              // the official defaults
 *   config.d_model = 256;
 *   kr_mamba1 *block = kr_mamba1_create(ctx, &config);
 *   kr_mamba1_out whole = kr_mamba1_forward(tape, block, x_bsd, NULL);           // a sequence at once
 *   kr_mamba1_out next = kr_mamba1_step(tape, block, x_bd, &whole.cache);        // and one token more
 *   kr_mamba1_destroy(block);
 *
 * Calls are pure: a cache is read, a new one is returned. Any mix of forwards and steps over one sequence gives the
 * same outputs, final cache and gradients.
 */
#ifndef KRAIT_MAMBA1_H
#define KRAIT_MAMBA1_H

#include <krait/ops_nn.h>
#include <krait/params.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_mamba1_config {
    size_t size;    /* set by kr_mamba1_config_init */
    kr_dtype dtype; /* f32; of the matrices. With bf16 or f16 the small parameters stay in f32 */
    int64_t d_model;
    int64_t state_rank;   /* 16 */
    int64_t conv_kernel;  /* 4 */
    int64_t expand;       /* 2 */
    int64_t d_inner;      /* 0: expand d_model */
    int64_t dt_rank;      /* 0: d_model / 16, rounded up */
    bool has_conv_bias;   /* true */
    bool has_proj_bias;   /* false: in_proj and out_proj */
    double dt_min;        /* 1e-3: range of the initial steps ... */
    double dt_max;        /* 0.1 */
    double dt_init_floor; /* 1e-4: ... and their least */
    double dt_scale;      /* 1: of dt_proj's initial weights ... */
    bool has_constant_dt; /* false: ... which are drawn; true: all equal to the bound */
    double dt_limit_min;  /* 0, infinity: the step is kept between them, in forward and in step */
    double dt_limit_max;
    bool has_learnable_init_state; /* false; the state before the first token of a sequence is a parameter [i r] */
    /* 0: none; else B, C and the low-rank step are each divided by their RMS, with this eps, before they are used, as
     * FalconMamba does */
    double bcdt_norm_eps;
} kr_mamba1_config;
#define kr_mamba1_config_init(config) KR_STRUCT_INIT(MAMBA1_CONFIG, kr_mamba1_config, config)

typedef struct kr_mamba1 kr_mamba1;

/* Recurrent state after a sequence: convolution window and SSM state. */
typedef struct kr_mamba1_cache {
    kr_tensor *conv_bik; /* the last k inputs of the convolution, newest last */
    kr_tensor *ssm_bir;
} kr_mamba1_cache;

typedef struct kr_mamba1_out {
    kr_tensor *y; /* of x's shape */
    kr_mamba1_cache cache;
} kr_mamba1_out;

#ifdef __cplusplus
}
#endif

#include <krait/block.h> /* kr_mamba1_create, kr_mamba1_forward, ... over kr_block */
#endif
