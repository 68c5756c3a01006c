/* operand.h - operands of kernels: typed views {data, dtype, strides}.
 *
 * A kernel has a slot for each type that it computes in, f32 and f64 (kernels.def). What an argument struct declares as a
 * plain pointer has the slot's type and contiguous rows. A kr_operand or kr_matrix says itself what it holds:
 *
 *   data     its first element; NULL: absent
 *   dtype    the slot's type, or another one. An input is widened to the slot's type as it is read, which is exact: the
 *            results have the bits that the widened operand would give. A result is computed in the slot's type, and
 *            rounded to nearest even as it is written
 *   strides  in elements; of a format of blocks, whose elements have no addresses, multiples of a block, but for the 1 of
 *            adjacent elements
 *
 * The reference takes every float type for each of them, and so defines what it means. The types that another set takes
 * besides the slot's own are data: a column of kernels/accepts.def, asked by kr_accepts (device/device.h). An op converts an
 * operand that the kernel would not take; a decode step runs op by op instead.
 *
 * So a further format, such as blocks of int8 with a scale for weights, is a kr_dtype with its properties in tensor/shape.c, a
 * bit in accepts.def for each operand that may have it (matmul_b, panels_w, embedding_x, decode_linear_w), and the code that
 * reads it: in these kernels, and in `copy`, which widens it where a kernel does not take it. No argument struct and no signature of an op
 * changes.
 */
#ifndef KR_KERNELS_ARGS_OPERAND_H
#define KR_KERNELS_ARGS_OPERAND_H

#include <krait/tensor.h>

/* Rows of adjacent elements, `row` elements from one to the next: any number, for an input also 0 or negative. */
typedef struct kr_operand {
    void *data;
    kr_dtype dtype;
    int64_t row;
} kr_operand;

/* A matrix with a stride for either axis. */
typedef struct kr_matrix {
    void *data;
    kr_dtype dtype;
    int64_t row, column;
} kr_matrix;

#define KR_DTYPE_BIT(dtype) (1u << (unsigned)(dtype))
enum {
    KR_DTYPES_16BIT = 1 << KR_DTYPE_BF16 | 1 << KR_DTYPE_F16,
    KR_DTYPES_FLOAT = KR_DTYPES_16BIT | 1 << KR_DTYPE_F32 | 1 << KR_DTYPE_F64
};

/* bf16 or f16. */
#ifdef __CUDACC__
#define KR_OPERAND_INLINE static __host__ __device__ __forceinline__
#else
#define KR_OPERAND_INLINE static inline
#endif
KR_OPERAND_INLINE bool kr_is_16bit(kr_dtype dtype)
{
    return dtype == KR_DTYPE_BF16 || dtype == KR_DTYPE_F16;
}

#endif
