/* test_mamba3_parts.c - each of Mamba-3's parts: gradients against difference quotients in f64, through all outputs;
 * f32 and bf16 on every instruction set against f64; and chains of them as a block runs them.
 */
#include "tests/harness.h"

enum { MAX_IN = 5, MAX_OUT = 5 };
#define PI 3.14159265358979323846

/* A part with its operands: shapes and ranges of the inputs, and the function under test. */
typedef struct part {
    const char *name;
    int n_in;
    kr_shape shape[MAX_IN];
    double low[MAX_IN], high[MAX_IN];
    bool is_angle; /* outputs compare modulo 2 pi */
    int (*build)(kr_tape *t, kr_tensor *const *x, kr_tensor **y);
} part;

/* Starts of sequences in rows of six tokens: one reset in the first row, two in the second. */
static kr_tensor *starts(kr_tape *t, kr_dtype dtype)
{
    const int32_t marks[12] = { 0, 0, 0, 7, 0, 0, 1, 1, 0, 0, -1, 0 };
    return kr_cast(t, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 6), marks), dtype);
}

static int outputs_of_trapezoid(kr_trapezoid_out out, kr_tensor **y)
{
    y[0] = out.dt_bsh;
    y[1] = out.da_bsh;
    y[2] = out.gamma_bsh;
    y[3] = out.carry_bsh;
    y[4] = out.beta_bsh;
    return 5;
}

static int trapezoid(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    return outputs_of_trapezoid(kr_trapezoid(t, x[0], x[1], x[2], x[3], NULL), y);
}

static int trapezoid_no_bias(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    return outputs_of_trapezoid(kr_trapezoid(t, x[0], NULL, x[1], x[2], NULL), y);
}

static int trapezoid_softplus(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    kr_trapezoid_options o;
    kr_trapezoid_options_init(&o);
    o.a_activation = KR_A_ACTIVATION_SOFTPLUS;
    o.a_floor = 0.3;
    o.dt_min = 0.4;
    o.dt_max = 1.7;
    return outputs_of_trapezoid(kr_trapezoid(t, x[0], x[1], x[2], x[3], &o), y);
}

/* The log-decay alone: the other outputs have no gradient. */
static int trapezoid_decay(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_trapezoid(t, x[0], x[1], x[2], x[3], NULL).da_bsh;
    return 1;
}

static int scale(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_trapezoid_scale(t, x[0], x[1], NULL);
    return 1;
}

static int scale_packed(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_trapezoid_scale(t, x[0], x[1], starts(t, KR_DTYPE_I64));
    return 1;
}

static int boundary(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_boundary_state(t, x[3], x[0], x[1], x[2]);
    return 1;
}

static int boundary_alone(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_boundary_state(t, NULL, x[0], x[1], x[2]);
    return 1;
}

static int qk_norm(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_qk_norm(t, x[0], x[1], x[2], 4, 0.1);
    return 1;
}

static int qk_norm_plain(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_qk_norm(t, x[0], NULL, NULL, 4, 0.1);
    return 1;
}

static int angles(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    const kr_rotation_out out = kr_rotation_angles(t, x[0], x[1], x[2], 1.5, NULL);
    y[0] = out.angle_bsha;
    y[1] = out.final_bha;
    return 2;
}

static int angles_packed(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    const kr_rotation_out out = kr_rotation_angles(t, x[0], x[1], x[2], 2, starts(t, KR_DTYPE_I32));
    y[0] = out.angle_bsha;
    y[1] = out.final_bha;
    return 2;
}

static int angles_final(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_rotation_angles(t, x[0], x[1], NULL, 1, NULL).final_bha;
    return 1;
}

static int rotate_adjacent(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_rotate(t, x[0], x[1], KR_PAIRING_ADJACENT);
    return 1;
}

static int rotate_half(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_rotate(t, x[0], x[1], KR_PAIRING_SPLIT);
    return 1;
}

static int increments(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_quaternion_increments(t, x[0], x[1], 1.5);
    return 1;
}

static int cumprod(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    const kr_quaternion_out out = kr_quaternion_cumprod(t, x[0], x[1], NULL);
    y[0] = out.cum_bshj4;
    y[1] = out.final_bhj4;
    return 2;
}

