/* kernels_text.c - the kernels with their devices and element types, and the types of their operands, as text. */
#include "kernels/select.h"

#include <krait/ctx.h>

#include <stdarg.h>
#include <stdio.h>

/* Element types of a kernel in a set. */
enum { F32 = 1, F64 = 2, ANY = 4 };

/* The same of all kernels, one field each. */
typedef struct kernel_types {
#define KR_KERNEL(name, args) unsigned char name;
#define KR_KERNEL_ANY KR_KERNEL
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
} kernel_types;

/* From the list that defines the CUDA table, so that a build without CUDA has it too. */
static const kernel_types cuda_types = {
#define KR_CUDA_KERNEL(kernel) .kernel = F32 | F64,
#define KR_CUDA_KERNEL_SCRATCH KR_CUDA_KERNEL
#define KR_CUDA_KERNEL_ANY(kernel) .kernel = ANY,
#define KR_CUDA_KERNEL_ANY_SCRATCH KR_CUDA_KERNEL_ANY
#include "kernels/cuda/cuda_kernels.def"
#undef KR_CUDA_KERNEL
#undef KR_CUDA_KERNEL_SCRATCH
#undef KR_CUDA_KERNEL_ANY
#undef KR_CUDA_KERNEL_ANY_SCRATCH
};

static void types_of(const kr_kernels *set, kernel_types *types)
{
#define KR_KERNEL(kernel, args)                                                                                        \
    types->kernel =                                                                                                    \
        (unsigned char)((set->kernel[KR_REAL_F32].run ? F32 : 0) | (set->kernel[KR_REAL_F64].run ? F64 : 0));
#define KR_KERNEL_ANY(kernel, args) types->kernel = set->kernel.run ? ANY : 0;
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
}

typedef struct writer {
    char *text;
    size_t bytes, at; /* size of the buffer; length of the whole text written */
} writer;

static void put(writer *w, const char *format, ...) KR_PRINTF(2, 3);
static void put(writer *w, const char *format, ...)
{
    const size_t left = w->at < w->bytes ? w->bytes - w->at : 0;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(left ? w->text + w->at : NULL, left, format, args);
    va_end(args);
    if (n > 0) w->at += (size_t)n;
}

static void put_row(writer *w, const char *kernel, int count, const unsigned char *types)
{
    static const char *const names[] = {
        [0] = "-", [F32] = "f32", [F64] = "f64", [F32 | F64] = "f32 f64", [ANY] = "any"
    };
    put(w, "%s", kernel);
    for (int s = 0; s < count; s++) put(w, "\t%s", names[types[s]]);
    put(w, "\n");
}

/* Types that an operand may have besides the kernel's own, as words. */
static void put_types(writer *w, uint32_t types)
{
    static const kr_dtype all[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };
    const char *between = "\t";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!(types & KR_DTYPE_BIT(all[i]))) continue;
        put(w, "%s%s", between, kr_dtype_name(all[i]));
        between = " ";
    }
    if (!types) put(w, "\t-");
}

/* A line for each operand of accepts.def: of the first `count` sets, and of CUDA. */
static void put_operands(writer *w, int count)
{
#define KR_ACCEPTS(kernel, operand, cpu, cuda)                                                                         \
    put(w, #kernel "." #operand);                                                                                      \
    for (int s = 0; s < count; s++) put_types(w, kr_kernels_nth(s)->accepts.kernel##_##operand);                       \
    put_types(w, (cuda));                                                                                              \
    put(w, "\n");
#include "kernels/accepts.def"
#undef KR_ACCEPTS
}

size_t kr_kernels_write(char *text, size_t bytes)
{
    enum { MOST_SETS = 8 };
    kernel_types sets[MOST_SETS];
    writer w = { text, text ? bytes : 0, 0 };
    int count = 0;
    put(&w, "kernel");
    for (; count < MOST_SETS - 1 && kr_kernels_nth(count); count++) {
        types_of(kr_kernels_nth(count), &sets[count]);
        put(&w, "\t%s", kr_kernels_nth(count)->name);
    }
    sets[count++] = cuda_types;
    put(&w, "\tcuda\n");
    unsigned char row[MOST_SETS];
#define KR_KERNEL(kernel, args)                                                                                        \
    for (int s = 0; s < count; s++) row[s] = sets[s].kernel;                                                           \
    put_row(&w, #kernel, count, row);
#define KR_KERNEL_ANY KR_KERNEL
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
    put_operands(&w, count - 1);
    return w.at;
}
