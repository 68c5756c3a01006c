/* model_save.c - saves a model to a directory: weights, generation_config.json if there are token ids, config.json
 * last. */
#include "model/model_impl.h"

#include "io/file.h"
#include "io/file_write.h"
#include "io/folder.h"
#include "io/tensor_file_impl.h"
#include "tensor/tensor_impl.h"

#include <string.h>

#define OP "model.save"

typedef struct saving {
    kr_ctx *ctx;
    const kr_model *model;
    const char *folder;
    kr_save_options o; /* its layout is one */
    kr_arena arena;    /* paths, texts */
    kr_tensor_writer *writer;
    kr_network *plan; /* with a dtype: declared with it, so that its rows have the types to write */
    void **converted; /* [count]: memory of rows whose type changes; NULL elsewhere */
    size_t *bytes;
} saving;

/* ---- texts ---- */

typedef struct text {
    char *text;
    size_t length;
} text;

static bool make_text(saving *s, text *t, size_t length)
{
    t->length = length;
    t->text = kr_arena_alloc(&s->arena, length + 1);
    return kr_require(s->ctx, t->text != NULL, KR_ERR_NOMEM, "no memory for a text of %zu bytes", length);
}

/* config.json, with the type that its matrices will have. */
static bool compose_config(saving *s, text *t)
{
    kr_model_values config = s->model->box->values;
    size_t length;
    if (s->o.dtype != KR_DTYPE_AS_STORED) kr_config_set_dtype(&config, s->o.dtype);
    return kr_model_values_write(s->ctx, &config, s->o.layout, NULL, 0, &length) == KR_OK && make_text(s, t, length) &&
           kr_model_values_write(s->ctx, &config, s->o.layout, t->text, length + 1, &length) == KR_OK;
}

static bool compose_generation(saving *s, text *t)
{
    kr_json_writer w;
    kr_json_write_begin(&w, NULL, 0);
    kr_generation_write(&w, &s->model->box->values);
    if (!make_text(s, t, w.length)) return false;
    kr_json_write_begin(&w, t->text, t->length + 1);
    kr_generation_write(&w, &s->model->box->values);
    return true;
}

/* A text to memory; the sizes are the caller's. */
static bool copy_text(saving *s, const text *t, const kr_save_target *target)
{
    kr_file_writer w;
    return kr_file_create_target(&w, s->ctx, target) && kr_file_write(&w, t->text, t->length) && kr_file_commit(&w);
}

static bool write_text(saving *s, const char *name, const text *t)
{
    const char *path = kr_path_join(s->ctx, &s->arena, s->folder, name);
    kr_file_writer w;
    if (!path || !kr_file_create(&w, s->ctx, path)) return false;
    if (kr_file_write(&w, t->text, t->length)) return kr_file_commit(&w);
    kr_file_discard(&w);
    return false;
}

/* ---- tensors ---- */

static kr_dtype dtype_of_row(const saving *s, int64_t i)
{
    return s->plan ? kr_tensor_dtype(kr_params_at(kr_network_params(s->plan), i)->tensor) : s->model->stored[i];
}

static bool refuse_large(saving *s, const kr_param_row *row, kr_dtype dtype, int64_t n)
{
    const int64_t count = kr_count_of(row->tensor);
    const size_t bytes = (size_t)count * sizeof(double);
    double *values = kr_memory_alloc(&s->ctx->memory, bytes);
    const bool has_values = values && kr_tensor_read(row->tensor, KR_DTYPE_F64, values, count) == KR_OK;
    kr_refuse_large(s->ctx, "save", row->name, dtype, kr_tensor_dtype(row->tensor), n, has_values ? values : NULL,
                    count);
    if (values) kr_memory_free(&s->ctx->memory, values, bytes);
    return false;
}

/* The elements of a parameter in the type to write: its memory, or a copy. NULL after an error. */
static const void *elements_of(saving *s, int64_t i, const kr_param_row *row, kr_dtype dtype)
{
    const kr_tensor *x = row->tensor;
    const kr_dtype own = kr_tensor_dtype(x);
    if (dtype == own) return kr_tensor_data(x);
    const int64_t count = kr_count_of(x);
    s->bytes[i] = kr_dtype_span(dtype, count);
    void *copy = s->converted[i] = kr_memory_alloc(&s->ctx->memory, s->bytes[i]);
    if (!copy) {
        kr_fail(s->ctx, KR_ERR_NOMEM, "no memory for a copy of '%s' as %s", row->name, kr_dtype_name(dtype));
        return NULL;
    }
    if (kr_tensor_read(x, dtype, copy, count) != KR_OK) return NULL;
    const int64_t n = kr_dtype_is_shorter(dtype, own) ? kr_infinities(s->ctx, dtype, copy, count) : 0;
    return n == 0 || refuse_large(s, row, dtype, n) ? copy : NULL;
}

static bool add_row(saving *s, int64_t i)
{
    const kr_param_row *row = kr_params_at(kr_network_params(s->model->net), i);
    const kr_dtype dtype = dtype_of_row(s, i);
    const void *data = elements_of(s, i, row, dtype);
    const kr_shape shape = kr_tensor_shape(row->tensor);
    if (!data ||
        kr_tensor_writer_add(s->writer, kr_layout_parameter(s->o.layout, row->name), dtype, shape, data) != KR_OK)
        return false;
    /* torch's loader expects both names of a tied tensor; safetensors store it once */
    const bool is_head_too = s->o.container == KR_CONTAINER_TORCH && s->model->box->values.network.tie_embeddings &&
                             strcmp(row->name, kr_embedding_name) == 0;
    return !is_head_too || kr_tensor_writer_add(s->writer, kr_head_name, dtype, shape, data) == KR_OK;
}

