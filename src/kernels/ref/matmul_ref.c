/* matmul_ref.c - C = A B (+ bias) (+ C), for every index of a batch space.
 *
 *   A [m k], B [k n], C [m n], bias [n]; A and B with a stride for either axis, C's columns adjacent
 *   c[m, n] = sum over k, in order, of a[m, k] b[k, n]
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_half.h"

#define COLUMNS 64       /* columns of C per pass */
#define TASK_FLOPS 65536 /* approximate multiplications per task */

typedef struct matmul_job {
    const kr_matmul_args *a;
    int64_t rows_per_task, tasks_per_matrix;
} matmul_job;

/* b_kn: index of the first element of this B. */
static void matmul_row(const kr_matmul_args *a, const real *a_k, int64_t b_kn, real *c_n)
{
    const real *bias = a->bias;
    for (int64_t n0 = 0; n0 < a->nn; n0 += COLUMNS) {
        double sum[COLUMNS] = { 0 };
        int64_t ncolumns = kr_ref_min(COLUMNS, a->nn - n0);
        for (int64_t k = 0; k < a->nk; k++) {
            double factor = (double)a_k[k * a->a_k];
            int64_t at = b_kn + k * a->b_k + n0 * a->b_n;
            const real *b_n = a->b_dtype ? NULL : (const real *)a->b + at;
            if (a->b_dtype)
                for (int64_t n = 0; n < ncolumns; n++)
                    sum[n] += factor * kr_ref_widened(a->b, at + n * a->b_n, a->b_dtype);
            else if (a->b_n == 1)
                for (int64_t n = 0; n < ncolumns; n++) sum[n] += factor * (double)b_n[n];
            else
                for (int64_t n = 0; n < ncolumns; n++) sum[n] += factor * (double)b_n[n * a->b_n];
        }
        for (int64_t n = 0; n < ncolumns; n++) {
            if (bias) sum[n] += (double)bias[n0 + n];
            if (a->accumulate) sum[n] += (double)c_n[n0 + n];
            c_n[n0 + n] = (real)sum[n];
        }
    }
}

static void matmul_task(void *arg, int64_t task, int worker)
{
    (void)worker;
    const matmul_job *job = arg;
    const kr_matmul_args *a = job->a;
    const real *a_mk = a->a;
    real *c_mn = a->c;
    int64_t b_kn = 0;
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
    for (int64_t m = first; m < end; m++) matmul_row(a, a_mk + m * a->a_m, b_kn, c_mn + m * a->c_m);
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
