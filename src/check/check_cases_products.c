/* check_cases_products.c - cases of matrix products: every storage type of a weight, packed weights, large products; and of
 * tables of 16-bit floats.
 *
 * The paths of a product depend on its rows: up to 4, up to 192, more (kernels/cpu/gemm_cpu.c). Gradients are products of
 * the other layouts: for y = A B with all of them in rows, g_A = g B^T and g_B = A^T g.
 */
#include "check/check_cases.h"

enum { OUTPUTS = 83, WIDTH = 300 }; /* more than one chain of 256 steps; no multiple of a vector */

/* ---- weights of 16-bit floats ---- */

static void linear_16bit(vector_run *r, kr_tape *t, kr_dtype dtype)
{
    static const int64_t rows[] = { 1, 4, 40 };
    kr_tensor *w = vector_16bit(r, 0, KR_SHAPE(OUTPUTS, WIDTH), dtype), *bias = X(3, -1, 1, OUTPUTS);
    for (int i = 0; i < 3; i++) vector_out(r, kr_linear(t, X(i, -1, 1, rows[i], WIDTH), w, bias));
}
CASE(linear_bf16)
{
    linear_16bit(r, t, KR_DTYPE_BF16);
}
CASE(linear_f16)
{
    linear_16bit(r, t, KR_DTYPE_F16);
}

/* ---- large products ---- */

CASE(large_matmul)
{
    vector_out(r, kr_matmul(t, X(0, -1, 1, 200, 210), X(1, -1, 1, 210, 220)));
}
CASE(large_linear)
{
    vector_out(r, kr_linear(t, X(0, -1, 1, 2, 105, 210), X(1, -1, 1, 220, 210), X(2, -1, 1, 220)));
}
CASE(large_linear_bf16)
{
    vector_out(r, kr_linear(t, X(0, -1, 1, 210, 210), vector_16bit(r, 0, KR_SHAPE(220, 210), KR_DTYPE_BF16), NULL));
}
CASE(large_linear_f16)
{
    vector_out(r, kr_linear(t, X(0, -1, 1, 210, 210), vector_16bit(r, 0, KR_SHAPE(220, 210), KR_DTYPE_F16), NULL));
}
/* More steps than one part of B holds. */
CASE(long_matmul)
{
    vector_out(r, kr_matmul(t, X(0, -1, 1, 193, 4200), X(1, -1, 1, 4200, 12)));
}

/* ---- packed weights: one to four rows on a tape that records nothing ---- */

static const int64_t packed_rows[] = { 1, 3 };
enum { PACKED_SIZES = 2, PACKED_OUTPUTS = 150 }; /* two panels of 64 outputs and a part of a third */

/* y of both numbers of rows, [4 OUTPUTS]. */
static bool run_packed(vector_run *r, kr_tensor *w, double *y)
{
    bool ok = true;
    kr_tensor *bias = vector_constant(r, 10, KR_SHAPE(PACKED_OUTPUTS), -1, 1);
    for (int i = 0; ok && i < PACKED_SIZES; i++) {
        kr_tensor *x = vector_constant(r, 11 + i, KR_SHAPE(packed_rows[i], WIDTH), -1, 1);
        ok = kr_tensor_read(kr_linear(r->tape, x, w, i ? bias : NULL), KR_DTYPE_F64, y,
                            packed_rows[i] * PACKED_OUTPUTS) == KR_OK;
        y += packed_rows[i] * PACKED_OUTPUTS;
    }
    return ok;
}

/* The weight has type `dtype`; in an f64 run f64, which is not packed: a plain product. */
static void packed_case(vector_run *r, kr_tape *t, kr_dtype dtype)
{
    enum { ELEMENTS = PACKED_OUTPUTS * WIDTH };
    double y[4 * PACKED_OUTPUTS];
    kr_ctx *ctx = kr_tape_ctx(t);
    kr_tape *plain = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    vector_run inner = { .tape = plain, .dtype = r->dtype, .id = r->id };
    const kr_shape shape = KR_SHAPE(PACKED_OUTPUTS, WIDTH);
    kr_tensor *given =
        dtype == KR_DTYPE_F32 ? vector_constant(&inner, 0, shape, -1, 1) : vector_16bit(&inner, 0, shape, dtype);
    double *values = check_alloc(ctx, ELEMENTS * sizeof *values);
    kr_params *params = kr_params_create(ctx);
    kr_param_options row;
    kr_param_options_init(&row);
    row.is_linear = true;
    kr_tensor *w = kr_params_make(params, "w", given ? kr_tensor_dtype(given) : dtype, shape, &row);
    if (values && w && kr_tensor_read(given, KR_DTYPE_F64, values, ELEMENTS) == KR_OK &&
        kr_param_write(w, KR_DTYPE_F64, values, ELEMENTS) == KR_OK && kr_params_pack(params) == KR_OK &&
        run_packed(&inner, w, y))
        vector_out_values(r, 0, KR_SHAPE(4, PACKED_OUTPUTS), y);
    check_free(values);
    kr_params_destroy(params);
    kr_tape_destroy(plain);
}
CASE(packed_f32)
{
    packed_case(r, t, KR_DTYPE_F32);
}
CASE(packed_bf16)
{
    packed_case(r, t, KR_DTYPE_BF16);
}
CASE(packed_f16)
{
    packed_case(r, t, KR_DTYPE_F16);
}

/* ---- tables of 16-bit floats ---- */

CASE(embedding_bf16)
{
    kr_tensor *table = vector_16bit(r, 0, KR_SHAPE(13, 37), KR_DTYPE_BF16);
    vector_out_times(r, 0, kr_embedding(t, table, vector_ids(r, KR_SHAPE(3, 7), 13)));
}
CASE(embedding_f16)
{
    kr_tensor *table = vector_16bit(r, 0, KR_SHAPE(13, 37), KR_DTYPE_F16);
    vector_out_times(r, 0, kr_embedding(t, table, vector_ids(r, KR_SHAPE(3, 7), 13)));
}

static const vector_case cases[] = {
    ROW(linear_bf16, "matmul"),  ROW(linear_f16, "matmul"),        ROW(large_matmul, "matmul"),
    ROW(large_linear, "matmul"), ROW(large_linear_bf16, "matmul"), ROW(large_linear_f16, "matmul"),
    ROW(long_matmul, "matmul"),  ROW(packed_f32, "panels"),        ROW(packed_bf16, "panels"),
    ROW(packed_f16, "panels"),   ROW(embedding_bf16, "embedding"), ROW(embedding_f16, "embedding"),
};
const vector_table vector_products = { cases, sizeof cases / sizeof *cases, 1001 };
