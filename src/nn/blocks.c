/* blocks.c - the families, and what all blocks do alike: configs, caches, single steps, rows that forget. */
#include "nn/block.h"

#include "ops/sequences.h"

#include <string.h>

const kr_block_kind *kr_block_kind_of(kr_family family)
{
    static const kr_block_kind *const kinds[] = { &kr_mamba1_kind, &kr_mamba2_kind, &kr_mamba3_kind };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i]->family == family) return kinds[i];
    return NULL;
}

const char *kr_family_name(kr_family family)
{
    const kr_block_kind *kind = kr_block_kind_of(family);
    return kind ? kind->name : "?";
}

kr_block_config kr_mamba1_block(const kr_mamba1_config *config)
{
    return (kr_block_config){ KR_MAMBA1, config };
}

kr_block_config kr_mamba2_block(const kr_mamba2_config *config)
{
    return (kr_block_config){ KR_MAMBA2, config };
}

kr_block_config kr_mamba3_block(const kr_mamba3_config *config)
{
    return (kr_block_config){ KR_MAMBA3, config };
}

int kr_cache_count(kr_family family)
{
    const kr_block_kind *kind = kr_block_kind_of(family);
    return kind ? kind->ncache : 0;
}

const char *kr_cache_name(kr_family family, int i)
{
    const kr_block_kind *kind = kr_block_kind_of(family);
    return kind && i >= 0 && i < kind->ncache ? kind->cache_names[i] : NULL;
}

/* ---- making one ---- */

bool kr_config_take(kr_ctx *ctx, const char *op, void *own, size_t own_size, const void *config)
{
    size_t size = 0;
    if (!kr_require(ctx, config != NULL, KR_ERR_ARG, "%s: config is NULL", op)) return false;
    memcpy(&size, config, sizeof size);
    /* a struct that was never initialised holds anything; no config is smaller than its size or a page long */
    if (!kr_require(ctx, size >= sizeof size && size <= 4096, KR_ERR_ARG,
                    "%s: config.size = %zu; fill the config in with its _init before setting fields", op, size))
        return false;
    memcpy(own, config, size < own_size ? size : own_size);
    memcpy(own, &own_size, sizeof own_size);
    return true;
}

void *kr_block_alloc(kr_ctx *ctx, const char *op, size_t bytes, int64_t d_model, kr_dtype dtype)
{
    kr_block *block = kr_memory_alloc_zeroed(&ctx->memory, bytes);
    if (block) *block = (kr_block){ .ctx = ctx, .bytes = bytes, .d_model = d_model, .dtype = dtype };
    else kr_fail(ctx, KR_ERR_NOMEM, "%s: no memory for a block", op);
    return block;
}

void kr_block_free(void *block)
{
    kr_block *head = block;
    kr_memory_free(&head->ctx->memory, head, head->bytes);
}

int64_t kr_block_d_model(const void *block)
{
    return ((const kr_block *)block)->d_model;
}

kr_dtype kr_block_dtype(const void *block)
{
    return ((const kr_block *)block)->dtype;
}

void *kr_block_create_alone(kr_ctx *ctx, const kr_block_kind *kind, const void *config)
{
    kr_params *params = kr_params_create(ctx);
    kr_block *block = params ? kind->create(ctx, params, config) : NULL;
    if (block) block->params = params;
    if (block && kr_params_seal(params)) return block;
    if (block) kr_block_destroy_alone(block);
    else kr_params_destroy(params);
    return NULL;
}

void kr_block_destroy_alone(void *block)
{
    if (!block) return;
    kr_params_destroy(((kr_block *)block)->params);
    kr_block_free(block);
}

/* ---- caches ---- */

/* f64 mixes with no other type; all other floats mix. */
static bool is_type_for(kr_dtype x, kr_dtype block)
{
    return kr_dtype_is_float(x) && (x == KR_F64) == (block == KR_F64);
}

bool kr_cache_check(kr_tape *tape, const char *op, const kr_block_kind *kind, const void *block, const kr_cache *cache,
                    int64_t count, const char *rule)
{
    kr_ctx *ctx = tape->ctx;
    if (!kr_require(ctx, cache->family == kind->family, KR_ERR_ARG,
                    "%s: the cache is of the family %s, but the block is %s", op, kr_family_name(cache->family),
                    kind->name))
        return false;
    for (int i = 0; i < kind->ncache; i++) {
        kr_tensor *x = cache->tensors[i];
        const kr_shape want = kind->cache_shape(block, i, count), got = kr_tensor_shape(x);
        if (!kr_require(ctx, x != NULL, KR_ERR_ARG,
                        "%s: cache.%s is NULL; a cache has all its tensors, or pass NULL for a fresh one", op,
                        kind->cache_names[i]) ||
            !kr_require(ctx, kr_shape_equal(&got, &want), KR_ERR_SHAPE, "%s: cache.%s %s must be %s: %s", op,
                        kind->cache_names[i], KR_TEXT_OF(x), KR_TEXT_OF_SHAPE(&want), rule) ||
            !kr_require(ctx, is_type_for(x->dtype, kr_block_dtype(block)), KR_ERR_DTYPE,
                        "%s: cache.%s is %s, but the block is %s; cast it, or create the block with that dtype", op,
                        kind->cache_names[i], kr_dtype_name(x->dtype), kr_dtype_name(kr_block_dtype(block))))
            return false;
    }
    return true;
}

