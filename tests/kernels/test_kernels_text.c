/* test_kernels_text.c - kr_kernels_text agrees with the tables, kernel by kernel. */
#include "tests/harness.h"

#include "kernels/select.h"
#if defined(KR_HAVE_CUDA)
#include "kernels/cuda/cuda.h"
#endif

/* The text for a kernel's slots in one set. */
static const char *word_of(bool f32, bool f64)
{
    return f32 && f64 ? "f32 f64" : f32 ? "f32" : f64 ? "f64" : "-";
}

static const char *types_of(const kr_kernels *set, const char *kernel)
{
#define KR_KERNEL(name, args)                                                                                          \
    if (strcmp(kernel, #name) == 0) return word_of(set->name[KR_REAL_F32].run, set->name[KR_REAL_F64].run);
#define KR_KERNEL_ANY(name, args)                                                                                      \
    if (strcmp(kernel, #name) == 0) return set->name.run ? "any" : "-";
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
    return NULL;
}

static const kr_kernels *set_named(const char *name)
{
#if defined(KR_HAVE_CUDA)
    if (strcmp(name, "cuda") == 0) return &kr_cuda_kernels;
#endif
    return kr_kernels_named(name);
}

/* The next field of a text of tab-separated lines, without its end; *text moves past it. */
static const char *field(char **text, char *end)
{
    char *begin = *text;
    *text += strcspn(*text, "\t\n");
    *end = **text;
    *(*text)++ = '\0';
    return begin;
}

/* Has a set the types of an operand, "matmul.b", that the text says? */
static bool is_right(const kr_kernels *set, const char *name, const char *got)
{
    static const kr_dtype all[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };
    uint32_t accepts = 0;
    bool is_known = false;
#define KR_ACCEPTS(kernel, operand, cpu, cuda)                                                                         \
    if (strcmp(name, #kernel "." #operand) == 0) accepts = set->accepts.kernel##_##operand, is_known = true;
#include "kernels/accepts.def"
#undef KR_ACCEPTS
    for (int i = 0; is_known && i < 4; i++) /* no name is a part of another but f16, which comes after bf16 */
        is_known = (strstr(got, kr_dtype_name(all[i])) != NULL) == ((accepts & KR_DTYPE_BIT(all[i])) != 0) ||
                   (all[i] == KR_DTYPE_F16 && accepts & KR_DTYPE_BIT(KR_DTYPE_BF16));
    return is_known && (accepts != 0 || strcmp(got, "-") == 0);
}

TEST(kernels_text_has_every_slot)
{
    enum { MOST = 8 };
    const size_t bytes = kr_kernels_text(NULL, 0) + 1;
    char *whole = malloc(bytes), *at = whole, end = 0;
    const char *sets[MOST];
    CHECK(kr_kernels_text(whole, bytes) == bytes - 1 && strlen(whole) == bytes - 1, "a text of %zu bytes", bytes);
    int nsets = 0, nrows = 0;
    CHECK(strcmp(field(&at, &end), "kernel") == 0, "no heading");
    while (end == '\t' && nsets < MOST) sets[nsets++] = field(&at, &end);
    CHECK(nsets >= 2 && !strcmp(sets[0], "ref") && !strcmp(sets[nsets - 1], "cuda"), "%d sets", nsets);
    for (; *at; nrows++) {
        const char *kernel = field(&at, &end);
        for (int s = 0; s < nsets; s++) {
            const char *got = field(&at, &end), *want = set_named(sets[s]) ? types_of(set_named(sets[s]), kernel) : got;
            if (strchr(kernel, '.')) {
                CHECK(!set_named(sets[s]) || is_right(set_named(sets[s]), kernel, got), "%s, %s: %s", kernel, sets[s],
                      got);
                continue;
            }
            CHECK(want && strcmp(got, want) == 0, "%s, %s: %s, but the table has %s", kernel, sets[s], got,
                  want ? want : "none");
        }
        CHECK(end == '\n', "the line of %s has further text", kernel);
    }
#define KR_KERNEL(name, args) nrows--;
#define KR_KERNEL_ANY KR_KERNEL
#include "kernels/kernels.def"
#undef KR_KERNEL
#undef KR_KERNEL_ANY
#define KR_ACCEPTS(kernel, operand, cpu, cuda) nrows--;
#include "kernels/accepts.def"
#undef KR_ACCEPTS
    CHECK(nrows == 0, "%d lines too many", nrows);
    free(whole);
}

TEST(kernels_text_is_cut_to_its_buffer)
{
    char text[16];
    memset(text, '#', sizeof text);
    CHECK(kr_kernels_text(text, 10) > 1000, "the whole length is returned");
    CHECK(strcmp(text, "kernel\tre") == 0 && text[10] == '#', "got '%s'", text);
}
