/* block.h - a block of any family: a sequence mixer with its projections, for stacks and for use on its own.
 *
 *   kr_mamba3_config mamba;
 *   kr_mamba3_config_init(&mamba);
 *   mamba.d_model = 256;
 *   kr_block_config config = kr_mamba3_block(&mamba);
 *   kr_block *block = kr_block_create(ctx, &config);
 *   kr_block_out whole = kr_block_forward(tape, block, x_bsd, NULL);             // a sequence
 *   kr_block_out next = kr_block_step(tape, block, x_bd, &whole.cache);          // one more token
 *   kr_block_destroy(block);
 *
 * kr_layers_config and kr_bidi_config take a kr_block_config too. Calls are pure: they read a cache and return a new
 * one on the tape. Any mix of forward calls and steps over a sequence gives the same outputs, final cache and
 * gradients.
 *
 * A program adds families with kr_block_kind_register. The functions at the end of this header (kr_mamba2_forward and
 * so on) are typed inline wrappers of kr_block_*.
 *
 * Sections: Mamba-1, Mamba-2, Mamba-3, blocks of any family, families of a program. */
#ifndef KRAIT_BLOCK_H
#define KRAIT_BLOCK_H

#include <krait/ops.h>
#include <krait/params.h>
#include <krait/ssd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Mamba-1 ====
 *
 * The Mamba-1 block: projection, short convolution, selective scan, gate, projection.
 *
 *   kr_mamba1_config config;
 *   kr_mamba1_config_init(&config);                              // the official defaults
 *   config.d_model = 256;
 *   kr_mamba1 *block = kr_mamba1_create(ctx, &config);
 *   kr_mamba1_out whole = kr_mamba1_forward(tape, block, x_bsd, NULL);           // a sequence
 *   kr_mamba1_out next = kr_mamba1_step(tape, block, x_bd, &whole.cache);        // one more token
 *   kr_mamba1_destroy(block);
 *
 * Calls are pure: they read a cache and return a new one. Any mix of forward calls and steps over a sequence gives the
 * same outputs, final cache and gradients. */

typedef struct kr_mamba1_config {
    size_t size;    /* set by kr_mamba1_config_init */
    kr_dtype dtype; /* f32; dtype of the matrices. With bf16 or f16 the small parameters stay f32 */
    int64_t d_model;
    int64_t state_rank;   /* 16 */
    int64_t conv_kernel;  /* 4 */
    int64_t expand;       /* 2 */
    int64_t d_inner;      /* 0: expand d_model */
    int64_t dt_rank;      /* 0: d_model / 16, rounded up */
    bool has_conv_bias;   /* true */
    bool has_proj_bias;   /* false: in_proj and out_proj */
    double dt_min;        /* 1e-3: range of the initial dt ... */
    double dt_max;        /* 0.1 */
    double dt_init_floor; /* 1e-4: ... and its minimum */
    double dt_scale;      /* 1: scale of the initial weights of dt_proj ... */
    bool has_constant_dt; /* false: ... which are random; true: all equal to the bound */
    double dt_limit_min;  /* 0, infinity: limits of dt, in forward and in step */
    double dt_limit_max;
    bool has_learnable_init_state; /* false; true: the state before the first token is a parameter [i r] */
    /* 0: no norm; otherwise RMS norm of B, C and the low-rank dt, with this eps, as in FalconMamba. */
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
    kr_tensor *y; /* the shape of x */
    kr_mamba1_cache cache;
} kr_mamba1_out;

/* ==== Mamba-2 ====
 *
 * The Mamba-2 block: projection, short convolution, SSD core, gated norm, projection.
 *
 *   kr_mamba2_config config;
 *   kr_mamba2_config_init(&config);                              // the official defaults
 *   config.d_model = 256;
 *   kr_mamba2 *block = kr_mamba2_create(ctx, &config);
 *   kr_mamba2_out whole = kr_mamba2_forward(tape, block, x_bsd, NULL, kr_mamba2_path(block));
 *   kr_mamba2_out next = kr_mamba2_step(tape, block, x_bd, &whole.cache);
 *   kr_mamba2_destroy(block);
 *
 * Calls are pure: they read a cache and return a new one. Any mix of forward calls and steps over a sequence gives the
 * same outputs, final cache and gradients. */

