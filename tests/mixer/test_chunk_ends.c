/* test_chunk_ends.c - the end of a chunk is as the end of a call: the core, the pair of the double pathway and the rotations
 * over a sequence have the bits of calls that are cut at multiples of the chunk length. */
#include "mixer/core.h"
#include "mixer/rotary.h"
#include "tests/harness.h"

enum { MOST_PIECES = 64 };

/* Where a sequence is cut: at 0, at random multiples of `grid`, at ns. */
typedef struct cuts {
    int count; /* pieces */
    int64_t at[MOST_PIECES + 1];
} cuts;

static cuts cut(int64_t ns, int64_t grid)
{
    cuts c = { .count = 0 };
    while (c.at[c.count] < ns) {
        const int64_t to = c.at[c.count] + grid * (1 + kr_test_below(3));
        c.count++;
        c.at[c.count] = to < ns && c.count < MOST_PIECES ? to : ns;
    }
    return c;
}

static kr_tensor *uniform(kr_tape *tape, kr_dtype dtype, kr_shape shape, double low, double high)
{
    return kr_cast(tape, kr_rand(tape, KR_DTYPE_F64, shape, low, high), dtype);
}

static kr_tensor *tokens(kr_tape *tape, kr_tensor *x, const cuts *c, int i)
{
    return x ? kr_slice(tape, x, 1, c->at[i], c->at[i + 1]) : NULL;
}

/* [b s h] at one token: [b h]. */
static kr_tensor *token(kr_tape *tape, kr_tensor *x, int64_t s)
{
    return kr_reshape(tape, kr_slice(tape, x, 1, s, s + 1), KR_SHAPE(kr_tensor_dim(x, 0), kr_tensor_dim(x, 2)));
}

/* The pieces of y, joined, and the state after the last. */
static void check(kr_tape *tape, const char *what, kr_ssd_out whole, int count, kr_tensor *const *y, kr_tensor *final)
{
    kr_tensor *joined = count == 1 ? y[0] : kr_concat(tape, 1, count, y);
    if (!kr_test_on_device(kr_tape_ctx(tape))) {
        CHECK_SAME_BITS(what, joined, whole.y);
        CHECK_SAME_BITS(what, final, whole.final_state);
    }
    CHECK_TENSORS(what, joined, whole.y, 1e-5, 1);
    CHECK_TENSORS(what, final, whole.final_state, 1e-5, 1);
}

typedef struct sizes {
    int64_t ns, nm, nh, np, ng, nr, nl;
} sizes;

/* ---- Mamba-2 ---- */

static void check_mamba2(kr_tape *tape, kr_dtype d, sizes n, bool from_zero)
{
    const kr_ssd_path path = { KR_SSD_SERIAL_RECALCULATED, n.nl };
    const kr_mamba2_ssd_input all = { .x_bshp = uniform(tape, d, KR_SHAPE(2, n.ns, n.nh, n.np), -1, 1),
                                      .dt_bsh = uniform(tape, d, KR_SHAPE(2, n.ns, n.nh), 0, 0.5),
                                      .a_decay_h = uniform(tape, d, KR_SHAPE(n.nh), -2, -0.5),
                                      .b_bsgr = uniform(tape, d, KR_SHAPE(2, n.ns, n.ng, n.nr), -1, 1),
                                      .c_bsgr = uniform(tape, d, KR_SHAPE(2, n.ns, n.ng, n.nr), -1, 1),
                                      .d_h = uniform(tape, d, KR_SHAPE(n.nh), -1, 1),
                                      .initial_state_bhpr =
                                          from_zero ? NULL : uniform(tape, d, KR_SHAPE(2, n.nh, n.np, n.nr), -1, 1) };
    const kr_ssd_out whole = kr_mamba2_ssd_run(tape, &all, path);
    const cuts c = cut(n.ns, n.nl);
    kr_mamba2_ssd_input part = all;
    kr_tensor *y[MOST_PIECES];
    for (int i = 0; i < c.count; i++) {
        part.x_bshp = tokens(tape, all.x_bshp, &c, i);
        part.dt_bsh = tokens(tape, all.dt_bsh, &c, i);
        part.b_bsgr = tokens(tape, all.b_bsgr, &c, i);
        part.c_bsgr = tokens(tape, all.c_bsgr, &c, i);
        const kr_ssd_out out = kr_mamba2_ssd_run(tape, &part, path);
        y[i] = out.y;
        part.initial_state_bhpr = out.final_state;
    }
    check(tape, "mamba2", whole, c.count, y, part.initial_state_bhpr);
}

