/* tape.h - inside of a tape: its memory, its nodes, and what ops need of it.
 *
 * Forward tensors and nodes live in two arenas (headers, data) until the tape is reset or their scope ends. During a
 * backward pass tensors live in a heap instead, counted by reference, so that a gradient's memory is free again as soon
 * as the node that consumed it is done.
 */
#ifndef KR_TAPE_TAPE_H
#define KR_TAPE_TAPE_H

#include "base/arena.h"
#include "base/ctx.h"
#include "base/heap.h"
#include "tensor/contract.h"
#include "tensor/tensor.h"

#include <krait/tape.h>

typedef struct kr_node kr_node;

struct kr_node {
    const kr_rule *rule;
    kr_node *prev;
    int nin, nout, nsaved;
    kr_tensor **in, **out, **saved;
    void *attrs;
};

struct kr_tape {
    kr_ctx *ctx;
    kr_arena heads, data;
    kr_heap heap;
    size_t peak;
    kr_node *last;
    int64_t nnodes;
    uint64_t nerrors; /* of the context when this step began */
    int depth;        /* open scopes */
    bool recording, in_backward, done;
    bool saw_grad; /* an operand that requires a gradient was used, recorded or not */
    kr_tape_mode mode;
    kr_tensor *temporaries; /* in_backward: made by the running rule */
};

/* Fails unless the tape can take an op: a healthy context, no earlier error. */
bool kr_tape_ready(kr_tape *tape, const char *op);

/* Holds operands (kr_tensor *, as many as the contract names) against the tape and the shape contract; see
 * tensor/contract.h. False with the error recorded, or as an echo of an earlier one. */
bool kr_bind(kr_tape *tape, const char *op, kr_dims *d, const char *contract, ...);

/* kr_bind of "x:..": one operand of any shape, nothing to bind. */
bool kr_bind_any(kr_tape *tape, const char *op, const kr_tensor *x);

/* A view on x's data: `shape` by `strides`, beginning `offset` elements after x's first. No gradient is recorded. */
kr_tensor *kr_view_of(kr_tape *tape, const kr_tensor *x, const kr_shape *shape, const int64_t *strides, int64_t offset);

/* kr_record; with `force` even if no input requires a gradient. */
bool kr_record_node(kr_tape *tape, const kr_record_args *args, bool force);

/* Runs the nodes after `stop` backwards. */
bool kr_run_backward(kr_tape *tape, const kr_node *stop);

/* Adds g to the gradient of x. */
bool kr_grad_deposit(kr_tape *tape, kr_tensor *x, kr_tensor *g);

/* Makes g, which outlasts the backward pass, the gradient of x, without a copy. */
bool kr_grad_lend(kr_tape *tape, kr_tensor *x, const kr_tensor *g);

/* x's gradient, contiguous and unshared, to write (*fresh) or add into. */
kr_tensor *kr_grad_into(kr_tape *tape, kr_tensor *x, bool *fresh);

/* Frees the tensors that the running rule made, except those whose data a gradient still uses. */
void kr_release_temporaries(kr_tape *tape);
void kr_release(kr_tape *tape, kr_tensor *x); /* one reference to a heap tensor */

/* A parameter without memory: whoever gives it some keeps that memory (a slab of many parameters). */
kr_tensor *kr_param_head(kr_ctx *ctx, kr_dtype dtype, kr_shape shape);

/* Frees a parameter's gradient, as if none had ever reached it. */
void kr_param_drop_grad(kr_tensor *param);

/* Says that the caller has zeroed a parameter's gradient: what reaches it next is written, not added. */
void kr_param_grad_is_zero(kr_tensor *param);

/* A second copy of a weight [o i] in panels (kernels/matmul_args.h, kr_panels_args) for kr_linear, of its own type; f64
 * is passed over. Writing the parameter drops it. */
bool kr_param_pack(kr_tensor *weight);
void kr_param_unpack(kr_tensor *weight);

/* y = x, y += x, y = value; for tensors of one shape, any strides. */
bool kr_assign(kr_ctx *ctx, kr_tensor *y, const kr_tensor *x);
bool kr_assign_sum(kr_ctx *ctx, kr_tensor *y, const kr_tensor *x);
bool kr_assign_value(kr_ctx *ctx, kr_tensor *y, double value);

#endif
