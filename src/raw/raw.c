/* raw.c - the public functions of raw.h: from views to one call of an op's function. */
#include "raw/raw_impl.h"

#include <math.h>
#include <string.h>

KR_DEFAULTS(kr_raw_options) = { .size = sizeof(kr_raw_options),
                                .n_groups = 1,
                                .eps = 1e-5,
                                .range = 1,
                                .a_floor = 1e-4,
                                .dt_max = (double)INFINITY,
                                .precision = KR_PRECISION_UNSET };

static const raw_about *const ops[] = { [KR_RAW_SSD] = &raw_ssd,
                                        [KR_RAW_SSD_BACKWARD] = &raw_ssd_backward,
                                        [KR_RAW_SCAN] = &raw_scan,
                                        [KR_RAW_SCAN_BACKWARD] = &raw_scan_backward,
                                        [KR_RAW_CONV] = &raw_conv,
                                        [KR_RAW_CONV_BACKWARD] = &raw_conv_backward,
                                        [KR_RAW_NORM] = &raw_norm,
                                        [KR_RAW_NORM_BACKWARD] = &raw_norm_backward,
                                        [KR_RAW_LAYER_NORM] = &raw_layer_norm,
                                        [KR_RAW_LAYER_NORM_BACKWARD] = &raw_layer_norm_backward,
                                        [KR_RAW_GATE] = &raw_gate,
                                        [KR_RAW_GATE_BACKWARD] = &raw_gate_backward,
                                        [KR_RAW_TRAPEZOID] = &raw_trapezoid,
                                        [KR_RAW_TRAPEZOID_BACKWARD] = &raw_trapezoid_backward,
                                        [KR_RAW_ANGLES] = &raw_angles,
                                        [KR_RAW_ANGLES_BACKWARD] = &raw_angles_backward,
                                        [KR_RAW_ROTATE] = &raw_rotate,
                                        [KR_RAW_ROTATE_BACKWARD] = &raw_rotate_backward,
                                        [KR_RAW_QUATERNION_EXP] = &raw_quaternion_exp,
                                        [KR_RAW_QUATERNION_EXP_BACKWARD] = &raw_quaternion_exp_backward,
                                        [KR_RAW_QUATERNION_SCAN] = &raw_quaternion_scan,
                                        [KR_RAW_QUATERNION_SCAN_BACKWARD] = &raw_quaternion_scan_backward,
                                        [KR_RAW_QUATERNION_ROTATE] = &raw_quaternion_rotate,
                                        [KR_RAW_QUATERNION_ROTATE_BACKWARD] = &raw_quaternion_rotate_backward,
                                        [KR_RAW_MATMUL] = &raw_matmul,
                                        [KR_RAW_SSD_ROTARY] = &raw_ssd_rotary,
                                        [KR_RAW_SSD_ROTARY_BACKWARD] = &raw_ssd_rotary_backward };

static const raw_about *about(kr_raw_op op)
{
    const size_t index = (size_t)op;
    return index < sizeof ops / sizeof *ops ? ops[index] : NULL;
}

const char *kr_raw_signature(kr_raw_op op)
{
    const raw_about *a = about(op);
    return a ? a->signature : NULL;
}

/* ---- work memory ---- */

