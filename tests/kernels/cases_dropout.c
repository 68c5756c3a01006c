/* cases_dropout.c - cases of dropout: groups of 64 words, whole and in part, on both sides of a tensor; words beyond 2^32. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_dropout;

typedef struct shape {
    int64_t n;
    uint64_t first;
    uint32_t threshold;
} shape;

static const shape shapes[] = {
    { 0, 0, 1u << 31 },
    { 1, 0, 1u << 31 },
    { 7, 3, 1u << 31 },
    { 16, 0, 1u << 30 },
    { 63, 0, 1u << 31 },
    { 64, 0, 3000000000u },
    { 65, 0, 1u << 31 },
    { 64, 5, 1u << 31 },
    { 3, 63, 1u << 31 },
    { 127, 1, UINT32_MAX },
    { 128, 64, 0 },
    { 200, UINT64_C(1) << 37, 1u << 31 },
    { 300, (UINT64_C(1) << 34) - 150, 1u << 31 }, /* across block number 2^32 */
    { 100000, 17, 429496729u },
};

static void first_element(void *args)
{
    kr_dropout_args *a = args;
    if (a->n > 0) a->n = 1;
}

void kr_cases_dropout(kr_sweep *sweep)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape s = shapes[i];
        const double p = (double)s.threshold * 0x1p-32;
        kr_dropout_args a = { .n = s.n,
                              .seed = UINT64_C(0x123456789abcdef0) + i,
                              .stream = i % 2 ? UINT64_C(0xfedcba9876543210) : 3,
                              .first = s.first,
                              .threshold = s.threshold,
                              .scale = (double)(float)(1 / (1 - p)) };
        kr_case c;
        case_begin(&c, &a, sizeof a, "[%lld] from %llu, threshold %u", (long long)s.n, (unsigned long long)s.first,
                   (unsigned)s.threshold);
        case_input(&c, FIELD(kr_dropout_args, x), KR_SHAPE(s.n), -2, 2);
        case_output(&c, FIELD(kr_dropout_args, y), KR_SHAPE(s.n));
        c.many_tasks = s.n > 50000;
        c.first_row = first_element;
        case_done(sweep, &c);
    }
}
