/* gemm_cpu.c - the matrix product in f32, B in f32 or 16-bit floats: dispatch by shape, and the split into tasks.
 *
 *   C[m, n] = (C[m, n] if accumulate) + bias[n] + sum over k of A[m, k] B[k, n],   for each index of the batch space
 *
 * Each element of C is the same sum on every code path: chains of GEMM_KC fused multiply-adds over k in order, each
 * from 0, added one after the other to the base (C + bias). Layout, tile, task and thread do not change its bits.
 *
 *   gemv    up to four rows: B is read once, in place                                 (gemm_gemv.h, gemm_gevm.h)
 *   small   a task multiplies one block of C, or many of a batch                                    (gemm_small.h)
 *   large   all threads pack a part of B together, then all multiply blocks of C with it            (gemm_large.h)
 */
#include "kernels/cpu/gemm_gevm.h"
#include "kernels/cpu/gemm_large.h"
#include "kernels/cpu/gemm_small.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/transpose.h"

/* Multiply-adds from which a product takes the large path, and the least number per task. */
#define GEMM_LARGE_FROM (1 << 23)
#define GEMM_TASK_WORK (1 << 19)
/* Rows and columns of a unit of an item that is split. */
#define GEMM_UNIT_ROWS 192
#define GEMM_UNIT_COLUMNS 64
/* Elements of B that a task of the gemv path reads, and the least number where there would be fewer than four tasks. */
#define GEMM_GEMV_WORK (1 << 18)
#define GEMM_GEMV_LEAST (1 << 15)
/* Rows of a symmetric product copied per unit. */
#define GEMM_MIRROR_ROWS 64

typedef enum gemm_path { GEMM_NOTHING, GEMM_BASE, GEMM_GEMV, GEMM_SMALL, GEMM_LARGE } gemm_path;

/* The plan of a call: `items` problems of one shape, each split into m_cuts x n_cuts units, and the units per task. */
typedef struct gemm_plan {
    const kr_matmul_args *args;
    gemm_path path;
    bool swapped; /* p is C^T = B^T A^T */
    gemm_problem p;
    int64_t items;
    int64_t m_cuts, n_cuts, units_a_task;
} gemm_plan;

static gemm_problem gemm_problem_of(const kr_matmul_args *args, bool swapped)
{
    if (swapped) {
        return (gemm_problem){ .nm = args->nn,
                               .nn = args->nm,
                               .nk = args->nk,
                               .a = args->b,
                               .a_m = args->b_n,
                               .a_k = args->b_k,
                               .b = args->a,
                               .b_k = args->a_k,
                               .b_n = args->a_m,
                               .out = { args->c, 1, NULL, args->accumulate } };
    }
    return (gemm_problem){ .nm = args->nm,
                           .nn = args->nn,
                           .nk = args->nk,
                           .a = args->a,
                           .a_m = args->a_m,
                           .a_k = args->a_k,
                           .b = args->b,
                           .b_k = args->b_k,
                           .b_n = args->b_n,
                           .b_dtype = args->b_dtype,
                           .out = { args->c, args->c_m, args->bias, args->accumulate },
                           .symmetric = args->symmetric };
}

static gemm_path gemm_path_of(const gemm_problem *p, int64_t items)
{
    if (items == 0 || p->nm == 0 || p->nn == 0) {
        return GEMM_NOTHING;
    }
    if (p->nk == 0) {
        return GEMM_BASE;
    }
    if (p->nm <= GEMM_GEMV_ROWS && (p->b_n == 1 || (p->b_k == 1 && p->nn >= 8))) {
        return GEMM_GEMV;
    }
    /* Few rows: every element of B is packed once and by one task; packing together would save nothing. */
    const double work = (double)p->nm * (double)p->nn * (double)p->nk;
    return p->nm <= GEMM_UNIT_ROWS || work < GEMM_LARGE_FROM ? GEMM_SMALL : GEMM_LARGE;
}

