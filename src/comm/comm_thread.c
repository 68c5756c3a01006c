/* comm_thread.c - the thread of a communicator: it makes all calls of the engine, in the order in which they were
 * posted.
 *
 * The caller's side and the thread share what the mutex protects. The thread sleeps between calls; inside a call the
 * engine waits as it does. Errors stay in the world until the caller's side takes them into its context.
 */
#define _GNU_SOURCE
#include "base/fork.h"
#include "comm/comm_impl.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

double kr_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- of the thread ---- */

void kr_world_break(kr_world *world, kr_status status, const char *format, ...)
{
    char text[KR_ENGINE_TEXT];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    pthread_mutex_lock(&world->mutex);
    const bool is_first = !world->is_broken;
    if (is_first) {
        memcpy(world->problem, text, sizeof text);
        world->problem_status = status;
        world->is_broken = true;
    }
    pthread_mutex_unlock(&world->mutex);
    if (is_first && world->engine->tell) world->engine->tell(world->self, text);
}

static void finish(kr_world *world, kr_job *job, kr_status status, double seconds)
{
    pthread_mutex_lock(&world->mutex);
    job->status = status;
    job->is_done = true;
    world->ncalls++;
    world->seconds += seconds;
    pthread_cond_broadcast(&world->ended);
    pthread_mutex_unlock(&world->mutex);
}

/* Waits for a job; NULL: there are none, and the thread has to end. */
static kr_job *take(kr_world *world)
{
    for (;;) {
        char failure[KR_ENGINE_TEXT];
        pthread_mutex_lock(&world->mutex);
        while (!world->first && !world->stops && !world->is_failing) pthread_cond_wait(&world->posted, &world->mutex);
        const bool is_failing = world->is_failing;
        kr_job *job = is_failing ? NULL : world->first;
        if (job && !(world->first = job->queued)) world->last = NULL;
        if (is_failing) memcpy(failure, world->failure, sizeof failure);
        world->is_failing = false;
        pthread_mutex_unlock(&world->mutex);
        if (!is_failing) return job;
        kr_world_break(world, KR_ERR_IO, "%s", failure);
    }
}

static void run_jobs(kr_world *world)
{
    for (kr_job *job; (job = take(world));) {
        pthread_mutex_lock(&world->mutex);
        const bool is_broken = world->is_broken;
        pthread_mutex_unlock(&world->mutex);
        const double start = kr_clock();
        const kr_status status = is_broken ? world->problem_status : kr_job_run(job);
        finish(world, job, status, kr_clock() - start);
    }
}

static void open_engine(kr_world *world)
{
    char text[KR_ENGINE_TEXT] = "";
    const kr_moved moved = world->engine->open(&world->setup, &world->self, &world->rank, &world->ranks, text);
    const kr_status status = moved == KR_MOVED_ALL ? KR_OK : moved == KR_MOVED_NO_MEMORY ? KR_ERR_NOMEM : KR_ERR_IO;
    pthread_mutex_lock(&world->mutex);
    world->problem_status = status;
    memcpy(world->problem, text, sizeof text);
    world->is_open = true;
    pthread_cond_broadcast(&world->ended);
    pthread_mutex_unlock(&world->mutex);
}

static void ask_for_memory(kr_world *world, void *p, size_t bytes, bool is_free)
{
    pthread_mutex_lock(&world->mutex);
    world->memory.p = p;
    world->memory.bytes = bytes;
    world->memory.is_free = is_free;
    world->memory.is_waiting = true;
    pthread_cond_broadcast(&world->ended);
    while (world->memory.is_waiting) pthread_cond_wait(&world->posted, &world->mutex);
    pthread_mutex_unlock(&world->mutex);
}

void *kr_world_alloc(void *world, size_t bytes)
{
    ask_for_memory(world, NULL, bytes, false);
    return ((kr_world *)world)->memory.p;
}

void kr_world_free(void *world, void *p, size_t bytes)
{
    ask_for_memory(world, p, bytes, true);
}

static void *work(void *arg)
{
    kr_world *world = arg;
    open_engine(world);
    if (world->problem_status != KR_OK) return NULL;
    run_jobs(world);
    world->engine->close(world->self, world->is_broken);
    pthread_mutex_lock(&world->mutex);
    world->is_closed = true;
    pthread_cond_broadcast(&world->ended);
    pthread_mutex_unlock(&world->mutex);
    return NULL;
}

