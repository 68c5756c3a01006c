/* safetensors.c - the header of a file of tensors: 8 bytes of length (little-endian), JSON, data.
 *
 *   { "__metadata__": { KEY: TEXT, .. }, NAME: { "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24] }, .. }
 *
 * Offsets count from the end of the header. Tensors, taken in the order of their offsets, must cover the data exactly:
 * no overlap, no gap, nothing left at the end.
 */
#include "io/safetensors_impl.h"

#include "io/json_impl.h"
#include "io/heapsort.h"
#include "io/quote.h"
#include "tensor/tensor_impl.h"

#include <string.h>

enum { PREFIX_BYTES = KR_SAFETENSORS_PREFIX, BLOCK_BYTES = 1 << 16 };
static const uint64_t most_header_bytes = KR_SAFETENSORS_HEADER_MAX;

#define QUOTED(member) kr_quote_of((member)->key, (member)->key_length).text

static uint64_t little_endian_64(const unsigned char *p)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | p[i];
    return n;
}

/* ---- one tensor ---- */

static bool is_size(const kr_json *value)
{
    return kr_json_is_integer(value) && value->integer >= 0;
}

static bool read_shape(kr_ctx *ctx, const kr_json *entry, const kr_json *sizes, kr_safetensors_item *item)
{
    if (kr_json_kind_of(sizes) != KR_JSON_ARRAY)
        return kr_fail(ctx, KR_ERR_FORMAT, "tensor '%s' has no shape: an array of sizes", QUOTED(entry));
    if (sizes->count > KR_MAX_RANK)
        return kr_fail(ctx, KR_ERR_FORMAT, "tensor '%s' has %lld axes, but at most %d are supported", QUOTED(entry),
                       (long long)sizes->count, KR_MAX_RANK);
    for (const kr_json *size = sizes->first; size; size = size->next) {
        if (!is_size(size))
            return kr_fail(ctx, KR_ERR_FORMAT, "tensor '%s': axis %d of its shape is not a whole number >= 0",
                           QUOTED(entry), item->shape.rank);
        item->shape.dims[item->shape.rank++] = size->integer;
    }
    item->count = kr_shape_count(&item->shape);
    return kr_require(ctx, item->count >= 0, KR_ERR_FORMAT,
                      "tensor '%s': the shape %s has too many elements to address", QUOTED(entry),
                      KR_TEXT_OF_SHAPE(&item->shape));
}

static bool read_range(kr_ctx *ctx, const kr_json *entry, const kr_json *offsets, size_t data_bytes, int64_t *from,
                       int64_t *to)
{
    const kr_json *first = kr_json_first(offsets), *second = kr_json_next(first);
    if (kr_json_kind_of(offsets) != KR_JSON_ARRAY || kr_json_length(offsets) != 2 || !is_size(first) ||
        !is_size(second))
        return kr_fail(ctx, KR_ERR_FORMAT, "tensor '%s' has no data_offsets: an array of two whole numbers >= 0",
                       QUOTED(entry));
    *from = first->integer;
    *to = second->integer;
    if (*from > *to)
        return kr_fail(ctx, KR_ERR_FORMAT, "tensor '%s': its data ends at %lld, before it begins at %lld",
                       QUOTED(entry), (long long)*to, (long long)*from);
    return kr_require(ctx, (uint64_t)*to <= data_bytes, KR_ERR_FORMAT,
                      "tensor '%s': its data ends at %lld, but the file holds %zu bytes of data", QUOTED(entry),
                      (long long)*to, data_bytes);
}

/* Only keys that the format knows: another may say what we would miss. */
static bool check_keys(kr_ctx *ctx, const kr_json *entry)
{
    for (const kr_json *member = kr_json_first(entry); member; member = member->next)
        if (strcmp(member->key, "dtype") != 0 && strcmp(member->key, "shape") != 0 &&
            strcmp(member->key, "data_offsets") != 0)
            return kr_fail(ctx, KR_ERR_FORMAT,
                           "tensor '%s' has the key '%s', but only dtype, shape and data_offsets are allowed",
                           QUOTED(entry), QUOTED(member));
    return true;
}

static bool has_nul(const char *text, size_t length)
{
    return memchr(text, 0, length) != NULL;
}

