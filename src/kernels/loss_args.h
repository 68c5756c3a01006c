/* loss_args.h - the argument structs of losses. */
#ifndef KR_KERNELS_LOSS_ARGS_H
#define KR_KERNELS_LOSS_ARGS_H

#include "kernels/exec.h"
#include "kernels/matmul_args.h"

#include <krait/tensor.h>

/* What cross_entropy leaves of a row. */
enum {
    KR_ROW_MAX,     /* m */
    KR_ROW_INVERSE, /* 1 / S */
    KR_ROW_MISS,    /* 1 - p[label] */
    KR_ROW_RIGHT,   /* 1 if label is the first of the largest, else 0 */
    KR_ROW_STATS
};

/* Cross-entropy of each row of x [no nr] with its label. The first nv columns are classes, nv >= 1; those beyond are not
 * read. Over the classes, with q = smoothing:
 *   m = max(x);  S = sum e^(x - m);  p = e^(x - m) / S
 *   loss = ln S + (1 - q) (m - x[label]) + q mean(m - x)
 *   g_x = alpha (p - q / nv - (1 - q) [at the label]),  0 beyond the classes
 * ln S and 1 - p[label] are taken from what stands beside the largest, so that they keep their digits where p[label] is
 * all but 1; so does the label's g_x.
 * label < 0: the row does not count. It is not read; its loss, stats and g_x are 0.
 * loss [no], stats [no KR_ROW_STATS]; g_x [no nr] or NULL, and may be x, unless it is of halves. */
typedef struct kr_cross_entropy_args {
    kr_exec exec;
    int64_t no, nr, nv;
    const void *x;
    const int64_t *label; /* [no] */
    double smoothing, alpha;
    void *loss, *stats, *g_x;
    kr_half g_half; /* of g_x: the f32 slot of CUDA alone writes them, elsewhere it is KR_NO_HALF */
} kr_cross_entropy_args;

/* The same g_x times *g_y, from x and the stats. */
typedef struct kr_cross_entropy_bwd_args {
    kr_exec exec;
    int64_t no, nr, nv;
    const void *x, *stats, *g_y;
    const int64_t *label;
    double smoothing, alpha;
    void *g_x;
} kr_cross_entropy_bwd_args;

#endif