/* ---- Mamba-3, single ---- */

/* x [b s m g r] at the token before s, of each head: [b m h r]. */
static kr_tensor *before(kr_tape *tape, kr_tensor *x, int64_t s, int64_t nh)
{
    const int64_t nb = kr_tensor_dim(x, 0), nm = kr_tensor_dim(x, 2), ng = kr_tensor_dim(x, 3),
                  nr = kr_tensor_dim(x, 4);
    kr_tensor *one = kr_reshape(tape, kr_slice(tape, x, 1, s - 1, s), KR_SHAPE(nb, nm, ng, 1, nr));
    return kr_reshape(tape, kr_expand(tape, one, KR_SHAPE(nb, nm, ng, nh / ng, nr)), KR_SHAPE(nb, nm, nh, nr));
}

static kr_mamba3_single_ssd_input single_input(kr_tape *tape, kr_dtype d, sizes n, bool from_zero)
{
    kr_mamba3_single_ssd_input in = { .v_bsmhp = uniform(tape, d, KR_SHAPE(2, n.ns, n.nm, n.nh, n.np), -1, 1),
                                      .b_bsmhr = uniform(tape, d, KR_SHAPE(2, n.ns, n.nm, n.ng, n.nr), -1, 1),
                                      .c_bsmhr = uniform(tape, d, KR_SHAPE(2, n.ns, n.nm, n.ng, n.nr), -1, 1),
                                      .da_bsh = uniform(tape, d, KR_SHAPE(2, n.ns, n.nh), -0.5, 0),
                                      .gamma_bsh = uniform(tape, d, KR_SHAPE(2, n.ns, n.nh), 0, 1),
                                      .carry_bsh = uniform(tape, d, KR_SHAPE(2, n.ns, n.nh), 0, 1),
                                      .d_h = uniform(tape, d, KR_SHAPE(n.nh), -1, 1) };
    in.scale_bsh = kr_trapezoid_scale(tape, in.gamma_bsh, in.carry_bsh, NULL);
    if (from_zero) return in;
    in.initial_state_bhpr = uniform(tape, d, KR_SHAPE(2, n.nh, n.np, n.nr), -1, 1);
    in.carry0_bh = token(tape, in.carry_bsh, 0);
    in.v_before_bmhp = uniform(tape, d, KR_SHAPE(2, n.nm, n.nh, n.np), -1, 1);
    in.k_before_bmhr = uniform(tape, d, KR_SHAPE(2, n.nm, n.nh, n.nr), -1, 1);
    return in;
}

