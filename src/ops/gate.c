/* gate.c - the gate of the blocks: y = x silu(z), elementwise.
 *
 *   x, z, y [..];  g_x = g_y silu(z), g_z = g_y x silu'(z)
 * x and z are often parts of one projection, so that their rows are strided; they are read in place, and their
 * gradients are written in place. An activation x in bf16 (ops/autocast.h) is read as such.
 */
#include "ops/ops_impl.h"

static void accumulate_gradients(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *in_x = kr_back_in(back, 0);
    const kr_rows x = kr_rows_of(tape, KR_AS_TAKEN(tape, gate_bwd_x, kr_back_in(back, 0)));
    const kr_rows g_y = kr_rows_of(tape, KR_AS_TAKEN(tape, gate_bwd_g_y, kr_back_grad(back, 0)));
    kr_tensor *g[2] = { NULL, NULL };
    kr_tensor *const slab[2] = { KR_BACK_SLAB(back, 0, gate_bwd_g_x), KR_BACK_SLAB(back, 1, gate_bwd_g_z) };
    const kr_dtype dtype = kr_grad_dtype(in_x);
    for (int i = 0; i < 2; i++)
        if (kr_back_wants(back, i) && !slab[i]) g[i] = kr_new(tape, dtype, kr_tensor_shape(in_x));
    if (!x.x || !g_y.x || kr_ctx_failed(tape->ctx)) return;
    kr_gate_bwd_args args = { .no = x.no,
                              .ni = x.ni,
                              .x = kr_operand_of(x.x),
                              .z = kr_operand_of(kr_back_in(back, 1)),
                              .g_y = kr_operand_of(g_y.x),
                              .g_x = kr_operand_of(slab[0] ? slab[0] : g[0]),
                              .g_z = kr_operand_of(slab[1] ? slab[1] : g[1]) };
    if (!KR_RUN(tape->ctx, gate_bwd[kr_real_of(dtype)], &args)) return;
    for (int i = 0; i < 2; i++) kr_back_accumulate(back, i, g[i]);
}

static void gate_backward(kr_back *back)
{
    accumulate_gradients(back);
    kr_slab_release(kr_back_tape(back), kr_slab_of(kr_back_out(back, 0)));
}

static const kr_rule gate_rule = { .name = "gate", .backward = gate_backward };

/* as_operand: bf16 if matrix products would round it. */
static kr_tensor *gate(kr_tape *tape, kr_tensor *x, kr_tensor *z, bool as_operand)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "gate", &d, "x:.. z:..", x, z) ||
        !KR_REALS_KEPT(tape, "gate", "x z", &result, KR_KEEPS_ACTIVATION(tape, gate_x, x), &x, &z))
        return NULL;
    const kr_dtype dtype = kr_grad_dtype(x);
    const kr_rows x_rows = kr_rows_of(tape, x), z_rows = kr_rows_of(tape, z);
    const bool rounds =
        as_operand && kr_autocasts_product(tape->ctx, dtype, x_rows.no) && kr_accepts(tape->ctx, gate_y, KR_DTYPE_BF16);
    kr_tensor *y = kr_new_activation(tape, dtype, rounds, kr_tensor_shape(x));
    if (!x_rows.x || !z_rows.x || !y || (rounds && !kr_slab_create_own(tape, y))) return NULL;
    kr_gate_args args = { .no = x_rows.no,
                          .ni = x_rows.ni,
                          .x = kr_operand_of(x_rows.x),
                          .z = kr_operand_of(z_rows.x),
                          .y = kr_operand_of(y) };
    if (!KR_RUN(tape->ctx, gate[kr_real_of(dtype)], &args)) return NULL;
    y = kr_recorded(tape, &gate_rule, y, NULL, 0, KR_LIST(x_rows.x, z_rows.x));
    return rounds ? y : kr_store_as(tape, y, result);
}

kr_tensor *kr_gate(kr_tape *tape, kr_tensor *x, kr_tensor *z)
{
    return gate(tape, x, z, false);
}

kr_tensor *kr_gate_operand(kr_tape *tape, kr_tensor *x, kr_tensor *z)
{
    return gate(tape, x, z, true);
}
