/* conformance.c - runs a case on one set, compares two runs, and the three modes of a sweep. */
#include "tests/kernels/conformance.h"

#include "base/alloc.h"
#include "base/cpu.h"
#include "kernels/select.h"

enum { GUARD = 256, GUARD_BYTE = 0xa5 };

/* Contents of unwritten memory: a NaN that no kernel produces. */
static const uint32_t untouched_f32 = 0x7fc5beefu;
static const uint64_t untouched_f64 = 0x7ff85eedbeefbeefu;

/* ---- kernels.def as a list ---- */

#define KR_KERNEL(name, args) kr_cases_fn kr_cases_##name;
#define KR_KERNEL_ANY(name, args) kr_cases_fn kr_cases_##name;
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY

#define CALLS(name, args, slot)                                                                                        \
    _Static_assert(offsetof(args, exec) == 0, "arguments begin with exec");                                            \
    static bool has_##name(const kr_kernels *set, int real)                                                            \
    {                                                                                                                  \
        (void)real;                                                                                                    \
        return set->slot.run != NULL;                                                                                  \
    }                                                                                                                  \
    static void run_##name(const kr_kernels *set, int real, const void *a)                                             \
    {                                                                                                                  \
        (void)real;                                                                                                    \
        set->slot.run(a);                                                                                              \
    }                                                                                                                  \
    static size_t scratch_##name(const kr_kernels *set, int real, const void *a)                                       \
    {                                                                                                                  \
        (void)real;                                                                                                    \
        return set->slot.scratch ? set->slot.scratch(a) : 0;                                                           \
    }
#define KR_KERNEL(name, args) CALLS(name, args, name[real])
#define KR_KERNEL_ANY(name, args) CALLS(name, args, name)
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY

#define KR_KERNEL(name, args) { #name, true, has_##name, run_##name, scratch_##name, kr_cases_##name },
#define KR_KERNEL_ANY(name, args) { #name, false, has_##name, run_##name, scratch_##name, kr_cases_##name },
static const kr_kernel kernels[] = {
#include "kernels/kernels.def"
};
#undef KR_KERNEL
#undef KR_KERNEL_ANY

const kr_kernel *kr_kernel_named(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    return NULL;
}

const kr_kernels *kr_runnable_set(int n)
{
    for (int i = 0; kr_kernels_nth(i); i++)
        if (kr_kernels_runnable(kr_kernels_nth(i), kr_cpu_features()) && n-- == 0) return kr_kernels_nth(i);
    return n == 0 ? device_kernels() : NULL;
}

const kr_kernels *kr_judged_set(int n)
{
    if (!device_is_requested()) return kr_runnable_set(n);
    return n == 0 ? device_kernels() : NULL;
}

kr_pool *kr_test_pool(int nthreads)
{
    enum { MOST = 8 };
    static kr_memory memory;
    static kr_pool *pools[MOST + 1];
    if (!memory.hooks.alloc) kr_memory_init(&memory, NULL);
    if (!pools[nthreads]) pools[nthreads] = kr_pool_create(&memory, nthreads, false);
    if (!pools[nthreads]) exit(2);
    return pools[nthreads];
}

/* ---- one run ---- */

_Static_assert(offsetof(kr_operand, dtype) == offsetof(kr_matrix, dtype) && offsetof(kr_operand, data) == 0 &&
                   offsetof(kr_matrix, data) == 0,
               "the type of an operand is at one place");

typedef struct run_memory {
    char *block, *data;
    char *before; /* outputs: a copy of the contents before the run */
    size_t element, bytes, whole;
    int dtype;
} run_memory;

typedef struct run_result {
    run_memory memory[KR_MAX_OPERANDS];
} run_result;

static void *must_alloc(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) exit(2);
    return p;
}

