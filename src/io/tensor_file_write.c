/* tensor_file_write.c - a checkpoint as files of a folder: one file, or shards and an index of them.
 *
 *   model.safetensors      model-00001-of-00003.safetensors ..        model.safetensors.index.json
 *   pytorch_model.bin      pytorch_model-00001-of-00003.bin ..        pytorch_model.bin.index.json
 *
 * All files are written under temporary names first; only when every one of them is on the disk do they take their
 * places, the index last. What fails before leaves the folder as it was.
 */
#include "io/compose.h"
#include "io/safetensors_write.h"
#include "io/torch_write.h"
#include "io/tensor_file_impl.h"

enum { BLOCK_BYTES = 1 << 12 };

struct kr_tensor_writer {
    kr_ctx *ctx;
    kr_arena arena;
    kr_named_list tensors, metadata;
};

kr_tensor_writer *kr_tensor_writer_create(kr_ctx *ctx)
{
    if (kr_ctx_failed(ctx)) return NULL;
    kr_tensor_writer *w = kr_memory_alloc_zeroed(&ctx->memory, sizeof *w);
    if (!w) {
        kr_fail(ctx, KR_ERR_NOMEM, "tensor_file: no memory for a writer");
        return NULL;
    }
    w->ctx = ctx;
    kr_arena_init(&w->arena, &ctx->memory, BLOCK_BYTES);
    kr_named_init(&w->tensors, ctx, "tensor_file", &w->arena);
    kr_named_init(&w->metadata, ctx, "tensor_file", &w->arena);
    return w;
}

void kr_tensor_writer_destroy(kr_tensor_writer *w)
{
    if (!w) return;
    kr_memory *memory = &w->ctx->memory;
    kr_named_deinit(&w->tensors);
    kr_named_deinit(&w->metadata);
    kr_arena_deinit(&w->arena);
    kr_memory_free(memory, w, sizeof *w);
}

kr_status kr_tensor_writer_add(kr_tensor_writer *writer, const char *name, kr_dtype dtype, kr_shape shape,
                               const void *data)
{
    if (!writer) return KR_ERR_ARG;
    if (!kr_ctx_failed(writer->ctx)) kr_named_add_tensor(&writer->tensors, name, dtype, &shape, data);
    return writer->ctx->status;
}

kr_status kr_tensor_writer_add_metadata(kr_tensor_writer *writer, const char *key, const char *value)
{
    if (!writer) return KR_ERR_ARG;
    if (!kr_ctx_failed(writer->ctx)) kr_named_add_text(&writer->metadata, key, value);
    return writer->ctx->status;
}

/* ---- which tensor goes where ---- */

typedef struct saving {
    kr_ctx *ctx;
    kr_arena arena;
    const kr_named_list *list, *metadata;
    const char *folder;
    kr_container container;
    size_t total_bytes;
    int nshards;
    int *shard;               /* [tensors]: where each goes */
    const kr_named **tensors; /* the same, shard by shard */
    int64_t *begin;           /* [nshards + 1]: where each shard's tensors begin there */
    const char **names;       /* [nshards + 1]: of the files; the last is the index */
    const char **paths;       /* [nshards + 1]: the same, in the folder */
    const char *stale[4];     /* paths that would be read in the place of these files */
    int nstale;
    kr_file_writer *files; /* [nshards + 1] */
    int nfiles;            /* open ones */
} saving;

static bool no_memory(saving *s)
{
    return kr_fail(s->ctx, KR_ERR_NOMEM, "no memory to save %lld tensors", (long long)s->list->count);
}

/* Each tensor's own bytes in a file: those that are tied to an earlier one have none. */
static bool measure(saving *s, int64_t *first, size_t *bytes)
{
    const int64_t count = s->list->count;
    if (s->container == KR_CONTAINER_TORCH) {
        if (!kr_named_find_tied(s->ctx, s->list->in_order, count, first)) return false;
    } else {
        for (int64_t i = 0; i < count; i++) first[i] = i;
    }
    for (int64_t i = 0; i < count; i++) {
        const size_t own = s->list->in_order[i]->bytes;
        bytes[i] = 0;
        if (own > bytes[first[i]]) bytes[first[i]] = own;
    }
    for (int64_t i = 0; i < count; i++) s->total_bytes += bytes[i];
    return true;
}

