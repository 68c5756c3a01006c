/* test_cuda_gemm.c - skinny products with a bf16 weight and many columns, as in a language model head, against the f64
 * reference. Operands are values of bf16, so that only sums round: each term adds an error of at most 2^-24 of the sum so
 * far. */
#include "tests/kernels/both.h"

typedef struct shape {
    int64_t nm, nn, nk, row_padding; /* elements between rows of A and of C */
    bool has_bias, a_is_half;
} shape;

/* At least one tile of 64 columns for each of 132 multiprocessors. */
static const shape shapes[] = { { 64, 8448, 256, 0, false, true },
                                { 9, 8450, 512, 8, false, true },
                                { 33, 8463, 256, 4, true, false },
                                { 50, 8448, 768, 4, false, false },
                                { 64, 8449, 1024, 16, true, true } };
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes) };

static void check_product(shape n)
{
    const kr_matmul_args a = { .nm = n.nm, .nn = n.nn, .nk = n.nk, .a.column = 1, .b.row = 1, .b.column = n.nk };
    buffer *c = blank(n.nm * n.nn);
    const link links[] = { IN_OPERAND(kr_matmul_args, a, drawn_bf16(n.nm * n.nk, 1), .may_halve = n.a_is_half,
                                      .may_part = true, .row = n.nk),
                           IN_OPERAND(kr_matmul_args, b, drawn_bf16(n.nn * n.nk, 1), .may_halve = true),
                           IN(kr_matmul_args, bias, n.has_bias ? drawn(n.nn, -1, 1) : NULL),
                           OUT_OPERAND(kr_matmul_args, c, c, .may_part = true, .row = n.nn) };
    in_halves = true, row_padding = n.row_padding;
    RUN("matmul", a, links);
    in_halves = false, row_padding = 0;
    double worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < c->count; i++) {
        const double error = fabs((double)c->single[i] - c->exact[i]);
        if (!(error <= worst)) worst = error, at = i;
    }
    /* sums are at most 5 nk^(1/2), and rounded nk times by 2^-24 of themselves, up or down: nk^(1/2) such errors */
    const double bound = 5 * (double)n.nk * 0x1p-24;
    CHECK(worst <= bound, "[%lld %lld] x [%lld %lld]%s: %.9g at [%lld %lld], not %.9g", (long long)n.nm,
          (long long)n.nk, (long long)n.nk, (long long)n.nn, limit_names[taken_for], (double)c->single[at],
          (long long)(at / n.nn), (long long)(at % n.nn), c->exact[at]);
    free_buffers();
}

TEST(products_of_some_rows_with_many_columns)
{
    if (!device_is_cuda()) SKIP("there is no GPU");
    for (int i = 0; i < NSHAPES; i++)
        for (taken_for = ITSELF; taken_for < last_limits(); taken_for++) check_product(shapes[i]);
    taken_for = ITSELF;
}
