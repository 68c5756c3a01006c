/* folder.h - folders of this system: made, listed, brought to the disk, moved, removed; and names for what is in them. */
#ifndef KR_IO_FOLDER_H
#define KR_IO_FOLDER_H

#include "base/ctx_impl.h"

/* All below: false with the context's error set, "cannot VERB PATH: reason". */

/* Makes a folder, if there is none, in one that exists. */
bool kr_folder_make(kr_ctx *ctx, const char *path);

/* Calls visit for each name in a folder but "." and "..", in no order. False of visit ends it, and is passed on. A folder
 * that is not there has no names. */
typedef bool kr_name_fn(void *user, const char *name);
bool kr_folder_each(kr_ctx *ctx, const char *path, kr_name_fn *visit, void *user);

/* Names that were made, moved or removed in a folder are on the disk afterwards. Systems and folders that have no such
 * thing are passed over. */
bool kr_folder_sync(kr_ctx *ctx, const char *path);

/* Removes a file, a link (not what it leads to), or a folder with the files and links in it; no folders within. What is
 * not there is no error. */
bool kr_path_remove(kr_ctx *ctx, const char *path);

/* Gives a file or a folder another name in the same file system; a file that has that name already is replaced. */
bool kr_path_move(kr_ctx *ctx, const char *from, const char *to);

/* `to` becomes another name for the file `from`, or a copy of it where the system has no such names. `to` holds what it
 * was or the whole file. `spare` is a free name in the same folder as `to`. */
bool kr_file_share(kr_ctx *ctx, const char *from, const char *to, const char *spare);

/* `to` becomes a copy of the file `from`: what it was, or the whole file. */
bool kr_file_copy(kr_ctx *ctx, const char *from, const char *to);

/* `path` becomes a symbolic link to `target`, which is taken from the link's own folder; a link that is there already is
 * replaced at once. `spare` as above. *is_made is false, and that no error, where the system has no such links. */
bool kr_path_link(kr_ctx *ctx, const char *target, const char *path, const char *spare, bool *is_made);

#endif