/* In their order, each shard filled as far as it goes; tied tensors stay together. */
static bool choose_shards(saving *s, size_t max_shard_bytes)
{
    const int64_t count = s->list->count;
    int64_t *first = kr_arena_alloc(&s->arena, (size_t)count * sizeof *first);
    size_t *bytes = kr_arena_alloc(&s->arena, (size_t)count * sizeof *bytes);
    s->shard = kr_arena_alloc(&s->arena, (size_t)count * sizeof *s->shard);
    if (!first || !bytes || !s->shard) return no_memory(s);
    if (!measure(s, first, bytes)) return false;
    size_t filled = 0;
    bool is_empty = true;
    s->nshards = 1;
    for (int64_t i = 0; i < count; i++) {
        if (first[i] < i) {
            s->shard[i] = s->shard[first[i]];
            continue;
        }
        if (!is_empty && max_shard_bytes > 0 && (filled > max_shard_bytes || bytes[i] > max_shard_bytes - filled)) {
            s->nshards++;
            filled = 0;
        }
        is_empty = false;
        filled += bytes[i];
        s->shard[i] = s->nshards - 1;
    }
    return true;
}

static bool sort_by_shard(saving *s)
{
    const int64_t count = s->list->count;
    s->tensors = kr_arena_alloc(&s->arena, (size_t)count * sizeof *s->tensors);
    s->begin = kr_arena_alloc(&s->arena, (size_t)(s->nshards + 2) * sizeof *s->begin);
    if (!s->tensors || !s->begin) return no_memory(s);
    /* begin[n + 1] counts shard n - 1, then becomes the place of its next tensor, then its end */
    memset(s->begin, 0, (size_t)(s->nshards + 2) * sizeof *s->begin);
    for (int64_t i = 0; i < count; i++) s->begin[s->shard[i] + 2]++;
    for (int n = 2; n < s->nshards + 2; n++) s->begin[n] += s->begin[n - 1];
    for (int64_t i = 0; i < count; i++) s->tensors[s->begin[s->shard[i] + 1]++] = s->list->in_order[i];
    return true;
}

/* ---- names ---- */

static const char *stem(const saving *s)
{
    return s->container == KR_CONTAINER_TORCH ? "pytorch_model" : "model";
}

static const char *ending(const saving *s)
{
    return s->container == KR_CONTAINER_TORCH ? "bin" : "safetensors";
}

static bool make_names(saving *s)
{
    enum { NAME_BYTES = 80 };
    s->names = kr_arena_alloc(&s->arena, (size_t)(s->nshards + 1) * sizeof *s->names);
    s->paths = kr_arena_alloc(&s->arena, (size_t)(s->nshards + 1) * sizeof *s->paths);
    s->files = kr_arena_alloc(&s->arena, (size_t)(s->nshards + 1) * sizeof *s->files);
    if (!s->names || !s->paths || !s->files) return no_memory(s);
    for (int n = 0; n <= s->nshards; n++) {
        char *name = kr_arena_alloc(&s->arena, NAME_BYTES);
        if (!name) return no_memory(s);
        if (n == s->nshards) snprintf(name, NAME_BYTES, "%s.%s.index.json", stem(s), ending(s));
        else if (s->nshards == 1) snprintf(name, NAME_BYTES, "%s.%s", stem(s), ending(s));
        else snprintf(name, NAME_BYTES, "%s-%05d-of-%05d.%s", stem(s), n + 1, s->nshards, ending(s));
        s->names[n] = name;
        s->paths[n] = kr_path_join(s->ctx, &s->arena, s->folder, name);
        if (!s->paths[n]) return false;
    }
    const char *first = s->names[s->nshards == 1 ? 0 : s->nshards];
    for (const char *const *other = kr_tensor_file_names; strcmp(*other, first) != 0; other++) {
        s->stale[s->nstale] = kr_path_join(s->ctx, &s->arena, s->folder, *other);
        if (!s->stale[s->nstale++]) return false;
    }
    return true;
}

