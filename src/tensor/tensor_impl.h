/* tensor_impl.h - struct of a tensor, and shape functions that do not read data. */
#ifndef KR_TENSOR_TENSOR_IMPL_H
#define KR_TENSOR_TENSOR_IMPL_H

#include <krait/tensor.h>

struct kr_node;
struct kr_grad_slab;
struct kr_weights;

struct kr_tensor {
    kr_ctx *ctx;
    kr_tape *tape; /* NULL: a parameter or a parameter's gradient */
    kr_dtype dtype;
    int rank;
    int64_t dims[KR_MAX_RANK];
    int64_t strides[KR_MAX_RANK]; /* in elements; any sign */
    char *data;                   /* first element */
    kr_tensor *storage;           /* of a view: the tensor whose memory it shows; NULL: its own */
    uint64_t written;  /* of no view: kr_ctx.nwrites at the last write by the caller or an optimizer; 0: none */
    const char *name;  /* of a parameter in a table, or of a state's tensor; or NULL */
    bool is_state;     /* of a state of the caller's */
    bool is_destroyed; /* of a parameter: only this header is left, for tapes that refer to it */

    /* of a parameter: the memory of its table, which has the data (tape/weights.h); NULL: its own */
    struct kr_weights *weights;

    /* owned by the tape */
    struct kr_node *node; /* the op that produced it; NULL: a leaf or a constant */
    kr_tensor *grad;
    bool requires_grad, retain_grad;
    bool is_autocast;          /* bf16 for f32: only products that cast to bf16 read it; its gradient is f32 */
    struct kr_grad_slab *slab; /* for its gradient in bf16 (tape/tape_impl.h), from column slab_at on; or NULL */
    int64_t slab_at, slab_row; /* elements per slab row in its own data */
    kr_tensor *slab_of;        /* the base tensor that shares the slab columns; NULL: itself */
    bool slab_is_taken;        /* a gradient was written there */
    bool grad_is_zero;         /* of a parameter: the gradient's memory holds zeros only */
    union {
        void *packed;                /* of a weight [o i]: a copy in panels of its own type, or NULL */
        struct kr_device_span *span; /* in_heap, of a base: its data in device memory; or NULL */
    };
    bool in_heap;    /* made during a backward pass */
    kr_tensor *base; /* in_heap: the tensor whose block holds the data */
    bool borrows;    /* in_heap, of a base: the data are outside the heap and read-only */
    bool lasts;      /* borrows, and the data outlast the backward pass */
    bool is_one;     /* in_heap: the gradient that a backward pass begins with, all ones */
    int refs;        /* in_heap, of a base: tensors that use its data */
    kr_tensor *next; /* in_heap: list of the running rule's tensors; is_destroyed: of the context's */
};

/* True for f32, f64, bf16, f16. */
bool kr_dtype_is_float(kr_dtype dtype);
bool kr_dtype_is_16bit(kr_dtype dtype); /* bf16, f16 */
bool kr_dtype_is_valid(kr_dtype dtype);

/* kr_tensor_count and kr_tensor_dim for the modules: without a copy of the shape, and inlined. */
static inline int64_t kr_count_of(const kr_tensor *x)
{
    int64_t count = x ? 1 : 0;
    for (int i = 0; x && i < x->rank; i++) count *= x->dims[i];
    return count;
}
static inline int64_t kr_dim_of(const kr_tensor *x, int axis)
{
    if (!x) return 0;
    if (axis < 0) axis += x->rank;
    return axis >= 0 && axis < x->rank ? x->dims[axis] : 1;
}

/* Fills in shape and row-major strides. */
void kr_tensor_layout(kr_tensor *x, kr_dtype dtype, const kr_shape *shape);

/* Number of elements, or -1 if the shape is no shape: a bad rank, a negative size, or too many elements to address. */
int64_t kr_shape_count(const kr_shape *shape);
bool kr_shape_equal(const kr_shape *a, const kr_shape *b);

/* "[2, 64]" into text; returns text. */
const char *kr_shape_write(const kr_shape *shape, char *text, size_t bytes);

/* "[1, 0]", the index of the element at row-major index `flat`, into text; returns text. */
const char *kr_index_text(const kr_tensor *x, int64_t flat, char *text, size_t bytes);

/* Row-major up to axes of size 1. */
bool kr_tensor_is_row_major(const kr_tensor *x);

/* A shape and its rendering on the stack, for messages. */
#define KR_SHAPE_TEXT_BYTES 200
#define KR_TEXT_OF(x) kr_shape_text((x), (char[KR_SHAPE_TEXT_BYTES]){ 0 }, KR_SHAPE_TEXT_BYTES)
#define KR_TEXT_OF_SHAPE(s) kr_shape_write((s), (char[KR_SHAPE_TEXT_BYTES]){ 0 }, KR_SHAPE_TEXT_BYTES)

#endif
