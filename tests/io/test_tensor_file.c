/* test_tensor_file.c - tensors of every type and layout out of torch files and safetensors; folders, indices and shards; what is
 * refused, and with which words. */
#define _POSIX_C_SOURCE 200809L
#include "tests/temp_folder.h"
#include "tests/io/torch_image.h"

#define X TEXT("\1", "x")

/* ---- types and layouts ---- */

/* One tensor, "x", over the whole of a storage of four elements. */
static image typed_image(const char *type, const void *data, size_t bytes)
{
    image m = { .bytes = NULL };
    put(&m, BEGIN "}" X REBUILD "((" TEXT("\7", "storage") "ctorch\n",
        sizeof(BEGIN "}" X REBUILD "((" TEXT("\7", "storage") "ctorch\n") - 1);
    put(&m, type, strlen(type));
    static const char rest[] = "\n" TEXT("\1", "0") TEXT("\3", "cpu") INT("\4") "tQ" INT("\0")
        INT("\4") "\x85" INT("\1") "\x85\x89" NO_HOOKS "tRs.";
    put(&m, rest, sizeof rest - 1);
    image file = make_torch_styled(m.bytes, m.count, data, bytes, (zip_style){ 0 }); /* not aligned */
    free(m.bytes);
    return file;
}

static void check_typed(kr_ctx *ctx, const char *type, const void *data, size_t bytes, kr_dtype dtype,
                        const double want[4])
{
    image m = typed_image(type, data, bytes);
    kr_tensor_file *w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    const kr_tensor_file_item *x = kr_tensor_file_find(w, "x");
    CHECK(x && strcmp(x->type, type) == 0 && x->is_readable && x->dtype == dtype && x->count == 4 && x->bytes == bytes,
          "%s: %s", type, kr_ctx_message(ctx));
    const bool is_float = dtype != KR_DTYPE_I32 && dtype != KR_DTYPE_I64;
    double floats[4] = { 0 };
    int64_t integers[4] = { 0 };
    IGNORE(kr_tensor_file_read(w, x, is_float ? KR_DTYPE_F64 : KR_DTYPE_I64,
                               is_float ? (void *)floats : (void *)integers, 4));
    CHECK_OK(ctx);
    for (int i = 0; i < 4; i++) {
        const double got = is_float ? floats[i] : (double)integers[i];
        CHECK(got == want[i], "%s[%d] is %g, not %g", type, i, got, want[i]);
    }
    IGNORE(kr_tensor_file_read(w, x, is_float ? KR_DTYPE_I64 : KR_DTYPE_F64, floats, 4));
    char part[100];
    snprintf(part, sizeof part, "tensor_file: tensor 'x' of type %s cannot be read as %s", type,
             is_float ? "i64" : "f64");
    CHECK_ERROR(ctx, KR_ERR_DTYPE, part);
    kr_tensor_file_close(w);
    free(m.bytes);
}

TEST(weights_torch_types)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    static const double doubles[4] = { 1.0 / 3, -1e300, 0, 7 };
    static const float floats[4] = { 0.1f, -3e38f, 0x1p-149f, 2 };
    static const uint16_t f16[4] = { 0x3c00, 0xc000, 0x0001, 0x7bff }, bf16[4] = { 0x3f80, 0xc040, 0x0001, 0x7f7f };
    static const int64_t longs[4] = { INT64_C(1) << 40, -1, 0, 5 };
    static const int32_t ints[4] = { INT32_MIN, INT32_MAX, -1, 0 };
    static const int16_t shorts[4] = { INT16_MIN, INT16_MAX, -1, 0 };
    static const signed char chars[4] = { -128, 127, -1, 0 };
    static const unsigned char bytes[4] = { 255, 128, 1, 0 };
