/* file.c - opens files. */
#if defined(__linux__)
#define _DEFAULT_SOURCE /* MAP_NORESERVE, madvise */
#define _FILE_OFFSET_BITS 64
#elif !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#endif
#include "io/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#if !defined(_WIN32)
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <sys/vfs.h>
#endif

bool kr_file_fail(kr_ctx *ctx, const char *verb, const char *path, int error)
{
    char reason[128];
#if defined(_WIN32)
    if (strerror_s(reason, sizeof reason, error) != 0) snprintf(reason, sizeof reason, "error %d", error);
#else
    if (strerror_r(error, reason, sizeof reason) != 0) snprintf(reason, sizeof reason, "error %d", error);
#endif
    /* system messages begin with a capital; ours do not */
    if (reason[0] >= 'A' && reason[0] <= 'Z') reason[0] = (char)(reason[0] - 'A' + 'a');
    return kr_fail(ctx, KR_ERR_IO, "cannot %s %s: %s", verb, path, reason);
}

/* ---- paths ---- */

static bool is_separator(char c)
{
#if defined(_WIN32)
    return c == '/' || c == '\\' || c == ':';
#else
    return c == '/';
#endif
}

size_t kr_path_folder_length(const char *path)
{
    size_t n = strlen(path);
    while (n > 0 && !is_separator(path[n - 1])) n--;
    return n;
}

kr_path_kind kr_path_kind_of(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) return KR_PATH_NONE;
    const unsigned kind = (unsigned)info.st_mode & S_IFMT;
    return kind == S_IFREG ? KR_PATH_FILE : kind == S_IFDIR ? KR_PATH_FOLDER : KR_PATH_OTHER;
}

char *kr_path_join(kr_ctx *ctx, kr_arena *arena, const char *folder, const char *name)
{
    const size_t n = strlen(folder);
    const char *between = n > 0 && !is_separator(folder[n - 1]) ? "/" : "";
    const size_t bytes = n + 1 + strlen(name) + 1;
    char *path = kr_arena_alloc(arena, bytes);
    if (path) snprintf(path, bytes, "%s%s%s", folder, between, name);
    else kr_fail(ctx, KR_ERR_NOMEM, "no memory for the path of %s", name);
    return path;
}

bool kr_file_remove(kr_ctx *ctx, const char *path)
{
    return remove(path) == 0 || errno == ENOENT || kr_file_fail(ctx, "remove", path, errno);
}

/* ---- opening ---- */

#if !defined(_WIN32)

static bool read_all(kr_file *file, const char *path, int handle)
{
    file->memory = kr_memory_alloc(&file->ctx->memory, file->bytes);
    if (!file->memory)
        return kr_fail(file->ctx, KR_ERR_NOMEM, "cannot read %s: no memory for %zu bytes", path, file->bytes);
    file->data = file->memory;
    for (size_t at = 0; at < file->bytes;) {
        const size_t most = (size_t)1 << 30; /* systems reject larger reads */
        const size_t left = file->bytes - at;
        const ssize_t n = read(handle, (char *)file->memory + at, left < most ? left : most);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return kr_file_fail(file->ctx, "read", path, errno);
        if (n == 0)
            return kr_fail(file->ctx, KR_ERR_IO, "cannot read %s: it ended after %zu of %zu bytes", path, at,
                           file->bytes);
        at += (size_t)n;
    }
    return true;
}

/* Pages of a mapped file that a server has removed or truncated, or does not return, are a fatal signal for who reads them:
 * such maps must not outlast the call that reads the file. */
static bool is_local(int handle)
{
#if defined(__linux__)
    static const unsigned long remote[] = { 0x6969,     0x517b,     0xff534d42, 0xfe534d42, 0x65735546, 0x01021997,
                                            0x00c36400, 0x5346414f, 0x6b414653, 0x47504653, 0x0bd00bd0, 0x7461636f };
    struct statfs about; /* NFS, SMB, CIFS, SMB2, FUSE, 9p, Ceph, AFS (two), GPFS, Lustre, OCFS2 */
    if (fstatfs(handle, &about) != 0) return false;
    for (size_t i = 0; i < sizeof remote / sizeof *remote; i++)
        if (((unsigned long)about.f_type & 0xffffffff) == remote[i]) return false;
    return true;
#else
    (void)handle;
    return false;
#endif
}

