/* test_sampler.c - the sampler against the plain one, closed forms of every rule, and the distribution of its draws. */
#include "generate/select_top.h"
#include "generate/softmax_f64.h"
#include "tests/generate/plain_sampler.h"

/* The plain sampler's sums are added in another order: logprobs agree to rounding; tokens agree unless a draw falls
 * between two tokens to within that, which no draw of a fixed seed here does. */
#define LOGPROB_TOLERANCE 1e-12

static kr_sampler_options defaults(void)
{
    kr_sampler_options o;
    kr_sampler_options_init(&o);
    return o;
}

/* Rounded as the type has it. */
static double *noise(kr_dtype dtype, int64_t count, double scale)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    double *x = malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) x[i] = scale * kr_test_normal();
    if (scale > 0 && kr_test_below(3) == 0) /* many equal ones */
        for (int64_t i = 0; i < count; i++) x[i] = scale * rint(x[i] / scale);
    kr_tensor *rounded = kr_cast(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(count), x), dtype);
    kr_tensor_read(rounded, KR_DTYPE_F64, x, count);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
    return x;
}

/* [rows, width] of a type, laid out by rows or by columns. */
static kr_tensor *tensor_of(kr_tape *t, kr_dtype dtype, const double *x, int64_t rows, int64_t width, bool by_columns)
{
    kr_tensor *y = kr_cast(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(rows, width), x), dtype);
    return by_columns ? kr_transpose(t, kr_contiguous(t, kr_transpose(t, y))) : y;
}

/* ---- against the plain one ---- */

static kr_sampler_options random_options(int64_t vocab, kr_logit_bias *biases)
{
    kr_sampler_options o = defaults();
    o.temperature = kr_test_below(5) == 0 ? 0 : kr_test_uniform(0.3, 2);
    if (kr_test_below(2)) o.top_k = 1 + kr_test_below(kr_test_below(2) ? vocab : 40);
    if (kr_test_below(2)) o.top_p = kr_test_uniform(0.01, 1);
    if (kr_test_below(3) == 0) o.min_p = kr_test_uniform(0, 0.5);
    if (kr_test_below(3) == 0) o.repetition_penalty = kr_test_uniform(0.5, 2);
    if (kr_test_below(3) == 0) o.presence_penalty = kr_test_uniform(-1, 2);
    if (kr_test_below(3) == 0) o.frequency_penalty = kr_test_uniform(-0.3, 1);
    o.n_biases = kr_test_below(2) ? 3 : 0;
    o.biases = biases;
    for (int i = 0; i < 3; i++) biases[i] = (kr_logit_bias){ (int32_t)kr_test_below(vocab), kr_test_uniform(-3, 3) };
    if (vocab > 3) biases[0].bias = -INFINITY;
    o.seed = kr_test_next();
    return o;
}

static void check_against_plain(kr_ctx *ctx, int64_t rows, int64_t vocab, int64_t width, kr_dtype dtype, int steps)
{
    enum { ROWS = 4 };
    kr_logit_bias biases[3];
    const kr_sampler_options o = random_options(vocab, biases);
    kr_sampler_options kept = o;
    kr_logit_bias own[3];
    memcpy(own, biases, sizeof own);
    kept.biases = own;
    kr_sampler *sampler = kr_sampler_create(ctx, &o, rows, vocab);
    memset(biases, 0, sizeof biases); /* it has a copy */
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    plain_row plain[ROWS];
    for (int64_t r = 0; r < rows; r++) {
        plain[r] = plain_row_new(r, vocab);
        for (int i = 0; i < 5; i++) {
            const int32_t id = (int32_t)kr_test_below(vocab);
            plain[r].in_prompt[id] = true;
            kr_sampler_accept(sampler, r, id);
        }
    }
    for (int step = 0; step < steps; step++) {
        double *x = noise(dtype, rows * width, 3);
        kr_sample got[ROWS];
        kr_tape_reset(t);
        kr_sampler_next(sampler, tensor_of(t, dtype, x, rows, width, step % 2), got);
        CHECK_OK(ctx);
        for (int64_t r = 0; r < rows; r++) {
            const kr_sample want = plain_next(&plain[r], &kept, x + r * width, width);
            CHECK(got[r].id == want.id, "vocab %d, step %d, row %d: token %d, not %d (T %g k %d p %g m %g)", (int)vocab,
                  step, (int)r, got[r].id, want.id, o.temperature, (int)o.top_k, o.top_p, o.min_p);
            CHECK(fabs(got[r].logprob - want.logprob) < LOGPROB_TOLERANCE * (1 + fabs(want.logprob)),
                  "logprob %.17g, not %.17g", got[r].logprob, want.logprob);
        }
        free(x);
    }
    for (int64_t r = 0; r < rows; r++) plain_row_free(&plain[r]);
    kr_tape_destroy(t);
    kr_sampler_destroy(sampler);
}

