/* collectives.c - calls of communicators, made of moves between ranks, by the thread of the world.
 *
 * Each call first exchanges headers that say what is called. Sums go in rounds: of the shares of every owner a window
 * is sent to the owner, which adds what the ranks have sent in order (sum_order.c); on several hosts in two levels. A
 * sum for all then gathers the windows. What is added does not depend on windows, so the bits depend on neither their
 * size nor the shares.
 */
#include "comm/comm_impl.h"

#include "base/hash.h"
#include "comm/sum_order.h"

#include <stdio.h>
#include <string.h>

enum { MAGIC = 0x4B524331, SMALL_SUM_BYTES = 4096 };

/* What a rank calls. All of a call's headers are equal up to `flags`. */
typedef struct header {
    uint32_t magic;
    int32_t version; /* KR_VERSION_NUMBER */
    uint64_t comm;
    int64_t number; /* of the call on its communicator; 0 for an exchange */
    int32_t op, dtype, peer, order;
    int64_t n;
    uint64_t bytes, shares;
    uint64_t flags; /* 1: the context has failed */
} header;

enum { AGREEMENT = 100, COMPARED = offsetof(header, flags) };

/* ---- texts ---- */

static const char *name_of(int op)
{
    static const char *const names[] = { "barrier", "sum",        "sum_scatter", "sum_shares", "gather_shares",
                                         "gather",  "all_to_all", "broadcast",   "exchange" };
    if (op == AGREEMENT) return "agree";
    return op >= 0 && op < (int)(sizeof names / sizeof *names) ? names[op] : "unknown call";
}

/* "sum of 100 f32" into text; returns text. */
static const char *describe(const header *h, char *text, size_t bytes)
{
    const char *name = name_of(h->op), *dtype = kr_dtype_name((kr_dtype)h->dtype);
    switch (h->op) {
    case KR_COMM_SUM:
    case KR_COMM_SUM_SCATTER:
    case KR_COMM_SUM_SHARES:
    case KR_COMM_GATHER_SHARES: snprintf(text, bytes, "%s of %lld %s", name, (long long)h->n, dtype); break;
    case KR_COMM_GATHER:
    case KR_COMM_ALL_TO_ALL:
    case KR_COMM_EXCHANGE: snprintf(text, bytes, "%s of %llu bytes", name, (unsigned long long)h->bytes); break;
    case KR_COMM_BROADCAST:
        snprintf(text, bytes, "broadcast of %llu bytes from rank %d", (unsigned long long)h->bytes, h->peer);
        break;
    default: snprintf(text, bytes, "%s", name);
    }
    return text;
}

/* "rank 2 of 8 (host, process 77)" into text; returns text. */
static const char *name_rank(const kr_world *world, int rank, char *text, size_t bytes)
{
    const kr_rank_info *info = world->table ? &world->table[rank] : NULL;
    if (info) snprintf(text, bytes, "rank %d of %d (%s, process %d)", rank, world->ranks, info->host, info->process);
    else snprintf(text, bytes, "rank %d of %d", rank, world->ranks);
    return text;
}

/* The ranks with moves that are not done: "rank 2", "ranks 1, 2 and 5". Their number is the result. */
static int name_missing(const kr_moves *moves, char *text, size_t bytes)
{
    int count = 0, last = -1;
    size_t at = 0;
    text[0] = '\0';
    for (int pass = 0; pass < 2; pass++) {
        const kr_move *list = pass ? moves->sends : moves->recvs;
        const int n = pass ? moves->nsends : moves->nrecvs;
        if (pass && count) break; /* those that have not sent are the ones waited for */
        for (int i = 0; i < n; i++) {
            if (list[i].done == list[i].bytes || list[i].rank == last || at + 24 > bytes) continue;
            last = list[i].rank;
            at += (size_t)snprintf(text + at, bytes - at, count ? ", %d" : "%d", last);
            count++;
        }
    }
    return count;
}

/* ---- moves ---- */

