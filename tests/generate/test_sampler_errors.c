/* test_sampler_errors.c - what a sampler does not take, in its own words; and allocations that fail. */
#include "tests/error_tests.h"

static kr_sampler_options defaults(void)
{
    kr_sampler_options o;
    kr_sampler_options_init(&o);
    return o;
}

#define NO_OPTIONS(text, ...)                                                                                          \
    do {                                                                                                               \
        kr_sampler_options o = defaults();                                                                             \
        __VA_ARGS__;                                                                                                   \
        REFUSED(KR_ERR_ARG, "sampler.create: " text, kr_sampler_create(ctx, &o, 1, 8));                                \
    } while (0)

TEST(sampler_options_out_of_range)
{
    begin();
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    NO_OPTIONS("temperature = -0.5, but must be finite and not negative", o.temperature = -0.5);
    NO_OPTIONS("temperature = nan, but must be finite and not negative", o.temperature = NAN);
    NO_OPTIONS("temperature = inf, but must be finite and not negative", o.temperature = INFINITY);
    NO_OPTIONS("top_k = -1, but must be at least 1, or 0 for all tokens", o.top_k = -1);
    NO_OPTIONS("top_p = 0, but must be above 0 and at most 1", o.top_p = 0);
    NO_OPTIONS("top_p = 1.5, but must be above 0 and at most 1", o.top_p = 1.5);
    NO_OPTIONS("top_p = nan, but must be above 0 and at most 1", o.top_p = NAN);
    NO_OPTIONS("min_p = -0.1, but must be from 0 to 1", o.min_p = -0.1);
    NO_OPTIONS("min_p = 1.1, but must be from 0 to 1", o.min_p = 1.1);
    NO_OPTIONS("min_p = nan, but must be from 0 to 1", o.min_p = NAN);
    NO_OPTIONS("repetition_penalty = 0, but must be above 0 and finite", o.repetition_penalty = 0);
    NO_OPTIONS("repetition_penalty = inf, but must be above 0 and finite", o.repetition_penalty = INFINITY);
    NO_OPTIONS("repetition_penalty = nan, but must be above 0 and finite", o.repetition_penalty = NAN);
    NO_OPTIONS("presence_penalty = -inf, but must be finite", o.presence_penalty = -INFINITY);
    NO_OPTIONS("presence_penalty = nan, but must be finite", o.presence_penalty = NAN);
    NO_OPTIONS("frequency_penalty = inf, but must be finite", o.frequency_penalty = INFINITY);
    NO_OPTIONS("frequency_penalty = nan, but must be finite", o.frequency_penalty = NAN);
    NO_OPTIONS("n_biases = -1, but must not be negative", o.n_biases = -1);
    NO_OPTIONS("n_biases = 2, but biases is NULL", o.n_biases = 2);
    kr_logit_bias biases[] = { { 7, -INFINITY }, { 8, 0 }, { -1, 0 }, { 0, NAN }, { 0, INFINITY } };
    NO_OPTIONS("biases[1].id = 8, but tokens are from 0 to 7", o.n_biases = 2, o.biases = biases);
    NO_OPTIONS("biases[0].id = -1, but tokens are from 0 to 7", o.n_biases = 1, o.biases = biases + 2);
    NO_OPTIONS("biases[0].bias = nan, but must be finite or -inf", o.n_biases = 1, o.biases = biases + 3);
    NO_OPTIONS("biases[0].bias = inf, but must be finite or -inf", o.n_biases = 1, o.biases = biases + 4);
    REFUSED(KR_ERR_ARG, "sampler.create: rows = 0, but must be from 1 to 1073741824",
            kr_sampler_create(ctx, NULL, 0, 8));
    REFUSED(KR_ERR_ARG, "sampler.create: vocab = 1073741825, but must be from 1 to 1073741824",
            kr_sampler_create(ctx, NULL, 1, (INT64_C(1) << 30) + 1));
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left");
    end();
}

