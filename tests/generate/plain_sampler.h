/* plain_sampler.h - the sampler's rules written once more, for tests: everything sorted, e^x by the C library. */
#ifndef KR_TESTS_GENERATE_PLAIN_SAMPLER_H
#define KR_TESTS_GENERATE_PLAIN_SAMPLER_H

#include "base/philox.h"
#include "tests/harness.h"

/* What a row has had. */
typedef struct plain_row {
    int64_t number, vocab;
    uint64_t drawn;
    bool *in_prompt; /* [vocab] */
    int *generated;  /* [vocab] */
} plain_row;

static inline plain_row plain_row_new(int64_t number, int64_t vocab)
{
    return (plain_row){ number, vocab, 0, calloc((size_t)vocab, sizeof(bool)), calloc((size_t)vocab, sizeof(int)) };
}

static inline void plain_row_free(plain_row *row)
{
    free(row->in_prompt);
    free(row->generated);
}

typedef struct plain_token {
    double x, weight;
    int id;
} plain_token;

static inline int plain_compare(const void *a, const void *b)
{
    const plain_token *p = a, *q = b;
    if (p->x != q->x) return p->x < q->x ? 1 : -1;
    return p->id - q->id;
}

static inline int plain_compare_ids(const void *a, const void *b)
{
    return ((const plain_token *)a)->id - ((const plain_token *)b)->id;
}

static inline double plain_uniform(uint64_t seed, int64_t row, uint64_t draw)
{
    const kr_philox_block block = kr_philox_at(seed, (uint64_t)row, draw);
    const uint64_t bits = ((uint64_t)block.word[1] << 32) + block.word[0];
    return ldexp((double)(bits / 2048), -53);
}

/* One token out of `width` logits, and its logprob. */
static inline kr_sample plain_next(plain_row *row, const kr_sampler_options *o, const double *logits, int64_t width)
{
    const int64_t n = row->vocab;
    plain_token *tokens = malloc((size_t)n * sizeof *tokens);
    for (int i = 0; i < n; i++) {
        double x = logits[i];
        for (int b = 0; b < o->n_biases; b++)
            if (o->biases[b].id == i) x += o->biases[b].bias;
        if (row->in_prompt[i] || row->generated[i]) x *= x > 0 ? 1 / o->repetition_penalty : o->repetition_penalty;
        if (row->generated[i]) x -= o->presence_penalty + row->generated[i] * o->frequency_penalty;
        tokens[i] = (plain_token){ x, 0, i };
    }
    qsort(tokens, (size_t)n, sizeof *tokens, plain_compare);
    int64_t left = o->temperature == 0 ? 1 : o->top_k && o->top_k < n ? o->top_k : n;
    double sum = 0, before = 0;
    for (int64_t i = 0; i < left; i++)
        sum += tokens[i].weight = i == 0 ? 1 : exp((tokens[i].x - tokens[0].x) / o->temperature);
    for (int64_t i = 0; i < left && o->top_p < 1; i++)
        if ((before += tokens[i].weight) >= o->top_p * sum) left = i + 1;
    for (int64_t i = 0; i < left; i++)
        if (tokens[i].weight < o->min_p) left = i;
    qsort(tokens, (size_t)left, sizeof *tokens, plain_compare_ids);
    sum = 0;
    for (int64_t i = 0; i < left; i++) sum += tokens[i].weight;
    const double at = plain_uniform(o->seed, row->number, row->drawn) * sum;
    int64_t chosen = 0;
    for (double up_to = tokens[0].weight; up_to <= at && chosen + 1 < left;) up_to += tokens[++chosen].weight;

    const int id = tokens[chosen].id;
    free(tokens);
    double max = -INFINITY, all = 0;
    for (int64_t i = 0; i < width; i++) max = fmax(max, logits[i]);
    for (int64_t i = 0; i < width; i++) all += exp(logits[i] - max);
    row->drawn++;
    row->generated[id]++;
    return (kr_sample){ id, logits[id] - max - log(all) };
}

#endif
