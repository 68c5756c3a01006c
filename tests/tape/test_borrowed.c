/* test_borrowed.c - leaves over the caller's memory, and gradients that are written to it.
 *
 * The caller's memory is that of parameters, so that it is device memory where the context's floats are.
 */
#include "tests/error_tests.h"

#include "tape/tape_impl.h"

enum { NI = 3, NJ = 5 };

/* `rows` by `columns` of random values for the caller. */
static kr_tensor *make_memory(kr_dtype dtype, int64_t rows, int64_t columns)
{
    kr_tensor *p = kr_param_create(ctx, dtype, KR_SHAPE(rows, columns));
    IGNORE(kr_param_normal(p, 0, 1));
    return p;
}

/* [NI NJ] of the memory's elements, with any strides. */
static kr_view view_of(const kr_tensor *memory, int64_t offset, int64_t stride_i, int64_t stride_j)
{
    char *data = kr_tensor_data(memory);
    const kr_dtype dtype = kr_tensor_dtype(memory);
    return (kr_view){ .data = data + offset * (int64_t)kr_dtype_bytes(dtype),
                      .dtype = dtype,
                      .rank = 2,
                      .dims = { NI, NJ },
                      .strides = { stride_i, stride_j } };
}

static kr_view row_major(const kr_tensor *memory)
{
    return view_of(memory, 0, NJ, 1);
}

/* The view's elements as f64. */
static void read_view(const kr_tensor *memory, const kr_view *view, double *out)
{
    const int64_t count = kr_tensor_count(memory);
    double *all = malloc((size_t)count * sizeof *all);
    const int64_t at =
        ((char *)view->data - (char *)kr_tensor_data(memory)) / (int64_t)kr_dtype_bytes(kr_tensor_dtype(memory));
    CHECK(kr_tensor_read(memory, KR_DTYPE_F64, all, count) == KR_OK, "%s", kr_ctx_message(ctx));
    for (int64_t i = 0; i < NI; i++)
        for (int64_t j = 0; j < NJ; j++) out[i * NJ + j] = all[at + i * view->strides[0] + j * view->strides[1]];
    free(all);
}

/* sum over [i j] of sin(x w) + x, where x and w are used by two ops each, so that gradients are added. */
static kr_tensor *compute(kr_tensor *x, kr_tensor *w)
{
    kr_tensor *y = kr_add(t, kr_sin(t, kr_mul(t, x, w)), kr_mul(t, kr_mul(t, x, x), w));
    return kr_sum(t, y, KR_ALL_AXES, false);
}

typedef struct layout {
    const char *name;
    int64_t rows, columns, offset, stride_i, stride_j;
} layout;

static const layout layouts[] = {
    { "row-major", NI, NJ, 0, NJ, 1 },
    { "transposed", NJ, NI, 0, 1, NI },
    { "padded", NI, NJ + 4, 2, NJ + 4, 1 },
    { "reversed", NI, NJ, NI *NJ - 1, -NJ, -1 },
};
enum { NLAYOUTS = sizeof layouts / sizeof *layouts };

