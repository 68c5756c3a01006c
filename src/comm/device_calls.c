/* device_calls.c - calls whose operands are in device memory, by the device's own exchanges: NCCL on CUDA.
 *
 * The ranks first compare headers through the engine, as for every call. Then the thread queues moves and additions on the
 * stream of the world, which waits for what the context had queued when the call began; the context's stream waits for them
 * when it ends. No host waits for a device.
 *
 * Ordered sums go in rounds: of the shares of every owner as many elements as fit into a slot are sent to it, which adds the
 * slots of all ranks in order. What is added does not depend on rounds.
 */
#define _GNU_SOURCE
#include "comm/device_calls.h"

#include "device/device.h"
#include "device/device_comm.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SCRATCH_BYTES = 32 << 20, SLOT_BYTES_LEAST = 64 << 10, SHARES_AT_ONCE = 256 };

/* A rank that has finished its calls may leave; what it has sent arrives within these seconds. */
#define SECONDS_AFTER_A_LOSS 3.0
#define SECONDS_TO_FINISH 5.0

static const kr_device_comm_ops *ops_of(const kr_world *world)
{
    return world->ctx->device->vtable->comm;
}

/* ---- waiting ---- */

static kr_status fail(kr_world *world, const kr_call_header *h, const char *why)
{
    char name[192];
    kr_world_break(world, KR_ERR_IO, "%s: rank %d of %d (%s): %s: %.500s", kr_call_name(h, name, sizeof name),
                   world->rank, world->ranks, world->table[world->rank].host, ops_of(world)->name, why);
    return KR_ERR_IO;
}

static kr_status time_out(kr_world *world, const kr_call_header *h)
{
    char why[160];
    snprintf(why, sizeof why,
             "the device waited for others for %g s, the time-out; a device may hang, or be slower: "
             "kr_comm_options.timeout",
             world->timeout);
    return fail(world, h, why);
}

static kr_moved check_engine(kr_world *world)
{
    return world->engine->check ? world->engine->check(world->self, &world->moves) : KR_MOVED_ALL;
}

static void nap(int times)
{
    const struct timespec time = { .tv_nsec = 200000 };
    if (times < 100) sched_yield();
    else nanosleep(&time, NULL);
}

/* Waits until a group has connected, or until its calls are queued. */
static kr_status settle(kr_comm *comm, const kr_call_header *h)
{
    kr_world *world = comm->world;
    const double start = kr_clock();
    for (int times = 0;; times++) {
        const char *why = NULL;
        const kr_group_state state = ops_of(world)->state(world->stream, comm->group, &why);
        if (state == KR_GROUP_READY) return KR_OK;
        if (state == KR_GROUP_FAILED) return fail(world, h, why);
        const kr_moved moved = atomic_load(&world->cancel) ? KR_MOVED_CANCELLED : check_engine(world);
        if (moved != KR_MOVED_ALL) return kr_call_explain(world, moved, h);
        if (kr_clock() - start > world->timeout) return time_out(world, h);
        nap(times);
    }
}

void kr_comm_device_watch(kr_world *world)
{
    const kr_device_comm_ops *ops = ops_of(world);
    if (ops->is_idle(world->stream)) {
        world->is_watching = false;
        world->lost_at = 0;
        return;
    }
    for (kr_comm *comm = world->connected; comm; comm = comm->next_connected) {
        const char *why = NULL;
        if (ops->state(world->stream, comm->group, &why) != KR_GROUP_FAILED) continue;
        fail(world, &world->last_call, why);
        return;
    }
    const double now = kr_clock();
    const kr_moved moved = check_engine(world);
    if (moved == KR_MOVED_LOST && world->lost_at == 0) world->lost_at = now;
    if (moved == KR_MOVED_TOLD || (moved == KR_MOVED_LOST && now - world->lost_at > SECONDS_AFTER_A_LOSS))
        kr_call_explain(world, moved, &world->last_call);
    else if (now - world->last_call_at > world->timeout) time_out(world, &world->last_call);
}