#define TYPED(type, data, dtype, ...)                                                                                  \
    check_typed(ctx, (type), (data), sizeof(data), (dtype), (const double[4]){ __VA_ARGS__ })
    TYPED("DoubleStorage", doubles, KR_DTYPE_F64, 1.0 / 3, -1e300, 0, 7);
    TYPED("FloatStorage", floats, KR_DTYPE_F32, 0.1f, -3e38f, 0x1p-149, 2);
    TYPED("HalfStorage", f16, KR_DTYPE_F16, 1, -2, 0x1p-24, 65504);
    TYPED("BFloat16Storage", bf16, KR_DTYPE_BF16, 1, -3, 0x1p-133, 0x1.fep127);
    TYPED("LongStorage", longs, KR_DTYPE_I64, 0x1p40, -1, 0, 5);
    TYPED("IntStorage", ints, KR_DTYPE_I32, INT32_MIN, INT32_MAX, -1, 0);
    TYPED("ShortStorage", shorts, KR_DTYPE_I32, INT16_MIN, INT16_MAX, -1, 0);
    TYPED("CharStorage", chars, KR_DTYPE_I32, -128, 127, -1, 0);
    TYPED("ByteStorage", bytes, KR_DTYPE_I32, 255, 128, 1, 0);
    TYPED("BoolStorage", bytes, KR_DTYPE_I32, 255, 128, 1, 0);
#undef TYPED
    kr_ctx_destroy(ctx);
}

/* Every pair of float types: through the conversion of the base module, element by element. */
TEST(weights_conversions)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    static const double doubles[4] = { 1.0 / 3, -65519.9999, 1e-7, 3.0000001 };
    image m = typed_image("DoubleStorage", doubles, sizeof doubles);
    kr_tensor_file *w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    const kr_tensor_file_item *x = kr_tensor_file_find(w, "x");
    float f32[4];
    uint16_t f16[4], bf16[4];
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_F32, f32, 4));
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_F16, f16, 4));
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_BF16, bf16, 4));
    CHECK(f32[0] == (float)(1.0 / 3) && f32[2] == 1e-7f, "f64 to f32");
    CHECK(f16[0] == 0x3555 && f16[1] == 0xfbff && f16[2] == 0x0002 && f16[3] == 0x4200, "f64 to f16");
    CHECK(bf16[0] == 0x3eab && bf16[3] == 0x4040, "f64 to bf16");
    kr_tensor_file_close(w);
    free(m.bytes);

    m = typed_image("BFloat16Storage", (const uint16_t[]){ 0x3f80, 0xc040, 0x3eab, 0x7f80 }, 8);
    w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    x = kr_tensor_file_find(w, "x");
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_F32, f32, 4));
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_F16, f16, 4));
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_BF16, bf16, 4));
    CHECK(f32[0] == 1 && f32[1] == -3 && f32[2] == 0x1.56p-2f && isinf(f32[3]), "bf16 to f32");
    CHECK(f16[0] == 0x3c00 && f16[1] == 0xc200 && f16[2] == 0x3558 && f16[3] == 0x7c00, "bf16 to f16");
    CHECK(bf16[1] == 0xc040 && bf16[3] == 0x7f80, "bf16 to bf16");
    kr_tensor_file_close(w);
    free(m.bytes);

    m = typed_image("HalfStorage", (const uint16_t[]){ 0x3c01, 0xc200, 0x0001, 0xfc00 }, 8);
    w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    x = kr_tensor_file_find(w, "x");
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_F32, f32, 4));
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_BF16, bf16, 4));
    CHECK(f32[0] == 0x1.004p0f && f32[1] == -3 && f32[2] == 0x1p-24f && isinf(f32[3]), "f16 to f32");
    CHECK(bf16[0] == 0x3f80 && bf16[1] == 0xc040 && bf16[2] == 0x3380 && bf16[3] == 0xff80, "f16 to bf16");
    kr_tensor_file_close(w);
    free(m.bytes);

    m = typed_image("FloatStorage", (const float[]){ 1, -3, 1e-7f, 65520 }, 16);
    w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    x = kr_tensor_file_find(w, "x");
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_BF16, bf16, 4));
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_F16, f16, 4));
    CHECK(bf16[0] == 0x3f80 && bf16[1] == 0xc040 && bf16[3] == 0x4780, "f32 to bf16");
    CHECK(f16[0] == 0x3c00 && f16[2] == 0x0002 && f16[3] == 0x7c00, "f32 to f16");
    CHECK_OK(ctx);
    kr_tensor_file_close(w);
    free(m.bytes);
    kr_ctx_destroy(ctx);
}