static bool make_rows(saving *s)
{
    const size_t count = (size_t)s->model->count;
    s->converted = kr_arena_alloc(&s->arena, count * sizeof *s->converted);
    s->bytes = kr_arena_alloc(&s->arena, count * sizeof *s->bytes);
    if (!s->converted || !s->bytes) return kr_fail(s->ctx, KR_ERR_NOMEM, "no memory for a list of %zu tensors", count);
    memset(s->converted, 0, count * sizeof *s->converted);
    if (s->o.dtype != KR_DTYPE_AS_STORED && !(s->plan = kr_model_declare(s->ctx, &s->model->box->values, s->o.dtype)))
        return false;
    return (s->writer = kr_tensor_writer_create(s->ctx)) != NULL;
}

/* ---- saving ---- */

static bool add_rows(saving *s)
{
    if (!make_rows(s)) return false;
    for (int64_t i = 0; i < s->model->count; i++)
        if (!add_row(s, i)) return false;
    return true;
}

/* All checks run before the first file is touched. */
static bool save(saving *s)
{
    text config, generation;
    const bool has_tokens = kr_config_has_tokens(&s->model->box->values);
    if (!compose_config(s, &config) || !compose_generation(s, &generation) || !add_rows(s)) return false;
    const char *old = kr_path_join(s->ctx, &s->arena, s->folder, "generation_config.json");
    return old && kr_folder_make(s->ctx, s->folder) &&
           kr_tensor_writer_save_folder(s->writer, s->folder, s->o.container, s->o.max_shard_bytes) == KR_OK &&
           (has_tokens ? write_text(s, "generation_config.json", &generation) : kr_file_remove(s->ctx, old)) &&
           write_text(s, "config.json", &config);
}

/* As in a folder, but for the second file. */
static bool save_in_memory(saving *s, const kr_save_target *config, const kr_save_target *weights)
{
    text composed;
    if (!compose_config(s, &composed) || !add_rows(s)) return false;
    if (s->o.container == KR_CONTAINER_SAFETENSORS && kr_tensor_writer_add_metadata(s->writer, "format", "pt") != KR_OK)
        return false;
    return kr_tensor_writer_save_to(s->writer, weights, s->o.container) == KR_OK && copy_text(s, &composed, config);
}

static bool check_options(kr_ctx *ctx, const kr_save_options *o)
{
    return kr_require(ctx, o->layout == KR_LAYOUT_OFFICIAL || o->layout == KR_LAYOUT_HF, KR_ERR_ARG,
                      OP ": layout = %d is neither official nor hf", (int)o->layout) &&
           kr_require(ctx, o->container == KR_CONTAINER_SAFETENSORS || o->container == KR_CONTAINER_TORCH, KR_ERR_ARG,
                      OP ": container = %d is neither safetensors nor torch", (int)o->container) &&
           kr_require(ctx,
                      o->dtype == KR_DTYPE_AS_STORED || (kr_dtype_is_valid(o->dtype) && kr_dtype_is_float(o->dtype)),
                      KR_ERR_DTYPE, OP ": dtype = %s, but must be f32, f64, bf16 or f16", kr_dtype_name(o->dtype));
}

/* False after an error, without anything to end. */
static bool begin(saving *s, const kr_save_options *options)
{
    if (kr_ctx_failed(s->ctx) || !KR_TAKE(s->ctx, OP, kr_save_options, options, &s->o)) return false;
    if (s->o.layout == KR_LAYOUT_AS_LOADED) s->o.layout = s->model->box->values.layout;
    if (!check_options(s->ctx, &s->o)) return false;
    kr_arena_init(&s->arena, &s->ctx->memory, 1024);
    return true;
}

static kr_status end(saving *s, bool saved)
{
    kr_ctx *ctx = s->ctx;
    if (!saved && ctx->status != KR_ERR_IO) kr_blame(ctx, OP);
    kr_tensor_writer_destroy(s->writer);
    kr_network_destroy(s->plan);
    for (int64_t i = 0; s->converted && s->bytes && i < s->model->count; i++)
        if (s->converted[i]) kr_memory_free(&ctx->memory, s->converted[i], s->bytes[i]);
    kr_arena_deinit(&s->arena);
    return ctx->status;
}

kr_status kr_model_save(const kr_model *model, const char *folder, const kr_save_options *options)
{
    if (!model) return KR_ERR_ARG;
    saving s = { .ctx = model->ctx, .model = model, .folder = folder };
    if (!kr_ctx_failed(s.ctx) &&
        !kr_require(s.ctx, folder && *folder, KR_ERR_ARG, OP ": the folder's path is NULL or empty"))
        return s.ctx->status;
    return begin(&s, options) ? end(&s, save(&s)) : s.ctx->status;
}

kr_status kr_model_save_memory(const kr_model *model, const kr_save_options *options, char *config, size_t config_bytes,
                               size_t *config_needed, void *weights, size_t weights_bytes, size_t *weights_needed)
{
    if (config_needed) *config_needed = 0;
    if (weights_needed) *weights_needed = 0;
    if (!model) return KR_ERR_ARG;
    saving s = { .ctx = model->ctx, .model = model };
    if (!begin(&s, options)) return s.ctx->status;
    kr_save_target to_config, to_weights;
    return end(&s, kr_require(s.ctx, s.o.max_shard_bytes == 0, KR_ERR_ARG,
                              "max_shard_bytes = %zu, but memory takes one file", s.o.max_shard_bytes) &&
                       kr_save_to_memory(s.ctx, &to_config, config, config_bytes, config_needed) &&
                       kr_save_to_memory(s.ctx, &to_weights, weights, weights_bytes, weights_needed) &&
                       save_in_memory(&s, &to_config, &to_weights));
}
