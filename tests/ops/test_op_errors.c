/* test_op_errors.c - what is refused, and in which words: op, operand, sizes, rule. */
#define _POSIX_C_SOURCE 200809L
#include "tests/error_tests.h"

#define SCALAR kr_zeros(t, KR_DTYPE_F32, KR_SCALAR)
#define LIST(...)                                                                                                      \
    (kr_tensor *[])                                                                                                    \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

TEST(dropout_refuses)
{
    begin();
    kr_dropout_options o;
    kr_dropout_options_init(&o);
    o.first = -1;
    REFUSED(KR_ERR_ARG, "dropout: p = 1, but must be from 0 to below 1", kr_dropout(t, F(2), 1, NULL));
    REFUSED(KR_ERR_ARG, "dropout: p = -0.5, but must be from 0 to below 1", kr_dropout(t, F(2), -0.5, NULL));
    REFUSED(KR_ERR_ARG, "dropout: p = nan, but must be from 0 to below 1",
            kr_dropout(t, F(2), fabs((double)NAN), NULL));
    REFUSED(KR_ERR_ARG, "dropout: first = -1, but must not be negative", kr_dropout(t, F(2), 0.5, &o));
    REFUSED(KR_ERR_DTYPE, "dropout: x [2] is i32, but must be a float type", kr_dropout(t, I(2), 0.5, NULL));
    REFUSED(KR_ERR_ARG, "dropout: operand x is NULL", kr_dropout(t, NULL, 0.5, NULL));
    end();
}

