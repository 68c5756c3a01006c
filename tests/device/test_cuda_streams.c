/* test_cuda_streams.c - contexts on streams of the caller's on a GPU, and with its allocator: results, order, and that
 * nothing waits.
 *
 * Streams and memory of the program come from the CUDA driver, which is loaded here: skipped where there is none. A stream is
 * held by a host function until the test lets it go, so a call that waited for the GPU would not return before the function
 * gives up, which fails the test.
 */
#define _GNU_SOURCE
#include "tests/harness.h"

#include "device/device.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <time.h>

enum { N = 1 << 16, NOT_READY = 600 };

typedef struct CUstream_st *cu_stream;
typedef unsigned long long cu_address;

static struct {
    int (*stream_create)(cu_stream *stream, unsigned flags);
    int (*stream_destroy)(cu_stream stream);
    int (*stream_wait)(cu_stream stream);
    int (*stream_query)(cu_stream stream);
    int (*host_function)(cu_stream stream, void (*fn)(void *user), void *user);
    int (*alloc)(cu_address *p, size_t bytes);
    int (*free)(cu_address p);
    int (*fill)(cu_address p, unsigned value, size_t count, cu_stream stream);
} cu;

static bool find(void *library, const char *name, void *to)
{
    void *symbol = dlsym(library, name);
    memcpy(to, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    return library && find(library, "cuStreamCreate", &cu.stream_create) &&
           find(library, "cuStreamDestroy_v2", &cu.stream_destroy) &&
           find(library, "cuStreamSynchronize", &cu.stream_wait) && find(library, "cuStreamQuery", &cu.stream_query) &&
           find(library, "cuLaunchHostFunc", &cu.host_function) && find(library, "cuMemAlloc_v2", &cu.alloc) &&
           find(library, "cuMemFree_v2", &cu.free) && find(library, "cuMemsetD32Async", &cu.fill);
}

/* A context on the GPU of KR_DEVICE; NULL: there is none. The driver's calls apply to the same GPU then. */
static kr_ctx *begin(void)
{
    const char *asked = getenv("KR_DEVICE");
    if (!asked || strncmp(asked, "cuda", 4) != 0 || !load_driver()) return NULL;
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    CHECK_OK(ctx);
    return ctx;
}

static cu_stream new_stream(void)
{
    cu_stream stream = NULL;
    CHECK(cu.stream_create(&stream, 1) == 0, "cuStreamCreate"); /* 1: non-blocking */
    return stream;
}

static float *new_floats(void)
{
    cu_address p = 0;
    CHECK(cu.alloc(&p, N * sizeof(float)) == 0, "cuMemAlloc");
    return (float *)(uintptr_t)p;
}

static void fill(float *p, float value, cu_stream stream)
{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    CHECK(cu.fill((cu_address)(uintptr_t)p, bits, N, stream) == 0, "cuMemsetD32Async");
}

/* Holds a stream until it is opened, or for ten seconds: then something has waited for it. */
typedef struct gate {
    atomic_bool is_open, gave_up;
} gate;

static void hold(void *user)
{
    gate *g = user;
    const time_t begun = time(NULL);
    while (!atomic_load(&g->is_open)) {
        if (time(NULL) - begun > 10) {
            atomic_store(&g->gave_up, true);
            return;
        }
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    }
}

static void hold_stream(gate *g, cu_stream stream)
{
    atomic_store(&g->is_open, false);
    CHECK(cu.host_function(stream, hold, g) == 0, "cuLaunchHostFunc");
}

static void count_waits(void *user, const char *slot)
{
    *(int *)user += strcmp(slot, KR_PROBE_WAIT) == 0;
}

static void check_all(const char *what, const kr_tensor *x, double want)
{
    double *values = kr_test_values(x);
    int64_t bad = 0;
    while (bad < kr_tensor_count(x) && values[bad] == want) bad++;
    CHECK(bad == kr_tensor_count(x), "%s: element %lld is %g, and should be %g", what, (long long)bad, values[bad],
          want);
    free(values);
}

/* What is measured below, once before: kernels are loaded, and memory is allocated. */
static void warm_up(kr_ctx *ctx, kr_tape *t, float *memory)
{
    for (int i = 0; i < 3; i++) {
        kr_tensor *x = kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(256, N / 256), NULL, memory);
        kr_tensor *y = kr_scale(t, kr_add(t, x, x), 2), *z = kr_add(t, y, y);
        kr_tensor *p = kr_matmul(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE(64, 64), 1), kr_slice(t, z, 0, 0, 64));
        CHECK(p && kr_ctx_wait(ctx) == KR_OK, "%s", kr_ctx_message(ctx));
        kr_tape_reset(t);
    }
}