static void fill_reals(run_memory *m, const kr_case_operand *o, bool magnitudes)
{
    const bool single = m->dtype == KR_DTYPE_F32;
    for (int64_t i = 0; i < o->count; i++) {
        const double v = !o->value ? 0 : magnitudes ? fabs(o->value[i]) : o->value[i];
        const float narrow = (float)v;
        char *to = m->data + (size_t)i * m->element; /* sizes are constants below: no call for each element */
        if (!o->value && single) memcpy(to, &untouched_f32, sizeof untouched_f32);
        else if (!o->value) memcpy(to, &untouched_f64, sizeof untouched_f64);
        else if (single) memcpy(to, &narrow, sizeof narrow);
        else memcpy(to, &v, sizeof v);
    }
}

/* Of 16-bit floats, little-endian. */
static void drop_signs(run_memory *m)
{
    for (size_t i = 1; i < m->bytes; i += 2) m->data[i] = (char)(m->data[i] & 0x7f);
}

/* Memory of an operand; `shift` elements off the allocation's alignment. */
static run_memory operand_create(const kr_case_operand *o, int real, bool magnitudes, int shift)
{
    run_memory m = { .dtype = o->dtype == KR_REAL ? (real == KR_REAL_F32 ? KR_DTYPE_F32 : KR_DTYPE_F64) : o->dtype };
    m.element = kr_dtype_bytes((kr_dtype)m.dtype);
    m.bytes = (size_t)o->count * m.element;
    const size_t guard = o->is_output ? GUARD : 0, skip = guard + (size_t)shift * m.element;
    m.whole = skip + m.bytes + guard;
    m.block = must_alloc(m.whole);
    memset(m.block, GUARD_BYTE, m.whole);
    m.data = m.block + skip;
    if (o->dtype == KR_REAL) fill_reals(&m, o, magnitudes);
    else if (o->bytes) memcpy(m.data, o->bytes, m.bytes);
    if (magnitudes && (o->dtype == KR_DTYPE_BF16 || o->dtype == KR_DTYPE_F16)) drop_signs(&m);
    if (o->is_output) {
        m.before = must_alloc(m.bytes);
        memcpy(m.before, m.data, m.bytes);
    }
    return m;
}

static bool all_guard(const char *p, size_t n)
{
    return n == 0 || ((unsigned char)p[0] == GUARD_BYTE && memcmp(p, p + 1, n - 1) == 0);
}

static void result_free(run_result *r)
{
    for (int i = 0; i < KR_MAX_OPERANDS; i++) {
        free(r->memory[i].block);
        free(r->memory[i].before);
    }
}

/* The kernel, set and thread count of a run. */
typedef struct runner {
    const kr_kernel *kernel;
    const kr_tolerance *tolerance;
    const kr_kernels *set;
    int real;
    kr_pool *pool;
    void (*edit)(void *), (*edit_more)(void *);
    bool magnitudes;
    bool same_places; /* operands at the alignments of the last run */
} runner;

static const char *real_name(const runner *who)
{
    if (!who->kernel->has_reals) return "any";
    return who->real == KR_REAL_F32 ? "f32" : "f64";
}

static char *scratch_create(size_t bytes)
{
    const size_t whole = (bytes + GUARD + 63) / 64 * 64;
    char *scratch = aligned_alloc(64, whole);
    if (!scratch) exit(2);
    memset(scratch, 0xff, bytes); /* NaN */
    memset(scratch + bytes, GUARD_BYTE, whole - bytes);
    return scratch;
}

void kr_run_spans(const kr_kernel *kernel, const kr_kernels *set, int real, kr_pool *pool, const void *args,
                  size_t args_bytes, const kr_span *spans, int count, const char *text)
{
    char *args_copy = must_alloc(args_bytes);
    memcpy(args_copy, args, args_bytes);
    bool ok;
    if (set == device_kernels()) ok = device_run_count(kernel, real, args_copy, spans, count, text);
    else {
        kr_exec *exec = (kr_exec *)(void *)args_copy;
        *exec = (kr_exec){ .pool = pool };
        const size_t scratch_bytes = kernel->scratch(set, real, args_copy);
        char *scratch = scratch_create(scratch_bytes);
        exec->scratch = scratch;
        kernel->run(set, real, args_copy);
        ok = all_guard(scratch + scratch_bytes, GUARD);
        free(scratch);
    }
    CHECK(ok, "%s, %s, %s: wrote past its scratch", kernel->name, set->name, text);
    free(args_copy);
}

