/* folders.h - model folders in a test's own folder: made, compared, changed, removed. */
#ifndef KR_TESTS_MODEL_FOLDERS_H
#define KR_TESTS_MODEL_FOLDERS_H

#include "tests/temp_folder.h"
#include "tests/model/log.h"

/* Removes a model folder and what is in it. */
static inline void drop_folder(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s", in_folder(name));
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char file[900];
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.' || strlen(e->d_name) > 2) remove(file);
    }
    if (dir) closedir(dir);
    rmdir(path);
}

/* A file of a model folder. */
static inline const char *file_of(const char *name, const char *file)
{
    static char path[700];
    snprintf(path, sizeof path, "%s/%s", in_folder(name), file);
    return path;
}

static inline bool has_file(const char *name, const char *file)
{
    return access(file_of(name, file), F_OK) == 0;
}

static inline void put_text(const char *name, const char *file, const char *text)
{
    write_image(file_of(name, file), text, strlen(text));
}

static inline bool same_file(const char *a, const char *b, const char *file)
{
    file_image first = read_image(file_of(a, file)), second = read_image(file_of(b, file));
    const bool same = first.bytes == second.bytes && memcmp(first.data, second.data, first.bytes) == 0;
    free(first.data);
    free(second.data);
    return same;
}

/* The same parameters, to the bit, and configs that are written alike. */
static inline void check_same_model(const char *what, const kr_model *got, const kr_model *want)
{
    if (!CHECK(got && want, "%s", what)) return;
    const kr_params *a = kr_network_params(kr_model_network(got)), *b = kr_network_params(kr_model_network(want));
    CHECK(kr_params_count(a) == kr_params_count(b), "%s: %lld parameters, not %lld", what,
          (long long)kr_params_count(a), (long long)kr_params_count(b));
    for (int64_t i = 0; i < kr_params_count(a); i++) {
        const kr_param_row *row = kr_params_at(a, i), *other = kr_params_find(b, row->name);
        char name[300];
        snprintf(name, sizeof name, "%s: %s", what, row->name);
        if (CHECK(other != NULL, "%s", name)) CHECK_SAME_BITS(name, row->tensor, other->tensor);
    }
}

static inline void config_text(kr_ctx *ctx, const kr_model *model, kr_layout layout, char *text, size_t bytes)
{
    size_t needed;
    kr_model_config_format(ctx, kr_model_config_of(model), layout, text, bytes, &needed);
}

static inline void check_same_config(const char *what, kr_ctx *ctx, const kr_model *got, const kr_model *want)
{
    static char a[8192], b[8192];
    config_text(ctx, got, KR_LAYOUT_OFFICIAL, a, sizeof a);
    config_text(ctx, want, KR_LAYOUT_OFFICIAL, b, sizeof b);
    const kr_model_config *x = kr_model_config_of(got), *y = kr_model_config_of(want);
    CHECK(strcmp(a, b) == 0, "%s: %s became %s", what, b, a);
    CHECK(x->n_eos == y->n_eos && x->eos[0] == y->eos[0] && x->bos == y->bos && x->pad == y->pad, "%s: ids", what);
}

/* ---- weights that were changed ---- */

typedef struct change {
    const char *name;      /* of a tensor ... */
    const char *renamed;   /* ... that is called so; "": left out */
    const kr_shape *shape; /* ... that has another shape, of as many elements or fewer */
    const kr_dtype *dtype; /* ... or another type */
    const char *added;     /* a tensor more, as `from` has it or of one element */
    const char *from;
    double delta; /* that the first element of the added one differs by */
} change;

/* Writes the weights of a golden model, changed, as safetensors into a folder that is there. */
static inline void write_changed(kr_ctx *ctx, const char *golden, const char *name, const change *c)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s", KR_SOURCE_DIR, golden);
    kr_tensor_file *weights = kr_tensor_file_open(ctx, path);
    kr_tensor_writer *writer = kr_tensor_writer_create(ctx);
    enum { MOST = 64 };
    void *data[MOST];
    int64_t n = 0;
    double one = 1;
    for (; n < kr_tensor_file_count(weights) && n < MOST; n++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(weights, n);
        const bool is_it = c->name && strcmp(item->name, c->name) == 0;
        const kr_dtype dtype = is_it && c->dtype ? *c->dtype : item->dtype;
        data[n] = calloc((size_t)item->count, 8);
        if (dtype == KR_DTYPE_I32 || dtype == KR_DTYPE_I64) memset(data[n], 0, (size_t)item->count * 8);
        else IGNORE(kr_tensor_file_read(weights, item, dtype, data[n], item->count));
        const char *as = is_it && c->renamed ? c->renamed : item->name;
        if (*as) kr_tensor_writer_add(writer, as, dtype, is_it && c->shape ? *c->shape : item->shape, data[n]);
    }
    const kr_tensor_file_item *from = c->from ? kr_tensor_file_find(weights, c->from) : NULL;
    float *copy = from ? calloc((size_t)from->count, sizeof *copy) : NULL;
    if (from) {
        IGNORE(kr_tensor_file_read(weights, from, KR_DTYPE_F32, copy, from->count));
        copy[0] = (float)(copy[0] + c->delta);
        kr_tensor_writer_add(writer, c->added, KR_DTYPE_F32, from->shape, copy);
    } else if (c->added) {
        kr_tensor_writer_add(writer, c->added, KR_DTYPE_F64, KR_SHAPE(1), &one);
    }
    CHECK(kr_tensor_writer_save_folder(writer, in_folder(name), KR_CONTAINER_SAFETENSORS, 0) == KR_OK, "%s",
          kr_ctx_message(ctx));
    kr_tensor_writer_destroy(writer);
    for (int64_t i = 0; i < n; i++) free(data[i]);
    free(copy);
    kr_tensor_file_close(weights);
}

/* config.json of a golden model into a folder. */
static inline void copy_config(const char *golden, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s/config.json", KR_SOURCE_DIR, golden);
    file_image image = read_image(path);
    write_image(file_of(name, "config.json"), image.data, image.bytes);
    free(image.data);
}

#endif
