/* test_generation_device.c - generations on devices: recorded steps, how many kernels they are, choices made
 * there, and generations that continue on another device. */
#define _POSIX_C_SOURCE 200809L
#include "ops/autocast.h"
#include "generate/generation_impl.h"
#include "tests/temp_folder.h"
#include "tests/generate/chat.h"

enum { STEPS = 12, NDEVICES = 3 };

static kr_ctx *open_device(const char *name)
{
    return chat_device(name, KR_PRECISION_EXACT);
}

static const char *const devices[NDEVICES] = { "mock", "mock:1", "cuda" };
static const int32_t prompt[] = { 3, 99, 17, 200, 5 };

static void compare(const char *what, const chat_record *got, const chat_record *want, int64_t rows)
{
    CHECK(got->count == want->count, "%s: %d calls, not %d", what, got->count, want->count);
    for (int step = 0; step < want->count && step < got->count; step++)
        for (int64_t r = 0; r < rows; r++) {
            const kr_sample a = got->rows[step][r].sample, b = want->rows[step][r].sample;
            CHECK(a.id == b.id && fabs(a.logprob - b.logprob) < 1e-4, "%s, step %d, row %d: %d at %.9g, not %d at %.9g",
                  what, step, (int)r, a.id, a.logprob, b.id, b.logprob);
        }
}

/* The same generation; *launches of a recorded step, -1 if there is none. */
static void run_chat(kr_ctx *ctx, kr_family family, kr_dtype dtype, const kr_generate_options *o, chat_record *record,
                     int64_t *launches)
{
    kr_network *net = chat_network(ctx, family, dtype, 0, NULL);
    kr_generation *g = kr_generation_create(ctx, net, NULL, o);
    kr_generation_feed(g, prompt, 5);
    chat_on(record, g, STEPS);
    CHECK_OK(ctx);
    *launches = g ? kr_decoder_launches(g->batch->decoder) : -1;
    kr_generation_destroy(g);
    kr_network_destroy(net);
}

static kr_generate_options options_of(int kind)
{
    kr_generate_options o = chat_options();
    o.max_tokens = STEPS;
    o.n_samples = kind == 0 ? 1 : 3;
    chat_sampler.seed = 4;
    if (kind == 0) chat_sampler.temperature = 0;
    if (kind == 2)
        chat_sampler.top_k = 40, chat_sampler.top_p = 0.9, chat_sampler.min_p = 0.01, chat_sampler.temperature = 0.8;
    if (kind == 3) chat_sampler.repetition_penalty = 1.2, chat_sampler.frequency_penalty = 0.1;
    return o;
}

TEST(devices_choose_the_tokens_of_the_processor)
{
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++)
        for (int kind = 0; kind < 4; kind++) {
            const kr_generate_options o = options_of(kind);
            const kr_dtype dtype = kind == 1 ? KR_DTYPE_BF16 : KR_DTYPE_F32;
            chat_record want = { 0 };
            int64_t launches;
            kr_ctx *cpu = open_device("cpu");
            run_chat(cpu, (kr_family)family, dtype, &o, &want, &launches);
            CHECK(launches == -1, "the processor has nothing to record");
            kr_ctx_destroy(cpu);
            for (int d = 0; d < NDEVICES; d++) {
                kr_ctx *ctx = open_device(devices[d]);
                if (!ctx) continue;
                chat_record got = { 0 };
                run_chat(ctx, (kr_family)family, dtype, &o, &got, &launches);
                CHECK(launches > 0, "%s, family %d: steps are not recorded", devices[d], family);
                char what[64];
                snprintf(what, sizeof what, "%s, family %d, kind %d", devices[d], family, kind);
                compare(what, &got, &want, o.n_samples);
                kr_ctx_destroy(ctx);
            }
        }
}

/* Embedding, three or four for each layer, head with its norm, choice; a table of halves is widened, on the way where the device
 * takes halves. */
TEST(a_step_is_a_few_kernels)
{
    static const int64_t of_layer[] = { [KR_FAMILY_MAMBA1] = 4, [KR_FAMILY_MAMBA2] = 3, [KR_FAMILY_MAMBA3] = 3 };
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++)
        for (int d = 0; d < NDEVICES; d++)
            for (int half = 0; half < 2; half++) {
                kr_ctx *ctx = open_device(devices[d]);
                if (!ctx) continue;
                const kr_generate_options o = options_of(0);
                chat_record record = { 0 };
                int64_t launches;
                run_chat(ctx, (kr_family)family, half ? KR_DTYPE_BF16 : KR_DTYPE_F32, &o, &record, &launches);
                CHECK(launches == 1 + of_layer[family] * 2 + 2, "%s, family %d: %lld kernels", devices[d], family,
                      (long long)launches);
                kr_ctx_destroy(ctx);
            }
}

