/* test_values.c - arithmetic ops on numbers that one can check by hand, so that no two kernels can be wrong together. */
#include "tests/ops/literals.h"

#include "tape/tape_impl.h"

#define S2(a, b) KR_SHAPE(a, b)

static void back(kr_tape *t, kr_tensor *y)
{
    kr_backward_from(t, 1, &y, NULL);
}

FLOAT_TEST(arithmetic)
{
    kr_tensor *a = OF(t, d, S2(2, 2), 1, 2, 3, 4), *b = OF(t, d, KR_SHAPE(2), 16, 32), *s = OF(t, d, KR_SCALAR, 2);
    IS(kr_add(t, a, b), S2(2, 2), 17, 34, 19, 36);
    IS(kr_sub(t, a, b), S2(2, 2), -15, -30, -13, -28);
    IS(kr_sub(t, b, a), S2(2, 2), 15, 30, 13, 28);
    IS(kr_mul(t, a, b), S2(2, 2), 16, 64, 48, 128);
    IS(kr_div(t, b, s), KR_SHAPE(2), 8, 16);
    IS(kr_div(t, a, s), S2(2, 2), 0.5, 1, 1.5, 2);
    IS(kr_mul(t, s, s), KR_SCALAR, 4);
    IS(kr_add(t, kr_reshape(t, b, S2(2, 1)), b), S2(2, 2), 32, 48, 48, 64);
    IS(kr_scale(t, a, -0.5), S2(2, 2), -0.5, -1, -1.5, -2);
    IS(kr_affine(t, a, 2, 1), S2(2, 2), 3, 5, 7, 9);
    IS(kr_neg(t, a), S2(2, 2), -1, -2, -3, -4);
    kr_tensor *x = OF(t, d, KR_SHAPE(4), 1, -1, 0, INFINITY), *zero = OF(t, d, KR_SCALAR, 0);
    IS(kr_div(t, x, zero), KR_SHAPE(4), INFINITY, -INFINITY, NAN, INFINITY);
    IS(kr_mul(t, x, zero), KR_SHAPE(4), 0, 0, 0, NAN);
    IS(kr_sub(t, x, x), KR_SHAPE(4), 0, 0, 0, NAN);
}

FLOAT_TEST(maximum_shares_ties)
{
    kr_tensor *a = kr_input(t, OF(t, d, KR_SHAPE(3), 1, 5, 3)), *b = kr_input(t, OF(t, d, KR_SHAPE(3), 2, 5, -1));
    kr_tensor *y = kr_maximum(t, a, b);
    IS(y, KR_SHAPE(3), 2, 5, 3);
    IS(kr_maximum(t, OF(t, d, KR_SHAPE(4), NAN, 1, INFINITY, -INFINITY), OF(t, d, KR_SHAPE(4), 1, NAN, 3, 2)),
       KR_SHAPE(4), NAN, NAN, INFINITY, 2);
    back(t, y);
    IS(kr_grad(a), KR_SHAPE(3), 0, 0.5, 1);
    IS(kr_grad(b), KR_SHAPE(3), 1, 0.5, 0);
}

FLOAT_TEST(minimum_shares_ties)
{
    kr_tensor *a = kr_input(t, OF(t, d, KR_SHAPE(3), 1, 5, 3)), *b = kr_input(t, OF(t, d, KR_SHAPE(3), 2, 5, -1));
    kr_tensor *y = kr_minimum(t, a, b);
    IS(y, KR_SHAPE(3), 1, 5, -1);
    IS(kr_minimum(t, OF(t, d, KR_SHAPE(4), NAN, 1, INFINITY, -INFINITY), OF(t, d, KR_SHAPE(4), 1, NAN, 3, 2)),
       KR_SHAPE(4), NAN, NAN, 3, -INFINITY);
    back(t, y);
    IS(kr_grad(a), KR_SHAPE(3), 1, 0.5, 0);
    IS(kr_grad(b), KR_SHAPE(3), 0, 0.5, 1);
}

FLOAT_TEST(powers)
{
    kr_tensor *a = kr_input(t, OF(t, d, KR_SHAPE(6), 2, 4, 0, 0, 3, 0.5)),
              *b = kr_input(t, OF(t, d, KR_SHAPE(6), 3, 0.5, 2, 0, 0, -1));
    kr_tensor *y = kr_pow(t, a, b);
    NEAR(y, KR_SHAPE(6), 8, 2, 0, 1, 1, 2);
    /* signs and special values of C's pow */
    NEAR(kr_pow(t, OF(t, d, KR_SHAPE(8), -2, -2, -2, -1, NAN, 1, -INFINITY, 0),
                OF(t, d, KR_SHAPE(8), 3, 2, 0.5, INFINITY, 0, NAN, 3, -1)),
         KR_SHAPE(8), -8, 4, NAN, 1, 1, 1, -INFINITY, INFINITY);
    back(t, y);
    NEAR(kr_grad(a), KR_SHAPE(6), 12, 0.25, 0, 0, 0, -4);
    NEAR(kr_grad(b), KR_SHAPE(6), 5.545177444479562, 2.772588722239781, 0, 0, 1.0986122886681098, -1.3862943611198906);
}