/* A tensor over the six floats, read in row-major order as f32 and as f64. */
static void check_layout(kr_ctx *ctx, image m, const char *what, int64_t count, const double *want)
{
    kr_tensor_file *w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    const kr_tensor_file_item *x = kr_tensor_file_find(w, "x");
    CHECK(x && x->count == count && x->bytes == 4 * (size_t)count, "%s: %s", what, kr_ctx_message(ctx));
    float f32[64];
    double f64[64];
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_F32, f32, count));
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_F64, f64, count));
    CHECK_OK(ctx);
    for (int i = 0; i < count; i++)
        CHECK((double)f32[i] == want[i] && f64[i] == want[i], "%s[%d] is %g, not %g", what, i, f64[i], want[i]);
    kr_tensor_file_close(w);
    free(m.bytes);
}

TEST(weights_torch_layouts)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
#define LAYOUT(offset, sizes, strides, ...)                                                                            \
    check_layout(ctx, TORCH(BEGIN "}" X TENSOR_OF(SIX, offset, sizes, strides) "s."), #sizes " " #strides,             \
                 (int64_t)(sizeof((const double[]){ __VA_ARGS__ }) / sizeof(double)), (const double[]){ __VA_ARGS__ })
    LAYOUT("\0", INT("\6") "\x85", INT("\1") "\x85", 1, 2, 3, 4, 5, 6);
    LAYOUT("\2", ")", ")", 3);                                                              /* rank 0 */
    LAYOUT("\1", INT("\4") "\x85", INT("\1") "\x85", 2, 3, 4, 5);                           /* a piece */
    LAYOUT("\0", INT("\3") "\x85", INT("\2") "\x85", 1, 3, 5);                              /* every second */
    LAYOUT("\0", INT("\3") INT("\2") "\x86", INT("\1") INT("\3") "\x86", 1, 4, 2, 5, 3, 6); /* transposed */
    LAYOUT("\1", INT("\2") INT("\2") "\x86", INT("\3") INT("\1") "\x86", 2, 3, 5, 6);       /* columns */
    LAYOUT("\0", INT("\2") INT("\3") "\x86", INT("\1") INT("\0") "\x86", 1, 1, 1, 2, 2, 2); /* stride 0, inner */
    LAYOUT("\4", INT("\3") INT("\2") "\x86", INT("\0") INT("\1") "\x86", 5, 6, 5, 6, 5, 6); /* stride 0, outer */
    LAYOUT("\3", INT("\2") INT("\2") "\x86", INT("\0") INT("\0") "\x86", 4, 4, 4, 4);       /* one element */
    LAYOUT("\0", INT("\3") INT("\2") "\x86", INT("\1") INT("\1") "\x86", 1, 2, 2, 3, 3, 4); /* windows */
    LAYOUT("\0", INT("\1") INT("\6") INT("\1") "\x87", INT("\x63") INT("\1") INT("\x63") "\x87", 1, 2, 3, 4, 5, 6);
    LAYOUT("\0", "(" INT("\2") INT("\1") INT("\3") INT("\1") "t", "(" INT("\1") INT("\x9") INT("\2") INT("\7") "t", 1,
           3, 5, 2, 4, 6);
    LAYOUT("\0", "(" INT("\1") INT("\1") INT("\1") INT("\2") INT("\1") INT("\1") INT("\1") INT("\2") "t",
           "(" INT("\0") INT("\0") INT("\0") INT("\1") INT("\0") INT("\0") INT("\0") INT("\3") "t", 1, 4, 2, 5);
    LAYOUT("\0", INT("\2") INT("\1") INT("\3") "\x87", INT("\3") INT("\3") INT("\1") "\x87", 1, 2, 3, 4, 5, 6);
#undef LAYOUT
    const double none[1] = { 0 };
    check_layout(ctx,
                 TORCH(BEGIN "}" X TENSOR_OF(SIX, "\6", INT("\0") INT("\3") "\x86", INT("\3") INT("\1") "\x86") "s."),
                 "empty", 0, none);
    check_layout(ctx,
                 TORCH(BEGIN "}" X TENSOR_OF(SIX, "\0", INT("\3") INT("\0") "\x86",
                                             "\x8a\x8\xff\xff\xff\xff\xff\xff\xff\x7f" INT("\1") "\x86") "s."),
                 "empty, with a long stride", 0, none);
    kr_ctx_destroy(ctx);
}

