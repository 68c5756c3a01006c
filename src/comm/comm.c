/* comm.c - communicators on the caller's side: creation, splitting, posted calls, agreement on errors. */
#define _GNU_SOURCE
#include "comm/comm_impl.h"

#include "base/cpu.h"
#include "base/device_memory.h"
#include "base/fork.h"
#include "base/hash.h"
#include "base/pool.h"
#include "base/sized.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

KR_DEFAULTS(kr_comm_options) = { .size = sizeof(kr_comm_options), .timeout = 600, .order = KR_SUM_ORDERED };
KR_DEFAULTS(kr_comm_call) = { .size = sizeof(kr_comm_call), .peer = -1, .source = -1 };

/* ---- creation ---- */

/* Options and environment: who this rank is, and by what engine. */
static bool choose(kr_ctx *ctx, const kr_comm_options *options, kr_launch *launch, const char **engine)
{
    static const char op[] = "comm.create";
    const char *named = options->engine ? options->engine : getenv("KR_COMM");
    if (named && !*named) named = NULL;
    if (!kr_require(ctx, options->timeout > 0 && isfinite(options->timeout), KR_ERR_ARG,
                    "%s: options.timeout is %g, but must be a positive number of seconds", op, options->timeout) ||
        !kr_require(ctx, options->order == KR_SUM_ORDERED || options->order == KR_SUM_FAST, KR_ERR_ARG,
                    "%s: options.order is %d, which is not a kr_sum_order", op, (int)options->order))
        return false;
    if (options->ranks) {
        if (!kr_require(ctx, options->ranks > 0 && options->rank >= 0 && options->rank < options->ranks, KR_ERR_ARG,
                        "%s: options.rank is %d and options.ranks is %d, but a rank is from 0 to ranks - 1", op,
                        options->rank, options->ranks))
            return false;
        *launch = (kr_launch){ .rank = options->rank, .ranks = options->ranks, .engine = "tcp" };
    } else if (!(named && strcmp(named, "self") == 0) && kr_launch_read(launch) != KR_OK) {
        return kr_fail(ctx, KR_ERR_ARG, "%s: %s", op, launch->problem);
    }
    if (options->meet && !kr_require(ctx, strlen(options->meet) < sizeof launch->meet, KR_ERR_ARG,
                                     "%s: options.meet has %zu bytes, but at most %zu fit", op, strlen(options->meet),
                                     sizeof launch->meet - 1))
        return false;
    if (options->meet) snprintf(launch->meet, sizeof launch->meet, "%s", options->meet);
    *engine = named ? named : launch->engine ? launch->engine : "self";
    return true;
}

static bool find_engine(kr_world *world, const char *name, const kr_launch *launch)
{
    static const char op[] = "comm.create";
    kr_ctx *ctx = world->ctx;
    if (strcmp(name, "self") == 0) world->engine = kr_engine_self();
    else if (strcmp(name, "tcp") == 0) world->engine = kr_engine_tcp();
    else if (strcmp(name, "mpi") == 0) world->engine = kr_engine_load(ctx, name, &world->library);
    else kr_fail(ctx, KR_ERR_ARG, "%s: the engine is \"%.60s\", but must be \"self\", \"tcp\" or \"mpi\"", op, name);
    if (!world->engine || strcmp(name, "tcp") != 0) return world->engine != NULL;
    return kr_require(ctx, launch->ranks > 0, KR_ERR_ARG,
                      "%s: engine tcp does not know its ranks; start the program by krait launch, or set options.rank, "
                      "options.ranks and options.meet",
                      op) &&
           kr_require(
               ctx, launch->ranks == 1 || launch->meet[0], KR_ERR_ARG,
               "%s: engine tcp does not know where ranks meet; set options.meet or KR_MEET to host:port or to the "
               "path of a socket",
               op);
}

