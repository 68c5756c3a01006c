/* test_heap.c - memory that is freed out of order, against a shadow of what should be; joining; exact figures. */
#include "base/heap.h"
#include "base/poison.h"
#include "tests/harness.h"

enum { UNIT = 64, CHUNK = 1 << 16 };

static size_t span_of(size_t bytes)
{
    return UNIT + (bytes ? (bytes + UNIT - 1) / UNIT * UNIT : UNIT);
}

static void check_bytes(const unsigned char *p, size_t bytes, unsigned char value, const char *what)
{
    for (size_t i = 0; i < bytes; i++)
        if (!CHECK(p[i] == value, "%s: byte %zu of %zu was overwritten", what, i, bytes)) return;
}

TEST(random_use_against_a_shadow)
{
    enum { LIVE = 200 };
    static struct {
        unsigned char *p, value;
        size_t bytes;
    } live[LIVE];
    kr_memory memory;
    kr_heap heap;
    kr_memory_init(&memory, NULL);
    kr_heap_init(&heap, &memory, CHUNK);
    memset(live, 0, sizeof live);
    size_t least = 0, peak = 0; /* what the live allocations need at least; rounding may add a unit to each */
    int nlive = 0;
    for (int step = 0; step < (kr_test_quick() ? 4000 : 20000); step++) {
        const int at = (int)kr_test_below(LIVE);
        if (live[at].p) {
            check_bytes(live[at].p, live[at].bytes, live[at].value, "random use");
            kr_heap_free(&heap, live[at].p);
            least -= span_of(live[at].bytes);
            live[at].p = NULL;
            nlive--;
        } else {
            live[at].bytes = (size_t)kr_test_below(step % 50 == 0 ? 100000 : 2000);
            live[at].value = (unsigned char)step;
            live[at].p = kr_heap_alloc(&heap, live[at].bytes);
            CHECK(live[at].p && (uintptr_t)live[at].p % UNIT == 0, "%zu bytes at %p", live[at].bytes,
                  (void *)live[at].p);
            memset(live[at].p, live[at].value, live[at].bytes);
            least += span_of(live[at].bytes);
            nlive++;
        }
        CHECK(heap.used >= least && heap.used <= least + (size_t)nlive * UNIT, "used %zu, need %zu", heap.used, least);
        if (heap.used > peak) peak = heap.used;
        CHECK(heap.peak == peak, "peak %zu, expected %zu", heap.peak, peak);
    }
    for (int i = 0; i < LIVE; i++) {
        if (live[i].p) check_bytes(live[i].p, live[i].bytes, live[i].value, "the end");
        kr_heap_free(&heap, live[i].p);
    }
    CHECK(heap.used == 0, "%zu bytes are counted as used", heap.used);
    kr_heap_deinit(&heap);
    CHECK(memory.stats.live_bytes == 0, "%zu bytes left", memory.stats.live_bytes);
}

/* Freed in any order, neighbours join: all of a chunk can be had in one piece again, without asking for more. */
TEST(freed_neighbours_become_one_span)
{
    enum { PARTS = 64, BYTES = CHUNK / PARTS - UNIT };
    kr_memory memory;
    kr_heap heap;
    kr_memory_init(&memory, NULL);
    kr_heap_init(&heap, &memory, CHUNK);
    for (int round = 0; round < 50; round++) {
        void *parts[PARTS];
        for (int i = 0; i < PARTS; i++) parts[i] = kr_heap_alloc(&heap, BYTES);
        CHECK(heap.used == CHUNK && memory.stats.live_blocks == 1, "used %zu in %zu chunks", heap.used,
              memory.stats.live_blocks);
        for (int i = PARTS - 1; i > 0; i--) {
            const int other = (int)kr_test_below(i + 1);
            void *swap = parts[i];
            parts[i] = parts[other];
            parts[other] = swap;
        }
        for (int i = 0; i < PARTS; i++) kr_heap_free(&heap, parts[i]);
        void *whole = kr_heap_alloc(&heap, CHUNK - UNIT);
        CHECK(whole && heap.used == CHUNK && memory.stats.total_blocks == 1, "round %d: used %zu, %zu chunks", round,
              heap.used, memory.stats.total_blocks);
        memset(whole, 1, CHUNK - UNIT);
        kr_heap_free(&heap, whole);
    }
    CHECK(heap.peak == CHUNK, "peak %zu", heap.peak);
    kr_heap_deinit(&heap);
    CHECK(memory.stats.live_bytes == 0, "%zu bytes left", memory.stats.live_bytes);
}

