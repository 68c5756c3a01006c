/* comm.h - several processes that compute together: ranks, sums whose bits depend on neither engine nor timing,
 * exchanges.
 *
 *   kr_comm *comm = kr_comm_create(ctx, NULL);      // engine and rank by the environment: krait launch, mpirun
 *   double loss = kr_comm_rank(comm) + 1.0;
 *   kr_comm_sum(comm, &loss, 1, KR_DTYPE_F64);      // in place, the same bits on all ranks
 *   kr_comm_agree(comm);                            // an error of one rank is the error of all
 *   if (kr_ctx_failed(ctx)) fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_comm_destroy(comm);
 *
 * A communicator is a group of ranks, numbered from 0. Its calls are collective: each rank makes the same calls in the
 * same order, with the same sizes and types; only kr_comm_exchange, kr_comm_send and kr_comm_recv concern two or three
 * ranks. Calls on several communicators of the same ranks are also made in one order.
 *
 * Engines move the bytes: "self" (one rank), "tcp" (sockets and shared memory: ranks of one host, and tests), "mpi"
 * (Open MPI or MPICH, by the plug-in libkrait_mpi.so). One thread of the communicator makes all calls of the engine,
 * in the order in which they were posted; nothing in Krait depends on MPI's thread support. docs/distributed.md
 *
 * Errors. Each call first compares what the ranks ask for: another call, size or type is an error on all of them that
 * names ranks and calls. A call that waits longer than the time-out for a rank, and a rank that has ended, are errors
 * as well (KR_ERR_IO). If the context of a rank has failed already, its next call tells the others: their call returns
 * that rank's error, "rank 3 of 8 (host): MESSAGE". So ranks may call without asking for errors in between; no rank
 * waits for one that failed. After an error of any call but kr_comm_agree the communicator, and all that were split
 * from it or that it was split from, cannot be used any more; the message stays the same for all further calls. */
#ifndef KRAIT_COMM_H
#define KRAIT_COMM_H

#include <krait/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Ranks ==== */

typedef struct kr_comm kr_comm;

/* Order of additions. ORDERED: a binary tree over the ranks, the same for every engine, size and piece: of 2^k ranks,
 * the sum of the first half plus that of the second; other numbers are split from the left into powers of two, which
 * are added from the largest to the smallest: 7 ranks are (((0+1)+(2+3)) + (4+5)) + 6. FAST: the sum of the engine, if
 * it has one; the bits then depend on engine, size and number of ranks. */
typedef enum kr_sum_order { KR_SUM_ORDERED = 0, KR_SUM_FAST = 1 } kr_sum_order;

typedef struct kr_comm_options {
    size_t size;        /* set by kr_comm_options_init */
    const char *engine; /* NULL: KR_COMM, or that of the launcher, or "self"; "self", "tcp" or "mpi" */
    double timeout;     /* 600: seconds that a call, and kr_comm_create, wait for other ranks */
    kr_sum_order order; /* KR_SUM_ORDERED */
    /* Engine "tcp", instead of what the launcher says: this rank, the number of ranks (0: by the launcher), and where
     * they meet: "host:port" of rank 0, or the path of a socket that rank 0 creates. Threads of one process may be
     * ranks, each with its own context. */
    int rank, ranks;
    const char *meet;
} kr_comm_options;
#define kr_comm_options_init(options) KR_STRUCT_INIT(COMM_OPTIONS, kr_comm_options, options)

/* Meets the other ranks. NULL options: defaults. NULL after an error, such as a rank that does not come within the
 * time-out, or ranks with another version of Krait. Engine "mpi": one communicator for each process, which initialises
 * and finalises MPI unless the program has done that; kr_comm_split makes more.
 *
 * The caller destroys the communicator before the context, and before or after those that were split from it.
 * Destroying is not collective. Calls that are posted and have not ended are cancelled; the other ranks then get an
 * error, and the communicators split from this one as well. */
