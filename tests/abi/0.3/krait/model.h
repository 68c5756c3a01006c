/* model.h - language models on disk: a folder with config.json and weights, in the layout of the official
 * implementation or of Hugging Face. Krait reads and writes both.
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
 * A model of a registered family (kr_block_kind_register) has the family's name as ssm_cfg.layer and its config's fields
 * in ssm_cfg; the program that loads it must have registered the family. The Hugging Face layout has no such models.
 *
 * Loading is strict: every tensor in the files must belong to a parameter, every parameter must have its tensor, and
 * every shape must match. Unsupported features are errors that name them. Unknown keys of config.json are listed in a
 * warning to the context's log. */
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
    KR_LAYOUT_AS_LOADED = -1 /* the layout from which the model was loaded */
} kr_layout;

/* "official", "hf"; "?" for an invalid value. */
KR_API_INLINE const char *kr_layout_name(kr_layout layout)
{
    return kr_enum_name(KR_ENUM_LAYOUT, (int)layout);
}

#define KR_MAX_EOS 8

/* The configuration of a model. A config of kr_model_config_create, _parse or _load has all five parts; they belong to
 * it and may be changed. A config of the caller (kr_model_config_init) points to the caller's structs; a part that is
 * NULL has its defaults. Change the parts of a library config in place: they have the library's struct size, which a
 * copy in the program may not have.
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
    kr_layout layout; /* KR_LAYOUT_OFFICIAL, or the layout of the parsed file */
    kr_family family; /* KR_FAMILY_MAMBA2; selects one of the next three, or `registered` */
    kr_mamba1_config *mamba1;
    kr_mamba2_config *mamba2;
    kr_mamba3_config *mamba3;
    /* The config of a registered family; NULL for the others. _parse and _load set it; otherwise the caller does, and
     * keeps the struct and its texts until the config has been used. */
    void *registered;
    kr_layers_config *layers;   /* layers->block is ignored; the config named by `family` is used */
    kr_network_config *network; /* network->layers is ignored; `layers` above is used */
    bool fused_add_norm;        /* true; official key, kept for saving, no effect */
    int64_t chunk_size;         /* 0: not set; official key, no effect: `path` sets the chunk length */
    /* EOS ids, in the Hugging Face layout and generation_config.json ... */
    int n_eos;
    int64_t eos[KR_MAX_EOS];
    int64_t bos, pad; /* ... as are these; -1: not set */
} kr_model_config;
#define kr_model_config_init(config) KR_STRUCT_INIT(MODEL_CONFIG, kr_model_config, config)

/* Creates a config with all defaults. NULL after an error. */
KR_API kr_model_config *kr_model_config_create(kr_ctx *ctx);

/* Sets d_model in the configs of all families, as far as they are given; and returns that of the selected family. */
KR_API_INLINE void kr_model_config_set_d_model(kr_model_config *config, int64_t d_model)
{
    if (config && config->mamba1) config->mamba1->d_model = d_model;
    if (config && config->mamba2) config->mamba2->d_model = d_model;
    if (config && config->mamba3) config->mamba3->d_model = d_model;
    if (config && config->registered) ((kr_config_head *)config->registered)->d_model = d_model;
}
KR_API_INLINE int64_t kr_model_config_d_model(const kr_model_config *config)
{
    if (config && config->family == KR_FAMILY_MAMBA1 && config->mamba1) return config->mamba1->d_model;
    if (config && config->family == KR_FAMILY_MAMBA2 && config->mamba2) return config->mamba2->d_model;
    if (config && config->family == KR_FAMILY_MAMBA3 && config->mamba3) return config->mamba3->d_model;
    if (config && config->family >= KR_FAMILY_REGISTERED && config->registered)
        return ((const kr_config_head *)config->registered)->d_model;
    return 0;
}

/* Parses a config from a text of at most 1 MiB, or loads it from a file or folder. If config.json of a folder has no
 * token ids, they are read from generation_config.json. NULL after an error. kr_model_config_destroy releases these and
 * the config of kr_model_config_create; NULL is allowed. */
KR_API kr_model_config *kr_model_config_parse(kr_ctx *ctx, const char *text, size_t bytes);
KR_API kr_model_config *kr_model_config_load(kr_ctx *ctx, const char *path);
KR_API void kr_model_config_destroy(kr_model_config *config);

/* Formats config.json in a layout (KR_LAYOUT_AS_LOADED: that of the config), as snprintf does: *needed is the length
 * without the final zero. Settings that the layout cannot express go into an object "krait"; a model without such
 * settings can be read by the layout's own loaders. Not stored: run-time settings (path, recompute, grad_horizon); in
 * the official layout also dtype and token ids, which kr_model_save writes to generation_config.json. Fails if the
 * layout does not support the family. */
KR_API kr_status kr_model_config_format(kr_ctx *ctx, const kr_model_config *config, kr_layout layout, char *text,
                                        size_t bytes, size_t *needed);

/* ---- models ---- */

typedef struct kr_model kr_model;

/* Creates a model and initialises its weights from the context's random stream. The caller destroys it. NULL after an
 * error. */
