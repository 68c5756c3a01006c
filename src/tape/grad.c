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
    kr_tensor *base = x->base;
    if (x != base) kr_heap_free(&tape->heap, x);
    if (--base->refs > 0) return;
    kr_device_heap_free(&tape->device_heap, base->span);
    kr_heap_free(&tape->heap, base);
}

void kr_release_temporaries(kr_tape *tape)
{
    for (kr_tensor *x = tape->temporaries; x;) {
        kr_tensor *next = x->next;
        kr_release(tape, x);
        x = next;
    }
    tape->temporaries = NULL;
}

/* Takes the newest temporary off the list, so that it outlives the rule. */
static kr_tensor *keep_newest(kr_tape *tape)
{
    kr_tensor *x = tape->temporaries;
    tape->temporaries = x->next;
    x->next = NULL;
    return x;
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
    const bool is_read = !x->node || x->retain_grad, is_safe = g->in_heap && (!g->base->borrows || g->base->lasts);
    if (is_safe && (!is_read || (!g->base->borrows && kr_tensor_is_row_major(g))))
        return kr_view_of(tape, g, &shape, g->strides, 0) ? keep_newest(tape) : NULL;
    kr_tensor *copy = new_kept(tape, g->dtype, &shape);
    return copy && kr_assign(tape->ctx, copy, g) ? copy : NULL;
}

static kr_tensor *param_grad(kr_tensor *param, bool *is_new)
{
    kr_ctx *ctx = param->ctx;
    *is_new = param->grad_is_zero || !param->grad;
    param->grad_is_zero = false;
    if (param->grad) return param->grad;
    const size_t bytes = (size_t)kr_count_of(param) * kr_dtype_bytes(param->dtype);
    kr_tensor *grad = kr_memory_alloc_zeroed(&ctx->memory, sizeof *grad);
    /* zeroed, though a new gradient is written whole: if a rule fails before that, the gradient is 0 and not
     * undefined */
    if (grad) grad->data = kr_memory_alloc_zeroed(kr_float_memory(ctx), bytes);
    if (!grad || !grad->data) {
        kr_memory_free(&ctx->memory, grad, sizeof *grad);
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
    return g->base->refs == 1 && !g->base->borrows && kr_tensor_is_row_major(g);
}

static bool add_again(kr_tape *tape, kr_tensor *x, kr_tensor *g)
{
    x->grad->is_one = false;
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
    if (x->grad) x->grad->lasts = true;
    return x->grad != NULL;
}

bool kr_grad_add(kr_tape *tape, kr_tensor *x, kr_tensor *g)
{
    if (!x->tape) {
        bool is_new;
        kr_tensor *grad = param_grad(x, &is_new);
        if (!grad) return false;
        return is_new ? kr_assign(tape->ctx, grad, g) : kr_assign_sum(tape->ctx, grad, g);
    }
    if (x->grad) return add_again(tape, x, g);
    x->grad = keep(tape, x, g);
    return x->grad != NULL;
}

/* ---- homes ---- */

bool kr_slab_create(kr_tape *tape, kr_tensor *x)
{
    if (!tape->recording) return true;
    kr_grad_slab *slab = kr_arena_alloc(&tape->heads, sizeof *slab);
    if (!slab) return kr_fail(tape->ctx, KR_ERR_NOMEM, "no memory for the buffer of a gradient");
    *slab = (kr_grad_slab){ .rows = 1, .columns = kr_count_of(x), .is_own = true };
    x->slab = slab;
    return true;
}

void kr_slab_release(kr_tape *tape, kr_grad_slab *slab)
{
    if (!slab || !slab->whole) return;
    kr_release(tape, slab->whole);
    slab->whole = NULL;
}

void kr_slab_share(kr_tensor *y, kr_tensor *x)
{
    if (!x->slab) return;
    y->slab = x->slab;
    y->slab_at = x->slab_at;
    y->slab_row = x->slab_row;
    y->slab_of = x->slab_of ? x->slab_of : x;
}

bool kr_grad_has_slab(const kr_tensor *x)
{
    const kr_tensor *first = x->slab_of ? x->slab_of : x;
    return x->slab && !x->grad && !x->retain_grad && !first->slab_is_taken;
}

/* The gradient in x's slab columns. */
static kr_tensor *view_slab(kr_tape *tape, kr_tensor *x)
{
    const kr_grad_slab *slab = x->slab;
    const kr_shape shape = kr_tensor_shape(x);
    int64_t strides[KR_MAX_RANK];
    for (int i = 0; i < x->rank; i++) {
        const int64_t step = x->strides[i];
        strides[i] = !slab->is_own && step >= x->slab_row ? step / x->slab_row * slab->columns : step;
    }
    if (kr_view_of(tape, slab->whole, &shape, slab->is_own ? NULL : strides, x->slab_at)) x->grad = keep_newest(tape);
    return x->grad;
}

kr_tensor *kr_grad_in_slab(kr_tape *tape, kr_tensor *x)
{
    kr_grad_slab *slab = x->slab;
    if (!kr_grad_has_slab(x)) return NULL;
    if (!slab->whole) slab->whole = new_kept(tape, KR_DTYPE_BF16, &KR_SHAPE(slab->rows, slab->columns));
    if (!slab->whole || !view_slab(tape, x)) return NULL;
    (x->slab_of ? x->slab_of : x)->slab_is_taken = true;
    return x->grad;
}

bool kr_grad_move_to_slab(kr_tape *tape, kr_tensor *x, const kr_tensor *g)
{
    const kr_tensor *whole = x->slab ? x->slab->whole : NULL;
    if (!whole || g->base != whole->base || x->grad || x->retain_grad) return false;
    return view_slab(tape, x) != NULL;
}

kr_tensor *kr_grad_into(kr_tape *tape, kr_tensor *x, bool *is_new)
{
    if (!x->tape) return param_grad(x, is_new);
    const kr_shape shape = kr_tensor_shape(x);
    *is_new = x->grad == NULL;
    if (x->grad) x->grad->is_one = false;
    if (*is_new) x->grad = new_kept(tape, kr_grad_dtype(x), &shape);
    else if (!owned_alone(x->grad)) {
        kr_tensor *own = new_kept(tape, kr_grad_dtype(x), &shape);
        if (!own || !kr_assign(tape->ctx, own, x->grad)) return NULL;
        kr_release(tape, x->grad);
        x->grad = own;
    }
    return x->grad;
}
