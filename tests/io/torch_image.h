/* torch_image.h - torch files put together byte by byte, without the library: pickles as string literals, and a zip around
 * them whose records can be found again to be damaged. */
#ifndef KR_TESTS_IO_TORCH_IMAGE_H
#define KR_TESTS_IO_TORCH_IMAGE_H

#include "tests/harness.h"

enum { IMAGE_MEMBERS = 8 };

/* A file in memory, in a block of its exact size, so that the sanitizer sees a read behind it. */
typedef struct image {
    unsigned char *bytes; /* to be freed */
    size_t count, capacity;
    size_t local[IMAGE_MEMBERS], data[IMAGE_MEMBERS], central[IMAGE_MEMBERS]; /* where each member's records begin */
    size_t end64, locator, end;
    int nmembers;
} image;

static inline void put(image *m, const void *bytes, size_t count)
{
    if (m->count + count > m->capacity) m->bytes = realloc(m->bytes, m->capacity = 2 * (m->count + count));
    if (count) memcpy(m->bytes + m->count, bytes, count);
    m->count += count;
}

static inline void put_number(image *m, uint64_t n, int bytes)
{
    for (int i = 0; i < bytes; i++) put(m, &(unsigned char){ i < 8 ? (unsigned char)(n >> (8 * i)) : 0 }, 1);
}

static inline void set_number(image *m, size_t at, uint64_t n, int bytes)
{
    for (int i = 0; i < bytes; i++) m->bytes[at + (size_t)i] = (unsigned char)(n >> (8 * i));
}

static inline uint64_t number_in(const image *m, size_t at, int bytes)
{
    uint64_t n = 0;
    for (int i = bytes - 1; i >= 0; i--) n = n << 8 | m->bytes[at + (size_t)i];
    return n;
}

/* Bit by bit. */
static inline uint32_t checksum(const void *data, size_t bytes)
{
    uint32_t r = 0xFFFFFFFFu;
    for (size_t i = 0; i < 8 * bytes; i++) {
        const uint32_t bit = (uint32_t)(((const unsigned char *)data)[i / 8] >> (i % 8)) & 1u;
        r = (r ^ bit) & 1u ? r >> 1 ^ 0xEDB88320u : r >> 1;
    }
    return ~r;
}

typedef struct zip_style {
    bool is_64;          /* sizes, places and the end in records of 64 bits, though small */
    bool sizes_follow;   /* sizes and checksum of a member behind its data */
    bool is_aligned;     /* data at a multiple of 64 */
    bool has_more_extra; /* another extra field in the directory, before those of 64 bits */
} zip_style;

typedef struct zip_content {
    const char *name;
    const void *data;
    size_t bytes;
} zip_content;

static inline void put_common(image *m, const zip_content *c, const zip_style *s, bool with_sizes, bool refers)
{
    put_number(m, 20, 2);
    put_number(m, 0x800 | (s->sizes_follow ? 8 : 0), 2);
    put_number(m, 0, 6);
    put_number(m, with_sizes ? checksum(c->data, c->bytes) : 0, 4);
    put_number(m, !with_sizes ? 0 : refers ? 0xFFFFFFFF : c->bytes, 4);
    put_number(m, !with_sizes ? 0 : refers ? 0xFFFFFFFF : c->bytes, 4);
    put_number(m, strlen(c->name), 2);
}

static inline void put_member(image *m, const zip_content *c, const zip_style *s)
{
    m->local[m->nmembers] = m->count;
    put_number(m, 0x04034b50, 4);
    put_common(m, c, s, !s->sizes_follow, false);
    const size_t padding = s->is_aligned ? 63 - (m->count + 2 + strlen(c->name) + 4 + 63) % 64 : 0;
    put_number(m, s->is_aligned ? 4 + padding : 0, 2);
    put(m, c->name, strlen(c->name));
    if (s->is_aligned) {
        put(m, "FB", 2);
        put_number(m, padding, 2);
        for (size_t i = 0; i < padding; i++) put(m, "Z", 1);
    }
    m->data[m->nmembers++] = m->count;
    put(m, c->data, c->bytes);
    if (s->sizes_follow) {
        put_number(m, 0x08074b50, 4);
        put_number(m, checksum(c->data, c->bytes), 4);
        put_number(m, c->bytes, 4);
        put_number(m, c->bytes, 4);
    }
}

