/* test_loss.c - cross-entropy of logits against its definition in long double: every option, every instruction set;
 * tiny losses, nothing scored, NaN where nothing is scored; counts. */
#include "tests/train/loss_cases.h"

/* Loss and gradient in one type on one instruction set. Both are measured by the largest element and by 1: a row's loss
 * adds up some roundings of x - m, which is up to 30 here. */
static void check(kr_ctx *ctx, const labelled *p, kr_dtype dtype, double tolerance)
{
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    double *want = doubles(p->rows * p->nw);
    const double loss = plain_cross_entropy(p, want);
    const kr_shape shape = KR_SHAPE(p->rows, p->nw);
    kr_tensor *x = kr_input(t, kr_cast(t, kr_from_data(t, KR_DTYPE_F64, shape, p->x), dtype));
    kr_cross_entropy_options o = options_of(p, t);
    kr_scores scores;
    o.scores = &scores;
    kr_tensor *y = kr_cross_entropy(t, x, kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(p->rows), p->label), &o);
    kr_backward(t, y);
    CHECK_OK(ctx);
    CHECK(fabs(kr_item(y) - loss) <= tolerance * fmax(1, fabs(loss)), "%s %s: loss %.9g, not %.9g", kr_ctx_isa(ctx),
          kr_dtype_name(dtype), kr_item(y), loss);
    CHECK(kr_tensor_dtype(y) == dtype, "the loss is %s", kr_dtype_name(kr_tensor_dtype(y)));
    CHECK(scores.scored == scored_rows(p), "%lld scored", (long long)scores.scored);
    double *got = kr_test_values(kr_grad(x));
    CHECK_CLOSE("g_logits", got, want, p->rows * p->nw, &shape, tolerance, p->sums ? 1 : 1e-3);
    free(got);
    free(want);
    kr_tape_destroy(t);
}

TEST(cross_entropy_is_its_definition)
{
    const char *isas[8];
    for (int n = loss_isas(isas) - 1; n >= 0; n--) {
        kr_ctx *ctx = kr_test_ctx(2, isas[n]);
        for (int k = 0; k < (kr_test_quick() ? 8 : 32); k++) {
            static const int64_t widths[] = { 1, 2, 7, 16, 50, 257, 1031 };
            labelled p = labelled_make(1 + kr_test_below(40), widths[k % 7], k % 3 ? 1 : 8);
            labelled_thin_out(&p, k & 1, k & 2, p.nw > 4 ? k % 5 : 0);
            p.smoothing = k & 4 ? 0.1 : 0;
            p.excludes = k & 8;
            p.sums = k & 16;
            check(ctx, &p, KR_DTYPE_F32, 4e-6);
            check(ctx, &p, KR_DTYPE_F64, 1e-13);
            labelled_free(&p);
        }
        kr_ctx_destroy(ctx);
    }
}

/* A label that is far above the others: the loss, down to 1e-30, and all gradients keep their digits, in f32 too. */
TEST(losses_near_0_keep_their_digits)
{
    const char *isas[8];
    for (int n = loss_isas(isas) - 1; n >= 0; n--) {
        kr_ctx *ctx = kr_test_ctx(1, isas[n]);
        for (double above = 10; above < 80; above += 7) {
            labelled p = labelled_make(1, 23, 1);
            p.x[p.label[0]] = above;
            double *want = doubles(23);
            const double loss = plain_cross_entropy(&p, want);
            kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
            kr_tensor *x = kr_input(t, kr_cast(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(1, 23), p.x), KR_DTYPE_F32));
            kr_tensor *y = kr_cross_entropy(t, x, kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(1), p.label), NULL);
            kr_backward(t, y);
            /* x - m is up to 83 and has half an ulp of it: 4e-6, relative to e^(x - m) */
            CHECK(loss > 0 && fabs(kr_item(y) - loss) < 1e-5 * loss, "%s: loss %g, not %g", isas[n], kr_item(y), loss);
            double *got = kr_test_values(kr_grad(x));
            for (int64_t v = 0; v < 23; v++)
                CHECK(want[v] != 0 && fabs(got[v] - want[v]) < 1e-5 * fabs(want[v]), "%s: g[%lld] %g, not %g", isas[n],
                      (long long)v, got[v], want[v]);
            free(got);
            free(want);
            kr_tape_destroy(t);
            labelled_free(&p);
        }
        kr_ctx_destroy(ctx);
    }
}

