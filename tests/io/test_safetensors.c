/* test_safetensors.c - files of tensors: what is read out of them, what is refused and why, and nothing that crashes. */
#include "io/safetensors_impl.h"
#include "tests/harness.h"

/* A file in memory, in a block of its exact size, so that the sanitizer sees a read behind it. */
typedef struct image {
    unsigned char *bytes;
    size_t count;
} image;

static image make_image(const char *header, const void *data, size_t data_bytes)
{
    const size_t n = strlen(header);
    image m = { malloc(8 + n + data_bytes), 8 + n + data_bytes };
    for (int i = 0; i < 8; i++) m.bytes[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(m.bytes + 8, header, n);
    if (data_bytes) memcpy(m.bytes + 8 + n, data, data_bytes);
    return m;
}

static const char *temporary_path(void)
{
    static char path[200];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/krait_test_%p.safetensors", folder ? folder : "/tmp", (void *)path);
    return path;
}

static void write_image(const char *path, image m)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(m.bytes, 1, m.count, f) == m.count, "cannot write %s", path);
    if (f) fclose(f);
}

/* "z" lies first in the file; "odd" moves what follows off its alignment; "e" is empty. */
static const char rich_header[] = "{\"__metadata__\":{\"format\":\"pt\",\"a\":\"\xc3\xa9\"},"
                                  "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[9,33]},"
                                  "\"z\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
                                  "\"odd\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]},"
                                  "\"e\":{\"dtype\":\"I64\",\"shape\":[4,0],\"data_offsets\":[33,33]},"
                                  "\"h\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[33,37]},"
                                  "\"i\":{\"dtype\":\"I64\",\"shape\":[1,1],\"data_offsets\":[37,45]}}   ";

static image rich_image(void)
{
    unsigned char data[45];
    const double z = 2.5;
    const float b[6] = { 1, 2, 3, 4, 5, -0.1f };
    const uint16_t h[2] = { 0x3f80, 0xc040 }; /* 1, -3 */
    const int64_t i = -5;
    memcpy(data, &z, 8);
    data[8] = 200;
    memcpy(data + 9, b, 24);
    memcpy(data + 33, h, 4);
    memcpy(data + 37, &i, 8);
    return make_image(rich_header, data, sizeof data);
}

static void check_rich(kr_safetensors *f)
{
    static const char *const order[] = { "z", "odd", "b", "e", "h", "i" };
    CHECK(kr_safetensors_count(f) == 6, "%lld tensors", (long long)kr_safetensors_count(f));
    for (int n = 0; n < 6; n++) {
        const kr_safetensors_item *item = kr_safetensors_at(f, n);
        CHECK(item && strcmp(item->name, order[n]) == 0 && kr_safetensors_find(f, order[n]) == item, "tensor %d", n);
    }
    CHECK(!kr_safetensors_at(f, 6) && !kr_safetensors_at(f, -1) && !kr_safetensors_find(f, "c") &&
              !kr_safetensors_find(f, "__metadata__"),
          "none");
    const kr_safetensors_item *b = kr_safetensors_find(f, "b"), *odd = kr_safetensors_find(f, "odd");
    CHECK(b->is_native && b->dtype == KR_DTYPE_F32 && b->shape.rank == 2 && b->shape.dims[1] == 3 && b->count == 6 &&
              b->bytes == 24,
          "b");
    CHECK(!odd->is_native && odd->is_readable && strcmp(odd->type, "U8") == 0 && odd->dtype == KR_DTYPE_I32, "odd");
    double values[6], z;
    CHECK(kr_safetensors_read(f, b, KR_DTYPE_F64, values, 6) == KR_OK && values[3] == 4 && values[5] == (double)-0.1f,
          "b as f64");
    float floats[6];
    CHECK(kr_safetensors_read(f, b, KR_DTYPE_F32, floats, 6) == KR_OK && floats[0] == 1 && floats[5] == -0.1f,
          "b as f32");
    CHECK(kr_safetensors_read(f, kr_safetensors_find(f, "z"), KR_DTYPE_F64, &z, 1) == KR_OK && z == 2.5, "z");
    CHECK(kr_safetensors_read(f, kr_safetensors_find(f, "h"), KR_DTYPE_F32, floats, 2) == KR_OK && floats[0] == 1 &&
              floats[1] == -3,
          "h");
    int32_t small;
    CHECK(kr_safetensors_read(f, odd, KR_DTYPE_I32, &small, 1) == KR_OK && small == 200, "odd as i32");
    CHECK(kr_safetensors_read(f, kr_safetensors_find(f, "i"), KR_DTYPE_I32, &small, 1) == KR_OK && small == -5,
          "i as i32");
    CHECK(kr_safetensors_read(f, kr_safetensors_find(f, "e"), KR_DTYPE_I64, NULL, 0) == KR_OK, "e");
    const char *key, *value;
    CHECK(strcmp(kr_safetensors_metadata(f, "format"), "pt") == 0 && !kr_safetensors_metadata(f, "none"),
          "metadata by key");
    CHECK(kr_safetensors_metadata_at(f, 0, &key, &value) && strcmp(key, "a") == 0 && strcmp(value, "\xc3\xa9") == 0,
          "the first");
    CHECK(kr_safetensors_metadata_at(f, 1, &key, &value) && strcmp(value, "pt") == 0 &&
              !kr_safetensors_metadata_at(f, 2, &key, &value),
          "the second is the last");
}

