/* packing.h - shared by the cases of kernels along sequences: lists of sequences, and kinds of decay. */
#ifndef KR_TESTS_KERNELS_PACKING_H
#define KR_TESTS_KERNELS_PACKING_H

#include "kernels/args/ssd_args.h"
#include "tests/kernels/conformance.h"

enum { MOST_SEQUENCES = 16 };

/* Whole rows; packed: two sequences in each row with an empty one and a token outside of both between them. Returns
 * their number. */
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

/* The number of sequences in the first row. */
static inline int64_t of_first_row(const kr_sequence *sequences, int64_t nq)
{
    int64_t n = 0;
    while (n < nq && sequences[n].row == 0) n++;
    return n;
}

/* Memory of an operand with `elements` for each token, contiguous or with `gap` between tokens, and its stride. */
static inline kr_extent lay_out_tokens(int64_t tokens, int64_t elements, int64_t gap, int64_t *stride)
{
    *stride = elements + gap;
    return (kr_extent){ tokens * elements > 0 ? (tokens - 1) * *stride + elements : 0, 0 };
}

enum { GENTLE, NONE, STEEP, CLIFFS, DECAYS }; /* kinds of decay */
static const char *const decay_names[DECAYS] = { "gentle", "none", "steep", "cliffs" };

/* Changes gentle log-decays, or rates, to another kind: `slope` times as steep, `cliff` at some tokens. */
static inline void change_decays(double *values, int64_t count, int kind, double slope, double cliff)
{
    for (int64_t i = 0; i < count; i++) {
        if (kind == NONE) values[i] = 0;
        if (kind == STEEP) values[i] = kr_to_float(slope * values[i]);
        if (kind == CLIFFS && kr_test_below(3) == 0) values[i] = cliff;
    }
}

/* Stride over combinations of optional operands: large shapes have fewer, and fewest in quick runs. */
static inline int combination_step(bool is_large, int small, int large)
{
    return !is_large ? small : kr_test_quick() ? 3 * large : large;
}

#endif
