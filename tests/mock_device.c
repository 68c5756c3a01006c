/* mock_device.c - a device with its own memory for machines that have none: KR_DEVICE=mock in the test programs.
 *
 * Its kernels are the processor's. Its device memory is a region of addresses that only kernels and device functions may touch
 * while they run: a host that does faults at once. What is handed out there holds NaN. "mock" runs a kernel when it is
 * queued, "mock:1" as late as can be, when the host waits: one that reads too early, or gives away what a kernel still
 * needs, gets other results. "mock:2" breaks after a dozen kernels; "mock:3" has 8 MiB and no more. All have one region, as
 * contexts on one GPU have; but "mock:3" lends and borrows no memory of the others, as a second GPU.
 */
#if defined(__linux__)
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#endif
#include "tests/mock_device.h"

#include "tests/harness.h"

#include "device/device.h"

#include <pthread.h>
#include <sys/mman.h>

enum { PAGE = 1 << 12, LARGE_PAGE = 2 << 20, ARGS_BYTES = 1024 };
static const size_t region_bytes = (size_t)1 << 36;

/* A block of the region, in order of address; they cover it up to `top`. */
typedef struct block {
    char *data;
    size_t bytes;
    bool is_free;
    struct mock *owner; /* NULL: closed */
    struct block *next;
} block;

typedef struct queued {
    void (*run)(const void *args); /* NULL: waits until `count` of `before` have run */
    _Alignas(16) char args[ARGS_BYTES];
    mock_stream *before;
    int64_t count;
    struct queued *next;
} queued;

#define STREAM_MARK UINT32_C(0x57ea4)
struct mock_stream {
    uint32_t mark; /* STREAM_MARK, or it is no stream */
    queued *first, **last;
    int64_t nqueued, nrun; /* so far */
};

/* A place in a stream. */
typedef struct stream_event {
    mock_stream *stream;
    int64_t count;
} stream_event;

typedef struct mock {
    const kr_kernels *host;
    bool is_late, is_detached;            /* is_detached: blocks may outlast the device */
    int until_broken;                     /* kernels; -1: never */
    size_t used, most;                    /* bytes that are handed out; that may be */
    const kr_device_allocator *allocator; /* NULL: none */
    mock_stream own, *stream;             /* stream: in use */
    stream_event marks[KR_EVENTS];
    bool is_capturing; /* what is queued is noted ... */
    queued *captured;  /* ... here, the last one first */
} mock;

/* ---- the region ---- */

static pthread_mutex_t region_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int ndevices, nopen; /* devices that are open; threads that may touch it now */
    char *mapped, *begin, *top;
    block *blocks;
} region;

