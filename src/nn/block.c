/* block.c - the block families and their common code: configs, caches, single steps, state resets, the public calls. */
#include "nn/block_impl.h"

#include "nn/block_config.h"
#include "nn/block_kinds.h"
#include "ops/sequences.h"

#include <string.h>

const char *kr_cache_name(kr_family family, int i)
{
    const kr_block_kind *kind = kr_block_kind_of(family);
    return kind && i >= 0 && i < kind->ncache ? kind->cache_names[i] : NULL;
}

/* ---- creation ---- */

bool kr_config_given(kr_ctx *ctx, const char *op, const void *config)
{
    return kr_require(ctx, config != NULL, KR_ERR_ARG, "%s: config is NULL", op);
}

void *kr_block_alloc(kr_ctx *ctx, const kr_block_kind *kind, size_t bytes, int64_t d_model, kr_dtype dtype)
{
    kr_block *block = kr_memory_alloc_zeroed(&ctx->memory, bytes);
    if (block) *block = (kr_block){ .ctx = ctx, .kind = kind, .bytes = bytes, .d_model = d_model, .dtype = dtype };
    else kr_fail(ctx, KR_ERR_NOMEM, "%s: no memory for a block", kind->name);
    return block;
}

void *kr_block_declare(kr_ctx *ctx, const kr_block_kind *kind, kr_params *params, const void *config)
{
    return kind->registered ? kr_registered_declare(ctx, kind->registered, params, config)
                            : kind->create(ctx, params, config);
}

bool kr_block_config_check(kr_ctx *ctx, const char *op, const kr_block_config *block)
{
    return kr_require(ctx, kr_block_kind_of(block->family) != NULL, KR_ERR_ARG,
                      "%s: block.family = %d is not one of mamba1, mamba2, mamba3, or registered", op,
                      (int)block->family) &&
           kr_require(ctx, block->config != NULL, KR_ERR_ARG,
                      "%s: block.config is NULL; set block with kr_mamba1_block, kr_mamba2_block or kr_mamba3_block",
                      op);
}

void kr_block_free(void *block)
{
    kr_block *head = block;
    if (head->kind->registered) kr_registered_free(block);
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

kr_block *kr_block_create(kr_ctx *ctx, const kr_block_config *config)
{
    if (kr_ctx_failed(ctx) || !kr_require(ctx, config != NULL, KR_ERR_ARG, "block.create: config is NULL")) return NULL;
    const kr_block_kind *kind = kr_block_kind_of(config->family);
    if (!kr_require(ctx, kind != NULL, KR_ERR_ARG, "block.create: family = %d is not a kr_family", (int)config->family))
        return NULL;
    kr_params *params = kr_params_create(ctx);
    kr_block *block = params ? kr_block_declare(ctx, kind, params, config->config) : NULL;
    if (block) block->params = params;
    if (block && kr_params_seal(params)) return block;
    if (block) kr_block_destroy(block);
    else kr_params_destroy(params);
    return NULL;
}

void kr_block_destroy(kr_block *block)
{
    if (!block) return;
    kr_params_destroy(block->params);
    kr_block_free(block);
}

kr_block_info kr_block_info_of(const kr_block *block)
{
    if (!block) return (kr_block_info){ .family = KR_FAMILY_MAMBA1, .path = kr_ssd_path_default() };
    return (kr_block_info){ .family = block->kind->family, .params = block->params, .path = block->kind->path(block) };
}

kr_ssd_path kr_block_optimal_path(const kr_block *block, kr_ssd_algorithm algorithm)
{
    const bool has_chunks = block && block->kind->optimal_chunk_len;
    return (kr_ssd_path){ algorithm, has_chunks ? block->kind->optimal_chunk_len(block) : 0 };
}

/* ---- caches ---- */

/* f64 mixes with no other type; all other floats mix. */
static bool is_type_for(kr_dtype x, kr_dtype block)
{
    return kr_dtype_is_float(x) && (x == KR_DTYPE_F64) == (block == KR_DTYPE_F64);
}

bool kr_cache_is_initial(const kr_cache *cache)
{
    for (int i = 0; i < kr_cache_count(cache->family); i++)
        if (cache->tensors[i]) return false;
    return true;
}

/* The caller's cache; NULL for one without tensors, of the block's family: the initial one. */
static const kr_cache *given_cache(const kr_block *block, const kr_cache *cache)
{
    return cache && cache->family == block->kind->family && kr_cache_is_initial(cache) ? NULL : cache;
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
                        "%s: cache.%s is NULL; a cache has all its tensors, or pass NULL for the initial one", op,
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
    kr_tensor *id = kr_from_data(tape, KR_DTYPE_I64, KR_SHAPE(count), ids);
    kr_tensor *rows = kr_embedding(tape, kr_reshape(tape, x, KR_SHAPE(kr_dim_of(x, 0), -1)), id);
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
                    "%s: x %s is empty; at least one row and one token are needed", op, KR_TEXT_OF(input->x_bsd)))
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
           kr_require(tape->ctx, d->b >= 1, KR_ERR_SHAPE, "%s: x %s is empty; at least one row is needed", op,
                      KR_TEXT_OF(x_bd));
}

