/* tensor_file.c - one list of tensors over one or more files of one container. */
#include "io/tensor_file_impl.h"

#include "io/heapsort.h"
#include "io/quote.h"
#include "io/safetensors_impl.h"
#include "io/torch_read.h"

#include <string.h>

enum { BLOCK_BYTES = 1 << 14 };

const char *const kr_tensor_file_names[] = { "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                             "pytorch_model.bin.index.json", NULL };

/* ---- one file ---- */

static bool begins_with(const unsigned char *data, size_t bytes, const char *text)
{
    return bytes >= strlen(text) && memcmp(data, text, strlen(text)) == 0;
}

static bool read_part(kr_tensor_file *w, kr_tensor_file_part *part, const unsigned char *data, size_t bytes)
{
    kr_ctx *ctx = w->ctx;
    if (kr_torch_is_zip(data, bytes)) {
        part->container = KR_CONTAINER_TORCH;
        return kr_torch_read(ctx, &w->arena, data, bytes, &part->tensors, &part->count);
    }
    if (kr_torch_is_old(data, bytes))
        return kr_fail(ctx, KR_ERR_UNSUPPORTED,
                       "a torch file in the format before torch 1.6, which is not a zip; rewrite it in Python with "
                       "torch.save(torch.load(path), path)");
    if (begins_with(data, bytes, "version https://git-lfs"))
        return kr_fail(ctx, KR_ERR_FORMAT, "a Git LFS pointer in place of the file; fetch the file with: git lfs pull");
    if (bytes > KR_SAFETENSORS_PREFIX && data[KR_SAFETENSORS_PREFIX] != '{')
        return kr_fail(ctx, KR_ERR_FORMAT, "neither safetensors nor a torch file");
    part->container = KR_CONTAINER_SAFETENSORS;
    part->safetensors = kr_safetensors_open_memory(ctx, data, bytes);
    part->count = kr_safetensors_count(part->safetensors);
    return part->safetensors != NULL;
}

static bool make_parts(kr_tensor_file *w, int count)
{
    w->parts = kr_arena_alloc(&w->arena, (size_t)count * sizeof *w->parts);
    return kr_require(w->ctx, w->parts != NULL, KR_ERR_NOMEM, "no memory for %d files", count);
}

bool kr_tensor_file_open_parts(kr_tensor_file *w, const char *const *paths, int count)
{
    if (!make_parts(w, count)) return false;
    for (int i = 0; i < count; i++) {
        kr_tensor_file_part *part = &w->parts[w->nparts++];
        *part = (kr_tensor_file_part){ .path = paths[i], .file = { .ctx = w->ctx } };
        if (!kr_file_open(&part->file, w->ctx, part->path, true)) return false;
        if (!read_part(w, part, part->file.data, part->file.bytes)) return kr_blame(w->ctx, "%s", part->path);
        if (part->container != w->parts[0].container)
            return kr_fail(w->ctx, KR_ERR_FORMAT, "%s and %s are not of the same kind", w->parts[0].path, part->path);
    }
    return true;
}

/* ---- all tensors ---- */

static bool is_row_major(const kr_elements *e)
{
    kr_elements plain = *e;
    kr_elements_row_major(&plain);
    for (int i = 0; i < e->shape.rank; i++)
        if (e->shape.dims[i] > 1 && e->strides[i] != plain.strides[i]) return false;
    return true;
}

static void make_entry(kr_tensor_file_entry *entry, const kr_elements *e, int file)
{
    entry->elements = *e;
    entry->item = (kr_tensor_file_item){ .name = e->name,
                                         .type = e->type->name,
                                         .is_native = e->type->is_native,
                                         .is_readable = e->type->is_readable,
                                         .dtype = e->type->dtype,
                                         .shape = e->shape,
                                         .count = e->count,
                                         .bytes = (size_t)e->count * e->type->bytes,
                                         .shard = file,
                                         .data = is_row_major(e) ? e->data : NULL };
}

static int compare_names(const void *first, const void *second)
{
    const kr_tensor_file_entry *a = first, *b = second;
    const int order = strcmp(a->item.name, b->item.name);
    if (order) return order;
    return a->item.shard < b->item.shard ? -1 : a->item.shard > b->item.shard;
}

static bool check_names(const kr_tensor_file *w)
{
    for (int64_t i = 1; i < w->count; i++) {
        const kr_tensor_file_entry *a = w->by_name[i - 1], *b = w->by_name[i];
        if (strcmp(a->item.name, b->item.name) != 0) continue;
        const kr_quote name = kr_quote_of(a->item.name, strlen(a->item.name));
        if (a->item.shard == b->item.shard)
            return kr_fail(w->ctx, KR_ERR_FORMAT, "%s%stensor '%s' occurs twice", w->parts[a->item.shard].path,
                           *w->parts[a->item.shard].path ? ": " : "", name.text);
        return kr_fail(w->ctx, KR_ERR_FORMAT, "tensor '%s' is in %s and in %s", name.text, w->parts[a->item.shard].path,
                       w->parts[b->item.shard].path);
    }
    return true;
}

bool kr_tensor_file_gather(kr_tensor_file *w)
{
    int64_t count = 0;
    for (int p = 0; p < w->nparts; p++) count += w->parts[p].count;
    w->entries = kr_arena_alloc(&w->arena, (size_t)count * sizeof *w->entries);
    w->by_name = kr_arena_alloc(&w->arena, (size_t)count * sizeof *w->by_name);
    if (!w->entries || !w->by_name)
        return kr_fail(w->ctx, KR_ERR_NOMEM, "no memory for %lld tensors", (long long)count);
    for (int p = 0; p < w->nparts; p++)
        for (int64_t i = 0; i < w->parts[p].count; i++) {
            const kr_tensor_file_part *part = &w->parts[p];
            kr_tensor_file_entry *entry = &w->entries[w->count];
            if (part->tensors) {
                make_entry(entry, part->tensors[i], p);
            } else {
                const kr_elements elements = kr_safetensors_elements(kr_safetensors_at(part->safetensors, i));
                make_entry(entry, &elements, p);
            }
            w->by_name[w->count++] = entry;
        }
    kr_sort_pointers(w->by_name, w->count, compare_names);
    return check_names(w);
}

/* ---- opening ---- */

static kr_tensor_file *create(kr_ctx *ctx)
{
    if (kr_ctx_failed(ctx)) return NULL;
    kr_tensor_file *w = kr_memory_alloc_zeroed(&ctx->memory, sizeof *w);
    if (!w) {
        kr_fail(ctx, KR_ERR_NOMEM, "tensor_file: no memory");
        return NULL;
    }
    w->ctx = ctx;
    kr_arena_init(&w->arena, &ctx->memory, BLOCK_BYTES);
    return w;
}

/* The file to begin with: the path itself, or the first of the known names in the folder that it is. */
static const char *find_file(kr_tensor_file *w, const char *path)
{
    if (kr_path_kind_of(path) != KR_PATH_FOLDER) return kr_path_join(w->ctx, &w->arena, "", path);
    for (const char *const *name = kr_tensor_file_names; *name; name++) {
        const char *inside = kr_path_join(w->ctx, &w->arena, path, *name);
        if (!inside || kr_path_kind_of(inside) == KR_PATH_FILE) return inside;
    }
    kr_fail(w->ctx, KR_ERR_IO, "cannot open %s: the folder holds neither %s nor %s, nor an index of either", path,
            kr_tensor_file_names[0], kr_tensor_file_names[2]);
    return NULL;
}

static bool is_index(const char *path)
{
    static const char ending[] = ".index.json";
    const size_t n = strlen(path), m = sizeof ending - 1;
    return n >= m && strcmp(path + n - m, ending) == 0;
}

static bool open_path(kr_tensor_file *w, const char *path)
{
    if (!path) return kr_fail(w->ctx, KR_ERR_ARG, "path is NULL");
    const char *file = find_file(w, path);
    if (!file) return false;
    if (is_index(file)) return kr_tensor_file_open_index(w, file);
    return kr_tensor_file_open_parts(w, &file, 1) && kr_tensor_file_gather(w);
}

kr_tensor_file *kr_tensor_file_open(kr_ctx *ctx, const char *path)
{
    kr_tensor_file *w = create(ctx);
    if (!w || open_path(w, path)) return w;
    kr_blame(ctx, "tensor_file");
    kr_tensor_file_close(w);
    return NULL;
}

static bool open_memory(kr_tensor_file *w, const void *data, size_t bytes)
{
    if (!data) return kr_fail(w->ctx, KR_ERR_ARG, "data is NULL");
    if (!make_parts(w, 1)) return false;
    w->parts[w->nparts++] = (kr_tensor_file_part){ .path = "", .file = { .ctx = w->ctx } };
    return read_part(w, &w->parts[0], data, bytes) && kr_tensor_file_gather(w);
}

kr_tensor_file *kr_tensor_file_open_memory(kr_ctx *ctx, const void *data, size_t bytes)
{
    kr_tensor_file *w = create(ctx);
    if (!w || open_memory(w, data, bytes)) return w;
    kr_blame(ctx, "tensor_file");
    kr_tensor_file_close(w);
    return NULL;
}

void kr_tensor_file_close(kr_tensor_file *w)
{
    if (!w) return;
    kr_memory *memory = &w->ctx->memory;
    for (int p = 0; p < w->nparts; p++) {
        kr_safetensors_close(w->parts[p].safetensors);
        kr_file_close(&w->parts[p].file);
    }
    kr_arena_deinit(&w->arena);
    kr_memory_free(memory, w, sizeof *w);
}

/* ---- looking things up ---- */

kr_tensor_file_info kr_tensor_file_info_of(const kr_tensor_file *w)
{
    if (!w) return (kr_tensor_file_info){ .container = KR_CONTAINER_SAFETENSORS };
    return (kr_tensor_file_info){ .count = w->count, .shards = w->nparts, .container = w->parts[0].container };
}

const kr_tensor_file_item *kr_tensor_file_at(const kr_tensor_file *w, int64_t i)
{
    return w && i >= 0 && i < w->count ? &w->entries[i].item : NULL;
}

const kr_tensor_file_item *kr_tensor_file_find(const kr_tensor_file *w, const char *name)
{
    if (!w || !name) return NULL;
    int64_t low = 0, high = w->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const kr_tensor_file_entry *entry = w->by_name[middle];
        const int order = strcmp(name, entry->item.name);
        if (order == 0) return &entry->item;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

const char *kr_tensor_file_shard_path(const kr_tensor_file *w, int file)
{
    return w && file >= 0 && file < w->nparts ? w->parts[file].path : NULL;
}

const char *kr_tensor_file_metadata(const kr_tensor_file *w, const char *key)
{
    return w ? kr_safetensors_metadata(w->parts[0].safetensors, key) : NULL;
}

kr_status kr_tensor_file_metadata_at(const kr_tensor_file *w, int64_t i, const char **key, const char **value)
{
    if (key) *key = NULL;
    if (value) *value = NULL;
    if (!w) return KR_ERR_ARG;
    if (!kr_require(w->ctx, key && value, KR_ERR_ARG, "tensor_file: %s is NULL", key ? "value" : "key") ||
        !kr_require(w->ctx, i >= 0, KR_ERR_ARG, "tensor_file: metadata %lld, but they are counted from 0",
                    (long long)i))
        return w->ctx->status;
    return kr_safetensors_metadata_at(w->parts[0].safetensors, i, key, value) ? KR_OK : KR_END;
}

void *kr_tensor_file_place(kr_tensor_file *w, const kr_tensor_file_item *item, kr_dtype dtype)
{
    kr_file *file = &w->parts[item->shard].file;
    if (!item->data || !item->is_native || item->dtype != dtype || !file->is_local ||
        (uintptr_t)item->data % kr_dtype_bytes(dtype) != 0 || !kr_file_make_writable(file))
        return NULL;
    return (char *)file->map + ((const unsigned char *)item->data - file->data);
}

void *kr_tensor_file_take_map(kr_tensor_file *w, int shard, size_t *bytes)
{
    kr_file *file = &w->parts[shard].file;
    void *map = file->map;
    *bytes = file->bytes;
    file->map = NULL;
    return map;
}

kr_status kr_tensor_file_read(const kr_tensor_file *w, const kr_tensor_file_item *item, kr_dtype dtype, void *out,
                              int64_t count)
{
    if (!w) return KR_ERR_ARG;
    kr_ctx *ctx = w->ctx;
    if (ctx->status != KR_OK ||
        !kr_require(ctx, item != NULL, KR_ERR_ARG, "tensor_file: item is NULL; was the tensor found?"))
        return ctx->status;
    /* the item is the beginning of its entry; a copy of one, or one of other weights, is not */
    const uintptr_t from = (uintptr_t)w->entries, at = (uintptr_t)item;
    const bool is_ours =
        at >= from && at - from < (size_t)w->count * sizeof *w->entries && (at - from) % sizeof *w->entries == 0;
    if (!kr_require(ctx, is_ours, KR_ERR_ARG, "tensor_file: the item is not one of this file")) return ctx->status;
    return kr_elements_read(ctx, "tensor_file", &((const kr_tensor_file_entry *)item)->elements, dtype, out, count);
}
