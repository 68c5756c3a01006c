/* convert.h - elements as files store them: their types, and copying them out in row-major order with conversion. */
#ifndef KR_IO_CONVERT_H
#define KR_IO_CONVERT_H

#include "base/ctx_impl.h"

/* How a container spells an element type, and what can be done with it. */
typedef struct kr_element_type {
    const char *name;
    size_t bytes;
    bool is_native;   /* the elements are of `dtype` as they stand */
    bool is_readable; /* kr_elements_read takes it; then dtype is the narrowest that holds every value */
    bool is_signed;   /* of integers */
    kr_dtype dtype;
} kr_element_type;

/* One tensor in a file: any strides that are not negative, any alignment; where it is has been checked. */
typedef struct kr_elements {
    const char *name;
    const kr_element_type *type;
    const void *data; /* the first element */
    kr_shape shape;
    int64_t count;
    int64_t strides[KR_MAX_RANK]; /* in elements */
} kr_elements;

void kr_elements_row_major(kr_elements *elements);

/* Floats go to floats, rounded to nearest even; integers and booleans to integers, refused if one does not fit. Errors
 * begin with "WHO: ". */
kr_status kr_elements_read(kr_ctx *ctx, const char *who, const kr_elements *elements, kr_dtype dtype, void *out,
                           int64_t count);

#endif
