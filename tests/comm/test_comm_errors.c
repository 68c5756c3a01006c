/* test_comm_errors.c - errors: of calls that do not match, of ranks that do not come, that end, or that fail
 * themselves. */
#define _GNU_SOURCE
#include "tests/comm/rank_threads.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- what one rank can check ---- */

static kr_comm *self(kr_ctx *ctx)
{
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.engine = "self";
    return kr_comm_create(ctx, &options);
}

#define CREATE_ERROR(status, text)                                                                                     \
    do {                                                                                                               \
        CHECK(!kr_comm_create(ctx, &options), "no error");                                                             \
        CHECK_ERROR(ctx, (status), (text));                                                                            \
        kr_comm_options_init(&options);                                                                                \
    } while (0)

TEST(errors_of_options)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.timeout = 0;
    CREATE_ERROR(KR_ERR_ARG, "comm.create: options.timeout is 0, but must be a positive number of seconds");
    options.order = (kr_sum_order)7;
    CREATE_ERROR(KR_ERR_ARG, "comm.create: options.order is 7, which is not a kr_sum_order");
    options.engine = "pigeon";
    CREATE_ERROR(KR_ERR_ARG, "comm.create: the engine is \"pigeon\", but must be \"self\", \"tcp\" or \"mpi\"");
    options.rank = 2;
    options.ranks = 2;
    CREATE_ERROR(KR_ERR_ARG,
                 "comm.create: options.rank is 2 and options.ranks is 2, but a rank is from 0 to ranks - 1");
    options.ranks = 2;
    CREATE_ERROR(KR_ERR_ARG,
                 "comm.create: engine tcp does not know where ranks meet; set options.meet or KR_MEET to host:port or "
                 "to the path of a socket");
    options.ranks = 2;
    options.meet = "nowhere";
    CREATE_ERROR(
        KR_ERR_IO,
        "comm.create: tcp: ranks meet at \"nowhere\", which is neither host:port nor the path of a socket, with a '/'");
    options.ranks = 2;
    options.meet = "/a/path/of/a/socket/that/is/much/longer/than/the/address/of/a/socket/may/be/"
                   "/in/any/system/that/has/sockets/in/files";
    CHECK(!kr_comm_create(ctx, &options), "no error");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "is longer than 99 bytes; choose a shorter one");
    options.engine = "mpi";
    setenv("KR_MPI_PLUGIN", "/nonexistent/libkrait_mpi.so", 1);
    CHECK(!kr_comm_create(ctx, &options), "no error");
    CHECK_ERROR_HAS(ctx, KR_ERR_UNSUPPORTED,
                    "comm.create: engine mpi: its plug-in cannot be loaded: /nonexistent/libkrait_mpi.so");
    unsetenv("KR_MPI_PLUGIN");
    kr_ctx_destroy(ctx);
}

#define CALL_ERROR(status, text, call)                                                                                 \
    do {                                                                                                               \
        CHECK((call) != KR_OK, "no error");                                                                            \
        CHECK_ERROR(ctx, (status), (text));                                                                            \
    } while (0)