static bool alloc_of_thread(kr_world *world)
{
    kr_memory *memory = &world->ctx->memory;
    world->nmoves_most = world->ranks * KR_FRAGMENTS_MOST + 2;
    const size_t moves = (size_t)world->nmoves_most * sizeof(kr_move);
    world->scratch_bytes = kr_scratch_bytes(world->ranks);
    return (world->moves.sends = kr_memory_alloc(memory, moves)) &&
           (world->moves.recvs = kr_memory_alloc(memory, moves)) &&
           (world->scratch = kr_memory_alloc(memory, world->scratch_bytes)) &&
           (world->slots = kr_memory_alloc(memory, 2 * (size_t)world->ranks * sizeof(void *)));
}

static void release_world(kr_world *world)
{
    if (--world->users > 0) return;
    if (world->is_running) kr_world_close(world);
    kr_memory *memory = &world->ctx->memory;
    const size_t moves = (size_t)world->nmoves_most * sizeof(kr_move), ranks = (size_t)world->ranks;
    if (world->slots) kr_memory_free(memory, world->slots, 2 * ranks * sizeof(void *));
    if (world->scratch) kr_memory_free(memory, world->scratch, world->scratch_bytes);
    if (world->moves.recvs) kr_memory_free(memory, world->moves.recvs, moves);
    if (world->moves.sends) kr_memory_free(memory, world->moves.sends, moves);
    if (world->table) kr_memory_free(memory, world->table, ranks * sizeof(kr_rank_info));
    kr_memory_free(memory, world, sizeof *world);
}

static kr_comm *comm_alloc(kr_world *world, int ranks)
{
    const size_t bytes = sizeof(kr_comm) + (size_t)ranks * sizeof(int);
    kr_comm *comm = kr_memory_alloc_zeroed(&world->ctx->memory, bytes);
    if (!comm) {
        kr_fail(world->ctx, KR_ERR_NOMEM, "comm.create: out of memory for %d ranks", ranks);
        return NULL;
    }
    *comm =
        (kr_comm){ .ctx = world->ctx, .world = world, .ranks = ranks, .members = (int *)(comm + 1), .bytes = bytes };
    world->users++;
    return comm;
}

int kr_ranks_per_host_of_tests;

static bool is_same_host(const kr_comm *comm, int a, int b)
{
    const kr_rank_info *table = comm->world->table;
    if (kr_ranks_per_host_of_tests) return a / kr_ranks_per_host_of_tests == b / kr_ranks_per_host_of_tests;
    return table[comm->members[a]].machine == table[comm->members[b]].machine;
}

/* kr_comm.per_host: sums in hosts first are a part of the tree only for powers of two. */
static int count_per_host(const kr_comm *comm)
{
    int n = 1;
    while (n < comm->ranks && is_same_host(comm, 0, n)) n++;
    if (n == 1 || (n & (n - 1)) != 0 || n == comm->ranks || comm->ranks % n != 0) return 0;
    for (int i = 1; i < comm->ranks; i++)
        if (is_same_host(comm, i - 1, i) != (i % n != 0) || (i % n == 0 && is_same_host(comm, 0, i))) return 0;
    return n;
}

/* Local ranks, hosts and the text, by the table of ranks. */
static void describe(kr_comm *comm)
{
    const kr_world *world = comm->world;
    const kr_rank_info *own = &world->table[world->rank];
    char share[64] = "";
    int sharing = 0;
    for (int i = 0; i < comm->ranks; i++) {
        const kr_rank_info *other = &world->table[comm->members[i]];
        if (other->machine != own->machine) continue;
        if (i < comm->rank) comm->local_rank++;
        comm->local_ranks++;
        sharing += other->cpus == own->cpus;
    }
    comm->per_host = count_per_host(comm);
    if (sharing > 1) snprintf(share, sizeof share, " shared by %d ranks", sharing);
    snprintf(comm->text, sizeof comm->text, "%s: rank %d of %d, %d of %d on %s, %d CPU%s%s", world->engine->name,
             comm->rank, comm->ranks, comm->local_rank, comm->local_ranks, own->host, own->ncpus,
             own->ncpus == 1 ? "" : "s", share);
}