static void check_single(kr_tape *tape, kr_dtype d, sizes n, bool from_zero)
{
    const kr_ssd_path path = { KR_SSD_SERIAL_RECALCULATED, n.nl };
    const kr_mamba3_single_ssd_input all = single_input(tape, d, n, from_zero);
    const kr_ssd_out whole = kr_mamba3_single_ssd_run(tape, &all, path);
    const cuts c = cut(n.ns, n.nl);
    kr_mamba3_single_ssd_input part = all;
    kr_tensor *y[MOST_PIECES];
    for (int i = 0; i < c.count; i++) {
        part.v_bsmhp = tokens(tape, all.v_bsmhp, &c, i);
        part.b_bsmhr = tokens(tape, all.b_bsmhr, &c, i);
        part.c_bsmhr = tokens(tape, all.c_bsmhr, &c, i);
        part.da_bsh = tokens(tape, all.da_bsh, &c, i);
        part.gamma_bsh = tokens(tape, all.gamma_bsh, &c, i);
        part.carry_bsh = tokens(tape, all.carry_bsh, &c, i);
        part.scale_bsh = kr_trapezoid_scale(tape, part.gamma_bsh, part.carry_bsh, NULL);
        if (i > 0) {
            part.carry0_bh = token(tape, all.carry_bsh, c.at[i]);
            part.v_before_bmhp = before(tape, all.v_bsmhp, c.at[i], n.nh);
            part.k_before_bmhr = before(tape, all.b_bsmhr, c.at[i], n.nh);
        }
        const kr_ssd_out out = kr_mamba3_single_ssd_run(tape, &part, path);
        y[i] = out.y;
        part.initial_state_bhpr = out.final_state;
    }
    check(tape, "mamba3, single", whole, c.count, y, part.initial_state_bhpr);
}

/* ---- Mamba-3, double ---- */

static void check_double(kr_tape *tape, kr_dtype d, sizes n, bool from_zero)
{
    const kr_ssd_path path = { KR_SSD_SERIAL_RECALCULATED, n.nl };
    kr_mamba3_double_ssd_input all[2];
    for (int k = 0; k < 2; k++)
        all[k] = (kr_mamba3_double_ssd_input){
            .v_bsmhp = uniform(tape, d, KR_SHAPE(2, n.ns, n.nm, n.nh, n.np), -1, 1),
            .b_bsmhr = uniform(tape, d, KR_SHAPE(2, n.ns, n.nm, n.ng, n.nr), -1, 1),
            .c_bsmhr = k ? all[0].c_bsmhr : uniform(tape, d, KR_SHAPE(2, n.ns, n.nm, n.ng, n.nr), -1, 1),
            .da_bsh = k ? all[0].da_bsh : uniform(tape, d, KR_SHAPE(2, n.ns, n.nh), -1, 0)
        };
    if (!from_zero) all[0].initial_state_bhpr = uniform(tape, d, KR_SHAPE(2, n.nh, n.np, n.nr), -1, 1);
    const kr_ssd_out whole = kr_mamba3_double_ssd_run_pair(tape, &all[0], &all[1], path);
    const kr_ssd_out now = kr_mamba3_double_ssd_run(tape, &all[0], path),
                     then = kr_mamba3_double_ssd_run(tape, &all[1], path);
    CHECK_TENSORS("y of the sum of two runs", whole.y, kr_add(tape, now.y, then.y), d == KR_DTYPE_F64 ? 1e-13 : 1e-5,
                  1);
    CHECK_TENSORS("state of the sum of two runs", whole.final_state, kr_add(tape, now.final_state, then.final_state),
                  d == KR_DTYPE_F64 ? 1e-13 : 1e-5, 1);
    const cuts c = cut(n.ns, n.nl);
    kr_tensor *y[MOST_PIECES], *state = all[0].initial_state_bhpr;
    for (int i = 0; i < c.count; i++) {
        kr_mamba3_double_ssd_input part[2] = { all[0], all[1] };
        for (int k = 0; k < 2; k++) {
            part[k].v_bsmhp = tokens(tape, all[k].v_bsmhp, &c, i);
            part[k].b_bsmhr = tokens(tape, all[k].b_bsmhr, &c, i);
            part[k].c_bsmhr = tokens(tape, all[k].c_bsmhr, &c, i);
            part[k].da_bsh = tokens(tape, all[k].da_bsh, &c, i);
        }
        part[0].initial_state_bhpr = state;
        const kr_ssd_out out = kr_mamba3_double_ssd_run_pair(tape, &part[0], &part[1], path);
        y[i] = out.y;
        state = out.final_state;
    }
    check(tape, "mamba3, double", whole, c.count, y, state);
}

