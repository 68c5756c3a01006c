/* tensor_impl.h - inside of a tensor, and what can be said of shapes without touching data. */
#ifndef KR_TENSOR_TENSOR_IMPL_H
#define KR_TENSOR_TENSOR_IMPL_H

#include <krait/tensor.h>

struct kr_node;
struct kr_grad_slab;

struct kr_tensor {
    kr_ctx *ctx;
    kr_tape *tape; /* NULL: a parameter or a parameter's gradient */
    kr_dtype dtype;
    int rank;
    int64_t dims[KR_MAX_RANK];
    int64_t strides[KR_MAX_RANK]; /* in elements; any sign */
    char *data;                   /* first element */
    kr_tensor *storage;           /* of a view: the tensor whose memory it shows; NULL: its own */
    uint64_t written; /* of no view: kr_ctx.nwrites at the last write by the caller or an optimizer; 0: none */
    const char *name; /* of a parameter in a table, or NULL */
    char *device_ids; /* of ids: where they lie in a device's own memory, for kernels; NULL: in data alone */

    /* owned by the tape room */
    struct kr_node *node; /* what made it; NULL: a leaf or a constant */
    kr_tensor *grad;
    bool requires_grad, retain_grad;
    bool is_autocast; /* bf16 in place of an f32 that only products read, which round it: its gradient is f32 */
    struct kr_grad_slab
        *slab; /* where its gradient may be written, rounded (tape/tape.h), from column slab_at on; NULL */
    int64_t slab_at, slab_row; /* elements between rows of its own data, that are rows there */
    kr_tensor *slab_of;        /* what it is a view of that has the same place; NULL: itself */
    bool slab_is_taken;        /* a gradient was written there */
    bool grad_is_zero;         /* of a parameter: the gradient's memory holds zeros only */
    bool in_slab;              /* of a parameter: the data belong to a parameter table */
    union {
        void *packed;                /* of a weight [o i]: a copy in panels of its own type, or NULL */
        struct kr_device_span *span; /* in_heap, of a base: its data, where they are far; or NULL */
    };
    bool in_heap;    /* made during a backward pass */
    kr_tensor *base; /* in_heap: the tensor whose block holds the data */
    bool borrows;    /* in_heap, of a base: the data lie outside the heap and are not to be written */
    bool lasts;      /* borrows, and the data outlast the backward pass */
    bool is_one;     /* in_heap: the gradient that a backward pass begins with, known to be 1 in all places */
    int refs;        /* in_heap, of a base: tensors that use its data */
    kr_tensor *next; /* in_heap: list of the running rule's tensors */
};

/* True for f32, f64, bf16, f16. */
bool kr_dtype_is_float(kr_dtype dtype);
bool kr_dtype_is_half(kr_dtype dtype); /* bf16, f16 */
bool kr_dtype_is_valid(kr_dtype dtype);

/* Fills in shape and row-major strides. */
void kr_tensor_layout(kr_tensor *x, kr_dtype dtype, const kr_shape *shape);

/* Number of elements, or -1 if the shape is no shape: a bad rank, a negative size, or too many elements to address. */
int64_t kr_shape_count(const kr_shape *shape);
bool kr_shape_equal(const kr_shape *a, const kr_shape *b);

/* "[2, 64]" into text; returns text. */
const char *kr_shape_write(const kr_shape *shape, char *text, size_t bytes);

/* "[1, 0]", the index of the element at row-major place `flat`, into text; returns text. */
const char *kr_index_text(const kr_tensor *x, int64_t flat, char *text, size_t bytes);

/* Row-major up to axes of size 1. */
bool kr_tensor_is_row_major(const kr_tensor *x);

/* A shape and its rendering on the stack, for messages. */
#define KR_SHAPE_TEXT_BYTES 200
#define KR_TEXT_OF(x) kr_shape_text((x), (char[KR_SHAPE_TEXT_BYTES]){ 0 }, KR_SHAPE_TEXT_BYTES)
#define KR_TEXT_OF_SHAPE(s) kr_shape_write((s), (char[KR_SHAPE_TEXT_BYTES]){ 0 }, KR_SHAPE_TEXT_BYTES)

#endif
