/* block_kinds.h - the families of blocks: those of the library, and those that the program has registered. */
#ifndef KR_NN_BLOCK_KINDS_H
#define KR_NN_BLOCK_KINDS_H

#include "nn/block_impl.h"

enum {
    KR_KINDS_MOST = 64,          /* registered families */
    KR_BLOCK_CONFIG_BYTES = 512, /* of the config of one */
    KR_CONFIG_FIELDS_MAX = 32,   /* that it describes */
    KR_KIND_NAME_BYTES = 32,     /* with the final zero, as the next two */
    KR_CACHE_NAME_BYTES = 16,
    KR_FIELD_TEXT_BYTES = 64
};

/* A registered family, with copies of all that its info points to. */
typedef struct kr_registered_kind {
    kr_block_kind kind;
    kr_block_kind_info info;
    char name[KR_KIND_NAME_BYTES];
    char op_names[5][KR_KIND_NAME_BYTES + 16];
    char cache_names[KR_CACHE_TENSORS][KR_CACHE_NAME_BYTES];
    const char *cache_list[KR_CACHE_TENSORS];
    kr_config_field fields[KR_CONFIG_FIELDS_MAX];
    char field_names[KR_CONFIG_FIELDS_MAX][KR_KIND_NAME_BYTES];
    char field_texts[KR_CONFIG_FIELDS_MAX][KR_FIELD_TEXT_BYTES];
} kr_registered_kind;

/* The family of that name; NULL: there is none. */
const kr_block_kind *kr_block_kind_named(const char *name, size_t length);

/* The registered family of a value; NULL: it is no family, or one of the library. */
const kr_registered_kind *kr_registered_kind_of(kr_family family);

/* config <- the defaults of a registered family, all of its bytes. */
void kr_registered_config_init(const kr_registered_kind *r, void *config);

/* Is the config of the right size, of a float type, of a width, and are its fields in range? op begins messages. */
bool kr_registered_config_check(kr_ctx *ctx, const char *op, const kr_registered_kind *r, const void *config);

/* The range of one field; an error is of this status and begins with the prefix. */
bool kr_registered_field_check(kr_ctx *ctx, kr_status status, const char *prefix, const kr_config_field *field,
                               const void *config);

/* Fills in the functions of a family's kr_block_kind that call those of the program (block_registered.c). */
void kr_registered_kind_fill(kr_block_kind *kind);

/* kr_block_declare of such a family, and its part of kr_block_free. */
void *kr_registered_declare(kr_ctx *ctx, const kr_registered_kind *r, kr_params *params, const void *config);
void kr_registered_free(void *block);

/* kr_block_spec.token_elements of a block of such a family. */
int64_t kr_registered_token_elements(const void *block);

#endif
