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
} row;

typedef struct slab {
    void *data;
    size_t bytes;
} slab;

struct kr_params {
    kr_ctx *ctx;
    kr_arena arena; /* rows, names, segments */
    row **rows;
    int64_t count, capacity;
    slab slabs[KR_DTYPE_F16 + 1]; /* by kr_dtype */
    char prefix[PREFIX_BYTES];
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
    for (int64_t i = 0; i < params->count; i++)
        if (!params->rows[i]->is_shared) kr_param_destroy(params->rows[i]->seen.tensor);
    for (int t = 0; t <= KR_DTYPE_F16; t++)
        if (params->slabs[t].data)
            kr_memory_free(kr_float_memory(params->ctx), params->slabs[t].data, params->slabs[t].bytes);
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

static size_t bytes_of(const kr_tensor *x)
{
    const size_t bytes = (size_t)kr_count_of(x) * kr_dtype_bytes(x->dtype);
    return (bytes + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN;
}

bool kr_params_allocate(kr_params *params)
{
    if (!params || kr_ctx_failed(params->ctx)) return false;
    for (int64_t i = 0; i < params->count; i++) {
        const kr_tensor *x = params->rows[i]->seen.tensor;
        slab *s = &params->slabs[x->dtype];
        if (!kr_require(params->ctx, bytes_of(x) <= SIZE_MAX / 2 - s->bytes, KR_ERR_SHAPE,
                        "params: with %s %s there are more bytes of %s parameters than can be addressed",
                        params->rows[i]->seen.name, KR_TEXT_OF(x), kr_dtype_name(x->dtype)))
            return false;
        s->bytes += bytes_of(x);
    }
    for (int t = 0; t <= KR_DTYPE_F16; t++) {
        slab *s = &params->slabs[t];
        if (!s->bytes || (s->data = kr_memory_alloc_zeroed(kr_float_memory(params->ctx), s->bytes))) continue;
        return kr_fail(params->ctx, KR_ERR_NOMEM, "params: no memory for %zu bytes of %s parameters", s->bytes,
                       kr_dtype_name((kr_dtype)t));
    }
    size_t used[KR_DTYPE_F16 + 1] = { 0 };
    for (int64_t i = 0; i < params->count; i++) {
        kr_tensor *x = params->rows[i]->seen.tensor;
        x->data = (char *)params->slabs[x->dtype].data + used[x->dtype];
        used[x->dtype] += bytes_of(x);
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

int64_t kr_params_elements(const kr_params *params)
{
    int64_t count = 0;
    for (int64_t i = 0; params && i < params->count; i++) count += kr_count_of(params->rows[i]->seen.tensor);
    return count;
}

kr_status kr_params_reset(kr_params *params)
{
    if (!params) return KR_ERR_ARG;
    for (int64_t i = 0; i < params->count; i++) {
        const kr_param_row *r = &params->rows[i]->seen;
        if (!kr_init_apply(r->tensor, &r->init, r->init_scale)) {
            kr_blame(params->ctx, "%s", r->name);
            break;
        }
    }
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

kr_status kr_params_pack(kr_params *params)
{
    if (!params) return KR_ERR_ARG;
    for (int64_t i = 0; i < params->count; i++) {
        const row *r = params->rows[i];
        if (r->is_linear && !kr_param_pack(r->seen.tensor)) {
            kr_blame(params->ctx, "%s", r->seen.name);
            break;
        }
    }
    return params->ctx->status;
}

void kr_params_unpack(kr_params *params)
{
    for (int64_t i = 0; params && i < params->count; i++) kr_param_unpack(params->rows[i]->seen.tensor);
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
        hash = kr_hash_at(params->ctx, hash, x->data, (size_t)kr_count_of(x) * kr_dtype_bytes(x->dtype));
    }
    return hash;
}
