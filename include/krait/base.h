/* base.h - what every other header of Krait stands on: version, linkage, status codes.
 *
 *   printf("krait %s\n", kr_version());
 *
 * All headers are C11 and C++17, include nothing but stddef, stdint and stdbool, and
 * declare only names that begin with kr_ or KR_.
 */
#ifndef KRAIT_BASE_H
#define KRAIT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KR_VERSION_MAJOR 0
#define KR_VERSION_MINOR 1
#define KR_VERSION_PATCH 0

#if defined(_WIN32)
#define KR_API
#else
#define KR_API __attribute__((visibility("default")))
#endif

#if defined(__GNUC__) || defined(__clang__)
#define KR_PRINTF(text, first) __attribute__((__format__(__printf__, text, first)))
#else
#define KR_PRINTF(text, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Why a call failed. Values are fixed; new ones are appended. */
typedef enum kr_status {
    KR_OK = 0,
    KR_ERR_ARG = 1,         /* an argument outside its rule */
    KR_ERR_SHAPE = 2,       /* ranks or sizes that do not fit together */
    KR_ERR_DTYPE = 3,       /* an element type that the op does not take */
    KR_ERR_NOMEM = 4,       /* the allocator refused */
    KR_ERR_IO = 5,          /* the system refused to read or write */
    KR_ERR_FORMAT = 6,      /* a file or text that is not what it should be */
    KR_ERR_UNSUPPORTED = 7, /* right in principle, absent on this machine or build */
    KR_ERR_DEVICE = 8,      /* the accelerator failed */
    KR_ERR_NUMERIC = 9,     /* NaN or infinity where check_finite forbids it */
    KR_ERR_STATE = 10,      /* a call at the wrong time: a used tape, a foreign context */
    KR_ERR_INTERNAL = 11    /* our own mistake */
} kr_status;

/* "ok", "shape", ...; never NULL. */
KR_API const char *kr_status_name(kr_status status);

/* "major.minor.patch" of the library that is linked, not of this header. */
KR_API const char *kr_version(void);

#ifdef __cplusplus
}
#endif
#endif