FLOAT_TEST(powers_of_one_exponent)
{
    kr_tensor *x = kr_input(t, OF(t, d, KR_SHAPE(4), -2, 0, 0.5, 3));
    kr_tensor *cube = kr_pow_scalar(t, x, 3), *square = kr_pow_scalar(t, x, 2), *one = kr_pow_scalar(t, x, 0);
    NEAR(cube, KR_SHAPE(4), -8, 0, 0.125, 27);
    IS(square, KR_SHAPE(4), 4, 0, 0.25, 9);
    IS(one, KR_SHAPE(4), 1, 1, 1, 1);
    NEAR(kr_pow_scalar(t, x, 0.5), KR_SHAPE(4), NAN, 0, 0.7071067811865476, 1.7320508075688772);
    NEAR(kr_pow_scalar(t, x, -1), KR_SHAPE(4), -0.5, INFINITY, 2, 0.3333333333333333);
    kr_backward_from(t, 3, (kr_tensor *[]){ cube, square, one }, NULL);
    NEAR(kr_grad(x), KR_SHAPE(4), 12 - 4, 0, 0.75 + 1, 27 + 6);
}

FLOAT_TEST(kinks_have_slope_zero)
{
    kr_tensor *x = kr_input(t, OF(t, d, KR_SHAPE(3), -2, 0, 3));
    kr_tensor *y = kr_abs(t, x), *r = kr_relu(t, x);
    IS(y, KR_SHAPE(3), 2, 0, 3);
    IS(r, KR_SHAPE(3), 0, 0, 3);
    IS(kr_relu(t, OF(t, d, KR_SHAPE(3), NAN, INFINITY, -INFINITY)), KR_SHAPE(3), NAN, INFINITY, 0);
    kr_backward_from(t, 2, (kr_tensor *[]){ y, r }, (kr_tensor *[]){ NULL, OF(t, d, KR_SHAPE(3), 16, 16, 16) });
    IS(kr_grad(x), KR_SHAPE(3), -1, 0, 17);
}

FLOAT_TEST(choice)
{
    kr_tensor *a = kr_input(t, OF(t, d, S2(2, 3), 1, 2, 3, 4, 5, 6)), *b = kr_input(t, OF(t, d, S2(2, 1), -1, -2));
    /* a mask is true when not 0: also where its low 32 bits are */
    kr_tensor *mask = kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(3), (const int64_t[]){ 0, INT64_C(1) << 32, -5 });
    IS(kr_where(t, mask, a, b), S2(2, 3), -1, 2, 3, -2, 5, 6);
    IS(kr_mask_fill(t, a, mask, 9), S2(2, 3), 1, 9, 9, 4, 9, 9);
    IS(kr_mask_fill(t, a, kr_cast(t, mask, KR_DTYPE_I32), -INFINITY), S2(2, 3), 1, -INFINITY, -INFINITY, 4, -INFINITY,
       -INFINITY);
    back(t, kr_where(t, mask, a, b));
    IS(kr_grad(a), S2(2, 3), 0, 1, 1, 0, 1, 1);
    IS(kr_grad(b), S2(2, 1), 1, 1);
}

/* Masks that choose: the gradient reaches what was chosen. */
FLOAT_TEST(comparisons)
{
    kr_tensor *a = kr_input(t, OF(t, d, S2(2, 3), 1, 2, 3, NAN, 2, -INFINITY)), *b = OF(t, d, KR_SHAPE(3), 2, 2, 2);
    IS(kr_eq(t, a, b), S2(2, 3), 0, 1, 0, 0, 1, 0);
    IS(kr_ne(t, a, b), S2(2, 3), 1, 0, 1, 1, 0, 1);
    IS(kr_lt(t, a, b), S2(2, 3), 1, 0, 0, 0, 0, 1);
    IS(kr_le(t, a, b), S2(2, 3), 1, 1, 0, 0, 1, 1);
    IS(kr_gt(t, a, b), S2(2, 3), 0, 0, 1, 0, 0, 0);
    IS(kr_ge(t, a, b), S2(2, 3), 0, 1, 1, 0, 1, 0);
    IS(kr_lt(t, kr_transpose(t, a), OF(t, d, KR_SCALAR, 2)), S2(3, 2), 1, 0, 0, 0, 0, 1);
    kr_tensor *mask = kr_gt(t, a, b);
    CHECK(kr_tensor_dtype(mask) == KR_DTYPE_I32 && !kr_requires_grad(mask), "a mask is i32 and has no gradient");
    kr_tensor *y = kr_where(t, mask, a, kr_zeros(t, d, KR_SCALAR));
    IS(y, S2(2, 3), 0, 0, 3, 0, 0, 0);
    back(t, y);
    IS(kr_grad(a), S2(2, 3), 0, 0, 1, 0, 0, 0);
}

