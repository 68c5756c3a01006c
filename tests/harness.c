/* harness.c - registration, running, comparing and counting. */
#include "tests/harness.h"

#include <stdarg.h>
#include <time.h>

enum { MAX_TESTS = 1024, MAX_SHOWN = 12 };

static struct {
    const char *file, *name;
    kr_test_fn *fn;
} tests[MAX_TESTS];
static int ntests, nfailures;
static bool skipped;
static uint64_t seed = 1834, state;
static const char *current = "";

void kr_test_register(const char *file, const char *name, kr_test_fn *fn)
{
    if (ntests == MAX_TESTS) {
        fprintf(stderr, "more than %d tests in one program\n", MAX_TESTS);
        exit(2);
    }
    tests[ntests].file = file;
    tests[ntests].name = name;
    tests[ntests++].fn = fn;
}

static bool show(void)
{
    if (++nfailures == MAX_SHOWN + 1) printf("     ... more of %s\n", current);
    return nfailures <= MAX_SHOWN;
}

static const char *base_name(const char *file)
{
    const char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

bool kr_test_check(bool ok, const char *file, int line, const char *format, ...)
{
    if (ok || !show()) return ok;
    printf("FAIL %s, seed %llu, %s:%d: ", current, (unsigned long long)seed, base_name(file), line);
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    return false;
}

bool kr_test_error(kr_ctx *ctx, kr_status status, const char *text, bool whole, const char *file, int line)
{
    const char *got = kr_ctx_message(ctx);
    const bool right = kr_ctx_status(ctx) == status && (whole ? strcmp(got, text) == 0 : strstr(got, text) != NULL);
    kr_test_check(right, file, line, "error (%s)\n       got  %s\n       want %s%s", kr_status_name(kr_ctx_status(ctx)),
                  got, whole ? "" : "... ", text);
    kr_ctx_clear(ctx);
    return right;
}

static void print_index(int64_t flat, const kr_shape *shape)
{
    if (!shape || shape->rank == 0) {
        printf("[%lld]", (long long)flat);
        return;
    }
    int64_t index[KR_MAX_RANK];
    for (int axis = shape->rank - 1; axis >= 0; axis--) {
        index[axis] = flat % shape->dims[axis];
        flat /= shape->dims[axis];
    }
    for (int axis = 0; axis < shape->rank; axis++) printf("%s%lld", axis ? ", " : "[", (long long)index[axis]);
    printf("]");
}

bool kr_test_close(const char *what, const double *got, const double *want, int64_t count, const kr_shape *shape,
                   double tolerance, double floor, const char *file, int line)
{
    double scale = floor;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(want[i]) && fabs(want[i]) > scale) scale = fabs(want[i]);
    int64_t worst = -1;
    double worst_error = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = 0;
        if (isfinite(want[i]) && isfinite(got[i])) error = fabs(got[i] - want[i]) / (scale > 0 ? scale : 1);
        else if (!(isnan(want[i]) && isnan(got[i])) && got[i] != want[i]) error = INFINITY;
        if (error > worst_error) {
            worst_error = error;
            worst = i;
        }
    }
    if (worst < 0 || worst_error <= tolerance) return true;
    if (show()) {
        printf("FAIL %s, seed %llu, %s:%d: %s: worst ", current, (unsigned long long)seed, base_name(file), line, what);
        print_index(worst, shape);
        printf("  got %.9g  want %.9g  (rel %.2g > %.2g)\n", got[worst], want[worst], worst_error, tolerance);
    }
    return false;
}

double *kr_test_values(const kr_tensor *x)
{
    const int64_t count = kr_tensor_count(x);
    double *values = malloc((size_t)(count ? count : 1) * sizeof *values);
    if (!values) exit(2);
    kr_tensor_read(x, KR_DTYPE_F64, values, count);
    return values;
}

/* ---- elements, in host or device memory ---- */

typedef struct copy {
    struct copy *next;
    _Alignas(16) char elements[];
} copy;
static copy *copies; /* of the running test */