bool kr_block_begin_initial(kr_tape *tape, const kr_block_kind *kind, const void *block, int64_t batch)
{
    return kr_tape_ready(tape, kind->name) &&
           kr_require(tape->ctx, block != NULL, KR_ERR_ARG, "%s.initial_cache: the block is NULL", kind->name) &&
           kr_require(tape->ctx, batch >= 1, KR_ERR_ARG, "%s.initial_cache: batch = %lld, but must be at least 1",
                      kind->name, (long long)batch);
}

kr_tensor *kr_block_masked(kr_tape *tape, const kr_block_input *input, kr_tensor *x)
{
    return input->mask_bs1 && x ? kr_mul(tape, x, kr_cast(tape, input->mask_bs1, x->dtype)) : x;
}

kr_tensor *kr_block_state_destination(const kr_block_input *input, kr_tensor *state)
{
    return input->in_place ? state : NULL;
}

/* 1 - exp(da) = 2 t / (1 + t) with t = tanh(-da / 2), which stays accurate as da goes to 0. The floor avoids 0 / 0 for
 * a weight of 0; all other t are much larger. */
kr_tensor *kr_geometric_sum(kr_tape *tape, kr_tensor *weight, kr_tensor *da)
{
    kr_tensor *t = kr_clamp(tape, kr_tanh(tape, kr_scale(tape, da, -0.5)), 1e-30, 1);
    kr_tensor *half = kr_mul(tape, weight, kr_affine(tape, t, 0.5, 0.5));
    return kr_div(tape, half, t);
}

/* ---- one token ---- */

kr_block_result kr_block_run_step(kr_tape *tape, const kr_block_kind *kind, const void *block, const char *op,
                                  kr_tensor *x_bd, const kr_cache *cache)
{
    const kr_block_result none = { .y_bsd = NULL };
    kr_dims d;
    if (!kr_block_begin_token(tape, op, block, x_bd, &d)) return none;
    const kr_block_input input = {
        .op = op, .x_bsd = kr_reshape(tape, x_bd, KR_SHAPE(d.b, 1, d.d)), .cache = cache, .path = kind->path(block)
    };
    kr_block_result out = kind->forward(tape, block, &input);
    out.y_bsd = kr_reshape(tape, out.y_bsd, KR_SHAPE(d.b, d.d));
    return out.y_bsd ? out : none;
}

/* ---- state resets ----
 *
 * A reset begins a sequence, so a row with resets is a packed row: its first sequence continues the row's cache unless
 * it begins with a reset; the others begin from the initial cache; the row's new cache is its last sequence's.
 */

bool kr_block_plan_resets(kr_tape *tape, const char *op, kr_tensor *reset_bs, int64_t nb, int64_t ns,
                          kr_reset_plan *plan)
{
    kr_sequences sequences;
    if (!kr_sequences_from(tape, op, reset_bs, nb, ns, &sequences)) return false;
    *plan = (kr_reset_plan){ .nb = nb, .count = sequences.count };
    plan->from = kr_arena_alloc(&tape->heads, (size_t)sequences.count * sizeof *plan->from);
    plan->last = kr_arena_alloc(&tape->heads, (size_t)nb * sizeof *plan->last);
    if (!plan->from || !plan->last) return kr_fail(tape->ctx, KR_ERR_NOMEM, "%s: no memory for a plan of resets", op);
    for (int64_t q = 0; q < sequences.count; q++) {
        const int64_t row = sequences.list[q].row;
        const int64_t at[2] = { row, 0 };
        const bool continues = sequences.list[q].start == 0 && kr_tensor_at(reset_bs, at) == 0;
        plan->from[q] = continues ? row : nb;
        plan->last[row] = q;
    }
    return true;
}

