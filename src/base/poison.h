/* poison.h - tells AddressSanitizer which parts of our own arenas are not in use; nothing in other builds. */
#ifndef KR_BASE_POISON_H
#define KR_BASE_POISON_H

#if defined(__SANITIZE_ADDRESS__)
#define KR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KR_ASAN 1
#endif
#endif

#ifdef KR_ASAN
#include <sanitizer/asan_interface.h>
#define KR_POISON(p, bytes) ASAN_POISON_MEMORY_REGION((p), (bytes))
#define KR_UNPOISON(p, bytes) ASAN_UNPOISON_MEMORY_REGION((p), (bytes))
#else
#define KR_POISON(p, bytes) ((void)(p), (void)(bytes))
#define KR_UNPOISON(p, bytes) ((void)(p), (void)(bytes))
#endif

#endif
