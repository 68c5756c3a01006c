/* bench_gpu.c - a context on the device, operands, and contenders that wait. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "bench/bench_gpu.h"

#include <stdlib.h>
#include <string.h>

static const double sample_ns = 3e6; /* long compared with a wait of some microseconds */

const char *gpu_precision_name(kr_precision precision)
{
    return precision == KR_PRECISION_BF16 ? "bf16" : precision == KR_PRECISION_TF32 ? "tf32" : "exact";
}

bench_gpu *gpu_open(bench_env *env, kr_precision precision)
{
    bench_gpu *gpu = bench_bytes(env, sizeof *gpu);
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = env->device;
    setenv("KR_PRECISION", gpu_precision_name(precision), 1);
    *gpu = (bench_gpu){ .ctx = kr_ctx_create(&options) };
    if (kr_ctx_failed(gpu->ctx)) bench_fail("%s", kr_ctx_message(gpu->ctx));
    gpu->tape = kr_tape_create(gpu->ctx, KR_TAPE_NO_GRAD);
    gpu->kernels = &gpu->ctx->device->kernels;
    return gpu;
}

void gpu_close(bench_gpu *gpu)
{
    kr_tape_destroy(gpu->tape);
    kr_ctx_destroy(gpu->ctx);
}

bool gpu_takes_halves(const bench_gpu *gpu)
{
    return strcmp(gpu->kernels->name, "cuda") == 0;
}

static void *data_of(bench_gpu *gpu, kr_tensor *x)
{
    if (kr_ctx_failed(gpu->ctx)) bench_fail("%s", kr_ctx_message(gpu->ctx));
    return kr_tensor_data(x);
}

void *gpu_rand(bench_gpu *gpu, kr_dtype dtype, int64_t n, double low, double high)
{
    return data_of(gpu, kr_rand(gpu->tape, dtype, KR_SHAPE(n), low, high));
}

void *gpu_result(bench_gpu *gpu, kr_dtype dtype, int64_t n)
{
    gpu->result_bytes += (size_t)n * kr_dtype_bytes(dtype);
    return data_of(gpu, kr_new(gpu->tape, dtype, KR_SHAPE(n)));
}

void *gpu_scratch(bench_gpu *gpu, size_t bytes)
{
    gpu->result_bytes += bytes;
    return bytes ? data_of(gpu, kr_new(gpu->tape, KR_DTYPE_F32, KR_SHAPE((int64_t)(bytes + 3) / 4))) : NULL;
}

kr_exec gpu_exec(bench_gpu *gpu, kr_precision precision)
{
    kr_exec exec = { 0 };
    kr_exec_set(gpu->ctx, &exec, true, "bench");
    exec.precision = precision;
    return exec;
}

static void wait_for(void *arg)
{
    bench_gpu *gpu = *(bench_gpu **)arg;
    const kr_device *device = gpu->ctx->device;
    const char *why = device->vtable ? device->vtable->check(gpu->ctx->device) : NULL;
    if (!why && device->vtable) why = device->vtable->wait(gpu->ctx->device);
    if (why) bench_fail("%s: %s", kr_ctx_device(gpu->ctx), why);
}

contender *gpu_enter(contender *line, int *n, void (*call)(void *), void *arg, double work, const char *name)
{
    contender *c = bench_enter(line, n, call, arg, work, name);
    c->wait = wait_for;
    c->sample_ns = sample_ns;
    return c;
}

typedef struct copy_job {
    bench_gpu *gpu;
    void *to;
    const void *from;
} copy_job;
static const size_t copy_bytes = (size_t)1 << 30;

static void call_copy(void *arg)
{
    const copy_job *job = arg;
    kr_device *device = job->gpu->ctx->device;
    device->vtable->copy(device, job->to, job->from, copy_bytes);
}

contender *gpu_enter_copy(bench_env *env, bench_gpu *gpu, contender *line, int *n)
{
    copy_job *job = bench_bytes(env, sizeof *job);
    const int64_t count = (int64_t)(copy_bytes / sizeof(float));
    *job = (copy_job){ gpu, gpu_result(gpu, KR_DTYPE_F32, count), gpu_rand(gpu, KR_DTYPE_F32, count, 0, 1) };
    return gpu_enter(line, n, call_copy, job, 2 * (double)copy_bytes, "copy");
}
