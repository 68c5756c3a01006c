/* tape_impl.h - struct of a tape: memory, nodes, and the functions that ops use.
 *
 * Forward tensors and nodes live in two arenas (headers, data) until the tape is reset or their scope ends. During a
 * backward pass tensors live in a heap instead, counted by reference, so that a gradient's memory is free again as soon
 * as the node that consumed it is done.
 *
 * On a device (device/device.h) `data` and `device_heap` are device memory. Integers have their own pinned arena,
 * `shared`, in both passes: queued kernels may still read them, so their memory is released only at the reset, or when
 * it exceeds a limit.
 */
#ifndef KR_TAPE_TAPE_IMPL_H
#define KR_TAPE_TAPE_IMPL_H

#include "base/arena.h"
#include "base/ctx_impl.h"
#include "base/device_heap.h"
#include "base/heap.h"
#include "tensor/contract.h"
#include "tensor/tensor_impl.h"

#include <krait/tape.h>

typedef struct kr_node kr_node;

/* Called by a backward pass at each fence; they count from 1 in the order of recording. */
typedef void kr_fence_fn(void *user, int64_t fence);

struct kr_node {
    const kr_rule *rule;
    kr_node *prev;
    int n_in, n_out, n_saved;
    kr_tensor **in, **out, **saved;
    void *attrs;
    bool runs_always;       /* backward, also without a gradient of an output */
    kr_precision precision; /* under which it was recorded, and is run backwards */
    uint64_t nwrites; /* of the context when it was recorded: a tensor written later no longer holds the op's input */
};

/* The header of a tensor that is made in a backward pass. Its memory is freed when the last tensor that uses it is. */
typedef struct kr_temporary {
    kr_header header;
    int refs;                    /* of an owner: tensors that use its storage */
    struct kr_device_span *span; /* of an owner: its data in device memory; or NULL: they follow the header */
    struct kr_temporary *next;   /* list of the running rule's */
} kr_temporary;

/* Fused gradient buffer of tensors that are the columns of one [rows columns], or of one tensor: a backward rule may
 * store such a gradient there, rounded to bf16. Only for gradients whose readers cast to bf16. The op that created the
 * tensors releases `whole` after their gradients have been read (kr_slab_release). */
typedef struct kr_grad_slab {
    int64_t rows, columns;
    bool is_own;      /* of one tensor, whose gradient is row-major there */
    kr_tensor *whole; /* NULL: no gradient has been stored yet */
} kr_grad_slab;

/* The columns of a slab that are the gradient of a tensor and of its views. */
typedef struct kr_grad_view {
    kr_grad_slab *slab;
    int64_t column; /* the first */
    int64_t row;    /* elements per slab row in the tensor's own data */
    bool is_taken;  /* a gradient was written there */
} kr_grad_view;

/* A slab of `rows` by `columns` for the gradients of several tensors; NULL if nothing is being recorded, or after an
 * error. */
kr_grad_slab *kr_slab_create(kr_tape *tape, int64_t rows, int64_t columns);

/* Makes the slab's columns from `column` on those of x, whose data has `row` elements per slab row. slab NULL: nothing to
 * do. False after an error. */
bool kr_slab_assign(kr_tape *tape, kr_grad_slab *slab, kr_tensor *x, int64_t column, int64_t row);

/* A slab for the gradient of x alone, if something is being recorded. False after an error. */
bool kr_slab_create_own(kr_tape *tape, kr_tensor *x);

/* The slab of x's gradient, or NULL. */
static inline kr_grad_slab *kr_slab_of(const kr_tensor *x)
{
    return x->grad_view ? x->grad_view->slab : NULL;
}
void kr_slab_release(kr_tape *tape, kr_grad_slab *slab);

/* Lets y, another view of x's data, have its gradient where x has its own. */
static inline void kr_slab_share(kr_tensor *y, const kr_tensor *x)
{
    y->grad_view = x->grad_view;
}

struct kr_tape {
    kr_ctx *ctx;
    kr_arena heads, data, shared;
    kr_heap heap;
    kr_device_heap device_heap;
    size_t list_bytes; /* of `shared`, by kr_tape_list: no tensors */
    size_t peak;
    kr_node *last;
    int64_t nnodes;
    bool failed; /* a call on it failed since the last reset */
    int depth;   /* open scopes */
    bool recording, in_backward, done;
    const kr_node *replayed; /* the checkpoint that is being recomputed, or NULL */
    bool saw_grad;           /* an operand that requires a gradient was used, recorded or not */
    kr_tape_mode mode;
    kr_temporary *temporaries; /* in_backward: allocated by the running rule */
    kr_fence_fn *fence_fn;     /* NULL: no fences are recorded */
    void *fence_user;
    int64_t nfences; /* recorded since the last reset */

