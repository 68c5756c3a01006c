/* torch_read.c - combines the pickle's description of each tensor with the zip member that holds its data. */
#include "io/torch_read.h"

#include "io/heapsort.h"
#include "io/pickle.h"
#include "io/quote.h"
#include "io/safetensors_impl.h"
#include "io/zip.h"

#include <string.h>

enum { KEY_MOST = 255, VERSION_MOST = 10 };

typedef struct torch_file {
    kr_ctx *ctx;
    kr_arena *arena;
    kr_zip zip;
    char *name; /* "NAME/", with capacity for the remaining part of a member's name */
    size_t prefix;
    const kr_element_type **types; /* [members]: of the storages already seen */
} torch_file;

bool kr_torch_is_zip(const unsigned char *file, size_t bytes)
{
    return bytes >= 4 && memcmp(file, "PK\3\4", 4) == 0;
}

/* A pickled magic number: protocol 2, an integer of 10 bytes. */
bool kr_torch_is_old(const unsigned char *file, size_t bytes)
{
    static const unsigned char magic[] = {
        0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19
    };
    return bytes >= sizeof magic && memcmp(file, magic, sizeof magic) == 0;
}

static const kr_zip_member *find(const torch_file *t, const char *rest, size_t length)
{
    memcpy(t->name + t->prefix, rest, length);
    return kr_zip_find(&t->zip, t->name, t->prefix + length);
}

/* All relevant members are in the first one's directory. */
static bool read_prefix(torch_file *t)
{
    const kr_zip_member *first = t->zip.count ? &t->zip.members[0] : NULL;
    const char *slash = first ? memchr(first->name, '/', first->name_length) : NULL;
    if (!slash)
        return kr_fail(t->ctx, KR_ERR_FORMAT, "the zip has no directory with a data.pkl, which torch.save writes");
    t->prefix = (size_t)(slash - first->name) + 1;
    t->name = kr_arena_alloc(t->arena, t->prefix + sizeof "data/" + KEY_MOST);
    const size_t types_bytes = (size_t)t->zip.count * sizeof(const kr_element_type *);
    t->types = kr_arena_alloc(t->arena, types_bytes);
    if (!t->name || !t->types) return kr_fail(t->ctx, KR_ERR_NOMEM, "no memory for the names of a zip");
    memcpy(t->name, first->name, t->prefix);
    memset(t->types, 0, types_bytes);
    return true;
}

/* Both are optional: older versions of torch do not write them. */
static bool check_notes(const torch_file *t)
{
    const kr_zip_member *order = find(t, "byteorder", 9), *version = find(t, "version", 7);
    if (order && (order->bytes != 6 || memcmp(order->data, "little", 6) != 0))
        return kr_fail(t->ctx, KR_ERR_FORMAT, "its byteorder is '%s', but only 'little' is supported",
                       kr_quote_of((const char *)order->data, order->bytes).text);
    int number = 0;
    for (size_t i = 0; version && i < version->bytes && version->data[i] != '\n'; i++) {
        const int digit = version->data[i] - '0';
        number = digit >= 0 && digit <= 9 && number <= VERSION_MOST ? 10 * number + digit : VERSION_MOST + 1;
    }
    return kr_require(t->ctx, !version || (number >= 1 && number <= VERSION_MOST), KR_ERR_UNSUPPORTED,
                      "its version is '%s', but only 1 to %d are supported",
                      kr_quote_of((const char *)version->data, version->bytes).text, VERSION_MOST);
}

/* The member that holds a tensor's storage: its size must agree with the pickle, and all its tensors must have one
 * type. */
