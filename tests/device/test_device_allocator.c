/* test_device_allocator.c - device memory from the caller's allocator, on the mock device: all of it, balanced, in the order of
 * the stream; refused at every place; also after the context. */
#include "tests/mock_device.h"

#include "tests/harness.h"

#include "device/device.h"

enum { MOST = 4096 };

/* Every block has its size and the stream it was allocated for; the n-th request can be refused. */
typedef struct pool {
    struct {
        void *p;
        size_t bytes;
    } live[MOST];
    int n_live, n_allocs, n_wrong, n_late; /* n_late: freed with KR_STREAM_LEGACY */
    int refuse;                            /* the n-th request; 0: none */
    size_t bytes;
    void *stream; /* of the last call */
} pool;

static void *pool_alloc(void *user, size_t bytes, void *stream)
{
    pool *m = user;
    m->stream = stream;
    if (++m->n_allocs == m->refuse || m->n_live == MOST) return NULL;
    void *p = mock_memory_alloc(bytes);
    if (!p) return NULL;
    m->live[m->n_live].p = p;
    m->live[m->n_live++].bytes = bytes;
    m->bytes += bytes;
    return p;
}

static void pool_free(void *user, void *p, size_t bytes, void *stream)
{
    pool *m = user;
    int i = 0;
    m->stream = stream;
    if (stream == KR_STREAM_LEGACY) m->n_late++;
    else mock_stream_wait(stream); /* its kernels may use the block */
    while (i < m->n_live && m->live[i].p != p) i++;
    if (i == m->n_live || m->live[i].bytes != bytes) {
        m->n_wrong++;
        return;
    }
    m->live[i] = m->live[--m->n_live];
    m->bytes -= bytes;
    mock_memory_free(p);
}

static kr_device_allocator hooks_of(pool *m)
{
    return (kr_device_allocator){ .alloc = pool_alloc, .free = pool_free, .user = m };
}

static kr_ctx *on(const char *device, const kr_device_allocator *allocator)
{
    kr_ctx_options o;
    kr_ctx_options_init(&o);
    o.device = device;
    o.threads = 1;
    o.device_allocator = allocator;
    return kr_ctx_create(&o);
}

/* A step of training and a few of generation; the last loss. */
static double run(kr_ctx *ctx)
{
    kr_model_config *config = kr_model_config_create(ctx);
    if (config) {
        kr_model_config_set_d_model(config, 8);
        config->layers->n_layers = 2;
        config->mamba2->state_rank = config->mamba2->per_head_dim = 4;
        config->network->vocab_size = 16;
    }
    kr_model *model = kr_model_create(ctx, config);
    const kr_network *net = kr_model_network(model);
    kr_optimizer *opt = kr_optimizer_create(ctx, kr_network_params(net), NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    const int32_t text[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    kr_tensor *y = kr_network_forward(t, net, kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(2, 4), text), NULL).y;
    kr_tensor *loss = kr_mean(t, kr_mul(t, y, y), KR_ALL_AXES, false);
    kr_backward(t, loss);
    IGNORE(kr_optimizer_step(opt, 1e-2, 1));
    const double value = kr_item(loss);
    kr_optimizer_destroy(opt);
    kr_generation *g = kr_generation_create(ctx, net, NULL, NULL);
    kr_generation_feed(g, text, 8);
    for (int i = 0; i < 4; i++) IGNORE(kr_generation_next(g));
    kr_generation_destroy(g);
    kr_tape_destroy(t);
    kr_model_destroy(model);
    kr_model_config_destroy(config);
    return value;
}

TEST(all_device_memory_comes_from_the_callers_allocator)
{
    static const char *const devices[] = { "mock", "mock:1" };
    for (int d = 0; d < 2; d++) {
        static pool m;
        m = (pool){ .n_live = 0 };
        const kr_device_allocator hooks = hooks_of(&m);
        kr_ctx *plain = on(devices[d], NULL);
        const double want = run(plain);
        kr_ctx_destroy(plain);
        kr_ctx *ctx = on(devices[d], &hooks);
        CHECK_OK(ctx);
        mock_stream *stream = mock_stream_create();
        CHECK(kr_ctx_device_memory(ctx).live_bytes == m.bytes, "%zu bytes are counted, %zu are allocated",
              kr_ctx_device_memory(ctx).live_bytes, m.bytes);
        const double got = run(ctx);
        CHECK_OK(ctx);
        CHECK(got == want, "%s: the loss is %.17g, and without the allocator %.17g", devices[d], got, want);
        CHECK(kr_ctx_device_memory(ctx).live_bytes == m.bytes &&
                  kr_ctx_device_memory(ctx).total_blocks == (size_t)m.n_allocs,
              "%zu blocks are counted, %d were allocated", kr_ctx_device_memory(ctx).total_blocks, m.n_allocs);
        IGNORE(kr_ctx_use_stream(ctx, stream));
        kr_param_destroy(kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(100)));
        CHECK(m.stream == stream, "the stream is not the one in use");
        kr_ctx_destroy(ctx);
        CHECK(m.n_allocs > 10 && m.n_live == 0 && m.bytes == 0 && m.n_wrong == 0 && m.n_late == 0,
              "%s: %d of %d blocks are left, %d frees of other blocks, %d late", devices[d], m.n_live, m.n_allocs,
              m.n_wrong, m.n_late);
        mock_stream_wait(stream);
        mock_stream_destroy(stream);
    }
}

