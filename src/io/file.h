/* file.h - a whole file as bytes to read: mapped, or read into memory where that does not work. */
#ifndef KR_IO_FILE_H
#define KR_IO_FILE_H

#include "base/ctx.h"

typedef struct kr_file {
    kr_ctx *ctx;
    const unsigned char *data;
    size_t bytes;
    void *map;    /* to be unmapped */
    void *memory; /* to be freed */
} kr_file;

/* False with the context's error set: "cannot open PATH: no such file or directory". mapped false: always read. */
bool kr_file_open(kr_file *file, kr_ctx *ctx, const char *path, bool mapped);
void kr_file_close(kr_file *file);

/* Records "cannot VERB PATH: reason" for a value of errno; always false. */
bool kr_file_fail(kr_ctx *ctx, const char *verb, const char *path, int error);

#endif