static void compare_leaf(const layout *l, kr_dtype dtype)
{
    begin();
    kr_tensor *memory = make_memory(dtype, l->rows, l->columns), *w = make_memory(dtype, NI, NJ);
    const kr_view view = view_of(memory, l->offset, l->stride_i, l->stride_j);
    kr_tensor *x = kr_input_view(t, &view);
    CHECK(kr_requires_grad(x), "a leaf");
    CHECK(kr_tensor_data(x) == view.data, "%s: the memory was copied", l->name);
    kr_backward(t, compute(x, w));
    CHECK_OK(ctx);
    double value[NI * NJ], want[NI * NJ];
    read_view(memory, &view, want);
    IGNORE(kr_tensor_read(x, KR_DTYPE_F64, value, NI * NJ));
    CHECK_CLOSE(l->name, value, want, NI * NJ, &KR_SHAPE(NI, NJ), 0, 0);
    const float *g = kr_test_copy(kr_grad(x)), *g_w = kr_test_copy(kr_grad(w));

    kr_tape_reset(t);
    kr_zero_grad(w);
    kr_tensor *copy = kr_input(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(NI, NJ), value));
    copy = dtype == KR_DTYPE_F64 ? copy : kr_input(t, kr_cast(t, copy, dtype));
    kr_backward(t, compute(copy, w));
    CHECK_OK(ctx);
    const size_t bytes = NI * NJ * kr_dtype_bytes(dtype);
    CHECK(memcmp(g, kr_test_copy(kr_grad(copy)), bytes) == 0, "%s %s: the gradient differs", l->name,
          kr_dtype_name(dtype));
    CHECK(memcmp(g_w, kr_test_copy(kr_grad(w)), bytes) == 0, "%s %s: the parameter's gradient differs", l->name,
          kr_dtype_name(dtype));
    kr_param_destroy(memory);
    kr_param_destroy(w);
    end();
}

TEST(a_leaf_over_the_callers_memory_computes_as_its_copy)
{
    for (int i = 0; i < NLAYOUTS; i++) {
        compare_leaf(&layouts[i], KR_DTYPE_F32);
        compare_leaf(&layouts[i], KR_DTYPE_F64);
        compare_leaf(&layouts[i], KR_DTYPE_BF16);
    }
}

TEST(a_leaf_over_memory_records_only_on_a_tape_that_records)
{
    begin();
    kr_tensor *memory = make_memory(KR_DTYPE_F32, NI, NJ);
    const kr_view view = row_major(memory), empty = { .dtype = KR_DTYPE_F32, .rank = 2, .dims = { 0, 4 } };
    kr_tape *plain = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    CHECK(!kr_requires_grad(kr_input_view(plain, &view)), "a constant");
    CHECK(kr_tensor_count(kr_input_view(t, &empty)) == 0 && !kr_ctx_failed(ctx), "no elements need no memory");
    kr_tape_destroy(plain);
    kr_param_destroy(memory);
    end();
}

/* ---- gradients ---- */

typedef struct grads {
    double x[NI * NJ], w[NI * NJ];
} grads;

/* The gradients as kr_backward_from has them. */
static grads usual(kr_dtype dtype, const kr_tensor *memory, kr_tensor *w)
{
    grads g;
    const kr_view view = row_major(memory);
    kr_tape_reset(t);
    kr_tensor *x = kr_input_view(t, &view), *loss = compute(x, w);
    kr_backward_from(t, 1, &loss, NULL);
    IGNORE(kr_tensor_read(kr_grad(x), KR_DTYPE_F64, g.x, NI * NJ));
    IGNORE(kr_tensor_read(kr_grad(w), KR_DTYPE_F64, g.w, NI * NJ));
    kr_zero_grad(w);
    CHECK(kr_tensor_dtype(kr_grad(x)) == dtype, "its type");
    return g;
}

/* The rounding of one addition: of f32 and f64 they may also be in another order. */
static double rounding_of(kr_dtype dtype)
{
    return dtype == KR_DTYPE_F64 ? 1e-15 : dtype == KR_DTYPE_F32 ? 1e-6 : 0x1p-7;
}

