/* gate.c - the gate of the blocks: y = x silu(z), elementwise.
 *
 *   x, z, y [..];  g_x = g_y silu(z), g_z = g_y x silu'(z)
 * x and z are often parts of one projection, so that their rows are strided; they are read in place, and their
 * gradients are written in place. An x in bf16 (autocast) is read as such.
 */
#include "ops/ops_impl.h"

static void accumulate_gradients(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_rows x = kr_rows_of(tape, kr_back_in(back, 0)), z = kr_rows_of(tape, kr_back_in(back, 1));
    kr_rows g_y = kr_rows_of(tape, kr_back_grad(back, 0));
    kr_tensor *g[2] = { NULL, NULL }, *slab[2];
    const kr_dtype dtype = kr_grad_dtype(x.x);
    for (int i = 0; i < 2; i++) {
        slab[i] = kr_back_slab(back, i);
        if (kr_back_wants(back, i) && !slab[i]) g[i] = kr_new(tape, dtype, kr_tensor_shape(x.x));
    }
    if (kr_ctx_failed(tape->ctx)) return;
    kr_gate_bwd_args args = { .no = x.no,
                              .ni = x.ni,
                              .x_stride = x.stride,
                              .z_stride = z.stride,
                              .g_y_stride = g_y.stride,
                              .x = x.x->data,
                              .z = z.x->data,
                              .g_y = g_y.x->data,
                              .g_x = kr_tensor_data(slab[0] ? slab[0] : g[0]),
                              .g_z = kr_tensor_data(slab[1] ? slab[1] : g[1]),
                              .x_dtype = kr_storage_dtype_of(x.x->dtype),
                              .g_y_dtype = kr_storage_dtype_of(g_y.x->dtype),
                              .g_x_rows = kr_slab_operand(tape, slab[0]),
                              .g_z_rows = kr_slab_operand(tape, slab[1]) };
    if (!KR_RUN(tape->ctx, gate_bwd[kr_real_of(dtype)], &args)) return;
    for (int i = 0; i < 2; i++) kr_back_accumulate(back, i, g[i]);
}

static void gate_backward(kr_back *back)
{
    accumulate_gradients(back);
    kr_slab_release(kr_back_tape(back), kr_slab_of(kr_back_out(back, 0)));
}

static const kr_rule gate_rule = { .name = "gate", .backward = gate_backward };

/* as_operand: bf16 if matrix products would cast it. */
static kr_tensor *gate(kr_tape *tape, kr_tensor *x, kr_tensor *z, bool as_operand)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "gate", &d, "x:.. z:..", x, z) || !KR_REALS_AUTOCAST(tape, "gate", "x z", &result, &x, &z))
        return NULL;
    const kr_dtype dtype = kr_grad_dtype(x);
    const kr_rows x_rows = kr_rows_of(tape, x), z_rows = kr_rows_of(tape, z);
    const bool is_autocast = as_operand && kr_autocasts_product(tape->ctx, dtype, x_rows.no);
    kr_tensor *y = kr_new(tape, is_autocast ? KR_DTYPE_BF16 : dtype, kr_tensor_shape(x));
    if (!x_rows.x || !z_rows.x || !y || (is_autocast && !kr_slab_create_own(tape, y))) return NULL;
    y->flags.grad_f32 = is_autocast;
    kr_gate_args args = { .no = x_rows.no,
                          .ni = x_rows.ni,
                          .x_stride = x_rows.stride,
                          .z_stride = z_rows.stride,
                          .x = x_rows.x->data,
                          .z = z_rows.x->data,
                          .y = y->data,
                          .x_dtype = kr_storage_dtype_of(x->dtype),
                          .y_dtype = is_autocast ? KR_STORAGE_BF16 : KR_STORAGE_NATIVE };
    if (!KR_RUN(tape->ctx, gate[kr_real_of(dtype)], &args)) return NULL;
    y = kr_recorded(tape, &gate_rule, y, NULL, 0, KR_LIST(x_rows.x, z_rows.x));
    return is_autocast ? y : kr_store_as(tape, y, result);
}

kr_tensor *kr_gate(kr_tape *tape, kr_tensor *x, kr_tensor *z)
{
    return gate(tape, x, z, false);
}

kr_tensor *kr_gate_operand(kr_tape *tape, kr_tensor *x, kr_tensor *z)
{
    return gate(tape, x, z, true);
}
