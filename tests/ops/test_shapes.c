/* test_shapes.c - movement of elements for every element type, conversions, and tensors of no element, rank 0 and rank 8. */
#include "tests/ops/literals.h"

#include "tape/tape_impl.h"

static kr_tensor *counted(kr_tape *t, kr_dtype d, kr_shape shape)
{
    double values[64];
    for (int i = 0; i < 64; i++) values[i] = i;
    return values_of(t, d, shape, values);
}

TYPE_TEST(views)
{
    kr_tensor *x = counted(t, d, KR_SHAPE(2, 3, 2));
    IS(kr_reshape(t, x, KR_SHAPE(3, -1)), KR_SHAPE(3, 4), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);
    IS(kr_permute(t, x, KR_AXES(2, 0, 1)), KR_SHAPE(2, 2, 3), 0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11);
    IS(kr_transpose(t, x), KR_SHAPE(2, 2, 3), 0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11);
    IS(kr_reshape(t, kr_transpose(t, x), KR_SHAPE(12)), KR_SHAPE(12), 0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11);
    IS(kr_slice(t, x, 1, 1, 3), KR_SHAPE(2, 2, 2), 2, 3, 4, 5, 8, 9, 10, 11);
    IS(kr_slice(t, x, -1, -1, 2), KR_SHAPE(2, 3, 1), 1, 3, 5, 7, 9, 11);
    IS(kr_slice(t, x, 0, 0, -1), KR_SHAPE(1, 3, 2), 0, 1, 2, 3, 4, 5);
    IS(kr_flip(t, x, 1), KR_SHAPE(2, 3, 2), 4, 5, 2, 3, 0, 1, 10, 11, 8, 9, 6, 7);
    IS(kr_flip(t, kr_slice(t, x, 1, 0, 2), -1), KR_SHAPE(2, 2, 2), 1, 0, 3, 2, 7, 6, 9, 8);
    IS(kr_expand(t, OF(t, d, KR_SHAPE(2, 1), 1, 2), KR_SHAPE(2, 2, 2)), KR_SHAPE(2, 2, 2), 1, 1, 2, 2, 1, 1, 2, 2);
    kr_tensor *parts[3];
    CHECK(kr_split(t, x, 1, 3, (const int64_t[]){ 1, 0, 2 }, parts) == KR_OK, "split");
    IS(parts[0], KR_SHAPE(2, 1, 2), 0, 1, 6, 7);
    EMPTY(parts[1], KR_SHAPE(2, 0, 2));
    IS(parts[2], KR_SHAPE(2, 2, 2), 2, 3, 4, 5, 8, 9, 10, 11);
    const char *data = kr_tensor_data(x);
    const size_t bytes = kr_dtype_bytes(d);
    CHECK(kr_tensor_data(parts[2]) == data + 2 * bytes, "the parts of a split are views");
    CHECK(kr_split(t, kr_zeros(t, d, KR_SHAPE(2, 0)), 1, 0, NULL, NULL) == KR_OK, "nothing in no parts");
    CHECK(kr_tensor_data(kr_reshape(t, x, KR_SHAPE(4, 3))) == data, "reshape of row-major elements is a view");
    kr_tensor *part = kr_slice(t, counted(t, d, KR_SHAPE(2, 3, 8)), 2, 1, 7),
              *cut = kr_reshape(t, part, KR_SHAPE(6, 1, 2, 3));
    CHECK(kr_tensor_data(cut) == kr_tensor_data(part), "reshape of rows that lie evenly apart is a view");
    IS(kr_slice(t, cut, 0, 2, 4), KR_SHAPE(2, 1, 2, 3), 17, 18, 19, 20, 21, 22, 25, 26, 27, 28, 29, 30);
    CHECK(kr_tensor_data(kr_reshape(t, part, KR_SHAPE(36))) != kr_tensor_data(part), "reshape over gaps is a copy");
    IS(kr_reshape(t, kr_flip(t, kr_slice(t, x, 2, 0, 1), 0), KR_SHAPE(1, 2, 1, 3)), KR_SHAPE(1, 2, 1, 3), 6, 8, 10, 0,
       2, 4);
    CHECK(kr_tensor_data(kr_transpose(t, x)) == data, "transpose is a view");
    CHECK(kr_tensor_data(kr_slice(t, x, 1, 1, 3)) == data + 2 * bytes, "slice is a view");
    CHECK(kr_tensor_data(kr_flip(t, x, 2)) == data + bytes, "flip is a view");
    CHECK(kr_tensor_data(kr_expand(t, x, KR_SHAPE(5, 2, 3, 2))) == data, "expand is a view");
    CHECK(kr_tensor_data(kr_detach(t, x)) == data, "detach is a view");
    CHECK(kr_contiguous(t, x) == x, "a row-major tensor is contiguous as it is");
    kr_tensor *moved = kr_contiguous(t, kr_transpose(t, x));
    CHECK(kr_tensor_is_contiguous(moved) && kr_tensor_stride(moved, 1) == 3, "contiguous makes row-major strides");
}

