/* test_params_file.c - parameter tables as files: back to the bit, other types, errors that change nothing. */
#define _POSIX_C_SOURCE 200809L
#include "tests/temp_folder.h"

static kr_ctx *ctx;

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    begin_folder();
}

static void end(void)
{
    CHECK_OK(ctx);
    end_folder();
    kr_ctx_destroy(ctx);
}

/* A projection and a row of n numbers, drawn. */
static kr_params *table_of(kr_dtype dtype, int64_t n)
{
    kr_params *params = kr_params_create(ctx);
    kr_tensor *bias;
    kr_params_linear(params, "head", dtype, 3, 4, &bias);
    kr_param_options o;
    kr_param_options_init(&o);
    o.init = (kr_init){ KR_INIT_NORMAL, 0, 1, 0 };
    kr_params_make(params, "row", dtype, KR_SHAPE(n), &o);
    return params;
}

static bool is_same(const kr_params *a, const kr_params *b, double tolerance)
{
    bool same = true;
    for (int64_t i = 0; i < kr_params_count(a); i++) {
        double *x = kr_test_values(kr_params_at(a, i)->tensor), *y = kr_test_values(kr_params_at(b, i)->tensor);
        for (int64_t j = 0; j < kr_tensor_count(kr_params_at(a, i)->tensor); j++)
            same = same && fabs(x[j] - y[j]) <= tolerance * fabs(x[j]);
        free(x);
        free(y);
    }
    return same;
}

TEST(params_file_comes_back)
{
    begin();
    kr_params *a = table_of(KR_DTYPE_F32, 5), *b = table_of(KR_DTYPE_F32, 5), *half = table_of(KR_DTYPE_BF16, 5);
    CHECK(!is_same(a, b, 0), "two tables of draws are alike");
    CHECK(kr_params_pack(b) == KR_OK && kr_params_save(a, in_folder("a")) == KR_OK &&
              kr_params_load(b, in_folder("a")) == KR_OK && is_same(a, b, 0),
          "other values: %s", kr_ctx_message(ctx));
    CHECK(kr_params_load(half, in_folder("a")) == KR_OK && is_same(a, half, 1.0 / 256), "as bf16");
    CHECK(files_in_folder(false) == 1, "a file is left");
    kr_params_destroy(a);
    kr_params_destroy(b);
    kr_params_destroy(half);
    end();
}

TEST(params_file_errors)
{
    begin();
    kr_params *a = table_of(KR_DTYPE_F32, 5), *b = table_of(KR_DTYPE_F32, 6), *kept = table_of(KR_DTYPE_F32, 6);
    char text[700];
    IGNORE(kr_params_save(a, in_folder("a")));
    IGNORE(kr_params_save(b, in_folder("b")));
    IGNORE(kr_params_load(kept, in_folder("b")));
    CHECK(kr_params_load(b, in_folder("a")) == KR_ERR_FORMAT, "another shape");
    snprintf(text, sizeof text, "%s: tensor 'row' is [5], but the parameter is [6]", in_folder("a"));
    CHECK_ERROR(ctx, KR_ERR_FORMAT, text);
    CHECK(is_same(b, kept, 0), "half of a file was taken");
    kr_params_make(a, "more", KR_DTYPE_F32, KR_SHAPE(1), NULL);
    CHECK(kr_params_load(a, in_folder("a")) == KR_ERR_FORMAT, "too few tensors");
    snprintf(text, sizeof text, "%s: there is no tensor 'more'", in_folder("a"));
    CHECK_ERROR(ctx, KR_ERR_FORMAT, text);
    IGNORE(kr_params_save(a, in_folder("a")));
    kr_params *fewer = table_of(KR_DTYPE_F32, 5);
    CHECK(kr_params_load(fewer, in_folder("a")) == KR_ERR_FORMAT, "too many tensors");
    snprintf(text, sizeof text, "%s: there is no parameter for tensor 'more'", in_folder("a"));
    CHECK_ERROR(ctx, KR_ERR_FORMAT, text);
    CHECK(kr_params_load(a, in_folder("none")) != KR_OK, "no file");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "none");
    CHECK(kr_params_save(a, in_folder("no/file")) != KR_OK, "no folder");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "no/file");
    CHECK(kr_params_load(NULL, "a") == KR_ERR_ARG && kr_params_save(NULL, "a") == KR_ERR_ARG, "no table");
    kr_params_destroy(fewer);
    kr_params_destroy(a);
    kr_params_destroy(b);
    kr_params_destroy(kept);
    end();
}

TEST(params_file_every_allocation_failing)
{
    begin();
    kr_params *a = table_of(KR_DTYPE_F32, 5);
    const size_t live = kr_ctx_memory(ctx).live_bytes;
    bool ok = false;
    for (size_t n = 1; !ok && n < 200; n++) {
        kr_ctx_fail_allocation(ctx, n);
        ok = kr_params_save(a, in_folder("a")) == KR_OK && kr_params_load(a, in_folder("a")) == KR_OK;
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(ok || kr_ctx_status(ctx) == KR_ERR_NOMEM, "allocation %zu: %s", n, kr_ctx_message(ctx));
        CHECK(kr_ctx_memory(ctx).live_bytes == live, "allocation %zu leaks", n);
        kr_ctx_clear(ctx);
    }
    CHECK(ok, "never done");
    kr_params_destroy(a);
    end();
}