/* ---- groups ---- */

/* The id of rank 0 goes to all. */
static kr_status share_id(kr_comm *comm, const kr_call_header *h, char *id)
{
    kr_world *world = comm->world;
    kr_moves *moves = &world->moves;
    moves->nsends = moves->nrecvs = 0;
    if (comm->rank == 0) {
        const char *why = ops_of(world)->make_id(world->stream, id);
        if (why) return fail(world, h, why);
    } else
        moves->recvs[moves->nrecvs++] =
            (kr_move){ .rank = comm->members[0], .data = id, .bytes = KR_DEVICE_GROUP_ID };
    for (int i = 1; i < comm->ranks && comm->rank == 0; i++)
        moves->sends[moves->nsends++] =
            (kr_move){ .rank = comm->members[i], .data = id, .bytes = KR_DEVICE_GROUP_ID };
    return kr_call_move(world, h);
}

kr_status kr_comm_device_connect(kr_comm *comm, const kr_call_header *h)
{
    kr_world *world = comm->world;
    char id[KR_DEVICE_GROUP_ID] = "";
    kr_status status = share_id(comm, h, id);
    if (status != KR_OK) return status;
    const char *why = ops_of(world)->connect(world->stream, id, comm->rank, comm->ranks, &comm->group);
    if (comm->group) {
        comm->next_connected = world->connected;
        world->connected = comm;
    }
    return why ? fail(world, h, why) : settle(comm, h);
}

void kr_comm_device_abort(kr_world *world)
{
    for (kr_comm *comm = world->connected; comm; comm = comm->next_connected) {
        ops_of(world)->release(world->stream, comm->group, true);
        comm->group = NULL;
    }
    world->connected = NULL;
    world->is_watching = false;
}

/* The other ranks need not leave now. What they wait for arrives if the calls of this one end first. */
void kr_comm_device_leave(kr_comm *comm)
{
    kr_world *world = comm->world;
    const kr_device_comm_ops *ops = ops_of(world);
    if (!comm->group) return;
    while (world->is_watching && comm->group) {
        kr_comm_device_watch(world);
        nap(100);
    }
    if (!comm->group) return; /* aborted */
    const double start = kr_clock();
    const char *why = ops->finish(world->stream, comm->group);
    kr_group_state state = why ? KR_GROUP_FAILED : KR_GROUP_BUSY;
    while (state == KR_GROUP_BUSY && kr_clock() - start < SECONDS_TO_FINISH) {
        state = ops->state(world->stream, comm->group, &why);
        if (state == KR_GROUP_BUSY) nap(100);
    }
    ops->release(world->stream, comm->group, state != KR_GROUP_READY);
    comm->group = NULL;
    kr_comm **at = &world->connected;
    while (*at != comm) at = &(*at)->next_connected;
    *at = comm->next_connected;
}

/* ---- calls ---- */

/* What is queued for a call; the first error stays in `why`. */
typedef struct queue {
    const kr_job *job;
    const kr_call_header *h;
    kr_comm *comm;
    const kr_device_comm_ops *ops;
    void *stream, *group;
    const char *why;
} queue;

static void count(queue *q, int rank, size_t bytes, bool sends)
{
    kr_world *world = q->comm->world;
    if (rank == q->comm->rank) return;
    pthread_mutex_lock(&world->mutex);
    if (sends) world->sent += bytes;
    else world->received += bytes;
    pthread_mutex_unlock(&world->mutex);
}

static void send(queue *q, const void *x, size_t bytes, int rank)
{
    if (bytes && !q->why) q->why = q->ops->send(q->stream, q->group, x, bytes, rank);
    count(q, rank, bytes, true);
}