TEST(weights_tied_and_ordered)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    image m = TORCH(BEGIN "}(" TEXT("\1", "c") TENSOR_OF(SIX, "\3", INT("\2") "\x85", INT("\1") "\x85") TEXT("\1", "b")
                        TENSOR TEXT("\1", "a") TENSOR "u.");
    kr_tensor_file *w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    CHECK_OK(ctx);
    static const char *const order[] = { "a", "b", "c" };
    for (int i = 0; i < 3; i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(w, i);
        CHECK(item && strcmp(item->name, order[i]) == 0 && item->shard == 0 && kr_tensor_file_find(w, order[i]) == item,
              "%d", i);
    }
    CHECK(!kr_tensor_file_at(w, 3) && !kr_tensor_file_at(w, -1) && !kr_tensor_file_find(w, "d") &&
              !kr_tensor_file_find(w, NULL),
          "none");
    CHECK(kr_tensor_file_shards(w) == 1 && strcmp(kr_tensor_file_shard_path(w, 0), "") == 0 &&
              !kr_tensor_file_shard_path(w, 1) && !kr_tensor_file_shard_path(w, -1) &&
              kr_tensor_file_container(w) == KR_CONTAINER_TORCH,
          "one file, in memory");
    float c[2];
    IGNORE(kr_tensor_file_read(w, kr_tensor_file_find(w, "c"), KR_DTYPE_F32, c, 2));
    CHECK(c[0] == 4 && c[1] == 5, "c");
    kr_tensor_file_close(w);
    free(m.bytes);
    CHECK(kr_tensor_file_count(NULL) == 0 && !kr_tensor_file_at(NULL, 0) && !kr_tensor_file_find(NULL, "x") &&
              kr_tensor_file_shards(NULL) == 0 && !kr_tensor_file_shard_path(NULL, 0) &&
              kr_tensor_file_container(NULL) == KR_CONTAINER_SAFETENSORS && !kr_tensor_file_open(NULL, "x") &&
              !kr_tensor_file_open_memory(NULL, "x", 1) &&
              kr_tensor_file_read(NULL, NULL, KR_DTYPE_F32, NULL, 0) == KR_ERR_ARG,
          "NULL reads as nothing");
    kr_tensor_file_close(NULL);
    kr_ctx_destroy(ctx);
}

TEST(weights_reads_refused)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    image m = TORCH(BEGIN "}" X TENSOR "s.");
    kr_tensor_file *w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    const kr_tensor_file_item *x = kr_tensor_file_find(w, "x");
    float out[6];
    IGNORE(kr_tensor_file_read(w, NULL, KR_DTYPE_F32, out, 6));
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: item is NULL; was the tensor found?");
    IGNORE(kr_tensor_file_read(w, x, (kr_dtype)9, out, 6));
    CHECK_ERROR(ctx, KR_ERR_DTYPE, "tensor_file: 9 is not a kr_dtype");
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_F32, out, 5));
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "tensor_file: tensor 'x' [2, 3] has 6 elements, not 5");
    IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_F32, NULL, 6));
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: out is NULL");
    const kr_tensor_file_item copy = *x;
    IGNORE(kr_tensor_file_read(w, &copy, KR_DTYPE_F32, out, 6));
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: the item is not one of this file");
    kr_tensor_file_close(w);
    free(m.bytes);
    m = typed_image("LongStorage", (const int64_t[]){ 1, 2, INT64_C(1) << 31, 0 }, 32);
    w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    CHECK(kr_tensor_file_read(w, kr_tensor_file_find(w, "x"), KR_DTYPE_I32, out, 4) == KR_ERR_NUMERIC, "too large");
    CHECK_ERROR(ctx, KR_ERR_NUMERIC, "tensor_file: element 2 of tensor 'x' is 2147483648, which does not fit i32");
    kr_tensor_file_close(w);
    free(m.bytes);
    kr_ctx_destroy(ctx);
}

/* ---- files and folders ---- */

/* Safetensors with one or two f32 tensors of one element each. */
static void write_safetensors(const char *name, const char *first, float x, const char *second, float y)
{
    char header[400];
    int n = snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}", first);
    if (second)
        n += snprintf(header + n, sizeof header - (size_t)n,
                      ",\"%s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}", second);
    n += snprintf(header + n, sizeof header - (size_t)n, "}");
    image m = { .bytes = NULL };
    put_number(&m, (uint64_t)n, 8);
    put(&m, header, (size_t)n);
    put(&m, &x, 4);
    if (second) put(&m, &y, 4);
    write_image(in_folder(name), m.bytes, m.count);
    free(m.bytes);
}

