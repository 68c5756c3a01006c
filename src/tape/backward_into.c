/* backward_into.c - a backward pass that writes the gradients of leaves to the caller's memory.
 *
 * For the time of the pass the leaf's gradient is a header over the caller's memory (grad_is_lent), to which rules write
 * as to the gradient of a parameter. Memory that is not row-major is written from a row-major tensor on the tape.
 */
#include "device/device.h"
#include "tape/tape_impl.h"

#include <string.h>

typedef struct lent_grad {
    kr_header header;
    kr_tensor *leaf;
    kr_tensor *own; /* the leaf's gradient outside the pass */
    bool own_is_zero;
} lent_grad;

static bool check_leaf(const kr_tape *tape, int i, const kr_tensor *x)
{
    kr_ctx *ctx = tape->ctx;
    if (!x) return kr_fail(ctx, KR_ERR_ARG, "backward_into: leaf %d is NULL", i);
    if (x->ctx != ctx || (x->tape && x->tape != tape))
        return kr_fail(ctx, KR_ERR_STATE, "backward_into: leaf %d %s belongs to another tape or context", i,
                       KR_TEXT_OF(x));
    if (x->node)
        return kr_fail(ctx, KR_ERR_ARG,
                       "backward_into: leaf %d %s is the result of an op; list parameters, kr_input and kr_input_view",
                       i, KR_TEXT_OF(x));
    if (!x->flags.requires_grad)
        return kr_fail(ctx, KR_ERR_ARG,
                       "backward_into: leaf %d %s receives no gradient: it is a constant, frozen, or was made without "
                       "recording",
                       i, KR_TEXT_OF(x));
    return kr_require(ctx, !x->flags.grad_is_lent, KR_ERR_ARG, "backward_into: leaf %d %s is listed twice", i,
                      KR_TEXT_OF(x));
}

static bool check_memory(kr_ctx *ctx, int i, const kr_tensor *x, const kr_view *view)
{
    const kr_shape want = kr_tensor_shape(x);
    const kr_dtype dtype = kr_grad_dtype(x);
    const int64_t count = kr_count_of(x);
    bool fits = view->rank == want.rank && view->dtype == dtype;
    for (int k = 0; fits && k < want.rank; k++) fits = view->dims[k] == want.dims[k];
    if (!kr_require(ctx, fits, KR_ERR_SHAPE,
                    "backward_into: the memory for the gradient of leaf %d must be %s %s, as the leaf is", i,
                    kr_dtype_name(dtype), KR_TEXT_OF(x)) ||
        !kr_require(ctx, view->data || count == 0, KR_ERR_ARG,
                    "backward_into: data for the gradient of leaf %d is NULL", i) ||
        !kr_require(ctx, (uintptr_t)view->data % kr_dtype_bytes(dtype) == 0, KR_ERR_ARG,
                    "backward_into: the address for the gradient of leaf %d is not a multiple of %zu, the size of an "
                    "element",
                    i, kr_dtype_bytes(dtype)))
        return false;
    for (int k = 0; k < want.rank; k++)
        if (want.dims[k] > 1 && view->strides[k] == 0)
            return kr_fail(ctx, KR_ERR_ARG,
                           "backward_into: stride %d of the memory for the gradient of leaf %d is 0, so that its "
                           "elements overlap",
                           k, i);
    return kr_require(
        ctx, !kr_ctx_on_device(ctx) || count == 0 || kr_device_owns(ctx, view->data), KR_ERR_ARG,
        "backward_into: the memory for the gradient of leaf %d is not memory of the context's device, %s; "
        "pass device memory, or use kr_backward_from and kr_tensor_read",
        i, ctx->device->name);
}

/* The caller's memory as a tensor on the stack. */
static kr_tensor memory_of(const kr_tensor *leaf, const kr_view *view)
{
    const kr_shape shape = kr_tensor_shape(leaf);
    kr_tensor x = { .ctx = leaf->ctx };
    kr_tensor_layout(&x, view->dtype, &shape);
    memcpy(x.strides, view->strides, (size_t)shape.rank * sizeof *x.strides);
    x.data = view->data;
    return x;
}

