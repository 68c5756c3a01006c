/* binary.c - elementwise functions of two operands, with broadcasting.
 *
 *   add: g_a = g, g_b = g            mul: g_a = g b, g_b = g a
 *   sub: g_a = g, g_b = -g           div: g_a = g / b, g_b = -g y / b
 *   maximum, minimum: g to the larger or smaller, halved where equal
 *   pow: g_a = g b a^(b-1), g_b = g y ln a
 * A broadcast operand's gradient is summed over the repeated axes.
 */
#include "ops/ops_impl.h"

typedef struct binary_op {
    kr_rule rule;
    bool (*run)(kr_ctx *ctx, int real, kr_binary_args *args);
} binary_op;

#define KR_BINARY(fn)                                                                                                  \
    static bool fn##_run(kr_ctx *ctx, int real, kr_binary_args *args)                                                  \
    {                                                                                                                  \
        return KR_RUN(ctx, fn[real], args);                                                                            \
    }
#include "kernels/binary.def"
#undef KR_BINARY

/* Adds g, which has the output's shape, to the gradient of input i. */
static void accumulate_summed(kr_back *back, int i, kr_tensor *g)
{
    kr_back_accumulate(back, i, kr_sum_to(kr_back_tape(back), g, kr_tensor_shape(kr_back_in(back, i))));
}

static void add_backward(kr_back *back)
{
    kr_tensor *g = kr_back_grad(back, 0);
    if (kr_back_wants(back, 0)) accumulate_summed(back, 0, g);
    if (kr_back_wants(back, 1)) accumulate_summed(back, 1, g);
}

static void sub_backward(kr_back *back)
{
    kr_tensor *g = kr_back_grad(back, 0);
    if (kr_back_wants(back, 0)) accumulate_summed(back, 0, g);
    if (kr_back_wants(back, 1)) accumulate_summed(back, 1, kr_neg(kr_back_tape(back), g));
}

static void mul_backward(kr_back *back)
{
    kr_tensor *g = kr_back_grad(back, 0);
    if (kr_back_wants(back, 0)) accumulate_summed(back, 0, kr_mul(kr_back_tape(back), g, kr_back_in(back, 1)));
    if (kr_back_wants(back, 1)) accumulate_summed(back, 1, kr_mul(kr_back_tape(back), g, kr_back_in(back, 0)));
}

static void div_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_tensor *over_b = kr_div(tape, kr_back_grad(back, 0), kr_back_in(back, 1));
    if (kr_back_wants(back, 0)) accumulate_summed(back, 0, over_b);
    if (kr_back_wants(back, 1)) accumulate_summed(back, 1, kr_neg(tape, kr_mul(tape, over_b, kr_back_out(back, 0))));
}

typedef bool bwd_fn(kr_ctx *ctx, int real, kr_binary_bwd_args *args);

/* The gradient of input i by a kernel that sees both inputs. */
static void accumulate_by_kernel(kr_back *back, int i, bwd_fn *run)
{
    if (!kr_back_wants(back, i)) return;
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *a = kr_back_in(back, 0), *b = kr_back_in(back, 1), *g = kr_back_grad(back, 0);
    const kr_shape shape = kr_tensor_shape(g);
    kr_tensor *y = kr_new(tape, g->dtype, shape);
    if (!y) return;
    kr_binary_bwd_args args = { .walk = kr_walk_over(&shape, 4, (const kr_tensor *[]){ y, a, b, g }),
                                .a = a->data,
                                .b = b->data,
                                .g = g->data,
                                .y = y->data,
                                .of_b = i == 1 };
    if (run(tape->ctx, kr_real_of(g->dtype), &args)) accumulate_summed(back, i, y);
}

#define BACKWARD_BY_KERNEL(fn)                                                                                         \
    static bool fn##_bwd_run(kr_ctx *ctx, int real, kr_binary_bwd_args *args)                                          \
    {                                                                                                                  \
        return KR_RUN(ctx, fn##_bwd[real], args);                                                                      \
    }                                                                                                                  \
    static void fn##_backward(kr_back *back)                                                                           \
    {                                                                                                                  \
        accumulate_by_kernel(back, 0, fn##_bwd_run);                                                                   \
        accumulate_by_kernel(back, 1, fn##_bwd_run);                                                                   \
    }
BACKWARD_BY_KERNEL(maximum)
BACKWARD_BY_KERNEL(minimum)
BACKWARD_BY_KERNEL(pow)

static kr_tensor *binary(kr_tape *tape, const binary_op *op, kr_tensor *a, kr_tensor *b)
{
    kr_dims d;
    kr_dtype result;
    const char *name = op->rule.name;
    /* no contract ties a to b: broadcasting does */
    if (!kr_bind(tape, name, &d, "a:..", a) || !kr_bind(tape, name, &d, "b:..", b)) return NULL;
    if (!KR_REALS(tape, name, "a b", &result, &a, &b)) return NULL;
    const kr_shape a_shape = kr_tensor_shape(a), b_shape = kr_tensor_shape(b);
    kr_shape shape;
    if (!kr_broadcast(tape, name, "a", &a_shape, "b", &b_shape, &shape)) return NULL;
    kr_tensor *y = kr_new(tape, a->dtype, shape);
    if (!y) return NULL;
    kr_binary_args args = {
        .walk = kr_walk_over(&shape, 3, (const kr_tensor *[]){ y, a, b }), .a = a->data, .b = b->data, .y = y->data
    };
    if (!op->run(tape->ctx, kr_real_of(y->dtype), &args)) return NULL;
    return kr_store_as(tape, kr_recorded(tape, &op->rule, y, NULL, 0, KR_LIST(a, b)), result);
}

#define KR_BINARY(fn) static const binary_op fn##_op = { { .name = #fn, .backward = fn##_backward }, fn##_run };
#include "kernels/binary.def"
#undef KR_BINARY

kr_tensor *kr_binary(kr_tape *tape, kr_binary_kind kind, kr_tensor *a, kr_tensor *b)
{
    static const binary_op *const ops[] = {
        [KR_BINARY_ADD] = &add_op, [KR_BINARY_SUB] = &sub_op,         [KR_BINARY_MUL] = &mul_op,
        [KR_BINARY_DIV] = &div_op, [KR_BINARY_MAXIMUM] = &maximum_op, [KR_BINARY_MINIMUM] = &minimum_op,
        [KR_BINARY_POW] = &pow_op
    };
    if ((size_t)kind < sizeof ops / sizeof *ops) return binary(tape, ops[kind], a, b);
    if (tape) kr_fail(tape->ctx, KR_ERR_ARG, "binary: %d is not a kr_binary_kind", (int)kind);
    return NULL;
}