static kr_rank_info own_info(const kr_ctx *ctx)
{
    kr_rank_info info = { .process = (int32_t)getpid(), .nthreads = kr_pool_size(ctx->pool) };
    int cpus[KR_POOL_MAX];
    char boot[40] = "";
    if (gethostname(info.host, sizeof info.host - 1) != 0) snprintf(info.host, sizeof info.host, "unknown host");
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        if (!fgets(boot, sizeof boot, file)) boot[0] = '\0';
        fclose(file);
    }
    info.machine = kr_hash_text(kr_hash_text(KR_HASH_BEGIN, info.host), boot);
    info.ncpus = kr_cpu_allowed(cpus, KR_POOL_MAX);
    info.cpus = (int64_t)kr_hash_bytes(KR_HASH_BEGIN, cpus,
                                       (size_t)(info.ncpus < KR_POOL_MAX ? info.ncpus : KR_POOL_MAX) * sizeof *cpus);
    return info;
}

/* One CPU for a program that could use more is a trap of mpirun; more threads than CPUs, one of no launcher at all. */
static void warn(const kr_comm *comm)
{
    const int online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    const kr_rank_info *own = &comm->world->table[comm->world->rank];
    int threads = 0, ranks = 0;
    if (own->ncpus == 1 && online > comm->local_ranks)
        kr_note(comm->ctx, KR_LOG_WARNING,
                "rank %d may use 1 of %d CPUs: the launcher bound it; mpirun --bind-to none, or --map-by slot:PE=N",
                comm->rank, online);
    for (int i = 0; i < comm->ranks; i++) {
        const kr_rank_info *other = &comm->world->table[i];
        if (other->machine != own->machine || other->cpus != own->cpus) continue;
        if (i < comm->rank) return; /* the first of them says it */
        threads += other->nthreads;
        ranks++;
    }
    if (ranks > 1 && threads > own->ncpus && threads > ranks)
        kr_note(comm->ctx, KR_LOG_WARNING,
                "%d ranks on %s have %d threads for the %d CPUs that they share; set KR_THREADS or --threads to %d",
                ranks, own->host, threads, own->ncpus, own->ncpus > ranks ? own->ncpus / ranks : 1);
}

/* The first call tells who the ranks are. */
static bool meet(kr_comm *comm)
{
    kr_world *world = comm->world;
    const kr_rank_info own = own_info(comm->ctx);
    for (int i = 0; i < comm->ranks; i++) comm->members[i] = i;
    comm->rank = world->rank;
    comm->id = KR_HASH_BEGIN;
    kr_rank_info *table = kr_memory_alloc_zeroed(&comm->ctx->memory, (size_t)comm->ranks * sizeof *table);
    if (!table) return kr_fail(comm->ctx, KR_ERR_NOMEM, "comm.create: out of memory for %d ranks", comm->ranks);
    const bool ok = kr_comm_gather(comm, &own, table, sizeof own) == KR_OK;
    world->table = table;
    for (int i = 0; i < comm->ranks; i++) table[i].host[sizeof table[i].host - 1] = '\0';
    if (!ok) return kr_blame(comm->ctx, "comm.create");
    describe(comm);
    warn(comm);
    return true;
}

