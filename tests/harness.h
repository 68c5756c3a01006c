/* harness.h - the test programs' frame: tests register themselves, checks say what went wrong, the last line counts.
 *
 *   TEST(scale_doubles)
 *   {
 *       CHECK(kr_item(y) == 6, "got %g", kr_item(y));
 *   }
 *
 * A test passes if none of its checks failed; SKIP leaves it and counts it as skipped. Programs take a part of a name
 * to run only such tests. KR_TEST_SEED sets the seed (printed with every failure), KR_TEST_QUICK shrinks the sweeps.
 * After KR_TEST_SECONDS no test is begun: the rest is skipped, and counted.
 */
#ifndef KR_TESTS_HARNESS_H
#define KR_TESTS_HARNESS_H

#include <krait/experimental/testing.h>
#include <krait/krait.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void kr_test_fn(void);

void kr_test_register(const char *file, const char *name, kr_test_fn *fn);

#define TEST(name)                                                                                                     \
    static void test_##name(void);                                                                                     \
    __attribute__((constructor)) static void register_##name(void)                                                     \
    {                                                                                                                  \
        kr_test_register(__FILE__, #name, test_##name);                                                                \
    }                                                                                                                  \
    static void test_##name(void)

/* Counts a failure of the running test and prints the text, at most some dozen times a test. Returns ok. */
bool kr_test_check(bool ok, const char *file, int line, const char *format, ...) KR_PRINTF(4, 5);
#define CHECK(cond, ...) kr_test_check((cond), __FILE__, __LINE__, __VA_ARGS__)

/* The message of ctx's error is exactly `text` (or contains it); the error is cleared. */
bool kr_test_error(kr_ctx *ctx, kr_status status, const char *text, bool whole, const char *file, int line);
#define CHECK_ERROR(ctx, status, text) kr_test_error((ctx), (status), (text), true, __FILE__, __LINE__)
#define CHECK_ERROR_HAS(ctx, status, part) kr_test_error((ctx), (status), (part), false, __FILE__, __LINE__)

/* A call whose status the test does not need: what it does, or the context's error, is checked. */
#define IGNORE(call) ((void)((call) == KR_OK))

/* No error in ctx. */
#define CHECK_OK(ctx) CHECK(!kr_ctx_failed(ctx), "unexpected error: %s", kr_ctx_message(ctx))

/* Compares `count` values laid out as `shape` (NULL: flat): |got - want| <= tolerance * max(|want| over all, floor).
 * NaN matches NaN, infinity the same infinity. On failure prints the worst element with its index and both values. */
bool kr_test_close(const char *what, const double *got, const double *want, int64_t count, const kr_shape *shape,
                   double tolerance, double floor, const char *file, int line);
#define CHECK_CLOSE(what, got, want, count, shape, tolerance, floor)                                                   \
    kr_test_close((what), (got), (want), (count), (shape), (tolerance), (floor), __FILE__, __LINE__)

/* Two tensors by the same rule, and two tensors to the bit (type, shape, every byte in row-major order). */
bool kr_test_tensors_close(const char *what, const kr_tensor *got, const kr_tensor *want, double tolerance,
                           double floor, const char *file, int line);
#define CHECK_TENSORS(what, got, want, tolerance, floor)                                                               \
    kr_test_tensors_close((what), (got), (want), (tolerance), (floor), __FILE__, __LINE__)
bool kr_test_tensors_equal(const char *what, const kr_tensor *got, const kr_tensor *want, const char *file, int line);
#define CHECK_SAME_BITS(what, got, want) kr_test_tensors_equal((what), (got), (want), __FILE__, __LINE__)

/* Leaves the test. */
void kr_test_skip(const char *why);
#define SKIP(why)                                                                                                      \
    do {                                                                                                               \
        kr_test_skip(why);                                                                                             \
        return;                                                                                                        \
    } while (0)

bool kr_test_quick(void);
uint64_t kr_test_seed(void);

/* A small generator for test data: the same sequence for each test, by the seed. */
uint64_t kr_test_next(void);

/* Restarts it by the seed and a name: data of one case of a table then do not depend on the cases before it. */
void kr_test_restart(const char *name);
int64_t kr_test_below(int64_t n);
double kr_test_uniform(double low, double high);
double kr_test_normal(void);

/* A context with defaults but for threads and isa (0, NULL: default); the test's seed. Never NULL. */
kr_ctx *kr_test_ctx(int threads, const char *isa);

/* All elements as f64, to be freed. */
double *kr_test_values(const kr_tensor *x);

/* All elements of x, row-major and of its own type, freed when the test ends; NULL for NULL. */
void *kr_test_copy(const kr_tensor *x);

/* Writes elements of x's own type over all of x, which is contiguous, or `value` over the one at the row-major place `at`.
 * */
void kr_test_write(kr_tensor *x, const void *elements);
void kr_test_put(kr_tensor *x, int64_t at, double value);

/* Are the context's floats on a device of their own? Figures of memory are others there. */
bool kr_test_on_device(const kr_ctx *ctx);

/* Difference quotients are asked for every so many elements: of all on the processor, of fewer on a device of the context's
 * own (NULL: the one that KR_DEVICE names), where each is a run that waits for the device. */
int64_t kr_test_difference_step(const kr_ctx *ctx);

/* Do sizes and layouts choose the kernels of the context's device, as they do on CUDA? Then bits are the same from run to
 * run and whatever other rows hold, but the same sums in other company may be added in another order. NULL: the device
 * that KR_DEVICE names. */
bool kr_test_chooses(const kr_ctx *ctx);

/* To the bit; by the rule of CHECK_TENSORS on a device that chooses. */
#define CHECK_SAME(ctx, what, got, want, tolerance, floor)                                                             \
    (kr_test_chooses(ctx) ? CHECK_TENSORS(what, got, want, tolerance, floor) : CHECK_SAME_BITS(what, got, want))

#endif
