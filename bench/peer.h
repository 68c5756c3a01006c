/* peer.h - other people's code that ours is measured against, where it is installed. */
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

/* Makes the next calls of peer_gemm_run use so many threads; false if oneDNN is absent or does not let us choose. */
bool peer_gemm_threads(int threads);

void peer_gemm_run(const peer_gemm *gemm);

/* y[i] = f(x[i]) for n elements, n a multiple of 16. */
typedef void peer_math_fn(const float *x, float *y, int64_t n);

/* glibc's libmvec, by the name of one of our kernels and of one of our sets; NULL: there is none. */
peer_math_fn *peer_mvec(const char *function, const char *isa);

/* glibc's scalar libm. */
peer_math_fn *peer_libm(const char *function);

#endif