/* Logits, or hidden states and a weight, of NaN in every row that is not scored. */
static void check_unscored(kr_ctx *ctx, kr_reduction reduction, bool is_fused, bool none)
{
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    float data[4 * 6];
    for (int i = 0; i < 24; i++) data[i] = i / 6 == 1 || none ? NAN : (float)(i % 5) - 2;
    kr_tensor *x = kr_input(t, kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(4, 6), data));
    kr_tensor *w = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(5, 6))),
              *bias = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(5)));
    const int32_t some[] = { 4, -1, 0, 3 }, ignored[] = { -1, -1, -1, -1 };
    kr_tensor *labels = kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(4), none ? ignored : some);
    kr_cross_entropy_options o;
    kr_cross_entropy_options_init(&o);
    o.ignore_index = -1;
    o.reduction = reduction;
    kr_scores scores = { .scored = -1, .right = -1 };
    o.scores = &scores;
    kr_tensor *y = is_fused ? kr_head_cross_entropy(t, x, w, bias, labels, &o) : kr_cross_entropy(t, x, labels, &o);
    kr_backward(t, y);
    CHECK_OK(ctx);
    CHECK(none ? kr_item(y) == 0 : isfinite(kr_item(y)) && kr_item(y) > 0, "loss %g", kr_item(y));
    CHECK(scores.scored == (none ? 0 : 3), "%lld scored", (long long)scores.scored);
    kr_tensor *leaves[3] = { x, w, bias };
    for (int i = 0; i < (is_fused ? 3 : 1); i++) {
        double *g = kr_test_values(kr_grad(leaves[i]));
        for (int64_t k = 0; k < kr_tensor_count(leaves[i]); k++)
            CHECK(none || (i == 0 && k / 6 == 1) ? g[k] == 0 : isfinite(g[k]), "g of %d: %g at %lld", i, g[k],
                  (long long)k);
        free(g);
    }
    kr_tape_destroy(t);
}

TEST(what_is_not_scored_does_not_matter)
{
    const char *isas[8];
    for (int n = loss_isas(isas) - 1; n >= 0; n--) {
        kr_ctx *ctx = kr_test_ctx(1, isas[n]);
        for (int k = 0; k < 8; k++) check_unscored(ctx, k & 1 ? KR_REDUCTION_SUM : KR_REDUCTION_MEAN, k & 2, k & 4);
        kr_ctx_destroy(ctx);
    }
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_input(t, kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(0, 3))),
              *w = kr_input(t, kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(3, 3)));
    kr_tensor *none = kr_zeros(t, KR_DTYPE_I32, KR_SHAPE(0));
    kr_tensor *y = kr_add(t, kr_cross_entropy(t, x, none, NULL), kr_head_cross_entropy(t, x, w, NULL, none, NULL));
    kr_backward(t, y);
    CHECK_OK(ctx);
    CHECK(kr_item(y) == 0 && kr_item(kr_max(t, kr_grad(w), KR_ALL_AXES, false)) == 0, "no rows at all: %g", kr_item(y));
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* Every row counted by hand; of equal logits the first is the answer. */
TEST(right_answers_are_counted)
{
    const char *isas[8];
    for (int n = loss_isas(isas) - 1; n >= 0; n--) {
        kr_ctx *ctx = kr_test_ctx(1, isas[n]);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
        for (int64_t nw = 1; nw < 80; nw += 13) {
            labelled p = labelled_make(60, nw, 1);
            labelled_thin_out(&p, true, true, nw > 3 ? 2 : 0);
            p.excludes = nw % 2;
            int64_t right = 0;
            const int64_t nv = p.excludes ? p.nclasses : nw;
            for (int64_t i = 0; i < 60 * nw; i++) p.x[i] = floor(3 * p.x[i]); /* so that many are equal */
            for (int64_t r = 0; r < 60; r++) {
                int64_t best = 0;
                for (int64_t v = 1; v < nv; v++)
                    if (p.x[r * nw + v] > p.x[r * nw + best]) best = v;
                right += is_scored(&p, r) && p.label[r] == best;
            }
            kr_tensor *x = kr_cast(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(60, nw), p.x), KR_DTYPE_F32);
            kr_tensor *labels = kr_from_data(t, KR_DTYPE_I64, KR_SHAPE(60), p.label);
            kr_cross_entropy_options o = options_of(&p, t);
            kr_scores counted[2];
            o.scores = &counted[0];
            kr_cross_entropy(t, x, labels, &o);
            const size_t before = kr_tape_bytes(t);
            const kr_scores scores = kr_accuracy(t, x, labels, &o);
            /* devices keep integers until the reset */
            CHECK(kr_tape_bytes(t) == before || kr_test_on_device(ctx), "kr_accuracy leaves %zu bytes",
                  kr_tape_bytes(t) - before);
            kr_tensor *eye = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(nw, nw));
            for (int64_t v = 0; v < nw; v++) kr_test_put(eye, v * nw + v, 1);
            o.scores = &counted[1];
            kr_head_cross_entropy(t, x, eye, NULL, labels, &o);
            CHECK_OK(ctx);
            CHECK(scores.scored == scored_rows(&p) && scores.right == right, "w %lld: %lld of %lld right, not %lld",
                  (long long)nw, (long long)scores.right, (long long)scores.scored, (long long)right);
            for (int i = 0; i < 2; i++)
                CHECK(counted[i].scored == scores.scored && counted[i].right == right, "with the loss: %lld right",
                      (long long)counted[i].right);
            labelled_free(&p);
            kr_tape_reset(t);
        }
        kr_tape_destroy(t);
        kr_ctx_destroy(ctx);
    }
}