/* Rows that say the same are the same to the bit; *launches of a recorded step. */
static void chat_alike(kr_ctx *ctx, int64_t rows, kr_dtype dtype, kr_sample *last, int64_t *launches)
{
    kr_generate_options o = options_of(0);
    o.n_samples = rows;
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, dtype, 0, NULL);
    kr_generation *g = kr_generation_create(ctx, net, NULL, &o);
    kr_generation_feed(g, prompt, 5);
    for (int step = 0; step < STEPS && !kr_ctx_failed(ctx); step++) {
        IGNORE(kr_generation_next(g));
        const kr_generated *first = kr_generation_row(g, 0), *row;
        for (int64_t r = 1; first && r < rows && (row = kr_generation_row(g, r)); r++)
            CHECK(row->sample.id == first->sample.id && row->sample.logprob == first->sample.logprob,
                  "%s, step %d, row %d of %d: %d at %.9g, not %d at %.9g", kr_ctx_device(ctx), step, (int)r, (int)rows,
                  row->sample.id, row->sample.logprob, first->sample.id, first->sample.logprob);
        if (first) *last = first->sample;
    }
    CHECK_OK(ctx);
    *launches = g ? kr_decoder_launches(g->batch->decoder) : -1;
    kr_generation_destroy(g);
    kr_network_destroy(net);
}

/* Three kernels of each layer where norm and product are one, besides those of embedding and head. */
TEST(many_rows_take_few_kernels)
{
    static const int64_t rows[] = { 70, 64, 9 };
    for (int i = 0; i < 3; i++) {
        kr_sample want = { 0 }, got = { 0 };
        int64_t launches;
        kr_ctx *cpu = open_device("cpu");
        chat_alike(cpu, rows[i], KR_DTYPE_BF16, &want, &launches);
        kr_ctx_destroy(cpu);
        for (int d = 0; d < NDEVICES; d++) {
            kr_ctx *ctx = chat_device(devices[d], KR_PRECISION_BF16);
            if (!ctx) continue;
            chat_alike(ctx, rows[i], KR_DTYPE_BF16, &got, &launches);
            const bool rounds = kr_autocasts(ctx);
            CHECK(rounds || (got.id == want.id && fabs(got.logprob - want.logprob) < 1e-4),
                  "%s: %d at %.9g, not %d at %.9g", devices[d], got.id, got.logprob, want.id, want.logprob);
            CHECK(launches == 1 + 3 * 2 + 2, "%s, %d rows: %lld kernels", devices[d], (int)rows[i],
                  (long long)launches);
            kr_ctx_destroy(ctx);
        }
    }
}

/* ---- from one to another ---- */

typedef struct scene {
    kr_ctx *ctx;
    kr_network *net;
    kr_generation *g;
} scene;

static scene begin(const char *device, kr_family family)
{
    scene s = { open_device(device), NULL, NULL };
    const kr_generate_options o = options_of(1);
    if (!s.ctx) return s;
    s.net = chat_network(s.ctx, family, KR_DTYPE_F32, 0, NULL);
    s.g = kr_generation_create(s.ctx, s.net, NULL, &o);
    return s;
}

static void end(scene *s)
{
    kr_generation_destroy(s->g);
    kr_network_destroy(s->net);
    kr_ctx_destroy(s->ctx);
}

TEST(a_generation_continues_on_another_device)
{
    begin_folder();
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++)
        for (int d = 0; d < NDEVICES; d++) {
            chat_record want = { 0 }, got = { 0 };
            scene whole = begin("cpu", (kr_family)family), here = begin("cpu", (kr_family)family),
                  there = begin(devices[d], (kr_family)family), back = begin("cpu", (kr_family)family);
            kr_generation_feed(whole.g, prompt, 5);
            chat_on(&want, whole.g, STEPS);
            if (there.ctx) {
                kr_generation_feed(here.g, prompt, 5);
                for (int step = 0; step < STEPS; step++) {
                    kr_generation *g = step < 4 ? here.g : step < 8 ? there.g : back.g;
                    if (step == 4 || step == 8) {
                        kr_generation *before = step == 4 ? here.g : there.g;
                        CHECK(kr_generation_save(before, in_folder("chat")) == KR_OK, "save");
                        CHECK(kr_generation_load(g, in_folder("chat")) == KR_OK, "load");
                    }
                    IGNORE(kr_generation_next(g));
                    chat_note(&got, g);
                }
                CHECK_OK(here.ctx);
                CHECK_OK(there.ctx);
                CHECK_OK(back.ctx);
                compare(devices[d], &got, &want, 3);
                end(&there);
            }
            end(&whole);
            end(&here);
            end(&back);
        }
    end_folder();
}

