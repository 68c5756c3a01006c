/* cases_sample.c - cases of sampling: every rule alone and together, ties, padding, rows that cannot be sampled.
 *
 * A kernel set that rounds weights may select another token only if a sample falls between two tokens, or a threshold
 * on one, within that rounding: with the fixed seeds here none does. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_sample;

typedef struct sample {
    int64_t nb, vocab, padding;
    bool many_tasks;
} sample;

static const sample shapes[] = { { 1, 1, 0, false },    { 3, 2, 1, false },   { 2, 31, 0, false },
                                 { 4, 33, 7, false },   { 2, 257, 3, false }, { 5, 1000, 24, false },
                                 { 1, 5003, 0, false }, { 40, 300, 4, true }, { 2, 20011, 5, false },
                                 { 1100, 7, 2, true } };
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes) };

typedef struct rules {
    double temperature, top_p, min_p;
    int64_t top_k;
} rules;

static const rules all_rules[] = { { 0, 1, 0, 0 },          { 1, 1, 0, 0 },         { 0.7, 1, 0, 5 },
                                   { 1.3, 0.9, 0, 0 },      { 0.5, 0.3, 0.01, 40 }, { 1, 1, 0.2, 0 },
                                   { 2, 0.97, 0.002, 200 }, { 1, 1e-9, 0, 0 },      { 0.9, 0.6, 0, 1 } };
enum { NRULES = (int)(sizeof all_rules / sizeof *all_rules) };

static void first_row(void *args)
{
    ((kr_sample_args *)args)->nb = 1;
}

/* kind 0: noise; 1: many equal ones; 2: rows without candidates, with a NaN, an infinity, all but one excluded. */
static void fill(double *x, sample n, int64_t stride, int kind)
{
    for (int64_t b = 0; b < n.nb; b++) {
        double *row = x + b * stride;
        for (int64_t i = 0; kind == 1 && i < n.vocab + n.padding; i++) row[i] = rint(row[i]);
        if (kind != 2) continue;
        for (int64_t i = 0; i < n.vocab && b % 4 != 1; i++) row[i] = -INFINITY;
        if (b % 4 == 1) row[kr_test_below(n.vocab)] = NAN;
        if (b % 4 == 2) row[kr_test_below(n.vocab)] = INFINITY;
        if (b % 4 == 3) row[kr_test_below(n.vocab)] = 1;
    }
}

static void sample_case(kr_sweep *sweep, sample n, rules r, int kind)
{
    const int64_t width = n.vocab + n.padding;
    kr_sample_args a = { .nb = n.nb,
                         .nw = width,
                         .vocab = n.vocab,
                         .stride = width + 3,
                         .top_k = r.top_k,
                         .temperature = r.temperature,
                         .top_p = r.top_p,
                         .min_p = r.min_p,
                         .seed = kr_test_next(),
                         .n_sampled_stride = n.nb + 2 };
    kr_case c;
    case_begin(&c, &a, sizeof a, "%lld of %lld + %lld, kind %d, T %g k %lld p %g m %g", (long long)n.nb,
               (long long)n.vocab, (long long)n.padding, kind, r.temperature, (long long)r.top_k, r.top_p, r.min_p);
    fill(case_walk_input(&c, FIELD(kr_sample_args, x), (kr_extent){ (n.nb - 1) * a.stride + width, 0 }, -6, 6), n,
         a.stride, kind);
    int64_t *row = case_raw(&c, FIELD(kr_sample_args, row), KR_DTYPE_I64, n.nb, false);
    int64_t *n_sampled = case_raw(&c, FIELD(kr_sample_args, n_sampled), KR_DTYPE_I64, n.nb, false);
    c.operands[c.noperands - 1].is_output = true;
    for (int64_t b = 0; b < n.nb; b++) row[b] = 3 * b, n_sampled[b] = kr_test_below(1000);
    case_raw(&c, FIELD(kr_sample_args, id), KR_DTYPE_I32, n.nb + a.n_sampled_stride,
             false); /* slots that are not selected stay unchanged */
    c.operands[c.noperands - 1].is_output = true;
    case_raw(&c, FIELD(kr_sample_args, next), KR_DTYPE_I32, n.nb, true);
    case_in_out(&c, FIELD(kr_sample_args, logprob), KR_SHAPE(n.nb + a.n_sampled_stride), 1, 2);
    double *scale = case_scale(&c);
    for (int64_t b = 0; b < n.nb + a.n_sampled_stride; b++)
        scale[b] = 24; /* logits of up to 6, a logarithm of up to 10 */
    c.terms = width;
    c.many_tasks = n.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

void kr_cases_sample(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int r = 0; r < NRULES; r++)
            for (int kind = 0; kind < 3; kind++)
                if (shapes[i].vocab < 5000 || (!kr_test_quick() && kind == 0))
                    sample_case(sweep, shapes[i], all_rules[r], kind);
}
