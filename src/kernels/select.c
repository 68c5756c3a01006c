/* select.c - merges kernel sets: the reference first, faster slots over it. Built without instruction-set flags, so that it
 * runs on any CPU. */
#include "kernels/select.h"

#include "base/cpu.h"

#include <krait/ctx.h>

#include <stdio.h>
#include <string.h>

extern const kr_kernels kr_ref_kernels;
#ifdef KR_ISA_ROWS /* KR_ISA_ROW(name) of each row of isa.def that is built */
#define KR_ISA_ROW(name) extern const kr_kernels kr_##name##_kernels;
KR_ISA_ROWS
#undef KR_ISA_ROW
#endif

static const kr_kernels *const sets[] = { &kr_ref_kernels,
#ifdef KR_ISA_ROWS
#define KR_ISA_ROW(name) &kr_##name##_kernels,
                                          KR_ISA_ROWS
#undef KR_ISA_ROW
#endif
};

const kr_kernels *kr_kernels_nth(int n)
{
    return n >= 0 && (size_t)n < sizeof sets / sizeof *sets ? sets[n] : NULL;
}

const kr_kernels *kr_kernels_named(const char *name)
{
    for (int n = 0; kr_kernels_nth(n); n++)
        if (strcmp(sets[n]->name, name) == 0) return sets[n];
    return NULL;
}

bool kr_kernels_runnable(const kr_kernels *set, uint64_t features)
{
    return (set->needs & ~features) == 0;
}

int kr_kernels_overlay(kr_kernels *table, const kr_kernels *set)
{
    int count = 0;
#define KR_KERNEL(name, args)                                                                                          \
    for (int real = 0; real < KR_NREALS; real++)                                                                       \
        if (set->name[real].run) table->name[real] = set->name[real], count++;
#define KR_KERNEL_ANY(name, args)                                                                                      \
    if (set->name.run) table->name = set->name, count++;
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
#define KR_ACCEPTS(kernel, operand, cpu, cuda)                                                                         \
    if (set->kernel[KR_REAL_F32].run) table->accepts.kernel##_##operand = set->accepts.kernel##_##operand;
#include "kernels/accepts.def"
#undef KR_ACCEPTS
    return count;
}

kr_any_fn *kr_kernels_function(const kr_kernels *table, const char *kernel)
{
#define KR_KERNEL(name, args)                                                                                          \
    if (strcmp(kernel, #name) == 0) return (kr_any_fn *)table->name[KR_REAL_F32].run;
#define KR_KERNEL_ANY(name, args)                                                                                      \
    if (strcmp(kernel, #name) == 0) return (kr_any_fn *)table->name.run;
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
    return NULL;
}

void kr_kernels_merge(kr_kernels *table, const kr_kernels *last, uint64_t features)
{
    memset(table, 0, sizeof *table);
    for (int n = 0; kr_kernels_nth(n); n++) {
        if (kr_kernels_runnable(sets[n], features)) kr_kernels_overlay(table, sets[n]);
        if (sets[n] == last) break;
    }
    table->name = last->name;
    table->needs = last->needs;
}

size_t kr_isas_write(char *text, size_t bytes)
{
    const uint64_t features = kr_cpu_features();
    size_t at = 0;
    if (!text) bytes = 0;
    if (bytes) text[0] = '\0';
    for (int n = 0; kr_kernels_nth(n); n++) {
        if (!kr_kernels_runnable(sets[n], features)) continue;
        const int wrote =
            snprintf(at < bytes ? text + at : NULL, at < bytes ? bytes - at : 0, "%s%s", at ? ", " : "", sets[n]->name);
        if (wrote > 0) at += (size_t)wrote;
    }
    return at;
}
