/* block_registered.c - a block of a family that the program has registered: calls of its functions, and checks of what they
 * return.
 */
#include "nn/block_config.h"
#include "nn/block_kinds.h"
#include "ops/sequences.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct registered_block {
    kr_block head;
    const kr_registered_kind *kind;
    kr_dtype small; /* of caches */
    void *own;      /* what create returned */
    kr_block_spec spec;
    _Alignas(max_align_t) char config[]; /* of the size that the family has, then the texts of its fields */
} registered_block;

/* ---- creation ---- */

static bool check_spec(kr_ctx *ctx, const kr_registered_kind *r, const kr_block_spec *spec)
{
    for (int i = 0; i < r->info.n_cache; i++) {
        const kr_shape *shape = &spec->cache_shape[i];
        bool ok = shape->rank >= 0 && shape->rank < KR_MAX_RANK && isfinite(spec->cache_value[i]);
        for (int a = 0; ok && a < shape->rank; a++) ok = shape->dims[a] >= 1 && shape->dims[a] <= KR_CONFIG_MOST;
        if (!kr_require(ctx, ok, KR_ERR_SHAPE,
                        "%s.create: spec of the cache tensor %s is out of range: at most %d axes of 1 to %lld elements "
                        "without the batch, and a finite value",
                        r->name, r->cache_names[i], KR_MAX_RANK - 1, (long long)KR_CONFIG_MOST))
            return false;
    }
    return kr_require(ctx, spec->chunk_len >= 0 && spec->chunk_len <= KR_CONFIG_MOST, KR_ERR_ARG,
                      "%s.create: spec.chunk_len = %lld, but must be at least 1, or 0 for none", r->name,
                      (long long)spec->chunk_len) &&
           kr_require(ctx, spec->token_elements >= 0 && spec->token_elements <= INT64_C(1) << 40, KR_ERR_ARG,
                      "%s.create: spec.token_elements = %lld, but must not be negative", r->name,
                      (long long)spec->token_elements);
}

/* The bytes of the texts of a config, with their final zeros. */
static size_t text_bytes(const kr_registered_kind *r, const void *config)
{
    size_t bytes = 0;
    for (int i = 0; i < r->info.n_fields; i++) {
        const char *text;
        if (r->fields[i].kind != KR_FIELD_TEXT) continue;
        memcpy(&text, (const char *)config + r->fields[i].offset, sizeof text);
        bytes += strlen(text) + 1;
    }
    return bytes;
}

static void keep_config(registered_block *m, const void *config)
{
    const kr_registered_kind *r = m->kind;
    char *to = m->config + r->info.config_bytes;
    memcpy(m->config, config, r->info.config_bytes);
    for (int i = 0; i < r->info.n_fields; i++) {
        const char *text;
        if (r->fields[i].kind != KR_FIELD_TEXT) continue;
        memcpy(&text, m->config + r->fields[i].offset, sizeof text);
        const size_t bytes = strlen(text) + 1;
        memcpy(to, text, bytes);
        memcpy(m->config + r->fields[i].offset, &to, sizeof to);
        to += bytes;
    }
}

static void free_own(registered_block *m)
{
    const kr_block_kind_info *info = &m->kind->info;
    if (m->own && info->destroy) info->destroy(info->user, m->own);
}

void kr_registered_free(void *block)
{
    free_own(block);
}

void *kr_registered_declare(kr_ctx *ctx, const kr_registered_kind *r, kr_params *params, const void *config)
{
    kr_config_head head;
    char op[KR_KIND_NAME_BYTES + 16];
    snprintf(op, sizeof op, "%s.create", r->name);
    if (kr_ctx_failed(ctx) || !kr_registered_config_check(ctx, op, r, config)) return NULL;
    memcpy(&head, config, sizeof head);
    const size_t bytes = sizeof(registered_block) + r->info.config_bytes + text_bytes(r, config);
    registered_block *m = kr_block_alloc(ctx, &r->kind, bytes, head.d_model, head.dtype);
    if (!m) return NULL;
    m->kind = r;
    keep_config(m, config);
    m->small = kr_config_small_dtype(head.dtype);
    kr_params_set_declaring(params, true);
    m->own = r->info.create(r->info.user, ctx, params, m->config, &m->spec);
    kr_params_set_declaring(params, false);
    if (!kr_ctx_failed(ctx) &&
        kr_require(ctx, m->own != NULL, KR_ERR_STATE,
                   "%s: the function returned NULL without an error; report one with kr_ctx_fail", op) &&
        check_spec(ctx, r, &m->spec))
        return m;
    kr_block_free(m);
    return NULL;
}

/* ---- caches ---- */

static kr_shape cache_shape(const void *block, int i, int64_t batch)
{
    const kr_shape *row = &((const registered_block *)block)->spec.cache_shape[i];
    kr_shape shape = { .rank = row->rank + 1, .dims = { batch } };
    for (int a = 0; a < row->rank; a++) shape.dims[a + 1] = row->dims[a];
    return shape;
}

