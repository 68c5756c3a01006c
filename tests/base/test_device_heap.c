/* test_device_heap.c - a heap whose notes lie apart from its memory, against a model of the expected state; errors; reset.
 *
 * A host memory with its own `zero` stands in for one that the processor cannot touch: what the heap hands out is
 * filled by the tests, which then see whether anything else wrote there.
 */
#include "base/device_heap.h"
#include "tests/harness.h"

enum { UNIT = 256, CHUNK = 1 << 16 };

typedef struct memories {
    kr_memory device_memory, host;
} memories;

static void zero(void *user, void *p, size_t bytes)
{
    (void)user;
    memset(p, 0, bytes);
}

static memories make_memories(void)
{
    memories m;
    kr_memory_init(&m.device_memory, NULL);
    kr_memory_init(&m.host, NULL);
    m.device_memory.zero = zero;
    return m;
}

static void check_empty(const memories *m)
{
    CHECK(m->device_memory.stats.live_bytes == 0 && m->device_memory.stats.live_blocks == 0, "%zu device bytes left",
          m->device_memory.stats.live_bytes);
    CHECK(m->host.stats.live_bytes == 0 && m->host.stats.live_blocks == 0, "%zu near bytes left",
          m->host.stats.live_bytes);
}

static size_t span_of(size_t bytes)
{
    return bytes ? (bytes + UNIT - 1) / UNIT * UNIT : UNIT;
}

static bool holds(const kr_device_span *span, size_t bytes, unsigned char value)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)span->data[i] != value) return false;
    return true;
}

/* The list covers every chunk without gaps, counts what is used, and has no two free neighbours in a chunk. */
static void check_list(const kr_device_heap *heap)
{
    size_t used = 0, total = 0;
    const kr_device_span *prev = NULL;
    for (const kr_device_span *span = heap->spans; span; prev = span, span = span->next) {
        CHECK(span->prev == prev, "a span does not know the one before it");
        CHECK(span->bytes > 0 && span->bytes % UNIT == 0, "a span of %zu bytes", span->bytes);
        total += span->bytes;
        if (!span->is_free) used += span->bytes;
        if (span->begins_chunk) continue;
        CHECK(prev && span->data == prev->data + prev->bytes, "a gap between two spans");
        CHECK(!(span->is_free && prev->is_free), "two free neighbours were not joined");
    }
    CHECK(used == heap->used, "used %zu, but the list says %zu", heap->used, used);
    CHECK(total == heap->memory->stats.live_bytes, "spans of %zu bytes over memory of %zu", total,
          heap->memory->stats.live_bytes);
}

TEST(random_use_against_a_shadow)
{
    enum { LIVE = 150 };
    static struct {
        kr_device_span *span;
        unsigned char value;
        size_t bytes;
    } live[LIVE];
    memories m = make_memories();
    kr_device_heap heap;
    kr_device_heap_init(&heap, &m.device_memory, &m.host, CHUNK);
    memset(live, 0, sizeof live);
    size_t used = 0, peak = 0;
    for (int step = 0; step < (kr_test_quick() ? 2000 : 10000); step++) {
        const int at = (int)kr_test_below(LIVE);
        if (live[at].span) {
            CHECK(holds(live[at].span, live[at].bytes, live[at].value), "step %d: a span was overwritten", step);
            kr_device_heap_free(&heap, live[at].span);
            used -= span_of(live[at].bytes);
            live[at].span = NULL;
        } else {
            live[at].bytes = (size_t)kr_test_below(step % 50 == 0 ? 100000 : 3000);
            live[at].value = (unsigned char)step;
            kr_device_span *span = live[at].span = kr_device_heap_alloc(&heap, live[at].bytes);
            if (!CHECK(span && span->bytes == span_of(live[at].bytes), "no span of %zu bytes", live[at].bytes)) return;
            memset(span->data, live[at].value, live[at].bytes);
            used += span->bytes;
        }
        if (used > peak) peak = used;
        CHECK(heap.used == used && heap.peak == peak, "used %zu, peak %zu, expected %zu, %zu", heap.used, heap.peak,
              used, peak);
        if (step % 100 == 0) check_list(&heap);
    }
    for (int i = 0; i < LIVE; i++) kr_device_heap_free(&heap, live[i].span);
    check_list(&heap);
    CHECK(heap.used == 0, "%zu bytes are counted as used", heap.used);
    kr_device_heap_deinit(&heap);
    check_empty(&m);
}

/* Freed in any order, neighbours join: all of a chunk can be had in one piece again, without asking for more. */
TEST(freed_neighbours_become_one_span)
{
    enum { PARTS = 64 };
    memories m = make_memories();
    kr_device_heap heap;
    kr_device_heap_init(&heap, &m.device_memory, &m.host, CHUNK);
    kr_device_span *parts[PARTS];
    for (int i = 0; i < PARTS; i++) parts[i] = kr_device_heap_alloc(&heap, CHUNK / PARTS);
    CHECK(m.device_memory.stats.live_blocks == 1, "%zu chunks", m.device_memory.stats.live_blocks);
    for (int i = 0; i < PARTS; i++) {
        const int j = i * 37 % PARTS;
        kr_device_heap_free(&heap, parts[j]);
    }
    const kr_device_span *whole = kr_device_heap_alloc(&heap, CHUNK);
    CHECK(whole && whole->bytes == CHUNK && m.device_memory.stats.total_blocks == 1, "the chunk was not whole again");
    kr_device_heap_deinit(&heap);
    check_empty(&m);
}

