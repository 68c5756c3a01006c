/* sampler_choose.c - one token of a row of logits x: penalties, filters, sampling.
 *
 *   x += bias;   x = x > 0 ? x / repetition : x repetition, of tokens that occurred;
 *   x -= presence + frequency count, of tokens that were generated
 *   temperature 0: the first of the largest. Else weights e^((x - max) / temperature) of
 *   top-k: the k largest;   top-p: the fewest largest that add up to p of the sum;   min-p: those of min_p at least
 *   and the token at u times the sum of the remaining weights in the order of ids; u from Philox (seed, row, n_sampled).
 *
 * Ties rank the smaller id first. A filter that keeps all tokens changes nothing.
 */
#include "base/philox.h"
#include "generate/sampler_impl.h"
#include "generate/softmax_f64.h"

#include <math.h>

/* ---- changing the logits ---- */

static void add_biases(kr_sampler *s)
{
    for (int i = 0; i < s->options.n_biases; i++) s->logits[s->options.biases[i].id] += s->options.biases[i].bias;
}

static void penalise(kr_sampler *s, int64_t row)
{
    const double repetition = s->options.repetition_penalty, presence = s->options.presence_penalty,
                 frequency = s->options.frequency_penalty;
    const kr_occurrence *occurred = kr_sampler_occurred(s, row);
    for (int64_t i = 0; i < s->vocab; i++) {
        if (!occurred[i]) continue;
        const uint32_t times = occurred[i] / KR_OCCURRENCE_ONCE;
        double x = s->logits[i];
        x = x > 0 ? x / repetition : x * repetition;
        if (times) x -= presence + frequency * (double)times;
        s->logits[i] = x;
    }
}

static bool change_logits(kr_sampler *s, int64_t row, double *max)
{
    const kr_sampler_options *o = &s->options;
    const bool penalises = o->repetition_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0;
    if (!penalises && o->n_biases == 0) return true;
    add_biases(s);
    if (penalises) penalise(s, row);
    *max = kr_max_of(s->logits, s->vocab);
    return kr_require(s->ctx, kr_are_logits(s->logits, s->vocab), KR_ERR_NUMERIC,
                      "biases and penalties are so large that they make a logit infinite") &&
           kr_require(s->ctx, *max > -(double)INFINITY, KR_ERR_NUMERIC,
                      "no token is left: biases exclude all of %lld that the logits do not", (long long)s->vocab);
}

/* ---- filters ---- */

/* A lower bound of the k-th largest value, close to it: the k-th largest of the maxima of spans. -infinity where that
 * is not profitable. */
static double bound_of_kth(kr_sampler *s, int64_t k)
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
static int64_t keep_top_k(kr_sampler *s)
{
    const int64_t k = s->options.top_k;
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
static int64_t keep_top_p(kr_sampler *s, int64_t count)
{
    const double p = s->options.top_p;
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
static int64_t keep_min_p(kr_sampler *s, int64_t count)
{
    const double least = s->options.min_p;
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
static double uniform(uint64_t seed, uint64_t row, uint64_t n_sampled)
{
    const kr_philox_block block = kr_philox_at(seed, row, n_sampled);
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

static int32_t first_of_largest(const kr_sampler *s, double max)
{
    int64_t i = 0;
    while (s->logits[i] < max) i++;
    return (int32_t)i;
}

int32_t kr_sampler_choose(kr_sampler *s, int64_t row, double max)
{
    const kr_sampler_options *o = &s->options;
    if (!change_logits(s, row, &max)) return -1;
    if (o->temperature <= 0) return first_of_largest(s, max);
    int64_t count = keep_top_k(s);
    kr_weights_of(s->ctx->pool, s->weights, s->logits, count, max, o->temperature);
    count = keep_min_p(s, keep_top_p(s, count));
    return s->ids[place_of(s->weights, count, uniform(o->seed, (uint64_t)row, s->n_sampled[row]))];
}
