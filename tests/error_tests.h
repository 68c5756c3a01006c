/* error_tests.h - error tests: a context and a tape for each test, and the exact text of an error. */
#ifndef KR_TESTS_ERROR_TESTS_H
#define KR_TESTS_ERROR_TESTS_H

#include "tests/harness.h"

static kr_ctx *ctx;
static kr_tape *t;

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    t = kr_tape_create(ctx, KR_TAPE_GRAD);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* The call gives nothing and leaves exactly this error; the error is cleared. */
#define REFUSED(status, text, call)                                                                                    \
    do {                                                                                                               \
        kr_tape_reset(t);                                                                                              \
        CHECK(!(call), "%s is not refused", #call);                                                                    \
        CHECK_ERROR(ctx, (status), (text));                                                                            \
    } while (0)

/* The same of a call with a status. */
#define REFUSED_STATUS(status, text, call)                                                                             \
    do {                                                                                                               \
        kr_tape_reset(t);                                                                                              \
        CHECK((call) == (status), "%s is not refused", #call);                                                         \
        CHECK_ERROR(ctx, (status), (text));                                                                            \
    } while (0)

#define F(...) kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(__VA_ARGS__))
#define D(...) kr_zeros(t, KR_DTYPE_F64, KR_SHAPE(__VA_ARGS__))
#define H(...) kr_zeros(t, KR_DTYPE_BF16, KR_SHAPE(__VA_ARGS__))
#define I(...) kr_zeros(t, KR_DTYPE_I32, KR_SHAPE(__VA_ARGS__))

#endif
