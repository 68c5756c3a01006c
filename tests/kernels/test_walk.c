/* test_walk.c - the elementwise kernels and softmax over many layouts, against plain loops in double.
 *
 * Each operand is in a separate block of exactly the size its strides need, so that an address sanitizer sees any
 * access beyond. Memory between the elements of the output must stay unchanged.
 */
#include "tests/kernels/conformance.h"

#define ALPHA (-0.75)
#define BETA 1.25
#define PI 3.14159265358979323846

static uint32_t draw(uint32_t below)
{
    return (uint32_t)kr_test_below(below);
}

/* ---- expected results; x, y = f(x), g ---- */

typedef double exact_fn(double a, double b, double c);

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* clang-format off */
static double f_scale(double x) { return ALPHA * x + BETA; }
static double f_exp(double x) { return exp(x); }
static double f_log(double x) { return log(x); }
static double f_sqrt(double x) { return sqrt(x); }
static double f_rsqrt(double x) { return 1 / sqrt(x); }
static double f_sin(double x) { return sin(x); }
static double f_cos(double x) { return cos(x); }
static double f_tanh(double x) { return tanh(x); }
static double f_sigmoid(double x) { return sigmoid(x); }
static double f_silu(double x) { return x * sigmoid(x); }
static double f_softplus(double x) { return x > 20 ? x : log1p(exp(x)); }
static double f_log_sigmoid(double x) { return -f_softplus(-x); }
static double f_clamp(double x) { return fmin(fmax(x, ALPHA), BETA); }
static double f_abs(double x) { return fabs(x); }
static double f_relu(double x) { return fmax(x, 0); }
static double f_erf(double x) { return erf(x); }
static double f_gelu(double x) { return 0.5 * x * (1 + erf(x / sqrt(2))); }
static double f_gelu_tanh(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / PI) * (x + 0.044715 * x * x * x))); }
static double f_pow_scalar(double x) { return pow(x, ALPHA); }