TEST(two_operands)
{
    begin();
    REFUSED(KR_ERR_SHAPE, "add: a [2, 3] and b [4] do not broadcast: axis -1 is 3 against 4, and neither is 1",
            kr_add(t, F(2, 3), F(4)));
    REFUSED(KR_ERR_SHAPE, "mul: a [2, 1] and b [3, 5] do not broadcast: axis -2 is 2 against 3, and neither is 1",
            kr_mul(t, F(2, 1), F(3, 5)));
    REFUSED(KR_ERR_SHAPE, "div: a [0] and b [2] do not broadcast: axis -1 is 0 against 2, and neither is 1",
            kr_div(t, F(0), F(2)));
    REFUSED(KR_ERR_ARG, "sub: operand a is NULL", kr_sub(t, NULL, F(2)));
    REFUSED(KR_ERR_ARG, "maximum: operand b is NULL", kr_maximum(t, F(2), NULL));
#define COMPARISON(fn)                                                                                                 \
    REFUSED(KR_ERR_ARG, #fn ": operand a is NULL", kr_##fn(t, NULL, F(2)));                                            \
    REFUSED(KR_ERR_DTYPE,                                                                                              \
            #fn                                                                                                        \
            ": a [2] is f32, but b [3] is i32; floats compare with floats, integers with integers: kr_cast one of "    \
            "them",                                                                                                    \
            kr_##fn(t, F(2), I(3)))
    COMPARISON(eq);
    COMPARISON(ne);
    COMPARISON(lt);
    COMPARISON(le);
    COMPARISON(gt);
    COMPARISON(ge);
#undef COMPARISON
    REFUSED(KR_ERR_SHAPE, "lt: a [2] and b [3] do not broadcast: axis -1 is 2 against 3, and neither is 1",
            kr_lt(t, I(2), I(3)));
    REFUSED(KR_ERR_DTYPE, "gt: b [2] is f64, but a is f32; f64 mixes with no other type, kr_cast one of them",
            kr_gt(t, F(2), D(2)));
    REFUSED(KR_ERR_ARG, "minimum: operand a is NULL", kr_minimum(t, NULL, F(2)));
    REFUSED(KR_ERR_ARG, "pow: operand b is NULL", kr_pow(t, F(2), NULL));
    REFUSED(KR_ERR_DTYPE, "pow: b [2] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_pow(t, F(2), I(2)));
    REFUSED(KR_ERR_SHAPE, "pow: a [2, 3] and b [4] do not broadcast: axis -1 is 3 against 4, and neither is 1",
            kr_pow(t, F(2, 3), F(4)));
    REFUSED(KR_ERR_DTYPE, "add: a [2] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_add(t, I(2), F(2)));
    REFUSED(KR_ERR_DTYPE, "add: b [3] is f64, but a is f32; f64 mixes with no other type, kr_cast one of them",
            kr_add(t, F(3), D(3)));
    REFUSED(KR_ERR_DTYPE, "add: b [3] is bf16, but a is f64; f64 mixes with no other type, kr_cast one of them",
            kr_add(t, D(3), H(3)));
    REFUSED(KR_ERR_DTYPE, "where: mask [2] is f32, but must be i32 or i64", kr_where(t, F(2), F(2), F(2)));
    REFUSED(KR_ERR_DTYPE, "where: b [2] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_where(t, I(2), F(2), I(2)));
    REFUSED(KR_ERR_SHAPE, "where: a [2] and b [3] do not broadcast: axis -1 is 2 against 3, and neither is 1",
            kr_where(t, I(2), F(2), F(3)));
    REFUSED(KR_ERR_SHAPE,
            "where: mask [5] and a with b [4, 2] do not broadcast: axis -1 is 5 against 2, and neither is 1",
            kr_where(t, I(5), F(2), F(4, 1)));
    REFUSED(KR_ERR_ARG, "where: operand mask is NULL", kr_where(t, NULL, F(2), F(2)));
    REFUSED(KR_ERR_SHAPE, "mask_fill: x [2] and mask [3] do not broadcast: axis -1 is 2 against 3, and neither is 1",
            kr_mask_fill(t, F(2), I(3), 0));
    REFUSED(KR_ERR_DTYPE, "mask_fill: mask [2] is f64, but must be i32 or i64", kr_mask_fill(t, F(2), D(2), 0));
    REFUSED(KR_ERR_ARG, "mask_fill: operand mask is NULL", kr_mask_fill(t, F(2), NULL, 0));
    end();
}

TEST(one_operand)
{
    begin();
#define UNARY(fn)                                                                                                      \
    REFUSED(KR_ERR_ARG, #fn ": operand x is NULL", kr_##fn(t, NULL));                                                  \
    REFUSED(KR_ERR_DTYPE, #fn ": x [2, 3] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",                \
            kr_##fn(t, I(2, 3)))
    UNARY(neg);
    UNARY(exp);
    UNARY(log);
    UNARY(sqrt);
    UNARY(rsqrt);
    UNARY(sin);
    UNARY(cos);
    UNARY(tanh);
    UNARY(sigmoid);
    UNARY(silu);
    UNARY(softplus);
    UNARY(log_sigmoid);
    UNARY(abs);
    UNARY(relu);
    UNARY(erf);
    UNARY(gelu);
    UNARY(gelu_tanh);
    UNARY(segsum);
#undef UNARY
    REFUSED(KR_ERR_ARG, "scale: operand x is NULL", kr_scale(t, NULL, 2));
    REFUSED(KR_ERR_ARG, "affine: operand x is NULL", kr_affine(t, NULL, 2, 1));
    REFUSED(KR_ERR_ARG, "pow_scalar: operand x is NULL", kr_pow_scalar(t, NULL, 2));
    REFUSED(KR_ERR_DTYPE, "pow_scalar: x [2] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_pow_scalar(t, I(2), 2));
    REFUSED(KR_ERR_DTYPE, "clamp: x [2] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_clamp(t, I(2), 0, 1));
    REFUSED(KR_ERR_ARG, "clamp: low = 2 is above high = 1", kr_clamp(t, F(2), 2, 1));
    end();
}

TEST(axes)
{
    begin();
    REFUSED(KR_ERR_ARG, "sum: axis 2 of x [2, 3], which has rank 2", kr_sum(t, F(2, 3), KR_AXES(0, 2), false));
    REFUSED(KR_ERR_ARG, "mean: axis -3 of x [2, 3], which has rank 2", kr_mean(t, F(2, 3), KR_AXES(-3), false));
    REFUSED(KR_ERR_ARG, "max: axis 1 of x [2, 3] is named twice", kr_max(t, F(2, 3), KR_AXES(1, -1), false));
    REFUSED(KR_ERR_ARG, "sum: 9 axes, but at most 8 exist", kr_sum(t, F(2), (kr_axes){ 9, { 0 } }, false));
    REFUSED(KR_ERR_SHAPE, "max: x [2, 0] has no elements", kr_max(t, F(2, 0), KR_AXES(1), false));
    REFUSED(KR_ERR_ARG, "argmax: axis 2 of x [2, 3], which has rank 2", kr_argmax(t, F(2, 3), 2, false));
    REFUSED(KR_ERR_SHAPE, "argmax: x [2, 0] has no elements", kr_argmax(t, F(2, 0), 1, false));
    REFUSED(KR_ERR_ARG, "argmax: operand x is NULL", kr_argmax(t, NULL, 0, false));
    REFUSED(KR_ERR_DTYPE, "argmax: x [2] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_argmax(t, I(2), 0, false));
    REFUSED(KR_ERR_DTYPE, "sum: x [2] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_sum(t, I(2), KR_ALL_AXES, false));
    REFUSED(KR_ERR_ARG, "mean: operand x is NULL", kr_mean(t, NULL, KR_ALL_AXES, false));
    REFUSED(KR_ERR_ARG, "cumsum: axis 1 of x [4], which has rank 1", kr_cumsum(t, F(4), 1));
    REFUSED(KR_ERR_ARG, "cumsum_reverse: axis 0 of x [], which has rank 0", kr_cumsum_reverse(t, SCALAR, 0));
    REFUSED(KR_ERR_ARG, "cumsum_reverse: operand x is NULL", kr_cumsum_reverse(t, NULL, 0));
    REFUSED(KR_ERR_ARG, "softmax: axis -1 of x [], which has rank 0", kr_softmax(t, SCALAR, -1));
    REFUSED(KR_ERR_ARG, "log_softmax: axis 5 of x [2, 2], which has rank 2", kr_log_softmax(t, F(2, 2), 5));
    REFUSED(KR_ERR_SHAPE, "segsum: x [] has rank 0, but must have at least 1 (axes ..l)", kr_segsum(t, SCALAR));
    REFUSED(KR_ERR_SHAPE, "segsum: x [1, 1, 1, 1, 1, 1, 1, 2] has rank 8, and the result would have one more than 8",
            kr_segsum(t, F(1, 1, 1, 1, 1, 1, 1, 2)));
    end();
}

TEST(products)
{
    begin();
    REFUSED(KR_ERR_SHAPE, "matmul: axis k of b [4, 5] is 4, but a [2, 3] says k = 3", kr_matmul(t, F(2, 3), F(4, 5)));
    REFUSED(KR_ERR_SHAPE, "matmul: a [3] has rank 1, but must have at least 2 (axes ..mk)",
            kr_matmul(t, F(3), F(3, 2)));
    REFUSED(KR_ERR_SHAPE,
            "matmul: leading axes of a [2] and of b [3] do not broadcast: axis -1 is 2 against 3, and neither is 1",
            kr_matmul(t, F(2, 4, 5), F(3, 5, 4)));
    REFUSED(KR_ERR_SHAPE, "matmul: axis n of bias [6] is 6, but b [3, 5] says n = 5",
            kr_matmul_add(t, F(2, 3), F(3, 5), F(6), NULL));
    REFUSED(KR_ERR_SHAPE, "matmul: bias [1, 5] has rank 2, but must have 1 (axes n)",
            kr_matmul_add(t, F(2, 3), F(3, 5), F(1, 5), NULL));
    REFUSED(KR_ERR_SHAPE,
            "matmul: c [4, 5] and the product [2, 5] do not broadcast: axis -2 is 4 against 2, and neither is 1",
            kr_matmul_add(t, F(2, 3), F(3, 5), NULL, F(4, 5)));
    REFUSED(KR_ERR_SHAPE, "matmul: c [7, 2, 5] does not repeat to the product [2, 5]",
            kr_matmul_add(t, F(2, 3), F(3, 5), NULL, F(7, 2, 5)));
    REFUSED(KR_ERR_DTYPE, "matmul: b [3, 5] is f64, but a is f32; f64 mixes with no other type, kr_cast one of them",
            kr_matmul(t, F(2, 3), D(3, 5)));
    REFUSED(KR_ERR_ARG, "matmul: operand b is NULL", kr_matmul(t, F(2, 3), NULL));
    REFUSED(KR_ERR_SHAPE, "outer: leading axes of b [3, 5] are [3], but a [2, 4] has [2]",
            kr_outer(t, F(2, 4), F(3, 5)));
    REFUSED(KR_ERR_DTYPE, "outer: b [2] is f64, but a is f32; f64 mixes with no other type, kr_cast one of them",
            kr_outer(t, F(2), D(2)));
    REFUSED(KR_ERR_SHAPE, "outer: a [1, 1, 1, 1, 1, 1, 1, 2] has rank 8, and the result one more than 8",
            kr_outer(t, F(1, 1, 1, 1, 1, 1, 1, 2), F(1, 1, 1, 1, 1, 1, 1, 2)));
    REFUSED(KR_ERR_SHAPE, "linear: axis i of weight [5, 4] is 4, but x [2, 3] says i = 3",
            kr_linear(t, F(2, 3), F(5, 4), NULL));
    REFUSED(KR_ERR_SHAPE, "linear: axis o of bias [4] is 4, but weight [5, 3] says o = 5",
            kr_linear(t, F(2, 3), F(5, 3), F(4)));
    REFUSED(KR_ERR_SHAPE, "linear: weight [5] has rank 1, but must have 2 (axes oi)",
            kr_linear(t, F(2, 3), F(5), NULL));
    REFUSED(KR_ERR_SHAPE, "linear: x [] has rank 0, but must have at least 1 (axes ..i)",
            kr_linear(t, SCALAR, F(5, 3), NULL));
    REFUSED(KR_ERR_DTYPE,
            "linear: weight [5, 3] is f64, but x is f32; f64 mixes with no other type, kr_cast one of them",
            kr_linear(t, F(2, 3), D(5, 3), NULL));
    REFUSED(KR_ERR_ARG, "linear: operand weight is NULL", kr_linear(t, F(2, 3), NULL, NULL));
    end();
}

TEST(shapes)
{
    begin();
    const int64_t wrong[] = { 2, 1 }, negative[] = { -1, 4 }, huge[] = { INT64_MAX, INT64_MAX };
    kr_tensor *parts[2];
    REFUSED(KR_ERR_SHAPE, "reshape: x [2, 3] has 6 elements, which do not fill [4, 2]",
            kr_reshape(t, F(2, 3), KR_SHAPE(4, 2)));
    REFUSED(KR_ERR_SHAPE, "reshape: x [2, 3] has 6 elements, which do not fill [4, -1] (-1 takes what remains)",
            kr_reshape(t, F(2, 3), KR_SHAPE(4, -1)));
    REFUSED(KR_ERR_SHAPE, "reshape: x [2, 3] has 6 elements, which do not fill [-1, -1] (-1 takes what remains)",
            kr_reshape(t, F(2, 3), KR_SHAPE(-1, -1)));
    REFUSED(KR_ERR_SHAPE, "reshape: x [2, 3] has 6 elements, which do not fill [-2, -3]",
            kr_reshape(t, F(2, 3), KR_SHAPE(-2, -3)));
    REFUSED(KR_ERR_SHAPE, "reshape: x [0] has 0 elements, which do not fill [0, -1] (-1 takes what remains)",
            kr_reshape(t, F(0), KR_SHAPE(0, -1)));
    REFUSED(KR_ERR_SHAPE,
            "reshape: x [0] has 0 elements, which do not fill [0, 4611686018427387904, 4611686018427387904]",
            kr_reshape(t, F(0), KR_SHAPE(0, INT64_C(1) << 62, INT64_C(1) << 62)));
    REFUSED(KR_ERR_ARG, "permute: 1 axes given for x [2, 3] of rank 2", kr_permute(t, F(2, 3), KR_AXES(0)));
    REFUSED(KR_ERR_ARG, "permute: axis 1 of x [2, 3] is named twice", kr_permute(t, F(2, 3), KR_AXES(1, -1)));
    REFUSED(KR_ERR_ARG, "permute: axis 2 of x [2, 3], which has rank 2", kr_permute(t, F(2, 3), KR_AXES(0, 2)));
    REFUSED(KR_ERR_SHAPE, "transpose: x [3] has rank 1, but must have at least 2 (axes ..mn)", kr_transpose(t, F(3)));
    REFUSED(KR_ERR_ARG, "slice: 2 to 1 is not a range of axis 0 of x [3, 4]", kr_slice(t, F(3, 4), 0, 2, 1));
    REFUSED(KR_ERR_ARG, "slice: 0 to 5 is not a range of axis 1 of x [3, 4]", kr_slice(t, F(3, 4), -1, 0, 5));
    REFUSED(KR_ERR_ARG, "slice: -5 to 2 is not a range of axis 1 of x [3, 4]", kr_slice(t, F(3, 4), 1, -5, 2));
    REFUSED(KR_ERR_ARG, "slice: axis 2 of x [3, 4], which has rank 2", kr_slice(t, F(3, 4), 2, 0, 1));
    REFUSED_STATUS(KR_ERR_SHAPE, "split: the 2 sizes add up to 3, but axis 1 of x [3, 4] is 4",
                   kr_split(t, F(3, 4), 1, 2, wrong, parts));
    REFUSED_STATUS(KR_ERR_SHAPE, "split: size 0 is -1, but 4 are left of axis 1 of x [3, 4]",
                   kr_split(t, F(3, 4), 1, 2, negative, parts));
    REFUSED_STATUS(KR_ERR_SHAPE, "split: size 0 is 9223372036854775807, but 4 are left of axis 1 of x [3, 4]",
                   kr_split(t, F(3, 4), 1, 2, huge, parts));
    CHECK(!parts[0] && !parts[1], "the parts of a refused split are NULL");
    REFUSED(KR_ERR_ARG, "concat: 0 operands, but at least one is needed", kr_concat(t, 0, 0, NULL));
    REFUSED(KR_ERR_ARG, "concat: operand x1 is NULL", kr_concat(t, 0, 2, LIST(F(2), NULL)));
    REFUSED(KR_ERR_SHAPE, "concat: x1 [2, 4] differs from x0 [2, 3] on an axis other than 0",
            kr_concat(t, 0, 2, LIST(F(2, 3), F(2, 4))));
    REFUSED(KR_ERR_SHAPE, "concat: x2 [3] has rank 1, but x0 [2, 3] has rank 2",
            kr_concat(t, 0, 3, LIST(F(2, 3), F(1, 3), F(3))));
    REFUSED(KR_ERR_DTYPE, "concat: x1 is f64, but x0 is f32", kr_concat(t, 0, 2, LIST(F(2), D(2))));
    REFUSED(KR_ERR_ARG, "concat: axis 1 of x [2], which has rank 1", kr_concat(t, 1, 1, LIST(F(2))));
    REFUSED(KR_ERR_ARG,
            "pad: before = -1, after = 2 on axis 0 of x [3], but neither may be negative; kr_slice shortens",
            kr_pad(t, F(3), 0, -1, 2, 0));
    REFUSED(KR_ERR_SHAPE,
            "new: shape [4611686018427387904, 3] has a negative size or more elements than can be addressed",
            kr_pad(t, F(2, 3), 0, INT64_MAX / 4, INT64_MAX / 4, 0));
    REFUSED(KR_ERR_SHAPE, "expand: x [3] does not repeat to [4]: only axes of size 1 do",
            kr_expand(t, F(3), KR_SHAPE(4)));
    REFUSED(KR_ERR_SHAPE, "expand: x [3, 1] does not repeat to [3]: only axes of size 1 do",
            kr_expand(t, F(3, 1), KR_SHAPE(3)));
    REFUSED(KR_ERR_SHAPE, "expand: x [1] does not repeat to [-1]: only axes of size 1 do",
            kr_expand(t, F(1), KR_SHAPE(-1)));
    REFUSED(KR_ERR_ARG, "flip: axis 1 of x [3], which has rank 1", kr_flip(t, F(3), 1));
    REFUSED(KR_ERR_DTYPE, "cast: 17 is not a kr_dtype", kr_cast(t, F(3), (kr_dtype)17));
    end();
}

TEST(missing_operands)
{
    begin();
    kr_tensor *parts[2];
    const int64_t sizes[] = { 1, 1 };
    REFUSED(KR_ERR_ARG, "reshape: operand x is NULL", kr_reshape(t, NULL, KR_SHAPE(1)));
    REFUSED(KR_ERR_ARG, "permute: operand x is NULL", kr_permute(t, NULL, KR_AXES(0)));
    REFUSED(KR_ERR_ARG, "transpose: operand x is NULL", kr_transpose(t, NULL));
    REFUSED(KR_ERR_ARG, "slice: operand x is NULL", kr_slice(t, NULL, 0, 0, 0));
    REFUSED_STATUS(KR_ERR_ARG, "split: operand x is NULL", kr_split(t, NULL, 0, 2, sizes, parts));
    REFUSED(KR_ERR_ARG, "pad: operand x is NULL", kr_pad(t, NULL, 0, 0, 0, 0));
    REFUSED(KR_ERR_ARG, "expand: operand x is NULL", kr_expand(t, NULL, KR_SHAPE(1)));
    REFUSED(KR_ERR_ARG, "flip: operand x is NULL", kr_flip(t, NULL, 0));
    REFUSED(KR_ERR_ARG, "contiguous: operand x is NULL", kr_contiguous(t, NULL));
    REFUSED(KR_ERR_ARG, "cast: operand x is NULL", kr_cast(t, NULL, KR_DTYPE_F32));
    REFUSED(KR_ERR_ARG, "gather: operand id is NULL", kr_gather(t, F(2), 0, NULL));
    REFUSED(KR_ERR_ARG, "embedding: operand table is NULL", kr_embedding(t, NULL, I(2)));
    REFUSED(KR_ERR_ARG, "softmax: operand x is NULL", kr_softmax(t, NULL, 0));
    REFUSED(KR_ERR_ARG, "outer: operand b is NULL", kr_outer(t, F(2), NULL));
    REFUSED(KR_ERR_ARG, "rms_norm: operand x is NULL", kr_rms_norm(t, NULL, NULL, NULL));
    REFUSED(KR_ERR_ARG, "gated_norm: operand z is NULL", kr_gated_norm(t, F(2), NULL, NULL, NULL));
    REFUSED(KR_ERR_ARG, "gate: operand z is NULL", kr_gate(t, F(2), NULL));
    REFUSED(KR_ERR_ARG, "causal_conv: operand weight is NULL",
            kr_causal_conv(t, F(1, 2, 3), NULL, NULL, NULL, NULL, false).y_bsv);
    REFUSED(KR_ERR_ARG, "detach: operand x is NULL", kr_detach(t, NULL));
    REFUSED(KR_ERR_ARG, "input: operand x is NULL", kr_input(t, NULL));
    end();
}

TEST(numbers_out_of_range)
{
    begin();
    REFUSED(KR_ERR_ARG, "embedding: element 1 of id [3] is 5, but must be from 0 to 4",
            kr_embedding(t, F(5, 2), kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(3), (const int32_t[]){ 4, 5, 0 })));
    REFUSED(KR_ERR_ARG, "embedding: element 0 of id [1] is -1, but must be from 0 to 4",
            kr_embedding(t, F(5, 2), kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(1), (const int64_t[]){ -1 })));
    REFUSED(KR_ERR_ARG, "embedding: element 0 of id [] is 4294967296, but must be from 0 to 4",
            kr_embedding(t, F(5, 2), kr_from_data(t, KR_DTYPE_I64, KR_SCALAR, (const int64_t[]){ INT64_C(1) << 32 })));
    REFUSED(KR_ERR_DTYPE, "embedding: id [3] is f32, but must be i32 or i64", kr_embedding(t, F(5, 2), F(3)));
    REFUSED(KR_ERR_SHAPE, "embedding: table [5] has rank 1, but must have 2 (axes wd)", kr_embedding(t, F(5), I(3)));
    REFUSED(KR_ERR_DTYPE, "embedding: table [5, 2] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_embedding(t, I(5, 2), I(3)));
    REFUSED(KR_ERR_SHAPE, "embedding: id [1, 1, 1, 1, 1, 1, 1, 1] has rank 8, and the result one more than 8",
            kr_embedding(t, F(5, 2), I(1, 1, 1, 1, 1, 1, 1, 1)));
    REFUSED(KR_ERR_ARG, "gather: element 3 of id [2, 2] is 3, but must be from 0 to 2",
            kr_gather(t, F(2, 3), 1, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 2), (const int32_t[]){ 0, 1, 2, 3 })));
    REFUSED(KR_ERR_SHAPE, "gather: id [3, 2] must have the sizes of x [2, 3] but on axis 1",
            kr_gather(t, F(2, 3), 1, I(3, 2)));
    REFUSED(KR_ERR_SHAPE, "gather: id [2] must have the sizes of x [2, 3] but on axis 1",
            kr_gather(t, F(2, 3), 1, I(2)));
    REFUSED(KR_ERR_DTYPE, "gather: id [2, 3] is f64, but must be i32 or i64", kr_gather(t, F(2, 3), 0, D(2, 3)));
    REFUSED(KR_ERR_ARG, "gather: axis 2 of x [2, 3], which has rank 2", kr_gather(t, F(2, 3), 2, I(2, 3)));
    end();
}

TEST(fused_pieces)
{
    begin();
    kr_norm_options o;
    kr_norm_options_init(&o);
    o.groups = 3;
    REFUSED(KR_ERR_ARG, "rms_norm: groups = 3 does not divide i = 8", kr_rms_norm(t, F(2, 8), NULL, &o));
    o.groups = 0;
    REFUSED(KR_ERR_ARG, "gated_norm: groups = 0 does not divide i = 8", kr_gated_norm(t, F(8), F(8), NULL, &o));
    o.groups = 1;
    o.eps = -1;
    REFUSED(KR_ERR_ARG, "rms_norm: eps = -1, but must not be negative", kr_rms_norm(t, F(2, 8), NULL, &o));
    REFUSED(KR_ERR_ARG, "layer_norm: eps = -1, but must not be negative", kr_layer_norm(t, F(2, 8), NULL, NULL, &o));
    REFUSED(KR_ERR_SHAPE, "rms_norm: axis i of gain [6] is 6, but x [2, 8] says i = 8",
            kr_rms_norm(t, F(2, 8), F(6), NULL));
    REFUSED(KR_ERR_SHAPE, "rms_norm: x [] has rank 0, but must have at least 1 (axes ..i)",
            kr_rms_norm(t, SCALAR, NULL, NULL));
    kr_norm_options_init(&o);
    o.groups = 3;
    REFUSED(KR_ERR_ARG, "layer_norm: groups = 3 does not divide i = 8", kr_layer_norm(t, F(2, 8), NULL, NULL, &o));
    o.groups = 1;
    o.norm_before_gate = true;
    REFUSED(KR_ERR_ARG, "layer_norm: norm_before_gate is set, but there is no gate; use kr_gated_norm",
            kr_layer_norm(t, F(2, 8), NULL, NULL, &o));
    REFUSED(KR_ERR_ARG, "layer_norm: operand x is NULL", kr_layer_norm(t, NULL, NULL, NULL, NULL));
    REFUSED(KR_ERR_SHAPE, "layer_norm: axis i of bias [6] is 6, but x [2, 8] says i = 8",
            kr_layer_norm(t, F(2, 8), F(8), F(6), NULL));
    REFUSED(KR_ERR_DTYPE,
            "layer_norm: gain [8] is f64, but x is f32; f64 mixes with no other type, kr_cast one of them",
            kr_layer_norm(t, F(2, 8), D(8), NULL, NULL));
    REFUSED(KR_ERR_SHAPE, "gated_norm: leading axes of z [3, 8] are [3], but x [2, 8] has [2]",
            kr_gated_norm(t, F(2, 8), F(3, 8), NULL, NULL));
    REFUSED(KR_ERR_SHAPE, "gated_norm: axis i of z [2, 4] is 4, but x [2, 8] says i = 8",
            kr_gated_norm(t, F(2, 8), F(2, 4), NULL, NULL));
    REFUSED(KR_ERR_DTYPE,
            "gated_norm: z [2, 8] is f64, but x is f32; f64 mixes with no other type, kr_cast one of them",
            kr_gated_norm(t, F(2, 8), D(2, 8), NULL, NULL));
    REFUSED(KR_ERR_SHAPE, "gate: leading axes of z [8] are [8], but x [2, 8] has [2, 8]", kr_gate(t, F(2, 8), F(8)));
    REFUSED(KR_ERR_DTYPE, "gate: z [8] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_gate(t, F(8), I(8)));
    REFUSED(KR_ERR_SHAPE, "causal_conv: x [2, 3] has rank 2, but must have 3 (axes bsv)",
            kr_causal_conv(t, F(2, 3), F(3, 4), NULL, NULL, NULL, false).y_bsv);
    REFUSED(KR_ERR_SHAPE, "causal_conv: axis v of weight [4, 4] is 4, but x [1, 2, 3] says v = 3",
            kr_causal_conv(t, F(1, 2, 3), F(4, 4), NULL, NULL, NULL, false).y_bsv);
    REFUSED(KR_ERR_SHAPE, "causal_conv: axis v of bias [2] is 2, but x [1, 2, 3] says v = 3",
            kr_causal_conv(t, F(1, 2, 3), F(3, 4), F(2), NULL, NULL, false).y_bsv);
    REFUSED(KR_ERR_SHAPE, "causal_conv: axis k of window [1, 3, 3] is 3, but weight [3, 4] says k = 4",
            kr_causal_conv(t, F(1, 2, 3), F(3, 4), NULL, F(1, 3, 3), NULL, false).window_bvk);
    REFUSED(KR_ERR_SHAPE, "causal_conv: window [2, 3, 4] must be [1, 3, 4]: one for each sequence",
            kr_causal_conv(t, F(1, 2, 3), F(3, 4), NULL, F(2, 3, 4), NULL, false).y_bsv);
    REFUSED(KR_ERR_SHAPE, "causal_conv: seq_start [1, 3] must be [1, 2]: a flag for each token",
            kr_causal_conv(t, F(1, 2, 3), F(3, 4), NULL, NULL, I(1, 3), false).y_bsv);
    REFUSED(KR_ERR_DTYPE, "causal_conv: seq_start [1, 2] is f32, but must be i32 or i64",
            kr_causal_conv(t, F(1, 2, 3), F(3, 4), NULL, NULL, F(1, 2), false).y_bsv);
    REFUSED(KR_ERR_SHAPE, "causal_conv: window [1, 3, 4] must be [2, 3, 4]: one for each sequence",
            kr_causal_conv(t, F(1, 2, 3), F(3, 4), NULL, F(1, 3, 4), kr_full(t, KR_DTYPE_I32, KR_SHAPE(1, 2), 1), false)
                .y_bsv);
    REFUSED(KR_ERR_SHAPE, "causal_conv: weight [3, 0] has no tap; k must be at least 1",
            kr_causal_conv(t, F(1, 2, 3), F(3, 0), NULL, NULL, NULL, false).y_bsv);
    REFUSED(KR_ERR_DTYPE, "causal_conv: weight [3, 4] is i32, but must be f32, f64, bf16 or f16; kr_cast converts",
            kr_causal_conv(t, F(1, 2, 3), I(3, 4), NULL, NULL, NULL, false).y_bsv);
    end();
}

TEST(new_tensors)
{
    begin();
    REFUSED(KR_ERR_SHAPE, "new: shape [2, -1] has a negative size or more elements than can be addressed",
            kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(2, -1)));
    REFUSED(KR_ERR_SHAPE, "new: rank 9, but tensors have from 0 to 8 axes",
            kr_zeros(t, KR_DTYPE_F32, (kr_shape){ 9, { 1 } }));
    REFUSED(KR_ERR_DTYPE, "new: 9 is not a kr_dtype", kr_full(t, (kr_dtype)9, KR_SHAPE(1), 0));
    REFUSED(KR_ERR_SHAPE, "new: shape [1152921504606846976] has a negative size or more elements than can be addressed",
            kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(INT64_C(1) << 60)));
    REFUSED(KR_ERR_DTYPE, "randn: type i32, but samples are f32, f64, bf16 or f16",
            kr_randn(t, KR_DTYPE_I32, KR_SHAPE(2)));
    REFUSED(KR_ERR_DTYPE, "rand: type i64, but samples are f32, f64, bf16 or f16",
            kr_rand(t, KR_DTYPE_I64, KR_SHAPE(2), 0, 1));
    REFUSED(KR_ERR_ARG, "from_data: data is NULL, but the shape is [2]",
            kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(2), NULL));
    REFUSED(KR_ERR_SHAPE,
            "from_data: invalid shape: rank 1 must be from 0 to 8, and sizes not negative and addressable",
            kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(-2), &ctx));
    REFUSED(KR_ERR_DTYPE, "view_data: -1 is not a kr_dtype", kr_view_data(t, (kr_dtype)-1, KR_SHAPE(2), NULL, &ctx));
    REFUSED(KR_ERR_DTYPE, "input: x is i32, but only floats have gradients", kr_input(t, I(2)));
    REFUSED(KR_ERR_DTYPE, "param: type i32, but a parameter is f32, f64, bf16 or f16",
            kr_param_create(ctx, KR_DTYPE_I32, KR_SHAPE(2)));
    REFUSED(KR_ERR_SHAPE, "param: invalid shape: rank -1 must be from 0 to 8, and sizes not negative and addressable",
            kr_param_create(ctx, KR_DTYPE_F32, (kr_shape){ -1, { 0 } }));
    end();
}

TEST(reading_and_writing)
{
    begin();
    float out[4];
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(2, 2)), *x = F(2, 3);
    CHECK(kr_param_write(w, KR_DTYPE_F32, out, 3) == KR_ERR_SHAPE, "status");
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "param_write: 3 elements for a parameter [2, 2] of 4");
    CHECK(kr_param_write(w, KR_DTYPE_F32, NULL, 4) == KR_ERR_ARG, "status");
    CHECK_ERROR(ctx, KR_ERR_ARG, "param_write: data is NULL");
    CHECK(kr_param_write(w, (kr_dtype)77, out, 4) == KR_ERR_DTYPE, "status");
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "param_write: 77 is not a kr_dtype");
    CHECK(kr_param_fill(x, 1) == KR_ERR_ARG, "status");
    CHECK_ERROR(ctx, KR_ERR_ARG, "param_fill: the tensor [2, 3] is on a tape; only parameters are written");
    CHECK(kr_param_normal(x, 0, 1) == KR_ERR_ARG && kr_param_fill(NULL, 0) == KR_ERR_ARG, "status");
    CHECK_ERROR(ctx, KR_ERR_ARG, "param_normal: the tensor [2, 3] is on a tape; only parameters are written");
    CHECK(kr_tensor_read(x, KR_DTYPE_F32, out, 4) == KR_ERR_ARG, "status");
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_read: count is 4 elements, but x [2, 3] has 6");
    CHECK(kr_tensor_read(x, (kr_dtype)6, out, 6) == KR_ERR_DTYPE &&
              kr_tensor_read(NULL, KR_DTYPE_F32, out, 0) == KR_ERR_ARG,
          "status");
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "tensor_read: 6 is not a kr_dtype");
    CHECK(isnan(kr_item(x)), "item of six elements is NaN");
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "item: x [2, 3] has 6 elements, but must have 1");
    CHECK(isnan(kr_tensor_at(x, (const int64_t[]){ 1, 3 })), "an element out of range is NaN");
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_at: index 3 on axis 1 of x [2, 3]");
    CHECK(isnan(kr_item(NULL)) && kr_tensor_count(NULL) == 0 && kr_tensor_rank(NULL) == 0 && !kr_tensor_data(NULL),
          "NULL reads as nothing");
    kr_param_destroy(x);
    CHECK_ERROR(ctx, KR_ERR_ARG, "param_destroy: the tensor [2, 3] is on a tape, which frees it by itself");
    kr_param_destroy(w);
    kr_param_destroy(NULL);
    end();
}

