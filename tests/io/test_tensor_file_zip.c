/* test_tensor_file_zip.c - torch files whose zips are put together here: every style of records, every error, files that are
 * damaged or cut off at every byte, tensors of every type and layout, and every allocation that fails. */
#include "io/zip.h"
#include "tests/io/torch_image.h"

static const char program[] = BEGIN "}" TEXT("\1", "x") TENSOR "s.";

static void check_six(kr_ctx *ctx, const image *m, const char *what)
{
    kr_tensor_file *w = kr_tensor_file_open_memory(ctx, m->bytes, m->count);
    if (!CHECK(w != NULL, "%s: %s", what, kr_ctx_message(ctx))) kr_ctx_clear(ctx);
    float values[6] = { 0 };
    IGNORE(kr_tensor_file_read(w, kr_tensor_file_find(w, "x"), KR_DTYPE_F32, values, 6));
    CHECK(kr_tensor_file_count(w) == 1 && memcmp(values, six, sizeof six) == 0, "%s: the values", what);
    CHECK(!w || kr_tensor_file_container(w) == KR_CONTAINER_TORCH, "%s: the container", what);
    kr_tensor_file_close(w);
}

static image make_styled(zip_style style)
{
    return make_torch_styled(program, sizeof program - 1, six, sizeof six, style);
}

TEST(zip_styles)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int bits = 0; bits < 16; bits++) {
        image m = make_styled((zip_style){ bits & 1, bits & 2, bits & 4, bits & 8 });
        char what[32];
        snprintf(what, sizeof what, "style %d", bits);
        check_six(ctx, &m, what);
        if (bits & 4) CHECK(m.data[2] % 64 == 0, "%s: aligned", what);
        free(m.bytes);
    }
    kr_ctx_destroy(ctx);
}

/* What may be absent, or there for no reason. */
TEST(zip_members)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const zip_content few[] = { { "a b/data.pkl", program, sizeof program - 1 }, { "a b/data/0", six, sizeof six } };
    image m = make_zip(few, 2, (zip_style){ 0 });
    check_six(ctx, &m, "neither byteorder nor version");
    free(m.bytes);
    const zip_content many[] = { { "m/", NULL, 0 },
                                 { "other", "x", 1 },
                                 { "n/data.pkl", "x", 1 },
                                 { "m/data/0", six, sizeof six },
                                 { "m/data/1", six, 3 },
                                 { "m/version", "10", 2 },
                                 { "m/data.pkl", program, sizeof program - 1 } };
    m = make_zip(many, 7, (zip_style){ 0 });
    check_six(ctx, &m, "more than needed");
    /* without checksum, as torch can be told to write them */
    set_number(&m, m.local[6] + 14, 0, 4);
    set_number(&m, m.central[6] + 16, 0, 4);
    check_six(ctx, &m, "no checksum");
    /* tensors are not checked: a changed one is read as it is */
    m.bytes[m.data[3]] ^= 1;
    kr_tensor_file *w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    CHECK(w != NULL, "%s", kr_ctx_message(ctx));
    kr_tensor_file_close(w);
    free(m.bytes);
    kr_ctx_destroy(ctx);
}

static void check_refused(kr_ctx *ctx, image *m, const char *part)
{
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    CHECK(!kr_tensor_file_open_memory(ctx, m->bytes, m->count), "not refused: %s", part);
    CHECK(strncmp(kr_ctx_message(ctx), "tensor_file: ", 9) == 0, "%s", kr_ctx_message(ctx));
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, part);
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left: %s", part);
    free(m->bytes);
}

/* Where a change is made: relative to a record of the zip; member 2 is the storage. */
typedef enum record { LOCAL, CENTRAL, END64, LOCATOR, END } record;

typedef struct damage {
    record record;
    size_t at;
    int bytes;
    uint64_t value;
    const char *message;
} damage;