/* ---- rotations ---- */

static void check_rotations(kr_tape *tape, kr_dtype d, sizes n, bool from_zero)
{
    enum { ANGLES = 19, BLOCKS = 3 };
    const bool is_exact = !kr_test_on_device(kr_tape_ctx(tape));
    kr_tensor *theta = uniform(tape, d, KR_SHAPE(2, n.ns, ANGLES), -2, 2),
              *dt = uniform(tape, d, KR_SHAPE(2, n.ns, n.nh), 0, 2);
    kr_tensor *q = kr_quaternion_increments(tape, uniform(tape, d, KR_SHAPE(2, n.ns, n.nh, BLOCKS, 3), -1, 1), dt, 1);
    kr_tensor *phi = from_zero ? NULL : uniform(tape, d, KR_SHAPE(2, n.nh, ANGLES), -3, 3);
    kr_tensor *cum = from_zero ? NULL : uniform(tape, d, KR_SHAPE(2, n.nh, BLOCKS, 4), 0.1, 1);
    const kr_rotation_out whole = kr_rotation_angles_chunked(tape, theta, dt, phi, 1, NULL, n.nl);
    const kr_quaternion_out product = kr_quaternion_cumprod_chunked(tape, q, cum, NULL, n.nl);
    const cuts c = cut(n.ns, n.nl);
    for (int i = 0; i < c.count && is_exact; i++) {
        const kr_rotation_out part =
            kr_rotation_angles_chunked(tape, tokens(tape, theta, &c, i), tokens(tape, dt, &c, i), phi, 1, NULL, n.nl);
        const kr_quaternion_out piece = kr_quaternion_cumprod_chunked(tape, tokens(tape, q, &c, i), cum, NULL, n.nl);
        CHECK_SAME_BITS("angles", part.angle_bsha, tokens(tape, whole.angle_bsha, &c, i));
        CHECK_SAME_BITS("products", piece.cum_bshj4, tokens(tape, product.cum_bshj4, &c, i));
        phi = part.final_bha;
        cum = piece.final_bhj4;
    }
    if (is_exact) CHECK_SAME_BITS("final angle", phi, whole.final_bha);
    if (is_exact) CHECK_SAME_BITS("final product", cum, product.final_bhj4);
}

/* ---- by every instruction set ---- */

typedef void check_fn(kr_tape *tape, kr_dtype d, sizes n, bool from_zero);

/* Chunks of few tokens, of more, with a short one at the end; more rows than the kernels process as one chunk, mixed with few
 * tokens (110 ranks: 4, 4, 4, 4, 1; 100: 5, 5, 5, 2). */
static const sizes shapes[] = {
    { 9, 1, 2, 5, 1, 7, 1 },       { 23, 1, 4, 6, 2, 19, 4 },   { 31, 2, 3, 17, 1, 33, 5 },
    { 99, 1, 7, 16, 1, 24, 32 },   { 67, 4, 2, 33, 2, 16, 16 }, { 70, 3, 2, 8, 2, 40, 33 },
    { 100, 1, 2, 64, 1, 128, 96 }, { 39, 110, 2, 5, 1, 8, 17 }, { 53, 100, 2, 4, 2, 6, 17 }
};

static void check_all(check_fn *law, bool has_ranks)
{
    char names[128];
    kr_isa_choices(names, sizeof names);
    for (char *isa = strtok(names, ", "); isa; isa = strtok(NULL, ", "))
        for (int i = 0; i < 2 * (int)(sizeof shapes / sizeof *shapes); i++) {
            sizes n = shapes[i / 2];
            if (!has_ranks && n.nm > 5) continue;
            kr_ctx *ctx = kr_test_ctx(1 + (int)kr_test_below(2), isa);
            kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
            law(tape, KR_DTYPE_F32, n, i % 2);
            if (i % 3 == 0 && n.nm < 5) law(tape, KR_DTYPE_F64, n, i % 2);
            CHECK(!kr_ctx_failed(ctx), "%s: %s", isa, kr_ctx_message(ctx));
            kr_tape_destroy(tape);
            kr_ctx_destroy(ctx);
        }
}