static void clear_moves(kr_world *world)
{
    world->moves.nsends = world->moves.nrecvs = 0;
}

static void add_send(kr_world *world, int rank, const void *data, size_t bytes)
{
    if (bytes)
        world->moves.sends[world->moves.nsends++] = (kr_move){ .rank = rank, .data = (char *)data, .bytes = bytes };
}

static void add_recv(kr_world *world, int rank, void *data, size_t bytes)
{
    if (bytes) world->moves.recvs[world->moves.nrecvs++] = (kr_move){ .rank = rank, .data = data, .bytes = bytes };
}

/* Breaks the world for the reason why moves have failed. */
static kr_status explain(kr_world *world, kr_moved moved, const header *h)
{
    char call[128], who[512];
    describe(h, call, sizeof call);
    switch (moved) {
    case KR_MOVED_TIMEOUT: {
        const int count = name_missing(&world->moves, who, sizeof who);
        char told[160];
        name_rank(world, world->rank, told, sizeof told);
        kr_world_break(
            world, KR_ERR_IO,
            "comm.%s: call %lld (%s): %s %s did nothing for %g s, the time-out, in which %s waited; it may hang, "
            "or be slower: kr_comm_options.timeout",
            name_of(h->op), (long long)h->number, call, count == 1 ? "rank" : "ranks", who, world->timeout, told);
        break;
    }
    case KR_MOVED_LOST:
        kr_world_break(world, KR_ERR_IO, "comm.%s: call %lld (%s): %s has ended, or has destroyed its communicator",
                       name_of(h->op), (long long)h->number, call,
                       name_rank(world, world->moves.lost, who, sizeof who));
        break;
    case KR_MOVED_TOLD: kr_world_break(world, KR_ERR_IO, "%s", world->moves.text); break;
    case KR_MOVED_CANCELLED:
        kr_world_break(world, KR_ERR_STATE, "%s destroyed its communicator while calls were posted",
                       name_rank(world, world->rank, who, sizeof who));
        break;
    default:
        kr_world_break(world, KR_ERR_IO, "comm.%s: call %lld (%s): %s", name_of(h->op), (long long)h->number, call,
                       world->moves.text);
    }
    return KR_ERR_IO;
}

static size_t count_bytes(const kr_move *moves, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += moves[i].bytes;
    return bytes;
}

static kr_status make_moves(kr_world *world, const header *h)
{
    if (world->moves.nsends + world->moves.nrecvs == 0) return KR_OK;
    world->moves.timeout = world->timeout;
    const kr_moved moved = world->engine->move(world->self, &world->moves);
    if (moved != KR_MOVED_ALL) return explain(world, moved, h);
    pthread_mutex_lock(&world->mutex);
    world->sent += count_bytes(world->moves.sends, world->moves.nsends);
    world->received += count_bytes(world->moves.recvs, world->moves.nrecvs);
    pthread_mutex_unlock(&world->mutex);
    return KR_OK;
}

/* ---- headers ---- */

static header header_of(kr_job *job)
{
    const kr_comm_call *c = &job->call;
    header h = { .magic = MAGIC, .version = KR_VERSION_NUMBER, .comm = job->comm->id, .flags = job->has_failed };
    h.op = job->is_agreement ? AGREEMENT : (int32_t)c->op;
    h.number = c->op == KR_COMM_EXCHANGE && !job->is_agreement ? 0 : ++job->comm->ncalls;
    h.order = (int32_t)job->comm->world->order;
    h.dtype = (int32_t)c->dtype;
    h.n = c->n;
    h.bytes = c->bytes;
    if (c->op == KR_COMM_BROADCAST) h.peer = c->peer;
    if (c->op == KR_COMM_SUM_SHARES || c->op == KR_COMM_GATHER_SHARES) {
        h.shares = kr_hash_bytes(KR_HASH_BEGIN, c->shares, (size_t)c->n_shares * sizeof *c->shares);
        for (int64_t i = 0; i < c->n_shares; i++) h.n += c->shares[i].count;
    }
    return h;
}

