/* fuzz_tensor_file.c - any bytes as a checkpoint: weights all of which can be read, or an error. The first byte tells what the
 * rest is: a file ('f'), the pickle of a torch file ('p'), or an index of two shards ('i'). With KR_FUZZ_SEEDS naming a
 * folder, valid ones of each are put there first. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <krait/tensor_file.h>

static kr_ctx *ctx;
static char folder[64];
static const float floats[6] = { 1, 2, 3, 4, 5, 6 };
static const int64_t longs[2] = { 7, -8 };

static const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void remove_folder(void)
{
    static const char *const names[] = { "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                         "model.safetensors.index.json", "pytorch_model.bin", "model.safetensors" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) remove(in_folder(names[i]));
    rmdir(folder);
}

static void write_file(const char *path, const void *head, size_t head_size, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(head, 1, head_size, f) != head_size || fwrite(data, 1, size, f) != size || fclose(f) != 0) abort();
}

/* ---- a torch file around a pickle ---- */

static uint8_t *at;

static void put(const void *bytes, size_t count)
{
    memcpy(at, bytes, count);
    at += count;
}

static void put_number(uint64_t n, int bytes)
{
    for (int i = 0; i < bytes; i++) *at++ = i < 8 ? (uint8_t)(n >> (8 * i)) : 0;
}

static void put_header(uint64_t signature, const char *name, size_t size, size_t place)
{
    const int is_central = signature == 0x02014b50;
    put_number(signature, 4);
    put_number(0, is_central ? 4 : 2);
    put_number(0, 12); /* flags, method, time, no checksum */
    put_number(size, 4);
    put_number(size, 4);
    put_number(strlen(name), 2);
    put_number(0, is_central ? 14 : 2);
    if (is_central) put_number(place, 4);
    put(name, strlen(name));
}

/* "m/data.pkl" and a storage "m/data/0" of 48 bytes; to be freed. */
static uint8_t *wrap(const uint8_t *pickle, size_t size, size_t *file_size)
{
    uint8_t *file = malloc(size + 400);
    if (!file) abort();
    static const char storage[48] = "0123456789abcdefghijklmnopqrstuvwxyz0123456789";
    at = file;
    put_header(0x04034b50, "m/data.pkl", size, 0);
    put(pickle, size);
    const size_t second = (size_t)(at - file);
    put_header(0x04034b50, "m/data/0", sizeof storage, 0);
    put(storage, sizeof storage);
    const size_t from = (size_t)(at - file);
    put_header(0x02014b50, "m/data.pkl", size, 0);
    put_header(0x02014b50, "m/data/0", sizeof storage, second);
    const size_t bytes = (size_t)(at - file) - from;
    put_number(0x06054b50, 4);
    put_number(0, 4);
    put_number(2, 2);
    put_number(2, 2);
    put_number(bytes, 4);
    put_number(from, 4);
    put_number(0, 2);
    *file_size = (size_t)(at - file);
    return file;
}

/* ---- seeds ---- */

static void copy_seed(const char *seeds, const char *name, char kind, const char *from)
{
    static char bytes[1 << 16];
    char path[600];
    FILE *f = fopen(in_folder(from), "rb");
    if (!f) abort();
    const size_t size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    snprintf(path, sizeof path, "%s/%s", seeds, name);
    write_file(path, &kind, 1, bytes, size);
}