static void recv(queue *q, void *x, size_t bytes, int rank)
{
    if (bytes && !q->why) q->why = q->ops->recv(q->stream, q->group, x, bytes, rank);
    count(q, rank, bytes, false);
}

static void begin(queue *q)
{
    if (!q->why) q->why = q->ops->moves_begin(q->stream);
}

/* A group that was begun is also ended after an error. */
static kr_status end(queue *q)
{
    const char *why = q->ops->moves_end(q->stream);
    if (!q->why) q->why = why;
    return q->why ? fail(q->comm->world, q->h, q->why) : settle(q->comm, q->h);
}

static kr_status finish(queue *q)
{
    return q->why ? fail(q->comm->world, q->h, q->why) : settle(q->comm, q->h);
}

/* A place in the shares of an owner, and the fragment that begins there. */
typedef struct cursor {
    int64_t share, offset;
} cursor;

/* The next fragment of at most `most` elements; count 0: none is left. */
static kr_comm_share next_fragment(const kr_comm_call *call, int owner, cursor *at, int64_t most)
{
    for (; at->share < call->n_shares; at->share++, at->offset = 0) {
        const kr_comm_share *share = &call->shares[at->share];
        if (share->owner != owner || share->count == at->offset) continue;
        const int64_t left = share->count - at->offset, n = left < most ? left : most;
        const kr_comm_share fragment = { .first = share->first + at->offset, .count = n, .owner = owner };
        at->offset += n;
        return fragment;
    }
    return (kr_comm_share){ .owner = owner };
}

typedef struct sum_call {
    queue *q;
    const char *from;
    char *to;
    int64_t shift; /* element `first` of the array is element first - shift of `to` */
    size_t element, slot;
    cursor *cursors; /* [ranks] */
} sum_call;

/* Sends a part of the shares of `owner`, and receives that of this rank from all into their slots. False: there is none. */
static bool scatter_part(const sum_call *c, int owner)
{
    queue *q = c->q;
    const kr_comm *comm = q->comm;
    int64_t left = (int64_t)(c->slot / c->element);
    size_t at = 0;
    while (left > 0) {
        const kr_comm_share f = next_fragment(&q->job->call, owner, &c->cursors[owner], left);
        const size_t bytes = (size_t)f.count * c->element;
        if (f.count == 0) break;
        send(q, c->from + (size_t)f.first * c->element, bytes, owner);
        for (int i = 0; i < comm->ranks && owner == comm->rank; i++)
            recv(q, q->ops->scratch(q->stream) + (size_t)i * c->slot + at, bytes, i);
        left -= f.count;
        at += bytes;
    }
    return at > 0;
}

/* The sums of the slots become the part of this rank that begins at `cursor`. */
static void add_part(const sum_call *c, cursor at)
{
    queue *q = c->q;
    int64_t left = (int64_t)(c->slot / c->element);
    const char *slots = q->ops->scratch(q->stream);
    while (left > 0 && !q->why) {
        const kr_comm_share f = next_fragment(&q->job->call, q->comm->rank, &at, left);
        if (f.count == 0) break;
        q->why = q->ops->add(q->stream, q->job->call.dtype, slots, c->slot, q->comm->ranks, f.count,
                             c->to + (size_t)(f.first - c->shift) * c->element);
        left -= f.count;
        slots += (size_t)f.count * c->element;
    }
}

static kr_status sum_shares(sum_call *c)
{
    queue *q = c->q;
    const int ranks = q->comm->ranks, rank = q->comm->rank;
    memset(c->cursors, 0, (size_t)ranks * sizeof *c->cursors);
    for (bool is_end = false; !is_end;) {
        const cursor mine = c->cursors[rank];
        is_end = true;
        begin(q);
        for (int i = 0; i < ranks; i++)
            if (scatter_part(c, i)) is_end = false;
        const kr_status status = end(q);
        if (status != KR_OK) return status;
        add_part(c, mine);
    }
    return finish(q);
}