TEST(comparisons_of_integers)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    const int64_t high = INT64_C(1) << 53;
    kr_tensor *a = kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(3), (const int64_t[]){ high, high + 1, -1 });
    kr_tensor *b = kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(3), (const int64_t[]){ high + 1, high + 1, 1 });
    IS(kr_lt(t, a, b), KR_SHAPE(3), 1, 0, 1);
    IS(kr_eq(t, a, b), KR_SHAPE(3), 0, 1, 0);
    kr_tensor *small = kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(3), (const int32_t[]){ 7, -1, 0 });
    IS(kr_ge(t, small, kr_full(t, KR_DTYPE_I32, KR_SCALAR, 0)), KR_SHAPE(3), 1, 0, 1);
    IS(kr_ne(t, small, a), KR_SHAPE(3), 1, 1, 1);
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

FLOAT_TEST(places_of_the_largest)
{
    kr_tensor *x = OF(t, d, KR_SHAPE(2, 2, 3), 1, 7, 7, 2, 0, 1, NAN, 9, NAN, -INFINITY, -INFINITY, -INFINITY);
    IS(kr_argmax(t, x, -1, false), S2(2, 2), 1, 0, 0, 0);
    IS(kr_argmax(t, x, 1, true), KR_SHAPE(2, 1, 3), 1, 0, 0, 0, 0, 0);
    IS(kr_argmax(t, x, 0, false), S2(2, 3), 1, 1, 1, 0, 0, 0);
    IS(kr_argmax(t, kr_transpose(t, x), 2, false), S2(2, 3), 1, 0, 0, 0, 0, 0);
    kr_tensor *place = kr_argmax(t, x, -1, true);
    CHECK(kr_tensor_dtype(place) == KR_DTYPE_I64, "places are i64");
    IS(kr_gather(t, x, -1, place), KR_SHAPE(2, 2, 1), 7, 2, NAN, -INFINITY);
}

FLOAT_TEST(layer_norm)
{
    /* of 1, 3 the mean is 2, the variance 1; of 5, 5 the variance is 0 */
    kr_norm_options o;
    kr_norm_options_init(&o);
    o.eps = 0;
    kr_tensor *x = OF(t, d, S2(2, 2), 1, 3, -6, 2);
    IS(kr_layer_norm(t, x, NULL, NULL, &o), S2(2, 2), -1, 1, -1, 1);
    IS(kr_layer_norm(t, x, OF(t, d, KR_SHAPE(2), 2, 4), OF(t, d, KR_SHAPE(2), 16, 32), &o), S2(2, 2), 14, 36, 14, 36);
    o.eps = 0.25;
    IS(kr_layer_norm(t, OF(t, d, KR_SHAPE(2), 5, 5), NULL, OF(t, d, KR_SHAPE(2), 1, 2), &o), KR_SHAPE(2), 1, 2);
    NEAR(kr_layer_norm(t, x, NULL, NULL, NULL), S2(2, 2), -0.99999500003749969, 0.99999500003749969,
         -0.99999968750014648, 0.99999968750014648);
    o.groups = 2;
    IS(kr_layer_norm(t, x, NULL, NULL, &o), S2(2, 2), 0, 0, 0, 0);
}