/* ---- float targets ---- */

typedef enum target_kind {
    SOFT,
    SOFT_OF_LOGITS,
    SOFT_OF_PROBABILITIES,
    BCE,
    BCE_OF_PROBABILITIES,
    MSE,
    L1,
    HUBER,
    QUANTILE
} target_kind;

#define DELTA 0.75
#define Q 0.9

static double plain_element(target_kind k, double y, double t, double eps)
{
    if (k == BCE) return (1 - t) * y + log1p(exp(-y)); /* (1 - t) y - log sigmoid(y) */
    if (k == BCE_OF_PROBABILITIES) return (t - 1) * log1p(eps - y) - t * log(y + eps);
    const double e = y - t;
    if (k == L1) return fabs(e);
    if (k == HUBER) return fabs(e) <= DELTA ? e * e / 2 : DELTA * (fabs(e) - DELTA / 2);
    if (k == QUANTILE) return e < 0 ? -Q * e : (1 - Q) * e;
    return e * e;
}

static double log_sum(const double *x, int64_t nw)
{
    double sum = 0;
    for (int64_t v = 0; v < nw; v++) sum += exp(x[v]);
    return log(sum);
}

static double plain_row(target_kind k, const double *y, const double *t, int64_t nw, double eps)
{
    double loss = 0;
    for (int64_t v = 0; v < nw; v++)
        loss -= (k == SOFT_OF_LOGITS ? exp(t[v] - log_sum(t, nw)) : t[v]) *
                (k == SOFT_OF_PROBABILITIES ? log(y[v] + eps) : y[v] - log_sum(y, nw));
    return loss;
}

static kr_tensor *run_kind(kr_tape *t, target_kind k, kr_tensor *y, kr_tensor *target, kr_loss_options *o)
{
    o->has_probabilities = k == SOFT_OF_PROBABILITIES || k == BCE_OF_PROBABILITIES;
    o->has_target_logits = k == SOFT_OF_LOGITS;
    o->huber_delta = DELTA;
    o->quantile = Q;
    return k <= SOFT_OF_PROBABILITIES ? kr_soft_cross_entropy(t, y, target, o)
           : k == MSE                 ? kr_mse(t, y, target, o)
           : k == L1                  ? kr_l1_loss(t, y, target, o)
           : k == HUBER               ? kr_huber_loss(t, y, target, o)
           : k == QUANTILE            ? kr_quantile_loss(t, y, target, o)
                                      : kr_bce(t, y, target, o);
}

