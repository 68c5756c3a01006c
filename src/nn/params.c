/* params.c - the parameter table: rows, prefixes, slabs, and looking things up. */
#include "nn/params_impl.h"

#include "base/device_memory.h"
#include "base/hash.h"
#include "device/device.h"
#include "nn/block_config.h"
#include "nn/init.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PREFIX_BYTES = 256 };

typedef struct row {
    kr_param_row seen; /* by the user */
    bool is_residual_out, is_proj_bias, is_linear;
    bool is_shared; /* the tensor is someone else's */
    char *place;    /* its elements in a mapped file; NULL: a slab has them */
} row;

struct kr_params {
    kr_ctx *ctx;
    kr_arena arena; /* rows, names, segments */
    row **rows;
    int64_t count, capacity;
    kr_weights *weights; /* of the rows that are its own; NULL: none was allocated */
    bool is_counted;     /* the memories of ctx include them */
    char prefix[PREFIX_BYTES];
    bool is_declaring;
};

kr_params *kr_params_create(kr_ctx *ctx)
{
    if (kr_ctx_failed(ctx)) return NULL;
    kr_params *params = kr_memory_alloc_zeroed(&ctx->memory, sizeof *params);
    if (!params) {
        kr_fail(ctx, KR_ERR_NOMEM, "params: no memory for a parameter table");
        return NULL;
    }
    params->ctx = ctx;
    kr_arena_init(&params->arena, &ctx->memory, 4096);
    return params;
}

void kr_params_destroy(kr_params *params)
{
    if (!params) return;
    kr_memory *memory = &params->ctx->memory;
    kr_weights *weights = params->weights;
    const bool is_last = weights && kr_weights_leave(weights, params->ctx, params->is_counted);
    for (int64_t i = 0; i < params->count; i++) {
        kr_tensor *x = params->rows[i]->seen.tensor;
        if (params->rows[i]->is_shared) continue;
        if (x->storage->weights && !is_last) x->storage->packed = NULL; /* the other users' */
        kr_param_destroy(x);
    }
    if (is_last) kr_weights_free(weights);
    kr_memory_free(memory, params->rows, (size_t)params->capacity * sizeof *params->rows);
    kr_arena_deinit(&params->arena);
    kr_memory_free(memory, params, sizeof *params);
}

/* ---- building ---- */

size_t kr_params_enter(kr_params *params, const char *format, ...)
{
    if (!params) return 0;
    const size_t outer = strlen(params->prefix);
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(params->prefix + outer, PREFIX_BYTES - outer, format, list);
    va_end(list);
    assert(length >= 0 && (size_t)length < PREFIX_BYTES - outer);
    (void)length;
    return outer;
}

void kr_params_leave(kr_params *params, size_t outer)
{
    if (params) params->prefix[outer] = '\0';
}

void kr_params_set_declaring(kr_params *params, bool is_declaring)
{
    params->is_declaring = is_declaring;
}

bool kr_params_is_declaring(const kr_params *params)
{
    return params->is_declaring;
}

bool kr_params_has(const kr_params *params, const char *name)
{
    const size_t length = strlen(params->prefix);
    for (int64_t i = 0; i < params->count; i++) {
        const char *own = params->rows[i]->seen.name;
        if (strncmp(own, params->prefix, length) == 0 && strcmp(own + length, name) == 0) return true;
    }
    return false;
}

static char *copy_text(kr_arena *arena, const char *prefix, const char *text)
{
    const size_t first = strlen(prefix), bytes = strlen(text) + 1;
    char *copy = kr_arena_alloc(arena, first + bytes);
    if (!copy) return NULL;
    memcpy(copy, prefix, first);
    memcpy(copy + first, text, bytes);
    return copy;
}

static kr_segment *copy_segments(kr_arena *arena, const kr_param_spec *spec)
{
    kr_segment *copy = kr_arena_alloc(arena, (size_t)spec->n_segments * sizeof *copy);
    for (int i = 0; copy && i < spec->n_segments; i++) {
        copy[i] = spec->segments[i];
        if (!(copy[i].name = copy_text(arena, "", spec->segments[i].name))) return NULL;
    }
    return copy;
}

