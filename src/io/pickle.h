/* pickle.h - the description of tensors in a torch file: a program for Python's pickle machine, run by a machine that
 * can create tensors and dictionaries of them and nothing else.
 *
 * It calls nothing and imports nothing: names of Python's modules are compared with a short list, and any other is an
 * error that names it. The program's result is a dictionary of tensors, either the root or its member "state_dict" or
 * "model".
 */
#ifndef KR_IO_PICKLE_H
#define KR_IO_PICKLE_H

#include "io/convert.h"

/* Elements of a storage, which is a member of the torch file: shape and strides stay inside its `storage_count`. */
typedef struct kr_pickle_tensor {
    const char *name;
    const char *key; /* of the storage; in the program's bytes, not zero-terminated */
    size_t key_length;
    const kr_element_type *type;
    int64_t storage_count; /* elements */
    int64_t offset;        /* elements */
    kr_shape shape;
    int64_t count;
    int64_t strides[KR_MAX_RANK];
} kr_pickle_tensor;

typedef struct kr_pickle {
    int64_t count;
    kr_pickle_tensor *tensors; /* in the dictionary's order; a name may occur more than once */
} kr_pickle;

/* False with the context's error set. The result's memory is from the arena; the program's bytes must stay valid. */
bool kr_pickle_run(kr_pickle *result, kr_ctx *ctx, kr_arena *arena, const unsigned char *program, size_t bytes);

/* The type of torch's storages ("BFloat16Storage") whose elements are of a (valid) dtype. */
const kr_element_type *kr_torch_type_of(kr_dtype dtype);

#endif
