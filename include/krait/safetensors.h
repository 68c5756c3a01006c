/* safetensors.h - reads files of named tensors, as the safetensors format has them, without trusting them; writes them.
 *
 *   kr_safetensors *file = kr_safetensors_open(ctx, "model.safetensors");
 *   const kr_safetensors_item *item = kr_safetensors_find(file, "backbone.norm_f.weight");
 *   kr_tensor *gain_d = item ? kr_param_create(ctx, KR_DTYPE_F32, item->shape) : NULL;
 *   if (gain_d && kr_safetensors_read(file, item, KR_DTYPE_F32, kr_tensor_data(gain_d), item->count) != KR_OK)
 *       puts(kr_ctx_message(ctx));
 *   kr_ctx_clear(ctx);                    // there may be no such file
 *   kr_param_destroy(gain_d);
 *   kr_safetensors_close(file);
 *
 *   kr_safetensors_writer *writer = kr_safetensors_writer_create(ctx);
 *   kr_safetensors_add(writer, "x", KR_DTYPE_F32, KR_SHAPE(8, 32), floats);
 *   if (kr_safetensors_save(writer, "x.safetensors") != KR_OK) fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_safetensors_writer_destroy(writer);
 *
 * A file is 8 bytes of header length, a JSON header, and the elements, little-endian, row-major, packed without gaps.
 * Opening checks all of it: lengths, ranges, types, sizes, names; what is not as it should be is refused with the
 * tensor's name and the rule.
 */
#ifndef KRAIT_SAFETENSORS_H
#define KRAIT_SAFETENSORS_H

#include <krait/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_safetensors kr_safetensors;

/* One tensor of a file; lives as long as the file is open. */
typedef struct kr_safetensors_item {
    const char *name;
    const char *type; /* as the file spells it: "F32", "BF16", "I8", ... */
    bool is_native;   /* the elements are of a kr_dtype as they stand in the file */
    bool is_readable; /* kr_safetensors_read takes it */
    kr_dtype dtype;   /* is_native: that one; else, if readable, the narrowest that holds every value */
    kr_shape shape;
    int64_t count; /* elements */
    size_t bytes;
    const void *data; /* in the file; not aligned to its type in files that do not align it */
} kr_safetensors_item;

/* Maps the file, or reads it where mapping does not work. The file must not be changed while it is open. NULL after an
 * error. Close before the context is destroyed; NULL is allowed. */
KR_API kr_safetensors *kr_safetensors_open(kr_ctx *ctx, const char *path);

/* The same over the caller's memory, which must stay until the close. */
KR_API kr_safetensors *kr_safetensors_open_memory(kr_ctx *ctx, const void *data, size_t bytes);
KR_API void kr_safetensors_close(kr_safetensors *file);

/* Tensors in the order of their data, by number (from 0) and by name; NULL if there is none. A missing tensor is no
 * error of the context. */
KR_API int64_t kr_safetensors_count(const kr_safetensors *file);
KR_API const kr_safetensors_item *kr_safetensors_at(const kr_safetensors *file, int64_t i);
KR_API const kr_safetensors_item *kr_safetensors_find(const kr_safetensors *file, const char *name);

/* The header's free texts: by key, or by number (from 0) in the order of their keys. NULL and false if there is none.
 * */
KR_API const char *kr_safetensors_metadata(const kr_safetensors *file, const char *key);
KR_API bool kr_safetensors_metadata_at(const kr_safetensors *file, int64_t i, const char **key, const char **value);

/* Copies a tensor's elements, in row-major order and converted to `dtype`, to `out` of `count` elements. Floats go to
 * floats, rounded to nearest even; integers and booleans to integers, refused if one does not fit. Files hold F64, F32,
 * F16, BF16, and I64, I32, U32, I16, U16, I8, U8, BOOL for this; others (U64, complex, 8-bit floats) are listed only.
 * */
KR_API KR_MUST_CHECK kr_status kr_safetensors_read(const kr_safetensors *file, const kr_safetensors_item *item,
                                                   kr_dtype dtype, void *out, int64_t count);

/* ---- writing ---- */

typedef struct kr_safetensors_writer kr_safetensors_writer;

/* NULL after an error. Destroy before the context; NULL is allowed. */
KR_API kr_safetensors_writer *kr_safetensors_writer_create(kr_ctx *ctx);
KR_API void kr_safetensors_writer_destroy(kr_safetensors_writer *writer);

/* One more tensor; files have them in this order. The name, UTF-8, is copied and may occur once; the elements,
 * row-major, must stay until the last save. */
KR_API kr_status kr_safetensors_add(kr_safetensors_writer *writer, const char *name, kr_dtype dtype, kr_shape shape,
                                    const void *data);

/* One more of the header's free texts; both are UTF-8 and copied, a key may occur once. */
KR_API kr_status kr_safetensors_add_metadata(kr_safetensors_writer *writer, const char *key, const char *value);

/* Writes the file, its elements from a multiple of 64 bytes on; any number of times. The same calls give the same bytes.
 * Atomic: after an error the path is as it was. */
KR_API KR_MUST_CHECK kr_status kr_safetensors_save(const kr_safetensors_writer *writer, const char *path);

#ifdef __cplusplus
}
#endif
#endif