FLOAT_TEST(functions)
{
    const kr_shape three = KR_SHAPE(3);
    NEAR(kr_exp(t, OF(t, d, three, 0, 1, -2)), three, 1, 2.718281828459045, 0.1353352832366127);
    NEAR(kr_log(t, OF(t, d, three, 1, 2, 0.25)), three, 0, 0.6931471805599453, -1.3862943611198906);
    NEAR(kr_sqrt(t, OF(t, d, three, 0, 4, 2)), three, 0, 2, 1.4142135623730951);
    NEAR(kr_rsqrt(t, OF(t, d, three, 1, 4, 2)), three, 1, 0.5, 0.7071067811865476);
    NEAR(kr_sin(t, OF(t, d, three, 0, 1, -2)), three, 0, 0.8414709848078965, -0.9092974268256817);
    NEAR(kr_cos(t, OF(t, d, three, 0, 1, -2)), three, 1, 0.5403023058681398, -0.4161468365471424);
    NEAR(kr_tanh(t, OF(t, d, three, 0, 1, -0.5)), three, 0, 0.7615941559557649, -0.46211715726000973);
    NEAR(kr_sigmoid(t, OF(t, d, three, 0, 1, -2)), three, 0.5, 0.7310585786300049, 0.11920292202211755);
    NEAR(kr_silu(t, OF(t, d, three, 0, 1, -1)), three, 0, 0.7310585786300049, -0.2689414213699951);
    NEAR(kr_softplus(t, OF(t, d, three, 0, 1, -2)), three, 0.6931471805599453, 1.3132616875182228, 0.1269280110429726);
    NEAR(kr_log_sigmoid(t, OF(t, d, three, 0, -1, 2)), three, -0.6931471805599453, -1.3132616875182228,
         -0.1269280110429726);
    NEAR(kr_erf(t, OF(t, d, three, 0, 0.5, -2)), three, 0, 0.5204998778130465, -0.9953222650189527);
    NEAR(kr_gelu(t, OF(t, d, three, 0, 1, -2)), three, 0, 0.8413447460685429, -0.04550026389635842);
    NEAR(kr_gelu_tanh(t, OF(t, d, three, 0, 1, -2)), three, 0, 0.8411919906082768, -0.04540230591222498);
}

FLOAT_TEST(functions_at_the_ends)
{
    const kr_shape three = KR_SHAPE(3);
    IS(kr_exp(t, OF(t, d, three, 1000, -1000, -INFINITY)), three, INFINITY, 0, 0);
    IS(kr_log(t, OF(t, d, three, 0, -1, INFINITY)), three, -INFINITY, NAN, INFINITY);
    IS(kr_sqrt(t, OF(t, d, three, -1, 0, INFINITY)), three, NAN, 0, INFINITY);
    IS(kr_rsqrt(t, OF(t, d, three, 0, -1, INFINITY)), three, INFINITY, NAN, 0);
    IS(kr_tanh(t, OF(t, d, three, 100, -100, NAN)), three, 1, -1, NAN);
    IS(kr_sigmoid(t, OF(t, d, three, 100, -INFINITY, NAN)), three, 1, 0, NAN);
    IS(kr_silu(t, OF(t, d, three, 128, INFINITY, NAN)), three, 128, INFINITY, NAN);
    IS(kr_erf(t, OF(t, d, three, 100, -INFINITY, NAN)), three, 1, -1, NAN);
    IS(kr_gelu(t, OF(t, d, three, 128, -INFINITY, NAN)), three, 128, 0, NAN);
    IS(kr_gelu_tanh(t, OF(t, d, three, INFINITY, -128, NAN)), three, INFINITY, 0, NAN);
    IS(kr_sin(t, OF(t, d, three, INFINITY, -INFINITY, NAN)), three, NAN, NAN, NAN);
    IS(kr_cos(t, OF(t, d, three, INFINITY, -INFINITY, NAN)), three, NAN, NAN, NAN);
}

FLOAT_TEST(softplus_above_20_is_the_identity)
{
    kr_tensor *x = kr_input(t, OF(t, d, KR_SHAPE(5), 20, 20.5, 30, 1000, -1000));
    kr_tensor *y = kr_softplus(t, x);
    NEAR(y, KR_SHAPE(5), d == KR_DTYPE_F64 ? 20.000000002061153 : 20, 20.5, 30, 1000, 0);
    const double *values = kr_test_copy(y);
    if (d == KR_DTYPE_F64)
        CHECK(values[0] > 20 && values[1] == 20.5 && values[2] == 30, "softplus(20, 20.5, 30) = %.17g %.17g %.17g",
              values[0], values[1], values[2]);
    back(t, y);
    NEAR(kr_grad(x), KR_SHAPE(5), 0.9999999979388464, 1, 1, 1, 0);
    kr_tensor *below = kr_log_sigmoid(t, OF(t, d, KR_SHAPE(3), -20.5, -30, -1000));
    IS(below, KR_SHAPE(3), -20.5, -30, -1000);
}

FLOAT_TEST(clamp_keeps_the_gradient_on_its_limits)
{
    kr_tensor *x = kr_input(t, OF(t, d, KR_SHAPE(5), -3, -1, 0.5, 2, 5));
    kr_tensor *y = kr_clamp(t, x, -1, 2);
    IS(y, KR_SHAPE(5), -1, -1, 0.5, 2, 2);
    IS(kr_clamp(t, x, 1, 1), KR_SHAPE(5), 1, 1, 1, 1, 1);
    IS(kr_clamp(t, x, -INFINITY, 0), KR_SHAPE(5), -3, -1, 0, 0, 0);
    back(t, y);
    IS(kr_grad(x), KR_SHAPE(5), 0, 1, 1, 1, 0);
}