/* The smallest span that is large enough is taken. */
TEST(best_fit)
{
    memories m = make_memories();
    kr_device_heap heap;
    kr_device_heap_init(&heap, &m.device_memory, &m.host, CHUNK);
    kr_device_span *large = kr_device_heap_alloc(&heap, 40 * UNIT), *wall = kr_device_heap_alloc(&heap, UNIT);
    kr_device_span *small = kr_device_heap_alloc(&heap, 3 * UNIT), *end = kr_device_heap_alloc(&heap, UNIT);
    const char *at = small->data;
    kr_device_heap_free(&heap, large);
    kr_device_heap_free(&heap, small);
    const kr_device_span *fits = kr_device_heap_alloc(&heap, 2 * UNIT + 1);
    CHECK(fits && fits->data == at, "a larger span was taken");
    CHECK(wall && end, "no memory");
    kr_device_heap_deinit(&heap);
    check_empty(&m);
}

/* Requests over the chunk's size have a chunk of their own; absurd ones are refused without harm. */
TEST(large_and_absurd_requests)
{
    memories m = make_memories();
    kr_device_heap heap;
    kr_device_heap_init(&heap, &m.device_memory, &m.host, CHUNK);
    kr_device_span *small = kr_device_heap_alloc(&heap, 1), *large = kr_device_heap_alloc(&heap, 3 * CHUNK + 1);
    CHECK(small && large && large->begins_chunk && large->bytes == span_of(3 * CHUNK + 1), "no large span");
    CHECK(!kr_device_heap_alloc(&heap, SIZE_MAX) && !kr_device_heap_alloc(&heap, SIZE_MAX / 2 + 1),
          "absurd sizes are had");
    CHECK(heap.used == UNIT + large->bytes, "used %zu", heap.used);
    check_list(&heap);
    kr_device_heap_free(&heap, NULL);
    kr_device_heap_deinit(&heap);
    check_empty(&m);
}

/* Every allocation refused once, of either memory: nothing is lost, and the heap stays usable. */
TEST(errors)
{
    for (int which = 0; which < 2; which++) {
        for (size_t n = 1;; n++) {
            memories m = make_memories();
            kr_device_heap heap;
            kr_device_heap_init(&heap, &m.device_memory, &m.host, CHUNK);
            kr_memory *refuses = which ? &m.device_memory : &m.host;
            refuses->fail_in = n;
            kr_device_span *spans[40];
            bool refused = false;
            for (int i = 0; i < 40; i++) {
                spans[i] = kr_device_heap_alloc(&heap, (size_t)(i % 7 + 1) * 3000);
                refused = refused || !spans[i];
                if (!spans[i]) spans[i] = kr_device_heap_alloc(&heap, (size_t)(i % 7 + 1) * 3000);
                CHECK(spans[i], "a second try was refused too");
                if (i % 3 == 2) kr_device_heap_free(&heap, spans[i - 1]);
            }
            check_list(&heap);
            kr_device_heap_deinit(&heap);
            check_empty(&m);
            if (!refused) break;
        }
    }
}

TEST(reset_makes_one_chunk_of_several)
{
    memories m = make_memories();
    kr_device_heap heap;
    kr_device_heap_init(&heap, &m.device_memory, &m.host, CHUNK);
    for (int i = 0; i < 5; i++) kr_device_heap_alloc(&heap, CHUNK - UNIT);
    const size_t total = m.device_memory.stats.live_bytes, peak = heap.peak;
    CHECK(m.device_memory.stats.live_blocks == 5, "%zu chunks", m.device_memory.stats.live_blocks);
    kr_device_heap_reset(&heap);
    CHECK(heap.used == 0 && heap.peak == peak, "used %zu, peak %zu after a reset", heap.used, heap.peak);
    for (int i = 0; i < 5; i++) kr_device_heap_alloc(&heap, CHUNK - UNIT);
    CHECK(m.device_memory.stats.live_blocks == 1 && m.device_memory.stats.live_bytes == total,
          "%zu chunks of %zu bytes after it", m.device_memory.stats.live_blocks, m.device_memory.stats.live_bytes);
    check_list(&heap);

    /* a single chunk stays, and is whole again */
    const size_t blocks = m.device_memory.stats.total_blocks;
    kr_device_heap_reset(&heap);
    check_list(&heap);
    const kr_device_span *whole = kr_device_heap_alloc(&heap, total);
    CHECK(whole && whole->bytes == total && m.device_memory.stats.total_blocks == blocks,
          "the chunk was not whole again");
    kr_device_heap_deinit(&heap);
    check_empty(&m);
}