static void free_copies(copy *until)
{
    while (copies != until) {
        copy *next = copies->next;
        free(copies);
        copies = next;
    }
}

void *kr_test_copy(const kr_tensor *x)
{
    if (!x) return NULL;
    const int64_t count = kr_tensor_count(x);
    copy *made = malloc(sizeof *made + (size_t)count * kr_dtype_bytes(kr_tensor_dtype(x)));
    if (!made) exit(2);
    made->next = copies;
    copies = made;
    kr_tensor_read(x, kr_tensor_dtype(x), made->elements, count);
    return made->elements;
}

bool kr_test_chooses(const kr_ctx *ctx)
{
    const char *device = ctx ? kr_ctx_device(ctx) : getenv("KR_DEVICE");
    return device && strncmp(device, "cuda", 4) == 0;
}

bool kr_test_on_device(const kr_ctx *ctx)
{
    return strcmp(kr_ctx_device(ctx), "cpu") != 0;
}

int64_t kr_test_difference_step(const kr_ctx *ctx)
{
    const char *device = ctx ? kr_ctx_device(ctx) : getenv("KR_DEVICE");
    return !device || !*device || strcmp(device, "cpu") == 0 ? 1 : 7;
}

void kr_test_write(kr_tensor *x, const void *elements)
{
    kr_tensor_write(x, kr_tensor_dtype(x), elements, kr_tensor_count(x));
}

void kr_test_put(kr_tensor *x, int64_t at, double value)
{
    const kr_dtype dtype = kr_tensor_dtype(x);
    copy *before = copies;
    char *all = kr_test_copy(x);
    if (dtype == KR_DTYPE_F64) ((double *)(void *)all)[at] = value;
    else if (dtype == KR_DTYPE_F32) ((float *)(void *)all)[at] = (float)value;
    else if (dtype == KR_DTYPE_I64) ((int64_t *)(void *)all)[at] = (int64_t)value;
    else if (dtype == KR_DTYPE_I32) ((int32_t *)(void *)all)[at] = (int32_t)value;
    else exit(2);
    kr_test_write(x, all);
    free_copies(before);
}

static bool same_shape(const char *what, const kr_tensor *got, const kr_tensor *want, const char *file, int line)
{
    if (!got || !want)
        return kr_test_check(false, file, line, "%s: %s is NULL", what, got ? "the expected tensor" : "the tensor");
    char a[128], b[128];
    bool same = kr_tensor_rank(got) == kr_tensor_rank(want);
    for (int axis = 0; same && axis < kr_tensor_rank(got); axis++)
        same = kr_tensor_dim(got, axis) == kr_tensor_dim(want, axis);
    return kr_test_check(same, file, line, "%s: shape %s, but expected %s", what, kr_shape_text(got, a, sizeof a),
                         kr_shape_text(want, b, sizeof b));
}

bool kr_test_tensors_close(const char *what, const kr_tensor *got, const kr_tensor *want, double tolerance,
                           double floor, const char *file, int line)
{
    if (!same_shape(what, got, want, file, line)) return false;
    double *a = kr_test_values(got), *b = kr_test_values(want);
    const kr_shape shape = kr_tensor_shape(got);
    const bool ok = kr_test_close(what, a, b, kr_tensor_count(got), &shape, tolerance, floor, file, line);
    free(a);
    free(b);
    return ok;
}

