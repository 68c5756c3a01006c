/* safetensors_impl.h - inside of an open file of tensors. */
#ifndef KR_IO_SAFETENSORS_IMPL_H
#define KR_IO_SAFETENSORS_IMPL_H

#include "io/convert.h"
#include "io/file.h"

#include <krait/experimental/json.h>
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

/* NULL: no such type. */
const kr_element_type *kr_safetensors_type_named(const char *name);

/* The one whose elements are of a (valid) dtype. */
const kr_element_type *kr_safetensors_type_of(kr_dtype dtype);

kr_elements kr_safetensors_elements(const kr_safetensors_item *item);

#define KR_SAFETENSORS_PREFIX 8                       /* bytes of the header's length */
#define KR_SAFETENSORS_HEADER_MAX ((size_t)100000000) /* the format's own limit */

/* Files are little-endian, and elements are not turned around. */
bool kr_safetensors_check_machine(kr_ctx *ctx);

#endif