/* Equal slices in the order of their owners are gathered at once. */
static kr_status gather_shares(queue *q, char *x, size_t element)
{
    const kr_comm_call *call = &q->job->call;
    const size_t slice = (size_t)(call->n / q->comm->ranks) * element;
    if (call->op == KR_COMM_SUM && call->n % q->comm->ranks == 0) {
        if (!q->why) q->why = q->ops->gather(q->stream, q->group, x + (size_t)q->comm->rank * slice, x, slice);
        return finish(q);
    }
    for (int64_t first = 0; first < call->n_shares; first += SHARES_AT_ONCE) {
        begin(q);
        for (int64_t i = first; i < call->n_shares && i < first + SHARES_AT_ONCE; i++) {
            const kr_comm_share *share = &call->shares[i];
            const size_t bytes = (size_t)share->count * element;
            if (bytes && !q->why)
                q->why = q->ops->broadcast(q->stream, q->group, x + (size_t)share->first * element, bytes, share->owner);
        }
        const kr_status status = end(q);
        if (status != KR_OK) return status;
    }
    return KR_OK;
}

static size_t slot_bytes(int ranks)
{
    const size_t slot = SCRATCH_BYTES / (size_t)ranks / 256 * 256;
    return slot > SLOT_BYTES_LEAST ? slot : SLOT_BYTES_LEAST;
}

static kr_status call_shares(queue *q)
{
    const kr_comm_call *call = &q->job->call;
    kr_world *world = q->comm->world;
    sum_call c = { .q = q, .from = call->to, .to = call->to, .element = kr_dtype_bytes(call->dtype) };
    c.slot = slot_bytes(q->comm->ranks);
    c.cursors = (cursor *)world->scratch; /* it has 64 KiB for each rank */
    if (call->op == KR_COMM_SUM && world->order == KR_SUM_FAST) {
        q->why = q->ops->sum(q->stream, q->group, call->to, call->n, call->dtype);
        return finish(q);
    }
    if (call->op == KR_COMM_SUM_SCATTER) {
        c.from = call->from;
        c.shift = (int64_t)q->comm->rank * call->n;
    }
    kr_status status = KR_OK;
    if (call->op != KR_COMM_GATHER_SHARES) status = sum_shares(&c);
    if (status == KR_OK && (call->op == KR_COMM_SUM || call->op == KR_COMM_GATHER_SHARES))
        status = gather_shares(q, c.to, c.element);
    return status;
}

static kr_status call_exchange(queue *q)
{
    const kr_comm_call *call = &q->job->call;
    begin(q);
    if (q->job->from_device) send(q, call->from, call->bytes, call->peer);
    if (q->job->to_device) recv(q, call->to, call->source_bytes, call->source);
    return end(q);
}

static kr_status call_all_to_all(queue *q)
{
    const kr_comm_call *call = &q->job->call;
    begin(q);
    for (int i = 0; i < q->comm->ranks; i++) {
        send(q, (const char *)call->from + (size_t)i * call->bytes, call->bytes, i);
        recv(q, (char *)call->to + (size_t)i * call->bytes, call->bytes, i);
    }
    return end(q);
}

static kr_status queue_call(queue *q)
{
    const kr_comm_call *call = &q->job->call;
    switch (call->op) {
    case KR_COMM_BROADCAST:
        q->why = q->ops->broadcast(q->stream, q->group, call->to, call->bytes, call->peer);
        return finish(q);
    case KR_COMM_GATHER:
        q->why = q->ops->gather(q->stream, q->group, call->from, call->to, call->bytes);
        return finish(q);
    case KR_COMM_ALL_TO_ALL: return call_all_to_all(q);
    case KR_COMM_EXCHANGE: return call_exchange(q);
    default: return call_shares(q);
    }
}

