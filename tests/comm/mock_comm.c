/* mock_comm.c - exchanges between mock devices of threads: what a rank sends is a message in a list, until its receiver takes
 * it. What is queued happens at once, as far as the other ranks have sent; the rest when somebody asks for the state.
 */
#include "tests/comm/mock_comm.h"

#include "comm/sum_order.h"
#include "device/device.h"
#include "tests/mock_device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECEIPTS_MOST = 1 << 14, RANKS_MOST = 64 };

mock_comm_faults mock_comm;

typedef struct message {
    int group, from, to;
    size_t bytes;
    struct message *next;
    char data[];
} message;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static message *messages; /* in the order in which they were sent */

typedef struct receipt {
    int from;
    char *to;
    size_t bytes;
} receipt;

/* A rank of a group. A sum waits for `terms` of all. */
typedef struct group {
    int id, rank, ranks;
    receipt receipts[RECEIPTS_MOST];
    int first, count;
    char *terms, *sum;
    int64_t n;
    kr_dtype dtype;
    char why[64];
} group;

typedef struct stream {
    kr_memory *memory;
    char *scratch;
    int rank; /* in the first group */
    bool has_rank;
} stream;

static const char *problem(void)
{
    return atomic_load(&mock_comm.is_missing) ? "its library is not found" : NULL;
}

static uint64_t number(const kr_device *device)
{
    return atomic_load(&mock_comm.is_one_device) ? 1 : (uint64_t)(uintptr_t)device;
}

static const char *open_stream(kr_device *device, kr_memory *memory, void *scratch, void **result)
{
    stream *s = kr_memory_alloc_zeroed(memory, sizeof *s);
    (void)device;
    if (!s) return "out of memory";
    *s = (stream){ .memory = memory, .scratch = scratch };
    *result = s;
    return NULL;
}

static void close_stream(kr_device *device, void *closed)
{
    stream *s = closed;
    (void)device;
    kr_memory_free(s->memory, s, sizeof *s);
}

/* Everything queued before has run; calls are over when they end. */
static const char *begin(kr_device *device, void *used, void **call)
{
    *call = used;
    return device->vtable->wait(device);
}

static const char *end(kr_device *device, void *used, void *call, bool was_made)
{
    (void)device, (void)used, (void)call, (void)was_made;
    return NULL;
}

static const char *make_id(void *used, char *id)
{
    static atomic_int ids;
    (void)used;
    snprintf(id, KR_DEVICE_GROUP_ID, "%d", atomic_fetch_add(&ids, 1) + 1);
    return NULL;
}

static const char *connect_group(void *used, const char *id, int rank, int ranks, void **result)
{
    group *g = calloc(1, sizeof *g);
    stream *s = used;
    if (!s->has_rank) s->rank = rank;
    s->has_rank = true;
    if (!g || ranks > RANKS_MOST) abort();
    g->id = atoi(id);
    g->rank = rank;
    g->ranks = ranks;
    atomic_fetch_add(&mock_comm.ngroups, 1);
    *result = g;
    return NULL;
}

/* The next message for a receipt becomes its bytes. */
static bool take(group *g, const receipt *r)
{
    pthread_mutex_lock(&lock);
    message **at = &messages;
    while (*at && ((*at)->group != g->id || (*at)->from != r->from || (*at)->to != g->rank)) at = &(*at)->next;
    message *m = *at;
    if (m) *at = m->next;
    pthread_mutex_unlock(&lock);
    if (!m) return false;
    if (m->bytes != r->bytes) snprintf(g->why, sizeof g->why, "%zu bytes for %zu", m->bytes, r->bytes);
    mock_memory_open();
    memcpy(r->to, m->data, m->bytes < r->bytes ? m->bytes : r->bytes);
    mock_memory_close();
    free(m);
    return true;
}

/* From the last rank to the first. */
static void add_terms(group *g)
{
    mock_memory_open();
    for (int64_t i = 0; i < g->n; i++) {
        double sum = 0;
        for (int r = g->ranks; r-- > 0;)
            sum += g->dtype == KR_DTYPE_F64 ? ((double *)g->terms)[r * g->n + i] : ((float *)g->terms)[r * g->n + i];
        if (g->dtype == KR_DTYPE_F64) ((double *)g->sum)[i] = sum;
        else ((float *)g->sum)[i] = (float)sum;
    }
    mock_memory_close();
    free(g->terms);
    g->terms = NULL;
}