static void write_torch(const char *name, const char *tensor, float x)
{
    image p = { .bytes = NULL };
    put(&p, BEGIN "}X", 4);
    put_number(&p, strlen(tensor), 4);
    put(&p, tensor, strlen(tensor));
    static const char rest[] = TENSOR_OF(STORAGE("FloatStorage", "\1"), "\0", ")", ")") "s.";
    put(&p, rest, sizeof rest - 1);
    image m = make_torch_styled(p.bytes, p.count, &x, 4, (zip_style){ 0 });
    write_image(in_folder(name), m.bytes, m.count);
    free(m.bytes);
    free(p.bytes);
}

static void write_text(const char *name, const char *text)
{
    write_image(in_folder(name), text, strlen(text));
}

static double value_in(kr_ctx *ctx, const char *path, const char *tensor)
{
    kr_tensor_file *w = kr_tensor_file_open(ctx, path);
    double x = NAN;
    const kr_tensor_file_item *item = kr_tensor_file_find(w, tensor);
    if (item) IGNORE(kr_tensor_file_read(w, item, KR_DTYPE_F64, &x, 1));
    kr_tensor_file_close(w);
    return x;
}

/* With the folder's path for each '@' of the text. */
static void check_path_error(kr_ctx *ctx, const char *path, kr_status status, const char *text)
{
    char want[1200];
    size_t n = 0;
    for (; *text; text++)
        n += (size_t)snprintf(want + n, sizeof want - n, "%.*s", *text == '@' ? 999 : 1, *text == '@' ? folder : text);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    CHECK(!kr_tensor_file_open(ctx, path), "%s opens", path);
    CHECK_ERROR(ctx, status, want);
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left");
}

TEST(weights_folders)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    check_path_error(
        ctx, folder, KR_ERR_IO,
        "tensor_file: cannot open @: the folder holds neither model.safetensors nor pytorch_model.bin, nor an "
        "index of either");
    /* from the last that is looked for to the first */
    write_torch("p-1.bin", "x", 1);
    write_text("pytorch_model.bin.index.json", "{\"weight_map\":{\"x\":\"p-1.bin\"}}");
    CHECK(value_in(ctx, folder, "x") == 1, "an index of torch files: %s", kr_ctx_message(ctx));
    write_torch("pytorch_model.bin", "x", 2);
    CHECK(value_in(ctx, folder, "x") == 2, "a torch file: %s", kr_ctx_message(ctx));
    write_safetensors("m-1.safetensors", "x", 3, NULL, 0);
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"x\":\"m-1.safetensors\"},\"metadata\":{}}");
    CHECK(value_in(ctx, folder, "x") == 3, "an index of safetensors: %s", kr_ctx_message(ctx));
    write_safetensors("model.safetensors", "x", 4, NULL, 0);
    CHECK(value_in(ctx, folder, "x") == 4, "safetensors: %s", kr_ctx_message(ctx));
    CHECK(value_in(ctx, in_folder(""), "x") == 4, "with a '/': %s", kr_ctx_message(ctx));
    /* each by its own name, whatever that is */
    CHECK(value_in(ctx, in_folder("pytorch_model.bin"), "x") == 2, "%s", kr_ctx_message(ctx));
    CHECK(value_in(ctx, in_folder("pytorch_model.bin.index.json"), "x") == 1, "%s", kr_ctx_message(ctx));
    rename(in_folder("p-1.bin"), in_folder("odd.safetensors"));
    CHECK(value_in(ctx, in_folder("odd.safetensors"), "x") == 1, "%s", kr_ctx_message(ctx));
    char before[512];
    CHECK(getcwd(before, sizeof before) && chdir(folder) == 0, "into the folder");
    CHECK(value_in(ctx, "model.safetensors.index.json", "x") == 3 && value_in(ctx, ".", "x") == 4, "%s",
          kr_ctx_message(ctx));
    CHECK(chdir(before) == 0, "and back");
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left");
    kr_ctx_destroy(ctx);
    end_folder();
}

