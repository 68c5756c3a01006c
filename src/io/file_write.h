/* file_write.h - atomic writes of a whole file: its path holds the old file or all of the new one, never a part.
 *
 *   kr_file_writer w;
 *   if (!kr_file_create(&w, ctx, path)) return false;
 *   if (!kr_file_write(&w, data, bytes)) kr_file_discard(&w);
 *   else kr_file_commit(&w);
 *
 * Errors are "cannot write PATH: reason". The target may also be a function, or memory of
 * the caller's (kr_file_create_target).
 */
#ifndef KR_IO_FILE_WRITE_H
#define KR_IO_FILE_WRITE_H

#include "base/device_memory.h"

/* Where a file goes: to a path, in order to a function, or to memory. */
typedef struct kr_save_target {
    const char *path;
    kr_piece_fn *take; /* NULL: no function */
    void *user;        /* its first argument */
    bool is_memory;
    void *out; /* memory of `bytes` bytes; NULL: the file is only measured */
    size_t bytes;
    size_t *needed; /* receives the size of the file; never NULL */
} kr_save_target;

/* The target of the kr_*_save_memory functions; *needed becomes 0. False with an error: needed is NULL. */
bool kr_save_to_memory(kr_ctx *ctx, kr_save_target *target, void *out, size_t bytes, size_t *needed);

/* Is the content of the file not needed, but its size only? */
static inline bool kr_save_measures(const kr_save_target *target)
{
    return target->is_memory && !target->out;
}

typedef struct kr_file_writer {
    kr_ctx *ctx;
    const char *path;             /* the caller's; must stay valid until the end */
    const kr_save_target *memory; /* NULL: a file */
    size_t length;                /* of memory: bytes so far */
    char *temporary;              /* path of the temporary file, in the same directory */
    size_t temporary_bytes;
    int handle;
    kr_piece_fn *take; /* of a function */
    void *user;
} kr_file_writer;

/* Opens a temporary file in the directory of the path. The new file gets the permissions of an existing one; anything
 * but a regular file (a directory, a device) is an error, a symbolic link will be replaced. */
bool kr_file_create(kr_file_writer *w, kr_ctx *ctx, const char *path);

/* Begins to write to a target, which must stay valid until the end. */
bool kr_file_create_target(kr_file_writer *w, kr_ctx *ctx, const kr_save_target *target);

/* The same for one of several files open for writing: its number becomes a part of the temporary name. */
bool kr_file_create_nth(kr_file_writer *w, kr_ctx *ctx, const char *path, int number);

bool kr_file_write(kr_file_writer *w, const void *data, size_t bytes);

/* Overwrites the file's first bytes after all others have been written: for a header that was unknown before. */
bool kr_file_write_first(kr_file_writer *w, const void *data, size_t bytes);

/* Syncs the bytes, so that only the rename remains: several files can all be finished before the first is committed.
 * False: must be discarded. */
bool kr_file_finish(kr_file_writer *w);

/* Both end the writing. Commit syncs the bytes, then renames; after an error the temporary file is removed and the path
 * unchanged. (If only the last step fails, the sync of the directory, the path has the new file.) A function: nothing is left to do.
 * Memory: sets *needed; too little memory is an error. */
bool kr_file_commit(kr_file_writer *w);
void kr_file_discard(kr_file_writer *w);

#endif
