/* state_file.h - files that hold a state: those of kr_state_save, and others that hold more. */
#ifndef KR_MODEL_STATE_FILE_H
#define KR_MODEL_STATE_FILE_H

#include "io/file_write.h"

#include <krait/network.h>
#include <krait/tensor_file.h>

enum { KR_STATE_EXTRAS_MAX = 8 };

/* One kind of such files. */
typedef struct kr_state_format {
    const char *name, *version;              /* the texts "format" and "version" of its metadata */
    const char *what;                        /* "state": in messages */
    int nextras;                             /* tensors in addition to the state's, */
    const char *extras[KR_STATE_EXTRAS_MAX]; /* their names; every file has them */
} kr_state_format;

/* A tensor to be written: row-major. */
typedef struct kr_state_extra {
    kr_dtype dtype;
    kr_shape shape;
    const void *data;
} kr_state_extra;

/* Where a file comes from: a path, or memory of the caller's. */
typedef struct kr_load_source {
    const char *path;
    bool is_memory;
    const void *data;
    size_t bytes;
} kr_load_source;

/* Writes the state and extras[0..nextras). Both are covered by the file's checksum. A file that is only measured is not
 * checked. False after an error, whose text does not name the caller. */
bool kr_state_file_write(const kr_state_format *format, const kr_state *state, const kr_network *net,
                         const kr_state_extra *extras, const kr_save_target *target);

/* Receives the extra tensors of the file; the items, in the format's order, exist but are not checked, nor aligned, and
 * are valid only during the call. False after an error. */
typedef bool kr_state_take_fn(void *user, const kr_state *state, const kr_tensor_file *file,
                              const kr_tensor_file_item *const *extras);

/* Reads a state; take (NULL: none) is called last, after all checks. NULL after an error. */
kr_state *kr_state_file_read(const kr_state_format *format, kr_ctx *ctx, const kr_network *net,
                             const kr_load_source *source, kr_state_take_fn *take, void *user);

#endif