TEST(a_gpu_computes_in_the_order_of_the_callers_stream)
{
    kr_ctx *ctx = begin();
    if (!ctx) SKIP("there is no GPU");
    const cu_stream stream = new_stream();
    float *memory = new_floats();
    fill(memory, 0, stream);
    CHECK(kr_ctx_use_stream(ctx, stream) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    warm_up(ctx, t, memory);
    int waits = 0;
    ctx->device->probe = count_waits;
    ctx->device->probe_user = &waits;
    gate g = { false, false };
    hold_stream(&g, stream);
    fill(memory, 3, stream);
    kr_tensor *x = kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(256, N / 256), NULL, memory), *y = kr_scale(t, x, 2);
    CHECK(kr_tensor_data(x) == memory, "the memory was copied");
    fill(memory, 5, stream);
    kr_tensor *z = kr_scale(t, kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(256, N / 256), NULL, memory), 2);
    CHECK(waits == 0 && cu.stream_query(stream) == NOT_READY, "%d waits, or the stream is not held", waits);
    atomic_store(&g.is_open, true);
    CHECK(cu.stream_wait(stream) == 0 && !atomic_load(&g.gave_up), "a call has waited for the stream");
    check_all("y", y, 6);
    check_all("z", z, 10);
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
    cu.free((cu_address)(uintptr_t)memory);
    cu.stream_destroy(stream);
}