/* A caller that was compiled with fewer fields has the defaults for the rest. */
TEST(sampler_options_of_an_older_caller)
{
    begin();
    kr_sampler_options o;
    memset(&o, 0xff, sizeof o);
    kr_struct_init(KR_STRUCT_SAMPLER_OPTIONS, &o, offsetof(kr_sampler_options, top_k));
    CHECK(o.temperature == 1 && o.top_k == -1, "only its own fields are written");
    kr_sampler *sampler = kr_sampler_create(ctx, &o, 1, 8);
    CHECK_OK(ctx);
    kr_sampler_destroy(sampler);
    kr_sampler_destroy(NULL);
    end();
}

TEST(logits_that_are_refused)
{
    begin();
    kr_ctx *foreign = kr_test_ctx(1, NULL);
    kr_tape *far = kr_tape_create(foreign, KR_TAPE_NO_GRAD);
    kr_sampler *sampler = kr_sampler_create(ctx, NULL, 2, 8);
    kr_sample got[3];
    REFUSED(KR_ERR_ARG, "sampler.next: logits is NULL", kr_sampler_next(sampler, NULL, got) == KR_OK);
    REFUSED(KR_ERR_ARG, "sampler.next: samples is NULL", kr_sampler_next(sampler, F(2, 8), NULL) == KR_OK);
    REFUSED(KR_ERR_SHAPE, "sampler.next: logits are [8], but must be [b, w] with 2 rows",
            kr_sampler_next(sampler, F(8), got) == KR_OK);
    REFUSED(KR_ERR_SHAPE, "sampler.next: logits are [3, 8], but must be [b, w] with 2 rows",
            kr_sampler_next(sampler, F(3, 8), got) == KR_OK);
    REFUSED(KR_ERR_SHAPE, "sampler.next: axis w of logits [2, 7] is 7, but there are 8 tokens",
            kr_sampler_next(sampler, F(2, 7), got) == KR_OK);
    REFUSED(KR_ERR_DTYPE, "sampler.next: logits [2, 8] are i32, but must be f32, f64, bf16 or f16",
            kr_sampler_next(sampler, I(2, 8), got) == KR_OK);
    REFUSED(KR_ERR_STATE, "sampler.next: the logits belong to another context",
            kr_sampler_next(sampler, kr_zeros(far, KR_DTYPE_F32, KR_SHAPE(2, 8)), got) == KR_OK);
    REFUSED(KR_ERR_ARG, "sampler.next_rows: count = 0 rows, but must be at least 1",
            kr_sampler_next_rows(sampler, F(1, 8), 1, NULL, got) == KR_OK);
    REFUSED(KR_ERR_ARG, "sampler.next_rows: row = 2, but the sampler has rows from 0 to 1",
            kr_sampler_next_rows(sampler, F(1, 8), 1, (int64_t[]){ 2 }, got) == KR_OK);
    REFUSED(KR_ERR_ARG, "sampler.next_rows: rows[1] = 1 comes after 1, but rows must ascend",
            kr_sampler_next_rows(sampler, F(2, 8), 2, (int64_t[]){ 1, 1 }, got) == KR_OK);
    REFUSED(KR_ERR_ARG, "sampler.accept: row = -1, but the sampler has rows from 0 to 1",
            kr_sampler_accept(sampler, -1, 0) == KR_OK);
    REFUSED(KR_ERR_ARG, "sampler.accept: id = 8, but tokens are from 0 to 7",
            kr_sampler_accept(sampler, 0, 8) == KR_OK);
    REFUSED(KR_ERR_ARG, "sampler.accept: id = -1, but tokens are from 0 to 7",
            kr_sampler_accept(sampler, 0, -1) == KR_OK);

    float x[2][10] = { { 0 }, { 0, 0, 0, 0, 0, 0, 0, 0, 0, NAN } };
    REFUSED(KR_ERR_NUMERIC, "sampler.next: logits [2, 10] hold nan for token 9 of row 1",
            kr_sampler_next(sampler, kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(2, 10), x), got) == KR_OK);
    x[1][9] = 0;
    x[0][3] = NAN;
    REFUSED(KR_ERR_NUMERIC, "sampler.next: logits [2, 10] hold nan for token 3 of row 0",
            kr_sampler_next(sampler, kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(2, 10), x), got) == KR_OK);
    x[0][3] = INFINITY;
    REFUSED(KR_ERR_NUMERIC, "sampler.next: logits [2, 10] hold inf for token 3 of row 0",
            kr_sampler_next(sampler, kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(2, 10), x), got) == KR_OK);
    for (int i = 0; i < 8; i++) x[0][i] = -INFINITY;
    REFUSED(KR_ERR_NUMERIC, "sampler.next: logits [2, 10]: all 8 tokens of row 0 are -inf, so no token can be sampled",
            kr_sampler_next(sampler, kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(2, 10), x), got) == KR_OK);
    CHECK(kr_sampler_next(NULL, NULL, NULL) == KR_ERR_ARG && kr_sampler_accept(NULL, 0, 0) == KR_ERR_ARG &&
              kr_sampler_next_rows(NULL, NULL, 0, NULL, NULL) == KR_ERR_ARG,
          "NULL");
    kr_sampler_destroy(sampler);
    kr_tape_destroy(far);
    kr_ctx_destroy(foreign);
    end();
}

