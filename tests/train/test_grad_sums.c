/* test_grad_sums.c - gradients of micro-batches, added in the order of the tree: to the bit. */
#include "tests/train/optimizing.h"

#include "base/device_memory.h"
#include "train/grad_sums.h"

enum { MOST = 13 };

/* The balanced tree in plain C, over [from, from + count), a power of two. */
static double tree(const double *const *g, int64_t at, int from, int count, bool is_f32)
{
    if (count == 1) return g[from][at];
    const int half = count / 2;
    const double left = tree(g, at, from, half, is_f32), right = tree(g, at, from + half, half, is_f32);
    return is_f32 ? (double)((float)left + (float)right) : left + right;
}

/* What a binary counter adds up to: for 7, (((0 + 1) + (2 + 3)) + (4 + 5)) + 6. */
static double counter(const double *const *g, int64_t at, int count, bool is_f32)
{
    int from = 0;
    double sum = 0;
    for (int size = 1 << 10; size > 0; size /= 2) {
        if (!(count & size)) continue;
        const double part = tree(g, at, from, size, is_f32);
        sum = from == 0 ? part : is_f32 ? (double)((float)sum + (float)part) : sum + part;
        from += size;
    }
    return sum;
}

static int64_t elements_of(const kr_params *params)
{
    int64_t n = 0;
    for (int64_t i = 0; i < kr_params_count(params); i++) n += kr_tensor_count(kr_params_at(params, i)->tensor);
    return n;
}

/* Gradients of one micro-batch; row `without` has none. */
static void give(kr_ctx *ctx, const kr_params *params, int64_t without, double *g)
{
    int64_t at = 0;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        kr_tensor *w = kr_params_at(params, i)->tensor;
        const int64_t n = kr_tensor_count(w);
        for (int64_t k = 0; k < n; k++)
            g[at + k] = i == without ? 0 : kr_test_normal() * ldexp(1, (int)(kr_test_normal() * 6));
        if (i != without) {
            optimizing_give(ctx, w, g + at);
            double *given = kr_test_values(kr_grad(w)); /* rounded to the parameter's type */
            memcpy(g + at, given, (size_t)n * sizeof *g);
            free(given);
        }
        at += n;
    }
}

static void check_sums(kr_dtype dtype, int count, int64_t bucket_bytes)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_params *params = optimizing_table(ctx, dtype);
    const int64_t total = elements_of(params);
    double *g[MOST];
    kr_grad_sums sums;
    kr_grad_sums_init(&sums, ctx, params, bucket_bytes);
    for (int step = 0; step < 2; step++) { /* the second one in used memory */
        CHECK(kr_grad_sums_begin(&sums, count), "%s", kr_ctx_message(ctx));
        for (int m = 0; m < count; m++) {
            g[m] = malloc((size_t)total * sizeof **g);
            CHECK(kr_grad_sums_open(&sums), "%s", kr_ctx_message(ctx));
            give(ctx, params, m % 3 == step ? 1 : -1, g[m]);
            CHECK(kr_grad_sums_finish_all(&sums), "%s", kr_ctx_message(ctx));
        }
        kr_grad_sums_end(&sums, true);
        int64_t at = 0;
        for (int64_t i = 0; i < kr_params_count(params); i++) {
            const kr_tensor *w = kr_params_at(params, i)->tensor;
            const bool is_f32 = kr_tensor_dtype(w) != KR_DTYPE_F64;
            const size_t bytes = (size_t)kr_tensor_count(w) * (is_f32 ? 4 : 8);
            char *sum = malloc(bytes);
            CHECK(kr_fetch(ctx, sum, kr_grad_sums_at(&sums, i), bytes), "%s", kr_ctx_message(ctx));
            for (int64_t k = 0; k < kr_tensor_count(w); k++, at++) {
                const double want = counter((const double *const *)g, at, count, is_f32);
                const double got =
                    is_f32 ? (double)((const float *)(const void *)sum)[k] : ((const double *)(const void *)sum)[k];
                CHECK(got == want, "%s, %d micro-batches, step %d, row %lld [%lld]: %.17g, not %.17g (seed %llu)",
                      kr_dtype_name(dtype), count, step, (long long)i, (long long)k, got, want,
                      (unsigned long long)kr_test_seed());
            }
            free(sum);
        }
        for (int m = 0; m < count; m++) free(g[m]);
    }
    int needed = 1;
    while ((1 << (needed - 1)) < count) needed++;
    CHECK(sums.nbuffers == needed, "%d buffers for %d micro-batches, not %d", sums.nbuffers, count, needed);
    kr_grad_sums_deinit(&sums);
    for (int64_t i = 0; i < kr_params_count(params); i++)
        CHECK(dtype == KR_DTYPE_BF16 || !kr_grad(kr_params_at(params, i)->tensor), "a gradient in freed memory");
    kr_params_destroy(params);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

TEST(grad_sums_are_a_tree)
{
    static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16 };
    for (int d = 0; d < 3; d++)
        for (int count = 1; count <= MOST; count++) check_sums(dtypes[d], count, 0);
}

/* Buckets of one row, and of a few. */
TEST(grad_sums_by_buckets)
{
    check_sums(KR_DTYPE_F32, 6, 1);
    check_sums(KR_DTYPE_F32, 4, 700);
    check_sums(KR_DTYPE_F64, 5, 2000);
}

/* Frozen rows have no place; rows that are frozen or released between two steps change the layout. */
TEST(grad_sums_without_frozen_rows)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_params *params = optimizing_table(ctx, KR_DTYPE_F32);
    kr_grad_sums sums;
    kr_grad_sums_init(&sums, ctx, params, 0);
    CHECK(kr_grad_sums_begin(&sums, 2), "%s", kr_ctx_message(ctx));
    const int64_t all = sums.elements[0];
    kr_tensor *frozen = kr_params_at(params, 3)->tensor;
    kr_param_freeze(frozen, true);
    CHECK(kr_grad_sums_begin(&sums, 2) && kr_grad_sums_open(&sums), "%s", kr_ctx_message(ctx));
    CHECK(sums.elements[0] == all - 24 * 12 && !sums.rows[3].param && !kr_grad(frozen), "%lld elements of %lld",
          (long long)sums.elements[0], (long long)all);
    kr_param_freeze(frozen, false);
    CHECK(kr_grad_sums_begin(&sums, 2) && sums.elements[0] == all, "%lld elements", (long long)sums.elements[0]);
    kr_grad_sums_deinit(&sums);
    kr_params_destroy(params);
    kr_ctx_destroy(ctx);
}