static kr_group_state state(void *used, void *asked, const char **text)
{
    group *g = asked;
    (void)used;
    while (g->first < g->count && take(g, &g->receipts[g->first])) g->first++;
    *text = g->why;
    if (g->why[0]) return KR_GROUP_FAILED;
    if (g->first < g->count) return KR_GROUP_BUSY;
    g->first = g->count = 0;
    if (g->terms) add_terms(g);
    return KR_GROUP_READY;
}

static const char *finish(void *used, void *group_)
{
    (void)used, (void)group_;
    return NULL;
}

static void release(void *used, void *released, bool is_broken)
{
    group *g = released;
    (void)used;
    pthread_mutex_lock(&lock);
    for (message **at = &messages; *at;) {
        message *m = *at;
        if (m->group != g->id || m->to != g->rank) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        free(m);
    }
    pthread_mutex_unlock(&lock);
    free(g->terms);
    free(g);
    atomic_fetch_add(&mock_comm.naborted, is_broken);
    atomic_fetch_sub(&mock_comm.ngroups, 1);
}

static char *scratch(void *used)
{
    return ((stream *)used)->scratch;
}

static const char *do_nothing(void *used, void *call)
{
    (void)used, (void)call;
    return NULL;
}

static const char *no_group(void *used)
{
    (void)used;
    return NULL;
}

static bool is_idle(void *used)
{
    return !(atomic_load(&mock_comm.stuck) >> ((const stream *)used)->rank & 1);
}

static const char *send(void *used, void *sender, const void *x, size_t bytes, int rank)
{
    const group *g = sender;
    message *m = malloc(sizeof *m + bytes);
    (void)used;
    if (!m) abort();
    *m = (message){ .group = g->id, .from = g->rank, .to = rank, .bytes = bytes };
    mock_memory_open();
    memcpy(m->data, x, bytes);
    mock_memory_close();
    pthread_mutex_lock(&lock);
    message **at = &messages;
    while (*at) at = &(*at)->next;
    *at = m;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static const char *recv(void *used, void *receiver, void *x, size_t bytes, int rank)
{
    group *g = receiver;
    (void)used;
    if (g->count == RECEIPTS_MOST) abort();
    g->receipts[g->count++] = (receipt){ rank, x, bytes };
    return NULL;
}

static const char *broadcast(void *used, void *member, void *x, size_t bytes, int root)
{
    const group *g = member;
    for (int i = 0; i < g->ranks && g->rank == root; i++)
        if (i != root) send(used, member, x, bytes, i);
    return g->rank == root ? NULL : recv(used, member, x, bytes, root);
}

static const char *gather(void *used, void *member, const void *from, void *to, size_t bytes)
{
    const group *g = member;
    for (int i = 0; i < g->ranks; i++) {
        send(used, member, from, bytes, i);
        recv(used, member, (char *)to + (size_t)i * bytes, bytes, i);
    }
    return NULL;
}

static const char *sum(void *used, void *member, void *x, int64_t n, kr_dtype dtype)
{
    group *g = member;
    const size_t bytes = (size_t)n * kr_dtype_bytes(dtype);
    g->terms = malloc(bytes * (size_t)g->ranks);
    if (!g->terms) abort();
    g->sum = x;
    g->n = n;
    g->dtype = dtype;
    return gather(used, member, x, g->terms, bytes);
}

static const char *add(void *used, kr_dtype dtype, const void *slots, size_t stride, int nslots, int64_t n, void *y)
{
    void *list[RANKS_MOST];
    (void)used;
    if (atomic_load(&mock_comm.failing_call) > 0 && atomic_fetch_sub(&mock_comm.failing_call, 1) == 1)
        return "an addition failed, as it was asked to";
    for (int i = 0; i < nslots; i++) list[i] = (char *)slots + (size_t)i * stride;
    mock_memory_open();
    kr_sum_slots(dtype, list, nslots, n);
    memcpy(y, slots, (size_t)n * kr_dtype_bytes(dtype));
    mock_memory_close();
    return NULL;
}

const kr_device_comm_ops mock_comm_ops = { .name = "mock exchanges",
                                           .problem = problem,
                                           .number = number,
                                           .open = open_stream,
                                           .close = close_stream,
                                           .begin = begin,
                                           .end = end,
                                           .make_id = make_id,
                                           .connect = connect_group,
                                           .state = state,
                                           .finish = finish,
                                           .release = release,
                                           .scratch = scratch,
                                           .start = do_nothing,
                                           .note = do_nothing,
                                           .is_idle = is_idle,
                                           .moves_begin = no_group,
                                           .moves_end = no_group,
                                           .send = send,
                                           .recv = recv,
                                           .broadcast = broadcast,
                                           .gather = gather,
                                           .sum = sum,
                                           .add = add };