KR_API kr_model *kr_model_create(kr_ctx *ctx, const kr_model_config *config);
KR_API void kr_model_destroy(kr_model *model);

typedef struct kr_load_options {
    size_t size; /* set by kr_load_options_init */
    /* Dtype of the matrices. KR_DTYPE_AS_STORED: the narrowest dtype that represents all of them exactly. Other
     * parameters are f32, or f64. A model loaded with a dtype is saved with it. */
    kr_dtype dtype;
    /* Training settings, as in kr_layers_config; not stored in model files. */
    int64_t grad_horizon; /* KR_NO_HORIZON */
    kr_recompute recompute;
    size_t recompute_budget;
    bool no_mmap; /* false; true: copy all weights into memory, and close the files before the call returns */
} kr_load_options;
#define kr_load_options_init(options) KR_STRUCT_INIT(LOAD_OPTIONS, kr_load_options, options)

/* Loads a model folder. NULL options: all defaults. NULL after an error.
 *
 * On the CPU a safetensors file is mapped, and weights that have the wanted dtype in it are used where they lie: they are
 * not copied, and processes that load the same file share its pages. Writing a parameter copies its pages; the file never
 * changes. A mapped file must not be truncated or changed in place while the model exists (kr_model_save and other
 * programs replace files, which is fine); no_mmap has no such condition. Files on network file systems are always
 * copied. */
KR_API kr_model *kr_model_load(kr_ctx *ctx, const char *folder, const kr_load_options *options);

/* Loads a model from memory: the text of config.json, and the bytes of one safetensors or torch file. Both are copied and
 * may be untrusted. Token ids are those of config.json. */
KR_API kr_model *kr_model_load_memory(kr_ctx *ctx, const char *config, size_t config_bytes, const void *weights,
                                      size_t weights_bytes, const kr_load_options *options);

/* Creates a model in `ctx` over the weights of another one, as kr_network_share does for its network, with the same
 * ownership, thread safety and errors. */
KR_API kr_model *kr_model_share(kr_ctx *ctx, const kr_model *model);

typedef struct kr_model_info {
    const kr_network *network;
    const kr_model_config *config;
    uint64_t reserved[6]; /* 0; for later versions */
} kr_model_info;

/* The parts of a model, valid as long as the model; NULL for NULL. The functions below return one field each. */
KR_API kr_model_info kr_model_info_of(const kr_model *model);
KR_API_INLINE const kr_network *kr_model_network(const kr_model *model)
{
    return kr_model_info_of(model).network;
}
KR_API_INLINE const kr_model_config *kr_model_config_of(const kr_model *model)
{
    return kr_model_info_of(model).config;
}

typedef struct kr_save_options {
    size_t size;            /* set by kr_save_options_init */
    kr_layout layout;       /* KR_LAYOUT_AS_LOADED */
    kr_dtype dtype;         /* dtype of the matrices; KR_DTYPE_AS_STORED: the dtype each was loaded from */
    kr_container container; /* KR_CONTAINER_SAFETENSORS */
    size_t max_shard_bytes; /* 0: one file */
} kr_save_options;
#define kr_save_options_init(options) KR_STRUCT_INIT(SAVE_OPTIONS, kr_save_options, options)

/* Writes config.json, the weights and, if there are token ids, generation_config.json to a folder, which is created if
 * absent. Weights are written first and config.json last; each write is atomic. NULL options: all defaults. */
KR_API KR_MUST_CHECK kr_status kr_model_save(const kr_model *model, const char *folder, const kr_save_options *options);

/* Writes config.json and the file with the weights to the caller's memory: the same bytes as kr_model_save, in one file
 * (max_shard_bytes is 0). *config_needed and *weights_needed are the sizes; config or weights NULL: that part is only
 * measured. config is not zero-terminated. In the official layout token ids are not in config.json: save them yourself,
 * or use KR_LAYOUT_HF. KR_ERR_ARG if a memory is too small; after an error the contents of both are undefined. */
KR_API KR_MUST_CHECK kr_status kr_model_save_memory(const kr_model *model, const kr_save_options *options, char *config,
                                                    size_t config_bytes, size_t *config_needed, void *weights,
                                                    size_t weights_bytes, size_t *weights_needed);

/* ---- inspection without loading ---- */

typedef struct kr_model_size {
    int64_t parameters;
    size_t weight_bytes;  /* with the dtype of the config */
    size_t state_bytes;   /* per row; constant, whatever the sequence length */
    size_t prefill_bytes; /* per row and token of a forward call, approximate, in addition to the above */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_model_size;

/* The memory that a model of this config needs, without creating it. */
KR_API kr_status kr_model_measure(kr_ctx *ctx, const kr_model_config *config, kr_model_size *size);

/* Checks without loading whether a folder loads, from config.json and the weight headers. Calls `reason` (may be NULL)
 * for each problem and returns their number; 0: it loads.
 *
 * Errors: -1 after an error of the context. A broken folder is not an error of the context. */
typedef void kr_reason_fn(void *user, const char *text);
KR_API int64_t kr_model_check(kr_ctx *ctx, const char *folder, kr_reason_fn *reason, void *user);

#ifdef __cplusplus
}
#endif
#endif
