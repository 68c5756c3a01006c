/* test_arena.c - bump allocation: alignment, marks, exact figures, failures, and reuse. */
#include "base/arena.h"
#include "base/poison.h"
#include "tests/harness.h"

static size_t rounded(size_t bytes)
{
    return bytes ? (bytes + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN : KR_ALIGN;
}

static bool is_poisoned(const void *p)
{
#ifdef KR_ASAN
    return __asan_address_is_poisoned(p);
#else
    (void)p;
    return true;
#endif
}

TEST(pointers_are_aligned_and_apart)
{
    kr_memory memory;
    kr_arena arena;
    kr_memory_init(&memory, NULL);
    kr_arena_init(&arena, &memory, 4096);
    enum { MANY = 300 };
    unsigned char *p[MANY];
    size_t bytes[MANY], used = 0;
    for (int i = 0; i < MANY; i++) {
        bytes[i] = (size_t)kr_test_below(i % 17 == 0 ? 9000 : 300);
        p[i] = kr_arena_alloc(&arena, bytes[i]);
        CHECK(p[i] && (uintptr_t)p[i] % KR_ALIGN == 0, "allocation %d of %zu bytes at %p", i, bytes[i], (void *)p[i]);
        memset(p[i], i & 0xff, bytes[i]);
        used += rounded(bytes[i]);
        CHECK(arena.used == used && arena.peak == used, "used %zu, peak %zu, expected %zu", arena.used, arena.peak,
              used);
    }
    for (int i = 0; i < MANY; i++)
        for (size_t k = 0; k < bytes[i]; k++)
            if (!CHECK(p[i][k] == (i & 0xff), "allocation %d was overwritten at %zu", i, k)) break;
    kr_arena_deinit(&arena);
    CHECK(memory.stats.live_bytes == 0, "%zu bytes left", memory.stats.live_bytes);
}

/* Random marks and releases against a stack of what should be. */
TEST(release_returns_to_the_mark)
{
    kr_memory memory;
    kr_arena arena;
    kr_memory_init(&memory, NULL);
    kr_arena_init(&arena, &memory, 1024);
    enum { DEEP = 40 };
    kr_arena_mark marks[DEEP];
    size_t used[DEEP], now = 0, peak = 0;
    int depth = 0;
    for (int step = 0; step < 4000; step++) {
        const int64_t what = kr_test_below(10);
        if (what == 0 && depth < DEEP) {
            marks[depth] = kr_arena_mark_now(&arena);
            used[depth++] = now;
        } else if (what == 1 && depth > 0) {
            depth = (int)kr_test_below(depth); /* over several marks at once */
            kr_arena_release(&arena, marks[depth]);
            now = used[depth];
        } else {
            const size_t bytes = (size_t)kr_test_below(what == 9 ? 3000 : 200);
            void *p = kr_arena_alloc(&arena, bytes);
            if (p) memset(p, 1, bytes);
            now += rounded(bytes);
            if (now > peak) peak = now;
        }
        CHECK(arena.used == now && arena.peak == peak, "step %d: used %zu, peak %zu, expected %zu, %zu", step,
              arena.used, arena.peak, now, peak);
    }
    kr_arena_deinit(&arena);
    CHECK(memory.stats.live_bytes == 0, "%zu bytes left", memory.stats.live_bytes);
}

TEST(after_a_release_the_same_memory_comes_again)
{
    kr_memory memory;
    kr_arena arena;
    kr_memory_init(&memory, NULL);
    kr_arena_init(&arena, &memory, 1000);
    kr_arena_alloc(&arena, 100);
    const kr_arena_mark mark = kr_arena_mark_now(&arena);
    void *first[6];
    for (int i = 0; i < 6; i++) first[i] = kr_arena_alloc(&arena, 400);
    const size_t blocks = memory.stats.total_blocks;
    for (int round = 0; round < 5; round++) {
        kr_arena_release(&arena, mark);
        CHECK(is_poisoned(first[0]) && is_poisoned(first[5]), "released memory is not poisoned");
        for (int i = 0; i < 6; i++) CHECK(kr_arena_alloc(&arena, 400) == first[i], "allocation %d moved", i);
    }
    CHECK(memory.stats.total_blocks == blocks, "blocks are not reused");
    kr_arena_deinit(&arena);
}

TEST(is_after_tells_what_a_mark_would_release)
{
    kr_memory memory;
    kr_arena arena;
    kr_memory_init(&memory, NULL);
    kr_arena_init(&arena, &memory, 512);
    int elsewhere;
    char *before[8], *after[8];
    const kr_arena_mark start = kr_arena_mark_now(&arena);
    for (int i = 0; i < 8; i++) before[i] = kr_arena_alloc(&arena, 200);
    const kr_arena_mark mark = kr_arena_mark_now(&arena);
    for (int i = 0; i < 8; i++) after[i] = kr_arena_alloc(&arena, 200);
    for (int i = 0; i < 8; i++) {
        CHECK(!kr_arena_is_after(&arena, mark, before[i]), "%d before counts as after", i);
        CHECK(kr_arena_is_after(&arena, mark, after[i]) && kr_arena_is_after(&arena, mark, after[i] + 199),
              "%d after does not count", i);
        CHECK(kr_arena_is_after(&arena, start, before[i]) && kr_arena_is_after(&arena, start, after[i]),
              "%d is not after the start", i);
    }
    CHECK(!kr_arena_is_after(&arena, start, &elsewhere), "what is not the arena's counts");
    CHECK(!kr_arena_is_after(&arena, start, NULL), "NULL counts");
    kr_arena_release(&arena, mark);
    for (int i = 0; i < 8; i++)
        CHECK(!kr_arena_is_after(&arena, kr_arena_mark_now(&arena), before[i]), "%d before counts after a release", i);
    kr_arena_deinit(&arena);
}

TEST(is_after_forgets_what_was_released)
{
    kr_memory memory;
    kr_arena arena;
    kr_memory_init(&memory, NULL);
    kr_arena_init(&arena, &memory, 512);
    const kr_arena_mark mark = kr_arena_mark_now(&arena);
    void *p[8];
    for (int i = 0; i < 8; i++) p[i] = kr_arena_alloc(&arena, 200);
    kr_arena_release(&arena, mark);
    for (int i = 0; i < 8; i++) CHECK(!kr_arena_is_after(&arena, mark, p[i]), "%d still counts", i);
    kr_arena_alloc(&arena, 200);
    CHECK(kr_arena_is_after(&arena, mark, p[0]), "what was handed out again does not count");
    CHECK(!kr_arena_is_after(&arena, mark, p[1]), "what was not handed out again counts");
    kr_arena_deinit(&arena);
}

TEST(reset_joins_the_blocks)
{
    kr_memory memory;
    kr_arena arena;
    kr_memory_init(&memory, NULL);
    kr_arena_init(&arena, &memory, 256);
    for (int i = 0; i < 30; i++) kr_arena_alloc(&arena, 200);
    const size_t peak = arena.peak;
    CHECK(memory.stats.live_blocks > 1, "one block was enough");
    kr_arena_reset(&arena);
    CHECK(arena.used == 0 && arena.peak == peak, "used %zu, peak %zu after a reset", arena.used, arena.peak);
    char *last = NULL;
    for (int i = 0; i < 30; i++) {
        char *p = kr_arena_alloc(&arena, 200);
        CHECK(p && (!last || p == last + 256), "allocation %d does not follow the one before", i);
        memset(p, 1, 200);
        last = p;
    }
    CHECK(memory.stats.live_blocks == 1, "%zu blocks after a reset", memory.stats.live_blocks);
    const size_t total = memory.stats.total_blocks;
    for (int step = 0; step < 10; step++) {
        kr_arena_reset(&arena);
        for (int i = 0; i < 30; i++) kr_arena_alloc(&arena, 200);
    }
    CHECK(memory.stats.total_blocks == total, "equal steps still ask for memory");
    kr_arena_deinit(&arena);
    CHECK(memory.stats.live_bytes == 0, "%zu bytes left", memory.stats.live_bytes);
}

/* The n-th request for a block is refused: that allocation gives NULL, and the arena stays usable. */
TEST(a_failure_leaves_the_arena_intact)
{
    for (size_t n = 1; n < 12; n++) {
        kr_memory memory;
        kr_arena arena;
        kr_memory_init(&memory, NULL);
        kr_arena_init(&arena, &memory, 512);
        memory.fail_in = n;
        size_t refused = 0, used = 0;
        for (int i = 0; i < 40; i++) {
            const size_t bytes = (size_t)(i % 5) * 150;
            void *p = kr_arena_alloc(&arena, bytes);
            if (p) memset(p, 1, bytes), used += rounded(bytes);
            else refused++;
            CHECK(arena.used == used, "used %zu, expected %zu", arena.used, used);
        }
        CHECK(refused == 1, "%zu allocations were refused", refused);
        kr_arena_reset(&arena);
        CHECK(kr_arena_alloc(&arena, 5000) != NULL, "refused after a reset");
        kr_arena_deinit(&arena);
        CHECK(memory.stats.live_bytes == 0, "%zu bytes left", memory.stats.live_bytes);
    }
}

TEST(absurd_requests_are_refused)
{
    kr_memory memory;
    kr_arena arena;
    kr_memory_init(&memory, NULL);
    kr_arena_init(&arena, &memory, 512);
    void *volatile a = kr_arena_alloc(&arena, SIZE_MAX), *volatile b = kr_arena_alloc(&arena, SIZE_MAX - 100);
    CHECK(!a && !b && arena.used == 0, "SIZE_MAX bytes are given");
    kr_arena_deinit(&arena);
}
