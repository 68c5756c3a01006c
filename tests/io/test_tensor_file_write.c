/* test_tensor_file_write.c - what is saved is read back to the bit, in both containers, whole and in shards; a save that fails
 * leaves the old files and nothing else. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* seteuid */
#include "io/file_write.h"
#include "io/name_table.h"
#include "io/torch_write.h"
#include "tests/temp_folder.h"
#include "tests/io/torch_image.h"

#include <signal.h>
#include <sys/resource.h>

/* ---- round trips ---- */

static const float floats[6] = { 1, -2.5f, 3, 0x1p-149f, -0.0f, 3e38f };
static const double doubles[2] = { 1.0 / 3, -1e300 };
static const uint16_t halves[3] = { 0x3c01, 0x7bff, 0xfe01 };
static const int32_t ints[2] = { INT32_MIN, 7 };
static const int64_t longs[1] = { INT64_MAX };
static const char *const odd_name = "\"q\\ \t\n\x01 \xc3\xa9 \xf0\x9f\x98\x80/";

typedef struct given {
    const char *name;
    kr_dtype dtype;
    kr_shape shape;
    const void *data;
} given;

static const given all[] = { { "z", KR_DTYPE_F16, { 1, { 3 } }, halves },
                             { "q", KR_DTYPE_F32, { 2, { 2, 3 } }, floats },
                             { "none", KR_DTYPE_F64, { 3, { 4, 0, 2 } }, NULL },
                             { "d", KR_DTYPE_F64, { 1, { 2 } }, doubles },
                             { "tied", KR_DTYPE_F32, { 2, { 3, 2 } }, floats },
                             { "piece", KR_DTYPE_F32, { 1, { 2 } }, floats },
                             { "other", KR_DTYPE_I32, { 1, { 2 } }, ints },
                             { "bits", KR_DTYPE_BF16, { 8, { 1, 1, 1, 1, 1, 1, 1, 3 } }, halves },
                             { "", KR_DTYPE_I32, { 1, { 2 } }, ints },
                             { "a", KR_DTYPE_I64, { 0, { 0 } }, longs },
                             { "empty too", KR_DTYPE_BF16, { 1, { 0 } }, floats },
                             { NULL, KR_DTYPE_F32, { 4, { 1, 2, 1, 3 } }, floats } };
enum { ALL = sizeof all / sizeof *all };

static const char *name_of(int i)
{
    return all[i].name ? all[i].name : odd_name;
}

static kr_tensor_writer *make_writer(kr_ctx *ctx)
{
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    for (int i = 0; i < ALL; i++) kr_tensor_writer_add(w, name_of(i), all[i].dtype, all[i].shape, all[i].data);
    return w;
}

static void check_all(kr_ctx *ctx, const char *path, const char *what)
{
    kr_tensor_file *w = kr_tensor_file_open(ctx, path);
    if (!CHECK(w != NULL, "%s: %s", what, kr_ctx_message(ctx))) kr_ctx_clear(ctx);
    CHECK(kr_tensor_file_count(w) == ALL, "%s: %d tensors", what, (int)kr_tensor_file_count(w));
    for (int i = 0; w && i < ALL; i++) {
        const kr_tensor_file_item *item = kr_tensor_file_find(w, name_of(i));
        if (!CHECK(item && item->is_readable && item->dtype == all[i].dtype && item->shape.rank == all[i].shape.rank &&
                       item->bytes == (size_t)item->count * kr_dtype_bytes(item->dtype),
                   "%s: %s", what, name_of(i)))
            continue;
        for (int a = 0; a < item->shape.rank; a++) CHECK(item->shape.dims[a] == all[i].shape.dims[a], "%s: axis", what);
        char got[64];
        IGNORE(kr_tensor_file_read(w, item, item->dtype, got, item->count));
        CHECK(item->bytes == 0 || memcmp(got, all[i].data, item->bytes) == 0, "%s: the elements of %s", what,
              name_of(i));
    }
    CHECK_OK(ctx);
    kr_tensor_file_close(w);
}