static kr_comm *create(kr_ctx *ctx, const kr_comm_options *options, kr_world *world)
{
    kr_launch launch = { .ranks = 0 };
    const char *engine = "self";
    if (!choose(ctx, options, &launch, &engine) || !find_engine(world, engine, &launch)) return NULL;
    world->timeout = options->timeout;
    world->order = options->order;
    world->setup = (kr_engine_setup){ .bytes = sizeof world->setup,
                                      .rank = launch.rank,
                                      .ranks = launch.ranks,
                                      .meet = launch.meet,
                                      .timeout = options->timeout,
                                      .alloc = kr_world_alloc,
                                      .free = kr_world_free,
                                      .user = world,
                                      .cancel = &world->cancel };
    if (!kr_world_open(world)) return NULL;
    world->setup.meet = NULL;
    const bool is_expected = launch.ranks <= 1 || launch.ranks == world->ranks || strcmp(engine, "self") == 0;
    kr_comm *comm = NULL;
    if (!is_expected)
        kr_fail(
            ctx, KR_ERR_STATE,
            "comm.create: %s started %d ranks, but engine %s has %d; its library belongs to another launcher: use that "
            "of the MPI with which libkrait_mpi.so was built",
            launch.launcher ? launch.launcher : "the program", launch.ranks, engine, world->ranks);
    else if (!alloc_of_thread(world))
        kr_fail(ctx, KR_ERR_NOMEM, "comm.create: out of memory for %d ranks", world->ranks);
    else comm = comm_alloc(world, world->ranks);
    if (comm && meet(comm)) return comm;
    kr_comm_destroy(comm);
    return NULL;
}

kr_comm *kr_comm_create(kr_ctx *ctx, const kr_comm_options *options)
{
    kr_comm_options own;
    if (kr_ctx_failed(ctx) || !KR_TAKE(ctx, "comm.create", kr_comm_options, options, &own)) return NULL;
    kr_world *world = kr_memory_alloc_zeroed(&ctx->memory, sizeof *world);
    if (!world) {
        kr_fail(ctx, KR_ERR_NOMEM, "comm.create: out of memory");
        return NULL;
    }
    world->ctx = ctx;
    world->users = 1; /* this function */
    kr_comm *comm = create(ctx, &own, world);
    release_world(world);
    return comm;
}

/* ---- jobs ---- */

static void free_job(kr_job *job)
{
    kr_memory *memory = &job->comm->ctx->memory;
    if (job->from_bytes) kr_memory_free(memory, (void *)job->call.from, job->from_bytes);
    if (job->to_bytes) kr_memory_free(memory, job->call.to, job->to_bytes);
    kr_memory_free(memory, job, job->bytes);
}

/* The job leaves the communicator's list. */
static void remove_job(kr_job *job)
{
    kr_job **at = &job->comm->jobs;
    while (*at != job) at = &(*at)->next;
    *at = job->next;
    free_job(job);
}

void kr_comm_destroy(kr_comm *comm)
{
    if (!comm) return;
    kr_world *world = comm->world;
    const bool is_child = world->nforks != kr_fork_count();
    for (const kr_job *job = comm->jobs; job && !is_child; job = job->next) {
        pthread_mutex_lock(&world->mutex);
        if (!job->is_done) atomic_store(&world->cancel, true);
        pthread_mutex_unlock(&world->mutex);
    }
    while (comm->jobs) {
        if (!is_child) kr_world_wait(world, comm->jobs);
        remove_job(comm->jobs);
    }
    kr_memory_free(&world->ctx->memory, comm, comm->bytes);
    release_world(world);
}

static bool check_shares(const kr_comm *comm, const char *op, const kr_comm_call *c)
{
    int64_t elements = 0;
    if (!kr_require(comm->ctx, c->n_shares >= 0 && (c->shares || c->n_shares == 0), KR_ERR_ARG,
                    "comm.%s: %lld shares at %s", op, (long long)c->n_shares, c->shares ? "an address" : "NULL"))
        return false;
    for (int64_t i = 0; i < c->n_shares; i++) {
        const kr_comm_share *s = &c->shares[i];
        const bool is_range = s->first >= 0 && s->count >= 0 && s->first <= INT64_MAX / 64 - s->count;
        if (!kr_require(
                comm->ctx, is_range && s->reserved == 0, KR_ERR_ARG,
                "comm.%s: share %lld is [first %lld, count %lld], reserved %d; the first two are at least 0, the "
                "third is 0",
                op, (long long)i, (long long)s->first, (long long)s->count, s->reserved) ||
            !kr_require(comm->ctx, s->owner >= 0 && s->owner < comm->ranks, KR_ERR_ARG,
                        "comm.%s: the owner of share %lld is rank %d, but ranks are 0 to %d", op, (long long)i,
                        s->owner, comm->ranks - 1))
            return false;
        elements += s->count;
    }
    return kr_require(comm->ctx, c->to || elements == 0, KR_ERR_ARG, "comm.%s: x is NULL", op);
}