FLOAT_TEST(reductions)
{
    kr_tensor *x = OF(t, d, S2(2, 3), 1, 2, 3, 4, 5, 6);
    const kr_axes none = { 0, { 0 } };
    IS(kr_sum(t, x, KR_AXES(0), false), KR_SHAPE(3), 5, 7, 9);
    IS(kr_sum(t, x, KR_AXES(-1), false), KR_SHAPE(2), 6, 15);
    IS(kr_sum(t, x, KR_AXES(1), true), S2(2, 1), 6, 15);
    IS(kr_sum(t, x, KR_ALL_AXES, false), KR_SCALAR, 21);
    IS(kr_sum(t, x, KR_AXES(1, 0), true), S2(1, 1), 21);
    IS(kr_sum(t, x, none, false), S2(2, 3), 1, 2, 3, 4, 5, 6);
    IS(kr_mean(t, x, KR_AXES(0), true), S2(1, 3), 2.5, 3.5, 4.5);
    IS(kr_mean(t, x, KR_ALL_AXES, false), KR_SCALAR, 3.5);
    IS(kr_max(t, x, KR_AXES(0), false), KR_SHAPE(3), 4, 5, 6);
    IS(kr_max(t, kr_neg(t, x), KR_AXES(1), false), KR_SHAPE(2), -1, -4);
    IS(kr_max(t, x, KR_ALL_AXES, true), S2(1, 1), 6);
    kr_tensor *cube = kr_reshape(t, OF(t, d, KR_SHAPE(8), 0, 1, 2, 3, 4, 5, 6, 7), KR_SHAPE(2, 2, 2));
    IS(kr_sum(t, cube, KR_AXES(0, 2), false), KR_SHAPE(2), 10, 18);
    IS(kr_max(t, cube, KR_AXES(2, 0), true), KR_SHAPE(1, 2, 1), 5, 7);
    IS(kr_sum(t, kr_transpose(t, cube), KR_AXES(1), false), S2(2, 2), 1, 5, 9, 13);
    kr_tensor *odd = OF(t, d, S2(2, 2), NAN, 1, -INFINITY, -INFINITY);
    IS(kr_max(t, odd, KR_AXES(1), false), KR_SHAPE(2), NAN, -INFINITY);
    IS(kr_sum(t, odd, KR_AXES(1), false), KR_SHAPE(2), NAN, -INFINITY);
}

FLOAT_TEST(max_gives_to_the_first_of_equals)
{
    kr_tensor *x = kr_input(t, OF(t, d, KR_SHAPE(2, 2, 2), 1, 7, 7, 2, 7, 0, 3, 7));
    kr_tensor *rows = kr_max(t, x, KR_AXES(2), false), *all = kr_max(t, x, KR_ALL_AXES, false);
    kr_tensor *moved = kr_max(t, x, KR_AXES(0, 2), false);
    IS(rows, S2(2, 2), 7, 7, 7, 7);
    kr_backward_from(t, 3, (kr_tensor *[]){ rows, all, moved },
                     (kr_tensor *[]){ NULL, OF(t, d, KR_SCALAR, 16), OF(t, d, KR_SHAPE(2), 32, 64) });
    IS(kr_grad(x), KR_SHAPE(2, 2, 2), 0, 49, 65, 0, 1, 0, 0, 1);
}

FLOAT_TEST(running_sums)
{
    kr_tensor *x = OF(t, d, KR_SHAPE(4), 1, 2, 3, 4), *m = OF(t, d, S2(2, 2), 1, 2, 3, 4);
    IS(kr_cumsum(t, x, 0), KR_SHAPE(4), 1, 3, 6, 10);
    IS(kr_cumsum_reverse(t, x, -1), KR_SHAPE(4), 10, 9, 7, 4);
    IS(kr_cumsum(t, m, 0), S2(2, 2), 1, 2, 4, 6);
    IS(kr_cumsum(t, m, 1), S2(2, 2), 1, 3, 3, 7);
    IS(kr_cumsum_reverse(t, m, 0), S2(2, 2), 4, 6, 3, 4);
    IS(kr_segsum(t, OF(t, d, KR_SHAPE(3), 1, 2, 3)), S2(3, 3), 0, -INFINITY, -INFINITY, 2, 0, -INFINITY, 5, 3, 0);
    IS(kr_segsum(t, OF(t, d, S2(2, 1), 1, 2)), KR_SHAPE(2, 1, 1), 0, 0);
    /* a decay matrix: no NaN may come of the infinities */
    kr_tensor *a = kr_input(t, OF(t, d, KR_SHAPE(2), 5, 0));
    kr_tensor *decay = kr_exp(t, kr_segsum(t, a));
    IS(decay, S2(2, 2), 1, 0, 1, 1);
    back(t, decay);
    IS(kr_grad(a), KR_SHAPE(2), 0, 1);
}

