/* model.h - language models on disk: a folder with config.json and weights, as the official implementation or Hugging
 * Face publish it, and as Krait writes it.
 *
 *   kr_model *model = kr_model_load(ctx, "mamba2-130m", NULL);
 *   kr_network_out out = kr_network_forward(tape, kr_model_network(model), id_bs, NULL);
 *   kr_save_options options;
 *   kr_save_options_init(&options);
 *   options.layout = KR_LAYOUT_HF;
 *   if (kr_model_save(model, "mamba2-130m-hf", &options) != KR_OK) fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_model_destroy(model);
 *   kr_ctx_clear(ctx);                    // there may be no such folder
 *
 * Loading is strict: every tensor of the files has its place, every parameter has its tensor, every shape is right, and
 * what is not supported is refused by name. Keys of config.json that mean nothing here are named in a warning to the
 * context's log.
 */
#ifndef KRAIT_MODEL_H
#define KRAIT_MODEL_H

#include <krait/network.h>
#include <krait/tensor_file.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Layout of config.json and tensor names. */
typedef enum kr_layout {
    KR_LAYOUT_OFFICIAL = 0,  /* state-spaces/mamba*: MambaConfig with ssm_cfg, backbone.embedding */
    KR_LAYOUT_HF = 1,        /* transformers: model_type mamba, mamba2, falcon_mamba; backbone.embeddings */
    KR_LAYOUT_AS_LOADED = -1 /* where a layout is chosen: the model's own */
} kr_layout;

/* "official", "hf"; "?" for an invalid value. */
KR_API_INLINE const char *kr_layout_name(kr_layout layout)
{
    return kr_enum_name(KR_ENUM_LAYOUT, (int)layout);
}

#define KR_MAX_EOS 8

/* What a model is made of. One of kr_model_config_create, _parse or _load has all five parts, which belong to it and may be
 * changed; one of the caller's own (kr_model_config_init) points to the caller's structs, and a part that is NULL has its
 * defaults. Change the library's own in place: its structs have the library's size, which a copy in the program may not
 * have.
 *
 *   kr_model_config *config = kr_model_config_create(ctx);
 *   config->family = KR_FAMILY_MAMBA3;
 *   kr_model_config_set_d_model(config, 64);
 *   config->layers->n_layers = 2;
 *   config->network->vocab_size = 256;
 *   kr_model *model = kr_model_create(ctx, config);
 *   kr_model_config_destroy(config);
 */
typedef struct kr_model_config {
    size_t size;      /* set by kr_model_config_init */
    kr_layout layout; /* KR_LAYOUT_OFFICIAL; the one it was read from */
    kr_family family; /* KR_FAMILY_MAMBA2; says which of the next three is read */
    kr_mamba1_config *mamba1;
    kr_mamba2_config *mamba2;
    kr_mamba3_config *mamba3;
    kr_layers_config *layers;   /* its block is not read: the family's config takes its place */
    kr_network_config *network; /* its layers are not read, the line above takes their place */
    bool fused_add_norm;        /* true; of the official spelling, kept for it: it changes no number here */
    int64_t chunk_size;         /* 0: not said; the same: chunks here are as long as `path` has it */
    int n_eos; /* tokens that end a text; of the Hugging Face spelling and generation_config.json ... */
    int64_t eos[KR_MAX_EOS];
    int64_t bos, pad; /* ... and these, -1: none */
} kr_model_config;
#define kr_model_config_init(config) KR_STRUCT_INIT(MODEL_CONFIG, kr_model_config, config)

/* The defaults; NULL after an error. */
KR_API kr_model_config *kr_model_config_create(kr_ctx *ctx);

/* d_model is in all three blocks' configs, as far as they are given; so is the dtype. The second is that of the family. */
KR_API_INLINE void kr_model_config_set_d_model(kr_model_config *config, int64_t d_model)
{
    if (config && config->mamba1) config->mamba1->d_model = d_model;
    if (config && config->mamba2) config->mamba2->d_model = d_model;
    if (config && config->mamba3) config->mamba3->d_model = d_model;
}
KR_API_INLINE int64_t kr_model_config_d_model(const kr_model_config *config)
{
    if (config && config->family == KR_FAMILY_MAMBA1 && config->mamba1) return config->mamba1->d_model;
    if (config && config->family == KR_FAMILY_MAMBA2 && config->mamba2) return config->mamba2->d_model;
    if (config && config->family == KR_FAMILY_MAMBA3 && config->mamba3) return config->mamba3->d_model;
    return 0;
}