TEST(sampler_equals_the_plain_one)
{
    static const kr_dtype types[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    for (int i = 0; i < (kr_test_quick() ? 40 : 400); i++) {
        const int64_t vocab = 1 + kr_test_below(i % 10 == 0 ? 3000 : 60);
        check_against_plain(ctx, 1 + kr_test_below(3), vocab, vocab + (i % 2 ? kr_test_below(9) : 0), types[i % 4], 6);
    }
    check_against_plain(ctx, 1, 20000, 20000 + 1500, KR_DTYPE_F32, 8); /* padding of more than a span */
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* A few of many: those that are ranked are chosen by the largest of spans. */
TEST(top_k_of_many)
{
    enum { VOCAB = 3000 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int round = 0; round < 60; round++) {
        kr_sampler_options o = defaults();
        o.top_k = 1 + round / 3;
        o.temperature = 50; /* nearly equal weights: each of them is drawn */
        o.seed = (uint64_t)round;
        kr_sampler *sampler = kr_sampler_create(ctx, &o, 1, VOCAB);
        plain_row plain = plain_row_new(0, VOCAB);
        double *x = noise(KR_DTYPE_F32, VOCAB, 3);
        for (int i = 0; i < VOCAB && round % 3 == 1; i++) x[i] = i; /* all in the last spans */
        kr_tape_reset(t);
        kr_tensor *logits = tensor_of(t, KR_DTYPE_F64, x, 1, VOCAB, false);
        for (int i = 0; i < 20; i++) {
            kr_sample got;
            kr_sampler_next(sampler, logits, &got);
            const int32_t want = plain_next(&plain, &o, x, VOCAB).id;
            CHECK(got.id == want, "k = %d: token %d, not %d", (int)o.top_k, got.id, want);
        }
        free(x);
        plain_row_free(&plain);
        kr_sampler_destroy(sampler);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

TEST(sampler_is_the_same_for_any_threads)
{
    enum { VOCAB = 40000, STEPS = 4 };
    kr_sample samples[3][STEPS];
    double *x = noise(KR_DTYPE_F32, VOCAB * STEPS, 2);
    for (int threads = 1; threads <= 3; threads++) {
        kr_ctx *ctx = kr_test_ctx(threads, NULL);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_sampler_options o = defaults();
        o.top_p = 0.9;
        kr_sampler *sampler = kr_sampler_create(ctx, &o, 1, VOCAB);
        for (int i = 0; i < STEPS; i++)
            kr_sampler_next(sampler, tensor_of(t, KR_DTYPE_F32, x + i * VOCAB, 1, VOCAB, false),
                            &samples[threads - 1][i]);
        CHECK_OK(ctx);
        for (int i = 0; i < STEPS; i++)
            CHECK(samples[threads - 1][i].id == samples[0][i].id &&
                      samples[threads - 1][i].logprob == samples[0][i].logprob,
                  "%d threads", threads);
        kr_sampler_destroy(sampler);
        kr_tape_destroy(t);
        kr_ctx_destroy(ctx);
    }
    free(x);
}

/* ---- closed forms ---- */

/* Which tokens occur in 300 draws from probabilities p: with the least of them at 0.1 or more, one of them stays away
 * with probability 0.9^300 = 2e-14. */
static unsigned tokens_drawn(const double *p, int n, const kr_sampler_options *o)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_sampler *sampler = kr_sampler_create(ctx, o, 1, n);
    double x[16];
    for (int i = 0; i < n; i++) x[i] = log(p[i]) + 5;
    kr_tensor *logits = kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(1, n), x);
    unsigned set = 0;
    for (int i = 0; i < 300; i++) {
        kr_sample sample = { 31, 0 };
        kr_sampler_next(sampler, logits, &sample);
        set |= 1u << sample.id;
        if (sample.id < n) CHECK(fabs(sample.logprob - log(p[sample.id])) < 1e-12, "logprob %g", sample.logprob);
    }
    CHECK_OK(ctx);
    kr_sampler_destroy(sampler);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
    return set;
}

#define DRAWN(want, ...)                                                                                               \
    do {                                                                                                               \
        kr_sampler_options o = defaults();                                                                             \
        __VA_ARGS__;                                                                                                   \
        const unsigned set = tokens_drawn(p, (int)(sizeof p / sizeof *p), &o);                                         \
        CHECK(set == (want), "%s: tokens 0x%x, not 0x%x", #__VA_ARGS__, set, (unsigned)(want));                        \
    } while (0)

TEST(filters_keep_what_they_should)
{
    const double p[] = { 0.2, 0.4, 0.1, 0.3 }; /* 1, 3, 0, 2 by size */
    DRAWN(0xf, o.top_k = 0);
    DRAWN(0xf, o.top_k = 4);
    DRAWN(0xf, o.top_k = INT64_MAX);
    DRAWN(0x2, o.top_k = 1);
    DRAWN(0xa, o.top_k = 2);
    DRAWN(0xb, o.top_k = 3);
    DRAWN(0x2, o.top_p = 1e-9);
    DRAWN(0x2, o.top_p = 0.39);
    DRAWN(0xa, o.top_p = 0.41);
    DRAWN(0xa, o.top_p = 0.69);
    DRAWN(0xb, o.top_p = 0.71);
    DRAWN(0xb, o.top_p = 0.89);
    DRAWN(0xf, o.top_p = 0.91);
    DRAWN(0xf, o.min_p = 0.24);
    DRAWN(0xb, o.min_p = 0.26);
    DRAWN(0xb, o.min_p = 0.49);
    DRAWN(0xa, o.min_p = 0.51);
    DRAWN(0x2, o.min_p = 0.76);
    DRAWN(0x2, o.min_p = 1);
    /* top-p looks at what top-k left: 0.4 of 0.7 is 0.571 */
    DRAWN(0x2, o.top_k = 2, o.top_p = 0.57);
    DRAWN(0xa, o.top_k = 2, o.top_p = 0.58);
    /* temperature first: squares are .04 .16 .01 .09 of 0.3, roots 0.447 0.632 0.316 0.548 of 1.944 */
    DRAWN(0x2, o.temperature = 0.5, o.top_p = 0.53);
    DRAWN(0xa, o.temperature = 0.5, o.top_p = 0.54);
    DRAWN(0xb, o.temperature = 2, o.top_p = 0.61);
    DRAWN(0xa, o.temperature = 2, o.top_p = 0.6);
    DRAWN(0xa, o.temperature = 0.5, o.min_p = 0.26);
    DRAWN(0xf, o.temperature = 2, o.min_p = 0.49);
    DRAWN(0xb, o.temperature = 2, o.min_p = 0.51);
    DRAWN(0x2, o.temperature = 0);
    DRAWN(0x2, o.temperature = 1e-300);
}

TEST(equals_go_by_id)
{
    const double p[] = { 0.1, 0.3, 0.3, 0.3 };
    DRAWN(0x2, o.temperature = 0);
    DRAWN(0x2, o.top_k = 1);
    DRAWN(0x6, o.top_k = 2);
    DRAWN(0xe, o.top_k = 3);
    DRAWN(0x2, o.top_p = 0.29);
    DRAWN(0x6, o.top_p = 0.31);
    DRAWN(0xe, o.min_p = 1);
}

/* Greedy choices after one rule each; logits {2, 1, -1, -2}, token 0 in the prompt, 1 generated twice, 3 once. */
static int32_t chosen_after(const kr_sampler_options *rules)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_sampler_options o = *rules;
    o.temperature = 0;
    kr_sampler *sampler = kr_sampler_create(ctx, &o, 1, 4);
    kr_sample sample = { -1, 0 };
    kr_sampler_accept(sampler, 0, 0);
    for (int i = 0; i < 3; i++) /* these choices beat every rule of the test */
        kr_sampler_next(sampler,
                        kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(1, 4),
                                     i < 2 ? (float[]){ 0, 1e6f, 0, 0 } : (float[]){ 0, 0, 0, 1e6f }),
                        &sample);
    CHECK(sample.id == 3, "the third was %d", sample.id);
    kr_sampler_next(sampler, kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(1, 4), (float[]){ 2, 1, -1, -2 }), &sample);
    const double log_sum = log(exp(2) + exp(1) + exp(-1) + exp(-2)), x[] = { 2, 1, -1, -2 };
    CHECK(fabs(sample.logprob - (x[sample.id] - log_sum)) < 1e-12, "the logprob is of the logits as they were");
    CHECK_OK(ctx);
    kr_sampler_destroy(sampler);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
    return sample.id;
}

