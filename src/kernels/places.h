/* places.h - operands and results that are parts of something wider, as the f32 kernels of CUDA take them. */
#ifndef KR_KERNELS_PLACES_H
#define KR_KERNELS_PLACES_H

#include "kernels/matmul_args.h"

/* Where a result of rows goes that is no tensor of its own but a part of wider rows: `gap` elements lie between a row and
 * the next, and they may be halves. All 0: rows that follow one another, of the slot's own type. Other places are for the
 * f32 slot of CUDA alone. */
typedef struct kr_place {
    int64_t gap;
    kr_half half;
} kr_place;

/* Rows [n] of several tensors side by side: columns from[i] .. from[i+1]-1 are x[i] [rows, from[i+1] - from[i]]. count 0:
 * none, the operand is one tensor. For the f32 slot of CUDA alone, with columns in fours. */
enum { KR_MOST_COLUMNS = 3 };
typedef struct kr_columns {
    int count;
    const void *x[KR_MOST_COLUMNS];
    int64_t from[KR_MOST_COLUMNS + 1];
    kr_half half; /* of all of them */
} kr_columns;

#endif