static run_result run_case(const runner *who, const kr_case *c)
{
    static unsigned count; /* every run has its operands at other alignments */
    if (!who->same_places) count++;
    char *args = must_alloc(c->args_bytes);
    memcpy(args, c->args, c->args_bytes);
    run_result r = { 0 };
    kr_span spans[KR_MAX_OPERANDS];
    for (int i = 0; i < c->noperands; i++) {
        const kr_case_operand *o = &c->operands[i];
        run_memory *m = &r.memory[i];
        *m = operand_create(o, who->real, who->magnitudes, (int)((count + (unsigned)i * 3) % 5));
        const size_t also = o->also & ~(size_t)KR_IS_TYPED;
        spans[i] = (kr_span){ o->field, also, m->block, m->whole, o->is_output };
        void *p = m->data + o->first * (int64_t)m->element;
        memcpy(args + o->field, &p, sizeof p);
        if (also) memcpy(args + also, &p, sizeof p);
        const kr_dtype dtype = (kr_dtype)m->dtype;
        if (o->is_typed) memcpy(args + o->field + offsetof(kr_operand, dtype), &dtype, sizeof dtype);
        if (o->also & KR_IS_TYPED) memcpy(args + also + offsetof(kr_operand, dtype), &dtype, sizeof dtype);
    }
    if (who->edit) who->edit(args);
    if (who->edit_more) who->edit_more(args);
    kr_run_spans(who->kernel, who->set, who->real, who->pool, args, c->args_bytes, spans, c->noperands, c->text);
    free(args);
    for (int i = 0; i < c->noperands; i++) {
        const run_memory *m = &r.memory[i];
        if (c->operands[i].is_output)
            CHECK(all_guard(m->block, (size_t)(m->data - m->block)) && all_guard(m->data + m->bytes, GUARD),
                  "%s, %s %s, %s: wrote outside of %s", who->kernel->name, who->set->name, real_name(who), c->text,
                  c->operands[i].name);
    }
    return r;
}

/* ---- comparing ---- */

static double real_at(const run_memory *m, int64_t i)
{
    float single;
    double value;
    if (m->dtype == KR_DTYPE_F64) {
        memcpy(&value, m->data + (size_t)i * sizeof value, sizeof value);
        return value;
    }
    memcpy(&single, m->data + (size_t)i * sizeof single, sizeof single);
    return (double)single;
}

/* memcmp(a, b, element) == 0, without a call for each element. */
static bool same_element(const char *a, const char *b, size_t element)
{
    uint64_t x = 0, y = 0;
    if (element == sizeof(uint32_t)) {
        uint32_t x4, y4;
        memcpy(&x4, a, sizeof x4);
        memcpy(&y4, b, sizeof y4);
        return x4 == y4;
    }
    if (element != sizeof x) return memcmp(a, b, element) == 0;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x == y;
}

static bool touched(const run_memory *m, int64_t i)
{
    return !same_element(m->data + (size_t)i * m->element, m->before + (size_t)i * m->element, m->element);
}

static double ulp_of(double want, int dtype)
{
    int exponent;
    frexp(want, &exponent);
    const int lowest = dtype == KR_DTYPE_F32 ? -125 : -1021, digits = dtype == KR_DTYPE_F32 ? 24 : 53;
    return ldexp(1, (exponent < lowest ? lowest : exponent) - digits);
}

static double limit_of(const runner *who, const kr_case *c, int dtype, double want, double scale)
{
    const kr_tolerance *t = who->tolerance;
    const double unit = dtype == KR_DTYPE_F32 ? 0x1p-24 : 0x1p-53;
    const double size = isfinite(scale) ? scale : 0, carried = (double)c->roundings * unit * size;
    if (strcmp(who->set->name, "ref") == 0 && !t->adds_in_place)
        return 0.501 * ulp_of(want, dtype) + carried +
               (double)(c->terms + 16) * 0x1p-53 * (size > fabs(want) ? size : fabs(want));
    double in_double = t->doubles * sqrt((double)c->terms) * 0x1p-53 * fmax(1, fabs(want));
    if (t->doubles > 0) in_double += carried;
    if (dtype == KR_DTYPE_F64 && who->set == device_kernels()) in_double += t->device_f64 * 0x1p-53 * fabs(want);
    return t->ulps * ulp_of(want, dtype) + (t->plain + t->root * sqrt((double)c->terms)) * unit * size + in_double;
}