TEST(save_round_trips)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    for (int container = 0; container < 2; container++) {
        /* 1: a file for each tensor; 17: two or three in one; 1000: all in one */
        static const size_t most[] = { 0, 1, 17, 40, 1000 };
        for (int i = 0; i < 5; i++) {
            begin_folder();
            kr_tensor_writer *w = make_writer(ctx);
            char what[60];
            snprintf(what, sizeof what, "container %d, shards of %zu", container, most[i]);
            CHECK(kr_tensor_writer_save_folder(w, folder, (kr_container)container, most[i]) == KR_OK, "%s: %s", what,
                  kr_ctx_message(ctx));
            const int files = files_in_folder(false);
            CHECK((files == 1) == (most[i] == 0 || most[i] == 1000), "%s: %d files", what, files);
            check_all(ctx, folder, what);
            /* again, over itself */
            CHECK(kr_tensor_writer_save_folder(w, folder, (kr_container)container, most[i]) == KR_OK, "%s: %s", what,
                  kr_ctx_message(ctx));
            CHECK(files_in_folder(false) == files, "%s: other files", what);
            check_all(ctx, folder, what);
            kr_tensor_writer_destroy(w);
            end_folder();
        }
    }
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left");
    kr_tensor_writer_destroy(NULL);
    kr_ctx_destroy(ctx);
}

TEST(save_nothing)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int container = 0; container < 2; container++) {
        begin_folder();
        kr_tensor_writer *w = kr_tensor_writer_create(ctx);
        CHECK(kr_tensor_writer_save_folder(w, folder, (kr_container)container, 5) == KR_OK, "%s", kr_ctx_message(ctx));
        kr_tensor_file *back = kr_tensor_file_open(ctx, folder);
        CHECK(back && kr_tensor_file_count(back) == 0 && kr_tensor_file_container(back) == (kr_container)container,
              "%s", kr_ctx_message(ctx));
        kr_tensor_file_close(back);
        kr_tensor_writer_destroy(w);
        end_folder();
    }
    kr_ctx_destroy(ctx);
}

/* ---- files ---- */

static bool exists(const char *name)
{
    return access(in_folder(name), F_OK) == 0;
}

static void add_floats(kr_tensor_writer *w, const char *name, int64_t count, const float *data)
{
    kr_tensor_writer_add(w, name, KR_DTYPE_F32, KR_SHAPE(count), data);
}

