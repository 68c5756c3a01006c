/* safetensors_write.c - a file out of tensors that lie in memory: the header as text, then their bytes as they are.
 *
 * The header is composed twice by the same code: once to count its bytes, once to fill them. Spaces at its end bring the
 * elements to a multiple of 64 bytes.
 */
#include "io/file_write.h"
#include "io/quote.h"
#include "io/safetensors.h"
#include "io/utf8.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { ALIGN = 64, BLOCK_BYTES = 1 << 12 };

typedef struct entry entry;

struct entry {
    const char *name; /* or a metadata's key */
    entry *next;      /* in the order of the calls */
    const char *value;
    const kr_safetensors_type *type;
    kr_shape shape;
    const void *data;
    size_t bytes;
};

/* Entries in two orders: as given, and by name. */
typedef struct entry_list {
    entry *first, *last;
    entry **by_name;
    int64_t count, room;
} entry_list;

struct kr_safetensors_writer {
    kr_ctx *ctx;
    kr_arena arena; /* entries, texts */
    entry_list tensors, metadata;
    size_t data_bytes;
};

kr_safetensors_writer *kr_safetensors_writer_create(kr_ctx *ctx)
{
    if (kr_ctx_failed(ctx)) return NULL;
    kr_safetensors_writer *w = kr_memory_alloc_zeroed(&ctx->memory, sizeof *w);
    if (!w) {
        kr_fail(ctx, KR_ERR_NOMEM, "safetensors: no memory for a writer");
        return NULL;
    }
    w->ctx = ctx;
    kr_arena_init(&w->arena, &ctx->memory, BLOCK_BYTES);
    return w;
}

void kr_safetensors_writer_destroy(kr_safetensors_writer *w)
{
    if (!w) return;
    kr_memory *memory = &w->ctx->memory;
    kr_memory_free(memory, w->tensors.by_name, (size_t)w->tensors.room * sizeof(entry *));
    kr_memory_free(memory, w->metadata.by_name, (size_t)w->metadata.room * sizeof(entry *));
    kr_arena_deinit(&w->arena);
    kr_memory_free(memory, w, sizeof *w);
}

/* ---- adding ---- */

static bool is_utf8(const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        const size_t n = kr_utf8_length((const unsigned char *)text, left);
        if (n == 0) return false;
        text += n;
        left -= n;
    }
    return true;
}

static bool check_text(kr_ctx *ctx, const char *what, const char *text)
{
    if (!text) return kr_fail(ctx, KR_ERR_ARG, "safetensors: %s is NULL", what);
    return kr_require(ctx, is_utf8(text), KR_ERR_ARG, "safetensors: %s '%s' is not UTF-8", what,
                      kr_quote_of(text, strlen(text)).text);
}

/* Where the name is in by_name, or where it would go. */
static int64_t place_of(const entry_list *list, const char *name, bool *found)
{
    int64_t low = 0, high = list->count;
    *found = false;
    while (low < high && !*found) {
        const int64_t middle = low + (high - low) / 2;
        const int order = strcmp(name, list->by_name[middle]->name);
        if (order > 0) low = middle + 1;
        else high = middle;
        *found = order == 0;
    }
    return high;
}