static bool reserve_row(kr_params *params)
{
    if (params->count < params->capacity) return true;
    kr_memory *memory = &params->ctx->memory;
    const int64_t capacity = params->capacity ? 2 * params->capacity : 16;
    row **rows = kr_memory_alloc(memory, (size_t)capacity * sizeof *rows);
    if (!rows) return false;
    if (params->count) memcpy(rows, params->rows, (size_t)params->count * sizeof *rows);
    kr_memory_free(memory, params->rows, (size_t)params->capacity * sizeof *rows);
    params->rows = rows;
    params->capacity = capacity;
    return true;
}

static row *new_row(kr_params *params, const kr_param_spec *spec)
{
    row *r = kr_arena_alloc(&params->arena, sizeof *r);
    if (!r || !reserve_row(params)) return NULL;
    *r = (row){
        .seen = { .init = spec->init, .init_scale = 1, .has_decay = spec->has_decay, .n_segments = spec->n_segments },
        .is_residual_out = spec->is_residual_out,
        .is_proj_bias = spec->is_proj_bias,
        .is_linear = spec->is_linear
    };
    r->seen.name = copy_text(&params->arena, params->prefix, spec->name);
    r->seen.axes = copy_text(&params->arena, "", spec->axes);
    if (spec->n_segments) r->seen.segments = copy_segments(&params->arena, spec);
    return r->seen.name && r->seen.axes && (!spec->n_segments || r->seen.segments) ? r : NULL;
}

static row *append(kr_params *params, const kr_param_spec *spec)
{
    row *r = new_row(params, spec);
    if (r) return r;
    kr_fail(params->ctx, KR_ERR_NOMEM, "params: no memory for the row of %s%s", params->prefix, spec->name);
    return NULL;
}

kr_tensor *kr_params_add(kr_params *params, const kr_param_spec *spec)
{
    if (!params || kr_ctx_failed(params->ctx)) return NULL;
    row *r = append(params, spec);
    if (!r) return NULL;
    r->seen.tensor = kr_param_head(params->ctx, spec->dtype, spec->shape);
    if (!r->seen.tensor) {
        kr_blame(params->ctx, "%s", r->seen.name);
        return NULL;
    }
    r->seen.tensor->storage->name = r->seen.name;
    params->rows[params->count++] = r;
    return r->seen.tensor;
}

bool kr_params_put(kr_params *params, const kr_param_spec *spec, double init_scale, kr_tensor *tensor, bool is_shared)
{
    row *r = append(params, spec);
    if (!r) return false;
    r->seen.tensor = tensor;
    r->seen.init_scale = init_scale;
    r->is_shared = is_shared;
    if (!is_shared) tensor->storage->name = r->seen.name;
    params->rows[params->count++] = r;
    return true;
}

void kr_params_shorten(kr_params *params, int64_t count)
{
    params->count = count;
}

kr_ctx *kr_params_ctx(const kr_params *params)
{
    return params->ctx;
}

kr_param_spec kr_params_spec_at(const kr_params *params, int64_t i)
{
    const row *r = params->rows[i];
    return (kr_param_spec){ .name = r->seen.name,
                            .axes = r->seen.axes,
                            .init = r->seen.init,
                            .has_decay = r->seen.has_decay,
                            .is_linear = r->is_linear,
                            .is_residual_out = r->is_residual_out,
                            .is_proj_bias = r->is_proj_bias,
                            .n_segments = r->seen.n_segments,
                            .segments = r->seen.segments };
}

kr_tensor *kr_params_add_linear(kr_params *params, const kr_param_spec *spec)
{
    kr_param_spec linear = *spec;
    linear.has_decay = linear.is_linear = true;
    if (linear.init.kind == KR_INIT_FILL && linear.init.a == 0) linear.init = kr_init_linear(spec->shape.dims[1]);
    return kr_params_add(params, &linear);
}

