/* ref_walk.h - iterates over an index space of any strides row by row.
 *
 * A row is the innermost axis. The odometer holds the offset of each operand's row and advances to the next one.
 *
 *   kr_odometer at = kr_odometer_at(walk, 2, first_row);
 *   for (int64_t row = first_row; row < end_row; row++, kr_odometer_next(&at))
 *       for (int64_t i = 0; i < n; i++) y[at.offset[0] + i * y_step] = x[at.offset[1] + i * x_step];
 */
#ifndef KR_KERNELS_REF_REF_WALK_H
#define KR_KERNELS_REF_REF_WALK_H

#include "kernels/kernels.h"

typedef struct kr_odometer {
    const kr_walk *walk;
    int noperands;
    int64_t index[KR_MAX_RANK];
    int64_t offset[KR_WALK_OPERANDS]; /* in elements */
} kr_odometer;

static inline int64_t kr_walk_length(const kr_walk *walk) /* of a row */
{
    return walk->rank ? walk->dims[walk->rank - 1] : 1;
}

static inline int64_t kr_walk_step(const kr_walk *walk, int operand) /* along a row */
{
    return walk->rank ? walk->strides[operand][walk->rank - 1] : 0;
}

static inline int64_t kr_walk_nrows(const kr_walk *walk)
{
    int64_t nrows = 1;
    for (int axis = 0; axis < walk->rank - 1; axis++) nrows *= walk->dims[axis];
    return nrows;
}

static inline kr_odometer kr_odometer_at(const kr_walk *walk, int noperands, int64_t row)
{
    kr_odometer at = { .walk = walk, .noperands = noperands };
    for (int axis = walk->rank - 2; axis >= 0; axis--) {
        at.index[axis] = row % walk->dims[axis];
        row /= walk->dims[axis];
        for (int o = 0; o < noperands; o++) at.offset[o] += at.index[axis] * walk->strides[o][axis];
    }
    return at;
}

static inline void kr_odometer_next(kr_odometer *at)
{
    const kr_walk *walk = at->walk;
    for (int axis = walk->rank - 2; axis >= 0; axis--) {
        for (int o = 0; o < at->noperands; o++) at->offset[o] += walk->strides[o][axis];
        if (++at->index[axis] < walk->dims[axis]) return;
        for (int o = 0; o < at->noperands; o++) at->offset[o] -= walk->dims[axis] * walk->strides[o][axis];
        at->index[axis] = 0;
    }
}

/* Tasks have about 16 thousand elements. */
static inline int64_t kr_walk_rows_per_task(const kr_walk *walk)
{
    int64_t length = kr_walk_length(walk);
    return length >= 16384 ? 1 : 16384 / (length > 0 ? length : 1);
}

static inline void kr_walk_run(kr_pool *pool, const kr_walk *walk, kr_task_fn *task, void *arg)
{
    int64_t per_task = kr_walk_rows_per_task(walk), nrows = kr_walk_nrows(walk);
    if (nrows > 0 && kr_walk_length(walk) > 0) kr_pool_run(pool, (nrows + per_task - 1) / per_task, task, arg);
}

#endif