FLOAT_TEST(a_split_is_one_node)
{
    kr_tensor *x = kr_input(t, counted(t, d, KR_SHAPE(2, 3))), *parts[3];
    const int64_t nodes = t->nnodes;
    CHECK(kr_split(t, x, 1, 3, (const int64_t[]){ 1, 1, 1 }, parts) == KR_OK, "split");
    CHECK(t->nnodes == nodes + 1, "%lld nodes", (long long)(t->nnodes - nodes));
}

TYPE_TEST(copies)
{
    kr_tensor *x = counted(t, d, KR_SHAPE(2, 2)), *y = OF(t, d, KR_SHAPE(1, 2), 8, 9);
    IS(kr_concat(t, 0, 3, (kr_tensor *[]){ y, x, y }), KR_SHAPE(4, 2), 8, 9, 0, 1, 2, 3, 8, 9);
    IS(kr_concat(t, 1, 2, (kr_tensor *[]){ kr_transpose(t, x), x }), KR_SHAPE(2, 4), 0, 2, 0, 1, 1, 3, 2, 3);
    IS(kr_concat(t, -1, 1, (kr_tensor *[]){ x }), KR_SHAPE(2, 2), 0, 1, 2, 3);
    IS(kr_pad(t, x, 0, 1, 0, 7), KR_SHAPE(3, 2), 7, 7, 0, 1, 2, 3);
    IS(kr_pad(t, kr_flip(t, x, 0), -1, 0, 2, 5), KR_SHAPE(2, 4), 2, 3, 5, 5, 0, 1, 5, 5);
    IS(kr_pad(t, x, 1, 0, 0, 5), KR_SHAPE(2, 2), 0, 1, 2, 3);
    IS(kr_full(t, d, KR_SHAPE(3), 4), KR_SHAPE(3), 4, 4, 4);
    IS(kr_zeros(t, d, KR_SCALAR), KR_SCALAR, 0);
    const int64_t strides[] = { -2, 1 };
    IS(kr_view_data(t, d, KR_SHAPE(2, 2), strides, (char *)kr_tensor_data(x) + 2 * kr_dtype_bytes(d)), KR_SHAPE(2, 2),
       2, 3, 0, 1);
    const int64_t at[] = { 1, 0 };
    CHECK(kr_tensor_at(x, at) == 2 && kr_item(kr_full(t, d, KR_SHAPE(1, 1), 6)) == 6, "reading elements");
}

/* Every type to every type, a value that all hold. */
TYPE_TEST(casts_of_a_common_value)
{
    for (int to = KR_DTYPE_F32; to <= KR_DTYPE_I64; to++) {
        kr_tensor *y = kr_cast(t, OF(t, d, KR_SHAPE(3), 3, -7, 0), (kr_dtype)to);
        CHECK(kr_tensor_dtype(y) == (kr_dtype)to, "type %s", kr_dtype_name(kr_tensor_dtype(y)));
        IS(y, KR_SHAPE(3), 3, -7, 0);
    }
    kr_tensor *x = counted(t, d, KR_SHAPE(2));
    CHECK(kr_cast(t, x, d) == x, "a cast to the own type is the tensor itself");
}