static void compare_grads(const layout *l, kr_dtype dtype, bool accumulate)
{
    begin();
    kr_tensor *memory = make_memory(dtype, NI, NJ), *w = make_memory(dtype, NI, NJ);
    kr_tensor *place_x = make_memory(dtype, l->rows, l->columns), *place_w = make_memory(dtype, l->rows, l->columns);
    const kr_view view = row_major(memory), into[2] = { view_of(place_x, l->offset, l->stride_i, l->stride_j),
                                                        view_of(place_w, l->offset, l->stride_i, l->stride_j) };
    grads want = usual(dtype, memory, w), before, got;
    IGNORE(kr_param_normal(place_x, 0, 1));
    read_view(place_x, &into[0], before.x);
    read_view(place_w, &into[1], before.w);
    const kr_tensor *own = kr_grad(w);

    kr_tape_reset(t);
    kr_tensor *x = kr_input_view(t, &view), *loss = compute(x, w), *leaves[2] = { x, w };
    CHECK(kr_backward_into(t, 1, &loss, NULL, 2, leaves, into, accumulate) == KR_OK, "%s", kr_ctx_message(ctx));
    read_view(place_x, &into[0], got.x);
    read_view(place_w, &into[1], got.w);
    for (int i = 0; accumulate && i < NI * NJ; i++) want.x[i] += before.x[i], want.w[i] += before.w[i];
    const double tolerance = accumulate ? 2 * rounding_of(dtype) : 0;
    CHECK_CLOSE(l->name, got.x, want.x, NI * NJ, &KR_SHAPE(NI, NJ), tolerance, 1);
    CHECK_CLOSE(l->name, got.w, want.w, NI * NJ, &KR_SHAPE(NI, NJ), tolerance, 1);
    CHECK(!kr_grad(x) && kr_grad(w) == own, "the leaves' own gradients change");
    double zeros[NI * NJ] = { 0 }, own_values[NI * NJ];
    IGNORE(kr_tensor_read(own, KR_DTYPE_F64, own_values, NI * NJ));
    CHECK_CLOSE("the parameter's own gradient", own_values, zeros, NI * NJ, NULL, 0, 0);
    kr_tensor *const all[] = { memory, w, place_x, place_w };
    for (int i = 0; i < 4; i++) kr_param_destroy(all[i]);
    end();
}

TEST(gradients_are_written_to_the_callers_memory)
{
    for (int i = 0; i < NLAYOUTS; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            compare_grads(&layouts[i], KR_DTYPE_F32, accumulate);
            compare_grads(&layouts[i], KR_DTYPE_F64, accumulate);
            compare_grads(&layouts[i], KR_DTYPE_BF16, accumulate);
        }
}

/* A linear layer's weight gradient is written in place by the rule itself, and the others keep their own. */
TEST(gradients_of_other_leaves_are_kept_as_usual)
{
    begin();
    kr_tensor *x_mem = make_memory(KR_DTYPE_F32, NI, NJ), *w_oi = make_memory(KR_DTYPE_F32, NJ, NJ),
              *place = make_memory(KR_DTYPE_F32, NJ, NJ), *g_place = make_memory(KR_DTYPE_F32, NI, NJ);
    const kr_view view = row_major(x_mem), g_view = row_major(g_place);
    kr_tensor *x = kr_input_view(t, &view), *other = kr_input(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE(NI, NJ), 1));
    kr_tensor *y[2] = { kr_linear(t, kr_mul(t, x, other), w_oi, NULL), kr_scale(t, other, 3) };
    kr_tensor *g_y[2] = { kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(NI, NJ), NULL, g_view.data), NULL };
    const kr_view into = { kr_tensor_data(place), KR_DTYPE_F32, 2, { NJ, NJ }, { NJ, 1 } };
    CHECK(kr_backward_into(t, 2, y, g_y, 1, &w_oi, &into, false) == KR_OK, "%s", kr_ctx_message(ctx));
    const float *g_w = kr_test_copy(place);
    CHECK(!kr_grad(w_oi) && kr_grad(x) && kr_grad(other), "whose gradients are where");
    double g_x[NI * NJ];
    IGNORE(kr_tensor_read(kr_grad(x), KR_DTYPE_F64, g_x, NI * NJ));

    kr_tape_reset(t);
    x = kr_input_view(t, &view), other = kr_input(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE(NI, NJ), 1));
    y[0] = kr_linear(t, kr_mul(t, x, other), w_oi, NULL), y[1] = kr_scale(t, other, 3);
    g_y[0] = kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(NI, NJ), NULL, g_view.data);
    kr_backward_from(t, 2, y, g_y);
    CHECK(memcmp(g_w, kr_test_copy(kr_grad(w_oi)), NJ * NJ * sizeof *g_w) == 0, "the weight's gradient differs");
    double want[NI * NJ];
    IGNORE(kr_tensor_read(kr_grad(x), KR_DTYPE_F64, want, NI * NJ));
    CHECK_CLOSE("g_x", g_x, want, NI * NJ, NULL, 0, 0);
    kr_tensor *const all[] = { x_mem, w_oi, place, g_place };
    for (int i = 0; i < 4; i++) kr_param_destroy(all[i]);
    end();
}

