/* test_deferred_generation.c - generations whose steps defer state updates: rows leave, files are saved, nothing is lost. */
#define _POSIX_C_SOURCE 200809L
#include "tests/temp_folder.h"
#include "tests/generate/chat.h"

#include <math.h>

static const char *const devices[] = { "mock", "mock:1", "cuda" };

enum { SAMPLES = 12, MAX_TOKENS = 40 };

/* Rows leave one by one at the ids that end them; *ids, *logprobs [MAX_TOKENS SAMPLES], -1 where a row had left. saved_at: the
 * generation is resumed from a file after so many steps; -1: never. */
static void chat_of_many(const char *device, int saved_at, int32_t *ids, double *logprobs)
{
    static const int32_t stops[] = { 3, 17, 40, 41, 42, 43, 44, 99, 100, 101, 150, 200 };
    kr_ctx *ctx = chat_device(device, KR_PRECISION_EXACT);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    kr_generate_options o = chat_options();
    o.n_samples = SAMPLES;
    o.max_tokens = MAX_TOKENS;
    chat_sampler.seed = 11;
    o.n_stop_ids = 12;
    o.stop_ids = stops;
    const int32_t prompt[] = { 5, 77, 9 };
    kr_generation *g = kr_generation_create(ctx, net, NULL, &o);
    kr_generation_feed(g, prompt, 3);
    for (int step = 0; step < MAX_TOKENS; step++) {
        if (step == saved_at) {
            IGNORE(kr_generation_save(g, in_folder("chat")));
            kr_generation_destroy(g);
            g = kr_generation_create(ctx, net, NULL, &o);
            IGNORE(kr_generation_load(g, in_folder("chat")));
        }
        const bool has_next = kr_generation_next(g) == KR_OK;
        for (int r = 0; r < SAMPLES; r++) {
            const kr_generated *one = kr_generation_row(g, r);
            const bool is_new = has_next && one && one->is_new;
            ids[step * SAMPLES + r] = is_new ? one->sample.id : -1;
            logprobs[step * SAMPLES + r] = is_new ? one->sample.logprob : 0;
        }
    }
    CHECK_OK(ctx);
    kr_generation_destroy(g);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

TEST(rows_leave_and_files_keep_deferred_updates)
{
    static int32_t want[MAX_TOKENS * SAMPLES], whole[MAX_TOKENS * SAMPLES], got[MAX_TOKENS * SAMPLES];
    static double of_want[MAX_TOKENS * SAMPLES], of_whole[MAX_TOKENS * SAMPLES], of_got[MAX_TOKENS * SAMPLES];
    begin_folder();
    chat_of_many("cpu", -1, want, of_want);
    int left = 0;
    for (int r = 0; r < SAMPLES; r++) left += want[(MAX_TOKENS - 1) * SAMPLES + r] < 0;
    CHECK(left > 2 && left < SAMPLES, "%d of %d rows left on the way", left, SAMPLES);
    for (int d = 0; d < 3; d++) {
        kr_ctx *ctx = chat_device(devices[d], KR_PRECISION_EXACT);
        if (!ctx) continue;
        kr_ctx_destroy(ctx);
        chat_of_many(devices[d], -1, whole, of_whole);
        for (int i = 0; i < MAX_TOKENS * SAMPLES; i++)
            CHECK(whole[i] == want[i] && fabs(of_whole[i] - of_want[i]) < 1e-4, "%s, step %d, row %d: %d, not %d",
                  devices[d], i / SAMPLES, i % SAMPLES, whole[i], want[i]);
        for (int saved_at = 2; saved_at < 20; saved_at += 5) {
            chat_of_many(devices[d], saved_at, got, of_got);
            CHECK(memcmp(got, whole, sizeof got) == 0 && memcmp(of_got, of_whole, sizeof of_got) == 0,
                  "%s: a generation saved after %d steps continues with other bits", devices[d], saved_at);
        }
    }
    end_folder();
}