static int cumprod_packed(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    const kr_quaternion_out out = kr_quaternion_cumprod(t, x[0], x[1], starts(t, KR_DTYPE_I64));
    y[0] = out.cum_bshj4;
    y[1] = out.final_bhj4;
    return 2;
}

static int cumprod_final(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_quaternion_cumprod(t, x[0], NULL, NULL).final_bhj4;
    return 1;
}

static int quaternion_rotate(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    y[0] = kr_quaternion_rotate(t, x[0], x[1]);
    return 1;
}

/* B as in a block: norm and bias, angles from theta and dt, rotation. */
static int complex_chain(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    const kr_rotation_out turn = kr_rotation_angles(t, x[1], x[2], x[3], 1, starts(t, KR_DTYPE_I32));
    y[0] = kr_rotate(t, kr_qk_norm(t, x[0], NULL, x[4], 2, 0.1), turn.angle_bsha, KR_PAIRING_SPLIT);
    return 1;
}

/* The same with quaternions; generators around 0, where direction is undefined. */
static int quaternion_chain(kr_tape *t, kr_tensor *const *x, kr_tensor **y)
{
    const kr_quaternion_out turn =
        kr_quaternion_cumprod(t, kr_quaternion_increments(t, x[1], x[2], 2), x[3], starts(t, KR_DTYPE_I32));
    y[0] = kr_quaternion_rotate(t, x[0], turn.cum_bshj4);
    y[1] = turn.final_bhj4;
    return 2;
}