static bool read_item(kr_ctx *ctx, const kr_json *entry, const unsigned char *data, size_t data_bytes,
                      kr_safetensors_item *item)
{
    if (has_nul(entry->key, entry->key_length))
        return kr_fail(ctx, KR_ERR_FORMAT, "the name of tensor '%s' holds a zero byte", QUOTED(entry));
    if (kr_json_kind_of(entry) != KR_JSON_OBJECT)
        return kr_fail(ctx, KR_ERR_FORMAT, "tensor '%s' is described by a value of kind %s, but it must be an object",
                       QUOTED(entry), kr_json_kind_name(entry->kind));
    const kr_json *type_text = kr_json_find(entry, "dtype");
    if (kr_json_kind_of(type_text) != KR_JSON_STRING)
        return kr_fail(ctx, KR_ERR_FORMAT, "tensor '%s' has no dtype: a string", QUOTED(entry));
    const kr_element_type *type = kr_safetensors_type_named(type_text->text);
    if (!type)
        return kr_fail(ctx, KR_ERR_FORMAT, "tensor '%s' has the unknown dtype '%s'", QUOTED(entry),
                       kr_quote_of(type_text->text, type_text->length).text);
    int64_t from = 0, to = 0;
    *item = (kr_safetensors_item){ .name = entry->key,
                                   .type = type->name,
                                   .is_native = type->is_native,
                                   .is_readable = type->is_readable,
                                   .dtype = type->dtype };
    if (!read_shape(ctx, entry, kr_json_find(entry, "shape"), item) ||
        !read_range(ctx, entry, kr_json_find(entry, "data_offsets"), data_bytes, &from, &to) || !check_keys(ctx, entry))
        return false;
    item->bytes = (size_t)(to - from);
    item->data = data + from;
    /* the product fits: kr_shape_count allows 8 bytes an element, and no type has more */
    return kr_require(ctx, (uint64_t)item->count * type->bytes == item->bytes, KR_ERR_FORMAT,
                      "tensor '%s': %s %s takes %llu bytes, but its data_offsets span %zu", QUOTED(entry), type->name,
                      KR_TEXT_OF_SHAPE(&item->shape), (unsigned long long)((uint64_t)item->count * type->bytes),
                      item->bytes);
}

/* ---- all of them ---- */

static bool check_metadata(kr_ctx *ctx, const kr_json *metadata)
{
    if (kr_json_kind_of(metadata) != KR_JSON_OBJECT)
        return kr_fail(ctx, KR_ERR_FORMAT, "__metadata__ is a value of kind %s, but it must be an object",
                       kr_json_kind_name(metadata->kind));
    for (const kr_json *text = metadata->first; text; text = text->next) {
        if (text->kind != KR_JSON_STRING)
            return kr_fail(ctx, KR_ERR_FORMAT, "__metadata__: '%s' is a value of kind %s, but it must be a string",
                           QUOTED(text), kr_json_kind_name(text->kind));
        if (has_nul(text->key, text->key_length) || has_nul(text->text, text->length))
            return kr_fail(ctx, KR_ERR_FORMAT, "__metadata__: '%s' holds a zero byte", QUOTED(text));
    }
    return true;
}