TEST(the_best_fitting_hole_is_taken)
{
    kr_memory memory;
    kr_heap heap;
    kr_memory_init(&memory, NULL);
    kr_heap_init(&heap, &memory, CHUNK);
    void *large = kr_heap_alloc(&heap, 6400), *wall1 = kr_heap_alloc(&heap, 64);
    void *small = kr_heap_alloc(&heap, 640), *wall2 = kr_heap_alloc(&heap, 64);
    kr_heap_free(&heap, large);
    kr_heap_free(&heap, small);
    CHECK(kr_heap_alloc(&heap, 600) == small, "the hole of 640 bytes was not taken for 600");
    CHECK(kr_heap_alloc(&heap, 6000) == large, "the hole of 6400 bytes was not taken for 6000");
    kr_heap_free(&heap, wall1);
    kr_heap_free(&heap, wall2);
    kr_heap_deinit(&heap);
}

TEST(reset_frees_all_and_joins_chunks)
{
    kr_memory memory;
    kr_heap heap;
    kr_memory_init(&memory, NULL);
    kr_heap_init(&heap, &memory, 4096);
    for (int i = 0; i < 40; i++) kr_heap_alloc(&heap, 1000);
    const size_t peak = heap.peak;
    CHECK(memory.stats.live_blocks > 1, "one chunk was enough");
    kr_heap_reset(&heap);
    CHECK(heap.used == 0 && heap.peak == peak, "used %zu, peak %zu after a reset", heap.used, heap.peak);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 40; i++) {
            void *p = kr_heap_alloc(&heap, 1000);
            if (CHECK(p != NULL, "refused after a reset")) memset(p, 1, 1000);
        }
        CHECK(memory.stats.live_blocks == 1, "%zu chunks after a reset", memory.stats.live_blocks);
        kr_heap_reset(&heap);
        CHECK(heap.used == 0, "used %zu after a reset", heap.used);
    }
    kr_heap_deinit(&heap);
    CHECK(memory.stats.live_bytes == 0, "%zu bytes left", memory.stats.live_bytes);
}

TEST(a_failure_leaves_the_heap_intact)
{
    for (size_t n = 1; n < 8; n++) {
        kr_memory memory;
        kr_heap heap;
        kr_memory_init(&memory, NULL);
        kr_heap_init(&heap, &memory, 4096);
        memory.fail_in = n;
        void *live[40];
        int refused = 0;
        for (int i = 0; i < 40; i++) {
            live[i] = kr_heap_alloc(&heap, 1000);
            refused += live[i] == NULL;
        }
        CHECK(refused == 1, "%d allocations were refused", refused);
        for (int i = 0; i < 40; i++) kr_heap_free(&heap, live[i]);
        CHECK(heap.used == 0, "%zu bytes are counted as used", heap.used);
        kr_heap_deinit(&heap);
        CHECK(memory.stats.live_bytes == 0, "%zu bytes left", memory.stats.live_bytes);
    }
}

TEST(absurd_requests_are_refused)
{
    kr_memory memory;
    kr_heap heap;
    kr_memory_init(&memory, NULL);
    kr_heap_init(&heap, &memory, 4096);
    void *volatile a = kr_heap_alloc(&heap, SIZE_MAX), *volatile b = kr_heap_alloc(&heap, SIZE_MAX / 2 + 1);
    CHECK(!a && !b && heap.used == 0, "SIZE_MAX bytes are given");
    kr_heap_free(&heap, NULL);
    kr_heap_deinit(&heap);
}

#ifdef KR_ASAN
TEST(free_memory_is_poisoned)
{
    kr_memory memory;
    kr_heap heap;
    kr_memory_init(&memory, NULL);
    kr_heap_init(&heap, &memory, CHUNK);
    char *a = kr_heap_alloc(&heap, 100), *b = kr_heap_alloc(&heap, 100);
    CHECK(!__asan_address_is_poisoned(a) && !__asan_address_is_poisoned(a + 99), "live memory is poisoned");
    kr_heap_free(&heap, a);
    CHECK(__asan_address_is_poisoned(a) && __asan_address_is_poisoned(a + 99), "free memory is not poisoned");
    CHECK(!__asan_address_is_poisoned(b), "the neighbour is poisoned");
    kr_heap_deinit(&heap);
}
#endif
