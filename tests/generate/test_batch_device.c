/* test_batch_device.c - batches of many rows on devices, where steps have buckets of rows and defer updates of the state: the
 * tokens of the processor, while rows join, leave, fork and are looked at. */
#include "generate/batch_impl.h"
#include "tests/generate/chat.h"

enum { ROWS = 14, MAX_ROWS = 13, TOKENS = 30, TURNS = 2 };

typedef struct record {
    kr_sample samples[ROWS + 1][TURNS * TOKENS];
    int64_t n[ROWS + 1];
    double norms[ROWS + 1][16];
} record;

static void start(kr_row *row, int i, int turn)
{
    int32_t ids[6];
    kr_row_options o;
    kr_row_options_init(&o);
    kr_sampler_options sampler;
    kr_sampler_options_init(&sampler);
    sampler.temperature = 0;
    o.sampler = &sampler;
    o.max_tokens = 5 + (i * 7 + turn * 11) % (TOKENS - 5);
    for (int k = 0; k < 6; k++) ids[k] = (int32_t)((i * 31 + k * 17 + turn * 5) % 250);
    kr_row_feed(row, ids, 1 + i % 6);
    kr_row_generate(row, &o);
}

/* Rows begin two at a step and end at different ones; each then continues with further text. Row 3 is forked on the way, row 5
 * is looked at after every step. */
static void run(kr_ctx *ctx, const kr_network *net, record *r, int64_t *most)
{
    kr_row_batch_options o;
    kr_row_batch_options_init(&o);
    o.max_rows = MAX_ROWS;
    kr_row_batch *batch = kr_row_batch_create(ctx, net, NULL, &o);
    kr_row *rows[ROWS + 1] = { NULL };
    int turn[ROWS + 1] = { 0 };
    const kr_row_event *events;
    int64_t count, n_norms;
    for (int step = 0; step < 200 && !kr_ctx_failed(ctx); step++) {
        for (int i = 2 * step; i < 2 * step + 2 && i < ROWS; i++) start(rows[i] = kr_row_create(batch), i, 0);
        if (step == 9) rows[ROWS] = kr_row_fork(rows[3]);
        if (step == 9) start(rows[ROWS], ROWS, TURNS - 1), turn[ROWS] = TURNS - 1;
        if (kr_row_batch_step(batch, &events, &count) == KR_END && step > ROWS) break;
        if (batch->decoder->lazy.rows > *most) *most = batch->decoder->lazy.rows;
        for (int64_t e = 0; e < count; e++) {
            int i = 0;
            while (rows[i] != events[e].row) i++;
            if (events[e].kind != KR_ROW_EVENT_TOKEN) continue;
            r->samples[i][r->n[i]++] = events[e].sample;
            if (events[e].finish != KR_FINISH_NONE && ++turn[i] < TURNS) start(rows[i], i, turn[i]);
        }
        if (step % 3 == 2) kr_row_state_norms(rows[5], 1, r->norms[5], 16, &n_norms);
    }
    for (int i = 0; i <= ROWS; i++) kr_row_state_norms(rows[i], 1, r->norms[i], 16, &n_norms);
    CHECK_OK(ctx);
    kr_row_batch_destroy(batch);
}

static void compare(const char *device, const record *got, const record *want)
{
    for (int i = 0; i <= ROWS; i++) {
        CHECK(got->n[i] == want->n[i] && got->n[i] > 0, "%s, row %d: %d tokens, not %d", device, i, (int)got->n[i],
              (int)want->n[i]);
        for (int64_t k = 0; k < want->n[i]; k++) {
            const kr_sample a = got->samples[i][k], b = want->samples[i][k];
            if (!CHECK(a.id == b.id && fabs(a.logprob - b.logprob) < 1e-4,
                       "%s, row %d, token %d: %d at %g, not %d at %g", device, i, (int)k, a.id, a.logprob, b.id,
                       b.logprob))
                break;
        }
        for (int k = 0; k < 16; k++)
            CHECK(fabs(got->norms[i][k] - want->norms[i][k]) < 1e-4, "%s, row %d: norm %d is %g, not %g", device, i, k,
                  got->norms[i][k], want->norms[i][k]);
    }
}

