/* head.c - final norm and head of a step in one kernel, for an f32 stream on a device. */
#include "decode/plan.h"

#include "device/device.h"
#include "ops/ops_impl.h"

bool kr_decode_head_is_fused(const kr_network *net)
{
    const kr_head head = kr_network_head(net);
    return !kr_decode_device_fallback(net->ctx) && net->norm_f_d && net->norm_f_d->dtype == KR_DTYPE_F32 &&
           kr_decode_is_f32(head.bias_w) && KR_DECODE_TAKES(net->ctx, decode_linear_w, head.weight_wd);
}

kr_decode_linear_args kr_decode_head_args(const kr_network *net, const kr_tensor *x_bsd, const kr_tensor *y_bw)
{
    const kr_head head = kr_network_head(net);
    const kr_tensor *w = head.weight_wd;
    return (kr_decode_linear_args){ .nm = y_bw->dims[0],
                                    .nn = w->dims[0],
                                    .nk = w->dims[1],
                                    .ng = 1,
                                    .x = kr_operand_of(x_bsd),
                                    .w = kr_operand_of(w),
                                    .y = kr_operand_of(y_bw),
                                    .gain = net->norm_f_d->data,
                                    .bias = kr_tensor_data(head.bias_w),
                                    .has_norm = true,
                                    .eps = net->layers->norm.eps };
}
