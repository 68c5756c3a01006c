/* matmul_args.h - the argument structs of the products: of matrices of any strides, and with packed weights. */
#ifndef KR_KERNELS_MATMUL_ARGS_H
#define KR_KERNELS_MATMUL_ARGS_H

#include "kernels/exec.h"

#include <krait/tensor.h>

/* The elements of an operand that may be narrower than the others: of the slot's own type, or halves, which are widened
 * as they are read. Widening is exact: the result has the bits that the widened operand would give. */
typedef enum kr_half { KR_NO_HALF = 0, KR_HALF_BF16 = 1, KR_HALF_F16 = 2 } kr_half;
static inline kr_half kr_half_of(kr_dtype dtype)
{
    return dtype == KR_BF16 ? KR_HALF_BF16 : dtype == KR_F16 ? KR_HALF_F16 : KR_NO_HALF;
}

/* C = A B (+ bias) (+ C if accumulate), for each index of the batch space. A [m k], B [k n], C [m n], bias [n].
 * Each operand has a stride for either axis, so that transposes are strides; C's columns are adjacent.
 * batch strides of 0 broadcast A or B; C's are distinct. nk = 0 gives bias, or 0.
 * A row of C has the same bits whatever nm is, whatever the other rows hold, and for any number of threads.
 * On CUDA sizes, strides and types choose the kernel: there bits are the same from run to run and whatever the other rows
 * hold, but not from one nm or layout to another; among products of at most KR_FEW_ROWS rows with adjacent k in A and B
 * they are, in either type of B. exec.precision BF16 rounds both operands of the f32 slot; where A has at most
 * KR_FEW_ROUNDED rows and B is of f32, to tf32 only. */
enum { KR_FEW_ROWS = 8, KR_FEW_ROUNDED = 256 };
typedef struct kr_matmul_args {
    kr_exec exec;
    int64_t nm, nn, nk;
    const void *a;
    int64_t a_m, a_k; /* strides of A along m and k; any values, usually one of them is 1 */
    const void *b;
    int64_t b_k, b_n; /* strides of B along k and n, in its own elements */
    kr_half b_half;   /* of B */
    void *c;
    int64_t c_m;      /* stride of C along m; along n it is 1 */
    const void *bias; /* [n], or NULL; the same for the whole batch */
    bool accumulate;
    kr_half a_half, c_half; /* of A and of C: the f32 slot of CUDA alone takes them, elsewhere they are KR_NO_HALF */
    bool symmetric; /* C is its own transpose but for rounding, nm = nn: what lies above the diagonal may be copied from
                     * below. No batch, no bias */
    int batch_rank;
    int64_t batch_dims[KR_MAX_RANK];
    int64_t batch_a[KR_MAX_RANK], batch_b[KR_MAX_RANK], batch_c[KR_MAX_RANK];
} kr_matmul_args;

/* y = x w^T (+ bias) for few rows x [m k] and a weight w [n k] that was packed: panels of KR_PANEL outputs, each
 * [k][KR_PANEL], the last one filled up with zeros. Rows of x and y are x_m and y_m apart. The bits are those of matmul. */
enum { KR_PANEL = 64 };
static inline int64_t kr_panels_of(int64_t nn)
{
    return (nn + KR_PANEL - 1) / KR_PANEL;
}
typedef struct kr_panels_args {
    kr_exec exec;
    int64_t nm, nn, nk, x_m, y_m;
    const void *x, *panels, *bias; /* bias [n], or NULL */
    kr_half half;                  /* of the panels */
    void *y;
} kr_panels_args;

#endif