TEST(rows_on_devices_generate_the_tokens_of_the_processor)
{
    static const char *const devices[] = { "mock", "mock:1", "cuda" };
    for (int family = KR_FAMILY_MAMBA1; family <= KR_FAMILY_MAMBA3; family++) {
        static record want, got;
        int64_t most = 0;
        memset(&want, 0, sizeof want);
        kr_ctx *cpu = chat_device("cpu", KR_PRECISION_EXACT);
        kr_network *net = chat_network(cpu, (kr_family)family, KR_DTYPE_F32, 0, NULL);
        run(cpu, net, &want, &most);
        kr_network_destroy(net);
        kr_ctx_destroy(cpu);
        CHECK(most == 0, "the processor defers updates");
        for (int d = 0; d < 3; d++) {
            kr_ctx *ctx = chat_device(devices[d], KR_PRECISION_EXACT);
            if (!ctx) continue;
            memset(&got, 0, sizeof got);
            net = chat_network(ctx, (kr_family)family, KR_DTYPE_F32, 0, NULL);
            run(ctx, net, &got, &most);
            compare(devices[d], &got, &want);
            kr_network_destroy(net);
            kr_ctx_destroy(ctx);
        }
        CHECK((most > 8) == (family == KR_FAMILY_MAMBA2), "family %d: updates of %d rows are deferred", family,
              (int)most);
    }
}

/* ---- memory of the states ---- */

/* Rows that there is memory for after the first step of a row. */
static int64_t first_capacity(const char *device, int64_t max_rows)
{
    kr_ctx *ctx = chat_device(device, KR_PRECISION_EXACT);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    kr_row_batch_options o;
    kr_row_batch_options_init(&o);
    o.max_rows = max_rows;
    kr_row_batch *batch = kr_row_batch_create(ctx, net, NULL, &o);
    const kr_row_event *events;
    int64_t count, capacity = 0;
    start(kr_row_create(batch), 1, 0);
    while (!capacity && kr_row_batch_step(batch, &events, &count) == KR_OK)
        if (batch->live) capacity = batch->live->capacity;
    CHECK_OK(ctx);
    kr_row_batch_destroy(batch);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    return capacity;
}

/* A state that grows has other addresses, for which steps are captured anew. */
TEST(states_on_devices_do_not_grow_where_memory_is_plenty)
{
    CHECK(first_capacity("cpu", 100) == 1, "on the processor");
    CHECK(first_capacity("mock", 100) == 100, "on a device");
    CHECK(first_capacity("mock:3", 100) == 100, "on a small device");
    CHECK(first_capacity("mock:3", 1 << 12) == 1, "more than a small device has");
}

/* ---- exactness ---- */

static bool is_exact(const char *device, const char *isa, kr_precision precision)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = device;
    options.isa = isa;
    options.precision = precision;
    options.threads = 1;
    kr_ctx *ctx = kr_ctx_create(&options);
    kr_network *net = chat_network(ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32, 0, NULL);
    kr_row_batch *batch = kr_row_batch_create(ctx, net, NULL, NULL);
    const bool result = kr_row_batch_stats_of(batch).is_exact;
    CHECK_OK(ctx);
    kr_row_batch_destroy(batch);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    return result;
}

TEST(a_batch_tells_whether_rows_are_exact)
{
    CHECK(is_exact("cpu", NULL, KR_PRECISION_EXACT), "the processor");
    CHECK(is_exact("cpu", "ref", KR_PRECISION_EXACT), "the reference");
    CHECK(!is_exact("cpu", "ref", KR_PRECISION_BF16), "products in bf16");
    CHECK(!is_exact("mock", NULL, KR_PRECISION_EXACT), "a device");
    CHECK(!kr_row_batch_stats_of(NULL).is_exact, "no batch");
}