static void check_damages(kr_ctx *ctx, const damage *rows, size_t count, zip_style style)
{
    for (size_t i = 0; i < count; i++) {
        image m = make_styled(style);
        const size_t starts[] = { m.local[2], m.central[2], m.end64, m.locator, m.end };
        set_number(&m, starts[rows[i].record] + rows[i].at, rows[i].value, rows[i].bytes);
        check_refused(ctx, &m, rows[i].message);
    }
}

#define COUNT_OF(rows) (sizeof(rows) / sizeof *(rows))
#define HUGE UINT64_MAX

TEST(zip_damaged_members)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    static const char differ[] = "and the directory differ", beyond[] = "reach beyond the members' end at";
    static const damage rows[] = {
        { CENTRAL, 0, 4, 0x02014b51, "the zip's directory is cut off at member 2" },
        { CENTRAL, 8, 2, 0x801, "member 'm/data/0' of the zip is encrypted" },
        { CENTRAL, 8, 2, 0x840, "member 'm/data/0' of the zip is encrypted" },
        { CENTRAL, 8, 2, 0x2800, "member 'm/data/0' of the zip is encrypted" },
        { CENTRAL, 8, 2, 0, differ },
        { CENTRAL, 10, 2, 8, "member 'm/data/0' of the zip is compressed (method 8), but torch stores its members as" },
        { CENTRAL, 10, 2, 99, "is compressed (method 99)" },
        { CENTRAL, 16, 4, 1, differ },
        { CENTRAL, 20, 4, 23, "is stored, but has two sizes: 23 and 24 bytes" },
        { CENTRAL, 24, 4, 23, "is stored, but has two sizes: 24 and 23 bytes" },
        { CENTRAL, 20, 8, 23 | UINT64_C(23) << 32, differ },
        { CENTRAL, 20, 8, 0x10000000 | UINT64_C(0x10000000) << 32, beyond },
        { CENTRAL, 20, 4, 0xFFFFFFFF, "refers to 64-bit sizes that are not there" },
        { CENTRAL, 42, 4, 0xFFFFFFFF, "refers to 64-bit sizes that are not there" },
        { CENTRAL, 28, 2, 0, "member 2 of the zip has no name, or one with a zero byte" },
        { CENTRAL, 28, 2, 0xFFFF, "the zip's directory is cut off at member 2" },
        { CENTRAL, 30, 2, 0xFFFF, "the zip's directory is cut off at member 2" },
        { CENTRAL, 30, 2, 3, "its extra fields are cut off" },
        { CENTRAL, 30, 2, 4, "its extra fields are cut off" },
        { CENTRAL, 32, 2, 0xFFFF, "the zip's directory is cut off at member 2" },
        { CENTRAL, 32, 2, 1, "the zip's directory is cut off at member 3" },
        { CENTRAL, 34, 2, 1, "the zip is one of several parts" },
        { CENTRAL, 42, 4, 1, "member 'm/data/0' of the zip: there is no header at 1" },
        { CENTRAL, 42, 4, 0x7FFFFFFF, "member 'm/data/0' of the zip: there is no header at 2147483647" },
        { CENTRAL, 42, 4, 0, differ }, /* the first member's header */
        { CENTRAL, 46, 1, 'n', differ },
        { CENTRAL, 47, 1, 0, "member 2 of the zip has no name, or one with a zero byte" },
        { LOCAL, 0, 4, 0, "there is no header at" },
        { LOCAL, 6, 2, 0x808, differ },
        { LOCAL, 8, 2, 8, differ },
        { LOCAL, 14, 4, 1, differ },
        { LOCAL, 18, 4, 23, differ },
        { LOCAL, 22, 4, 25, differ },
        { LOCAL, 26, 2, 7, differ },
        { LOCAL, 26, 2, 0xFFFF, beyond },
        { LOCAL, 28, 2, 0xFFFF, beyond },
        { LOCAL, 28, 2, 10, "members 'm/data/0' and 'm/version' of the zip overlap" },
        { LOCAL, 30, 1, 'n', differ },
    };
    check_damages(ctx, rows, COUNT_OF(rows), (zip_style){ 0 });
    static const damage long_rows[] = {
        { CENTRAL, 46 + 8, 2, 2, "refers to 64-bit sizes that are not there" },
        { CENTRAL, 46 + 10, 2, 23, "its extra fields are cut off" },
        { CENTRAL, 46 + 10, 2, 25, "its extra fields are cut off" },
        { CENTRAL, 46 + 12, 8, 25, "is stored, but has two sizes: 24 and 25 bytes" },
        { CENTRAL, 46 + 12, 8, HUGE, "is stored, but has two sizes: 24 and 18446744073709551615 bytes" },
        { CENTRAL, 46 + 28, 8, HUGE, "there is no header at 18446744073709551615" },
        { CENTRAL, 46 + 28, 8, HUGE / 2, "there is no header at 9223372036854775807" },
    };
    check_damages(ctx, long_rows, COUNT_OF(long_rows), (zip_style){ .is_64 = true });
    kr_ctx_destroy(ctx);
}