/* An error in one row leaves all of them where they were. */
TEST(refused_logits_change_nothing)
{
    begin();
    kr_sampler_options o = defaults();
    o.frequency_penalty = 0.5;
    kr_sampler *one = kr_sampler_create(ctx, &o, 2, 8), *two = kr_sampler_create(ctx, &o, 2, 8);
    for (int step = 0; step < 20; step++) {
        kr_sample a[2], b[2];
        float bad[2][8] = { { 0 } };
        bad[1][step % 8] = NAN;
        kr_sampler_next(two, kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(2, 8), bad), b);
        CHECK_ERROR_HAS(ctx, KR_ERR_NUMERIC, "of row 1");
        kr_tape_reset(t);
        kr_sampler_next(one, F(2, 8), a);
        kr_sampler_next(two, F(2, 8), b);
        CHECK(a[0].id == b[0].id && a[1].id == b[1].id, "step %d", step);
    }
    kr_sampler_destroy(one);
    kr_sampler_destroy(two);
    end();
}

TEST(nothing_left_to_choose)
{
    begin();
    kr_logit_bias biases[4];
    for (int i = 0; i < 4; i++) biases[i] = (kr_logit_bias){ i, -INFINITY };
    kr_sampler_options o = defaults();
    o.biases = biases;
    for (int greedy = 0; greedy < 2; greedy++) {
        o.temperature = !greedy;
        o.n_biases = 4;
        kr_sampler *sampler = kr_sampler_create(ctx, &o, 1, 4);
        kr_sample got;
        REFUSED(KR_ERR_NUMERIC, "sampler.next: row 0: no token is left: biases exclude all of 4 that the logits do not",
                kr_sampler_next(sampler, F(1, 4), &got) == KR_OK);
        kr_sampler_destroy(sampler);
        o.n_biases = 3;
        kr_tape_reset(t);
        sampler = kr_sampler_create(ctx, &o, 1, 4);
        CHECK(kr_sampler_next(sampler, F(1, 4), &got) == KR_OK && got.id == 3, "the last one is left");
        kr_sampler_destroy(sampler);
    }
    /* numbers that leave the range of doubles */
    o = defaults();
    o.repetition_penalty = 1e-300;
    kr_sampler *sampler = kr_sampler_create(ctx, &o, 1, 2);
    kr_sampler_accept(sampler, 0, 1);
    kr_sample got;
    const double x[] = { 0, 1e30 };
    REFUSED(KR_ERR_NUMERIC, "sampler.next: row 0: biases and penalties are so large that they make a logit infinite",
            kr_sampler_next(sampler, kr_from_data(t, KR_DTYPE_F64, KR_SHAPE(1, 2), x), &got) == KR_OK);
    kr_sampler_destroy(sampler);
    end();
}

