/* ops_impl.h - common code of the op files: types, layouts, recording. */
#ifndef KR_OPS_OPS_IMPL_H
#define KR_OPS_OPS_IMPL_H

#include "base/sized.h"
#include "device/device.h"
#include "device/walk.h"
#include "ops/autocast.h"
#include "tape/tape_impl.h"

#include <krait/ops.h>

KR_DECLARE_DEFAULTS(kr_norm_options); /* of norm.c */

/* Converts float operands (kr_tensor **, each may point at NULL; named in order in `names`, "x z gain") to one compute
 * type: narrow types are widened to f32. Operand number i stays as it is if bit i of `kept` is set: its kernel takes its type.
 * *result is the type of the result: the operands' type if they agree, f32 for a narrow type mixed with f32; an activation
 * that is rounded for its readers counts as f32 (kr_grad_dtype). Fails for integers, and for f64 mixed with another type. */
bool kr_reals(kr_tape *tape, const char *op, const char *names, kr_dtype *result, unsigned kept, int count,
              kr_tensor **const *operands);
#define KR_REALS_KEPT(tape, op, names, result, kept, ...)                                                              \
    kr_reals((tape), (op), (names), (result), (kept),                                                                  \
             (int)(sizeof((kr_tensor **[]){ __VA_ARGS__ }) / sizeof(kr_tensor **)), (kr_tensor * *[]){ __VA_ARGS__ })
#define KR_REALS(tape, op, names, result, ...) KR_REALS_KEPT(tape, op, names, result, 0, __VA_ARGS__)

/* Bit 0 of `kept`, shifted by the operand's number: x is narrow and the kernel takes it. operand: kernel_operand of
 * kernels/accepts.def. KR_KEEPS_ACTIVATION: only an activation that is rounded for its readers; others are widened by an op of
 * their own, which rounds their gradients. */
#define KR_KEEPS(tape, operand, x) (unsigned)(kr_may_take(tape, x) && kr_accepts((tape)->ctx, operand, (x)->dtype))
#define KR_KEEPS_ACTIVATION(tape, operand, x)                                                                          \
    (unsigned)(kr_may_take(tape, x) && (x)->flags.grad_f32 && kr_accepts((tape)->ctx, operand, (x)->dtype))
static inline bool kr_may_take(const kr_tape *tape, const kr_tensor *x)
{
    return tape && x && kr_dtype_is_narrow(x->dtype);
}

/* x itself, or widened to f32 if it is narrow and the kernel does not take it; NULL for NULL and after an error. */
#define KR_AS_TAKEN(tape, operand, x) kr_as_taken((tape), (tape)->ctx->device->kernels.accepts.operand, (x))
kr_tensor *kr_as_taken(kr_tape *tape, uint32_t accepts, kr_tensor *x);

/* x as a kernel takes it: rows of its last axis, which have one stride (kr_rows_of). Absent for NULL. */
kr_operand kr_operand_of(const kr_tensor *x);

/* x [b s ..] likewise, its rows being tokens (kr_with_token_stride). */
kr_operand kr_token_operand(const kr_tensor *x);

/* kr_back_slab if the kernel stores a gradient of bf16. */
#define KR_BACK_SLAB(back, in, operand)                                                                                \
    (kr_accepts(kr_back_tape(back)->ctx, operand, KR_DTYPE_BF16) ? kr_back_slab((back), (in)) : NULL)

/* y in the type that kr_reals found. */
kr_tensor *kr_store_as(kr_tape *tape, kr_tensor *y, kr_dtype result);

/* A tensor list for the recording calls: count, then array. */
#define KR_LIST(...)                                                                                                   \
    (int)(sizeof((kr_tensor *[]){ __VA_ARGS__ }) / sizeof(kr_tensor *)), (kr_tensor *[])                               \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

/* Records a node of one output; y, or NULL after an error. attrs may be NULL. */
kr_tensor *kr_recorded(kr_tape *tape, const kr_rule *rule, kr_tensor *y, const void *attrs, size_t attrs_bytes,
                       int n_in, kr_tensor *const *in);

