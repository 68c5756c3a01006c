/* file_write.c - writes a temporary file, syncs it, renames it, syncs the directory. */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#endif
#include "io/file_write.h"

#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the system ---- */

#if !defined(_WIN32)
#include <unistd.h>

static long process_id(void)
{
    return (long)getpid();
}

/* -1 with errno set. */
static int create_new(const char *path, const struct stat *old)
{
    const mode_t mode = old ? old->st_mode & 0777 : 0666;
    const int handle = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (handle >= 0 && old)
        (void)fchmod(handle, mode); /* bits removed by the umask; fails on file systems without modes */
    return handle;
}

static long write_some(int handle, const char *data, size_t bytes)
{
    const size_t most = (size_t)1 << 30; /* systems reject larger writes */
    return (long)write(handle, data, bytes < most ? bytes : most);
}

static bool rewind_handle(int handle)
{
    return lseek(handle, 0, SEEK_SET) == 0;
}

static bool to_disk(int handle)
{
    int rc;
    while ((rc = fsync(handle)) != 0 && errno == EINTR) continue;
    return rc == 0;
}

static bool close_handle(int handle)
{
    return close(handle) == 0 || errno == EINTR; /* EINTR: closed nevertheless */
}

static bool replace(const char *from, const char *to)
{
    return rename(from, to) == 0;
}

/* Syncs the directory entry of the new file. Directories that cannot be opened or synced are ignored. */
static bool folder_to_disk(const char *folder)
{
    const int handle = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) return true;
    const bool done = to_disk(handle) || errno == EINVAL || errno == ENOTSUP || errno == EBADF;
    const int error = errno;
    close(handle);
    errno = error;
    return done;
}

#else
#include <io.h>
#include <process.h>
#include <windows.h>

static long process_id(void)
{
    return (long)_getpid();
}

static int create_new(const char *path, const struct stat *old)
{
    (void)old;
    return _open(path, _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT, _S_IREAD | _S_IWRITE);
}

static long write_some(int handle, const char *data, size_t bytes)
{
    const size_t most = (size_t)1 << 30;
    return (long)_write(handle, data, (unsigned)(bytes < most ? bytes : most));
}

static bool rewind_handle(int handle)
{
    return _lseeki64(handle, 0, SEEK_SET) == 0;
}

static bool to_disk(int handle)
{
    return _commit(handle) == 0;
}

static bool close_handle(int handle)
{
    return _close(handle) == 0;
}

static bool replace(const char *from, const char *to)
{
    if (MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH)) return true;
    errno = EACCES;
    return false;
}

static bool folder_to_disk(const char *folder)
{
    (void)folder;
    return true;
}

#endif

/* ---- writing ---- */

static bool fail(kr_file_writer *w, int error)
{
    return kr_file_fail(w->ctx, "write", w->path, error);
}

static void end(kr_file_writer *w)
{
    kr_memory_free(&w->ctx->memory, w->temporary, w->temporary_bytes);
    w->temporary = NULL;
    w->handle = -1;
}

/* Other writers, of this process or others, may use the directory: takes the first free number from `number` on. */
static bool open_temporary(kr_file_writer *w, const struct stat *old, int number)
{
    enum { TRIES = 1000, NAME_BYTES = 64 };
    const size_t folder = kr_path_folder_length(w->path);
    w->temporary_bytes = folder + NAME_BYTES;
    w->temporary = kr_memory_alloc(&w->ctx->memory, w->temporary_bytes);
    if (!w->temporary) return kr_fail(w->ctx, KR_ERR_NOMEM, "cannot write %s: no memory for a file name", w->path);
    memcpy(w->temporary, w->path, folder);
    for (int n = number; n - number < TRIES; n++) {
        snprintf(w->temporary + folder, NAME_BYTES, ".krait-%ld-%d.tmp", process_id(), n);
        w->handle = create_new(w->temporary, old);
        if (w->handle >= 0) return true;
        if (errno != EEXIST) break;
    }
    return fail(w, errno);
}

bool kr_file_create(kr_file_writer *w, kr_ctx *ctx, const char *path)
{
    return kr_file_create_nth(w, ctx, path, 0);
}

