/* tensor_file_index.c - an index of shards: which file holds each tensor.
 *
 *   { "metadata": { .. }, "weight_map": { NAME: FILE, .. } }
 *
 * Files lie in the folder of the index. Tensors and map must agree both ways: nothing is missing, nothing is left over.
 */
#include "io/json_impl.h"
#include "io/heapsort.h"
#include "io/quote.h"
#include "io/tensor_file_impl.h"

#include <string.h>

#define QUOTED_KEY(member) kr_quote_of((member)->key, (member)->key_length).text
#define QUOTED_TEXT(value) kr_quote_of((value)->text, (value)->length).text

static bool is_plain_name(const kr_json *file)
{
    return file->length > 0 && !memchr(file->text, 0, file->length) && !strpbrk(file->text, "/\\:") &&
           strcmp(file->text, ".") != 0 && strcmp(file->text, "..") != 0;
}

static bool check_map(kr_ctx *ctx, const kr_json *map)
{
    if (kr_json_kind_of(map) != KR_JSON_OBJECT || map->count == 0)
        return kr_fail(ctx, KR_ERR_FORMAT, "the index has no weight_map: an object of tensors and their files");
    for (const kr_json *file = map->first; file; file = file->next) {
        if (memchr(file->key, 0, file->key_length))
            return kr_fail(ctx, KR_ERR_FORMAT, "weight_map: the name of tensor '%s' holds a zero byte",
                           QUOTED_KEY(file));
        if (file->kind != KR_JSON_STRING || !is_plain_name(file))
            return kr_fail(ctx, KR_ERR_FORMAT,
                           "weight_map: the file of tensor '%s' is not the name of a file in the folder",
                           QUOTED_KEY(file));
    }
    return true;
}

static int compare_files(const void *first, const void *second)
{
    const kr_json *a = first, *b = second;
    return strcmp(a->text, b->text);
}

/* Each file once, in the order of their names, which numbered shards have. */
static bool open_files(kr_tensor_file *w, const kr_json *map, const char *folder)
{
    const void **files = kr_arena_alloc(&w->arena, (size_t)map->count * sizeof *files);
    const char **paths = kr_arena_alloc(&w->arena, (size_t)map->count * sizeof *paths);
    if (!files || !paths)
        return kr_fail(w->ctx, KR_ERR_NOMEM, "no memory for an index of %lld tensors", (long long)map->count);
    int64_t n = 0;
    for (const kr_json *file = map->first; file; file = file->next) files[n++] = file;
    kr_sort_pointers(files, n, compare_files);
    int npaths = 0;
    for (int64_t i = 0; i < n; i++) {
        const kr_json *file = files[i];
        if (i > 0 && compare_files(files[i - 1], file) == 0) continue;
        paths[npaths] = kr_path_join(w->ctx, &w->arena, folder, file->text);
        if (!paths[npaths++]) return false;
    }
    return kr_tensor_file_open_parts(w, paths, npaths) && kr_tensor_file_gather(w);
}

static const char *name_of_file(const kr_tensor_file *w, int part)
{
    const char *path = w->parts[part].path;
    return path + kr_path_folder_length(path);
}

/* Names in map and files are unique, so equal numbers leave none over. */
static bool compare_map(const kr_tensor_file *w, const kr_json *map)
{
    for (int64_t i = 0; i < w->count; i++) {
        const kr_tensor_file_item *item = &w->entries[i].item;
        const kr_json *file = kr_json_find(map, item->name);
        const kr_quote name = kr_quote_of(item->name, strlen(item->name));
        if (!file)
            return kr_fail(w->ctx, KR_ERR_FORMAT, "tensor '%s' of %s is not in weight_map", name.text,
                           name_of_file(w, item->shard));
        if (strcmp(file->text, name_of_file(w, item->shard)) != 0)
            return kr_fail(w->ctx, KR_ERR_FORMAT, "tensor '%s' is in %s, but weight_map says in %s", name.text,
                           name_of_file(w, item->shard), QUOTED_TEXT(file));
    }
    for (const kr_json *file = map->first; file && w->count < map->count; file = file->next)
        if (!kr_tensor_file_find(w, file->key))
            return kr_fail(w->ctx, KR_ERR_FORMAT, "weight_map: tensor '%s' is not in %s", QUOTED_KEY(file),
                           QUOTED_TEXT(file));
    return true;
}

bool kr_tensor_file_open_index(kr_tensor_file *w, const char *path)
{
    kr_ctx *ctx = w->ctx;
    kr_file file;
    if (!kr_file_open(&file, ctx, path, true)) return false;
    const kr_json *index = kr_json_parse_in(ctx, &w->arena, (const char *)file.data, file.bytes, NULL);
    kr_file_close(&file);
    const kr_json *map = kr_json_find(index, "weight_map");
    if (!index || !check_map(ctx, map)) return kr_blame(ctx, "%s", path);
    char *folder = kr_path_join(ctx, &w->arena, "", path);
    if (!folder) return false;
    folder[kr_path_folder_length(path)] = '\0';
    return open_files(w, map, folder) && (compare_map(w, map) || kr_blame(ctx, "%s", path));
}