KR_API kr_comm *kr_comm_create(kr_ctx *ctx, const kr_comm_options *options);
KR_API void kr_comm_destroy(kr_comm *comm);

/* Collective: ranks that give the same colour form a new communicator, numbered by key, then by rank. A rank with
 * colour -1 belongs to none and gets NULL without an error. */
KR_API kr_comm *kr_comm_split(kr_comm *comm, int colour, int key);

typedef struct kr_comm_info {
    int rank, ranks;             /* 0 and 1 for NULL */
    int local_rank, local_ranks; /* among the ranks of the communicator on this host */
    const char *engine;          /* "self", "tcp" or "mpi"; "none" for NULL */
    /* "tcp: rank 3 of 8, 1 of 4 on node7, 2 of 64 CPUs"; valid as long as the communicator; "" for NULL */
    const char *text;
    int64_t calls; /* that have ended, on this communicator and those that share its engine */
    uint64_t bytes_sent, bytes_received;
    double seconds;      /* that the engine was busy, waiting for other ranks included */
    double wait_seconds; /* that this rank's program waited in its calls */
    uint64_t reserved[6];
} kr_comm_info;

/* The rank of this process, and figures of its calls so far. The functions below return one field each. */
KR_API kr_comm_info kr_comm_info_of(const kr_comm *comm);
KR_API_INLINE int kr_comm_rank(const kr_comm *comm)
{
    return kr_comm_info_of(comm).rank;
}
KR_API_INLINE int kr_comm_size(const kr_comm *comm)
{
    return kr_comm_info_of(comm).ranks;
}
KR_API_INLINE const char *kr_comm_text(const kr_comm *comm)
{
    return kr_comm_info_of(comm).text;
}

/* ==== Calls ==== */

typedef enum kr_comm_op {
    KR_COMM_BARRIER = 0,
    KR_COMM_SUM = 1,           /* to [n], in place */
    KR_COMM_SUM_SCATTER = 2,   /* from [ranks n] -> to [n] */
    KR_COMM_SUM_SHARES = 3,    /* to, in place: the owner of each share has its sum */
    KR_COMM_GATHER_SHARES = 4, /* to, in place: all have the owner's elements of each share */
    KR_COMM_GATHER = 5,        /* from [bytes] -> to [ranks bytes] */
    KR_COMM_ALL_TO_ALL = 6,    /* from [ranks bytes] -> to [ranks bytes] */
    KR_COMM_BROADCAST = 7,     /* to [bytes], of rank `peer` */
    KR_COMM_EXCHANGE = 8       /* from [bytes] to rank `peer`, and to [source_bytes] from rank `source` */
} kr_comm_op;

/* Elements [first, first + count) of an array, and the rank that has their sum, or their values. Shares of one call do
 * not overlap. */
typedef struct kr_comm_share {
    int64_t first, count;
    int owner;
    int reserved; /* 0 */
} kr_comm_share;

typedef struct kr_comm_call {
    size_t size; /* set by kr_comm_call_init */
    kr_comm_op op;
    kr_dtype dtype; /* of n, and of shares; sums: KR_DTYPE_F32 or KR_DTYPE_F64 */
    const void *from;
    void *to;
    int64_t n;
    const kr_comm_share *shares; /* copied */
    int64_t n_shares;
    size_t bytes;        /* of calls that move bytes */
    int peer, source;    /* EXCHANGE: -1: none */
    size_t source_bytes; /* EXCHANGE: to receive */
} kr_comm_call;
#define kr_comm_call_init(call) KR_STRUCT_INIT(COMM_CALL, kr_comm_call, call)

/* A call that has been posted; 0: none. */
typedef int64_t kr_ticket;

/* Posts a call, and returns at once: a thread of the communicator makes it, after those posted before. Until
 * kr_comm_end the caller leaves `to` alone, and does not change `from`. Memory may be the device memory of the
 * context: it is copied to the host by kr_comm_begin, which waits for it, and back by kr_comm_end. 0 after an error,
 * which kr_comm_end(comm, 0) returns. */
