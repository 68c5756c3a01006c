/* autocast.h - mixed precision as a policy of the call: which activations are stored in bf16.
 *
 * The precision is that of kr_call, or else that of the context. It holds until the call returns, and again in the backward
 * pass of what the call has recorded: each node has the precision under which it was recorded (tape/backward.c).
 *
 *   precision                  matrix products and the state space core         activations
 *   exact                      in the operands' type                            of the type of their op's operands
 *   tf32                       may round f32 operands to tf32, inside           the same
 *   bf16                       round f32 operands to bf16                       bf16 if such readers alone round them, else
 *                                                                               the same
 *
 * An activation that all its readers would round is rounded once, as it is written, and read at half the cost. It is a tensor
 * of bf16 like any other, but that its gradient is f32 (kr_tensor_flags.grad_f32), or bf16 where it goes to a slab, whose
 * reader rounds it too (tape/tape_impl.h). In arithmetic with other operands it counts as f32 (kr_grad_dtype).
 *
 * The policy asks what the kernels take (kernels/accepts.def). Where products or the core have no kernel for bf16 operands,
 * such as on a CPU of today, everything stays exact.
 */
#ifndef KR_OPS_AUTOCAST_H
#define KR_OPS_AUTOCAST_H

#include "tape/tape_impl.h"

/* Sets the precision of ops until kr_precision_end, which takes what this returns. UNSET, and a value that kr_precision_check
 * refuses, change nothing. A call does both, whether it fails or not. */
kr_precision kr_precision_begin(kr_ctx *ctx, kr_precision precision);
void kr_precision_end(kr_ctx *ctx, kr_precision before);

/* Is it a kr_precision, or UNSET? */
bool kr_precision_check(kr_ctx *ctx, const char *op, kr_precision precision);

/* Do products round f32 operands to bf16, and take bf16 ones? */
bool kr_autocasts(const kr_ctx *ctx);

/* Would a product round an operand of that type with so many rows? */
bool kr_autocasts_product(const kr_ctx *ctx, kr_dtype dtype, int64_t rows);

/* x as an operand of a product with that many rows: bf16 if the product would round it and there are several readers, else
 * x. Not recorded; NULL after an error. */
kr_tensor *kr_autocast_operand(kr_tape *tape, kr_tensor *x, int64_t rows);

/* Does the fused state space core round v, b and c? Then they may be passed in bf16, its y may be bf16, and it applies the
 * rotary embedding to b and c itself. Depends on the sizes of a row alone. */
bool kr_autocasts_core(const kr_ctx *ctx, int64_t ns, int64_t nm, int64_t nr);

/* A new tensor for an activation that is computed in `dtype`: of that type, or of bf16 with rounds. */
kr_tensor *kr_new_activation(kr_tape *tape, kr_dtype dtype, bool rounds, kr_shape shape);

#endif