/* A tensor that a function of the program returned. */
static bool check_tensor(kr_ctx *ctx, const char *op, const char *what, const kr_tensor *x, const kr_shape *want)
{
    const kr_shape got = kr_tensor_shape(x);
    return kr_require(ctx, x != NULL, KR_ERR_STATE,
                      "%s: the function left %s NULL without an error; report one with kr_ctx_fail", op, what) &&
           kr_require(ctx, x->ctx == ctx, KR_ERR_STATE, "%s: the function returned %s of another context", op, what) &&
           kr_require(ctx, kr_shape_equal(&got, want), KR_ERR_SHAPE,
                      "%s: the function returned %s %s, but must return %s", op, what, KR_TEXT_OF(x),
                      KR_TEXT_OF_SHAPE(want));
}

static bool check_cache(kr_ctx *ctx, const char *op, const registered_block *m, kr_tensor *const *cache, int64_t rows)
{
    for (int i = 0; i < m->head.kind->ncache; i++) {
        char what[KR_CACHE_NAME_BYTES + 8];
        const kr_shape want = cache_shape(m, i, rows);
        snprintf(what, sizeof what, "cache.%s", m->kind->cache_names[i]);
        if (!check_tensor(ctx, op, what, cache[i], &want) ||
            !kr_require(ctx, cache[i]->dtype == m->small, KR_ERR_DTYPE,
                        "%s: the function returned %s in %s, but must return %s; use kr_cast", op, what,
                        kr_dtype_name(cache[i]->dtype), kr_dtype_name(m->small)))
            return false;
    }
    return true;
}

static kr_cache initial_cache(kr_tape *tape, const void *block, int64_t batch)
{
    const registered_block *m = block;
    const kr_cache none = { .family = m ? m->head.kind->family : KR_FAMILY_NONE };
    kr_cache cache = none;
    if (!m || !kr_block_begin_initial(tape, m->head.kind, m, batch)) return none;
    const kr_block_kind_info *info = &m->kind->info;
    if (info->initial_cache) {
        const bool done = info->initial_cache(info->user, tape, m->own, batch, cache.tensors);
        if (kr_ctx_failed(tape->ctx) ||
            !kr_require(tape->ctx, done, KR_ERR_STATE,
                        "%s.initial_cache: the function returned false without an error; report one with kr_ctx_fail",
                        m->kind->name) ||
            !check_cache(tape->ctx, "initial_cache", m, cache.tensors, batch))
            return none;
        return cache;
    }
    for (int i = 0; i < info->n_cache; i++)
        cache.tensors[i] = kr_full(tape, m->small, cache_shape(m, i, batch), m->spec.cache_value[i]);
    return kr_ctx_failed(tape->ctx) ? none : cache;
}

/* ---- forward ---- */

/* Part of x's or of a cache's memory? */
static bool shares_memory(const kr_tensor *x, const kr_tensor *of)
{
    const char *from = (const char *)of->data, *at = (const char *)x->data;
    return at >= from && at < from + kr_dtype_span(of->dtype, kr_count_of(of));
}

/* States copy new caches over old ones, tensor by tensor: a new one that is a view of an old one, but not of its own
 * predecessor as it was, gets memory of its own. */
static kr_tensor *separated(kr_tape *tape, kr_tensor *const *before, int n, int i, kr_tensor *x)
{
    for (int k = 0; k < n; k++)
        if (shares_memory(x, before[k]) && (k != i || x->data != before[k]->data || !kr_tensor_is_row_major(x)))
            return kr_scale(tape, x, 1);
    return x;
}

static kr_block_result call(kr_tape *tape, const registered_block *m, const char *op, const kr_block_args *args)
{
    const kr_block_result none = { .y_bsd = NULL };
    const kr_block_kind_info *info = &m->kind->info;
    kr_ctx *ctx = tape->ctx;
    const kr_shape shape = kr_tensor_shape(args->x_bsd);
    const kr_block_out out = info->forward(info->user, tape, m->own, args);
    if (kr_ctx_failed(ctx) || !KR_RESERVED(ctx, op, "kr_block_out", &out) ||
        !check_tensor(ctx, op, "y", out.y, &shape) ||
        !kr_require(
            ctx, kr_dtype_is_float(out.y->dtype) && (out.y->dtype == KR_DTYPE_F64) == (m->head.dtype == KR_DTYPE_F64),
            KR_ERR_DTYPE, "%s: the function returned y in %s, but the block is %s", op, kr_dtype_name(out.y->dtype),
            kr_dtype_name(m->head.dtype)) ||
        !check_cache(ctx, op, m, out.cache.tensors, args->n_sequences))
        return none;
    kr_block_result result = { out.y, { .family = m->head.kind->family } };
    for (int i = 0; i < info->n_cache; i++)
        result.cache.tensors[i] = separated(tape, args->cache, info->n_cache, i, out.cache.tensors[i]);
    return kr_ctx_failed(ctx) ? none : result;
}

static kr_tensor *tokens_of(kr_tape *tape, kr_tensor *x, const kr_sequence *q)
{
    return x ? kr_slice(tape, kr_slice(tape, x, 0, q->row, q->row + 1), 1, q->start, q->end) : NULL;
}