TEST(errors_of_operands)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_comm *comm = self(ctx);
    double x = 0;
    CALL_ERROR(KR_ERR_DTYPE, "comm: sums are of f32 or f64, not of bf16", kr_comm_sum(comm, &x, 1, KR_DTYPE_BF16));
    CALL_ERROR(KR_ERR_ARG, "comm.sum: n is -1, but must be at least 0 and fit into memory",
               kr_comm_sum(comm, &x, -1, KR_DTYPE_F32));
    CALL_ERROR(KR_ERR_ARG, "comm.sum: an operand of 1 elements is NULL", kr_comm_sum(comm, NULL, 1, KR_DTYPE_F32));
    CALL_ERROR(KR_ERR_ARG, "comm.broadcast: the root is rank 1, but ranks are 0 to 0",
               kr_comm_broadcast(comm, 1, &x, 8));
    CALL_ERROR(KR_ERR_ARG, "comm.exchange: the receiver is rank 1, but ranks are 0 to 0, and -1 is none",
               kr_comm_send(comm, 1, &x, 8));
    CALL_ERROR(KR_ERR_ARG, "comm.exchange: the sender is rank 0, which is this one", kr_comm_recv(comm, 0, &x, 8));
    CALL_ERROR(KR_ERR_ARG, "comm: an operand of 8 bytes is NULL", kr_comm_gather(comm, &x, NULL, 8));
    kr_comm_share share = { .first = 0, .count = 1, .owner = 1 };
    CALL_ERROR(KR_ERR_ARG, "comm.sum_shares: the owner of share 0 is rank 1, but ranks are 0 to 0",
               kr_comm_sum_shares(comm, &x, &share, 1, KR_DTYPE_F64));
    share = (kr_comm_share){ .first = -1, .count = 1 };
    CALL_ERROR(
        KR_ERR_ARG,
        "comm.gather_shares: share 0 is [first -1, count 1], reserved 0; the first two are at least 0, the third is 0",
        kr_comm_gather_shares(comm, &x, &share, 1, KR_DTYPE_F64));
    CALL_ERROR(KR_ERR_ARG, "comm.end: no call has ticket 99, or it has ended", kr_comm_end(comm, 99));
    CALL_ERROR(KR_ERR_ARG, "comm.end: the ticket is 0, but no call has failed", kr_comm_end(comm, 0));
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = (kr_comm_op)77;
    CHECK(kr_comm_begin(comm, &call) == 0, "no error");
    CHECK_ERROR(ctx, KR_ERR_ARG, "comm: op is 77, which is not a kr_comm_op");
    CHECK(!kr_comm_split(comm, -2, 0), "no error");
    CHECK_ERROR(ctx, KR_ERR_ARG, "comm.split: colour is -2, but must be at least 0, or -1 for no communicator");
    CHECK(kr_comm_barrier(comm) == KR_OK, "alone, it can be used on");
    kr_comm_destroy(comm);
    kr_ctx_destroy(ctx);
}

/* ---- calls that do not match ---- */

static void mismatch(rank_thread *r)
{
    float x[8] = { 0 };
    if (!r->comm) return;
    switch (*(const int *)r->user) {
    case 0:
        IGNORE(r->rank == 2 ? kr_comm_barrier(r->comm) : kr_comm_sum(r->comm, x, 8, KR_DTYPE_F32));
        rank_error(r, "call 3", "all ranks make the same calls");
        break;
    case 1:
        IGNORE(kr_comm_sum(r->comm, x, r->rank == 1 ? 4 : 8, KR_DTYPE_F32));
        rank_error(r, "sum of 4 f32", "same calls");
        break;
    case 2: {
        const kr_comm_share share = { .first = 0, .count = 8, .owner = r->rank == 1 };
        IGNORE(kr_comm_sum_shares(r->comm, x, &share, 1, KR_DTYPE_F32));
        rank_error(r, "comm.sum_shares: call 3 (sum_shares of 8 f32)", "give different shares");
        break;
    }
    default:
        if (r->rank == 0) IGNORE(kr_comm_send(r->comm, 1, x, 8));
        if (r->rank == 1) IGNORE(kr_comm_recv(r->comm, 0, x, 16));
        IGNORE(kr_comm_barrier(r->comm));
        rank_error(r, "comm.exchange: rank 1 of 3", "sends 8");
    }
    IGNORE(kr_comm_barrier(r->comm)); /* it stays */
    RANK_CHECK(kr_ctx_failed(r->ctx), "rank %d: a broken communicator works", r->rank);
    kr_ctx_clear(r->ctx);
}

TEST(calls_that_do_not_match)
{
    for (int kind = 0; kind < 4; kind++) run_ranks(3, NULL, mismatch, &kind);
}

static void cross(rank_thread *r)
{
    if (!r->comm) return;
    kr_comm *a = kr_comm_split(r->comm, 0, 0), *b = kr_comm_split(r->comm, 0, 0);
    IGNORE(kr_comm_barrier(r->rank ? a : b));
    rank_error(r, "barrier on one communicator, but rank", "same order");
    kr_comm_destroy(b);
    kr_comm_destroy(a);
}

TEST(communicators_in_another_order)
{
    run_ranks(2, NULL, cross, NULL);
}

/* ---- ranks that do not come ---- */

static void stay_away(rank_thread *r)
{
    if (!r->comm) return;
    if (r->rank == 1) {
        usleep(1500000);
        IGNORE(kr_comm_barrier(r->comm));
        rank_error(r, "comm.barrier: call 3 (barrier): rank 1 did nothing for 0.5 s", "waited");
        return;
    }
    IGNORE(kr_comm_barrier(r->comm));
    rank_error(r, "comm.barrier: call 3 (barrier): rank 1 did nothing for 0.5 s, the time-out", "waited");
}

