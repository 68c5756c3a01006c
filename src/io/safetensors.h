/* safetensors.h - inside of an open file of tensors. */
#ifndef KR_IO_SAFETENSORS_H
#define KR_IO_SAFETENSORS_H

#include "io/file.h"

#include <krait/json.h>
#include <krait/safetensors.h>

struct kr_safetensors {
    kr_ctx *ctx;
    kr_file file;            /* unused over the caller's memory */
    kr_arena arena;          /* header, items */
    const kr_json *metadata; /* an object of strings; NULL: none */
    int64_t count;
    kr_safetensors_item *items; /* in the order of their names */
    const void **by_place;      /* the same (kr_safetensors_item) in the order of their data */
};

/* How a file spells an element type, and what can be done with it. */
typedef struct kr_safetensors_type {
    const char *name;
    size_t bytes;
    bool is_native, is_readable;
    kr_dtype dtype;
} kr_safetensors_type;

/* NULL: no such type. */
const kr_safetensors_type *kr_safetensors_type_named(const char *name);

/* The one whose elements are of a (valid) dtype. */
const kr_safetensors_type *kr_safetensors_type_of(kr_dtype dtype);

#define KR_SAFETENSORS_PREFIX 8                       /* bytes of the header's length */
#define KR_SAFETENSORS_HEADER_MAX ((size_t)100000000) /* the format's own limit */

/* Files are little-endian, and elements are not turned around. */
bool kr_safetensors_check_machine(kr_ctx *ctx);

#endif
