/* test_straight_through.c - the straight-through estimator: values of one tensor, gradient of another. */
#include "tests/error_tests.h"

#include "ops/straight_through.h"

TEST(values_and_gradients)
{
    begin();
    kr_tensor *value = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 3, 4)));
    kr_tensor *carrier = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 4, 3)));
    kr_tensor *scaled = kr_scale(t, value, 2);
    const size_t bytes = kr_tape_bytes(t);
    kr_tensor *y = kr_straight_through(t, scaled, kr_transpose(t, carrier)); /* the carrier is a view */
    CHECK(kr_tape_bytes(t) == bytes && kr_tensor_data(y) == kr_tensor_data(scaled), "no copy is made");
    CHECK_SAME_BITS("y", y, scaled);
    kr_tensor *weight = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(2, 3, 4));
    kr_backward(t, kr_sum(t, kr_mul(t, y, weight), KR_ALL_AXES, false));
    CHECK(!kr_grad(value), "none for the value");
    CHECK_SAME_BITS("g_carrier", kr_grad(carrier), kr_contiguous(t, kr_transpose(t, weight)));
    end();
}

TEST(a_strided_value)
{
    begin();
    kr_tensor *value = kr_flip(t, kr_transpose(t, kr_randn(t, KR_DTYPE_F64, KR_SHAPE(3, 4))), 0);
    kr_tensor *carrier = kr_input(t, D(4, 3)), *y = kr_straight_through(t, value, carrier);
    CHECK_SAME_BITS("y", y, value);
    kr_tensor *gradient = kr_full(t, KR_DTYPE_F64, KR_SHAPE(4, 3), 2);
    kr_backward_from(t, 1, &y, &gradient);
    CHECK_SAME_BITS("g_carrier", kr_grad(carrier), gradient);
    end();
}

TEST(a_carrier_without_a_gradient)
{
    begin();
    kr_tensor *y = kr_straight_through(t, kr_input(t, F(3)), F(3));
    CHECK(y && !kr_requires_grad(y) && kr_tape_nodes(t) == 0, "then there is none at all");
    end();
}

TEST(straight_errors)
{
    begin();
    REFUSED(KR_ERR_DTYPE, "straight_through: value is f32, but carrier is f64; kr_cast one of them",
            kr_straight_through(t, F(2), D(2)));
    REFUSED(KR_ERR_ARG, "straight_through: operand carrier is NULL", kr_straight_through(t, F(2), NULL));
    kr_tape_reset(t);
    CHECK(!kr_straight_through(t, F(2, 3), F(2)), "shapes");
    CHECK_ERROR_HAS(ctx, KR_ERR_SHAPE, "straight_through: ");
    kr_tape_reset(t);
    end();
}
