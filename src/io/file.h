/* file.h - a whole file as read-only bytes: mapped, or read into memory if mapping fails. */
#ifndef KR_IO_FILE_H
#define KR_IO_FILE_H

#include "base/ctx_impl.h"

typedef struct kr_file {
    kr_ctx *ctx;
    const unsigned char *data;
    size_t bytes;
    void *map;        /* to be unmapped */
    void *memory;     /* to be freed */
    bool is_local;    /* mapped pages stay readable: not of a network file system */
    bool is_writable; /* the map, in this process only: see kr_file_make_writable */
} kr_file;

/* False with the context's error set: "cannot open PATH: no such file or directory". mapped false: always read. */
bool kr_file_open(kr_file *file, kr_ctx *ctx, const char *path, bool mapped);
void kr_file_close(kr_file *file);

/* Lets the process write to the map: a page that is written is copied, and the file does not change. False: not mapped, or the
 * system refuses. */
bool kr_file_make_writable(kr_file *file);

/* For a map that has been taken out of its kr_file (map = NULL). */
void kr_file_unmap(void *map, size_t bytes);

typedef enum kr_path_kind { KR_PATH_NONE, KR_PATH_FILE, KR_PATH_FOLDER, KR_PATH_OTHER } kr_path_kind;

/* The kind of a path, symbolic links followed; KR_PATH_NONE also if the system reports an error. */
kr_path_kind kr_path_kind_of(const char *path);

/* folder/name, from the arena; NULL with the context's error set. */
char *kr_path_join(kr_ctx *ctx, kr_arena *arena, const char *folder, const char *name);

/* Index of the file name in a path: after the last separator. */
size_t kr_path_folder_length(const char *path);

/* True if no such file exists afterwards. */
bool kr_file_remove(kr_ctx *ctx, const char *path);

/* Records "cannot VERB PATH: reason" for a value of errno; always false. */
bool kr_file_fail(kr_ctx *ctx, const char *verb, const char *path, int error);

#endif