kr_tensor *kr_params_add_vector(kr_params *params, const char *name, const char *axes, kr_dtype dtype, int64_t count,
                                kr_init init)
{
    return kr_params_add(
        params, &(kr_param_spec){ .name = name, .axes = axes, .dtype = dtype, .shape = KR_SHAPE(count), .init = init });
}

kr_tensor *kr_params_add_bias(kr_params *params, const char *name, const char *axes, kr_dtype dtype, int64_t count,
                              int64_t fan_in)
{
    return kr_params_add(params, &(kr_param_spec){ .name = name,
                                                   .axes = axes,
                                                   .dtype = kr_config_small_dtype(dtype),
                                                   .shape = KR_SHAPE(count),
                                                   .init = kr_init_linear(fan_in),
                                                   .is_proj_bias = true });
}

void kr_params_zero_biases(kr_params *params)
{
    for (int64_t i = 0; params && i < params->count; i++)
        if (params->rows[i]->is_proj_bias) params->rows[i]->seen.init = kr_init_fill(0);
}

void kr_params_rescale_residual(kr_params *params, double scale)
{
    for (int64_t i = 0; params && i < params->count; i++)
        if (params->rows[i]->is_residual_out) params->rows[i]->seen.init_scale = scale;
}

void kr_params_place(kr_params *params, int64_t i, void *data)
{
    params->rows[i]->place = data;
}