static void round_to(kr_tape *t, kr_dtype d, double x, double want, int line)
{
    kr_tensor *y = kr_cast(t, kr_from_data(t, KR_DTYPE_F64, KR_SCALAR, &x), d);
    double got = 0;
    kr_tensor_read(y, KR_DTYPE_F64, &got, 1);
    kr_test_check(got == want || (got != got && want != want), __FILE__, line, "%.17g to %s is %.17g, not %.17g", x,
                  kr_dtype_name(d), got, want);
}
#define ROUNDS(d, x, want) round_to(t, (d), (x), (want), __LINE__)

FLOAT_TEST(cast_table)
{
    if (d != KR_DTYPE_F64) return;
    ROUNDS(KR_DTYPE_F32, 1 + 0x1p-24, 1);
    ROUNDS(KR_DTYPE_F32, 1 + 0x3p-24, 1 + 0x1p-22);
    ROUNDS(KR_DTYPE_F32, 1e300, INFINITY);
    ROUNDS(KR_DTYPE_BF16, 1 + 0x1p-8, 1);
    ROUNDS(KR_DTYPE_BF16, 1 + 0x3p-8, 1 + 0x1p-6);
    ROUNDS(KR_DTYPE_BF16, 1 + 0x1p-8 + 0x1p-30, 1 + 0x1p-7); /* by way of f32 it would be a tie */
    ROUNDS(KR_DTYPE_BF16, 3.5e38, INFINITY);
    ROUNDS(KR_DTYPE_BF16, NAN, NAN);
    ROUNDS(KR_DTYPE_F16, 1 + 0x1p-11, 1);
    ROUNDS(KR_DTYPE_F16, 1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-10);
    ROUNDS(KR_DTYPE_F16, 65519, 65504);
    ROUNDS(KR_DTYPE_F16, 65520, INFINITY);
    ROUNDS(KR_DTYPE_F16, -1e9, -INFINITY);
    ROUNDS(KR_DTYPE_F16, 0x1p-24, 0x1p-24);
    ROUNDS(KR_DTYPE_F16, 0x1p-25, 0);
    ROUNDS(KR_DTYPE_F16, 0x3p-26, 0x1p-24);
    ROUNDS(KR_DTYPE_F16, NAN, NAN);
    ROUNDS(KR_DTYPE_I32, 2.9, 2);
    ROUNDS(KR_DTYPE_I32, -2.9, -2);
    ROUNDS(KR_DTYPE_I32, 1e20, 2147483647);
    ROUNDS(KR_DTYPE_I32, -1e20, -2147483648.0);
    ROUNDS(KR_DTYPE_I32, NAN, 0);
    ROUNDS(KR_DTYPE_I64, 1e15 + 0.5, 1e15);
    ROUNDS(KR_DTYPE_I64, INFINITY, 0x1p63);
    ROUNDS(KR_DTYPE_I64, -INFINITY, -0x1p63);
    ROUNDS(KR_DTYPE_I64, NAN, 0);
    const int64_t big[] = { INT64_MAX, INT64_MIN, INT64_C(1) << 40 };
    kr_tensor *wide = kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(3), big);
    IS(kr_cast(t, wide, KR_DTYPE_I32), KR_SHAPE(3), 2147483647, -2147483648.0, 2147483647);
    int64_t back[3];
    kr_tensor_read(wide, KR_DTYPE_I64, back, 3);
    CHECK(memcmp(back, big, sizeof big) == 0, "i64 values are kept to the bit");
}

FLOAT_TEST(cast_goes_back)
{
    kr_tensor *x = kr_input(t, OF(t, d, KR_SHAPE(2), 1, 2));
    kr_tensor *whole = kr_cast(t, x, KR_DTYPE_I32), *narrow = kr_cast(t, x, KR_DTYPE_F16);
    CHECK(!kr_requires_grad(whole), "integers have no gradient");
    kr_backward_from(t, 1, &narrow, (kr_tensor *[]){ OF(t, KR_DTYPE_F16, KR_SHAPE(2), 0.5, -3) });
    CHECK(kr_tensor_dtype(kr_grad(x)) == d, "the gradient has the type of x");
    IS(kr_grad(x), KR_SHAPE(2), 0.5, -3);
}

