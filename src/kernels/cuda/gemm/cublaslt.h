/* cublaslt.h - matrix products by NVIDIA's cuBLASLt, loaded when the first product needs it.
 *
 * Nothing is linked against it: libcublasLt.so.13 or .12 is opened at run time. libkrait_cuda.so also looks in the folders of
 * the Python packages nvidia-cublas and nvidia-cublas-cu12 (python/cuda). If it is missing, or does not support a
 * product, the caller uses its own kernel. For each kind of product the library's heuristic is queried once; the answers
 * are cached for the life of the process.
 */
#ifndef KR_KERNELS_CUDA_GEMM_CUBLASLT_H
#define KR_KERNELS_CUDA_GEMM_CUBLASLT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_lt_type { KR_LT_F32, KR_LT_F64, KR_LT_BF16, KR_LT_F16 } kr_lt_type;

/* A matrix [rows columns] with one contiguous axis; transposed: the columns are contiguous. stride: between rows
 * (transposed: columns); batch: between matrices of a batch; both in elements. */
typedef struct kr_lt_matrix {
    const void *data;
    kr_lt_type type;
    bool transposed;
    int64_t stride, batch;
} kr_lt_matrix;

/* C = A B (+ bias) (+ C if accumulate): A [m k], B [k n] of one type, C [m n] row-major, bias [n] of C's type, or NULL. */
typedef struct kr_lt_product {
    int64_t nm, nn, nk, nbatch;
    kr_lt_matrix a, b, c;
    const void *bias;
    bool accumulate;
    bool tf32; /* f32 operands may be rounded to tf32 */
} kr_lt_product;

enum { KR_LT_WORKSPACE = 32 << 20 }; /* bytes */

/* NULL if the library is available, else what is wrong, for the user. */
const char *kr_cublaslt_problem(void);

/* The file of the library; NULL if it is not available. */
const char *kr_cublaslt_file(void);

/* Queues a product on `stream` (a cudaStream_t) of the current device; workspace: KR_LT_WORKSPACE bytes of device memory.
 * False: the library is missing or does not support it; nothing is queued. */
bool kr_cublaslt_run(const kr_lt_product *product, void *workspace, void *stream);

#ifdef __cplusplus
}
#endif

#endif