static inline void put_central(image *m, const zip_content *c, const zip_style *s, int i)
{
    m->central[i] = m->count;
    put_number(m, 0x02014b50, 4);
    put_number(m, 0, 2);
    put_common(m, c, s, true, s->is_64);
    put_number(m, (s->has_more_extra ? 7u : 0u) + (s->is_64 ? 28u : 0u), 2);
    put_number(m, 0, 10);
    put_number(m, s->is_64 ? 0xFFFFFFFF : m->local[i], 4);
    put(m, c->name, strlen(c->name));
    if (s->has_more_extra) put(m, "\x42\x46\3\0abc", 7);
    if (s->is_64) {
        put(m, "\1\0\x18\0", 4);
        put_number(m, c->bytes, 8);
        put_number(m, c->bytes, 8);
        put_number(m, m->local[i], 8);
    }
}

static inline image make_zip(const zip_content *contents, int count, zip_style style)
{
    image m = { .bytes = NULL };
    for (int i = 0; i < count; i++) put_member(&m, &contents[i], &style);
    const size_t from = m.count;
    for (int i = 0; i < count; i++) put_central(&m, &contents[i], &style, i);
    const size_t bytes = m.count - from;
    if (style.is_64) {
        m.end64 = m.count;
        put_number(&m, 0x06064b50, 4);
        put_number(&m, 44, 8);
        put_number(&m, 0, 12);
        put_number(&m, (uint64_t)count, 8);
        put_number(&m, (uint64_t)count, 8);
        put_number(&m, bytes, 8);
        put_number(&m, from, 8);
        m.locator = m.count;
        put_number(&m, 0x07064b50, 4);
        put_number(&m, 0, 4);
        put_number(&m, m.end64, 8);
        put_number(&m, 1, 4);
    }
    m.end = m.count;
    put_number(&m, 0x06054b50, 4);
    put_number(&m, 0, 4);
    put_number(&m, style.is_64 ? 0xFFFF : (uint64_t)count, 2);
    put_number(&m, style.is_64 ? 0xFFFF : (uint64_t)count, 2);
    put_number(&m, style.is_64 ? 0xFFFFFFFF : bytes, 4);
    put_number(&m, style.is_64 ? 0xFFFFFFFF : from, 4);
    put_number(&m, 0, 2);
    m.bytes = realloc(m.bytes, m.count);
    return m;
}

/* ---- pickles ---- */

#define BEGIN "\x80\x02"
#define TEXT(length, text) "X" length "\0\0\0" text
#define INT(byte) "K" byte
#define REBUILD "ctorch._utils\n_rebuild_tensor_v2\n"
#define NO_HOOKS "ccollections\nOrderedDict\n)R"
#define STORAGE_ID(type, count)                                                                                        \
    "(" TEXT("\7", "storage") "ctorch\n" type "\n" TEXT("\1", "0") TEXT("\3", "cpu") INT(count) "t"
#define STORAGE(type, count) STORAGE_ID(type, count) "Q"
#define TENSOR_OF(storage, offset, sizes, strides)                                                                     \
    REBUILD "(" storage INT(offset)                                                                                    \
    sizes strides "\x89" NO_HOOKS "tR"
#define SIX STORAGE("FloatStorage", "\6")

/* A tensor over all six floats of storage 0. */
#define TENSOR TENSOR_OF(SIX, "\0", INT("\2") INT("\3") "\x86", INT("\3") INT("\1") "\x86")

static const float six[6] = { 1, 2, 3, 4, 5, 6 };

/* data.pkl, byteorder, data/0 (six), version. */
static inline image make_torch_styled(const void *program, size_t bytes, const void *storage, size_t storage_bytes,
                                      zip_style style)
{
    const zip_content contents[] = { { "m/data.pkl", program, bytes },
                                     { "m/byteorder", "little", 6 },
                                     { "m/data/0", storage, storage_bytes },
                                     { "m/version", "3\n", 2 } };
    return make_zip(contents, 4, style);
}

static inline image make_torch(const void *program, size_t bytes)
{
    return make_torch_styled(program, bytes, six, sizeof six, (zip_style){ .is_aligned = true });
}

#define TORCH(program) make_torch((program), sizeof(program) - 1)

#endif
