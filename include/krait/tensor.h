/* tensor.h - tensors: element type, shape, strides, creation and access.
 *
 *   kr_tensor *w_oi = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(64, 32));          // valid until kr_param_destroy
 *   kr_tensor *x_bi = kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(8, 32), floats);     // valid until the tape is reset
 *   printf("%s\n", kr_shape_text(x_bi, text, sizeof text));                    // [8, 32]
 *   kr_param_destroy(w_oi);
 *
 * A tensor is a view: a pointer, a shape and a stride for each axis. Ops never write to their operands, so any number
 * of views may share memory. Tensors created on a tape belong to the tape; parameters belong to the caller. */
#ifndef KRAIT_TENSOR_H
#define KRAIT_TENSOR_H

#include <krait/base.h>

#define KR_MAX_RANK 8

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_ctx kr_ctx;
typedef struct kr_tape kr_tape;
typedef struct kr_tensor kr_tensor;

/* Element types. Arithmetic runs in f32 and f64; bf16 and f16 are storage, computed in f32; integers index and mask. */
typedef enum kr_dtype {
    KR_DTYPE_AS_STORED = -1, /* for options such as kr_load_options: the type in the file; no tensor has it */
    KR_DTYPE_F32 = 0,
    KR_DTYPE_F64 = 1,
    KR_DTYPE_BF16 = 2,
    KR_DTYPE_F16 = 3,
    KR_DTYPE_I32 = 4,
    KR_DTYPE_I64 = 5
} kr_dtype;

/* "f32", ...; "?" for an invalid value. */
KR_API_INLINE const char *kr_dtype_name(kr_dtype dtype)
{
    return kr_enum_name(KR_ENUM_DTYPE, (int)dtype);
}
KR_API size_t kr_dtype_bytes(kr_dtype dtype); /* bytes per element; 0 for an invalid value */

/* Sizes of the axes, slowest first. Rank 0 is a single element. */
typedef struct kr_shape {
    int rank;
    int64_t dims[KR_MAX_RANK];
} kr_shape;

