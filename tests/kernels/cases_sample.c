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

/* Temperature, top-p, min-p, repetition, presence, frequency, top-k. Changes of equal logits that are not exact in a float
 * are divisions alone, so that no two different ones become equal in a float. */
static const kr_sample_rules all_rules[] = {
    { 0, 1, 0, 2, 0.5, 0.25, 0, 0, 0, 0 },       { 1, 1, 0, 1.25, 0, 0, 0, 0, 0, 0 },
    { 0.7, 1, 0, 1, 1, 0.125, 5, 0, 0, 0 },      { 1.3, 0.9, 0, 0.5, -1, 0, 0, 0, 0, 0 },
    { 0.5, 0.3, 0.01, 1, 0, 0.5, 40, 0, 0, 0 },  { 1, 1, 0.2, 1, -0.5, -0.25, 0, 0, 0, 0 },
    { 2, 0.97, 0.002, 4, 2, 1, 200, 0, 0, 0 },   { 1, 1e-9, 0, 1.5, 0, 0, 0, 0, 0, 0 },
    { 0.9, 0.6, 0, 1, 0.75, 0.0625, 1, 0, 0, 0 }
};
enum { NRULES = (int)(sizeof all_rules / sizeof *all_rules) };

/* What else rows have: the same rules in all of them and no tables; rules of their own; tables for some, rows that are left
 * out. */
typedef enum mixture { ALIKE, MIXED, CHANGED, NMIXTURES } mixture;

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

/* Row b has one of the rules, in turn from number `first` on; rules of equal rows differ by their streams. */
static bool fill_rules(kr_sample_rules *rules, int64_t nb, int first, mixture m)
{
    static const uint64_t flags[] = { KR_SAMPLE_BIASES,
                                      KR_SAMPLE_PENALTIES,
                                      KR_SAMPLE_MASK,
                                      KR_SAMPLE_CHANGES,
                                      0,
                                      KR_SAMPLE_PENALTIES | KR_SAMPLE_MASK,
                                      KR_SAMPLE_PENALTIES,
                                      KR_SAMPLE_BIASES | KR_SAMPLE_PENALTIES };
    bool is_greedy = true;
    const uint64_t seed = kr_test_next();
    for (int64_t b = 0; b < nb; b++) {
        rules[b] = all_rules[m == ALIKE ? first : (first + b) % NRULES];
        rules[b].seed = m == ALIKE ? seed : kr_test_next();
        rules[b].stream = (uint64_t)(3 * b);
        rules[b].flags = m == CHANGED && b % 5 == 3 ? 0 : KR_SAMPLE_ON;
        if (m == CHANGED) rules[b].flags |= flags[kr_test_below(8)];
        is_greedy = is_greedy && rules[b].temperature <= 0;
    }
    return is_greedy;
}

/* Biases are multiples of 1/4, so that a sum with a float is one in double; every 17th excludes its token. */
static void add_tables(kr_case *c, sample n)
{
    const int64_t words = (n.vocab + 31) / 32;
    double *biases = case_raw(c, FIELD(kr_sample_args, biases), KR_DTYPE_F64, n.nb * n.vocab, false);
    uint32_t *counts = case_raw(c, FIELD(kr_sample_args, counts), KR_DTYPE_I32, n.nb * n.vocab, false);
    c->operands[c->noperands - 1].is_output = true;
    uint32_t *mask = case_raw(c, FIELD(kr_sample_args, mask), KR_DTYPE_I32, n.nb * words, false);
    for (int64_t i = 0; i < n.nb * n.vocab; i++) {
        biases[i] = kr_test_below(17) ? (double)(kr_test_below(17) - 8) / 4 : -(double)INFINITY;
        counts[i] = (uint32_t)(kr_test_below(4) ? 0 : kr_test_below(6));
        if (kr_test_below(5) == 0) counts[i] |= KR_SAMPLE_IN_PROMPT;
    }
    for (int64_t b = 0; b < n.nb; b++) {
        if (b % 3 == 1) counts[b * n.vocab + kr_test_below(n.vocab)] |= KR_SAMPLE_COUNT_MOST;
        for (int64_t i = 0; i < n.vocab; i++)
            if (kr_test_below(b % 3 ? 2 : 12) == 0) mask[b * words + i / 32] |= UINT32_C(1) << (i % 32);
    }
}

static void sample_case(kr_sweep *sweep, sample n, int rules, int kind, mixture m)
{
    const int64_t width = n.vocab + n.padding;
    kr_sample_rules *each = malloc((size_t)n.nb * sizeof *each);
    if (!each) exit(2);
    kr_sample_args a = { .nb = n.nb,
                         .nw = width,
                         .vocab = n.vocab,
                         .x.row = width + 3,
                         .is_greedy = fill_rules(each, n.nb, rules, m),
                         .n_sampled_stride = n.nb + 2 };
    kr_case c;
    case_begin(&c, &a, sizeof a, "%lld of %lld + %lld, kind %d, rules %d, mixture %d", (long long)n.nb,
               (long long)n.vocab, (long long)n.padding, kind, rules, (int)m);
    fill(case_walk_input(&c, OPERAND(kr_sample_args, x), (kr_extent){ (n.nb - 1) * a.x.row + width, 0 }, -6, 6), n,
         a.x.row, kind);
    memcpy(case_raw(&c, FIELD(kr_sample_args, rules), KR_DTYPE_I64, n.nb * (int64_t)(sizeof *each / 8), false), each,
           (size_t)n.nb * sizeof *each);
    free(each);
    int64_t *n_sampled = case_raw(&c, FIELD(kr_sample_args, n_sampled), KR_DTYPE_I64, n.nb, false);
    c.operands[c.noperands - 1].is_output = true;
    for (int64_t b = 0; b < n.nb; b++) n_sampled[b] = kr_test_below(1000);
    if (m == CHANGED) add_tables(&c, n);
    case_raw(&c, FIELD(kr_sample_args, id), KR_DTYPE_I32, n.nb + a.n_sampled_stride,
             false); /* slots that are not selected stay unchanged */
    c.operands[c.noperands - 1].is_output = true;
    case_raw(&c, FIELD(kr_sample_args, next), KR_DTYPE_I32, n.nb, false); /* as do those of rows that are left out */
    c.operands[c.noperands - 1].is_output = true;
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
                for (int m = 0; m < NMIXTURES; m++)
                    if (shapes[i].vocab < 5000 || (!kr_test_quick() && kind == 0))
                        sample_case(sweep, shapes[i], r, kind, (mixture)m);
}
