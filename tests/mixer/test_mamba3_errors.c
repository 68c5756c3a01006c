/* test_mamba3_errors.c - errors of Mamba-3's parts and their texts; and allocation failures. */
#include "tests/error_tests.h"

static kr_tensor *with_options(kr_a_activation activation, double floor, double low, double high)
{
    kr_trapezoid_options o;
    kr_trapezoid_options_init(&o);
    o.a_activation = activation;
    o.a_floor = floor;
    o.dt_min = low;
    o.dt_max = high;
    return kr_trapezoid(t, F(1, 2, 3), NULL, F(1, 2, 3), F(1, 2, 3), &o).dt_bsh;
}

TEST(mamba3_trapezoid_errors)
{
    begin();
    REFUSED(KR_ERR_ARG, "trapezoid: operand a_raw is NULL",
            kr_trapezoid(t, F(1, 2, 3), NULL, NULL, F(1, 2, 3), NULL).da_bsh);
    REFUSED(KR_ERR_SHAPE, "trapezoid: axis h of dt_bias [4] is 4, but dt_raw [1, 2, 3] says h = 3",
            kr_trapezoid(t, F(1, 2, 3), F(4), F(1, 2, 3), F(1, 2, 3), NULL).dt_bsh);
    REFUSED(
        KR_ERR_DTYPE,
        "trapezoid: lambda_raw [1, 2, 3] is f64, but dt_raw is f32; f64 mixes with no other type, kr_cast one of them",
        kr_trapezoid(t, F(1, 2, 3), NULL, F(1, 2, 3), D(1, 2, 3), NULL).dt_bsh);
    REFUSED(KR_ERR_ARG, "trapezoid: a_activation = 2 is neither heavy tail nor softplus",
            with_options((kr_a_activation)2, 1e-4, 0, 1));
    REFUSED(KR_ERR_ARG, "trapezoid: a_floor = 0, but must be above 0", with_options(KR_A_ACTIVATION_SOFTPLUS, 0, 0, 1));
    REFUSED(KR_ERR_ARG, "trapezoid: dt_min = 2 and dt_max = 1, but 0 <= dt_min <= dt_max must hold",
            with_options(KR_A_ACTIVATION_SOFTPLUS, 1, 2, 1));
    REFUSED(KR_ERR_SHAPE, "trapezoid_scale: gamma [1, 0, 3] has no token; a sequence needs one",
            kr_trapezoid_scale(t, F(1, 0, 3), F(1, 0, 3), NULL));
    REFUSED(KR_ERR_DTYPE, "trapezoid_scale: seq_start [1, 2] is f32, but must be i32 or i64",
            kr_trapezoid_scale(t, F(1, 2, 3), F(1, 2, 3), F(1, 2)));
    REFUSED(KR_ERR_SHAPE, "trapezoid_scale: axis s of seq_start [1, 3] is 3, but gamma [1, 2, 3] says s = 2",
            kr_trapezoid_scale(t, F(1, 2, 3), F(1, 2, 3), I(1, 3)));
    REFUSED(KR_ERR_SHAPE, "boundary_seed: axis m of k [1, 3, 2, 5] is 3, but v [1, 1, 2, 4] says m = 1",
            kr_boundary_state(t, NULL, F(1, 2), F(1, 1, 2, 4), F(1, 3, 2, 5)));
    REFUSED(KR_ERR_ARG, "boundary_seed: operand v is NULL", kr_boundary_state(t, NULL, F(1, 2), NULL, F(1, 3, 2, 5)));
    end();
}