static bool lend(kr_tape *tape, int i, kr_tensor *leaf, const kr_view *view, bool accumulate, lent_grad *lent)
{
    if (!check_leaf(tape, i, leaf) || !check_memory(tape->ctx, i, leaf, view)) return false;
    kr_tensor memory = memory_of(leaf, view);
    const bool is_direct = kr_tensor_is_row_major(&memory);
    if (!is_direct) {
        const kr_tensor *flat = kr_new(tape, memory.dtype, kr_tensor_shape(leaf));
        if (!flat) return false;
        memory.data = flat->data;
    }
    memset(&lent->header, 0, sizeof lent->header);
    kr_tensor *grad = kr_header_init(&lent->header);
    const kr_shape shape = kr_tensor_shape(leaf);
    kr_tensor_layout(grad, memory.dtype, &shape);
    grad->ctx = tape->ctx;
    grad->data = memory.data;
    lent->leaf = leaf;
    lent->own = leaf->grad;
    lent->own_is_zero = leaf->flags.grad_is_zero;
    leaf->grad = grad;
    leaf->flags.grad_is_lent = true;
    leaf->flags.grad_is_zero = !(accumulate && is_direct);
    return true;
}

/* What is left to write after the pass: zeros, or the gradient of memory with other strides. */
static bool deliver(kr_tape *tape, const lent_grad *lent, const kr_view *view, bool accumulate)
{
    kr_ctx *ctx = tape->ctx;
    kr_tensor memory = memory_of(lent->leaf, view);
    memory.tape = tape; /* for what a sum of 16-bit elements needs */
    const bool is_missing = lent->leaf->flags.grad_is_zero;
    if (kr_count_of(&memory) == 0 || (is_missing && accumulate)) return true;
    if (is_missing) return kr_assign_value(ctx, &memory, 0);
    if (lent->header.tensor.data == memory.data) return true;
    return accumulate ? kr_assign_sum(ctx, &memory, &lent->header.tensor)
                      : kr_assign(ctx, &memory, &lent->header.tensor);
}

static void take_back(const lent_grad *lent)
{
    lent->leaf->grad = lent->own;
    lent->leaf->flags.grad_is_zero = lent->own_is_zero;
    lent->leaf->flags.grad_is_lent = false;
}

static bool check_lists(kr_tape *tape, int n_leaves, kr_tensor *const *leaves, const kr_view *g_leaves)
{
    return kr_require(tape->ctx, !tape->in_backward, KR_ERR_STATE,
                      "backward_into: called from within a backward rule") &&
           kr_require(tape->ctx, n_leaves >= 1, KR_ERR_ARG,
                      "backward_into: n_leaves = %d, but at least one leaf is needed", n_leaves) &&
           kr_require(tape->ctx, leaves && g_leaves, KR_ERR_ARG, "backward_into: %s is NULL",
                      leaves ? "g_leaves" : "leaves");
}

kr_status kr_backward_into(kr_tape *tape, int count, kr_tensor *const *y, kr_tensor *const *g_y, int n_leaves,
                           kr_tensor *const *leaves, const kr_view *g_leaves, bool accumulate)
{
    if (!tape) return KR_ERR_ARG;
    kr_ctx *ctx = tape->ctx;
    if (!kr_tape_ready(tape, "backward_into") || !check_lists(tape, n_leaves, leaves, g_leaves)) return ctx->status;
    lent_grad *lent = kr_arena_alloc(&tape->heads, (size_t)n_leaves * sizeof *lent);
    if (!kr_require(ctx, lent != NULL, KR_ERR_NOMEM, "backward_into: no memory for a list of %d leaves", n_leaves))
        return ctx->status;
    int done = 0;
    while (done < n_leaves && lend(tape, done, leaves[done], &g_leaves[done], accumulate, &lent[done])) done++;
    bool ok = done == n_leaves && kr_backward_from(tape, count, y, g_y) == KR_OK;
    for (int i = 0; ok && i < n_leaves; i++) ok = deliver(tape, &lent[i], &g_leaves[i], accumulate);
    while (done > 0) take_back(&lent[--done]);
    return ctx->status;
}
