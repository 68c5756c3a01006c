/* block_kinds.c - the table of families: those of the library, then those that the program registers.
 *
 * Registered families are in static memory and stay there: a model that is used by several contexts refers to its family
 * without counting. Readers need no lock, since a row is complete before the count says that it exists.
 */
#include "nn/block_kinds.h"

#include "base/sized.h"
#include "nn/block_config.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define OP "block_kind.register"

KR_DEFAULTS(kr_block_kind_info) = { .size = sizeof(kr_block_kind_info), .version = KR_BLOCK_VERSION };

#define BEGINS_LIKE_HEAD(type)                                                                                         \
    _Static_assert(offsetof(type, size) == offsetof(kr_config_head, size) &&                                           \
                       offsetof(type, dtype) == offsetof(kr_config_head, dtype) &&                                     \
                       offsetof(type, d_model) == offsetof(kr_config_head, d_model),                                   \
                   "the config of every family begins with a kr_config_head")
BEGINS_LIKE_HEAD(kr_mamba1_config);
BEGINS_LIKE_HEAD(kr_mamba2_config);
BEGINS_LIKE_HEAD(kr_mamba3_config);

/* ---- finding one ---- */

static const kr_block_kind *const library_kinds[KR_N_FAMILIES] = { &kr_mamba1_kind, &kr_mamba2_kind, &kr_mamba3_kind };

static kr_registered_kind registered[KR_KINDS_MOST];
static atomic_int count;
static atomic_flag is_busy = ATOMIC_FLAG_INIT; /* held while a family is registered */

const kr_registered_kind *kr_registered_kind_of(kr_family family)
{
    const int i = (int)family - KR_FAMILY_REGISTERED;
    return i >= 0 && i < atomic_load_explicit(&count, memory_order_acquire) ? &registered[i] : NULL;
}

const kr_block_kind *kr_block_kind_of(kr_family family)
{
    if (family >= 0 && (int)family < KR_N_FAMILIES) return library_kinds[family];
    const kr_registered_kind *r = kr_registered_kind_of(family);
    return r ? &r->kind : NULL;
}

const kr_block_kind *kr_block_kind_named(const char *name, size_t length)
{
    const int n = KR_N_FAMILIES + atomic_load_explicit(&count, memory_order_acquire);
    for (int i = 0; i < n; i++) {
        const kr_block_kind *kind = i < KR_N_FAMILIES ? library_kinds[i] : &registered[i - KR_N_FAMILIES].kind;
        if (strlen(kind->name) == length && memcmp(kind->name, name, length) == 0) return kind;
    }
    return NULL;
}

kr_family kr_family_find(const char *name)
{
    const kr_block_kind *kind = name ? kr_block_kind_named(name, strlen(name)) : NULL;
    return kind ? kind->family : KR_FAMILY_NONE;
}

/* ---- checks of a registration ---- */

static bool is_name(const char *name, size_t bytes)
{
    if (!name || name[0] < 'a' || name[0] > 'z') return false;
    const size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return name[length] == '\0' && length < bytes;
}