TEST(weights_files_refused)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    check_path_error(ctx, NULL, KR_ERR_ARG, "tensor_file: path is NULL");
    check_path_error(ctx, in_folder("none"), KR_ERR_IO, "tensor_file: cannot open @/none: no such file or directory");
    check_path_error(ctx, in_folder("a.index.json"), KR_ERR_IO,
                     "tensor_file: cannot open @/a.index.json: no such file or directory");
    check_path_error(ctx, "/dev/null", KR_ERR_IO, "tensor_file: cannot open /dev/null: not a regular file");
    write_text("a", "");
    check_path_error(ctx, in_folder("a"), KR_ERR_FORMAT,
                     "tensor_file: @/a: safetensors: 0 bytes are too few for the length of the header, which takes 8");
    write_text("a", "Some other text");
    check_path_error(ctx, in_folder("a"), KR_ERR_FORMAT, "tensor_file: @/a: neither safetensors nor a torch file");
    write_text("a", "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 5\n");
    check_path_error(ctx, in_folder("a"), KR_ERR_FORMAT,
                     "tensor_file: @/a: a Git LFS pointer in place of the file; fetch the file with: git lfs pull");
    static const unsigned char old[] = "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\2M\xe9\3.";
    write_image(in_folder("a"), old, sizeof old - 1);
    check_path_error(
        ctx, in_folder("a"), KR_ERR_UNSUPPORTED,
        "tensor_file: @/a: a torch file in the format before torch 1.6, which is not a zip; rewrite it in Python "
        "with torch.save(torch.load(path), path)");
    image m = TORCH(BEGIN "cos\nsystem\n.");
    write_image(in_folder("pytorch_model.bin"), m.bytes, m.count);
    free(m.bytes);
    check_path_error(
        ctx, folder, KR_ERR_FORMAT,
        "tensor_file: @/pytorch_model.bin: the pickle at byte 2: it asks for os.system, which is neither a tensor "
        "nor a dictionary");
    m = TORCH(BEGIN "}(" X TENSOR X TENSOR "u.");
    write_image(in_folder("pytorch_model.bin"), m.bytes, m.count);
    free(m.bytes);
    check_path_error(ctx, folder, KR_ERR_FORMAT, "tensor_file: @/pytorch_model.bin: tensor 'x' occurs twice");
    CHECK(!kr_tensor_file_open_memory(ctx, NULL, 0), "no memory");
    CHECK_ERROR(ctx, KR_ERR_ARG, "tensor_file: data is NULL");
    kr_ctx_destroy(ctx);
    end_folder();
}

/* ---- indices ---- */

TEST(weights_shards)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    write_safetensors("b.safetensors", "x", 1, "y", 2);
    write_safetensors("a.safetensors", "z", 3, NULL, 0);
    write_text("m.index.json",
               "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"x\":\"b.safetensors\",\"z\":\"a.safetensors\","
               "\"y\":\"b.safetensors\"}}");
    kr_tensor_file *w = kr_tensor_file_open(ctx, in_folder("m.index.json"));
    CHECK_OK(ctx);
    static const char *const order[] = { "z", "x", "y" };
    static const double want[] = { 3, 1, 2 };
    CHECK(kr_tensor_file_count(w) == 3 && kr_tensor_file_shards(w) == 2 &&
              kr_tensor_file_container(w) == KR_CONTAINER_SAFETENSORS,
          "three in two");
    for (int i = 0; i < 3; i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(w, i);
        double x = 0;
        IGNORE(kr_tensor_file_read(w, item, KR_DTYPE_F64, &x, 1));
        CHECK(item && strcmp(item->name, order[i]) == 0 && item->shard == (i > 0) && x == want[i] &&
                  kr_tensor_file_find(w, order[i]) == item,
              "tensor %d", i);
    }
    CHECK(strcmp(kr_tensor_file_shard_path(w, 0), in_folder("a.safetensors")) == 0 &&
              strcmp(kr_tensor_file_shard_path(w, 1), in_folder("b.safetensors")) == 0,
          "their paths");
    kr_tensor_file_close(w);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    size_t n = 1;
    for (; n < 100; n++) {
        kr_ctx_fail_allocation(ctx, n);
        w = kr_tensor_file_open(ctx, in_folder("m.index.json"));
        kr_ctx_fail_allocation(ctx, 0);
        CHECK((w != NULL) != kr_ctx_failed(ctx), "allocation %zu: neither weights nor an error", n);
        kr_tensor_file_close(w);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "allocation %zu: memory is left", n);
        if (w) break;
        CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
    }
    CHECK(n > 4 && n < 100, "%zu allocations", n);
    kr_ctx_destroy(ctx);
    end_folder();
}