kr_tensor *kr_select_rows(kr_tape *tape, kr_tensor *x, int64_t count, const int64_t *ids)
{
    kr_shape shape = kr_tensor_shape(x);
    kr_tensor *id = kr_from_data(tape, KR_I64, KR_SHAPE(count), ids);
    kr_tensor *rows = kr_embedding(tape, kr_reshape(tape, x, KR_SHAPE(kr_tensor_dim(x, 0), -1)), id);
    shape.dims[0] = count;
    return kr_reshape(tape, rows, shape);
}

/* ---- entries ---- */

static bool check_input(kr_tape *tape, const char *op, const void *block, kr_tensor *x, int64_t width)
{
    kr_ctx *ctx = tape->ctx;
    const kr_dtype type = kr_block_dtype(block);
    return kr_require(ctx, width == kr_block_d_model(block), KR_ERR_SHAPE,
                      "%s: axis d of x %s is %lld, but the block has d_model = %lld", op, KR_TEXT_OF(x),
                      (long long)width, (long long)kr_block_d_model(block)) &&
           kr_require(ctx, is_type_for(x->dtype, type), KR_ERR_DTYPE,
                      "%s: x is %s, but the block is %s; cast x, or create the block with that dtype", op,
                      kr_dtype_name(x->dtype), kr_dtype_name(type));
}

static bool exists(kr_tape *tape, const char *op, const void *block)
{
    return kr_tape_ready(tape, op) && kr_require(tape->ctx, block != NULL, KR_ERR_ARG, "%s: the block is NULL", op);
}

bool kr_block_begin(kr_tape *tape, const kr_block_kind *kind, const void *block, const kr_block_input *input,
                    kr_dims *d)
{
    const char *op = input->op;
    if (!exists(tape, op, block) || !kr_bind(tape, op, d, "x:bsd", input->x_bsd) ||
        !check_input(tape, op, block, input->x_bsd, d->d) ||
        !kr_require(tape->ctx, d->b >= 1 && d->s >= 1, KR_ERR_SHAPE,
                    "%s: x %s is empty; there must be a row and a token at least", op, KR_TEXT_OF(input->x_bsd)))
        return false;
    if (!input->seq_start_bs)
        return !input->cache || kr_cache_check(tape, op, kind, block, input->cache, d->b, "one for each row of x");
    kr_sequences sequences;
    return kr_sequences_from(tape, op, input->seq_start_bs, d->b, d->s, &sequences) &&
           (!input->cache ||
            kr_cache_check(tape, op, kind, block, input->cache, sequences.count, "one for each sequence of seq_start"));
}

bool kr_block_begin_token(kr_tape *tape, const char *op, const void *block, kr_tensor *x_bd, kr_dims *d)
{
    return exists(tape, op, block) && kr_bind(tape, op, d, "x:bd", x_bd) && check_input(tape, op, block, x_bd, d->d) &&
           kr_require(tape->ctx, d->b >= 1, KR_ERR_SHAPE, "%s: x %s is empty; there must be a row at least", op,
                      KR_TEXT_OF(x_bd));
}

bool kr_block_begin_fresh(kr_tape *tape, const kr_block_kind *kind, const void *block, int64_t batch)
{
    return kr_tape_ready(tape, kind->name) &&
           kr_require(tape->ctx, block != NULL, KR_ERR_ARG, "%s.fresh: the block is NULL", kind->name) &&
           kr_require(tape->ctx, batch >= 1, KR_ERR_ARG, "%s.fresh: batch = %lld, but must be at least 1", kind->name,
                      (long long)batch);
}

kr_tensor *kr_block_masked(kr_tape *tape, const kr_block_input *input, kr_tensor *x)
{
    return input->mask_bs1 && x ? kr_mul(tape, x, kr_cast(tape, input->mask_bs1, x->dtype)) : x;
}

kr_tensor *kr_token_own(kr_tape *tape, const kr_token_input *input, kr_tensor *x)
{
    if (input->in_place) return x;
    kr_tensor *y = kr_new(tape, x->dtype, kr_tensor_shape(x));
    return y && kr_assign(tape->ctx, y, x) ? y : NULL;
}

kr_tensor *kr_block_state_place(const kr_block_input *input, kr_tensor *state)
{
    return input->in_place ? state : NULL;
}