TEST(a_leaf_without_a_gradient_gets_zeros_or_keeps_its_sum)
{
    begin();
    kr_tensor *memory = make_memory(KR_DTYPE_F32, NI, NJ), *unused = make_memory(KR_DTYPE_F32, NI, NJ),
              *place = make_memory(KR_DTYPE_F32, NI, NJ);
    double before[NI * NJ], got[NI * NJ], zeros[NI * NJ] = { 0 };
    const kr_view view = row_major(memory), into = row_major(place);
    read_view(place, &into, before);
    for (int accumulate = 1; accumulate >= 0; accumulate--) {
        kr_tape_reset(t);
        kr_tensor *x = kr_input_view(t, &view), *y = kr_sum(t, x, KR_ALL_AXES, false);
        CHECK(kr_backward_into(t, 1, &y, NULL, 1, &unused, &into, accumulate) == KR_OK, "%s", kr_ctx_message(ctx));
        read_view(place, &into, got);
        CHECK_CLOSE(accumulate ? "kept" : "zeros", got, accumulate ? before : zeros, NI * NJ, NULL, 0, 0);
    }
    kr_param_destroy(memory);
    kr_param_destroy(unused);
    kr_param_destroy(place);
    end();
}

/* A parameter's own gradient accumulates as if the other pass had not been run. */
TEST(an_accumulated_gradient_of_a_parameter_is_not_touched)
{
    begin();
    kr_tensor *memory = make_memory(KR_DTYPE_F64, NI, NJ), *w = make_memory(KR_DTYPE_F64, NI, NJ),
              *place = make_memory(KR_DTYPE_F64, NI, NJ);
    const kr_view view = row_major(memory), into = row_major(place);
    double once[NI * NJ], twice[NI * NJ];
    for (int pass = 0; pass < 3; pass++) {
        kr_tape_reset(t);
        kr_tensor *loss = compute(kr_input_view(t, &view), w);
        if (pass == 1) CHECK(kr_backward_into(t, 1, &loss, NULL, 1, &w, &into, false) == KR_OK, "pass 1");
        else kr_backward(t, loss);
        IGNORE(kr_tensor_read(kr_grad(w), KR_DTYPE_F64, pass == 2 ? twice : once, NI * NJ));
    }
    for (int i = 0; i < NI * NJ; i++) once[i] *= 2;
    /* two contributions in each pass: their sum in another order */
    CHECK_CLOSE("two passes", twice, once, NI * NJ, NULL, 1e-15, 1);
    kr_param_destroy(memory);
    kr_param_destroy(w);
    kr_param_destroy(place);
    end();
}

/* ---- errors ---- */

