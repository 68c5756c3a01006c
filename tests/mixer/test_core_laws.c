/* test_core_laws.c - laws of the core for every algorithm and kernel: splitting, linearity, the two pathways of
 * Mamba-3, finite differences; and its errors. */
#include "tests/mixer/paths.h"

static const kr_ssd_algorithm algorithms[] = { KR_SSD_MINIMAL, KR_SSD_SERIAL, KR_SSD_SERIAL_RECALCULATED };

typedef struct mamba2_set {
    kr_ctx *ctx;
    kr_tape *tape;
    kr_mamba2_ssd_input in; /* b 2, s 37, h 4, p 6, g 2, r 5, f64 */
} mamba2_set;

static kr_tensor *uniform(kr_tape *tape, kr_shape shape, double low, double high)
{
    return kr_input(tape, kr_rand(tape, KR_DTYPE_F64, shape, low, high));
}

static mamba2_set make_mamba2(void)
{
    mamba2_set m = { .ctx = kr_test_ctx(1, NULL) };
    m.tape = kr_tape_create(m.ctx, KR_TAPE_GRAD);
    m.in = (kr_mamba2_ssd_input){ .x_bshp = uniform(m.tape, KR_SHAPE(2, 37, 4, 6), -1, 1),
                                  .dt_bsh = uniform(m.tape, KR_SHAPE(2, 37, 4), 0.05, 0.3),
                                  .a_decay_h = uniform(m.tape, KR_SHAPE(4), -1, -0.5),
                                  .b_bsgr = uniform(m.tape, KR_SHAPE(2, 37, 2, 5), -1, 1),
                                  .c_bsgr = uniform(m.tape, KR_SHAPE(2, 37, 2, 5), -1, 1),
                                  .d_h = uniform(m.tape, KR_SHAPE(4), -1, 1),
                                  .initial_state_bhpr = uniform(m.tape, KR_SHAPE(2, 4, 6, 5), -1, 1) };
    return m;
}

static void drop(mamba2_set *m)
{
    CHECK_OK(m->ctx);
    kr_tape_destroy(m->tape);
    kr_ctx_destroy(m->ctx);
}

/* Tokens from .. to - 1 of the input, starting from a state. */
static kr_ssd_out run_part(const mamba2_set *m, int64_t from, int64_t to, kr_tensor *state, kr_ssd_path path)
{
    kr_mamba2_ssd_input in = m->in;
    in.x_bshp = kr_slice(m->tape, in.x_bshp, 1, from, to);
    in.dt_bsh = kr_slice(m->tape, in.dt_bsh, 1, from, to);
    in.b_bsgr = kr_slice(m->tape, in.b_bsgr, 1, from, to);
    in.c_bsgr = kr_slice(m->tape, in.c_bsgr, 1, from, to);
    in.initial_state_bhpr = state;
    return kr_mamba2_ssd_run(m->tape, &in, path);
}

TEST(split_anywhere_is_the_whole)
{
    for (size_t a = 0; a < 3; a++)
        for (int64_t at = 1; at < 37; at += 5) {
            mamba2_set m = make_mamba2();
            const kr_ssd_path path = { algorithms[a], 8 };
            const kr_ssd_out whole = kr_mamba2_ssd_run(m.tape, &m.in, path);
            const kr_ssd_out first = run_part(&m, 0, at, m.in.initial_state_bhpr, path);
            const kr_ssd_out second =
                run_part(&m, at, 37, first.final_state, (kr_ssd_path){ algorithms[(a + 1) % 3], 5 });
            kr_tensor *joined = kr_concat(m.tape, 1, 2, (kr_tensor *[]){ first.y, second.y });
            CHECK_TENSORS("y of two parts", joined, whole.y, 1e-13, 0);
            CHECK_TENSORS("final state of two parts", second.final_state, whole.final_state, 1e-13, 0);
            drop(&m);
        }
}

TEST(token_by_token_is_the_whole)
{
    mamba2_set m = make_mamba2();
    const kr_ssd_out whole = kr_mamba2_ssd_run(m.tape, &m.in, kr_ssd_path_default());
    kr_tensor *state = m.in.initial_state_bhpr;
    for (int64_t s = 0; s < 37; s++) {
        const kr_ssd_out one = run_part(&m, s, s + 1, state, kr_ssd_path_default());
        CHECK_TENSORS("y of a token", one.y, kr_slice(m.tape, whole.y, 1, s, s + 1), 1e-12, 1);
        state = one.final_state;
    }
    CHECK_TENSORS("final state", state, whole.final_state, 1e-13, 0);
    drop(&m);
}

