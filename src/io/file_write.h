/* file_write.h - writing a whole file at once: its path holds the old file or all of the new one, never a part.
 *
 *   kr_file_writer w;
 *   if (!kr_file_create(&w, ctx, path)) return false;
 *   if (!kr_file_write(&w, data, bytes)) kr_file_discard(&w);
 *   else kr_file_commit(&w);
 *
 * Errors are "cannot write PATH: reason".
 */
#ifndef KR_IO_FILE_WRITE_H
#define KR_IO_FILE_WRITE_H

#include "base/ctx_impl.h"

typedef struct kr_file_writer {
    kr_ctx *ctx;
    const char *path; /* the caller's, until the end */
    char *temporary;  /* what is written to, in the same folder */
    size_t temporary_bytes;
    int handle;
} kr_file_writer;

/* Opens a temporary file beside the path. A file that is there already gives its permissions to the new one; what is no
 * regular file (a folder, a device) is refused, a symbolic link will be replaced. */
bool kr_file_create(kr_file_writer *w, kr_ctx *ctx, const char *path);

/* The same for one of many files that are open at once: each has a number of its own, which its temporary name gets. */
bool kr_file_create_nth(kr_file_writer *w, kr_ctx *ctx, const char *path, int number);

bool kr_file_write(kr_file_writer *w, const void *data, size_t bytes);

/* Writes over the file's first bytes, when all others were written: a header that was not known before them. */
bool kr_file_write_first(kr_file_writer *w, const void *data, size_t bytes);

/* Brings the bytes to the disk, with nothing but the name left to change: of several files, the first can then be
 * committed when all of them are there. False: to be discarded. */
bool kr_file_finish(kr_file_writer *w);

/* Both end the writing. Commit brings the bytes to the disk, then renames; after an error the temporary file is gone and
 * the path as it was. (If only the last step fails, bringing the new name to the disk, the path has the new file.) */
bool kr_file_commit(kr_file_writer *w);
void kr_file_discard(kr_file_writer *w);

#endif