static void write_seeds(const char *seeds)
{
#define TEXT(length, text) "X" length "\0\0\0" text
    static const char classic[] = "p\x80\2ccollections\nOrderedDict\nq\0)Rq\1(" TEXT(
        "\1", "x") "q\2ctorch._utils\n_rebuild_tensor_v2\nq\3((" TEXT("\7",
                                                                      "storage") "ctorch\nFloatStorage\n" TEXT("\1",
                                                                                                               "0")
        TEXT("\3", "cpu") "K\x0ctQK\0K\3K\4\x86K\1K\3\x86"
                          "\x89h\0)RtRu}" TEXT("\x9", "_metadata") "}sb.";
    static const char framed[] = "p\x80\4\x95\0\0\0\0\0\0\0\0}(\x8c\5model}\x94\x8c\1x\x94\x8c\x0ctorch._utils\x8c\x12"
                                 "_rebuild_parameter\x93\x8c\x0ctorch._utils\x8c\x12_rebuild_tensor_v2\x93(("
                                 "\x8c\7storage\x8c\5torch\x8c\x0bHalfStorage\x93\x8c\1"
                                 "0\x8c\3cpu\x8a\1\x18tQJ\1\0\0\0M\2\0\x85\x8b\1\0\0\0\1\x85\x88\x8c\x0b"
                                 "collections\x8c\x0bOrderedDict\x93)RNtR\x89\x8c\x0b"
                                 "collections\x8c\x0bOrderedDict\x93)R\x87Rs\x8c\4lossG12345678u.";
    char path[600];
    snprintf(path, sizeof path, "%s/classic", seeds);
    write_file(path, classic, sizeof classic - 1, "", 0);
    snprintf(path, sizeof path, "%s/framed", seeds);
    write_file(path, framed, sizeof framed - 1, "", 0);
    copy_seed(seeds, "index", 'i', "model.safetensors.index.json");
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    kr_tensor_writer_add(w, "x", KR_DTYPE_F32, KR_SHAPE(2, 3), floats);
    kr_tensor_writer_add(w, "y", KR_DTYPE_I64, KR_SCALAR, longs);
    kr_tensor_writer_add(w, "z", KR_DTYPE_F32, KR_SHAPE(6), floats);
    IGNORE(kr_tensor_writer_save_folder(w, folder, KR_CONTAINER_SAFETENSORS, 0));
    copy_seed(seeds, "safetensors", 'f', "model.safetensors");
    IGNORE(kr_tensor_writer_save_folder(w, folder, KR_CONTAINER_TORCH, 0));
    copy_seed(seeds, "torch", 'f', "pytorch_model.bin");
    kr_tensor_writer_destroy(w);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ctx = fuzz_ctx();
    if (!mkdtemp(fuzz_template(folder))) abort();
    atexit(remove_folder);
    kr_tensor_writer *w = kr_tensor_writer_create(ctx);
    kr_tensor_writer_add(w, "x", KR_DTYPE_F32, KR_SHAPE(2), floats);
    kr_tensor_writer_add(w, "y", KR_DTYPE_I64, KR_SHAPE(2), longs);
    kr_tensor_writer_add(w, "z", KR_DTYPE_F32, KR_SCALAR, floats);
    IGNORE(kr_tensor_writer_save_folder(w, folder, KR_CONTAINER_SAFETENSORS, 16));
    kr_tensor_writer_destroy(w);
    if (getenv("KR_FUZZ_SEEDS")) write_seeds(getenv("KR_FUZZ_SEEDS"));
    return kr_ctx_failed(ctx);
}

/* ---- one input ---- */

static void read_item(const kr_tensor_file *w, const kr_tensor_file_item *item)
{
    const bool is_float = item->dtype != KR_DTYPE_I32 && item->dtype != KR_DTYPE_I64;
    if (kr_tensor_file_find(w, item->name) != item) abort();
    if (item->count > 1 << 16) return; /* a stride of 0 makes much of little */
    void *out = malloc((size_t)item->count * 8 + 1);
    if (!out) abort();
    if (item->is_readable &&
        kr_tensor_file_read(w, item, is_float ? KR_DTYPE_F64 : KR_DTYPE_I64, out, item->count) != KR_OK)
        abort();
    free(out);
}

static void check(kr_tensor_file *w, size_t blocks)
{
    if ((w != NULL) == kr_ctx_failed(ctx)) abort();
    if (!w && strncmp(kr_ctx_message(ctx), "tensor_file: ", 9) != 0) abort();
    for (int64_t i = 0; i < kr_tensor_file_count(w); i++) read_item(w, kr_tensor_file_at(w, i));
    kr_tensor_file_close(w);
    if (kr_ctx_memory(ctx).live_blocks != blocks) abort();
    kr_ctx_clear(ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    if (*data == 'i') {
        write_file(in_folder("model.safetensors.index.json"), "", 0, data + 1, size - 1);
        check(kr_tensor_file_open(ctx, in_folder("model.safetensors.index.json")), blocks);
    } else if (*data == 'p') {
        size_t file_size;
        uint8_t *file = wrap(data + 1, size - 1, &file_size);
        check(kr_tensor_file_open_memory(ctx, file, file_size), blocks);
        free(file);
    } else {
        check(kr_tensor_file_open_memory(ctx, data + 1, size - 1), blocks);
    }
    return 0;
}