TEST(linear_in_x_and_state)
{
    for (size_t a = 0; a < 3; a++) {
        mamba2_set m = make_mamba2();
        const kr_ssd_path path = { algorithms[a], 16 };
        const kr_ssd_out one = kr_mamba2_ssd_run(m.tape, &m.in, path);
        kr_mamba2_ssd_input twice = m.in;
        twice.x_bshp = kr_scale(m.tape, m.in.x_bshp, -2);
        twice.initial_state_bhpr = kr_scale(m.tape, m.in.initial_state_bhpr, -2);
        const kr_ssd_out two = kr_mamba2_ssd_run(m.tape, &twice, path);
        CHECK_SAME_BITS("y", two.y, kr_scale(m.tape, one.y, -2)); /* a power of two scales all roundings equally */
        CHECK_SAME_BITS("state", two.final_state, kr_scale(m.tape, one.final_state, -2));
        drop(&m);
    }
}

/* Trapezoidal steps: H_t = alpha H_{t-1} + beta V_{t-1} B_{t-1} + gamma V_t B_t, by both pathways. */
TEST(double_pathway_is_single_pathway)
{
    enum { S = 29, M = 2, H = 3, P = 4, R = 6 };
    for (size_t a = 0; a < 3; a++) {
        kr_ctx *ctx = kr_test_ctx(1, NULL);
        kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
        const kr_ssd_path path = { algorithms[a], 8 };
        kr_tensor *v = uniform(tape, KR_SHAPE(2, S, M, H, P), -1, 1), *da = uniform(tape, KR_SHAPE(2, S, H), -0.5, 0);
        kr_tensor *b = uniform(tape, KR_SHAPE(2, S, M, H, R), -1, 1),
                  *c = uniform(tape, KR_SHAPE(2, S, M, H, R), -1, 1);
        kr_tensor *gamma = uniform(tape, KR_SHAPE(2, S, H), 0, 1), *carry = uniform(tape, KR_SHAPE(2, S, H), 0, 1);

        kr_tensor *scale = kr_add(tape, gamma, kr_pad(tape, kr_slice(tape, carry, 1, 1, S), 1, 0, 1, 0));
        const kr_ssd_out single = kr_mamba3_single_ssd_run(
            tape,
            &(kr_mamba3_single_ssd_input){
                .v_bsmhp = v, .b_bsmhr = b, .c_bsmhr = c, .da_bsh = da, .gamma_bsh = gamma, .scale_bsh = scale },
            path);

        kr_tensor *gamma_v = kr_mul(tape, v, kr_reshape(tape, gamma, KR_SHAPE(2, S, 1, H, 1)));
        kr_tensor *beta = kr_mul(tape, carry, kr_exp(tape, da));
        kr_tensor *v_prev = kr_pad(tape, kr_slice(tape, v, 1, 0, S - 1), 1, 1, 0, 0);
        kr_tensor *b_prev = kr_pad(tape, kr_slice(tape, b, 1, 0, S - 1), 1, 1, 0, 0);
        kr_tensor *beta_v = kr_mul(tape, v_prev, kr_reshape(tape, beta, KR_SHAPE(2, S, 1, H, 1)));
        const kr_ssd_out now = kr_mamba3_double_ssd_run(
            tape, &(kr_mamba3_double_ssd_input){ .v_bsmhp = gamma_v, .da_bsh = da, .b_bsmhr = b, .c_bsmhr = c }, path);
        const kr_ssd_out before = kr_mamba3_double_ssd_run(
            tape, &(kr_mamba3_double_ssd_input){ .v_bsmhp = beta_v, .da_bsh = da, .b_bsmhr = b_prev, .c_bsmhr = c },
            path);
        CHECK_TENSORS("y", single.y, kr_add(tape, now.y, before.y), 1e-13, 0);
        CHECK_TENSORS("state", single.final_state, kr_add(tape, now.final_state, before.final_state), 1e-13, 0);
        CHECK_OK(ctx);
        kr_tape_destroy(tape);
        kr_ctx_destroy(ctx);
    }
}

/* loss of a case with element `at` of operand `which` shifted by `step`. */
static double moved_loss(const ssd_case *c, operands *o, int which, int64_t at, double step)
{
    const double original = o->values[which][at];
    o->values[which][at] = original + step;
    results r = run_case(c, o, KR_DTYPE_F64, KR_SSD_SERIAL_RECALCULATED, "ref", 1, NULL);
    o->values[which][at] = original;
    double loss = 0;
    for (int64_t i = 0; i < r.counts[0]; i++) loss += r.values[0][i] * o->g_y[i];
    for (int64_t i = 0; i < r.counts[1]; i++) loss += r.values[1][i] * o->g_final[i];
    free_results(&r);
    return loss;
}

