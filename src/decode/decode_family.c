/* decode_family.c - the families that have decode kernels, and the two projections that all of them share. */
#include "decode/decode_family.h"

#include "device/device.h"
#include "ops/ops_impl.h"

const kr_decode_family *kr_decode_family_of(const kr_block_kind *kind)
{
    static const kr_decode_family *const families[] = { &kr_mamba1_decode, &kr_mamba2_decode, &kr_mamba3_decode };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (families[i]->kind == kind) return families[i];
    return NULL;
}

kr_tensor *kr_decode_buffer(kr_tape *tape, kr_tensor **buffer, kr_dtype dtype, int64_t nb, int64_t columns)
{
    kr_tensor *x = *buffer;
    if (!x || x->dtype != dtype || x->dims[0] != nb || x->dims[1] != columns)
        *buffer = kr_new(tape, dtype, KR_SHAPE(nb, columns));
    return *buffer;
}

kr_decode_linear_args kr_decode_in_proj(const kr_decode_request *r, const kr_tensor *w, const kr_tensor *bias,
                                        const kr_tensor *row_bo)
{
    return (kr_decode_linear_args){ .nm = r->nb,
                                    .nn = w->dims[0],
                                    .nk = w->dims[1],
                                    .ng = 1,
                                    .x = kr_operand_of(r->x_bsd),
                                    .w = kr_operand_of(w),
                                    .y = kr_operand_of(row_bo),
                                    .gain = r->norm_d->data,
                                    .bias = kr_tensor_data(bias),
                                    .has_norm = true,
                                    .eps = r->norm->eps };
}

kr_decode_linear_args kr_decode_out_proj(const kr_decode_request *r, const kr_tensor *in_bi, const kr_tensor *w,
                                         const kr_tensor *bias)
{
    return (kr_decode_linear_args){ .nm = r->nb,
                                    .nn = w->dims[0],
                                    .nk = w->dims[1],
                                    .ng = 1,
                                    .x = kr_operand_of(in_bi),
                                    .w = kr_operand_of(w),
                                    .base = kr_operand_of(r->x_bsd),
                                    .y = kr_operand_of(r->y_bsd),
                                    .bias = kr_tensor_data(bias) };
}
