/* fork.c - counts forks, in the child. */
#include "base/fork.h"

#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>

static atomic_uint forks;
static pthread_once_t once = PTHREAD_ONCE_INIT;

unsigned kr_fork_count(void)
{
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

static void count_fork(void)
{
    atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
    kr_pool_forget_workers();
}

/* If pthread_atfork fails (no memory), calls in the child are not refused; everything else works. */
static void watch(void)
{
    (void)pthread_atfork(NULL, NULL, count_fork);
}

void kr_fork_watch(void)
{
    pthread_once(&once, watch);
}
