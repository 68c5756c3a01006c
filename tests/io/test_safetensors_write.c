/* test_safetensors_write.c - what is written is read back to the bit, the bytes of a file are exact, and a write that
 * fails leaves the old file and nothing else. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* seteuid */
#include "io/file_write.h"
#include "io/safetensors_impl.h"
#include "tests/temp_folder.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

static void put_file(const char *path, const char *text)
{
    write_image(path, text, strlen(text));
}

/* ---- files ---- */

static const float floats[6] = { 1, -2.5f, 3, 0x1p-149f, -0.0f, 3e38f };
static const double doubles[2] = { 1.0 / 3, -1e300 };
static const uint16_t halves[3] = { 0x3c01, 0x7bff, 0x8001 };
static const int32_t ints[2] = { INT32_MIN, 7 };
static const int64_t longs[1] = { INT64_MAX };
static const char *const odd_name = "\"q\\ \t\n\x01 \xc3\xa9 \xf0\x9f\x98\x80/";

static void add_all(kr_tensor_writer *w)
{
    kr_tensor_writer_add_metadata(w, "format", "test");
    kr_tensor_writer_add_metadata(w, "", "empty key\r\n\"\\");
    kr_tensor_writer_add(w, "z", KR_DTYPE_F16, KR_SHAPE(3), halves);
    kr_tensor_writer_add(w, odd_name, KR_DTYPE_F32, KR_SHAPE(2, 3), floats);
    kr_tensor_writer_add(w, "none", KR_DTYPE_F64, KR_SHAPE(4, 0, 2), NULL);
    kr_tensor_writer_add(w, "d", KR_DTYPE_F64, KR_SHAPE(2), doubles);
    kr_tensor_writer_add(w, "b", KR_DTYPE_BF16, KR_SHAPE(1, 1, 1, 1, 1, 1, 1, 3), halves);
    kr_tensor_writer_add(w, "", KR_DTYPE_I32, KR_SHAPE(2), ints);
    kr_tensor_writer_add(w, "a", KR_DTYPE_I64, KR_SCALAR, longs);
}

static void check_item(const kr_safetensors *f, int64_t i, const char *name, kr_dtype dtype, kr_shape shape,
                       const void *data)
{
    const kr_safetensors_item *item = kr_safetensors_at(f, i);
    if (!CHECK(item && strcmp(item->name, name) == 0, "tensor %d is %s, not %s", (int)i, item ? item->name : "none",
               name))
        return;
    bool same = item->is_native && item->dtype == dtype && item->shape.rank == shape.rank;
    for (int axis = 0; same && axis < shape.rank; axis++) same = item->shape.dims[axis] == shape.dims[axis];
    CHECK(same, "type or shape of %s", name);
    CHECK(item->bytes == 0 || memcmp(item->data, data, item->bytes) == 0, "bytes of %s", name);
}

TEST(round_trip)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    add_all(w);
    CHECK(kr_tensor_writer_save(w, in_folder("x"), KR_CONTAINER_SAFETENSORS) == KR_OK &&
              kr_tensor_writer_save(w, in_folder("y"), KR_CONTAINER_SAFETENSORS) == KR_OK,
          "saved");
    kr_tensor_writer_destroy(w);
    kr_tensor_writer_destroy(NULL);
    CHECK_OK(ctx);
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left");
    CHECK(files_in_folder(false) == 2, "%d files", files_in_folder(false));

    kr_safetensors *f = kr_safetensors_open(ctx, in_folder("x"));
    CHECK_OK(ctx);
    CHECK(kr_safetensors_count(f) == 7, "%d tensors", (int)kr_safetensors_count(f));
    check_item(f, 0, "z", KR_DTYPE_F16, KR_SHAPE(3), halves);
    check_item(f, 1, odd_name, KR_DTYPE_F32, KR_SHAPE(2, 3), floats);
    check_item(f, 2, "none", KR_DTYPE_F64, KR_SHAPE(4, 0, 2), doubles);
    check_item(f, 3, "d", KR_DTYPE_F64, KR_SHAPE(2), doubles);
    check_item(f, 4, "b", KR_DTYPE_BF16, KR_SHAPE(1, 1, 1, 1, 1, 1, 1, 3), halves);
    check_item(f, 5, "", KR_DTYPE_I32, KR_SHAPE(2), ints);
    check_item(f, 6, "a", KR_DTYPE_I64, KR_SCALAR, longs);
    CHECK(strcmp(kr_safetensors_metadata(f, "format"), "test") == 0 &&
              strcmp(kr_safetensors_metadata(f, ""), "empty key\r\n\"\\") == 0,
          "metadata");
    kr_safetensors_close(f);

    file_image x = read_image(in_folder("x")), y = read_image(in_folder("y"));
    CHECK(x.bytes == y.bytes && memcmp(x.data, y.data, x.bytes) == 0, "two saves differ");
    free(x.data);
    free(y.data);
    kr_ctx_destroy(ctx);
    end_folder();
}