/* ---- writing ---- */

static void compose_index(kr_composer *c, const saving *s)
{
    kr_put_text(c, "{\n  \"metadata\": {\n    \"total_size\": ");
    kr_put_number(c, s->total_bytes);
    kr_put_text(c, "\n  },\n  \"weight_map\": {");
    for (int64_t i = 0; i < s->list->count; i++) {
        const kr_named *tensor = s->list->by_name[i];
        kr_put_text(c, i ? ",\n    " : "\n    ");
        kr_put_json_string(c, tensor->name);
        kr_put_text(c, ": ");
        kr_put_json_string(c, s->names[s->shard[tensor->number]]);
    }
    kr_put_text(c, "\n  }\n}\n");
}

static bool write_index(saving *s, kr_file_writer *file)
{
    kr_composer index = { .text = NULL };
    compose_index(&index, s);
    const size_t bytes = index.length;
    index = (kr_composer){ .text = kr_arena_alloc(&s->arena, bytes) };
    if (!index.text) return no_memory(s);
    compose_index(&index, s);
    return kr_file_write(file, index.text, bytes);
}

/* The texts of a shard: the writer's, and format = pt, since transformers asks for the framework. */
static bool make_texts(saving *s, const kr_named ***texts, int64_t *count)
{
    static const kr_named format = { .name = "format", .value = "pt" };
    *count = s->metadata->count;
    *texts = kr_arena_alloc(&s->arena, (size_t)(*count + 1) * sizeof **texts);
    if (!*texts) return no_memory(s);
    bool has_format = false;
    for (int64_t i = 0; i < *count; i++) {
        (*texts)[i] = s->metadata->in_order[i];
        has_format = has_format || strcmp((*texts)[i]->name, format.name) == 0;
    }
    if (!has_format) (*texts)[(*count)++] = &format;
    return true;
}

static bool write_shard(saving *s, kr_file_writer *file, int n)
{
    const kr_named *const *tensors = s->tensors + s->begin[n];
    const int64_t count = s->begin[n + 1] - s->begin[n];
    if (s->container == KR_CONTAINER_TORCH) return kr_torch_write(file, tensors, count, KR_TORCH_MOST_32);
    const kr_named **texts;
    int64_t ntexts;
    return make_texts(s, &texts, &ntexts) &&
           kr_safetensors_write(file, &(kr_safetensors_content){ texts, ntexts, tensors, count });
}

/* All files, under temporary names. */
static bool write_files(saving *s)
{
    const int wanted = s->nshards == 1 ? 1 : s->nshards + 1;
    for (int n = 0; n < wanted; n++) {
        kr_file_writer *file = &s->files[n];
        if (!kr_file_create_nth(file, s->ctx, s->paths[n], n)) return false;
        s->nfiles++;
        if (!(n < s->nshards ? write_shard(s, file, n) : write_index(s, file)) || !kr_file_finish(file)) return false;
    }
    return true;
}

static bool remove_file(saving *s, const char *path)
{
    return kr_path_kind_of(path) != KR_PATH_FILE || kr_file_remove(s->ctx, path);
}

/* Needs no memory. An index of an earlier save must not be found among shards of this one, some of which may have its
 * names: with the rest of its own, it would still be read. */
static bool commit_files(saving *s)
{
    if (s->nshards > 1 && !remove_file(s, s->paths[s->nshards])) return false;
    while (s->nfiles > 0) {
        s->nfiles--;
        if (!kr_file_commit(s->files++)) return false;
    }
    for (int n = 0; n < s->nstale; n++)
        if (!remove_file(s, s->stale[n])) return false;
    return true;
}

