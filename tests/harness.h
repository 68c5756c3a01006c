/* harness.h - the framework of the test programs: tests register themselves, checks report failures, the last line
 * counts.
 *
 *   TEST(scale_doubles)
 *   {
 *       CHECK(kr_item(y) == 6, "got %g", kr_item(y));
 *   }
 *
 * A test passes if none of its checks failed; SKIP leaves it and counts it as skipped. Programs take a part of a name
 * to run only such tests. KR_TEST_SEED sets the seed (printed with every failure), KR_TEST_QUICK shrinks the sweeps.
 * After KR_TEST_SECONDS no test is started: the remaining ones are skipped, and counted.
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

/* Counts a failure of the running test and prints the text, limited to some dozen per test. Returns ok. */
bool kr_test_check(bool ok, const char *file, int line, const char *format, ...) KR_PRINTF(4, 5);
#define CHECK(cond, ...) kr_test_check((cond), __FILE__, __LINE__, __VA_ARGS__)

/* The message of ctx's error is exactly `text` (or contains it); the error is cleared. */
bool kr_test_error(kr_ctx *ctx, kr_status status, const char *text, bool whole, const char *file, int line);
#define CHECK_ERROR(ctx, status, text) kr_test_error((ctx), (status), (text), true, __FILE__, __LINE__)
#define CHECK_ERROR_HAS(ctx, status, part) kr_test_error((ctx), (status), (part), false, __FILE__, __LINE__)

/* A call whose status the test does not need: its effect, or the context's error, is checked. */
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

/* Restarts it by the seed and a name: data of one case of a table then do not depend on the previous cases. */
void kr_test_restart(const char *name);
int64_t kr_test_below(int64_t n);
double kr_test_uniform(double low, double high);
double kr_test_normal(void);

/* A context with defaults but for threads and isa (0, NULL: default); the test's seed. Never NULL. */
kr_ctx *kr_test_ctx(int threads, const char *isa);

/* All elements as f64, to be freed. */
double *kr_test_values(const kr_tensor *x);

/* All elements of x, row-major and of its type, freed when the test ends; NULL for NULL. */
void *kr_test_copy(const kr_tensor *x);

/* Overwrites all of x, which is contiguous, with elements of its type, or the one at the row-major index `at` with
 * `value`. */
void kr_test_write(kr_tensor *x, const void *elements);
void kr_test_put(kr_tensor *x, int64_t at, double value);

/* Are the context's floats in device memory? Memory figures differ there. */
bool kr_test_on_device(const kr_ctx *ctx);

/* Stride of the elements for which difference quotients are computed: 1 on the CPU, more on a device (NULL: the one of
 * KR_DEVICE), where each is a run that waits for the device. */
int64_t kr_test_difference_step(const kr_ctx *ctx);

/* Does the context's device select kernels by sizes and layouts, as CUDA does? Then bits are reproducible from run to
 * run and independent of other rows, but the same sums at other sizes may be added in another order. NULL: the device
 * of KR_DEVICE. */
bool kr_test_chooses(const kr_ctx *ctx);

/* Bit-exact; by the rule of CHECK_TENSORS on a device that selects kernels. */
#define CHECK_SAME(ctx, what, got, want, tolerance, floor)                                                             \
    (kr_test_chooses(ctx) ? CHECK_TENSORS(what, got, want, tolerance, floor) : CHECK_SAME_BITS(what, got, want))

#endif
