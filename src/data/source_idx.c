/* source_idx.c - images and their classes as a source: a position is a patch, an image a document.
 *
 *   position t of image n:  patch (t / (width / pw), t mod (width / pw)), its ph x pw bytes row after row
 */
#include "base/sized.h"
#include "data/idx.h"
#include "data/source.h"

#include <math.h>

typedef struct idx_source {
    kr_source base;
    kr_idx images, labels; /* labels.data NULL: none */
    int64_t height, width, patch_height, patch_width;
    int64_t across, length; /* patches in a row and in an image */
    float value[256];       /* of a byte */
} idx_source;

KR_DEFAULTS(kr_idx_options) = { .size = sizeof(kr_idx_options), .patch_height = 1, .patch_width = 1, .deviation = 1 };

static const idx_source *of(const kr_source *source)
{
    return (const idx_source *)(const void *)source;
}

static void read_patch(const idx_source *s, int64_t position, float *x)
{
    const int64_t image = position / s->length, t = position % s->length;
    const int64_t row = t / s->across * s->patch_height, column = t % s->across * s->patch_width;
    const unsigned char *at = s->images.data + (image * s->height + row) * s->width + column;
    for (int64_t i = 0; i < s->patch_height; i++, at += s->width)
        for (int64_t j = 0; j < s->patch_width; j++) *x++ = s->value[at[j]];
}

static bool read_images(const kr_source *source, int64_t from, int64_t count, const kr_positions *out)
{
    const idx_source *s = of(source);
    for (int64_t i = 0; i < count; i++) {
        const int64_t position = from + i;
        read_patch(s, position, out->x + i * source->info.n_features);
        if (!out->labels) continue;
        const bool is_last = position % s->length == s->length - 1;
        out->labels[i] = is_last ? s->labels.data[position / s->length] : KR_NOT_SCORED;
    }
    return true;
}

static int64_t find_start(const kr_source *source, int64_t from, int64_t to)
{
    return kr_next_multiple(from, to, of(source)->length);
}

static void deinit(kr_source *source)
{
    idx_source *s = (idx_source *)(void *)source;
    if (s->images.file.ctx) kr_idx_close(&s->images);
    if (s->labels.file.ctx) kr_idx_close(&s->labels);
}

static const kr_source_kind idx_kind = { sizeof(idx_source), read_images, find_start, deinit };

static bool open_files(idx_source *s, const char *images_path, const char *labels_path)
{
    kr_ctx *ctx = s->base.ctx;
    if (!kr_idx_open(&s->images, ctx, images_path, 3)) return false;
    if (!labels_path) return true;
    if (!kr_idx_open(&s->labels, ctx, labels_path, 1) ||
        !kr_require(ctx, s->labels.dims[0] == s->images.dims[0], KR_ERR_FORMAT,
                    "%s: %lld labels, but %s has %lld images", labels_path, (long long)s->labels.dims[0], images_path,
                    (long long)s->images.dims[0]))
        return false;
    for (int64_t i = 0; i < s->labels.dims[0]; i++)
        if (s->labels.data[i] >= s->base.info.n_classes) s->base.info.n_classes = s->labels.data[i] + 1;
    return true;
}

static bool set_patches(idx_source *s, const kr_idx_options *o, const char *path)
{
    kr_ctx *ctx = s->base.ctx;
    s->height = s->images.dims[1];
    s->width = s->images.dims[2];
    if (!kr_require(ctx,
                    o->patch_height > 0 && o->patch_width > 0 && s->height % o->patch_height == 0 &&
                        s->width % o->patch_width == 0,
                    KR_ERR_ARG, "%s: images of %lld x %lld cannot be cut into patches of %lld x %lld", path,
                    (long long)s->height, (long long)s->width, (long long)o->patch_height, (long long)o->patch_width) ||
        !kr_require(ctx, isfinite(o->mean) && isfinite(o->deviation) && o->deviation > 0, KR_ERR_ARG,
                    "%s: mean = %g must be finite and deviation = %g positive", path, o->mean, o->deviation))
        return false;
    s->patch_height = o->patch_height;
    s->patch_width = o->patch_width;
    s->across = s->width / o->patch_width;
    s->length = s->height / o->patch_height * s->across;
    s->base.info.n_features = o->patch_height * o->patch_width;
    if (!kr_require(ctx, o->count >= 0 && o->count <= s->images.dims[0], KR_ERR_ARG,
                    "%s: count = %lld, but there are %lld images", path, (long long)o->count,
                    (long long)s->images.dims[0]))
        return false;
    s->base.info.count = (o->count ? o->count : s->images.dims[0]) * s->length;
    for (int i = 0; i < 256; i++) s->value[i] = (float)((i / 255.0 - o->mean) / o->deviation);
    return true;
}

kr_source *kr_source_open_idx(kr_ctx *ctx, const kr_source_options *o)
{
    kr_idx_options own;
    if (!KR_TAKE(ctx, "idx", kr_idx_options, o->idx, &own)) return NULL;
    kr_source *source = kr_source_new(ctx, &idx_kind);
    idx_source *s = (idx_source *)(void *)source;
    if (!source || (open_files(s, o->path, o->labels_path) && set_patches(s, &own, o->path))) return source;
    kr_source_destroy(source);
    return NULL;
}