/* ---- of the caller ---- */

/* Signals of the process are for the program's threads; those of a fault stay. */
static bool start(kr_world *world)
{
    static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    const bool ok = pthread_create(&world->thread, NULL, work, world) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

/* Waits until the thread has opened or closed the engine, and gets the memory that it asks for meanwhile. */
static void serve(kr_world *world, const bool *is_done)
{
    pthread_mutex_lock(&world->mutex);
    while (!*is_done) {
        if (!world->memory.is_waiting) {
            pthread_cond_wait(&world->ended, &world->mutex);
            continue;
        }
        kr_memory *memory = &world->ctx->memory;
        if (world->memory.is_free) kr_memory_free(memory, world->memory.p, world->memory.bytes);
        else world->memory.p = kr_memory_alloc_zeroed(memory, world->memory.bytes);
        world->memory.is_waiting = false;
        pthread_cond_signal(&world->posted);
    }
    pthread_mutex_unlock(&world->mutex);
}

bool kr_world_open(kr_world *world)
{
    kr_fork_watch();
    world->nforks = kr_fork_count();
    pthread_mutex_init(&world->mutex, NULL);
    pthread_cond_init(&world->posted, NULL);
    pthread_cond_init(&world->ended, NULL);
    bool ok = kr_require(world->ctx, start(world), KR_ERR_NOMEM, "comm.create: the system refuses another thread");
    if (ok) {
        serve(world, &world->is_open);
        ok = world->problem_status == KR_OK;
        if (!ok) {
            pthread_join(world->thread, NULL);
            kr_fail(world->ctx, world->problem_status, "comm.create: %s: %s", world->engine->name,
                    world->problem_status == KR_ERR_NOMEM ? "out of memory" : world->problem);
        }
    }
    if (!ok) {
        pthread_cond_destroy(&world->ended);
        pthread_cond_destroy(&world->posted);
        pthread_mutex_destroy(&world->mutex);
    }
    world->is_running = ok;
    return ok;
}

void kr_world_close(kr_world *world)
{
    if (world->nforks != kr_fork_count()) return; /* the thread belongs to the parent */
    pthread_mutex_lock(&world->mutex);
    world->stops = true;
    pthread_cond_signal(&world->posted);
    pthread_mutex_unlock(&world->mutex);
    serve(world, &world->is_closed);
    pthread_join(world->thread, NULL);
    pthread_cond_destroy(&world->ended);
    pthread_cond_destroy(&world->posted);
    pthread_mutex_destroy(&world->mutex);
}

void kr_world_post(kr_world *world, kr_job *job)
{
    pthread_mutex_lock(&world->mutex);
    if (world->last) world->last->queued = job;
    else world->first = job;
    world->last = job;
    pthread_cond_signal(&world->posted);
    pthread_mutex_unlock(&world->mutex);
}

void kr_world_wait(kr_world *world, const kr_job *job)
{
    const double start = kr_clock();
    pthread_mutex_lock(&world->mutex);
    while (!job->is_done) pthread_cond_wait(&world->ended, &world->mutex);
    world->waited += kr_clock() - start;
    pthread_mutex_unlock(&world->mutex);
}

void kr_world_name_error(const kr_world *world, int rank, int ranks, char *text)
{
    const char *message = world->ctx->message;
    int number, count;
    char after;
    const bool is_named = sscanf(message, "rank %d of %d %c", &number, &count, &after) == 3 && after == '(';
    if (is_named) snprintf(text, KR_ENGINE_TEXT, "%s", message);
    else
        snprintf(text, KR_ENGINE_TEXT, "rank %d of %d (%s): %.900s", rank, ranks, world->table[world->rank].host,
                 message);
}

void kr_world_fail(kr_world *world)
{
    if (world->ranks == 1 || !world->table) return;
    pthread_mutex_lock(&world->mutex);
    if (!world->is_broken && !world->failure[0]) {
        kr_world_name_error(world, world->rank, world->ranks, world->failure);
        world->is_failing = true;
        pthread_cond_signal(&world->posted);
    }
    pthread_mutex_unlock(&world->mutex);
}

bool kr_world_blame(kr_world *world)
{
    pthread_mutex_lock(&world->mutex);
    const bool is_broken = world->is_broken;
    pthread_mutex_unlock(&world->mutex);
    if (is_broken) kr_fail(world->ctx, world->problem_status, "%s", world->problem);
    return is_broken;
}