TEST(chunk_ends_are_call_ends_mamba2_threads)
{
    check_all(check_mamba2, false);
}

TEST(chunk_ends_are_call_ends_mamba3_single_threads)
{
    check_all(check_single, true);
}

TEST(chunk_ends_are_call_ends_mamba3_double_threads)
{
    check_all(check_double, true);
}

TEST(chunk_ends_are_call_ends_rotations_threads)
{
    check_all(check_rotations, false);
}

/* Gradients of the whole with carry are those without it: it changes rounding alone. */
TEST(carry_changes_no_gradient)
{
    const sizes n = { 37, 2, 3, 6, 3, 9, 8 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_mamba3_single_ssd_input in = single_input(tape, KR_DTYPE_F64, n, true);
    kr_tensor *leaf[2][5], *carry = in.carry_bsh;
    kr_ssd_out out[2];
    for (int i = 0; i < 2; i++) {
        in.v_bsmhp = leaf[i][0] = kr_input(tape, in.v_bsmhp);
        in.b_bsmhr = leaf[i][1] = kr_input(tape, in.b_bsmhr);
        in.da_bsh = leaf[i][2] = kr_input(tape, in.da_bsh);
        in.gamma_bsh = leaf[i][3] = kr_input(tape, in.gamma_bsh);
        leaf[i][4] = kr_input(tape, carry);
        in.carry_bsh = i ? leaf[i][4] : NULL;
        in.scale_bsh = kr_trapezoid_scale(tape, in.gamma_bsh, leaf[i][4], NULL);
        out[i] = kr_mamba3_single_ssd_run(tape, &in, (kr_ssd_path){ KR_SSD_SERIAL_RECALCULATED, n.nl });
    }
    CHECK_TENSORS("y", out[1].y, out[0].y, 1e-13, 1);
    kr_tensor *g_y = kr_randn(tape, KR_DTYPE_F64, kr_tensor_shape(out[0].y)),
              *g = kr_randn(tape, KR_DTYPE_F64, kr_tensor_shape(out[0].final_state));
    kr_backward_from(tape, 4, (kr_tensor *[]){ out[0].y, out[1].y, out[0].final_state, out[1].final_state },
                     (kr_tensor *[]){ g_y, g_y, g, g });
    CHECK_OK(ctx);
    for (int i = 0; i < 5; i++) CHECK_TENSORS("gradient", kr_grad(leaf[1][i]), kr_grad(leaf[0][i]), 1e-12, 1);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}

TEST(carry_errors)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_mamba3_single_ssd_input in = single_input(tape, KR_DTYPE_F64, (sizes){ 5, 1, 2, 3, 2, 4, 2 }, true);
    in.carry_bsh = kr_zeros(tape, KR_DTYPE_F64, KR_SHAPE(2, 4, 2));
    const kr_ssd_out out = kr_mamba3_single_ssd_run(tape, &in, kr_ssd_path_default());
    CHECK(!out.y && !out.final_state, "something came out");
    CHECK_ERROR(ctx, KR_ERR_SHAPE,
                "mamba3_single_ssd: axis s of carry [2, 4, 2] is 4, but v [2, 5, 1, 2, 3] says s = 5");
    kr_tape_reset(tape);
    in = single_input(tape, KR_DTYPE_F64, (sizes){ 5, 1, 2, 3, 2, 4, 2 }, true);
    kr_test_put(in.carry_bsh, 3, NAN);
    CHECK(kr_mamba3_single_ssd_sanity(tape, &in) == KR_ERR_NUMERIC, "a NaN");
    CHECK_ERROR(ctx, KR_ERR_NUMERIC, "mamba3_single_ssd_sanity: carry [2, 5, 2] holds nan at [0, 1, 1]");
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
}