static size_t rounded(size_t bytes)
{
    return (bytes + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN;
}

void *raw_take(raw_call *call, size_t bytes)
{
    static char nowhere;
    const size_t at = call->scratch_bytes + call->taken;
    call->taken += rounded(bytes);
    return call->measures ? &nowhere : call->work + at;
}

void raw_take_tensor(raw_call *call, kr_tensor *x, kr_shape shape)
{
    *x = (kr_tensor){ .ctx = call->ctx };
    kr_tensor_layout(x, call->dtype, &shape);
    x->data = raw_take(call, kr_dtype_span(call->dtype, kr_count_of(x)));
}

void *raw_result(raw_call *call, int i, int64_t count)
{
    return call->x[i] ? call->x[i]->data : raw_take(call, kr_dtype_span(call->dtype, count));
}

void *raw_gradient(raw_call *call, int i, int64_t count)
{
    if (call->x[i]) return call->x[i]->data;
    const size_t bytes = kr_dtype_span(call->dtype, count);
    void *zeros = raw_take(call, bytes);
    if (!call->measures) kr_zero_floats(call->ctx, zeros, bytes);
    return zeros;
}

void *raw_state(raw_call *call, int result, int operand, int64_t count)
{
    kr_tensor *const *x = call->x;
    if (x[result] && !x[operand]) return x[result]->data;
    void *own = raw_take(call, kr_dtype_span(call->dtype, count)); /* whatever the addresses are */
    return x[result] && x[result]->data != x[operand]->data ? x[result]->data : own;
}

bool raw_store(raw_call *call, int result, int operand, const void *state)
{
    const kr_tensor *x = call->x[result];
    if (call->measures || !x || !call->x[operand] || x->data == state) return true;
    return kr_copy_floats(call->ctx, x->data, state, kr_dtype_span(call->dtype, kr_count_of(x)));
}

bool raw_measure(raw_call *call, size_t scratch_bytes)
{
    const size_t bytes = rounded(scratch_bytes);
    if (bytes > call->scratch_bytes) call->scratch_bytes = bytes;
    return true;
}

/* ---- calls ---- */

static bool begin(raw_call *call, kr_ctx *ctx, kr_raw_op op, int n_views, const kr_view *views,
                  const kr_raw_options *given)
{
    call->ctx = ctx;
    call->about = about(op);
    if (!kr_require(ctx, call->about != NULL, KR_ERR_ARG, "raw: %d is not a kr_raw_op", (int)op)) return false;
    call->op = call->about->op;
    return kr_require(ctx, n_views == call->about->n_views, KR_ERR_ARG, "%s: %d views, but it takes %d: %s", call->op,
                      n_views, call->about->n_views, call->about->signature) &&
           kr_require(ctx, views != NULL, KR_ERR_ARG, "%s: views is NULL", call->op) && raw_bind(call, views, given);
}

/* The bytes of work memory. False after an error. */
static bool measure(raw_call *call, size_t *bytes)
{
    call->measures = true;
    call->scratch_bytes = call->taken = 0;
    if (!call->about->run(call)) return false;
    *bytes = call->scratch_bytes + call->taken;
    call->measures = false;
    call->taken = 0;
    return true;
}

size_t kr_raw_work(kr_ctx *ctx, kr_raw_op op, int n_views, const kr_view *views, const kr_raw_options *options)
{
    raw_call call;
    size_t bytes = 0;
    if (kr_ctx_failed(ctx) || !begin(&call, ctx, op, n_views, views, options)) return 0;
    const kr_precision before = kr_precision_begin(ctx, call.o.precision);
    if (!measure(&call, &bytes)) bytes = 0;
    kr_precision_end(ctx, before);
    return bytes;
}

/* The caller's work memory. */
static bool take_work(raw_call *call, size_t bytes)
{
    kr_ctx *ctx = call->ctx;
    call->work = call->o.work;
    return kr_require(ctx, call->o.work_bytes >= bytes, KR_ERR_ARG,
                      "%s: work has %zu bytes, but the call needs %zu; kr_raw_work tells how many", call->op,
                      call->o.work_bytes, bytes) &&
           kr_require(ctx, (uintptr_t)call->work % KR_ALIGN == 0, KR_ERR_ARG,
                      "%s: the address of work is not a multiple of %d", call->op, (int)KR_ALIGN) &&
           kr_require(ctx, bytes == 0 || !kr_ctx_on_device(ctx) || kr_on_device(ctx, call->work), KR_ERR_ARG,
                      "%s: work is not in the memory of %s", call->op, kr_ctx_device(ctx));
}

static bool compute(raw_call *call)
{
    size_t bytes;
    if (!measure(call, &bytes)) return false;
    if (call->o.work) return take_work(call, bytes) && call->about->run(call);
    kr_exec exec;
    if (!kr_exec_begin(call->ctx, &exec, bytes)) return false;
    call->work = exec.scratch;
    const bool ok = call->about->run(call);
    kr_arena_reset(kr_ctx_on_device(call->ctx) ? &call->ctx->device->scratch : &call->ctx->scratch);
    return ok;
}

kr_status kr_raw_run(kr_ctx *ctx, kr_raw_op op, int n_views, const kr_view *views, const kr_raw_options *options)
{
    raw_call call;
    if (kr_ctx_failed(ctx) || !begin(&call, ctx, op, n_views, views, options) || !raw_check_memory(&call))
        return kr_ctx_status(ctx);
    ctx->device->op = ctx->device->last_op = call.op;
    const kr_precision before = kr_precision_begin(ctx, call.o.precision);
    compute(&call);
    kr_precision_end(ctx, before);
    ctx->device->op = NULL;
    return kr_ctx_status(ctx);
}
