/* state_file.h - files that hold a state: those of kr_state_save, and others that hold more. */
#ifndef KR_MODEL_STATE_FILE_H
#define KR_MODEL_STATE_FILE_H

#include "base/device_memory.h"

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

/* Writes the state and extras[0..nextras). Both are covered by the file's checksum. False after an error, whose text
 * does not name the caller. */
bool kr_state_file_write(const kr_state_format *format, const kr_state *state, const kr_network *net,
                         const kr_state_extra *extras, const char *path);

/* Passes the bytes of such a file to a function instead. */
bool kr_state_file_send(const kr_state_format *format, const kr_state *state, const kr_network *net,
                        const kr_state_extra *extras, kr_piece_fn *take, void *user);

/* Receives the extra tensors of the file; the items, in the format's order, exist but are not checked, nor aligned, and
 * are valid only during the call. False after an error. */
typedef bool kr_state_take_fn(void *user, const kr_state *state, const kr_tensor_file *file,
                              const kr_tensor_file_item *const *extras);

/* Reads a state; take (NULL: none) is called last, after all checks. NULL after an error. */
kr_state *kr_state_file_read(const kr_state_format *format, kr_ctx *ctx, const kr_network *net, const char *path,
                             kr_state_take_fn *take, void *user);

/* The same of a file whose bytes are in memory. */
kr_state *kr_state_file_read_memory(const kr_state_format *format, kr_ctx *ctx, const kr_network *net, const void *data,
                                    size_t bytes, kr_state_take_fn *take, void *user);

#endif