/* ---- ahead of the calls ---- */

/* Rows that stop at tokens of their own, go on from there, from further text, and out of files. */
typedef struct turn {
    int calls;           /* of next; then */
    int64_t fed;         /* tokens of the prompt, or -1: nothing is fed */
    bool through_a_file; /* the rest is another generation's, on the other device */
} turn;

static const turn plans[][6] = {
    { { 30, -1, false } },
    { { 30, 0, false }, { 30, 0, false }, { 30, -1, false } },
    { { 30, 3, false }, { 2, 2, false }, { 9, 1, false }, { 30, -1, false } },
    { { 4, 2, false }, { 7, 0, false }, { 1, 4, false }, { 30, -1, false } },
    { { 7, -1, true }, { 3, -1, true }, { 30, -1, false } },
    { { 30, -1, true }, { 0, 0, true }, { 4, -1, true }, { 30, 2, true }, { 30, -1, false } },
    { { 7, -1, true }, { 0, 3, false }, { 6, -1, true }, { 0, 1, true }, { 30, -1, false } },
};
enum { NPLANS = (int)(sizeof plans / sizeof *plans) };

static kr_generate_options stopping(int64_t max_tokens)
{
    static const int32_t stops[] = { 7, 19, 40, 41, 42, 43, 90, 91, 92, 93, 150, 151, 152, 200, 201, 202, 203 };
    kr_generate_options o = options_of(1);
    o.max_tokens = max_tokens;
    o.stop_ids = stops;
    o.n_stop_ids = (int)(sizeof stops / sizeof *stops);
    return o;
}

/* The plan on one device, or on two in turn. */
static void follow(const turn *plan, const char *const *names, kr_family family, int64_t max_tokens,
                   chat_record *record)
{
    const kr_generate_options o = stopping(max_tokens);
    scene s[2] = { 0 };
    for (int i = 0; i < 2; i++) {
        s[i].ctx = open_device(names[i]);
        s[i].net = chat_network(s[i].ctx, family, KR_DTYPE_F32, 0, NULL);
        s[i].g = kr_generation_create(s[i].ctx, s[i].net, NULL, &o);
    }
    int at = 0;
    kr_generation_feed(s[0].g, prompt, 5);
    for (bool is_last = false; !is_last; plan++) {
        is_last = plan->fed < 0 && !plan->through_a_file;
        chat_on(record, s[at].g, plan->calls);
        if (plan->fed >= 0) kr_generation_feed(s[at].g, prompt, plan->fed);
        if (!plan->through_a_file) continue;
        CHECK(kr_generation_save(s[at].g, in_folder("chat")) == KR_OK, "save");
        at = 1 - at;
        CHECK(kr_generation_load(s[at].g, in_folder("chat")) == KR_OK, "load");
    }
    for (int i = 0; i < 2; i++) {
        CHECK_OK(s[i].ctx);
        end(&s[i]);
    }
}

TEST(devices_that_are_ahead_say_the_same)
{
    static const char *const cpus[] = { "cpu", "cpu" };
    begin_folder();
    for (int p = 0; p < NPLANS; p++)
        for (int length = 0; length < 2; length++) {
            const kr_family family = (kr_family)(KR_FAMILY_MAMBA1 + (p + length) % 3);
            const int64_t most = length ? 9 : -1;
            chat_record want = { 0 };
            follow(plans[p], cpus, family, most, &want);
            for (int d = 0; d < NDEVICES; d++) {
                kr_ctx *ctx = open_device(devices[d]);
                kr_ctx_destroy(ctx);
                if (!ctx) continue;
                const char *const alone[] = { devices[d], devices[d] }, *const mixed[] = { devices[d], "cpu" };
                char what[64];
                snprintf(what, sizeof what, "%s, plan %d, %lld tokens", devices[d], p, (long long)most);
                chat_record got = { 0 }, both = { 0 };
                follow(plans[p], alone, family, most, &got);
                compare(what, &got, &want, 3);
                follow(plans[p], mixed, family, most, &both);
                compare(what, &both, &want, 3);
            }
        }
    end_folder();
}

/* Row 1 ends with its first token, before a device is ahead. An empty feed lets it continue while the device is ahead of the
 * other rows; from then on each call gives a token of every row. */