/* The file as bytes: the header's length, its text, spaces to a multiple of 64, the elements. */
static void check_bytes(kr_ctx *ctx, kr_tensor_writer *w, const char *header, const void *data, size_t data_bytes)
{
    IGNORE(kr_tensor_writer_save(w, in_folder("exact"), KR_CONTAINER_SAFETENSORS));
    CHECK_OK(ctx);
    file_image image = read_image(in_folder("exact"));
    const unsigned char *got = image.data;
    const size_t bytes = image.bytes;
    const size_t text = strlen(header), head = (8 + text + 63) / 64 * 64;
    if (CHECK(bytes == head + data_bytes, "%zu bytes, not %zu", bytes, head + data_bytes)) {
        bool padded = true;
        for (size_t i = 8 + text; i < head; i++) padded = padded && got[i] == ' ';
        const unsigned char length[8] = { (unsigned char)(head - 8), (unsigned char)((head - 8) >> 8) };
        CHECK(memcmp(got, length, 8) == 0 && memcmp(got + 8, header, text) == 0 && padded, "the head is %.*s",
              (int)(head - 8), (const char *)got + 8);
        CHECK(data_bytes == 0 || memcmp(got + head, data, data_bytes) == 0, "the data");
    }
    free(image.data);
    kr_safetensors *f = kr_safetensors_open(ctx, in_folder("exact"));
    CHECK_OK(ctx);
    kr_safetensors_close(f);
    kr_tensor_writer_destroy(w);
}

TEST(exact_bytes)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    check_bytes(ctx, kr_tensor_writer_create(ctx), "{}", NULL, 0);

    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    kr_tensor_writer_add_metadata(w, "k\x1f", "v\"\\/");
    check_bytes(ctx, w, "{\"__metadata__\":{\"k\\u001f\":\"v\\\"\\\\/\"}}", NULL, 0);

    w = kr_tensor_writer_create(ctx);
    kr_tensor_writer_add(w, "y", KR_DTYPE_F16, KR_SCALAR, halves);
    kr_tensor_writer_add_metadata(w, "b", "");
    kr_tensor_writer_add_metadata(w, "a", "1");
    kr_tensor_writer_add(w, "x", KR_DTYPE_F32, KR_SHAPE(1, 2), floats);
    char data[10];
    memcpy(data, halves, 2);
    memcpy(data + 2, floats, 8);
    check_bytes(
        ctx, w,
        "{\"__metadata__\":{\"b\":\"\",\"a\":\"1\"},\"y\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[0,2]},"
        "\"x\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[2,10]}}",
        data, sizeof data);
    /* headers of every length modulo 64 */
    for (int n = 1; n <= 64; n++) {
        char name[65] = { 0 }, header[256];
        memset(name, 'n', (size_t)n);
        w = kr_tensor_writer_create(ctx);
        kr_tensor_writer_add(w, name, KR_DTYPE_I64, KR_SHAPE(1), longs);
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}", name);
        check_bytes(ctx, w, header, longs, 8);
    }
    kr_ctx_destroy(ctx);
    end_folder();
}

