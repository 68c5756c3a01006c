/* ops_impl.h - common code of the op files: types, layouts, recording. */
#ifndef KR_OPS_OPS_IMPL_H
#define KR_OPS_OPS_IMPL_H

#include "base/sized.h"
#include "device/device.h"
#include "device/walk.h"
#include "tape/tape_impl.h"

#include <krait/ops.h>

KR_DECLARE_DEFAULTS(kr_norm_options); /* of norm.c */

/* Converts float operands (kr_tensor **, each may point at NULL; named in order in `names`, "x z gain") to one compute
 * type: 16-bit types are widened to f32. *result is the type of the result: the operands' type if they agree, f32 for a
 * 16-bit type mixed with f32. Fails for integers, and for f64 mixed with another type. */
bool kr_reals(kr_tape *tape, const char *op, const char *names, kr_dtype *result, int count,
              kr_tensor **const *operands);
#define KR_REALS(tape, op, names, result, ...)                                                                         \
    kr_reals((tape), (op), (names), (result), (int)(sizeof((kr_tensor **[]){ __VA_ARGS__ }) / sizeof(kr_tensor **)),   \
             (kr_tensor * *[]){ __VA_ARGS__ })

/* The same where operand number `kept` (counted from 0) stays as it is if it is 16-bit: its kernel widens it. */
bool kr_reals_but(kr_tape *tape, const char *op, const char *names, kr_dtype *result, int kept, int count,
                  kr_tensor **const *operands);
#define KR_REALS_BUT(tape, op, names, result, kept, ...)                                                               \
    kr_reals_but((tape), (op), (names), (result), (kept),                                                              \
                 (int)(sizeof((kr_tensor **[]){ __VA_ARGS__ }) / sizeof(kr_tensor **)),                                \
                 (kr_tensor * *[]){ __VA_ARGS__ })

/* The same, but a first operand in bf16 by autocast (is_autocast) stays bf16 and counts as f32. */
bool kr_reals_autocast(kr_tape *tape, const char *op, const char *names, kr_dtype *result, int count,
                       kr_tensor **const *operands);
#define KR_REALS_AUTOCAST(tape, op, names, result, ...)                                                                \
    kr_reals_autocast((tape), (op), (names), (result),                                                                 \
                      (int)(sizeof((kr_tensor **[]){ __VA_ARGS__ }) / sizeof(kr_tensor **)),                           \
                      (kr_tensor * *[]){ __VA_ARGS__ })

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

/* A gradient in a slab, as a strided operand of rows for a kernel; none for NULL. */
kr_strided_rows kr_slab_operand(kr_tape *tape, kr_tensor *slab);

/* x [b s ..] as the sequence kernels take it: the elements of a token are row-major, and tokens, row after row, have a
 * stride of *stride elements. x itself if its strides allow it, else a row-major copy (recorded); NULL after an
 * error. */
kr_tensor *kr_with_token_stride(kr_tape *tape, kr_tensor *x, int64_t *stride);

/* Would a product round an operand of that type with so many rows to bf16? */
bool kr_autocasts_product(const kr_ctx *ctx, kr_dtype dtype, int64_t rows);

/* Norms and gates read an x in bf16 (autocast) directly.
 *
 * kr_rms_norm, or with z kr_gated_norm, for a result that only products read: bf16 (is_autocast) if they would cast
 * it. */
kr_tensor *kr_norm_operand(kr_tape *tape, kr_tensor *x, kr_tensor *z, kr_tensor *gain, const kr_norm_options *options);

/* kr_gate likewise. */
kr_tensor *kr_gate_operand(kr_tape *tape, kr_tensor *x, kr_tensor *z);

/* kr_embedding for a reader of f32: of a 16-bit table the result may be f32 already, if nothing is recorded. */
kr_tensor *kr_embedding_to_widen(kr_tape *tape, kr_tensor *table, kr_tensor *id);

/* kr_causal_conv with SiLU, its y in bf16 for readers that cast it, and split along the channels into at most
 * KR_MOST_COLUMNS parts of a multiple of four channels, whose gradients are then read in place. Returns the window;
 * NULL after an error. Only where kr_autocasts_operands holds, for x of f32. */
typedef struct kr_conv_operands {
    kr_tensor *x, *weight, *bias, *window, *seq_start;
} kr_conv_operands;
kr_tensor *kr_causal_conv_parts(kr_tape *tape, const kr_conv_operands *operands, int count, const int64_t *sizes,
                                kr_tensor **parts);

/* kr_linear, and its result cut along the last axis as by kr_split. With autocast the gradients of the parts are
 * concatenated and cast in one pass, and part number `autocast_part` (-1: none) is bf16 itself (is_autocast). */
bool kr_linear_parts(kr_tape *tape, kr_tensor *x, kr_tensor *weight, kr_tensor *bias, int count, const int64_t *sizes,
                     int autocast_part, kr_tensor **parts);

/* x as an operand of a product with that many rows: bf16 if the product would cast it (kr_autocasts_operands) and there
 * are several readers, else x. Not recorded; NULL after an error. */
kr_tensor *kr_operand(kr_tape *tape, kr_tensor *x, int64_t rows);

/* y = a b (+ bias) (+ y if accumulate), the last two axes; leading axes broadcast to y's. b may be 16-bit, a too if it
 * comes from kr_operand, and y if kr_autocasts_product holds. */
bool kr_run_matmul(kr_ctx *ctx, kr_tensor *y, const kr_tensor *a, const kr_tensor *b, const kr_tensor *bias,
                   bool accumulate);

#endif