static void continue_a_row(const char *device, int32_t stop, chat_record *record)
{
    enum { ALONE = 5, TOGETHER = 4 };
    kr_generate_options o = options_of(1);
    o.max_tokens = -1;
    o.n_stop_ids = 1;
    o.stop_ids = &stop;
    kr_ctx *ctx = open_device(device);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    kr_generation *g = kr_generation_create(ctx, net, NULL, &o);
    kr_generation_feed(g, prompt, 5);
    chat_on(record, g, ALONE);
    CHECK(record->rows[0][1].finish == KR_FINISH_STOP_ID && !record->rows[1][1].is_new, "%s: row 1 does not end",
          device);
    CHECK(!kr_test_on_device(ctx) || kr_decoder_is_ahead(g->batch->decoder), "%s: not a step ahead", device);
    kr_generation_feed(g, NULL, 0);
    chat_on(record, g, TOGETHER);
    for (int i = ALONE; i < record->count; i++)
        for (int r = 0; r < 3; r++)
            CHECK(record->rows[i][r].is_new || record->rows[i - 1][r].finish != KR_FINISH_NONE,
                  "%s: call %d gives no token of row %d", device, i, r);
    CHECK_OK(ctx);
    kr_generation_destroy(g);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

TEST(a_row_catches_up_with_a_device_that_is_ahead)
{
    chat_record first = { 0 }, want = { 0 };
    kr_generate_options o = options_of(1);
    int64_t launches;
    kr_ctx *cpu = open_device("cpu");
    run_chat(cpu, KR_FAMILY_MAMBA2, KR_DTYPE_F32, &o, &first, &launches);
    kr_ctx_destroy(cpu);
    const int32_t stop = first.rows[0][1].sample.id;
    continue_a_row("cpu", stop, &want);
    for (int d = 0; d < NDEVICES; d++) {
        kr_ctx *ctx = open_device(devices[d]);
        kr_ctx_destroy(ctx);
        if (!ctx) continue;
        chat_record got = { 0 };
        continue_a_row(devices[d], stop, &got);
        compare(devices[d], &got, &want, 3);
    }
}

/* A network whose logits are no numbers, from a later step on. */
TEST(a_device_that_is_ahead_finds_what_is_wrong)
{
    for (int d = 0; d < NDEVICES; d++) {
        kr_ctx *ctx = open_device(devices[d]);
        if (!ctx) continue;
        kr_generate_options o = options_of(1);
        o.max_tokens = -1;
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
        kr_generation *g = kr_generation_create(ctx, net, NULL, &o);
        kr_generation_feed(g, prompt, 5);
        for (int i = 0; i < 4; i++) CHECK(kr_generation_next(g) == KR_OK, "step %d", i);
        CHECK(kr_decoder_is_ahead(g->batch->decoder), "%s: not a step ahead", devices[d]);
        kr_test_put(net->norm_f_d, 3, NAN);
        int more = 0;
        while (more < 4 && kr_generation_next(g) == KR_OK) more++;
        CHECK(more == 1, "%s: %d more", devices[d], more);
        CHECK_ERROR(ctx, KR_ERR_NUMERIC,
                    "generation.next: row.sample: logits [3, 256] hold a NaN or an infinity, or -inf for all "
                    "tokens that row 0 may generate");
        CHECK(kr_generation_next(g) != KR_OK, "it continues");
        CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "an earlier call failed midway");
        kr_generation_destroy(g);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
}

/* What a device has computed ahead is part of a file; without numbers there is none. */
TEST(a_generation_without_a_sample_ahead_is_not_saved)
{
    begin_folder();
    for (int d = 0; d < NDEVICES; d++) {
        kr_ctx *ctx = open_device(devices[d]);
        if (!ctx) continue;
        kr_generate_options o = options_of(1);
        o.max_tokens = -1;
        kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
        kr_generation *g = kr_generation_create(ctx, net, NULL, &o);
        kr_generation_feed(g, prompt, 5);
        for (int i = 0; i < 4; i++) CHECK(kr_generation_next(g) == KR_OK, "step %d", i);
        CHECK(kr_generation_save(g, in_folder("chat")) == KR_OK && kr_generation_next(g) == KR_OK, "%s: it continues",
              devices[d]);
        for (int i = 0; i < 3; i++) CHECK(kr_generation_next(g) == KR_OK, "step %d after the file", i);
        kr_test_put(net->norm_f_d, 3, NAN);
        CHECK(kr_generation_next(g) == KR_OK, "%s: this one was computed before", devices[d]);
        CHECK(kr_generation_save(g, in_folder("none")) != KR_OK, "%s: a file without the next token", devices[d]);
        CHECK_ERROR(ctx, KR_ERR_NUMERIC,
                    "generation.save: the logits of row 0 hold a NaN or an infinity, or -inf for all tokens");
        CHECK(kr_generation_next(g) != KR_OK, "it continues");
        CHECK_ERROR_HAS(ctx, KR_ERR_STATE, "an earlier call failed midway");
        kr_generation_destroy(g);
        kr_network_destroy(net);
        kr_ctx_destroy(ctx);
    }
    end_folder();
}