TEST(foreign_tensors)
{
    begin();
    kr_ctx *other = kr_test_ctx(1, NULL);
    kr_tape *second = kr_tape_create(ctx, KR_TAPE_GRAD), *abroad = kr_tape_create(other, KR_TAPE_GRAD);
    kr_tensor *near = kr_zeros(second, KR_DTYPE_F32, KR_SHAPE(2)), *far = kr_zeros(abroad, KR_DTYPE_F32, KR_SHAPE(3));
    kr_tensor *w = kr_param_create(other, KR_DTYPE_F32, KR_SHAPE(4));
    REFUSED(KR_ERR_STATE,
            "add: operand b [2] belongs to another tape; carry values over in a parameter or by kr_from_data",
            kr_add(t, F(2), near));
    REFUSED(KR_ERR_STATE, "mul: operand a [3] belongs to another context", kr_mul(t, far, F(3)));
    REFUSED(KR_ERR_STATE, "linear: operand bias [4] belongs to another context", kr_linear(t, F(2, 3), F(4, 3), w));
    REFUSED(KR_ERR_STATE, "concat: operand x1 [3] belongs to another context", kr_concat(t, 0, 2, LIST(F(3), far)));
    CHECK_OK(other);
    kr_param_destroy(w);
    kr_tape_destroy(abroad);
    kr_tape_destroy(second);
    kr_ctx_destroy(other);
    end();
}

