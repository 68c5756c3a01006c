/* transfer.c - copies the elements of tensors from and to the caller's memory.
 *
 * Device data goes through the host stage, block by block, in its own type and row-major; the host converts. Elements that
 * are contiguous on both sides, of one type, are copied at once.
 */
#include "device/device.h"
#include "device/walk.h"
#include "tensor/tensor_impl.h"

#include <math.h>
#include <string.h>

/* y = x on the host. Without the context's pool and scratch: reading is allowed after an error, too. */
static void copy_on_host(const kr_tensor *y, const kr_tensor *x)
{
    const kr_copy_args args = kr_copy_of(y, x);
    x->ctx->device->host->copy.run(&args);
}

/* A row-major tensor of x's shape at `data`. */
static kr_tensor laid_out(const kr_tensor *x, kr_dtype dtype, void *data)
{
    const kr_shape shape = kr_tensor_shape(x);
    kr_tensor y = { .ctx = x->ctx, .data = data };
    kr_tensor_layout(&y, dtype, &shape);
    return y;
}

static size_t bytes_of(const kr_tensor *x)
{
    return kr_dtype_span(x->dtype, kr_count_of(x));
}

/* Splits x, larger than a block, in two along its first axis that can be; the elements of the second half follow those of
 * the first. */
static void halve(const kr_tensor *x, kr_tensor *first, kr_tensor *second)
{
    int axis = 0;
    while (x->dims[axis] == 1) axis++;
    *first = *second = *x;
    first->dims[axis] = x->dims[axis] / 2;
    second->dims[axis] = x->dims[axis] - first->dims[axis];
    second->data += kr_dtype_offset(x->dtype, first->dims[axis] * x->strides[axis]);
}

kr_tensor_info kr_tensor_info_of(const kr_tensor *x)
{
    kr_tensor_info info = { .is_host = true };
    if (!x) return info;
    memcpy(info.strides, x->strides, (size_t)x->rank * sizeof *x->strides);
    info.is_contiguous = kr_tensor_is_row_major(x);
    info.is_host = !kr_on_device(x->ctx, x->data);
    info.requires_grad = x->flags.requires_grad;
    return info;
}

/* ---- reading ---- */

static bool read_block(const kr_tensor *x, kr_dtype dtype, void *out)
{
    kr_ctx *ctx = x->ctx;
    kr_device *device = ctx->device;
    kr_tensor y = laid_out(x, dtype, out);
    const void *from = x->data;
    if (!kr_tensor_is_row_major(x)) {
        const kr_tensor gathered = laid_out(x, x->dtype, device->device_stage);
        kr_copy_args args = kr_copy_of(&gathered, x);
        if (!KR_RUN_WITH(ctx, copy, &args, NULL)) return false;
        from = gathered.data;
    }
    const kr_tensor host = laid_out(x, x->dtype, device->access.stage);
    if (!device->access.fetch(ctx, host.data, from, bytes_of(x))) return false;
    copy_on_host(&y, &host);
    return true;
}

static bool read_into(const kr_tensor *x, kr_dtype dtype, char *out)
{
    if (kr_count_of(x) == 0) return true;
    if (!kr_on_device(x->ctx, x->data)) {
        const kr_tensor y = laid_out(x, dtype, out);
        if (!kr_integers_ready(x->ctx)) return false;
        copy_on_host(&y, x);
        return true;
    }
    if (dtype == x->dtype && kr_tensor_is_row_major(x))
        return x->ctx->device->access.fetch(x->ctx, out, x->data, bytes_of(x));
    if (bytes_of(x) <= x->ctx->device->access.stage_bytes) return read_block(x, dtype, out);
    kr_tensor first, second;
    halve(x, &first, &second);
    return read_into(&first, dtype, out) && read_into(&second, dtype, out + kr_dtype_span(dtype, kr_count_of(&first)));
}

/* The caller's memory may be device memory: another tensor's, for example. */
static bool copy_device(const kr_tensor *y, const kr_tensor *x)
{
    kr_copy_args args = kr_copy_of(y, x);
    if (!kr_dtype_is_float(y->dtype)) y->ctx->device->wrote_integers = true;
    return KR_RUN(y->ctx, copy, &args);
}

static bool has_values(const kr_tensor *x, const char *op)
{
    return kr_require(x->ctx, x->data || kr_count_of(x) == 0, KR_ERR_STATE,
                      "%s: the parameter %s has no values yet: its network is being created", op, KR_TEXT_OF(x));
}

