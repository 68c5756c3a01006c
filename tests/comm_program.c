/* comm_program.c - a rank that a launcher starts (tests/comm/run): it does what its first argument says.
 *
 *   conform SEED LARGEST   the conformance of the engine
 *   fast                   sums in the order of the engine: of integers, which no order changes
 *   rules                  prints rank, ranks and engine
 *   loop                   sums until it is ended
 *   fail RANK              that rank's context fails before its second sum; all print their error
 *   exit RANK              that rank exits with status 3
 *   time MEGABYTES         rank 0 prints the seconds of an ordered sum of so many bytes of f32
 *
 * KR_TEST_TIMEOUT is the time-out in seconds. The exit status is 75 after an error of the communicator.
 */
#define _GNU_SOURCE
#include "tests/comm/comm_checks.h"

#include <time.h>
#include <unistd.h>

enum { STATUS_BROKEN = 75 };

/* The error of the context tells at the end. */
#define IGNORE(call) ((void)((call) == KR_OK))

static int nfailed;

static void report(const char *text)
{
    if (nfailed++ < 10) fprintf(stderr, "%s\n", text);
}

static int finish(kr_ctx *ctx)
{
    if (!kr_ctx_failed(ctx)) return nfailed ? 1 : 0;
    fprintf(stderr, "%s\n", kr_ctx_message(ctx));
    return STATUS_BROKEN;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int time_sum(kr_ctx *ctx, kr_comm *comm, double megabytes)
{
    const int64_t n = (int64_t)(megabytes * 1e6 / 4);
    float *x = malloc((size_t)n * sizeof *x);
    if (!x) exit(2);
    for (int64_t i = 0; i < n; i++) x[i] = 1;
    double best = 1e30;
    for (int i = 0; i < 5; i++) {
        IGNORE(kr_comm_barrier(comm));
        const double start = seconds();
        IGNORE(kr_comm_sum(comm, x, n, KR_DTYPE_F32));
        if (seconds() - start < best) best = seconds() - start;
    }
    if (kr_comm_rank(comm) == 0) printf("%g MB, %s: %.4f s, best of 5\n", megabytes, kr_comm_text(comm), best);
    free(x);
    return finish(ctx);
}

static int fast_sums(kr_ctx *ctx, kr_comm *comm)
{
    enum { N = 100003 };
    static float x[N];
    static double y[N];
    kr_comm *part = kr_comm_split(comm, kr_comm_rank(comm) % 2, 0);
    for (int pass = 0; pass < 2; pass++) {
        kr_comm *of = pass ? part : comm;
        const int ranks = kr_comm_size(of), rank = kr_comm_rank(of);
        for (int i = 0; i < N; i++) y[i] = x[i] = (float)(rank + i % 100);
        IGNORE(kr_comm_sum(of, x, N, KR_DTYPE_F32));
        IGNORE(kr_comm_sum(of, y, N, KR_DTYPE_F64));
        for (int i = 0; i < N && nfailed == 0; i++) {
            const double want = ranks * (i % 100) + ranks * (ranks - 1) / 2;
            if (x[i] != want || y[i] != want) {
                fprintf(stderr, "%s: element %d is %g and %g, not %g\n", kr_comm_text(of), i, (double)x[i], y[i], want);
                nfailed++;
            }
        }
    }
    kr_comm_destroy(part);
    return finish(ctx);
}

static int work(kr_ctx *ctx, kr_comm *comm, int argc, char **argv)
{
    const char *what = argv[1];
    const int rank = kr_comm_rank(comm), named = argc > 2 ? atoi(argv[2]) : -1;
    double x[1000] = { 0 };
    if (strcmp(what, "conform") == 0 && argc > 3) {
        const comm_check c = {
            .comm = comm, .seed = strtoull(argv[2], NULL, 10), .largest = atoll(argv[3]), .report = report
        };
        comm_conformance(&c);
        return finish(ctx);
    }
    if (strcmp(what, "rules") == 0) {
        printf("rank %d of %d by %s, local %d of %d\n", rank, kr_comm_size(comm), kr_comm_info_of(comm).engine,
               kr_comm_info_of(comm).local_rank, kr_comm_info_of(comm).local_ranks);
        return finish(ctx);
    }
    if (strcmp(what, "fast") == 0) return fast_sums(ctx, comm);
    if (strcmp(what, "time") == 0 && argc > 2) return time_sum(ctx, comm, atof(argv[2]));
    if (strcmp(what, "exit") == 0 && rank == named) exit(3);
    if (strcmp(what, "loop") == 0) printf("ready: rank %d, process %d\n", rank, (int)getpid());
    fflush(stdout);
    IGNORE(kr_comm_sum(comm, x, 1000, KR_DTYPE_F64));
    if (strcmp(what, "fail") == 0 && rank == named) kr_ctx_fail(ctx, KR_ERR_NUMERIC, "the gradient of w holds nan");
    do {
        IGNORE(kr_comm_sum(comm, x, 1000, KR_DTYPE_F64));
        if (strcmp(what, "loop") == 0) usleep(1000);
    } while (strcmp(what, "loop") == 0 && !kr_ctx_failed(ctx));
    return finish(ctx);
}

int main(int argc, char **argv)
{
    kr_ctx_options machine;
    kr_comm_options options;
    kr_ctx_options_init(&machine);
    kr_comm_options_init(&options);
    machine.threads = 1;
    if (argc < 2) return 2;
    const char *timeout = getenv("KR_TEST_TIMEOUT");
    if (strcmp(argv[1], "fast") == 0) options.order = KR_SUM_FAST;
    options.timeout = timeout ? atof(timeout) : 60;
    kr_ctx *ctx = kr_ctx_create(&machine);
    kr_comm *comm = kr_comm_create(ctx, &options);
    const int status = comm ? work(ctx, comm, argc, argv) : finish(ctx);
    kr_comm_destroy(comm);
    kr_ctx_destroy(ctx);
    return status;
}
