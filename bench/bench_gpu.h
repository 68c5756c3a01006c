/* bench_gpu.h - a device to measure on: a context on it, and operands in its memory.
 *
 * Calls queue kernels; a sample is some milliseconds of them with one wait at its end.
 */
#ifndef KR_BENCH_BENCH_GPU_H
#define KR_BENCH_BENCH_GPU_H

#include "bench/bench.h"

#include "device/device.h"
#include "tape/tape_impl.h"

typedef struct bench_gpu {
    kr_ctx *ctx;
    kr_tape *tape; /* owns the operands */
    const kr_kernels *kernels;
    size_t result_bytes; /* total size of gpu_result's tensors since it was set to 0 */
} bench_gpu;

/* Ends the program if the device cannot be opened. */
bench_gpu *gpu_open(bench_env *env, kr_precision precision);
void gpu_close(bench_gpu *gpu);

/* n elements, uniform in [low, high); or uninitialised, for results. Live until gpu_close. */
void *gpu_rand(bench_gpu *gpu, kr_dtype dtype, int64_t n, double low, double high);
void *gpu_result(bench_gpu *gpu, kr_dtype dtype, int64_t n);

/* Execution resources of kernels, with scratch of `bytes`. */
kr_exec gpu_exec(bench_gpu *gpu, kr_precision precision);
void *gpu_scratch(bench_gpu *gpu, size_t bytes);

/* A new contender whose calls are queued; arg begins with a bench_gpu *. */
contender *gpu_enter(contender *line, int *n, void (*call)(void *), void *arg, double work, const char *name);

/* The device's limit: copies of 1 GiB, counted as bytes read and written. */
contender *gpu_enter_copy(bench_env *env, bench_gpu *gpu, contender *line, int *n);

/* Does it support 16-bit operands and results, as only CUDA's f32 slots do? */
bool gpu_takes_halves(const bench_gpu *gpu);

/* "exact", "tf32", "bf16". */
const char *gpu_precision_name(kr_precision precision);

#endif
