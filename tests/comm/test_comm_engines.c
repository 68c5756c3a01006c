/* test_comm_engines.c - conformance of the engines "self" and "tcp", with ranks as threads; memory; device operands. */
#define _GNU_SOURCE
#include "tests/comm/rank_threads.h"

#include "comm/comm_impl.h"
#include "comm/sum_order.h"

#include <unistd.h>

static void report(const char *text)
{
    RANK_CHECK(false, "%s", text);
}

static void conform(rank_thread *r)
{
    const comm_check c = {
        .comm = r->comm, .seed = kr_test_seed(), .largest = *(const int64_t *)r->user, .report = report
    };
    RANK_CHECK(r->comm != NULL, "rank %d of %d: %s", r->rank, r->ranks, kr_ctx_message(r->ctx));
    const int expected = kr_ranks_per_host_of_tests;
    if (r->comm) RANK_CHECK(r->comm->per_host == expected, "%d ranks a host, not %d", r->comm->per_host, expected);
    if (r->comm) comm_conformance(&c);
}

/* 700,001 elements of f64 are more than the scratch. */
TEST(tcp_conforms)
{
    for (int ranks = 1; ranks <= 5; ranks++) {
        int64_t largest = kr_test_quick() || ranks == 4 ? 4099 : 700001;
        run_ranks(ranks, NULL, conform, &largest);
    }
}

/* Sums and gathers within hosts and then between them, with hosts that are made of a number of ranks. */
TEST(two_levels_conform)
{
    static const int cases[][2] = { { 4, 2 }, { 6, 2 }, { 8, 2 }, { 8, 4 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t largest = i == 1 && !kr_test_quick() ? 300007 : 4099;
        kr_ranks_per_host_of_tests = cases[i][1];
        run_ranks(cases[i][0], NULL, conform, &largest);
    }
    kr_ranks_per_host_of_tests = 0;
}

TEST(eight_ranks_conform)
{
    int64_t largest = kr_test_quick() ? 97 : 4099;
    run_ranks(8, NULL, conform, &largest);
}

/* Sockets without rings, between hosts; the port is one that was free a moment ago. */
TEST(tcp_by_port_conforms)
{
    int64_t largest = 65537;
    kr_comm_options options;
    kr_comm_options_init(&options);
    char meet[64];
    snprintf(meet, sizeof meet, "127.0.0.1:%d", 20000 + (int)(getpid() % 12000));
    options.meet = meet;
    options.timeout = 60;
    for (int ranks = 2; ranks <= 3; ranks++) run_ranks(ranks, &options, conform, &largest);
}

TEST(fast_sums_of_an_engine_without_any_are_ordered)
{
    int64_t largest = 4099;
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.order = KR_SUM_FAST;
    options.timeout = 60;
    run_ranks(3, &options, conform, &largest);
}

TEST(self_conforms)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.engine = "self";
    const comm_check c = {
        .comm = kr_comm_create(ctx, &options), .seed = kr_test_seed(), .largest = 4099, .report = report
    };
    CHECK_OK(ctx);
    comm_conformance(&c);
    const kr_comm_info info = kr_comm_info_of(c.comm);
    CHECK(info.rank == 0 && info.ranks == 1 && info.local_ranks == 1 && strcmp(info.engine, "self") == 0, "%s",
          info.text);
    CHECK(strncmp(info.text, "self: rank 0 of 1, 0 of 1 on ", 29) == 0, "%s", info.text);
    kr_comm_destroy(c.comm);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}

/* All numbers of slots: slot 0 is the tree of the definition. */
TEST(slots_are_added_as_a_tree)
{
    enum { N = 5000, MOST = 33 };
    const comm_check c = { .seed = kr_test_seed(), .report = report };
    for (int nslots = 1; nslots <= MOST; nslots++) {
        void *slots[MOST];
        for (int i = 0; i < nslots; i++) slots[i] = comm_operand(&c, KR_DTYPE_F32, N, i);
        kr_sum_slots(KR_DTYPE_F32, slots, nslots, N);
        int64_t bad = -1;
        for (int64_t i = N; i-- > 0;)
            if (((float *)slots[0])[i] != comm_tree_f32(&c, 0, nslots, i)) bad = i;
        if (bad >= 0)
            CHECK(false, "%d slots: element %lld is %.9g, not %.9g", nslots, (long long)bad, ((float *)slots[0])[bad],
                  comm_tree_f32(&c, 0, nslots, bad));
        for (int i = 0; i < nslots; i++) free(slots[i]);
    }
}

