/* test_comm_device.c - calls whose operands stay in device memory: on mock devices, with exchanges between threads in place of
 * NCCL; with NCCL for one rank where KR_DEVICE is a GPU.
 */
#define _GNU_SOURCE
#include "tests/comm/device_operands.h"

#include "tests/comm/rank_threads.h"

#include "tests/comm/mock_comm.h"
#include "tests/mock_device.h"

#include "comm/device_calls.h"

#include <unistd.h>

static void report(const char *text)
{
    RANK_CHECK(false, "%s", text);
}

/* Runs ranks on mock devices. The device is what KR_DEVICE says: threads of run_ranks create their contexts with it. */
static void run_devices(int ranks, const kr_comm_options *options, void (*run)(rank_thread *), void *user)
{
    const char *before = getenv("KR_DEVICE");
    char *kept = before ? strdup(before) : NULL;
    kr_comm_options own;
    kr_comm_options_init(&own);
    own.timeout = 60;
    if (options) own = *options;
    if (!own.engine) own.engine = "nccl";
    setenv("KR_DEVICE", "mock:1", 1);
    mock_device_offer_comm(&mock_comm_ops);
    run_ranks(ranks, &own, run, user);
    mock_device_offer_comm(NULL);
    if (kept) setenv("KR_DEVICE", kept, 1);
    else unsetenv("KR_DEVICE");
    free(kept);
    CHECK(atomic_load(&mock_comm.ngroups) == 0, "%d groups are open", atomic_load(&mock_comm.ngroups));
}

static void conform(rank_thread *r)
{
    const comm_check c = {
        .comm = r->comm, .seed = kr_test_seed(), .largest = *(const int64_t *)r->user, .report = report
    };
    kept_on_device = 0;
    RANK_CHECK(r->comm != NULL, "rank %d of %d: %s", r->rank, r->ranks, kr_ctx_message(r->ctx));
    if (!r->comm) return;
    comm_conformance(&c);
    RANK_CHECK(kept_on_device > 50, "%lld calls on the device", (long long)kept_on_device);
    const kr_comm_info info = kr_comm_info_of(r->comm);
    RANK_CHECK(strcmp(info.engine, "nccl") == 0 && strncmp(info.text, "nccl over tcp: rank ", 20) == 0, "%s: %s",
               info.engine, info.text);
}

/* 5,000,011 elements of f64 are more than the scratch: several rounds. */
TEST(device_operands_conform)
{
    for (int ranks = 1; ranks <= 5; ranks++) {
        int64_t largest = ranks == 3 && !kr_test_quick() ? 5000011 : 4099;
        run_devices(ranks, NULL, conform, &largest);
    }
}

static void sum_fast(rank_thread *r)
{
    double x[7];
    if (!r->comm) return;
    for (int i = 0; i < 7; i++) x[i] = r->rank + i;
    RANK_CHECK(kr_comm_sum(r->comm, x, 7, KR_DTYPE_F64) == KR_OK, "%s", kr_ctx_message(r->ctx));
    for (int i = 0; i < 7; i++)
        RANK_CHECK(x[i] == 3 + 3 * i, "rank %d: element %d is %g, not %d", r->rank, i, x[i], 3 + 3 * i);
    RANK_CHECK(kept_on_device == 1, "%lld calls on the device", (long long)kept_on_device);
}

TEST(fast_sums_are_those_of_the_device)
{
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.timeout = 60;
    options.order = KR_SUM_FAST;
    run_devices(3, &options, sum_fast, NULL);
}

/* ---- operands of both kinds ---- */

static void mix(rank_thread *r)
{
    double host[2] = { r->rank, 1 }, all[4] = { 0 };
    if (!r->comm) return;
    void *device = kr_memory_alloc(kr_float_memory(r->ctx), sizeof all);
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = KR_COMM_GATHER;
    call.from = host;
    call.to = device;
    call.bytes = sizeof host;
    RANK_CHECK(kr_comm_end(r->comm, kr_comm_begin(r->comm, &call)) == KR_OK, "%s", kr_ctx_message(r->ctx));
    kr_fetch(r->ctx, all, device, sizeof all);
    RANK_CHECK(all[0] == 0 && all[1] == 1 && all[2] == 1 && all[3] == 1, "%g %g %g %g", all[0], all[1], all[2], all[3]);
    /* One rank's on the device, the other's on the host. */
    kr_comm_call_init(&call);
    call.op = KR_COMM_SUM;
    call.to = r->rank ? (void *)host : device;
    call.n = 2;
    call.dtype = KR_DTYPE_F64;
    RANK_CHECK(kr_comm_end(r->comm, kr_comm_begin(r->comm, &call)) != KR_OK, "operands in two kinds of memory");
    rank_error(r, "comm.sum: call ", "in one kind");
    kr_memory_free(kr_float_memory(r->ctx), device, sizeof all);
}

TEST(operands_of_two_kinds)
{
    run_devices(2, NULL, mix, NULL);
}