TEST(reading_memory)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    image m = rich_image();
    kr_safetensors *f = kr_safetensors_open_memory(ctx, m.bytes, m.count);
    CHECK_OK(ctx);
    check_rich(f);
    kr_safetensors_close(f);
    kr_safetensors_close(NULL);
    free(m.bytes);
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left");
    CHECK(kr_safetensors_count(NULL) == 0 && !kr_safetensors_at(NULL, 0) && !kr_safetensors_find(NULL, "x") &&
              !kr_safetensors_metadata(NULL, "x"),
          "NULL reads as nothing");
    kr_ctx_destroy(ctx);
}

TEST(reading_files)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const char *path = temporary_path();
    image m = rich_image();
    write_image(path, m);
    kr_safetensors *f = kr_safetensors_open(ctx, path);
    CHECK_OK(ctx);
    check_rich(f);
    kr_safetensors_close(f);
    /* the way without a map gives the same bytes, from counted memory */
    kr_file file;
    const size_t live = kr_ctx_memory(ctx).live_bytes;
    CHECK(kr_file_open(&file, ctx, path, false) && !file.map && file.bytes == m.count, "read");
    CHECK(memcmp(file.data, m.bytes, m.count) == 0 && kr_ctx_memory(ctx).live_bytes == live + m.count,
          "the same bytes");
    kr_file_close(&file);
    kr_ctx_fail_allocation(ctx, 1);
    CHECK(!kr_file_open(&file, ctx, path, false), "without memory");
    CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, "no memory for");
    CHECK(kr_ctx_memory(ctx).live_bytes == live, "memory is left");
    write_image(path, (image){ m.bytes, 0 });
    CHECK(!kr_safetensors_open(ctx, path), "an empty file");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT,
                    ".safetensors: 0 bytes are too few for the length of the header, which takes 8");
    remove(path);
    CHECK(!kr_safetensors_open(ctx, "no/such/file"), "no file");
    CHECK_ERROR(ctx, KR_ERR_IO, "safetensors: cannot open no/such/file: no such file or directory");
    CHECK(!kr_safetensors_open(ctx, "/"), "a folder");
    CHECK_ERROR(ctx, KR_ERR_IO, "safetensors: cannot open /: not a regular file");
    CHECK(!kr_safetensors_open(ctx, NULL), "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "safetensors: cannot open a file: path is NULL");
    CHECK(!kr_safetensors_open_memory(ctx, NULL, 0), "NULL");
    CHECK_ERROR(ctx, KR_ERR_ARG, "safetensors: data is NULL");
    free(m.bytes);
    kr_ctx_destroy(ctx);
}

#define ONE(description) "{\"x\":" description "}"
#define FOUR_BYTES "\"data_offsets\":[0,4]}"

