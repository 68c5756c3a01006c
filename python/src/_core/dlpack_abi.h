/* dlpack_abi.h - the structs of the DLPack specification (1.2); their layout is its ABI. */
#ifndef KRPY_DLPACK_ABI_H
#define KRPY_DLPACK_ABI_H

#include <stdint.h>

typedef struct dl_device {
    int32_t type, number;
} dl_device;

typedef struct dl_dtype {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;

typedef struct dl_tensor {
    void *data;
    dl_device device;
    int32_t rank;
    dl_dtype dtype;
    int64_t *shape, *strides; /* strides in elements; NULL: row-major */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *owner;
    void (*release)(struct dl_managed *self);
} dl_managed;

typedef struct dl_versioned {
    uint32_t major, minor;
    void *owner;
    void (*release)(struct dl_versioned *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_versioned;

enum { DL_INT = 0, DL_FLOAT = 2, DL_BFLOAT = 4, DL_READ_ONLY = 1, DL_IS_COPIED = 2, DL_CPU = 1, DL_CUDA = 2 };

/* Functions of a library of tensors, in the capsule __dlpack_c_exchange_api__ of their type. They return 0, or -1 after an
 * exception, and wait for no stream. */
typedef struct dl_exchange {
    uint32_t major, minor;
    struct dl_exchange *older;
    /* a new tensor like the prototype, whose dtype, rank, shape and device are read */
    int (*allocate)(dl_tensor *prototype, dl_versioned **out, void *error,
                    void (*set_error)(void *error, const char *kind, const char *message));
    int (*lend)(void *object, dl_versioned **out);
    int (*wrap)(dl_versioned *tensor, void **object); /* owns the tensor afterwards */
    int (*view)(void *object, dl_tensor *out);        /* shape and strides are the object's */
    int (*current_stream)(int32_t device_type, int32_t device_number, void **stream);
} dl_exchange;

#endif