/* Keys of ssm_cfg that have a meaning of their own in config.json. */
static bool is_reserved(const char *name)
{
    static const char *const names[] = { "layer",         "layer_idx",        "n_layer",       "device",
                                         "dtype",         "d_model",          "use_fast_path", "use_mem_eff_path",
                                         "process_group", "sequence_parallel" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static size_t field_bytes(kr_field_kind kind)
{
    static const size_t bytes[] = { sizeof(int64_t), sizeof(double), sizeof(bool), sizeof(const char *) };
    return (unsigned)kind < sizeof bytes / sizeof *bytes ? bytes[kind] : 0;
}

static bool has_range(const kr_config_field *f)
{
    return f->least != 0 || f->most != 0;
}

static bool check_field(kr_ctx *ctx, const kr_block_kind_info *info, int i)
{
    const kr_config_field *f = &info->fields[i];
    const size_t bytes = field_bytes(f->kind);
    if (!kr_require(ctx, is_name(f->name, KR_KIND_NAME_BYTES) && !is_reserved(f->name), KR_ERR_ARG,
                    OP ": %s: fields[%d].name is %s, but must be from 1 to %d of the characters a-z, 0-9 and _, the "
                       "first a letter, and not a key that ssm_cfg has in every family",
                    info->name, i, f->name ? f->name : "NULL", KR_KIND_NAME_BYTES - 1) ||
        !kr_require(ctx, bytes > 0, KR_ERR_ARG, OP ": %s: field %s has kind = %d, which is not a kr_field_kind",
                    info->name, f->name, (int)f->kind) ||
        !KR_RESERVED(ctx, OP, "kr_config_field", f) ||
        !kr_require(ctx,
                    f->offset >= sizeof(kr_config_head) && f->offset % bytes == 0 && f->offset <= info->config_bytes &&
                        bytes <= info->config_bytes - f->offset,
                    KR_ERR_ARG,
                    OP ": %s: field %s has offset = %zu, but must be within the config of %zu bytes, after its "
                       "kr_config_head",
                    info->name, f->name, f->offset, info->config_bytes) ||
        !kr_require(ctx, isfinite(f->value) && isfinite(f->least) && isfinite(f->most) && f->least <= f->most,
                    KR_ERR_ARG, OP ": %s: field %s has value = %g, least = %g and most = %g, which is not a range",
                    info->name, f->name, f->value, f->least, f->most) ||
        !kr_require(ctx, f->kind != KR_FIELD_TEXT || !f->text || strlen(f->text) < KR_FIELD_TEXT_BYTES, KR_ERR_ARG,
                    OP ": %s: the default of field %s has more than %d bytes", info->name, f->name,
                    KR_FIELD_TEXT_BYTES - 1))
        return false;
    for (int k = 0; k < i; k++)
        if (!kr_require(ctx, strcmp(info->fields[k].name, f->name) != 0, KR_ERR_ARG,
                        OP ": %s: two fields are called %s", info->name, f->name))
            return false;
    return true;
}

static bool check_fields(kr_ctx *ctx, const kr_block_kind_info *info)
{
    if (!kr_require(ctx, info->n_fields >= 0 && info->n_fields <= KR_CONFIG_FIELDS_MAX, KR_ERR_ARG,
                    OP ": %s: n_fields = %d, but must be from 0 to %d", info->name, info->n_fields,
                    KR_CONFIG_FIELDS_MAX) ||
        !kr_require(ctx, info->n_fields == 0 || info->fields, KR_ERR_ARG, OP ": %s: n_fields = %d, but fields is NULL",
                    info->name, info->n_fields))
        return false;
    for (int i = 0; i < info->n_fields; i++)
        if (!check_field(ctx, info, i)) return false;
    return true;
}

static bool check_cache_names(kr_ctx *ctx, const kr_block_kind_info *info)
{
    if (!kr_require(ctx, info->n_cache >= 0 && info->n_cache <= KR_CACHE_TENSORS, KR_ERR_ARG,
                    OP ": %s: n_cache = %d, but must be from 0 to %d", info->name, info->n_cache, KR_CACHE_TENSORS) ||
        !kr_require(ctx, info->n_cache == 0 || info->cache_names, KR_ERR_ARG,
                    OP ": %s: n_cache = %d, but cache_names is NULL", info->name, info->n_cache))
        return false;
    for (int i = 0; i < info->n_cache; i++) {
        const char *name = info->cache_names[i];
        if (!kr_require(ctx, is_name(name, KR_CACHE_NAME_BYTES), KR_ERR_ARG,
                        OP ": %s: cache_names[%d] is %s, but must be from 1 to %d of the characters a-z, 0-9 and _, "
                           "the first a letter",
                        info->name, i, name ? name : "NULL", KR_CACHE_NAME_BYTES - 1))
            return false;
        for (int k = 0; k < i; k++)
            if (!kr_require(ctx, strcmp(info->cache_names[k], name) != 0, KR_ERR_ARG,
                            OP ": %s: two cache tensors are called %s", info->name, name))
                return false;
    }
    return true;
}

static bool check_info(kr_ctx *ctx, const kr_block_kind_info *info)
{
    return kr_require(ctx, info->version == KR_BLOCK_VERSION, KR_ERR_UNSUPPORTED,
                      OP ": version = %d, but this library knows version %d; build the family with the headers of this "
                         "library, %s",
                      info->version, KR_BLOCK_VERSION, kr_version()) &&
           kr_require(ctx, is_name(info->name, KR_KIND_NAME_BYTES), KR_ERR_ARG,
                      OP ": name is %s, but must be from 1 to %d of the characters a-z, 0-9 and _, the first a letter",
                      info->name ? info->name : "NULL", KR_KIND_NAME_BYTES - 1) &&
           kr_require(ctx, info->config_bytes >= sizeof(kr_config_head) && info->config_bytes <= KR_BLOCK_CONFIG_BYTES,
                      KR_ERR_ARG,
                      OP ": %s: config_bytes = %zu, but must be from %zu to %d: a struct that begins with a "
                         "kr_config_head",
                      info->name, info->config_bytes, sizeof(kr_config_head), KR_BLOCK_CONFIG_BYTES) &&
           check_fields(ctx, info) && check_cache_names(ctx, info) &&
           kr_require(ctx, info->create != NULL, KR_ERR_ARG, OP ": %s: create is NULL", info->name) &&
           kr_require(ctx, info->forward != NULL, KR_ERR_ARG, OP ": %s: forward is NULL", info->name);
}

/* ---- registering ---- */

static bool same_fields(const kr_block_kind_info *a, const kr_block_kind_info *b)
{
    for (int i = 0; i < a->n_fields; i++) {
        const kr_config_field *x = &a->fields[i], *y = &b->fields[i];
        const char *s = x->text ? x->text : "", *t = y->text ? y->text : "";
        if (strcmp(x->name, y->name) != 0 || x->kind != y->kind || x->offset != y->offset || x->value != y->value ||
            x->least != y->least || x->most != y->most || strcmp(s, t) != 0)
            return false;
    }
    return true;
}

static bool same_info(const kr_block_kind_info *a, const kr_block_kind_info *b)
{
    if (a->config_bytes != b->config_bytes || a->n_fields != b->n_fields || a->n_cache != b->n_cache ||
        a->has_packed_rows != b->has_packed_rows || a->has_fixed_steps != b->has_fixed_steps || a->user != b->user ||
        a->create != b->create || a->destroy != b->destroy || a->forward != b->forward ||
        a->initial_cache != b->initial_cache || a->step_infinite != b->step_infinite)
        return false;
    for (int i = 0; i < a->n_cache; i++)
        if (strcmp(a->cache_names[i], b->cache_names[i]) != 0) return false;
    return same_fields(a, b);
}

static void copy_lists(kr_registered_kind *r, const kr_block_kind_info *info)
{
    for (int i = 0; i < info->n_cache; i++) {
        memcpy(r->cache_names[i], info->cache_names[i], strlen(info->cache_names[i]) + 1);
        r->cache_list[i] = r->kind.cache_names[i] = r->cache_names[i];
    }
    for (int i = 0; i < info->n_fields; i++) {
        const char *text = info->fields[i].text ? info->fields[i].text : "";
        r->fields[i] = info->fields[i];
        memcpy(r->field_names[i], info->fields[i].name, strlen(info->fields[i].name) + 1);
        memcpy(r->field_texts[i], text, strlen(text) + 1);
        r->fields[i].name = r->field_names[i];
        r->fields[i].text = r->field_texts[i];
    }
}

static void fill(kr_registered_kind *r, const kr_block_kind_info *info, kr_family family)
{
    static const char *const calls[] = { "forward", "forward_packed", "forward_reset", "step", "step_infinite" };
    memcpy(r->name, info->name, strlen(info->name) + 1);
    for (int i = 0; i < 5; i++) snprintf(r->op_names[i], sizeof r->op_names[i], "%s.%s", info->name, calls[i]);
    r->info = *info;
    r->kind =
        (kr_block_kind){ .family = family,
                         .name = r->name,
                         .calls = { r->op_names[0], r->op_names[1], r->op_names[2], r->op_names[3], r->op_names[4] },
                         .registered = r,
                         .has_varying_steps = !info->has_fixed_steps,
                         .ncache = info->n_cache };
    copy_lists(r, info);
    r->info.name = r->name;
    r->info.cache_names = r->cache_list;
    r->info.fields = r->fields;
    kr_registered_kind_fill(&r->kind);
}

/* While the table is held. */
static bool append(kr_ctx *ctx, const kr_block_kind_info *info, kr_family *family)
{
    const int n = atomic_load_explicit(&count, memory_order_relaxed);
    const kr_block_kind *other = kr_block_kind_named(info->name, strlen(info->name));
    const kr_registered_kind *r = other ? kr_registered_kind_of(other->family) : NULL;
    if (!kr_require(ctx, !other || (r && same_info(&r->info, info)), KR_ERR_ARG,
                    OP ": the name %s belongs to %s; choose another", info->name,
                    r ? "a family that was registered with other values" : "a family of the library"))
        return false;
    if (other) {
        *family = other->family;
        return true;
    }
    if (!kr_require(ctx, n < KR_KINDS_MOST, KR_ERR_UNSUPPORTED,
                    OP ": %s would be family number %d, but at most %d can be registered", info->name, n + 1,
                    KR_KINDS_MOST))
        return false;
    *family = (kr_family)(KR_FAMILY_REGISTERED + n);
    fill(&registered[n], info, *family);
    atomic_store_explicit(&count, n + 1, memory_order_release);
    return true;
}

kr_status kr_block_kind_register(kr_ctx *ctx, const kr_block_kind_info *info, kr_family *family)
{
    kr_block_kind_info own;
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (!kr_require(ctx, info != NULL, KR_ERR_ARG, OP ": info is NULL") ||
        !kr_require(ctx, family != NULL, KR_ERR_ARG, OP ": family is NULL"))
        return ctx->status;
    *family = KR_FAMILY_NONE;
    if (!KR_TAKE(ctx, OP, kr_block_kind_info, info, &own) || !check_info(ctx, &own)) return ctx->status;
    while (atomic_flag_test_and_set_explicit(&is_busy, memory_order_acquire)) continue; /* for a few copies */
    append(ctx, &own, family);
    atomic_flag_clear_explicit(&is_busy, memory_order_release);
    return ctx->status;
}

/* ---- configs ---- */

void kr_registered_config_init(const kr_registered_kind *r, void *config)
{
    char *bytes = config;
    memset(config, 0, r->info.config_bytes);
    memcpy(bytes + offsetof(kr_config_head, size), &r->info.config_bytes, sizeof(size_t));
    for (int i = 0; i < r->info.n_fields; i++) {
        const kr_config_field *f = &r->fields[i];
        const int64_t integer = (int64_t)f->value;
        const bool truth = f->value != 0;
        const void *from = f->kind == KR_FIELD_INTEGER  ? (const void *)&integer
                           : f->kind == KR_FIELD_NUMBER ? (const void *)&f->value
                           : f->kind == KR_FIELD_BOOL   ? (const void *)&truth
                                                        : (const void *)&f->text;
        memcpy(bytes + f->offset, from, field_bytes(f->kind));
    }
}

kr_status kr_block_config_init(kr_ctx *ctx, kr_family family, void *config, size_t size)
{
    static const char op[] = "block_config.init";
    static const struct {
        kr_struct_id id;
        size_t bytes;
    } library[KR_N_FAMILIES] = { { KR_STRUCT_MAMBA1_CONFIG, sizeof(kr_mamba1_config) },
                                 { KR_STRUCT_MAMBA2_CONFIG, sizeof(kr_mamba2_config) },
                                 { KR_STRUCT_MAMBA3_CONFIG, sizeof(kr_mamba3_config) } };
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    const kr_block_kind *kind = kr_block_kind_of(family);
    if (!kr_require(ctx, config != NULL, KR_ERR_ARG, "%s: config is NULL", op) ||
        !kr_require(ctx, kind != NULL, KR_ERR_ARG, "%s: family = %d is not a kr_family", op, (int)family))
        return ctx->status;
    if (!kind->registered) {
        if (kr_require(ctx, size >= sizeof(kr_config_head) && size <= 4096, KR_ERR_ARG,
                       "%s: size = %zu, but the config of %s has %zu bytes", op, size, kind->name,
                       library[family].bytes))
            kr_struct_init(library[family].id, config, size);
        return ctx->status;
    }
    const kr_registered_kind *r = kind->registered;
    if (kr_require(ctx, size == r->info.config_bytes, KR_ERR_ARG, "%s: size = %zu, but the config of %s has %zu bytes",
                   op, size, r->name, r->info.config_bytes))
        kr_registered_config_init(r, config);
    return ctx->status;
}

bool kr_registered_field_check(kr_ctx *ctx, kr_status status, const char *prefix, const kr_config_field *f,
                               const void *config)
{
    const char *at = (const char *)config + f->offset;
    int64_t integer;
    double number;
    const char *text;
    switch (f->kind) {
    case KR_FIELD_INTEGER:
        memcpy(&integer, at, sizeof integer);
        return kr_require(ctx, !has_range(f) || ((double)integer >= f->least && (double)integer <= f->most), status,
                          "%s%s = %lld, but must be from %.15g to %.15g", prefix, f->name, (long long)integer, f->least,
                          f->most);
    case KR_FIELD_NUMBER:
        memcpy(&number, at, sizeof number);
        return kr_require(ctx, isfinite(number), status, "%s%s = %g, but must be finite", prefix, f->name, number) &&
               kr_require(ctx, !has_range(f) || (number >= f->least && number <= f->most), status,
                          "%s%s = %g, but must be from %g to %g", prefix, f->name, number, f->least, f->most);
    case KR_FIELD_TEXT:
        memcpy(&text, at, sizeof text);
        return kr_require(ctx, text != NULL, status, "%s%s is NULL; call kr_block_config_init before setting fields",
                          prefix, f->name);
    case KR_FIELD_BOOL: break;
    }
    return true;
}

bool kr_registered_config_check(kr_ctx *ctx, const char *op, const kr_registered_kind *r, const void *config)
{
    char prefix[KR_KIND_NAME_BYTES + 32];
    kr_config_head head;
    snprintf(prefix, sizeof prefix, "%s: ", op);
    if (!kr_config_given(ctx, op, config)) return false;
    memcpy(&head, config, sizeof head);
    if (!kr_require(ctx, head.size == r->info.config_bytes, KR_ERR_ARG,
                    "%s: config.size is %zu, but the config of %s has %zu bytes; call kr_block_config_init before "
                    "setting fields",
                    op, head.size, r->name, r->info.config_bytes) ||
        !kr_config_dtype(ctx, op, head.dtype) || !kr_config_at_least(ctx, op, "d_model", head.d_model, 1))
        return false;
    for (int i = 0; i < r->info.n_fields; i++)
        if (!kr_registered_field_check(ctx, KR_ERR_ARG, prefix, &r->fields[i], config)) return false;
    return true;
}
