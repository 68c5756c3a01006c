/* decode_family.h - the fused kernels of a block family, for plans: whether they can run a layer, and how. */
#ifndef KR_DECODE_DECODE_FAMILY_H
#define KR_DECODE_DECODE_FAMILY_H

#include "device/device.h"
#include "nn/block_impl.h"

/* Results that live from one kernel of a layer to the next; all layers of a plan use the same ones. */
typedef struct kr_decode_buffers {
    kr_tensor *row_bo, *low_bo, *y_bi, *squares_bt;
} kr_decode_buffers;

/* A layer of a plan, for nb rows: y = x + block(norm(x)); x and y may be the same. */
typedef struct kr_decode_request {
    const void *block;
    const kr_tensor *norm_d;
    const kr_norm_options *norm;
    const kr_cache *cache; /* updated in place; its tensors have nb rows at least */
    int64_t nb;
    const kr_tensor *x_bsd;
    kr_tensor *y_bsd;
    kr_tensor *records; /* where the update of the state is deferred to; NULL: it is applied at once */
    kr_decode_buffers *buffers;
} kr_decode_request;

typedef struct kr_decode_family {
    const kr_block_kind *kind;

    /* Why fused kernels of the context's device cannot run the block; NULL: they can. */
    const char *(*fallback)(const kr_ctx *ctx, const void *block);

    /* The kernels of the layer, with buffers on the tape. False after an error. */
    bool (*describe)(kr_tape *tape, const kr_decode_request *request, kr_decode_layer *layer);

    /* Elements that a row's deferred updates take, and what applies those of nb rows; NULL: updates are not deferred. */
    int64_t (*record_elements)(const void *block);
    bool (*flush)(kr_ctx *ctx, const void *block, const kr_cache *cache, int64_t nb, kr_tensor *records);
} kr_decode_family;

extern const kr_decode_family kr_mamba1_decode, kr_mamba2_decode, kr_mamba3_decode;

/* NULL: blocks of this kind have no decode kernels. */
const kr_decode_family *kr_decode_family_of(const kr_block_kind *kind);

/* Is the tensor absent or f32? */
static inline bool kr_decode_is_f32(const kr_tensor *x)
{
    return !x || x->dtype == KR_DTYPE_F32;
}

/* Is the tensor absent, or of a type that the device's kernel takes? operand: kernel_operand of kernels/accepts.def. */
#define KR_DECODE_TAKES(ctx, operand, x) (kr_decode_is_f32(x) || kr_accepts(ctx, operand, (x)->dtype))
#define KR_DECODE_WEIGHTS "its decode kernels do not take the type of its weights"

/* Columns of a row buffer, from number `column` on. */
static inline kr_operand kr_decode_columns(const kr_tensor *row_bo, int64_t column)
{
    return (kr_operand){ row_bo->data + column * (int64_t)kr_dtype_bytes(row_bo->dtype), row_bo->dtype,
                         row_bo->dims[1] };
}

/* *buffer as a tensor [nb columns] on the tape, which is made if it does not fit. NULL after an error. */
kr_tensor *kr_decode_buffer(kr_tape *tape, kr_tensor **buffer, kr_dtype dtype, int64_t nb, int64_t columns);

/* x norm(..) W^T + bias -> row, and y = x + in W^T + bias with `in` [nb k]. */
kr_decode_linear_args kr_decode_in_proj(const kr_decode_request *request, const kr_tensor *w, const kr_tensor *bias,
                                        const kr_tensor *row_bo);
kr_decode_linear_args kr_decode_out_proj(const kr_decode_request *request, const kr_tensor *in_bi, const kr_tensor *w,
                                         const kr_tensor *bias);

#endif
