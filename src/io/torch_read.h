/* torch_read.h - the tensors of a torch file: a zip with a pickle and a member for each storage.
 *
 *   NAME/data.pkl   NAME/byteorder   NAME/data/0   NAME/data/1  ..  NAME/version
 */
#ifndef KR_IO_TORCH_READ_H
#define KR_IO_TORCH_READ_H

#include "io/convert.h"

/* Does a file begin like torch's zip? */
bool kr_torch_is_zip(const unsigned char *file, size_t bytes);

/* Does it begin like a torch file of the format before zip? */
bool kr_torch_is_old(const unsigned char *file, size_t bytes);

/* All tensors (kr_elements), in the order of their data, from the arena; the file's bytes must stay valid. False with
 * the context's error set. Names may occur more than once. */
bool kr_torch_read(kr_ctx *ctx, kr_arena *arena, const unsigned char *file, size_t bytes, const void ***tensors,
                   int64_t *count);

#endif
