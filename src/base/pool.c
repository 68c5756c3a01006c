/* pool.c - workers that spin briefly for the next job, then sleep.
 *
 * A job is open while its tasks may be taken. The caller publishes it, takes tasks like any worker, closes it when none
 * is left, and waits only for workers that are inside: one that the system has not scheduled (another process holds its
 * CPU) never entered, so nobody waits for it. Entering and closing are the two halves of a Dekker handshake on `inside`
 * and `open`, hence sequentially consistent.
 */
#define _GNU_SOURCE
#include "base/pool.h"

#include "base/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum {
    SPINS_BEFORE_SLEEP = 4000, /* some 50 us: the gap between two ops, far less than a wake-up storm */
    SPINS_BEFORE_YIELD = 1000
};

typedef struct worker {
    kr_pool *pool;
    int index;
    int cpu; /* where it is pinned */
    pthread_t thread;
} worker;

struct kr_pool {
    kr_memory *memory;
    int nthreads, nstarted; /* the caller is thread 0 and is not started */
    int spins;
    bool is_pinned;
    int caller_cpu; /* the one that no worker has */
    kr_task_fn *fn;
    void *arg;
    int64_t ntasks;
    _Alignas(64) atomic_int_least64_t next; /* first task not taken */
    _Alignas(64) atomic_bool open;
    atomic_int inside;
    atomic_bool running;
    _Alignas(64) atomic_uint job; /* counts jobs; a change wakes the spinners */
    atomic_int sleepers;
    atomic_bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    worker workers[];
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_tasks(kr_pool *pool, int index)
{
    const int64_t ntasks = pool->ntasks;
    for (;;) {
        int64_t task = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (task >= ntasks) return;
        pool->fn(pool->arg, task, index);
    }
}

/* Waits until the job counter leaves `seen`; returns its new value. */
static unsigned await_job(kr_pool *pool, unsigned seen)
{
    for (int i = 0; i < pool->spins; i++) {
        if (atomic_load_explicit(&pool->job, memory_order_acquire) != seen) return atomic_load(&pool->job);
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->job) == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
    return atomic_load(&pool->job);
}

static void *work(void *arg)
{
    worker *self = arg;
    kr_pool *pool = self->pool;
    unsigned seen = 0;
    for (;;) {
        seen = await_job(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        atomic_fetch_add(&pool->inside, 1);
        if (atomic_load(&pool->open)) take_tasks(pool, self->index);
        atomic_fetch_sub(&pool->inside, 1);
    }
}

static void announce(kr_pool *pool)
{
    atomic_fetch_add(&pool->job, 1);
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

/* A worker that moves between CPUs loses its caches. Pinning is a wish: a refusal changes nothing but speed. */
static void pin(worker *w, int cpu)
{
    w->cpu = cpu;
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    (void)pthread_setaffinity_np(w->thread, sizeof set, &set);
#endif
}

/* The caller is free to move. Where it has come to a worker's CPU, that worker takes the one that the caller left: two
 * threads on one CPU would halve the speed until the system notices. */
static void make_room_for_caller(kr_pool *pool)
{
#if defined(__linux__)
    const int cpu = sched_getcpu();
    if (!pool->is_pinned || cpu == pool->caller_cpu || cpu < 0) return;
    for (int i = 1; i < pool->nthreads; i++) {
        if (pool->workers[i].cpu != cpu) continue;
        pin(&pool->workers[i], pool->caller_cpu);
        break;
    }
    pool->caller_cpu = cpu;
#else
    (void)pool;
#endif
}

static bool start_workers(kr_pool *pool)
{
    int cpus[KR_POOL_MAX];
    const int ncpus = kr_cpu_allowed(cpus, KR_POOL_MAX);
    /* More threads than CPUs: spinning would only keep the others from working. */
    pool->spins = pool->nthreads <= ncpus ? SPINS_BEFORE_SLEEP : 0;
    pool->is_pinned = pool->nthreads <= ncpus && ncpus <= KR_POOL_MAX;
    pool->caller_cpu = cpus[0];
    for (int i = 1; i < pool->nthreads; i++) {
        worker *w = &pool->workers[i];
        *w = (worker){ .pool = pool, .index = i };
        if (pthread_create(&w->thread, NULL, work, w) != 0) return false;
        pool->nstarted++;
        if (pool->is_pinned) pin(w, cpus[i]);
    }
    return true;
}

static size_t pool_bytes(int nthreads)
{
    return sizeof(kr_pool) + (size_t)nthreads * sizeof(worker);
}

kr_pool *kr_pool_create(kr_memory *memory, int nthreads)
{
    if (nthreads < 1 || nthreads > KR_POOL_MAX) return NULL;
    kr_pool *pool = kr_memory_alloc_zeroed(memory, pool_bytes(nthreads));
    if (!pool) return NULL;
    pool->memory = memory;
    pool->nthreads = nthreads;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    if (!start_workers(pool)) {
        kr_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

void kr_pool_destroy(kr_pool *pool)
{
    if (!pool) return;
    atomic_store(&pool->stop, true);
    announce(pool);
    for (int i = 1; i <= pool->nstarted; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    kr_memory_free(pool->memory, pool, pool_bytes(pool->nthreads));
}

int kr_pool_size(const kr_pool *pool)
{
    return pool ? pool->nthreads : 1;
}

void kr_pool_run(kr_pool *pool, int64_t ntasks, kr_task_fn *fn, void *arg)
{
    if (!pool || pool->nthreads == 1 || ntasks <= 1 || atomic_exchange(&pool->running, true)) {
        for (int64_t task = 0; task < ntasks; task++) fn(arg, task, 0);
        return;
    }
    make_room_for_caller(pool);
    pool->fn = fn;
    pool->arg = arg;
    pool->ntasks = ntasks;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->open, true);
    announce(pool);
    take_tasks(pool, 0);
    atomic_store(&pool->open, false);
    for (int i = 0; atomic_load(&pool->inside) != 0; i++) {
        if (i < SPINS_BEFORE_YIELD) relax();
        else sched_yield();
    }
    atomic_store(&pool->running, false);
}