/* Of whole large pages, which are opened and closed quickly. */
static size_t used_bytes(void)
{
    return ((size_t)(region.top - region.begin) + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
}

static void open_region(void)
{
    pthread_mutex_lock(&region_lock);
    region.nopen++;
    if (region.top > region.begin) mprotect(region.begin, used_bytes(), PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&region_lock);
}

static void close_region(void)
{
    pthread_mutex_lock(&region_lock);
    if (--region.nopen == 0 && region.top > region.begin) mprotect(region.begin, used_bytes(), PROT_NONE);
    pthread_mutex_unlock(&region_lock);
}

static bool begin_region(void)
{
    pthread_mutex_lock(&region_lock);
    if (!region.mapped) {
        void *mapped =
            mmap(NULL, region_bytes + LARGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped != MAP_FAILED) {
            region.mapped = mapped;
            region.begin = region.top = region.mapped + (LARGE_PAGE - (uintptr_t)mapped % LARGE_PAGE) % LARGE_PAGE;
            madvise(region.begin, region_bytes, MADV_HUGEPAGE); /* advice: without it the device is slow */
        }
    }
    const bool begun = region.mapped != NULL;
    region.ndevices += begun;
    pthread_mutex_unlock(&region_lock);
    return begun;
}

/* Frees it after the last device and the last block. */
static void end_region(void)
{
    block *b = region.blocks;
    while (b && b->is_free) b = b->next;
    if (region.ndevices > 0 || b) return;
    for (b = region.blocks; b;) {
        block *next = b->next;
        free(b);
        b = next;
    }
    region.blocks = NULL;
    munmap(region.mapped, region_bytes + LARGE_PAGE);
    region.mapped = NULL;
}

/* The first `count` that were ever queued, each after what it waits for. */
static void run_until(mock_stream *s, int64_t count)
{
    if (s->nrun >= count) return;
    open_region();
    while (s->nrun < count) {
        queued *q = s->first;
        if (q->before) run_until(q->before, q->count);
        else q->run(q->args);
        s->first = q->next;
        if (!s->first) s->last = &s->first;
        s->nrun++;
        free(q);
    }
    close_region();
}

static void run_queue(mock *m)
{
    run_until(m->stream, m->stream->nqueued);
}

static block *new_block(size_t bytes)
{
    if (bytes > region_bytes - (size_t)(region.top - region.begin)) return NULL;
    block **link = &region.blocks;
    while (*link) link = &(*link)->next;
    block *b = malloc(sizeof *b);
    if (!b) return NULL;
    *b = (block){ .data = region.top, .bytes = bytes };
    *link = b;
    region.top += bytes;
    return b;
}

static void *device_alloc(void *user, size_t bytes, size_t align)
{
    mock *m = user;
    (void)align;
    if (m->allocator) return m->allocator->alloc(m->allocator->user, bytes, m->stream);
    if (bytes > region_bytes / 2) return NULL;
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    if (bytes > m->most - m->used) return NULL;
    pthread_mutex_lock(&region_lock);
    block *b = region.blocks;
    while (b && !(b->is_free && b->bytes == bytes)) b = b->next;
    if (!b) b = new_block(bytes);
    if (b) {
        b->is_free = false;
        b->owner = m;
    }
    pthread_mutex_unlock(&region_lock);
    if (!b) return NULL;
    m->used += b->bytes;
    open_region();
    memset(b->data, 0xff, bytes);
    close_region();
    return b->data;
}

/* m: the device that frees it; NULL: none */
static void free_block(mock *m, const void *p)
{
    pthread_mutex_lock(&region_lock);
    block *b = region.blocks;
    while (b && b->data != p) b = b->next;
    if (!b || b->is_free) abort();
    b->is_free = true;
    if (m) m->used -= b->bytes;
    end_region();
    pthread_mutex_unlock(&region_lock);
}

static void device_free(void *user, void *p)
{
    mock *m = user;
    CHECK(!m->is_capturing, "device memory was freed while kernels were recorded");
    run_queue(m);
    free_block(m, p);
}

/* In the order of the stream: kernels that use it may not have run. */
static void return_to_caller(void *user, void *p, size_t bytes)
{
    mock *m = user;
    CHECK(!m->is_capturing, "device memory was freed while kernels were recorded");
    m->allocator->free(m->allocator->user, p, bytes, m->stream);
}

static void detached_free(void *user, void *p)
{
    (void)user;
    free_block(NULL, p);
}

static void detached_return(void *user, void *p, size_t bytes)
{
    const kr_device_allocator *allocator = user;
    allocator->free(allocator->user, p, bytes, KR_STREAM_LEGACY);
}

static void detach(const kr_device *device, kr_memory *branch)
{
    mock *m = device->handle;
    m->is_detached = true;
    branch->hooks = (kr_allocator){ NULL, detached_free, (void *)(uintptr_t)m->allocator };
    if (m->allocator) branch->release = detached_return;
}

/* ---- device functions ---- */

/* ---- the queue ---- */

static void append(mock_stream *s, const queued *what)
{
    queued *q = malloc(sizeof *q);
    if (!q) abort();
    *q = *what;
    q->next = NULL;
    *s->last = q;
    s->last = &q->next;
    s->nqueued++;
}

static void queue(mock *m, void (*run)(const void *), const void *args, size_t bytes)
{
    queued q = { .run = run };
    if (bytes > ARGS_BYTES) abort();
    memcpy(q.args, args, bytes);
    if (m->is_capturing) {
        q.next = m->captured;
        m->captured = malloc(sizeof q);
        if (!m->captured) abort();
        *m->captured = q;
        return;
    }
    append(m->stream, &q);
    if (!m->is_late) run_queue(m);
}

typedef struct device_move {
    void *to;
    const void *from; /* NULL: zeros */
    size_t bytes;
} device_move;

static void run_move(const void *args)
{
    const device_move *move = args;
    if (move->from) memmove(move->to, move->from, move->bytes);
    else memset(move->to, 0, move->bytes);
}

static void device_zero(void *user, void *p, size_t bytes)
{
    queue(user, run_move, &(device_move){ p, NULL, bytes }, sizeof(device_move));
}

static bool holds(const kr_device *device, const void *p)
{
    (void)device;
    return (const char *)p >= region.begin && (const char *)p < region.begin + region_bytes;
}

static bool owns(const kr_device *device, const void *p)
{
    const mock *m = device->handle;
    bool is_owned = true;
    pthread_mutex_lock(&region_lock);
    for (const block *b = region.blocks; b; b = b->next)
        if ((const char *)p >= b->data && (const char *)p < b->data + b->bytes && b->owner)
            is_owned = (b->owner->most == region_bytes) == (m->most == region_bytes);
    pthread_mutex_unlock(&region_lock);
    return is_owned;
}

static const char *move(kr_device *device, void *to, const void *from, size_t bytes)
{
    mock *m = device->handle;
    CHECK(!m->is_capturing, "the host moved data while kernels were recorded");
    run_queue(m);
    open_region();
    memmove(to, from, bytes);
    close_region();
    return NULL;
}

static const char *copy(kr_device *device, void *to, const void *from, size_t bytes)
{
    queue(device->handle, run_move, &(device_move){ to, from, bytes }, sizeof(device_move));
    return NULL;
}

static const char *wait(kr_device *device)
{
    run_queue(device->handle);
    return NULL;
}

static const char *record_event(kr_device *device, int which)
{
    mock *m = device->handle;
    m->marks[which] = (stream_event){ m->stream, m->stream->nqueued };
    return NULL;
}

static const char *wait_event(kr_device *device, int which)
{
    mock *m = device->handle;
    run_until(m->marks[which].stream, m->marks[which].count);
    return NULL;
}

/* ---- streams ---- */

static void init_stream(mock_stream *s)
{
    *s = (mock_stream){ .mark = STREAM_MARK, .last = &s->first };
}

/* Of all contexts, as that of a GPU is. */
static mock_stream *legacy_stream(void)
{
    static mock_stream legacy;
    if (!legacy.last) init_stream(&legacy);
    return &legacy;
}

static const char *use_stream(kr_device *device, void *stream)
{
    mock *m = device->handle;
    mock_stream *next = !stream                                                        ? &m->own
                        : stream == KR_STREAM_LEGACY || stream == KR_STREAM_PER_THREAD ? legacy_stream()
                                                                                       : stream;
    if (next->mark != STREAM_MARK) return "it is no stream";
    if (next == m->stream) return NULL;
    append(next, &(queued){ .before = m->stream, .count = m->stream->nqueued });
    m->stream = next;
    device->stream = next;
    return NULL;
}

mock_stream *mock_stream_create(void)
{
    mock_stream *s = malloc(sizeof *s);
    if (!s) abort();
    init_stream(s);
    return s;
}

void mock_stream_destroy(mock_stream *s)
{
    CHECK(s->nrun == s->nqueued, "a stream with work in it is destroyed");
    free(s);
}

typedef struct program_work {
    void (*run)(void *user);
    void *user;
} program_work;

static void run_work(const void *args)
{
    const program_work *work = args;
    work->run(work->user);
}

void mock_stream_queue(mock_stream *s, void (*run)(void *user), void *user)
{
    queued q = { .run = run_work };
    const program_work work = { run, user };
    memcpy(q.args, &work, sizeof work);
    append(s, &q);
}

void mock_stream_wait(mock_stream *s)
{
    run_until(s, s->nqueued);
}

int64_t mock_stream_waiting(const mock_stream *s)
{
    return s->nqueued - s->nrun;
}

void *mock_memory_alloc(size_t bytes)
{
    mock none = { .most = region_bytes };
    char *p = device_alloc(&none, bytes, 64);
    pthread_mutex_lock(&region_lock);
    for (block *b = region.blocks; b; b = b->next)
        if (b->data == p) b->owner = NULL;
    pthread_mutex_unlock(&region_lock);
    return p;
}

void mock_memory_free(void *p)
{
    free_block(NULL, p);
}

static const char *check(kr_device *device)
{
    mock *m = device->handle;
    if (m->until_broken > 0) m->until_broken--;
    return m->until_broken == 0 ? "it broke, as it was asked to" : NULL;
}

static bool memory_info(const kr_device *device, size_t *free_bytes, size_t *all)
{
    const mock *m = device->handle;
    *free_bytes = m->most - m->used;
    *all = m->most;
    return true;
}

static void close(kr_device *device)
{
    mock *m = device->handle;
    run_queue(m);
    pthread_mutex_lock(&region_lock);
    for (block *b = region.blocks; b; b = b->next) {
        if (b->owner != m) continue;
        CHECK(b->is_free || m->is_detached, "%zu device bytes were not freed", b->bytes);
        b->owner = NULL;
    }
    region.ndevices--;
    end_region();
    pthread_mutex_unlock(&region_lock);
    free(m);
}

static const char *capture_begin(kr_device *device)
{
    mock *m = device->handle;
    run_queue(m);
    m->is_capturing = true;
    m->captured = NULL;
    return NULL;
}

static void destroy_graph(kr_device *device, void *captured)
{
    (void)device;
    for (queued *q = captured; q;) {
        queued *next = q->next;
        free(q);
        q = next;
    }
}

static void *capture_end(kr_device *device, int64_t *launches)
{
    mock *m = device->handle;
    queued *first = NULL;
    m->is_capturing = false;
    *launches = 0;
    while (m->captured) {
        queued *q = m->captured;
        m->captured = q->next;
        q->next = first;
        first = q;
        ++*launches;
    }
    return first;
}

static const char *launch_graph(kr_device *device, void *captured)
{
    mock *m = device->handle;
    for (const queued *q = captured; q; q = q->next) append(m->stream, q);
    if (!m->is_late) run_queue(m);
    return NULL;
}

static const kr_device_ops vtable = { .holds = holds,
                                      .owns = owns,
                                      .upload = move,
                                      .download = move,
                                      .copy = copy,
                                      .wait = wait,
                                      .record_event = record_event,
                                      .wait_event = wait_event,
                                      .use_stream = use_stream,
                                      .check = check,
                                      .memory_info = memory_info,
                                      .close = close,
                                      .detach = detach,
                                      .capture_begin = capture_begin,
                                      .capture_end = capture_end,
                                      .launch_graph = launch_graph,
                                      .destroy_graph = destroy_graph };

/* ---- kernels ---- */

static const kr_kernels *host_of(const kr_exec *exec)
{
    return ((const mock *)exec->own)->host;
}

#define KR_KERNEL_ONE(name, slot, type)                                                                                \
    static void run_##name(const void *args)                                                                           \
    {                                                                                                                  \
        host_of(args)->slot.run(args);                                                                                 \
    }                                                                                                                  \
    static void queue_##name(const type *args)                                                                         \
    {                                                                                                                  \
        queue(args->exec.own, run_##name, args, sizeof *args);                                                         \
    }
#define KR_KERNEL(name, type)                                                                                          \
    KR_KERNEL_ONE(name##_f32, name[KR_REAL_F32], type) KR_KERNEL_ONE(name##_f64, name[KR_REAL_F64], type)
#define KR_KERNEL_ANY(name, type) KR_KERNEL_ONE(name, name, type)
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY

static void fill_table(kr_kernels *table, const kr_kernels *host)
{
    *table = *host; /* the scratch functions stay */
#define KR_KERNEL(name, type)                                                                                          \
    table->name[KR_REAL_F32].run = queue_##name##_f32;                                                                 \
    table->name[KR_REAL_F64].run = queue_##name##_f64;
#define KR_KERNEL_ANY(name, type) table->name.run = queue_##name;
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
    table->name = "mock";
}

/* Layers as one, as far as anybody can tell. */
static void queue_decode_layers(const kr_exec *exec, const kr_decode_stack *stack)
{
    if (stack->lookup) {
        kr_embedding_args lookup = *stack->lookup;
        lookup.exec = *exec;
        queue_embedding_f32(&lookup);
    }
    for (int64_t i = 0; i < stack->count; i++) {
        kr_decode_layer l = stack->layers[i];
        l.in_proj.exec = l.mamba2.core.exec = l.out_proj.exec = *exec;
        queue_decode_linear_f32(&l.in_proj);
        queue_decode_ssd_f32(&l.mamba2.core);
        queue_decode_linear_f32(&l.out_proj);
    }
}

/* The scratch of one at a time. */
static size_t decode_layers_scratch(const kr_exec *exec, const kr_decode_stack *stack)
{
    const kr_kernels *host = host_of(exec);
    size_t most = 64;
    for (int64_t i = 0; i < stack->count; i++) {
        const kr_decode_linear_args *jobs[] = { &stack->layers[i].in_proj, &stack->layers[i].out_proj };
        for (int j = 0; j < 2 && host->decode_linear[KR_REAL_F32].scratch; j++) {
            const size_t bytes = host->decode_linear[KR_REAL_F32].scratch(jobs[j]);
            if (bytes > most) most = bytes;
        }
    }
    return most;
}

static const kr_device_lists lists = { .decode_layers = queue_decode_layers,
                                       .decode_layers_scratch = decode_layers_scratch };

/* ---- opening ---- */

static bool open(kr_ctx *ctx, kr_device *device, int number)
{
    if (number > 3) return kr_fail(ctx, KR_ERR_ARG, "ctx: device mock:%d, but there are 4, numbered from 0", number);
    mock *m = calloc(1, sizeof *m);
    if (!m || !begin_region()) {
        free(m);
        return kr_fail(ctx, KR_ERR_NOMEM, "ctx: no addresses for a mock device");
    }
    m->host = device->host;
    m->is_late = number == 1;
    m->until_broken = number == 2 ? 12 : -1;
    m->allocator = device->allocator;
    m->most = number == 3 ? (size_t)8 << 20 : region_bytes;
    init_stream(&m->own);
    m->stream = &m->own;
    device->stream = m->stream;
    device->vtable = &vtable;
    device->lists = m->is_late ? &lists : NULL;
    device->handle = device->own = m;
    kr_memory_init(&device->device_memory, &(kr_allocator){ device_alloc, device_free, m });
    device->device_memory.zero = device_zero;
    if (m->allocator) device->device_memory.release = return_to_caller;
    kr_memory_init(&device->shared, NULL);
    fill_table(&device->kernels, device->host);
    static const char *const names[] = { "mock:0 runs at once", "mock:1 runs late", "mock:2 breaks",
                                         "mock:3 is small" };
    const char *name = names[number];
    memcpy(device->name, name, strlen(name) + 1);
    return true;
}

static size_t describe(char *text, size_t bytes)
{
    static const char lines[] = "mock:0 runs at once\nmock:1 runs late\nmock:2 breaks\nmock:3 is small\n";
    if (text && bytes) {
        const size_t n = bytes - 1 < sizeof lines - 1 ? bytes - 1 : sizeof lines - 1;
        memcpy(text, lines, n);
        text[n] = '\0';
    }
    return sizeof lines - 1;
}

#ifdef KR_MOCK_PLUGIN /* the device of a plug-in, whose name is in tests/plugins/mock_name.c */
extern const char kr_mock_name[];
extern const kr_device_kind kr_mock_kind;
const kr_device_kind kr_mock_kind = { kr_mock_name, open, describe };
#else
static const kr_device_kind mock_kind = { "mock", open, describe };

__attribute__((constructor)) static void offer_mock(void)
{
    kr_device_kind_of_tests = &mock_kind;
}
#endif
