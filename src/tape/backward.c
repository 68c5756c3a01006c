/* backward.c - the backward pass: visits the recorded nodes in reverse; each computes the gradients of its inputs from
 * those of its outputs. */
#include "tape/tape_impl.h"

#include "device/device.h"

struct kr_back {
    kr_ctx *ctx;
    kr_tape *tape;
    const kr_node *node;
};

static bool reached(const kr_node *node)
{
    for (int i = 0; i < node->n_out; i++)
        if (node->out[i]->grad) return true;
    return node->runs_always;
}

static void release_output_grads(kr_tape *tape, const kr_node *node)
{
    for (int i = 0; i < node->n_out; i++) {
        kr_tensor *y = node->out[i];
        if (!y->grad || y->flags.retain_grad) continue;
        kr_release(tape, y->grad);
        y->grad = NULL;
    }
}

/* The first of these tensors that was written or destroyed after the op had used it; NULL: none. */
static const kr_tensor *find_written(int count, kr_tensor *const *list, uint64_t nwrites)
{
    for (int i = 0; i < count; i++) {
        const kr_tensor *x = list[i];
        if (x && x->storage->written > nwrites) return x;
    }
    return NULL;
}

/* The rule would compute with other values than the op did. */
static bool check_writes(kr_ctx *ctx, const kr_node *node)
{
    const kr_tensor *x = find_written(node->n_in, node->in, node->nwrites);
    if (!x) x = find_written(node->n_out, node->out, node->nwrites);
    if (!x) x = find_written(node->n_saved, node->saved, node->nwrites);
    if (!x) return true;
    const kr_tensor *owner = x->storage->owner;
    const char *name = x->storage->name;
    const char *kind = "parameter", *change = "written", *again = "write";
    if (owner->tape) kind = "tensor";
    if (owner->flags.is_state) kind = "state's";
    if (owner->flags.is_destroyed) {
        change = owner->flags.is_state ? "reset, resized or destroyed" : "destroyed";
        again = owner->flags.is_state ? "change" : "destroy";
    }
    return kr_fail(ctx, KR_ERR_STATE,
                   "the %s%s%s %s was %s after %s had used it; %s it after kr_backward, or call kr_tape_reset and "
                   "run the step again",
                   kind, name ? " " : "", name ? name : "", KR_TEXT_OF(owner), change, node->rule->name, again);
}

bool kr_run_backward(kr_tape *tape, const kr_node *stop)
{
    kr_temporary *outer = tape->temporaries;
    const kr_precision precision = tape->ctx->device->precision;
    for (const kr_node *node = tape->last; node != stop; node = node->prev) {
        if (!reached(node)) continue;
        tape->temporaries = NULL;
        tape->ctx->device->precision = node->precision;
        tape->ctx->device->op = tape->ctx->device->last_op = node->rule->name;
        if (check_writes(tape->ctx, node)) node->rule->backward(&(kr_back){ tape->ctx, tape, node });
        kr_release_temporaries(tape);
        release_output_grads(tape, node);
        if (kr_ctx_failed(tape->ctx)) {
            kr_blame(tape->ctx, "backward of %s", node->rule->name);
            break;
        }
    }
    tape->temporaries = outer;
    tape->ctx->device->precision = precision;
    return !kr_ctx_failed(tape->ctx);
}

static bool check_seed(kr_tape *tape, int i, const kr_tensor *y, const kr_tensor *g)
{
    kr_ctx *ctx = tape->ctx;
    if (!y) return kr_fail(ctx, KR_ERR_ARG, "backward: output %d is NULL", i);
    if (y->tape != tape)
        return kr_fail(ctx, KR_ERR_STATE, "backward: output %d %s was not made on this tape", i, KR_TEXT_OF(y));
    if (!y->flags.requires_grad)
        return kr_fail(ctx, KR_ERR_ARG,
                       "backward: output %d %s depends on no parameter and no kr_input, or was made without recording",
                       i, KR_TEXT_OF(y));
    if (!g) return true;
    const kr_shape want = kr_tensor_shape(y), got = kr_tensor_shape(g);
    if (g->ctx != ctx)
        return kr_fail(ctx, KR_ERR_STATE, "backward: the gradient of output %d belongs to another context", i);
    if (g->tape && g->tape != tape)
        return kr_fail(ctx, KR_ERR_STATE, "backward: the gradient of output %d belongs to another tape", i);
    return kr_require(ctx, kr_shape_equal(&want, &got) && g->dtype == y->dtype, KR_ERR_SHAPE,
                      "backward: the gradient of output %d is %s %s, but the output is %s %s", i,
                      kr_dtype_name(g->dtype), KR_TEXT_OF(g), kr_dtype_name(y->dtype), KR_TEXT_OF(y));
}

static bool seed(kr_tape *tape, kr_tensor *y, kr_tensor *g)
{
    const bool is_first = !y->grad, is_one = !g;
    if (is_one) {
        g = kr_new(tape, y->dtype, kr_tensor_shape(y));
        if (!g || !kr_assign_value(tape->ctx, g, 1.0)) return false;
    }
    /* a gradient that the caller will not read need not be a copy of the caller's */
    if (is_first && y->node && !y->flags.retain_grad && !g->flags.in_heap) return kr_grad_borrow(tape, y, g);
    if (!kr_grad_add(tape, y, g)) return false;
    if (y->grad && is_first) y->grad->flags.is_one = is_one;
    return true;
}