#define CHOSEN(want, ...)                                                                                              \
    do {                                                                                                               \
        kr_sampler_options o = defaults();                                                                             \
        __VA_ARGS__;                                                                                                   \
        const int32_t id = chosen_after(&o);                                                                           \
        CHECK(id == (want), "%s: token %d, not %d", #__VA_ARGS__, id, (want));                                         \
    } while (0)

TEST(penalties_and_biases)
{
    CHOSEN(0, (void)0);
    CHOSEN(1, o.repetition_penalty = 1.5, o.n_biases = 1, o.biases = &(kr_logit_bias){ 1, 1.1 });
    CHOSEN(0, o.repetition_penalty = 3);   /* 0.67 0.33 -1 -6 */
    CHOSEN(0, o.repetition_penalty = 1e9); /* 0 by a little, 0, -1, far below */
    CHOSEN(0, o.repetition_penalty = 0.5); /* 4 2 -1 -1 */
    CHOSEN(0, o.presence_penalty = 4);     /* 2 -3 -1 -6: not of prompts */
    CHOSEN(1, o.presence_penalty = -1.1);  /* 2 2.1 -1 -0.9 */
    CHOSEN(0, o.presence_penalty = -0.9);
    CHOSEN(1, o.frequency_penalty = -0.6); /* 2 2.2 -1 -1.4: twice */
    CHOSEN(0, o.frequency_penalty = -0.4);
    CHOSEN(3, o.frequency_penalty = 10, o.presence_penalty = -20); /* 2 1 -1 8, and 1 + 20 - 20 */
    CHOSEN(2, o.n_biases = 1, o.biases = &(kr_logit_bias){ 2, 3.1 });
    CHOSEN(0, o.n_biases = 1, o.biases = &(kr_logit_bias){ 2, 2.9 });
    CHOSEN(2, o.n_biases = 2, o.biases = (kr_logit_bias[]){ { 2, 1.6 }, { 2, 1.6 } }); /* both count */
    CHOSEN(1, o.n_biases = 1, o.biases = &(kr_logit_bias){ 0, -INFINITY });
    /* the bias before the penalty: token 0 is at -0.1, so multiplied; 1 is at 1 / 20 */
    CHOSEN(1, o.repetition_penalty = 20, o.n_biases = 1, o.biases = &(kr_logit_bias){ 0, -2.1 });
}

TEST(padding_is_never_chosen)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *logits = kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(1, 5), (float[]){ 0, 1, 0, 9, 9 });
    for (int greedy = 0; greedy < 2; greedy++) {
        kr_sampler_options o = defaults();
        o.temperature = !greedy;
        kr_sampler *sampler = kr_sampler_create(ctx, &o, 1, 3);
        for (int i = 0; i < 50; i++) {
            kr_sample sample;
            kr_sampler_next(sampler, logits, &sample);
            CHECK(sample.id < 3 && (!greedy || sample.id == 1), "token %d", sample.id);
            const double want = (sample.id == 1) - log(2 + exp(1) + 2 * exp(9));
            CHECK(fabs(sample.logprob - want) < 1e-12, "logprob %g, not %g: padding is part of the model's softmax",
                  sample.logprob, want);
        }
        kr_sampler_destroy(sampler);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* ---- streams and their distribution ---- */

TEST(rows_have_streams_of_their_own)
{
    enum { VOCAB = 50, ROWS = 5, STEPS = 40 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_sampler_options o = defaults();
    o.seed = 99;
    kr_sampler *all = kr_sampler_create(ctx, &o, ROWS, VOCAB), *some = kr_sampler_create(ctx, &o, ROWS, VOCAB);
    kr_sampler *one = kr_sampler_create(ctx, &o, 1, VOCAB);
    o.seed = 100;
    kr_sampler *other = kr_sampler_create(ctx, &o, 1, VOCAB);
    int same_row = 0, same_seed = 0;
    for (int step = 0; step < STEPS; step++) {
        kr_tape_reset(t);
        kr_tensor *row = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(1, VOCAB));
        kr_sample whole[ROWS], part[2], single, elsewhere;
        kr_sampler_next(all, kr_expand(t, row, KR_SHAPE(ROWS, VOCAB)), whole);
        kr_sampler_next_rows(some, kr_expand(t, row, KR_SHAPE(2, VOCAB)), 2, (int64_t[]){ 1, 4 }, part);
        kr_sampler_next(one, row, &single);
        kr_sampler_next(other, row, &elsewhere);
        CHECK(part[0].id == whole[1].id && part[1].id == whole[4].id && single.id == whole[0].id, "step %d", step);
        same_row += whole[0].id == whole[1].id;
        same_seed += elsewhere.id == single.id;
    }
    /* of 40 pairs at 1 in 50: above 6 once in 40000 */
    CHECK(same_row <= 6 && same_seed <= 6, "%d pairs of rows and %d of seeds agree", same_row, same_seed);
    kr_sampler_destroy(all);
    kr_sampler_destroy(some);
    kr_sampler_destroy(one);
    kr_sampler_destroy(other);
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* Chi square of `draws` tokens against probabilities p. */
static double chi_square(const double *p, int n, int rows, int draws, uint64_t seed)
{
    enum { MOST = 64 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_sampler_options o = defaults();
    o.seed = seed;
    kr_sampler *sampler = kr_sampler_create(ctx, &o, rows, n);
    double x[MOST], chi = 0;
    int counts[MOST] = { 0 };
    for (int i = 0; i < n; i++) x[i] = log(p[i]);
    kr_tensor *logits = kr_expand(t, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(1, n), x), KR_SHAPE(rows, n));
    for (int i = 0; i < draws / rows; i++) {
        kr_sample samples[MOST];
        kr_sampler_next(sampler, logits, samples);
        for (int r = 0; r < rows; r++) counts[samples[r].id]++;
    }
    for (int i = 0; i < n; i++) chi += (counts[i] - draws * p[i]) * (counts[i] - draws * p[i]) / (draws * p[i]);
    CHECK_OK(ctx);
    kr_sampler_destroy(sampler);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
    return chi;
}

/* 20 tokens: 19 degrees of freedom, of which chi square is above 54 once in 30000, and below 3.5 as seldom. */
TEST(draws_are_distributed_as_the_softmax)
{
    double p[20], sum = 0;
    for (int i = 0; i < 20; i++) sum += p[i] = 1 + (i * 7) % 20;
    for (int i = 0; i < 20; i++) p[i] /= sum;
    for (int rows = 1; rows <= 64; rows *= 8)
        for (uint64_t seed = 0; seed < 3; seed++) {
            const double chi = chi_square(p, 20, rows, 12800, seed);
            CHECK(chi < 54 && chi > 3.5, "%d rows, seed %d: chi square %.1f", rows, (int)seed, chi);
        }
}

/* ---- the parts ---- */

TEST(weights_are_exponentials)
{
    enum { COUNT = 20000 };
    static double x[COUNT], y[COUNT], z[COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = i < 10000 ? -i / 13.0 : -kr_test_uniform(0, 3);
    x[3] = -INFINITY;
    x[4] = 0;
    x[5] = -1e300;
    kr_weights_of(NULL, y, x, COUNT, 0, 1);
    double worst = 0;
    for (int i = 0; i < COUNT; i++) {
        if (x[i] < -708) CHECK(y[i] == 0, "e^%g = %g", x[i], y[i]);
        else worst = fmax(worst, fabs(y[i] / exp(x[i]) - 1));
    }
    CHECK(worst < 2e-14 && y[4] == 1, "an error of %g", worst);
    for (int i = 0; i < COUNT; i++) z[i] = 1000 + 0.25 * x[i]; /* rounded: as far from it as 1000 has digits */
    kr_weights_of(NULL, z, z, COUNT, 1000, 0.25);
    for (int i = 0; i < COUNT; i++)
        CHECK(fabs(z[i] - y[i]) <= 1e-12 * y[i] + 1e-300, "e^%g = %g, shifted %g", x[i], y[i], z[i]);
    CHECK(kr_sum_of((double[]){ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 }, 11) == 66 && kr_sum_of(x, 0) == 0, "sums");
    for (int at = 0; at < 11; at++) {
        double few[11] = { -5, -INFINITY, -3, -5, -6, -7, -8, -9, -3, -11, -12 };
        few[at] = -2;
        CHECK(kr_max_of(few, 11) == -2, "the largest at %d", at);
    }
    CHECK(kr_max_of(x, 0) == -INFINITY && !kr_are_logits((double[]){ 0, NAN }, 2) &&
              !kr_are_logits((double[]){ INFINITY, 0 }, 2) && kr_are_logits((double[]){ -INFINITY, 0 }, 2),
          "ends");
}

static int compare_ranked(const void *a, const void *b)
{
    return kr_ranks_before(*(const kr_ranked *)a, *(const kr_ranked *)b) ? -1 : 1;
}

TEST(ranking_selects_and_sorts)
{
    for (int round = 0; round < (kr_test_quick() ? 50 : 500); round++) {
        enum { MOST = 400 };
        kr_ranked items[MOST], sorted[MOST];
        const int64_t n = 1 + kr_test_below(MOST), kinds = 1 + kr_test_below(round % 2 ? 10 : 100000);
        double sum = 0;
        for (int64_t i = 0; i < n; i++) {
            items[i] = (kr_ranked){ (double)(round % 5 == 0 ? i : kr_test_below(kinds)), (int32_t)i };
            sum += items[i].value;
        }
        memcpy(sorted, items, sizeof items);
        qsort(sorted, (size_t)n, sizeof *sorted, compare_ranked);
        const int64_t k = 1 + kr_test_below(n);
        CHECK(kr_rank_first(items, n, (double)k, false).id == sorted[k - 1].id, "the %d-th of %d", (int)k, (int)n);
        kr_rank_all(items, k);
        for (int64_t i = 0; i < k; i++) CHECK(items[i].id == sorted[i].id, "place %d of %d", (int)i, (int)k);
        const double target = kr_test_uniform(0, 1) * sum; /* sums of whole numbers are exact */
        double before = 0;
        int64_t last = 0;
        for (; last < n - 1 && (before += sorted[last].value) < target; last++) {}
        if (target > 0) CHECK(kr_rank_first(items, n, target, true).id == sorted[last].id, "%g of %g", target, sum);
        CHECK(kr_rank_first(items, n, 2 * sum + 1e9, false).id == sorted[n - 1].id, "all");
    }
}

TEST(top_tokens)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    const double x[] = { 1, 3, -INFINITY, 3, 2, 7 };
    kr_tensor *flat = kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(6), x), *row = kr_reshape(t, flat, KR_SHAPE(1, 6));
    const double log_sum = log(exp(1) + 2 * exp(3) + exp(2) + exp(7));
    static const int32_t order[] = { 1, 3, 4, 0, 2 };
    for (int64_t count = 1; count <= 5; count++)
        for (int rank = 1; rank <= 2; rank++) {
            kr_sample top[6];
            CHECK(kr_top_tokens(rank == 1 ? flat : row, 5, count, top) == KR_OK, "%s", kr_ctx_message(ctx));
            for (int64_t i = 0; i < count; i++) {
                const double want = x[order[i]] - log_sum;
                CHECK(top[i].id == order[i] && (top[i].logprob == want || fabs(top[i].logprob - want) < 1e-12),
                      "%d: token %d at %g", (int)i, top[i].id, top[i].logprob);
            }
        }
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}
