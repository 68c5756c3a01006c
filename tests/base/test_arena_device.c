/* test_arena_device.c - arenas over memory that the processor cannot touch: what they know of their blocks lies apart.
 *
 * The device memory of these tests is addresses without memory behind them: an arena that touched one would fault.
 */
#if defined(__linux__)
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#endif
#include "base/arena.h"
#include "tests/harness.h"

#include <sys/mman.h>

typedef struct device_memory {
    kr_memory device_memory, host;
    char *base;
    size_t used;
} device_memory;

static const size_t capacity = (size_t)1 << 30;

static void *alloc(void *user, size_t bytes, size_t align)
{
    device_memory *m = user;
    m->used = (m->used + align - 1) / align * align;
    if (bytes > capacity - m->used) return NULL;
    void *p = m->base + m->used;
    m->used += bytes;
    return p;
}

static void release(void *user, void *p)
{
    (void)user;
    (void)p;
}

static void zero(void *user, void *p, size_t bytes)
{
    (void)user;
    (void)p;
    (void)bytes;
}

static void set_up(device_memory *m)
{
    m->base = mmap(NULL, capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m->used = 0;
    kr_memory_init(&m->host, NULL);
    kr_memory_init(&m->device_memory, &(kr_allocator){ alloc, release, m });
    m->device_memory.zero = zero;
    m->device_memory.fail_in_of = &m->host;
}

static void tear_down(device_memory *m)
{
    CHECK(m->device_memory.stats.live_bytes == 0 && m->host.stats.live_bytes == 0, "%zu device and %zu host bytes left",
          m->device_memory.stats.live_bytes, m->host.stats.live_bytes);
    munmap(m->base, capacity);
}

static size_t rounded(size_t bytes)
{
    return bytes ? (bytes + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN : KR_ALIGN;
}

TEST(device_memory_is_known_as_such)
{
    kr_memory host;
    device_memory m;
    kr_memory_init(&host, NULL);
    set_up(&m);
    CHECK(kr_memory_is_host(&host) && !kr_memory_is_host(&m.device_memory),
          "host and device are mistaken for each other");
    tear_down(&m);
}

/* Random use with marks against a stack of what should be; pointers are apart, aligned, and found again. */
TEST(apart_marks_and_pointers)
{
    enum { DEEP = 30, MOST = 2000 };
    static struct {
        char *p;
        size_t bytes;
    } live[MOST];
    device_memory m;
    kr_arena arena;
    set_up(&m);
    kr_arena_init_device(&arena, &m.device_memory, &m.host, 4096);
    kr_arena_mark marks[DEEP];
    int counts[DEEP], depth = 0, count = 0;
    size_t used = 0, at_mark[DEEP];
    for (int step = 0; step < 4000; step++) {
        const int64_t what = kr_test_below(12);
        if (what == 0 && depth < DEEP) {
            marks[depth] = kr_arena_mark_now(&arena);
            at_mark[depth] = used;
            counts[depth++] = count;
        } else if (what == 1 && depth > 0) {
            depth--;
            for (int i = 0; i < count; i++)
                CHECK(kr_arena_is_after(&arena, marks[depth], live[i].p) == (i >= counts[depth]),
                      "allocation %d of %d, mark at %d", i, count, counts[depth]);
            kr_arena_release(&arena, marks[depth]);
            count = counts[depth];
            used = at_mark[depth];
        } else if (count < MOST) {
            const size_t bytes = (size_t)kr_test_below(step % 60 == 0 ? 20000 : 500);
            char *p = kr_arena_alloc(&arena, bytes);
            if (!CHECK(p && (uintptr_t)p % KR_ALIGN == 0, "%zu bytes at %p", bytes, (void *)p)) break;
            for (int i = 0; i < count; i++)
                CHECK(p + rounded(bytes) <= live[i].p || live[i].p + live[i].bytes <= p, "allocations overlap");
            live[count].p = p;
            live[count++].bytes = rounded(bytes);
            used += rounded(bytes);
        }
        CHECK(arena.used == used, "used %zu, expected %zu", arena.used, used);
    }
    kr_arena_deinit(&arena);
    tear_down(&m);
}

/* Several blocks become one of the peak's size; both memories refuse in turn without loss. */
TEST(reset_and_failures_of_device_memory)
{
    for (size_t n = 0;; n++) {
        device_memory m;
        kr_arena arena;
        set_up(&m);
        kr_arena_init_device(&arena, &m.device_memory, &m.host, 4096);
        m.host.fail_in = n; /* of device memory too, which is counted with it */
        bool refused = false;
        for (int i = 0; i < 20; i++) refused = !kr_arena_alloc(&arena, 3000) || refused;
        m.host.fail_in = 0;
        CHECK(m.host.stats.live_blocks == m.device_memory.stats.live_blocks, "%zu headers of %zu blocks",
              m.host.stats.live_blocks, m.device_memory.stats.live_blocks);
        const size_t peak = arena.peak;
        kr_arena_reset(&arena);
        CHECK(arena.used == 0 && m.device_memory.stats.live_blocks == 0, "%zu bytes, %zu blocks after a reset",
              arena.used, m.device_memory.stats.live_blocks);
        for (int i = 0; i < 19; i++) CHECK(kr_arena_alloc(&arena, 3000), "no memory after a reset");
        CHECK(m.device_memory.stats.live_blocks == 1 && m.device_memory.stats.live_bytes == peak,
              "%zu blocks of %zu bytes, peak %zu", m.device_memory.stats.live_blocks, m.device_memory.stats.live_bytes,
              peak);
        kr_arena_deinit(&arena);
        tear_down(&m);
        if (n > 0 && !refused) break;
    }
}
