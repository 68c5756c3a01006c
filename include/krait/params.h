/* params.h - the parameter table of a block, a stack or a network: names, shapes, and properties for training.
 *
 *   const kr_params *params = kr_mamba2_params(block);
 *   for (int64_t i = 0; i < kr_params_count(params); i++)
 *       printf("%s\n", kr_params_at(params, i)->name);     // dt_bias, A_log, D, in_proj.weight, ...
 *   kr_tensor *d_h = kr_params_find(params, "D")->tensor;
 *   kr_param_write(d_h, KR_DTYPE_F32, floats, kr_tensor_count(d_h));
 *
 * One row is one tensor. Names are those of the official checkpoints, and linear weights are [out in]. The table and
 * its tensors belong to the object that created them. A custom network has its own table: see kr_params_create. */
#ifndef KRAIT_PARAMS_H
#define KRAIT_PARAMS_H

#include <krait/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_params kr_params;

/* Rows of a fused linear weight that form one projection. */
typedef struct kr_segment {
    const char *name;
    int64_t rows;
    bool use_muon; /* Muon updates these rows as one matrix; otherwise AdamW */
} kr_segment;

/* How a parameter is initialised. */
typedef enum kr_init_kind {
    KR_INIT_FILL = 0,      /* a: the value */
    KR_INIT_UNIFORM = 1,   /* from a to b */
    KR_INIT_NORMAL = 2,    /* mean a, standard deviation b */
    KR_INIT_DT_BIAS = 3,   /* inverse softplus of a dt sampled log-uniformly from a to b, at least c */
    KR_INIT_LOG_RANGE = 4, /* logarithm of a uniform sample from a to b */
    KR_INIT_LOG_INDEX = 5, /* logarithm of 1, 2, 3, ... along the last axis */
    KR_INIT_RAMP = 6       /* a + b times the index along the last axis */
} kr_init_kind;

typedef struct kr_init {
    kr_init_kind kind;
    double a, b, c;
} kr_init;

typedef struct kr_param_row {
    const char *name; /* "backbone.layers.0.mixer.in_proj.weight" */
    const char *axes; /* axis letters of docs/notation.md: "h p r" */
    kr_tensor *tensor;
    kr_init init;
    double init_scale; /* scales the initial values: 1, except for residual projections of deep networks */
    bool has_decay;    /* weight decay applies: matrices, but not norms, biases, A_log, D, dt_bias */
    int n_segments;    /* 0: updated by AdamW as a whole */
    const kr_segment *segments;
} kr_param_row;

/* Rows by index and by name. NULL params have no rows; an unknown name gives NULL. */
KR_API int64_t kr_params_count(const kr_params *params);
KR_API const kr_param_row *kr_params_at(const kr_params *params, int64_t i);
KR_API const kr_param_row *kr_params_find(const kr_params *params, const char *name);

/* Total number of elements. */
KR_API_INLINE int64_t kr_params_elements(const kr_params *params)
{
    int64_t elements = 0;
    const int64_t count = kr_params_count(params);
    for (int64_t i = 0; i < count; i++) elements += kr_tensor_count(kr_params_at(params, i)->tensor);
    return elements;
}

/* Re-initialises every parameter, in table order, from the context's random stream. Call kr_ctx_seed first for
 * reproducible values. Constructors have already done this once. */
KR_API kr_status kr_params_reset(kr_params *params);

/* Zeroes all gradients; freezes or unfreezes all parameters. */
KR_API void kr_params_zero_grad(kr_params *params);
KR_API void kr_params_freeze(kr_params *params, bool frozen);

/* Packs a second copy of every projection weight for decoding (few rows): steps run at memory bandwidth with the same
 * bits. The copies are as large as the weights and have their dtype: for bf16 and f16 they are half the size of f32 and
 * twice as fast. f64 weights are not packed. Writing a parameter drops its copy, but writing through kr_tensor_data
 * does not: pack or unpack after that. kr_params_unpack frees the copies. Both are KR_ERR_STATE, an error of the
 * context, while networks share the weights (kr_network_share), as is any call that writes them. */
