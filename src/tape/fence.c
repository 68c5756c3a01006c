/* fence.c - places of a tape at which the backward pass calls a function.
 *
 * A fence is a node without inputs and outputs. When the backward pass reaches it, the nodes recorded after it have run, so
 * that the gradient of a parameter is final if the first op that uses it was recorded after the fence. That is found by one
 * walk through the nodes, before the pass. A recomputed part is one node there, whose saved tensors are the parameters that
 * it has read.
 */
#include "tape/tape_impl.h"

static void fence_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const int64_t *number = kr_back_attrs(back);
    if (tape->fence_fn) tape->fence_fn(tape->fence_user, *number);
}

const kr_rule kr_fence_rule = { .name = "fence", .backward = fence_backward };

void kr_tape_set_fences(kr_tape *tape, kr_fence_fn *fn, void *user)
{
    tape->fence_fn = fn;
    tape->fence_user = user;
}

void kr_fence(kr_tape *tape)
{
    if (!tape->fence_fn || !tape->recording || kr_ctx_failed(tape->ctx)) return;
    const int64_t number = ++tape->nfences;
    kr_record_always(tape, &(kr_record_args){ .rule = &kr_fence_rule, .attrs = &number, .attrs_bytes = sizeof number });
}

static void mark(int count, kr_tensor *const *list, int64_t fence)
{
    for (int i = 0; i < count; i++) {
        const kr_tensor *owner = list[i] ? kr_owner_of(list[i]) : NULL;
        if (owner && !owner->tape && owner->storage) owner->storage->fence = fence;
    }
}

void kr_fences_mark(kr_tape *tape)
{
    int64_t fence = tape->nfences;
    for (const kr_node *node = tape->nfences ? tape->last : NULL; node; node = node->prev) {
        if (node->rule == &kr_fence_rule) fence--;
        mark(node->n_in, node->in, fence);
        mark(node->n_saved, node->saved, fence);
    }
}
