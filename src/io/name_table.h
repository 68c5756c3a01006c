/* name_table.h - tensors and texts to be written: in order of insertion, with unique names. */
#ifndef KR_IO_NAME_TABLE_H
#define KR_IO_NAME_TABLE_H

#include "base/ctx_impl.h"

typedef struct kr_named {
    const char *name;
    int64_t number;    /* its index in order of insertion */
    const char *value; /* of a text; NULL: a tensor */
    kr_dtype dtype;
    kr_shape shape;
    int64_t count;    /* elements */
    const void *data; /* the caller's; NULL only if count is 0 */
    size_t bytes;
} kr_named;

typedef struct kr_named_list {
    kr_ctx *ctx;
    const char *who; /* errors begin with it */
    kr_arena *arena; /* names, texts */
    int64_t count, capacity;
    const kr_named **in_order, **by_name;
    size_t data_bytes;
} kr_named_list;

void kr_named_init(kr_named_list *list, kr_ctx *ctx, const char *who, kr_arena *arena);
void kr_named_deinit(kr_named_list *list);

/* Copies of name and text; false with the context's error set. */
bool kr_named_add_tensor(kr_named_list *list, const char *name, kr_dtype dtype, const kr_shape *shape,
                         const void *data);
bool kr_named_add_text(kr_named_list *list, const char *key, const char *value);

/* Finds tied tensors: first[i] is the smallest index of a tensor with the data and the dtype of tensor i, which is not
 * empty. False with the context's error set. */
bool kr_named_find_tied(kr_ctx *ctx, const kr_named *const *tensors, int64_t count, int64_t *first);

#endif
