/* folder.c - folders of this system. */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#endif
#include "io/folder.h"

#include "io/file.h"

#include <errno.h>
#include <sys/stat.h>

#if defined(_WIN32)
#include <direct.h>
#define make_folder(path) _mkdir(path)
#define is_folder(mode) (((mode)&_S_IFMT) == _S_IFDIR)
#else
#define make_folder(path) mkdir((path), 0777)
#define is_folder(mode) S_ISDIR(mode)
#endif

bool kr_folder_make(kr_ctx *ctx, const char *path)
{
    if (!path) return kr_fail(ctx, KR_ERR_ARG, "cannot make a folder: path is NULL");
    if (make_folder(path) == 0) return true;
    const int error = errno;
    struct stat info;
    if (stat(path, &info) == 0 && is_folder(info.st_mode)) return true;
    return kr_file_fail(ctx, "make", path, error);
}