/* By where data begins; an empty tensor before the one that begins at the same place. */
static int compare_places(const void *first, const void *second)
{
    const kr_safetensors_item *a = first, *b = second;
    const uintptr_t at_a = (uintptr_t)a->data, at_b = (uintptr_t)b->data;
    if (at_a != at_b) return at_a < at_b ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static kr_quote quote_name(const kr_safetensors_item *item)
{
    return kr_quote_of(item->name, strlen(item->name));
}

static bool check_cover(const kr_safetensors *f, const unsigned char *data, size_t data_bytes)
{
    size_t end = 0;
    const kr_safetensors_item *before = NULL;
    for (int64_t i = 0; i < f->count; i++) {
        const kr_safetensors_item *item = f->by_place[i];
        const size_t from = (size_t)((const unsigned char *)item->data - data);
        if (from < end)
            return kr_fail(f->ctx, KR_ERR_FORMAT,
                           "tensor '%s': its data begins at %zu, inside that of '%s', which ends at %zu",
                           quote_name(item).text, from, quote_name(before).text, end);
        if (from > end)
            return kr_fail(f->ctx, KR_ERR_FORMAT,
                           "tensor '%s': its data begins at %zu, but the bytes from %zu on belong to no tensor",
                           quote_name(item).text, from, end);
        end = from + item->bytes;
        before = item;
    }
    return kr_require(f->ctx, end == data_bytes, KR_ERR_FORMAT,
                      "the file holds %zu bytes of data, but its tensors end at %zu", data_bytes, end);
}

static bool read_header(kr_safetensors *f, const kr_json *header, const unsigned char *data, size_t data_bytes)
{
    if (kr_json_kind_of(header) != KR_JSON_OBJECT)
        return kr_fail(f->ctx, KR_ERR_FORMAT, "the header is a value of kind %s, but it must be an object",
                       kr_json_kind_name(kr_json_kind_of(header)));
    f->metadata = kr_json_find(header, "__metadata__");
    if (f->metadata && !check_metadata(f->ctx, f->metadata)) return false;
    f->count = header->count - (f->metadata != NULL);
    f->items = kr_arena_alloc(&f->arena, (size_t)f->count * sizeof *f->items);
    f->by_place = kr_arena_alloc(&f->arena, (size_t)f->count * sizeof *f->by_place);
    if (!f->items || !f->by_place)
        return kr_fail(f->ctx, KR_ERR_NOMEM, "no memory for %lld tensors", (long long)f->count);
    int64_t n = 0;
    for (int64_t i = 0; i < header->count; i++) {
        const kr_json *entry = header->by_key[i];
        if (entry == f->metadata) continue;
        if (!read_item(f->ctx, entry, data, data_bytes, &f->items[n])) return false;
        f->by_place[n] = &f->items[n];
        n++;
    }
    kr_sort_pointers(f->by_place, n, compare_places);
    return check_cover(f, data, data_bytes);
}

bool kr_safetensors_check_machine(kr_ctx *ctx)
{
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return kr_require(ctx, first == 1, KR_ERR_UNSUPPORTED, "this machine is big-endian, the files are not");
}

static bool read_file(kr_safetensors *f, const unsigned char *bytes, size_t nbytes)
{
    kr_ctx *ctx = f->ctx;
    if (!kr_safetensors_check_machine(ctx)) return false;
    if (nbytes < PREFIX_BYTES)
        return kr_fail(ctx, KR_ERR_FORMAT, "%zu bytes are too few for the length of the header, which takes 8", nbytes);
    const uint64_t header_bytes = little_endian_64(bytes);
    if (header_bytes > most_header_bytes)
        return kr_fail(ctx, KR_ERR_FORMAT, "the header's length is %llu, but at most %llu is allowed",
                       (unsigned long long)header_bytes, (unsigned long long)most_header_bytes);
    if (header_bytes > nbytes - PREFIX_BYTES)
        return kr_fail(ctx, KR_ERR_FORMAT, "the header's length is %llu, but only %zu bytes follow",
                       (unsigned long long)header_bytes, nbytes - PREFIX_BYTES);
    if (header_bytes == 0 || bytes[PREFIX_BYTES] != '{')
        return kr_fail(ctx, KR_ERR_FORMAT, "the header does not begin with '{'");
    kr_json_options options;
    kr_json_options_init(&options);
    options.max_bytes = (size_t)most_header_bytes;
    const kr_json *header =
        kr_json_parse_in(ctx, &f->arena, (const char *)bytes + PREFIX_BYTES, (size_t)header_bytes, &options);
    if (!header) return kr_blame(ctx, "the header");
    const size_t skip = PREFIX_BYTES + (size_t)header_bytes;
    return read_header(f, header, bytes + skip, nbytes - skip);
}

static kr_safetensors *create(kr_ctx *ctx)
{
    if (kr_ctx_failed(ctx)) return NULL;
    kr_safetensors *f = kr_memory_alloc_zeroed(&ctx->memory, sizeof *f);
    if (!f) {
        kr_fail(ctx, KR_ERR_NOMEM, "safetensors: no memory");
        return NULL;
    }
    f->ctx = ctx;
    f->file.ctx = ctx;
    kr_arena_init(&f->arena, &ctx->memory, BLOCK_BYTES);
    return f;
}

kr_safetensors *kr_safetensors_open(kr_ctx *ctx, const char *path)
{
    kr_safetensors *f = create(ctx);
    if (!f) return NULL;
    if (!kr_file_open(&f->file, ctx, path, true)) {
        kr_blame(ctx, "safetensors");
    } else if (read_file(f, f->file.data, f->file.bytes)) {
        return f;
    } else {
        kr_blame(ctx, "safetensors: %s", path);
    }
    kr_safetensors_close(f);
    return NULL;
}

kr_safetensors *kr_safetensors_open_memory(kr_ctx *ctx, const void *data, size_t bytes)
{
    kr_safetensors *f = create(ctx);
    if (!f) return NULL;
    if (kr_require(ctx, data != NULL, KR_ERR_ARG, "data is NULL") && read_file(f, data, bytes)) return f;
    kr_blame(ctx, "safetensors");
    kr_safetensors_close(f);
    return NULL;
}

void kr_safetensors_close(kr_safetensors *file)
{
    if (!file) return;
    kr_memory *memory = &file->ctx->memory;
    kr_arena_deinit(&file->arena);
    kr_file_close(&file->file);
    kr_memory_free(memory, file, sizeof *file);
}

/* ---- looking things up ---- */

int64_t kr_safetensors_count(const kr_safetensors *file)
{
    return file ? file->count : 0;
}

const kr_safetensors_item *kr_safetensors_at(const kr_safetensors *file, int64_t i)
{
    return file && i >= 0 && i < file->count ? file->by_place[i] : NULL;
}

const kr_safetensors_item *kr_safetensors_find(const kr_safetensors *file, const char *name)
{
    if (!file || !name) return NULL;
    int64_t low = 0, high = file->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const int order = strcmp(name, file->items[middle].name);
        if (order == 0) return &file->items[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

const char *kr_safetensors_metadata(const kr_safetensors *file, const char *key)
{
    return file ? kr_json_text(kr_json_find(file->metadata, key)) : NULL;
}

bool kr_safetensors_metadata_at(const kr_safetensors *file, int64_t i, const char **key, const char **value)
{
    if (i < 0 || i >= kr_json_length(file ? file->metadata : NULL)) return false;
    const kr_json *text = file->metadata->by_key[i];
    *key = text->key;
    *value = text->text;
    return true;
}
