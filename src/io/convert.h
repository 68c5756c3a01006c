/* convert.h - element types of files, and copies of their elements in row-major order with conversion. */
#ifndef KR_IO_CONVERT_H
#define KR_IO_CONVERT_H

#include "base/ctx_impl.h"

/* An element type: its name in a container, and its properties. */
typedef struct kr_element_type {
    const char *name;
    size_t bytes;
    bool is_native;   /* the bytes are those of `dtype` */
    bool is_readable; /* kr_elements_read supports it; then dtype is the narrowest that holds every value */
    bool is_signed;   /* of integers */
    kr_dtype dtype;
} kr_element_type;

/* One tensor in a file: any strides that are not negative, any alignment; its bounds have been checked. */
typedef struct kr_elements {
    const char *name;
    const kr_element_type *type;
    const void *data; /* the first element */
    kr_shape shape;
    int64_t count;
    int64_t strides[KR_MAX_RANK]; /* in elements */
} kr_elements;

void kr_elements_row_major(kr_elements *elements);

/* Floats are converted to floats, rounded to nearest even; integers and booleans to integers, an error if one does not
 * fit. Errors begin with "WHO: ". */
kr_status kr_elements_read(kr_ctx *ctx, const char *who, const kr_elements *elements, kr_dtype dtype, void *out,
                           int64_t count);

#endif