TEST(zip_damaged_ends)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    static const char no_end[] = "bytes are cut off, or data was appended to it", parts[] = "the zip is one of several";
    static const char ends[] = "the zip's two ends disagree", locator[] = "the zip's 64-bit end is not at";
    static const damage rows[] = {
        { END, 0, 4, 0, no_end },
        { END, 20, 2, 1, no_end },
        { END, 4, 2, 1, parts },
        { END, 6, 2, 1, parts },
        { END, 8, 2, 3, parts },
        { END, 8, 4, 0x30003, "the zip's directory holds more than its 3 members" },
        { END, 8, 4, 0x50005, "cannot hold 5 members" },
        { END, 8, 4, 0xFFFFFFFF, "cannot hold 65535 members" },
        { END, 12, 4, 1, "the zip's directory of 1 bytes at" },
        { END, 12, 4, 0xFFFFFFFF, "the zip's directory of 4294967295 bytes at" },
        { END, 16, 4, 1, "bytes at 1 does not reach to its end at" },
        { END, 16, 4, 0xFFFFFFFF, "bytes at 4294967295 does not reach to its end at" },
    };
    check_damages(ctx, rows, COUNT_OF(rows), (zip_style){ 0 });
    static const damage long_rows[] = {
        { LOCATOR, 0, 4, 0, "the zip's directory of 4294967295 bytes at 4294967295 does not reach to its end at" },
        { LOCATOR, 4, 4, 1, parts },
        { LOCATOR, 16, 4, 2, parts },
        { LOCATOR, 8, 8, 0, locator },
        { LOCATOR, 8, 8, 1, locator },
        { LOCATOR, 8, 8, HUGE, "the zip's 64-bit end is not at 18446744073709551615, where its locator says" },
        { LOCATOR, 8, 8, HUGE - 50, locator },
        { END64, 0, 4, 0, locator },
        { END64, 4, 8, 43, locator },
        { END64, 4, 8, HUGE - 11, locator },
        { END64, 16, 4, 1, parts },
        { END64, 20, 4, 1, parts },
        { END64, 24, 8, 3, parts },
        { END64, 32, 8, 3, parts },
        { END64, 40, 8, 0, "the zip's directory of 0 bytes at" },
        { END64, 40, 8, HUGE, "the zip's directory of 18446744073709551615 bytes at" },
        { END64, 48, 8, HUGE, "bytes at 18446744073709551615 does not reach to its end at" },
        { END, 8, 4, 0x50005, ends },
        { END, 12, 4, 1, ends },
        { END, 16, 4, 1, ends },
    };
    check_damages(ctx, long_rows, COUNT_OF(long_rows), (zip_style){ .is_64 = true });
    /* a count that no memory holds */
    image m = make_styled((zip_style){ .is_64 = true });
    set_number(&m, m.end64 + 24, HUGE, 8);
    set_number(&m, m.end64 + 32, HUGE, 8);
    check_refused(ctx, &m, "cannot hold 18446744073709551615 members");
    kr_ctx_destroy(ctx);
}