    /* Parameters that ops of the running checkpoint have read, some of them several times. */
    bool lists_reads; /* such a checkpoint is running */
    int nread, read_capacity;
    kr_tensor **read;
};

/* A place in a tape's memory. */
typedef struct kr_tape_mark {
    kr_arena_mark heads, data, shared;
    size_t list_bytes;
} kr_tape_mark;
kr_tape_mark kr_tape_mark_now(const kr_tape *tape);

/* Releases allocations after the mark; integers only if `integers` is set, which needs a synchronization and is worth
 * it if kr_tape_is_full. */
void kr_tape_release(kr_tape *tape, const kr_tape_mark *mark, bool integers);
bool kr_tape_is_full(const kr_tape *tape, const kr_tape_mark *mark);

/* Would that release x's data? */
bool kr_tape_releases(const kr_tape *tape, const kr_tape_mark *mark, bool integers, const kr_tensor *x);

/* Memory for a list that kernels read, with the lifetime of a tensor allocated now. NULL if the allocation fails. */
void *kr_tape_list(kr_tape *tape, size_t bytes);

/* Fails unless the tape can take an op: a healthy context, no earlier error. */
bool kr_tape_ready(kr_tape *tape, const char *op);

/* Holds operands (kr_tensor *, as many as the contract names) against the tape and the shape contract; see
 * tensor/contract.h. False with the error recorded, or as an echo of an earlier one. */
bool kr_bind(kr_tape *tape, const char *op, kr_dims *d, const char *contract, ...);

/* kr_bind of "x:..": one operand of any shape, nothing to bind. */
bool kr_bind_any(kr_tape *tape, const char *op, const kr_tensor *x);

/* The heap header of x, which was made in a backward pass. */
static inline kr_temporary *kr_temporary_of(kr_tensor *x)
{
    return (kr_temporary *)(void *)x;
}

/* Does x show memory of the heap, whose users are counted? */
static inline bool kr_is_counted(const kr_tensor *x)
{
    const kr_tensor_flags flags = x->storage->owner->flags;
    return flags.in_heap && !flags.is_borrowed;
}

/* A view on x's data: `shape` by `strides`, beginning `offset` elements after x's first. No gradient is recorded. */
kr_tensor *kr_view_of(kr_tape *tape, const kr_tensor *x, const kr_shape *shape, const int64_t *strides, int64_t offset);

/* kr_record for the library's own ops: args and rule are not checked. With `force` it records even if no input requires a
 * gradient. */
bool kr_record_node(kr_tape *tape, const kr_record_args *args, bool force);

/* The same with `force`; the backward pass runs the node's rule even if no output has a gradient. */
bool kr_record_always(kr_tape *tape, const kr_record_args *args);

/* In a checkpoint: notes that x was read, if it is a parameter or shows one. False after an error. */
bool kr_add_read(kr_tape *tape, kr_tensor *param);
static inline bool kr_list_read(kr_tape *tape, const kr_tensor *x)
{
    if (!tape->lists_reads || !x) return true;
    const kr_tensor *owner = kr_owner_of(x);
    return owner->tape || kr_add_read(tape, (kr_tensor *)(uintptr_t)owner);
}

/* Runs the nodes after `stop` backwards. */
bool kr_run_backward(kr_tape *tape, const kr_node *stop);

/* ---- fences ---- */

/* Has kr_fence record fences, at which backward passes call fn; NULL: no longer. */
void kr_tape_set_fences(kr_tape *tape, kr_fence_fn *fn, void *user);

/* Records a fence, if fences are recorded: a node that computes nothing. The backward pass calls the tape's function there,
 * when everything recorded after it has run. */
void kr_fence(kr_tape *tape);
extern const kr_rule kr_fence_rule;

/* Before a backward pass: finds for each parameter the fences before its first use. */
void kr_fences_mark(kr_tape *tape);

/* Is a parameter's gradient final when the pass has reached this fence? */
static inline bool kr_grad_is_final(const kr_tensor *param, int64_t fence)
{
    return param->storage->fence >= fence;
}