/* Why two headers do not match. */
static kr_status fail_mismatch(kr_world *world, const header *mine, int rank, const header *other)
{
    char a[128], b[128], me[160], who[160];
    describe(mine, a, sizeof a);
    describe(other, b, sizeof b);
    name_rank(world, world->rank, me, sizeof me);
    name_rank(world, rank, who, sizeof who);
    if (other->magic != mine->magic || other->version != mine->version)
        kr_world_break(world, KR_ERR_IO,
                       "comm: %s has Krait %d.%d.%d and %s has %d.%d.%d, but all ranks need the same version", me,
                       KR_VERSION_MAJOR, KR_VERSION_MINOR, KR_VERSION_PATCH, who, other->version / 10000,
                       other->version / 100 % 100, other->version % 100);
    else if (other->comm != mine->comm)
        kr_world_break(world, KR_ERR_STATE,
                       "comm: %s calls %s on one communicator, but %s calls %s on another; all ranks use their "
                       "communicators in the same order",
                       me, a, who, b);
    else if (other->op == KR_COMM_EXCHANGE && mine->op == KR_COMM_EXCHANGE)
        kr_world_break(world, KR_ERR_ARG, "comm.exchange: %s receives %llu bytes, but %s sends %llu", me,
                       (unsigned long long)mine->bytes, who, (unsigned long long)other->bytes);
    else if (other->shares != mine->shares && strcmp(a, b) == 0)
        kr_world_break(world, KR_ERR_ARG, "comm.%s: call %lld (%s): %s and %s give different shares", name_of(mine->op),
                       (long long)mine->number, a, me, who);
    else if (other->order != mine->order)
        kr_world_break(world, KR_ERR_ARG, "comm: kr_comm_options.order is %d on %s, but %d on %s", mine->order, me,
                       other->order, who);
    else
        kr_world_break(world, KR_ERR_STATE,
                       "comm: call %lld: %s calls %s, but %s calls %s (its call %lld); all ranks make the same calls",
                       (long long)mine->number, me, a, who, b, (long long)other->number);
    return world->problem_status;
}

/* All members tell what they call. *failed: the flags of any of them. */
static kr_status compare_headers(kr_job *job, const header *mine, uint64_t *failed)
{
    kr_comm *comm = job->comm;
    kr_world *world = comm->world;
    header *others = (header *)world->scratch;
    clear_moves(world);
    *failed = mine->flags;
    for (int i = 0; i < comm->ranks; i++) {
        if (i == comm->rank) continue;
        add_send(world, comm->members[i], mine, sizeof *mine);
        add_recv(world, comm->members[i], &others[i], sizeof *others);
    }
    const kr_status status = make_moves(world, mine);
    if (status != KR_OK) return status;
    for (int i = 0; i < comm->ranks; i++) {
        if (i == comm->rank) continue;
        *failed |= others[i].flags;
        if (memcmp(&others[i], mine, COMPARED) != 0) return fail_mismatch(world, mine, comm->members[i], &others[i]);
    }
    return KR_OK;
}

/* ---- shares ---- */

/* The next part of an owner's shares. */
typedef struct window {
    int64_t share, offset; /* where the next one begins */
    int nfragments;
    struct {
        int64_t first, count;
    } fragments[KR_FRAGMENTS_MOST];
} window;

static void next_window(window *w, const kr_comm_call *call, int owner, int64_t most)
{
    w->nfragments = 0;
    for (; w->share < call->n_shares; w->share++, w->offset = 0) {
        const kr_comm_share *share = &call->shares[w->share];
        if (share->owner != owner || share->count == w->offset) continue;
        if (most == 0 || w->nfragments == KR_FRAGMENTS_MOST) return;
        const int64_t left = share->count - w->offset, count = left < most ? left : most;
        w->fragments[w->nfragments].first = share->first + w->offset;
        w->fragments[w->nfragments++].count = count;
        most -= count;
        if (count < left) {
            w->offset += count;
            return;
        }
    }
}