/* A config read from a text, of at most 1 MiB; or from a file or a folder, whose generation_config.json is asked for the
 * token ids that its config.json does not name. NULL after an error. */
KR_API kr_model_config *kr_model_config_parse(kr_ctx *ctx, const char *text, size_t bytes);
KR_API kr_model_config *kr_model_config_load(kr_ctx *ctx, const char *path);
KR_API void kr_model_config_destroy(kr_model_config *config); /* one of these three; NULL is allowed */

/* config.json in a layout (KR_LAYOUT_AS_LOADED: its own) into text, as by snprintf: *needed is its length, without the
 * final
 * zero. What the layout has no word for goes into an object "krait"; a model that needs none is read by the layout's own
 * loaders. Not told: how it is run or trained (path, recompute, grad_horizon), and in the official layout the dtype and
 * the token ids, which kr_model_save puts into generation_config.json. Refused where the layout has no such family. */
KR_API kr_status kr_model_config_format(kr_ctx *ctx, const kr_model_config *config, kr_layout layout, char *text,
                                        size_t bytes, size_t *needed);

/* ---- models ---- */

typedef struct kr_model kr_model;

/* A model with initial weights sampled from the context's random stream. The caller destroys it. NULL after an error. */
KR_API kr_model *kr_model_create(kr_ctx *ctx, const kr_model_config *config);
KR_API void kr_model_destroy(kr_model *model);

typedef struct kr_load_options {
    size_t size; /* set by kr_load_options_init */
    /* Of the matrices; KR_DTYPE_AS_STORED: the narrowest that loses nothing of any. The rest is f32, or f64. A model is
     * saved in a type that was asked for here. */
    kr_dtype dtype;
    /* As in kr_layers_config, of which files do not tell: how it is trained. */
    int64_t grad_horizon; /* KR_NO_HORIZON */
    kr_recompute recompute;
    size_t recompute_budget;
} kr_load_options;
#define kr_load_options_init(options) KR_STRUCT_INIT(LOAD_OPTIONS, kr_load_options, options)

/* NULL options: all defaults. NULL after an error. */
KR_API kr_model *kr_model_load(kr_ctx *ctx, const char *folder, const kr_load_options *options);

/* The network and the config of a model; both live as long as the model. NULL for NULL. */
KR_API const kr_network *kr_model_network(const kr_model *model);
KR_API const kr_model_config *kr_model_config_of(const kr_model *model);

typedef struct kr_save_options {
    size_t size;            /* set by kr_save_options_init */
    kr_layout layout;       /* KR_LAYOUT_AS_LOADED */
    kr_dtype dtype;         /* of the matrices; KR_DTYPE_AS_STORED: each tensor in the type that it was loaded from */
    kr_container container; /* KR_CONTAINER_SAFETENSORS */
    size_t max_shard_bytes; /* 0: one file */
} kr_save_options;
#define kr_save_options_init(options) KR_STRUCT_INIT(SAVE_OPTIONS, kr_save_options, options)

/* Writes config.json, the weights and, if there are token ids, generation_config.json into a folder, which is made if
 * there is none. The weights come first, config.json last, each file whole or not at all. NULL options: all defaults. */
KR_API KR_MUST_CHECK kr_status kr_model_save(const kr_model *model, const char *folder, const kr_save_options *options);

/* ---- before it is loaded ---- */

typedef struct kr_model_size {
    int64_t parameters;
    size_t weight_bytes;  /* with the dtype of the config */
    size_t state_bytes;   /* per row; constant, whatever the sequence length */
    size_t prefill_bytes; /* per row and token of a forward call, approximate, in addition to the above */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_model_size;

/* The memory that a model of this config needs, without creating it. */
KR_API kr_status kr_model_measure(kr_ctx *ctx, const kr_model_config *config, kr_model_size *size);

/* Why a folder would not load, as far as config.json and the headers of its weights tell: `reason`, if it is not NULL,
 * is called with a text for each. Returns how many there are; 0: it would load.
 *
 * Errors: -1 after an error of the context, which a broken folder is not. */
typedef void kr_reason_fn(void *user, const char *text);
KR_API int64_t kr_model_check(kr_ctx *ctx, const char *folder, kr_reason_fn *reason, void *user);

#ifdef __cplusplus
}
#endif
#endif