TEST(save_shards)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    add_floats(w, "c", 2, floats);     /* 8 bytes */
    add_floats(w, "b", 1, floats + 1); /* 4: fits */
    add_floats(w, "a", 6, floats + 0); /* 24: more than a shard, alone; in a torch file one with c */
    add_floats(w, "e", 0, NULL);
    add_floats(w, "d", 3, floats + 3); /* 12 */
    CHECK(kr_tensor_writer_save_folder(w, folder, KR_CONTAINER_SAFETENSORS, 12) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(files_in_folder(false) == 4, "%d files", files_in_folder(false));
    CHECK(file_is(in_folder("model.safetensors.index.json"), "{\n"
                                                             "  \"metadata\": {\n"
                                                             "    \"total_size\": 48\n"
                                                             "  },\n"
                                                             "  \"weight_map\": {\n"
                                                             "    \"a\": \"model-00002-of-00003.safetensors\",\n"
                                                             "    \"b\": \"model-00001-of-00003.safetensors\",\n"
                                                             "    \"c\": \"model-00001-of-00003.safetensors\",\n"
                                                             "    \"d\": \"model-00003-of-00003.safetensors\",\n"
                                                             "    \"e\": \"model-00003-of-00003.safetensors\"\n"
                                                             "  }\n"
                                                             "}\n"),
          "the index");
    kr_tensor_file *shard = kr_tensor_file_open(ctx, in_folder("model-00001-of-00003.safetensors"));
    CHECK(shard && strcmp(kr_tensor_file_metadata(shard, "format"), "pt") == 0, "%s", kr_ctx_message(ctx));
    kr_tensor_file_close(shard);
    /* c and a share a storage of 24 bytes, more than a shard holds; what is tied stays together */
    CHECK(kr_tensor_writer_save_folder(w, folder, KR_CONTAINER_TORCH, 12) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(file_is(in_folder("pytorch_model.bin.index.json"), "{\n"
                                                             "  \"metadata\": {\n"
                                                             "    \"total_size\": 40\n"
                                                             "  },\n"
                                                             "  \"weight_map\": {\n"
                                                             "    \"a\": \"pytorch_model-00001-of-00003.bin\",\n"
                                                             "    \"b\": \"pytorch_model-00002-of-00003.bin\",\n"
                                                             "    \"c\": \"pytorch_model-00001-of-00003.bin\",\n"
                                                             "    \"d\": \"pytorch_model-00003-of-00003.bin\",\n"
                                                             "    \"e\": \"pytorch_model-00002-of-00003.bin\"\n"
                                                             "  }\n"
                                                             "}\n"),
          "the index");
    CHECK(!exists("model.safetensors.index.json"), "the other index would be read first");
    kr_tensor_file *back = kr_tensor_file_open(ctx, folder);
    CHECK(back && kr_tensor_file_shards(back) == 3 && kr_tensor_file_count(back) == 5, "%s", kr_ctx_message(ctx));
    kr_tensor_file_close(back);
    kr_tensor_writer_destroy(w);
    kr_ctx_destroy(ctx);
    end_folder();
}

/* More shards than there are tries for a temporary name. */
TEST(save_many_shards)
{
    begin_folder();
    enum { COUNT = 1200 };
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    static float values[COUNT];
    for (int i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%d", i);
        values[i] = (float)i;
        add_floats(w, name, 1, values + i);
    }
    CHECK(kr_tensor_writer_save_folder(w, folder, KR_CONTAINER_TORCH, 1) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(files_in_folder(false) == COUNT + 1, "%d files", files_in_folder(false));
    kr_tensor_file *back = kr_tensor_file_open(ctx, folder);
    CHECK(kr_tensor_file_count(back) == COUNT, "%s", kr_ctx_message(ctx));
    for (int i = 0; i < COUNT; i++) {
        float x = -1;
        IGNORE(kr_tensor_file_read(back, kr_tensor_file_at(back, i), KR_DTYPE_F32, &x, 1));
        CHECK(x == (float)i, "tensor %d is %g", i, (double)x);
    }
    kr_tensor_file_close(back);
    kr_tensor_writer_destroy(w);
    kr_ctx_destroy(ctx);
    end_folder();
}

/* What an earlier save left and what would be read in the place of this one goes; all else stays. */
TEST(save_removes_what_would_be_read)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    static const char *const names[] = { "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                         "pytorch_model.bin.index.json", "config.json" };
    kr_tensor_writer *w = make_writer(ctx);
    for (int i = 0; i < 4; i++) { /* single and sharded, of each container, in the order of the names */
        begin_folder();
        for (int n = 0; n < 5; n++) write_image(in_folder(names[n]), "old", 3);
        CHECK(kr_tensor_writer_save_folder(w, folder, i < 2 ? KR_CONTAINER_SAFETENSORS : KR_CONTAINER_TORCH,
                                           i % 2 ? 20 : 0) == KR_OK,
              "%s", kr_ctx_message(ctx));
        check_all(ctx, folder, names[i]);
        for (int n = 0; n < 5; n++) {
            CHECK(exists(names[n]) == (n >= i), "%s after %s", names[n], names[i]);
            if (n > i) CHECK(file_is(in_folder(names[n]), "old"), "%s after %s", names[n], names[i]);
        }
        end_folder();
    }
    /* a folder of such a name is no file of a save */
    begin_folder();
    mkdir(in_folder("model.safetensors"), 0755);
    CHECK(kr_tensor_writer_save_folder(w, folder, KR_CONTAINER_TORCH, 0) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(exists("model.safetensors"), "the folder");
    check_all(ctx, folder, "with a folder of that name");
    rmdir(in_folder("model.safetensors"));
    end_folder();
    kr_tensor_writer_destroy(w);
    kr_ctx_destroy(ctx);
}

/* ---- the torch file ---- */

static image saved_image(kr_ctx *ctx, const kr_named *const *tensors, int64_t count, uint64_t most_32)
{
    kr_file_writer file;
    CHECK(kr_file_create(&file, ctx, in_folder("x.bin")) && kr_torch_write(&file, tensors, count, most_32) &&
              kr_file_commit(&file),
          "%s", kr_ctx_message(ctx));
    file_image read = read_image(in_folder("x.bin"));
    return (image){ .bytes = read.data, .count = read.bytes };
}

/* The records of each member, found from the end of the file on. */
static void find_members(image *m, bool is_64)
{
    m->end = m->count - 22;
    m->locator = is_64 ? m->end - 20 : 0;
    m->end64 = is_64 ? m->locator - 56 : 0;
    m->nmembers = (int)number_in(m, is_64 ? m->end64 + 32 : m->end + 10, is_64 ? 8 : 2);
    size_t at = (size_t)number_in(m, is_64 ? m->end64 + 48 : m->end + 16, is_64 ? 8 : 4);
    for (int i = 0; i < m->nmembers && i < IMAGE_MEMBERS; i++) {
        m->central[i] = at;
        const size_t name = (size_t)number_in(m, at + 28, 2), extra = (size_t)number_in(m, at + 30, 2);
        m->local[i] = (size_t)number_in(m, at + 42, 4);
        if (m->local[i] == 0xFFFFFFFF) m->local[i] = (size_t)number_in(m, at + 46 + name + extra - 8, 8);
        m->data[i] = m->local[i] + 30 + number_in(m, m->local[i] + 26, 2) + number_in(m, m->local[i] + 28, 2);
        at += 46 + name + extra;
    }
}

TEST(torch_file_bytes)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const kr_named x = {
        .name = "x", .dtype = KR_DTYPE_F32, .shape = { 2, { 2, 3 } }, .count = 6, .data = floats, .bytes = 24
    };
    const kr_named y = {
        .name = "y", .dtype = KR_DTYPE_F32, .shape = { 0, { 0 } }, .count = 1, .data = floats, .bytes = 4
    };
    const kr_named z = {
        .name = "z", .dtype = KR_DTYPE_I64, .shape = { 1, { 1 } }, .count = 1, .data = longs, .bytes = 8
    };
    const kr_named *const tensors[] = { &y, &x, &z };
    /* by its records in 32 bits, and with each of them in 64 */
    for (int is_64 = 0; is_64 < 2; is_64++) {
        image m = saved_image(ctx, tensors, 3, is_64 ? 1 : KR_TORCH_MOST_32);
        find_members(&m, is_64);
        static const char *const names[] = { "archive/data.pkl", "archive/byteorder", "archive/data/0",
                                             "archive/data/1", "archive/version" };
        static const size_t sizes[] = { 0, 6, 24, 8, 2 };
        CHECK(m.nmembers == 5, "%d members", m.nmembers);
        for (int i = 0; i < 5; i++) {
            CHECK(number_in(&m, m.central[i] + 28, 2) == strlen(names[i]) &&
                      memcmp(m.bytes + m.central[i] + 46, names[i], strlen(names[i])) == 0 &&
                      memcmp(m.bytes + m.local[i] + 30, names[i], strlen(names[i])) == 0,
                  "name of member %d", i);
            CHECK(m.data[i] % 64 == 0, "member %d at %zu", i, m.data[i]);
            const uint64_t bytes = number_in(&m, m.central[i] + 24, 4), packed = number_in(&m, m.central[i] + 20, 4);
            if (is_64) CHECK(bytes == 0xFFFFFFFF && packed == bytes, "64 bits");
            else CHECK((i == 0 || bytes == sizes[i]) && packed == bytes, "size of member %d", i);
            if (i > 0)
                CHECK(number_in(&m, m.central[i] + 16, 4) == checksum(m.bytes + m.data[i], sizes[i]), "checksum of %d",
                      i);
        }
        CHECK(memcmp(m.bytes + m.data[1], "little", 6) == 0 && memcmp(m.bytes + m.data[4], "3\n", 2) == 0, "notes");
        CHECK(memcmp(m.bytes + m.data[2], floats, 24) == 0 && memcmp(m.bytes + m.data[3], longs, 8) == 0, "storages");
        /* the pickle, byte by byte: names and types by the memo from their second use on */
        static const char want[] = BEGIN "}(" TEXT("\1", "y") "ctorch._utils\n_rebuild_tensor_v2\nq\0((" TEXT(
            "\7", "storage") "q\2ctorch\n"
                             "FloatStorage\nq\4" TEXT("\1", "0")
                                 TEXT("\3",
                                      "cpu") "q\3K\6tQK\0))\x89"
                                             "ccollections\nOrderedDict\nq\1)RtR" TEXT("\1", "x") "h\0((h\2h\4" TEXT(
                                                 "\1", "0") "h\3K\6tQK\0K\2K\3\x86K\3K\1\x86\x89h\1)"
                                                            "RtR" TEXT("\1", "z") "h\0(("
                                                                                  "h\2ctorch\nLongStorage\nq"
                                                                                  "\x9" TEXT("\1", "1") "h\3K\1tQK\0K\1"
                                                                                                        "\x85K\1\x85"
                                                                                                        "\x89h\1)RtRu.";
        CHECK(memcmp(m.bytes + m.data[0], want, sizeof want - 1) == 0, "the pickle");
        kr_tensor_file *back = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
        float value[6];
        IGNORE(kr_tensor_file_read(back, kr_tensor_file_find(back, "x"), KR_DTYPE_F32, value, 6));
        CHECK(kr_tensor_file_count(back) == 3 && memcmp(value, floats, 24) == 0, "%s", kr_ctx_message(ctx));
        kr_tensor_file_close(back);
        CHECK_OK(ctx);
        free(m.bytes);
    }
    kr_ctx_destroy(ctx);
    end_folder();
}

/* Numbers of every length in a pickle: sizes next to a zero cost nothing. */
TEST(torch_file_numbers)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    static const int64_t sizes[] = {
        0, 1, 255, 256, 65535, 65536, INT32_MAX, INT64_C(1) << 31, UINT32_MAX, INT64_C(1) << 40
    };
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    for (int i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        kr_tensor_writer_add(w, name, KR_DTYPE_F32, KR_SHAPE(sizes[i], 0), NULL);
    }
    kr_tensor_writer_add(w, "four", KR_DTYPE_F32, KR_SHAPE(1, 2, 3, 1), floats);
    CHECK(kr_tensor_writer_save_folder(w, folder, KR_CONTAINER_TORCH, 0) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_tensor_writer_destroy(w);
    kr_tensor_file *back = kr_tensor_file_open(ctx, folder);
    CHECK_OK(ctx);
    for (int i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        const kr_tensor_file_item *item = kr_tensor_file_find(back, name);
        CHECK(item && item->shape.rank == 2 && item->shape.dims[0] == sizes[i] && item->shape.dims[1] == 0, "%s", name);
    }
    kr_tensor_file_close(back);
    kr_ctx_destroy(ctx);
    end_folder();
}

/* More members than 16 bits count. */
TEST(torch_file_of_many)
{
    begin_folder();
    const int count = kr_test_quick() ? 3000 : 66000;
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_named *tensors = calloc((size_t)count, sizeof *tensors);
    const kr_named **list = calloc((size_t)count, sizeof *list);
    char(*names)[16] = calloc((size_t)count, sizeof *names);
    float *values = calloc((size_t)count, sizeof *values);
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        values[i] = (float)i;
        tensors[i] = (kr_named){ .name = names[i], .dtype = KR_DTYPE_F32, .count = 1, .data = values + i, .bytes = 4 };
        list[i] = &tensors[i];
    }
    image m = saved_image(ctx, list, count, KR_TORCH_MOST_32);
    find_members(&m, !kr_test_quick());
    CHECK(m.nmembers == count + 3, "%d members", m.nmembers);
    kr_tensor_file *back = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    CHECK(kr_tensor_file_count(back) == count, "%s", kr_ctx_message(ctx));
    for (int i = 0; back && i < count; i += 997) {
        float x = -1;
        IGNORE(kr_tensor_file_read(back, kr_tensor_file_find(back, names[i]), KR_DTYPE_F32, &x, 1));
        CHECK(x == values[i], "%s is %g", names[i], (double)x);
    }
    kr_tensor_file_close(back);
    free(m.bytes);
    free(tensors);
    free(list);
    free(names);
    free(values);
    kr_ctx_destroy(ctx);
    end_folder();
}

/* ---- errors and faults ---- */

TEST(save_refused)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    add_floats(w, "x", 1, floats);
    add_floats(w, "x", 1, floats);
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: tensor 'x' has already been added");
    add_floats(w, NULL, 1, floats);
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: tensor is NULL");
    add_floats(w, "\xff", 1, floats);
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: tensor '?' is not UTF-8");
    add_floats(w, "y", 1, NULL);
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: tensor 'y': data is NULL");
    add_floats(w, "__metadata__", 1, floats);
    CHECK_ERROR(ctx, KR_ERR_ARG,
                "tensor_file: no tensor can have the name __metadata__, which safetensors files reserve");
    kr_tensor_writer_add(w, "y", (kr_dtype)7, KR_SCALAR, floats);
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "tensor_file: tensor 'y': 7 is not a kr_dtype");
    IGNORE(kr_tensor_writer_save_folder(w, NULL, KR_CONTAINER_TORCH, 0));
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: folder is NULL");
    IGNORE(kr_tensor_writer_save_folder(w, folder, (kr_container)2, 0));
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: 2 is not a kr_container");
    char message[600];
    snprintf(message, sizeof message, "tensor_file: cannot write to %s: no such folder", in_folder("none"));
    IGNORE(kr_tensor_writer_save_folder(w, in_folder("none"), KR_CONTAINER_TORCH, 0));
    CHECK_ERROR(ctx, KR_ERR_IO, message);
    mkdir(in_folder("pytorch_model.bin"), 0755);
    snprintf(message, sizeof message, "tensor_file: cannot write %s: not a regular file",
             in_folder("pytorch_model.bin"));
    IGNORE(kr_tensor_writer_save_folder(w, folder, KR_CONTAINER_TORCH, 0));
    CHECK_ERROR(ctx, KR_ERR_IO, message);
    rmdir(in_folder("pytorch_model.bin"));
    CHECK(files_in_folder(false) == 0, "nothing was written");
    kr_tensor_writer_destroy(w);
    CHECK(kr_tensor_writer_add(NULL, "x", KR_DTYPE_F32, KR_SCALAR, floats) == KR_ERR_ARG &&
              kr_tensor_writer_save_folder(NULL, folder, KR_CONTAINER_TORCH, 0) == KR_ERR_ARG &&
              !kr_tensor_writer_create(NULL),
          "NULL");
    kr_ctx_destroy(ctx);
    end_folder();
}

