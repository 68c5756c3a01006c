/* packing.h - what the cases of kernels that walk sequences share: lists of sequences, and kinds of decay. */
#ifndef KR_TESTS_KERNELS_PACKING_H
#define KR_TESTS_KERNELS_PACKING_H

#include "kernels/args/ssd_args.h"
#include "tests/kernels/conformance.h"

enum { MOST_SEQUENCES = 16 };

/* Whole rows; packed: two sequences in each row with an empty one and a token of none between them. Their number. */
static inline int64_t cut_rows(kr_sequence *sequences, int64_t nb, int64_t ns, bool packed)
{
    int64_t nq = 0, middle = ns / 3;
    for (int64_t b = 0; b < nb; b++) {
        if (!packed || ns < 3) {
            sequences[nq++] = (kr_sequence){ b, 0, ns };
            continue;
        }
        sequences[nq++] = (kr_sequence){ b, 0, middle };
        sequences[nq++] = (kr_sequence){ b, middle, middle };
        sequences[nq++] = (kr_sequence){ b, middle + 1, ns };
    }
    return nq;
}

/* How many sequences the first row has. */
static inline int64_t of_first_row(const kr_sequence *sequences, int64_t nq)
{
    int64_t n = 0;
    while (n < nq && sequences[n].row == 0) n++;
    return n;
}

/* Memory of an operand with `elements` for each token, one after another or `gap` apart, and its stride. */
static inline kr_extent lay_out_tokens(int64_t tokens, int64_t elements, int64_t gap, int64_t *stride)
{
    *stride = elements + gap;
    return (kr_extent){ tokens * elements > 0 ? (tokens - 1) * *stride + elements : 0, 0 };
}

enum { GENTLE, NONE, STEEP, CLIFFS, DECAYS }; /* kinds of decay */
static const char *const decay_names[DECAYS] = { "gentle", "none", "steep", "cliffs" };

/* Makes gentle log-decays, or rates, of another kind: `slope` times as steep, `cliff` here and there. */
static inline void change_decays(double *values, int64_t count, int kind, double slope, double cliff)
{
    for (int64_t i = 0; i < count; i++) {
        if (kind == NONE) values[i] = 0;
        if (kind == STEEP) values[i] = kr_to_float(slope * values[i]);
        if (kind == CLIFFS && kr_test_below(3) == 0) values[i] = cliff;
    }
}

/* From one combination of optional operands to the next: large shapes have fewer, and least in quick runs. */
static inline int combination_step(bool is_large, int small, int large)
{
    return !is_large ? small : kr_test_quick() ? 3 * large : large;
}

#endif
