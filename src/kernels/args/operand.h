/* operand.h - strided and 16-bit operands and results, as the f32 kernels of CUDA take them. */
#ifndef KR_KERNELS_ARGS_OPERAND_H
#define KR_KERNELS_ARGS_OPERAND_H

#include "kernels/args/matmul_args.h"

/* A result that is a part of wider rows: `padding` elements between the end of a row and the next, of storage type `dtype`. All 0:
 * contiguous rows of the slot's own type. Other values are for the f32 slot of CUDA only. */
typedef struct kr_strided_rows {
    int64_t padding; /* elements */
    kr_storage_dtype dtype;
} kr_strided_rows;

/* Rows [n] of several tensors concatenated: columns from[i] .. from[i+1]-1 are x[i] [rows, from[i+1] - from[i]]. count 0:
 * none, the operand is one tensor. For the f32 slot of CUDA only; column counts are multiples of four. */
enum { KR_MOST_COLUMNS = 3 };
typedef struct kr_column_parts {
    int count;
    const void *x[KR_MOST_COLUMNS];
    int64_t from[KR_MOST_COLUMNS + 1];
    kr_storage_dtype dtype; /* of all of them */
} kr_column_parts;

#endif