typedef struct kr_mamba2_config {
    size_t size;    /* set by kr_mamba2_config_init */
    kr_dtype dtype; /* f32; dtype of the matrices. With bf16 or f16 the small parameters stay f32 */
    int64_t d_model;
    int64_t state_rank;    /* 128 */
    int64_t conv_kernel;   /* 4 */
    double conv_init;      /* 0: 1/sqrt(conv_kernel); bound of the initial taps */
    int64_t expand;        /* 2 */
    int64_t per_head_dim;  /* 64 */
    int64_t d_ssm;         /* 0: d_inner; less: the rest of the width is a gated MLP parallel to the SSM */
    int64_t n_groups;      /* 1 */
    double a_init_min;     /* 1: range of the initial decay rates */
    double a_init_max;     /* 16 */
    bool has_d_per_dim;    /* false: D per head; true: D per head and channel (D_has_hdim) */
    bool has_norm;         /* true: gated RMS norm; false: only the gate (rmsnorm) */
    bool norm_before_gate; /* false */
    bool norm_per_group;   /* true: one norm per group; false: over the whole width */
    double norm_eps;       /* 1e-5 */
    bool has_proj_bias;    /* false: in_proj and out_proj */
    bool has_conv_bias;    /* true */
    double dt_min;         /* 1e-3: range of the initial dt ... */
    double dt_max;         /* 0.1 */
    double dt_init_floor;  /* 1e-4: ... and its minimum */
    double dt_limit_min;   /* 0, infinity: limits of dt, in forward and in step */
    double dt_limit_max;
    bool has_learnable_init_state; /* false; true: the state before the first token is a parameter [h p r] */
    kr_ssd_path path;              /* default path: SerialRecalculated with the optimal chunk length */
} kr_mamba2_config;
#define kr_mamba2_config_init(config) KR_STRUCT_INIT(MAMBA2_CONFIG, kr_mamba2_config, config)

typedef struct kr_mamba2 kr_mamba2;

/* Recurrent state after a sequence: convolution window and SSM state. */
typedef struct kr_mamba2_cache {
    kr_tensor *conv_bvk; /* the last k inputs of the convolution, newest last */
    kr_tensor *ssm_bhpr;
} kr_mamba2_cache;

typedef struct kr_mamba2_out {
    kr_tensor *y; /* the shape of x */
    kr_mamba2_cache cache;
} kr_mamba2_out;

/* ==== Mamba-3 ====
 *
 * The Mamba-3 block: trapezoidal discretisation, rotary state, SISO or MIMO.
 *
 *   kr_mamba3_config config;
 *   kr_mamba3_config_init(&config);                              // the official defaults
 *   config.d_model = 256;
 *   kr_mamba3 *block = kr_mamba3_create(ctx, &config);
 *   kr_mamba3_out whole = kr_mamba3_forward(tape, block, x_bsd, NULL, kr_mamba3_path(block));
 *   kr_mamba3_out next = kr_mamba3_step(tape, block, x_bd, &whole.cache);
 *   kr_mamba3_destroy(block);
 *
 * Calls are pure: they read a cache and return a new one. Any mix of forward calls and steps over a sequence gives the
 * same outputs, final cache and gradients. docs/mamba3.md derives the formulas. */

typedef enum kr_rotation_kind {
    KR_ROTATION_COMPLEX = 0,   /* pairs of entries are rotated by angles shared by all heads */
    KR_ROTATION_QUATERNION = 1 /* blocks of four are rotated by quaternions, one axis per head and block */
} kr_rotation_kind;

/* Two equivalent pathways: one pass of the core with merged weights, or two passes. */
typedef enum kr_mamba3_pathway { KR_MAMBA3_PATHWAY_SINGLE = 0, KR_MAMBA3_PATHWAY_DOUBLE = 1 } kr_mamba3_pathway;

typedef struct kr_mamba3_config {
    size_t size;    /* set by kr_mamba3_config_init */
    kr_dtype dtype; /* f32; dtype of the matrices. With bf16 or f16 the small parameters stay f32 */
    int64_t d_model;
    int64_t state_rank;   /* 128; even, for quaternions a multiple of 4 */
    int64_t expand;       /* 2 */
    int64_t per_head_dim; /* 64 */
    int64_t n_groups;     /* 1 */
    bool is_mimo;         /* false; true: mimo_* parameters, and pairs (q, q + r/2) instead of (2q, 2q + 1) */
    int64_t mimo_rank;    /* 4; used only with is_mimo, otherwise the rank is 1 */
    kr_rotation_kind rotation;
    double rope_fraction;         /* 0.5; 0, 0.5 or 1: fraction of the state with rotary embedding */
    double rotation_range;        /* 1; multiples of pi per unit of dt */
    kr_a_activation a_activation; /* KR_A_ACTIVATION_HEAVY_TAIL */
    double a_floor;               /* 1e-4: minimum decay rate */
    bool has_outproj_norm;        /* false; true: RMS norm of each head before the gate */
    bool has_shared_norm_gain;    /* false: gains [h p]; true: one gain [p] shared by all heads */
    double norm_eps;              /* 1e-5 */
    bool has_proj_bias;           /* false: in_proj and out_proj */
    double dt_min;                /* 1e-3: range of the initial dt ... */
    double dt_max;                /* 0.1 */
    double dt_init_floor;         /* 1e-4: ... and its minimum */
    double dt_limit_min;          /* 0, infinity: limits of dt, in forward and in step */
    double dt_limit_max;
    bool has_learnable_init_state; /* false; true: the state before the first token is a parameter [h p r] */
    kr_ssd_path path;              /* default path: SerialRecalculated with the optimal chunk length */
    kr_mamba3_pathway pathway;     /* pathway of initial caches: KR_MAMBA3_PATHWAY_SINGLE */
} kr_mamba3_config;
#define kr_mamba3_config_init(config) KR_STRUCT_INIT(MAMBA3_CONFIG, kr_mamba3_config, config)

