/* pool.h - a persistent pool of worker threads: one call fans tasks out and joins them.
 *
 * Work is cut by shape, never by thread count: the caller defines the number of tasks and the work of each, and any
 * worker may run any task. So 1 and n threads give the same bits.
 */
#ifndef KR_BASE_POOL_H
#define KR_BASE_POOL_H

#include "base/alloc.h"

#include <krait/base.h>

typedef struct kr_pool kr_pool;

enum { KR_POOL_MAX = 1024 }; /* threads */

/* One task: index in [0, ntasks), worker in [0, kr_pool_size(pool)) (for per-worker scratch only). */
typedef void kr_task_fn(void *arg, int64_t index, int worker);

/* A pool of nthreads (1 to KR_POOL_MAX) in all, the calling thread included. pins: each worker stays on one CPU, if there
 * are enough of them; otherwise the system places it. NULL when memory or threads are refused. */
kr_pool *kr_pool_create(kr_memory *memory, int nthreads, bool pins);

/* Ends the workers. In a forked child, which has none, it only frees the memory. */
void kr_pool_destroy(kr_pool *pool);

/* For a forked child, in which no worker exists. */
void kr_pool_forget_workers(void);

/* Threads that take part in a run: 1 for NULL. */
int kr_pool_size(const kr_pool *pool);

/* Runs fn(arg, 0..ntasks-1, worker) and returns when all are done. With pool NULL, one thread, one task or
 * inside another run of the same pool the tasks run on the calling thread, in order. */
void kr_pool_run(kr_pool *pool, int64_t ntasks, kr_task_fn *fn, void *arg);

#endif
