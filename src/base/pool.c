/* pool.c - workers that spin briefly for the next job, then sleep.
 *
 * Workers belong to the library, not to the host program: they block its signals, and the system schedules them freely
 * unless pinning was requested. Pools of one process share its CPUs: a worker spins only while no more threads of all
 * pools are awake than there are CPUs, and a pinned pool takes the CPUs that others have least.
 *
 * A job is open while its tasks may be taken. The caller publishes it, takes tasks like any worker, closes it when none
 * is left, and waits only for workers that are inside: one that the system has not scheduled (another process holds its
 * CPU) never entered, so the caller does not wait for it. Entering and closing are the two halves of a Dekker handshake
 * on `inside` and `open`, hence sequentially consistent.
 */
#define _GNU_SOURCE
#include "base/pool.h"

#include "base/cpu.h"
#include "base/fork.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

enum {
    SPINS_BEFORE_SLEEP =
        4000, /* about 50 us: longer than the gap between two ops, much shorter than waking all workers */
    SPINS_BEFORE_YIELD = 1000,
    SPINS_BEFORE_LOOK = 64 /* at how many threads are awake, and where the caller is */
};

typedef struct worker {
    kr_pool *pool;
    int index;
    int cpu; /* where it is pinned; -1: nowhere */
    pthread_t thread;
} worker;

struct kr_pool {
    kr_memory *memory;
    int nthreads, nstarted; /* the caller is thread 0 and is not started */
    int ncpus;              /* that this process may use */
    bool is_pinned;
    unsigned nforks; /* kr_fork_count of the process that has the workers */
    kr_task_fn *fn;
    void *arg;
    int64_t ntasks;
    atomic_int caller_cpu;                  /* where it last ran a job; pinned: the claimed CPU that no worker has */
    _Alignas(64) atomic_int_least64_t next; /* first task not taken */
    _Alignas(64) atomic_bool open;
    atomic_int inside;
    atomic_bool running;
    _Alignas(64) atomic_uint job; /* counts jobs; a change wakes the spinners */
    atomic_int sleepers, nawake;
    atomic_bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    worker workers[];
};

/* Threads of all pools of the process that run a job or spin for one: workers, and a caller for each pool that has any. */
static atomic_int awake;

/* Load of the process's pinned pools on each CPU. A worker weighs more than a caller, which may migrate. */
enum { WORKER_CLAIM = 2, CALLER_CLAIM = 1 };
static atomic_int claims[KR_POOL_MAX];

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

static void count_awake(kr_pool *pool)
{
    atomic_fetch_add(&awake, atomic_fetch_add(&pool->nawake, 1) == 0 ? 2 : 1);
}

static void count_asleep(kr_pool *pool)
{
    atomic_fetch_sub(&awake, atomic_fetch_sub(&pool->nawake, 1) == 1 ? 2 : 1);
}

/* Would a thread that spins keep another one from a CPU? */
static bool is_crowded(const kr_pool *pool)
{
    return pool->nthreads > pool->ncpus || atomic_load_explicit(&awake, memory_order_relaxed) > pool->ncpus;
}

/* A worker on the CPU of its caller works only while the caller waits, and under load the system may leave it there: it
 * is moved to another CPU, then unpinned. */
static void leave_caller(const kr_pool *pool)
{
#if defined(__linux__)
    const int cpu = sched_getcpu();
    cpu_set_t all, others;
    if (pool->is_pinned || pool->ncpus < 2 || cpu != atomic_load_explicit(&pool->caller_cpu, memory_order_relaxed) ||
        pthread_getaffinity_np(pthread_self(), sizeof all, &all) != 0)
        return;
    others = all;
    CPU_CLR((size_t)cpu, &others);
    if (CPU_COUNT(&others) == 0 || pthread_setaffinity_np(pthread_self(), sizeof others, &others) != 0) return;
    (void)pthread_setaffinity_np(pthread_self(), sizeof all, &all);
#else
    (void)pool;
#endif
}

/* Waits until the job counter differs from `seen`; returns its new value. */
static unsigned await_job(kr_pool *pool, unsigned seen)
{
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        if (atomic_load_explicit(&pool->job, memory_order_acquire) != seen) return atomic_load(&pool->job);
        if (i % SPINS_BEFORE_LOOK == 0) {
            if (is_crowded(pool)) break;
            leave_caller(pool);
        }
        relax();
    }
    count_asleep(pool);
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->job) == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
    count_awake(pool);
    return atomic_load(&pool->job);
}

static void *work(void *arg)
{
    worker *self = arg;
    kr_pool *pool = self->pool;
    unsigned seen = 0;
    for (;;) {
        seen = await_job(pool, seen);
        if (atomic_load(&pool->stop)) break;
        atomic_fetch_add(&pool->inside, 1);
        if (atomic_load(&pool->open)) take_tasks(pool, self->index);
        atomic_fetch_sub(&pool->inside, 1);
    }
    count_asleep(pool);
    return NULL;
}