/* Each sequence as a batch of one row; the tokens of all sequences in order are those of the rows. */
static kr_block_result run_alone(kr_tape *tape, const registered_block *m, const char *op, const kr_block_args *all,
                                 const kr_sequences *sequences)
{
    const kr_block_result none = { .y_bsd = NULL };
    const int n = (int)sequences->count, ncache = m->head.kind->ncache;
    kr_tensor **parts = kr_arena_alloc(&tape->heads, (size_t)n * (size_t)(1 + ncache) * sizeof *parts);
    if (!kr_require(tape->ctx, parts != NULL, KR_ERR_NOMEM, "%s: no memory for a list of %d sequences", op, n))
        return none;
    for (int q = 0; q < n; q++) {
        kr_tensor *cache[KR_CACHE_TENSORS] = { NULL };
        for (int i = 0; i < ncache; i++) cache[i] = kr_slice(tape, all->cache[i], 0, q, q + 1);
        const kr_block_args one = { .x_bsd = tokens_of(tape, all->x_bsd, &sequences->list[q]),
                                    .cache = cache,
                                    .n_sequences = 1,
                                    .mask_bs1 = tokens_of(tape, all->mask_bs1, &sequences->list[q]),
                                    .path = all->path };
        if (kr_ctx_failed(tape->ctx)) return none;
        const kr_block_result out = call(tape, m, op, &one);
        if (!out.y_bsd) return none;
        parts[q] = out.y_bsd;
        for (int i = 0; i < ncache; i++) parts[n * (1 + i) + q] = out.cache.tensors[i];
    }
    kr_block_result result = { .cache = { .family = m->head.kind->family } };
    result.y_bsd = kr_reshape(tape, kr_concat(tape, 1, n, parts), kr_tensor_shape(all->x_bsd));
    for (int i = 0; i < ncache; i++)
        result.cache.tensors[i] = kr_concat(tape, 0, n, parts + (size_t)n * (size_t)(1 + i));
    return kr_ctx_failed(tape->ctx) ? none : result;
}

static kr_block_result forward(kr_tape *tape, const void *block, const kr_block_input *input)
{
    const registered_block *m = block;
    const kr_block_result none = { .y_bsd = NULL };
    kr_dims d;
    kr_sequences sequences = { .list = NULL };
    if (!kr_block_begin(tape, m->head.kind, m, input, &d) || !kr_config_path(tape->ctx, input->op, input->path) ||
        (input->seq_start_bs && !kr_sequences_from(tape, input->op, input->seq_start_bs, d.b, d.s, &sequences)))
        return none;
    const int64_t n = input->seq_start_bs ? sequences.count : d.b;
    kr_cache before = input->cache ? *input->cache : initial_cache(tape, m, n);
    for (int i = 0; i < m->head.kind->ncache; i++) before.tensors[i] = kr_cast(tape, before.tensors[i], m->small);
    const kr_block_args args = { .x_bsd = kr_block_masked(tape, input, input->x_bsd),
                                 .cache = before.tensors,
                                 .n_sequences = n,
                                 .seq_start_bs = m->kind->info.has_packed_rows ? input->seq_start_bs : NULL,
                                 .mask_bs1 = input->mask_bs1,
                                 .path = input->path };
    if (kr_ctx_failed(tape->ctx)) return none;
    if (input->seq_start_bs && !m->kind->info.has_packed_rows) return run_alone(tape, m, input->op, &args, &sequences);
    return call(tape, m, input->op, &args);
}

/* ---- the kind ---- */

static const void *config_of(const void *block)
{
    return ((const registered_block *)block)->config;
}

static kr_tensor *step_infinite(kr_tape *tape, const void *block, kr_tensor *x_bd)
{
    const registered_block *m = block;
    const kr_block_kind_info *info = &m->kind->info;
    const char *op = m->head.kind->calls.step_infinite;
    kr_dims d;
    if (!kr_block_begin_token(tape, op, m, x_bd, &d) ||
        !kr_require(tape->ctx, info->step_infinite != NULL, KR_ERR_UNSUPPORTED,
                    "%s: the family was registered without step_infinite", op))
        return NULL;
    const kr_shape shape = kr_tensor_shape(x_bd);
    kr_tensor *y_bd = info->step_infinite(info->user, tape, m->own, x_bd);
    return !kr_ctx_failed(tape->ctx) && check_tensor(tape->ctx, op, "y", y_bd, &shape) ? y_bd : NULL;
}

static kr_ssd_path path(const void *block)
{
    return (kr_ssd_path){ kr_ssd_path_default().algorithm, ((const registered_block *)block)->spec.chunk_len };
}

static int64_t optimal_chunk_len(const void *block)
{
    return ((const registered_block *)block)->spec.chunk_len;
}

int64_t kr_registered_token_elements(const void *block)
{
    return ((const registered_block *)block)->spec.token_elements;
}

void kr_registered_kind_fill(kr_block_kind *kind)
{
    kind->config = config_of;
    kind->path = path;
    kind->optimal_chunk_len = optimal_chunk_len;
    kind->cache_shape = cache_shape;
    kind->initial_cache = initial_cache;
    kind->forward = forward;
    kind->step_infinite = step_infinite;
}
