/* loss_cases.h - what the tests of losses share: problems with labels, and their losses in plain double loops. */
#ifndef KR_TESTS_TRAIN_LOSS_CASES_H
#define KR_TESTS_TRAIN_LOSS_CASES_H

#include "tests/harness.h"

/* The instruction sets that this machine runs, "ref" first; returns how many. */
static inline int loss_isas(const char *names[8])
{
    static char text[128];
    kr_isa_choices(text, sizeof text);
    int count = 0;
    for (char *at = strtok(text, ", "); at && count < 8; at = strtok(NULL, ", ")) names[count++] = at;
    return count;
}

static inline double *doubles(int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof *x);
    if (!x) exit(2);
    return x;
}

/* n normal numbers times `size`, each one that float holds. */
static inline double *normals(int64_t n, double size)
{
    double *x = doubles(n);
    for (int64_t i = 0; i < n; i++) x[i] = (double)(float)(size * kr_test_normal());
    return x;
}

/* Rows of logits with labels, and how they are scored. */
typedef struct labelled {
    int64_t rows, nw;
    double *x; /* [rows nw] */
    int64_t *label;
    int32_t *mask;
    int64_t ignore, nclasses;
    double smoothing;
    bool excludes, sums, has_mask;
} labelled;

static inline labelled labelled_make(int64_t rows, int64_t nw, double spread)
{
    labelled p = { .rows = rows, .nw = nw, .ignore = -100, .nclasses = nw };
    p.x = normals(rows * nw, spread);
    p.label = calloc((size_t)rows + 1, sizeof *p.label);
    p.mask = calloc((size_t)rows + 1, sizeof *p.mask);
    if (!p.label || !p.mask) exit(2);
    for (int64_t r = 0; r < rows; r++) {
        p.label[r] = kr_test_below(nw);
        p.mask[r] = 1;
    }
    return p;
}

static inline void labelled_free(labelled *p)
{
    free(p->x);
    free(p->label);
    free(p->mask);
}

/* Some labels ignored, some masked (and those are no labels at all), some classes padding. */
static inline void labelled_thin_out(labelled *p, bool ignores, bool masks, int64_t padding)
{
    p->nclasses = p->nw - padding;
    p->has_mask = masks;
    for (int64_t r = 0; r < p->rows; r++) {
        p->label[r] %= p->nclasses;
        if (ignores && r % 3 == 1) p->label[r] = p->ignore;
        if (masks && r % 4 == 2) {
            p->mask[r] = 0;
            p->label[r] = -7;
        }
    }
}

static inline bool is_scored(const labelled *p, int64_t r)
{
    return p->label[r] != p->ignore && (!p->has_mask || p->mask[r]);
}

static inline int64_t scored_rows(const labelled *p)
{
    int64_t count = 0;
    for (int64_t r = 0; r < p->rows; r++) count += is_scored(p, r);
    return count;
}

/* The loss, in long double, by its definition; its gradient goes to g [rows nw] unless that is NULL. */
static inline double plain_cross_entropy(const labelled *p, double *g)
{
    const int64_t nv = p->excludes ? p->nclasses : p->nw, count = scored_rows(p);
    const long double alpha = p->sums ? 1 : count ? 1 / (long double)count : 0, q = p->smoothing;
    long double loss = 0;
    for (int64_t r = 0; r < p->rows; r++) {
        const double *x = p->x + r * p->nw;
        for (int64_t v = 0; g && v < p->nw; v++) g[r * p->nw + v] = 0;
        if (!is_scored(p, r)) continue;
        long double others = 0; /* relative to the label's own */
        for (int64_t v = 0; v < nv; v++)
            if (v != p->label[r]) others += expl((long double)x[v] - (long double)x[p->label[r]]);
        const long double log_sum = log1pl(others);
        for (int64_t v = 0; v < nv; v++) {
            const long double log_p = (long double)x[v] - (long double)x[p->label[r]] - log_sum;
            const long double t = (v == p->label[r] ? 1 - q : 0) + q / (long double)nv;
            loss -= alpha * t * log_p;
            if (!g) continue;
            /* p - t, where p is nearly 1, from the other terms */
            const long double apart = v == p->label[r] ? (1 - t) - others / (1 + others) : expl(log_p) - t;
            g[r * p->nw + v] = (double)(alpha * apart);
        }
    }
    return (double)loss;
}

static inline kr_cross_entropy_options options_of(const labelled *p, kr_tape *t)
{
    kr_cross_entropy_options o;
    kr_cross_entropy_options_init(&o);
    o.ignore_index = p->ignore;
    o.label_smoothing = p->smoothing;
    o.n_classes = p->nclasses;
    o.exclude_padding = p->excludes;
    o.reduction = p->sums ? KR_REDUCTION_SUM : KR_REDUCTION_MEAN;
    if (p->has_mask) o.mask = kr_from_data(t, KR_DTYPE_I32, KR_SHAPE(p->rows), p->mask);
    return o;
}

#endif