kr_tensor *kr_block_begin_sequences(kr_tape *tape, const kr_reset_plan *plan, kr_tensor *rows, kr_tensor *initial)
{
    kr_tensor *both[2] = { kr_cast(tape, rows, kr_tensor_dtype(initial)), initial };
    return kr_select_rows(tape, kr_concat(tape, 0, 2, both), plan->count, plan->from);
}

kr_block_result kr_block_run_reset(kr_tape *tape, const kr_block_kind *kind, const void *block,
                                   const kr_block_input *input, kr_tensor *reset_bs)
{
    const kr_block_result none = { .y_bsd = NULL };
    const char *op = input->op;
    kr_dims d;
    kr_reset_plan plan;
    if (!exists(tape, op, block) || !kr_bind(tape, op, &d, "x:bsd reset:bs", input->x_bsd, reset_bs) ||
        !kr_require(tape->ctx, reset_bs->dtype == KR_DTYPE_I32 || reset_bs->dtype == KR_DTYPE_I64, KR_ERR_DTYPE,
                    "%s: reset %s is %s, but must be i32 or i64", op, KR_TEXT_OF(reset_bs),
                    kr_dtype_name(reset_bs->dtype)) ||
        (input->cache && !kr_cache_check(tape, op, kind, block, input->cache, d.b, "one for each row")) ||
        !kr_block_plan_resets(tape, op, reset_bs, d.b, d.s, &plan))
        return none;
    kr_block_input packed = *input;
    kr_cache begin;
    packed.seq_start_bs = reset_bs;
    if (input->cache) {
        begin = *input->cache;
        const kr_cache initial = kind->initial_cache(tape, block, 1);
        for (int i = 0; i < kind->ncache; i++)
            begin.tensors[i] = kr_block_begin_sequences(tape, &plan, begin.tensors[i], initial.tensors[i]);
        packed.cache = &begin;
    }
    kr_block_result out = kind->forward(tape, block, &packed);
    for (int i = 0; i < kind->ncache; i++)
        out.cache.tensors[i] = kr_select_rows(tape, out.cache.tensors[i], d.b, plan.last);
    return kr_ctx_failed(tape->ctx) ? none : out;
}

/* ---- public calls ---- */

static kr_block_out public_out(kr_block_result result)
{
    return (kr_block_out){ .y = result.y_bsd, .cache = result.cache };
}

kr_cache kr_block_initial_cache(kr_tape *tape, const kr_block *block, int64_t batch)
{
    if (!exists(tape, "block.initial_cache", block)) return (kr_cache){ .family = KR_FAMILY_MAMBA1 };
    return block->kind->initial_cache(tape, block, batch);
}

/* The mask [b s] as factors [b s 1] in the type of the block's small parameters; NULL after an error. */
static kr_tensor *mask_factors(kr_tape *tape, const char *op, const kr_block *block, kr_tensor *x_bsd,
                               kr_tensor *mask_bs)
{
    kr_dims d;
    if (!kr_bind(tape, op, &d, "x:bsd mask:bs", x_bsd, mask_bs) ||
        !kr_require(tape->ctx, mask_bs->dtype == KR_DTYPE_I32 || mask_bs->dtype == KR_DTYPE_I64, KR_ERR_DTYPE,
                    "%s: mask %s is %s, but must be i32 or i64", op, KR_TEXT_OF(mask_bs),
                    kr_dtype_name(mask_bs->dtype)))
        return NULL;
    return kr_reshape(tape, kr_cast(tape, mask_bs, kr_config_small_dtype(block->dtype)), KR_SHAPE(d.b, d.s, 1));
}

static bool call_is_valid(kr_ctx *ctx, const char *op, const kr_block_call *call)
{
    bool is_zero = true;
    for (size_t i = 0; i < sizeof call->reserved / sizeof *call->reserved; i++) is_zero &= call->reserved[i] == NULL;
    return kr_require(ctx, is_zero, KR_ERR_ARG, "%s: call.reserved is not 0; initialise kr_block_call with { 0 }",
                      op) &&
           kr_require(ctx, !call->seq_start_bs || !call->reset_bs, KR_ERR_ARG,
                      "%s: seq_start and reset are both given; packed rows begin their sequences by seq_start alone",
                      op) &&
           kr_require(ctx, !call->cu_seqlens || !call->reset_bs, KR_ERR_ARG,
                      "%s: cu_seqlens and reset are both given; choose one", op);
}