/* Splits an item so that a unit has enough work for a task, and joins units where even whole items have less. */
static void gemm_cut(gemm_plan *plan)
{
    const gemm_problem *p = &plan->p;
    if (plan->path == GEMM_GEMV) {
        /* A power of two of equal parts suits most numbers of threads. */
        const int64_t most = gemm_ceil_div(p->nn, p->b_k == 1 ? GEMM_GEMV_COLUMNS : GEMM_GEVM_LEAST);
        for (int64_t part = p->nn * p->nk; 2 * plan->n_cuts <= most; part /= 2, plan->n_cuts *= 2) {
            if (part < (plan->n_cuts < 4 ? 2 * GEMM_GEMV_LEAST : GEMM_GEMV_WORK)) {
                break;
            }
        }
        plan->units_a_task = gemm_max(1, GEMM_GEMV_LEAST / (p->nk * gemm_ceil_div(p->nn, plan->n_cuts)));
        return;
    }
    const double work = (double)p->nm * (double)p->nn * (double)p->nk;
    plan->m_cuts = gemm_ceil_div(p->nm, GEMM_UNIT_ROWS);
    plan->n_cuts = work < 2 * GEMM_TASK_WORK ? 1 : gemm_ceil_div(p->nn, GEMM_UNIT_COLUMNS);
    const double unit = work / (double)(plan->m_cuts * plan->n_cuts);
    plan->units_a_task = gemm_max(1, (int64_t)(GEMM_TASK_WORK / unit));
}

static gemm_plan gemm_plan_of(const kr_matmul_args *args)
{
    gemm_plan plan = { .args = args, .items = 1, .m_cuts = 1, .n_cuts = 1, .units_a_task = 1 };
    for (int i = 0; i < args->batch_rank; i++) {
        plan.items *= args->batch_dims[i];
    }
    /* A single column of C without gaps is a row of C^T = B^T A^T, whose sums are the same; lanes run along rows. A is
     * always floats. */
    plan.swapped = args->nn == 1 && args->nm > 1 && args->c_m == 1 && args->bias == NULL && !args->b_dtype;
    plan.p = gemm_problem_of(args, plan.swapped);
    plan.path = gemm_path_of(&plan.p, plan.items);
    if (plan.path == GEMM_GEMV || plan.path == GEMM_SMALL) {
        gemm_cut(&plan);
    }
    return plan;
}

static gemm_problem gemm_item(const gemm_plan *plan, int64_t item)
{
    const kr_matmul_args *args = plan->args;
    gemm_problem p = plan->p;
    for (int i = args->batch_rank - 1; i >= 0; i--) {
        const int64_t at = item % args->batch_dims[i];
        item /= args->batch_dims[i];
        p.a += at * (plan->swapped ? args->batch_b[i] : args->batch_a[i]);
        p.b = gemm_b_at(p.b, at * (plan->swapped ? args->batch_a[i] : args->batch_b[i]), p.b_dtype);
        p.out.c += at * args->batch_c[i];
    }
    return p;
}

/* No terms: the base alone. */
static void gemm_base(const gemm_problem *p)
{
    for (int64_t m = 0; m < p->nm; m++) {
        float *c = p->out.c + m * p->out.c_m;
        for (int64_t n = 0; n < p->nn; n++) {
            const float bias = p->out.bias != NULL ? p->out.bias[n] : 0.0f;
            if (!p->out.add_c) {
                c[n] = bias;
            } else if (p->out.bias != NULL) {
                c[n] += bias;
            }
        }
    }
}

