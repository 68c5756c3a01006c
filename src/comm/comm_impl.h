/* comm_impl.h - communicators inside: the world that they share, its thread, posted calls. */
#ifndef KR_COMM_COMM_IMPL_H
#define KR_COMM_COMM_IMPL_H

#include "base/ctx_impl.h"
#include "comm/engine.h"

#include <krait/comm.h>

#include <pthread.h>

/* A rank, as the others know it. */
typedef struct kr_rank_info {
    char host[64];
    uint64_t machine; /* the same for ranks of one machine */
    int32_t process, ncpus, nthreads, reserved;
    int64_t cpus; /* a hash of the CPUs that it may use */
} kr_rank_info;

/* A posted call, from kr_comm_begin to kr_comm_end. */
typedef struct kr_job {
    struct kr_job *queued; /* the next one for the thread */
    struct kr_job *next;   /* of the same communicator */
    struct kr_comm *comm;
    kr_ticket ticket;
    kr_comm_call call; /* from and to: host memory; `shares` is behind this struct */
    bool is_agreement, has_failed;
    char *text; /* agreement: KR_ENGINE_TEXT bytes behind this struct: of this rank, then of the failed one */
    kr_status failed_status;     /* of that text */
    void *device_to;             /* NULL, or where the result belongs ... */
    size_t from_bytes, to_bytes; /* ... and the sizes of `from` and `to` if they are copies; 0: they are not */
    size_t bytes;                /* of this struct and what is behind it */
    bool is_done;
    kr_status status;
} kr_job;

typedef struct kr_world {
    kr_ctx *ctx;
    const kr_engine *engine;
    void *self, *library; /* the engine's, and its shared object */
    int rank, ranks, users;
    bool is_running; /* the thread */
    unsigned nforks;
    double timeout;
    kr_sum_order order;
    kr_engine_setup setup;
    kr_rank_info *table; /* [ranks]; NULL until they have met */

    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t posted, ended;
    kr_job *first, *last;           /* waiting for the thread */
    bool is_open, is_closed, stops; /* the engine has met the others; the thread has to end */
    struct {
        void *p;
        size_t bytes;
        bool is_waiting, is_free;
    } memory;                     /* what the thread asks of the caller's side, which alone calls the allocator */
    bool is_failing;              /* this rank has failed: the thread has to tell the others ... */
    char failure[KR_ENGINE_TEXT]; /* ... this */
    bool is_broken;
    kr_status problem_status;
    char problem[KR_ENGINE_TEXT]; /* of all calls from now on */
    atomic_bool cancel;
    int64_t ncalls;
    uint64_t sent, received;
    double seconds, waited;

    /* of the thread */
    kr_moves moves;
    int nmoves_most;
    char *scratch; /* slots of sums, and headers */
    size_t scratch_bytes;
    void **slots; /* [2 ranks] */
} kr_world;

struct kr_comm {
    kr_ctx *ctx;
    kr_world *world;
    int rank, ranks, local_rank, local_ranks;
    int *members; /* [ranks]: their ranks in the world */
    int per_host; /* ranks of each host, a power of two, numbered host by host; 0: there is one host, or hosts differ */
    uint64_t id;
    int64_t nsplits, ncalls; /* ncalls: collective calls, of the thread */
    kr_ticket last_ticket;
    kr_job *jobs;
    size_t bytes;
    char text[256];
};

/* Not 0: communicators take so many ranks, in order, for those of one host. Test programs may set it before they create any. */
extern int kr_ranks_per_host_of_tests;

/* ---- comm_thread.c ---- */

/* Memory for the engine while the world opens and closes. */
void *kr_world_alloc(void *world, size_t bytes);
void kr_world_free(void *world, void *p, size_t bytes);

/* Starts the thread, which opens the engine, and waits for it. False after an error. */
bool kr_world_open(kr_world *world);

/* Ends the thread, which closes the engine. */
void kr_world_close(kr_world *world);

/* Makes the calling thread wait for the job. */
void kr_world_wait(kr_world *world, const kr_job *job);
void kr_world_post(kr_world *world, kr_job *job);

/* The context has failed: the thread tells the other ranks, once. */
void kr_world_fail(kr_world *world);

/* The context's error as the other ranks get it, into `text` of KR_ENGINE_TEXT bytes: with this rank's name, unless it
 * is one that another rank has told. */
void kr_world_name_error(const kr_world *world, int rank, int ranks, char *text);

/* Is it broken? Then the problem becomes the error of the context. */
bool kr_world_blame(kr_world *world);

/* Of the thread: no call works from now on; `format` says why. */
void kr_world_break(kr_world *world, kr_status status, const char *format, ...) KR_PRINTF(3, 4);

/* ---- collectives.c, of the thread ---- */

enum { KR_FRAGMENTS_MOST = 16, KR_SCRATCH_BYTES = 2 << 20, KR_SLOT_BYTES_LEAST = 64 << 10 };
size_t kr_scratch_bytes(int ranks);

kr_status kr_job_run(kr_job *job);

/* Seconds of a clock that never goes back. */
double kr_clock(void);

/* ---- engines ---- */

const kr_engine *kr_engine_self(void);
const kr_engine *kr_engine_tcp(void);

/* Loads a plug-in, libkrait_NAME.so. NULL after an error. */
const kr_engine *kr_engine_load(kr_ctx *ctx, const char *name, void **library);

#endif
