/* matmul_args.h - the argument structs of matrix products: with any strides, and with packed weights. */
#ifndef KR_KERNELS_ARGS_MATMUL_ARGS_H
#define KR_KERNELS_ARGS_MATMUL_ARGS_H

#include "kernels/args/operand.h"
#include "kernels/exec.h"

/* C = A B (+ bias) (+ C if accumulate), for each index of the batch space. A [m k], B [k n], C [m n], bias [n]. Each
 * operand has a stride for either axis, so that transposes are strides; C's columns are contiguous. Batch strides of 0
 * broadcast A or B; C's are distinct. nk = 0 gives bias, or 0. A row of C has the same bits whatever nm is, whatever the
 * other rows hold, and for any number of threads. On CUDA sizes, strides and types choose the kernel: there bits are the
 * same from run to run and whatever the other rows hold, but not from one nm or layout to another; among products of at
 * most KR_GEMV_ROWS rows with contiguous k in A and B they are, for either type of B. exec.precision BF16 rounds both
 * operands of the f32 slot; if A has at most KR_GEMV_AUTOCAST rows and B is f32, to tf32 only. */
enum { KR_GEMV_ROWS = 8, KR_GEMV_AUTOCAST = 256 };
typedef struct kr_matmul_args {
    kr_exec exec;
    int64_t nm, nn, nk;
    kr_matrix a, b;   /* any strides, usually one of them is 1 */
    kr_operand c;     /* rows along m */
    const void *bias; /* [n], or NULL; the same for the whole batch */
    bool accumulate;
    bool symmetric; /* C is, up to rounding, and nm = nn: the upper part may be copied from below. No batch, no bias */
    int batch_rank;
    int64_t batch_dims[KR_MAX_RANK];
    int64_t batch_a[KR_MAX_RANK], batch_b[KR_MAX_RANK], batch_c[KR_MAX_RANK];
} kr_matmul_args;

/* y = x w^T (+ bias) for few rows x [m k] and a packed weight w [n k]: panels of KR_PANEL outputs, each [k][KR_PANEL], the
 * last one padded with zeros; w.row is not used. x and y are of the slot's type. The bits are those of matmul. */
enum { KR_PANEL = 64 };
static inline int64_t kr_panels_of(int64_t nn)
{
    return (nn + KR_PANEL - 1) / KR_PANEL;
}
typedef struct kr_panels_args {
    kr_exec exec;
    int64_t nm, nn, nk;
    kr_operand x, w, y;
    const void *bias; /* [n], or NULL */
} kr_panels_args;

#endif