/* A call on shares: from is summed or copied to `to`; they are the same but in a SUM_SCATTER. */
typedef struct share_call {
    kr_job *job;
    const header *h;
    const char *from;
    char *to;
    int64_t shift; /* element `first` of the array is element first - shift of `to` */
    size_t element;
    int64_t most;    /* elements in a window */
    window *windows; /* [ranks] */
} share_call;

static int64_t count_of(const window *w)
{
    int64_t n = 0;
    for (int f = 0; f < w->nfragments; f++) n += w->fragments[f].count;
    return n;
}

/* The sum of the slots becomes this rank's window. */
static void sum_window(const share_call *c, void *const *slots, int nslots)
{
    const kr_comm *comm = c->job->comm;
    const window *mine = &c->windows[comm->rank];
    const char *sum = slots[0];
    kr_sum_slots(c->job->call.dtype, slots, nslots, count_of(mine));
    for (int f = 0; f < mine->nfragments; f++) {
        const size_t bytes = (size_t)mine->fragments[f].count * c->element;
        memcpy(c->to + (size_t)(mine->fragments[f].first - c->shift) * c->element, sum, bytes);
        sum += bytes;
    }
}

static void send_window(const share_call *c, int to, const char *array, const window *w)
{
    kr_comm *comm = c->job->comm;
    for (int f = 0; f < w->nfragments; f++)
        add_send(comm->world, comm->members[to], array + (size_t)w->fragments[f].first * c->element,
                 (size_t)w->fragments[f].count * c->element);
}

static void recv_window(const share_call *c, int from, char *array, const window *w)
{
    kr_comm *comm = c->job->comm;
    for (int f = 0; f < w->nfragments; f++)
        add_recv(comm->world, comm->members[from], array + (size_t)w->fragments[f].first * c->element,
                 (size_t)w->fragments[f].count * c->element);
}

/* Sends the windows of `from` to their owners; slot q <- rank q's part of this rank's window. */
static kr_status scatter_windows(const share_call *c)
{
    const kr_comm *comm = c->job->comm;
    kr_world *world = comm->world;
    const window *mine = &c->windows[comm->rank];
    clear_moves(world);
    for (int i = 0; i < comm->ranks; i++) {
        char *slot = world->slots[i];
        if (i != comm->rank) send_window(c, i, c->from, &c->windows[i]);
        for (int f = 0; f < mine->nfragments; f++) {
            const size_t bytes = (size_t)mine->fragments[f].count * c->element;
            if (i == comm->rank) memcpy(slot, c->from + (size_t)mine->fragments[f].first * c->element, bytes);
            else add_recv(world, comm->members[i], slot, bytes);
            slot += bytes;
        }
    }
    return make_moves(world, c->h);
}

static kr_status gather_windows(const share_call *c)
{
    const kr_comm *comm = c->job->comm;
    clear_moves(comm->world);
    for (int i = 0; i < comm->ranks; i++) {
        if (i == comm->rank) continue;
        send_window(c, i, c->to, &c->windows[comm->rank]);
        recv_window(c, i, c->to, &c->windows[i]);
    }
    return make_moves(comm->world, c->h);
}

/* ---- two levels ----
 *
 * With G ranks on each of H hosts a rank stands for those with its local number on all hosts: it sums their windows over its
 * host, then sends each of them its sum. A host thus sends the data once to the others, not G times. If G is a power of two
 * these are the lower levels of the tree, and the bits are the same. */

/* Slot h G + g <- the part of local rank g in the window of rank h G + l, l the local number of this rank; for all h, g. */
static kr_status scatter_in_host(const share_call *c)
{
    const kr_comm *comm = c->job->comm;
    kr_world *world = comm->world;
    const int per_host = comm->per_host, local = comm->rank % per_host, base = comm->rank - local;
    clear_moves(world);
    for (int g = 0; g < per_host; g++) {
        for (int first = 0; first < comm->ranks; first += per_host) {
            const window *w = &c->windows[first + local];
            char *slot = world->slots[first + g];
            if (g != local) send_window(c, base + g, c->from, &c->windows[first + g]);
            for (int f = 0; f < w->nfragments; f++) {
                const size_t bytes = (size_t)w->fragments[f].count * c->element;
                if (g == local) memcpy(slot, c->from + (size_t)w->fragments[f].first * c->element, bytes);
                else add_recv(world, comm->members[base + g], slot, bytes);
                slot += bytes;
            }
        }
    }
    return make_moves(world, c->h);
}

