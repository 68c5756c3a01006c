/* straight_through.c - y = value; backward: g_carrier = g_y, nothing for value. */
#include "ops/straight_through.h"

static void straight_backward(kr_back *back)
{
    kr_back_accumulate(back, 0, kr_back_grad(back, 0));
}

static const kr_rule straight_rule = { .name = "straight_through",
                                       .backward = straight_backward,
                                       .allow_infinity = true };

kr_tensor *kr_straight_through(kr_tape *tape, kr_tensor *value, kr_tensor *carrier)
{
    kr_dims d;
    if (!kr_bind(tape, straight_rule.name, &d, "value:.. carrier:..", value, carrier) ||
        !kr_require(tape->ctx, value->dtype == carrier->dtype, KR_ERR_DTYPE,
                    "straight_through: value is %s, but carrier is %s; kr_cast one of them",
                    kr_dtype_name(value->dtype), kr_dtype_name(carrier->dtype)))
        return NULL;
    const kr_shape shape = kr_tensor_shape(value);
    kr_tensor *y = kr_view_of(tape, value, &shape, value->strides, 0);
    return kr_recorded(tape, &straight_rule, y, NULL, 0, KR_LIST(carrier)); /* value is no input: it has no gradient */
}