/* bf16 or f16 with f32 gives f32; bf16 with f16 too. */
TEST(types_that_meet)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    const kr_dtype of[] = { KR_DTYPE_F32, KR_DTYPE_BF16, KR_DTYPE_F16 };
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            kr_tensor *a = kr_input(t, OF(t, of[i], KR_SHAPE(1), 3)), *b = kr_input(t, OF(t, of[j], KR_SHAPE(1), 5));
            kr_tensor *y = kr_mul(t, a, b);
            IS(y, KR_SHAPE(1), 15);
            CHECK(kr_tensor_dtype(y) == (i == j ? of[i] : KR_DTYPE_F32), "%s with %s is %s", kr_dtype_name(of[i]),
                  kr_dtype_name(of[j]), kr_dtype_name(kr_tensor_dtype(y)));
            kr_tensor *z = kr_linear(t, kr_reshape(t, a, KR_SHAPE(1, 1)), kr_reshape(t, b, KR_SHAPE(1, 1)), NULL);
            CHECK(kr_tensor_dtype(z) == kr_tensor_dtype(y), "linear of the same is %s",
                  kr_dtype_name(kr_tensor_dtype(z)));
        }
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* ---- no element ---- */

FLOAT_TEST(empty_elementwise)
{
    kr_tensor *x = kr_input(t, kr_zeros(t, d, KR_SHAPE(0, 3))), *row = kr_input(t, kr_full(t, d, KR_SHAPE(1, 3), 1));
    kr_tensor *mask = kr_zeros(t, KR_DTYPE_I32, KR_SHAPE(0, 1));
    kr_tensor *(*const binary[])(kr_tape *, kr_tensor *, kr_tensor *) = { kr_add,     kr_sub,     kr_mul, kr_div,
                                                                          kr_maximum, kr_minimum, kr_pow };
    kr_tensor *(*const unary[])(kr_tape *, kr_tensor *) = { kr_neg,      kr_exp,         kr_log,  kr_sqrt,    kr_rsqrt,
                                                            kr_sin,      kr_cos,         kr_tanh, kr_sigmoid, kr_silu,
                                                            kr_softplus, kr_log_sigmoid, kr_abs,  kr_relu,    kr_erf,
                                                            kr_gelu,     kr_gelu_tanh };
    kr_tensor *y = kr_where(t, mask, x, row);
    EMPTY(y, KR_SHAPE(0, 3));
    for (size_t i = 0; i < sizeof binary / sizeof *binary; i++) y = kr_add(t, binary[i](t, row, x), y);
    for (size_t i = 0; i < sizeof unary / sizeof *unary; i++) y = kr_add(t, unary[i](t, x), y);
    y = kr_add(t, y, kr_clamp(t, kr_affine(t, kr_scale(t, x, 2), 2, 1), 0, 1));
    y = kr_add(t, y, kr_mask_fill(t, row, mask, 1));
    EMPTY(y, KR_SHAPE(0, 3));
    kr_tensor *total = kr_sum(t, y, KR_ALL_AXES, false);
    IS(total, KR_SCALAR, 0);
    kr_backward(t, total);
    EMPTY(kr_grad(x), KR_SHAPE(0, 3));
    IS(kr_grad(row), KR_SHAPE(1, 3), 0, 0, 0);
}

FLOAT_TEST(empty_reductions)
{
    kr_tensor *x = kr_input(t, kr_zeros(t, d, KR_SHAPE(2, 0, 3)));
    kr_tensor *sum = kr_sum(t, x, KR_AXES(1), false);
    IS(sum, KR_SHAPE(2, 3), 0, 0, 0, 0, 0, 0);
    IS(kr_mean(t, x, KR_AXES(1), true), KR_SHAPE(2, 1, 3), NAN, NAN, NAN, NAN, NAN, NAN);
    EMPTY(kr_sum(t, x, KR_AXES(0, 2), false), KR_SHAPE(0));
    EMPTY(kr_max(t, x, KR_AXES(0), false), KR_SHAPE(0, 3));
    EMPTY(kr_cumsum(t, x, 1), KR_SHAPE(2, 0, 3));
    EMPTY(kr_cumsum_reverse(t, x, 0), KR_SHAPE(2, 0, 3));
    EMPTY(kr_softmax(t, x, 1), KR_SHAPE(2, 0, 3));
    EMPTY(kr_log_softmax(t, x, 2), KR_SHAPE(2, 0, 3));
    EMPTY(kr_segsum(t, x), KR_SHAPE(2, 0, 3, 3));
    EMPTY(kr_segsum(t, kr_zeros(t, d, KR_SHAPE(2, 0))), KR_SHAPE(2, 0, 0));
    kr_tensor *y = kr_sum(t, kr_softmax(t, kr_cumsum(t, x, 1), 1), KR_AXES(0, 1), false);
    kr_tensor *most = kr_sum(t, kr_max(t, x, KR_AXES(2), false), KR_ALL_AXES, false);
    kr_backward_from(t, 3, (kr_tensor *[]){ sum, y, most }, NULL);
    EMPTY(kr_grad(x), KR_SHAPE(2, 0, 3));
}

