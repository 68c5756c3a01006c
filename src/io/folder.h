/* folder.h - directories: create, list, sync, move, remove; and links to files. */
#ifndef KR_IO_FOLDER_H
#define KR_IO_FOLDER_H

#include "base/ctx_impl.h"

/* All below: false with the context's error set, "cannot VERB PATH: reason". */

/* Creates a directory, unless it exists, in an existing one. */
bool kr_folder_make(kr_ctx *ctx, const char *path);

/* Calls visit for each name in a directory except "." and "..", in no order. If visit returns false, iteration stops
 * and returns false. A missing directory has no names. */
typedef bool kr_name_fn(void *user, const char *name);
bool kr_folder_each(kr_ctx *ctx, const char *path, kr_name_fn *visit, void *user);

/* Syncs a directory: names created, moved or removed in it are durable afterwards. Does nothing on systems and file
 * systems without this. */
bool kr_folder_sync(kr_ctx *ctx, const char *path);

/* Removes a file, a link (not its target), or a directory with the files and links in it; no subdirectories. A missing
 * path is no error. */
bool kr_path_remove(kr_ctx *ctx, const char *path);

/* Renames a file or a directory within a file system; replaces an existing file of that name. */
bool kr_path_move(kr_ctx *ctx, const char *from, const char *to);

/* Makes `to` a hard link to the file `from`, or a copy where hard links are not supported. The replacement is atomic.
 * `spare` is a free name in the directory of `to`. */
bool kr_file_share(kr_ctx *ctx, const char *from, const char *to, const char *spare);

/* Makes `to` a copy of the file `from`; atomic. */
bool kr_file_copy(kr_ctx *ctx, const char *from, const char *to);

/* Makes `path` a symbolic link to `target`, relative to the link's directory; atomically replaces an existing link.
 * `spare` as above. *is_made is false, without an error, on systems without symbolic links. */
bool kr_path_link(kr_ctx *ctx, const char *target, const char *path, const char *spare, bool *is_made);

#endif