TEST(top_tokens_refused)
{
    begin();
    kr_sample top[9];
    REFUSED(KR_ERR_SHAPE, "top_tokens: logits are [2, 8], but must be one row, [w] or [1, w]",
            kr_top_tokens(F(2, 8), 8, 1, top) == KR_OK);
    REFUSED(KR_ERR_SHAPE, "top_tokens: logits are [], but must be one row, [w] or [1, w]",
            kr_top_tokens(kr_zeros(t, KR_DTYPE_F32, KR_SCALAR), 8, 1, top) == KR_OK);
    REFUSED(KR_ERR_ARG, "top_tokens: vocab = 0, but must be at least 1", kr_top_tokens(F(8), 0, 1, top) == KR_OK);
    REFUSED(KR_ERR_SHAPE, "top_tokens: axis w of logits [8] is 8, but there are 9 tokens",
            kr_top_tokens(F(8), 9, 1, top) == KR_OK);
    REFUSED(KR_ERR_ARG, "top_tokens: count = 9, but must be from 1 to vocab = 8",
            kr_top_tokens(F(8), 8, 9, top) == KR_OK);
    REFUSED(KR_ERR_ARG, "top_tokens: count = 0, but must be from 1 to vocab = 8",
            kr_top_tokens(F(8), 8, 1, NULL) == KR_OK);
    REFUSED(KR_ERR_NUMERIC, "top_tokens: logits [8] hold nan for token 0 of row 0",
            kr_top_tokens(kr_full(t, KR_DTYPE_F32, KR_SHAPE(8), NAN), 8, 1, top) == KR_OK);
    CHECK(kr_top_tokens(NULL, 8, 1, top) == KR_ERR_ARG, "NULL");
    end();
}

TEST(sampler_allocations_may_fail)
{
    begin();
    kr_tensor *logits = F(1, 5000);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks, bytes = kr_ctx_memory(ctx).live_bytes;
    kr_sampler_options o = defaults();
    o.n_biases = 1;
    o.biases = &(kr_logit_bias){ 1, 1 };
    int n = 1;
    for (kr_sampler *sampler = NULL; !sampler && n < 100; n++) {
        kr_ctx_fail_allocation(ctx, (size_t)n);
        sampler = kr_sampler_create(ctx, &o, 2, 5000);
        kr_ctx_fail_allocation(ctx, 0);
        if (!sampler) CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, "sampler.create: no memory");
        else {
            const size_t total = kr_ctx_memory(ctx).total_blocks;
            kr_sample got;
            for (int i = 0; i < 50; i++) kr_sampler_next_rows(sampler, logits, 1, (int64_t[]){ 1 }, &got);
            CHECK(kr_ctx_memory(ctx).total_blocks == total, "sampling asks for memory");
            kr_sampler_destroy(sampler);
            break;
        }
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "allocation %d leaves memory", n);
    }
    CHECK(n > 6 && n < 100 && kr_ctx_memory(ctx).live_bytes == bytes, "%d allocations", n);
    kr_sample top[2];
    for (n = 1; n < 10; n++) {
        kr_ctx_fail_allocation(ctx, (size_t)n);
        const bool done = kr_top_tokens(logits, 5000, 2, top) == KR_OK;
        kr_ctx_fail_allocation(ctx, 0);
        if (done) break;
        CHECK_ERROR(ctx, KR_ERR_NOMEM, "top_tokens: no memory for 5000 tokens");
    }
    CHECK(n == 2 || n == 3, "%d allocations", n);
    end();
}