kr_status kr_tensor_read(const kr_tensor *x, kr_dtype dtype, void *out, int64_t count)
{
    if (!x) return KR_ERR_ARG;
    if (!kr_dtype_is_valid(dtype)) {
        kr_fail(x->ctx, KR_ERR_DTYPE, "tensor_read: %d is not a kr_dtype", (int)dtype);
        return KR_ERR_DTYPE;
    }
    if (count != kr_count_of(x)) {
        kr_fail(x->ctx, KR_ERR_ARG, "tensor_read: count is %lld elements, but x %s has %lld", (long long)count,
                KR_TEXT_OF(x), (long long)kr_count_of(x));
        return KR_ERR_ARG;
    }
    if (!kr_require(x->ctx, out || count == 0, KR_ERR_ARG, "tensor_read: out is NULL") || !has_values(x, "tensor_read"))
        return KR_ERR_ARG;
    const kr_tensor y = laid_out(x, dtype, out);
    return (kr_on_device(x->ctx, out) ? copy_device(&y, x) : read_into(x, dtype, out)) ? KR_OK : KR_ERR_DEVICE;
}

double kr_tensor_at(const kr_tensor *x, const int64_t *index)
{
    if (!x) return NAN;
    kr_tensor one = *x;
    one.rank = 0;
    if (!kr_require(x->ctx, index || kr_count_of(x) == 1, KR_ERR_SHAPE, "item: x %s has %lld elements, but must have 1",
                    KR_TEXT_OF(x), (long long)kr_count_of(x)) ||
        !has_values(x, "tensor_at"))
        return NAN;
    for (int axis = 0; index && axis < x->rank; axis++) {
        if (!kr_require(x->ctx, index[axis] >= 0 && index[axis] < x->dims[axis], KR_ERR_ARG,
                        "tensor_at: index %lld on axis %d of x %s", (long long)index[axis], axis, KR_TEXT_OF(x)))
            return NAN;
        one.data += kr_dtype_offset(x->dtype, index[axis] * x->strides[axis]);
    }
    double value;
    return read_into(&one, KR_DTYPE_F64, (char *)&value) ? value : NAN;
}

typedef struct showing {
    kr_show_fn *show;
    void *user;
    int64_t first;
} showing;

static bool show_values(const kr_tensor *x, showing *s)
{
    enum { PIECE = 2048 };
    const int64_t count = kr_count_of(x);
    if (count > PIECE) {
        kr_tensor first, second;
        halve(x, &first, &second);
        return show_values(&first, s) && show_values(&second, s);
    }
    double values[PIECE];
    if (!read_into(x, KR_DTYPE_F64, (char *)values) || !s->show(s->user, s->first, values, count)) return false;
    s->first += count;
    return true;
}

bool kr_each_value(const kr_tensor *x, kr_show_fn *show, void *user)
{
    return kr_count_of(x) == 0 || show_values(x, &(showing){ show, user, 0 });
}

/* ---- writing ---- */

static bool write_device(kr_ctx *ctx, char *to, kr_dtype dtype, const kr_tensor *host)
{
    const struct kr_device_access *device_memory = &ctx->device->access;
    const size_t bytes = kr_dtype_span(dtype, kr_count_of(host));
    if (dtype == host->dtype && kr_tensor_is_row_major(host)) return device_memory->store(ctx, to, host->data, bytes);
    if (bytes <= device_memory->stage_bytes) {
        const kr_tensor staged = laid_out(host, dtype, device_memory->stage);
        copy_on_host(&staged, host);
        return device_memory->store(ctx, to, device_memory->stage, bytes);
    }
    kr_tensor first, second;
    halve(host, &first, &second);
    return write_device(ctx, to, dtype, &first) &&
           write_device(ctx, to + kr_dtype_span(dtype, kr_count_of(&first)), dtype, &second);
}

bool kr_tensor_take(kr_tensor *y, const kr_tensor *host)
{
    kr_ctx *ctx = y->ctx;
    if (kr_count_of(y) == 0) return true;
    if (kr_on_device(ctx, host->data)) return copy_device(y, host);
    if (kr_on_device(ctx, y->data)) return write_device(ctx, y->data, y->dtype, host);
    kr_copy_args args = kr_copy_of(y, host);
    if (!kr_ctx_on_device(ctx)) return KR_RUN(ctx, copy, &args);
    args.exec.pool = ctx->pool;
    ctx->device->host->copy.run(&args);
    return true;
}