KR_API kr_ticket kr_comm_begin(kr_comm *comm, const kr_comm_call *call);

/* Waits until a posted call has ended, and releases the ticket. Tickets may end in any order. */
KR_API kr_status kr_comm_end(kr_comm *comm, kr_ticket ticket);

/* Collective: KR_OK if no context of the ranks has failed. Otherwise all contexts have the error of the first of them
 * by number, and its status is returned. If all ranks have called kr_comm_agree, the communicator can be used again
 * after kr_ctx_clear on all of them. */
KR_API kr_status kr_comm_agree(kr_comm *comm);

/* ---- sums ---- */

/* Sums x [n] of all ranks, in place. */
KR_API_INLINE kr_ticket kr_comm_begin_sum(kr_comm *comm, void *x, int64_t n, kr_dtype dtype)
{
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = KR_COMM_SUM;
    call.to = x;
    call.n = n;
    call.dtype = dtype;
    return kr_comm_begin(comm, &call);
}
KR_API_INLINE kr_status kr_comm_sum(kr_comm *comm, void *x, int64_t n, kr_dtype dtype)
{
    return kr_comm_end(comm, kr_comm_begin_sum(comm, x, n, dtype));
}

/* Sums x [ranks n_mine] of all ranks; this rank gets its part [n_mine]. `mine` may be x + rank * n_mine. */
KR_API_INLINE kr_status kr_comm_sum_scatter(kr_comm *comm, const void *x, void *mine, int64_t n_mine, kr_dtype dtype)
{
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = KR_COMM_SUM_SCATTER;
    call.from = x;
    call.to = mine;
    call.n = n_mine;
    call.dtype = dtype;
    return kr_comm_end(comm, kr_comm_begin(comm, &call));
}

/* Sums shares of x, in place: the elements of a share are summed on its owner and left as they were on the others;
 * those of no share stay. The same shares on all ranks. */
KR_API_INLINE kr_ticket kr_comm_begin_sum_shares(kr_comm *comm, void *x, const kr_comm_share *shares, int64_t n_shares,
                                                 kr_dtype dtype)
{
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = KR_COMM_SUM_SHARES;
    call.to = x;
    call.shares = shares;
    call.n_shares = n_shares;
    call.dtype = dtype;
    return kr_comm_begin(comm, &call);
}
KR_API_INLINE kr_status kr_comm_sum_shares(kr_comm *comm, void *x, const kr_comm_share *shares, int64_t n_shares,
                                           kr_dtype dtype)
{
    return kr_comm_end(comm, kr_comm_begin_sum_shares(comm, x, shares, n_shares, dtype));
}

/* ---- moves ---- */

/* Copies the owner's elements of each share of x to all ranks, in place, of any element type. */
KR_API_INLINE kr_ticket kr_comm_begin_gather_shares(kr_comm *comm, void *x, const kr_comm_share *shares,
                                                    int64_t n_shares, kr_dtype dtype)
{
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = KR_COMM_GATHER_SHARES;
    call.to = x;
    call.shares = shares;
    call.n_shares = n_shares;
    call.dtype = dtype;
    return kr_comm_begin(comm, &call);
}
KR_API_INLINE kr_status kr_comm_gather_shares(kr_comm *comm, void *x, const kr_comm_share *shares, int64_t n_shares,
                                              kr_dtype dtype)
{
    return kr_comm_end(comm, kr_comm_begin_gather_shares(comm, x, shares, n_shares, dtype));
}

/* all [ranks bytes] = the bytes of each rank, in order. `mine` may be all + rank * bytes. */
KR_API_INLINE kr_status kr_comm_gather(kr_comm *comm, const void *mine, void *all, size_t bytes)
{
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = KR_COMM_GATHER;
    call.from = mine;
    call.to = all;
    call.bytes = bytes;
    return kr_comm_end(comm, kr_comm_begin(comm, &call));
}

