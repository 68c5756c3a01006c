/* grad.c - accumulation of gradients.
 *
 * The first gradient of a tensor is a shared reference; a second one is added in place if the memory has no other user,
 * else into new memory. A parameter's gradient has its own memory, which outlives the tape.
 */
#include "device/device.h"
#include "tape/tape_impl.h"

#include <string.h>

void kr_release(kr_tape *tape, kr_tensor *x)
{
    kr_tensor *owner = x->storage->owner;
    if (!owner->flags.in_heap || x != owner) kr_heap_free(&tape->heap, x);
    if (!owner->flags.in_heap || --kr_temporary_of(owner)->refs > 0) return;
    kr_device_heap_free(&tape->device_heap, kr_temporary_of(owner)->span);
    kr_heap_free(&tape->heap, owner);
}

void kr_release_temporaries(kr_tape *tape)
{
    for (kr_temporary *x = tape->temporaries; x;) {
        kr_temporary *next = x->next;
        kr_release(tape, &x->header.tensor);
        x = next;
    }
    tape->temporaries = NULL;
}

/* Takes the newest temporary off the list, so that it outlives the rule. */
static kr_tensor *keep_newest(kr_tape *tape)
{
    kr_temporary *x = tape->temporaries;
    tape->temporaries = x->next;
    x->next = NULL;
    return &x->header.tensor;
}

static kr_tensor *new_kept(kr_tape *tape, kr_dtype dtype, const kr_shape *shape)
{
    return kr_new(tape, dtype, *shape) ? keep_newest(tape) : NULL;
}

/* A new reference to g's data; a copy if the data are outside the heap and may be released, or if the caller will read
 * them, as row-major. */
static kr_tensor *keep(kr_tape *tape, const kr_tensor *x, const kr_tensor *g)
{
    const kr_shape shape = kr_tensor_shape(g);
    const bool is_read = !x->node || x->flags.retain_grad, is_counted = kr_is_counted(g);
    if ((is_counted || g->flags.lasts) && (!is_read || (is_counted && kr_tensor_is_row_major(g))))
        return kr_view_of(tape, g, &shape, g->strides, 0) ? keep_newest(tape) : NULL;
    kr_tensor *copy = new_kept(tape, g->dtype, &shape);
    return copy && kr_assign(tape->ctx, copy, g) ? copy : NULL;
}

static kr_tensor *param_grad(kr_tensor *param, bool *is_new)
{
    kr_ctx *ctx = param->ctx;
    *is_new = param->flags.grad_is_zero || !param->grad;
    param->flags.grad_is_zero = false;
    if (param->grad) return param->grad;
    const size_t bytes = kr_dtype_span(param->dtype, kr_count_of(param));
    kr_header *header = kr_memory_alloc_zeroed(&ctx->memory, sizeof *header);
    kr_tensor *grad = header ? kr_header_init(header) : NULL;
    /* zeroed, though a new gradient is written whole: if a rule fails before that, the gradient is 0 and not
     * undefined */
    if (grad) grad->data = kr_memory_alloc_zeroed(kr_float_memory(ctx), bytes);
    if (!grad || !grad->data) {
        kr_memory_free(&ctx->memory, header, sizeof *header);
        kr_fail(ctx, KR_ERR_NOMEM, "backward: no memory for the gradient %s of a parameter", KR_TEXT_OF(param));
        return NULL;
    }
    grad->ctx = ctx;
    const kr_shape shape = kr_tensor_shape(param);
    kr_tensor_layout(grad, param->dtype, &shape);
    param->grad = grad;
    return grad;
}

static bool owned_alone(const kr_tensor *g)
{
    return kr_is_counted(g) && kr_temporary_of(g->storage->owner)->refs == 1 && kr_tensor_is_row_major(g);
}

static bool add_again(kr_tape *tape, kr_tensor *x, kr_tensor *g)
{
    x->grad->flags.is_one = false;
    if (owned_alone(x->grad)) return kr_assign_sum(tape->ctx, x->grad, g);
    const kr_shape shape = kr_tensor_shape(x);
    kr_tensor *sum = new_kept(tape, kr_grad_dtype(x), &shape);
    if (!sum || !kr_assign(tape->ctx, sum, x->grad) || !kr_assign_sum(tape->ctx, sum, g)) return false;
    kr_release(tape, x->grad);
    x->grad = sum;
    return true;
}

bool kr_grad_borrow(kr_tape *tape, kr_tensor *x, const kr_tensor *g)
{
    const kr_shape shape = kr_tensor_shape(g);
    x->grad = kr_view_of(tape, g, &shape, g->strides, 0) ? keep_newest(tape) : NULL;
    if (x->grad) x->grad->flags.lasts = true;
    return x->grad != NULL;
}