/* NULL operands after an error are its echo: they give NULL and do not overwrite it. */
TEST(echoes)
{
    begin();
    kr_tensor *y = kr_matmul(t, F(2, 3), F(4, 5));
    const char *first = "matmul: axis k of b [4, 5] is 4, but a [2, 3] says k = 3";
    kr_tensor *z = kr_add(t, kr_silu(t, y), F(2));
    kr_conv_out conv = kr_causal_conv(t, z, y, NULL, NULL, NULL, true);
    kr_tensor *parts[2] = { z, z };
    CHECK(kr_split(t, z, 0, 2, (const int64_t[]){ 1, 1 }, parts) != KR_OK && !parts[0] && !parts[1],
          "split after an error");
    CHECK(!y && !z && !conv.y_bsv && !conv.window_bvk, "NULL in, NULL out");
    CHECK(kr_backward(t, z) == KR_ERR_SHAPE, "backward after an error repeats its status");
    CHECK(!kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(2)) && !kr_tape_create(ctx, KR_TAPE_GRAD),
          "nothing is made after an error");
    CHECK(!kr_clamp(t, z, 2, 1) && kr_retain_grad(NULL) == NULL && !kr_grad(NULL) && !kr_requires_grad(NULL), "NULL");
    CHECK(strcmp(kr_ctx_message(ctx), first) == 0, "the first error stays: %s", kr_ctx_message(ctx));
    CHECK_ERROR(ctx, KR_ERR_SHAPE, first);
    REFUSED(KR_ERR_ARG, "exp: operand x is NULL", kr_exp(t, NULL));
    CHECK(!kr_exp(NULL, NULL) && !kr_tape_bytes(NULL) && !kr_tape_ctx(NULL) && kr_backward(NULL, NULL) == KR_ERR_ARG,
          "NULL tape");
    kr_tape_destroy(NULL);
    kr_tape_reset(NULL);
    end();
}

