/* engine_mpi.c - the engine "mpi", the plug-in libkrait_mpi.so: moves between ranks as messages of MPI.
 *
 * It is compiled by mpicc, since every MPI has an interface of its own; the rest of Krait knows none. Apart from its table it
 * needs nothing of the library. The communicator's thread initialises and finalises MPI and makes all its calls; a program that
 * has initialised MPI itself needs MPI_THREAD_MULTIPLE, since its own thread calls it as well.
 *
 * Messages keep their order between two ranks. Those waiting are polled, and the thread sleeps in between, longer the longer it
 * waits: MPI has no call that sleeps.
 */
#define _GNU_SOURCE
#include "comm/engine.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    TAG_DATA = 1,
    TAG_TEXT = 2,
    MESSAGE_MOST = 1 << 30, /* bytes: counts are int */
    GROUPS_MOST = 16,
    POLLS_BEFORE_SLEEP = 200,
    SLEEP_NS_LEAST = 2000,
    SLEEP_NS_MOST = 200000,
    LINGER_NS = 500000000
};

#define TELL_SECONDS 0.2

/* A communicator of MPI for some ranks, for its own sums. */
typedef struct group {
    MPI_Comm comm;
    int n;
    int *members;
} group;

typedef struct engine_mpi {
    kr_engine_setup setup;
    MPI_Comm comm;
    int rank, ranks;
    bool is_own; /* MPI was initialised here */
    MPI_Request *requests;
    int nrequests, requests_most;
    MPI_Request text_request; /* for a text of any rank */
    char text[KR_ENGINE_TEXT], told[KR_ENGINE_TEXT];
    MPI_Request *tell_requests; /* [ranks] */
    int *members;               /* [GROUPS_MOST ranks] */
    group groups[GROUPS_MOST];
    int ngroups;
} engine_mpi;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Puts the text of an error of MPI; true for no error. */
static bool is_fine(int error, const char *call, char *text)
{
    char why[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (error == MPI_SUCCESS) return true;
    MPI_Error_string(error, why, &length);
    snprintf(text, KR_ENGINE_TEXT, "%s: %.800s", call, why);
    return false;
}

/* ---- life ---- */

static void *get(engine_mpi *e, size_t bytes)
{
    return e->setup.alloc(e->setup.user, bytes);
}

static void put(engine_mpi *e, void *p, size_t bytes)
{
    if (p) e->setup.free(e->setup.user, p, bytes);
}

static void release(engine_mpi *e)
{
    put(e, e->members, GROUPS_MOST * (size_t)e->ranks * sizeof(int));
    put(e, e->tell_requests, (size_t)e->ranks * sizeof(MPI_Request));
    put(e, e->requests, (size_t)e->requests_most * sizeof(MPI_Request));
    put(e, e, sizeof *e);
}

/* Once in a process: MPI cannot be initialised again. */
static kr_moved initialise(engine_mpi *e, char *text)
{
    int is_initialised = 0, is_finalised = 0, level = 0;
    MPI_Finalized(&is_finalised);
    if (is_finalised) {
        snprintf(text, KR_ENGINE_TEXT,
                 "MPI has been finalised in this process, by the program or by an earlier communicator; keep one "
                 "communicator of "
                 "engine mpi, and split it");
        return KR_MOVED_FAILED;
    }
    MPI_Initialized(&is_initialised);
    if (!is_initialised) {
        e->is_own = true;
        if (!is_fine(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread", text))
            return KR_MOVED_FAILED;
        return KR_MOVED_ALL;
    }
    MPI_Query_thread(&level);
    if (level == MPI_THREAD_MULTIPLE) return KR_MOVED_ALL;
    snprintf(text, KR_ENGINE_TEXT,
             "the program has initialised MPI without MPI_THREAD_MULTIPLE, but a thread of Krait calls it as well; ask "
             "for it in "
             "MPI_Init_thread, or let kr_comm_create initialise MPI");
    return KR_MOVED_FAILED;
}

static bool await_text(engine_mpi *e)
{
    return MPI_Irecv(e->told, KR_ENGINE_TEXT, MPI_CHAR, MPI_ANY_SOURCE, TAG_TEXT, e->comm, &e->text_request) ==
           MPI_SUCCESS;
}

static kr_moved open_mpi(const kr_engine_setup *setup, void **self, int *rank, int *ranks, char *text)
{
    if (setup->bytes < sizeof *setup) {
        snprintf(text, KR_ENGINE_TEXT, "libkrait_mpi.so is newer than the library; build both from one source tree");
        return KR_MOVED_FAILED;
    }
    engine_mpi *e = setup->alloc(setup->user, sizeof *e);
    if (!e) return KR_MOVED_NO_MEMORY;
    e->setup = *setup;
    e->text_request = MPI_REQUEST_NULL;
    kr_moved moved = initialise(e, text);
    if (moved == KR_MOVED_ALL && !is_fine(MPI_Comm_dup(MPI_COMM_WORLD, &e->comm), "MPI_Comm_dup", text))
        moved = KR_MOVED_FAILED;
    if (moved != KR_MOVED_ALL) {
        release(e);
        return moved;
    }
    MPI_Comm_set_errhandler(e->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(e->comm, &e->rank);
    MPI_Comm_size(e->comm, &e->ranks);
    e->requests_most = 64 * e->ranks + 64;
    e->requests = get(e, (size_t)e->requests_most * sizeof(MPI_Request));
    e->tell_requests = get(e, (size_t)e->ranks * sizeof(MPI_Request));
    e->members = get(e, GROUPS_MOST * (size_t)e->ranks * sizeof(int));
    if (!e->requests || !e->tell_requests || !e->members || !await_text(e)) {
        release(e);
        return KR_MOVED_NO_MEMORY;
    }
    *self = e;
    *rank = e->rank;
    *ranks = e->ranks;
    return KR_MOVED_ALL;
}

/* mpirun ends all ranks when the first one exits: the others have a moment to say why they fail. MPI is not called: messages
 * that have not ended would still be delivered, to memory that may be freed.
 *
 * MPI_Finalize waits for all ranks, so not after an error: the launcher ends the job when this process ends. Of a program that
 * has initialised MPI, messages that have not ended may still be delivered: their memory stays. */
static void close_mpi(void *self, bool is_broken)
{
    engine_mpi *e = self;
    if (!is_broken) {
        MPI_Cancel(&e->text_request);
        MPI_Wait(&e->text_request, MPI_STATUS_IGNORE);
        for (int i = 0; i < e->ngroups; i++) MPI_Comm_free(&e->groups[i].comm);
        MPI_Comm_free(&e->comm);
        if (e->is_own) MPI_Finalize();
    } else {
        const struct timespec time = { .tv_nsec = LINGER_NS };
        nanosleep(&time, NULL);
    }
    if (!is_broken || e->is_own) release(e);
}

/* ---- moves ---- */

/* Starts the messages of a move. */
static bool begin_move(engine_mpi *e, const kr_move *move, bool sends, char *text)
{
    for (size_t at = 0; at < move->bytes; at += MESSAGE_MOST) {
        const size_t left = move->bytes - at;
        const int count = (int)(left < MESSAGE_MOST ? left : MESSAGE_MOST);
        if (e->nrequests == e->requests_most) {
            snprintf(text, KR_ENGINE_TEXT, "a call needs more than %d messages at once", e->requests_most);
            return false;
        }
        MPI_Request *request = &e->requests[e->nrequests];
        const int error = sends ? MPI_Isend(move->data + at, count, MPI_BYTE, move->rank, TAG_DATA, e->comm, request)
                                : MPI_Irecv(move->data + at, count, MPI_BYTE, move->rank, TAG_DATA, e->comm, request);
        if (!is_fine(error, sends ? "MPI_Isend" : "MPI_Irecv", text)) return false;
        e->nrequests++;
    }
    return true;
}

/* A text of another rank, if one has come. */
static bool take_text(engine_mpi *e, char *text)
{
    int has_come = 0;
    if (MPI_Test(&e->text_request, &has_come, MPI_STATUS_IGNORE) != MPI_SUCCESS || !has_come) return false;
    memcpy(text, e->told, KR_ENGINE_TEXT);
    text[KR_ENGINE_TEXT - 1] = '\0';
    return true;
}

static void pause_after(int polls)
{
    if (polls < POLLS_BEFORE_SLEEP) {
        sched_yield();
        return;
    }
    long ns = SLEEP_NS_LEAST;
    for (int i = POLLS_BEFORE_SLEEP; i < polls && ns < SLEEP_NS_MOST; i += POLLS_BEFORE_SLEEP) ns *= 2;
    const struct timespec time = { .tv_nsec = ns < SLEEP_NS_MOST ? ns : SLEEP_NS_MOST };
    nanosleep(&time, NULL);
}

/* Waits for the requests. Each that ends starts the time-out again. */
static kr_moved await(engine_mpi *e, kr_moves *moves)
{
    double last = seconds();
    for (int polls = 0, done = 0; done < e->nrequests; polls++) {
        int index = MPI_UNDEFINED, has_ended = 0;
        if (!is_fine(MPI_Testany(e->nrequests, e->requests, &index, &has_ended, MPI_STATUS_IGNORE), "MPI_Testany",
                     moves->text))
            return KR_MOVED_FAILED;
        if (has_ended && index != MPI_UNDEFINED) {
            done++;
            polls = 0;
            last = seconds();
            continue;
        }
        if (has_ended) break; /* all were done already */
        if (take_text(e, moves->text)) return KR_MOVED_TOLD;
        if (atomic_load(e->setup.cancel)) return KR_MOVED_CANCELLED;
        if (seconds() - last > moves->timeout) return KR_MOVED_TIMEOUT;
        pause_after(polls);
    }
    return KR_MOVED_ALL;
}

/* After a time-out: which moves are done? The requests of a move follow one another. */
static void note_done(const engine_mpi *e, kr_moves *moves)
{
    int at = 0;
    for (int pass = 0; pass < 2; pass++) {
        kr_move *list = pass ? moves->sends : moves->recvs;
        const int n = pass ? moves->nsends : moves->nrecvs;
        for (int i = 0; i < n; i++) {
            bool is_done = true;
            for (size_t from = 0; from < list[i].bytes; from += MESSAGE_MOST)
                is_done = e->requests[at++] == MPI_REQUEST_NULL && is_done;
            list[i].done = is_done ? list[i].bytes : 0;
        }
    }
}

static kr_moved make_moves(void *self, kr_moves *moves)
{
    engine_mpi *e = self;
    e->nrequests = 0;
    if (take_text(e, moves->text)) return KR_MOVED_TOLD;
    for (int i = 0; i < moves->nrecvs; i++)
        if (!begin_move(e, &moves->recvs[i], false, moves->text)) return KR_MOVED_FAILED;
    for (int i = 0; i < moves->nsends; i++)
        if (!begin_move(e, &moves->sends[i], true, moves->text)) return KR_MOVED_FAILED;
    const kr_moved moved = await(e, moves);
    if (moved == KR_MOVED_TIMEOUT) note_done(e, moves);
    return moved;
}

static void tell(void *self, const char *text)
{
    engine_mpi *e = self;
    memset(e->text, 0, sizeof e->text);
    memcpy(e->text, text, strnlen(text, sizeof e->text - 1));
    for (int i = 0; i < e->ranks; i++)
        if (i != e->rank) MPI_Isend(e->text, KR_ENGINE_TEXT, MPI_CHAR, i, TAG_TEXT, e->comm, &e->tell_requests[i]);
    /* Messages leave while MPI is called. */
    const double end = seconds() + TELL_SECONDS;
    for (int is_done = 0; !is_done && seconds() < end;) {
        is_done = 1;
        for (int i = 0; i < e->ranks && is_done; i++)
            if (i != e->rank && MPI_Test(&e->tell_requests[i], &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
        if (!is_done) pause_after(POLLS_BEFORE_SLEEP);
    }
}

/* ---- sums of its own ---- */

/* The communicator of these ranks: made by all of them in the same call. NULL: text. */
static group *group_of(engine_mpi *e, const int *members, int n, char *text)
{
    for (int i = 0; i < e->ngroups; i++)
        if (e->groups[i].n == n && memcmp(e->groups[i].members, members, (size_t)n * sizeof *members) == 0)
            return &e->groups[i];
    if (e->ngroups == GROUPS_MOST) {
        snprintf(text, KR_ENGINE_TEXT, "fast sums on more than %d communicators; use ordered sums", GROUPS_MOST);
        return NULL;
    }
    group *g = &e->groups[e->ngroups];
    MPI_Group all, own;
    g->n = n;
    g->members = e->members + (size_t)e->ngroups * (size_t)e->ranks;
    memcpy(g->members, members, (size_t)n * sizeof *members);
    MPI_Comm_group(e->comm, &all);
    MPI_Group_incl(all, n, g->members, &own);
    const bool ok = is_fine(MPI_Comm_create_group(e->comm, own, TAG_DATA, &g->comm), "MPI_Comm_create_group", text);
    MPI_Group_free(&own);
    MPI_Group_free(&all);
    if (!ok) return NULL;
    e->ngroups++;
    return g;
}

static kr_moved sum(void *self, const int *members, int nmembers, void *x, int64_t n, bool is_double, kr_moves *moves)
{
    engine_mpi *e = self;
    const size_t element = is_double ? sizeof(double) : sizeof(float);
    const int64_t most = MESSAGE_MOST / (int64_t)element;
    if (take_text(e, moves->text)) return KR_MOVED_TOLD;
    group *g = group_of(e, members, nmembers, moves->text);
    if (!g) return KR_MOVED_FAILED;
    for (int64_t at = 0; at < n; at += most) {
        const int count = (int)(n - at < most ? n - at : most);
        e->nrequests = 1;
        if (!is_fine(MPI_Iallreduce(MPI_IN_PLACE, (char *)x + (size_t)at * element, count,
                                    is_double ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM, g->comm, &e->requests[0]),
                     "MPI_Iallreduce", moves->text))
            return KR_MOVED_FAILED;
        const kr_moved moved = await(e, moves);
        if (moved != KR_MOVED_ALL) return moved;
    }
    return KR_MOVED_ALL;
}

const kr_engine *krait_engine(void);
__attribute__((visibility("default"))) const kr_engine *krait_engine(void)
{
    static const kr_engine engine = { .version = KR_ENGINE_VERSION,
                                      .name = "mpi",
                                      .open = open_mpi,
                                      .move = make_moves,
                                      .sum = sum,
                                      .tell = tell,
                                      .close = close_mpi };
    return &engine;
}