TEST(many_names_in_any_order)
{
    begin_folder();
    enum { COUNT = 700 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    for (int i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%d", i * 389 % COUNT); /* each number once: 389 is prime */
        kr_tensor_writer_add(w, name, KR_DTYPE_F32, KR_SHAPE(i % 3), floats);
    }
    CHECK_OK(ctx);
    for (int i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%d", i);
        CHECK(kr_tensor_writer_add(w, name, KR_DTYPE_F32, KR_SHAPE(1), floats) == KR_ERR_ARG, "%s twice", name);
        kr_ctx_clear(ctx);
    }
    IGNORE(kr_tensor_writer_save(w, in_folder("many"), KR_CONTAINER_SAFETENSORS));
    kr_safetensors *f = kr_safetensors_open(ctx, in_folder("many"));
    CHECK_OK(ctx);
    CHECK(kr_safetensors_count(f) == COUNT, "%d tensors", (int)kr_safetensors_count(f));
    for (int i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%d", i * 389 % COUNT);
        const kr_safetensors_item *item = kr_safetensors_find(f, name);
        CHECK(item && item->count == i % 3, "%s", name);
    }
    kr_safetensors_close(f);
    kr_tensor_writer_destroy(w);
    kr_ctx_destroy(ctx);
    end_folder();
}

TEST(refused_tensors)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    kr_tensor_writer_add(w, "x", KR_DTYPE_F32, KR_SHAPE(1), floats);
    kr_tensor_writer_add_metadata(w, "k", "v");
    const kr_shape one = KR_SHAPE(1);
    kr_tensor_writer_add(w, NULL, KR_DTYPE_F32, one, floats);
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: tensor is NULL");
    kr_tensor_writer_add(w, "x", KR_DTYPE_F64, one, doubles);
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: tensor 'x' has already been added");
    kr_tensor_writer_add(w,
                         "a\xff"
                         "b",
                         KR_DTYPE_F32, one, floats);
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: tensor 'a?b' is not UTF-8");
    kr_tensor_writer_add(w, "cut\xc3", KR_DTYPE_F32, one, floats);
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: tensor 'cut?' is not UTF-8");
    kr_tensor_writer_add(w, "__metadata__", KR_DTYPE_F32, one, floats);
    CHECK_ERROR(ctx, KR_ERR_ARG,
                "tensor_file: no tensor can have the name __metadata__, which safetensors files reserve");
    kr_tensor_writer_add(w, "y", (kr_dtype)6, one, floats);
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "tensor_file: tensor 'y': 6 is not a kr_dtype");
    kr_tensor_writer_add(w, "y", KR_DTYPE_F32, KR_SHAPE(2, -1), floats);
    CHECK_ERROR(
        ctx, KR_ERR_SHAPE,
        "tensor_file: tensor 'y': invalid shape: rank 2 must be from 0 to 8, and sizes not negative and addressable");
    kr_tensor_writer_add(w, "y", KR_DTYPE_F32, (kr_shape){ .rank = 9 }, floats);
    CHECK_ERROR(
        ctx, KR_ERR_SHAPE,
        "tensor_file: tensor 'y': invalid shape: rank 9 must be from 0 to 8, and sizes not negative and addressable");
    kr_tensor_writer_add(w, "y", KR_DTYPE_F32, one, NULL);
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: tensor 'y': data is NULL");
    /* two that could be addressed one by one */
    kr_tensor_writer_add(w, "y", KR_DTYPE_F64, KR_SHAPE(INT64_C(1) << 59), doubles);
    CHECK_OK(ctx);
    kr_tensor_writer_add(w, "y2", KR_DTYPE_F64, KR_SHAPE(INT64_C(1) << 59), doubles);
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "tensor_file: tensor 'y2' [576460752303423488] makes the file too long");
    kr_tensor_writer_add_metadata(w, NULL, "v");
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: the metadata key is NULL");
    kr_tensor_writer_add_metadata(w, "key", NULL);
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: the metadata value is NULL");
    kr_tensor_writer_add_metadata(w, "key", "\xed\xa0\x80 x");
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: the metadata value '??? x' is not UTF-8");
    kr_tensor_writer_add_metadata(w, "k", "other");
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: the metadata key 'k' has already been added");
    kr_tensor_writer_destroy(w);
    CHECK(kr_tensor_writer_add(NULL, "x", KR_DTYPE_F32, one, floats) == KR_ERR_ARG &&
              kr_tensor_writer_add_metadata(NULL, "k", "v") == KR_ERR_ARG &&
              kr_tensor_writer_save(NULL, "x", KR_CONTAINER_SAFETENSORS) == KR_ERR_ARG &&
              !kr_tensor_writer_create(NULL),
          "NULL");
    kr_ctx_destroy(ctx);
}