#define ZIP_REFUSED(part, ...)                                                                                         \
    do {                                                                                                               \
        const zip_content contents[] = { __VA_ARGS__ };                                                                \
        image m = make_zip(contents, (int)COUNT_OF(contents), (zip_style){ 0 });                                       \
        check_refused(ctx, &m, (part));                                                                                \
    } while (0)
#define PROGRAM                                                                                                        \
    {                                                                                                                  \
        "m/data.pkl", program, sizeof program - 1                                                                      \
    }
#define STORED                                                                                                         \
    {                                                                                                                  \
        "m/data/0", six, sizeof six                                                                                    \
    }

TEST(zip_is_no_torch_file)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    ZIP_REFUSED("the zip has no directory with a data.pkl", { "data.pkl", program, sizeof program - 1 }, STORED);
    ZIP_REFUSED("the zip has no data.pkl in its folder: it is not a torch file", STORED, { "n/data.pkl", program, 1 },
                { "n/data/0", six, 24 }, { "m/data", "x", 1 }, { "m/data.pk", "x", 1 }, { "m/data.pkl2", "x", 1 });
    ZIP_REFUSED("tensor 'x': its storage '0' is not in the file", PROGRAM, { "m/data/1", six, sizeof six });
    ZIP_REFUSED("tensor 'x': its storage '0' has 23 bytes, but should be 6 times 4", PROGRAM, { "m/data/0", six, 23 });
    const float seven[7] = { 0 };
    ZIP_REFUSED("tensor 'x': its storage '0' has 27 bytes, but should be 6 times 4", PROGRAM,
                { "m/data/0", seven, 27 });
    ZIP_REFUSED("tensor 'x': its storage '0' has 0 bytes, but should be 6 times 4", PROGRAM, { "m/data/0", six, 0 });
    ZIP_REFUSED("the zip has two members of the name 'm/data/0'", PROGRAM, STORED, STORED);
    ZIP_REFUSED("its byteorder is 'big', but only 'little' is supported", PROGRAM, STORED, { "m/byteorder", "big", 3 });
    ZIP_REFUSED("its byteorder is 'little?', but only 'little' is supported", PROGRAM, STORED,
                { "m/byteorder", "little\n", 7 });
    static const struct {
        const char *text, *message;
    } versions[] = { { "11", "tensor_file: its version is '11', but only 1 to 10 are supported" },
                     { "0", "tensor_file: its version is '0', but only 1 to 10 are supported" },
                     { "", "tensor_file: its version is '', but only 1 to 10 are supported" },
                     { "x", "tensor_file: its version is 'x', but only 1 to 10 are supported" },
                     { "99999999999999999999",
                       "tensor_file: its version is '99999999999999999999', but only 1 to 10 are supported" } };
    for (size_t i = 0; i < COUNT_OF(versions); i++) {
        const zip_content contents[] = { PROGRAM, STORED, { "m/version", versions[i].text, strlen(versions[i].text) } };
        image m = make_zip(contents, 3, (zip_style){ 0 });
        CHECK(!kr_tensor_file_open_memory(ctx, m.bytes, m.count), "version %s", versions[i].text);
        CHECK_ERROR(ctx, KR_ERR_UNSUPPORTED, versions[i].message);
        free(m.bytes);
    }
    image m = make_styled((zip_style){ 0 });
    m.bytes[m.data[0] + 5] ^= 1;
    check_refused(ctx, &m, "member 'm/data.pkl' of the zip is damaged: its checksum does not match");
    /* two members in one place: the second's records point to the first's, which has the same name */
    const zip_content twins[] = { PROGRAM, STORED, { "m/data/1", six, sizeof six } };
    m = make_zip(twins, 3, (zip_style){ 0 });
    set_number(&m, m.central[2] + 42, m.local[1], 4);
    set_number(&m, m.central[2] + 46 + 7, '0', 1);
    check_refused(ctx, &m, "members 'm/data/0' and 'm/data/0' of the zip overlap");
    kr_ctx_destroy(ctx);
}

