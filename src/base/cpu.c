/* cpu.c - feature detection. A bit is set only if the CPU has the feature and the operating system saves its
 * registers. */
#define _GNU_SOURCE
#include "base/cpu.h"

#include <krait/ctx.h>

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>

/* XCR0: which register files the system saves on a task switch. */
static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Linux enables AMX's 8 KiB of tile registers only for processes that request them. */
static bool tiles_granted(void)
{
#if defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

static uint64_t detect(void)
{
    enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const uint32_t fma = c >> 12 & 1, osxsave = c >> 27 & 1, f16c = c >> 29 & 1;
    if (!osxsave) return 0;
    const uint64_t saved = saved_state();
    if ((saved & XCR0_AVX) != XCR0_AVX) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    uint64_t features = 0;
    if (b >> 5 & 1) features |= KR_CPU_AVX2;
    if (fma) features |= KR_CPU_FMA;
    if (f16c) features |= KR_CPU_F16C;
    if ((saved & XCR0_AVX512) == XCR0_AVX512) {
        if (b >> 16 & 1) features |= KR_CPU_AVX512F;
        if (b >> 17 & 1) features |= KR_CPU_AVX512DQ;
        if (b >> 30 & 1) features |= KR_CPU_AVX512BW;
        if (b >> 31 & 1) features |= KR_CPU_AVX512VL;
        if (c >> 11 & 1) features |= KR_CPU_AVX512VNNI;
    }
    if ((saved & XCR0_AMX) == XCR0_AMX && (d >> 24 & 1) && tiles_granted()) {
        features |= KR_CPU_AMX_TILE;
        if (d >> 22 & 1) features |= KR_CPU_AMX_BF16;
        if (d >> 25 & 1) features |= KR_CPU_AMX_INT8;
    }
    if ((features & KR_CPU_AVX512F) && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1))
        features |= KR_CPU_AVX512BF16;
    return features;
}
#else
static uint64_t detect(void)
{
    return 0;
}
#endif

uint64_t kr_cpu_features(void)
{
    enum { DETECTED = 63 };
    static _Atomic uint64_t kept; /* CPUID costs microseconds on a virtual machine: executed once per process */
    uint64_t features = atomic_load_explicit(&kept, memory_order_relaxed);
    if (!features) {
        features = detect() | (uint64_t)1 << DETECTED;
        atomic_store_explicit(&kept, features, memory_order_relaxed);
    }
    return features & ~((uint64_t)1 << DETECTED);
}

const char *kr_cpu_feature_name(uint64_t bit)
{
    switch (bit) {
    case KR_CPU_AVX2: return "avx2";
    case KR_CPU_FMA: return "fma";
    case KR_CPU_F16C: return "f16c";
    case KR_CPU_AVX512F: return "avx512f";
    case KR_CPU_AVX512BW: return "avx512bw";
    case KR_CPU_AVX512VL: return "avx512vl";
    case KR_CPU_AVX512DQ: return "avx512dq";
    case KR_CPU_AVX512BF16: return "avx512bf16";
    case KR_CPU_AVX512VNNI: return "avx512vnni";
    case KR_CPU_AMX_TILE: return "amx_tile";
    case KR_CPU_AMX_BF16: return "amx_bf16";
    case KR_CPU_AMX_INT8: return "amx_int8";
    default: return "?";
    }
}

size_t kr_cpu_features_write(char *text, size_t bytes)
{
    const uint64_t features = kr_cpu_features();
    size_t at = 0;
    if (!text) bytes = 0;
    if (bytes) text[0] = '\0';
    for (uint64_t bit = 1; bit <= KR_CPU_AMX_INT8; bit <<= 1) {
        if (!(features & bit)) continue;
        const int n = snprintf(at < bytes ? text + at : NULL, at < bytes ? bytes - at : 0, "%s%s", at ? " " : "",
                               kr_cpu_feature_name(bit));
        if (n > 0) at += (size_t)n;
    }
    return at;
}

int kr_cpu_allowed(int *cpus, int max)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int count = 0;
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (!CPU_ISSET((size_t)cpu, &set)) continue;
            if (count < max) cpus[count] = cpu;
            count++;
        }
        if (count > 0) return count;
    }
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int count = online > 0 ? (int)online : 1;
    for (int i = 0; i < count && i < max; i++) cpus[i] = i;
    return count;
}