/* The type of x's gradient, unless it is stored in a slab; and the type that x has in arithmetic with other operands. */
static inline kr_dtype kr_grad_dtype(const kr_tensor *x)
{
    return x->flags.grad_f32 ? KR_DTYPE_F32 : x->dtype;
}

/* Does x's gradient have its own memory, outside the tape's? */
static inline bool kr_grad_is_fixed(const kr_tensor *x)
{
    return !x->tape || x->flags.grad_is_lent;
}

/* Adds g to the gradient of x. */
bool kr_grad_add(kr_tape *tape, kr_tensor *x, kr_tensor *g);

/* Makes g, which outlasts the backward pass, the gradient of x, without a copy. */
bool kr_grad_borrow(kr_tape *tape, kr_tensor *x, const kr_tensor *g);

/* x's gradient, contiguous and unshared, to write (*is_new) or add into. */
kr_tensor *kr_grad_into(kr_tape *tape, kr_tensor *x, bool *is_new);

/* x's gradient in its slab, to be overwritten completely; NULL: x has no slab, or already a gradient, or after an
 * error. */
kr_tensor *kr_grad_in_slab(kr_tape *tape, kr_tensor *x);

/* Would it be there? */
bool kr_grad_has_slab(const kr_tensor *x);

/* Makes x's slab columns x's gradient, if g, the gradient of a view of x, is stored there. */
bool kr_grad_move_to_slab(kr_tape *tape, kr_tensor *x, const kr_tensor *g);

/* The memory of the input's gradient, if that is a parameter's or lent and there is no gradient yet: to be overwritten
 * completely. NULL: other memory, a gradient exists, none is wanted, or after an error. */
kr_tensor *kr_back_new(kr_back *back, int in);

/* kr_grad_in_slab of an input of the running rule, if its gradient is wanted. */
kr_tensor *kr_back_slab(kr_back *back, int in);
bool kr_back_has_slab(kr_back *back, int in);

/* The caller's memory as a tensor, a copy where the device cannot access it; without a gradient. op: "view_data".
 * strides NULL: row-major. NULL after an error. */
kr_tensor *kr_borrow(kr_tape *tape, const char *op, kr_dtype dtype, const kr_shape *shape, const int64_t *strides,
                     const void *data);

/* Makes a header on the stack for the caller's memory, to read from; false after an error. */
bool kr_describe_memory(kr_tape *tape, const char *op, kr_dtype dtype, const kr_shape *shape, const void *data,
                        kr_tensor *x);

/* Frees the tensors that the running rule made, except those whose data a gradient still uses. */
void kr_release_temporaries(kr_tape *tape);
void kr_release(kr_tape *tape, kr_tensor *x); /* one reference to a heap tensor */

/* A parameter without memory: the caller sets its data and owns that memory (a slab of many parameters). */
kr_tensor *kr_param_head(kr_ctx *ctx, kr_dtype dtype, kr_shape shape);

/* Frees the headers of destroyed parameters, unless a tape still holds recorded ops. */
void kr_free_destroyed(kr_ctx *ctx);

/* Frees a parameter's gradient: it has none afterwards. */
void kr_param_drop_grad(kr_tensor *param);

/* Makes memory of the caller's, a part of a buffer, that of a parameter's gradient, which is undefined. False without memory
 * for a header. kr_param_drop_grad ends it. */
bool kr_param_place_grad(kr_tensor *param, void *data);

/* Marks a parameter's gradient as zeroed by the caller: the next gradient is written, not added. */
void kr_param_grad_is_zero(kr_tensor *param);

/* Call before or after writing x in place: nodes that have used it cannot be run backwards any longer, and the packed
 * copy of a weight is dropped. Not for the results that an op writes into its new tensors. */
void kr_wrote(kr_tensor *x);

/* A second copy of a weight [o i] in panels (kernels/args/matmul_args.h, kr_panels_args) for kr_linear, of its own
 * type; f64 weights and weights on a device have none. Writing the parameter drops it. */
bool kr_param_pack(kr_tensor *weight);
void kr_param_unpack(kr_tensor *weight);

/* y = x, y += x, y = value; for tensors of one shape, any strides. */
bool kr_assign(kr_ctx *ctx, kr_tensor *y, const kr_tensor *x);
bool kr_assign_sum(kr_ctx *ctx, kr_tensor *y, const kr_tensor *x);
bool kr_assign_value(kr_ctx *ctx, kr_tensor *y, double value);

#endif