KR_API kr_status kr_params_pack(kr_params *params);
KR_API void kr_params_unpack(kr_params *params);

/* Formats the table as text, one line per row and one of totals, as snprintf does: returns the length needed, without
 * the final zero. */
KR_API size_t kr_params_describe(const kr_params *params, char *text, size_t bytes);

/* Saves all parameters to a safetensors file under their names, and loads them, converted to the dtypes of the
 * parameters. The write is atomic. Names and shapes in the file must be exactly those of the table; otherwise loading
 * fails and nothing has changed. To save a model folder use kr_model_save. */
KR_API KR_MUST_CHECK kr_status kr_params_save(const kr_params *params, const char *path);
KR_API KR_MUST_CHECK kr_status kr_params_load(kr_params *params, const char *path);

/* ---- custom tables ---- */

/* An empty table, for a network composed of several parts. Optimizers and trainers take it like any other table:
 *
 *   kr_params *mine = kr_params_create(ctx);
 *   kr_params_join(mine, "mixer.", kr_mamba2_params(block));
 *   kr_param_options position;
 *   kr_param_options_init(&position);
 *   position.init = (kr_init){ KR_INIT_NORMAL, 0, 0.02, 0 };
 *   kr_tensor *position_sd = kr_params_make(mine, "position", KR_DTYPE_F32, KR_SHAPE(64, 256), &position);
 *   kr_tensor *head_od = kr_params_linear(mine, "head", KR_DTYPE_F32, 10, 256, NULL);
 *   kr_params_destroy(mine);                 // before the block
 *
 * Each name and each tensor occurs once in a table. NULL after an error. */
KR_API kr_params *kr_params_create(kr_ctx *ctx);

/* Destroys a custom table and the parameters it created. Destroy it before the tables it has joined. NULL is
 * allowed. */
KR_API void kr_params_destroy(kr_params *params);

/* Properties of a row other than name and tensor; see kr_param_row. */
typedef struct kr_param_options {
    size_t size;      /* set by kr_param_options_init */
    const char *axes; /* "" */
    kr_init init;     /* fill with 0 */
    bool has_decay;   /* false */
    bool is_linear;   /* false; true: a matrix [out in] for kr_linear, which kr_params_pack packs */
    int n_segments;   /* 0; segments of a matrix, whose rows add up to its rows */
    const kr_segment *segments;
    /* false; true: the last projection of a block; networks divide its initial values by the root of their depth */
    bool is_residual_out;
} kr_param_options;
#define kr_param_options_init(options) KR_STRUCT_INIT(PARAM_OPTIONS, kr_param_options, options)

/* Creates a parameter owned by the table and initialises it. NULL options: all defaults. NULL after an error; the table
 * has not changed.
 *
 * In the create function of a family (kr_block_kind_info) the table is that of the network: the name gets the block's
 * prefix, and memory and values follow when the whole network has been declared. */
KR_API kr_tensor *kr_params_make(kr_params *params, const char *name, kr_dtype dtype, kr_shape shape,
                                 const kr_param_options *options);

/* A linear layer: NAME.weight [out in] with weight decay and, unless bias is NULL, NAME.bias [out]. Both are
 * initialised uniformly in +-1/sqrt(in) and updated by AdamW. Returns the weight; the bias of a bf16 or f16 weight is
 * f32. NULL after an error; the table has not changed. */
KR_API kr_tensor *kr_params_linear(kr_params *params, const char *name, kr_dtype dtype, int64_t n_out, int64_t n_in,
                                   kr_tensor **bias);

/* Adds a row for a parameter of the caller, whose values are kept.
 *
 * Ownership: the parameter stays the caller's and must outlive the table. */
KR_API kr_status kr_params_share(kr_params *params, const char *name, kr_tensor *param,
                                 const kr_param_options *options);

/* Adds rows for all parameters of another table, with the prefix ("encoder." or "", for example) before their names.
 * After an error the table has not changed.
 *
 * Ownership: the other table must outlive this one and must not grow. */
KR_API kr_status kr_params_join(kr_params *params, const char *prefix, const kr_params *other);

#ifdef __cplusplus
}
#endif
#endif
