/* copy_ref.c - y = x between any two element types and any strides; y = value.
 *
 * The intermediate is a double (from floats) or an int64_t (from integers); both hold every source exactly, so a
 * store rounds once. Integers out of range saturate, NaN becomes 0.
 */
#include "base/half.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_walk.h"

#include <string.h>

typedef uint16_t bf16;
typedef uint16_t f16;

static inline int64_t int_of_double(double v, int64_t low, int64_t high)
{
    if (v != v) return 0;
    if (v <= (double)low) return low;
    return v >= (double)high ? high : (int64_t)v; /* (double)INT64_MAX is 2^63: no value between is lost */
}

/* An integer to double "to odd" (see kr_float_to_odd), so that a second rounding is exact. */
static inline double odd_of_int(int64_t v)
{
    if (v > -(INT64_C(1) << 53) && v < INT64_C(1) << 53) return (double)v;
    int64_t upper = v / 1024; /* at most 54 bits with the sign, as a multiple of 1024 */
    if (v % 1024) upper = v < 0 ? -(-upper | 1) : upper | 1;
    return (double)upper * 1024.0;
}

static inline double load_f32(float v)
{
    return (double)v;
}
static inline double load_f64(double v)
{
    return v;
}
static inline double load_bf16(bf16 v)
{
    return (double)kr_float_from_bf16(v);
}
static inline double load_f16(f16 v)
{
    return (double)kr_float_from_f16(v);
}
static inline int64_t load_i32(int32_t v)
{
    return v;
}
static inline int64_t load_i64(int64_t v)
{
    return v;
}

#define STORE(name, type, from, formula)                                                                               \
    static inline type name(from v)                                                                                    \
    {                                                                                                                  \
        return formula;                                                                                                \
    }
STORE(f32_of_double, float, double, (float)v)
STORE(f64_of_double, double, double, v)
STORE(bf16_of_double, bf16, double, kr_bf16_from_double(v))
STORE(f16_of_double, f16, double, kr_f16_from_double(v))
STORE(i32_of_double, int32_t, double, (int32_t)int_of_double(v, INT32_MIN, INT32_MAX))
STORE(i64_of_double, int64_t, double, int_of_double(v, INT64_MIN, INT64_MAX))
STORE(f32_of_int, float, int64_t, (float)v)
STORE(f64_of_int, double, int64_t, (double)v)
STORE(bf16_of_int, bf16, int64_t, kr_bf16_from_double(odd_of_int(v)))
STORE(f16_of_int, f16, int64_t, kr_f16_from_double(odd_of_int(v)))
STORE(i32_of_int, int32_t, int64_t, (int32_t)(v<INT32_MIN ? INT32_MIN : v> INT32_MAX ? INT32_MAX : v))
STORE(i64_of_int, int64_t, int64_t, v)

/* One row for every pair of types: convert_<to>_<from>(y, y_step, x, x_step, n). */
typedef void row_fn(void *y, int64_t y_step, const void *x, int64_t x_step, int64_t n);

#define ROW(to, to_type, from, from_type, carrier)                                                                     \
    static void convert_##to##_##from(void *y, int64_t y_step, const void *x, int64_t x_step, int64_t n)               \
    {                                                                                                                  \
        to_type *out = y;                                                                                              \
        const from_type *in = x;                                                                                       \
        for (int64_t i = 0; i < n; i++) out[i * y_step] = to##_of_##carrier(load_##from(in[i * x_step]));              \
    }
#define ROWS_TO(to, to_type)                                                                                           \
    ROW(to, to_type, f32, float, double)                                                                               \
    ROW(to, to_type, f64, double, double)                                                                              \
    ROW(to, to_type, bf16, bf16, double)                                                                               \
    ROW(to, to_type, f16, f16, double)                                                                                 \
    ROW(to, to_type, i32, int32_t, int)                                                                                \
    ROW(to, to_type, i64, int64_t, int)
ROWS_TO(f32, float)
ROWS_TO(f64, double)
ROWS_TO(bf16, bf16)
ROWS_TO(f16, f16)
ROWS_TO(i32, int32_t)
ROWS_TO(i64, int64_t)