static kr_status sum_in_two_levels(const share_call *c)
{
    const kr_comm *comm = c->job->comm;
    kr_world *world = comm->world;
    const int per_host = comm->per_host, local = comm->rank % per_host, hosts = comm->ranks / per_host;
    void **sums = world->slots + comm->ranks; /* of the hosts, of this rank's window */
    const size_t own_bytes = (size_t)count_of(&c->windows[comm->rank]) * c->element;
    kr_status status = scatter_in_host(c);
    if (status != KR_OK) return status;
    clear_moves(world);
    for (int host = 0; host < hosts; host++) {
        const int other = host * per_host + local;
        void **slots = world->slots + host * per_host;
        const int64_t n = count_of(&c->windows[other]);
        kr_sum_slots(c->job->call.dtype, slots, per_host, n);
        sums[host] = other == comm->rank ? slots[0] : slots[1]; /* what has been added is not needed any more */
        if (other == comm->rank) continue;
        add_send(world, comm->members[other], slots[0], (size_t)n * c->element);
        add_recv(world, comm->members[other], slots[1], own_bytes);
    }
    status = make_moves(world, c->h);
    if (status == KR_OK) sum_window(c, sums, hosts);
    return status;
}

/* Windows go to the ranks of the same local number on the other hosts, and from these to all of their host. */
static kr_status gather_in_two_levels(const share_call *c)
{
    const kr_comm *comm = c->job->comm;
    const int per_host = comm->per_host, local = comm->rank % per_host, base = comm->rank - local;
    clear_moves(comm->world);
    for (int other = local; other < comm->ranks; other += per_host) {
        if (other == comm->rank) continue;
        send_window(c, other, c->to, &c->windows[comm->rank]);
        recv_window(c, other, c->to, &c->windows[other]);
    }
    const kr_status status = make_moves(comm->world, c->h);
    if (status != KR_OK) return status;
    clear_moves(comm->world);
    for (int g = 0; g < per_host; g++) {
        for (int first = 0; first < comm->ranks && g != local; first += per_host) {
            send_window(c, base + g, c->to, &c->windows[first + local]);
            recv_window(c, base + g, c->to, &c->windows[first + g]);
        }
    }
    return make_moves(comm->world, c->h);
}

static kr_status sum_round(const share_call *c)
{
    const kr_comm *comm = c->job->comm;
    if (comm->per_host) return sum_in_two_levels(c);
    const kr_status status = scatter_windows(c);
    if (status == KR_OK) sum_window(c, comm->world->slots, comm->ranks);
    return status;
}

static kr_status run_shares(share_call *c, bool sums, bool gathers)
{
    const kr_comm *comm = c->job->comm;
    kr_world *world = comm->world;
    for (int i = 0; i < comm->ranks; i++) c->windows[i] = (window){ 0 };
    for (;;) {
        bool is_end = true;
        for (int i = 0; i < comm->ranks; i++) {
            next_window(&c->windows[i], &c->job->call, i, c->most);
            is_end = is_end && c->windows[i].nfragments == 0;
        }
        if (is_end) return KR_OK;
        kr_status status = KR_OK;
        if (sums) status = sum_round(c);
        if (status == KR_OK && gathers) status = comm->per_host ? gather_in_two_levels(c) : gather_windows(c);
        if (status != KR_OK) return world->problem_status;
    }
}

/* ---- calls ---- */