/* ---- creation ---- */

static void is_refused(rank_thread *r)
{
    const char *const *words = r->user;
    RANK_CHECK(r->comm == NULL, "rank %d has a communicator", r->rank);
    rank_error(r, words[0], words[1]);
}

static void is_staged(rank_thread *r)
{
    float x = 1;
    RANK_CHECK(r->comm && strcmp(kr_comm_info_of(r->comm).engine, "tcp") == 0, "%s", kr_comm_text(r->comm));
    if (!r->comm) return;
    RANK_CHECK(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F32) == KR_OK && x == 2, "the sum is %g", x);
    RANK_CHECK(kept_on_device == 0, "%lld calls on the device", (long long)kept_on_device);
}

TEST(ranks_on_one_device_are_refused)
{
    static const char *const words[] = { "comm.create: ranks 0 and 1 of 2 use the same device of ", "choose engine tcp" };
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.timeout = 60;
    atomic_store(&mock_comm.is_one_device, true);
    run_devices(2, NULL, is_refused, (void *)(uintptr_t)words);
    options.engine = "tcp"; /* asked for: staged copies */
    run_devices(2, &options, is_staged, NULL);
    atomic_store(&mock_comm.is_one_device, false);
}

TEST(a_missing_library_is_an_error_of_engine_nccl)
{
    static const char *const words[] = { "comm.create: engine nccl: rank ", "its library is not found" };
    atomic_store(&mock_comm.is_missing, true);
    run_devices(2, NULL, is_refused, (void *)(uintptr_t)words);
    atomic_store(&mock_comm.is_missing, false);
}

TEST(engine_nccl_needs_a_device)
{
    static const char *const words[] = { "comm.create: engine nccl: rank ", "the context is on the CPU" };
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.engine = "nccl";
    options.timeout = 60;
    const char *before = getenv("KR_DEVICE");
    if (before && strcmp(before, "cpu") != 0) return; /* contexts are not on the CPU */
    run_ranks(2, &options, is_refused, (void *)(uintptr_t)words);
}

/* ---- errors ---- */

static void fail_to_add(rank_thread *r)
{
    float x[2] = { 1, 2 };
    if (!r->comm) return;
    if (kr_comm_sum(r->comm, x, 2, KR_DTYPE_F32) == KR_OK) IGNORE(kr_comm_barrier(r->comm));
    rank_error(r, "comm.sum: call ", "mock exchanges: an addition failed, as it was asked to");
}

TEST(an_error_of_a_device_reaches_all_ranks)
{
    const int before = atomic_load(&mock_comm.naborted);
    atomic_store(&mock_comm.failing_call, 2);
    run_devices(3, NULL, fail_to_add, NULL);
    atomic_store(&mock_comm.failing_call, 0);
    CHECK(atomic_load(&mock_comm.naborted) == before + 3, "%d groups were aborted, not 3",
          atomic_load(&mock_comm.naborted) - before);
}

/* Ranks wait until so many groups have been aborted. */
static void await_aborts(const rank_thread *r)
{
    const double start = kr_clock();
    while (atomic_load(&mock_comm.naborted) < *(const int *)r->user && kr_clock() - start < 30) usleep(10000);
}

/* Rank 1 leaves, or fails, while what rank 0 has queued does not end: rank 0 aborts, and says whose fault it was. */
static void leave(rank_thread *r)
{
    float x = 1;
    if (!r->comm) return;
    IGNORE(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F32));
    if (r->rank == 1) return;
    await_aborts(r);
    RANK_CHECK(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F32) != KR_OK, "a sum without rank 1");
    rank_error(r, "comm.sum: call ", "rank 1 of 2 (");
}

static void fail(rank_thread *r)
{
    float x = 1;
    if (!r->comm) return;
    IGNORE(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F32));
    if (r->rank == 1) {
        kr_fail(r->ctx, KR_ERR_ARG, "the gradient of w holds nan");
        IGNORE(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F32));
        kr_ctx_clear(r->ctx);
        return;
    }
    await_aborts(r);
    RANK_CHECK(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F32) != KR_OK, "a sum with rank 1");
    rank_error(r, "rank 1 of 2 (", "the gradient of w holds nan");
}

static void wait_long(rank_thread *r)
{
    float x = 1;
    if (!r->comm) return;
    IGNORE(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F32));
    await_aborts(r);
    RANK_CHECK(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F32) != KR_OK, "a sum of devices that hang");
    rank_error(r, "the device waited for others for 0.5 s, the time-out", "kr_comm_options.timeout");
}

static void hang(int ranks_that_hang, int naborted, double timeout, void (*run)(rank_thread *))
{
    int wanted = atomic_load(&mock_comm.naborted) + naborted;
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.timeout = timeout;
    atomic_store(&mock_comm.stuck, ranks_that_hang);
    run_devices(2, &options, run, &wanted);
    atomic_store(&mock_comm.stuck, 0);
}