#define S(...)                                                                                                         \
    {                                                                                                                  \
        KR_RANK(__VA_ARGS__),                                                                                          \
        {                                                                                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
#define KR_RANK(...) (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t))
#define BSH S(2, 6, 3)

static const part parts[] = {
    { "trapezoid", 4, { BSH, S(3), BSH, BSH }, { -3, -1, -3, -3 }, { 3, 1, 3, 3 }, false, trapezoid },
    { "trapezoid, no bias", 3, { BSH, BSH, BSH }, { -3, -3, -3 }, { 3, 3, 3 }, false, trapezoid_no_bias },
    { "trapezoid, softplus",
      4,
      { BSH, S(3), BSH, BSH },
      { -3, -1, -3, -3 },
      { 3, 1, 3, 3 },
      false,
      trapezoid_softplus },
    { "trapezoid, above 20",
      4,
      { BSH, S(3), BSH, BSH },
      { 21, 0, 15, -3 },
      { 25, 1, 25, 3 },
      false,
      trapezoid_softplus },
    { "trapezoid, decay", 4, { BSH, S(3), BSH, BSH }, { -3, -1, -3, -3 }, { 3, 1, 3, 3 }, false, trapezoid_decay },
    { "scale", 2, { BSH, BSH }, { 0, 0 }, { 2, 2 }, false, scale },
    { "scale, one token", 2, { S(2, 1, 3), S(2, 1, 3) }, { 0, 0 }, { 2, 2 }, false, scale },
    { "scale, packed", 2, { BSH, BSH }, { 0, 0 }, { 2, 2 }, false, scale_packed },
    { "boundary",
      4,
      { S(2, 3), S(2, 2, 3, 5), S(2, 2, 3, 4), S(2, 3, 5, 4) },
      { 0, -1, -1, -1 },
      { 1, 1, 1, 1 },
      false,
      boundary },
    { "boundary, no state",
      3,
      { S(2, 3), S(2, 1, 3, 5), S(2, 1, 3, 4) },
      { 0, -1, -1 },
      { 1, 1, 1 },
      false,
      boundary_alone },
    { "qk_norm", 3, { S(2, 3, 2, 2, 5), S(5), S(4, 2, 5) }, { -1, -1, -1 }, { 1, 1, 1 }, false, qk_norm },
    { "qk_norm, one group", 3, { S(2, 3, 1, 1, 6), S(6), S(4, 1, 6) }, { -1, -1, -1 }, { 1, 1, 1 }, false, qk_norm },
    { "qk_norm, plain", 1, { S(2, 3, 2, 2, 5) }, { -1 }, { 1 }, false, qk_norm_plain },
    { "angles", 3, { S(2, 6, 4), BSH, S(2, 3, 4) }, { -2, 0, -4 }, { 2, 2, 4 }, true, angles },
    { "angles, packed", 3, { S(2, 6, 4), BSH, S(5, 3, 4) }, { -2, 0, -4 }, { 2, 2, 4 }, true, angles_packed },
    { "angles, final", 2, { S(2, 6, 4), BSH }, { -2, 0 }, { 2, 2 }, true, angles_final },
    { "rotate, adjacent", 2, { S(2, 3, 2, 3, 8), S(2, 3, 3, 4) }, { -1, -4 }, { 1, 4 }, false, rotate_adjacent },
    { "rotate, adjacent, partial",
      2,
      { S(2, 3, 1, 3, 9), S(2, 3, 3, 2) },
      { -1, -4 },
      { 1, 4 },
      false,
      rotate_adjacent },
    { "rotate, half", 2, { S(2, 3, 2, 3, 8), S(2, 3, 3, 4) }, { -1, -4 }, { 1, 4 }, false, rotate_half },
    { "rotate, half, partial", 2, { S(2, 3, 3, 3, 10), S(2, 3, 3, 2) }, { -1, -4 }, { 1, 4 }, false, rotate_half },
    { "increments", 2, { S(2, 3, 2, 3, 3), S(2, 3, 2) }, { -2, 0 }, { 2, 2 }, false, increments },
    { "increments, short", 2, { S(2, 3, 2, 3, 3), S(2, 3, 2) }, { -1e-3, 0 }, { 1e-3, 2 }, false, increments },
    { "cumprod", 2, { S(2, 6, 2, 2, 4), S(2, 2, 2, 4) }, { 0.1, 0.1 }, { 1, 1 }, false, cumprod },
    { "cumprod, packed", 2, { S(2, 6, 2, 2, 4), S(5, 2, 2, 4) }, { 0.1, 0.1 }, { 1, 1 }, false, cumprod_packed },
    { "cumprod, final", 1, { S(2, 6, 2, 2, 4) }, { 0.1 }, { 1 }, false, cumprod_final },
    { "quaternion_rotate", 2, { S(2, 3, 2, 2, 8), S(2, 3, 2, 2, 4) }, { -1, -1 }, { 1, 1 }, false, quaternion_rotate },
    { "quaternion_rotate, partial",
      2,
      { S(2, 3, 1, 2, 11), S(2, 3, 2, 1, 4) },
      { -1, -1 },
      { 1, 1 },
      false,
      quaternion_rotate },
    { "complex chain",
      5,
      { S(2, 6, 2, 1, 8), S(2, 6, 3), S(2, 6, 2), S(5, 2, 3), S(2, 2, 8) },
      { -1, -2, 0, -4, -1 },
      { 1, 2, 2, 4, 1 },
      false,
      complex_chain },
    { "quaternion chain",
      4,
      { S(2, 6, 2, 2, 8), S(2, 6, 2, 2, 3), S(2, 6, 2), S(5, 2, 2, 4) },
      { -1, -0.5, 0, 0.1 },
      { 1, 0.5, 2, 1 },
      false,
      quaternion_chain },
};
enum { NPARTS = (int)(sizeof parts / sizeof *parts) };

/* ---- running ---- */

static int64_t count_of(kr_shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++) count *= shape.dims[i];
    return count;
}

typedef struct result {
    int n_out;
    int64_t y_count[MAX_OUT];
    double *y[MAX_OUT], *g[MAX_IN];
} result;

static void result_free(result *r)
{
    for (int i = 0; i < MAX_OUT; i++) free(r->y[i]);
    for (int i = 0; i < MAX_IN; i++) free(r->g[i]);
}

/* The gradient of output n at index i. */
static double weight(int n, int64_t i)
{
    return (double)((i * 7 + n * 5 + i * i / 3) % 31 - 15) / 16;
}

static void run_backward(kr_tape *tape, int n_out, kr_tensor *const *y)
{
    kr_tensor *g[MAX_OUT];
    for (int n = 0; n < n_out; n++) {
        double values[4096];
        for (int64_t i = 0; i < kr_tensor_count(y[n]); i++) values[i] = weight(n, i);
        g[n] = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, kr_tensor_shape(y[n]), values), kr_tensor_dtype(y[n]));
    }
    kr_backward_from(tape, n_out, y, g);
}