/* KR_SHAPE(2, 64, 256): a kr_shape of rank 3. KR_SCALAR: rank 0. */
#ifdef __cplusplus
} /* extern "C" */
template <typename... D> inline kr_shape kr_shape_of(D... d)
{
    static_assert(sizeof...(D) <= KR_MAX_RANK, "a shape has at most KR_MAX_RANK axes");
    return kr_shape{ (int)sizeof...(D), { (int64_t)d... } };
}
extern "C" {
#define KR_SHAPE(...) kr_shape_of(__VA_ARGS__)
#define KR_SCALAR kr_shape_of()
#else
#define KR_SHAPE(...) ((kr_shape){ (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), { __VA_ARGS__ } })
#define KR_SCALAR ((kr_shape){ 0, { 0 } })
#endif

/* A tensor in the caller's memory, with a stride in elements for each axis. data NULL: absent. */
typedef struct kr_view {
    void *data; /* first element */
    kr_dtype dtype;
    int rank;
    int64_t dims[KR_MAX_RANK], strides[KR_MAX_RANK];
} kr_view;

/* Element type and shape. NULL gives KR_DTYPE_F32 and an empty shape, so getters are safe after an error. */
KR_API kr_dtype kr_tensor_dtype(const kr_tensor *x);
KR_API kr_shape kr_tensor_shape(const kr_tensor *x);

/* Number of axes; size of axis i, where i < 0 counts from the end and the size is 1 beyond the rank; number of
 * elements. 0 for NULL. */
KR_API_INLINE int kr_tensor_rank(const kr_tensor *x)
{
    return kr_tensor_shape(x).rank;
}
KR_API_INLINE int64_t kr_tensor_dim(const kr_tensor *x, int i)
{
    const kr_shape shape = kr_tensor_shape(x);
    if (i < 0) i += shape.rank;
    if (!x) return 0;
    return i >= 0 && i < shape.rank ? shape.dims[i] : 1;
}
KR_API_INLINE int64_t kr_tensor_count(const kr_tensor *x)
{
    const kr_shape shape = kr_tensor_shape(x);
    int64_t count = x ? 1 : 0;
    for (int i = 0; i < shape.rank; i++) count *= shape.dims[i];
    return count;
}

typedef struct kr_tensor_info {
    int64_t strides[KR_MAX_RANK]; /* in elements; 0 beyond the rank */
    bool is_contiguous;           /* row-major without gaps; false for NULL */
    bool is_host;                 /* the host may access the data: on a GPU only integers; true for NULL */
    bool requires_grad;           /* backward computes a gradient; false for NULL */
    uint64_t reserved[4];         /* 0; for later versions */
} kr_tensor_info;

/* Further properties of a tensor. The functions below and kr_requires_grad return one of them each. */
KR_API kr_tensor_info kr_tensor_info_of(const kr_tensor *x);

/* Stride of axis i in elements; i as for kr_tensor_dim; 0 beyond the rank. */
KR_API_INLINE int64_t kr_tensor_stride(const kr_tensor *x, int i)
{
    if (i < 0) i += kr_tensor_rank(x);
    return i >= 0 && i < KR_MAX_RANK ? kr_tensor_info_of(x).strides[i] : 0;
}
KR_API_INLINE bool kr_tensor_is_contiguous(const kr_tensor *x)
{
    return kr_tensor_info_of(x).is_contiguous;
}

/* Is the data host-accessible? Always on the CPU; on a GPU for integers only. True for NULL. */
KR_API_INLINE bool kr_tensor_is_host(const kr_tensor *x)
{
    return kr_tensor_info_of(x).is_host;
}

/* Address of the first element; the strides give the layout. NULL for NULL. On the CPU it may always be read; write
 * only to parameters, and only while no tape holds an op that used them. On a GPU the address of floats is a device
 * address that the host must not dereference. Use kr_tensor_read, kr_tensor_at, kr_tensor_write and kr_param_write,
 * which wait and copy, and which also accept device addresses of their own context instead of host memory. Custom
 * kernels may use the address after kr_ctx_wait. Integers are in host memory on any device: readable at once if the
 * caller created them, after kr_ctx_wait if an op did. */
KR_API void *kr_tensor_data(const kr_tensor *x);

/* dims[axis] as long long, for printf's %lld. */
#define KR_DIM(x, axis) ((long long)kr_tensor_dim(x, axis))

/* Copies the elements of x, in row-major order and converted to `dtype`, to `out` of `count` elements.
 * KR_ERR_ARG if count differs. */
KR_API kr_status kr_tensor_read(const kr_tensor *x, kr_dtype dtype, void *out, int64_t count);

/* Overwrites a parameter, or a contiguous tensor on a tape that no op has used yet, with `count` elements of type
 * `dtype`. Custom ops fill the result of kr_new with it, on any device. */
KR_API kr_status kr_tensor_write(kr_tensor *x, kr_dtype dtype, const void *data, int64_t count);

/* One element as a double, by index along each axis (as many as the rank); NaN on failure. index NULL, and
 * kr_item(loss): the only element of a tensor. */
KR_API double kr_tensor_at(const kr_tensor *x, const int64_t *index);
KR_API_INLINE double kr_item(const kr_tensor *x)
{
    return kr_tensor_at(x, 0);
}

/* Writes "[2, 64, 256]" to text; returns text. */
KR_API const char *kr_shape_text(const kr_tensor *x, char *text, size_t bytes);

/* Distributions of random numbers: normal with mean a and standard deviation b, or uniform in [a, b). */
typedef enum kr_random_kind { KR_RANDOM_NORMAL = 0, KR_RANDOM_UNIFORM = 1 } kr_random_kind;

/* A parameter: a leaf that outlives tapes. Zero-filled. Its gradient accumulates over backward passes until
 * kr_zero_grad. NULL on failure. Destroy every parameter before its context. */
KR_API kr_tensor *kr_param_create(kr_ctx *ctx, kr_dtype dtype, kr_shape shape);
KR_API void kr_param_destroy(kr_tensor *param);

/* Overwrites a parameter with `count` elements of type `dtype`, with a constant, or with random samples (see kr_randn).
 * Not allowed between an op that uses it and kr_backward. */
KR_API kr_status kr_param_write(kr_tensor *param, kr_dtype dtype, const void *data, int64_t count);
KR_API kr_status kr_param_fill(kr_tensor *param, double value);
KR_API kr_status kr_param_random(kr_tensor *param, kr_random_kind kind, double a, double b);
KR_API_INLINE kr_status kr_param_normal(kr_tensor *param, double mean, double std)
{
    return kr_param_random(param, KR_RANDOM_NORMAL, mean, std);
}
KR_API_INLINE kr_status kr_param_uniform(kr_tensor *param, double low, double high)
{
    return kr_param_random(param, KR_RANDOM_UNIFORM, low, high);
}

/* A constant over the caller's memory, without a copy, with the given strides in elements (NULL: row-major). The memory
 * must stay valid and unchanged until the tape is reset and, on a GPU, the queued kernels have run: freeing or writing
 * it later in the order of the context's stream is enough (kr_ctx_use_stream).
 *
 * With a GPU, floats in device memory of the context's GPU are used where they are; floats in host memory, and integers,
 * get a row-major copy. KR_ERR_ARG for memory of another GPU. */
KR_API kr_tensor *kr_view_data(kr_tape *tape, kr_dtype dtype, kr_shape shape, const int64_t *strides, const void *data);

/* New tensors on the tape, without a gradient (kr_input in tape.h creates leaves with one). */
KR_API kr_tensor *kr_from_data(kr_tape *tape, kr_dtype dtype, kr_shape shape, const void *data); /* copies */
KR_API kr_tensor *kr_full(kr_tape *tape, kr_dtype dtype, kr_shape shape, double value);
KR_API_INLINE kr_tensor *kr_zeros(kr_tape *tape, kr_dtype dtype, kr_shape shape)
{
    return kr_full(tape, dtype, shape, 0);
}

/* Random tensors (f32, f64, bf16, f16), standard normal and uniform in [low, high), from the context's random stream:
 * the same seed and order of calls give the same numbers with any number of threads. */
KR_API kr_tensor *kr_random(kr_tape *tape, kr_dtype dtype, kr_shape shape, kr_random_kind kind, double a, double b);
KR_API_INLINE kr_tensor *kr_randn(kr_tape *tape, kr_dtype dtype, kr_shape shape)
{
    return kr_random(tape, dtype, shape, KR_RANDOM_NORMAL, 0, 1);
}
KR_API_INLINE kr_tensor *kr_rand(kr_tape *tape, kr_dtype dtype, kr_shape shape, double low, double high)
{
    return kr_random(tape, dtype, shape, KR_RANDOM_UNIFORM, low, high);
}

#ifdef __cplusplus
}
#endif
#endif
