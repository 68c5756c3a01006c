/* test_pool.c - every task once, for all sizes of work and pool; nesting, haste, and neighbours that hold the CPUs. */
#define _POSIX_C_SOURCE 200809L
#include "base/pool.h"
#include "tests/harness.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MANY = 5000 };

typedef struct tally {
    atomic_int runs[MANY];
    int nworkers;
    atomic_int bad; /* indices or workers out of range */
    int64_t ntasks;
} tally;

static void count_task(void *arg, int64_t index, int worker)
{
    tally *t = arg;
    if (index < 0 || index >= t->ntasks || worker < 0 || worker >= t->nworkers) atomic_fetch_add(&t->bad, 1);
    else atomic_fetch_add(&t->runs[index], 1);
}

/* Runs ntasks and says whether each ran once. */
static bool each_once(kr_pool *pool, int64_t ntasks)
{
    static tally t;
    for (int64_t i = 0; i < MANY; i++) atomic_store_explicit(&t.runs[i], 0, memory_order_relaxed);
    atomic_store(&t.bad, 0);
    t.nworkers = kr_pool_size(pool);
    t.ntasks = ntasks;
    kr_pool_run(pool, ntasks, count_task, &t);
    bool ok = atomic_load(&t.bad) == 0;
    for (int64_t i = 0; i < MANY; i++)
        ok = ok && atomic_load_explicit(&t.runs[i], memory_order_relaxed) == (i < ntasks ? 1 : 0);
    return ok;
}

static kr_pool *pool_of(kr_memory *memory, int nthreads)
{
    kr_memory_init(memory, NULL);
    kr_pool *pool = kr_pool_create(memory, nthreads, false);
    if (!pool) exit(2);
    return pool;
}

static void destroy(kr_memory *memory, kr_pool *pool)
{
    kr_pool_destroy(pool);
    CHECK(memory->stats.live_bytes == 0, "%zu bytes left", memory->stats.live_bytes);
}

TEST(every_task_runs_once)
{
    static const int64_t sizes[] = { 0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 63, 64, 65, 255, 1000, 4999 };
    for (int nthreads = 1; nthreads <= 9; nthreads += nthreads < 4 ? 1 : 5) {
        kr_memory memory;
        kr_pool *pool = pool_of(&memory, nthreads);
        CHECK(kr_pool_size(pool) == nthreads, "a pool of %d has %d", nthreads, kr_pool_size(pool));
        for (int round = 0; round < 20; round++)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                CHECK(each_once(pool, sizes[i]), "%d threads, %lld tasks: some ran not once", nthreads,
                      (long long)sizes[i]);
        destroy(&memory, pool);
    }
}

TEST(no_pool_is_one_thread)
{
    CHECK(kr_pool_size(NULL) == 1, "size %d", kr_pool_size(NULL));
    CHECK(each_once(NULL, 100), "some ran not once");
}

static void ordered_task(void *arg, int64_t index, int worker)
{
    int64_t *next = arg;
    if (worker == 0 && *next == index) ++*next;
}

TEST(one_thread_goes_in_order)
{
    kr_memory memory;
    kr_pool *pool = pool_of(&memory, 1);
    int64_t next = 0;
    kr_pool_run(pool, 1000, ordered_task, &next);
    CHECK(next == 1000, "order is broken at %lld", (long long)next);
    next = 0;
    kr_pool_run(NULL, 1000, ordered_task, &next);
    CHECK(next == 1000, "without a pool order is broken at %lld", (long long)next);
    destroy(&memory, pool);
}

typedef struct nest {
    kr_pool *pool;
    atomic_int inner;
} nest;

