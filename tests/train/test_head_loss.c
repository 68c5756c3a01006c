/* test_head_loss.c - the head in one with the cross-entropy: what both give one after the other, in values and gradients,
 * over several chunks; threads and neighbours to the bit; the memory it takes, exactly. */
#include "tests/train/loss_cases.h"

/* Sizes of a problem: hidden [rows nd], weight [nw nd]. */
typedef struct sizes {
    int64_t rows, nd, nw;
} sizes;

typedef struct head {
    kr_tensor *hidden, *weight, *bias; /* leaves; bias may be NULL */
    kr_tensor *loss;
} head;

/* The same numbers for the same sizes, whatever the context. */
static head head_make(kr_ctx *ctx, kr_tape *t, const labelled *p, int64_t nd, kr_dtype dtype, bool has_bias)
{
    head h = { .bias = NULL };
    kr_ctx_seed(ctx, 77);
    h.hidden = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(p->rows, nd)));
    h.weight = kr_input(t, kr_cast(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(p->nw, nd)), dtype));
    if (has_bias) h.bias = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(p->nw)));
    return h;
}

static void head_run(kr_tape *t, head *h, const labelled *p, bool is_fused, double times)
{
    const kr_cross_entropy_options o = options_of(p, t);
    kr_tensor *labels = kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(p->rows), p->label);
    h->loss = is_fused ? kr_head_cross_entropy(t, h->hidden, h->weight, h->bias, labels, &o)
                       : kr_cross_entropy(t, kr_linear(t, h->hidden, h->weight, h->bias), labels, &o);
    kr_backward(t, kr_scale(t, h->loss, times));
}

/* In f32 both have the same logits, to the bit, and gradients of logits that differ by an ulp or two (e^(x - m) times a
 * rounded 1 / S or divided by S). The gradients of weight and bias are sums over some hundred rows, cut elsewhere; those
 * of hidden over up to 30000 columns, most of them tiny. Relative to the largest element: some ulps. */
static void check_fused(kr_ctx *ctx, sizes n, kr_dtype dtype, int k)
{
    labelled p = labelled_make(n.rows, n.nw, 1);
    labelled_thin_out(&p, k & 1, k & 2, n.nw > 6 ? 3 : 0);
    p.smoothing = k & 4 ? 0.1 : 0;
    p.excludes = k & 8;
    p.sums = k & 16;
    kr_tape *fused_tape = kr_tape_create(ctx, KR_TAPE_GRAD), *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    head fused = head_make(ctx, fused_tape, &p, n.nd, dtype, k & 2),
         apart = head_make(ctx, tape, &p, n.nd, dtype, k & 2);
    head_run(fused_tape, &fused, &p, true, -0.75);
    head_run(tape, &apart, &p, false, -0.75);
    CHECK_OK(ctx);
    CHECK_TENSORS("loss", fused.loss, apart.loss, 2e-7, 1);
    CHECK_TENSORS("g_hidden", kr_grad(fused.hidden), kr_grad(apart.hidden), 2e-6, 1e-6);
    /* a gradient of halves is rounded once in either way: it may go up here and down there, by 2^-8 */
    const double rounding = dtype == KR_DTYPE_F32 ? 0 : dtype == KR_DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
    CHECK_TENSORS("g_weight", kr_grad(fused.weight), kr_grad(apart.weight), 2e-6 + rounding, 1e-6);
    if (fused.bias) CHECK_TENSORS("g_bias", kr_grad(fused.bias), kr_grad(apart.bias), 2e-6, 1e-6);
    kr_tape_destroy(fused_tape);
    kr_tape_destroy(tape);
    labelled_free(&p);
}

TEST(fused_is_one_after_the_other)
{
    static const sizes all[] = { { 1, 1, 1 }, { 7, 5, 9 }, { 33, 20, 61 }, { 193, 4, 257 }, { 300, 5, 22001 } };
    const char *isas[8];
    for (int n = loss_isas(isas) - 1; n >= 0; n--) {
        kr_ctx *ctx = kr_test_ctx(2, isas[n]);
        for (int i = 0; i < (kr_test_quick() ? 4 : 5); i++)
            for (int k = 0; k < (i < 4 ? 32 : n > 0 ? 3 : 1); k += kr_test_quick() ? 5 : 1)
                check_fused(ctx, all[i], k % 3 == 0 ? KR_DTYPE_F32 : k % 3 == 1 ? KR_DTYPE_BF16 : KR_DTYPE_F16, k);
        kr_ctx_destroy(ctx);
    }
}

