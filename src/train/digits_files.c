/* digits_files.c - drawn digits as IDX files, and as a source. */
#include "io/file_write.h"
#include "train/source.h"

#include <krait/digits.h>

#include <string.h>

enum { SIDE = KR_DIGIT_SIDE, PIXELS = SIDE * SIDE, SOME = 64, MOST_DIGITS = 1 << 24 };

static bool check_count(kr_ctx *ctx, int64_t count)
{
    return !kr_ctx_failed(ctx) &&
           kr_require(ctx, count >= 1 && count <= MOST_DIGITS, KR_ERR_ARG, "digits: count = %lld must be from 1 to %d",
                      (long long)count, MOST_DIGITS);
}

kr_source *kr_source_digits(kr_ctx *ctx, uint64_t seed, int64_t count, const kr_idx_options *options)
{
    if (!check_count(ctx, count)) return NULL;
    const kr_image_set set = { count, SIDE, SIDE, KR_DIGIT_CLASSES };
    unsigned char *images, *labels;
    kr_source *source = kr_source_images(ctx, "digits", &set, options, &images, &labels);
    if (source) kr_digits_fill(seed, 0, count, images, labels);
    return source;
}

/* ---- files ---- */

/* 0 0 8 rank, then each axis big-endian. */
static bool write_head(kr_file_writer *w, int64_t count, int rank)
{
    unsigned char head[16] = { 0, 0, 8, (unsigned char)rank };
    const int64_t dims[3] = { count, SIDE, SIDE };
    for (int a = 0; a < rank; a++)
        for (int i = 0; i < 4; i++) head[4 + 4 * a + i] = (unsigned char)(dims[a] >> (24 - 8 * i));
    return kr_file_write(w, head, 4 + 4 * (size_t)rank);
}

static bool write_some(kr_file_writer *images_file, kr_file_writer *labels_file, uint64_t seed, int64_t first,
                       int64_t count)
{
    unsigned char images[SOME * PIXELS], labels[SOME];
    kr_digits_fill(seed, first, count, images, labels);
    return kr_file_write(images_file, images, (size_t)count * PIXELS) &&
           kr_file_write(labels_file, labels, (size_t)count);
}

static bool write_all(kr_file_writer *images, kr_file_writer *labels, uint64_t seed, int64_t count)
{
    if (!write_head(images, count, 3) || !write_head(labels, count, 1)) return false;
    for (int64_t i = 0; i < count; i += SOME)
        if (!write_some(images, labels, seed, i, count - i < SOME ? count - i : SOME)) return false;
    return kr_file_finish(images) && kr_file_finish(labels);
}

kr_status kr_digits_write(kr_ctx *ctx, uint64_t seed, int64_t count, const char *images_path, const char *labels_path)
{
    kr_file_writer images, labels;
    if (!check_count(ctx, count) ||
        !kr_require(ctx, images_path && labels_path && strcmp(images_path, labels_path) != 0, KR_ERR_ARG,
                    "digits: images and labels need a path each") ||
        !kr_file_create(&images, ctx, images_path))
        return kr_ctx_status(ctx);
    if (!kr_file_create_nth(&labels, ctx, labels_path, 1)) {
        kr_file_discard(&images);
        return kr_ctx_status(ctx);
    }
    if (!write_all(&images, &labels, seed, count)) {
        kr_file_discard(&images);
        kr_file_discard(&labels);
    } else if (kr_file_commit(&images)) {
        kr_file_commit(&labels);
    } else {
        kr_file_discard(&labels);
    }
    return kr_ctx_status(ctx);
}
