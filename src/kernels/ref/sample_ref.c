/* sample_ref.c - samples a token from each row of logits: the reference of sampling on a device.
 *
 * Thresholds are found by bisection over keys, integers in the order of the logits; sums run in the order of ids.
 */
#include "base/philox.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/ref_operand.h"

#include <math.h>
#include <string.h>

/* State of a row. Candidates are the tokens with a key above `last`, or equal to `last` with an id up to last_id, and
 * with a weight of at least min_p. */
typedef struct row_job {
    const kr_sample_args *a;
    const kr_sample_rules *rules;
    int64_t row;
    const double *biases; /* [vocab]; this and the next two NULL where the row has none */
    uint32_t *counts;     /* [vocab] */
    const uint32_t *mask; /* [(vocab + 31) / 32] */
    double max;
    uint64_t last;
    int64_t last_id;
    double least;
} row_job;

static double penalised(const kr_sample_rules *rules, uint32_t count, double x)
{
    const uint32_t generated = count & KR_SAMPLE_COUNT_MOST;
    if (count) x = x > 0 ? x / rules->repetition : x * rules->repetition;
    return generated ? x - (rules->presence + rules->frequency * (double)generated) : x;
}

/* x of a token, and y. */
static double x_of(const row_job *j, int64_t i)
{
    return kr_ref_at(&j->a->x, j->row, i);
}

static double logit_of(const row_job *j, int64_t i)
{
    double x = x_of(j, i);
    if (j->biases) x += j->biases[i];
    if (j->counts) x = penalised(j->rules, j->counts[i], x);
    return j->mask && !(j->mask[i / 32] >> (i % 32) & 1) ? -(double)INFINITY : x;
}

/* An integer in the order of y; both zeros are equal. */
static uint64_t key_of(const row_job *j, int64_t i)
{
    const double value = logit_of(j, i) + 0.0;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

static double weight_of(const row_job *j, int64_t i)
{
    return exp((logit_of(j, i) - j->max) / j->rules->temperature);
}

static bool is_left(const row_job *j, int64_t i)
{
    const uint64_t key = key_of(j, i);
    return key > j->last || (key == j->last && i <= j->last_id);
}

/* The measure of the candidates with this key or above: their number, or the sum of their weights. */
static double measure(const row_job *j, uint64_t key, bool by_weight)
{
    double sum = 0;
    for (int64_t i = 0; i < j->a->vocab; i++)
        if (key_of(j, i) >= key && is_left(j, i)) sum += by_weight ? weight_of(j, i) : 1;
    return sum;
}

/* Reduces the candidates to the smallest set of largest ones whose measure is at least `target`. */
static void keep_first(row_job *j, double target, bool by_weight)
{
    uint64_t key = 0;
    for (int bit = 63; bit >= 0; bit--)
        if (measure(j, key | UINT64_C(1) << bit, by_weight) >= target) key |= UINT64_C(1) << bit;
    double sum = key == UINT64_MAX ? 0 : measure(j, key + 1, by_weight);
    int64_t last_id = -1;
    for (int64_t i = 0; i < j->a->vocab && sum < target; i++) {
        if (key_of(j, i) != key || !is_left(j, i)) continue;
        sum += by_weight ? weight_of(j, i) : 1;
        last_id = i;
    }
    j->last = key;
    j->last_id = last_id;
}

static int64_t pick(const row_job *j, double u)
{
    double sum = 0;
    int64_t chosen = -1;
    for (int64_t i = 0; i < j->a->vocab; i++) {
        const double weight = weight_of(j, i);
        if (is_left(j, i) && weight >= j->least) sum += weight;
    }
    double left = u * sum;
    for (int64_t i = 0; i < j->a->vocab; i++) {
        const double weight = weight_of(j, i);
        if (!is_left(j, i) || weight < j->least || weight <= 0) continue;
        chosen = i;
        if (left < weight) break;
        left -= weight;
    }
    return chosen;
}

static int64_t choose(row_job *j, int64_t largest, int64_t n_sampled)
{
    const kr_sample_rules *rules = j->rules;
    if (rules->temperature <= 0) return largest;
    if (rules->top_k > 0 && rules->top_k < j->a->vocab) keep_first(j, (double)rules->top_k, false);
    if (rules->top_p < 1) keep_first(j, rules->top_p * measure(j, 0, true), true);
    j->least = rules->min_p;
    const kr_philox_block block = kr_philox_at(rules->seed, rules->stream, (uint64_t)n_sampled);
    return pick(j, (double)((((uint64_t)block.word[1] << 32) | block.word[0]) >> 11) * 0x1p-53);
}

static void store_sample(const row_job *j, int64_t row, int64_t id, double logprob)
{
    const kr_sample_args *a = j->a;
    const int64_t slot = row + a->n_sampled[row] % 2 * a->n_sampled_stride;
    a->id[slot] = (int32_t)id;
    ((real *)a->logprob)[slot] = (real)logprob;
    a->next[row] = id < 0 ? 0 : (int32_t)id;
    a->n_sampled[row]++;
    if (id >= 0 && j->counts && (j->counts[id] & KR_SAMPLE_COUNT_MOST) < KR_SAMPLE_COUNT_MOST) j->counts[id]++;
}

static row_job row_of(const kr_sample_args *a, int64_t row)
{
    const kr_sample_rules *rules = &a->rules[row];
    return (row_job){ .a = a,
                      .rules = rules,
                      .row = row,
                      .biases = rules->flags & KR_SAMPLE_BIASES ? a->biases + row * a->vocab : NULL,
                      .counts = rules->flags & KR_SAMPLE_PENALTIES ? a->counts + row * a->vocab : NULL,
                      .mask = rules->flags & KR_SAMPLE_MASK ? a->mask + row * ((a->vocab + 31) / 32) : NULL,
                      .max = -INFINITY,
                      .last_id = INT64_MAX };
}

static void sample_task(void *arg, int64_t row, int worker)
{
    (void)worker;
    const kr_sample_args *a = *(const kr_sample_args **)arg;
    if (!(a->rules[row].flags & KR_SAMPLE_ON)) return;
    row_job j = row_of(a, row);
    double all = -INFINITY, sum = 0;
    int64_t largest = -1;
    bool is_good = true;
    for (int64_t i = 0; i < a->nw; i++) {
        const double x = x_of(&j, i), y = i < a->vocab ? logit_of(&j, i) : -(double)INFINITY;
        is_good = is_good && x < (double)INFINITY && y < (double)INFINITY;
        if (x > all) all = x;
        if (y > j.max) j.max = y, largest = i;
    }
    if (!is_good || largest < 0) {
        store_sample(&j, row, -1, 0);
        return;
    }
    for (int64_t i = 0; i < a->nw; i++) sum += exp(x_of(&j, i) - all);
    const int64_t id = choose(&j, largest, a->n_sampled[row]);
    store_sample(&j, row, id, x_of(&j, id) - (all + log(sum)));
}

void KR_REF(sample)(const kr_sample_args *a)
{
    kr_pool_run(a->exec.pool, a->nb, sample_task, &a);
}
