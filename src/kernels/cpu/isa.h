/* isa.h - names for code that is compiled once per instruction set.
 *
 * Every file of this folder is built with -DKR_ISA=avx2 (or avx512) and that set's flags; KR_FN(softmax) is then
 * kr_avx2_softmax. Nothing else of external linkage may be defined here.
 */
#ifndef KR_KERNELS_CPU_ISA_H
#define KR_KERNELS_CPU_ISA_H

#ifndef KR_ISA
#error "build this file with -DKR_ISA=<name> and the flags of that instruction set"
#endif

#define KR_PASTE3(a, b, c) a##b##_##c
#define KR_PASTE(a, b, c) KR_PASTE3(a, b, c)
#define KR_FN(name) KR_PASTE(kr_, KR_ISA, name)
#define KR_TEXT1(x) #x
#define KR_TEXT(x) KR_TEXT1(x)
#define KR_ISA_NAME KR_TEXT(KR_ISA)

#endif