/* Part r of `from` [ranks bytes] goes to rank r; part r of `to` comes from rank r. The two do not overlap. */
KR_API_INLINE kr_status kr_comm_all_to_all(kr_comm *comm, const void *from, void *to, size_t bytes)
{
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = KR_COMM_ALL_TO_ALL;
    call.from = from;
    call.to = to;
    call.bytes = bytes;
    return kr_comm_end(comm, kr_comm_begin(comm, &call));
}

/* x [bytes] = that of rank `root`. */
KR_API_INLINE kr_status kr_comm_broadcast(kr_comm *comm, int root, void *x, size_t bytes)
{
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = KR_COMM_BROADCAST;
    call.peer = root;
    call.to = x;
    call.bytes = bytes;
    return kr_comm_end(comm, kr_comm_begin(comm, &call));
}

/* Sends `out` to rank `to` and receives `in` from rank `source`, at once; -1: neither. The other ranks make the calls
 * that match: what one sends to another, the other receives with that size. */
KR_API_INLINE kr_ticket kr_comm_begin_exchange(kr_comm *comm, int to, const void *out, size_t out_bytes, int source,
                                               void *in, size_t in_bytes)
{
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = KR_COMM_EXCHANGE;
    call.peer = to;
    call.from = out;
    call.bytes = out_bytes;
    call.source = source;
    call.to = in;
    call.source_bytes = in_bytes;
    return kr_comm_begin(comm, &call);
}
KR_API_INLINE kr_status kr_comm_exchange(kr_comm *comm, int to, const void *out, size_t out_bytes, int source, void *in,
                                         size_t in_bytes)
{
    return kr_comm_end(comm, kr_comm_begin_exchange(comm, to, out, out_bytes, source, in, in_bytes));
}
KR_API_INLINE kr_status kr_comm_send(kr_comm *comm, int to, const void *x, size_t bytes)
{
    return kr_comm_exchange(comm, to, x, bytes, -1, NULL, 0);
}
KR_API_INLINE kr_status kr_comm_recv(kr_comm *comm, int source, void *x, size_t bytes)
{
    return kr_comm_exchange(comm, -1, NULL, 0, source, x, bytes);
}

/* Returns when all ranks have called it. */
KR_API_INLINE kr_status kr_comm_barrier(kr_comm *comm)
{
    kr_comm_call call;
    kr_comm_call_init(&call);
    call.op = KR_COMM_BARRIER;
    return kr_comm_end(comm, kr_comm_begin(comm, &call));
}

/* ==== The launcher ==== */

/* What the environment says about this process: the first of Open MPI, MPICH, Slurm, torchrun and krait launch. */
typedef struct kr_launch {
    const char *launcher;        /* "Open MPI", "MPICH", "Slurm", "torchrun" or "krait launch"; NULL: none, one rank */
    const char *engine;          /* of a communicator without options */
    int rank, ranks;             /* 0 and 1 without a launcher */
    int local_rank, local_ranks; /* on this host: the number of its GPU, for example; local_ranks 0: unknown */
    int cpus;                    /* that this process may use */
    int threads;                 /* KR_THREADS, or its share of them: a good number of threads */
    char meet[256];              /* engine "tcp": where ranks meet; "": unknown */
    char problem[512];           /* "", or the error */
    uint64_t reserved[4];
} kr_launch;

/* Reads the environment. KR_ERR_ARG with launch->problem if a variable is missing or no number, or if two launchers
 * disagree; KR_LAUNCHER (openmpi, mpich, slurm, torchrun, krait) then says which of them counts. Needs no context; any
 * thread may call it while no other changes the environment. */
KR_API kr_status kr_launch_read(kr_launch *launch);

#ifdef __cplusplus
}
#endif
#endif