/* By the formulas; masked outputs and targets are NaN and cost nothing. */
TEST(losses_with_targets_are_their_formulas)
{
    enum { ROWS = 6, NW = 5 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    for (int k = SOFT; k <= QUANTILE; k++)
        for (int way = 0; way < 8; way++) {
            const bool is_masked = way & 1, sums = way & 2, by_rows = k <= SOFT_OF_PROBABILITIES;
            const kr_dtype dtype = way & 4 ? KR_DTYPE_F32 : KR_DTYPE_F64;
            const double eps = dtype == KR_DTYPE_F32 ? 0x1p-23 : 0x1p-52;
            double *y = normals(ROWS * NW, 1), *target = normals(ROWS * NW, 1), loss = 0;
            int32_t mask[ROWS];
            int64_t count = 0, n_scored = -1;
            for (int r = 0; r < ROWS; r++) mask[r] = !is_masked || r % 3 != 1 ? 2 + r : 0;
            for (int i = 0; i < ROWS * NW; i++) {
                if (k == SOFT_OF_PROBABILITIES || k == BCE_OF_PROBABILITIES)
                    y[i] = (double)(float)(1 / (1 + exp(-y[i])));
                if (k == BCE_OF_PROBABILITIES && i == 3) y[i] = 0, target[i] = 1; /* eps keeps it finite */
                if (!mask[i / NW]) y[i] = target[i] = NAN;
                if (by_rows || !mask[i / NW]) continue;
                loss += plain_element((target_kind)k, y[i], target[i], eps);
                count++;
            }
            for (int r = 0; by_rows && r < ROWS; r++)
                if (mask[r]) loss += plain_row((target_kind)k, y + r * NW, target + r * NW, NW, eps), count++;
            if (!sums) loss /= (double)count;
            kr_loss_options o;
            kr_loss_options_init(&o);
            o.n_scored = &n_scored;
            o.reduction = sums ? KR_REDUCTION_SUM : KR_REDUCTION_MEAN;
            if (is_masked) o.mask = kr_from_data(t, KR_DTYPE_I32, by_rows ? KR_SHAPE(ROWS) : KR_SHAPE(ROWS, 1), mask);
            kr_tensor *leaves[2] = {
                y ? kr_input(t, kr_cast(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(ROWS, NW), y), dtype)) : NULL,
                kr_input(t, kr_cast(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(ROWS, NW), target), dtype))
            };
            kr_tensor *got = run_kind(t, (target_kind)k, leaves[0], leaves[1], &o);
            kr_backward(t, got);
            CHECK_OK(ctx);
            /* sums of 30 terms of functions of a few ulp, the largest of which is -log(eps) = 36 */
            CHECK(fabs(kr_item(got) - loss) <= (dtype == KR_DTYPE_F32 ? 3e-6 : 1e-13) * fmax(1, fabs(loss)),
                  "kind %d, way %d: %.9g, not %.9g", k, way, kr_item(got), loss);
            CHECK(n_scored == count, "kind %d, way %d: %lld scored, not %lld", k, way, (long long)n_scored,
                  (long long)count);
            for (int l = 0; l < 2; l++) {
                double *g = kr_test_values(kr_grad(leaves[l]));
                for (int i = 0; i < ROWS * NW; i++)
                    CHECK(mask[i / NW] ? isfinite(g[i]) : g[i] == 0, "kind %d, way %d: g %g at %d", k, way, g[i], i);
                free(g);
            }
            free(y);
            free(target);
            kr_tape_reset(t);
        }
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

TEST(nothing_scored_with_targets)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    for (int k = SOFT; k <= QUANTILE; k++) {
        kr_loss_options o;
        kr_loss_options_init(&o);
        o.mask = kr_zeros(t, KR_DTYPE_I64, KR_SHAPE(3));
        kr_tensor *y = kr_input(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE(3, 3), INFINITY));
        kr_tensor *loss = run_kind(t, (target_kind)k, y, kr_full(t, KR_DTYPE_F32, KR_SHAPE(3, 3), NAN), &o);
        kr_backward(t, loss);
        CHECK_OK(ctx);
        CHECK(kr_item(loss) == 0 && kr_item(kr_max(t, kr_grad(y), KR_ALL_AXES, false)) == 0, "kind %d: %g", k,
              kr_item(loss));
        kr_tape_reset(t);
    }
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* The slopes at the kinks and elsewhere: exact, and finite where an output is infinite. */
TEST(slopes_of_losses_with_kinks)
{
    enum { N = 6 };
    static const double y[N] = { 1, 1, 4, -2, INFINITY, -INFINITY }, target[N] = { 1, 0.5, 1, 1, 0, 0 };
    static const struct {
        target_kind kind;
        double slope[N];
    } wanted[] = { { L1, { 0, 1, 1, -1, 1, -1 } },
                   { HUBER, { 0, 0.5, DELTA, -DELTA, DELTA, -DELTA } },
                   { QUANTILE, { 0.5 - Q, 1 - Q, 1 - Q, -Q, 1 - Q, -Q } } };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
        kr_loss_options o;
        kr_loss_options_init(&o);
        o.reduction = KR_REDUCTION_SUM;
        kr_tensor *x = kr_input(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(N), y));
        kr_backward(t, run_kind(t, wanted[k].kind, x, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(N), target), &o));
        CHECK_OK(ctx);
        double *g = kr_test_values(kr_grad(x));
        for (int i = 0; i < N; i++)
            CHECK(fabs(g[i] - wanted[k].slope[i]) <= 1e-15, "kind %d at %g: %.17g, not %.17g", (int)wanted[k].kind,
                  y[i], g[i], wanted[k].slope[i]);
        free(g);
        kr_tape_reset(t);
    }
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}