/* ---- figures, memory ---- */

static void count(rank_thread *r)
{
    float x[1000] = { 0 };
    if (!r->comm) return;
    const kr_comm_info before = kr_comm_info_of(r->comm);
    IGNORE(kr_comm_sum(r->comm, x, 1000, KR_DTYPE_F32));
    IGNORE(kr_comm_sum(r->comm, x, 1000, KR_DTYPE_F32));
    const kr_comm_info after = kr_comm_info_of(r->comm);
    RANK_CHECK(after.calls == before.calls + 2, "%lld calls, then %lld", (long long)before.calls,
               (long long)after.calls);
    RANK_CHECK(after.bytes_sent - before.bytes_sent >= 8000 && after.bytes_received - before.bytes_received >= 8000,
               "%llu bytes", (unsigned long long)(after.bytes_sent - before.bytes_sent));
    RANK_CHECK(after.seconds > before.seconds && after.local_rank == r->rank && after.local_ranks == r->ranks, "%s",
               after.text);
}

TEST(calls_are_counted)
{
    run_ranks(2, NULL, count, NULL);
}

static void leave_tickets(rank_thread *r)
{
    double x = 1, y = 1;
    if (!r->comm) return;
    const size_t blocks = kr_ctx_memory(r->ctx).live_blocks;
    const kr_ticket first = kr_comm_begin_sum(r->comm, &x, 1, KR_DTYPE_F64),
                    second = kr_comm_begin_sum(r->comm, &y, 1, KR_DTYPE_F64);
    RANK_CHECK(first != 0 && second != 0 && first != second, "tickets %lld and %lld", (long long)first,
               (long long)second);
    RANK_CHECK(kr_comm_end(r->comm, second) == KR_OK && y == 2, "y is %g", y);
    RANK_CHECK(kr_comm_end(r->comm, first) == KR_OK && x == 2, "x is %g", x);
    RANK_CHECK(kr_ctx_memory(r->ctx).live_blocks == blocks, "a ticket leaves memory");
}

TEST(tickets_end_in_any_order)
{
    run_ranks(2, NULL, leave_tickets, NULL);
}

/* The n-th allocation fails on rank 0, from the creation on: an error on both ranks, no leak, no wait until the
 * time-out. */
static void fail_allocation(rank_thread *r)
{
    const int n = *(const int *)r->user;
    kr_comm *part = NULL;
    float x[2000] = { 0 };
    if (r->comm && r->rank == 0) kr_ctx_fail_allocation(r->ctx, (size_t)n);
    if (r->comm) {
        IGNORE(kr_comm_sum(r->comm, x, 2000, KR_DTYPE_F32));
        part = kr_comm_split(r->comm, 0, 0);
        IGNORE(kr_comm_barrier(part ? part : r->comm));
    }
    const bool has_failed = kr_ctx_failed(r->ctx);
    kr_ctx_fail_allocation(r->ctx, 0);
    RANK_CHECK(!has_failed || strstr(kr_ctx_message(r->ctx), "out of memory"), "allocation %d, rank %d: %s", n, r->rank,
               kr_ctx_message(r->ctx));
    if (n <= 4) RANK_CHECK(has_failed, "allocation %d, rank %d: no error", n, r->rank);
    kr_comm_destroy(part);
    kr_ctx_clear(r->ctx);
}

TEST(a_failed_allocation_is_an_error_of_all_ranks)
{
    for (int n = 1; n <= 6; n++) run_ranks(2, NULL, fail_allocation, &n);
}

TEST(creating_without_memory)
{
    for (size_t n = 1; n <= 10; n++) {
        kr_ctx *ctx = kr_test_ctx(1, NULL);
        const size_t before = kr_ctx_memory(ctx).live_bytes;
        kr_comm_options options;
        kr_comm_options_init(&options);
        options.engine = "tcp";
        options.ranks = 1;
        kr_ctx_fail_allocation(ctx, n);
        kr_comm *comm = kr_comm_create(ctx, &options);
        CHECK((comm == NULL) == kr_ctx_failed(ctx), "allocation %zu", n);
        if (n == 1) CHECK_ERROR(ctx, KR_ERR_NOMEM, "comm.create: out of memory");
        kr_ctx_fail_allocation(ctx, 0);
        kr_ctx_clear(ctx);
        kr_comm_destroy(comm);
        CHECK(kr_ctx_memory(ctx).live_bytes == before, "allocation %zu leaves %zu bytes", n,
              kr_ctx_memory(ctx).live_bytes - before);
        kr_ctx_destroy(ctx);
    }
}

