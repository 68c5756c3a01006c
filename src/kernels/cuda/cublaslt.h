/* cublaslt.h - matrix products by NVIDIA's cuBLASLt, a library that is looked for when the first product asks for it.
 *
 * Nothing is linked against it: libcublasLt.so.13 or .12 is opened at run time, and where it is missing, or where it has
 * no way to do a product, the caller takes a kernel of its own. For each kind of product the library is asked once what
 * to run; the answers are kept for the life of the process.
 */
#ifndef KR_KERNELS_CUDA_CUBLASLT_H
#define KR_KERNELS_CUDA_CUBLASLT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_lt_type { KR_LT_F32, KR_LT_F64, KR_LT_BF16, KR_LT_F16 } kr_lt_type;

/* A matrix [rows columns] with one axis of adjacent elements; transposed: its columns are the ones that are adjacent.
 * `stride` elements lie between two of its rows (transposed: columns), and `batch` between two matrices of a batch. */
typedef struct kr_lt_matrix {
    const void *data;
    kr_lt_type type;
    bool transposed;
    int64_t stride, batch;
} kr_lt_matrix;

/* C = A B (+ bias) (+ C if accumulate): A [m k], B [k n] of one type, C [m n] plain, bias [n] of C's type, or NULL. */
typedef struct kr_lt_product {
    int64_t nm, nn, nk, nbatch;
    kr_lt_matrix a, b, c;
    const void *bias;
    bool accumulate;
    bool tf32; /* f32 operands may be rounded to tf32 */
} kr_lt_product;

enum { KR_LT_WORKSPACE = 32 << 20 }; /* bytes */

/* NULL if the library is there, else what is wrong, for the user. */
const char *kr_cublaslt_problem(void);

/* Queues a product on `stream` (a cudaStream_t) of the current device; workspace: KR_LT_WORKSPACE bytes of device memory.
 * false: the library is missing or has no way to do it; nothing is queued. */
bool kr_cublaslt_run(const kr_lt_product *product, void *workspace, void *stream);

#ifdef __cplusplus
}
#endif

#endif