bool kr_test_tensors_equal(const char *what, const kr_tensor *got, const kr_tensor *want, const char *file, int line)
{
    if (!same_shape(what, got, want, file, line)) return false;
    const kr_dtype dtype = kr_tensor_dtype(got);
    if (!kr_test_check(dtype == kr_tensor_dtype(want), file, line, "%s: type %s, but expected %s", what,
                       kr_dtype_name(dtype), kr_dtype_name(kr_tensor_dtype(want))))
        return false;
    const int64_t count = kr_tensor_count(got);
    const size_t bytes = kr_dtype_bytes(dtype);
    char *a = malloc((size_t)count * bytes + 1), *b = malloc((size_t)count * bytes + 1);
    if (!a || !b) exit(2);
    kr_tensor_read(got, dtype, a, count);
    kr_tensor_read(want, dtype, b, count);
    int64_t first = -1;
    for (int64_t i = 0; i < count && first < 0; i++)
        if (memcmp(a + i * (int64_t)bytes, b + i * (int64_t)bytes, bytes) != 0) first = i;
    free(a);
    free(b);
    if (first < 0) return true;
    double *x = kr_test_values(got), *y = kr_test_values(want);
    if (show()) {
        const kr_shape shape = kr_tensor_shape(got);
        printf("FAIL %s, seed %llu, %s:%d: %s: bits differ first at ", current, (unsigned long long)seed,
               base_name(file), line, what);
        print_index(first, &shape);
        printf("  got %.17g  want %.17g\n", x[first], y[first]);
    }
    free(x);
    free(y);
    return false;
}

void kr_test_skip(const char *why)
{
    printf("skip %s: %s\n", current, why);
    skipped = true;
}

bool kr_test_quick(void)
{
    const char *text = getenv("KR_TEST_QUICK");
    return text && *text && strcmp(text, "0") != 0;
}

uint64_t kr_test_seed(void)
{
    return seed;
}

/* SplitMix64 */
uint64_t kr_test_next(void)
{
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void kr_test_restart(const char *name)
{
    state = seed;
    for (; *name; name++) state = kr_test_next() ^ (unsigned char)*name;
}

int64_t kr_test_below(int64_t n)
{
    return (int64_t)(kr_test_next() % (uint64_t)n);
}

double kr_test_uniform(double low, double high)
{
    return low + (high - low) * ((double)(kr_test_next() >> 11) * 0x1p-53);
}

double kr_test_normal(void)
{
    const double u = 1.0 - kr_test_uniform(0, 1), v = kr_test_uniform(0, 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

kr_ctx *kr_test_ctx(int threads, const char *isa)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = threads;
    options.isa = isa;
    options.seed = seed;
    kr_ctx *ctx = kr_ctx_create(&options);
    if (!ctx) exit(2);
    CHECK_OK(ctx);
    return ctx;
}

/* KR_TEST_PART=i/n: every n-th of the selected tests, from the i-th on, so that n programs share them. */
static bool is_of_part(int number)
{
    const char *text = getenv("KR_TEST_PART");
    int part = 0, parts = 1;
    return !text || sscanf(text, "%d/%d", &part, &parts) != 2 || parts < 1 || number % parts == part;
}

/* KR_TEST_SECONDS=n from now; 0: no limit. */
static time_t end_of_time(void)
{
    const char *text = getenv("KR_TEST_SECONDS");
    return text ? time(NULL) + (time_t)strtol(text, NULL, 10) : 0;
}

int main(int argc, char **argv)
{
    if (getenv("KR_TEST_SEED")) seed = strtoull(getenv("KR_TEST_SEED"), NULL, 10);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const time_t end = end_of_time();
    int npassed = 0, nfailed = 0, nskipped = 0, nasked = 0;
    for (int i = 0; i < ntests; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s/%s", base_name(tests[i].file), tests[i].name);
        if ((argc > 1 && !strstr(name, argv[1])) || !is_of_part(nasked++)) continue;
        if (end && time(NULL) >= end) {
            nskipped++;
            continue;
        }
        current = name;
        nfailures = 0;
        skipped = false;
        state = seed;
        const clock_t start = clock();
        tests[i].fn();
        free_copies(NULL);
        const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (nfailures) nfailed++;
        else if (skipped) nskipped++;
        else npassed++;
        if (getenv("KR_TEST_VERBOSE")) printf("%s %s %.2f s\n", nfailures ? "FAIL" : "ok  ", name, seconds);
    }
    if (nfailed) printf("seed %llu\n", (unsigned long long)seed);
    printf("%d passed, %d failed", npassed, nfailed);
    if (nskipped) printf(", %d skipped", nskipped);
    printf("\n");
    return nfailed ? 1 : 0;
}
