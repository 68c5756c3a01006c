/* safetensors_read.c - element types of a file, and copying elements out of it with conversion. */
#include "io/safetensors_impl.h"

#include <string.h>

static const kr_element_type types[] = {
    { "F64", 8, true, true, true, KR_DTYPE_F64 },       { "F32", 4, true, true, true, KR_DTYPE_F32 },
    { "F16", 2, true, true, true, KR_DTYPE_F16 },       { "BF16", 2, true, true, true, KR_DTYPE_BF16 },
    { "I64", 8, true, true, true, KR_DTYPE_I64 },       { "I32", 4, true, true, true, KR_DTYPE_I32 },
    { "U32", 4, false, true, false, KR_DTYPE_I64 },     { "I16", 2, false, true, true, KR_DTYPE_I32 },
    { "U16", 2, false, true, false, KR_DTYPE_I32 },     { "I8", 1, false, true, true, KR_DTYPE_I32 },
    { "U8", 1, false, true, false, KR_DTYPE_I32 },      { "BOOL", 1, false, true, false, KR_DTYPE_I32 },
    { "U64", 8, false, false, false, KR_DTYPE_I64 },    { "C64", 8, false, false, true, KR_DTYPE_F32 },
    { "F8_E4M3", 1, false, false, true, KR_DTYPE_F32 }, { "F8_E5M2", 1, false, false, true, KR_DTYPE_F32 },
    { "F8_E8M0", 1, false, false, true, KR_DTYPE_F32 }
};

const kr_element_type *kr_safetensors_type_named(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) return &types[i];
    return NULL;
}

const kr_element_type *kr_safetensors_type_of(kr_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].is_native && types[i].dtype == dtype) return &types[i];
    return NULL;
}

kr_elements kr_safetensors_elements(const kr_safetensors_item *item)
{
    kr_elements e = { .name = item->name,
                      .type = kr_safetensors_type_named(item->type),
                      .data = item->data,
                      .shape = item->shape,
                      .count = item->count };
    kr_elements_row_major(&e);
    return e;
}

kr_status kr_safetensors_read(const kr_safetensors *file, const kr_safetensors_item *item, kr_dtype dtype, void *out,
                              int64_t count)
{
    if (!file) return KR_ERR_ARG;
    kr_ctx *ctx = file->ctx;
    if (ctx->status != KR_OK ||
        !kr_require(ctx, item != NULL, KR_ERR_ARG, "safetensors: item is NULL; was the tensor found?"))
        return ctx->status;
    const kr_elements elements = kr_safetensors_elements(item);
    return kr_elements_read(ctx, "safetensors", &elements, dtype, out, count);
}