TEST(input_view_errors)
{
    begin();
    float data[NI * NJ + 1] = { 0 };
    const kr_view good = { data, KR_DTYPE_F32, 2, { NI, NJ }, { NJ, 1 } };
    kr_view v = good;
    REFUSED(KR_ERR_ARG, "input_view: view is NULL", kr_input_view(t, NULL));
    v.data = NULL;
    REFUSED(KR_ERR_ARG, "input_view: data is NULL, but the shape is [3, 5]", kr_input_view(t, &v));
    v = good, v.dtype = KR_DTYPE_I32;
    REFUSED(KR_ERR_DTYPE, "input_view: the view is i32, but only floats have gradients", kr_input_view(t, &v));
    v = good, v.dtype = (kr_dtype)9;
    REFUSED(KR_ERR_DTYPE, "input_view: 9 is not a kr_dtype", kr_input_view(t, &v));
    v = good, v.rank = 9;
    REFUSED(KR_ERR_SHAPE,
            "input_view: invalid shape: rank 9 must be from 0 to 8, and sizes not negative and addressable",
            kr_input_view(t, &v));
    v = good, v.data = (char *)data + 1;
    REFUSED(KR_ERR_ARG, "input_view: the address of data is not a multiple of 4, the size of an element",
            kr_input_view(t, &v));
    end();
}

static kr_tensor *leaf_of(kr_tensor **loss, kr_tensor *memory)
{
    const kr_view view = row_major(memory);
    kr_tensor *x = kr_input_view(t, &view);
    *loss = kr_sum(t, x, KR_ALL_AXES, false);
    return x;
}

#define INTO(status, text, call)                                                                                       \
    do {                                                                                                               \
        kr_tape_reset(t);                                                                                              \
        leaves[0] = leaves[1] = leaf_of(&y, memory);                                                                   \
        CHECK((call) == (status), "%s is not refused", #call);                                                         \
        CHECK_ERROR(ctx, (status), (text));                                                                            \
    } while (0)

TEST(backward_into_errors)
{
    begin();
    kr_tensor *memory = make_memory(KR_DTYPE_F32, NI, NJ), *place = make_memory(KR_DTYPE_F32, NI, NJ);
    const kr_view good[2] = { row_major(place), row_major(place) };
    kr_view v = good[0];
    kr_tensor *y, *leaves[2];
    INTO(KR_ERR_ARG, "backward_into: n_leaves = 0, but at least one leaf is needed",
         kr_backward_into(t, 1, &y, NULL, 0, leaves, good, false));
    INTO(KR_ERR_ARG, "backward_into: leaves is NULL", kr_backward_into(t, 1, &y, NULL, 1, NULL, good, false));
    INTO(KR_ERR_ARG, "backward_into: g_leaves is NULL", kr_backward_into(t, 1, &y, NULL, 1, leaves, NULL, false));
    INTO(KR_ERR_ARG, "backward_into: leaf 1 [3, 5] is listed twice",
         kr_backward_into(t, 1, &y, NULL, 2, leaves, good, false));
    INTO(KR_ERR_ARG, "backward_into: leaf 0 is NULL",
         (leaves[0] = NULL, kr_backward_into(t, 1, &y, NULL, 1, leaves, good, false)));
    INTO(KR_ERR_ARG, "backward_into: leaf 0 [] is the result of an op; list parameters, kr_input and kr_input_view",
         kr_backward_into(t, 1, &y, NULL, 1, &y, good, false));
    INTO(KR_ERR_ARG,
         "backward_into: leaf 0 [3, 5] receives no gradient: it is a constant, frozen, or was made without recording",
         (leaves[0] = kr_detach(t, leaves[0]), kr_backward_into(t, 1, &y, NULL, 1, leaves, good, false)));
    v.dims[1] = 4;
    INTO(KR_ERR_SHAPE, "backward_into: the memory for the gradient of leaf 0 must be f32 [3, 5], as the leaf is",
         kr_backward_into(t, 1, &y, NULL, 1, leaves, &v, false));
    v = good[0], v.dtype = KR_DTYPE_BF16;
    INTO(KR_ERR_SHAPE, "backward_into: the memory for the gradient of leaf 0 must be f32 [3, 5], as the leaf is",
         kr_backward_into(t, 1, &y, NULL, 1, leaves, &v, false));
    v = good[0], v.data = NULL;
    INTO(KR_ERR_ARG, "backward_into: data for the gradient of leaf 0 is NULL",
         kr_backward_into(t, 1, &y, NULL, 1, leaves, &v, false));
    v = good[0], v.data = (char *)v.data + 2;
    INTO(KR_ERR_ARG,
         "backward_into: the address for the gradient of leaf 0 is not a multiple of 4, the size of an element",
         kr_backward_into(t, 1, &y, NULL, 1, leaves, &v, false));
    v = good[0], v.strides[1] = 0;
    INTO(KR_ERR_ARG,
         "backward_into: stride 1 of the memory for the gradient of leaf 0 is 0, so that its elements overlap",
         kr_backward_into(t, 1, &y, NULL, 1, leaves, &v, false));
    INTO(KR_ERR_ARG, "backward: count = 0, but at least one output is needed",
         kr_backward_into(t, 0, &y, NULL, 1, leaves, good, false));
    kr_tape_reset(t);
    leaves[0] = leaf_of(&y, memory);
    CHECK(!leaves[0]->flags.grad_is_lent && kr_backward_into(t, 1, &y, NULL, 1, leaves, good, false) == KR_OK,
          "it works after the errors: %s", kr_ctx_message(ctx));
    CHECK(kr_backward_into(t, 1, &y, NULL, 1, leaves, good, false) == KR_ERR_STATE && !kr_grad(leaves[0]), "twice");
    CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "this tape has been run backwards already");
    kr_param_destroy(memory);
    kr_param_destroy(place);
    end();
}

