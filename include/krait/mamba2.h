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
    int64_t d_ssm;         /* 0: all of d_inner; less: the rest of the width is a gated MLP beside the state space */
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
KR_API void kr_mamba2_config_init_sized(kr_mamba2_config *config, size_t size);
#define kr_mamba2_config_init(config) kr_mamba2_config_init_sized((config), sizeof *(config))

typedef struct kr_mamba2 kr_mamba2;

/* NULL after an error that names field, value and rule. */
KR_API kr_mamba2 *kr_mamba2_create(kr_ctx *ctx, const kr_mamba2_config *config);
KR_API void kr_mamba2_destroy(kr_mamba2 *block);
KR_API const kr_params *kr_mamba2_params(const kr_mamba2 *block);

/* The path of the config, its chunk length filled in for the block's sizes. */
KR_API kr_ssd_path kr_mamba2_path(const kr_mamba2 *block);

/* What a sequence leaves behind. */
typedef struct kr_mamba2_cache {
    kr_tensor *conv_bvk; /* the last k inputs of the convolution, newest last */
    kr_tensor *ssm_bhpr;
} kr_mamba2_cache;

typedef struct kr_mamba2_out {
    kr_tensor *y; /* of x's shape */
    kr_mamba2_cache cache;
} kr_mamba2_out;

/* The cache before any token: zeros, and the learned state if there is one. */
KR_API kr_mamba2_cache kr_mamba2_fresh(kr_tape *tape, const kr_mamba2 *block, int64_t batch);

/* x [b s d], s >= 1. cache NULL: fresh. */
KR_API kr_mamba2_out kr_mamba2_forward(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bsd,
                                       const kr_mamba2_cache *cache, kr_ssd_path path);

/* Rows packed with several sequences: seq_start_bs (i32 or i64) is not 0 where one begins; the first token of a row
 * always begins one. Caches, in and out, are one for each sequence, rows one after another. */
KR_API kr_mamba2_out kr_mamba2_forward_packed(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bsd,
                                              kr_tensor *seq_start_bs, const kr_mamba2_cache *cache, kr_ssd_path path);

/* Rows that forget: where reset_bs (i32 or i64) is not 0, what came before that token is dropped, the row's cache
 * included. Caches, in and out, are one for each row. */
KR_API kr_mamba2_out kr_mamba2_forward_reset(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bsd,
                                             kr_tensor *reset_bs, const kr_mamba2_cache *cache, kr_ssd_path path);

/* x [b d]: one token. */
KR_API kr_mamba2_out kr_mamba2_step(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bd,
                                    const kr_mamba2_cache *cache);

/* What the outputs of step tend to when x is repeated for ever. */
KR_API kr_tensor *kr_mamba2_step_infinite(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bd);

#ifdef __cplusplus
}
#endif
#endif