static const kr_zip_member *find_storage(const torch_file *t, const kr_pickle_tensor *tensor)
{
    const kr_quote name = kr_quote_of(tensor->name, strlen(tensor->name));
    const kr_quote key = kr_quote_of(tensor->key, tensor->key_length);
    const kr_zip_member *member = NULL;
    if (tensor->key_length <= KEY_MOST) {
        char rest[sizeof "data/" + KEY_MOST] = "data/";
        memcpy(rest + 5, tensor->key, tensor->key_length);
        member = find(t, rest, 5 + tensor->key_length);
    }
    if (!member) {
        kr_fail(t->ctx, KR_ERR_FORMAT, "tensor '%s': its storage '%s' is not in the file", name.text, key.text);
        return NULL;
    }
    const size_t bytes = tensor->type->bytes;
    if (member->bytes % bytes || member->bytes / bytes != (uint64_t)tensor->storage_count) {
        kr_fail(t->ctx, KR_ERR_FORMAT, "tensor '%s': its storage '%s' has %zu bytes, but should be %lld times %zu",
                name.text, key.text, member->bytes, (long long)tensor->storage_count, bytes);
        return NULL;
    }
    const kr_element_type **seen = &t->types[member->number];
    if (*seen && *seen != tensor->type) {
        kr_fail(t->ctx, KR_ERR_FORMAT, "tensor '%s': its storage '%s' is a %s, but was a %s before", name.text,
                key.text, tensor->type->name, (*seen)->name);
        return NULL;
    }
    *seen = tensor->type;
    return member;
}

static bool place_tensor(const torch_file *t, const kr_pickle_tensor *from, kr_elements *to)
{
    const kr_zip_member *member = find_storage(t, from);
    if (!member) return false;
    *to = (kr_elements){ .name = from->name,
                         .type = from->type,
                         .data = member->data + (size_t)from->offset * from->type->bytes,
                         .shape = from->shape,
                         .count = from->count };
    memcpy(to->strides, from->strides, sizeof to->strides);
    return true;
}

/* By data address, then by name: tied tensors have the same address. */
static int compare_places(const void *first, const void *second)
{
    const kr_elements *a = first, *b = second;
    const uintptr_t at_a = (uintptr_t)a->data, at_b = (uintptr_t)b->data;
    if (at_a != at_b) return at_a < at_b ? -1 : 1;
    return strcmp(a->name, b->name);
}

static bool place_tensors(const torch_file *t, const kr_pickle *pickle, const void **in_order)
{
    kr_elements *elements = kr_arena_alloc(t->arena, (size_t)pickle->count * sizeof *elements);
    if (!elements) return kr_fail(t->ctx, KR_ERR_NOMEM, "no memory for %lld tensors", (long long)pickle->count);
    for (int64_t i = 0; i < pickle->count; i++) {
        if (!place_tensor(t, &pickle->tensors[i], &elements[i])) return false;
        in_order[i] = &elements[i];
    }
    kr_sort_pointers(in_order, pickle->count, compare_places);
    return true;
}

bool kr_torch_read(kr_ctx *ctx, kr_arena *arena, const unsigned char *file, size_t bytes, const void ***tensors,
                   int64_t *count)
{
    torch_file t = { .ctx = ctx, .arena = arena };
    if (!kr_safetensors_check_machine(ctx) || !kr_zip_read(&t.zip, ctx, arena, file, bytes) || !read_prefix(&t))
        return false;
    const kr_zip_member *program = find(&t, "data.pkl", 8);
    if (!program) return kr_fail(ctx, KR_ERR_FORMAT, "the zip has no data.pkl in its folder: it is not a torch file");
    kr_pickle pickle;
    if (!check_notes(&t) || !kr_zip_check(ctx, program) ||
        !kr_pickle_run(&pickle, ctx, arena, program->data, program->bytes))
        return false;
    *count = pickle.count;
    *tensors = kr_arena_alloc(arena, (size_t)pickle.count * sizeof **tensors);
    if (!*tensors) return kr_fail(ctx, KR_ERR_NOMEM, "no memory for %lld tensors", (long long)pickle.count);
    return place_tensors(&t, &pickle, *tensors);
}