/* ---- atomic writing ---- */

static kr_status save_floats(kr_ctx *ctx, const char *path)
{
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    kr_tensor_writer_add(w, "x", KR_DTYPE_F32, KR_SHAPE(6), floats);
    const kr_status status = kr_tensor_writer_save(w, path, KR_CONTAINER_SAFETENSORS);
    kr_tensor_writer_destroy(w);
    return status;
}

TEST(refused_paths)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    char message[600];
    const char *path = in_folder("no/such");
    snprintf(message, sizeof message, "tensor_file: cannot write %s: no such file or directory", path);
    CHECK(save_floats(ctx, path) == KR_ERR_IO, "no folder");
    CHECK_ERROR(ctx, KR_ERR_IO, message);
    put_file(in_folder("file"), "text");
    path = in_folder("file/x");
    snprintf(message, sizeof message, "tensor_file: cannot write %s: not a directory", path);
    save_floats(ctx, path);
    CHECK_ERROR(ctx, KR_ERR_IO, message);
    save_floats(ctx, "/dev/null");
    CHECK_ERROR(ctx, KR_ERR_IO, "tensor_file: cannot write /dev/null: not a regular file");
    save_floats(ctx, "/");
    CHECK_ERROR(ctx, KR_ERR_IO, "tensor_file: cannot write /: not a regular file");
    save_floats(ctx, NULL);
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: cannot write a file: path is NULL");
    save_floats(ctx, "");
    CHECK_ERROR(ctx, KR_ERR_IO, "tensor_file: cannot write : no such file or directory");
    CHECK(files_in_folder(false) == 1 && file_is(in_folder("file"), "text"), "the folder is as it was");
    kr_ctx_destroy(ctx);
    end_folder();
}

TEST(replacing)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const char *path = in_folder("x");
    put_file(path, "old");
    chmod(path, 0600);
    /* temporary files of another writer are not touched */
    char other[64];
    snprintf(other, sizeof other, ".krait-%ld-0.tmp", (long)getpid());
    put_file(in_folder(other), "other");
    CHECK(save_floats(ctx, path) == KR_OK, "%s", kr_ctx_message(ctx));
    struct stat info;
    CHECK(stat(path, &info) == 0 && (info.st_mode & 0777) == 0600, "permissions %o", info.st_mode & 0777);
    CHECK(files_in_folder(false) == 2 && file_is(in_folder(other), "other"), "%d files", files_in_folder(false));
    const mode_t mask = umask(027);
    CHECK(save_floats(ctx, in_folder("new")) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(stat(in_folder("new"), &info) == 0 && (info.st_mode & 0777) == 0640, "permissions %o", info.st_mode & 0777);
    chmod(path, 0664);
    CHECK(save_floats(ctx, path) == KR_OK && stat(path, &info) == 0 && (info.st_mode & 0777) == 0664, "permissions %o",
          info.st_mode & 0777);
    umask(mask);
    /* a name as long as they get */
    char name[256];
    memset(name, 'n', 255);
    name[255] = 0;
    CHECK(save_floats(ctx, in_folder(name)) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(files_in_folder(false) == 4, "%d files", files_in_folder(false));
    kr_ctx_destroy(ctx);
    end_folder();
}

/* A path without a folder is in the current one. */
TEST(bare_names)
{
    begin_folder();
    char before[512];
    if (!getcwd(before, sizeof before) || chdir(folder) != 0) SKIP("cannot change the folder");
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    CHECK(save_floats(ctx, "bare") == KR_OK && files_in_folder(false) == 1, "%s", kr_ctx_message(ctx));
    CHECK(chdir(before) == 0, "back");
    kr_ctx_destroy(ctx);
    end_folder();
}

/* Files of this process may not grow beyond `bytes`: the disk is full. */
static bool limit_files(rlim_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    limit.rlim_cur = bytes;
    return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

TEST(full_disk_leaves_the_old_file)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const char *path = in_folder("x");
    put_file(path, "old");
    struct rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    char message[600];
    snprintf(message, sizeof message, "tensor_file: cannot write %s: file too large", path);
    static const rlim_t limits[] = { 0, 1, 63, 64, 87 }; /* of 64 bytes of header and 24 of data */
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const bool limited = limit_files(limits[i]);
        const kr_status status = save_floats(ctx, path);
        setrlimit(RLIMIT_FSIZE, &before);
        CHECK(limited && status == KR_ERR_IO, "a limit of %d", (int)limits[i]);
        CHECK_ERROR(ctx, KR_ERR_IO, message);
        CHECK(file_is(path, "old") && files_in_folder(false) == 1, "the old file alone, limit %d", (int)limits[i]);
    }
    limit_files(88);
    const kr_status status = save_floats(ctx, path);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(status == KR_OK && !file_is(path, "old") && files_in_folder(false) == 1, "%s", kr_ctx_message(ctx));
    signal(SIGXFSZ, handler);
    kr_ctx_destroy(ctx);
    end_folder();
}

