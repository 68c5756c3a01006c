/* source_custom.c - a source over functions of the program, whose answers are checked before they are used. */
#include "data/source.h"

#include <string.h>

typedef struct custom_source {
    kr_source base;
    kr_source_callbacks callbacks;
    void *user;
} custom_source;

static const custom_source *of(const kr_source *source)
{
    return (const custom_source *)(const void *)source;
}

/* Values index tables later: they must be below n. */
static bool check_values(const kr_source *source, const char *what, const int32_t *values, int64_t from, int64_t count,
                         int64_t n, bool may_skip)
{
    for (int64_t i = 0; values && i < count; i++)
        if ((values[i] < 0 || values[i] >= n) && !(may_skip && values[i] == KR_NOT_SCORED))
            return kr_fail(source->ctx, KR_ERR_FORMAT, "custom source: %s %d at position %lld must be from 0 to %lld",
                           what, (int)values[i], (long long)(from + i), (long long)(n - 1));
    return true;
}

static bool read_positions(const kr_source *source, int64_t from, int64_t count, const kr_positions *out)
{
    const custom_source *s = of(source);
    const kr_status status = s->callbacks.read(s->user, from, count, out);
    if (status != KR_OK) /* has no effect after the callback's own kr_ctx_fail */
        return kr_fail(source->ctx, status == KR_END ? KR_ERR_STATE : status,
                       "custom source: read of positions %lld to %lld failed: %s", (long long)from,
                       (long long)(from + count - 1), kr_status_name(status));
    return !kr_ctx_failed(source->ctx) &&
           check_values(source, "id", out->ids, from, count, source->info.n_ids, false) &&
           check_values(source, "label", out->labels, from, count, source->info.n_classes, true);
}

static int64_t find_start(const kr_source *source, int64_t from, int64_t to)
{
    const custom_source *s = of(source);
    if (!s->callbacks.find_start) return from <= 0 && to > 0 ? 0 : to;
    const int64_t start = s->callbacks.find_start(s->user, from, to);
    if (start >= from && start <= to) return start;
    kr_fail(source->ctx, KR_ERR_STATE, "custom source: find_start(%lld, %lld) returned %lld, which is not between them",
            (long long)from, (long long)to, (long long)start);
    return to;
}

static void deinit(kr_source *source)
{
    const custom_source *s = of(source);
    if (s->callbacks.destroy) s->callbacks.destroy(s->user);
}

static const kr_source_kind custom_kind = { sizeof(custom_source), read_positions, find_start, deinit };

static bool check_info(kr_ctx *ctx, const kr_source_info *info)
{
    const bool is_known = info->n_ids >= 0 && info->n_features >= 0 && info->n_classes >= 0 && info->n_targets >= 0;
    return kr_require(ctx, info->count > 0, KR_ERR_ARG, "custom source: info.count = %lld must be at least 1",
                      (long long)info->count) &&
           kr_require(ctx, is_known && !info->n_ids != !info->n_features && info->n_ids <= INT32_MAX, KR_ERR_ARG,
                      "custom source: info.n_ids = %lld, n_features = %lld: one must be 0 and the other positive",
                      (long long)info->n_ids, (long long)info->n_features) &&
           kr_require(ctx,
                      info->n_classes <= INT32_MAX && !info->predict_next + !info->n_classes + !info->n_targets >= 2,
                      KR_ERR_ARG,
                      "custom source: info.predict_next = %d, n_classes = %lld, n_targets = %lld: only one may be set",
                      (int)info->predict_next, (long long)info->n_classes, (long long)info->n_targets);
}

static bool check_callbacks(kr_ctx *ctx, const kr_source_callbacks *callbacks)
{
    if (!kr_require(ctx, callbacks->read, KR_ERR_ARG, "custom source: callbacks.read is NULL")) return false;
    for (size_t i = 0; i < sizeof callbacks->reserved / sizeof *callbacks->reserved; i++)
        if (!kr_require(ctx, !callbacks->reserved[i], KR_ERR_ARG,
                        "custom source: callbacks.reserved must be NULL; begin with { 0 }"))
            return false;
    return true;
}

kr_source *kr_source_custom(kr_ctx *ctx, const kr_source_info *info, const kr_source_callbacks *callbacks, void *user)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, info, KR_ERR_ARG, "custom source: info is NULL") ||
        !kr_require(ctx, callbacks, KR_ERR_ARG, "custom source: callbacks is NULL") || !check_info(ctx, info) ||
        !check_callbacks(ctx, callbacks))
        return NULL;
    kr_source *source = kr_source_new(ctx, &custom_kind);
    if (!source) return NULL;
    custom_source *s = (custom_source *)(void *)source;
    source->info = *info;
    if (info->predict_next) { /* a target has the form of the input */
        source->info.n_classes = info->n_ids;
        source->info.n_targets = info->n_features;
    }
    s->callbacks = *callbacks;
    s->user = user;
    return source;
}