TEST(refused_headers)
{
    static const struct {
        const char *header, *message;
    } rows[] = {
        { "", "the header does not begin with '{'" },
        { " {}", "the header does not begin with '{'" },
        { "[]", "the header does not begin with '{'" },
        { "{\"x\"}", "the header: json: at byte 4: expected ':' after the key, got '}'" },
        { "{}", "the file holds 4 bytes of data, but its tensors end at 0" },
        { "{\"x\":1,\"x\":2}", "the header: json: at byte 7: the key \"x\" occurs twice in one object" },
        { ONE("1"), "tensor 'x' is described by a value of kind number, but it must be an object" },
        { ONE("{}"), "tensor 'x' has no dtype: a string" },
        { ONE("{\"dtype\":1}"), "tensor 'x' has no dtype: a string" },
        { ONE("{\"dtype\":\"F33\",\"shape\":[1]," FOUR_BYTES), "tensor 'x' has the unknown dtype 'F33'" },
        { ONE("{\"dtype\":\"f32\",\"shape\":[1]," FOUR_BYTES), "tensor 'x' has the unknown dtype 'f32'" },
        { ONE("{\"dtype\":\"F32\"," FOUR_BYTES), "tensor 'x' has no shape: an array of sizes" },
        { ONE("{\"dtype\":\"F32\",\"shape\":1," FOUR_BYTES), "tensor 'x' has no shape: an array of sizes" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1,-1]," FOUR_BYTES),
          "tensor 'x': axis 1 of its shape is not a whole number >= 0" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1.0]," FOUR_BYTES),
          "tensor 'x': axis 0 of its shape is not a whole number >= 0" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1]," FOUR_BYTES),
          "tensor 'x' has 9 axes, but at most 8 are supported" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296]," FOUR_BYTES),
          "tensor 'x': the shape [4294967296, 4294967296] has too many elements to address" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[2]," FOUR_BYTES),
          "tensor 'x': F32 [2] takes 8 bytes, but its data_offsets span 4" },
        { ONE("{\"dtype\":\"F64\",\"shape\":[]," FOUR_BYTES),
          "tensor 'x': F64 [] takes 8 bytes, but its data_offsets span 4" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1]}"),
          "tensor 'x' has no data_offsets: an array of two whole numbers >= 0" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}"),
          "tensor 'x' has no data_offsets: an array of two whole numbers >= 0" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}"),
          "tensor 'x' has no data_offsets: an array of two whole numbers >= 0" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,-4]}"),
          "tensor 'x' has no data_offsets: an array of two whole numbers >= 0" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}"),
          "tensor 'x': its data ends at 0, before it begins at 4" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}"),
          "tensor 'x': its data ends at 8, but the file holds 4 bytes of data" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9223372036854775803,9223372036854775807]}"),
          "tensor 'x': its data ends at 9223372036854775807, but the file holds 4 bytes of data" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,18446744073709551616]}"),
          "tensor 'x' has no data_offsets: an array of two whole numbers >= 0" },
        { ONE("{\"dtype\":\"F32\",\"shape\":[1],\"stride\":[1]," FOUR_BYTES),
          "tensor 'x' has the key 'stride', but only dtype, shape and data_offsets are allowed" },
        { "{\"x\\u0000y\":{}}", "the name of tensor 'x?y' holds a zero byte" },
        { "{\"__metadata__\":1}", "__metadata__ is a value of kind number, but it must be an object" },
        { "{\"__metadata__\":{\"k\":1}}", "__metadata__: 'k' is a value of kind number, but it must be a string" },
        { "{\"__metadata__\":{\"k\":\"\\u0000\"}}", "__metadata__: 'k' holds a zero byte" },
        { ONE("{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}"),
          "the file holds 4 bytes of data, but its tensors end at 2" },
        { ONE("{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[2,4]}"),
          "tensor 'x': its data begins at 2, but the bytes from 0 on belong to no tensor" },
        { "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"y\":{\"dtype\":\"F16\",\"shape\":[1],"
          "\"data_offsets\":[2,4]}}",
          "tensor 'y': its data begins at 2, inside that of 'x', which ends at 4" },
        { "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"y\":{\"dtype\":\"F32\",\"shape\":[1],"
          "\"data_offsets\":[0,4]}}",
          "tensor 'y': its data begins at 0, inside that of 'x', which ends at 4" },
        { "{\"x\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},\"y\":{\"dtype\":\"I8\",\"shape\":[1],\"data_"
          "offsets\":[3,4]}}",
          "tensor 'y': its data begins at 3, but the bytes from 1 on belong to no tensor" },
        { "{\"12345678901234567890123456789012345678901234567890123456789012345678901234567890\":1}",
          "tensor '12345678901234567890123456789012345678901234567890123456789012345678...' is described by a value of "
          "kind number, but "
          "it must be an object" },
    };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char want[600];
        image m = make_image(rows[i].header, "abcd", 4);
        kr_safetensors *f = kr_safetensors_open_memory(ctx, m.bytes, m.count);
        snprintf(want, sizeof want, "safetensors: %s", rows[i].message);
        CHECK(!f, "%s was taken", rows[i].header);
        CHECK_ERROR(ctx, KR_ERR_FORMAT, want);
        kr_safetensors_close(f);
        free(m.bytes);
    }
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "an error keeps memory");
    kr_ctx_destroy(ctx);
}