bool kr_file_create_nth(kr_file_writer *w, kr_ctx *ctx, const char *path, int number)
{
    *w = (kr_file_writer){ .ctx = ctx, .path = path, .handle = -1 };
    if (!path) return kr_fail(ctx, KR_ERR_ARG, "cannot write a file: path is NULL");
    if (!*path) return fail(w, ENOENT);
    struct stat old;
    const bool exists = stat(path, &old) == 0;
    if (exists && (old.st_mode & S_IFMT) != S_IFREG)
        return kr_fail(ctx, KR_ERR_IO, "cannot write %s: not a regular file", path);
    if (open_temporary(w, exists ? &old : NULL, number)) return true;
    end(w);
    return false;
}

bool kr_save_to_memory(kr_ctx *ctx, kr_save_target *target, void *out, size_t bytes, size_t *needed)
{
    if (needed) *needed = 0;
    *target = (kr_save_target){ .is_memory = true, .out = out, .bytes = bytes, .needed = needed };
    return kr_require(ctx, needed != NULL, KR_ERR_ARG, "needed is NULL");
}

bool kr_file_create_target(kr_file_writer *w, kr_ctx *ctx, const kr_save_target *target)
{
    if (!target->is_memory && !target->take) return kr_file_create(w, ctx, target->path);
    *w = target->take ? (kr_file_writer){ .ctx = ctx,
                                          .path = "to a function",
                                          .handle = -1,
                                          .take = target->take,
                                          .user = target->user }
                      : (kr_file_writer){ .ctx = ctx, .path = "to memory", .memory = target, .handle = -1 };
    return true;
}

/* Bytes beyond the caller's memory are counted only. */
static bool write_to_memory(kr_file_writer *w, const void *data, size_t bytes)
{
    const kr_save_target *to = w->memory;
    const bool fits = to->out && w->length <= to->bytes && bytes <= to->bytes - w->length;
    if (!kr_require(w->ctx, bytes <= SIZE_MAX - w->length, KR_ERR_ARG, "cannot write to memory: too many bytes"))
        return false;
    if (fits && !kr_fetch(w->ctx, (char *)to->out + w->length, data, bytes)) return false;
    w->length += bytes;
    return true;
}

static bool commit_to_memory(const kr_file_writer *w)
{
    const kr_save_target *to = w->memory;
    *to->needed = w->length;
    return kr_require(w->ctx, !to->out || w->length <= to->bytes, KR_ERR_ARG,
                      "%zu bytes of memory are too few: %zu are needed", to->bytes, w->length);
}

static bool write_piece(void *user, const void *data, size_t bytes)
{
    kr_file_writer *w = user;
    for (size_t at = 0; at < bytes;) {
        const long n = write_some(w->handle, (const char *)data + at, bytes - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail(w, n < 0 ? errno : EIO);
        at += (size_t)n;
    }
    return true;
}

bool kr_file_write(kr_file_writer *w, const void *data, size_t bytes)
{
    if (w->memory) return write_to_memory(w, data, bytes);
    return w->take ? kr_each_block(w->ctx, data, bytes, w->take, w->user)
                   : kr_each_block(w->ctx, data, bytes, write_piece, w);
}

bool kr_file_write_first(kr_file_writer *w, const void *data, size_t bytes)
{
    return rewind_handle(w->handle) ? kr_file_write(w, data, bytes) : fail(w, errno);
}

void kr_file_discard(kr_file_writer *w)
{
    if (!w->temporary) return;
    if (w->handle >= 0) close_handle(w->handle);
    remove(w->temporary);
    end(w);
}

bool kr_file_finish(kr_file_writer *w)
{
    const bool synced = to_disk(w->handle);
    const int error = errno;
    const bool closed = close_handle(w->handle);
    w->handle = -1;
    if (!synced) errno = error;
    return (synced && closed) || fail(w, errno);
}

bool kr_file_commit(kr_file_writer *w)
{
    if (w->take) return true;
    if (w->memory) return commit_to_memory(w);
    if ((w->handle >= 0 && !kr_file_finish(w)) || (!replace(w->temporary, w->path) && !fail(w, errno))) {
        kr_file_discard(w);
        return false;
    }
    const size_t folder = kr_path_folder_length(w->path);
    w->temporary[folder] = '\0';
    const bool done = folder_to_disk(folder ? w->temporary : ".") || fail(w, errno);
    end(w);
    return done;
}
