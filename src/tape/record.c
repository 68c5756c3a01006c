/* record.c - recording of ops as nodes of the tape, and the leaves of the graph. */
#include "base/sized.h"
#include "device/device.h"
#include "device/walk.h"
#include "tape/tape_impl.h"

#include <stdio.h>
#include <string.h>

/* Row-major index of the first element that violates the rule, and its value; -1 if there is none. */
static int64_t first_bad(kr_ctx *ctx, const kr_rule *rule, const kr_tensor *y, double *value)
{
    const int64_t count = kr_count_of(y), bytes = (int64_t)kr_dtype_bytes(y->dtype);
    for (int64_t from = 0; from < count;) {
        int64_t first;
        if (!kr_find_not_finite(ctx, y->dtype, y->data + from * bytes, count - from, &first) || first < 0) return -1;
        from += first;
        kr_tensor one = *y;
        one.rank = 0;
        one.data = y->data + from * bytes;
        *value = kr_item(&one);
        if (!rule->allow_infinity || *value != *value) return from;
        from++;
    }
    return -1;
}

static bool check_finite(kr_ctx *ctx, const kr_rule *rule, int n, const kr_tensor *y)
{
    if (!kr_dtype_is_float(y->dtype) || !kr_tensor_is_row_major(y)) return true;
    double value;
    const int64_t bad = first_bad(ctx, rule, y, &value);
    if (bad < 0) return !kr_ctx_failed(ctx);
    char text[KR_SHAPE_TEXT_BYTES];
    return kr_fail(ctx, KR_ERR_NUMERIC, "%s: output %d %s holds %g at %s", rule->name, n, KR_TEXT_OF(y), value,
                   kr_index_text(y, bad, text, sizeof text));
}

static kr_tensor **copy_list(kr_tensor **to, kr_tensor *const *from, int count)
{
    if (count > 0) memcpy(to, from, (size_t)count * sizeof *from);
    return to;
}

static bool append(kr_tape *tape, const kr_record_args *args)
{
    const size_t ntensors = (size_t)(args->n_in + args->n_out + args->n_saved);
    kr_node *node = kr_arena_alloc(&tape->heads, sizeof *node);
    kr_tensor **list = kr_arena_alloc(&tape->heads, ntensors * sizeof *list);
    void *attrs = args->attrs_bytes ? kr_arena_alloc(&tape->heads, args->attrs_bytes) : NULL;
    if (!node || !list || (args->attrs_bytes && !attrs))
        return kr_fail(tape->ctx, KR_ERR_NOMEM, "%s: no memory to record the op", args->rule->name);
    if (attrs) memcpy(attrs, args->attrs, args->attrs_bytes);
    *node = (kr_node){ .rule = args->rule,
                       .prev = tape->last,
                       .n_in = args->n_in,
                       .n_out = args->n_out,
                       .n_saved = args->n_saved,
                       .attrs = attrs,
                       .precision = tape->ctx->device->precision,
                       .nwrites = tape->replayed ? tape->replayed->nwrites : tape->ctx->nwrites };
    node->in = copy_list(list, args->in, args->n_in);
    node->out = copy_list(list + args->n_in, args->out, args->n_out);
    node->saved = copy_list(list + args->n_in + args->n_out, args->saved, args->n_saved);
    for (int i = 0; i < args->n_out; i++) {
        node->out[i]->node = node;
        node->out[i]->flags.requires_grad = kr_dtype_is_float(node->out[i]->dtype);
    }
    if (!tape->last) tape->ctx->nrecorded++;
    tape->last = node;
    tape->nnodes++;
    return true;
}

static bool check_operands(kr_tape *tape, const kr_record_args *args)
{
    kr_ctx *ctx = tape->ctx;
    const char *op = args->rule->name;
    for (int i = 0; i < args->n_in; i++) {
        const kr_tensor *x = args->in[i];
        if (x && (x->ctx != ctx || (x->tape && x->tape != tape)))
            return kr_fail(ctx, KR_ERR_STATE, "%s: input %d %s to record belongs to another tape or context", op, i,
                           KR_TEXT_OF(x));
    }
    for (int i = 0; i < args->n_out; i++) {
        const kr_tensor *y = args->out[i];
        if (!y) return kr_fail(ctx, KR_ERR_ARG, "%s: output %d to record is NULL", op, i);
        if (y->tape != tape || y->node || y->flags.requires_grad)
            return kr_fail(ctx, KR_ERR_ARG, "%s: output %d %s to record is not a new tensor of this tape", op, i,
                           KR_TEXT_OF(y));
    }
    return true;
}

