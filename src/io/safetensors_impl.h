/* safetensors_impl.h - internals of an open file of tensors. */
#ifndef KR_IO_SAFETENSORS_IMPL_H
#define KR_IO_SAFETENSORS_IMPL_H

#include "io/convert.h"
#include "io/file.h"

#include <krait/experimental/json.h>

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
kr_safetensors *kr_safetensors_open(kr_ctx *ctx, const char *path);

/* The same over the caller's memory, which must stay until the close. */
kr_safetensors *kr_safetensors_open_memory(kr_ctx *ctx, const void *data, size_t bytes);
void kr_safetensors_close(kr_safetensors *file);

/* Tensors in the order of their data, by number (from 0) and by name; NULL if there is none. A missing tensor is no
 * error of the context. */
int64_t kr_safetensors_count(const kr_safetensors *file);
const kr_safetensors_item *kr_safetensors_at(const kr_safetensors *file, int64_t i);
const kr_safetensors_item *kr_safetensors_find(const kr_safetensors *file, const char *name);

/* The header's free texts: by key, or by number (from 0) in the order of their keys. NULL and false if there is none.
 * */
const char *kr_safetensors_metadata(const kr_safetensors *file, const char *key);
bool kr_safetensors_metadata_at(const kr_safetensors *file, int64_t i, const char **key, const char **value);

/* Copies a tensor's elements, in row-major order and converted to `dtype`, to `out` of `count` elements. Floats go to
 * floats, rounded to nearest even; integers and booleans to integers, refused if one does not fit. Files hold F64, F32,
 * F16, BF16, and I64, I32, U32, I16, U16, I8, U8, BOOL for this; others (U64, complex, 8-bit floats) are listed only.
 * */
kr_status kr_safetensors_read(const kr_safetensors *file, const kr_safetensors_item *item, kr_dtype dtype, void *out,
                              int64_t count);

struct kr_safetensors {
    kr_ctx *ctx;
    kr_file file;            /* unused over the caller's memory */
    kr_arena arena;          /* header, items */
    const kr_json *metadata; /* an object of strings; NULL: none */
    int64_t count;
    kr_safetensors_item *items; /* in the order of their names */
    const void **by_place;      /* the same (kr_safetensors_item) in the order of their data */
};

/* NULL: no such type. */
const kr_element_type *kr_safetensors_type_named(const char *name);

/* The one whose elements are of a (valid) dtype. */
const kr_element_type *kr_safetensors_type_of(kr_dtype dtype);

kr_elements kr_safetensors_elements(const kr_safetensors_item *item);

#define KR_SAFETENSORS_PREFIX 8                       /* bytes of the header's length */
#define KR_SAFETENSORS_HEADER_MAX ((size_t)100000000) /* the format's own limit */

/* Files are little-endian, and elements are not byte-swapped. */
bool kr_safetensors_check_machine(kr_ctx *ctx);

#endif