/* The ranks of a small sum exchange all of it, and each adds. */
static kr_status small_sum(kr_job *job, const header *h, size_t bytes)
{
    const kr_comm *comm = job->comm;
    kr_world *world = comm->world;
    clear_moves(world);
    for (int i = 0; i < comm->ranks; i++) {
        if (i == comm->rank) {
            memcpy(world->slots[i], job->call.to, bytes);
            continue;
        }
        add_send(world, comm->members[i], job->call.to, bytes);
        add_recv(world, comm->members[i], world->slots[i], bytes);
    }
    const kr_status status = make_moves(world, h);
    if (status != KR_OK) return status;
    kr_sum_slots(job->call.dtype, world->slots, comm->ranks, job->call.n);
    memcpy(job->call.to, world->slots[0], bytes);
    return KR_OK;
}

static kr_status engine_sum(kr_job *job, const header *h)
{
    kr_world *world = job->comm->world;
    clear_moves(world);
    world->moves.timeout = world->timeout;
    const kr_moved moved = world->engine->sum(world->self, job->comm->members, job->comm->ranks, job->call.to,
                                              job->call.n, job->call.dtype == KR_DTYPE_F64, &world->moves);
    return moved == KR_MOVED_ALL ? KR_OK : explain(world, moved, h);
}

/* Slots for `ranks` ranks in the scratch, and windows behind them. */
static int64_t lay_out(share_call *c, const kr_comm *comm)
{
    kr_world *world = comm->world;
    const size_t windows = (size_t)comm->ranks * sizeof(window);
    const size_t slot = (world->scratch_bytes - windows) / (size_t)comm->ranks / 64 * 64;
    c->windows = (window *)world->scratch;
    for (int i = 0; i < comm->ranks; i++)
        world->slots[i] = world->scratch + (windows + 63) / 64 * 64 + (size_t)i * slot;
    return (int64_t)((slot - 64) / c->element);
}

static kr_status call_shares(kr_job *job, const header *h)
{
    const kr_comm_call *call = &job->call;
    share_call c = { .job = job, .h = h, .from = call->to, .to = call->to, .element = kr_dtype_bytes(call->dtype) };
    c.most = lay_out(&c, job->comm);
    const size_t bytes = (size_t)call->n * c.element;
    if (call->op == KR_COMM_SUM && job->comm->world->order == KR_SUM_FAST && job->comm->world->engine->sum)
        return engine_sum(job, h);
    if (call->op == KR_COMM_SUM && bytes <= SMALL_SUM_BYTES) return small_sum(job, h, bytes);
    if (call->op == KR_COMM_SUM_SCATTER) {
        c.from = call->from;
        c.shift = (int64_t)job->comm->rank * call->n;
    }
    return run_shares(&c, call->op != KR_COMM_GATHER_SHARES,
                      call->op == KR_COMM_SUM || call->op == KR_COMM_GATHER_SHARES);
}

static kr_status call_bytes(kr_job *job, const header *h)
{
    const kr_comm *comm = job->comm;
    const kr_comm_call *call = &job->call;
    const size_t own = (size_t)comm->rank * call->bytes;
    const bool to_all = call->op == KR_COMM_GATHER, is_root = call->peer == comm->rank;
    char *to = call->to;
    const char *from = call->from;
    clear_moves(comm->world);
    for (int i = 0; i < comm->ranks; i++) {
        const size_t part = (size_t)i * call->bytes;
        if (i == comm->rank) continue;
        if (call->op == KR_COMM_BROADCAST) {
            if (is_root) add_send(comm->world, comm->members[i], to, call->bytes);
            else if (i == call->peer) add_recv(comm->world, comm->members[i], to, call->bytes);
        } else {
            add_send(comm->world, comm->members[i], to_all ? from : from + part, call->bytes);
            add_recv(comm->world, comm->members[i], to + part, call->bytes);
        }
    }
    if (call->op != KR_COMM_BROADCAST && call->bytes) memmove(to + own, to_all ? from : from + own, call->bytes);
    return make_moves(comm->world, h);
}