FLOAT_TEST(empty_products)
{
    kr_tensor *a = kr_input(t, kr_zeros(t, d, KR_SHAPE(2, 0, 3))), *b = kr_input(t, kr_full(t, d, KR_SHAPE(3, 2), 1));
    kr_tensor *bias = kr_input(t, kr_full(t, d, KR_SHAPE(2), 5));
    EMPTY(kr_matmul(t, a, b), KR_SHAPE(2, 0, 2));
    EMPTY(kr_matmul(t, kr_zeros(t, d, KR_SHAPE(0, 2, 3)), b), KR_SHAPE(0, 2, 2));
    kr_tensor *y = kr_linear(t, a, kr_transpose(t, b), bias);
    EMPTY(y, KR_SHAPE(2, 0, 2));
    kr_tensor *gram = kr_matmul_add(t, kr_transpose(t, a), a, NULL, NULL);
    IS(kr_sum(t, gram, KR_ALL_AXES, false), KR_SCALAR, 0);
    EMPTY(kr_outer(t, a, kr_zeros(t, d, KR_SHAPE(2, 0, 4))), KR_SHAPE(2, 0, 3, 4));
    /* no inner axis: the bias alone */
    kr_tensor *w = kr_input(t, kr_zeros(t, d, KR_SHAPE(2, 0)));
    kr_tensor *z = kr_linear(t, kr_zeros(t, d, KR_SHAPE(3, 0)), w, bias);
    IS(z, KR_SHAPE(3, 2), 5, 5, 5, 5, 5, 5);
    kr_backward_from(t, 3, (kr_tensor *[]){ y, gram, z }, NULL);
    EMPTY(kr_grad(a), KR_SHAPE(2, 0, 3));
    IS(kr_grad(b), KR_SHAPE(3, 2), 0, 0, 0, 0, 0, 0);
    IS(kr_grad(bias), KR_SHAPE(2), 3, 3);
    EMPTY(kr_grad(w), KR_SHAPE(2, 0));
}

