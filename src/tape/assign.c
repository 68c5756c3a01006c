/* assign.c - moving values between tensors of one shape. */
#include "device/device.h"
#include "device/walk.h"
#include "tape/tape_impl.h"

/* On a device the host moves integers: they are not moved afterwards, and kernels only read them. */
bool kr_assign(kr_ctx *ctx, kr_tensor *y, const kr_tensor *x)
{
    kr_copy_args args = kr_copy_of(y, x);
    if (kr_ctx_on_device(ctx) && !kr_dtype_is_float(y->dtype)) {
        if (!kr_dtype_is_float(x->dtype)) {
            if (kr_integers_ready(ctx)) ctx->device->host->copy.run(&args);
            return !kr_ctx_failed(ctx);
        }
        ctx->device->wrote_integers = true;
    }
    return KR_RUN(ctx, copy, &args);
}

bool kr_assign_value(kr_ctx *ctx, kr_tensor *y, double value)
{
    kr_fill_args args = { .walk = kr_walk_self(y), .dtype = y->dtype, .y = y->data, .value = value };
    if (kr_ctx_on_device(ctx) && !kr_dtype_is_float(y->dtype)) {
        ctx->device->host->fill.run(&args);
        return true;
    }
    return KR_RUN(ctx, fill, &args);
}

static bool sum_reals(kr_ctx *ctx, kr_tensor *y, const kr_tensor *x)
{
    const kr_shape shape = kr_tensor_shape(y);
    kr_binary_args args = {
        .walk = kr_walk_over(&shape, 3, (const kr_tensor *[]){ y, y, x }), .a = y->data, .b = x->data, .y = y->data
    };
    return KR_RUN(ctx, add[kr_real_of(y->dtype)], &args);
}

bool kr_assign_sum(kr_ctx *ctx, kr_tensor *y, const kr_tensor *x)
{
    if (!kr_dtype_is_16bit(y->dtype)) return sum_reals(ctx, y, x);
    /* 16-bit types are summed in f32 and rounded once */
    kr_tape *tape = y->tape ? y->tape : x->tape;
    kr_tensor *a = kr_new(tape, KR_DTYPE_F32, kr_tensor_shape(y)), *b = kr_new(tape, KR_DTYPE_F32, kr_tensor_shape(y));
    return a && b && kr_assign(ctx, a, y) && kr_assign(ctx, b, x) && sum_reals(ctx, a, b) && kr_assign(ctx, y, a);
}