FLOAT_TEST(softmaxes)
{
    const double ln3 = 1.0986122886681098;
    NEAR(kr_softmax(t, OF(t, d, S2(2, 2), 0, ln3, ln3, 0), -1), S2(2, 2), 0.25, 0.75, 0.75, 0.25);
    NEAR(kr_softmax(t, OF(t, d, S2(2, 2), 0, ln3, ln3, 0), 0), S2(2, 2), 0.25, 0.75, 0.75, 0.25);
    NEAR(kr_softmax(t, OF(t, d, S2(2, 3), 0, 0, ln3, 0, ln3, ln3), 0), S2(2, 3), 0.5, 0.25, 0.5, 0.5, 0.75, 0.5);
    IS(kr_softmax(t, OF(t, d, KR_SHAPE(2), 1000, 1000), 0), KR_SHAPE(2), 0.5, 0.5);
    IS(kr_softmax(t, OF(t, d, KR_SHAPE(2), 0, -INFINITY), 0), KR_SHAPE(2), 1, 0);
    IS(kr_softmax(t, OF(t, d, KR_SHAPE(2), -INFINITY, -INFINITY), 0), KR_SHAPE(2), NAN, NAN);
    IS(kr_softmax(t, OF(t, d, KR_SHAPE(1), 3), 0), KR_SHAPE(1), 1);
    NEAR(kr_log_softmax(t, OF(t, d, KR_SHAPE(2), -500, -500), 0), KR_SHAPE(2), -0.6931471805599453,
         -0.6931471805599453);
    IS(kr_log_softmax(t, OF(t, d, KR_SHAPE(2), 0, -INFINITY), 0), KR_SHAPE(2), 0, -INFINITY);
}

FLOAT_TEST(products)
{
    kr_tensor *a = OF(t, d, S2(2, 2), 1, 2, 3, 4), *b = OF(t, d, S2(2, 2), 5, 6, 7, 8);
    kr_tensor *bias = OF(t, d, KR_SHAPE(2), 1, -1), *c = OF(t, d, S2(2, 2), 10, 20, 30, 40);
    IS(kr_matmul(t, a, b), S2(2, 2), 19, 22, 43, 50);
    IS(kr_matmul(t, kr_transpose(t, a), b), S2(2, 2), 26, 30, 38, 44);
    IS(kr_matmul(t, a, kr_transpose(t, b)), S2(2, 2), 17, 23, 39, 53);
    IS(kr_matmul(t, kr_flip(t, a, 1), b), S2(2, 2), 17, 20, 41, 48);
    IS(kr_matmul_add(t, a, b, bias, NULL), S2(2, 2), 20, 21, 44, 49);
    IS(kr_matmul_add(t, a, b, NULL, c), S2(2, 2), 29, 42, 73, 90);
    IS(kr_matmul_add(t, a, b, bias, c), S2(2, 2), 30, 41, 74, 89);
    kr_tensor *two = OF(t, d, KR_SHAPE(2, 1, 2), 1, 0, 0, 1);
    IS(kr_matmul(t, two, b), KR_SHAPE(2, 1, 2), 5, 6, 7, 8);
    IS(kr_matmul(t, a, kr_transpose(t, two)), KR_SHAPE(2, 2, 1), 1, 3, 2, 4);
    kr_tensor *thin = OF(t, d, S2(2, 0), 0), *flat = OF(t, d, S2(0, 2), 0);
    IS(kr_matmul(t, thin, flat), S2(2, 2), 0, 0, 0, 0);
    IS(kr_matmul_add(t, thin, flat, bias, c), S2(2, 2), 11, 19, 31, 39);
    IS(kr_outer(t, OF(t, d, KR_SHAPE(2), 2, 3), OF(t, d, KR_SHAPE(3), 1, 10, 7)), S2(2, 3), 2, 20, 14, 3, 30, 21);
    IS(kr_linear(t, a, OF(t, d, S2(3, 2), 1, 0, 0, 1, 1, 1), NULL), S2(2, 3), 1, 2, 3, 3, 4, 7);
    IS(kr_linear(t, OF(t, d, KR_SHAPE(2), 1, 2), b, bias), KR_SHAPE(2), 18, 22);
}