static int64_t bytes_in_folder(void)
{
    int64_t bytes = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        struct stat info;
        if (e->d_name[0] != '.' && stat(in_folder(e->d_name), &info) == 0)
            bytes += (int64_t)info.st_size * info.st_size;
    }
    if (dir) closedir(dir);
    return bytes;
}

/* Files may not grow beyond some size: whichever file fails, at whichever byte, the old checkpoint stays as it was. */
TEST(save_full_disk_leaves_the_old_files)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (int container = 0; container < 2; container++)
        for (int sharded = 0; sharded < 2; sharded++) {
            begin_folder();
            kr_tensor_writer *w = make_writer(ctx);
            IGNORE(kr_tensor_writer_save_folder(w, folder, (kr_container)container, sharded ? 20 : 0));
            CHECK_OK(ctx);
            const int files = files_in_folder(false);
            const int64_t bytes = bytes_in_folder();
            kr_tensor_writer *larger = make_writer(ctx);
            static float many[500];
            add_floats(larger, "more", 500, many);
            int failed = 0;
            for (rlim_t most = 0; most < 6000; most += kr_test_quick() ? 301 : 37) {
                limit.rlim_cur = most;
                setrlimit(RLIMIT_FSIZE, &limit);
                const kr_status status =
                    kr_tensor_writer_save_folder(larger, folder, (kr_container)container, sharded ? 20 : 0);
                setrlimit(RLIMIT_FSIZE, &before);
                if (status == KR_OK) break;
                failed++;
                CHECK_ERROR_HAS(ctx, KR_ERR_IO, ": file too large");
                CHECK(files_in_folder(false) == files && bytes_in_folder() == bytes, "other files, limit %d",
                      (int)most);
                check_all(ctx, folder, "the old files");
            }
            CHECK(failed > 3, "%d saves failed", failed);
            kr_tensor_writer_destroy(w);
            kr_tensor_writer_destroy(larger);
            end_folder();
        }
    signal(SIGXFSZ, handler);
    kr_ctx_destroy(ctx);
}