#define PAIRS(to)                                                                                                      \
    {                                                                                                                  \
        [KR_DTYPE_F32] = convert_##to##_f32, [KR_DTYPE_F64] = convert_##to##_f64,                                      \
        [KR_DTYPE_BF16] = convert_##to##_bf16, [KR_DTYPE_F16] = convert_##to##_f16,                                    \
        [KR_DTYPE_I32] = convert_##to##_i32, [KR_DTYPE_I64] = convert_##to##_i64                                       \
    }
static row_fn *const convert[6][6] = {
    [KR_DTYPE_F32] = PAIRS(f32), [KR_DTYPE_F64] = PAIRS(f64), [KR_DTYPE_BF16] = PAIRS(bf16),
    [KR_DTYPE_F16] = PAIRS(f16), [KR_DTYPE_I32] = PAIRS(i32), [KR_DTYPE_I64] = PAIRS(i64)
};

/* Elements of equal type are copied as bits: 2, 4 or 8 bytes each. */
#define MOVE(bytes)                                                                                                    \
    static void move_##bytes(void *y, int64_t y_step, const void *x, int64_t x_step, int64_t n)                        \
    {                                                                                                                  \
        char *out = y;                                                                                                 \
        const char *in = x;                                                                                            \
        if (y_step == 1 && x_step == 1) memcpy(y, x, (size_t)n *bytes);                                                \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++) memcpy(out + i * y_step * bytes, in + i * x_step * bytes, bytes);          \
    }
MOVE(2)
MOVE(4)
MOVE(8)

static int64_t bytes_of(kr_dtype dtype)
{
    return dtype == KR_DTYPE_F64 || dtype == KR_DTYPE_I64 ? 8 : dtype == KR_DTYPE_BF16 || dtype == KR_DTYPE_F16 ? 2 : 4;
}

static row_fn *move_of(kr_dtype dtype)
{
    return bytes_of(dtype) == 8 ? move_8 : bytes_of(dtype) == 2 ? move_2 : move_4;
}

static void copy_task(void *arg, int64_t task, int worker)
{
    (void)worker;
    const kr_copy_args *a = *(const kr_copy_args **)arg;
    const kr_walk *w = &a->walk;
    int64_t per_task = kr_walk_rows_per_task(w), first = task * per_task;
    int64_t end = kr_ref_min(first + per_task, kr_walk_nrows(w)), n = kr_walk_length(w);
    int64_t y_bytes = bytes_of(a->y_dtype), x_bytes = bytes_of(a->x_dtype);
    row_fn *row = a->x_dtype == a->y_dtype ? move_of(a->x_dtype) : convert[a->y_dtype][a->x_dtype];
    kr_odometer at = kr_odometer_at(w, 2, first);
    for (int64_t i = first; i < end; i++, kr_odometer_next(&at))
        row((char *)a->y + at.offset[0] * y_bytes, kr_walk_step(w, 0), (const char *)a->x + at.offset[1] * x_bytes,
            kr_walk_step(w, 1), n);
}

void kr_ref_copy(const kr_copy_args *a)
{
    kr_walk_run(a->exec.pool, &a->walk, copy_task, &a);
}

/* A fill is a copy from one element with stride 0. */
void kr_ref_fill(const kr_fill_args *a)
{
    const kr_walk *w = &a->walk;
    int64_t nrows = kr_walk_nrows(w), n = kr_walk_length(w), y_bytes = bytes_of(a->dtype);
    union {
        uint16_t half;
        float single;
        double twice;
        int32_t narrow;
        int64_t wide;
    } value; /* one element of any type */
    convert[a->dtype][KR_DTYPE_F64](&value, 1, &a->value, 1, 1);
    row_fn *row = move_of(a->dtype);
    if (nrows == 0 || n == 0) return;
    kr_odometer at = kr_odometer_at(w, 1, 0);
    for (int64_t i = 0; i < nrows; i++, kr_odometer_next(&at))
        row((char *)a->y + at.offset[0] * y_bytes, kr_walk_step(w, 0), &value, 0, n);
}
