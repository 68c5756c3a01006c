/* mamba3.h - the Mamba-3 block: trapezoidal rule, rotating state, single or multiple inputs and outputs.
 *
 *   kr_mamba3_config config;
 *   kr_mamba3_config_init(&config);                              // the official defaults
 *   config.d_model = 256;
 *   kr_mamba3 *block = kr_mamba3_create(ctx, &config);
 *   kr_mamba3_out whole = kr_mamba3_forward(tape, block, x_bsd, NULL, kr_mamba3_path(block));
 *   kr_mamba3_out next = kr_mamba3_step(tape, block, x_bd, &whole.cache);
 *   kr_mamba3_destroy(block);
 *
 * Calls are pure: a cache is read, a new one is returned. Any mix of forwards and steps over one sequence gives the
 * same outputs, final cache and gradients. docs/mamba3.md derives the formulas.
 */
#ifndef KRAIT_MAMBA3_H
#define KRAIT_MAMBA3_H

#include <krait/ops_mamba3.h>
#include <krait/params.h>
#include <krait/ssd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_rotation_kind {
    KR_ROTATION_COMPLEX = 0,   /* pairs of entries turn by angles that all heads share */
    KR_ROTATION_QUATERNION = 1 /* blocks of four turn by quaternions, each head and block about an axis of its own */
} kr_rotation_kind;

/* Two ways to the same numbers: one run of the core with the previous token's share in the weights, or two runs. */
typedef enum kr_mamba3_pathway { KR_MAMBA3_PATHWAY_SINGLE = 0, KR_MAMBA3_PATHWAY_DOUBLE = 1 } kr_mamba3_pathway;

typedef struct kr_mamba3_config {
    size_t size;    /* set by kr_mamba3_config_init */
    kr_dtype dtype; /* f32; of the matrices. With bf16 or f16 the small parameters stay in f32 */
    int64_t d_model;
    int64_t state_rank;   /* 128; even, for quaternions a multiple of 4 */
    int64_t expand;       /* 2 */
    int64_t per_head_dim; /* 64 */
    int64_t ngroups;      /* 1 */
    bool is_mimo;         /* false; true: mimo_* parameters, and pairs (q, q + r/2) instead of (2q, 2q + 1) */
    int64_t mimo_rank;    /* 4; has a meaning with is_mimo only, the rank is 1 otherwise */
    kr_rotation_kind rotation;
    double rope_fraction;         /* 0.5; 0, 0.5 or 1: how much of the state turns */
    double rotation_range;        /* 1; half-turns for each unit of the step */
    kr_a_activation a_activation; /* KR_A_ACTIVATION_HEAVY_TAIL */
    double a_floor;               /* 1e-4: the least decay rate */
    bool has_outproj_norm;        /* false; true: RMS norm of each head before the gate */
    bool has_shared_norm_gain;    /* false: gains [h p]; true: one gain [p] for all heads */
    double norm_eps;              /* 1e-5 */
    bool has_proj_bias;           /* false: in_proj and out_proj */
    double dt_min;                /* 1e-3: range of the initial steps ... */
    double dt_max;                /* 0.1 */
    double dt_init_floor;         /* 1e-4: ... and their least */
    double dt_limit_min;          /* 0, infinity: the step is kept between them, in forward and in step */
    double dt_limit_max;
    bool has_learnable_init_state; /* false; the state before the first token of a sequence is a parameter [h p r] */
    kr_ssd_path path;              /* what stacks run it by: SerialRecalculated with the optimal chunk length */
    kr_mamba3_pathway pathway;     /* pathway of initial caches: KR_MAMBA3_PATHWAY_SINGLE */
} kr_mamba3_config;
#define kr_mamba3_config_init(config) KR_STRUCT_INIT(MAMBA3_CONFIG, kr_mamba3_config, config)

typedef struct kr_mamba3 kr_mamba3;

/* Recurrent state after a sequence. Both pathways use the same cache: `pathway` may be changed between two calls. */
typedef struct kr_mamba3_cache {
    kr_tensor *ssm_bhpr;
    kr_tensor *k_bmhr;   /* the last token's B, with bias, rotated */
    kr_tensor *v_bhp;    /* the last token's x */
    kr_tensor *rotation; /* angles [b h a] in [-pi, pi], or quaternions [b h j 4] */
    kr_mamba3_pathway pathway;
} kr_mamba3_cache;

typedef struct kr_mamba3_out {
    kr_tensor *y; /* of x's shape */
    kr_mamba3_cache cache;
} kr_mamba3_out;

#ifdef __cplusplus
}
#endif

#include <krait/block.h> /* kr_mamba3_create, kr_mamba3_forward, ... over kr_block */
#endif