/* ---- contexts ---- */

static void check_broken(kr_ctx *broken, kr_status status, const char *text)
{
    CHECK(broken && kr_ctx_failed(broken), "the context is made, in the failed state");
    CHECK(kr_ctx_status(broken) == status, "status %s", kr_status_name(kr_ctx_status(broken)));
    CHECK(strcmp(kr_ctx_message(broken), text) == 0, "message\n  got  %s\n  want %s", kr_ctx_message(broken), text);
    kr_ctx_clear(broken);
    CHECK(kr_ctx_failed(broken) && !kr_tape_create(broken, KR_TAPE_GRAD),
          "it cannot be cleared, and nothing is made with it");
    kr_ctx_destroy(broken);
}

static kr_ctx *with_options(int threads, const char *isa)
{
    kr_ctx_options o;
    kr_ctx_options_init(&o);
    o.threads = threads;
    o.isa = isa;
    return kr_ctx_create(&o);
}

TEST(contexts)
{
    char text[256], choices[128];
    kr_isa_choices(choices, sizeof choices);
    CHECK(strncmp(choices, "ref", 3) == 0, "choices: %s", choices);
    unsetenv("KR_ISA");
    unsetenv("KR_THREADS");
    check_broken(with_options(-1, NULL), KR_ERR_ARG,
                 "ctx: threads = -1, but must be from 1 to 1024, or 0 for one per CPU");
    check_broken(with_options(1025, NULL), KR_ERR_ARG,
                 "ctx: threads = 1025, but must be from 1 to 1024, or 0 for one per CPU");
    snprintf(text, sizeof text, "ctx: isa = sse9 is not an instruction set of this build; choose one of: %s", choices);
    check_broken(with_options(1, "sse9"), KR_ERR_ARG, text);
    kr_ctx_options empty = { .size = 0 };
    snprintf(
        text, sizeof text,
        "ctx: kr_ctx_options.size is 0, but the struct has %zu bytes; call kr_ctx_options_init before setting fields",
        sizeof empty);
    check_broken(kr_ctx_create(&empty), KR_ERR_ARG, text);

    setenv("KR_ISA", "mmx", 1);
    snprintf(text, sizeof text, "ctx: KR_ISA=mmx is not an instruction set of this build; choose one of: %s", choices);
    check_broken(kr_ctx_create(NULL), KR_ERR_ARG, text);
    setenv("KR_ISA", "ref", 1);
    kr_ctx *by_environment = kr_ctx_create(NULL);
    CHECK(strcmp(kr_ctx_isa(by_environment), "ref") == 0, "KR_ISA=ref gives %s", kr_ctx_isa(by_environment));
    kr_ctx_destroy(by_environment);
    setenv("KR_ISA", "", 1);
    const char *bad[] = { "abc", "0", "-3", "2x", "99999999999999999999", "1025" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("KR_THREADS", bad[i], 1);
        snprintf(text, sizeof text,
                 "ctx: KR_THREADS=%s is not a number from 1 to 1024; unset it for one thread per CPU", bad[i]);
        check_broken(kr_ctx_create(NULL), KR_ERR_ARG, text);
    }
    unsetenv("KR_THREADS");
    setenv("KR_PIN_THREADS", "yes", 1);
    check_broken(kr_ctx_create(NULL), KR_ERR_ARG,
                 "ctx: KR_PIN_THREADS=yes is neither 0 nor 1; unset it to let the system place threads");
    unsetenv("KR_PIN_THREADS");
    setenv("KR_THREADS", "3", 1);
    kr_ctx *three = kr_ctx_create(NULL), *one = with_options(1, "ref");
    CHECK(kr_ctx_threads(three) == 3 && kr_ctx_threads(one) == 1, "an option wins over the environment: %d %d",
          kr_ctx_threads(three), kr_ctx_threads(one));
    CHECK(!kr_tape_create(one, (kr_tape_mode)5), "a mode that is none");
    CHECK_ERROR(one, KR_ERR_ARG, "tape: mode 5 is neither KR_TAPE_GRAD nor KR_TAPE_NO_GRAD");
    kr_ctx_destroy(three);
    kr_ctx_destroy(one);
    unsetenv("KR_ISA");
    unsetenv("KR_THREADS");
    CHECK(kr_ctx_failed(NULL) && kr_ctx_status(NULL) == KR_ERR_NOMEM && *kr_ctx_message(NULL),
          "NULL is a failed context");
    kr_ctx_destroy(NULL);
}
