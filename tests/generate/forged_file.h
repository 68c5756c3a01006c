/* forged_file.h - files of generations and rows with one change, whose checksum fits. */
#ifndef KR_TESTS_GENERATE_FORGED_FILE_H
#define KR_TESTS_GENERATE_FORGED_FILE_H

#include "base/hash.h"
#include "tests/temp_folder.h"

/* One change of a file whose checksum is made to fit. */
typedef struct forgery {
    const char *tensor; /* to be left out, or changed: */
    int at;             /* ... this number of it ... */
    int64_t value;      /* ... to this; */
    const kr_shape *shape;
    const kr_dtype *dtype;
    const char *key, *text; /* metadata */
    bool is_missing;
} forgery;

/* The tensor as the forgery has it. */
static inline void forge_item(kr_tensor_writer *w, const kr_tensor_file_item *item, const forgery *e, uint64_t *hash)
{
    static int64_t changed[2048];
    const bool is_it = e->tensor && strcmp(e->tensor, item->name) == 0;
    const kr_shape shape = is_it && e->shape ? *e->shape : item->shape;
    const kr_dtype dtype = is_it && e->dtype ? *e->dtype : item->dtype;
    const void *data = item->data;
    if (is_it && e->is_missing) return;
    if (is_it && !e->shape && !e->dtype) {
        if (!CHECK(item->bytes <= sizeof changed, "%zu bytes", item->bytes)) return;
        memcpy(changed, item->data, item->bytes);
        if (item->dtype == KR_DTYPE_I64) changed[e->at] = e->value;
        else ((int32_t *)changed)[e->at] = (int32_t)e->value;
        data = changed;
    }
    kr_tensor_writer_add(w, item->name, dtype, shape, data);
    *hash = kr_hash_word(kr_hash_text(*hash, item->name), (uint64_t)dtype);
    for (int axis = 0; axis < shape.rank; axis++) *hash = kr_hash_word(*hash, (uint64_t)shape.dims[axis]);
    *hash = kr_hash_bytes(*hash, data, item->bytes);
}

/* The file `from` to the file `to`, with one change; its tensors that are not of the state are `extras`, in the order of the
 * format. */
static inline void forge(kr_ctx *ctx, const char *from, const char *to, int n_extras, const char *const *extras,
                         const forgery *e)
{
    static const char *const keys[] = { "format", "version", "family", "architecture", "weights",
                                        "slots",  "batch",   "filled", "pathways",     "cursors" };
    kr_tensor_file *file = kr_tensor_file_open(ctx, from);
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    uint64_t hash = KR_HASH_BEGIN;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *value = e->key && strcmp(e->key, keys[i]) == 0 ? e->text : kr_tensor_file_metadata(file, keys[i]);
        kr_tensor_writer_add_metadata(w, keys[i], value);
        hash = kr_hash_text(kr_hash_text(hash, keys[i]), value);
    }
    for (int64_t i = 0; i < kr_tensor_file_count(file); i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(file, i);
        if (strncmp(item->name, "slot.", 5) == 0) forge_item(w, item, e, &hash);
    }
    for (int i = 0; i < n_extras; i++) forge_item(w, kr_tensor_file_find(file, extras[i]), e, &hash);
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    kr_tensor_writer_add_metadata(w, "checksum", text);
    IGNORE(kr_tensor_writer_save(w, to, KR_CONTAINER_SAFETENSORS));
    CHECK_OK(ctx);
    kr_tensor_writer_destroy(w);
    kr_tensor_file_close(file);
}

#endif