static const char *copy_text(kr_arena *arena, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = kr_arena_alloc(arena, bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

static bool make_room(kr_memory *memory, entry_list *list)
{
    if (list->count < list->room) return true;
    const int64_t room = list->room ? 2 * list->room : 16;
    entry **by_name = kr_memory_alloc(memory, (size_t)room * sizeof *by_name);
    if (!by_name) return false;
    if (list->count) memcpy(by_name, list->by_name, (size_t)list->count * sizeof *by_name);
    kr_memory_free(memory, list->by_name, (size_t)list->room * sizeof *by_name);
    list->by_name = by_name;
    list->room = room;
    return true;
}

/* Appends a copy of `given`; what it points to but name and value is the caller's. */
static bool append(kr_safetensors_writer *w, entry_list *list, const char *what, const entry *given)
{
    bool found;
    const int64_t place = place_of(list, given->name, &found);
    const kr_quote quoted = kr_quote_of(given->name, strlen(given->name));
    if (found) return kr_fail(w->ctx, KR_ERR_ARG, "safetensors: %s '%s' was added before", what, quoted.text);
    entry *e = kr_arena_alloc(&w->arena, sizeof *e);
    const char *name = copy_text(&w->arena, given->name);
    const char *value = given->value ? copy_text(&w->arena, given->value) : NULL;
    if (!e || !name || (given->value && !value) || !make_room(&w->ctx->memory, list))
        return kr_fail(w->ctx, KR_ERR_NOMEM, "safetensors: no memory for %s '%s'", what, quoted.text);
    *e = *given;
    e->name = name;
    e->value = value;
    e->next = NULL;
    if (list->last) list->last->next = e;
    else list->first = e;
    list->last = e;
    memmove(list->by_name + place + 1, list->by_name + place, (size_t)(list->count - place) * sizeof(entry *));
    list->by_name[place] = e;
    list->count++;
    return true;
}

static bool check_tensor(kr_safetensors_writer *w, const char *name, kr_dtype dtype, const kr_shape *shape,
                         const void *data)
{
    kr_ctx *ctx = w->ctx;
    if (!check_text(ctx, "tensor", name)) return false;
    const kr_quote quoted = kr_quote_of(name, strlen(name));
    const int64_t count = kr_shape_count(shape);
    return kr_require(ctx, strcmp(name, "__metadata__") != 0, KR_ERR_ARG,
                      "safetensors: no tensor can have the name __metadata__, which the format keeps for itself") &&
           kr_require(ctx, kr_dtype_is_valid(dtype), KR_ERR_DTYPE, "safetensors: tensor '%s': %d is no kr_dtype",
                      quoted.text, (int)dtype) &&
           kr_require(ctx, count >= 0, KR_ERR_SHAPE,
                      "safetensors: tensor '%s': no shape: rank %d must be from 0 to %d, and sizes not negative and "
                      "addressable",
                      quoted.text, shape->rank, KR_MAX_RANK) &&
           kr_require(ctx, data != NULL || count == 0, KR_ERR_ARG, "safetensors: tensor '%s': data is NULL",
                      quoted.text) &&
           kr_require(ctx, (size_t)count * kr_dtype_bytes(dtype) <= SIZE_MAX / 2 - w->data_bytes, KR_ERR_SHAPE,
                      "safetensors: tensor '%s' %s makes the file too long", quoted.text, KR_TEXT_OF_SHAPE(shape));
}

kr_status kr_safetensors_add(kr_safetensors_writer *writer, const char *name, kr_dtype dtype, kr_shape shape,
                             const void *data)
{
    if (!writer) return KR_ERR_ARG;
    if (kr_ctx_failed(writer->ctx) || !check_tensor(writer, name, dtype, &shape, data)) return writer->ctx->status;
    const entry e = { .name = name,
                      .type = kr_safetensors_type_of(dtype),
                      .shape = shape,
                      .data = data,
                      .bytes = (size_t)kr_shape_count(&shape) * kr_dtype_bytes(dtype) };
    if (append(writer, &writer->tensors, "tensor", &e)) writer->data_bytes += e.bytes;
    return writer->ctx->status;
}

kr_status kr_safetensors_add_metadata(kr_safetensors_writer *writer, const char *key, const char *value)
{
    if (!writer) return KR_ERR_ARG;
    kr_ctx *ctx = writer->ctx;
    if (!kr_ctx_failed(ctx) && check_text(ctx, "the metadata key", key) && check_text(ctx, "the metadata value", value))
        append(writer, &writer->metadata, "the metadata key", &(entry){ .name = key, .value = value });
    return ctx->status;
}

/* ---- the header ---- */

typedef struct composer {
    char *text; /* NULL: count only */
    size_t length;
} composer;

static void put(composer *c, const char *text, size_t length)
{
    if (c->text) memcpy(c->text + c->length, text, length);
    c->length += length;
}

static void put_text(composer *c, const char *text)
{
    put(c, text, strlen(text));
}

/* Quoted, with the escapes that JSON asks for; everything else is UTF-8 and stands for itself. */
static void put_string(composer *c, const char *text)
{
    put_text(c, "\"");
    for (; *text; text++) {
        char escape[8];
        if (*text == '"' || *text == '\\') put(c, (const char[]){ '\\', *text }, 2);
        else if ((unsigned char)*text >= 0x20) put(c, text, 1);
        else put(c, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)*text));
    }
    put_text(c, "\"");
}