TEST(refused_lengths)
{
    static const struct {
        uint64_t length;
        const char *message;
    } rows[] = {
        { UINT64_MAX, "safetensors: the header's length is 18446744073709551615, but at most 100000000 is allowed" },
        { 100000001, "safetensors: the header's length is 100000001, but at most 100000000 is allowed" },
        { 100000000, "safetensors: the header's length is 100000000, but only 6 bytes follow" },
        { 7, "safetensors: the header's length is 7, but only 6 bytes follow" },
        { 6, "safetensors: the header: json: at byte 2: expected the end of the text, got 'a'" },
        { 0, "safetensors: the header does not begin with '{'" },
    };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        image m = make_image("{}", "abcd", 4);
        for (int byte = 0; byte < 8; byte++) m.bytes[byte] = (unsigned char)(rows[i].length >> (8 * byte));
        CHECK(!kr_safetensors_open_memory(ctx, m.bytes, m.count), "length %llu was taken",
              (unsigned long long)rows[i].length);
        CHECK_ERROR(ctx, KR_ERR_FORMAT, rows[i].message);
        free(m.bytes);
    }
    image none = make_image("{}", NULL, 0);
    kr_safetensors *f = kr_safetensors_open_memory(ctx, none.bytes, none.count);
    CHECK(f && kr_safetensors_count(f) == 0 && !kr_safetensors_at(f, 0), "a file of no tensors");
    kr_safetensors_close(f);
    free(none.bytes);
    /* every prefix of a file is refused */
    image m = rich_image();
    for (size_t n = 0; n < m.count; n++) {
        unsigned char *part = malloc(n ? n : 1);
        memcpy(part, m.bytes, n);
        CHECK(!kr_safetensors_open_memory(ctx, part, n) && kr_ctx_status(ctx) == KR_ERR_FORMAT,
              "%zu of %zu bytes were taken", n, m.count);
        kr_ctx_clear(ctx);
        free(part);
    }
    free(m.bytes);
    kr_ctx_destroy(ctx);
}

