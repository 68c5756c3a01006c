/* both.h - runs a kernel with the f64 reference and with an f32 slot, of a device or of `judged`, each on separate memory;
 * and the latter with operands and results of bf16, and with rows that are apart.
 *
 *   buffer *x = drawn_bf16(no * ni, 1), *y = blank(no * ni);
 *   const link links[] = { IN_OPERAND(kr_gate_args, x, x, .may_halve = true), OUT_OPERAND(kr_gate_args, y, y) };
 *   RUN("gate", args, links);      // x->exact, x->single; the f32 slot's results are in y->single
 */
#ifndef KR_TESTS_KERNELS_BOTH_H
#define KR_TESTS_KERNELS_BOTH_H

#include "tests/kernels/packing.h"
#ifdef KR_HAVE_CUDA
#include "kernels/cuda/cuda.h"
#endif

enum { BUFFERS = 64, LINKS = 30 };

/* A tensor, for the reference and for the device. */
typedef struct buffer {
    int64_t count;
    double *exact;
    float *single;
} buffer;

static buffer buffers[BUFFERS];
static int nbuffers;

static inline void *must_have(void *p)
{
    if (!p) exit(2);
    return p;
}

static inline void free_buffers(void)
{
    while (nbuffers > 0) {
        free(buffers[--nbuffers].exact);
        free(buffers[nbuffers].single);
    }
}

/* Filled with NaN. */
static inline buffer *blank(int64_t count)
{
    if (nbuffers == BUFFERS) exit(2);
    buffer *b = &buffers[nbuffers++];
    *b = (buffer){ count, must_have(malloc(((size_t)count + 1) * sizeof(double))),
                   must_have(malloc(((size_t)count + 1) * sizeof(float))) };
    for (int64_t i = 0; i < count; i++) b->exact[i] = b->single[i] = (float)NAN;
    return b;
}

