/* static_only.h - included by the experimental headers: rejects programs that use the shared library.
 *
 * Headers in <krait/experimental/...> may change in any release. Their functions are in the static library only. A
 * program that uses them defines KR_STATIC and links libkrait.a (CMake: krait::krait_static; pkg-config --static), and
 * so keeps the version with which it was built. <krait/krait.h> includes none of them. */
#ifndef KRAIT_EXPERIMENTAL_STATIC_ONLY_H
#define KRAIT_EXPERIMENTAL_STATIC_ONLY_H

#include <krait/base.h>

#if !defined(KR_STATIC) && !defined(KR_BUILDING)
#error "experimental headers: define KR_STATIC and link libkrait.a (krait::krait_static)"
#endif

#endif
