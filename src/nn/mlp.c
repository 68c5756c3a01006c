/* mlp.c - the gated MLP: [v g] = x fc1^T + bias, y = (v silu(g)) fc2^T + bias.
 *
 *   fc1.weight [2 hidden, d], the rows of v first       fc2.weight [d, hidden]
 */
#include "nn/mlp.h"

#include "nn/block_impl.h"

int64_t kr_mlp_hidden(int64_t d_intermediate, int64_t multiple_of)
{
    if (d_intermediate < 1 || multiple_of < 1) return -1;
    const int64_t parts = d_intermediate / multiple_of + (d_intermediate % multiple_of != 0);
    return parts <= INT64_MAX / 2 / multiple_of ? parts * multiple_of : -1;
}

void kr_mlp_declare(kr_mlp *mlp, kr_params *params, kr_dtype dtype, int64_t d_model, int64_t hidden, bool has_bias)
{
    const kr_segment halves[] = { { "value", hidden, true }, { "gate", hidden, true } };
    const kr_segment out[] = { { "out", d_model, true } };
    *mlp = (kr_mlp){ .hidden = hidden };
    mlp->fc1 = kr_params_add_linear(params, &(kr_param_spec){ .name = "mlp.fc1.weight",
                                                              .axes = "vg d",
                                                              .dtype = dtype,
                                                              .shape = KR_SHAPE(2 * hidden, d_model),
                                                              .n_segments = 2,
                                                              .segments = halves });
    if (has_bias) mlp->fc1_bias = kr_params_add_bias(params, "mlp.fc1.bias", "vg", dtype, 2 * hidden, d_model);
    mlp->fc2 = kr_params_add_linear(params, &(kr_param_spec){ .name = "mlp.fc2.weight",
                                                              .axes = "d v",
                                                              .dtype = dtype,
                                                              .shape = KR_SHAPE(d_model, hidden),
                                                              .is_residual_out = true,
                                                              .n_segments = 1,
                                                              .segments = out });
    if (has_bias) mlp->fc2_bias = kr_params_add_bias(params, "mlp.fc2.bias", "d", dtype, d_model, hidden);
}

kr_tensor *kr_mlp_run(kr_tape *tape, const kr_mlp *mlp, kr_tensor *x)
{
    kr_tensor *part[2] = { NULL };
    kr_split(tape, kr_linear(tape, x, mlp->fc1, mlp->fc1_bias), -1, 2, (int64_t[]){ mlp->hidden, mlp->hidden }, part);
    return kr_linear(tape, kr_gate(tape, part[0], part[1]), mlp->fc2, mlp->fc2_bias);
}