TEST(mamba3_norm_and_rotation_errors)
{
    begin();
    REFUSED(KR_ERR_SHAPE, "qk_norm: g = 2 groups of x [1, 1, 1, 2, 4] do not divide n_heads = 5",
            kr_qk_norm(t, F(1, 1, 1, 2, 4), NULL, NULL, 5, 1e-5));
    REFUSED(KR_ERR_SHAPE, "qk_norm: axis h of bias [3, 1, 4] is 3, but n_heads = 4",
            kr_qk_norm(t, F(1, 1, 1, 2, 4), NULL, F(3, 1, 4), 4, 1e-5));
    REFUSED(KR_ERR_ARG, "qk_norm: eps = -1, but must not be negative",
            kr_qk_norm(t, F(1, 1, 1, 2, 4), NULL, NULL, 4, -1));
    REFUSED(KR_ERR_ARG, "rotation_angles: range = 0, but must be above 0",
            kr_rotation_angles(t, F(1, 2, 3), F(1, 2, 4), NULL, 0, NULL).angle_bsha);
    REFUSED(KR_ERR_SHAPE, "rotation_angles: s = 0, but a sequence needs at least one token",
            kr_rotation_angles(t, F(1, 0, 3), F(1, 0, 4), NULL, 1, NULL).angle_bsha);
    REFUSED(KR_ERR_SHAPE, "rotation_angles: theta [1, 2, 0] and dt [1, 2, 4] have an empty axis",
            kr_rotation_angles(t, F(1, 2, 0), F(1, 2, 4), NULL, 1, NULL).angle_bsha);
    REFUSED(KR_ERR_SHAPE, "rotation_angles: initial_angle [2, 4, 3] must be [1, 4, 3]: an angle for each sequence",
            kr_rotation_angles(t, F(1, 2, 3), F(1, 2, 4), F(2, 4, 3), 1, NULL).angle_bsha);
    REFUSED(KR_ERR_SHAPE, "rotation_angles: axis h of initial_angle [1, 5, 3] is 5, but dt [1, 2, 4] says h = 4",
            kr_rotation_angles(t, F(1, 2, 3), F(1, 2, 4), F(1, 5, 3), 1, NULL).angle_bsha);
    REFUSED(KR_ERR_SHAPE, "rotate: r = 7 of x [1, 1, 1, 1, 7] is odd, but split pairs need an even r",
            kr_rotate(t, F(1, 1, 1, 1, 7), F(1, 1, 1, 2), KR_PAIRING_SPLIT));
    REFUSED(KR_ERR_SHAPE, "rotate: a = 5 angles rotate 10 entries, but r of x [1, 1, 1, 1, 8] is 8",
            kr_rotate(t, F(1, 1, 1, 1, 8), F(1, 1, 1, 5), KR_PAIRING_ADJACENT));
    REFUSED(KR_ERR_ARG, "rotate: pairing = 7 is neither adjacent nor split",
            kr_rotate(t, F(1, 1, 1, 1, 8), F(1, 1, 1, 2), (kr_pairing)7));
    end();
}

TEST(mamba3_quaternion_errors)
{
    begin();
    REFUSED(KR_ERR_SHAPE, "quaternion_increments: axis 4 of raw [1, 2, 3, 1, 4] is 4, but must be 3",
            kr_quaternion_increments(t, F(1, 2, 3, 1, 4), F(1, 2, 3), 1));
    REFUSED(KR_ERR_ARG, "quaternion_increments: range = -1, but must be above 0",
            kr_quaternion_increments(t, F(1, 2, 3, 1, 3), F(1, 2, 3), -1));
    REFUSED(KR_ERR_SHAPE,
            "quaternion_cumprod: initial [1, 3, 1, 4] must be [2, 3, 1, 4]: quaternions for each sequence",
            kr_quaternion_cumprod(t, F(1, 2, 3, 1, 4), F(1, 3, 1, 4), kr_full(t, KR_DTYPE_I32, KR_SHAPE(1, 2), 1))
                .cum_bshj4);
    REFUSED(KR_ERR_SHAPE, "quaternion_cumprod: s = 0, but a sequence needs at least one token",
            kr_quaternion_cumprod(t, F(1, 0, 3, 1, 4), NULL, NULL).cum_bshj4);
    REFUSED(KR_ERR_SHAPE, "quaternion_rotate: j = 2 blocks rotate 8 entries, but r of x [1, 2, 1, 3, 7] is 7",
            kr_quaternion_rotate(t, F(1, 2, 1, 3, 7), F(1, 2, 3, 2, 4)));
    end();
}

static void everything(void)
{
    kr_tensor *raw = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 3, 4))),
              *x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 3, 1, 2, 8));
    kr_tensor *start = kr_full(t, KR_DTYPE_I32, KR_SHAPE(2, 3), 1);
    kr_trapezoid_out c = kr_trapezoid(t, raw, NULL, raw, raw, NULL);
    kr_tensor *turn = kr_rotation_angles(t, raw, c.dt_bsh, NULL, 1, start).angle_bsha;
    kr_tensor *y = kr_rotate(t, kr_qk_norm(t, x, NULL, NULL, 4, 1e-5), turn, KR_PAIRING_SPLIT);
    kr_tensor *q = kr_quaternion_increments(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 3, 4, 2, 3)), c.carry_bsh, 1);
    y = kr_quaternion_rotate(t, y, kr_quaternion_cumprod(t, q, NULL, start).cum_bshj4);
    kr_tensor *carry0 =
        kr_reshape(t, kr_slice(t, kr_trapezoid_scale(t, c.gamma_bsh, c.beta_bsh, start), 1, 0, 1), KR_SHAPE(2, 4));
    kr_tensor *k = kr_reshape(t, kr_slice(t, y, 1, 0, 1), KR_SHAPE(2, 1, 4, 8));
    kr_backward(t, kr_sum(t, kr_boundary_state(t, NULL, carry0, k, k), KR_ALL_AXES, false));
}

/* Each allocation fails once: an error that says so, and a context that works after kr_ctx_clear. */
TEST(mamba3_parts_starved)
{
    bool done = false;
    for (size_t n = 1; n < 200 && !done; n++) {
        begin();
        kr_ctx_fail_allocation(ctx, n);
        everything();
        done = !kr_ctx_failed(ctx);
        CHECK(done || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_fail_allocation(ctx, 0);
        kr_ctx_clear(ctx);
        kr_tape_reset(t);
        everything();
        end();
    }
    CHECK(done, "the program needs more than 200 allocations");
}
