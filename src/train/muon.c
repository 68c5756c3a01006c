/* muon.c - the nearest matrix with orthogonal rows or columns, about: Newton-Schulz steps out of products.
 *
 *   G [rows cols];  X = G / max(|G|, 1e-7)
 *   rows <= cols:  A = X X^T;  X = (a I + A (b I + c A)) X
 *   rows > cols:   A = X^T X;  X = X (a I + A (b I + c A))       the same on the transpose, which is not formed
 * Singular values s of X become a s + b s^3 + c s^5 in each step, singular vectors stay. A and A (b I + c A) are
 * symmetric: one half of each is computed. With the numbers on the diagonals no product has anything to be added to.
 * Work: two matrices [rows cols] and three [k k], k the smaller side, and the scratch of the products.
 */
#include "train/optimizer_impl.h"

#include "device/device.h"

#include <math.h>

static const double least_norm = 1e-7;

typedef struct square {
    int64_t side;
    size_t matrix_bytes, square_bytes;
} square;

static size_t rounded(size_t bytes)
{
    return (bytes + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN;
}

static square square_of(const kr_muon *muon)
{
    const size_t element = kr_dtype_bytes(muon->dtype);
    square s = { .side = muon->rows < muon->cols ? muon->rows : muon->cols };
    s.matrix_bytes = rounded((size_t)(muon->rows * muon->cols) * element);
    s.square_bytes = rounded((size_t)(s.side * s.side) * element);
    return s;
}

/* ---- products ---- */

static kr_matrix matrix_of(const kr_muon *muon, const void *x, int64_t row, int64_t column)
{
    return (kr_matrix){ (void *)(uintptr_t)x, muon->dtype, row, column };
}

/* A = X X^T, or X^T X. */
static kr_matmul_args gram_args(const kr_muon *muon, const void *x, void *a)
{
    const int64_t k = square_of(muon).side;
    const bool wide = muon->rows <= muon->cols;
    return (kr_matmul_args){ .nm = k,
                             .nn = k,
                             .nk = wide ? muon->cols : muon->rows,
                             .a = matrix_of(muon, x, wide ? muon->cols : 1, wide ? 1 : muon->cols),
                             .b = matrix_of(muon, x, wide ? 1 : muon->cols, wide ? muon->cols : 1),
                             .c = { a, muon->dtype, k },
                             .symmetric = true };
}

/* C = S T of two squares that commute. */
static kr_matmul_args square_args(const kr_muon *muon, const void *s, const void *t, void *c)
{
    const int64_t k = square_of(muon).side;
    return (kr_matmul_args){ .nm = k,
                             .nn = k,
                             .nk = k,
                             .a = matrix_of(muon, s, k, 1),
                             .b = matrix_of(muon, t, k, 1),
                             .c = { c, muon->dtype, k },
                             .symmetric = true };
}

/* Y = B X, or X B. */
static kr_matmul_args apply_args(const kr_muon *muon, const void *b, const void *x, void *y)
{
    const int64_t k = square_of(muon).side, cols = muon->cols;
    const bool wide = muon->rows <= muon->cols;
    return (kr_matmul_args){ .nm = muon->rows,
                             .nn = cols,
                             .nk = k,
                             .a = wide ? matrix_of(muon, b, k, 1) : matrix_of(muon, x, cols, 1),
                             .b = wide ? matrix_of(muon, x, cols, 1) : matrix_of(muon, b, k, 1),
                             .c = { y, muon->dtype, cols } };
}

static size_t product_scratch(const kr_muon *muon, kr_matmul_args args)
{
    return KR_SCRATCH_OF(muon->ctx, matmul[kr_real_of(muon->dtype)], &args);
}

static void multiply(const kr_muon *muon, kr_matmul_args args, void *scratch)
{
    KR_RUN_WITH(muon->ctx, matmul[kr_real_of(muon->dtype)], &args, scratch);
}

/* y = alpha x + beta, n elements of stride `stride`; y may be x. */
static void scale(const kr_muon *muon, double alpha, double beta, const void *x, void *y, int64_t n, int64_t stride)
{
    kr_unary_args args = { .walk = { .rank = 1, .dims = { n }, .strides = { { stride }, { stride } } },
                           .x = x,
                           .y = y,
                           .alpha = alpha,
                           .beta = beta };
    KR_RUN(muon->ctx, scale[kr_real_of(muon->dtype)], &args);
}

/* S += alpha I of a square. */
static void add_identity(const kr_muon *muon, double alpha, void *s)
{
    const int64_t k = square_of(muon).side;
    scale(muon, 1, alpha, s, s, k, k + 1);
}

/* ---- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Of the products and of the norm; they do not run at the same time. */
static size_t scratch_bytes(const kr_muon *muon)
{
    const size_t norm = kr_squares_work(muon->ctx, muon->dtype, muon->rows * muon->cols);
    const size_t gram = product_scratch(muon, gram_args(muon, NULL, NULL));
    const size_t both = larger(product_scratch(muon, square_args(muon, NULL, NULL, NULL)),
                               product_scratch(muon, apply_args(muon, NULL, NULL, NULL)));
    return rounded(larger(norm, larger(gram, both)));
}

size_t kr_muon_work(const kr_muon *muon)
{
    const square s = square_of(muon);
    return 2 * s.matrix_bytes + 3 * s.square_bytes + scratch_bytes(muon);
}

void *kr_muon_orthogonalise(const kr_muon *muon, char *work)
{
    const square s = square_of(muon);
    const int64_t n = muon->rows * muon->cols;
    const double *coefficients = muon->coefficients;
    void *x = work, *next = work + s.matrix_bytes;
    char *squares = work + 2 * s.matrix_bytes;
    void *a = squares, *d = squares + s.square_bytes, *b = squares + 2 * s.square_bytes;
    void *scratch = squares + 3 * s.square_bytes;
    const double norm = sqrt(kr_squares_of(muon->ctx, muon->dtype, x, n, scratch));
    scale(muon, 1 / (norm > least_norm ? norm : least_norm), 0, x, x, n, 1);
    for (int step = 0; step < muon->steps; step++) {
        multiply(muon, gram_args(muon, x, a), scratch);
        scale(muon, coefficients[2], 0, a, d, s.side * s.side, 1);
        add_identity(muon, coefficients[1], d);
        multiply(muon, square_args(muon, a, d, b), scratch);
        add_identity(muon, coefficients[0], b);
        multiply(muon, apply_args(muon, b, x, next), scratch);
        void *old = x;
        x = next;
        next = old;
    }
    return x;
}

double kr_muon_ratio_of(kr_muon_ratio ratio, int64_t rows, int64_t cols)
{
    const double r = (double)rows, c = (double)cols;
    switch (ratio) {
    case KR_MUON_RATIO_ORIGINAL: return sqrt(fmax(1, r / c));
    case KR_MUON_RATIO_ORIGINAL_INPUTS: return sqrt(fmax(1, c / r));
    case KR_MUON_RATIO_MATCH_RMS: return 0.2 * sqrt(fmax(r, c));
    default: return 1;
    }
}