static bool check_rank(const kr_comm *comm, const char *op, const char *name, int rank)
{
    return kr_require(comm->ctx, rank >= -1 && rank < comm->ranks, KR_ERR_ARG,
                      "comm.%s: %s is rank %d, but ranks are 0 to %d, and -1 is none", op, name, rank,
                      comm->ranks - 1) &&
           kr_require(comm->ctx, rank != comm->rank, KR_ERR_ARG, "comm.%s: %s is rank %d, which is this one", op, name,
                      rank);
}

static bool check_sum(const kr_comm *comm, const kr_comm_call *c)
{
    kr_ctx *ctx = comm->ctx;
    if (!kr_require(ctx, c->dtype == KR_DTYPE_F32 || c->dtype == KR_DTYPE_F64, KR_ERR_DTYPE,
                    "comm: sums are of f32 or f64, not of %s", kr_dtype_name(c->dtype)))
        return false;
    if (c->op == KR_COMM_SUM_SHARES) return check_shares(comm, "sum_shares", c);
    return kr_require(ctx, c->n >= 0 && c->n <= INT64_MAX / 64 / comm->ranks, KR_ERR_ARG,
                      "comm.sum: n is %lld, but must be at least 0 and fit into memory", (long long)c->n) &&
           kr_require(ctx, c->n == 0 || (c->to && (c->from || c->op == KR_COMM_SUM)), KR_ERR_ARG,
                      "comm.sum: an operand of %lld elements is NULL", (long long)c->n);
}

static bool check_exchange(const kr_comm *comm, const kr_comm_call *c)
{
    const bool sends = c->peer >= 0 && c->bytes > 0, receives = c->source >= 0 && c->source_bytes > 0;
    return check_rank(comm, "exchange", "the receiver", c->peer) &&
           check_rank(comm, "exchange", "the sender", c->source) &&
           kr_require(comm->ctx, (!sends || c->from) && (!receives || c->to), KR_ERR_ARG,
                      "comm.exchange: an operand is NULL");
}

static bool check_call(const kr_comm *comm, const kr_comm_call *c)
{
    kr_ctx *ctx = comm->ctx;
    switch (c->op) {
    case KR_COMM_BARRIER: return true;
    case KR_COMM_SUM:
    case KR_COMM_SUM_SCATTER:
    case KR_COMM_SUM_SHARES: return check_sum(comm, c);
    case KR_COMM_GATHER_SHARES:
        return kr_require(ctx, kr_dtype_bytes(c->dtype) > 0, KR_ERR_DTYPE, "comm.gather_shares: %d is not a kr_dtype",
                          (int)c->dtype) &&
               check_shares(comm, "gather_shares", c);
    case KR_COMM_GATHER:
    case KR_COMM_ALL_TO_ALL:
        return kr_require(ctx, c->bytes <= SIZE_MAX / 2 / (size_t)comm->ranks, KR_ERR_ARG,
                          "comm: %zu bytes for each rank do not fit into memory", c->bytes) &&
               kr_require(ctx, c->bytes == 0 || (c->from && c->to), KR_ERR_ARG, "comm: an operand of %zu bytes is NULL",
                          c->bytes);
    case KR_COMM_BROADCAST:
        return kr_require(ctx, c->peer >= 0 && c->peer < comm->ranks, KR_ERR_ARG,
                          "comm.broadcast: the root is rank %d, but ranks are 0 to %d", c->peer, comm->ranks - 1) &&
               kr_require(ctx, c->bytes == 0 || c->to, KR_ERR_ARG, "comm.broadcast: x is NULL");
    case KR_COMM_EXCHANGE: return check_exchange(comm, c);
    }
    return kr_fail(ctx, KR_ERR_ARG, "comm: op is %d, which is not a kr_comm_op", (int)c->op);
}

