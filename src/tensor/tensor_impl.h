/* tensor_impl.h - struct of a tensor, and shape functions that do not read data. */
#ifndef KR_TENSOR_TENSOR_IMPL_H
#define KR_TENSOR_TENSOR_IMPL_H

#include <krait/tensor.h>

struct kr_node;
struct kr_grad_view;
struct kr_weights;

/* The memory that a tensor and its views show. */
typedef struct kr_storage {
    struct kr_tensor *owner; /* the tensor it was made for; all others are views */
    uint64_t written;        /* kr_ctx.nwrites at the last write by the caller or an optimizer; 0: none */
    const char *name;        /* of a parameter in a table, or of a state's tensor; or NULL */
    struct kr_weights
        *weights;           /* of a parameter: its table's memory, which has the data (tape/weights.h); NULL: its own */
    void *packed;           /* of a weight [o i]: a copy in panels of its own type, or NULL */
    struct kr_tensor *next; /* of a destroyed owner: list of the context's */
    int64_t fence;          /* of a parameter: fences before its first use in the last backward pass (tape/fence.c) */
} kr_storage;

typedef struct kr_tensor_flags {
    bool requires_grad : 1, retain_grad : 1;
    bool grad_f32 : 1;     /* 16-bit, but its gradient is f32: an activation that is rounded for its readers */
    bool grad_is_zero : 1; /* of a parameter or with grad_is_lent: a new gradient is written, not added */
    bool grad_is_lent : 1; /* of a leaf: the gradient's memory is the caller's (tape/backward_into.c) */
    bool is_state : 1;     /* of a state of the caller's */
    bool is_destroyed : 1; /* of a parameter: only this header is left, for tapes that refer to it */
    bool in_heap : 1;      /* made during a backward pass (kr_temporary in tape/tape_impl.h) */
    bool is_borrowed : 1;  /* in_heap: the memory is the caller's */
    bool lasts : 1;        /* in_heap: shows memory outside the heap, which outlasts the backward pass */
    bool is_one : 1;       /* in_heap: the gradient that a backward pass begins with, all ones */
    bool is_part : 1;      /* the gradient of a parameter: its memory is a part of a buffer (kr_param_place_grad) */
} kr_tensor_flags;

struct kr_tensor {
    kr_ctx *ctx;
    kr_tape *tape; /* NULL: a parameter, a state's tensor, or the gradient of a parameter */
    kr_dtype dtype;
    int rank;
    int64_t dims[KR_MAX_RANK];
    int64_t strides[KR_MAX_RANK];   /* in elements; any sign */
    char *data;                     /* first element */
    kr_storage *storage;            /* NULL: of a header on the stack, whose memory is the caller's */
    struct kr_node *node;           /* the op that produced it; NULL: a leaf or a constant */
    kr_tensor *grad;                /* NULL: none yet */
    struct kr_grad_view *grad_view; /* where its gradient may be stored in 16 bits (tape/tape_impl.h), or NULL */
    kr_tensor_flags flags;
};

/* A tensor with memory for a storage, which that of a view does not use. */
typedef struct kr_header {
    kr_tensor tensor;
    kr_storage storage;
} kr_header;

/* Makes the tensor of a zeroed header the owner of its storage. */
static inline kr_tensor *kr_header_init(kr_header *header)
{
    header->storage.owner = &header->tensor;
    header->tensor.storage = &header->storage;
    return &header->tensor;
}

/* The tensor whose memory x shows: x itself, or of a view the one that was made first. */
static inline const kr_tensor *kr_owner_of(const kr_tensor *x)
{
    return x->storage ? x->storage->owner : x;
}

/* What the modules ask of a type. A further one, such as a format of blocks, has its answers in shape.c.
 *   is_float   f32, f64, bf16, f16
 *   is_narrow  a float that is widened to f32 to compute with: bf16, f16
 *   is_16bit   bf16, f16
 *   span       bytes of `count` adjacent elements
 *   offset     bytes from an element to the one `at` elements after it; negative: before it */
enum { KR_N_DTYPES = KR_DTYPE_I64 + 1 };
bool kr_dtype_is_valid(kr_dtype dtype);
bool kr_dtype_is_float(kr_dtype dtype);
bool kr_dtype_is_narrow(kr_dtype dtype);
bool kr_dtype_is_16bit(kr_dtype dtype);
size_t kr_dtype_span(kr_dtype dtype, int64_t count);
int64_t kr_dtype_offset(kr_dtype dtype, int64_t at);

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