TEST(weights_indices_refused)
{
    begin_folder();
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    write_safetensors("a", "x", 1, "y", 2);
    write_safetensors("b", "z", 3, NULL, 0);
    write_safetensors("bx", "x", 3, NULL, 0);
    write_torch("t", "z", 3);
    write_text("empty", "");
    mkdir(in_folder("sub"), 0755);
    static const struct {
        const char *map, *message;
        kr_status status;
    } rows[] = {
        { "{\"x\":\"a\",\"y\":\"a\",\"q\":\"a\"}", "i: weight_map: tensor 'q' is not in a", 0 },
        { "{\"x\":\"a\",\"y\":\"a\",\"q\":\"b\",\"z\":\"b\"}", "i: weight_map: tensor 'q' is not in b", 0 },
        { "{\"x\":\"a\"}", "i: tensor 'y' of a is not in weight_map", 0 },
        { "{\"x\":\"a\",\"y\":\"b\",\"z\":\"b\"}", "i: tensor 'y' is in a, but weight_map says in b", 0 },
        { "{\"x\":\"a\",\"y\":\"a\",\"q\":\"bx\"}", "tensor 'x' is in @/a and in @/bx", 0 },
        { "{\"x\":\"a\",\"y\":\"a\",\"z\":\"t\"}", "@/a and @/t are not of the same kind", 0 },
        { "{\"x\":\"a\",\"y\":\"a\",\"z\":\"none\"}", "cannot open @/none: no such file or directory", KR_ERR_IO },
        { "{\"x\":\"sub\"}", "cannot open @/sub: not a regular file", KR_ERR_IO },
        { "{\"x\":\"empty\"}", "@/empty: safetensors: 0 bytes are too few for the length of the header, which takes 8",
          0 },
        { "{}", "i: the index has no weight_map: an object of tensors and their files", 0 },
        { "[]", "i: the index has no weight_map: an object of tensors and their files", 0 },
        { "null", "i: the index has no weight_map: an object of tensors and their files", 0 },
        { "{\"x\":1}", "i: weight_map: the file of tensor 'x' is not the name of a file in the folder", 0 },
        { "{\"x\":\"\"}", "i: weight_map: the file of tensor 'x' is not the name of a file in the folder", 0 },
        { "{\"x\":\".\"}", "i: weight_map: the file of tensor 'x' is not the name of a file in the folder", 0 },
        { "{\"x\":\"..\"}", "i: weight_map: the file of tensor 'x' is not the name of a file in the folder", 0 },
        { "{\"x\":\"/etc/passwd\"}", "i: weight_map: the file of tensor 'x' is not the name of a file in the folder",
          0 },
        { "{\"x\":\"../a\"}", "i: weight_map: the file of tensor 'x' is not the name of a file in the folder", 0 },
        { "{\"x\":\"sub/a\"}", "i: weight_map: the file of tensor 'x' is not the name of a file in the folder", 0 },
        { "{\"x\":\"sub\\\\a\"}", "i: weight_map: the file of tensor 'x' is not the name of a file in the folder", 0 },
        { "{\"x\":\"c:a\"}", "i: weight_map: the file of tensor 'x' is not the name of a file in the folder", 0 },
        { "{\"x\":\"a\\u0000b\"}", "i: weight_map: the file of tensor 'x' is not the name of a file in the folder", 0 },
        { "{\"x\\u0000\":\"a\"}", "i: weight_map: the name of tensor 'x?' holds a zero byte", 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[400], message[500];
        snprintf(text, sizeof text, "{\"metadata\":{},\"weight_map\":%s}", rows[i].map);
        write_text("i.index.json", text);
        const bool is_index = strncmp(rows[i].message, "i: ", 3) == 0;
        snprintf(message, sizeof message, "tensor_file: %s%s", is_index ? "@/i.index.json: " : "",
                 rows[i].message + (is_index ? 3 : 0));
        check_path_error(ctx, in_folder("i.index.json"), rows[i].status ? rows[i].status : KR_ERR_FORMAT, message);
    }
    write_text("i.index.json", "{\"weight_map\":{\"x\":\"a\",\"x\":\"a\"}}");
    CHECK(!kr_tensor_file_open(ctx, in_folder("i.index.json")), "a name twice");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "/i.index.json: json: at byte ");
    write_text("i.index.json", "");
    CHECK(!kr_tensor_file_open(ctx, in_folder("i.index.json")), "an empty index");
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, "/i.index.json: json: at byte ");
    rmdir(in_folder("sub"));
    kr_ctx_destroy(ctx);
    end_folder();
}
