/* gather_ref.c - elements and rows selected by index, and their gradients.
 *
 *   gather:        y[o, j, i] = x[o, id[o, j, i], i]          x [no nr ni], id and y [no nj ni]
 *   gather_bwd:    y[o, id[o, j, i], i] += x[o, j, i]         y [no nr ni], id and x [no nj ni]
 *   embedding:     y[o, i] = x[id[o], i]                      x [nr ni], id [no], y [no ni]
 *   embedding_bwd: y[id[o], i] += x[o, i], over o in order    y [nr ni], id [no], x [no ni]
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"

#include <string.h>

static int64_t id_at(const void *id, kr_dtype dtype, int64_t at)
{
    return dtype == KR_DTYPE_I64 ? ((const int64_t *)id)[at] : (int64_t)((const int32_t *)id)[at];
}

void KR_REF(gather)(const kr_gather_args *a)
{
    const real *x = a->x;
    real *y = a->y;
    for (int64_t o = 0; o < a->no; o++) {
        for (int64_t j = 0; j < a->nj; j++) {
            for (int64_t i = 0; i < a->ni; i++) {
                int64_t at = (o * a->nj + j) * a->ni + i, r = id_at(a->id, a->id_dtype, at);
                y[at] = x[(o * a->nr + r) * a->ni + i];
            }
        }
    }
}

void KR_REF(gather_bwd)(const kr_gather_args *a)
{
    const real *x = a->x;
    real *y = a->y;
    for (int64_t o = 0; o < a->no; o++) {
        for (int64_t j = 0; j < a->nj; j++) {
            for (int64_t i = 0; i < a->ni; i++) {
                int64_t at = (o * a->nj + j) * a->ni + i, r = id_at(a->id, a->id_dtype, at);
                y[(o * a->nr + r) * a->ni + i] += x[at];
            }
        }
    }
}

void KR_REF(embedding)(const kr_embedding_args *a)
{
    const size_t row = (size_t)a->ni * kr_dtype_bytes(a->x.dtype);
    for (int64_t o = 0; o < a->no && row > 0; o++) {
        int64_t r = id_at(a->id, a->id_dtype, o);
        if (a->x.dtype == a->y.dtype)
            memcpy((char *)a->y.data + (size_t)o * row, (const char *)a->x.data + (size_t)r * row, row);
        else
            for (int64_t i = 0; i < a->ni; i++) kr_ref_put(&a->y, o, i, kr_ref_at(&a->x, r, i));
    }
}

void KR_REF(embedding_bwd)(const kr_embedding_args *a)
{
    const real *x = a->x.data;
    real *y = a->y.data;
    for (int64_t o = 0; o < a->no; o++) {
        int64_t r = id_at(a->id, a->id_dtype, o);
        for (int64_t i = 0; i < a->ni; i++) y[r * a->ni + i] += x[o * a->ni + i];
    }
}