/* ---- warnings ---- */

typedef struct log_lines {
    int warnings;
    char last[300];
} log_lines;

static void keep_warning(void *user, kr_log_level level, const char *text)
{
    log_lines *log = user;
    if (level != KR_LOG_WARNING) return;
    log->warnings++;
    snprintf(log->last, sizeof log->last, "%s", text);
}

static void *crowd(void *arg)
{
    const rank_thread *r = arg;
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 64;
    options.log = keep_warning;
    options.log_user = r->user;
    kr_ctx *ctx = kr_ctx_create(&options);
    kr_comm *comm = kr_comm_create(ctx, r->options);
    RANK_CHECK(comm != NULL, "%s", kr_ctx_message(ctx));
    if (comm) IGNORE(kr_comm_barrier(comm));
    kr_comm_destroy(comm);
    kr_ctx_destroy(ctx);
    return NULL;
}

TEST(more_threads_than_cpus_are_told_once)
{
    rank_thread list[2];
    log_lines logs[2] = { { 0 }, { 0 } };
    kr_comm_options options[2];
    if (sysconf(_SC_NPROCESSORS_ONLN) >= 128) SKIP("128 CPUs or more");
    begin_folder();
    char meet[256];
    snprintf(meet, sizeof meet, "%s", in_folder("meet"));
    for (int i = 0; i < 2; i++) {
        kr_comm_options_init(&options[i]);
        options[i].engine = "tcp";
        options[i].rank = i;
        options[i].ranks = 2;
        options[i].meet = meet;
        list[i] = (rank_thread){ .options = &options[i], .user = &logs[i] };
        if (pthread_create(&list[i].thread, NULL, crowd, &list[i]) != 0) exit(2);
    }
    for (int i = 0; i < 2; i++) pthread_join(list[i].thread, NULL);
    end_folder();
    CHECK(logs[0].warnings == 1 && strstr(logs[0].last, "2 ranks on ") &&
              strstr(logs[0].last, " have 128 threads for the "),
          "%d warnings: %s", logs[0].warnings, logs[0].last);
    CHECK(logs[1].warnings == 0, "of rank 1: %s", logs[1].last);
}

/* ---- operands on a device ---- */

static void sum_on_device(rank_thread *r)
{
    if (!r->comm) return;
    kr_tensor *x = kr_param_create(r->ctx, KR_DTYPE_F32, KR_SHAPE(5));
    const float mine[5] = { 1, 2, 3, 4, (float)r->rank };
    float sum[5] = { 0 };
    IGNORE(kr_tensor_write(x, KR_DTYPE_F32, mine, 5));
    IGNORE(kr_comm_sum(r->comm, kr_tensor_data(x), 5, KR_DTYPE_F32));
    const kr_comm_share shares[2] = { { .first = 0, .count = 2, .owner = 1 }, { .first = 3, .count = 1, .owner = 0 } };
    IGNORE(kr_tensor_read(x, KR_DTYPE_F32, sum, 5));
    RANK_CHECK(sum[0] == 2 && sum[3] == 8 && sum[4] == 1, "sums %g %g %g", sum[0], sum[3], sum[4]);
    IGNORE(kr_comm_sum_shares(r->comm, kr_tensor_data(x), shares, 2, KR_DTYPE_F32));
    IGNORE(kr_tensor_read(x, KR_DTYPE_F32, sum, 5));
    RANK_CHECK(sum[0] == (r->rank == 1 ? 4 : 2) && sum[3] == (r->rank == 0 ? 16 : 8) && sum[4] == 1, "shares %g %g %g",
               sum[0], sum[3], sum[4]);
    IGNORE(kr_comm_gather_shares(r->comm, kr_tensor_data(x), shares, 2, KR_DTYPE_F32));
    IGNORE(kr_tensor_read(x, KR_DTYPE_F32, sum, 5));
    RANK_CHECK(sum[0] == 4 && sum[1] == 8 && sum[2] == 6 && sum[3] == 16, "gathered %g %g %g", sum[0], sum[2], sum[3]);
    kr_param_destroy(x);
}

/* With KR_DEVICE=mock or cuda in device memory. */
TEST(operands_on_the_device)
{
    run_ranks(2, NULL, sum_on_device, NULL);
}
