/* sized.h - option structs that grow: a caller may have been compiled with fewer fields, or with more. */
#ifndef KR_BASE_SIZED_H
#define KR_BASE_SIZED_H

#include <stddef.h>
#include <string.h>

/* The defaults for exactly the `size` bytes that the caller has; fields that this library does not know are 0. */
static inline void kr_sized_init(void *options, size_t size, const void *defaults, size_t own_size)
{
    memset(options, 0, size);
    memcpy(options, defaults, size < own_size ? size : own_size);
}

#endif