/* In f64, against the definition: more than two chunks of 192 rows. */
TEST(fused_is_the_definition)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    const int64_t rows = kr_test_quick() ? 200 : 390, nd = 3, nw = 22000;
    labelled p = labelled_make(rows, nw, 1);
    labelled_thin_out(&p, false, !kr_test_quick(), 0);
    kr_tensor *hidden = kr_input(t, kr_randn(t, KR_DTYPE_F64, KR_SHAPE(rows, nd)));
    kr_tensor *weight = kr_randn(t, KR_DTYPE_F64, KR_SHAPE(nw, nd));
    kr_tensor_read(kr_linear(t, hidden, weight, NULL), KR_DTYPE_F64, p.x, rows * nw);
    const kr_cross_entropy_options o = options_of(&p, t);
    kr_tensor *loss =
        kr_head_cross_entropy(t, hidden, weight, NULL, kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(rows), p.label), &o);
    const double want = plain_cross_entropy(&p, NULL);
    CHECK(fabs(kr_item(loss) - want) < 1e-13 * want, "%.17g, not %.17g", kr_item(loss), want);
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    labelled_free(&p);
    kr_ctx_destroy(ctx);
}

/* ---- to the bit ---- */

TEST(threads_change_no_bit_of_a_loss)
{
    const char *isas[8];
    for (int n = loss_isas(isas) - 1; n >= 0; n--) {
        labelled p = labelled_make(300, kr_test_quick() ? 700 : 22001, 1);
        labelled_thin_out(&p, true, false, 0);
        for (int is_fused = 0; is_fused < 2; is_fused++) {
            kr_ctx *ctxs[3];
            kr_tape *tapes[3];
            head h[3];
            for (int threads = 1; threads <= 3; threads++) {
                ctxs[threads - 1] = kr_test_ctx(threads, isas[n]);
                tapes[threads - 1] = kr_tape_create(ctxs[threads - 1], KR_TAPE_GRAD);
                h[threads - 1] = head_make(ctxs[threads - 1], tapes[threads - 1], &p, 5, KR_DTYPE_F32, true);
                head_run(tapes[threads - 1], &h[threads - 1], &p, is_fused, 1);
                CHECK_OK(ctxs[threads - 1]);
            }
            for (int i = 1; i < 3; i++) {
                CHECK_SAME_BITS("loss", h[i].loss, h[0].loss);
                CHECK_SAME_BITS("g_hidden", kr_grad(h[i].hidden), kr_grad(h[0].hidden));
                CHECK_SAME_BITS("g_weight", kr_grad(h[i].weight), kr_grad(h[0].weight));
                CHECK_SAME_BITS("g_bias", kr_grad(h[i].bias), kr_grad(h[0].bias));
            }
            for (int i = 0; i < 3; i++) {
                kr_tape_destroy(tapes[i]);
                kr_ctx_destroy(ctxs[i]);
            }
        }
        labelled_free(&p);
    }
}

/* A batch in two parts: with sums, losses and gradients of weights add up, and each row's gradient has the same bits. */
TEST(a_batch_is_the_sum_of_its_parts)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    const int64_t rows = 50, nd = 9, nw = 301, cut = 17;
    labelled p = labelled_make(rows, nw, 1);
    labelled_thin_out(&p, true, false, 0);
    kr_cross_entropy_options o;
    kr_cross_entropy_options_init(&o);
    o.reduction = KR_REDUCTION_SUM;
    for (int is_fused = 0; is_fused < 2; is_fused++) {
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_tensor *w[2], *x[2], *y[4];
        kr_tensor *noise = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(rows, nd)),
                  *weight = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(nw, nd));
        kr_tensor *labels = kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(rows), p.label);
        for (int i = 0; i < 2; i++) {
            x[i] = kr_input(t, noise);
            w[i] = kr_input(t, weight);
        }
        for (int i = 0; i < 3; i++) {
            const int64_t from = i == 2 ? cut : 0, to = i == 1 ? cut : rows;
            kr_tensor *in = kr_slice(t, x[i > 0], 0, from, to), *label = kr_slice(t, labels, 0, from, to);
            y[i] = is_fused ? kr_head_cross_entropy(t, in, w[i > 0], NULL, label, &o)
                            : kr_cross_entropy(t, kr_linear(t, in, w[i > 0], NULL), label, &o);
        }
        y[3] = kr_add(t, y[1], y[2]);
        kr_backward_from(t, 2, (kr_tensor *[]){ y[0], y[3] }, NULL);
        CHECK_OK(ctx);
        /* sums of 50 terms in another order */
        CHECK_TENSORS("loss", y[3], y[0], 1e-6, 1);
        CHECK_TENSORS("g_weight", kr_grad(w[1]), kr_grad(w[0]), 1e-6, 1);
        CHECK_SAME_BITS("g_hidden", kr_grad(x[1]), kr_grad(x[0]));
        kr_tape_destroy(t);
    }
    labelled_free(&p);
    kr_ctx_destroy(ctx);
}

