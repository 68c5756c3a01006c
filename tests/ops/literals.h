/* literals.h - small tensors from literals, and their comparison with literals, for every type and instruction set. */
#ifndef KR_TESTS_OPS_LITERALS_H
#define KR_TESTS_OPS_LITERALS_H

#include "tests/ops/cases.h"

/* OF(t, KR_DTYPE_F32, KR_SHAPE(2, 2), 1, 2, 3, 4) */
static inline kr_tensor *values_of(kr_tape *t, kr_dtype dtype, kr_shape shape, const double *values)
{
    return kr_cast(t, kr_from_data(t, KR_DTYPE_F64, shape, values), dtype);
}
#define OF(t, dtype, shape, ...) values_of((t), (dtype), (shape), (const double[]){ __VA_ARGS__ })

/* y is exactly these elements in this shape; or within the tolerance, relative to the largest. */
static inline bool values_are(const kr_tensor *y, kr_shape shape, const double *values, double tolerance, int line)
{
    char want[128], got[128];
    if (!kr_test_check(y != NULL, __FILE__, line, "line %d: the tensor is NULL", line)) return false;
    bool same = kr_tensor_rank(y) == shape.rank;
    int64_t count = 1;
    size_t at = 0;
    want[0] = '\0';
    for (int i = 0; i < shape.rank; i++) {
        same = same && kr_tensor_dim(y, i) == shape.dims[i];
        count *= shape.dims[i];
        at += (size_t)snprintf(want + at, sizeof want - at, "%s%lld", i ? ", " : "", (long long)shape.dims[i]);
    }
    if (!kr_test_check(same, __FILE__, line, "line %d: shape %s, but expected [%s]", line,
                       kr_shape_text(y, got, sizeof got), want))
        return false;
    double *found = kr_test_values(y);
    snprintf(got, sizeof got, "line %d, %s", line, kr_dtype_name(kr_tensor_dtype(y)));
    const bool ok = kr_test_close(got, found, values, count, &shape, tolerance, 0, __FILE__, line);
    free(found);
    return ok;
}
#define IS(y, shape, ...) values_are((y), (shape), (const double[]){ __VA_ARGS__ }, 0, __LINE__)
#define NEAR(y, shape, ...)                                                                                            \
    values_are((y), (shape), (const double[]){ __VA_ARGS__ }, values_tolerance(kr_tensor_dtype(y)), __LINE__)
#define EMPTY(y, shape) values_are((y), (shape), (const double[]){ 0 }, 0, __LINE__)

/* A few roundings of the type. */
static inline double values_tolerance(kr_dtype dtype)
{
    return dtype == KR_DTYPE_F64 ? 1e-15 : dtype == KR_DTYPE_F32 ? 4e-7 : dtype == KR_DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
}

typedef void values_fn(kr_tape *t, kr_dtype d);

/* Runs fn with every float type (or every type) on every instruction set. */
static inline void values_everywhere(values_fn *fn, bool integers)
{
    const char *isas[8];
    const int count = case_isas(isas);
    for (int n = 0; n < count; n++) {
        kr_ctx *ctx = kr_test_ctx(1, isas[n]);
        for (int d = KR_DTYPE_F32; d <= (integers ? KR_DTYPE_I64 : KR_DTYPE_F16); d++) {
            kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
            fn(tape, (kr_dtype)d);
            CHECK(!kr_ctx_failed(ctx), "%s %s: %s", isas[n], kr_dtype_name((kr_dtype)d), kr_ctx_message(ctx));
            kr_tape_destroy(tape);
            kr_ctx_clear(ctx);
        }
        kr_ctx_destroy(ctx);
    }
}
#define FLOAT_TEST(name)                                                                                               \
    static void body_##name(kr_tape *t, kr_dtype d);                                                                   \
    TEST(name)                                                                                                         \
    {                                                                                                                  \
        values_everywhere(body_##name, false);                                                                         \
    }                                                                                                                  \
    static void body_##name(kr_tape *t, kr_dtype d)
#define TYPE_TEST(name)                                                                                                \
    static void body_##name(kr_tape *t, kr_dtype d);                                                                   \
    TEST(name)                                                                                                         \
    {                                                                                                                  \
        values_everywhere(body_##name, true);                                                                          \
    }                                                                                                                  \
    static void body_##name(kr_tape *t, kr_dtype d)

#endif