TEST(conversions)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    unsigned char data[52];
    const double d = 1.0 + 0x1p-30, big = 1e300;
    const uint16_t f16 = 0x3c01;
    const int64_t wide = INT64_C(5000000000);
    const uint32_t u32 = 4000000000u;
    const int16_t i16 = -2;
    const uint16_t u16 = 65534;
    const int8_t i8 = -3;
    const unsigned char one = 1;
    memcpy(data, &d, 8), memcpy(data + 8, &big, 8), memcpy(data + 16, &f16, 2), memcpy(data + 18, &wide, 8);
    memcpy(data + 26, &u32, 4), memcpy(data + 30, &i16, 2), memcpy(data + 32, &u16, 2), memcpy(data + 34, &i8, 1);
    memcpy(data + 35, &one, 1), memset(data + 36, 0, 16);
    image m = make_image("{\"d\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]},"
                         "\"f16\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[16,18]},"
                         "\"wide\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[18,26]},"
                         "\"u32\":{\"dtype\":\"U32\",\"shape\":[],\"data_offsets\":[26,30]},"
                         "\"i16\":{\"dtype\":\"I16\",\"shape\":[],\"data_offsets\":[30,32]},"
                         "\"u16\":{\"dtype\":\"U16\",\"shape\":[],\"data_offsets\":[32,34]},"
                         "\"i8\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[34,35]},"
                         "\"flag\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[35,36]},"
                         "\"u64\":{\"dtype\":\"U64\",\"shape\":[],\"data_offsets\":[36,44]},"
                         "\"c64\":{\"dtype\":\"C64\",\"shape\":[],\"data_offsets\":[44,52]}}",
                         data, sizeof data);
    kr_safetensors *f = kr_safetensors_open_memory(ctx, m.bytes, m.count);
    CHECK_OK(ctx);
    float floats[2];
    uint16_t halves[2];
    int32_t i32 = 0;
    int64_t i64 = 0;
#define ITEM(name) kr_safetensors_find(f, name)
    CHECK(kr_safetensors_read(f, ITEM("d"), KR_DTYPE_F32, floats, 2) == KR_OK && floats[0] == 1 && isinf(floats[1]),
          "f64 to f32");
    CHECK(kr_safetensors_read(f, ITEM("d"), KR_DTYPE_F16, halves, 2) == KR_OK && halves[0] == 0x3c00 &&
              halves[1] == 0x7c00,
          "f64 to f16");
    CHECK(kr_safetensors_read(f, ITEM("d"), KR_DTYPE_BF16, halves, 2) == KR_OK && halves[0] == 0x3f80 &&
              halves[1] == 0x7f80,
          "f64 to bf16");
    CHECK(kr_safetensors_read(f, ITEM("f16"), KR_DTYPE_F32, floats, 1) == KR_OK && floats[0] == 1.0009765625f,
          "f16 to f32");
    CHECK(kr_safetensors_read(f, ITEM("u32"), KR_DTYPE_I64, &i64, 1) == KR_OK && i64 == 4000000000, "u32 to i64");
    CHECK(kr_safetensors_read(f, ITEM("wide"), KR_DTYPE_I64, &i64, 1) == KR_OK && i64 == wide, "i64");
    CHECK(kr_safetensors_read(f, ITEM("i16"), KR_DTYPE_I32, &i32, 1) == KR_OK && i32 == -2, "i16 to i32");
    CHECK(kr_safetensors_read(f, ITEM("u16"), KR_DTYPE_I32, &i32, 1) == KR_OK && i32 == 65534, "u16 to i32");
    CHECK(kr_safetensors_read(f, ITEM("i8"), KR_DTYPE_I64, &i64, 1) == KR_OK && i64 == -3, "i8 to i64");
    CHECK(kr_safetensors_read(f, ITEM("flag"), KR_DTYPE_I32, &i32, 1) == KR_OK && i32 == 1, "bool to i32");
    CHECK_OK(ctx);
    IGNORE(kr_safetensors_read(f, ITEM("wide"), KR_DTYPE_I32, &i32, 1));
    CHECK_ERROR(ctx, KR_ERR_NUMERIC, "safetensors: element 0 of tensor 'wide' is 5000000000, which does not fit i32");
    IGNORE(kr_safetensors_read(f, ITEM("wide"), KR_DTYPE_F32, floats, 1));
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "safetensors: tensor 'wide' of type I64 cannot be read as f32");
    IGNORE(kr_safetensors_read(f, ITEM("d"), KR_DTYPE_I32, &i32, 2));
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "safetensors: tensor 'd' of type F64 cannot be read as i32");
    IGNORE(kr_safetensors_read(f, ITEM("u64"), KR_DTYPE_I64, &i64, 1));
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "safetensors: tensor 'u64' of type U64 cannot be read as i64");
    IGNORE(kr_safetensors_read(f, ITEM("c64"), KR_DTYPE_F32, floats, 1));
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "safetensors: tensor 'c64' of type C64 cannot be read as f32");
    IGNORE(kr_safetensors_read(f, ITEM("d"), KR_DTYPE_F32, floats, 1));
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "safetensors: tensor 'd' [2] has 2 elements, not 1");
    IGNORE(kr_safetensors_read(f, ITEM("none"), KR_DTYPE_F32, floats, 1));
    CHECK_ERROR(ctx, KR_ERR_ARG, "safetensors: item is NULL; was the tensor found?");
    IGNORE(kr_safetensors_read(f, ITEM("d"), (kr_dtype)9, floats, 2));
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "safetensors: 9 is not a kr_dtype");
    IGNORE(kr_safetensors_read(f, ITEM("d"), KR_DTYPE_F32, NULL, 2));
    CHECK_ERROR(ctx, KR_ERR_ARG, "safetensors: out is NULL");
    kr_safetensors_close(f);
    free(m.bytes);
    kr_ctx_destroy(ctx);
}