static void put_number(composer *c, uint64_t n)
{
    char digits[24];
    put(c, digits, (size_t)snprintf(digits, sizeof digits, "%" PRIu64, n));
}

static void put_tensor(composer *c, const entry *e, size_t from)
{
    put_string(c, e->name);
    put_text(c, ":{\"dtype\":");
    put_string(c, e->type->name);
    put_text(c, ",\"shape\":[");
    for (int i = 0; i < e->shape.rank; i++) {
        if (i) put_text(c, ",");
        put_number(c, (uint64_t)e->shape.dims[i]);
    }
    put_text(c, "],\"data_offsets\":[");
    put_number(c, from);
    put_text(c, ",");
    put_number(c, from + e->bytes);
    put_text(c, "]}");
}

static void compose(composer *c, const kr_safetensors_writer *w)
{
    const char *between = "{";
    if (w->metadata.first) {
        for (const entry *e = w->metadata.first; e; e = e->next) {
            put_text(c, e == w->metadata.first ? "{\"__metadata__\":{" : ",");
            put_string(c, e->name);
            put_text(c, ":");
            put_string(c, e->value);
        }
        put_text(c, "}");
        between = ",";
    }
    size_t from = 0;
    for (const entry *e = w->tensors.first; e; e = e->next) {
        put_text(c, between);
        put_tensor(c, e, from);
        from += e->bytes;
        between = ",";
    }
    put_text(c, *between == '{' ? "{}" : "}");
    while ((KR_SAFETENSORS_PREFIX + c->length) % ALIGN) put_text(c, " ");
}

/* ---- saving ---- */

static bool write_all(const kr_safetensors_writer *w, kr_file_writer *file, const unsigned char *head,
                      size_t head_bytes)
{
    if (!kr_file_write(file, head, head_bytes)) return false;
    for (const entry *e = w->tensors.first; e; e = e->next)
        if (!kr_file_write(file, e->data, e->bytes)) return false;
    return true;
}

static bool save(const kr_safetensors_writer *w, const char *path, unsigned char *head, size_t header_bytes)
{
    for (int i = 0; i < KR_SAFETENSORS_PREFIX; i++) head[i] = (unsigned char)((uint64_t)header_bytes >> (8 * i));
    compose(&(composer){ .text = (char *)head + KR_SAFETENSORS_PREFIX }, w);
    kr_file_writer file;
    if (!kr_file_create(&file, w->ctx, path)) return false;
    if (write_all(w, &file, head, KR_SAFETENSORS_PREFIX + header_bytes)) return kr_file_commit(&file);
    kr_file_discard(&file);
    return false;
}

kr_status kr_safetensors_save(const kr_safetensors_writer *writer, const char *path)
{
    if (!writer) return KR_ERR_ARG;
    kr_ctx *ctx = writer->ctx;
    if (kr_ctx_failed(ctx)) return ctx->status;
    composer measure = { .text = NULL };
    compose(&measure, writer);
    const size_t bytes = KR_SAFETENSORS_PREFIX + measure.length;
    unsigned char *head = NULL;
    if (!kr_safetensors_check_machine(ctx) ||
        !kr_require(ctx, measure.length <= KR_SAFETENSORS_HEADER_MAX, KR_ERR_ARG,
                    "the header would have %zu bytes, but at most %zu are allowed", measure.length,
                    KR_SAFETENSORS_HEADER_MAX) ||
        !kr_require(ctx, (head = kr_memory_alloc(&ctx->memory, bytes)) != NULL, KR_ERR_NOMEM,
                    "cannot write %s: no memory for a header of %zu bytes", path ? path : "a file", bytes) ||
        !save(writer, path, head, measure.length))
        kr_blame(ctx, "safetensors");
    kr_memory_free(&ctx->memory, head, bytes);
    return ctx->status;
}