static void inner_task(void *arg, int64_t index, int worker)
{
    (void)index;
    (void)worker;
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void outer_task(void *arg, int64_t index, int worker)
{
    (void)worker;
    nest *n = arg;
    kr_pool_run(n->pool, index % 7, inner_task, &n->inner);
}

TEST(a_run_inside_a_run_is_done_by_its_caller)
{
    kr_memory memory;
    for (int nthreads = 1; nthreads <= 3; nthreads++) {
        kr_pool *pool = pool_of(&memory, nthreads);
        for (int round = 0; round < 50; round++) {
            nest n = { .pool = pool };
            atomic_init(&n.inner, 0);
            kr_pool_run(pool, 70, outer_task, &n);
            CHECK(atomic_load(&n.inner) == 210, "%d inner tasks of 210", atomic_load(&n.inner));
        }
        destroy(&memory, pool);
    }
}

/* Plain memory written by tasks is seen by the caller, and what the caller writes is seen by the next tasks. */
static void add_one(void *arg, int64_t index, int worker)
{
    (void)worker;
    ((int64_t *)arg)[index]++;
}

TEST(many_tiny_jobs_follow_each_other)
{
    const int njobs = kr_test_quick() ? 3000 : 30000;
    for (int nthreads = 2; nthreads <= 3; nthreads++) {
        kr_memory memory;
        kr_pool *pool = pool_of(&memory, nthreads);
        int64_t cell[4] = { 0 };
        for (int job = 0; job < njobs; job++) {
            kr_pool_run(pool, 4, add_one, cell);
            cell[job % 4]--;
            cell[job % 4]++;
        }
        for (int i = 0; i < 4; i++) CHECK(cell[i] == njobs, "cell %d is %lld", i, (long long)cell[i]);
        destroy(&memory, pool);
    }
}

TEST(pools_come_and_go)
{
    for (int round = 0; round < 200; round++) {
        kr_memory memory;
        kr_pool *pool = pool_of(&memory, 1 + round % 4);
        if (round % 3) CHECK(each_once(pool, round % 5), "some ran not once");
        destroy(&memory, pool);
    }
}

TEST(two_pools_work_side_by_side)
{
    kr_memory first_memory, second_memory;
    kr_pool *first = pool_of(&first_memory, 2), *second = pool_of(&second_memory, 3);
    for (int round = 0; round < 100; round++) CHECK(each_once(first, 50) && each_once(second, 60), "some ran not once");
    destroy(&first_memory, first);
    destroy(&second_memory, second);
}

TEST(errors)
{
    kr_memory memory;
    kr_memory_init(&memory, NULL);
    CHECK(kr_pool_create(&memory, 0, false) == NULL && kr_pool_create(&memory, -3, false) == NULL,
          "a pool of no threads");
    memory.fail_in = 1;
    CHECK(kr_pool_create(&memory, 3, false) == NULL, "a pool without memory");
    CHECK(memory.stats.live_bytes == 0, "%zu bytes left", memory.stats.live_bytes);
    kr_pool_destroy(NULL);
}

static atomic_bool busy;

static void *keep_busy(void *arg)
{
    volatile uint64_t *count = arg;
    while (atomic_load_explicit(&busy, memory_order_relaxed)) ++*count;
    return NULL;
}

/* Other threads hold every CPU: the pool gets its share and comes to an end. That it ends is the test; time is not. */
TEST(jobs_end_while_others_hold_the_cpus)
{
    enum { NEIGHBOURS = 3 };
    pthread_t neighbours[NEIGHBOURS];
    static volatile uint64_t counts[NEIGHBOURS * 16];
    atomic_store(&busy, true);
    for (int i = 0; i < NEIGHBOURS; i++)
        if (pthread_create(&neighbours[i], NULL, keep_busy, (void *)(uintptr_t)&counts[16 * i]) != 0) exit(2);
    kr_memory memory;
    kr_pool *pool = pool_of(&memory, 2);
    for (int job = 0; job < (kr_test_quick() ? 200 : 1000); job++) CHECK(each_once(pool, 16), "some ran not once");
    destroy(&memory, pool);
    atomic_store(&busy, false);
    for (int i = 0; i < NEIGHBOURS; i++) pthread_join(neighbours[i], NULL);
}