static double d_scale(double x, double y) { (void)x, (void)y; return ALPHA; }
static double d_exp(double x, double y) { (void)x; return y; }
static double d_log(double x, double y) { (void)y; return 1 / x; }
static double d_sqrt(double x, double y) { (void)x; return 0.5 / y; }
static double d_rsqrt(double x, double y) { (void)x; return -0.5 * y * y * y; }
static double d_sin(double x, double y) { (void)y; return cos(x); }
static double d_cos(double x, double y) { (void)y; return -sin(x); }
static double d_tanh(double x, double y) { (void)x; return 1 - y * y; }
static double d_sigmoid(double x, double y) { (void)x; return y * (1 - y); }
static double d_silu(double x, double y) { (void)y; return sigmoid(x) * (1 + x * sigmoid(-x)); }
static double d_softplus(double x, double y) { (void)y; return sigmoid(x); }
static double d_log_sigmoid(double x, double y) { (void)y; return sigmoid(-x); }
static double d_clamp(double x, double y) { (void)y; return x >= ALPHA && x <= BETA; }
static double d_abs(double x, double y) { (void)y; return x > 0 ? 1 : -1; }
static double d_relu(double x, double y) { (void)y; return x > 0; }
static double d_erf(double x, double y) { (void)y; return 2 / sqrt(PI) * exp(-x * x); }
static double d_gelu(double x, double y) { (void)y; return 0.5 * (1 + erf(x / sqrt(2))) + x * exp(-x * x / 2) / sqrt(2 * PI); }
static double d_gelu_tanh(double x, double y)
{
    (void)y;
    const double t = tanh(sqrt(2 / PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / PI) * (1 + 3 * 0.044715 * x * x);
}
static double d_pow_scalar(double x, double y) { (void)y; return ALPHA * pow(x, ALPHA - 1); }

static double b_add(double a, double b, double c) { (void)c; return a + b; }
static double b_sub(double a, double b, double c) { (void)c; return a - b; }
static double b_mul(double a, double b, double c) { (void)c; return a * b; }
static double b_div(double a, double b, double c) { (void)c; return a / b; }
static double b_maximum(double a, double b, double c) { (void)c; return a > b ? a : b; }
static double b_minimum(double a, double b, double c) { (void)c; return a < b ? a : b; }
static double b_pow(double a, double b, double c) { (void)c; return pow(a, b); }
static double b_maximum_bwd(double a, double b, double g) { return a > b ? g : a == b ? g / 2 : 0; }
/* clang-format on */

/* ---- layouts ---- */

typedef struct operand {
    float *block;
    int64_t size, origin; /* elements in the block; offset of index 0 */
} operand;

enum { REPEAT = 1 }; /* the operand may have strides of 0 */

/* Gives operand o of the walk strides in a random order of axes, and a block for them. `plain` makes it row-major. */
static operand lay_out(kr_walk *walk, int o, int flags, bool plain)
{
    int order[KR_MAX_RANK];
    for (int i = 0; i < walk->rank; i++) order[i] = i;
    for (int i = walk->rank - 1; i > 0 && !plain; i--) {
        int j = (int)draw((uint32_t)i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    int64_t step = 1;
    operand x = { NULL, 1, 0 };
    for (int i = walk->rank - 1; i >= 0; i--) {
        int axis = order[i];
        int64_t n = walk->dims[axis], stride = plain ? step : step * (1 + draw(2));
        if ((flags & REPEAT) && draw(4) == 0) stride = 0;
        if (stride != 0 && n > 0) step = stride * n;
        if (!plain && draw(4) == 0) stride = -stride;
        walk->strides[o][axis] = stride;
        int64_t reach = n > 0 ? (n - 1) * stride : 0;
        x.size += llabs(reach);
        if (reach < 0) x.origin -= reach;
    }
    x.block = malloc((size_t)x.size * sizeof(float));
    if (!x.block) exit(2);
    for (int64_t i = 0; i < x.size; i++) x.block[i] = (float)(draw(3900) + 50) * 0.001f;
    return x;
}

static int64_t offset_of(const kr_walk *walk, int o, int64_t element)
{
    int64_t offset = 0;
    for (int axis = walk->rank - 1; axis >= 0; axis--) {
        offset += element % walk->dims[axis] * walk->strides[o][axis];
        element /= walk->dims[axis];
    }
    return offset;
}

static int64_t count_of(const kr_walk *walk)
{
    int64_t n = 1;
    for (int axis = 0; axis < walk->rank; axis++) n *= walk->dims[axis];
    return n;
}

static bool is_close(double got, double want)
{
    return fabs(got - want) <= 1e-5 * fabs(want) + 1e-6;
}

/* ---- one kernel over one layout ---- */

enum { UNARY = 1, BINARY, UNARY_BWD, MAXIMUM_BWD, MAXIMUM_BWD_OF_B, WHERE, WHERE_SCALAR };

typedef struct kernel {
    const char *name;
    int kind;
    double (*value)(double);
    double (*slope)(double, double);
    exact_fn *exact;
} kernel;

static const kernel kernels[] = {
#define KR_UNARY(f) { #f, UNARY, f_##f, NULL, NULL }, { #f "_bwd", UNARY_BWD, f_##f, d_##f, NULL },
#include "kernels/unary.def"
#undef KR_UNARY
#define KR_BINARY(f) { #f, BINARY, NULL, NULL, b_##f },
#include "kernels/binary.def"
#undef KR_BINARY
    { "maximum_bwd", MAXIMUM_BWD, NULL, NULL, NULL },
    { "maximum_bwd", MAXIMUM_BWD_OF_B, NULL, NULL, NULL },
    { "where", WHERE, NULL, NULL, NULL },
    { "where", WHERE_SCALAR, NULL, NULL, NULL },
};

static void launch(const kernel *k, const kr_kernels *set, const kr_walk *w, const operand x[4])
{
    float *y = x[0].block + x[0].origin;
    const float *in[3];
    for (int i = 0; i < 3; i++) in[i] = x[i + 1].block ? x[i + 1].block + x[i + 1].origin : NULL;
    kr_unary_args u = { .walk = *w, .x = in[0], .y = y, .alpha = ALPHA, .beta = BETA };
    kr_unary_bwd_args d = { .walk = *w, .x = in[0], .y = in[1], .g_y = in[2], .g_x = y, .alpha = ALPHA, .beta = BETA };
    kr_binary_args b = { .walk = *w, .a = in[0], .b = in[1], .y = y };
    kr_binary_bwd_args m = {
        .walk = *w, .a = in[0], .b = in[1], .g = in[2], .y = y, .of_b = k->kind == MAXIMUM_BWD_OF_B
    };
    kr_where_args c = { .walk = *w, .mask = (const int32_t *)(const void *)in[0], .a = in[1], .y = y, .scalar = ALPHA };
    if (k->kind == WHERE) c.b = in[2];
    static const size_t fields[5][4] = {
        { offsetof(kr_unary_args, y), offsetof(kr_unary_args, x), 0, 0 },
        { offsetof(kr_unary_bwd_args, g_x), offsetof(kr_unary_bwd_args, x), offsetof(kr_unary_bwd_args, y),
          offsetof(kr_unary_bwd_args, g_y) },
        { offsetof(kr_binary_args, y), offsetof(kr_binary_args, a), offsetof(kr_binary_args, b), 0 },
        { offsetof(kr_where_args, y), offsetof(kr_where_args, mask), offsetof(kr_where_args, a),
          offsetof(kr_where_args, b) },
        { offsetof(kr_binary_bwd_args, y), offsetof(kr_binary_bwd_args, a), offsetof(kr_binary_bwd_args, b),
          offsetof(kr_binary_bwd_args, g) },
    };
    const struct {
        const void *args;
        size_t bytes;
    } of[5] = { { &u, sizeof u }, { &d, sizeof d }, { &b, sizeof b }, { &c, sizeof c }, { &m, sizeof m } };
    const int which = k->kind == UNARY       ? 0
                      : k->kind == UNARY_BWD ? 1
                      : k->kind == BINARY    ? 2
                      : k->kind >= WHERE     ? 3
                                             : 4;
    kr_span spans[4];
    int count = 0;
    for (int o = 0; o < 4; o++)
        if (o == 0 || fields[which][o])
            spans[count++] = (kr_span){ fields[which][o], 0, x[o].block, (size_t)x[o].size * sizeof(float), o == 0 };
    kr_run_spans(kr_kernel_named(k->name), set, KR_REAL_F32, NULL, of[which].args, of[which].bytes, spans, count,
                 "walk");
}

static double wanted(const kernel *k, float a, float b, float c)
{
    int32_t mask;
    memcpy(&mask, &a, sizeof mask);
    switch (k->kind) {
    case UNARY: return k->value(a);
    case UNARY_BWD: return k->slope(a, b) * c;
    case BINARY: return k->exact(a, b, c);
    case MAXIMUM_BWD: return b_maximum_bwd(a, b, c);
    case MAXIMUM_BWD_OF_B: return b_maximum_bwd(b, a, c);
    case WHERE: return mask ? b : c;
    default: return mask ? b : ALPHA;
    }
}

/* Gradients are checked as functions of x, y and g: y is random like the others and is not f(x). */
static void run_case(const kernel *k, const kr_kernels *set, kr_walk w, bool plain)
{
    operand x[4];
    for (int o = 0; o < 4; o++) x[o] = lay_out(&w, o, o > 0 && !plain ? REPEAT : 0, plain);
    if (k->kind >= WHERE)
        for (int64_t i = 0; i < x[1].size; i++) x[1].block[i] = draw(2) ? 1.0f : 0.0f;
    else if (draw(2))
        for (int64_t i = 0; i < x[1].size && i < x[2].size; i += 3) x[2].block[i] = x[1].block[i];
    float *before = malloc((size_t)x[0].size * sizeof(float));
    char *written = calloc((size_t)x[0].size, 1);
    if (!before || !written) exit(2);
    memcpy(before, x[0].block, (size_t)x[0].size * sizeof(float));
    launch(k, set, &w, x);
    bool ok = true;
    for (int64_t e = 0; e < count_of(&w) && ok; e++) {
        int64_t at = x[0].origin + offset_of(&w, 0, e);
        float in[3];
        for (int i = 0; i < 3; i++) in[i] = x[i + 1].block[x[i + 1].origin + offset_of(&w, i + 1, e)];
        double want = wanted(k, in[0], in[1], in[2]);
        written[at] = 1;
        ok = CHECK(is_close((double)x[0].block[at], want), "%s %s rank %d element %lld: got %.9g want %.9g", k->name,
                   set->name, w.rank, (long long)e, (double)x[0].block[at], want);
    }
    for (int64_t i = 0; i < x[0].size && ok; i++)
        ok = CHECK(written[i] || memcmp(before + i, x[0].block + i, sizeof(float)) == 0,
                   "%s %s rank %d: wrote between the elements", k->name, set->name, w.rank);
    for (int o = 0; o < 4; o++) free(x[o].block);
    free(before);
    free(written);
}

static void check_kernel(const kernel *k, const kr_kernels *set)
{
    if (!kr_kernel_named(k->name)->has(set, KR_REAL_F32)) return;
    if (set == device_kernels() && (k->slope == d_tanh || k->slope == d_sigmoid)) return; /* it computes them from x */
    for (int64_t n = 0; n <= 48; n += kr_test_quick() ? 3 : 1) { /* all partial vectors of up to three vectors */
        run_case(k, set, (kr_walk){ .rank = 1, .dims = { n } }, true);
        run_case(k, set, (kr_walk){ .rank = 1, .dims = { n } }, false);
        run_case(k, set, (kr_walk){ .rank = 2, .dims = { 3, n } }, false);
    }
    for (int i = 0; i < (kr_test_quick() ? 20 : 60); i++) {
        kr_walk w = { .rank = (int)draw(KR_MAX_RANK + 1) };
        for (int axis = 0; axis < w.rank; axis++) w.dims[axis] = draw(20) == 0 ? 0 : 1 + draw(w.rank > 4 ? 3 : 9);
        run_case(k, set, w, draw(2));
    }
    if (kr_test_quick()) return;
    run_case(k, set, (kr_walk){ .rank = 2, .dims = { 3, 40000 } }, true);    /* rows in pieces */
    run_case(k, set, (kr_walk){ .rank = 3, .dims = { 5, 129, 67 } }, false); /* tasks of many rows */
}

/* The reference computes f' from x, while a set may compute it from y: here only the sets that follow it are tested. */
TEST(elementwise_over_random_layouts)
{
    for (int n = 0; kr_judged_set(n); n++)
        for (size_t k = 0; kr_judged_set(n) != kr_runnable_set(0) && k < sizeof kernels / sizeof *kernels; k++)
            check_kernel(&kernels[k], kr_judged_set(n));
}

/* ---- softmax ---- */

static void softmax_exact(const float *x, double *y, int64_t n, bool logarithm)
{
    double m = -(double)INFINITY, s = 0;
    for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    for (int64_t i = 0; i < n; i++) s += exp(x[i] - m);
    for (int64_t i = 0; i < n; i++) y[i] = logarithm ? x[i] - m - log(s) : exp(x[i] - m) / s;
}

static void run_softmax(const kr_kernels *set, const kr_softmax_args *a)
{
    const size_t bytes = (size_t)(a->no * a->nr) * sizeof(float);
    const kr_span spans[] = { { offsetof(kr_softmax_args, x), 0, (void *)(uintptr_t)a->x, bytes, false },
                              { offsetof(kr_softmax_args, y), 0, a->y, bytes, true } };
    kr_run_spans(kr_kernel_named("softmax"), set, KR_REAL_F32, NULL, a, sizeof *a, spans, 2, "softmax");
}

static void softmax_case(const kr_kernels *set, int64_t no, int64_t nr, bool logarithm)
{
    size_t n = (size_t)(no * nr);
    float *x = malloc((n + 1) * sizeof *x), *y = malloc((n + 1) * sizeof *y);
    float *g = malloc((n + 1) * sizeof *g), *g_x = malloc((n + 1) * sizeof *g_x);
    double *want = malloc((n + 1) * sizeof *want);
    if (!x || !y || !g || !g_x || !want) exit(2);
    for (size_t i = 0; i < n; i++) x[i] = (float)draw(8000) * 0.002f - 8, g[i] = (float)draw(2000) * 0.001f - 1;
    y[n] = g_x[n] = 7;
    kr_softmax_args a = { .no = no, .nr = nr, .x = x, .y = y, .logarithm = logarithm };
    kr_softmax_bwd_args d = { .no = no, .nr = nr, .y = y, .g_y = g, .g_x = g_x, .logarithm = logarithm };
    run_softmax(set, &a);
    const size_t bytes = (n + 1) * sizeof(float);
    const kr_span spans[] = { { offsetof(kr_softmax_bwd_args, y), 0, y, bytes, false },
                              { offsetof(kr_softmax_bwd_args, g_y), 0, g, bytes, false },
                              { offsetof(kr_softmax_bwd_args, g_x), 0, g_x, bytes, true } };
    kr_run_spans(kr_kernel_named("softmax_bwd"), set, KR_REAL_F32, NULL, &d, sizeof d, spans, 3, "softmax");
    bool ok = y[n] == 7 && g_x[n] == 7;
    for (int64_t o = 0; o < no; o++) {
        int64_t at = o * nr;
        double dot = 0, sum = 0;
        softmax_exact(x + at, want, nr, logarithm);
        for (int64_t i = 0; i < nr; i++) dot += want[i] * g[at + i], sum += g[at + i];
        for (int64_t i = 0; i < nr; i++) {
            double slope = logarithm ? g[at + i] - exp(want[i]) * sum : want[i] * (g[at + i] - dot);
            ok = ok && is_close(y[at + i], want[i]) && fabs(g_x[at + i] - slope) < 1e-5;
        }
    }
    CHECK(ok, "softmax %s [%lld %lld] logarithm %d", set->name, (long long)no, (long long)nr, logarithm);
    free(x), free(y), free(g), free(g_x), free(want);
}

/* Rows with special values give NaN, and do not affect their neighbours. */
static void softmax_special(const kr_kernels *set)
{
    enum { NR = 37 };
    const float bad[3] = { -INFINITY, INFINITY, NAN };
    for (int k = 0; k < 3; k++) {
        float x[3 * NR], y[3 * NR], alone[NR];
        for (int i = 0; i < 3 * NR; i++) x[i] = (float)draw(100) * 0.05f;
        for (int i = NR; i < 2 * NR; i++)
            if (k == 0 || i == NR + 36) x[i] = bad[k];
        kr_softmax_args a = { .no = 3, .nr = NR, .x = x, .y = y },
                        one = { .no = 1, .nr = NR, .x = x + 2 * NR, .y = alone };
        run_softmax(set, &a);
        run_softmax(set, &one);
        bool ok = memcmp(alone, y + 2 * NR, sizeof alone) == 0;
        for (int i = NR; i < 2 * NR; i++) ok = ok && isnan(y[i]);
        CHECK(ok, "softmax %s special row %d", set->name, k);
    }
}

TEST(softmax_of_all_lengths)
{
    for (int n = 0; kr_judged_set(n); n++) {
        const kr_kernels *set = kr_judged_set(n);
        if (!set->softmax[KR_REAL_F32].run || !set->softmax_bwd[KR_REAL_F32].run) continue;
        for (int logarithm = 0; logarithm < 2; logarithm++) {
            for (int64_t nr = 0; nr <= 150; nr += kr_test_quick() ? 3 : 1) softmax_case(set, 3, nr, logarithm);
            softmax_case(set, 700, 50, logarithm);
            softmax_case(set, 2, 50257, logarithm);
        }
        softmax_special(set);
    }
}