/* Bytes of `from` and of `to`. */
static void measure(const kr_comm *comm, const kr_comm_call *c, size_t *from, size_t *to)
{
    const size_t n = (size_t)c->n * kr_dtype_bytes(c->dtype), ranks = (size_t)comm->ranks;
    int64_t end = 0;
    for (int64_t i = 0; i < c->n_shares; i++)
        if (c->shares[i].first + c->shares[i].count > end) end = c->shares[i].first + c->shares[i].count;
    *from = 0;
    *to = 0;
    switch (c->op) {
    case KR_COMM_BARRIER: break;
    case KR_COMM_SUM: *to = n; break;
    case KR_COMM_SUM_SCATTER: *to = n, *from = n * ranks; break;
    case KR_COMM_SUM_SHARES:
    case KR_COMM_GATHER_SHARES: *to = (size_t)end * kr_dtype_bytes(c->dtype); break;
    case KR_COMM_GATHER: *from = c->bytes, *to = c->bytes * ranks; break;
    case KR_COMM_ALL_TO_ALL: *from = *to = c->bytes * ranks; break;
    case KR_COMM_BROADCAST: *to = c->bytes; break;
    case KR_COMM_EXCHANGE: *from = c->peer < 0 ? 0 : c->bytes, *to = c->source < 0 ? 0 : c->source_bytes; break;
    }
}

/* Device operands are copied to the host. What is in place, or may stay in part, is needed before the call. */
static bool stage(kr_job *job)
{
    kr_ctx *ctx = job->comm->ctx;
    kr_comm_call *c = &job->call;
    size_t from, to;
    measure(job->comm, c, &from, &to);
    if (from && kr_on_device(ctx, c->from)) {
        void *copy = kr_memory_alloc(&ctx->memory, from);
        if (!copy) return kr_fail(ctx, KR_ERR_NOMEM, "comm: out of memory for %zu bytes of a device operand", from);
        job->from_bytes = from;
        const void *device = c->from;
        c->from = copy;
        if (!kr_fetch(ctx, copy, device, from)) return false;
    }
    if (!to || !kr_on_device(ctx, c->to)) return true;
    void *copy = kr_memory_alloc(&ctx->memory, to);
    if (!copy) return kr_fail(ctx, KR_ERR_NOMEM, "comm: out of memory for %zu bytes of a device operand", to);
    job->to_bytes = to;
    job->device_to = c->to;
    c->to = copy;
    return kr_fetch(ctx, copy, job->device_to, to);
}

/* What a call has changed goes back to the device. */
static void unstage(const kr_job *job)
{
    const kr_comm *comm = job->comm;
    const kr_comm_call *c = &job->call;
    const size_t element = kr_dtype_bytes(c->dtype);
    char *device = job->device_to;
    if (!device || job->status != KR_OK) return;
    if (c->op != KR_COMM_SUM_SHARES && c->op != KR_COMM_GATHER_SHARES) {
        kr_store(comm->ctx, device, c->to, job->to_bytes);
        return;
    }
    for (int64_t i = 0; i < c->n_shares; i++) {
        const size_t at = (size_t)c->shares[i].first * element, bytes = (size_t)c->shares[i].count * element;
        if (bytes && (c->shares[i].owner == comm->rank) == (c->op == KR_COMM_SUM_SHARES))
            kr_store(comm->ctx, device + at, (const char *)c->to + at, bytes);
    }
}