kr_status kr_comm_device_call(const kr_job *job, const kr_call_header *h)
{
    kr_comm *comm = job->comm;
    kr_world *world = comm->world;
    queue q = { .job = job, .h = h, .comm = comm, .ops = ops_of(world), .stream = world->stream, .group = comm->group };
    q.why = q.ops->start(q.stream, job->device_call);
    if (q.why) return fail(world, h, q.why);
    const kr_status status = queue_call(&q);
    if (status != KR_OK) return status;
    q.why = q.ops->note(q.stream, job->device_call);
    if (q.why) return fail(world, h, q.why);
    world->last_call = *h;
    world->last_call_at = kr_clock();
    world->is_watching = true;
    return KR_OK;
}

/* ---- of the caller ---- */

const char *kr_comm_device_find(const kr_ctx *ctx, uint64_t *number)
{
    const kr_device *device = ctx->device;
    *number = 0;
    if (!device->vtable) return "the context is on the CPU; it is for devices, such as cuda";
    if (!device->vtable->comm) return "the context's device has no exchanges of its own";
    const char *problem = device->vtable->comm->problem();
    if (!problem) *number = device->vtable->comm->number(device);
    return problem;
}

bool kr_comm_device_may_exchange(const kr_ctx *ctx)
{
    return ctx->device->vtable && ctx->device->vtable->comm;
}

static size_t scratch_bytes(const kr_world *world)
{
    return (size_t)world->ranks * slot_bytes(world->ranks);
}

bool kr_comm_device_open(kr_world *world)
{
    kr_ctx *ctx = world->ctx;
    kr_memory *memory = kr_float_memory(ctx);
    const size_t bytes = scratch_bytes(world);
    void *scratch = kr_memory_alloc(memory, bytes);
    if (!scratch) return kr_fail(ctx, KR_ERR_NOMEM, "comm.create: out of memory for %zu bytes on the device", bytes);
    const char *why = ops_of(world)->open(ctx->device, &ctx->memory, scratch, &world->stream);
    if (!why) return true;
    kr_memory_free(memory, scratch, bytes);
    return kr_fail(ctx, KR_ERR_DEVICE, "comm.create: %s: %s", ops_of(world)->name, why);
}

void kr_comm_device_close(kr_world *world)
{
    void *scratch = ops_of(world)->scratch(world->stream);
    ops_of(world)->close(world->ctx->device, world->stream);
    kr_memory_free(kr_float_memory(world->ctx), scratch, scratch_bytes(world));
    world->stream = NULL;
}

bool kr_comm_device_begin(kr_job *job, size_t from_bytes, size_t to_bytes)
{
    kr_ctx *ctx = job->comm->ctx;
    kr_world *world = job->comm->world;
    const kr_comm_call *c = &job->call;
    if (!world->stream) return true;
    job->from_device = from_bytes && kr_device_owns(ctx, c->from);
    job->to_device = to_bytes && kr_device_owns(ctx, c->to);
    /* An operand on the host: both are sent from there. */
    const bool is_mixed = (from_bytes && !job->from_device) || (to_bytes && !job->to_device);
    if (c->op != KR_COMM_EXCHANGE && is_mixed) job->from_device = job->to_device = false;
    if (!job->from_device && !job->to_device) return true;
    const char *why = ops_of(world)->begin(ctx->device, world->stream, &job->device_call);
    return !why || kr_fail(ctx, KR_ERR_DEVICE, "comm: %s: %s", ops_of(world)->name, why);
}

void kr_comm_device_end(kr_job *job)
{
    kr_ctx *ctx = job->comm->ctx;
    kr_world *world = job->comm->world;
    if (!job->device_call) return;
    const bool was_made = job->is_done && job->status == KR_OK;
    const char *why = ops_of(world)->end(ctx->device, world->stream, job->device_call, was_made);
    job->device_call = NULL;
    ctx->device->is_busy = true;
    if (why) kr_fail(ctx, KR_ERR_DEVICE, "comm: %s: %s", ops_of(world)->name, why);
}