TEST(devices_that_hang_are_aborted)
{
    hang(1, 1, 60, leave);
    hang(1, 2, 60, fail);
    hang(3, 2, 0.5, wait_long);
}

/* ---- NCCL on a GPU ---- */

/* One rank on the device of KR_DEVICE, if that is a GPU with NCCL. */
static kr_comm *create_alone(kr_ctx *ctx, kr_sum_order order)
{
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.engine = "nccl";
    options.order = order;
    options.timeout = 60;
    return kr_comm_create(ctx, &options);
}

static const char *find_nccl(const kr_ctx *ctx)
{
    uint64_t number;
    return kr_comm_device_find(ctx, &number);
}

TEST(nccl_conforms_with_one_rank)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const char *why = find_nccl(ctx);
    if (why) {
        kr_ctx_destroy(ctx);
        SKIP(why);
    }
    for (int order = 0; order < 2; order++) {
        const comm_check c = { .comm = create_alone(ctx, (kr_sum_order)order),
                               .seed = kr_test_seed(),
                               .largest = 9000011, /* several rounds */
                               .report = report };
        CHECK_OK(ctx);
        kept_on_device = 0;
        if (c.comm) comm_conformance(&c);
        CHECK(kept_on_device > 50, "%lld calls on the device", (long long)kept_on_device);
        kr_comm_destroy(c.comm);
        CHECK_OK(ctx);
    }
    kr_ctx_destroy(ctx);
}

static void sum_on_device(kr_comm *comm, void *x, int64_t n)
{
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = KR_COMM_SUM;
    call.to = x;
    call.n = n;
    call.dtype = KR_DTYPE_F32;
    CHECK(kr_comm_end(comm, kr_comm_begin(comm, &call)) == KR_OK, "a sum");
}

/* The sum of one rank is its operand: what comes before and behind it in the graph shows that it is a part of it. */
TEST(nccl_sums_are_captured)
{
    enum { N = 100003 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const char *why = find_nccl(ctx);
    if (why) {
        kr_ctx_destroy(ctx);
        SKIP(why);
    }
    kr_comm *comm = create_alone(ctx, KR_SUM_ORDERED);
    float *host = malloc(3 * N * sizeof *host);
    if (!host || !comm) exit(2);
    for (int i = 0; i < 3 * N; i++) host[i] = (float)(i % 1000);
    char *x = kr_memory_alloc(kr_float_memory(ctx), 3 * N * sizeof *host), *y = x + N * sizeof *host;
    char *z = y + N * sizeof *host;
    const size_t bytes = N * sizeof *host;
    kr_store(ctx, x, host, 3 * bytes);
    sum_on_device(comm, y, N); /* connects what NCCL connects when it is first used */
    CHECK(kr_graph_capture_begin(ctx), "capture");
    kr_copy_floats(ctx, y, x, bytes);
    sum_on_device(comm, y, N);
    kr_copy_floats(ctx, z, y, bytes);
    kr_graph *graph = kr_graph_capture_end(ctx);
    CHECK(graph != NULL, "the graph cannot be launched: %s", kr_ctx_message(ctx));
    for (int time = 0; time < 3 && graph; time++) {
        for (int i = 0; i < N; i++) host[i] = (float)(i % 777 + time);
        kr_store(ctx, x, host, bytes);
        CHECK(kr_graph_launch(ctx, graph), "launch %d", time);
        kr_fetch(ctx, host + 2 * N, z, bytes);
        CHECK(memcmp(host, host + 2 * N, bytes) == 0, "launch %d has other results", time);
        sum_on_device(comm, z, N); /* calls and launches take turns */
    }
    CHECK(kr_graph_launches(graph) > 4, "%lld nodes", (long long)kr_graph_launches(graph));
    kr_graph_destroy(ctx, graph);
    kr_memory_free(kr_float_memory(ctx), x, 3 * bytes);
    free(host);
    kr_comm_destroy(comm);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* A communicator that breaks aborts its group; the device works afterwards. */
TEST(nccl_is_aborted)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const char *why = find_nccl(ctx);
    if (why) {
        kr_ctx_destroy(ctx);
        SKIP(why);
    }
    for (int time = 0; time < 2; time++) {
        float x[1000] = { 1 };
        kr_comm *comm = create_alone(ctx, KR_SUM_ORDERED);
        CHECK_OK(ctx);
        if (!comm) break;
        CHECK(kr_comm_sum(comm, x, 1000, KR_DTYPE_F32) == KR_OK && x[0] == 1, "a sum before");
        while (*(volatile bool *)&comm->world->is_watching) usleep(1000);
        kr_world_break(comm->world, KR_ERR_IO, "broken by a test"); /* while the thread sleeps */
        CHECK(comm->group == NULL, "a group that was not aborted");
        CHECK(kr_comm_sum(comm, x, 1000, KR_DTYPE_F32) != KR_OK, "a sum of a broken communicator");
        CHECK(strcmp(kr_ctx_message(ctx), "broken by a test") == 0, "%s", kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        kr_comm_destroy(comm);
    }
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}