/* A header tells the receiver what comes; nothing tells the sender what is expected. */
static kr_status call_exchange(kr_job *job, const header *h)
{
    const kr_comm *comm = job->comm;
    const kr_comm_call *call = &job->call;
    kr_world *world = comm->world;
    header *other = (header *)world->scratch, expected = *h;
    expected.bytes = call->source_bytes;
    clear_moves(world);
    if (call->peer >= 0) {
        add_send(world, comm->members[call->peer], h, sizeof *h);
        add_send(world, comm->members[call->peer], call->from, call->bytes);
    }
    if (call->source < 0) return make_moves(world, h);
    const int source = comm->members[call->source], nsends = world->moves.nsends;
    world->moves.nsends = 0;
    add_recv(world, source, other, sizeof *other);
    if (call->peer >= 0) world->moves.nsends = 1; /* the headers pass each other */
    kr_status status = make_moves(world, h);
    if (status != KR_OK) return status;
    if (memcmp(other, &expected, COMPARED) != 0) return fail_mismatch(world, &expected, source, other);
    world->moves.nrecvs = 0;
    world->moves.nsends = 0;
    if (nsends > 1) {
        world->moves.sends[0] = world->moves.sends[1];
        world->moves.nsends = 1;
    }
    add_recv(world, source, call->to, call->source_bytes);
    return make_moves(world, h);
}

/* What a rank says in an agreement when any has failed. */
typedef struct verdict {
    int32_t status, reserved;
    char text[KR_ENGINE_TEXT - 8];
} verdict;

/* The verdict of the first failed rank, by number, becomes the text of the job. All verdicts pass through the scratch.
 * */
static kr_status call_agree(kr_job *job, const header *h, uint64_t failed)
{
    const kr_comm *comm = job->comm;
    kr_world *world = comm->world;
    verdict *all = (verdict *)world->scratch, *mine = &all[comm->rank];
    job->has_failed = failed != 0;
    if (!failed) return KR_OK;
    clear_moves(world);
    *mine = (verdict){ .status = (int32_t)job->failed_status };
    snprintf(mine->text, sizeof mine->text, "%s", job->text);
    for (int i = 0; i < comm->ranks; i++) {
        if (i == comm->rank) continue;
        add_send(world, comm->members[i], mine, sizeof *mine);
        add_recv(world, comm->members[i], &all[i], sizeof *all);
    }
    const kr_status status = make_moves(world, h);
    if (status != KR_OK) return status;
    int first = 0;
    while (first < comm->ranks - 1 && all[first].status == KR_OK) first++;
    all[first].text[sizeof all[first].text - 1] = '\0';
    job->failed_status = (kr_status)all[first].status;
    snprintf(job->text, KR_ENGINE_TEXT, "%s", all[first].text);
    return KR_OK;
}

size_t kr_scratch_bytes(int ranks)
{
    const size_t slots = (size_t)ranks * KR_SLOT_BYTES_LEAST;
    return (slots > KR_SCRATCH_BYTES ? slots : KR_SCRATCH_BYTES) + (size_t)ranks * (sizeof(window) + 64);
}

static kr_status run_call(kr_job *job, const header *h, uint64_t failed)
{
    if (job->is_agreement) return call_agree(job, h, failed);
    switch (job->call.op) {
    case KR_COMM_SUM:
    case KR_COMM_SUM_SCATTER:
    case KR_COMM_SUM_SHARES:
    case KR_COMM_GATHER_SHARES: return call_shares(job, h);
    case KR_COMM_GATHER:
    case KR_COMM_ALL_TO_ALL:
    case KR_COMM_BROADCAST: return call_bytes(job, h);
    default: return KR_OK;
    }
}

kr_status kr_job_run(kr_job *job)
{
    const header h = header_of(job);
    uint64_t failed = 0;
    kr_status status;
    if (h.op == KR_COMM_EXCHANGE) status = call_exchange(job, &h);
    else {
        status = compare_headers(job, &h, &failed);
        if (status == KR_OK) status = run_call(job, &h, failed);
    }
    return status == KR_OK ? KR_OK : job->comm->world->problem_status;
}
