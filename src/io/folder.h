/* folder.h - folders of this system. */
#ifndef KR_IO_FOLDER_H
#define KR_IO_FOLDER_H

#include "base/ctx.h"

/* Makes a folder, if there is none, in one that exists; false with the context's error set: "cannot make PATH: reason".
 * */
bool kr_folder_make(kr_ctx *ctx, const char *path);

#endif