TEST(finite_differences)
{
    const double h = 1e-5; /* error h^2 f''' / 6 of the difference and 1e-16 / h of its rounding: both about 1e-10 */
    for (int f = MAMBA2; f <= MAMBA3_SINGLE; f++) {
        const ssd_case c = { .family = (family)f,
                             .nb = 2,
                             .ns = 7,
                             .nm = f == MAMBA2 ? 1 : 2,
                             .nh = 2,
                             .np = 3,
                             .ng = 1,
                             .nr = 4,
                             .nl = 3,
                             .initial = true,
                             .learned = true,
                             .skip = true,
                             .packed = true };
        operands o = make_operands(&c);
        results r = run_case(&c, &o, KR_DTYPE_F64, KR_SSD_SERIAL_RECALCULATED, "ref", 1, NULL);
        for (int which = 0; which < MAX_OPERANDS; which++) {
            const int64_t count = r.counts[which + 2];
            double *want = calloc((size_t)count + 1, sizeof *want);
            if (!want) exit(2);
            if (count) memcpy(want, r.values[which + 2], (size_t)count * sizeof *want);
            for (int64_t i = 0; i < count; i += kr_test_difference_step(NULL))
                want[i] = (moved_loss(&c, &o, which, i, h) - moved_loss(&c, &o, which, i, -h)) / (2 * h);
            CHECK_CLOSE(result_names[which + 2], r.values[which + 2], want, count, &r.shapes[which + 2], 1e-8, 0);
            free(want);
        }
        free_results(&r);
        free_operands(&o);
    }
}

/* y with a skip is y without it plus D v, head by head; its gradient is sum <g_y, v>, and v's has D g_y added. */
TEST(skip_is_d_v)
{
    enum { V = 0, SKIP = 6 }; /* operands */
    for (int f = MAMBA2; f <= MAMBA3_SINGLE; f++)
        for (int n = 0; n < 3; n++) {
            ssd_case c = { .family = (family)f,
                           .nb = 2,
                           .ns = 11,
                           .nm = f == MAMBA2 ? 1 : 3,
                           .nh = 4,
                           .np = 3,
                           .ng = 2,
                           .nr = 5,
                           .nl = 4,
                           .initial = true,
                           .packed = true };
            c.skip = true;
            operands o = make_operands(&c);
            results with = run_case(&c, &o, KR_DTYPE_F64, algorithms[n], NULL, 1, NULL);
            double *d = o.values[SKIP], g_d[4] = { 0 };
            o.values[SKIP] = NULL;
            results without = run_case(&c, &o, KR_DTYPE_F64, algorithms[n], NULL, 1, NULL);
            o.values[SKIP] = d;
            for (int64_t i = 0; i < without.counts[0]; i++) {
                const int64_t h = i / c.np % c.nh;
                without.values[0][i] += d[h] * o.values[V][i];
                without.values[V + 2][i] += d[h] * o.g_y[i];
                g_d[h] += o.g_y[i] * o.values[V][i];
            }
            CHECK_CLOSE("y", with.values[0], without.values[0], with.counts[0], &with.shapes[0], 1e-14, 1);
            CHECK_CLOSE("g_v", with.values[V + 2], without.values[V + 2], with.counts[0], &with.shapes[0], 1e-14, 1);
            CHECK_CLOSE("g_d", with.values[SKIP + 2], g_d, 4, &with.shapes[SKIP + 2], 1e-13, 1);
            free_results(&with);
            free_results(&without);
            free_operands(&o);
        }
}

TEST(sanity_names_the_operand)
{
    mamba2_set m = make_mamba2();
    CHECK(kr_mamba2_ssd_sanity(m.tape, &m.in) == KR_OK, "a sane input");
    kr_test_put(m.in.b_bsgr, (1 * 37 + 3) * 10 + 7, INFINITY);
    CHECK(kr_mamba2_ssd_sanity(m.tape, &m.in) == KR_ERR_NUMERIC, "an infinity");
    CHECK_ERROR(m.ctx, KR_ERR_NUMERIC, "mamba2_ssd_sanity: b [2, 37, 2, 5] holds inf at [1, 3, 1, 2]");
    kr_tape_reset(m.tape);
    drop(&m);

    m = make_mamba2();
    kr_test_put(m.in.a_decay_h, 2, 0.25);
    kr_mamba2_ssd_run(m.tape, &m.in, kr_ssd_path_default());
    CHECK_OK(m.ctx); /* computed as given */
    kr_mamba2_ssd_sanity(m.tape, &m.in);
    CHECK_ERROR(m.ctx, KR_ERR_NUMERIC,
                "mamba2_ssd_sanity: a_decay [4] holds 0.25 at [2], a log-decay above 0: the state grows");
    kr_tape_reset(m.tape);
    drop(&m);
}