FLOAT_TEST(empty_fused)
{
    kr_tensor *x = kr_input(t, kr_zeros(t, d, KR_SHAPE(0, 4))), *gain = kr_input(t, kr_full(t, d, KR_SHAPE(4), 1));
    kr_tensor *n = kr_add(t, kr_rms_norm(t, x, gain, NULL), kr_gated_norm(t, x, x, gain, NULL));
    EMPTY(n, KR_SHAPE(0, 4));
    EMPTY(kr_rms_norm(t, kr_zeros(t, d, KR_SHAPE(3, 0)), NULL, NULL), KR_SHAPE(3, 0));
    EMPTY(kr_layer_norm(t, kr_zeros(t, d, KR_SHAPE(3, 0)), NULL, NULL, NULL), KR_SHAPE(3, 0));
    n = kr_add(t, n, kr_layer_norm(t, x, gain, gain, NULL));
    EMPTY(kr_lt(t, x, gain), KR_SHAPE(0, 4));
    EMPTY(kr_argmax(t, x, 1, false), KR_SHAPE(0));
    n = kr_add(t, n, kr_gate(t, x, x));
    kr_tensor *w = kr_input(t, kr_full(t, d, KR_SHAPE(2, 3), 1)), *bias = kr_input(t, kr_full(t, d, KR_SHAPE(2), 1));
    kr_tensor *window = kr_input(t, OF(t, d, KR_SHAPE(1, 2, 3), 1, 2, 3, 4, 5, 6));
    /* a sequence of length 0 leaves the window as it was */
    kr_conv_out none = kr_causal_conv(t, kr_input(t, kr_zeros(t, d, KR_SHAPE(1, 0, 2))), w, bias, window, NULL, true);
    EMPTY(none.y_bsv, KR_SHAPE(1, 0, 2));
    IS(none.window_bvk, KR_SHAPE(1, 2, 3), 1, 2, 3, 4, 5, 6);
    none = kr_causal_conv(t, kr_zeros(t, d, KR_SHAPE(1, 0, 2)), w, bias, window,
                          kr_zeros(t, KR_DTYPE_I32, KR_SHAPE(1, 0)), true);
    IS(none.window_bvk, KR_SHAPE(1, 2, 3), 1, 2, 3, 4, 5, 6);
    kr_conv_out no_rows = kr_causal_conv(t, kr_zeros(t, d, KR_SHAPE(0, 5, 2)), w, bias, NULL, NULL, false);
    EMPTY(no_rows.y_bsv, KR_SHAPE(0, 5, 2));
    EMPTY(no_rows.window_bvk, KR_SHAPE(0, 2, 3));
    kr_tensor *rows = kr_embedding(t, w, kr_zeros(t, KR_DTYPE_I32, KR_SHAPE(0)));
    EMPTY(rows, KR_SHAPE(0, 3));
    EMPTY(kr_gather(t, x, 0, kr_zeros(t, KR_DTYPE_I64, KR_SHAPE(0, 4))), KR_SHAPE(0, 4));
    kr_backward_from(t, 4, (kr_tensor *[]){ n, none.window_bvk, no_rows.y_bsv, rows }, NULL);
    EMPTY(kr_grad(x), KR_SHAPE(0, 4));
    IS(kr_grad(gain), KR_SHAPE(4), 0, 0, 0, 0);
    IS(kr_grad(w), KR_SHAPE(2, 3), 0, 0, 0, 0, 0, 0);
    IS(kr_grad(window), KR_SHAPE(1, 2, 3), 1, 1, 1, 1, 1, 1);
}

TYPE_TEST(empty_movements)
{
    kr_tensor *x = kr_zeros(t, d, KR_SHAPE(2, 0, 3));
    EMPTY(kr_reshape(t, x, KR_SHAPE(0, 7)), KR_SHAPE(0, 7));
    EMPTY(kr_reshape(t, x, KR_SHAPE(5, -1)), KR_SHAPE(5, 0));
    EMPTY(kr_transpose(t, x), KR_SHAPE(2, 3, 0));
    EMPTY(kr_permute(t, x, KR_AXES(1, 0, 2)), KR_SHAPE(0, 2, 3));
    EMPTY(kr_slice(t, x, 0, 1, 1), KR_SHAPE(0, 0, 3));
    EMPTY(kr_slice(t, x, 1, 0, 0), KR_SHAPE(2, 0, 3));
    EMPTY(kr_flip(t, x, 1), KR_SHAPE(2, 0, 3));
    EMPTY(kr_expand(t, kr_zeros(t, d, KR_SHAPE(1, 0, 1)), KR_SHAPE(4, 2, 0, 3)), KR_SHAPE(4, 2, 0, 3));
    EMPTY(kr_expand(t, kr_zeros(t, d, KR_SHAPE(1)), KR_SHAPE(0)), KR_SHAPE(0));
    EMPTY(kr_contiguous(t, kr_transpose(t, x)), KR_SHAPE(2, 3, 0));
    EMPTY(kr_cast(t, x, KR_DTYPE_F64), KR_SHAPE(2, 0, 3));
    EMPTY(kr_concat(t, 0, 2, (kr_tensor *[]){ x, x }), KR_SHAPE(4, 0, 3));
    IS(kr_concat(t, 1, 2, (kr_tensor *[]){ kr_zeros(t, d, KR_SHAPE(1, 0)), OF(t, d, KR_SHAPE(1, 2), 1, 2) }),
       KR_SHAPE(1, 2), 1, 2);
    IS(kr_pad(t, kr_zeros(t, d, KR_SHAPE(0)), 0, 1, 1, 5), KR_SHAPE(2), 5, 5);
    kr_tensor *parts[2];
    CHECK(kr_split(t, x, 1, 2, (const int64_t[]){ 0, 0 }, parts) == KR_OK, "split of nothing");
    EMPTY(parts[1], KR_SHAPE(2, 0, 3));
    EMPTY(kr_from_data(t, d, KR_SHAPE(0), NULL), KR_SHAPE(0));
}