TEST(a_rank_that_hangs_is_named)
{
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.timeout = 0.5;
    run_ranks(3, &options, stay_away, NULL);
}

static void meet_alone(rank_thread *r)
{
    RANK_CHECK(!r->comm, "rank %d has met others", r->rank);
    if (r->rank == 0) rank_error(r, "comm.create: tcp: rank 2 of 3 did not come to ", "within 0.5 s");
    else rank_error(r, "comm.create: tcp: rank 2 of 3 did not come to ", "within 0.5 s");
}

static void *second_only(void *arg)
{
    return rank_main(arg);
}

TEST(a_rank_that_does_not_come_is_named)
{
    rank_thread list[2];
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.timeout = 0.5;
    begin_folder();
    for (int i = 0; i < 2; i++) {
        list[i] = (rank_thread){ .rank = i, .ranks = 3, .options = &options, .run = meet_alone };
        if (pthread_create(&list[i].thread, NULL, second_only, &list[i]) != 0) exit(2);
    }
    for (int i = 0; i < 2; i++) pthread_join(list[i].thread, NULL);
    end_folder();
}

TEST(there_is_no_rank_0)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_comm_options options;
    kr_comm_options_init(&options);
    begin_folder();
    options.engine = "tcp";
    options.rank = 1;
    options.ranks = 2;
    options.timeout = 0.3;
    options.meet = in_folder("meet");
    CHECK(!kr_comm_create(ctx, &options), "no error");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "comm.create: tcp: rank 1 of 2 finds no rank 0 at ");
    end_folder();
    kr_ctx_destroy(ctx);
}

/* ---- who comes to the meeting ---- */

/* Ranks with numbers that do not fit: both get the same text. */
static void misfit(rank_thread *r)
{
    const char *const *texts = r->user;
    RANK_CHECK(!r->comm, "rank %d of %d has met others", r->rank, r->ranks);
    rank_error(r, texts[0], texts[1]);
}

static void meet_misfits(int rank, int ranks, int other_rank, int other_ranks, const char *const *texts)
{
    rank_thread list[3];
    kr_comm_options options;
    kr_comm_options_init(&options);
    options.timeout = 20;
    begin_folder();
    const int n = rank ? 3 : 2; /* rank 0, `rank` if it is another, and the other */
    for (int i = 0; i < n; i++) {
        list[i] = (rank_thread){ .ranks = ranks, .options = &options, .run = misfit, .user = (void *)(uintptr_t)texts };
        if (i == 1) list[i].rank = rank;
        if (i == n - 1) list[i].rank = other_rank, list[i].ranks = other_ranks;
        if (pthread_create(&list[i].thread, NULL, rank_main, &list[i]) != 0) exit(2);
    }
    for (int i = 0; i < n; i++) pthread_join(list[i].thread, NULL);
    end_folder();
}

TEST(numbers_that_do_not_fit)
{
    static const char *const differs[] = { "a process says that it is rank 1 of 3 at ",
                                           "where the number of ranks differs" };
    static const char *const twice[] = { "two processes say that they are rank 1 of 3 at ", "that no other has" };
    meet_misfits(0, 2, 1, 3, differs);
    meet_misfits(1, 3, 1, 3, twice);
}

/* What a stranger sends is no rank: nothing, too little, or as many bytes as a rank does. */
static void *be_strange(void *arg)
{
    const struct sockaddr_un *address = arg;
    char junk[132];
    memset(junk, 'x', sizeof junk);
    for (int i = 0; i < 60; i++) {
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0) {
            const size_t bytes = (size_t)(i % 3) * 66;
            if (bytes && send(fd, junk, bytes, MSG_NOSIGNAL) < 0) usleep(1);
        }
        close(fd);
        usleep(1000);
    }
    return NULL;
}

static void sum_once(rank_thread *r)
{
    double x = 1;
    RANK_CHECK(r->comm != NULL, "%s", kr_ctx_message(r->ctx));
    if (!r->comm) return;
    RANK_CHECK(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F64) == KR_OK && x == 3, "%g: %s", x, kr_ctx_message(r->ctx));
}

static void *come_later(void *arg)
{
    usleep(30000);
    return rank_main(arg);
}

