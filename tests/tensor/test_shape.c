/* test_shape.c - element types, counting, contiguity and the text of a shape. */
#include "tests/harness.h"

#include "tensor/tensor_impl.h"

TEST(element_types)
{
    const struct {
        kr_dtype dtype;
        const char *name;
        size_t bytes;
        bool is_float, is_16bit;
    } rows[] = { { KR_DTYPE_F32, "f32", 4, true, false },  { KR_DTYPE_F64, "f64", 8, true, false },
                 { KR_DTYPE_BF16, "bf16", 2, true, true }, { KR_DTYPE_F16, "f16", 2, true, true },
                 { KR_DTYPE_I32, "i32", 4, false, false }, { KR_DTYPE_I64, "i64", 8, false, false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const kr_dtype d = rows[i].dtype;
        CHECK(strcmp(kr_dtype_name(d), rows[i].name) == 0 && kr_dtype_bytes(d) == rows[i].bytes &&
                  kr_dtype_is_valid(d) && kr_dtype_is_float(d) == rows[i].is_float &&
                  kr_dtype_is_16bit(d) == rows[i].is_16bit,
              "%s", rows[i].name);
    }
    const kr_dtype none[] = { (kr_dtype)6, (kr_dtype)-1, (kr_dtype)1000 };
    for (int i = 0; i < 3; i++)
        CHECK(!kr_dtype_is_valid(none[i]) && strcmp(kr_dtype_name(none[i]), "?") == 0 && kr_dtype_bytes(none[i]) == 0,
              "type %d", (int)none[i]);
}

static int64_t count_of(kr_shape shape)
{
    return kr_shape_count(&shape);
}

TEST(counting)
{
    CHECK(count_of(KR_SCALAR) == 1 && count_of(KR_SHAPE(3)) == 3 && count_of(KR_SHAPE(2, 3, 4)) == 24, "products");
    CHECK(count_of(KR_SHAPE(2, 0, 4)) == 0 && count_of(KR_SHAPE(1, 1, 1, 1, 1, 1, 1, 9)) == 9, "empty, rank 8");
    CHECK(count_of(KR_SHAPE(-1)) == -1 && count_of(KR_SHAPE(0, -1)) == -1, "negative sizes");
    CHECK(count_of((kr_shape){ 9, { 1 } }) == -1 && count_of((kr_shape){ -1, { 1 } }) == -1, "bad ranks");
    const int64_t big = INT64_C(1) << 30;
    CHECK(count_of(KR_SHAPE(big, big - 1)) == big * (big - 1), "2^60 elements of 8 bytes do not fit 63 bits, fewer do");
    CHECK(count_of(KR_SHAPE(big, big)) == -1 && count_of(KR_SHAPE(INT64_MAX)) == -1,
          "more bytes than can be addressed");
    CHECK(count_of(KR_SHAPE(INT64_MAX, INT64_MAX, INT64_MAX)) == -1, "a product that overflows");
    CHECK(count_of(KR_SHAPE(0, big, big, big)) == -1, "an empty shape whose strides would overflow");
    const kr_shape a = KR_SHAPE(2, 3), b = KR_SHAPE(2, 3), c = KR_SHAPE(2, 4), d = KR_SHAPE(2, 3, 1);
    CHECK(kr_shape_equal(&a, &b) && !kr_shape_equal(&a, &c) && !kr_shape_equal(&a, &d), "equality");
}

static bool row_major(int rank, const int64_t *dims, const int64_t *strides)
{
    kr_tensor x = { .rank = rank };
    for (int i = 0; i < rank; i++) {
        x.dims[i] = dims[i];
        x.strides[i] = strides[i];
    }
    return kr_tensor_is_row_major(&x);
}
#define L(...)                                                                                                         \
    (const int64_t[])                                                                                                  \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

TEST(contiguity)
{
    CHECK(row_major(0, NULL, NULL) && row_major(1, L(5), L(1)) && row_major(3, L(2, 3, 4), L(12, 4, 1)), "row-major");
    CHECK(row_major(3, L(2, 1, 4), L(4, 77, 1)) && row_major(2, L(1, 3), L(-9, 1)),
          "axes of size 1 may have any stride");
    CHECK(row_major(2, L(0, 3), L(3, 1)), "empty");
    CHECK(!row_major(1, L(5), L(2)) && !row_major(2, L(2, 3), L(1, 2)) && !row_major(2, L(2, 3), L(4, 1)), "strided");
    CHECK(!row_major(1, L(5), L(-1)) && !row_major(2, L(2, 3), L(0, 1)) && !row_major(1, L(2), L(0)),
          "backwards, repeated");
    kr_tensor x = { .rank = 0 };
    const kr_shape shape = KR_SHAPE(2, 0, 3);
    kr_tensor_layout(&x, KR_DTYPE_F64, &shape);
    CHECK(x.dtype == KR_DTYPE_F64 && x.rank == 3 && x.strides[2] == 1 && x.strides[1] == 3 && x.strides[0] == 3,
          "layout of an empty shape");
    CHECK(!kr_tensor_is_contiguous(NULL), "NULL");
}

TEST(reading_shapes)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_transpose(t, kr_zeros(t, KR_DTYPE_F16, KR_SHAPE(2, 3, 4)));
    CHECK(kr_tensor_rank(x) == 3 && kr_tensor_dtype(x) == KR_DTYPE_F16 && kr_tensor_count(x) == 24,
          "rank, type, count");
    CHECK(kr_tensor_dim(x, 1) == 4 && kr_tensor_dim(x, -1) == 3 && kr_tensor_dim(x, 3) == 1 &&
              kr_tensor_dim(x, -4) == 1,
          "sizes");
    CHECK(kr_tensor_stride(x, 0) == 12 && kr_tensor_stride(x, -1) == 4 && kr_tensor_stride(x, 9) == 0, "strides");
    const kr_tensor_info info = kr_tensor_info_of(x), none = kr_tensor_info_of(NULL);
    CHECK(info.strides[0] == 12 && info.strides[2] == 4 && info.strides[3] == 0 && !info.is_contiguous &&
              info.is_host && !info.requires_grad,
          "its properties");
    CHECK(none.strides[0] == 0 && !none.is_contiguous && none.is_host && !none.requires_grad, "those of NULL");
    CHECK(KR_DIM(x, 0) == 2LL, "KR_DIM");
    const kr_shape shape = kr_tensor_shape(x);
    CHECK(shape.rank == 3 && shape.dims[2] == 3, "shape");
    CHECK(kr_tensor_rank(NULL) == 0 && kr_tensor_dim(NULL, 0) == 0 && kr_tensor_stride(NULL, 0) == 0 &&
              kr_tensor_shape(NULL).rank == 0 && kr_tensor_dtype(NULL) == KR_DTYPE_F32,
          "NULL");
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

TEST(texts)
{
    char text[64];
    const kr_shape none = KR_SCALAR, one = KR_SHAPE(7), three = KR_SHAPE(2, 64, 256);
    CHECK(strcmp(kr_shape_write(&none, text, sizeof text), "[]") == 0, "%s", text);
    CHECK(strcmp(kr_shape_write(&one, text, sizeof text), "[7]") == 0, "%s", text);
    CHECK(strcmp(kr_shape_write(&three, text, sizeof text), "[2, 64, 256]") == 0, "%s", text);
    CHECK(strcmp(kr_shape_text(NULL, text, sizeof text), "NULL") == 0, "%s", text);
    /* cut to the capacity, never beyond it */
    for (size_t capacity = 1; capacity <= sizeof "[2, 64, 256]"; capacity++) {
        memset(text, '#', sizeof text);
        kr_shape_write(&three, text, capacity);
        CHECK(strlen(text) == capacity - 1 && strncmp(text, "[2, 64, 256]", capacity - 1) == 0 && text[capacity] == '#',
              "capacity %zu: %s", capacity, text);
    }
    text[0] = '#';
    kr_shape_write(&three, text, 0);
    CHECK(text[0] == '#', "capacity 0");
    const kr_shape widest =
        KR_SHAPE(INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX);
    CHECK(strlen(KR_TEXT_OF_SHAPE(&widest)) == 2 + 8 * 19 + 7 * 2, "the widest shape fits a message");
}