static result run(kr_ctx *ctx, const part *p, double *const *in, kr_dtype dtype, bool backward)
{
    result r = { 0 };
    kr_tensor *x[MAX_IN] = { NULL }, *y[MAX_OUT] = { NULL };
    kr_tape *tape = kr_tape_create(ctx, backward ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD);
    for (int n = 0; n < p->n_in; n++)
        x[n] = kr_input(tape, kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, p->shape[n], in[n]), dtype));
    r.n_out = p->build(tape, x, y);
    if (backward) run_backward(tape, r.n_out, y);
    CHECK(!kr_ctx_failed(ctx), "%s: %s", p->name, kr_ctx_message(ctx));
    for (int n = 0; n < r.n_out; n++) {
        r.y_count[n] = kr_tensor_count(y[n]);
        r.y[n] = kr_test_values(y[n]);
    }
    for (int n = 0; backward && n < p->n_in; n++) {
        const double zero = 0;
        const bool reached = CHECK(kr_grad(x[n]) != NULL, "%s: input %d has no gradient", p->name, n);
        r.g[n] = kr_test_values(reached ? kr_grad(x[n]) : kr_from_data(tape, KR_DTYPE_F64, KR_SCALAR, &zero));
    }
    kr_tape_destroy(tape);
    return r;
}

static void make_inputs(const part *p, double **in)
{
    for (int n = 0; n < p->n_in; n++) {
        const int64_t count = count_of(p->shape[n]);
        in[n] = malloc((size_t)count * sizeof(double));
        if (!in[n]) exit(2);
        for (int64_t i = 0; i < count; i++) in[n][i] = (double)(float)kr_test_uniform(p->low[n], p->high[n]);
    }
}

static void free_inputs(const part *p, double **in)
{
    for (int n = 0; n < p->n_in; n++) free(in[n]);
}

/* ---- difference quotients ---- */

static double change(const part *p, const result *up, const result *down)
{
    double sum = 0;
    for (int n = 0; n < up->n_out; n++)
        for (int64_t i = 0; i < up->y_count[n]; i++) {
            const double d = up->y[n][i] - down->y[n][i];
            sum += weight(n, i) * (p->is_angle ? remainder(d, 2 * PI) : d);
        }
    return sum;
}

static void check_differences(kr_ctx *ctx, const part *p)
{
    double *in[MAX_IN];
    make_inputs(p, in);
    result r = run(ctx, p, in, KR_DTYPE_F64, true);
    for (int n = 0; n < p->n_in && !kr_ctx_failed(ctx); n++) {
        const int64_t count = count_of(p->shape[n]);
        double *want = malloc((size_t)count * sizeof *want);
        if (!want) exit(2);
        memcpy(want, r.g[n], (size_t)count * sizeof *want);
        for (int64_t i = 0; i < count; i += kr_test_difference_step(ctx)) {
            const double x = in[n][i], h = 1e-5 * (p->high[n] < 0.01 ? 1e-1 : 1);
            in[n][i] = x + h;
            result up = run(ctx, p, in, KR_DTYPE_F64, false);
            in[n][i] = x - h;
            result down = run(ctx, p, in, KR_DTYPE_F64, false);
            want[i] = change(p, &up, &down) / (2 * h);
            in[n][i] = x;
            result_free(&up);
            result_free(&down);
        }
        char what[96];
        snprintf(what, sizeof what, "%s: gradient of input %d", p->name, n);
        CHECK_CLOSE(what, r.g[n], want, count, &p->shape[n], p->high[n] < 0.01 ? 3e-8 : 3e-9, 1);
        free(want);
    }
    result_free(&r);
    free_inputs(p, in);
}

TEST(mamba3_parts_differences)
{
    kr_ctx *ctx = kr_test_ctx(1, "ref");
    for (int i = 0; i < NPARTS; i++) check_differences(ctx, &parts[i]);
    kr_ctx_destroy(ctx);
}

