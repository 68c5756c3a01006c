/* sampler_choose.c - one token of a row of logits x: penalties, filters, sampling.
 *
 *   x += bias;   x = x > 0 ? x / repetition : x repetition, of tokens that occurred;
 *   x -= presence + frequency count, of tokens that were generated
 *   temperature 0: the first of the largest. Else weights e^((x - max) / temperature) of
 *   top-k: the k largest;   top-p: the fewest largest that add up to p of the sum;   min-p: those of min_p at least
 *   and the token at u times the sum of the remaining weights in the order of ids; u from Philox (seed, stream, n_sampled).
 *
 * Ties rank the smaller id first. A filter that keeps all tokens changes nothing.
 */
#include "base/philox.h"
#include "generate/sampler_impl.h"
#include "generate/softmax_f64.h"

#include <math.h>

/* ---- changing the logits ---- */

static void add_biases(kr_sampler_work *s, const kr_sampler_options *o)
{
    for (int i = 0; i < o->n_biases; i++) s->logits[o->biases[i].id] += o->biases[i].bias;
}

static void penalise(kr_sampler_work *s, const kr_row_sampler *row)
{
    const double repetition = row->options->repetition_penalty, presence = row->options->presence_penalty,
                 frequency = row->options->frequency_penalty;
    int64_t at = 0;
    for (const kr_token_count *count; (count = kr_token_counts_next(&row->counts, &at));) {
        double x = s->logits[count->id];
        x = x > 0 ? x / repetition : x * repetition;
        if (count->generated) x -= presence + frequency * (double)count->generated;
        s->logits[count->id] = x;
    }
}

static bool change_logits(kr_sampler_work *s, const kr_row_sampler *row, double *max)
{
    const kr_sampler_options *o = row->options;
    const bool penalises = kr_sampler_penalises(o);
    if (!penalises && o->n_biases == 0 && !row->change) return true;
    add_biases(s, o);
    if (penalises) penalise(s, row);
    if (row->change && !row->change(row->user, s->ctx, s->logits, s->vocab)) return false;
    *max = kr_max_of(s->logits, s->vocab);
    return kr_require(s->ctx, kr_are_logits(s->logits, s->vocab), KR_ERR_NUMERIC,
                      row->change ? "biases, penalties or the logits processor make a logit NaN or infinite"
                                  : "biases and penalties are so large that they make a logit infinite") &&
           kr_require(s->ctx, *max > -(double)INFINITY, KR_ERR_NUMERIC,
                      "no token is left: %s all of %lld that the logits do not",
                      row->change ? "biases, the logits processor and the constraint exclude" : "biases exclude",
                      (long long)s->vocab);
}

/* ---- filters ---- */

/* A lower bound of the k-th largest value, close to it: the k-th largest of the maxima of spans. -infinity where that
 * is not profitable. */
static double bound_of_kth(kr_sampler_work *s, int64_t k)
{
    int64_t span = s->vocab / (8 * k);
    if (span < 4) return -(double)INFINITY;
    if (span > 256) span = 256;
    int64_t n = 0;
    for (int64_t from = 0; from + span <= s->vocab; from += span)
        s->ranked[n++] = (kr_ranked){ kr_max_of(s->logits + from, span), (int32_t)from };
    return kr_rank_first(s->ranked, n, (double)k, false).value;
}

/* Fills s->ids with the remaining tokens, and moves their logits to the front; returns their number. */
static int64_t keep_top_k(kr_sampler_work *s, int64_t k)
{
    int64_t n = 0;
    if (k == 0 || k >= s->vocab) {
        for (; n < s->vocab; n++) s->ids[n] = (int32_t)n;
        return n;
    }
    const double bound = bound_of_kth(s, k);
    for (int64_t i = 0; i < s->vocab; i++) {
        s->ranked[n] = (kr_ranked){ s->logits[i], (int32_t)i };
        n += s->logits[i] >= bound;
    }
    const kr_ranked last = kr_rank_first(s->ranked, n, (double)k, false);
    n = 0;
    for (int64_t i = 0; i < s->vocab; i++) {
        const kr_ranked token = { s->logits[i], (int32_t)i };
        s->logits[n] = token.value;
        s->ids[n] = token.id;
        n += !kr_ranks_before(last, token);
    }
    return n;
}

/* Tokens of so little weight that their sum is below 1 - p are dropped first; only the rest is ranked. */
static int64_t keep_top_p(kr_sampler_work *s, int64_t count, double p)
{
    if (p >= 1) return count;
    const double sum = kr_sum_of(s->weights, count), bound = 0.999 * (1 - p) * sum / (double)count;
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        s->ranked[n] = (kr_ranked){ s->weights[i], s->ids[i] };
        n += s->weights[i] >= bound;
    }
    const kr_ranked last = kr_rank_first(s->ranked, n, p * sum, true);
    n = 0;
    for (int64_t i = 0; i < count; i++) {
        const kr_ranked token = { s->weights[i], s->ids[i] };
        s->weights[n] = token.value;
        s->ids[n] = token.id;
        n += !kr_ranks_before(last, token);
    }
    return n;
}

/* The largest weight is 1. */
static int64_t keep_min_p(kr_sampler_work *s, int64_t count, double least)
{
    if (least <= 0) return count;
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        const double weight = s->weights[i];
        s->weights[n] = weight;
        s->ids[n] = s->ids[i];
        n += weight >= least;
    }
    return n;
}

/* ---- sampling ---- */

/* In [0, 1), 53 bits. */
static double uniform(uint64_t seed, uint64_t stream, uint64_t n_sampled)
{
    const kr_philox_block block = kr_philox_at(seed, stream, n_sampled);
    return (double)((((uint64_t)block.word[1] << 32) | block.word[0]) >> 11) * 0x1p-53;
}

/* The first token at which the cumulative weight exceeds u times the sum; searched by spans, then by tokens. */
static int64_t place_of(const double *weights, int64_t count, double u)
{
    enum { SPAN = 1024 };
    double sum = 0;
    for (int64_t from = 0; from < count; from += SPAN)
        sum += kr_sum_of(weights + from, count - from < SPAN ? count - from : SPAN);
    double left = u * sum;
    for (int64_t from = 0; from < count; from += SPAN) {
        const int64_t n = count - from < SPAN ? count - from : SPAN;
        const double span = kr_sum_of(weights + from, n);
        if (left >= span) {
            left -= span;
            continue;
        }
        for (int64_t i = from; i < from + n; i++) {
            if (left < weights[i]) return i;
            left -= weights[i];
        }
    }
    int64_t last = count - 1; /* by rounding, the cumulative weight stayed below the target */
    while (weights[last] <= 0) last--;
    return last;
}

static int32_t first_of_largest(const kr_sampler_work *s, double max)
{
    int64_t i = 0;
    while (s->logits[i] < max) i++;
    return (int32_t)i;
}

int32_t kr_sampler_choose(kr_sampler_work *s, const kr_row_sampler *row, double max)
{
    const kr_sampler_options *o = row->options;
    if (!change_logits(s, row, &max)) return -1;
    if (o->temperature <= 0) return first_of_largest(s, max);
    int64_t count = keep_top_k(s, o->top_k);
    kr_weights_of(s->ctx->pool, s->weights, s->logits, count, max, o->temperature);
    count = keep_min_p(s, keep_top_p(s, count, o->top_p), o->min_p);
    return s->ids[place_of(s->weights, count, uniform(o->seed, row->stream, row->n_sampled))];
}