/* A file that opens can be read, all of it. */
static void read_whole(kr_ctx *ctx, const unsigned char *bytes, size_t count)
{
    kr_tensor_file *w = kr_tensor_file_open_memory(ctx, bytes, count);
    CHECK((w != NULL) != kr_ctx_failed(ctx), "neither weights nor an error");
    for (int64_t i = 0; i < kr_tensor_file_count(w); i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(w, i);
        double values[64];
        const bool is_float = item->dtype != KR_DTYPE_I32 && item->dtype != KR_DTYPE_I64;
        if (item->count <= 64)
            IGNORE(kr_tensor_file_read(w, item, is_float ? KR_DTYPE_F64 : KR_DTYPE_I64, values, item->count));
    }
    CHECK(!w || !kr_ctx_failed(ctx), "%s", kr_ctx_message(ctx));
    CHECK(w || strncmp(kr_ctx_message(ctx), "tensor_file: ", 9) == 0, "%s", kr_ctx_message(ctx));
    kr_tensor_file_close(w);
    kr_ctx_clear(ctx);
}

TEST(zip_damaged_at_every_byte)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t live = kr_ctx_memory(ctx).live_bytes;
    for (int is_64 = 0; is_64 < 2; is_64++) {
        image m = make_styled((zip_style){ .is_64 = is_64, .is_aligned = !is_64 });
        for (size_t cut = 0; cut < m.count; cut++) {
            unsigned char *part = malloc(cut ? cut : 1);
            memcpy(part, m.bytes, cut);
            CHECK(!kr_tensor_file_open_memory(ctx, part, cut) && kr_ctx_failed(ctx), "cut off at %zu", cut);
            kr_ctx_clear(ctx);
            free(part);
        }
        static const unsigned char changes[] = { 1, 2, 4, 8, 16, 32, 64, 128, 255 };
        for (size_t at = 0; at < m.count; at++)
            for (size_t c = 0; c < sizeof changes; c += kr_test_quick() ? 4 : 1) {
                m.bytes[at] ^= changes[c];
                read_whole(ctx, m.bytes, m.count);
                m.bytes[at] ^= changes[c];
            }
        free(m.bytes);
    }
    CHECK(kr_ctx_memory(ctx).live_bytes == live, "memory is left");
    kr_ctx_destroy(ctx);
}

/* The same without checksums: what the zip does not notice, the machine must. */
TEST(pickle_damaged_at_every_byte)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t live = kr_ctx_memory(ctx).live_bytes;
    image m = make_styled((zip_style){ 0 });
    set_number(&m, m.local[0] + 14, 0, 4);
    set_number(&m, m.central[0] + 16, 0, 4);
    for (size_t at = 0; at < sizeof program - 1; at++)
        for (int value = 0; value < 256; value += kr_test_quick() ? 5 : 1) {
            const unsigned char before = m.bytes[m.data[0] + at];
            m.bytes[m.data[0] + at] = (unsigned char)value;
            read_whole(ctx, m.bytes, m.count);
            m.bytes[m.data[0] + at] = before;
        }
    free(m.bytes);
    CHECK(kr_ctx_memory(ctx).live_bytes == live, "memory is left");
    kr_ctx_destroy(ctx);
}

TEST(zip_every_allocation_may_fail)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    image m = make_styled((zip_style){ .is_64 = true });
    size_t n = 1;
    for (; n < 100; n++) {
        kr_ctx_fail_allocation(ctx, n);
        kr_tensor_file *w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
        kr_ctx_fail_allocation(ctx, 0);
        CHECK((w != NULL) != kr_ctx_failed(ctx), "allocation %zu: neither weights nor an error", n);
        kr_tensor_file_close(w);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "allocation %zu: memory is left", n);
        if (w) break;
        CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
    }
    CHECK(n > 4 && n < 100, "%zu allocations", n);
    free(m.bytes);
    kr_ctx_destroy(ctx);
}