bool kr_grad_add(kr_tape *tape, kr_tensor *x, kr_tensor *g)
{
    if (kr_grad_is_fixed(x)) {
        bool is_new;
        kr_tensor *grad = param_grad(x, &is_new);
        if (!grad) return false;
        return is_new ? kr_assign(tape->ctx, grad, g) : kr_assign_sum(tape->ctx, grad, g);
    }
    if (x->grad) return add_again(tape, x, g);
    x->grad = keep(tape, x, g);
    return x->grad != NULL;
}

/* ---- slabs ---- */

kr_grad_slab *kr_slab_create(kr_tape *tape, int64_t rows, int64_t columns)
{
    if (!tape->recording) return NULL;
    kr_grad_slab *slab = kr_arena_alloc(&tape->heads, sizeof *slab);
    if (slab) *slab = (kr_grad_slab){ .rows = rows, .columns = columns };
    else kr_fail(tape->ctx, KR_ERR_NOMEM, "no memory to describe a buffer of gradients");
    return slab;
}

bool kr_slab_assign(kr_tape *tape, kr_grad_slab *slab, kr_tensor *x, int64_t column, int64_t row)
{
    if (!slab) return true;
    kr_grad_view *view = kr_arena_alloc(&tape->heads, sizeof *view);
    if (!view) return kr_fail(tape->ctx, KR_ERR_NOMEM, "no memory to describe a part of a buffer of gradients");
    *view = (kr_grad_view){ .slab = slab, .column = column, .row = row };
    x->grad_view = view;
    return true;
}

bool kr_slab_create_own(kr_tape *tape, kr_tensor *x)
{
    kr_grad_slab *slab = kr_slab_create(tape, 1, kr_count_of(x));
    if (slab) slab->is_own = true;
    return kr_slab_assign(tape, slab, x, 0, 0) && !kr_ctx_failed(tape->ctx);
}

void kr_slab_release(kr_tape *tape, kr_grad_slab *slab)
{
    if (!slab || !slab->whole) return;
    kr_release(tape, slab->whole);
    slab->whole = NULL;
}

bool kr_grad_has_slab(const kr_tensor *x)
{
    return x->grad_view && !x->grad && !x->flags.retain_grad && !x->grad_view->is_taken;
}

/* The gradient in x's slab columns. */
static kr_tensor *view_slab(kr_tape *tape, kr_tensor *x)
{
    const kr_grad_view *view = x->grad_view;
    const kr_grad_slab *slab = view->slab;
    const kr_shape shape = kr_tensor_shape(x);
    int64_t strides[KR_MAX_RANK];
    for (int i = 0; i < x->rank; i++) {
        const int64_t step = x->strides[i];
        strides[i] = !slab->is_own && step >= view->row ? step / view->row * slab->columns : step;
    }
    if (kr_view_of(tape, slab->whole, &shape, slab->is_own ? NULL : strides, view->column)) x->grad = keep_newest(tape);
    return x->grad;
}

kr_tensor *kr_grad_in_slab(kr_tape *tape, kr_tensor *x)
{
    if (!kr_grad_has_slab(x)) return NULL;
    kr_grad_slab *slab = x->grad_view->slab;
    if (!slab->whole) slab->whole = new_kept(tape, KR_DTYPE_BF16, &KR_SHAPE(slab->rows, slab->columns));
    if (!slab->whole || !view_slab(tape, x)) return NULL;
    x->grad_view->is_taken = true;
    return x->grad;
}

bool kr_grad_move_to_slab(kr_tape *tape, kr_tensor *x, const kr_tensor *g)
{
    const kr_tensor *whole = x->grad_view ? x->grad_view->slab->whole : NULL;
    if (!whole || g->storage != whole->storage || x->grad || x->flags.retain_grad) return false;
    return view_slab(tape, x) != NULL;
}

kr_tensor *kr_grad_into(kr_tape *tape, kr_tensor *x, bool *is_new)
{
    if (kr_grad_is_fixed(x)) return param_grad(x, is_new);
    const kr_shape shape = kr_tensor_shape(x);
    *is_new = x->grad == NULL;
    if (x->grad) x->grad->flags.is_one = false;
    if (*is_new) x->grad = new_kept(tape, kr_grad_dtype(x), &shape);
    else if (!owned_alone(x->grad)) {
        kr_tensor *own = new_kept(tape, kr_grad_dtype(x), &shape);
        if (!own || !kr_assign(tape->ctx, own, x->grad)) return NULL;
        kr_release(tape, x->grad);
        x->grad = own;
    }
    return x->grad;
}