FLOAT_TEST(norms)
{
    kr_norm_options o;
    kr_norm_options_init(&o);
    CHECK(o.size == sizeof o && o.eps == 1e-5 && o.groups == 1 && !o.norm_before_gate, "the defaults");
    o.eps = 0;
    kr_tensor *x = OF(t, d, S2(1, 2), 3, -4), *gain = OF(t, d, KR_SHAPE(2), 2, 0.5), *z = OF(t, d, S2(1, 2), 1, 1);
    NEAR(kr_rms_norm(t, x, NULL, &o), S2(1, 2), 0.848528137423857, -1.131370849898476);
    NEAR(kr_rms_norm(t, x, gain, &o), S2(1, 2), 1.697056274847714, -0.565685424949238);
    /* the same gate in both channels cancels before the norm, and scales after it */
    NEAR(kr_gated_norm(t, x, z, gain, &o), S2(1, 2), 1.697056274847714, -0.565685424949238);
    o.norm_before_gate = true;
    NEAR(kr_gated_norm(t, x, z, gain, &o), S2(1, 2), 1.2406475481453008, -0.41354918271510027);
    o.groups = 2;
    NEAR(kr_rms_norm(t, x, NULL, &o), S2(1, 2), 1, -1);
    o.eps = 7;
    NEAR(kr_rms_norm(t, x, NULL, &o), S2(1, 2), 0.75, -0.8340576562282991);
    /* eps keeps 0 from being divided by 0, and groups look at their own channels only */
    IS(kr_rms_norm(t, OF(t, d, S2(1, 2), 0, 0), gain, NULL), S2(1, 2), 0, 0);
    o.eps = 0;
    NEAR(kr_rms_norm(t, OF(t, d, KR_SHAPE(4), 2, 2, 3, -3), NULL, &o), KR_SHAPE(4), 1, 1, 1, -1);
    IS(kr_gated_norm(t, x, OF(t, d, S2(1, 2), 0, 0), NULL, NULL), S2(1, 2), 0, 0);
}

FLOAT_TEST(gate)
{
    kr_tensor *x = OF(t, d, S2(2, 2), 3, -4, 0, 5), *z = OF(t, d, S2(2, 2), 1, -2, 7, 0);
    NEAR(kr_gate(t, x, z), S2(2, 2), 2.193175735890015, 0.9536233761769404, 0, 0);
    NEAR(kr_gate(t, kr_transpose(t, x), z), S2(2, 2), 2.193175735890015, 0, -27.974490566556785, 0);
    /* parts of a row are read where they are */
    kr_tensor *row = kr_input(t, OF(t, d, S2(2, 3), 3, 1, 9, -4, 2, 9)), *parts[3];
    kr_split(t, row, 1, 3, (const int64_t[]){ 1, 1, 1 }, parts);
    const int64_t nodes = t->nnodes, casts = kr_dtype_is_16bit(d) ? 3 : 0;
    kr_tensor *y = kr_gate(t, parts[0], parts[1]);
    CHECK(t->nnodes == nodes + 1 + casts, "%lld nodes for a gate", (long long)(t->nnodes - nodes));
    NEAR(y, S2(2, 1), 2.193175735890015, -7.04637662382306);
}

