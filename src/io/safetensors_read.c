/* safetensors_read.c - element types of a file, and copying elements out of it with conversion.
 *
 * Elements are moved with memcpy: a file does not promise that they are aligned.
 */
#include "base/half.h"
#include "io/quote.h"
#include "io/safetensors.h"
#include "tensor/tensor.h"

#include <string.h>

static const kr_safetensors_type types[] = {
    { "F64", 8, true, true, KR_F64 },       { "F32", 4, true, true, KR_F32 },
    { "F16", 2, true, true, KR_F16 },       { "BF16", 2, true, true, KR_BF16 },
    { "I64", 8, true, true, KR_I64 },       { "I32", 4, true, true, KR_I32 },
    { "U32", 4, false, true, KR_I64 },      { "I16", 2, false, true, KR_I32 },
    { "U16", 2, false, true, KR_I32 },      { "I8", 1, false, true, KR_I32 },
    { "U8", 1, false, true, KR_I32 },       { "BOOL", 1, false, true, KR_I32 },
    { "U64", 8, false, false, KR_I64 },     { "C64", 8, false, false, KR_F32 },
    { "F8_E4M3", 1, false, false, KR_F32 }, { "F8_E5M2", 1, false, false, KR_F32 },
    { "F8_E8M0", 1, false, false, KR_F32 }
};

const kr_safetensors_type *kr_safetensors_type_named(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) return &types[i];
    return NULL;
}

const kr_safetensors_type *kr_safetensors_type_of(kr_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].is_native && types[i].dtype == dtype) return &types[i];
    return NULL;
}

#define LOAD(type, p, i) load_##type((const char *)(p) + (size_t)(i) * sizeof(type))
#define DEFINE_LOAD(type)                                                                                              \
    static inline type load_##type(const char *p)                                                                      \
    {                                                                                                                  \
        type value;                                                                                                    \
        memcpy(&value, p, sizeof value);                                                                               \
        return value;                                                                                                  \
    }
DEFINE_LOAD(double)
DEFINE_LOAD(float)
DEFINE_LOAD(int64_t)
DEFINE_LOAD(int32_t)
DEFINE_LOAD(uint32_t)
DEFINE_LOAD(int16_t)
DEFINE_LOAD(uint16_t)
DEFINE_LOAD(int8_t)
DEFINE_LOAD(uint8_t)

/* Every float type is exact in a double. */
static double float_at(const kr_safetensors_item *item, int64_t i)
{
    switch (item->dtype) {
    case KR_F64: return LOAD(double, item->data, i);
    case KR_F32: return (double)LOAD(float, item->data, i);
    case KR_BF16: return (double)kr_float_from_bf16(LOAD(uint16_t, item->data, i));
    default: return (double)kr_float_from_f16(LOAD(uint16_t, item->data, i));
    }
}

static void read_floats(const kr_safetensors_item *item, kr_dtype dtype, void *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double x = float_at(item, i);
        if (dtype == KR_F64) ((double *)out)[i] = x;
        else if (dtype == KR_F32) ((float *)out)[i] = (float)x;
        else if (dtype == KR_BF16) ((uint16_t *)out)[i] = kr_bf16_from_double(x);
        else ((uint16_t *)out)[i] = kr_f16_from_double(x);
    }
}

static int64_t integer_at(const kr_safetensors_item *item, int64_t i)
{
    const bool is_signed = item->type[0] == 'I';
    switch (item->bytes / (size_t)item->count) {
    case 8: return LOAD(int64_t, item->data, i);
    case 4: return is_signed ? LOAD(int32_t, item->data, i) : (int64_t)LOAD(uint32_t, item->data, i);
    case 2: return is_signed ? LOAD(int16_t, item->data, i) : LOAD(uint16_t, item->data, i);
    default: return is_signed ? LOAD(int8_t, item->data, i) : LOAD(uint8_t, item->data, i);
    }
}

static bool read_integers(kr_ctx *ctx, const kr_safetensors_item *item, kr_dtype dtype, void *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t x = integer_at(item, i);
        if (dtype == KR_I64) {
            ((int64_t *)out)[i] = x;
            continue;
        }
        if (x < INT32_MIN || x > INT32_MAX)
            return kr_fail(ctx, KR_ERR_NUMERIC,
                           "safetensors: element %lld of tensor '%s' is %lld, which does not fit i32", (long long)i,
                           kr_quote_of(item->name, strlen(item->name)).text, (long long)x);
        ((int32_t *)out)[i] = (int32_t)x;
    }
    return true;
}

kr_status kr_safetensors_read(const kr_safetensors *file, const kr_safetensors_item *item, kr_dtype dtype, void *out,
                              int64_t count)
{
    if (!file) return KR_ERR_ARG;
    kr_ctx *ctx = file->ctx;
    if (ctx->status != KR_OK) return ctx->status;
    if (!kr_require(ctx, item != NULL, KR_ERR_ARG, "safetensors: item is NULL; was the tensor found?") ||
        !kr_require(ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "safetensors: %d is no kr_dtype", (int)dtype))
        return ctx->status;
    const kr_quote name = kr_quote_of(item->name, strlen(item->name));
    if (!kr_require(ctx, count == item->count, KR_ERR_SHAPE, "safetensors: tensor '%s' %s has %lld elements, not %lld",
                    name.text, KR_TEXT_OF_SHAPE(&item->shape), (long long)item->count, (long long)count) ||
        !kr_require(ctx, item->is_readable && kr_dtype_is_float(item->dtype) == kr_dtype_is_float(dtype), KR_ERR_DTYPE,
                    "safetensors: tensor '%s' of type %s cannot be read as %s", name.text, item->type,
                    kr_dtype_name(dtype)) ||
        !kr_require(ctx, out != NULL || count == 0, KR_ERR_ARG, "safetensors: out is NULL") || count == 0)
        return ctx->status;
    if (item->is_native && item->dtype == dtype) memcpy(out, item->data, item->bytes);
    else if (kr_dtype_is_float(dtype)) read_floats(item, dtype, out, count);
    else read_integers(ctx, item, dtype, out, count);
    return ctx->status;
}
