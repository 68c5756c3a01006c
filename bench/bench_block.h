/* bench_block.h - a whole block, ready to be measured. */
#ifndef KR_BENCH_BENCH_BLOCK_H
#define KR_BENCH_BENCH_BLOCK_H

#include "bench/bench.h"

#include "nn/block_impl.h"

enum {
    BLOCK_MAMBA1,
    BLOCK_MAMBA2,
    BLOCK_SISO,       /* Mamba-3 */
    BLOCK_MIMO1,      /* is_mimo with rank 1 */
    BLOCK_MIMO4,      /* rank 4 */
    BLOCK_QUATERNION, /* SISO, rotated by quaternions */
    BLOCK_DOUBLE,     /* SISO by the double pathway */
    BLOCK_VARIANTS
};

enum { BLOCK_COUNT_MAX = 24 };

/* One or more blocks of one kind, whose weights are contiguous, and their input. */
typedef struct block_subject {
    kr_ctx *ctx;
    bool keeps_ctx; /* the context is the caller's */
    const kr_block_kind *kind;
    kr_params *params;
    int count;
    void *blocks[BLOCK_COUNT_MAX];
    double flops;        /* of one block's forward pass */
    int64_t weights;     /* elements of one block */
    const float *floats; /* those of all blocks */
    kr_tensor *x;        /* [b s d], or [b d] if s is 0; a parameter, so that its gradient is computed */
} block_subject;

/* `count` blocks for a case of size { b, s, d, r }, with kernel set `set` and `threads` threads. Ends the program on
 * failure. */
block_subject *block_make(bench_env *env, const kr_kernels *set, const bench_case *self, int variant, int threads,
                          int count);
/* The same in the caller's context. */
block_subject *block_make_in(bench_env *env, kr_ctx *ctx, const bench_case *self, int variant, int count);
void block_drop(block_subject *subject);

/* Ends the program after an error. */
void block_check(const block_subject *subject);

/* Our product of nm rows with a weight w [n k] of f32, on that pool. */
contender *block_enter_product(bench_env *env, contender *line, int *n, const kr_kernels *set, kr_pool *pool,
                               const kr_tensor *w, int64_t nm);

/* The same with the shape of the block's in_proj: [b s, d] times [in, d]^T, on the block's threads. */
contender *block_enter_gemm(bench_env *env, contender *line, int *n, const kr_kernels *set,
                            const block_subject *subject);

#endif
