/* base.h - version, linkage, status codes; included by every other header.
 *
 *   printf("krait %s\n", kr_version());
 *
 * All headers are C11 and C++17, include only stddef, stdint and stdbool, and declare only names that begin with kr_ or
 * KR_. */
#ifndef KRAIT_BASE_H
#define KRAIT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KR_VERSION_MAJOR 0
#define KR_VERSION_MINOR 3
#define KR_VERSION_PATCH 0

/* The version of this header as one number, for #if: 300 is 0.3.0. kr_version_number() is that of the library. */
#define KR_VERSION_NUMBER (KR_VERSION_MAJOR * 10000 + KR_VERSION_MINOR * 100 + KR_VERSION_PATCH)

/* Linkage. Define KR_STATIC when the library is linked statically, for example into a plug-in; declarations then
 * neither import nor export. The CMake target krait::krait_static and pkg-config --static define it. KR_BUILDING is
 * defined while the library itself is compiled. */
#if defined(KR_STATIC)
#define KR_API
#elif defined(_WIN32) && defined(KR_BUILDING)
#define KR_API __declspec(dllexport)
#elif defined(_WIN32)
#define KR_API __declspec(dllimport)
#else
#define KR_API __attribute__((visibility("default")))
#endif

/* Functions of <krait/experimental/...>, in the static library only. The shared library does not export them, so that
 * its interface can stay compatible while they change. */
#define KR_EXPERIMENTAL_API

/* Functions defined in the header as typed names of one exported function; they have no symbol in the shared
 * library. */
#define KR_API_INLINE static inline

/* KR_MUST_CHECK: a status that must not be ignored, because data could be lost silently. KR_DEPRECATED("use ..."): a
 * declaration that a later minor version removes. */
#if defined(__GNUC__) || defined(__clang__)
#define KR_MUST_CHECK __attribute__((__warn_unused_result__))
#define KR_DEPRECATED(text) __attribute__((__deprecated__(text)))
#elif defined(_MSC_VER)
#define KR_MUST_CHECK
#define KR_DEPRECATED(text) __declspec(deprecated(text))
#else
#define KR_MUST_CHECK
#define KR_DEPRECATED(text)
#endif

#if defined(__GNUC__) || defined(__clang__)
#define KR_PRINTF(text, first) __attribute__((__format__(__printf__, text, first)))
#else
#define KR_PRINTF(text, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The result of a call. Values are fixed; new ones are appended. */
typedef enum kr_status {
    KR_OK = 0,
    KR_ERR_ARG = 1,         /* invalid argument */
    KR_ERR_SHAPE = 2,       /* ranks or sizes do not match */
    KR_ERR_DTYPE = 3,       /* element type not supported by the op */
    KR_ERR_NOMEM = 4,       /* out of memory */
    KR_ERR_IO = 5,          /* a read or write failed */
    KR_ERR_FORMAT = 6,      /* invalid file or text */
    KR_ERR_UNSUPPORTED = 7, /* valid, but not supported by this machine, build or version */
    KR_ERR_DEVICE = 8,      /* the accelerator failed */
    KR_ERR_NUMERIC = 9,     /* NaN or infinity where check_finite forbids it */
    KR_ERR_STATE = 10,      /* a call at the wrong time: a used tape, an object of another context */
    KR_ERR_INTERNAL = 11,   /* a bug in Krait */
    KR_END = 12             /* no more items; not an error, and never the status of a context */
} kr_status;

/* The enums whose values have names. Values are fixed; new ones are appended. */
typedef enum kr_enum_id {
    KR_ENUM_STATUS = 0,
    KR_ENUM_DTYPE = 1,
    KR_ENUM_FAMILY = 2,
    KR_ENUM_LAYOUT = 3,
    KR_ENUM_LR_KIND = 4,
    KR_ENUM_OPTIMIZER_KIND = 5
} kr_enum_id;

/* The name of a value: "f32" for KR_ENUM_DTYPE and KR_DTYPE_F32; "?" for a value without a name; never NULL.
 * Thread-safe. kr_status_name, kr_dtype_name and so on call it. */