typedef struct kr_mamba3 kr_mamba3;

/* Recurrent state after a sequence. Both pathways use the same cache; `pathway` may change between calls. */
typedef struct kr_mamba3_cache {
    kr_tensor *ssm_bhpr;
    kr_tensor *k_bmhr;   /* B of the last token, with bias, rotated */
    kr_tensor *v_bhp;    /* x of the last token */
    kr_tensor *rotation; /* angles [b h a] in [-pi, pi], or quaternions [b h j 4] */
    kr_mamba3_pathway pathway;
} kr_mamba3_cache;

typedef struct kr_mamba3_out {
    kr_tensor *y; /* the shape of x */
    kr_mamba3_cache cache;
} kr_mamba3_out;

/* ==== Blocks of any family ==== */

/* Families of the library and of the program (kr_block_kind_register). Values of registered families are assigned at
 * registration and may differ from run to run; files hold names. */
typedef enum kr_family {
    KR_FAMILY_NONE = -1,
    KR_FAMILY_MAMBA1 = 0,
    KR_FAMILY_MAMBA2 = 1,
    KR_FAMILY_MAMBA3 = 2,
    KR_FAMILY_REGISTERED = 1024, /* the first registered family ... */
    KR_FAMILY_LAST = 2047        /* ... and the largest value */
} kr_family;

/* "mamba1", ..., or the name of a registered family; "?" for an invalid value. */
KR_API_INLINE const char *kr_family_name(kr_family family)
{
    return kr_enum_name(KR_ENUM_FAMILY, (int)family);
}

/* The first fields of the config of every family. This struct never grows. */
typedef struct kr_config_head {
    size_t size;    /* set by kr_block_config_init, or kr_mamba1_config_init and so on */
    kr_dtype dtype; /* of the matrices */
    int64_t d_model;
} kr_config_head;

/* A family and its config. Constructors copy both. */
typedef struct kr_block_config {
    kr_family family;
    const void *config; /* kr_mamba1_config, kr_mamba2_config, kr_mamba3_config, or that of a registered family */
} kr_block_config;

#define KR_CACHE_TENSORS 8

/* The cache of a block of any family. */
typedef struct kr_cache {
    kr_family family;
    union {
        kr_mamba1_cache mamba1;
        kr_mamba2_cache mamba2;
        kr_mamba3_cache mamba3;
        kr_tensor *tensors[KR_CACHE_TENSORS]; /* the tensors of the family's cache, in order */
    };
} kr_cache;

/* Names of the tensors in the cache of a family: "conv", "ssm", ...; NULL after the last. And their number. */
KR_API const char *kr_cache_name(kr_family family, int i);
KR_API_INLINE int kr_cache_count(kr_family family)
{
    int count = 0;
    while (kr_cache_name(family, count)) count++;
    return count;
}

typedef struct kr_block kr_block;

typedef struct kr_block_out {
    kr_tensor *y; /* the shape of x; NULL after an error */
    kr_cache cache;
    void *reserved[4];
} kr_block_out;

/* Options of a forward call. All fields may be NULL. Initialise with { 0 }; reserved must be 0. */
typedef struct kr_block_call {
    const kr_cache *cache; /* NULL, or all its tensors NULL: the initial cache */
    /* Packed rows: i32 or i64, nonzero where a sequence starts; the first token of a row always starts one. Input and
     * output caches have one row per sequence, row after row. */
    kr_tensor *seq_start_bs;
    /* State resets: where reset_bs != 0 the state is cleared before that token. Caches have one row per row of x.
     * Cannot be combined with seq_start_bs. */
    kr_tensor *reset_bs;
    kr_tensor *mask_bs;      /* i32 or i64: 0 for padding; see docs/networks.md */
    const kr_ssd_path *path; /* NULL: kr_block_path(block); Mamba-1 ignores it */
    kr_tensor *cu_seqlens;   /* instead of seq_start_bs: i32 or i64 [q+1]; see kr_seq_start_from_cu_seqlens */
    void *reserved[3];
} kr_block_call;