/* A job for a call, with a copy of its shares; those of a sum are equal slices. */
static kr_job *make_job(kr_comm *comm, const kr_comm_call *call, bool is_agreement)
{
    const bool slices = call->op == KR_COMM_SUM || call->op == KR_COMM_SUM_SCATTER;
    const bool has_shares = call->op == KR_COMM_SUM_SHARES || call->op == KR_COMM_GATHER_SHARES;
    const int64_t n_shares = slices ? comm->ranks : has_shares ? call->n_shares : 0;
    const size_t bytes =
        sizeof(kr_job) + (size_t)n_shares * sizeof(kr_comm_share) + (is_agreement ? KR_ENGINE_TEXT : 0);
    kr_job *job = kr_memory_alloc_zeroed(&comm->ctx->memory, bytes);
    if (!job) {
        kr_fail(comm->ctx, KR_ERR_NOMEM, "comm: out of memory for a call of %lld shares", (long long)n_shares);
        return NULL;
    }
    kr_comm_share *shares = (kr_comm_share *)(job + 1);
    *job = (kr_job){ .comm = comm, .call = *call, .is_agreement = is_agreement, .bytes = bytes, .next = comm->jobs };
    if (is_agreement) job->text = (char *)(job + 1);
    if (has_shares && n_shares) memcpy(shares, call->shares, (size_t)n_shares * sizeof *shares);
    for (int64_t i = 0; slices && i < n_shares; i++) {
        const int64_t first = call->op == KR_COMM_SUM
                                  ? call->n / n_shares * i + (i < call->n % n_shares ? i : call->n % n_shares)
                                  : call->n * i;
        const int64_t count = call->op == KR_COMM_SUM ? call->n / n_shares + (i < call->n % n_shares) : call->n;
        shares[i] = (kr_comm_share){ .first = first, .count = count, .owner = (int)i };
    }
    job->call.shares = shares;
    job->call.n_shares = n_shares;
    comm->jobs = job;
    return job;
}

kr_ticket kr_comm_begin(kr_comm *comm, const kr_comm_call *call)
{
    kr_comm_call own;
    if (!comm) return 0;
    kr_ctx *ctx = comm->ctx;
    kr_job *job = NULL;
    if (kr_world_blame(comm->world)) return 0;
    if (ctx->status == KR_OK && kr_require(ctx, call, KR_ERR_ARG, "comm.begin: call is NULL") &&
        KR_TAKE(ctx, "comm.begin", kr_comm_call, call, &own) && check_call(comm, &own))
        job = make_job(comm, &own, false);
    if (job && !stage(job)) {
        remove_job(job);
        job = NULL;
    }
    if (!job) {
        kr_world_fail(comm->world);
        return 0;
    }
    job->ticket = ++comm->last_ticket;
    kr_world_post(comm->world, job);
    return job->ticket;
}

kr_status kr_comm_end(kr_comm *comm, kr_ticket ticket)
{
    if (!comm) return KR_ERR_ARG;
    kr_ctx *ctx = comm->ctx;
    if (ticket == 0) {
        if (ctx->status == KR_OK) kr_fail(ctx, KR_ERR_ARG, "comm.end: the ticket is 0, but no call has failed");
        return ctx->status;
    }
    kr_job *job = comm->jobs;
    while (job && job->ticket != ticket) job = job->next;
    if (!kr_require(ctx, job, KR_ERR_ARG, "comm.end: no call has ticket %lld, or it has ended", (long long)ticket)) {
        kr_world_fail(comm->world);
        return ctx->status;
    }
    kr_world_wait(comm->world, job);
    if (job->status != KR_OK) kr_world_blame(comm->world);
    unstage(job);
    remove_job(job);
    return ctx->status;
}

/* ---- agreement ---- */

/* The error of the first failed rank becomes that of this context, whatever it has. */
static void take_verdict(kr_ctx *ctx, const kr_job *job)
{
    if (!job->has_failed || ctx->broken) return;
    ctx->status = KR_OK;
    kr_fail(ctx, job->failed_status == KR_OK ? KR_ERR_IO : job->failed_status, "%s", job->text);
}