/* ---- rank 0 and rank 8 ---- */

FLOAT_TEST(rank_0)
{
    kr_tensor *x = kr_input(t, OF(t, d, KR_SCALAR, 4));
    IS(kr_mul(t, kr_sqrt(t, x), x), KR_SCALAR, 8);
    IS(kr_sum(t, x, KR_ALL_AXES, true), KR_SCALAR, 4);
    IS(kr_max(t, x, KR_ALL_AXES, false), KR_SCALAR, 4);
    IS(kr_reshape(t, x, KR_SHAPE(1, 1)), KR_SHAPE(1, 1), 4);
    IS(kr_permute(t, x, (kr_axes){ 0, { 0 } }), KR_SCALAR, 4);
    IS(kr_expand(t, x, KR_SHAPE(2)), KR_SHAPE(2), 4, 4);
    IS(kr_contiguous(t, x), KR_SCALAR, 4);
    IS(kr_where(t, OF(t, KR_DTYPE_I32, KR_SCALAR, 1), x, kr_neg(t, x)), KR_SCALAR, 4);
    kr_backward(t, kr_mul(t, x, x));
    IS(kr_grad(x), KR_SCALAR, 8);
}

FLOAT_TEST(rank_8)
{
    const kr_shape eight = KR_SHAPE(2, 1, 2, 1, 2, 1, 1, 3), flat = KR_SHAPE(2, 2, 2, 3);
    kr_tensor *x = kr_input(t, kr_scale(t, counted(t, d, eight), 0.125)), *y = kr_reshape(t, x, flat);
    const kr_axes order = KR_AXES(7, 6, 5, 4, 3, 2, 1, 0);
    CHECK_SAME_BITS("permute", kr_reshape(t, kr_permute(t, x, order), KR_SHAPE(24)),
                    kr_reshape(t, kr_permute(t, y, KR_AXES(3, 2, 1, 0)), KR_SHAPE(24)));
    CHECK_SAME_BITS("sum", kr_reshape(t, kr_sum(t, x, KR_AXES(0, 4), false), KR_SHAPE(6)),
                    kr_reshape(t, kr_sum(t, y, KR_AXES(0, 2), false), KR_SHAPE(6)));
    CHECK_SAME_BITS("max", kr_reshape(t, kr_max(t, x, KR_AXES(2, 7), true), KR_SHAPE(4)),
                    kr_reshape(t, kr_max(t, y, KR_AXES(1, 3), true), KR_SHAPE(4)));
    CHECK_SAME_BITS("cumsum", kr_reshape(t, kr_cumsum(t, x, 4), flat), kr_cumsum(t, y, 2));
    CHECK_SAME_BITS("softmax", kr_reshape(t, kr_softmax(t, x, 0), flat), kr_softmax(t, y, 0));
    CHECK_SAME_BITS("exp of a view", kr_reshape(t, kr_exp(t, kr_permute(t, x, order)), KR_SHAPE(24)),
                    kr_exp(t, kr_reshape(t, kr_permute(t, x, order), KR_SHAPE(24))));
    CHECK_SAME_BITS("matmul", kr_reshape(t, kr_matmul(t, kr_transpose(t, x), x), KR_SHAPE(2, 2, 2, 3, 3)),
                    kr_reshape(t, kr_outer(t, y, y), KR_SHAPE(2, 2, 2, 3, 3)));
    CHECK_SAME_BITS("concat", kr_reshape(t, kr_concat(t, 2, 2, (kr_tensor *[]){ x, x }), KR_SHAPE(2, 4, 2, 3)),
                    kr_concat(t, 1, 2, (kr_tensor *[]){ y, y }));
    kr_tensor *sum = kr_sum(t, kr_mul(t, x, kr_flip(t, kr_slice(t, x, 7, 0, 1), 4)), KR_ALL_AXES, false);
    kr_backward(t, sum);
    CHECK(kr_tensor_rank(kr_grad(x)) == 8, "a gradient of rank 8");
}