static bool check_container(const saving *s)
{
    if (s->container != KR_CONTAINER_SAFETENSORS && s->container != KR_CONTAINER_TORCH)
        return kr_fail(s->ctx, KR_ERR_ARG, "%d is not a kr_container", (int)s->container);
    return kr_require(s->ctx, s->container == KR_CONTAINER_SAFETENSORS || s->metadata->count == 0, KR_ERR_UNSUPPORTED,
                      "the writer has metadata, which torch files cannot hold; use KR_CONTAINER_SAFETENSORS");
}

static bool save_folder(saving *s, size_t max_shard_bytes)
{
    if (!s->folder) return kr_fail(s->ctx, KR_ERR_ARG, "folder is NULL");
    if (!check_container(s)) return false;
    if (kr_path_kind_of(s->folder) != KR_PATH_FOLDER)
        return kr_fail(s->ctx, KR_ERR_IO, "cannot write to %s: no such folder", s->folder);
    return choose_shards(s, max_shard_bytes) && sort_by_shard(s) && make_names(s) && write_files(s) && commit_files(s);
}

static bool save_file(const saving *s, const kr_save_target *target)
{
    const kr_safetensors_content content = { s->metadata->in_order, s->metadata->count, s->list->in_order,
                                             s->list->count };
    kr_file_writer file;
    if (!check_container(s) || !kr_file_create_target(&file, s->ctx, target)) return false;
    const bool done = s->container == KR_CONTAINER_TORCH
                          ? kr_torch_write(&file, s->list->in_order, s->list->count, KR_TORCH_MOST_32)
                          : kr_safetensors_write(&file, &content);
    if (done) return kr_file_commit(&file);
    kr_file_discard(&file);
    return false;
}

static saving saving_of(const kr_tensor_writer *w, kr_container container)
{
    return (saving){ .ctx = w->ctx, .list = &w->tensors, .metadata = &w->metadata, .container = container };
}

kr_status kr_tensor_writer_save_to(const kr_tensor_writer *writer, const kr_save_target *target, kr_container container)
{
    const saving s = saving_of(writer, container);
    if (!kr_ctx_failed(s.ctx) && !save_file(&s, target) && !target->take) kr_blame(s.ctx, "tensor_file");
    return s.ctx->status;
}

kr_status kr_tensor_writer_save(const kr_tensor_writer *writer, const char *path, kr_container container)
{
    return writer ? kr_tensor_writer_save_to(writer, &(kr_save_target){ .path = path }, container) : KR_ERR_ARG;
}

kr_status kr_tensor_writer_save_memory(const kr_tensor_writer *writer, kr_container container, void *out, size_t bytes,
                                       size_t *needed)
{
    kr_save_target target;
    if (!writer) return KR_ERR_ARG;
    if (kr_ctx_failed(writer->ctx)) return writer->ctx->status;
    if (kr_save_to_memory(writer->ctx, &target, out, bytes, needed))
        return kr_tensor_writer_save_to(writer, &target, container);
    kr_blame(writer->ctx, "tensor_file");
    return writer->ctx->status;
}

kr_status kr_tensor_writer_save_folder(const kr_tensor_writer *writer, const char *folder, kr_container container,
                                       size_t max_shard_bytes)
{
    if (!writer) return KR_ERR_ARG;
    kr_ctx *ctx = writer->ctx;
    if (kr_ctx_failed(ctx)) return ctx->status;
    saving s = saving_of(writer, container);
    s.folder = folder;
    kr_arena_init(&s.arena, &ctx->memory, BLOCK_BYTES);
    if (!save_folder(&s, max_shard_bytes)) kr_blame(ctx, "tensor_file");
    for (int n = 0; n < s.nfiles; n++) kr_file_discard(&s.files[n]);
    kr_arena_deinit(&s.arena);
    return ctx->status;
}