/* Runs a changed input and checks the text. */
static void refuse(kr_mamba2_ssd_input change, kr_ssd_path path, kr_status status, const char *text, mamba2_set *m)
{
    const kr_ssd_out out = kr_mamba2_ssd_run(m->tape, &change, path);
    CHECK(!out.y && !out.final_state, "something came out");
    CHECK_ERROR(m->ctx, status, text);
    drop(m);
}

TEST(errors)
{
    const kr_ssd_path path = kr_ssd_path_default();
    mamba2_set m = make_mamba2();
    kr_mamba2_ssd_input in = m.in;
    refuse(in, (kr_ssd_path){ KR_SSD_SERIAL, -3 }, KR_ERR_ARG,
           "mamba2_ssd: chunk_len = -3, but must be at least 1, or 0 for the optimal one", &m);

    m = make_mamba2();
    refuse(m.in, (kr_ssd_path){ (kr_ssd_algorithm)7, 0 }, KR_ERR_ARG,
           "mamba2_ssd: algorithm 7 is not one of Minimal, Serial, SerialRecalculated", &m);

    m = make_mamba2();
    in = m.in;
    in.b_bsgr = in.c_bsgr = kr_zeros(m.tape, KR_DTYPE_F64, KR_SHAPE(2, 37, 3, 5));
    refuse(in, path, KR_ERR_SHAPE, "mamba2_ssd: g = 3 groups of b [2, 37, 3, 5] do not divide h = 4 heads", &m);

    m = make_mamba2();
    in = m.in;
    in.x_bshp = kr_zeros(m.tape, KR_DTYPE_F64, KR_SHAPE(2, 0, 4, 6));
    in.dt_bsh = kr_zeros(m.tape, KR_DTYPE_F64, KR_SHAPE(2, 0, 4));
    in.b_bsgr = in.c_bsgr = kr_zeros(m.tape, KR_DTYPE_F64, KR_SHAPE(2, 0, 2, 5));
    refuse(in, path, KR_ERR_SHAPE, "mamba2_ssd: x [2, 0, 4, 6] has no token; a sequence needs at least one", &m);

    m = make_mamba2();
    in = m.in;
    in.c_bsgr = kr_zeros(m.tape, KR_DTYPE_F64, KR_SHAPE(2, 36, 2, 5));
    refuse(in, path, KR_ERR_SHAPE, "mamba2_ssd: axis s of c [2, 36, 2, 5] is 36, but x [2, 37, 4, 6] says s = 37", &m);

    m = make_mamba2();
    in = m.in;
    in.d_h = kr_zeros(m.tape, KR_DTYPE_F32, KR_SHAPE(4));
    refuse(in, path, KR_ERR_DTYPE,
           "mamba2_ssd: d [4] is f32, but x is f64; f64 mixes with no other type, kr_cast one of them", &m);

    m = make_mamba2();
    in = m.in;
    in.initial_state_bhpr = kr_zeros(m.tape, KR_DTYPE_F64, KR_SHAPE(3, 4, 6, 5));
    refuse(in, path, KR_ERR_SHAPE,
           "mamba2_ssd: initial_state [3, 4, 6, 5] must be [2, 4, 6, 5]: a state for each sequence", &m);

    m = make_mamba2();
    in = m.in;
    in.seq_start_bs = kr_zeros(m.tape, KR_DTYPE_F64, KR_SHAPE(2, 37));
    refuse(in, path, KR_ERR_DTYPE, "mamba2_ssd: seq_start [2, 37] is f64, but must be i32 or i64", &m);
}

TEST(which_kernel_ran)
{
    kr_ctx *ctx = kr_test_ctx(1, "ref");
    CHECK(kr_ctx_kernel(ctx, "no such kernel") == NULL, "a name that is none");
    if (kr_test_on_device(ctx)) { /* "cuda" runs them on "cuda:0 ..." */
        const char *kernel = kr_ctx_kernel(ctx, "gather");
        CHECK(strncmp(kr_ctx_device(ctx), kernel, strlen(kernel)) == 0, "got %s", kernel);
        kr_ctx_destroy(ctx);
        return;
    }
    CHECK(strcmp(kr_ctx_kernel(ctx, "ssd"), "ref") == 0, "got %s", kr_ctx_kernel(ctx, "ssd"));
    kr_ctx_destroy(ctx);
    ctx = kr_test_ctx(1, NULL);
    CHECK(strcmp(kr_ctx_kernel(ctx, "ssd"), kr_ctx_isa(ctx)) == 0, "got %s", kr_ctx_kernel(ctx, "ssd"));
    CHECK(strcmp(kr_ctx_kernel(ctx, "gather"), "ref") == 0, "got %s", kr_ctx_kernel(ctx, "gather"));
    kr_ctx_destroy(ctx);
}
