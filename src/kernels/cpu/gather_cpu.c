/* gather_cpu.c - rows of a table by index, and their gradient, in f32 vectors; rows of 16-bit floats are copied or widened.
 *
 *   embedding:     y[o, i] = x[id[o], i]                      x [nr ni], id [no], y [no ni]
 *   embedding_bwd: y[id[o], i] += x[o, i], over o in order    y [nr ni], id [no], x [no ni]
 *
 * An id may repeat, so the gradient is split by columns: each task adds all rows, in order, to its columns.
 */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_widen.h"

enum { COLUMNS = 64 };

static int64_t id_at(const kr_embedding_args *a, int64_t o)
{
    return a->id_dtype == KR_DTYPE_I64 ? ((const int64_t *)a->id)[o] : (int64_t)((const int32_t *)a->id)[o];
}

static void embedding_rows(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_embedding_args *a = args;
    const size_t row = (size_t)a->ni * kr_dtype_bytes(a->x.dtype);
    for (int64_t o = first; o < end; o++) {
        const char *x = (const char *)a->x.data + (size_t)id_at(a, o) * row;
        if (a->x.dtype == a->y.dtype) memcpy((char *)a->y.data + (size_t)o * row, x, row);
        else
            for (int64_t i = 0; i < a->ni; i += VF)
                row_store((float *)a->y.data + o * a->ni + i, a->ni - i, load_widened(x, i, a->ni - i, a->x.dtype));
    }
}

void KR_FN(embedding)(const kr_embedding_args *a)
{
    if (a->ni > 0) kr_ranges_run(a->exec.pool, a->no, a->ni, embedding_rows, a);
}

/* Units are COLUMNS columns each. */
static void embedding_bwd_columns(const void *args, int64_t first, int64_t end, int worker)
{
    (void)worker;
    const kr_embedding_args *a = args;
    int64_t begin = first * COLUMNS, stop = kr_smaller(end * COLUMNS, a->ni);
    for (int64_t o = 0; o < a->no; o++) {
        const float *x = (const float *)a->x.data + o * a->ni;
        float *y = (float *)a->y.data + id_at(a, o) * a->ni;
        int64_t i = begin;
        for (; i + VF <= stop; i += VF) vf_store(y + i, vf_add(vf_load(y + i), vf_load(x + i)));
        if (i < stop) vf_store_n(y + i, stop - i, vf_add(vf_load_n(y + i, stop - i), vf_load_n(x + i, stop - i)));
    }
}

void KR_FN(embedding_bwd)(const kr_embedding_args *a)
{
    kr_ranges_run(a->exec.pool, kr_blocks(a->ni, COLUMNS), a->no * COLUMNS, embedding_bwd_columns, a);
}
