/* test_device_streams.c - contexts on streams of the caller's, on the mock device: order, errors, and no waits. */
#include "tests/mock_device.h"

#include "tests/harness.h"

#include "device/device.h"

enum { N = 64 };

static kr_ctx *on(const char *device, void *stream)
{
    kr_ctx_options o;
    kr_ctx_options_init(&o);
    o.device = device;
    o.threads = 1;
    o.stream = stream;
    return kr_ctx_create(&o);
}

/* Counts the host's waits. */
static void count_waits(void *user, const char *slot)
{
    *(int *)user += strcmp(slot, KR_PROBE_WAIT) == 0;
}

static int *watch(kr_ctx *ctx, int *waits)
{
    *waits = 0;
    ctx->device->probe = count_waits;
    ctx->device->probe_user = waits;
    return waits;
}

/* Work of the caller's: fills floats. */
typedef struct filling {
    float *to;
    float value;
    int when; /* it was the n-th to run, from 1 */
} filling;
static int n_run;

static void fill(void *user)
{
    filling *f = user;
    for (int i = 0; i < N; i++) f->to[i] = f->value;
    f->when = ++n_run;
}

static bool all_are(const kr_tensor *x, double value)
{
    double *values = kr_test_values(x);
    bool are = true;
    for (int64_t i = 0; i < kr_tensor_count(x); i++) are = are && values[i] == value;
    free(values);
    return are;
}

/* The caller's work before ours and ours before the caller's, without a wait of the host. */
TEST(a_context_computes_in_the_order_of_the_callers_stream)
{
    mock_stream *stream = mock_stream_create();
    kr_ctx *ctx = on("mock:1", stream);
    CHECK_OK(ctx);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(N));
    filling before = { kr_tensor_data(x), 3, 0 }, after = { kr_tensor_data(x), 5, 0 };
    n_run = 0;
    int waits;
    watch(ctx, &waits);
    mock_stream_queue(stream, fill, &before);
    kr_tensor *y = kr_scale(t, x, 2);
    mock_stream_queue(stream, fill, &after);
    kr_tensor *z = kr_scale(t, x, 2);
    CHECK(waits == 0 && !before.when && mock_stream_waiting(stream) >= 4, "%d waits, %d of the caller's work has run",
          waits, n_run);
    mock_stream_wait(stream);
    CHECK(before.when == 1 && after.when == 2 && all_are(y, 6) && all_are(z, 10), "y or z is wrong");
    CHECK_OK(ctx);
    kr_param_destroy(x);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
    mock_stream_destroy(stream);
}