static kr_status save_four(kr_ctx *ctx, const float values[4])
{
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    for (int i = 0; i < 4; i++) add_floats(w, (const char *[]){ "a", "b", "c", "d" }[i], 1, values + i);
    const kr_status status = kr_tensor_writer_save_folder(w, folder, KR_CONTAINER_SAFETENSORS, 4);
    kr_tensor_writer_destroy(w);
    return status;
}

static float first_value(kr_ctx *ctx, const char *name)
{
    float x = 0;
    kr_tensor_file *shard = kr_tensor_file_open(ctx, in_folder(name));
    IGNORE(kr_tensor_file_read(shard, kr_tensor_file_at(shard, 0), KR_DTYPE_F32, &x, 1));
    kr_tensor_file_close(shard);
    return x;
}

/* A save that cannot put all its shards in place leaves no index that would take old and new ones for a whole. */
TEST(save_never_mixes_shards)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    static const float old_values[4] = { 1, 2, 3, 4 }, new_values[4] = { 5, 6, 7, 8 };
    CHECK(save_four(ctx, old_values) == KR_OK, "%s", kr_ctx_message(ctx));
    /* in a sticky folder, another user can replace what is his: all but the third shard */
    const uid_t other = 65534;
    chmod(folder, 01777);
    const bool is_allowed = geteuid() == 0 && chown(in_folder("model-00001-of-00004.safetensors"), other, other) == 0 &&
                            chown(in_folder("model-00002-of-00004.safetensors"), other, other) == 0 &&
                            chown(in_folder("model.safetensors.index.json"), other, other) == 0 && seteuid(other) == 0;
    if (!is_allowed) {
        kr_ctx_destroy(ctx);
        end_folder();
        SKIP("cannot act as another user");
    }
    const kr_status status = save_four(ctx, new_values);
    CHECK(seteuid(0) == 0, "back to root");
    CHECK(status == KR_ERR_IO, "the rename was allowed");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "model-00003-of-00004.safetensors: operation not permitted");
    CHECK(first_value(ctx, "model-00002-of-00004.safetensors") == 6 &&
              first_value(ctx, "model-00004-of-00004.safetensors") == 4,
          "old and new shards");
    CHECK(!exists("model.safetensors.index.json") && files_in_folder(false) == 4, "an index, or a temporary file");
    CHECK(!kr_tensor_file_open(ctx, folder), "opened");
    CHECK_ERROR_HAS(ctx, KR_ERR_IO, "the folder holds neither model.safetensors nor");
    kr_ctx_destroy(ctx);
    end_folder();
}