KR_API const char *kr_enum_name(kr_enum_id id, int value);

/* "ok", "shape", ...; never NULL. */
KR_API_INLINE const char *kr_status_name(kr_status status)
{
    return kr_enum_name(KR_ENUM_STATUS, (int)status);
}

/* "major.minor.patch" of the linked library, not of this header. */
KR_API const char *kr_version(void);

/* The version of the linked library as a number: KR_VERSION_NUMBER of the headers with which it was built. */
KR_API int kr_version_number(void);

/* Structs filled by the caller begin with their size, so that later versions can append fields. Each has a macro, such
 * as kr_call_init(&call), that sets the library's defaults for exactly the fields with which the program was compiled.
 * Functions that take such a struct use the defaults for fields that the program does not know, and return
 * KR_ERR_UNSUPPORTED if fields that the library does not know are set. Values are fixed; new ones are appended. */
typedef enum kr_struct_id {
    KR_STRUCT_CTX_OPTIONS = 0,
    KR_STRUCT_NORM_OPTIONS = 1,
    KR_STRUCT_TRAPEZOID_OPTIONS = 2,
    KR_STRUCT_CROSS_ENTROPY_OPTIONS = 3,
    KR_STRUCT_LOSS_OPTIONS = 4,
    KR_STRUCT_LOSS_CALL = 5,
    KR_STRUCT_MAMBA1_CONFIG = 6,
    KR_STRUCT_MAMBA2_CONFIG = 7,
    KR_STRUCT_MAMBA3_CONFIG = 8,
    KR_STRUCT_LAYERS_CONFIG = 9,
    KR_STRUCT_BIDI_CONFIG = 10,
    KR_STRUCT_NETWORK_CONFIG = 11,
    KR_STRUCT_CALL = 12,
    KR_STRUCT_PARAM_OPTIONS = 13,
    KR_STRUCT_JSON_OPTIONS = 14,
    KR_STRUCT_MODEL_CONFIG = 15,
    KR_STRUCT_LOAD_OPTIONS = 16,
    KR_STRUCT_SAVE_OPTIONS = 17,
    KR_STRUCT_ENCODE_OPTIONS = 18,
    KR_STRUCT_TEXT_OPTIONS = 19,
    KR_STRUCT_CSV_OPTIONS = 20,
    KR_STRUCT_IDX_OPTIONS = 21,
    KR_STRUCT_LOADER_OPTIONS = 22,
    KR_STRUCT_OPTIMIZER_OPTIONS = 23,
    KR_STRUCT_LR_SCHEDULE = 24,
    KR_STRUCT_TRAIN_OPTIONS = 25,
    KR_STRUCT_SAMPLER_OPTIONS = 26,
    KR_STRUCT_GENERATE_OPTIONS = 27,
    KR_STRUCT_CHECK_OPTIONS = 28,
    KR_STRUCT_LAYER_CONFIG = 29,
    KR_STRUCT_CUSTOM_NETWORK = 30,
    KR_STRUCT_DROPOUT_OPTIONS = 31,
    KR_STRUCT_GRADCHECK_OPTIONS = 32,
    KR_STRUCT_SOURCE_OPTIONS = 33,
    KR_STRUCT_BIDI_CALL = 34,
    KR_STRUCT_ROW_BATCH_OPTIONS = 35,
    KR_STRUCT_ROW_OPTIONS = 36,
    KR_STRUCT_BLOCK_KIND_INFO = 37,
    KR_STRUCT_RAW_OPTIONS = 38,
    KR_STRUCT_COMM_OPTIONS = 39,
    KR_STRUCT_COMM_CALL = 40,
    KR_STRUCT_PLAN_OPTIONS = 41
} kr_struct_id;

/* Sets `size` bytes at `object` to the defaults of a struct; the macros above call it. An id unknown to this library
 * gives zeros and the size. Thread-safe. */
KR_API void kr_struct_init(kr_struct_id id, void *object, size_t size);
#define KR_STRUCT_INIT(id, type, object) kr_struct_init(KR_STRUCT_##id, 1 ? (object) : (type *)0, sizeof *(object))

#ifdef __cplusplus
}
#endif
#endif
