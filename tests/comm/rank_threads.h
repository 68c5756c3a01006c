/* rank_threads.h - ranks of a test as threads, each with its own context and communicator of engine "tcp". */
#ifndef KR_TESTS_COMM_RANK_THREADS_H
#define KR_TESTS_COMM_RANK_THREADS_H

#include "tests/comm/comm_checks.h"
#include "tests/harness.h"
#include "tests/temp_folder.h"

#include <pthread.h>

typedef struct rank_thread {
    int rank, ranks;
    kr_ctx *ctx;
    kr_comm *comm; /* NULL: not created */
    void *user;
    const kr_comm_options *options; /* of all ranks, without rank, ranks and meet */
    void (*run)(struct rank_thread *self);
    pthread_t thread;
} rank_thread;

/* Checks of several threads, one at a time: no call that waits for other ranks inside. */
static pthread_mutex_t rank_check = PTHREAD_MUTEX_INITIALIZER;
#define RANK_CHECK(cond, ...)                                                                                          \
    do {                                                                                                               \
        const bool rank_ok = (cond);                                                                                   \
        pthread_mutex_lock(&rank_check);                                                                               \
        CHECK(rank_ok, __VA_ARGS__);                                                                                   \
        pthread_mutex_unlock(&rank_check);                                                                             \
    } while (0)

/* The context's message has all these words, in order; the error is cleared. */
static inline void rank_error(rank_thread *r, const char *first, const char *second)
{
    const char *message = kr_ctx_message(r->ctx), *at = strstr(message, first);
    RANK_CHECK(kr_ctx_failed(r->ctx) && at && strstr(at, second), "rank %d of %d: error \"%s\", not \"%s...%s\"",
               r->rank, r->ranks, message, first, second);
    kr_ctx_clear(r->ctx);
}

static inline void *rank_main(void *arg)
{
    rank_thread *r = arg;
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    r->ctx = kr_ctx_create(&options);
    kr_comm_options own = *r->options;
    char meet[256];
    pthread_mutex_lock(&rank_check);
    snprintf(meet, sizeof meet, "%s", own.meet ? own.meet : in_folder("meet"));
    pthread_mutex_unlock(&rank_check);
    own.engine = own.engine ? own.engine : "tcp";
    own.rank = r->rank;
    own.ranks = r->ranks;
    own.meet = meet;
    r->comm = kr_comm_create(r->ctx, &own);
    /* All have met before one of them does something wrong; a late one may get that error here. */
    if (r->comm) (void)(kr_comm_barrier(r->comm) == KR_OK);
    r->run(r);
    kr_comm_destroy(r->comm);
    RANK_CHECK(!kr_ctx_failed(r->ctx), "rank %d of %d: %s", r->rank, r->ranks, kr_ctx_message(r->ctx));
    kr_ctx_destroy(r->ctx);
    return NULL;
}

enum { RANKS_MOST = 8 };

/* Runs `run` as `ranks` ranks. */
static inline void run_ranks(int ranks, const kr_comm_options *options, void (*run)(rank_thread *), void *user)
{
    rank_thread list[RANKS_MOST];
    kr_comm_options defaults;
    kr_comm_options_init(&defaults);
    defaults.timeout = 60;
    begin_folder();
    for (int i = 0; i < ranks; i++) {
        list[i] = (rank_thread){
            .rank = i, .ranks = ranks, .user = user, .options = options ? options : &defaults, .run = run
        };
        if (pthread_create(&list[i].thread, NULL, rank_main, &list[i]) != 0) exit(2);
    }
    for (int i = 0; i < ranks; i++) pthread_join(list[i].thread, NULL);
    end_folder();
}

#endif