kr_status kr_comm_agree(kr_comm *comm)
{
    if (!comm) return KR_ERR_ARG;
    kr_ctx *ctx = comm->ctx;
    const kr_comm_call call = { .size = sizeof call, .op = KR_COMM_BARRIER };
    if (comm->ranks == 1 || kr_world_blame(comm->world)) return ctx->status;
    kr_job *job = make_job(comm, &call, true);
    if (!job) {
        kr_world_fail(comm->world);
        return ctx->status;
    }
    job->has_failed = ctx->status != KR_OK;
    job->failed_status = ctx->status;
    if (job->has_failed) kr_world_name_error(comm->world, comm->rank, comm->ranks, job->text);
    kr_world_post(comm->world, job);
    kr_world_wait(comm->world, job);
    if (job->status != KR_OK) kr_world_blame(comm->world);
    else take_verdict(ctx, job);
    remove_job(job);
    return ctx->status;
}

/* ---- splitting ---- */

typedef struct choice {
    int32_t colour, key, rank, reserved;
} choice;

static bool comes_before(const choice *a, const choice *b)
{
    return a->key != b->key ? a->key < b->key : a->rank < b->rank;
}

/* The members of a colour among all choices, in order, into `members`; their number. */
static int members_of(const kr_comm *comm, const choice *all, int colour, choice *members)
{
    int n = 0;
    for (int i = 0; i < comm->ranks; i++) {
        if (all[i].colour != colour) continue;
        int at = n++;
        for (; at > 0 && comes_before(&all[i], &members[at - 1]); at--) members[at] = members[at - 1];
        members[at] = all[i];
    }
    return n;
}

static kr_comm *make_part(kr_comm *comm, const choice *members, int n)
{
    kr_comm *part = comm_alloc(comm->world, n);
    if (!part) return NULL;
    for (int i = 0; i < n; i++) {
        part->members[i] = comm->members[members[i].rank];
        if (members[i].rank == comm->rank) part->rank = i;
    }
    part->id = kr_hash_word(kr_hash_word(comm->id, (uint64_t)comm->nsplits), (uint64_t)members[0].colour);
    describe(part);
    return part;
}

kr_comm *kr_comm_split(kr_comm *comm, int colour, int key)
{
    if (!comm) return NULL;
    kr_ctx *ctx = comm->ctx;
    const choice own = { .colour = colour, .key = key, .rank = comm->rank };
    const size_t bytes = 2 * (size_t)comm->ranks * sizeof own;
    kr_comm *part = NULL;
    choice *all = NULL;
    const bool ok =
        kr_ctx_failed(ctx) ||
        (kr_require(ctx, colour >= -1, KR_ERR_ARG,
                    "comm.split: colour is %d, but must be at least 0, or -1 for no communicator", colour) &&
         kr_require(ctx, (all = kr_memory_alloc_zeroed(&ctx->memory, bytes)), KR_ERR_NOMEM,
                    "comm.split: out of memory"));
    if (!ok || !all) {
        kr_world_fail(comm->world);
        return NULL;
    }
    if (kr_comm_gather(comm, &own, all, sizeof own) == KR_OK) {
        comm->nsplits++;
        if (colour >= 0) part = make_part(comm, all + comm->ranks, members_of(comm, all, colour, all + comm->ranks));
        if (colour >= 0 && !part) kr_world_fail(comm->world);
    }
    kr_memory_free(&ctx->memory, all, bytes);
    return part;
}

kr_comm_info kr_comm_info_of(const kr_comm *comm)
{
    kr_comm_info info = { .ranks = 1, .engine = "none", .text = "" };
    if (!comm) return info;
    kr_world *world = comm->world;
    info.rank = comm->rank;
    info.ranks = comm->ranks;
    info.local_rank = comm->local_rank;
    info.local_ranks = comm->local_ranks;
    info.engine = world->engine->name;
    info.text = comm->text;
    if (world->nforks != kr_fork_count()) return info;
    pthread_mutex_lock(&world->mutex);
    info.calls = world->ncalls;
    info.bytes_sent = world->sent;
    info.bytes_received = world->received;
    info.seconds = world->seconds;
    info.wait_seconds = world->waited;
    pthread_mutex_unlock(&world->mutex);
    return info;
}
