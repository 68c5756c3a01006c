/* tensor_file_impl.h - internals of an open tensor file: files, and the tensors of all of them. */
#ifndef KR_IO_TENSOR_FILE_IMPL_H
#define KR_IO_TENSOR_FILE_IMPL_H

#include "io/convert.h"
#include "io/file.h"
#include "io/file_write.h"
#include "io/safetensors_impl.h"

#include <krait/tensor_file.h>

typedef struct kr_tensor_file_part {
    const char *path;
    kr_file file;
    kr_container container;
    kr_safetensors *safetensors; /* of that container */
    const void **tensors;        /* of the other (kr_elements), in the order of their data */
    int64_t count;
} kr_tensor_file_part;

typedef struct kr_tensor_file_entry {
    kr_tensor_file_item item;
    kr_elements elements;
} kr_tensor_file_entry;

struct kr_tensor_file {
    kr_ctx *ctx;
    kr_arena arena; /* all of the below, and what the containers make */
    int nparts;
    kr_tensor_file_part *parts;
    int64_t count;
    kr_tensor_file_entry *entries;
    const void **by_name; /* the same (kr_tensor_file_entry) in the order of their names */
};

/* The names that are looked for in a folder, in their order; NULL behind the last. */
extern const char *const kr_tensor_file_names[];

/* All below: false or NULL with the context's error set. */

/* Opens the files; what they have open after a failure is closed with it. */
bool kr_tensor_file_open_parts(kr_tensor_file *weights, const char *const *paths, int count);

/* Brings the tensors of all files together; each name may occur once. */
bool kr_tensor_file_gather(kr_tensor_file *weights);

/* The elements of an item where they lie in a mapped file, writable in this process, for kr_tensor_file_take_map; NULL: they
 * must be read, because they are converted, of another order or not aligned, or because the file cannot stay mapped. */
void *kr_tensor_file_place(kr_tensor_file *weights, const kr_tensor_file_item *item, kr_dtype dtype);

/* Takes the map of a file out of the tensor file: the caller passes it to kr_file_unmap. NULL: it has none. */
void *kr_tensor_file_take_map(kr_tensor_file *weights, int shard, size_t *bytes);

/* Writes one file to any target. */
kr_status kr_tensor_writer_save_to(const kr_tensor_writer *writer, const kr_save_target *target,
                                   kr_container container);

/* Opens all files that an index names, and holds their tensors against it. */
bool kr_tensor_file_open_index(kr_tensor_file *weights, const char *path);

#endif
