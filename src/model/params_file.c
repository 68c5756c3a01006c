/* params_file.c - a parameter table as a safetensors file: a tensor for each row, under its name. */
#include "io/quote.h"
#include "nn/params_impl.h"

#include <krait/tensor_file.h>

#include <string.h>

#define QUOTED(s) kr_quote_of((s), strlen(s)).text

kr_status kr_params_save(const kr_params *params, const char *path)
{
    if (!params) return KR_ERR_ARG;
    kr_ctx *ctx = kr_params_ctx(params);
    if (kr_ctx_failed(ctx) || !kr_require(ctx, path, KR_ERR_ARG, "params.save: the path is NULL")) return ctx->status;
    kr_tensor_writer *writer = kr_tensor_writer_create(ctx);
    for (int64_t i = 0; writer && i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        if (kr_tensor_writer_add(writer, row->name, row->tensor->dtype, kr_tensor_shape(row->tensor),
                                 row->tensor->data) != KR_OK)
            break;
    }
    const kr_status status =
        kr_ctx_failed(ctx) ? ctx->status : kr_tensor_writer_save(writer, path, KR_CONTAINER_SAFETENSORS);
    kr_tensor_writer_destroy(writer);
    return status;
}

/* ---- reading ---- */

static bool check_item(kr_ctx *ctx, const char *path, const kr_param_row *row, const kr_tensor_file_item *item)
{
    const kr_shape shape = kr_tensor_shape(row->tensor);
    return kr_require(ctx, item, KR_ERR_FORMAT, "%s: there is no tensor '%s'", path, row->name) &&
           kr_require(ctx, item->is_readable && kr_dtype_is_float(item->dtype), KR_ERR_FORMAT,
                      "%s: tensor '%s' is of type %s, but a parameter is made of floats", path, row->name,
                      QUOTED(item->type)) &&
           kr_require(ctx, kr_shape_equal(&item->shape, &shape), KR_ERR_FORMAT,
                      "%s: tensor '%s' is %s, but the parameter is %s", path, row->name, KR_TEXT_OF_SHAPE(&item->shape),
                      KR_TEXT_OF_SHAPE(&shape));
}

/* Every parameter has its tensor, every tensor its parameter. */
static bool check_file(const kr_params *params, const kr_tensor_file *file, const char *path)
{
    kr_ctx *ctx = kr_params_ctx(params);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        if (!check_item(ctx, path, row, kr_tensor_file_find(file, row->name))) return false;
    }
    for (int64_t i = 0; i < kr_tensor_file_count(file); i++) {
        const char *name = kr_tensor_file_at(file, i)->name;
        if (!kr_require(ctx, kr_params_find(params, name), KR_ERR_FORMAT, "%s: there is no parameter for tensor '%s'",
                        path, QUOTED(name)))
            return false;
    }
    return true;
}

kr_status kr_params_load(kr_params *params, const char *path)
{
    if (!params) return KR_ERR_ARG;
    kr_ctx *ctx = kr_params_ctx(params);
    if (kr_ctx_failed(ctx) || !kr_require(ctx, path, KR_ERR_ARG, "params.load: the path is NULL")) return ctx->status;
    if (!kr_params_begin_write(params, "params.load")) return ctx->status;
    kr_tensor_file *file = kr_tensor_file_open(ctx, path);
    if (file && check_file(params, file, path))
        for (int64_t i = 0; i < kr_params_count(params); i++) {
            const kr_param_row *row = kr_params_at(params, i);
            kr_wrote(row->tensor);
            if (kr_tensor_file_read(file, kr_tensor_file_find(file, row->name), row->tensor->dtype, row->tensor->data,
                                    kr_count_of(row->tensor)) != KR_OK)
                break;
        }
    kr_tensor_file_close(file);
    kr_params_end_write(params);
    return ctx->status;
}
