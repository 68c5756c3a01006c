/* safetensors_write.h - the content of a file of tensors into a file that is open for writing. */
#ifndef KR_IO_SAFETENSORS_WRITE_H
#define KR_IO_SAFETENSORS_WRITE_H

#include "io/file_write.h"
#include "io/name_table.h"

typedef struct kr_safetensors_content {
    const kr_named *const *texts;
    int64_t ntexts;
    const kr_named *const *tensors;
    int64_t ntensors;
} kr_safetensors_content;

/* False with the context's error set; the file is the caller's to commit or to discard. */
bool kr_safetensors_write(kr_file_writer *file, const kr_safetensors_content *content);

#endif