static void gemm_task(void *arg, int64_t index, int worker)
{
    const gemm_plan *plan = arg;
    const int64_t item_units = plan->m_cuts * plan->n_cuts;
    const int64_t end = gemm_min((index + 1) * plan->units_a_task, plan->items * item_units);
    float *scratch = (float *)plan->args->exec.scratch;
    for (int64_t unit = index * plan->units_a_task; unit < end; unit++) {
        const gemm_problem p = gemm_item(plan, unit / item_units);
        const int64_t im = unit % item_units / plan->n_cuts, in = unit % plan->n_cuts;
        /* Columns are split at multiples of 32, which are whole panels for both tile widths. */
        const int64_t n_parts = gemm_ceil_div(p.nn, 32);
        const int64_t n0 = 32 * gemm_part(n_parts, in, plan->n_cuts);
        const int64_t n1 = gemm_min(p.nn, 32 * gemm_part(n_parts, in + 1, plan->n_cuts));
        if (plan->path == GEMM_SMALL) {
            gemm_small(&p, gemm_part(p.nm, im, plan->m_cuts), gemm_part(p.nm, im + 1, plan->m_cuts), n0, n1,
                       scratch + worker * GEMM_SMALL_SCRATCH);
        } else if (p.b_k == 1 && p.nn >= 8) {
            gemm_gemv_run(&p, n0, n1, scratch + worker * gemm_gemv_scratch(&p));
        } else {
            gemm_gevm_run(&p, n0, n1);
        }
    }
}

/* Blocks of rows of a symmetric C: copies the part below the diagonal above it. */
static void gemm_mirror(const void *arg, int64_t first, int64_t end, int worker)
{
    const kr_matmul_args *args = arg;
    float *c = args->c;
    const int64_t row = args->c_m, nm = args->nm;
    (void)worker;
    for (int64_t block = first; block < end; block++) {
        const int64_t m0 = block * GEMM_MIRROR_ROWS, m1 = gemm_min(m0 + GEMM_MIRROR_ROWS, nm);
        for (int64_t n = 0; n < m0; n += GEMM_MIRROR_ROWS) {
            kr_transpose(c + m0 * row + n, row, m1 - m0, gemm_min(GEMM_MIRROR_ROWS, m0 - n), c + n * row + m0, row);
        }
        for (int64_t m = m0; m < m1; m++) {
            for (int64_t n = m0; n < m; n++) {
                c[n * row + m] = c[m * row + n];
            }
        }
    }
}

static void gemm_complete(const gemm_plan *plan)
{
    const kr_matmul_args *args = plan->args;
    if (args->symmetric && (plan->path == GEMM_SMALL || plan->path == GEMM_LARGE)) {
        kr_ranges_run(args->exec.pool, gemm_ceil_div(args->nm, GEMM_MIRROR_ROWS), args->nm * GEMM_MIRROR_ROWS / 2,
                      gemm_mirror, args);
    }
}

void KR_FN(matmul)(const kr_matmul_args *args)
{
    gemm_plan plan = gemm_plan_of(args);
    switch (plan.path) {
    case GEMM_NOTHING: return;
    case GEMM_GEMV:
    case GEMM_SMALL:
        kr_pool_run(args->exec.pool, gemm_ceil_div(plan.items * plan.m_cuts * plan.n_cuts, plan.units_a_task),
                    gemm_task, &plan);
        gemm_complete(&plan);
        return;
    case GEMM_BASE:
    case GEMM_LARGE: break;
    }
    for (int64_t item = 0; item < plan.items; item++) {
        const gemm_problem p = gemm_item(&plan, item);
        if (plan.path == GEMM_LARGE) {
            gemm_large_run(&p, args->exec.pool, (float *)args->exec.scratch);
        } else {
            gemm_base(&p);
        }
    }
    gemm_complete(&plan);
}

size_t KR_FN(matmul_scratch)(const kr_matmul_args *args)
{
    const gemm_plan plan = gemm_plan_of(args);
    const int workers = kr_pool_size(args->exec.pool);
    int64_t floats = 0;
    if (plan.path == GEMM_SMALL) {
        floats = workers * (int64_t)GEMM_SMALL_SCRATCH;
    } else if (plan.path == GEMM_GEMV) {
        floats = workers * gemm_gemv_scratch(&plan.p);
    } else if (plan.path == GEMM_LARGE) {
        floats = gemm_large_scratch(&plan.p, workers);
    }
    return (size_t)floats * sizeof(float);
}
