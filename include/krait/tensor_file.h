/* tensor_file.h - reads and writes named tensors: safetensors, sharded checkpoints and torch files.
 *
 *   kr_tensor_file *file = kr_tensor_file_open(ctx, "mamba-130m");           // a folder, or a file in it
 *   const kr_tensor_file_item *item = kr_tensor_file_find(file, "backbone.norm_f.weight");
 *   if (item && kr_tensor_file_read(file, item, KR_DTYPE_F32, floats, item->count) != KR_OK) puts(kr_ctx_message(ctx));
 *   kr_ctx_clear(ctx);                    // there may be no such folder
 *   kr_tensor_file_close(file);
 *
 *   kr_tensor_writer *writer = kr_tensor_writer_create(ctx);
 *   kr_tensor_writer_add(writer, "x", KR_DTYPE_F32, KR_SHAPE(8, 32), floats);
 *   if (kr_tensor_writer_save(writer, "x.safetensors", KR_CONTAINER_SAFETENSORS) != KR_OK)
 *       fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_tensor_writer_destroy(writer);
 *
 * Files are untrusted: sizes, offsets, names and types are checked before anything is read. The pickle of a torch file
 * can only create tensors and dictionaries of them. Every error names the file and the reason. */
#ifndef KRAIT_TENSOR_FILE_H
#define KRAIT_TENSOR_FILE_H

#include <krait/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_tensor_file kr_tensor_file;

typedef enum kr_container {
    KR_CONTAINER_SAFETENSORS = 0, /* model.safetensors, or shards and model.safetensors.index.json */
    KR_CONTAINER_TORCH = 1        /* pytorch_model.bin, a zip file as written by torch.save */
} kr_container;

/* One tensor; valid while the file is open. */
typedef struct kr_tensor_file_item {
    const char *name;
    const char *type; /* the file's name for it: "F32", "BF16", "HalfStorage", ... */
    bool is_native;   /* the elements in the file have a kr_dtype */
    bool is_readable; /* kr_tensor_file_read accepts it */
    kr_dtype dtype;   /* is_native: that type; otherwise, if readable, the narrowest that holds every value */
    kr_shape shape;
    int64_t count;    /* elements */
    size_t bytes;     /* size of the elements in the file */
    int shard;        /* index of the file, from 0 */
    const void *data; /* row-major elements in the file, possibly unaligned; NULL: other strides */
} kr_tensor_file_item;

/* Opens a file, recognised by its first bytes (safetensors, torch's zip), a shard index by its name (*.index.json), or
 * a folder with model.safetensors, model.safetensors.index.json, pytorch_model.bin or pytorch_model.bin.index.json,
 * searched in this order. NULL after an error. Close it before the context is destroyed; NULL is allowed. */
KR_API kr_tensor_file *kr_tensor_file_open(kr_ctx *ctx, const char *path);

/* Opens a file in the caller's memory, which must stay valid until the file is closed. */
KR_API kr_tensor_file *kr_tensor_file_open_memory(kr_ctx *ctx, const void *data, size_t bytes);
KR_API void kr_tensor_file_close(kr_tensor_file *file);

typedef struct kr_tensor_file_info {
    int64_t count; /* tensors */
    int shards;    /* files: 1, or the number of shards of an index */
    kr_container container;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_tensor_file_info;

/* Properties of a file; 0 for NULL. The functions below return one field each. */
KR_API kr_tensor_file_info kr_tensor_file_info_of(const kr_tensor_file *file);
KR_API_INLINE int64_t kr_tensor_file_count(const kr_tensor_file *file)
{
    return kr_tensor_file_info_of(file).count;
}
KR_API_INLINE int kr_tensor_file_shards(const kr_tensor_file *file)
{
    return kr_tensor_file_info_of(file).shards;
}
KR_API_INLINE kr_container kr_tensor_file_container(const kr_tensor_file *file)
{
    return kr_tensor_file_info_of(file).container;
}

/* Tensors in the order of the files and of their data, by index (from 0) and by name. NULL if there is no such tensor,
 * which is not an error of the context. */
KR_API const kr_tensor_file_item *kr_tensor_file_at(const kr_tensor_file *file, int64_t i);
KR_API const kr_tensor_file_item *kr_tensor_file_find(const kr_tensor_file *file, const char *name);

/* The path of a file by its index; "" for memory. NULL for an invalid index. */
KR_API const char *kr_tensor_file_shard_path(const kr_tensor_file *file, int shard);

/* Metadata in the header of the first safetensors file: by index (from 0) in the order of the keys, or by key. KR_END
 * and NULL if there is no such entry, which is not an error. The texts are valid as long as the file. */
KR_API kr_status kr_tensor_file_metadata_at(const kr_tensor_file *file, int64_t i, const char **key,
                                            const char **value);
KR_API const char *kr_tensor_file_metadata(const kr_tensor_file *file, const char *key);

/* Copies the elements of a tensor, in row-major order and converted to `dtype`, to `out` of `count` elements. Floats
 * are converted to floats, rounded to nearest even; integers and booleans to integers, with an error if a value does
 * not fit. Other types (U64, complex, 8-bit floats) are listed only. */
KR_API KR_MUST_CHECK kr_status kr_tensor_file_read(const kr_tensor_file *file, const kr_tensor_file_item *item,
                                                   kr_dtype dtype, void *out, int64_t count);

/* ---- writing ---- */

typedef struct kr_tensor_writer kr_tensor_writer;

/* Creates a writer. NULL after an error. Destroy before the context; NULL is allowed. */
KR_API kr_tensor_writer *kr_tensor_writer_create(kr_ctx *ctx);
KR_API void kr_tensor_writer_destroy(kr_tensor_writer *writer);

/* Adds a tensor. The name is UTF-8 and must be unique; elements are row-major. Tensors of the same type over the same
 * data are tied: a torch file stores their elements once.
 *
 * Ownership: the name is copied; the elements stay the caller's and must not change until the last save. */
KR_API kr_status kr_tensor_writer_add(kr_tensor_writer *writer, const char *name, kr_dtype dtype, kr_shape shape,
                                      const void *data);

/* Adds metadata to the header; both texts are UTF-8 and copied, and keys must be unique. Torch files have no
 * metadata. */
KR_API kr_status kr_tensor_writer_add_metadata(kr_tensor_writer *writer, const char *key, const char *value);

/* Writes one file, atomically. May be called any number of times. The same calls give the same bytes. */
KR_API KR_MUST_CHECK kr_status kr_tensor_writer_save(const kr_tensor_writer *writer, const char *path,
                                                     kr_container container);

/* Writes the bytes of that file to the caller's memory, of `bytes` bytes. *needed is the size of the file; out NULL:
 * nothing else happens. KR_ERR_ARG if the memory is too small; after an error its contents are undefined. */
KR_API KR_MUST_CHECK kr_status kr_tensor_writer_save_memory(const kr_tensor_writer *writer, kr_container container,
                                                            void *out, size_t bytes, size_t *needed);

/* Writes files with the names that kr_tensor_file_open searches for to an existing folder, and removes files of an
 * earlier save that would be found first. Shards hold at most max_shard_bytes of tensors each (at least one tensor; 0:
 * a single file) and are listed in an index, which is written last. No file is renamed to its final name before all of
 * them are on disk; a failure before that leaves the folder unchanged. Safetensors files get the metadata format = pt,
 * as transformers expects. */
KR_API KR_MUST_CHECK kr_status kr_tensor_writer_save_folder(const kr_tensor_writer *writer, const char *folder,
                                                            kr_container container, size_t max_shard_bytes);

#ifdef __cplusplus
}
#endif
#endif
