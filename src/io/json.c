/* json.c - values of a document: reading what the parser made. */
#include "io/json_impl.h"

#include "base/entry.h"
#include "base/sized.h"

#include <string.h>

typedef struct document {
    kr_json root; /* a copy of the parsed root, so that its address is the document's */
    kr_ctx *ctx;
    kr_arena arena;
} document;

KR_DEFAULTS(kr_json_options) = {
    .size = sizeof(kr_json_options), .max_bytes = (size_t)128 << 20, .max_values = 4000000, .max_depth = 64
};

kr_json *kr_json_parse(kr_ctx *ctx, const char *text, size_t length, const kr_json_options *options)
{
    enum { BLOCK_BYTES = 8192 };
    if (kr_ctx_failed(ctx)) return NULL;
    document *d = kr_memory_alloc_zeroed(&ctx->memory, sizeof *d);
    if (!d) {
        kr_fail(ctx, KR_ERR_NOMEM, "json: no memory for a document");
        return NULL;
    }
    d->ctx = ctx;
    kr_arena_init(&d->arena, &ctx->memory, BLOCK_BYTES);
    const kr_json *root = kr_json_parse_in(ctx, &d->arena, text, length, options);
    if (!root) {
        kr_json_destroy(&d->root);
        return NULL;
    }
    d->root = *root;
    return &d->root;
}

void kr_json_destroy(kr_json *root)
{
    if (!root) return;
    document *d = (document *)(void *)root; /* the root is its first member */
    kr_entry entry;
    if (!kr_entry_begin(&entry, d->ctx, NULL, KR_ENTRY_DESTROYS)) return;
    kr_memory *memory = &d->ctx->memory;
    kr_arena_deinit(&d->arena);
    kr_memory_free(memory, d, sizeof *d);
    kr_entry_end(&entry);
}

kr_json_kind kr_json_kind_of(const kr_json *value)
{
    return value ? value->kind : KR_JSON_NULL;
}

const char *kr_json_kind_name(kr_json_kind kind)
{
    static const char *const names[] = { "null", "bool", "number", "string", "array", "object" };
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "?";
}

bool kr_json_bool(const kr_json *value, bool fallback)
{
    return kr_json_kind_of(value) == KR_JSON_BOOL ? value->truth : fallback;
}

double kr_json_number(const kr_json *value, double fallback)
{
    return kr_json_kind_of(value) == KR_JSON_NUMBER ? value->number : fallback;
}

bool kr_json_is_integer(const kr_json *value)
{
    return kr_json_kind_of(value) == KR_JSON_NUMBER && value->is_integer;
}

int64_t kr_json_integer(const kr_json *value, int64_t fallback)
{
    return kr_json_is_integer(value) ? value->integer : fallback;
}

const char *kr_json_text(const kr_json *value)
{
    return kr_json_kind_of(value) == KR_JSON_STRING ? value->text : NULL;
}

static bool has_values(const kr_json *value)
{
    return kr_json_kind_of(value) == KR_JSON_ARRAY || kr_json_kind_of(value) == KR_JSON_OBJECT;
}

int64_t kr_json_length(const kr_json *value)
{
    if (kr_json_text(value)) return (int64_t)value->length;
    return has_values(value) ? value->count : 0;
}

const kr_json *kr_json_first(const kr_json *value)
{
    return has_values(value) ? value->first : NULL;
}

const kr_json *kr_json_next(const kr_json *value)
{
    return value ? value->next : NULL;
}

const char *kr_json_key(const kr_json *value)
{
    return value ? value->key : NULL;
}

size_t kr_json_offset(const kr_json *value)
{
    return value ? value->at : 0;
}

int kr_json_compare_keys(const char *a, size_t na, const char *b, size_t nb)
{
    const int order = memcmp(a, b, na < nb ? na : nb);
    if (order) return order < 0 ? -1 : 1;
    return (na > nb) - (na < nb);
}

const kr_json *kr_json_find(const kr_json *value, const char *key)
{
    if (kr_json_kind_of(value) != KR_JSON_OBJECT || !key) return NULL;
    const size_t length = strlen(key);
    int64_t low = 0, high = value->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const kr_json *member = value->by_key[middle];
        const int order = kr_json_compare_keys(key, length, member->key, member->key_length);
        if (order == 0) return member;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}