static void *map_file(int handle, size_t bytes)
{
#if defined(__linux__)
    const int flags = MAP_PRIVATE | MAP_NORESERVE; /* no page is reserved for writes that may never come */
#else
    const int flags = MAP_PRIVATE;
#endif
    void *map = mmap(NULL, bytes, PROT_READ, flags, handle, 0);
    return map == MAP_FAILED ? NULL : map;
}

bool kr_file_make_writable(kr_file *file)
{
    if (!file->is_writable && file->map)
        file->is_writable = mprotect(file->map, file->bytes, PROT_READ | PROT_WRITE) == 0;
    return file->is_writable;
}

void kr_file_unmap(void *map, size_t bytes)
{
    munmap(map, bytes);
}

static bool load(kr_file *file, const char *path, int handle, bool mapped)
{
    struct stat info;
    if (fstat(handle, &info) != 0) return kr_file_fail(file->ctx, "open", path, errno);
    if (!S_ISREG(info.st_mode)) return kr_fail(file->ctx, KR_ERR_IO, "cannot open %s: not a regular file", path);
    if ((uint64_t)info.st_size > SIZE_MAX / 2)
        return kr_fail(file->ctx, KR_ERR_IO, "cannot open %s: %lld bytes are too many to address", path,
                       (long long)info.st_size);
    file->bytes = (size_t)info.st_size;
    if (mapped && file->bytes > 0) {
        file->data = file->map = map_file(handle, file->bytes);
        file->is_local = is_local(handle);
        if (file->map) return true;
    }
    return read_all(file, path, handle);
}

bool kr_file_open(kr_file *file, kr_ctx *ctx, const char *path, bool mapped)
{
    *file = (kr_file){ .ctx = ctx };
    if (!path) return kr_fail(ctx, KR_ERR_ARG, "cannot open a file: path is NULL");
    /* O_NONBLOCK: opening a pipe without a writer would block */
    const int handle = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (handle < 0) return kr_file_fail(ctx, "open", path, errno);
    const bool loaded = load(file, path, handle, mapped);
    close(handle);
    if (!loaded) kr_file_close(file);
    return loaded;
}

void kr_file_close(kr_file *file)
{
    if (file->map) munmap(file->map, file->bytes);
    kr_memory_free(&file->ctx->memory, file->memory, file->bytes);
    *file = (kr_file){ .ctx = file->ctx };
}

#else

static bool read_all(kr_file *file, const char *path, FILE *stream)
{
    if (_fseeki64(stream, 0, SEEK_END) != 0) return kr_fail(file->ctx, KR_ERR_IO, "cannot read %s", path);
    const long long bytes = _ftelli64(stream);
    if (bytes < 0 || _fseeki64(stream, 0, SEEK_SET) != 0) return kr_fail(file->ctx, KR_ERR_IO, "cannot read %s", path);
    file->bytes = (size_t)bytes;
    file->memory = kr_memory_alloc(&file->ctx->memory, file->bytes);
    if (!file->memory)
        return kr_fail(file->ctx, KR_ERR_NOMEM, "cannot read %s: no memory for %zu bytes", path, file->bytes);
    file->data = file->memory;
    if (fread(file->memory, 1, file->bytes, stream) != file->bytes)
        return kr_fail(file->ctx, KR_ERR_IO, "cannot read %s: it ended too early", path);
    return true;
}

bool kr_file_make_writable(kr_file *file)
{
    (void)file;
    return false;
}

void kr_file_unmap(void *map, size_t bytes)
{
    (void)map, (void)bytes;
}

bool kr_file_open(kr_file *file, kr_ctx *ctx, const char *path, bool mapped)
{
    (void)mapped;
    *file = (kr_file){ .ctx = ctx };
    if (!path) return kr_fail(ctx, KR_ERR_ARG, "cannot open a file: path is NULL");
    FILE *stream = fopen(path, "rb");
    if (!stream) return kr_file_fail(ctx, "open", path, errno);
    const bool loaded = read_all(file, path, stream);
    fclose(stream);
    if (!loaded) kr_file_close(file);
    return loaded;
}

void kr_file_close(kr_file *file)
{
    kr_memory_free(&file->ctx->memory, file->memory, file->bytes);
    *file = (kr_file){ .ctx = file->ctx };
}

#endif