/* The second stream has nothing of its own to wait for. */
TEST(a_new_stream_of_a_gpu_runs_behind_the_old_one)
{
    kr_ctx *ctx = begin();
    if (!ctx) SKIP("there is no GPU");
    const cu_stream first = new_stream(), second = new_stream();
    float *memory = new_floats();
    fill(memory, 0, first);
    CHECK(kr_ctx_use_stream(ctx, first) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    warm_up(ctx, t, memory);
    int waits = 0;
    ctx->device->probe = count_waits;
    ctx->device->probe_user = &waits;
    gate g = { false, false };
    hold_stream(&g, first);
    fill(memory, 7, first);
    kr_tensor *y = kr_scale(t, kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(256, N / 256), NULL, memory), 2);
    CHECK(kr_ctx_use_stream(ctx, second) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_tensor *z = kr_scale(t, y, 2);
    CHECK(kr_ctx_use_stream(ctx, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_tensor *last = kr_add(t, z, z);
    nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL); /* time for a stream that does not wait to run */
    CHECK(waits == 0 && cu.stream_query(first) == NOT_READY && cu.stream_query(second) == NOT_READY,
          "%d waits, or a stream does not wait for the other", waits);
    atomic_store(&g.is_open, true);
    check_all("behind two other streams", last, 56);
    CHECK(!atomic_load(&g.gave_up), "a call has waited for the stream");
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
    cu.free((cu_address)(uintptr_t)memory);
    cu.stream_destroy(first);
    cu.stream_destroy(second);
}

/* Steps of a network with another stream for each, decode graphs and grid-wide kernels among them. */
static void generate(kr_ctx *ctx, const cu_stream *streams, int64_t n_samples, int64_t *ids)
{
    kr_model_config *config = kr_model_config_create(ctx);
    kr_model_config_set_d_model(config, 256);
    config->layers->n_layers = 3;
    config->network->vocab_size = 512;
    kr_ctx_seed(ctx, 11);
    kr_model *model = kr_model_create(ctx, config);
    kr_generate_options o;
    kr_generate_options_init(&o);
    o.n_samples = n_samples;
    o.max_tokens = 64;
    kr_generation *g = kr_generation_create(ctx, kr_model_network(model), NULL, &o);
    const int32_t text[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    kr_generation_feed(g, text, 8);
    void *const named[2] = { KR_STREAM_LEGACY, NULL };
    for (int i = 0; i < 24; i++) {
        if (streams)
            CHECK(kr_ctx_use_stream(ctx, i % 4 < 2 ? (void *)streams[i % 4] : named[i % 2]) == KR_OK, "%s",
                  kr_ctx_message(ctx));
        IGNORE(kr_generation_next(g));
        for (int64_t row = 0; row < n_samples; row++) *ids++ = kr_generation_row(g, row)->sample.id;
    }
    CHECK_OK(ctx);
    kr_generation_destroy(g);
    kr_model_destroy(model);
    kr_model_config_destroy(config);
}

TEST(a_gpu_generates_the_same_on_changing_streams)
{
    static const int64_t rows[] = { 1, 4, 40 };
    kr_ctx *ctx = begin();
    if (!ctx) SKIP("there is no GPU");
    const cu_stream streams[2] = { new_stream(), new_stream() };
    for (int i = 0; i < 3; i++) {
        const size_t bytes = (size_t)rows[i] * 24 * sizeof(int64_t);
        int64_t *want = malloc(bytes), *got = malloc(bytes);
        generate(ctx, NULL, rows[i], want);
        generate(ctx, streams, rows[i], got);
        CHECK(memcmp(want, got, bytes) == 0, "%lld rows: other tokens", (long long)rows[i]);
        CHECK(kr_ctx_use_stream(ctx, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
        free(want);
        free(got);
    }
    kr_ctx_destroy(ctx);
    cu.stream_destroy(streams[0]);
    cu.stream_destroy(streams[1]);
}

/* ---- memory of the program ---- */

typedef struct pool {
    int n_allocs, n_live;
    size_t bytes;
    void *stream;
} pool;

static void *pool_alloc(void *user, size_t bytes, void *stream)
{
    pool *m = user;
    cu_address p = 0;
    if (cu.alloc(&p, bytes) != 0) return NULL;
    m->n_allocs++;
    m->n_live++;
    m->bytes += bytes;
    m->stream = stream;
    return (void *)(uintptr_t)p;
}

static void pool_free(void *user, void *p, size_t bytes, void *stream)
{
    pool *m = user;
    m->n_live--;
    m->bytes -= bytes;
    m->stream = stream;
    CHECK(cu.stream_wait(stream) == 0 && cu.free((cu_address)(uintptr_t)p) == 0, "a block cannot be freed");
}

TEST(a_gpu_computes_in_memory_of_the_callers_allocator)
{
    kr_ctx *plain = begin();
    if (!plain) SKIP("there is no GPU");
    pool m = { .n_allocs = 0 };
    const kr_device_allocator hooks = { .alloc = pool_alloc, .free = pool_free, .user = &m };
    kr_ctx_options o;
    kr_ctx_options_init(&o);
    o.threads = 1;
    o.seed = 1;
    o.device_allocator = &hooks;
    const cu_stream stream = new_stream();
    o.stream = stream;
    kr_ctx *ctx = kr_ctx_create(&o);
    CHECK_OK(ctx);
    int64_t want[4 * 24], got[4 * 24];
    generate(plain, NULL, 4, want);
    generate(ctx, NULL, 4, got);
    CHECK(memcmp(want, got, sizeof want) == 0, "other tokens");
    CHECK(m.n_live > 0 && m.stream == stream && m.bytes >= kr_ctx_device_memory(ctx).live_bytes,
          "%d blocks of %zu bytes, but the context counts %zu", m.n_live, m.bytes,
          kr_ctx_device_memory(ctx).live_bytes);
    kr_ctx_destroy(ctx);
    kr_ctx_destroy(plain);
    CHECK(m.n_live == 0 && m.bytes == 0, "%d of %d blocks are left", m.n_live, m.n_allocs);
    cu.stream_destroy(stream);
}
