/* cuda.h - the CUDA kernels, as C sees them: what a device tells them, and their table.
 *
 * A kernel is as on the processor (kernels/kernels.h): one struct of raw pointers, here to memory that the device
 * reaches. It queues its work on exec.stream and returns; exec.scratch is the device's; exec.own is a struct kr_cuda.
 * What it finds for the host (kr_finite_args.first, kr_squares_args.sum) is written there, and read after a wait.
 * Nothing is said of errors: the device asks for the last one after each call.
 */
#ifndef KR_KERNELS_CUDA_CUDA_H
#define KR_KERNELS_CUDA_CUDA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What kernels ask of the device that they run on. */
typedef struct kr_cuda {
    int number; /* of the device */
    int arch;   /* 80 for sm_80 */
    int multiprocessors;
    size_t shared_bytes; /* that a block may ask for */
    uint64_t *arrivals;  /* counters of blocks, on the device: 0 at first, and only kernels change them */
} kr_cuda;

enum { KR_CUDA_ARRIVALS = 128, KR_CUDA_TURNS = 1024 }; /* counters; and those of turns behind them */

/* Counters of blocks of which the last to come goes on alone, and makes its counter 0 again. */
static inline uint64_t *kr_cuda_turns(const kr_cuda *device)
{
    return device->arrivals + KR_CUDA_ARRIVALS;
}

/* What a block may ask for on every GPU from sm_80 on: a kernel that wants more has a way for those. */
enum { KR_CUDA_LEAST_SHARED = 99 * 1024 };

/* NULL slots are kernels that it has not. */
extern const kr_kernels kr_cuda_kernels;

#define KR_KERNEL(name, args)                                                                                          \
    void kr_cuda_f32_##name(const args *);                                                                             \
    void kr_cuda_f64_##name(const args *);                                                                             \
    size_t kr_cuda_f32_##name##_scratch(const args *);                                                                 \
    size_t kr_cuda_f64_##name##_scratch(const args *);
#define KR_KERNEL_ANY(name, args)                                                                                      \
    void kr_cuda_##name(const args *);                                                                                 \
    size_t kr_cuda_##name##_scratch(const args *);
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY

/* The same for each of several, in a few launches. squares: exec.scratch has what all of them ask for together. */
void kr_cuda_f32_adamw_each(const kr_exec *exec, int64_t count, const kr_adamw_args *each);
void kr_cuda_f64_adamw_each(const kr_exec *exec, int64_t count, const kr_adamw_args *each);
void kr_cuda_squares_each(const kr_exec *exec, int64_t count, const kr_squares_args *each);

/* Layers by one kernel. scratch: 0 if these sizes have none. */
size_t kr_cuda_token_layers_scratch(const kr_exec *exec, int64_t count, const kr_token_layer *each);
void kr_cuda_token_layers(const kr_exec *exec, int64_t count, const kr_token_layer *each);

#ifdef __cplusplus
}
#endif
#endif