/* Each stream waits for the one before it; the host waits for the last only. */
TEST(a_new_stream_runs_behind_the_old_one)
{
    mock_stream *streams[3] = { mock_stream_create(), mock_stream_create(), mock_stream_create() };
    for (int last = 0; last < 2; last++) { /* back to the own stream, or not */
        kr_ctx *ctx = on("mock:1", NULL);
        kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
        kr_tensor *x = kr_full(t, KR_DTYPE_F32, KR_SHAPE(N), 1), *y = x;
        filling late = { kr_tensor_data(x), 7, 0 };
        int waits;
        watch(ctx, &waits);
        for (int i = 0; i < 3; i++) {
            CHECK(kr_ctx_use_stream(ctx, streams[i]) == KR_OK, "%s", kr_ctx_message(ctx));
            if (i == 0) mock_stream_queue(streams[0], fill, &late);
            y = kr_scale(t, y, 2);
        }
        if (last) CHECK(kr_ctx_use_stream(ctx, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
        kr_tensor *z = kr_scale(t, y, 0.5);
        CHECK(waits == 0 && !late.when, "%d waits", waits);
        CHECK(all_are(z, 28), "a stream did not run behind the old one");
        CHECK_OK(ctx);
        kr_tape_destroy(t);
        kr_ctx_destroy(ctx);
        for (int i = 0; i < 3; i++) mock_stream_wait(streams[i]);
    }
    for (int i = 0; i < 3; i++) mock_stream_destroy(streams[i]);
}

TEST(the_stream_in_use_is_chosen_again_at_no_cost)
{
    mock_stream *stream = mock_stream_create();
    kr_ctx *ctx = on("mock:1", stream);
    const int64_t waiting = mock_stream_waiting(stream);
    for (int i = 0; i < 3; i++) CHECK(kr_ctx_use_stream(ctx, stream) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(mock_stream_waiting(stream) == waiting, "something was queued");
    CHECK(kr_ctx_use_stream(ctx, NULL) == KR_OK && kr_ctx_use_stream(ctx, NULL) == KR_OK, "the own one");
    kr_ctx_destroy(ctx);
    mock_stream_wait(stream);
    mock_stream_destroy(stream);
}

/* Steps of a network: forward, backward, an optimizer, captured decode steps, with another stream for each. */
static double train_and_generate(const char *device, mock_stream *const *streams, int64_t *ids)
{
    kr_ctx *ctx = on(device, streams ? streams[0] : NULL);
    kr_model_config *config = kr_model_config_create(ctx);
    kr_model_config_set_d_model(config, 8);
    config->layers->n_layers = 2;
    config->mamba2->state_rank = config->mamba2->per_head_dim = 4;
    config->network->vocab_size = 16;
    kr_ctx_seed(ctx, 3);
    kr_model *model = kr_model_create(ctx, config);
    const kr_network *net = kr_model_network(model);
    kr_optimizer *opt = kr_optimizer_create(ctx, kr_network_params(net), NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    const int32_t text[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    double last = 0;
    for (int step = 0; step < 4; step++) {
        if (streams) CHECK(kr_ctx_use_stream(ctx, streams[step % 3]) == KR_OK, "%s", kr_ctx_message(ctx));
        kr_tape_reset(t);
        kr_tensor *y = kr_network_forward(t, net, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 4), text), NULL).y;
        if (streams) CHECK(kr_ctx_use_stream(ctx, streams[(step + 1) % 3]) == KR_OK, "%s", kr_ctx_message(ctx));
        kr_tensor *loss = kr_mean(t, kr_mul(t, y, y), KR_ALL_AXES, false);
        kr_backward(t, loss);
        IGNORE(kr_optimizer_step(opt, 1e-2, 1));
        last = kr_item(loss);
    }
    kr_optimizer_destroy(opt);
    kr_generation *g = kr_generation_create(ctx, net, NULL, NULL);
    kr_generation_feed(g, text, 8);
    for (int i = 0; i < 6; i++) {
        if (streams && i % 2) CHECK(kr_ctx_use_stream(ctx, streams[i % 3]) == KR_OK, "%s", kr_ctx_message(ctx));
        IGNORE(kr_generation_next(g));
        ids[i] = kr_generation_row(g, 0)->sample.id;
    }
    CHECK_OK(ctx);
    kr_generation_destroy(g);
    kr_tape_destroy(t);
    kr_model_destroy(model);
    kr_model_config_destroy(config);
    kr_ctx_destroy(ctx);
    return last;
}

TEST(training_and_generation_are_the_same_on_changing_streams)
{
    static const char *const devices[] = { "mock", "mock:1" };
    for (int d = 0; d < 2; d++) {
        mock_stream *streams[3] = { mock_stream_create(), mock_stream_create(), mock_stream_create() };
        int64_t want[6], got[6];
        const double one = train_and_generate(devices[d], NULL, want),
                     many = train_and_generate(devices[d], streams, got);
        CHECK(one == many, "%s: the last loss is %.17g, and %.17g on several streams", devices[d], one, many);
        CHECK(memcmp(want, got, sizeof want) == 0, "%s: other tokens on several streams", devices[d]);
        for (int i = 0; i < 3; i++) {
            mock_stream_wait(streams[i]);
            mock_stream_destroy(streams[i]);
        }
    }
}

TEST(default_streams_have_names)
{
    kr_ctx *ctx = on("mock:1", KR_STREAM_LEGACY);
    CHECK_OK(ctx);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *x = kr_scale(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE(N), 1), 4);
    CHECK(kr_ctx_use_stream(ctx, KR_STREAM_PER_THREAD) == KR_OK && kr_ctx_use_stream(ctx, NULL) == KR_OK, "%s",
          kr_ctx_message(ctx));
    CHECK(all_are(kr_scale(t, x, 2), 8), "x");
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

TEST(stream_errors)
{
    uint64_t no_stream[8] = { 0 };
    kr_ctx *ctx = on("mock", NULL);
    CHECK(kr_ctx_use_stream(ctx, no_stream) == KR_ERR_ARG, "no stream");
    CHECK_ERROR(
        ctx, KR_ERR_ARG,
        "ctx.use_stream: mock:0 runs at once cannot use the stream: it is no stream; it must be a stream of this "
        "device");
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    CHECK(all_are(kr_full(t, KR_DTYPE_F32, KR_SHAPE(N), 2), 2), "it does not use the old stream");
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);

    ctx = on("mock", no_stream);
    CHECK(kr_ctx_status(ctx) == KR_ERR_ARG && strstr(kr_ctx_message(ctx), "ctx: mock:0 runs at once cannot use the"),
          "%s", kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
    ctx = on("cpu", no_stream);
    CHECK(kr_ctx_status(ctx) == KR_ERR_UNSUPPORTED &&
              strcmp(kr_ctx_message(ctx), "ctx: the device cpu has no streams; leave the stream NULL") == 0,
          "%s", kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
    ctx = on("cpu", NULL);
    CHECK(kr_ctx_use_stream(ctx, NULL) == KR_OK, "NULL is every device's");
    CHECK(kr_ctx_use_stream(ctx, KR_STREAM_LEGACY) == KR_ERR_UNSUPPORTED, "the CPU");
    CHECK_ERROR(ctx, KR_ERR_UNSUPPORTED, "ctx.use_stream: the device cpu has no streams; leave the stream NULL");
    CHECK(kr_ctx_use_stream(NULL, NULL) == KR_ERR_ARG, "no context");
    kr_ctx_destroy(ctx);
}
