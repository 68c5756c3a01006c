/* tensor_file.h - named tensors in files: safetensors, sharded checkpoints and torch files; writes them, too.
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
 * Nothing in a file is trusted: sizes, offsets, names and types are checked before anything is read, a torch file's
 * program can only make tensors and dictionaries of them, and every error names the file and the reason.
 */
#ifndef KRAIT_TENSOR_FILE_H
#define KRAIT_TENSOR_FILE_H

#include <krait/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_tensor_file kr_tensor_file;

typedef enum kr_container {
    KR_CONTAINER_SAFETENSORS = 0, /* model.safetensors, or shards and model.safetensors.index.json */
    KR_CONTAINER_TORCH = 1        /* pytorch_model.bin, a zip as torch.save writes it */
} kr_container;

/* One tensor; lives as long as the file is open. */
typedef struct kr_tensor_file_item {
    const char *name;
    const char *type; /* as the file spells it: "F32", "BF16", "HalfStorage", ... */
    bool is_native;   /* the elements are of a kr_dtype as they stand in the file */
    bool is_readable; /* kr_tensor_file_read takes it */
    kr_dtype dtype;   /* is_native: that one; else, if readable, the narrowest that holds every value */
    kr_shape shape;
    int64_t count;    /* elements */
    size_t bytes;     /* of the elements, as the file has them */
    int shard;        /* which of the files, from 0 */
    const void *data; /* row-major in the file, maybe not aligned to its type; NULL: in other strides */
} kr_tensor_file_item;

/* A file by its beginning (safetensors, torch's zip), an index of shards by its name (*.index.json), or a folder, in
 * which model.safetensors, model.safetensors.index.json, pytorch_model.bin and pytorch_model.bin.index.json are looked
 * for in this order. NULL after an error. Close before the context is destroyed; NULL is allowed. */
KR_API kr_tensor_file *kr_tensor_file_open(kr_ctx *ctx, const char *path);

/* One file in the caller's memory, which must stay until the close. */
KR_API kr_tensor_file *kr_tensor_file_open_memory(kr_ctx *ctx, const void *data, size_t bytes);
KR_API void kr_tensor_file_close(kr_tensor_file *file);

typedef struct kr_tensor_file_info {
    int64_t count; /* tensors */
    int shards;    /* files: 1, or the shards of an index */
    kr_container container;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_tensor_file_info;

/* Properties of a file, and each by itself; 0 for NULL. */
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

/* Tensors in the order of the files and of their data, by number (from 0) and by name; NULL if there is none. A missing
 * tensor is no error of the context. */
KR_API const kr_tensor_file_item *kr_tensor_file_at(const kr_tensor_file *file, int64_t i);
KR_API const kr_tensor_file_item *kr_tensor_file_find(const kr_tensor_file *file, const char *name);

/* The path of one of the files; that of memory is "". NULL for a wrong number. */
KR_API const char *kr_tensor_file_shard_path(const kr_tensor_file *file, int shard);

/* Texts in the header of the first file, which safetensors may have: by number (from 0) in the order of their keys, or by
 * key. KR_END and NULL if there is none, which is not an error. They live as long as the file. */
KR_API kr_status kr_tensor_file_metadata_at(const kr_tensor_file *file, int64_t i, const char **key,
                                            const char **value);
KR_API const char *kr_tensor_file_metadata(const kr_tensor_file *file, const char *key);

/* Copies a tensor's elements, in row-major order and converted to `dtype`, to `out` of `count` elements. Floats go to
 * floats, rounded to nearest even; integers and booleans to integers, refused if one does not fit. Other types (U64, complex,
 * 8-bit floats) are listed only. */
KR_API KR_MUST_CHECK kr_status kr_tensor_file_read(const kr_tensor_file *file, const kr_tensor_file_item *item,
                                                   kr_dtype dtype, void *out, int64_t count);

/* ---- writing ---- */

typedef struct kr_tensor_writer kr_tensor_writer;

/* NULL after an error. Destroy before the context; NULL is allowed. */
KR_API kr_tensor_writer *kr_tensor_writer_create(kr_ctx *ctx);
KR_API void kr_tensor_writer_destroy(kr_tensor_writer *writer);

/* One more tensor. The name, UTF-8, may occur once; elements are row-major. Tensors of one type over the same data are
 * tied: a torch file has their elements once.
 *
 * Ownership: the name is copied; the elements stay the caller's and must not change until the last save. */
KR_API kr_status kr_tensor_writer_add(kr_tensor_writer *writer, const char *name, kr_dtype dtype, kr_shape shape,
                                      const void *data);

/* One more text for the header; both are UTF-8 and copied, a key may occur once. Torch files have none. */
KR_API kr_status kr_tensor_writer_add_metadata(kr_tensor_writer *writer, const char *key, const char *value);

/* Writes one file, whole or not at all; any number of times. The same calls give the same bytes. */
KR_API KR_MUST_CHECK kr_status kr_tensor_writer_save(const kr_tensor_writer *writer, const char *path,
                                                     kr_container container);

/* Writes files of the names that kr_tensor_file_open looks for into a folder that exists, and removes files of an earlier
 * save there that would be read in their place. Shards hold at most max_shard_bytes of tensors each (one at least; 0: a
 * single file) and are named by an index, which comes last. No file takes its place before all of them are on the disk: what
 * fails until then leaves the folder as it was. Safetensors get the metadata format = pt, as transformers expects. */
KR_API KR_MUST_CHECK kr_status kr_tensor_writer_save_folder(const kr_tensor_writer *writer, const char *folder,
                                                            kr_container container, size_t max_shard_bytes);

#ifdef __cplusplus
}
#endif
#endif
