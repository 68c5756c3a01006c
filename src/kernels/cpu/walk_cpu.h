/* walk_cpu.h - applies a function of vectors to all elements of a kr_walk: y = f(a, b, c), up to three inputs.
 *
 * The split into tasks depends on shape: whole rows of the innermost axis, or pieces of long rows. A row whose operands
 * are adjacent (stride 1) or broadcast (stride 0) is processed in at; others are copied through small buffers. In
 * both cases, and for partial vectors, the same vector function does the arithmetic, so an element's bits do not depend
 * on layout.
 *
 * Elements are 4 bytes wide; an int32 input is passed as the bits of a lane.
 */
#ifndef KR_KERNELS_CPU_WALK_CPU_H
#define KR_KERNELS_CPU_WALK_CPU_H

#include "kernels/cpu/vec.h"
#include "kernels/kernels.h"

enum {
    WALK_INPUTS = KR_WALK_OPERANDS - 1,
    WALK_TASK = 16384, /* elements of a task: several microseconds of arithmetic, and L2-sized for four operands */
    WALK_ROW = 16,     /* overhead of a row, in elements */
    WALK_BUFFER = 256  /* elements of a strided row copied to a buffer at a time */
};

/* One vector of each input, and the kernel's scalars in every lane. */
typedef struct lanes {
    vf a, b, c;
    vf alpha, beta;
} lanes;

typedef vf lane_fn(lanes in);

typedef struct walk_job {
    kr_walk walk; /* rank >= 1 */
    char *y;
    const char *in[WALK_INPUTS];
    float alpha, beta;
    int64_t nrows;
    int64_t rows_a_task;  /* 1 if a row is split */
    int64_t pieces_a_row; /* 1 if a task holds whole rows */
} walk_job;

/* Position of a task: the index along each outer axis and the operands' byte offsets. */
typedef struct walk_position {
    int64_t index[KR_MAX_RANK];
    int64_t offset[KR_WALK_OPERANDS];
} walk_position;

enum { WALK_BYTES = 4 };

/* ---- rows ---- */

KR_INLINE vf walk_apply(lane_fn *f, int ninputs, lanes in, const float *const p[WALK_INPUTS], int64_t n)
{
    in.a = n < VF ? vf_load_n(p[0], n) : vf_load(p[0]);
    if (ninputs > 1) in.b = n < VF ? vf_load_n(p[1], n) : vf_load(p[1]);
    if (ninputs > 2) in.c = n < VF ? vf_load_n(p[2], n) : vf_load(p[2]);
    return f(in);
}

/* y[0..n) = f of inputs that are adjacent (step 1) or a vector of one value (step 0). */
KR_INLINE void walk_vectors(const walk_job *job, lane_fn *f, int ninputs, float *y,
                            const float *const start[WALK_INPUTS], const int64_t step[WALK_INPUTS], int64_t n)
{
    lanes in = { vf_zero(), vf_zero(), vf_zero(), vf_set1(job->alpha), vf_set1(job->beta) };
    const float *p[WALK_INPUTS] = { start[0], start[1], start[2] };
    int64_t i = 0;
    for (; i + VF <= n; i += VF) {
        vf_store(y + i, walk_apply(f, ninputs, in, p, VF));
        for (int k = 0; k < ninputs; k++) p[k] += step[k] * VF;
    }
    if (i < n) vf_store_n(y + i, n - i, walk_apply(f, ninputs, in, p, n - i));
}

static inline void walk_gather(float *buffer, const char *p, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i++) memcpy(buffer + i, p + i * stride * WALK_BYTES, WALK_BYTES);
}

static inline void walk_scatter(char *p, int64_t stride, const float *buffer, int64_t n)
{
    for (int64_t i = 0; i < n; i++) memcpy(p + i * stride * WALK_BYTES, buffer + i, WALK_BYTES);
}

/* The inner stride of an operand; a single element counts as adjacent. */
KR_INLINE int64_t walk_inner_stride(const kr_walk *walk, int operand)
{
    return walk->dims[walk->rank - 1] == 1 ? 1 : walk->strides[operand][walk->rank - 1];
}

