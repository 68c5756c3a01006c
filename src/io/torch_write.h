/* torch_write.h - writes tensors as a torch file to an open file writer. */
#ifndef KR_IO_TORCH_WRITE_H
#define KR_IO_TORCH_WRITE_H

#include "io/file_write.h"
#include "io/name_table.h"

#define KR_TORCH_MOST_32 UINT64_C(0xFFFFFFFF)

/* Tied tensors share a storage. Numbers from most_32 on are written with 64 bits, others with 32: KR_TORCH_MOST_32 is
 * the limit of 32 bits; a lower value lets tests write 64-bit fields in small files. False with the context's error
 * set; the caller commits or discards the file. */
bool kr_torch_write(kr_file_writer *file, const kr_named *const *tensors, int64_t count, uint64_t most_32);

#endif