/* ---- types and instruction sets ---- */

static void check_values(const part *p, const char *isa, const char *what, int n, const double *got, double *want,
                         int64_t count, bool is_angle, double tolerance)
{
    char text[128];
    snprintf(text, sizeof text, "%s, %s: %s %d", p->name, isa, what, n);
    for (int64_t i = 0; is_angle && i < count; i++) want[i] += 2 * PI * rint((got[i] - want[i]) / (2 * PI));
    CHECK_CLOSE(text, got, want, count, NULL, tolerance, 1);
}

static void check_type(kr_ctx *ref, kr_ctx *ctx, const part *p, kr_dtype dtype, double tolerance)
{
    double *in[MAX_IN];
    make_inputs(p, in);
    kr_tape *tape = kr_tape_create(ref, KR_TAPE_NO_GRAD);
    for (int n = 0; n < p->n_in; n++)
        kr_tensor_read(kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, p->shape[n], in[n]), dtype), KR_DTYPE_F64, in[n],
                       count_of(p->shape[n]));
    kr_tape_destroy(tape);
    result want = run(ref, p, in, KR_DTYPE_F64, true), got = run(ctx, p, in, dtype, true);
    for (int n = 0; n < want.n_out; n++)
        check_values(p, kr_ctx_isa(ctx), "output", n, got.y[n], want.y[n], want.y_count[n], p->is_angle, tolerance);
    for (int n = 0; n < p->n_in; n++)
        check_values(p, kr_ctx_isa(ctx), "gradient of input", n, got.g[n], want.g[n], count_of(p->shape[n]), false,
                     tolerance);
    result_free(&want);
    result_free(&got);
    free_inputs(p, in);
}

TEST(mamba3_parts_in_all_types)
{
    char names[128];
    kr_ctx *ref = kr_test_ctx(1, "ref");
    kr_isa_choices(names, sizeof names);
    for (char *isa = strtok(names, ", "); isa; isa = strtok(NULL, ", ")) {
        kr_ctx *ctx = kr_test_ctx(2, isa);
        for (int i = 0; i < NPARTS; i++) {
            check_type(ref, ctx, &parts[i], KR_DTYPE_F64, 1e-13);
            check_type(ref, ctx, &parts[i], KR_DTYPE_F32, 4e-6);
            check_type(ref, ctx, &parts[i], KR_DTYPE_BF16,
                       3 * 0x1p-8); /* gradients of the operands are rounded to bf16 */
        }
        kr_ctx_destroy(ctx);
    }
    kr_ctx_destroy(ref);
}

/* Gradients where a generator is exactly 0, by its limit: g_raw = dt range pi/2 g_v, and none for dt. */
TEST(quaternion_gradient_at_zero)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int d = KR_DTYPE_F32; d <= KR_DTYPE_F64; d++) {
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        const double g[4] = { 3, 1, -2, 0.5 };
        kr_tensor *raw = kr_input(t, kr_zeros(t, (kr_dtype)d, KR_SHAPE(1, 1, 1, 1, 3)));
        kr_tensor *dt = kr_input(t, kr_full(t, (kr_dtype)d, KR_SHAPE(1, 1, 1), 0.5));
        kr_tensor *q = kr_quaternion_increments(t, raw, dt, 2);
        kr_tensor *g_q = kr_cast(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(1, 1, 1, 1, 4), g), (kr_dtype)d);
        CHECK(kr_tensor_at(q, (int64_t[]){ 0, 0, 0, 0, 0 }) == 1, "w is not 1");
        kr_backward_from(t, 1, &q, &g_q);
        CHECK_OK(ctx);
        double *g_raw = kr_test_values(kr_grad(raw));
        const double want[3] = { PI / 2, -PI, PI / 4 };
        CHECK_CLOSE("g_raw", g_raw, want, 3, NULL, 2e-7, 0);
        CHECK(kr_item(kr_grad(dt)) == 0, "g_dt is %g", kr_item(kr_grad(dt)));
        free(g_raw);
        kr_tape_destroy(t);
    }
    kr_ctx_destroy(ctx);
}