static size_t bytes_of(const kr_tensor *x)
{
    const size_t bytes = kr_dtype_span(x->dtype, kr_count_of(x));
    return (bytes + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN;
}

/* Adds up the slabs; false if they are more bytes than can be addressed. */
static bool measure(const kr_params *params, size_t bytes[KR_N_DTYPES])
{
    for (int64_t i = 0; i < params->count; i++) {
        const kr_tensor *x = params->rows[i]->seen.tensor;
        if (params->rows[i]->place) continue;
        if (!kr_require(params->ctx, bytes_of(x) <= SIZE_MAX / 2 - bytes[x->dtype], KR_ERR_SHAPE,
                        "params: with %s %s there are more bytes of %s parameters than can be addressed",
                        params->rows[i]->seen.name, KR_TEXT_OF(x), kr_dtype_name(x->dtype)))
            return false;
        bytes[x->dtype] += bytes_of(x);
    }
    return true;
}

bool kr_params_allocate(kr_params *params)
{
    size_t bytes[KR_N_DTYPES] = { 0 }, used[KR_N_DTYPES] = { 0 };
    if (!params || kr_ctx_failed(params->ctx) || !measure(params, bytes) ||
        !(params->weights = kr_weights_create(params->ctx)))
        return false;
    params->is_counted = true;
    for (int t = 0; t < KR_N_DTYPES; t++)
        if (bytes[t] && !kr_weights_allocate(params->weights, (kr_dtype)t, bytes[t]))
            return kr_fail(params->ctx, KR_ERR_NOMEM, "params: no memory for %zu bytes of %s parameters", bytes[t],
                           kr_dtype_name((kr_dtype)t));
    for (int64_t i = 0; i < params->count; i++) {
        kr_tensor *x = params->rows[i]->seen.tensor;
        x->storage->weights = params->weights;
        if ((x->data = params->rows[i]->place)) continue;
        x->data = (char *)params->weights->slabs[x->dtype].data + used[x->dtype];
        used[x->dtype] += bytes_of(x);
    }
    return true;
}

kr_weights_map *kr_params_add_maps(kr_params *params, int count)
{
    kr_weights_map *maps = kr_weights_add_maps(params->weights, count);
    if (!maps) kr_fail(params->ctx, KR_ERR_NOMEM, "params: no memory for a list of %d mapped files", count);
    return maps;
}

static bool may_share(const kr_device *device, const kr_device *owner)
{
    const kr_device_ops *ops = device->vtable;
    return !ops || !ops->may_share || (owner->vtable == ops && ops->may_share(device, owner));
}

static bool check_source(kr_ctx *ctx, const kr_params *from, const char *op)
{
    const kr_ctx *owner = from->ctx;
    return kr_require(ctx, from->weights && owner->device && !owner->broken, KR_ERR_STATE,
                      "%s: the model's context has failed, or its weights have no memory", op) &&
           kr_require(
               ctx, strcmp(ctx->device->name, owner->device->name) == 0, KR_ERR_STATE,
               "%s: the weights are on device %.60s, but the context is on %.60s; create it with the same device, "
               "or load the model there",
               op, owner->device->name, ctx->device->name) &&
           kr_require(
               ctx, may_share(ctx->device, owner->device), KR_ERR_UNSUPPORTED,
               "%s: the backend of device %.60s cannot share weights between contexts (free_detached is NULL); load "
               "the model in this context, too",
               op, owner->device->name) &&
           kr_require(
               ctx, !kr_memory_is_parents(from->weights->floats), KR_ERR_STATE,
               "%s: the weights are in the memory of a GPU, which belongs to the parent of this process; load the "
               "model in the child",
               op) &&
           kr_require(ctx,
                      !kr_ctx_on_device(ctx) || kr_weights_are_held(from->weights) ||
                          atomic_load_explicit(&from->weights->written, memory_order_relaxed) <=
                              atomic_load_explicit(&owner->nwaited, memory_order_acquire),
                      KR_ERR_STATE,
                      "%s: %.60s may still be writing the weights; call kr_ctx_wait with their context first", op,
                      owner->device->name);
}

/* Rows that the program has added are not those of the declaration. */
static bool check_rows(const kr_params *params, const kr_params *from, const char *op)
{
    bool is_same = params->count == from->count;
    for (int64_t i = 0; is_same && i < params->count; i++) {
        const kr_param_row *own = &params->rows[i]->seen, *other = &from->rows[i]->seen;
        const kr_shape shape = kr_tensor_shape(own->tensor), given = kr_tensor_shape(other->tensor);
        is_same = other->tensor->storage->weights == from->weights && own->tensor->dtype == other->tensor->dtype &&
                  kr_shape_equal(&shape, &given) && strcmp(own->name, other->name) == 0;
    }
    return kr_require(
        params->ctx, is_same, KR_ERR_UNSUPPORTED,
        "%s: the parameter table has rows that were added to it (%lld, and %lld declared); only a network's "
        "own parameters are shared",
        op, (long long)from->count, (long long)params->count);
}

bool kr_params_share_weights(kr_params *params, const kr_params *from, const char *op)
{
    kr_ctx *ctx = params->ctx;
    if (!check_source(ctx, from, op) || !check_rows(params, from, op)) return false;
    if (!kr_weights_share(from->weights, ctx))
        return !kr_ctx_failed(ctx) &&
               kr_fail(ctx, KR_ERR_STATE,
                       "%s: the weights are being trained or written; destroy their optimizer or trainer first, or "
                       "save the model and load it",
                       op);
    params->weights = from->weights;
    for (int64_t i = 0; i < params->count; i++) {
        kr_tensor *x = params->rows[i]->seen.tensor;
        const kr_tensor *source = from->rows[i]->seen.tensor;
        x->data = source->data;
        x->storage->weights = params->weights;
        x->storage->packed = source->storage->packed;
        x->flags.requires_grad = false;
    }
    return true;
}

bool kr_params_seal(kr_params *params)
{
    return kr_params_allocate(params) && kr_params_reset(params) == KR_OK;
}

/* ---- using ---- */

int64_t kr_params_count(const kr_params *params)
{
    return params ? params->count : 0;
}

const kr_param_row *kr_params_at(const kr_params *params, int64_t i)
{
    return params && i >= 0 && i < params->count ? &params->rows[i]->seen : NULL;
}

const kr_param_row *kr_params_find(const kr_params *params, const char *name)
{
    for (int64_t i = 0; params && name && i < params->count; i++)
        if (strcmp(params->rows[i]->seen.name, name) == 0) return &params->rows[i]->seen;
    return NULL;
}

bool kr_params_begin_write(const kr_params *params, const char *op)
{
    for (int64_t i = 0; i < params->count; i++) {
        if (kr_weights_begin_write(params->rows[i]->seen.tensor, op)) continue;
        while (i-- > 0) kr_weights_end_write(params->rows[i]->seen.tensor);
        return false;
    }
    return true;
}

void kr_params_end_write(const kr_params *params)
{
    for (int64_t i = 0; i < params->count; i++) kr_weights_end_write(params->rows[i]->seen.tensor);
}

kr_status kr_params_reset(kr_params *params)
{
    if (!params) return KR_ERR_ARG;
    if (!kr_params_begin_write(params, "params.reset")) return params->ctx->status;
    for (int64_t i = 0; i < params->count; i++) {
        const kr_param_row *r = &params->rows[i]->seen;
        if (!kr_init_apply(r->tensor, &r->init, r->init_scale)) {
            kr_blame(params->ctx, "%s", r->name);
            break;
        }
    }
    kr_params_end_write(params);
    kr_wait(params->ctx); /* other contexts may share them at once */
    return params->ctx->status;
}

void kr_params_zero_grad(kr_params *params)
{
    for (int64_t i = 0; params && i < params->count; i++) kr_zero_grad(params->rows[i]->seen.tensor);
}

void kr_params_freeze(kr_params *params, bool frozen)
{
    for (int64_t i = 0; params && i < params->count; i++) kr_param_freeze(params->rows[i]->seen.tensor, frozen);
}

/* The panels of weights that another context made are counted in this one, with the rest of them. */
static void count_weights(kr_params *params)
{
    if (!params->weights || params->is_counted) return;
    kr_memory_join(&params->weights->host, &params->ctx->memory);
    params->is_counted = true;
}

kr_status kr_params_pack(kr_params *params)
{
    if (!params) return KR_ERR_ARG;
    if (kr_ctx_on_device(params->ctx)) return params->ctx->status; /* it has no panels */
    if (!kr_params_begin_write(params, "params.pack")) return params->ctx->status;
    count_weights(params);
    for (int64_t i = 0; i < params->count; i++) {
        const row *r = params->rows[i];
        if (r->is_linear && !kr_param_pack(r->seen.tensor)) {
            kr_blame(params->ctx, "%s", r->seen.name);
            break;
        }
    }
    kr_params_end_write(params);
    return params->ctx->status;
}

void kr_params_unpack(kr_params *params)
{
    if (!params || kr_ctx_on_device(params->ctx) || !kr_params_begin_write(params, "params.unpack")) return;
    for (int64_t i = 0; i < params->count; i++) kr_param_unpack(params->rows[i]->seen.tensor);
    kr_params_end_write(params);
}

uint64_t kr_params_structure_hash(const kr_params *params)
{
    uint64_t hash = KR_HASH_BEGIN;
    for (int64_t i = 0; params && i < params->count; i++) {
        const kr_param_row *r = &params->rows[i]->seen;
        hash = kr_hash_text(hash, r->name);
        hash = kr_hash_word(hash, (uint64_t)r->tensor->dtype);
        hash = kr_hash_word(hash, (uint64_t)r->tensor->rank);
        for (int a = 0; a < r->tensor->rank; a++) hash = kr_hash_word(hash, (uint64_t)r->tensor->dims[a]);
    }
    return hash;
}

uint64_t kr_params_values_hash(const kr_params *params)
{
    uint64_t hash = kr_params_structure_hash(params);
    for (int64_t i = 0; params && i < params->count; i++) {
        const kr_tensor *x = params->rows[i]->seen.tensor;
        hash = kr_hash_at(params->ctx, hash, x->data, kr_dtype_span(x->dtype, kr_count_of(x)));
    }
    return hash;
}