/* ---- memory ---- */

static size_t rounded(int64_t bytes)
{
    return ((size_t)bytes + 63) / 64 * 64;
}

/* What is on the tape at most, in a forward pass: operands and gradients, and of logits some rows only. */
static void check_memory(kr_ctx *ctx, bool records, bool skips_rows)
{
    const int64_t rows = 500, nd = 10, nw = 30000;
    kr_tape *t = kr_tape_create(ctx, records ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD);
    kr_tensor *weight = kr_param_create(ctx, KR_DTYPE_BF16, KR_SHAPE(nw, nd));
    kr_tensor *hidden = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(rows, nd));
    if (records) hidden = kr_input(t, hidden);
    kr_tensor *labels = kr_full(t, KR_DTYPE_I64, KR_SHAPE(rows), 3);
    if (skips_rows) *(int64_t *)kr_tensor_data(labels) = -100;
    const size_t before = kr_tape_bytes(t);
    const int64_t count = skips_rows ? rows - 1 : rows;
    const int64_t chunk = kr_test_on_device(ctx) ? count : 167; /* 1 GiB at a time; three of 192 rows at most */
    kr_head_cross_entropy(t, hidden, weight, NULL, labels, NULL);
    CHECK_OK(ctx);
    size_t after = before + 2 * rounded(rows * 8) + 64;                  /* labels, their rows, the loss ... */
    if (records) after += rounded(rows * nd * 4) + rounded(nw * nd * 4); /* ... and both gradients */
    size_t peak = after + rounded(count * 4) + rounded(count * 16);      /* of each row its loss and stats */
    peak += rounded(chunk * nw * 4);                                     /* logits of a chunk */
    if (skips_rows) peak += (records ? 2 : 1) * rounded(chunk * nd * 4); /* its rows, and their gradients */
    CHECK(kr_tape_peak_bytes(t) == peak, "peak %zu bytes, not %zu", kr_tape_peak_bytes(t), peak);
    CHECK(kr_tape_bytes(t) == after, "%zu bytes after it, not %zu", kr_tape_bytes(t), after);
    CHECK(kr_test_on_device(ctx) || kr_tape_peak_bytes(t) < (size_t)(rows * nw * 4) / 2, "all logits at once?");
    kr_tape_destroy(t);
    kr_param_destroy(weight);
}

TEST(logits_are_never_there_as_a_whole)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    for (int k = 0; k < 4; k++) check_memory(ctx, k & 1, k & 2);
    kr_ctx_destroy(ctx);
}

/* Gradients that are not needed are not computed: of frozen weights, of hidden states that are constants. */
TEST(unwanted_gradients_are_not_made)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tensor *weight = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(50, 8));
    kr_param_normal(weight, 0, 1);
    size_t bytes[3];
    for (int k = 0; k < 3; k++) {
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        kr_tensor *x = kr_randn(t, KR_DTYPE_F32, KR_SHAPE(4, 8));
        if (k != 1) x = kr_input(t, x);
        kr_param_freeze(weight, k == 2);
        const size_t before = kr_tape_bytes(t);
        kr_tensor *loss = kr_head_cross_entropy(t, x, weight, NULL, kr_zeros(t, KR_DTYPE_I32, KR_SHAPE(4)), NULL);
        bytes[k] = kr_tape_bytes(t) - before;
        kr_backward(t, loss);
        CHECK_OK(ctx);
        CHECK((kr_grad(x) != NULL) == (k != 1), "hidden, %d", k);
        kr_tape_destroy(t);
    }
    CHECK(bytes[0] - bytes[1] == 4 * 8 * 4 && bytes[0] - bytes[2] == rounded(50 * 8 * 4), "%zu %zu %zu", bytes[0],
          bytes[1], bytes[2]);
    kr_param_destroy(weight);
    kr_ctx_destroy(ctx);
}
