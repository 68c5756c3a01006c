/* copy_cuda.cu - y = x between any two element types and any strides; y = value.
 *
 * Elements of one type are copied as bits. 16-bit floats and f32 convert directly; any other pair through a double (from
 * floats) or an int64_t (from integers), which hold every source exactly, so that the store rounds once. Integers that do
 * not fit saturate, NaN becomes 0.
 */
#include "base/half.h"
#include "kernels/cuda/prim/launch.cuh"
#include "kernels/cuda/prim/block_reduce.cuh"

namespace
{

__host__ __device__ inline int64_t int_of_double(double v, int64_t low, int64_t high)
{
    if (v != v) return 0;
    if (v <= (double)low) return low;
    return v >= (double)high ? high : (int64_t)v; /* (double)INT64_MAX is 2^63: no value between is lost */
}

/* An integer to double, rounded to odd (see kr_float_to_odd), so that a second rounding is exact. */
__host__ __device__ inline double odd_of_int(int64_t v)
{
    if (v > -(INT64_C(1) << 53) && v < INT64_C(1) << 53) return (double)v;
    int64_t upper = v / 1024; /* at most 54 bits with the sign, as a multiple of 1024 */
    if (v % 1024) upper = v < 0 ? -(-upper | 1) : upper | 1;
    return (double)upper * 1024.0;
}

__host__ __device__ inline bool is_integer(kr_dtype dtype)
{
    return dtype == KR_DTYPE_I32 || dtype == KR_DTYPE_I64;
}

__device__ inline double load_double(kr_dtype dtype, const void *x, int64_t at)
{
    switch (dtype) {
    case KR_DTYPE_F64: return ((const double *)x)[at];
    case KR_DTYPE_F32: return (double)((const float *)x)[at];
    case KR_DTYPE_BF16: return (double)kr_float_from_bf16(((const uint16_t *)x)[at]);
    default: return (double)kr_float_from_f16(((const uint16_t *)x)[at]);
    }
}

__host__ __device__ inline void store_double(kr_dtype dtype, void *y, int64_t at, double v)
{
    switch (dtype) {
    case KR_DTYPE_F64: ((double *)y)[at] = v; break;
    case KR_DTYPE_F32: ((float *)y)[at] = (float)v; break;
    case KR_DTYPE_BF16: ((uint16_t *)y)[at] = kr_bf16_from_double(v); break;
    case KR_DTYPE_F16: ((uint16_t *)y)[at] = kr_f16_from_double(v); break;
    case KR_DTYPE_I32: ((int32_t *)y)[at] = (int32_t)int_of_double(v, INT32_MIN, INT32_MAX); break;
    default: ((int64_t *)y)[at] = int_of_double(v, INT64_MIN, INT64_MAX); break;
    }
}

__device__ inline void store_int(kr_dtype dtype, void *y, int64_t at, int64_t v)
{
    switch (dtype) {
    case KR_DTYPE_F64: ((double *)y)[at] = (double)v; break;
    case KR_DTYPE_F32: ((float *)y)[at] = (float)v; break;
    case KR_DTYPE_BF16: ((uint16_t *)y)[at] = kr_bf16_from_double(odd_of_int(v)); break;
    case KR_DTYPE_F16: ((uint16_t *)y)[at] = kr_f16_from_double(odd_of_int(v)); break;
    case KR_DTYPE_I32: ((int32_t *)y)[at] = (int32_t)(v < INT32_MIN ? INT32_MIN : v > INT32_MAX ? INT32_MAX : v); break;
    default: ((int64_t *)y)[at] = v; break;
    }
}

template <typename bits> void move(const kr_copy_args *a)
{
    const bits *x = (const bits *)a->x;
    bits *y = (bits *)a->y;
    kr_walk vecs = a->walk;
    const void *const data[] = { y, x };
    if (kr_walk_in_vec16<16 / sizeof(bits)>(&vecs, 2, data))
        kr_cuda_walk<2>(a->exec, vecs, [=] __device__(const int64_t *at) {
            *(uint4 *)(void *)(y + at[0]) = *(const uint4 *)(const void *)(x + at[1]);
        });
    else kr_cuda_walk<2>(a->exec, a->walk, [=] __device__(const int64_t *at) { y[at[0]] = x[at[1]]; });
}

/* Stores eight adjacent floats as 16-bit. */
__device__ inline void store_8_16bit(uint16_t *y, const float *x, bool to_bf16)
{
    const kr_vec16<float> p[2] = { kr_load_vec16(x, 4, true), kr_load_vec16(x + 4, 4, true) };
    kr_vec16<uint16_t> h;
#pragma unroll
    for (int i = 0; i < 8; i++)
        h.v[i] = to_bf16 ? kr_bf16_from_float(p[i / 4].v[i % 4]) : kr_f16_from_float(p[i / 4].v[i % 4]);
    kr_store_vec16(y, h, 8, true);
}

void narrow(const kr_copy_args *a, bool to_bf16)
{
    const float *x = (const float *)a->x;
    uint16_t *y = (uint16_t *)a->y;
    kr_walk vecs = a->walk;
    const void *const data[] = { y, x };
    if (kr_walk_in_vec16<8>(&vecs, 2, data))
        kr_cuda_walk<2>(a->exec, vecs,
                        [=] __device__(const int64_t *at) { store_8_16bit(y + at[0], x + at[1], to_bf16); });
    else
        kr_cuda_walk<2>(a->exec, a->walk, [=] __device__(const int64_t *at) {
            y[at[0]] = to_bf16 ? kr_bf16_from_float(x[at[1]]) : kr_f16_from_float(x[at[1]]);
        });
}

void widen(const kr_copy_args *a, bool from_bf16)
{
    const uint16_t *x = (const uint16_t *)a->x;
    float *y = (float *)a->y;
    kr_cuda_walk<2>(a->exec, a->walk, [=] __device__(const int64_t *at) {
        y[at[0]] = from_bf16 ? kr_float_from_bf16(x[at[1]]) : kr_float_from_f16(x[at[1]]);
    });
}

void convert(const kr_copy_args *a)
{
    const void *x = a->x;
    void *y = a->y;
    const kr_dtype from = a->x_dtype, to = a->y_dtype;
    kr_cuda_walk<2>(a->exec, a->walk, [=] __device__(const int64_t *at) {
        if (is_integer(from))
            store_int(to, y, at[0], from == KR_DTYPE_I32 ? ((const int32_t *)x)[at[1]] : ((const int64_t *)x)[at[1]]);
        else store_double(to, y, at[0], load_double(from, x, at[1]));
    });
}

int bytes_of(kr_dtype dtype)
{
    return dtype == KR_DTYPE_F64 || dtype == KR_DTYPE_I64 ? 8 : dtype == KR_DTYPE_BF16 || dtype == KR_DTYPE_F16 ? 2 : 4;
}

bool is_16bit(kr_dtype dtype)
{
    return dtype == KR_DTYPE_BF16 || dtype == KR_DTYPE_F16;
}

template <typename bits> void fill(const kr_fill_args *a, bits value)
{
    bits *y = (bits *)a->y;
    kr_cuda_walk<1>(a->exec, a->walk, [=] __device__(const int64_t *at) { y[at[0]] = value; });
}

} // namespace

void kr_cuda_copy(const kr_copy_args *a)
{
    if (a->x_dtype == a->y_dtype) {
        switch (bytes_of(a->x_dtype)) {
        case 2: move<uint16_t>(a); break;
        case 4: move<uint32_t>(a); break;
        default: move<uint64_t>(a); break;
        }
    } else if (a->x_dtype == KR_DTYPE_F32 && is_16bit(a->y_dtype)) {
        narrow(a, a->y_dtype == KR_DTYPE_BF16);
    } else if (is_16bit(a->x_dtype) && a->y_dtype == KR_DTYPE_F32) {
        widen(a, a->x_dtype == KR_DTYPE_BF16);
    } else {
        convert(a);
    }
}

/* The value is converted once, on the host. */
void kr_cuda_fill(const kr_fill_args *a)
{
    union {
        uint16_t two;
        uint32_t four;
        uint64_t eight;
    } value = { 0 };
    store_double(a->dtype, &value, 0, a->value);
    switch (bytes_of(a->dtype)) {
    case 2: fill(a, value.two); break;
    case 4: fill(a, value.four); break;
    default: fill(a, value.eight); break;
    }
}