TEST(host_memory_takes_no_gradients_of_a_device)
{
    begin();
    if (!kr_test_on_device(ctx)) {
        end();
        SKIP("the context has no device memory");
    }
    float data[NI * NJ] = { 0 };
    kr_tensor *memory = make_memory(KR_DTYPE_F32, NI, NJ), *y, *leaf = leaf_of(&y, memory);
    const kr_view into = { data, KR_DTYPE_F32, 2, { NI, NJ }, { NJ, 1 } };
    CHECK(kr_backward_into(t, 1, &y, NULL, 1, &leaf, &into, false) == KR_ERR_ARG, "it is not refused");
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "is not memory of the context's device");
    kr_param_destroy(memory);
    end();
}

/* Every allocation fails once: the error is out of memory, and the leaves have their own gradients afterwards. */
TEST(each_allocation_of_a_backward_pass_into_memory_may_fail)
{
    begin();
    kr_tensor *memory = make_memory(KR_DTYPE_BF16, NI, NJ), *w = make_memory(KR_DTYPE_BF16, NI, NJ),
              *place_x = make_memory(KR_DTYPE_BF16, NJ, NI), *place_w = make_memory(KR_DTYPE_BF16, NI, NJ);
    const kr_view view = row_major(memory), into[2] = { view_of(place_x, 0, 1, NI), row_major(place_w) };
    size_t n = 1;
    for (; n < 200; n++) {
        kr_tape *own = t;
        t = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_ctx_fail_allocation(ctx, n);
        kr_tensor *x = kr_input_view(t, &view), *loss = compute(x, w), *leaves[2] = { x, w };
        const kr_status status = kr_backward_into(t, 1, &loss, NULL, 2, leaves, into, true);
        kr_ctx_fail_allocation(ctx, 0);
        const bool done = !kr_ctx_failed(ctx);
        CHECK(done == (status == KR_OK) && (done || kr_ctx_status(ctx) == KR_ERR_NOMEM), "allocation %zu: %s", n,
              kr_ctx_message(ctx));
        CHECK(!w->grad && !w->flags.grad_is_lent && (!x || !x->grad), "allocation %zu: a leaf has memory of ours", n);
        kr_ctx_clear(ctx);
        kr_tape_destroy(t);
        t = own;
        if (done) break;
    }
    CHECK(n > 3 && n < 200, "%zu allocations", n);
    kr_tensor *const all[] = { memory, w, place_x, place_w };
    for (int i = 0; i < 4; i++) kr_param_destroy(all[i]);
    end();
}