TEST(strangers_are_dropped)
{
    rank_thread list[3];
    pthread_t stranger;
    kr_comm_options options;
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    kr_comm_options_init(&options);
    options.timeout = 20;
    begin_folder();
    snprintf(address.sun_path, sizeof address.sun_path, "%.90s", in_folder("meet"));
    if (pthread_create(&stranger, NULL, be_strange, &address) != 0) exit(2);
    for (int i = 0; i < 3; i++) {
        list[i] = (rank_thread){ .rank = i, .ranks = 3, .options = &options, .run = sum_once };
        if (pthread_create(&list[i].thread, NULL, i ? come_later : rank_main, &list[i]) != 0) exit(2);
    }
    for (int i = 0; i < 3; i++) pthread_join(list[i].thread, NULL);
    pthread_join(stranger, NULL);
    end_folder();
}

/* ---- ranks that end, or fail ---- */

static void end_early(rank_thread *r)
{
    if (!r->comm || r->rank == 1) return;
    IGNORE(kr_comm_barrier(r->comm));
    rank_error(r, "comm.barrier: call 3 (barrier): rank 1 of 3 (", "has ended, or has destroyed its communicator");
}

TEST(a_rank_that_ends_is_named)
{
    run_ranks(3, NULL, end_early, NULL);
}

/* Rank 1 fails before its second sum; the others are in it, or come later. */
static void fail_one(rank_thread *r)
{
    double x = 1;
    if (!r->comm) return;
    IGNORE(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F64));
    if (r->rank == 1) kr_ctx_fail(r->ctx, KR_ERR_NUMERIC, "optimizer.step: a gradient holds nan at [3, 7]");
    if (r->rank == 2) usleep(100000);
    IGNORE(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F64));
    IGNORE(kr_comm_barrier(r->comm));
    if (r->rank == 1) rank_error(r, "optimizer.step: a gradient holds nan", "[3, 7]");
    else rank_error(r, "rank 1 of 3 (", "): optimizer.step: a gradient holds nan at [3, 7]");
}

TEST(an_error_of_one_rank_reaches_the_others)
{
    run_ranks(3, NULL, fail_one, NULL);
}

static void agree(rank_thread *r)
{
    double x = 1;
    if (!r->comm) return;
    RANK_CHECK(kr_comm_agree(r->comm) == KR_OK, "%s", kr_ctx_message(r->ctx));
    if (r->rank == 2) kr_ctx_fail(r->ctx, KR_ERR_SHAPE, "the second");
    if (r->rank == 1) kr_ctx_fail(r->ctx, KR_ERR_FORMAT, "the first");
    RANK_CHECK(kr_comm_agree(r->comm) == KR_ERR_FORMAT, "rank %d: status %d", r->rank, (int)kr_ctx_status(r->ctx));
    RANK_CHECK(kr_comm_agree(r->comm) == KR_ERR_FORMAT, "rank %d: twice", r->rank);
    rank_error(r, "rank 1 of 3 (", "): the first");
    RANK_CHECK(kr_comm_sum(r->comm, &x, 1, KR_DTYPE_F64) == KR_OK && x == 3, "rank %d: after it: %g, %s", r->rank, x,
               kr_ctx_message(r->ctx));
}

TEST(ranks_agree_on_the_first_error)
{
    run_ranks(3, NULL, agree, NULL);
}

/* A failed operand check on one rank does not leave the others waiting. */
static void bad_operand(rank_thread *r)
{
    double x = 1;
    if (!r->comm) return;
    IGNORE(kr_comm_sum(r->comm, r->rank ? NULL : &x, 1, KR_DTYPE_F64));
    if (r->rank) rank_error(r, "comm.sum: an operand", "is NULL");
    else rank_error(r, "rank 1 of 2 (", "comm.sum: an operand of 1 elements is NULL");
}

TEST(a_bad_operand_of_one_rank)
{
    run_ranks(2, NULL, bad_operand, NULL);
}

/* A ticket that is left is cancelled, which the other rank sees. */
static void leave(rank_thread *r)
{
    static double x;
    if (!r->comm) return;
    if (r->rank == 0) {
        kr_comm_begin_sum(r->comm, &x, 1, KR_DTYPE_F64);
        kr_comm_destroy(r->comm);
        r->comm = NULL;
        return;
    }
    usleep(300000);
    double y = 1;
    IGNORE(kr_comm_sum(r->comm, &y, 1, KR_DTYPE_F64));
    rank_error(r, "rank 0 of 2 (", ") destroyed its communicator while calls were posted");
}

TEST(destroying_with_a_posted_call)
{
    run_ranks(2, NULL, leave, NULL);
}
