/* test_autocast_blocks.c - whole blocks of Mamba-2 and Mamba-3 in bf16 precision against f64 in exact precision: y, the
 * gradient of x, and those of all parameters. On a GPU, and with the reference kernels, which take bf16 operands too.
 *
 * Weights, x and the gradient that comes in are numbers that bf16 holds, so that no product errs by its first operands. What
 * is left are roundings on the way, 2^-9 / 3^(1/2) = 1.1e-3 each and independent of one another: y of the core, what it is
 * gated to, their gradients, and those inside the core. BOUND allows a dozen of them. Errors are of whole tensors:
 * |got - want| / |want|, in the norm that sums squares. The few numbers of biases and gains have gradients that are sums over
 * all tokens, most of which cancels: what is left has SUM_BOUND.
 */
#include "tests/harness.h"

#include "device/device.h"

#include <krait/block.h>

static const double BOUND = 4e-3, SUM_BOUND = 1.5e-2;

enum { NB = 2, NS = 200, ND = 128 };

typedef struct block_case {
    const char *name;
    kr_family family;
    bool has_norm;
    double rope_fraction; /* of Mamba-3 */
} block_case;

/* A block in one context, and what came of it. */
typedef struct made {
    kr_ctx *ctx;
    kr_mamba2 *mamba2;
    kr_mamba3 *mamba3;
    kr_params *params;
    kr_tape *tape;
    kr_tensor *x, *y;
} made;

static made make(const block_case *c, const char *device, const char *isa, kr_precision precision, kr_dtype dtype)
{
    made m = { .ctx = NULL };
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = device;
    options.isa = isa;
    options.precision = precision;
    m.ctx = kr_ctx_create(&options);
    if (c->family == KR_FAMILY_MAMBA2) {
        kr_mamba2_config config;
        kr_mamba2_config_init(&config);
        config.d_model = ND;
        config.state_rank = config.per_head_dim = 64;
        config.has_norm = c->has_norm;
        config.dtype = dtype;
        m.mamba2 = kr_mamba2_create(m.ctx, &config);
        m.params = kr_mamba2_params(m.mamba2);
    } else {
        kr_mamba3_config config;
        kr_mamba3_config_init(&config);
        config.d_model = ND;
        config.state_rank = config.per_head_dim = 64;
        config.has_outproj_norm = c->has_norm;
        config.rope_fraction = c->rope_fraction;
        config.dtype = dtype;
        m.mamba3 = kr_mamba3_create(m.ctx, &config);
        m.params = kr_mamba3_params(m.mamba3);
    }
    CHECK_OK(m.ctx);
    m.tape = kr_tape_create(m.ctx, KR_TAPE_GRAD);
    return m;
}

static void destroy(made *m)
{
    kr_tape_destroy(m->tape);
    kr_mamba2_destroy(m->mamba2);
    kr_mamba3_destroy(m->mamba3);
    kr_ctx_destroy(m->ctx);
}

/* Numbers that bf16 holds. */
static void round_all(double *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float x = (float)values[i];
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
        memcpy(&x, &bits, sizeof x);
        values[i] = (double)x;
    }
}

static void run(made *m, const double *x, const double *g_y)
{
    const kr_dtype dtype = kr_tensor_dtype(kr_params_at(m->params, 0)->tensor);
    m->x = kr_input(m->tape, kr_cast(m->tape, kr_from_data(m->tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, ND), x), dtype));
    if (m->mamba2) m->y = kr_mamba2_forward(m->tape, m->mamba2, m->x, NULL, kr_mamba2_path(m->mamba2)).y;
    else m->y = kr_mamba3_forward(m->tape, m->mamba3, m->x, NULL, kr_mamba3_path(m->mamba3)).y;
    kr_tensor *g = kr_cast(m->tape, kr_from_data(m->tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, ND), g_y), dtype);
    kr_backward_from(m->tape, 1, &m->y, &g);
    CHECK_OK(m->ctx);
}

static void check_near(const char *block, const char *what, const kr_tensor *want, const kr_tensor *got, double bound)
{
    double *a = kr_test_values(want), *b = kr_test_values(got), error = 0, norm = 0;
    for (int64_t i = 0; i < kr_tensor_count(want); i++) {
        error += (b[i] - a[i]) * (b[i] - a[i]);
        norm += a[i] * a[i];
    }
    const double relative = sqrt(error / (norm > 0 ? norm : 1));
    if (getenv("KR_TEST_ERRORS")) printf("  %s, %s: %.2e\n", block, what, relative);
    CHECK(relative <= bound, "%s, %s: relative error %.3g", block, what, relative);
    free(a);
    free(b);
}

/* y of rows that come in two calls: the second begins with the first one's state, last key and angles. */
static void check_parts(const block_case *c, const made *m, const double *x, const kr_tensor *want)
{
    enum { FIRST = 77 };
    kr_tape *tape = kr_tape_create(m->ctx, KR_TAPE_NO_GRAD);
    kr_tensor *all = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, KR_SHAPE(NB, NS, ND), x), KR_DTYPE_F32);
    const kr_ssd_path path = kr_mamba3_path(m->mamba3);
    const kr_mamba3_cache initial = kr_mamba3_initial_cache(tape, m->mamba3, NB);
    const kr_mamba3_out first = kr_mamba3_forward(tape, m->mamba3, kr_slice(tape, all, 1, 0, FIRST), &initial, path);
    const kr_mamba3_out rest =
        kr_mamba3_forward(tape, m->mamba3, kr_slice(tape, all, 1, FIRST, NS), &first.cache, path);
    kr_tensor *both[2] = { first.y, rest.y }, *y = kr_concat(tape, 1, 2, both);
    CHECK_OK(m->ctx);
    check_near(c->name, "y of two parts", want, y, BOUND);
    kr_tape_destroy(tape);
}