/* g summed over the axes along which `shape` was broadcast; not recorded. */
kr_tensor *kr_sum_to(kr_tape *tape, kr_tensor *g, kr_shape shape);

/* The shape that a and b broadcast to. The names are for the message. */
bool kr_broadcast(kr_tape *tape, const char *op, const char *a_name, const kr_shape *a, const char *b_name,
                  const kr_shape *b, kr_shape *out);

/* axis in [0, rank), counted from the end if it is < 0; fails otherwise. */
bool kr_axis(kr_tape *tape, const char *op, const kr_tensor *x, int *axis);

/* x seen as [no nr ni] around an axis. */
typedef struct kr_around {
    int64_t no, nr, ni;
} kr_around;
kr_around kr_around_axis(const kr_tensor *x, int axis);

/* x seen as no rows of ni adjacent elements, with a row stride of `stride` elements: x itself if its strides allow it,
 * else a row-major copy (recorded). x is NULL after an error. A scalar is one row of one element. */
typedef struct kr_rows {
    kr_tensor *x;
    int64_t no, ni, stride;
} kr_rows;
kr_rows kr_rows_of(kr_tape *tape, kr_tensor *x);

/* Does x, of a rank above 0, have such rows? Then *stride is theirs, and unchanged where there is but one. */
bool kr_row_stride(const kr_tensor *x, int64_t *stride);

/* x [b s ..] as the sequence kernels take it: the elements of a token are row-major, and tokens, row after row, have a
 * stride of *stride elements. x itself if its strides allow it, else a row-major copy (recorded); NULL after an
 * error. */
kr_tensor *kr_with_token_stride(kr_tape *tape, kr_tensor *x, int64_t *stride);

/* Does x [b s ..], which is not empty, have such tokens? *stride is theirs. */
bool kr_token_stride(const kr_tensor *x, int64_t *stride);

/* kr_rms_norm, or with z kr_gated_norm, for a result that only products read: bf16 if they would round it. */
kr_tensor *kr_norm_operand(kr_tape *tape, kr_tensor *x, kr_tensor *z, kr_tensor *gain, const kr_norm_options *options);

/* kr_gate likewise. */
kr_tensor *kr_gate_operand(kr_tape *tape, kr_tensor *x, kr_tensor *z);

/* kr_embedding for a reader of f32: of a 16-bit table the result may be f32 already, if nothing is recorded. */
kr_tensor *kr_embedding_to_widen(kr_tape *tape, kr_tensor *table, kr_tensor *id);

/* kr_causal_conv with SiLU, its y in bf16 for readers that cast it, and split along the channels into at most
 * KR_CONV_PARTS parts of a multiple of four channels, whose gradients are then read in place. Returns the window;
 * NULL after an error. Only where kr_ssd_autocasts holds, for x of f32. */
typedef struct kr_conv_operands {
    kr_tensor *x, *weight, *bias, *window, *seq_start;
} kr_conv_operands;
kr_tensor *kr_causal_conv_parts(kr_tape *tape, const kr_conv_operands *operands, int count, const int64_t *sizes,
                                kr_tensor **parts);

/* kr_linear, and its result cut along the last axis as by kr_split. With autocast the gradients of the parts are
 * concatenated and rounded in one pass, and part number `autocast_part` (-1: none) is bf16 itself. */
bool kr_linear_parts(kr_tape *tape, kr_tensor *x, kr_tensor *weight, kr_tensor *bias, int count, const int64_t *sizes,
                     int autocast_part, kr_tensor **parts);

/* y = a b (+ bias) (+ y if accumulate), the last two axes; leading axes broadcast to y's. Each may be 16-bit if
 * the kernel takes it. */
bool kr_run_matmul(kr_ctx *ctx, kr_tensor *y, const kr_tensor *a, const kr_tensor *b, const kr_tensor *bias,
                   bool accumulate);

/* The arguments of that product. */
kr_matmul_args kr_matmul_of(const kr_tensor *y, const kr_tensor *a, const kr_tensor *b, const kr_tensor *bias,
                            bool accumulate);

#endif
