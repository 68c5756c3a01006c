/* weights.h - the tensors of a checkpoint, whatever holds them: one file or several, safetensors or torch.
 *
 *   kr_weights *weights = kr_weights_open(ctx, "mamba-130m");           // a folder, or a file in it
 *   const kr_weights_item *item = kr_weights_find(weights, "backbone.norm_f.weight");
 *   if (item && kr_weights_read(weights, item, KR_DTYPE_F32, floats, item->count) != KR_OK) puts(kr_ctx_message(ctx));
 *   kr_ctx_clear(ctx);                    // there may be no such folder
 *   kr_weights_close(weights);
 *
 * Nothing in a file is trusted: sizes, offsets, names and types are checked before anything is read, a torch file's
 * program can only make tensors and dictionaries of them, and every refusal names the file and the reason.
 */
#ifndef KRAIT_WEIGHTS_H
#define KRAIT_WEIGHTS_H

#include <krait/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_weights kr_weights;

typedef enum kr_container {
    KR_CONTAINER_SAFETENSORS = 0, /* model.safetensors, or shards and model.safetensors.index.json */
    KR_CONTAINER_TORCH = 1        /* pytorch_model.bin, a zip as torch.save writes it */
} kr_container;

/* One tensor; lives as long as the weights are open. */
typedef struct kr_weights_item {
    const char *name;
    const char *type; /* as the file spells it: "F32", "BF16", "HalfStorage", ... */
    bool is_readable; /* kr_weights_read takes it */
    kr_dtype dtype;   /* readable: the narrowest that holds every value */
    kr_shape shape;
    int64_t count; /* elements */
    size_t bytes;  /* of the elements, as the file has them */
    int file;      /* which of the files, from 0 */
} kr_weights_item;

/* A file by its beginning (safetensors, torch's zip), an index of shards by its name (*.index.json), or a folder, in
 * which model.safetensors, model.safetensors.index.json, pytorch_model.bin and pytorch_model.bin.index.json are looked
 * for in this order. NULL after an error. Close before the context is destroyed; NULL is allowed. */
KR_API kr_weights *kr_weights_open(kr_ctx *ctx, const char *path);

/* One file in the caller's memory, which must stay until the close. */
KR_API kr_weights *kr_weights_open_memory(kr_ctx *ctx, const void *data, size_t bytes);
KR_API void kr_weights_close(kr_weights *weights);

/* Tensors in the order of the files and of their data, by number (from 0) and by name; NULL if there is none. A missing
 * tensor is no error of the context. */
KR_API int64_t kr_weights_count(const kr_weights *weights);
KR_API const kr_weights_item *kr_weights_at(const kr_weights *weights, int64_t i);
KR_API const kr_weights_item *kr_weights_find(const kr_weights *weights, const char *name);

KR_API kr_container kr_weights_container(const kr_weights *weights);
KR_API int kr_weights_files(const kr_weights *weights);
KR_API const char *kr_weights_file(const kr_weights *weights, int file); /* its path; "" of memory */

/* Copies a tensor's elements, in row-major order and converted to `dtype`, to `out` of `count` elements, as
 * kr_safetensors_read does. */
KR_API KR_MUST_CHECK kr_status kr_weights_read(const kr_weights *weights, const kr_weights_item *item, kr_dtype dtype,
                                               void *out, int64_t count);

/* ---- writing ---- */

typedef struct kr_weights_writer kr_weights_writer;

/* NULL after an error. Destroy before the context; NULL is allowed. */
KR_API kr_weights_writer *kr_weights_writer_create(kr_ctx *ctx);
KR_API void kr_weights_writer_destroy(kr_weights_writer *writer);

/* One more tensor. The name, UTF-8, is copied and may occur once; the elements, row-major, must stay until the save.
 * Tensors of one type over the same data are tied: a torch file has their elements once. */
KR_API kr_status kr_weights_add(kr_weights_writer *writer, const char *name, kr_dtype dtype, kr_shape shape,
                                const void *data);

/* Writes the files of that container into a folder that exists, and removes files of an earlier save there that would
 * be read in their place. Shards hold at most max_shard_bytes of tensors each (one at least; 0: a single file) and are
 * named by an index, which comes last. No file takes its place before all of them are on the disk: what fails until then
 * leaves the folder as it was. */
KR_API KR_MUST_CHECK kr_status kr_weights_save(const kr_weights_writer *writer, const char *folder,
                                               kr_container container, size_t max_shard_bytes);

#ifdef __cplusplus
}
#endif
#endif