bool kr_record_node(kr_tape *tape, const kr_record_args *args, bool force)
{
    if (!kr_tape_ready(tape, args->rule->name)) return false;
    if (!check_operands(tape, args)) return false;
    for (int i = 0; i < args->n_in; i++)
        if (!kr_list_read(tape, args->in[i])) return false;
    if (tape->ctx->check_finite)
        for (int i = 0; i < args->n_out; i++)
            if (!check_finite(tape->ctx, args->rule, i, args->out[i])) return false;
    bool wanted = force;
    for (int i = 0; i < args->n_in; i++) wanted = wanted || (args->in[i] && args->in[i]->flags.requires_grad);
    tape->saw_grad = tape->saw_grad || wanted;
    const bool is_recorded = !wanted || !tape->recording || append(tape, args);
    tape->ctx->device->op = NULL;
    return is_recorded;
}

bool kr_record_always(kr_tape *tape, const kr_record_args *args)
{
    const kr_node *before = tape->last;
    if (!kr_record_node(tape, args, true)) return false;
    if (tape->last != before) tape->last->runs_always = true;
    return true;
}

static bool check_lists(kr_ctx *ctx, const kr_record_args *args)
{
    const bool ok = args->n_in >= 0 && args->n_out >= 0 && args->n_saved >= 0 && (args->in || args->n_in == 0) &&
                    (args->out || args->n_out == 0) && (args->saved || args->n_saved == 0) &&
                    (args->attrs || args->attrs_bytes == 0);
    return kr_require(ctx, ok, KR_ERR_ARG, "%s: a list to record is NULL or its count negative", args->rule->name);
}

kr_status kr_record(kr_tape *tape, const kr_record_args *args)
{
    if (!tape) return KR_ERR_ARG;
    if (!kr_tape_ready(tape, "record") ||
        !kr_require(tape->ctx, args && args->rule && args->rule->name && args->rule->backward, KR_ERR_ARG,
                    "record: %s is NULL",
                    !args         ? "args"
                    : !args->rule ? "args.rule"
                                  : "the rule's name or backward"))
        return tape->ctx->status;
    const bool ok = kr_tape_ready(tape, args->rule->name) && check_lists(tape->ctx, args) &&
                    KR_RESERVED(tape->ctx, args->rule->name, "kr_record_args", args) &&
                    KR_RESERVED(tape->ctx, args->rule->name, "kr_rule", args->rule) &&
                    kr_record_node(tape, args, false);
    return ok ? KR_OK : tape->ctx->status;
}

kr_tensor *kr_detach(kr_tape *tape, kr_tensor *x)
{
    if (!kr_bind_any(tape, "detach", x)) return NULL;
    const kr_shape shape = kr_tensor_shape(x);
    return kr_view_of(tape, x, &shape, x->strides, 0);
}

kr_tensor *kr_input(kr_tape *tape, kr_tensor *x)
{
    if (!kr_bind_any(tape, "input", x)) return NULL;
    if (!kr_require(tape->ctx, kr_dtype_is_float(x->dtype), KR_ERR_DTYPE,
                    "input: x is %s, but only floats have gradients", kr_dtype_name(x->dtype)))
        return NULL;
    kr_tensor *y = kr_new(tape, x->dtype, kr_tensor_shape(x));
    if (!y || !kr_assign(tape->ctx, y, x)) return NULL;
    y->flags.requires_grad = tape->recording;
    return y;
}

kr_tensor *kr_retain_grad(kr_tensor *x)
{
    if (x) x->flags.retain_grad = true;
    return x;
}

kr_tensor *kr_grad(const kr_tensor *x)
{
    return x ? x->grad : NULL;
}