/* 1 - exp(da) = 2 t / (1 + t) with t = tanh(-da / 2), which keeps its digits as da goes to 0. The floor keeps a weight
 * of 0 from becoming 0 / 0; no other t is near it. */
kr_tensor *kr_geometric_sum(kr_tape *tape, kr_tensor *weight, kr_tensor *da)
{
    kr_tensor *t = kr_clamp(tape, kr_tanh(tape, kr_scale(tape, da, -0.5)), 1e-30, 1);
    kr_tensor *half = kr_mul(tape, weight, kr_affine(tape, t, 0.5, 0.5));
    return kr_div(tape, half, t);
}

/* ---- one token ---- */

kr_block_out kr_block_step(kr_tape *tape, const kr_block_kind *kind, const void *block, const char *op, kr_tensor *x_bd,
                           const kr_cache *cache)
{
    const kr_block_out none = { .y_bsd = NULL };
    kr_dims d;
    if (!kr_block_begin_token(tape, op, block, x_bd, &d)) return none;
    const kr_block_input input = {
        .op = op, .x_bsd = kr_reshape(tape, x_bd, KR_SHAPE(d.b, 1, d.d)), .cache = cache, .path = kind->path(block)
    };
    kr_block_out out = kind->forward(tape, block, &input);
    out.y_bsd = kr_reshape(tape, out.y_bsd, KR_SHAPE(d.b, d.d));
    return out.y_bsd ? out : none;
}

/* ---- rows that forget ----
 *
 * A reset begins a sequence, so a row with resets is a packed row: its first sequence continues the row's cache unless
 * it begins with a reset; all others, and that one then, begin afresh; the row's new cache is its last sequence's.
 */

/* For each sequence the row of [cache; fresh] that it begins from (fresh is row nb); for each row its last sequence. */
static bool plan_resets(kr_tape *tape, const char *op, kr_tensor *reset_bs, int64_t nb, const kr_sequences *sequences,
                        int64_t **from, int64_t **last)
{
    *from = kr_arena_alloc(&tape->heads, (size_t)sequences->count * sizeof **from);
    *last = kr_arena_alloc(&tape->heads, (size_t)nb * sizeof **last);
    if (!*from || !*last) return kr_fail(tape->ctx, KR_ERR_NOMEM, "%s: no memory for a plan of resets", op);
    for (int64_t q = 0; q < sequences->count; q++) {
        const int64_t row = sequences->list[q].row;
        const int64_t at[2] = { row, 0 };
        const bool continues = sequences->list[q].start == 0 && kr_tensor_at(reset_bs, at) == 0;
        (*from)[q] = continues ? row : nb;
        (*last)[row] = q;
    }
    return true;
}

kr_block_out kr_block_forward_reset(kr_tape *tape, const kr_block_kind *kind, const void *block,
                                    const kr_block_input *input, kr_tensor *reset_bs)
{
    const kr_block_out none = { .y_bsd = NULL };
    const char *op = input->op;
    kr_dims d;
    kr_sequences sequences;
    int64_t *from, *last;
    if (!exists(tape, op, block) || !kr_bind(tape, op, &d, "x:bsd reset:bs", input->x_bsd, reset_bs) ||
        !kr_require(tape->ctx, reset_bs->dtype == KR_I32 || reset_bs->dtype == KR_I64, KR_ERR_DTYPE,
                    "%s: reset %s is %s, but must be i32 or i64", op, KR_TEXT_OF(reset_bs),
                    kr_dtype_name(reset_bs->dtype)) ||
        !kr_sequences_from(tape, op, reset_bs, d.b, d.s, &sequences) ||
        (input->cache && !kr_cache_check(tape, op, kind, block, input->cache, d.b, "one for each row")) ||
        !plan_resets(tape, op, reset_bs, d.b, &sequences, &from, &last))
        return none;
    kr_block_input packed = *input;
    kr_cache begin;
    packed.seq_start_bs = reset_bs;
    if (input->cache) {
        begin = *input->cache;
        const kr_cache fresh = kind->fresh(tape, block, 1);
        for (int i = 0; i < kind->ncache; i++) {
            const kr_dtype type = kr_tensor_dtype(fresh.tensors[i]);
            kr_tensor *both[2] = { kr_cast(tape, begin.tensors[i], type), fresh.tensors[i] };
            begin.tensors[i] = kr_select_rows(tape, kr_concat(tape, 0, 2, both), sequences.count, from);
        }
        packed.cache = &begin;
    }
    kr_block_out out = kind->forward(tape, block, &packed);
    for (int i = 0; i < kind->ncache; i++) out.cache.tensors[i] = kr_select_rows(tape, out.cache.tensors[i], d.b, last);
    return kr_ctx_failed(tape->ctx) ? none : out;
}