/* The error in units of the tolerance: at most 1 is right. */
static double real_error(const runner *who, const kr_case *c, int dtype, double got, double want, double scale)
{
    const kr_tolerance *t = who->tolerance;
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : (double)INFINITY;
    if (t->exact) {
        const double rounded = dtype == KR_DTYPE_F32 ? (double)(float)want : want;
        const bool same = got == rounded && (t->any_zero || !signbit(got) == !signbit(rounded));
        return same ? 0 : (double)INFINITY;
    }
    if (isinf(want)) return got == want ? 0 : (double)INFINITY;
    if (dtype == KR_DTYPE_F32) { /* infinity counts as 2^128, the next number if there were one */
        if (fabs(want) > 0x1p128) want = copysign(0x1p128, want);
        if (isinf(got)) got = copysign(0x1p128, got);
    }
    const double error = fabs(got - want);
    return error == 0 ? 0 : error / limit_of(who, c, dtype, want, scale);
}

static const char *index_text(const kr_case_operand *o, int64_t flat, char *text, size_t bytes)
{
    if (o->shape.rank == 0) {
        snprintf(text, bytes, "[%lld]", (long long)(flat - o->first));
        return text;
    }
    int64_t index[KR_MAX_RANK];
    for (int axis = o->shape.rank - 1; axis >= 0; axis--) {
        index[axis] = flat % o->shape.dims[axis];
        flat /= o->shape.dims[axis];
    }
    size_t at = 0;
    for (int axis = 0; axis < o->shape.rank && at < bytes; axis++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%lld", axis ? ", " : "[", (long long)index[axis]);
    if (at < bytes) snprintf(text + at, bytes - at, "]");
    return text;
}

static void compare_reals(const runner *who, const kr_case *c, int k, const run_memory *want, const run_memory *got,
                          const double *scale)
{
    const kr_case_operand *o = &c->operands[k];
    double worst = 0;
    int64_t where = -1, unwritten = -1, stray = -1;
    for (int64_t i = 0; i < o->count; i++) {
        if (!o->value && !touched(want, i)) {
            if (touched(got, i)) stray = i;
            continue;
        }
        if (!o->value && !touched(got, i)) {
            unwritten = i;
            continue;
        }
        const double w = real_at(want, i);
        const double error = real_error(who, c, got->dtype, real_at(got, i), w, scale ? scale[i] : fabs(w));
        if (error > worst) {
            worst = error;
            where = i;
        }
    }
    char text[128];
    const char *name = who->kernel->name, *set = who->set->name, *real = real_name(who);
    if (unwritten >= 0)
        CHECK(false, "%s, %s %s, %s: %s%s is not written", name, set, real, c->text, o->name,
              index_text(o, unwritten, text, sizeof text));
    if (stray >= 0)
        CHECK(false, "%s, %s %s, %s: %s%s is written, but is between the elements", name, set, real, c->text, o->name,
              index_text(o, stray, text, sizeof text));
    if (!(worst <= 1))
        CHECK(false, "%s, %s %s, %s: %s worst %s  got %.9g  want %.9g  (%.3g times what is allowed)", name, set, real,
              c->text, o->name, index_text(o, where, text, sizeof text), real_at(got, where), real_at(want, where),
              worst);
}

static bool is_half_nan(int dtype, const char *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return dtype == KR_DTYPE_BF16 ? (bits & 0x7fffu) > 0x7f80u : dtype == KR_DTYPE_F16 && (bits & 0x7fffu) > 0x7c00u;
}

/* Elements of fixed types: the same bytes, except that all NaNs are equal. */
static void compare_raw(const runner *who, const kr_case *c, int k, const run_memory *want, const run_memory *got)
{
    const kr_case_operand *o = &c->operands[k];
    if (memcmp(want->data, got->data, want->bytes) == 0) return;
    for (int64_t i = 0; i < o->count; i++) {
        const char *w = want->data + (size_t)i * want->element, *g = got->data + (size_t)i * got->element;
        if (memcmp(w, g, want->element) == 0) continue;
        const bool real = o->dtype == KR_DTYPE_F32 || o->dtype == KR_DTYPE_F64;
        if (real && isnan(real_at(want, i)) && isnan(real_at(got, i))) continue;
        if (is_half_nan(o->dtype, w) && is_half_nan(o->dtype, g)) continue;
        uint64_t w_bits = 0, g_bits = 0;
        memcpy(&w_bits, w, want->element);
        memcpy(&g_bits, g, got->element);
        char text[128];
        CHECK(false, "%s, %s, %s: %s%s  got bits %llx  want %llx", who->kernel->name, who->set->name, c->text, o->name,
              index_text(o, i, text, sizeof text), (unsigned long long)g_bits, (unsigned long long)w_bits);
        return;
    }
}

/* ---- modes ---- */

static double *values_of(const run_memory *m, int64_t count)
{
    double *values = must_alloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = real_at(m, i);
    return values;
}

/* The first set's f64 kernel is the oracle; only: one set, or NULL for all of them. */
static void compare_values(kr_sweep *sweep, const kr_case *c, void (*edit)(void *), const kr_kernels *only)
{
    const int nreals = sweep->kernel->has_reals ? KR_NREALS : 1;
    const runner oracle = { .kernel = sweep->kernel, .set = kr_runnable_set(0), .real = KR_REAL_F64, .edit = edit };
    run_result want = run_case(&oracle, c);
    double *scales[KR_MAX_OPERANDS] = { NULL };
    if (c->by_magnitudes) {
        runner sizes = oracle;
        sizes.magnitudes = true;
        sizes.edit_more = c->for_scale;
        run_result r = run_case(&sizes, c);
        for (int k = 0; k < c->noperands; k++)
            if (c->operands[k].is_output && c->operands[k].dtype == KR_REAL)
                scales[k] = values_of(&r.memory[k], c->operands[k].count);
        result_free(&r);
    }
    for (int n = 0; kr_judged_set(n); n++) {
        for (int real = 0; real < nreals; real++) {
            const runner who = { .kernel = sweep->kernel,
                                 .tolerance = kr_tolerance_of(sweep->kernel->name),
                                 .set = kr_judged_set(n),
                                 .real = real,
                                 .edit = edit };
            if (!sweep->kernel->has(who.set, real) || (only && only != who.set)) continue;
            run_result got = run_case(&who, c);
            for (int k = 0; k < c->noperands; k++) {
                const kr_case_operand *o = &c->operands[k];
                if (!o->is_output) continue;
                if (o->dtype == KR_REAL)
                    compare_reals(&who, c, k, &want.memory[k], &got.memory[k], o->scale ? o->scale : scales[k]);
                else compare_raw(&who, c, k, &want.memory[k], &got.memory[k]);
            }
            result_free(&got);
        }
    }
    for (int k = 0; k < c->noperands; k++) free(scales[k]);
    result_free(&want);
}

/* Both results bit by bit; only_touched: where the second run wrote. */
static void same_bits(const runner *who, const kr_case *c, const run_result *want, const run_result *got,
                      bool only_touched, const char *law)
{
    for (int k = 0; k < c->noperands; k++) {
        const kr_case_operand *o = &c->operands[k];
        const run_memory *w = &want->memory[k], *g = &got->memory[k];
        if (!o->is_output || memcmp(w->data, g->data, w->bytes) == 0) continue;
        for (int64_t i = 0; i < o->count; i++) {
            if (only_touched && !touched(g, i)) continue;
            if (same_element(w->data + (size_t)i * w->element, g->data + (size_t)i * g->element, w->element)) continue;
            char text[128];
            const bool real = o->dtype == KR_REAL;
            CHECK(false, "%s, %s %s, %s: %s%s %s: %.9g and %.9g", who->kernel->name, who->set->name, real_name(who),
                  c->text, o->name, index_text(o, i, text, sizeof text), law, real ? real_at(w, i) : 0,
                  real ? real_at(g, i) : 0);
            break;
        }
    }
}

/* Sets between the first and the last are compiled from the last one's source, and f64 from that of f32: quick runs
 * skip them. */
static bool repeats_source(int n, int real)
{
    return kr_test_quick() && ((n > 0 && kr_judged_set(n + 1)) || real == KR_REAL_F64);
}

/* The same bits for any number of threads; on a device, which has none of ours, from run to run. */
static void law_of_threads(runner who, const kr_case *c, const run_result *whole)
{
    const bool on_device = who.set == device_kernels();
    who.same_places = on_device && kr_tolerance_of(who.kernel->name)->selects_kernel;
    for (int nthreads = kr_test_quick() || on_device ? 3 : 1; nthreads <= 3; nthreads++) {
        who.pool = kr_test_pool(nthreads);
        run_result threaded = run_case(&who, c);
        same_bits(&who, c, whole, &threaded, false, on_device ? "differs in a second run" : "differs with the threads");
        result_free(&threaded);
    }
}

static void law_of_rows(runner who, const kr_case *c, const run_result *whole)
{
    who.edit = c->first_row;
    run_result row = run_case(&who, c);
    same_bits(&who, c, whole, &row, true, "differs when its row is computed alone");
    result_free(&row);
}

static void sweep_law(kr_sweep *sweep, const kr_case *c)
{
    for (int n = 0; kr_judged_set(n); n++) {
        const bool by_value = sweep->mode == KR_SWEEP_ROWS && kr_judged_set(n) == device_kernels() &&
                              kr_tolerance_of(sweep->kernel->name)->selects_kernel;
        if (by_value) compare_values(sweep, c, c->first_row, device_kernels());
        for (int real = 0; !by_value && real < (sweep->kernel->has_reals ? KR_NREALS : 1); real++) {
            const runner who = { .kernel = sweep->kernel, .set = kr_judged_set(n), .real = real };
            if (!sweep->kernel->has(who.set, real) || repeats_source(n, real)) continue;
            run_result whole = run_case(&who, c);
            if (sweep->mode == KR_SWEEP_ROWS) law_of_rows(who, c, &whole);
            else law_of_threads(who, c, &whole);
            result_free(&whole);
        }
    }
}

/* KR_TEST_EVERY=n runs one case in n of each kernel and mode, always including the first: for tools that slow kernels
 * down a hundred times. */
static bool is_left_out(kr_sweep *sweep)
{
    const char *every = getenv("KR_TEST_EVERY");
    const int64_t n = every ? strtoll(every, NULL, 10) : 1;
    return n > 1 && sweep->nseen++ % n != 0;
}

static bool is_of_mode(const kr_sweep *sweep, const kr_case *c)
{
    switch (sweep->mode) {
    case KR_SWEEP_THREADS: return c->many_tasks;
    case KR_SWEEP_ROWS: return c->first_row && !(kr_test_quick() && c->many_tasks);
    default: return true;
    }
}

void case_done(kr_sweep *sweep, kr_case *c)
{
    if (is_of_mode(sweep, c) && !is_left_out(sweep)) {
        sweep->ncases++;
        if (sweep->mode == KR_SWEEP_VALUES) compare_values(sweep, c, NULL, NULL);
        else sweep_law(sweep, c);
    }
    for (int i = 0; i < c->noperands; i++) {
        free(c->operands[i].value);
        free(c->operands[i].bytes);
        free(c->operands[i].scale);
    }
}

int64_t kr_sweep_run(const char *kernel, kr_sweep_mode mode)
{
    kr_sweep sweep = { .kernel = kr_kernel_named(kernel), .mode = mode };
    if (!CHECK(kr_tolerance_of(kernel) != NULL, "%s has no row in tolerance.c", kernel)) return 0;
    sweep.kernel->cases(&sweep);
    return sweep.ncases;
}
