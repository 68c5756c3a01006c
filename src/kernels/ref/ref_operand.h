/* ref_operand.h - operands of any float type, element by element (kernels/args/operand.h). After ref.h: `real` is the slot's
 * type. */
#ifndef KR_KERNELS_REF_REF_OPERAND_H
#define KR_KERNELS_REF_REF_OPERAND_H

#include "base/half.h"
#include "kernels/args/operand.h"

/* Element `at` of x, of bf16 or f16. */
static inline double kr_ref_widened(const void *x, int64_t at, kr_dtype dtype)
{
    uint16_t bits = ((const uint16_t *)x)[at];
    return (double)(dtype == KR_DTYPE_BF16 ? kr_float_from_bf16(bits) : kr_float_from_f16(bits));
}

#if defined(KR_REF_F32) || defined(KR_REF_F64)

#ifdef KR_REF_F64
#define KR_REF_DTYPE KR_DTYPE_F64
#else
#define KR_REF_DTYPE KR_DTYPE_F32
#endif

/* Element `at` of data of that type; the slot's own first, which is nearly all there is. */
static inline double kr_ref_load(const void *x, kr_dtype dtype, int64_t at)
{
    if (dtype == KR_REF_DTYPE) return (double)((const real *)x)[at];
    if (kr_is_16bit(dtype)) return kr_ref_widened(x, at, dtype);
    return dtype == KR_DTYPE_F32 ? (double)((const float *)x)[at] : ((const double *)x)[at];
}

/* Stores v, rounded to the slot's type and then to the operand's. */
static inline void kr_ref_store(void *y, kr_dtype dtype, int64_t at, double v)
{
    const real x = (real)v;
    if (dtype == KR_REF_DTYPE) ((real *)y)[at] = x;
    else if (dtype == KR_DTYPE_BF16) ((uint16_t *)y)[at] = kr_bf16_from_double((double)x);
    else if (dtype == KR_DTYPE_F16) ((uint16_t *)y)[at] = kr_f16_from_double((double)x);
    else if (dtype == KR_DTYPE_F32) ((float *)y)[at] = (float)x;
    else ((double *)y)[at] = (double)x;
}

/* Element i of row o. */
static inline double kr_ref_at(const kr_operand *x, int64_t o, int64_t i)
{
    return kr_ref_load(x->data, x->dtype, o * x->row + i);
}

static inline void kr_ref_put(const kr_operand *y, int64_t o, int64_t i, double v)
{
    kr_ref_store(y->data, y->dtype, o * y->row + i, v);
}

/* ---- copies in the slot's type, for kernels that work on rows of it ---- */

/* Is it of the slot's type, or absent? */
static inline bool kr_ref_is_own(const kr_operand *x)
{
    return !x->data || x->dtype == KR_REF_DTYPE;
}

/* Bytes of a contiguous copy of x [rows width], 0 if none is needed; packed: strided rows need one too. */
static inline size_t kr_ref_copy_bytes(const kr_operand *x, int64_t rows, int64_t width, bool packed)
{
    const bool is_usable = kr_ref_is_own(x) && (!packed || !x->data || x->row == width);
    return is_usable ? 0 : ((size_t)(rows * width) * sizeof(real) + 15) / 16 * 16;
}

/* x itself, or a copy at *scratch, which moves past it. */
static inline kr_operand kr_ref_copied(const kr_operand *x, int64_t rows, int64_t width, bool packed, char **scratch)
{
    const size_t bytes = kr_ref_copy_bytes(x, rows, width, packed);
    if (!bytes) return *x;
    const kr_operand copy = { *scratch, KR_REF_DTYPE, width };
    *scratch += bytes;
    for (int64_t o = 0; o < rows; o++)
        for (int64_t i = 0; i < width; i++) ((real *)copy.data)[o * width + i] = (real)kr_ref_at(x, o, i);
    return copy;
}

/* Writes a copy back to y. */
static inline void kr_ref_write_back(const kr_operand *y, const kr_operand *copy, int64_t rows, int64_t width)
{
    if (y->data == copy->data) return;
    for (int64_t o = 0; o < rows; o++)
        for (int64_t i = 0; i < width; i++) kr_ref_put(y, o, i, kr_ref_at(copy, o, i));
}

#endif

#endif
