/* file_write.h - atomic writes of a whole file: its path holds the old file or all of the new one, never a part.
 *
 *   kr_file_writer w;
 *   if (!kr_file_create(&w, ctx, path)) return false;
 *   if (!kr_file_write(&w, data, bytes)) kr_file_discard(&w);
 *   else kr_file_commit(&w);
 *
 * Errors are "cannot write PATH: reason". A writer may also pass the bytes to a function (kr_file_to_function).
 */
#ifndef KR_IO_FILE_WRITE_H
#define KR_IO_FILE_WRITE_H

#include "base/device_memory.h"

typedef struct kr_file_writer {
    kr_ctx *ctx;
    const char *path; /* the caller's; must stay valid until the end */
    char *temporary;  /* path of the temporary file, in the same directory */
    size_t temporary_bytes;
    int handle;
    kr_piece_fn *take; /* NULL: a file */
    void *user;        /* its first argument */
} kr_file_writer;

/* Opens a temporary file in the directory of the path. The new file gets the permissions of an existing one; anything
 * but a regular file (a directory, a device) is an error, a symbolic link will be replaced. */
bool kr_file_create(kr_file_writer *w, kr_ctx *ctx, const char *path);

/* The same for one of several files open for writing: its number becomes a part of the temporary name. */
bool kr_file_create_nth(kr_file_writer *w, kr_ctx *ctx, const char *path, int number);

/* What is written goes to the function, in order; there is no file, and nothing to commit or to discard. */
void kr_file_to_function(kr_file_writer *w, kr_ctx *ctx, kr_piece_fn *take, void *user);

bool kr_file_write(kr_file_writer *w, const void *data, size_t bytes);

/* Overwrites the file's first bytes after all others have been written: for a header that was unknown before. */
bool kr_file_write_first(kr_file_writer *w, const void *data, size_t bytes);

/* Syncs the bytes, so that only the rename remains: several files can all be finished before the first is committed.
 * False: must be discarded. */
bool kr_file_finish(kr_file_writer *w);

/* Both end the writing. Commit syncs the bytes, then renames; after an error the temporary file is removed and the path
 * unchanged. (If only the last step fails, the sync of the directory, the path has the new file.) */
bool kr_file_commit(kr_file_writer *w);
void kr_file_discard(kr_file_writer *w);

#endif
