/* engine.h - what moves bytes between ranks: a table of functions, also that of the plug-in libkrait_mpi.so.
 *
 * One thread makes all calls of an engine. Bytes from one rank to another arrive in the order in which they were sent,
 * and both sides cut them into the same moves.
 */
#ifndef KR_COMM_ENGINE_H
#define KR_COMM_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KR_ENGINE_VERSION = 1, KR_ENGINE_TEXT = 1024 };

typedef enum kr_moved {
    KR_MOVED_ALL = 0,
    KR_MOVED_TIMEOUT = 1,   /* nothing moved for that long; moves with done < bytes say who is missing */
    KR_MOVED_LOST = 2,      /* a rank has ended: *lost */
    KR_MOVED_TOLD = 3,      /* another rank told its error: text */
    KR_MOVED_FAILED = 4,    /* text */
    KR_MOVED_CANCELLED = 5, /* *setup.cancel */
    KR_MOVED_NO_MEMORY = 6
} kr_moved;

/* Bytes to or from one rank. */
typedef struct kr_move {
    int rank;
    int next; /* of the engine */
    char *data;
    size_t bytes, done;
} kr_move;

typedef struct kr_moves {
    kr_move *sends, *recvs;
    int nsends, nrecvs;
    double timeout; /* seconds without any progress */
    int lost;
    char text[KR_ENGINE_TEXT];
} kr_moves;

typedef struct kr_engine_setup {
    size_t bytes;     /* sizeof(kr_engine_setup) */
    int rank, ranks;  /* "tcp"; others know theirs. 0 ranks: unknown */
    const char *meet; /* "tcp" */
    double timeout;
    void *(*alloc)(void *user, size_t bytes); /* zeroed; during open only, and free during open and close */
    void (*free)(void *user, void *p, size_t bytes);
    void *user;
    const atomic_bool *cancel;
} kr_engine_setup;

typedef struct kr_engine {
    int version; /* KR_ENGINE_VERSION */
    const char *name;

    /* Meets the other ranks; sets *self, *rank and *ranks. Otherwise KR_MOVED_FAILED, KR_MOVED_TIMEOUT with the reason
     * in text (KR_ENGINE_TEXT bytes), KR_MOVED_CANCELLED or KR_MOVED_NO_MEMORY, and nothing to close. */
    kr_moved (*open)(const kr_engine_setup *setup, void **self, int *rank, int *ranks, char *text);

    /* Makes all moves, at once. */
    kr_moved (*move)(void *self, kr_moves *moves);

    /* Sums x [n] of the ranks of `members`, in place, in any order; NULL: it has none of its own. moves: timeout, and
     * results as of `move`. */
    kr_moved (*sum)(void *self, const int *members, int nmembers, void *x, int64_t n, bool is_double, kr_moves *moves);

    /* Sends an error text to all ranks, without waiting: the engine is not used again. */
    void (*tell)(void *self, const char *text);

    void (*close)(void *self, bool is_broken);
} kr_engine;

/* What a plug-in exports, under this name: a function without arguments. */
#define KR_ENGINE_ENTRY "krait_engine"
typedef const kr_engine *kr_engine_entry_fn(void);

#endif
