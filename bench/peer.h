/* peer.h - other libraries that ours is compared with, if installed. */
#ifndef KR_BENCH_PEER_H
#define KR_BENCH_PEER_H

#include <stdbool.h>
#include <stdint.h>

/* oneDNN's dnnl_sgemm: C = A B, row-major; transposed operands are stored [k m] or [n k]. */
typedef struct peer_gemm {
    bool a_transposed, b_transposed;
    int64_t nm, nn, nk;
    const float *a, *b;
    float *c;
} peer_gemm;

/* Sets the number of threads of peer_gemm_run; false if oneDNN is not available or does not allow it. */
bool peer_gemm_threads(int threads);

void peer_gemm_run(const peer_gemm *gemm);

/* y[i] = f(x[i]) for n elements, n a multiple of 16. */
typedef void peer_math_fn(const float *x, float *y, int64_t n);

/* glibc's libmvec function for one of our kernels and instruction sets; NULL: none. */
peer_math_fn *peer_mvec(const char *function, const char *isa);

/* glibc's scalar libm. */
peer_math_fn *peer_libm(const char *function);

#endif