/* Creates a block and initialises its weights from the context's random stream. The caller destroys it before the
 * context. NULL after an error that names field, value and rule. */
KR_API kr_block *kr_block_create(kr_ctx *ctx, const kr_block_config *config);

/* NULL is allowed. */
KR_API void kr_block_destroy(kr_block *block);

typedef struct kr_block_info {
    kr_family family;  /* KR_FAMILY_MAMBA1 for NULL */
    kr_params *params; /* the parameter table, valid as long as the block; NULL for the block of a layer */
    /* The SSD path of the config, with the chunk length resolved for the block's sizes. For Mamba-3 the optimal length is
     * divided by the MIMO rank, because the core processes one row per token and rank. */
    kr_ssd_path path;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_block_info;

/* Properties of a block. The functions below return one field each. */
KR_API kr_block_info kr_block_info_of(const kr_block *block);
KR_API_INLINE kr_params *kr_block_params(const kr_block *block)
{
    return kr_block_info_of(block).params;
}
KR_API_INLINE kr_family kr_block_family(const kr_block *block)
{
    return kr_block_info_of(block).family;
}
KR_API_INLINE kr_ssd_path kr_block_path(const kr_block *block)
{
    return kr_block_info_of(block).path;
}

/* An algorithm with the optimal chunk length for the block's sizes, whatever the path of the config:
 * kr_ssd_optimal_chunk_len, for Mamba-3 divided by the MIMO rank. Length 0 for Mamba-1, which has no chunks, and for
 * NULL. */
KR_API kr_ssd_path kr_block_optimal_path(const kr_block *block, kr_ssd_algorithm algorithm);

/* kr_block_optimal_path for each algorithm: Minimal, Serial, SerialRecalculated. */
static inline kr_ssd_path kr_ssd_core_optimal_from_block(const kr_block *block)
{
    return kr_block_optimal_path(block, KR_SSD_MINIMAL);
}
static inline kr_ssd_path kr_ssd_chunked_optimal_from_block(const kr_block *block)
{
    return kr_block_optimal_path(block, KR_SSD_SERIAL);
}
static inline kr_ssd_path kr_ssd_chunked_recalculated_optimal_from_block(const kr_block *block)
{
    return kr_block_optimal_path(block, KR_SSD_SERIAL_RECALCULATED);
}

/* The cache before the first token: zeros, quaternions 1, and the learned initial state if the block has one. It
 * belongs to the tape; all tensors are NULL after an error. */
KR_API kr_cache kr_block_initial_cache(kr_tape *tape, const kr_block *block, int64_t batch);

/* Kind of call: a sequence, one token, only the class tokens before the next token (stacks and networks), or the limit of
 * one token repeated forever. Values are fixed; new ones are appended. */
typedef enum kr_call_kind {
    KR_CALL_FORWARD = 0,
    KR_CALL_STEP = 1,
    KR_CALL_PRIME = 2,
    KR_CALL_STEP_INFINITE = 3
} kr_call_kind;

/* Runs a block; x is as below. A step takes no option but the cache, KR_CALL_STEP_INFINITE none, and there is no
 * KR_CALL_PRIME. y is NULL after an error that names the operand and the rule. */
KR_API kr_block_out kr_block_run(kr_tape *tape, const kr_block *block, kr_call_kind kind, kr_tensor *x,
                                 const kr_block_call *call);

/* A sequence: x [b s d], s >= 1. call NULL: from the initial cache, on the block's path. */
KR_API_INLINE kr_block_out kr_block_forward(kr_tape *tape, const kr_block *block, kr_tensor *x_bsd,
                                            const kr_block_call *call)
{
    return kr_block_run(tape, block, KR_CALL_FORWARD, x_bsd, call);
}

/* One token: x [b d]. cache NULL, or all its tensors NULL: the initial cache. */
KR_API_INLINE kr_block_out kr_block_step(kr_tape *tape, const kr_block *block, kr_tensor *x_bd, const kr_cache *cache)
{
    const kr_block_call call = { cache, 0, 0, 0, 0, 0, { 0, 0, 0 } };
    return kr_block_run(tape, block, KR_CALL_STEP, x_bd, &call);
}

/* Limit of the output of step for a constant input x [b d] (steady state), in closed form. NULL after an error, and for
 * a registered family without one (KR_ERR_UNSUPPORTED). */
KR_API_INLINE kr_tensor *kr_block_step_infinite(kr_tape *tape, const kr_block *block, kr_tensor *x_bd)
{
    return kr_block_run(tape, block, KR_CALL_STEP_INFINITE, x_bd, 0).y;
}

/* ==== Families of a program ====
 *
 * A program registers a family of blocks: its name, config, cache and functions. The family then works wherever Mamba-1
 * to 3 do: in blocks, layers, stacks, networks and states, in training with recomputation, in model folders and state
 * files. docs/add-a-block.md is a guide, examples/own_block.c a complete family.
 *
 *   const kr_family family = kr_family_find("mamba2");     // or the name of a registered one
 *   kr_mamba2_config config2;
 *   kr_block_config_init(ctx, family, &config2, sizeof config2);
 *   config2.d_model = 64;
 *   kr_block *any = kr_block_create(ctx, &(kr_block_config){ family, &config2 });
 *   printf("%s, %d cache tensors\n", kr_family_name(family), kr_cache_count(family));    // mamba2, 2 cache tensors
 *   kr_block_destroy(any);
 *
 * Families belong to the process, because a model can be used in several contexts: every context and thread finds them,
 * and they cannot be removed. */

#define KR_BLOCK_VERSION 1 /* version of this section; a library refuses families of unknown versions */

/* A field of a family's config, after its kr_config_head, and its key in config.json. */
typedef enum kr_field_kind {
    KR_FIELD_INTEGER = 0, /* int64_t */
    KR_FIELD_NUMBER = 1,  /* double */
    KR_FIELD_BOOL = 2,    /* bool */
    KR_FIELD_TEXT = 3     /* const char *, UTF-8; a config read from a file owns the text */
} kr_field_kind;

typedef struct kr_config_field {
    const char *name; /* the key: "expand" */
    kr_field_kind kind;
    size_t offset;      /* offsetof(my_config, expand) */
    double value;       /* the default of an integer, a number, or a bool (0 or 1) */
    double least, most; /* range of an integer or a number; both 0: any finite one */
    const char *text;   /* the default of a text; NULL: "" */
    void *reserved[2];  /* must be NULL; for later versions */
} kr_config_field;

/* Properties of one block, set by `create`; zeroed before the call. */
typedef struct kr_block_spec {
    /* Shape of each cache tensor for one row, without the batch axis, and the value of its elements before the first
     * token. Caches are f32, or f64 in a block of f64. Sizes are at least 1 and do not depend on the number of tokens. */
    kr_shape cache_shape[KR_CACHE_TENSORS];
    double cache_value[KR_CACHE_TENSORS];
    /* Default chunk length of kr_block_path. On the CPU, calls cut at its multiples give the same bits (see
     * kr_network_grid); 1: cut anywhere. 0: the algorithm has no chunks, and nothing is promised about cuts. */
    int64_t chunk_len;
    /* Elements per token that an unrecorded forward holds at the same time, for kr_model_measure. 0: unknown. */
    int64_t token_elements;
} kr_block_spec;

/* The arguments of `forward`, checked by the library. */
typedef struct kr_block_args {
    kr_tensor *x_bsd;        /* 0 where the mask is 0 */
    kr_tensor *const *cache; /* [n_cache]: the cache before the tokens; never NULL */
    int64_t n_sequences;     /* rows of each cache tensor: b, or the number of packed sequences */
    /* Packed rows: nonzero where a sequence starts, as in kr_block_call. NULL: each row is one sequence; always NULL
     * unless has_packed_rows is set. */
    kr_tensor *seq_start_bs;
    /* 0 for padding, otherwise 1, in f32 or f64; x is already multiplied by it. NULL: no padding. */
    kr_tensor *mask_bs1;
    kr_ssd_path path; /* of the call */
} kr_block_args;

/* A family of blocks. The functions get `user`; `block` is the result of `create`. They may run in several threads at
 * once, each with its own context and tape. They report errors with kr_ctx_fail and return NULL or false.
 *
 * forward returns y [b s d] and the cache after the tokens in out.cache.tensors, with the shapes and types of the cache
 * before them. It never writes a tensor. It is a pure function written in ops, so that it has gradients:
 *   - calls may split a sequence anywhere: the results are those of one call
 *   - a row does not depend on other rows
 *   - with has_packed_rows, each packed sequence begins from its own row of the cache
 *   - called again, it computes the same values (recomputation) */
typedef struct kr_block_kind_info {
    size_t size; /* set by kr_block_kind_info_init */
    int version; /* KR_BLOCK_VERSION, set by kr_block_kind_info_init */
    /* Of the family, in files and messages: from 1 to 31 letters a-z, digits and _, beginning with a letter. */
    const char *name;
    size_t config_bytes;            /* sizeof the config, whose first member is a kr_config_head; at most 512 */
    int n_fields;                   /* 0 to 32 */
    const kr_config_field *fields;  /* of the config; other members are neither initialised nor saved */
    int n_cache;                    /* 0 to KR_CACHE_TENSORS */
    const char *const *cache_names; /* [n_cache]: "conv"; names as above, at most 15 letters */
    /* false: the library calls forward for each packed sequence alone. true: forward handles seq_start_bs. */
    bool has_packed_rows;
    /* false; true: every step calls the same ops on the same shapes and reads no values on the host, so that a GPU may
     * capture a step as a graph and replay it without calling forward. */
    bool has_fixed_steps;
    /* Creates a block: checks the config, declares its parameters in `params` with kr_params_make and kr_params_linear
     * (they have values once the whole network is declared), and sets *spec. `config` and its texts are valid as long as
     * the block. Returns any pointer; NULL after an error. */
    void *(*create)(void *user, kr_ctx *ctx, kr_params *params, const void *config, kr_block_spec *spec);
    void (*destroy)(void *user, void *block); /* NULL: nothing to free */
    kr_block_out (*forward)(void *user, kr_tape *tape, const void *block, const kr_block_args *args);
    /* The cache before the first token, cache[0 .. n_cache), each tensor of `batch` rows. NULL: the values of the spec.
     * false after an error. */
    bool (*initial_cache)(void *user, kr_tape *tape, const void *block, int64_t batch, kr_tensor **cache);
    /* Steady state for kr_block_step_infinite: y [b d]. NULL: the family has none. */
    kr_tensor *(*step_infinite)(void *user, kr_tape *tape, const void *block, kr_tensor *x_bd);
    void *user;
} kr_block_kind_info;
#define kr_block_kind_info_init(info)                                                                                  \
    (KR_STRUCT_INIT(BLOCK_KIND_INFO, kr_block_kind_info, info), (void)((info)->version = KR_BLOCK_VERSION))

/* Registers a family for the process; *family is its value. The struct, its lists and texts are copied; functions and
 * `user` must be valid until the process ends. The same struct registered again gives the same value, so that
 * independent parts of a program may register it.
 *
 * Errors: of ctx. KR_ERR_ARG: a field is missing or out of range, or the name belongs to another family.
 * KR_ERR_UNSUPPORTED: a version that this library does not know, or more than 64 families. Nothing is registered then.
 * Thread safety: threads may register families at the same time, each with its own context. */
KR_API kr_status kr_block_kind_register(kr_ctx *ctx, const kr_block_kind_info *info, kr_family *family);

/* The family of this name; KR_FAMILY_NONE: there is none. Thread-safe. */
KR_API kr_family kr_family_find(const char *name);

/* Sets the config of a family to its defaults; `size` is sizeof *config. Members without a field are 0. */
KR_API kr_status kr_block_config_init(kr_ctx *ctx, kr_family family, void *config, size_t size);

/* ---- typed wrappers ---- */

static inline kr_block_config kr_mamba1_block(const kr_mamba1_config *config)
{
    kr_block_config any = { KR_FAMILY_MAMBA1, config };
    return any;
}
static inline kr_mamba1 *kr_mamba1_create(kr_ctx *ctx, const kr_mamba1_config *config)
{
    const kr_block_config any = kr_mamba1_block(config);
    return (kr_mamba1 *)kr_block_create(ctx, &any);
}
static inline void kr_mamba1_destroy(kr_mamba1 *block)
{
    kr_block_destroy((kr_block *)block);
}
static inline kr_params *kr_mamba1_params(const kr_mamba1 *block)
{
    return kr_block_params((const kr_block *)block);
}
static inline kr_mamba1_cache kr_mamba1_initial_cache(kr_tape *tape, const kr_mamba1 *block, int64_t batch)
{
    return kr_block_initial_cache(tape, (const kr_block *)block, batch).mamba1;
}
static inline kr_mamba1_out kr_mamba1_typed_out(const kr_block_out *any)
{
    kr_mamba1_out out;
    out.y = any->y;
    out.cache = any->cache.mamba1;
    return out;
}
static inline kr_mamba1_out kr_mamba1_forward_marked(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, kr_tensor *reset_bs,
                                                     const kr_mamba1_cache *cache)
{
    kr_cache any;
    kr_block_call call = { NULL, seq_start_bs, reset_bs, NULL, NULL, NULL, { NULL, NULL, NULL } };
    any.family = KR_FAMILY_MAMBA1;
    if (cache) any.mamba1 = *cache;
    if (cache) call.cache = &any;
    const kr_block_out out = kr_block_forward(tape, (const kr_block *)block, x_bsd, &call);
    return kr_mamba1_typed_out(&out);
}
static inline kr_mamba1_out kr_mamba1_forward(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bsd,
                                              const kr_mamba1_cache *cache)
{
    return kr_mamba1_forward_marked(tape, block, x_bsd, NULL, NULL, cache);
}
static inline kr_mamba1_out kr_mamba1_forward_packed(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, const kr_mamba1_cache *cache)
{
    return kr_mamba1_forward_marked(tape, block, x_bsd, seq_start_bs, NULL, cache);
}
static inline kr_mamba1_out kr_mamba1_forward_reset(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bsd,
                                                    kr_tensor *reset_bs, const kr_mamba1_cache *cache)
{
    return kr_mamba1_forward_marked(tape, block, x_bsd, NULL, reset_bs, cache);
}
static inline kr_mamba1_out kr_mamba1_step(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bd,
                                           const kr_mamba1_cache *cache)
{
    kr_cache any;
    any.family = KR_FAMILY_MAMBA1;
    if (cache) any.mamba1 = *cache;
    const kr_block_out out = kr_block_step(tape, (const kr_block *)block, x_bd, cache ? &any : NULL);
    return kr_mamba1_typed_out(&out);
}
static inline kr_tensor *kr_mamba1_step_infinite(kr_tape *tape, const kr_mamba1 *block, kr_tensor *x_bd)
{
    return kr_block_step_infinite(tape, (const kr_block *)block, x_bd);
}

static inline kr_block_config kr_mamba2_block(const kr_mamba2_config *config)
{
    kr_block_config any = { KR_FAMILY_MAMBA2, config };
    return any;
}
static inline kr_mamba2 *kr_mamba2_create(kr_ctx *ctx, const kr_mamba2_config *config)
{
    const kr_block_config any = kr_mamba2_block(config);
    return (kr_mamba2 *)kr_block_create(ctx, &any);
}
static inline void kr_mamba2_destroy(kr_mamba2 *block)
{
    kr_block_destroy((kr_block *)block);
}
static inline kr_params *kr_mamba2_params(const kr_mamba2 *block)
{
    return kr_block_params((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba2_path(const kr_mamba2 *block)
{
    return kr_block_path((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba2_core_optimal(const kr_mamba2 *block)
{
    return kr_ssd_core_optimal_from_block((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba2_chunked_optimal(const kr_mamba2 *block)
{
    return kr_ssd_chunked_optimal_from_block((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba2_chunked_recalculated_optimal(const kr_mamba2 *block)
{
    return kr_ssd_chunked_recalculated_optimal_from_block((const kr_block *)block);
}
static inline kr_mamba2_cache kr_mamba2_initial_cache(kr_tape *tape, const kr_mamba2 *block, int64_t batch)
{
    return kr_block_initial_cache(tape, (const kr_block *)block, batch).mamba2;
}
static inline kr_mamba2_out kr_mamba2_typed_out(const kr_block_out *any)
{
    kr_mamba2_out out;
    out.y = any->y;
    out.cache = any->cache.mamba2;
    return out;
}
static inline kr_mamba2_out kr_mamba2_forward_marked(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, kr_tensor *reset_bs,
                                                     const kr_mamba2_cache *cache, kr_ssd_path path)
{
    kr_cache any;
    kr_block_call call = { NULL, seq_start_bs, reset_bs, NULL, NULL, NULL, { NULL, NULL, NULL } };
    any.family = KR_FAMILY_MAMBA2;
    if (cache) any.mamba2 = *cache;
    if (cache) call.cache = &any;
    call.path = &path;
    const kr_block_out out = kr_block_forward(tape, (const kr_block *)block, x_bsd, &call);
    return kr_mamba2_typed_out(&out);
}
static inline kr_mamba2_out kr_mamba2_forward(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bsd,
                                              const kr_mamba2_cache *cache, kr_ssd_path path)
{
    return kr_mamba2_forward_marked(tape, block, x_bsd, NULL, NULL, cache, path);
}
static inline kr_mamba2_out kr_mamba2_forward_packed(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, const kr_mamba2_cache *cache,
                                                     kr_ssd_path path)
{
    return kr_mamba2_forward_marked(tape, block, x_bsd, seq_start_bs, NULL, cache, path);
}
static inline kr_mamba2_out kr_mamba2_forward_reset(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bsd,
                                                    kr_tensor *reset_bs, const kr_mamba2_cache *cache, kr_ssd_path path)
{
    return kr_mamba2_forward_marked(tape, block, x_bsd, NULL, reset_bs, cache, path);
}
static inline kr_mamba2_out kr_mamba2_step(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bd,
                                           const kr_mamba2_cache *cache)
{
    kr_cache any;
    any.family = KR_FAMILY_MAMBA2;
    if (cache) any.mamba2 = *cache;
    const kr_block_out out = kr_block_step(tape, (const kr_block *)block, x_bd, cache ? &any : NULL);
    return kr_mamba2_typed_out(&out);
}
static inline kr_tensor *kr_mamba2_step_infinite(kr_tape *tape, const kr_mamba2 *block, kr_tensor *x_bd)
{
    return kr_block_step_infinite(tape, (const kr_block *)block, x_bd);
}

static inline kr_block_config kr_mamba3_block(const kr_mamba3_config *config)
{
    kr_block_config any = { KR_FAMILY_MAMBA3, config };
    return any;
}
static inline kr_mamba3 *kr_mamba3_create(kr_ctx *ctx, const kr_mamba3_config *config)
{
    const kr_block_config any = kr_mamba3_block(config);
    return (kr_mamba3 *)kr_block_create(ctx, &any);
}
static inline void kr_mamba3_destroy(kr_mamba3 *block)
{
    kr_block_destroy((kr_block *)block);
}
static inline kr_params *kr_mamba3_params(const kr_mamba3 *block)
{
    return kr_block_params((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba3_path(const kr_mamba3 *block)
{
    return kr_block_path((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba3_core_optimal(const kr_mamba3 *block)
{
    return kr_ssd_core_optimal_from_block((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba3_chunked_optimal(const kr_mamba3 *block)
{
    return kr_ssd_chunked_optimal_from_block((const kr_block *)block);
}
static inline kr_ssd_path kr_mamba3_chunked_recalculated_optimal(const kr_mamba3 *block)
{
    return kr_ssd_chunked_recalculated_optimal_from_block((const kr_block *)block);
}
static inline kr_mamba3_cache kr_mamba3_initial_cache(kr_tape *tape, const kr_mamba3 *block, int64_t batch)
{
    return kr_block_initial_cache(tape, (const kr_block *)block, batch).mamba3;
}
static inline kr_mamba3_out kr_mamba3_typed_out(const kr_block_out *any)
{
    kr_mamba3_out out;
    out.y = any->y;
    out.cache = any->cache.mamba3;
    return out;
}
static inline kr_mamba3_out kr_mamba3_forward_marked(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, kr_tensor *reset_bs,
                                                     const kr_mamba3_cache *cache, kr_ssd_path path)
{
    kr_cache any;
    kr_block_call call = { NULL, seq_start_bs, reset_bs, NULL, NULL, NULL, { NULL, NULL, NULL } };
    any.family = KR_FAMILY_MAMBA3;
    if (cache) any.mamba3 = *cache;
    if (cache) call.cache = &any;
    call.path = &path;
    const kr_block_out out = kr_block_forward(tape, (const kr_block *)block, x_bsd, &call);
    return kr_mamba3_typed_out(&out);
}
static inline kr_mamba3_out kr_mamba3_forward(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bsd,
                                              const kr_mamba3_cache *cache, kr_ssd_path path)
{
    return kr_mamba3_forward_marked(tape, block, x_bsd, NULL, NULL, cache, path);
}
static inline kr_mamba3_out kr_mamba3_forward_packed(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bsd,
                                                     kr_tensor *seq_start_bs, const kr_mamba3_cache *cache,
                                                     kr_ssd_path path)
{
    return kr_mamba3_forward_marked(tape, block, x_bsd, seq_start_bs, NULL, cache, path);
}
static inline kr_mamba3_out kr_mamba3_forward_reset(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bsd,
                                                    kr_tensor *reset_bs, const kr_mamba3_cache *cache, kr_ssd_path path)
{
    return kr_mamba3_forward_marked(tape, block, x_bsd, NULL, reset_bs, cache, path);
}
static inline kr_mamba3_out kr_mamba3_step(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bd,
                                           const kr_mamba3_cache *cache)
{
    kr_cache any;
    any.family = KR_FAMILY_MAMBA3;
    if (cache) any.mamba3 = *cache;
    const kr_block_out out = kr_block_step(tape, (const kr_block *)block, x_bd, cache ? &any : NULL);
    return kr_mamba3_typed_out(&out);
}
static inline kr_tensor *kr_mamba3_step_infinite(kr_tape *tape, const kr_mamba3 *block, kr_tensor *x_bd)
{
    return kr_block_step_infinite(tape, (const kr_block *)block, x_bd);
}

#ifdef __cplusplus
}
#endif
#endif