/* n elements along the innermost axis, from the given addresses. */
KR_INLINE void walk_row(const walk_job *job, lane_fn *f, int ninputs, char *y, const char *const in[WALK_INPUTS],
                        int64_t n)
{
    float repeated[WALK_INPUTS][VF], gathered[WALK_INPUTS][WALK_BUFFER], result[WALK_BUFFER];
    const float *start[WALK_INPUTS] = { NULL, NULL, NULL };
    int64_t step[WALK_INPUTS] = { 0, 0, 0 };
    int64_t y_stride = walk_inner_stride(&job->walk, 0);
    int64_t span = y_stride == 1 ? n : WALK_BUFFER;
    for (int k = 0; k < ninputs; k++) {
        int64_t stride = walk_inner_stride(&job->walk, k + 1);
        step[k] = stride == 0 ? 0 : 1;
        if (stride == 0) {
            float value;
            memcpy(&value, in[k], WALK_BYTES);
            vf_store(repeated[k], vf_set1(value));
            start[k] = repeated[k];
        } else if (stride != 1) {
            span = WALK_BUFFER;
        }
    }
    for (int64_t i = 0; i < n; i += span) {
        int64_t count = n - i < span ? n - i : span;
        for (int k = 0; k < ninputs; k++) {
            int64_t stride = walk_inner_stride(&job->walk, k + 1);
            const char *p = in[k] + i * stride * WALK_BYTES;
            if (stride == 1) {
                start[k] = (const float *)(const void *)p;
            } else if (stride != 0) {
                walk_gather(gathered[k], p, stride, count);
                start[k] = gathered[k];
            }
        }
        char *to = y + i * y_stride * WALK_BYTES;
        walk_vectors(job, f, ninputs, y_stride == 1 ? (float *)(void *)to : result, start, step, count);
        if (y_stride != 1) walk_scatter(to, y_stride, result, count);
    }
}

/* ---- tasks ---- */

static inline walk_position walk_seek(const kr_walk *walk, int64_t row)
{
    walk_position at = { { 0 }, { 0 } };
    for (int axis = walk->rank - 2; axis >= 0; axis--) {
        at.index[axis] = row % walk->dims[axis];
        row /= walk->dims[axis];
        for (int o = 0; o < KR_WALK_OPERANDS; o++) at.offset[o] += at.index[axis] * walk->strides[o][axis] * WALK_BYTES;
    }
    return at;
}

/* To the next row: carries from the last outer axis upwards. */
static inline void walk_next(const kr_walk *walk, walk_position *at)
{
    for (int axis = walk->rank - 2; axis >= 0; axis--) {
        at->index[axis]++;
        int64_t back = at->index[axis] == walk->dims[axis] ? walk->dims[axis] : 0;
        for (int o = 0; o < KR_WALK_OPERANDS; o++) at->offset[o] += (1 - back) * walk->strides[o][axis] * WALK_BYTES;
        if (back == 0) return;
        at->index[axis] = 0;
    }
}

KR_INLINE void walk_task(const walk_job *job, int64_t task, lane_fn *f, int ninputs)
{
    const kr_walk *walk = &job->walk;
    int64_t row = task / job->pieces_a_row * job->rows_a_task;
    int64_t end = row + job->rows_a_task < job->nrows ? row + job->rows_a_task : job->nrows;
    int64_t length = walk->dims[walk->rank - 1];
    int64_t from = task % job->pieces_a_row * WALK_TASK;
    int64_t n = job->pieces_a_row > 1 && length - from > WALK_TASK ? WALK_TASK : length - from;
    walk_position at = walk_seek(walk, row);
    for (; row < end; row++) {
        const char *in[WALK_INPUTS] = { NULL, NULL, NULL };
        for (int k = 0; k < ninputs; k++)
            in[k] = job->in[k] + at.offset[k + 1] + from * walk_inner_stride(walk, k + 1) * WALK_BYTES;
        walk_row(job, f, ninputs, job->y + at.offset[0] + from * walk_inner_stride(walk, 0) * WALK_BYTES, in, n);
        walk_next(walk, &at);
    }
}

/* Splits the job and runs its tasks; `task` calls walk_task with the kernel's function. */
static inline void walk_run(walk_job *job, kr_pool *pool, kr_task_fn *task)
{
    kr_walk *walk = &job->walk;
    if (walk->rank == 0) {
        walk->rank = 1;
        walk->dims[0] = 1;
    }
    int64_t length = walk->dims[walk->rank - 1];
    job->nrows = 1;
    for (int axis = 0; axis < walk->rank - 1; axis++) job->nrows *= walk->dims[axis];
    if (job->nrows == 0 || length == 0) return;
    job->pieces_a_row = (length + WALK_TASK - 1) / WALK_TASK;
    job->rows_a_task = job->pieces_a_row > 1 || length > WALK_TASK - WALK_ROW ? 1 : WALK_TASK / (WALK_ROW + length);
    int64_t ntasks = (job->nrows + job->rows_a_task - 1) / job->rows_a_task * job->pieces_a_row;
    if (ntasks == 1) task(job, 0, 0);
    else kr_pool_run(pool, ntasks, task, job);
}

#endif