FLOAT_TEST(convolution)
{
    kr_tensor *x = OF(t, d, KR_SHAPE(1, 3, 1), 1, 2, 3), *w = OF(t, d, S2(1, 2), 8, 1);
    kr_tensor *bias = OF(t, d, KR_SHAPE(1), 100), *window = OF(t, d, KR_SHAPE(1, 1, 2), 7, 5);
    kr_conv_out out = kr_causal_conv(t, x, w, NULL, NULL, NULL, false);
    IS(out.y_bsv, KR_SHAPE(1, 3, 1), 1, 10, 19);
    IS(out.window_bvk, KR_SHAPE(1, 1, 2), 2, 3);
    out = kr_causal_conv(t, x, w, bias, window, NULL, false);
    IS(out.y_bsv, KR_SHAPE(1, 3, 1), 141, 110, 119);
    IS(out.window_bvk, KR_SHAPE(1, 1, 2), 2, 3);
    out = kr_causal_conv(t, x, OF(t, d, S2(1, 1), 1), NULL, NULL, NULL, true);
    NEAR(out.y_bsv, KR_SHAPE(1, 3, 1), 0.7310585786300049, 1.7615941559557649, 2.8577223804673);
    IS(out.window_bvk, KR_SHAPE(1, 1, 1), 3);
    /* fewer inputs than taps: the window moves on by one */
    kr_tensor *one = OF(t, d, KR_SHAPE(1, 1, 1), 5), *past = OF(t, d, KR_SHAPE(1, 1, 4), 1, 2, 3, 4);
    out = kr_causal_conv(t, one, OF(t, d, S2(1, 4), 64, 16, 4, 1), NULL, past, NULL, false);
    IS(out.y_bsv, KR_SHAPE(1, 1, 1), 197);
    IS(out.window_bvk, KR_SHAPE(1, 1, 4), 2, 3, 4, 5);
    out = kr_causal_conv(t, one, OF(t, d, S2(1, 4), 64, 16, 4, 1), NULL, NULL, NULL, false);
    IS(out.y_bsv, KR_SHAPE(1, 1, 1), 5);
    IS(out.window_bvk, KR_SHAPE(1, 1, 4), 0, 0, 0, 5);
    /* two channels, two sequences: each its own taps, each its own past */
    out = kr_causal_conv(t, OF(t, d, KR_SHAPE(2, 1, 2), 1, 2, 3, 4), OF(t, d, S2(2, 2), 1, 1, 2, 2), NULL,
                         OF(t, d, KR_SHAPE(2, 2, 2), 9, 10, 9, 20, 9, 30, 9, 40), NULL, false);
    IS(out.y_bsv, KR_SHAPE(2, 1, 2), 11, 44, 33, 88);
    IS(out.window_bvk, KR_SHAPE(2, 2, 2), 10, 1, 20, 2, 30, 3, 40, 4);
    /* three sequences in a row of four tokens: no tap reaches over a start, and each has a window */
    kr_tensor *starts = kr_from_data(t, KR_DTYPE_I32, S2(1, 4), (const int32_t[]){ 0, 1, 1, 0 });
    kr_tensor *packed = OF(t, d, KR_SHAPE(1, 4, 1), 1, 2, 3, 4);
    out = kr_causal_conv(t, packed, w, NULL, NULL, starts, false);
    IS(out.y_bsv, KR_SHAPE(1, 4, 1), 1, 2, 3, 28);
    IS(out.window_bvk, KR_SHAPE(3, 1, 2), 0, 1, 0, 2, 3, 4);
    out = kr_causal_conv(t, packed, w, NULL, OF(t, d, KR_SHAPE(3, 1, 2), 9, 5, 9, 6, 9, 7), starts, false);
    IS(out.y_bsv, KR_SHAPE(1, 4, 1), 41, 50, 59, 28);
    IS(out.window_bvk, KR_SHAPE(3, 1, 2), 5, 1, 6, 2, 3, 4);
    /* part of a wider row is read where it is */
    kr_tensor *wide = kr_input(t, OF(t, d, KR_SHAPE(1, 3, 2), 9, 1, 9, 2, 9, 3)), *part = kr_slice(t, wide, 2, 1, 2);
    const int64_t nodes = t->nnodes;
    out = kr_causal_conv(t, part, w, NULL, NULL, NULL, false);
    if (!kr_dtype_is_16bit(d)) CHECK(t->nnodes == nodes + 1, "%lld nodes", (long long)(t->nnodes - nodes));
    IS(out.y_bsv, KR_SHAPE(1, 3, 1), 1, 10, 19);
}

FLOAT_TEST(rows_by_number)
{
    kr_tensor *table = kr_input(t, OF(t, d, S2(3, 2), 1, 2, 3, 4, 5, 6));
    for (int i = KR_DTYPE_I32; i <= KR_DTYPE_I64; i++) {
        kr_tensor *id = OF(t, (kr_dtype)i, S2(2, 2), 2, 0, 2, 1);
        IS(kr_embedding(t, table, id), KR_SHAPE(2, 2, 2), 5, 6, 1, 2, 5, 6, 3, 4);
        IS(kr_embedding(t, table, kr_transpose(t, id)), KR_SHAPE(2, 2, 2), 5, 6, 5, 6, 1, 2, 3, 4);
        IS(kr_embedding(t, table, OF(t, (kr_dtype)i, KR_SCALAR, 1)), KR_SHAPE(2), 3, 4);
        IS(kr_gather(t, table, 0, OF(t, (kr_dtype)i, S2(1, 2), 2, 0)), S2(1, 2), 5, 2);
        IS(kr_gather(t, table, 1, OF(t, (kr_dtype)i, S2(3, 1), 1, 0, 1)), S2(3, 1), 2, 3, 6);
        IS(kr_gather(t, table, -1, OF(t, (kr_dtype)i, S2(3, 3), 0, 0, 1, 1, 1, 1, 0, 1, 0)), S2(3, 3), 1, 1, 2, 4, 4, 4,
           5, 6, 5);
    }
    kr_tensor *rows = kr_embedding(t, table, OF(t, KR_DTYPE_I32, KR_SHAPE(3), 2, 0, 2));
    kr_tensor *picked = kr_gather(t, table, 0, OF(t, KR_DTYPE_I64, S2(2, 2), 1, 1, 1, 2));
    kr_backward_from(t, 2, (kr_tensor *[]){ rows, picked },
                     (kr_tensor *[]){ OF(t, d, S2(3, 2), 1, 2, 4, 8, 16, 32), OF(t, d, S2(2, 2), 64, 64, 32, 128) });
    IS(kr_grad(table), S2(3, 2), 4, 8, 96, 64, 17, 162);
}
