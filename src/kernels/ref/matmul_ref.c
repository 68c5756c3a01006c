/* matmul_ref.c - C = A B (+ bias) (+ C), for every index of a batch space.
 *
 *   A [m k], B [k n], C [m n], bias [n]; A and B with a stride for either axis, C's columns adjacent
 *   c[m, n] = sum over k, in order, of a[m, k] b[k, n]
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"

#define COLUMNS 64       /* columns of C per pass */
#define TASK_FLOPS 65536 /* approximate multiplications per task */

typedef struct matmul_job {
    const kr_matmul_args *a;
    int64_t rows_per_task, tasks_per_matrix;
} matmul_job;

/* a_k, b_kn, c_n: indices of the first element of a row of A, of this B, and of the row of C. */
static void matmul_row(const kr_matmul_args *a, int64_t a_k, int64_t b_kn, int64_t c_n)
{
    const real *bias = a->bias;
    for (int64_t n0 = 0; n0 < a->nn; n0 += COLUMNS) {
        double sum[COLUMNS] = { 0 };
        int64_t ncolumns = kr_ref_min(COLUMNS, a->nn - n0);
        for (int64_t k = 0; k < a->nk; k++) {
            double factor = kr_ref_load(a->a.data, a->a.dtype, a_k + k * a->a.column);
            int64_t at = b_kn + k * a->b.row + n0 * a->b.column;
            const bool is_own = a->b.dtype == KR_REF_DTYPE;
            const real *b_n = is_own ? (const real *)a->b.data + at : NULL;
            if (!is_own)
                for (int64_t n = 0; n < ncolumns; n++)
                    sum[n] += factor * kr_ref_load(a->b.data, a->b.dtype, at + n * a->b.column);
            else if (a->b.column == 1)
                for (int64_t n = 0; n < ncolumns; n++) sum[n] += factor * (double)b_n[n];
            else
                for (int64_t n = 0; n < ncolumns; n++) sum[n] += factor * (double)b_n[n * a->b.column];
        }
        for (int64_t n = 0; n < ncolumns; n++) {
            if (bias) sum[n] += (double)bias[n0 + n];
            if (a->accumulate) sum[n] += kr_ref_load(a->c.data, a->c.dtype, c_n + n0 + n);
            kr_ref_store(a->c.data, a->c.dtype, c_n + n0 + n, sum[n]);
        }
    }
}

static void matmul_task(void *arg, int64_t task, int worker)
{
    (void)worker;
    const matmul_job *job = arg;
    const kr_matmul_args *a = job->a;
    int64_t a_mk = 0, b_kn = 0, c_mn = 0;
    int64_t matrix = task / job->tasks_per_matrix;
    for (int axis = a->batch_rank - 1; axis >= 0; axis--) {
        int64_t at = matrix % a->batch_dims[axis];
        matrix /= a->batch_dims[axis];
        a_mk += at * a->batch_a[axis];
        b_kn += at * a->batch_b[axis];
        c_mn += at * a->batch_c[axis];
    }
    int64_t first = task % job->tasks_per_matrix * job->rows_per_task;
    int64_t end = kr_ref_min(first + job->rows_per_task, a->nm);
    for (int64_t m = first; m < end; m++) matmul_row(a, a_mk + m * a->a.row, b_kn, c_mn + m * a->c.row);
}

void KR_REF(matmul)(const kr_matmul_args *a)
{
    int64_t nmatrices = 1;
    for (int axis = 0; axis < a->batch_rank; axis++) nmatrices *= a->batch_dims[axis];
    if (nmatrices == 0 || a->nm == 0 || a->nn == 0) return;
    matmul_job job = { .a = a, .rows_per_task = 1 + TASK_FLOPS / (a->nn * (a->nk + 1)) };
    job.tasks_per_matrix = (a->nm + job.rows_per_task - 1) / job.rows_per_task;
    kr_pool_run(a->exec.pool, nmatrices * job.tasks_per_matrix, matmul_task, &job);
}