static void announce(kr_pool *pool)
{
    atomic_fetch_add(&pool->job, 1);
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

/* ---- pinning ---- */

/* Pinning is a wish: a refusal changes nothing but speed. */
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

/* The allowed CPU with the smallest claims. */
static int claim_cpu(const int *cpus, int ncpus, int claim)
{
    for (;;) {
        int best = cpus[0], least = atomic_load(&claims[best]);
        for (int i = 1; i < ncpus; i++) {
            const int found = atomic_load(&claims[cpus[i]]);
            if (found >= least) continue;
            best = cpus[i];
            least = found;
        }
        if (atomic_compare_exchange_strong(&claims[best], &least, least + claim)) return best;
    }
}

static void claim_cpus(kr_pool *pool, const int *cpus)
{
    for (int i = 1; i < pool->nthreads; i++) pool->workers[i].cpu = claim_cpu(cpus, pool->ncpus, WORKER_CLAIM);
    atomic_store(&pool->caller_cpu, claim_cpu(cpus, pool->ncpus, CALLER_CLAIM));
}

static void release_cpus(kr_pool *pool)
{
    if (!pool->is_pinned) return;
    for (int i = 1; i < pool->nthreads; i++) atomic_fetch_sub(&claims[pool->workers[i].cpu], WORKER_CLAIM);
    atomic_fetch_sub(&claims[atomic_load(&pool->caller_cpu)], CALLER_CLAIM);
}

/* The caller is not pinned. If it migrated to a pinned worker's CPU, that worker takes the caller's former CPU: two
 * threads on one CPU would halve the speed until the system notices. */
static void note_caller(kr_pool *pool)
{
#if defined(__linux__)
    const int cpu = sched_getcpu(), before = atomic_load_explicit(&pool->caller_cpu, memory_order_relaxed);
    if (cpu == before || cpu < 0) return;
    int i = 1;
    while (pool->is_pinned && i < pool->nthreads && pool->workers[i].cpu != cpu) i++;
    if (pool->is_pinned && i == pool->nthreads) return; /* it is where no worker is */
    atomic_store_explicit(&pool->caller_cpu, cpu, memory_order_relaxed);
    if (!pool->is_pinned) return;
    atomic_fetch_add(&claims[cpu], CALLER_CLAIM - WORKER_CLAIM);
    atomic_fetch_add(&claims[before], WORKER_CLAIM - CALLER_CLAIM);
    pin(&pool->workers[i], before);
#else
    (void)pool;
#endif
}

/* ---- life ---- */

void kr_pool_forget_workers(void)
{
    atomic_store(&awake, 0);
    for (int i = 0; i < KR_POOL_MAX; i++) atomic_store(&claims[i], 0);
}

/* Signals sent to the process are for the host program's threads. Those that a fault of the thread itself raises stay, so
 * that a crash handler or a sanitizer sees it. */
static void set_worker_signals(sigset_t *set)
{
    static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };
    sigfillset(set);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(set, faults[i]);
}

static bool start_worker(worker *w)
{
    count_awake(w->pool); /* it spins first */
    if (pthread_create(&w->thread, NULL, work, w) == 0) {
        w->pool->nstarted++;
        if (w->pool->is_pinned) pin(w, w->cpu);
        return true;
    }
    count_asleep(w->pool);
    return false;
}

/* A worker inherits the mask of the thread that starts it. */
static bool start_workers(kr_pool *pool)
{
    sigset_t workers, callers;
    set_worker_signals(&workers);
    pthread_sigmask(SIG_BLOCK, &workers, &callers);
    bool ok = true;
    for (int i = 1; ok && i < pool->nthreads; i++) ok = start_worker(&pool->workers[i]);
    pthread_sigmask(SIG_SETMASK, &callers, NULL);
    return ok;
}

/* More threads than CPUs are not pinned, nor are those of a machine with more CPUs than can be claimed. */
static void place_workers(kr_pool *pool, bool pins)
{
    int cpus[KR_POOL_MAX];
    pool->ncpus = kr_cpu_allowed(cpus, KR_POOL_MAX); /* in ascending order */
    pool->is_pinned =
        pins && pool->nthreads <= pool->ncpus && pool->ncpus <= KR_POOL_MAX && cpus[pool->ncpus - 1] < KR_POOL_MAX;
    atomic_init(&pool->caller_cpu, -1);
    for (int i = 1; i < pool->nthreads; i++) pool->workers[i] = (worker){ .pool = pool, .index = i, .cpu = -1 };
    if (pool->is_pinned) claim_cpus(pool, cpus);
}

static size_t pool_bytes(int nthreads)
{
    return sizeof(kr_pool) + (size_t)nthreads * sizeof(worker);
}

kr_pool *kr_pool_create(kr_memory *memory, int nthreads, bool pins)
{
    if (nthreads < 1 || nthreads > KR_POOL_MAX) return NULL;
    kr_pool *pool = kr_memory_alloc_zeroed(memory, pool_bytes(nthreads));
    if (!pool) return NULL;
    pool->memory = memory;
    kr_fork_watch();
    pool->nforks = kr_fork_count();
    pool->nthreads = nthreads;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    place_workers(pool, pins);
    if (!start_workers(pool)) {
        kr_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

void kr_pool_destroy(kr_pool *pool)
{
    if (!pool) return;
    if (pool->nforks == kr_fork_count()) { /* in a forked child the lock may be held, and a join would never return */
        atomic_store(&pool->stop, true);
        announce(pool);
        for (int i = 1; i <= pool->nstarted; i++) pthread_join(pool->workers[i].thread, NULL);
        release_cpus(pool);
        pthread_cond_destroy(&pool->wake);
        pthread_mutex_destroy(&pool->mutex);
    }
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
    note_caller(pool);
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