/* Reads all that an open file offers. */
static void read_everything(kr_ctx *ctx, kr_safetensors *f)
{
    for (int64_t i = 0; i < kr_safetensors_count(f); i++) {
        const kr_safetensors_item *item = kr_safetensors_at(f, i);
        CHECK(kr_safetensors_find(f, item->name) == item, "%s is found elsewhere", item->name);
        if (!item->is_readable) continue;
        void *out = malloc((size_t)item->count * 8 + 1);
        const bool is_float = item->dtype == KR_DTYPE_F64 || item->dtype == KR_DTYPE_F32 ||
                              item->dtype == KR_DTYPE_F16 || item->dtype == KR_DTYPE_BF16;
        IGNORE(kr_safetensors_read(f, item, is_float ? KR_DTYPE_F64 : KR_DTYPE_I64, out, item->count));
        free(out);
    }
    CHECK_OK(ctx);
}

TEST(mutations)
{
    const int rounds = kr_test_quick() ? 5000 : 50000;
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    image whole = rich_image();
    int taken = 0;
    for (int i = 0; i < rounds; i++) {
        static const char likely[] = "0123456789{}[]\":,-e\\FIB";
        image m = { malloc(whole.count), whole.count };
        memcpy(m.bytes, whole.bytes, whole.count);
        for (int64_t edits = kr_test_below(3); edits >= 0; edits--) {
            const size_t at = (size_t)kr_test_below((int64_t)(kr_test_below(8) ? sizeof rich_header + 8 : 8));
            m.bytes[at] = (unsigned char)(kr_test_below(2) && at >= 8 ? likely[kr_test_below(sizeof likely - 1)]
                                                                      : (int)kr_test_next());
        }
        kr_safetensors *f = kr_safetensors_open_memory(ctx, m.bytes, m.count);
        CHECK((f != NULL) == !kr_ctx_failed(ctx), "a result and an error");
        if (f) read_everything(ctx, f);
        else
            CHECK(kr_ctx_status(ctx) == KR_ERR_FORMAT && strncmp(kr_ctx_message(ctx), "safetensors: ", 13) == 0, "%s",
                  kr_ctx_message(ctx));
        taken += f != NULL;
        kr_ctx_clear(ctx);
        kr_safetensors_close(f);
        free(m.bytes);
    }
    CHECK(taken > 0 && taken < rounds, "%d of %d mutations were taken", taken, rounds);
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left");
    free(whole.bytes);
    kr_ctx_destroy(ctx);
}

TEST(every_allocation_may_fail)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    image m = rich_image();
    const char *path = temporary_path();
    write_image(path, m);
    for (int way = 0; way < 2; way++) {
        size_t n = 1;
        for (; n < 100; n++) {
            kr_ctx_fail_allocation(ctx, n);
            kr_safetensors *f =
                way ? kr_safetensors_open(ctx, path) : kr_safetensors_open_memory(ctx, m.bytes, m.count);
            if (f) {
                kr_safetensors_close(f);
                break;
            }
            CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
            kr_ctx_clear(ctx);
            CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "allocation %zu: memory is left", n);
        }
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(n > 1 && n < 100, "%zu allocations", n);
    }
    remove(path);
    free(m.bytes);
    kr_ctx_destroy(ctx);
}