kr_status kr_backward_from(kr_tape *tape, int count, kr_tensor *const *y, kr_tensor *const *g_y)
{
    if (!tape) return KR_ERR_ARG;
    kr_ctx *ctx = tape->ctx;
    if (!kr_tape_ready(tape, "backward")) return ctx->status;
    bool ok =
        kr_require(ctx, !tape->in_backward, KR_ERR_STATE, "backward: called from within a backward rule") &&
        kr_require(
            ctx, tape->mode == KR_TAPE_GRAD, KR_ERR_STATE,
            "backward: the tape was made with KR_TAPE_NO_GRAD and recorded nothing; make it with KR_TAPE_GRAD") &&
        kr_require(ctx, tape->depth == 0, KR_ERR_STATE, "backward: a no-grad scope is still open on this tape") &&
        kr_require(
            ctx, !tape->done, KR_ERR_STATE,
            "backward: this tape has been run backwards already; call kr_tape_reset and record the step again") &&
        kr_require(ctx, count >= 1, KR_ERR_ARG, "backward: count = %d, but at least one output is needed", count) &&
        kr_require(ctx, y, KR_ERR_ARG, "backward: y is NULL");
    for (int i = 0; ok && i < count; i++) ok = check_seed(tape, i, y[i], g_y ? g_y[i] : NULL);
    if (!ok) return ctx->status;

    tape->recording = false;
    tape->in_backward = true;
    for (int i = 0; ok && i < count; i++) ok = seed(tape, y[i], g_y ? g_y[i] : NULL);
    kr_release_temporaries(tape);
    kr_fences_mark(tape);
    if (ok) kr_run_backward(tape, NULL);
    tape->in_backward = false;
    tape->recording = true;
    tape->done = true;
    return ctx->status;
}

kr_status kr_backward(kr_tape *tape, kr_tensor *loss)
{
    if (!tape) return KR_ERR_ARG;
    if (kr_tape_ready(tape, "backward") && loss &&
        !kr_require(tape->ctx, kr_count_of(loss) == 1, KR_ERR_SHAPE,
                    "backward: loss %s has %lld elements, but must have 1; sum it, or use kr_backward_from",
                    KR_TEXT_OF(loss), (long long)kr_count_of(loss)))
        return tape->ctx->status;
    return kr_backward_from(tape, 1, &loss, NULL);
}

/* ---- access for backward rules ---- */

/* The index-th of `count` tensors of the running rule; NULL with an error recorded for an index out of range. */
static kr_tensor *item(kr_back *back, const char *what, kr_tensor *const *list, int count, int index)
{
    if (!kr_require(back->ctx, index >= 0 && index < count, KR_ERR_ARG, "back: index %d of the %s, of which %s has %d",
                    index, what, back->node->rule->name, count))
        return NULL;
    return list[index];
}

kr_tape *kr_back_tape(kr_back *back)
{
    return back ? back->tape : NULL;
}

kr_tensor *kr_back_tensor(kr_back *back, kr_back_kind kind, int index)
{
    if (!back) return NULL;
    const kr_node *node = back->node;
    const kr_tensor *y;
    switch (kind) {
    case KR_BACK_IN: return item(back, "inputs", node->in, node->n_in, index);
    case KR_BACK_OUT: return item(back, "outputs", node->out, node->n_out, index);
    case KR_BACK_SAVED: return item(back, "saved tensors", node->saved, node->n_saved, index);
    case KR_BACK_GRAD: y = item(back, "outputs", node->out, node->n_out, index); return y ? y->grad : NULL;
    }
    kr_fail(back->ctx, KR_ERR_ARG, "back: kind = %d is not a kr_back_kind", (int)kind);
    return NULL;
}

const void *kr_back_attrs(kr_back *back)
{
    return back ? back->node->attrs : NULL;
}

bool kr_back_wants(kr_back *back, int in)
{
    const kr_tensor *x = kr_back_in(back, in);
    return x && x->flags.requires_grad;
}

void kr_back_accumulate(kr_back *back, int in, kr_tensor *g)
{
    if (!g || !kr_back_wants(back, in)) return;
    kr_tensor *x = back->node->in[in];
    const kr_shape want = kr_tensor_shape(x), got = kr_tensor_shape(g);
    if (kr_require(back->tape->ctx, kr_shape_equal(&want, &got) && g->dtype == kr_grad_dtype(x), KR_ERR_SHAPE,
                   "gradient of input %d is %s %s, but the input is %s %s", in, kr_dtype_name(g->dtype), KR_TEXT_OF(g),
                   kr_dtype_name(x->dtype), KR_TEXT_OF(x)))
        kr_grad_add(back->tape, x, g);
}

kr_tensor *kr_back_new(kr_back *back, int in)
{
    kr_tensor *x = back->node->in[in];
    bool is_new;
    if (kr_ctx_failed(back->tape->ctx) || !kr_back_wants(back, in) || !kr_grad_is_fixed(x)) return NULL;
    return x->grad && !x->flags.grad_is_zero ? NULL : kr_grad_into(back->tape, x, &is_new);
}

kr_tensor *kr_back_slab(kr_back *back, int in)
{
    if (kr_ctx_failed(back->tape->ctx) || !kr_back_wants(back, in)) return NULL;
    return kr_grad_in_slab(back->tape, back->node->in[in]);
}

bool kr_back_has_slab(kr_back *back, int in)
{
    return kr_back_wants(back, in) && kr_grad_has_slab(back->node->in[in]);
}

kr_tensor *kr_back_into(kr_back *back, int in, bool *is_new)
{
    bool unread;
    if (!is_new) is_new = &unread;
    *is_new = false;
    if (!back || kr_ctx_failed(back->tape->ctx) || !kr_back_wants(back, in)) return NULL;
    return kr_grad_into(back->tape, back->node->in[in], is_new);
}