static bool take_cu_seqlens(kr_tape *tape, const char *op, kr_tensor *x_bsd, const kr_block_call *call,
                            kr_tensor **seq_start_bs)
{
    kr_dims d;
    return !call->cu_seqlens || (kr_bind(tape, op, &d, "x:bsd", x_bsd) &&
                                 kr_cu_seqlens_take(tape, op, call->cu_seqlens, d.b, d.s, seq_start_bs));
}

bool kr_block_call_fits(kr_ctx *ctx, const char *op, kr_call_kind kind, const kr_block_call *call)
{
    if (!call) return true;
    const char *set = kind == KR_CALL_STEP_INFINITE && call->cache ? "cache"
                      : call->seq_start_bs                         ? "seq_start_bs"
                      : call->reset_bs                             ? "reset_bs"
                      : call->mask_bs                              ? "mask_bs"
                      : call->path                                 ? "path"
                      : call->cu_seqlens                           ? "cu_seqlens"
                                                                   : NULL;
    return KR_RESERVED(ctx, op, "kr_block_call", call) &&
           kr_require(ctx, !set, KR_ERR_ARG, "%s: call.%s is set, but this call takes %s", op, set,
                      kind == KR_CALL_STEP ? "no option except the cache" : "no options");
}

static kr_block_out run_forward(kr_tape *tape, const kr_block *block, kr_tensor *x_bsd, const kr_block_call *call)
{
    const kr_block_call defaults = { 0 };
    if (!call) call = &defaults;
    const bool is_packed = call->seq_start_bs || call->cu_seqlens;
    const kr_block_calls *calls = block ? &block->kind->calls : NULL;
    const char *op = !calls           ? "block.forward"
                     : call->reset_bs ? calls->reset
                     : is_packed      ? calls->packed
                                      : calls->forward;
    kr_tensor *seq_start_bs = call->seq_start_bs;
    if (!exists(tape, op, block) || !call_is_valid(tape->ctx, op, call) ||
        !take_cu_seqlens(tape, op, x_bsd, call, &seq_start_bs))
        return (kr_block_out){ .y = NULL };
    kr_block_input input = { .op = op,
                             .x_bsd = x_bsd,
                             .cache = given_cache(block, call->cache),
                             .seq_start_bs = seq_start_bs,
                             .path = call->path ? *call->path : kr_block_path(block) };
    if (call->mask_bs) {
        input.mask_bs1 = mask_factors(tape, op, block, x_bsd, call->mask_bs);
        if (!input.mask_bs1) return (kr_block_out){ .y = NULL };
    }
    return public_out(call->reset_bs ? kr_block_run_reset(tape, block->kind, block, &input, call->reset_bs)
                                     : block->kind->forward(tape, block, &input));
}

static kr_block_out run_step(kr_tape *tape, const kr_block *block, kr_tensor *x_bd, const kr_block_call *call)
{
    const char *op = block ? block->kind->calls.step : "block.step";
    if (!exists(tape, op, block) || !kr_block_call_fits(tape->ctx, op, KR_CALL_STEP, call))
        return (kr_block_out){ .y = NULL };
    const kr_cache *cache = call ? call->cache : NULL;
    return public_out(kr_block_run_step(tape, block->kind, block, op, x_bd, given_cache(block, cache)));
}

static kr_block_out run_infinite(kr_tape *tape, const kr_block *block, kr_tensor *x_bd, const kr_block_call *call)
{
    const char *op = block ? block->kind->calls.step_infinite : "block.step_infinite";
    if (!exists(tape, op, block) || !kr_block_call_fits(tape->ctx, op, KR_CALL_STEP_INFINITE, call))
        return (kr_block_out){ .y = NULL };
    return (kr_block_out){ .y = block->kind->step_infinite(tape, block, x_bd) };
}

kr_block_out kr_block_run(kr_tape *tape, const kr_block *block, kr_call_kind kind, kr_tensor *x,
                          const kr_block_call *call)
{
    switch (kind) {
    case KR_CALL_FORWARD: return run_forward(tape, block, x, call);
    case KR_CALL_STEP: return run_step(tape, block, x, call);
    case KR_CALL_STEP_INFINITE: return run_infinite(tape, block, x, call);
    case KR_CALL_PRIME: break;
    }
    if (tape) kr_fail(tape->ctx, KR_ERR_ARG, "block.run: kind = %d is not a call of a block", (int)kind);
    return (kr_block_out){ .y = NULL };
}
