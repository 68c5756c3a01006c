/* model_config_impl.h - config.json as tables of keys: each row is a key of the file and its field.
 *
 * A layout reads its keys, then those of the object "krait", which take precedence. Writing is the reverse: the config
 * that a reader of the layout's keys would get is compared with the actual one, and the differences are written to
 * "krait".
 */
#ifndef KR_MODEL_MODEL_CONFIG_IMPL_H
#define KR_MODEL_MODEL_CONFIG_IMPL_H

#include "base/ctx_impl.h"
#include "io/json_impl.h"
#include "io/json_write.h"
#include "nn/block_kinds.h"

#include <krait/model.h>

/* A kr_model_config with its parts by value: keys have offsets in it, and it is compared and copied as a whole. */
typedef struct kr_model_values {
    kr_layout layout;
    kr_family family;
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    kr_layers_config layers;
    kr_network_config network;
    bool fused_add_norm;
    int64_t chunk_size;
    int n_eos;
    int64_t eos[KR_MAX_EOS];
    int64_t bos, pad;
    union {
        kr_config_head head;
        unsigned char bytes[KR_BLOCK_CONFIG_BYTES];
    } registered; /* the config of a registered family */
} kr_model_values;

/* The config of the family, which begins with a kr_config_head. */
void *kr_model_values_block(kr_model_values *values);

/* The family, with the defaults of a registered one. */
void kr_model_values_set_family(kr_model_values *values, kr_family family);

void kr_model_values_init(kr_model_values *values);

/* *values <- the caller's config, defaults for parts that are NULL; false after an error. */
bool kr_model_values_take(kr_ctx *ctx, const char *op, kr_model_values *values, const kr_model_config *config);

/* kr_model_config_format of values. */
kr_status kr_model_values_write(kr_ctx *ctx, const kr_model_values *values, kr_layout layout, char *text, size_t bytes,
                                size_t *needed);

/* A config that owns its parts and lists. */
typedef struct kr_config_box {
    kr_model_config config; /* its parts are those of `values` */
    kr_model_values
        values; /* the other fields are valid while it is read; kr_config_box_publish copies them to `config` */
    kr_ctx *ctx;
    kr_arena arena;
} kr_config_box;

void kr_config_box_publish(kr_config_box *box);

kr_config_box *kr_config_box_create(kr_ctx *ctx);
void kr_config_box_destroy(kr_config_box *box);

/* A copy of a (whole) config; NULL after an error. */
kr_config_box *kr_config_box_clone(kr_ctx *ctx, const kr_model_values *values);

/* ---- keys ---- */

typedef struct kr_key kr_key;

typedef struct kr_reading {
    kr_ctx *ctx;
    kr_arena *arena; /* for lists */
    kr_model_values *config;
    const kr_json *object; /* being read ... */
    const char *prefix;    /* ... and the prefix of its keys: "", "ssm_cfg.", "krait." */
    int64_t num_heads;     /* of the Hugging Face spelling; 0: not given */
    int64_t nschedule;     /* numbers of krait.custom_schedule; -1: not given */
} kr_reading;

/* The kind of a row's value. */
typedef struct kr_key_kind {
    size_t bytes; /* of the field, which is plain memory; 0: `same` compares and `copy` copies */
    bool (*read)(kr_reading *r, const kr_key *key, const kr_json *value);
    /* Is the field within its range? Messages begin with the key's name in the file. */
    bool (*check)(kr_ctx *ctx, const char *prefix, const kr_key *key, const kr_model_values *config);
    void (*write)(kr_json_writer *w, const kr_key *key, const kr_model_values *config);
    bool (*same)(const kr_model_values *a, const kr_model_values *b);
    void (*copy)(kr_model_values *to, const kr_model_values *from);
} kr_key_kind;

enum {
    KR_KEY_ALWAYS = 1,   /* written with its default too */
    KR_KEY_NULLABLE = 2, /* null: as if it were missing */
    KR_KEY_HARMLESS = 4, /* of krait: a reader that ignores it computes the same numbers */
    KR_KEY_INITIAL = 8,  /* of krait: only affects initial parameters */
    KR_KEY_ABOVE = 16,   /* numbers: more than least */
    KR_KEY_INFINITE = 32 /* pairs: the second may be infinite */
};

#define KR_KEY_ANY INT64_MIN /* least: no bound */

struct kr_key {
    const char *name;
    const kr_key_kind *kind;  /* NULL: ignored here, or read by other means */
    size_t offset;            /* of the field in kr_model_values */
    int64_t least, most;      /* of integers (most 0: KR_CONFIG_MOST); least of numbers */
    const char *const *words; /* of the values from 0 on, up to a NULL */
    unsigned flags;
};

typedef struct kr_keys {
    const kr_key *rows;
    size_t count;
} kr_keys;

#define KR_KEYS(rows)                                                                                                  \
    {                                                                                                                  \
        (rows), sizeof(rows) / sizeof *(rows)                                                                          \
    }