/* Rounded to bf16. */
static inline uint16_t half_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan((double)x)) return (uint16_t)(bits >> 16);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float float_of(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Uniform in [low, high), values of f32. */
static inline buffer *drawn(int64_t count, double low, double high)
{
    buffer *b = blank(count);
    for (int64_t i = 0; i < count; i++) b->exact[i] = b->single[i] = (float)kr_test_uniform(low, high);
    return b;
}

/* Normal, values of bf16. */
static inline buffer *drawn_bf16(int64_t count, double scale)
{
    buffer *b = blank(count);
    for (int64_t i = 0; i < count; i++)
        b->exact[i] = b->single[i] = float_of(half_of((float)(kr_test_normal() * scale)));
    return b;
}

/* ---- running ---- */

/* The operand at argument `field`, a kr_operand or kr_matrix with KR_IS_TYPED: that may be of bf16, and have rows that are
 * apart. Rows have `row` elements; 0: the arguments say so. */
typedef struct link {
    size_t field;
    buffer *to;
    bool is_output, may_halve, may_part;
    bool adds; /* an output that is added to: its contents are kept */
    int64_t row;
} link;

#define IN(args, name, ...)                                                                                            \
    {                                                                                                                  \
        .field = offsetof(args, name), .to = __VA_ARGS__                                                               \
    }
#define OUT(args, name, ...)                                                                                           \
    {                                                                                                                  \
        .field = offsetof(args, name), .is_output = true, .to = __VA_ARGS__                                            \
    }

#define IN_OPERAND(args, name, ...)                                                                                    \
    {                                                                                                                  \
        .field = offsetof(args, name.data) | KR_IS_TYPED, .to = __VA_ARGS__                                            \
    }
#define OUT_OPERAND(args, name, ...)                                                                                   \
    {                                                                                                                  \
        .field = offsetof(args, name.data) | KR_IS_TYPED, .is_output = true, .to = __VA_ARGS__                         \
    }

/* The emulated device limits: its own, or less. */
typedef enum limits { ITSELF, NO_WARPGROUPS, LITTLE_MEMORY, LIMITS } limits;
static const char *const limit_names[LIMITS] = { "", ", without products of warpgroups",
                                                 ", with 99 KiB of shared memory" };

static limits taken_for = ITSELF;

static inline bool device_is_cuda(void)
{
    return device_kernels() && strcmp(device_kernels()->name, "cuda") == 0;
}

/* After the last: other devices are not emulated. */
static inline limits last_limits(void)
{
    return device_is_cuda() ? LIMITS : NO_WARPGROUPS;
}

static kr_precision precision = KR_PRECISION_BF16;
static bool in_halves = false;
static int64_t row_padding = 0; /* elements between rows */

static inline void change_exec(kr_exec *exec)
{
    exec->precision = precision;
#ifdef KR_HAVE_CUDA
    static kr_cuda less;
    if (taken_for == ITSELF || !device_is_cuda()) return;
    less = *(const kr_cuda *)exec->own;
    less.arch = 80;
    if (taken_for == LITTLE_MEMORY) less.shared_bytes = 99 * 1024;
    exec->own = &less;
#else
    (void)taken_for;
#endif
}

static inline void point(char *args, const link *at, const void *to, kr_dtype dtype, int64_t row)
{
    const size_t field = at->field & ~(size_t)KR_IS_TYPED;
    memcpy(args + field, &to, sizeof to);
    if (!(at->field & KR_IS_TYPED)) return;
    memcpy(args + field + offsetof(kr_operand, dtype), &dtype, sizeof dtype);
    if (row) memcpy(args + field + offsetof(kr_operand, row), &row, sizeof row);
}

/* The set whose f32 slot is run; NULL: the device's. */
static const kr_kernels *judged;

static inline void run_exact(const kr_kernel *kernel, char *args, const link *links, int nlinks)
{
    const kr_kernels *ref = kr_runnable_set(0);
    for (int i = 0; i < nlinks; i++)
        point(args, &links[i], links[i].to ? links[i].to->exact : NULL, KR_DTYPE_F64, links[i].row);
    kr_exec *exec = (kr_exec *)(void *)args;
    *exec = (kr_exec){ 0 };
    void *scratch = must_have(malloc(kernel->scratch(ref, KR_REAL_F64, args) + 1));
    exec->scratch = scratch;
    kernel->run(ref, KR_REAL_F64, args);
    free(scratch);
}

static const float between_rows = 0x1.22p7f; /* exact in bf16 */

/* Between a buffer and strided memory, of floats or bf16. */
static inline void move_rows(buffer *b, char *memory, int64_t row, int64_t gap, bool halves, bool back)
{
    const size_t bytes = halves ? 2 : 4;
    for (int64_t i = 0; i < b->count; i++) {
        char *p = memory + (size_t)(i + i / row * gap) * bytes;
        const uint16_t half = half_of(b->single[i]);
        uint16_t got;
        if (!back) memcpy(p, halves ? (const void *)&half : (const void *)&b->single[i], bytes);
        else if (!halves) memcpy(&b->single[i], p, bytes);
        else memcpy(&got, p, sizeof got), b->single[i] = float_of(got);
    }
}

/* Copies the memory of a link to the device format, or back: then the elements between rows must be unchanged. */
static inline kr_span span_of(char *args, const link *l)
{
    const bool halves = in_halves && l->may_halve;
    const int64_t row = l->row ? l->row : l->to->count + 1, gap = l->may_part ? row_padding : 0;
    const int64_t count = l->to->count + (l->to->count + row - 1) / row * gap;
    kr_span span = { l->field & ~(size_t)KR_IS_TYPED, 0, NULL, (size_t)count * (halves ? 2 : 4), l->is_output };
    span.data = must_have(malloc(span.bytes + 1));
    for (int64_t i = 0; i < count; i++) {
        const uint16_t half = half_of(between_rows);
        memcpy((char *)span.data + (size_t)i * (halves ? 2 : 4),
               halves ? (const void *)&half : (const void *)&between_rows, halves ? 2 : 4);
    }
    move_rows(l->to, span.data, row, gap, halves, false);
    point(args, l, span.data, halves ? KR_DTYPE_BF16 : KR_DTYPE_F32, l->row ? row + gap : 0);
    return span;
}

static inline void copy_back(const link *l, const kr_span *span, const char *kernel)
{
    const bool halves = in_halves && l->may_halve;
    const int64_t row = l->row ? l->row : l->to->count + 1, gap = l->may_part ? row_padding : 0;
    int64_t wrong = 0;
    if (l->is_output) move_rows(l->to, span->data, row, gap, halves, true);
    for (int64_t i = 0; l->is_output && gap && i < (int64_t)(span->bytes / (halves ? 2 : 4)); i++) {
        if (i % (row + gap) < row) continue;
        uint16_t half;
        float whole;
        memcpy(&half, (char *)span->data + i * 2, sizeof half);
        if (!halves) memcpy(&whole, (char *)span->data + i * 4, sizeof whole);
        else whole = float_of(half);
        wrong += memcmp(&whole, &between_rows, sizeof whole) != 0;
    }
    CHECK(wrong == 0, "%s wrote %lld elements between rows", kernel, (long long)wrong);
    free(span->data);
}

/* args: of ARGS_BYTES. */
enum { ARGS_BYTES = 1024 };
static inline void run_judged(const kr_kernel *kernel, char *args, const link *links, int nlinks)
{
    kr_span spans[LINKS];
    int count = 0;
    for (int i = 0; i < nlinks; i++) {
        point(args, &links[i], NULL, KR_DTYPE_F32, links[i].row);
        if (!links[i].to) continue;
        for (int64_t k = 0; links[i].is_output && !links[i].adds && k < links[i].to->count; k++)
            links[i].to->single[k] = (float)NAN;
        spans[count++] = span_of(args, &links[i]);
    }
    device_change_exec(change_exec);
    if (judged && judged != device_kernels())
        kr_run_spans(kernel, judged, KR_REAL_F32, NULL, args, ARGS_BYTES, spans, count, "in bf16");
    else
        CHECK(device_run_count(kernel, KR_REAL_F32, args, spans, count, "in bf16"), "%s wrote past its scratch",
              kernel->name);
    device_change_exec(NULL);
    for (int i = 0, n = 0; i < nlinks; i++)
        if (links[i].to) copy_back(&links[i], &spans[n++], kernel->name);
}

/* The kernel with both, each on its operands. */
static inline void run_both(const char *name, const void *args, size_t bytes, const link *links, int nlinks)
{
    char copy[ARGS_BYTES];
    const kr_kernel *kernel = kr_kernel_named(name);
    if (!kernel || bytes > sizeof copy || nlinks > LINKS) exit(2);
    memcpy(copy, args, bytes);
    run_exact(kernel, copy, links, nlinks);
    memcpy(copy, args, bytes);
    run_judged(kernel, copy, links, nlinks);
}

#define RUN(name, args, links) run_both(name, &(args), sizeof(args), links, (int)(sizeof(links) / sizeof *(links)))

/* Number of elements of `got` that differ from `want`, or from `want` rounded. */
static inline int64_t count_different(const float *want, const buffer *got, bool rounded)
{
    int64_t count = 0;
    for (int64_t i = 0; i < got->count; i++) {
        const float number = rounded ? float_of(half_of(want[i])) : want[i];
        count += memcmp(&number, &got->single[i], sizeof number) != 0;
    }
    return count;
}

#endif
