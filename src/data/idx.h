/* idx.h - IDX files of bytes, as MNIST's: 0 0 8 rank, a big-endian u32 for each axis, the bytes. */
#ifndef KR_DATA_IDX_H
#define KR_DATA_IDX_H

#include "io/file.h"

enum { KR_IDX_RANK = 4 };

typedef struct kr_idx {
    kr_file file;
    const unsigned char *data;
    int rank;
    int64_t dims[KR_IDX_RANK];
} kr_idx;

/* Another rank, or a size of 0, is an error. False with the context's error set, and nothing to close. */
bool kr_idx_open(kr_idx *idx, kr_ctx *ctx, const char *path, int rank);
void kr_idx_close(kr_idx *idx);

#endif
