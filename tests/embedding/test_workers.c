/* test_workers.c - worker threads as a host program meets them: its signals, its CPUs, and a second context. */
#define _GNU_SOURCE
#include "tests/harness.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MANY = 64 };

/* On the CPU, whatever KR_DEVICE says: a driver of a GPU has threads of its own, which are not counted here. */
static kr_ctx *ctx_of(int threads, bool pins)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = "cpu";
    options.threads = threads;
    options.pin_threads = pins;
    kr_ctx *ctx = kr_ctx_create(&options);
    if (!ctx) exit(2);
    return ctx;
}

/* Enough for all threads: the mean of twice the product of two matrices of ones, which is 512. */
static double work(kr_ctx *ctx)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_tensor *ones = kr_full(tape, KR_DTYPE_F32, KR_SHAPE(256, 256), 1.0);
    kr_tensor *x = kr_mul(tape, kr_matmul(tape, ones, ones), kr_add(tape, ones, ones));
    const double mean = kr_item(kr_mean(tape, x, KR_ALL_AXES, false));
    kr_tape_destroy(tape);
    return mean;
}

/* ---- signals ---- */

static volatile sig_atomic_t ncaught;

static void note_signal(int number)
{
    (void)number;
    ncaught++;
}

/* With the signal blocked in the only thread of the host, the process keeps it until that thread takes it. */
static void check_signal(int number)
{
    sigset_t one, before, pending;
    sigemptyset(&one);
    sigaddset(&one, number);
    struct sigaction action = { .sa_handler = note_signal }, old;
    if (sigaction(number, &action, &old) != 0) exit(2);
    pthread_sigmask(SIG_BLOCK, &one, &before);
    ncaught = 0;
    kill(getpid(), number);
    sigpending(&pending);
    CHECK(ncaught == 0 && sigismember(&pending, number) == 1, "a worker took signal %d", number);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    CHECK(ncaught == 1, "signal %d was caught %d times", number, (int)ncaught);
    sigaction(number, &old, NULL);
}

TEST(signals_reach_the_threads_of_the_host)
{
    static const int numbers[] = { SIGHUP,  SIGINT,  SIGQUIT,  SIGUSR1, SIGUSR2, SIGPIPE,   SIGALRM,
                                   SIGTERM, SIGCHLD, SIGWINCH, SIGIO,   SIGPROF, SIGVTALRM, SIGURG };
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    kr_ctx *ctx = ctx_of(4, false);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < NSIG; number++)
        CHECK(sigismember(&before, number) == sigismember(&after, number), "the mask of the caller changed: %d",
              number);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        CHECK(work(ctx) == 512, "wrong result");
        check_signal(numbers[i]);
    }
    kr_ctx_destroy(ctx);
}

/* ---- CPUs ---- */

#if defined(__linux__)
/* The threads of this process that are not in `known`. */
static int new_threads(int count, const pid_t *known, pid_t *found)
{
    DIR *folder = opendir("/proc/self/task");
    if (!folder) exit(2);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        const pid_t id = (pid_t)atoi(entry->d_name);
        bool is_new = id > 0 && n < MANY;
        for (int i = 0; i < count; i++) is_new = is_new && known[i] != id;
        if (is_new) found[n++] = id;
    }
    closedir(folder);
    return n;
}

static cpu_set_t cpus_of(pid_t thread)
{
    cpu_set_t set;
    if (sched_getaffinity(thread, sizeof set, &set) != 0) CPU_ZERO(&set);
    return set;
}

/* The CPUs of a worker that is not pinned. One that finds itself on its caller's CPU leaves it by a mask of the others,
 * which it takes back at once: a mask that stays is what the test is about. */
static cpu_set_t lasting_cpus_of(pid_t thread, const cpu_set_t *all)
{
    cpu_set_t set = cpus_of(thread);
    for (int i = 0; i < 5000 && !CPU_EQUAL(&set, all); i++) {
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        set = cpus_of(thread);
    }
    return set;
}