TEST(each_device_allocation_may_be_refused)
{
    const int step = kr_test_quick() ? 7 : 1;
    int n = 1;
    for (bool done = false; !done && n < 500; n += step) {
        static pool m;
        m = (pool){ .refuse = n };
        const kr_device_allocator hooks = hooks_of(&m);
        kr_ctx *ctx = on("mock:1", &hooks);
        run(ctx);
        done = m.n_allocs < n;
        CHECK(done == !kr_ctx_failed(ctx) && (done || kr_ctx_status(ctx) == KR_ERR_NOMEM), "request %d: %s %s", n,
              kr_status_name(kr_ctx_status(ctx)), kr_ctx_message(ctx));
        kr_ctx_destroy(ctx);
        CHECK(m.n_live == 0 && m.n_wrong == 0, "request %d: %d blocks are left, %d frees of other blocks", n, m.n_live,
              m.n_wrong);
    }
    CHECK(n > 10 && n < 500, "%d requests", n);
}

TEST(shared_weights_go_back_to_the_allocator_after_the_context)
{
    static pool m;
    m = (pool){ .n_live = 0 };
    const kr_device_allocator hooks = hooks_of(&m);
    kr_ctx *ctx = on("mock", &hooks), *other = on("mock", NULL);
    kr_model_config *config = kr_model_config_create(ctx);
    kr_model_config_set_d_model(config, 8);
    config->layers->n_layers = 1;
    config->mamba2->state_rank = config->mamba2->per_head_dim = 4;
    config->network->vocab_size = 16;
    kr_model *model = kr_model_create(ctx, config), *shared = kr_model_share(other, model);
    CHECK_OK(ctx);
    CHECK_OK(other);
    kr_model_config_destroy(config);
    kr_model_destroy(model);
    kr_ctx_destroy(ctx);
    CHECK(m.n_live > 0 && m.n_late == 0, "the weights are gone");
    kr_tape *t = kr_tape_create(other, KR_TAPE_NO_GRAD);
    const int32_t text[4] = { 1, 2, 3, 4 };
    kr_tensor *y =
        kr_network_forward(t, kr_model_network(shared), kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(1, 4), text), NULL).y;
    CHECK(isfinite(kr_item(kr_mean(t, y, KR_ALL_AXES, false))), "the weights are wrong");
    kr_tape_destroy(t);
    kr_model_destroy(shared);
    CHECK(m.n_live == 0 && m.n_wrong == 0 && m.n_late > 0, "%d blocks are left, %d frees of other blocks", m.n_live,
          m.n_wrong);
    CHECK_OK(other);
    kr_ctx_destroy(other);
}

static void expect_error(const char *device, const kr_device_allocator *hooks, kr_status status, const char *text)
{
    kr_ctx *ctx = on(device, hooks);
    CHECK(kr_ctx_status(ctx) == status && strcmp(kr_ctx_message(ctx), text) == 0, "%s: (%s) %s", device,
          kr_status_name(kr_ctx_status(ctx)), kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
}

TEST(device_allocator_errors)
{
    static pool m;
    const kr_device_allocator good = hooks_of(&m);
    kr_device_allocator bad = good;
    expect_error("cpu", &good, KR_ERR_UNSUPPORTED,
                 "ctx: device_allocator is set, but the device cpu has host memory only: set allocator");
    bad.alloc = NULL;
    expect_error("mock", &bad, KR_ERR_ARG, "ctx: device_allocator.alloc is NULL");
    bad = good, bad.free = NULL;
    expect_error("mock", &bad, KR_ERR_ARG, "ctx: device_allocator.free is NULL");
    bad = good, bad.reserved[1] = &m;
    expect_error("mock", &bad, KR_ERR_UNSUPPORTED,
                 "ctx: a reserved word of kr_device_allocator is not 0; set all of the struct with an initialiser, or "
                 "install the version of the library that the program was built for");
}
