/* test_alloc.c - counted allocation: figures, alignment, the user's hooks, and injected failures. */
#include "base/alloc.h"
#include "tests/harness.h"

TEST(counters_are_exact)
{
    kr_memory memory;
    kr_memory_init(&memory, NULL);
    void *a = kr_memory_alloc(&memory, 100), *b = kr_memory_alloc_zeroed(&memory, 1000),
         *c = kr_memory_alloc(&memory, 0);
    CHECK(a && b && c && a != c, "refused");
    CHECK(memory.stats.live_bytes == 1100 && memory.stats.live_blocks == 3, "%zu bytes in %zu blocks",
          memory.stats.live_bytes, memory.stats.live_blocks);
    kr_memory_free(&memory, a, 100);
    void *d = kr_memory_alloc(&memory, 50);
    CHECK(memory.stats.live_bytes == 1050 && memory.stats.peak_bytes == 1100, "live %zu, peak %zu",
          memory.stats.live_bytes, memory.stats.peak_bytes);
    kr_memory_free(&memory, NULL, 7);
    kr_memory_free(&memory, b, 1000);
    kr_memory_free(&memory, c, 0);
    kr_memory_free(&memory, d, 50);
    CHECK(memory.stats.live_bytes == 0 && memory.stats.live_blocks == 0, "%zu bytes left", memory.stats.live_bytes);
    CHECK(memory.stats.total_blocks == 4 && memory.stats.peak_bytes == 1100, "%zu blocks, peak %zu",
          memory.stats.total_blocks, memory.stats.peak_bytes);
}

TEST(memory_is_aligned_and_zeroed_where_asked)
{
    kr_memory memory;
    kr_memory_init(&memory, NULL);
    for (size_t bytes = 0; bytes < 300; bytes += 7) {
        char *p = kr_memory_alloc_zeroed(&memory, bytes);
        CHECK((uintptr_t)p % 64 == 0, "%zu bytes at %p", bytes, (void *)p);
        for (size_t i = 0; i < bytes; i++) CHECK(p[i] == 0, "byte %zu of %zu is not 0", i, bytes);
        memset(p, 0xff, bytes);
        kr_memory_free(&memory, p, bytes);
    }
}

TEST(the_nth_allocation_fails_and_only_that)
{
    for (size_t n = 1; n <= 5; n++) {
        kr_memory memory;
        kr_memory_init(&memory, NULL);
        memory.fail_in = n;
        for (size_t i = 1; i <= 8; i++) {
            void *p = kr_memory_alloc(&memory, 10);
            CHECK((p == NULL) == (i == n), "with fail_in %zu allocation %zu is %s", n, i, p ? "given" : "refused");
            kr_memory_free(&memory, p, 10);
        }
        CHECK(memory.stats.total_blocks == 7 && memory.stats.live_bytes == 0, "a failure is counted");
    }
}

typedef struct journal {
    int nallocs, nfrees;
    size_t last_bytes, last_align;
    bool refuse;
    _Alignas(64) char buffer[256];
} journal;

static void *journal_alloc(void *user, size_t bytes, size_t align)
{
    journal *j = user;
    j->nallocs++;
    j->last_bytes = bytes;
    j->last_align = align;
    return j->refuse || bytes > sizeof j->buffer ? NULL : j->buffer;
}

static void journal_free(void *user, void *p)
{
    journal *j = user;
    j->nfrees += p == j->buffer;
}

TEST(hooks_are_used_and_their_failure_is_passed_on)
{
    journal j = { .nallocs = 0 };
    kr_memory memory;
    kr_memory_init(&memory, &(kr_allocator){ journal_alloc, journal_free, &j });
    void *p = kr_memory_alloc(&memory, 200);
    CHECK(p == j.buffer && j.last_bytes == 200 && j.last_align == 64, "asked for %zu at %zu", j.last_bytes,
          j.last_align);
    kr_memory_free(&memory, p, 200);
    CHECK(j.nallocs == 1 && j.nfrees == 1, "%d allocations, %d frees", j.nallocs, j.nfrees);
    j.refuse = true;
    CHECK(kr_memory_alloc(&memory, 8) == NULL && kr_memory_alloc_zeroed(&memory, 8) == NULL,
          "a failure is not passed on");
    CHECK(memory.stats.total_blocks == 1 && memory.stats.live_blocks == 0, "a failure is counted");
}

TEST(absurd_sizes_are_refused)
{
    kr_memory memory;
    kr_memory_init(&memory, NULL);
    void *volatile none = kr_memory_alloc(&memory, SIZE_MAX - 10);
    CHECK(none == NULL && memory.stats.live_bytes == 0, "SIZE_MAX - 10 bytes are given");
}