#define KR_FIELD(field) offsetof(kr_model_values, field)

extern const kr_key_kind kr_integer_key;  /* int64_t */
extern const kr_key_kind kr_auto_key;     /* the same, or "auto", which is 0 */
extern const kr_key_kind kr_optional_key; /* the same, or null, which is 0 */
extern const kr_key_kind kr_number_key;   /* double */
extern const kr_key_kind kr_bool_key;     /* bool */
extern const kr_key_kind kr_choice_key;   /* bool, as one of two words */
extern const kr_key_kind kr_word_key;     /* an enum */
extern const kr_key_kind kr_pair_key;     /* two doubles that follow one another: [low, high] */
extern const kr_key_kind kr_token_key;    /* int64_t, -1: none */
extern const kr_key_kind kr_eos_key;      /* n_eos, eos: an id or a list of ids */
extern const kr_key_kind kr_d_model_key;  /* of all families */

/* Reads every member of r->object by the tables. A key that is in none of them is an error if is_strict, else a
 * warning. */
bool kr_keys_read(kr_reading *r, const kr_keys *const *tables, int ntables, bool is_strict);

/* Are all fields of a table within their ranges? */
bool kr_keys_check(kr_ctx *ctx, const char *prefix, const kr_keys *keys, const kr_model_values *config);

/* Writes the rows whose fields differ from `defaults`, and those that are always written. */
void kr_keys_write(kr_json_writer *w, const kr_keys *keys, const kr_model_values *config,
                   const kr_model_values *defaults);

/* Copies the fields of a table. */
void kr_keys_copy(const kr_keys *keys, kr_model_values *to, const kr_model_values *from);

bool kr_key_same(const kr_key *key, const kr_model_values *a, const kr_model_values *b);

/* "config.json: KEY = VALUE, but must be RULE"; always false. */
bool kr_key_refuse(const kr_reading *r, const char *name, const kr_json *value, const char *rule);

/* Is a string exactly this word? */
bool kr_json_is_word(const kr_json *value, const char *word);

/* ---- layouts ---- */

typedef struct kr_layout_kind {
    /* Everything except the krait object. */
    bool (*read)(kr_reading *r, const kr_json *root);
    /* Writes the keys from a config in range; sets *seen to the config that a reader will get from them. False: not
     * representable. */
    bool (*write)(kr_ctx *ctx, kr_json_writer *w, const kr_model_values *config, kr_model_values *seen);
    const char *warning; /* consequence of a krait object that matters */
} kr_layout_kind;

extern const kr_layout_kind kr_official_layout, kr_hf_layout;

/* Reads the object "krait" of the root, if it exists, and checks its combination with the other keys. */
bool kr_krait_read(kr_reading *r, const kr_json *root);

/* Writes the object for differences between the config and `seen`, if any; warns where they matter. */
void kr_krait_write(kr_ctx *ctx, kr_json_writer *w, const kr_model_values *config, const kr_model_values *seen,
                    const kr_layout_kind *layout, bool warns);

/* Ranges of the fields of "krait", and its lists. */
bool kr_krait_check(kr_ctx *ctx, const kr_model_values *config);

/* ssm_cfg of a registered family: its fields, and keys of `idle`, which are not read. Every other key is an error. */
bool kr_registered_read(kr_reading *r, const kr_json *ssm, const kr_keys *idle);
void kr_registered_write(kr_json_writer *w, const kr_model_values *config);

/* Copies the texts of the fields to the arena. False without memory. */
bool kr_registered_copy_texts(kr_arena *arena, kr_model_values *config);

/* kr_model_config_load of a directory, and kr_model_config_parse. */
kr_config_box *kr_config_load_folder(kr_ctx *ctx, const char *folder);
kr_config_box *kr_config_read_text(kr_ctx *ctx, const char *text, size_t bytes);

/* The keys for token ids, of the Hugging Face spelling and of generation_config.json. */
extern const kr_keys kr_token_keys;

/* generation_config.json: into a config that has no ids, and out of one that has some. */
bool kr_generation_read(kr_ctx *ctx, kr_model_values *config, const char *text, size_t bytes);
void kr_generation_write(kr_json_writer *w, const kr_model_values *config);
bool kr_config_has_tokens(const kr_model_values *config);

/* The width of all families, and their dtype. */
void kr_config_set_d_model(kr_model_values *values, int64_t d_model);
void kr_config_set_dtype(kr_model_values *config, kr_dtype dtype);
kr_dtype kr_config_dtype_of(const kr_model_values *config);

/* The text of a file called `name` as a document whose root is an object; NULL after an error. */
kr_json *kr_config_parse(kr_ctx *ctx, const char *name, const char *text, size_t bytes);

enum { KR_CONFIG_BYTES_MOST = 1 << 20, KR_LAYERS_MOST = 1 << 14, KR_VIRTUAL_MOST = 1 << 16 };

#endif
