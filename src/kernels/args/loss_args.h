/* loss_args.h - the argument structs of losses. */
#ifndef KR_KERNELS_ARGS_LOSS_ARGS_H
#define KR_KERNELS_ARGS_LOSS_ARGS_H

#include "kernels/exec.h"
#include "kernels/args/matmul_args.h"

#include <krait/tensor.h>

/* Row statistics that cross_entropy stores. */
enum {
    KR_ROW_MAX,     /* m */
    KR_ROW_INVERSE, /* 1 / S */
    KR_ROW_MISS,    /* 1 - p[label] */
    KR_ROW_RIGHT,   /* 1 if label is the first of the largest, else 0 */
    KR_ROW_STATS
};

/* Cross-entropy of each row of x [no nr] with its label. The first nv columns are classes, nv >= 1; the others are not
 * read. Over the classes, with q = smoothing:
 *   m = max(x);  S = sum e^(x - m);  p = e^(x - m) / S
 *   loss = ln S + (1 - q) (m - x[label]) + q mean(m - x)
 *   g_x = alpha (p - q / nv - (1 - q) [at the label]),  0 beyond the classes
 * ln S and 1 - p[label] are computed from the sum without the largest term, so that they keep their precision where
 * p[label] is close to 1; so does the label's g_x. label < 0: the row is ignored. It is not read; its loss, stats and g_x
 * are 0. loss [no], stats [no KR_ROW_STATS]; g_x [no nr] or NULL, and may be x, unless it is 16-bit. */
typedef struct kr_cross_entropy_args {
    kr_exec exec;
    int64_t no, nr, nv;
    const void *x;
    const int64_t *label; /* [no] */
    double smoothing, alpha;
    void *loss, *stats, *g_x;
    kr_storage_dtype g_dtype; /* of g_x: 16-bit for the f32 slot of CUDA only, elsewhere KR_STORAGE_NATIVE */
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