static void check_block(const block_case *c, const char *device, const char *isa)
{
    enum { COUNT = NB * NS * ND };
    static double x[COUNT], g_y[COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = kr_test_normal(), g_y[i] = kr_test_normal();
    round_all(x, COUNT);
    round_all(g_y, COUNT);
    made exact = make(c, "cpu", NULL, KR_PRECISION_EXACT, KR_DTYPE_F64),
         rounded = make(c, device, isa, KR_PRECISION_BF16, KR_DTYPE_F32);
    for (int64_t i = 0; i < kr_params_count(exact.params); i++) {
        kr_tensor *to = kr_params_at(exact.params, i)->tensor, *too = kr_params_at(rounded.params, i)->tensor;
        double *values = kr_test_values(to);
        round_all(values, kr_tensor_count(to));
        kr_param_write(to, KR_DTYPE_F64, values, kr_tensor_count(to));
        kr_param_write(too, KR_DTYPE_F64, values, kr_tensor_count(too));
        free(values);
    }
    run(&exact, x, g_y);
    run(&rounded, x, g_y);
    check_near(c->name, "y", exact.y, rounded.y, BOUND);
    check_near(c->name, "gradient of x", kr_grad(exact.x), kr_grad(rounded.x), BOUND);
    for (int64_t i = 0; i < kr_params_count(exact.params); i++) {
        const kr_param_row *row = kr_params_at(exact.params, i);
        const kr_tensor *want = kr_grad(row->tensor), *got = kr_grad(kr_params_at(rounded.params, i)->tensor);
        const double bound = kr_tensor_rank(row->tensor) == 2 ? BOUND : SUM_BOUND;
        if (want && got) check_near(c->name, row->name, want, got, bound);
        else CHECK(want == got, "%s: %s has a gradient on one device alone", c->name, row->name);
    }
    if (rounded.mamba3) check_parts(c, &rounded, x, exact.y);
    destroy(&exact);
    destroy(&rounded);
}

static const block_case cases[] = {
    { "mamba-2", KR_FAMILY_MAMBA2, true, 0 },
    { "mamba-2 without norm", KR_FAMILY_MAMBA2, false, 0 },
    { "mamba-3", KR_FAMILY_MAMBA3, false, 0.5 },
    { "mamba-3 with norm, all rotated", KR_FAMILY_MAMBA3, true, 1 },
};
enum { NCASES = (int)(sizeof cases / sizeof *cases) };

/* The kernels of a GPU; those of others are the reference, for the whole network of bf16 tensors is the same. */
TEST(blocks_in_bf16_are_close_to_f64)
{
    const char *device = getenv("KR_DEVICE");
    const bool is_gpu = device && strncmp(device, "cuda", 4) == 0;
    for (int i = 0; i < NCASES; i++) check_block(&cases[i], device, is_gpu ? NULL : "ref");
}

static void count_kernel(void *user, const char *slot)
{
    (void)slot;
    ++*(int64_t *)user;
}

/* With kernels that take no bf16 operands, precision bf16 has the bits of exact, by the same number of kernels. */
TEST(without_kernels_for_bf16_all_is_exact)
{
    enum { COUNT = NB * NS * ND };
    static double x[COUNT], g_y[COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = kr_test_normal(), g_y[i] = kr_test_normal();
    for (int i = 0; i < NCASES; i++) {
        static const kr_precision precisions[2] = { KR_PRECISION_EXACT, KR_PRECISION_BF16 };
        made m[2];
        double *y[2], *g_x[2];
        int64_t kernels[2] = { 0, 0 };
        for (int k = 0; k < 2; k++) {
            m[k] = make(&cases[i], "cpu", NULL, precisions[k], KR_DTYPE_F32);
            m[k].ctx->device->probe = count_kernel;
            m[k].ctx->device->probe_user = &kernels[k];
            run(&m[k], x, g_y);
            y[k] = kr_test_values(m[k].y), g_x[k] = kr_test_values(kr_grad(m[k].x));
        }
        const bool takes_bf16 = kr_accepts(m[1].ctx, matmul_a, KR_DTYPE_BF16);
        CHECK(takes_bf16 || memcmp(y[0], y[1], sizeof x) == 0, "%s: y differs", cases[i].name);
        CHECK(takes_bf16 || memcmp(g_x[0], g_x[1], sizeof x) == 0, "%s: the gradient of x differs", cases[i].name);
        CHECK(takes_bf16 || kernels[0] == kernels[1], "%s: %lld kernels, not %lld", cases[i].name,
              (long long)kernels[1], (long long)kernels[0]);
        for (int k = 0; k < 2; k++) {
            free(y[k]);
            free(g_x[k]);
            destroy(&m[k]);
        }
    }
}