TEST(save_every_allocation_may_fail)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    for (int container = 0; container < 2; container++)
        for (int sharded = 0; sharded < 2; sharded++) {
            begin_folder();
            size_t n = 1;
            for (; n < 400; n++) {
                kr_ctx_fail_allocation(ctx, n);
                kr_tensor_writer *w = make_writer(ctx);
                const kr_status status =
                    kr_tensor_writer_save_folder(w, folder, (kr_container)container, sharded ? 20 : 0);
                kr_tensor_writer_destroy(w);
                kr_ctx_fail_allocation(ctx, 0);
                CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "allocation %zu: memory is left", n);
                if (status == KR_OK && !kr_ctx_failed(ctx)) break;
                CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
                kr_ctx_clear(ctx);
                CHECK(files_in_folder(false) == 0, "allocation %zu: files are left", n);
            }
            CHECK(n > 5 && n < 400, "%zu allocations", n);
            check_all(ctx, folder, "in the end");
            end_folder();
        }
    kr_ctx_destroy(ctx);
}

TEST(metadata_and_single_files)
{
    begin_folder();
    kr_ctx *ctx = kr_ctx_create(NULL);
    const float x[] = { 1, 2, 3 };
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    kr_tensor_writer_add(w, "x", KR_DTYPE_F32, KR_SHAPE(3), x);
    CHECK(kr_tensor_writer_save(w, in_folder("x.bin"), KR_CONTAINER_TORCH) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_tensor_writer_add_metadata(w, "made", "here");
    IGNORE(kr_tensor_writer_save(w, in_folder("y.bin"), KR_CONTAINER_TORCH));
    CHECK_ERROR(ctx, KR_ERR_UNSUPPORTED,
                "tensor_file: the writer has metadata, which torch files cannot hold; use KR_CONTAINER_SAFETENSORS");
    IGNORE(kr_tensor_writer_save(w, in_folder("y"), (kr_container)7));
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: 7 is not a kr_container");
    CHECK(kr_tensor_writer_save(w, in_folder("x.safetensors"), KR_CONTAINER_SAFETENSORS) == KR_OK &&
              kr_tensor_writer_save_folder(w, in_folder(""), KR_CONTAINER_SAFETENSORS, 0) == KR_OK,
          "%s", kr_ctx_message(ctx));
    static const char *const files[] = { "x.bin", "x.safetensors", "" };
    for (int i = 0; i < 3; i++) {
        const char *key = NULL, *value = NULL;
        float got[3] = { 0 };
        kr_tensor_file *file = kr_tensor_file_open(ctx, in_folder(files[i]));
        const kr_tensor_file_item *item = kr_tensor_file_find(file, "x");
        CHECK(item && item->is_native && item->data && memcmp(item->data, x, sizeof x) == 0, "%s: the data", files[i]);
        CHECK(kr_tensor_file_read(file, item, KR_DTYPE_F32, got, 3) == KR_OK && memcmp(got, x, sizeof x) == 0, "%s",
              files[i]);
        const kr_status status = kr_tensor_file_metadata_at(file, i == 2, &key, &value);
        const bool has_text = status == KR_OK;
        CHECK(status == (i > 0 ? KR_OK : KR_END), "%s: metadata", files[i]);
        CHECK(has_text || (!key && !value), "%s: text after the end", files[i]);
        CHECK(kr_tensor_file_metadata_at(file, 100, &key, &value) == KR_END, "%s: metadata 100", files[i]);
        CHECK_OK(ctx); /* the end is no error */
        CHECK(kr_tensor_file_metadata_at(file, -1, &key, &value) == KR_ERR_ARG, "%s: metadata -1", files[i]);
        CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: metadata -1, but they are counted from 0");
        CHECK(kr_tensor_file_metadata_at(file, i == 2, &key, &value) == status, "%s: metadata again", files[i]);
        if (has_text) CHECK(strcmp(key, "made") == 0 && strcmp(value, "here") == 0, "%s: %s", key, value);
        CHECK((kr_tensor_file_metadata(file, "made") != NULL) == (i > 0), "%s: made", files[i]);
        CHECK((kr_tensor_file_metadata(file, "format") != NULL) == (i == 2), "%s: format", files[i]);
        kr_tensor_file_close(file);
    }
    kr_tensor_writer_destroy(w);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
    end_folder();
}
