/* digits_files.c - drawn digits as IDX files, and as a source. */
#include "lab/digits.h"
#include "lab/tasks.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = LAB_DIGIT_SIDE, PIXELS = SIDE * SIDE, SOME = 64, MOST_DIGITS = 1 << 24, PATH_BYTES = 4096 };

static bool check_count(kr_ctx *ctx, int64_t count)
{
    return !kr_ctx_failed(ctx) &&
           lab_require(ctx, count >= 1 && count <= MOST_DIGITS, KR_ERR_ARG, "digits: count = %lld must be from 1 to %d",
                       (long long)count, MOST_DIGITS);
}

/* ---- source ---- */

typedef struct digit_images {
    int64_t patch_height, patch_width;
    int64_t across, length; /* patches in a row and in an image */
    float value[256];       /* of a byte */
    uint8_t *images, *labels;
} digit_images;

static void read_patch(const digit_images *d, int64_t position, float *x)
{
    const int64_t t = position % d->length;
    const int64_t row = t / d->across * d->patch_height, column = t % d->across * d->patch_width;
    const uint8_t *at = d->images + position / d->length * PIXELS + row * SIDE + column;
    for (int64_t i = 0; i < d->patch_height; i++, at += SIDE)
        for (int64_t j = 0; j < d->patch_width; j++) *x++ = d->value[at[j]];
}

static kr_status read_patches(void *user, int64_t from, int64_t count, const kr_positions *out)
{
    const digit_images *d = user;
    for (int64_t i = 0; i < count; i++) {
        const int64_t position = from + i;
        const bool is_last = position % d->length == d->length - 1;
        if (out->x) read_patch(d, position, out->x + i * d->patch_height * d->patch_width);
        if (out->labels) out->labels[i] = is_last ? d->labels[position / d->length] : KR_NOT_SCORED;
    }
    return KR_OK;
}

static int64_t find_image(void *user, int64_t from, int64_t to)
{
    const digit_images *d = user;
    const int64_t start = (from + d->length - 1) / d->length * d->length;
    return start < to ? start : to;
}

static void free_images(void *user)
{
    digit_images *d = user;
    if (d) {
        free(d->images);
        free(d->labels);
    }
    free(d);
}

static bool check_options(kr_ctx *ctx, const kr_idx_options *o, int64_t count)
{
    return lab_require(ctx,
                       o->patch_height > 0 && o->patch_width > 0 && SIDE % o->patch_height == 0 &&
                           SIDE % o->patch_width == 0,
                       KR_ERR_ARG, "digits: images of %d x %d cannot be cut into patches of %lld x %lld", SIDE, SIDE,
                       (long long)o->patch_height, (long long)o->patch_width) &&
           lab_require(ctx, isfinite(o->mean) && isfinite(o->deviation) && o->deviation > 0, KR_ERR_ARG,
                       "digits: mean = %g must be finite and deviation = %g positive", o->mean, o->deviation) &&
           lab_require(ctx, o->count >= 0 && o->count <= count, KR_ERR_ARG,
                       "digits: count = %lld, but there are %lld images", (long long)o->count, (long long)count);
}

static digit_images *new_images(kr_ctx *ctx, const kr_idx_options *o, int64_t count)
{
    digit_images *d = calloc(1, sizeof *d);
    if (d) {
        d->patch_height = o->patch_height;
        d->patch_width = o->patch_width;
        d->across = SIDE / o->patch_width;
        d->length = SIDE / o->patch_height * d->across;
        for (int i = 0; i < 256; i++) d->value[i] = (float)((i / 255.0 - o->mean) / o->deviation);
        d->images = malloc((size_t)count * PIXELS);
        d->labels = malloc((size_t)count);
        if (d->images && d->labels) return d;
    }
    free_images(d);
    kr_ctx_fail(ctx, KR_ERR_NOMEM, "digits: no memory for %lld images", (long long)count);
    return NULL;
}

kr_source *lab_source_digits(kr_ctx *ctx, uint64_t seed, int64_t count, const kr_idx_options *options)
{
    kr_idx_options o;
    kr_idx_options_init(&o);
    if (options) o = *options;
    if (!check_count(ctx, count) || !check_options(ctx, &o, count)) return NULL;
    if (o.count) count = o.count;
    digit_images *d = new_images(ctx, &o, count);
    if (!d) return NULL;
    lab_digits_fill(seed, 0, count, d->images, d->labels);
    const kr_source_info info = { .count = count * d->length,
                                  .n_features = o.patch_height * o.patch_width,
                                  .n_classes = LAB_DIGIT_CLASSES };
    const kr_source_callbacks callbacks = { .read = read_patches, .find_start = find_image, .destroy = free_images };
    kr_source *source = kr_source_custom(ctx, &info, &callbacks, d);
    if (!source) free_images(d);
    return source;
}

/* ---- files ---- */

/* 0 0 8 rank, then each axis big-endian. */
static bool write_head(FILE *file, int64_t count, int rank)
{
    unsigned char head[16] = { 0, 0, 8, (unsigned char)rank };
    const int64_t dims[3] = { count, SIDE, SIDE };
    for (int a = 0; a < rank; a++)
        for (int i = 0; i < 4; i++) head[4 + 4 * a + i] = (unsigned char)(dims[a] >> (24 - 8 * i));
    const size_t bytes = 4 + 4 * (size_t)rank;
    return fwrite(head, 1, bytes, file) == bytes;
}

static bool write_some(FILE *file, uint64_t seed, int64_t first, int64_t count, bool is_labels)
{
    uint8_t images[SOME * PIXELS], labels[SOME];
    const size_t bytes = (size_t)count * (is_labels ? 1 : PIXELS);
    lab_digits_fill(seed, first, count, images, labels);
    return fwrite(is_labels ? labels : images, 1, bytes, file) == bytes;
}

static bool write_all(const char *path, uint64_t seed, int64_t count, bool is_labels)
{
    FILE *file = fopen(path, "wb");
    if (!file) return false;
    bool ok = write_head(file, count, is_labels ? 1 : 3);
    for (int64_t i = 0; ok && i < count; i += SOME)
        ok = write_some(file, seed, i, count - i < SOME ? count - i : SOME, is_labels);
    return fclose(file) == 0 && ok;
}

kr_status lab_digits_write(kr_ctx *ctx, uint64_t seed, int64_t count, const char *images_path, const char *labels_path)
{
    const char *paths[2] = { images_path, labels_path };
    char parts[2][PATH_BYTES];
    if (!check_count(ctx, count) ||
        !lab_require(ctx, images_path && labels_path && strcmp(images_path, labels_path) != 0, KR_ERR_ARG,
                     "digits: images and labels need a path each"))
        return kr_ctx_status(ctx);
    bool ok = true;
    for (int i = 0; i < 2; i++) snprintf(parts[i], PATH_BYTES, "%s.part", paths[i]);
    for (int i = 0; ok && i < 2; i++) {
        errno = 0;
        ok = write_all(parts[i], seed, count, i == 1);
        if (!ok) kr_ctx_fail(ctx, KR_ERR_IO, "digits: cannot write %s: %s", paths[i], strerror(errno));
    }
    for (int i = 0; ok && i < 2; i++) {
        ok = rename(parts[i], paths[i]) == 0;
        if (!ok) kr_ctx_fail(ctx, KR_ERR_IO, "digits: cannot replace %s: %s", paths[i], strerror(errno));
    }
    for (int i = 0; !ok && i < 2; i++) remove(parts[i]);
    return kr_ctx_status(ctx);
}