/* A folder where others may make files, but not replace ours: only the rename fails. And one where they may not. */
TEST(refused_renames_leave_the_old_file)
{
    if (geteuid() != 0) SKIP("needs to act as another user");
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const char *path = in_folder("x");
    put_file(path, "old");
    chmod(folder, 01777);
    if (seteuid(65534) != 0) SKIP("cannot act as another user");
    const kr_status sticky = save_floats(ctx, path);
    CHECK(seteuid(0) == 0, "back to root");
    char message[600];
    snprintf(message, sizeof message, "tensor_file: cannot write %s: operation not permitted", path);
    CHECK(sticky == KR_ERR_IO, "the rename was allowed");
    CHECK_ERROR(ctx, KR_ERR_IO, message);
    CHECK(file_is(path, "old") && files_in_folder(false) == 1, "the old file alone");
    chmod(folder, 0755);
    CHECK(seteuid(65534) == 0, "another user");
    save_floats(ctx, path);
    CHECK(seteuid(0) == 0, "back to root");
    snprintf(message, sizeof message, "tensor_file: cannot write %s: permission denied", path);
    CHECK_ERROR(ctx, KR_ERR_IO, message);
    CHECK(file_is(path, "old") && files_in_folder(false) == 1, "the old file alone");
    kr_ctx_destroy(ctx);
    end_folder();
}

TEST(every_allocation_may_fail)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    const char *path = in_folder("x");
    put_file(path, "old");
    size_t n = 1;
    for (; n < 100; n++) {
        kr_ctx_fail_allocation(ctx, n);
        kr_tensor_writer *w = kr_tensor_writer_create(ctx);
        add_all(w);
        for (int i = 0; i < 20; i++) {
            char name[32];
            snprintf(name, sizeof name, "more.%d", i);
            kr_tensor_writer_add(w, name, KR_DTYPE_F32, KR_SHAPE(1), floats);
        }
        const kr_status status = kr_tensor_writer_save(w, path, KR_CONTAINER_SAFETENSORS);
        kr_tensor_writer_destroy(w);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "allocation %zu: memory is left", n);
        CHECK(files_in_folder(false) == 1, "allocation %zu: a file is left", n);
        if (status == KR_OK && !kr_ctx_failed(ctx)) break;
        CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
        CHECK(file_is(path, "old"), "allocation %zu: the old file", n);
        kr_ctx_clear(ctx);
    }
    kr_ctx_fail_allocation(ctx, 0);
    CHECK(n > 5 && n < 100 && !file_is(path, "old"), "%zu allocations", n);
    kr_ctx_destroy(ctx);
    end_folder();
}