TEST(workers_may_run_on_every_cpu_of_the_process)
{
    pid_t known[MANY], workers[MANY];
    const int count = new_threads(0, NULL, known);
    kr_ctx *ctx = ctx_of(2, false);
    const int n = new_threads(count, known, workers);
    CHECK(n == 1, "%d new threads", n);
    const cpu_set_t all = cpus_of(0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < n; i++) {
            const cpu_set_t set = lasting_cpus_of(workers[i], &all);
            CHECK(CPU_EQUAL(&set, &all), "worker %d has %d CPUs of %d", i, CPU_COUNT(&set), CPU_COUNT(&all));
        }
        CHECK(work(ctx) == 512, "wrong result");
    }
    kr_ctx_destroy(ctx);
}

/* Adds the CPUs of the new threads to *used: each must have one, which no other has. */
static void check_pinned(int count, const pid_t *known, int nworkers, cpu_set_t *used)
{
    pid_t workers[MANY];
    const int n = new_threads(count, known, workers);
    CHECK(n == nworkers, "%d workers, but %d were asked for", n, nworkers);
    CPU_ZERO(used);
    for (int i = 0; i < n; i++) {
        const cpu_set_t set = cpus_of(workers[i]);
        CHECK(CPU_COUNT(&set) == 1, "a pinned worker has %d CPUs", CPU_COUNT(&set));
        CPU_OR(used, used, &set);
    }
    CHECK(CPU_COUNT(used) == n, "%d pinned workers on %d CPUs", n, CPU_COUNT(used));
}

TEST(pinned_workers_of_two_contexts_are_on_different_cpus)
{
    const cpu_set_t all = cpus_of(0);
    if (CPU_COUNT(&all) < 2) SKIP("one CPU");
    pid_t known[MANY];
    const int count = new_threads(0, NULL, known);
    for (int round = 0; round < 3; round++) { /* CPUs are given back */
        cpu_set_t used;
        kr_ctx *first = ctx_of(2, true), *second = ctx_of(2, true);
        check_pinned(count, known, 2, &used);
        CHECK(work(first) == 512 && work(second) == 512, "wrong result");
        kr_ctx_destroy(first);
        kr_ctx_destroy(second);
    }
}

TEST(pinning_by_the_environment)
{
    const cpu_set_t all = cpus_of(0);
    if (CPU_COUNT(&all) < 2) SKIP("one CPU");
    pid_t known[MANY], worker[MANY];
    const int count = new_threads(0, NULL, known);
    for (int pins = 0; pins < 2; pins++) {
        setenv("KR_PIN_THREADS", pins ? "1" : "0", 1);
        kr_ctx *ctx = ctx_of(2, false);
        CHECK_OK(ctx);
        CHECK(new_threads(count, known, worker) == 1, "not one worker");
        const cpu_set_t set = cpus_of(worker[0]);
        CHECK(CPU_COUNT(&set) == (pins ? 1 : CPU_COUNT(&all)), "KR_PIN_THREADS=%d: %d CPUs", pins, CPU_COUNT(&set));
        kr_ctx_destroy(ctx);
    }
    unsetenv("KR_PIN_THREADS");
}
#endif

/* ---- two contexts ---- */

static void *work_often(void *arg)
{
    double *worst = arg;
    kr_ctx *ctx = ctx_of(2, false);
    for (int i = 0; i < (kr_test_quick() ? 20 : 100); i++) {
        const double got = work(ctx);
        if (!(fabs(got - 512) <= *worst)) *worst = fabs(got - 512);
    }
    kr_ctx_destroy(ctx);
    return NULL;
}

/* More threads than CPUs: all come to an end. */
TEST(contexts_of_several_threads_share_the_cpus)
{
    enum { HOSTS = 4 };
    pthread_t threads[HOSTS];
    double worst[HOSTS] = { 0 };
    for (int i = 0; i < HOSTS; i++)
        if (pthread_create(&threads[i], NULL, work_often, &worst[i]) != 0) exit(2);
    for (int i = 0; i < HOSTS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < HOSTS; i++) CHECK(worst[i] == 0, "host thread %d: off by %g", i, worst[i]);
}
