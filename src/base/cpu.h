/* cpu.h - instruction sets that the CPU and the operating system support: CPUID, XGETBV, and a request for AMX
 * tiles. */
#ifndef KR_BASE_CPU_H
#define KR_BASE_CPU_H

#include <krait/base.h>

enum {
    KR_CPU_AVX2 = 1 << 0,
    KR_CPU_FMA = 1 << 1,
    KR_CPU_F16C = 1 << 2,
    KR_CPU_AVX512F = 1 << 3,
    KR_CPU_AVX512BW = 1 << 4,
    KR_CPU_AVX512VL = 1 << 5,
    KR_CPU_AVX512DQ = 1 << 6,
    KR_CPU_AVX512BF16 = 1 << 7,
    KR_CPU_AVX512VNNI = 1 << 8,
    KR_CPU_AMX_TILE = 1 << 9,
    KR_CPU_AMX_BF16 = 1 << 10,
    KR_CPU_AMX_INT8 = 1 << 11
};

/* KR_CPU_ bits of features that the CPU has and the system enables. */
uint64_t kr_cpu_features(void);

/* Name of one bit, "?" for none. */
const char *kr_cpu_feature_name(uint64_t bit);

/* The names of this CPU's features, as kr_info_text has them. */
size_t kr_cpu_features_write(char *text, size_t bytes);

/* CPUs that this process may run on, >= 1; writes the first `max` of their numbers. */
int kr_cpu_allowed(int *cpus, int max);

#endif
