/* folder.c - operations on directories. */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#endif
#include "io/folder.h"

#include "io/file.h"
#include "io/file_write.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#if defined(_WIN32)
#include <direct.h>
#include <windows.h>
#define make_folder(path) _mkdir(path)
#define remove_folder(path) _rmdir(path)
#define is_folder(mode) (((mode)&_S_IFMT) == _S_IFDIR)
#else
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>
#define make_folder(path) mkdir((path), 0777)
#define remove_folder(path) rmdir(path)
#define is_folder(mode) S_ISDIR(mode)
#endif

static bool is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* ---- the system ---- */

#if !defined(_WIN32)

bool kr_folder_each(kr_ctx *ctx, const char *path, kr_name_fn *visit, void *user)
{
    DIR *dir = opendir(path);
    if (!dir) return errno == ENOENT || kr_file_fail(ctx, "list", path, errno);
    bool ok = true;
    struct dirent *entry;
    while (ok && (errno = 0, entry = readdir(dir)) != NULL)
        if (!is_dot(entry->d_name)) ok = visit(user, entry->d_name);
    const int error = ok ? errno : 0;
    closedir(dir);
    return error ? kr_file_fail(ctx, "list", path, error) : ok;
}

bool kr_folder_sync(kr_ctx *ctx, const char *path)
{
    const int handle = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) return errno == EACCES || kr_file_fail(ctx, "synchronise", path, errno);
    int rc;
    while ((rc = fsync(handle)) != 0 && errno == EINTR) continue;
    const int error = rc == 0 || errno == EINVAL || errno == ENOTSUP || errno == EBADF ? 0 : errno;
    close(handle);
    return error == 0 || kr_file_fail(ctx, "synchronise", path, error);
}

/* A directory, not a symbolic link to one. */
static bool is_folder_itself(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && is_folder(info.st_mode);
}

static bool move(const char *from, const char *to)
{
    return rename(from, to) == 0;
}

static bool share(const char *from, const char *to)
{
    return link(from, to) == 0;
}

static bool point(const char *target, const char *path)
{
    return symlink(target, path) == 0;
}

#else

bool kr_folder_each(kr_ctx *ctx, const char *path, kr_name_fn *visit, void *user)
{
    char pattern[MAX_PATH];
    if (snprintf(pattern, sizeof pattern, "%s\\*", path) >= MAX_PATH) return kr_file_fail(ctx, "list", path, ENOENT);
    WIN32_FIND_DATAA entry;
    HANDLE search = FindFirstFileA(pattern, &entry);
    if (search == INVALID_HANDLE_VALUE) return true;
    bool ok = true;
    do {
        if (!is_dot(entry.cFileName)) ok = visit(user, entry.cFileName);
    } while (ok && FindNextFileA(search, &entry));
    FindClose(search);
    return ok;
}

bool kr_folder_sync(kr_ctx *ctx, const char *path)
{
    (void)ctx;
    (void)path;
    return true;
}

static bool is_folder_itself(const char *path)
{
    const DWORD kind = GetFileAttributesA(path);
    return kind != INVALID_FILE_ATTRIBUTES && (kind & FILE_ATTRIBUTE_DIRECTORY) &&
           !(kind & FILE_ATTRIBUTE_REPARSE_POINT);
}

static bool move(const char *from, const char *to)
{
    if (MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH)) return true;
    errno = EACCES;
    return false;
}

static bool share(const char *from, const char *to)
{
    return CreateHardLinkA(to, from, NULL) != 0;
}

static bool point(const char *target, const char *path)
{
    (void)target;
    (void)path;
    return false;
}

#endif

/* ---- folders ---- */

bool kr_folder_make(kr_ctx *ctx, const char *path)
{
    if (!path) return kr_fail(ctx, KR_ERR_ARG, "cannot create a folder: path is NULL");
    if (make_folder(path) == 0) return true;
    const int error = errno;
    struct stat info;
    if (stat(path, &info) == 0 && is_folder(info.st_mode)) return true;
    return kr_file_fail(ctx, "make", path, error);
}

/* A directory whose entries are being removed. */
typedef struct emptying {
    kr_ctx *ctx;
    const char *path;
    char *name; /* buffer for the paths of its entries */
    size_t capacity;
} emptying;

static bool remove_name(void *user, const char *name)
{
    emptying *e = user;
    snprintf(e->name, e->capacity, "%s/%s", e->path, name);
    return remove(e->name) == 0 || errno == ENOENT || kr_file_fail(e->ctx, "remove", e->name, errno);
}

static bool remove_all_in(kr_ctx *ctx, const char *path)
{
    enum { LONGEST_NAME = 1024 };
    emptying e = { .ctx = ctx, .path = path, .capacity = strlen(path) + LONGEST_NAME };
    e.name = kr_memory_alloc(&ctx->memory, e.capacity);
    if (!e.name) return kr_fail(ctx, KR_ERR_NOMEM, "cannot remove %s: no memory for a file name", path);
    const bool is_empty = kr_folder_each(ctx, path, remove_name, &e);
    kr_memory_free(&ctx->memory, e.name, e.capacity);
    return is_empty;
}

bool kr_path_remove(kr_ctx *ctx, const char *path)
{
    if (!is_folder_itself(path)) return kr_file_remove(ctx, path);
    return remove_all_in(ctx, path) &&
           (remove_folder(path) == 0 || errno == ENOENT || kr_file_fail(ctx, "remove", path, errno));
}

/* ---- names ---- */

bool kr_path_move(kr_ctx *ctx, const char *from, const char *to)
{
    return move(from, to) || kr_file_fail(ctx, "make", to, errno);
}

bool kr_file_copy(kr_ctx *ctx, const char *from, const char *to)
{
    kr_file file;
    kr_file_writer w;
    if (!kr_file_open(&file, ctx, from, true)) return false;
    bool done = kr_file_create(&w, ctx, to);
    if (done && !kr_file_write(&w, file.data, file.bytes)) {
        kr_file_discard(&w);
        done = false;
    }
    done = done && kr_file_commit(&w);
    kr_file_close(&file);
    return done;
}

bool kr_file_share(kr_ctx *ctx, const char *from, const char *to, const char *spare)
{
    remove(spare);
    if (!share(from, spare)) return kr_file_copy(ctx, from, to);
    const bool moved = move(spare, to);
    const int error = errno;
    remove(spare); /* two names of one file: rename() does nothing */
    return moved || kr_file_fail(ctx, "write", to, error);
}

bool kr_path_link(kr_ctx *ctx, const char *target, const char *path, const char *spare, bool *is_made)
{
    remove(spare);
    *is_made = point(target, spare);
    if (!*is_made) return true;
    if (move(spare, path)) return true;
    const int error = errno;
    remove(spare);
    return kr_file_fail(ctx, "make", path, error);
}
