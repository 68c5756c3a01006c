/* cuda.h - the CUDA kernels, as C sees them: device properties that they need, and their table.
 *
 * A kernel is called as on the CPU (kernels/kernels.h): one struct of raw pointers, here to device-accessible memory. It
 * queues its work on exec.stream and returns; exec.scratch is device memory; exec.own is a struct kr_cuda. Results for the
 * host (kr_finite_args.first, kr_squares_args.sum) are written to it, and read after a wait. Errors are not returned: the
 * device asks CUDA for the last error after each call.
 */
#ifndef KR_KERNELS_CUDA_CUDA_H
#define KR_KERNELS_CUDA_CUDA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Properties of the device that kernels run on. */
typedef struct kr_cuda {
    int number; /* of the device */
    int arch;   /* 80 for sm_80 */
    int multiprocessors;
    size_t shared_bytes; /* per CTA */
    uint64_t *arrivals;  /* CTA counters on the device: 0 at first, and changed by kernels only */
    bool is_shared;      /* the stream is the caller's: the preceding kernel may be any, and may write what ours read */
} kr_cuda;

enum { KR_CUDA_ARRIVALS = 128, KR_CUDA_TICKETS = 1024 }; /* arrival counters; ticket counters behind them */

/* Counters of CTAs of which the last to arrive continues alone and resets its counter. */
static inline uint64_t *kr_cuda_tickets(const kr_cuda *device)
{
    return device->arrivals + KR_CUDA_ARRIVALS;
}

/* Shared memory per CTA on every GPU from sm_80 on: a kernel that uses more needs another code path for the rest. */
enum { KR_CUDA_LEAST_SHARED = 99 * 1024 };

/* NULL slots: kernels that CUDA lacks. */
extern const kr_kernels kr_cuda_kernels;

#include "kernels/cuda/cuda_entries.def"

#ifdef __cplusplus
}
#endif
#endif
