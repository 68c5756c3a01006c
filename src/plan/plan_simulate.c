/* plan_simulate.c - the schedule of a step, rank by rank, on a modelled network.
 *
 * Every rank has two clocks: of its computation, and of its communication thread. A collective call begins on a rank when
 * the thread is free and the call is posted; in each phase ranks wait for those from which they receive. Calls are in one
 * order on all ranks, so times follow from one another without a queue of events.
 *
 *   direct, rings   all ranks end together, a time after the last one has begun
 *   inside a host   each rank sends G - 1 slices; the phase ends for all ranks of the host together
 *   between hosts   ranks with the same number in their host exchange their slice, b / G bytes, in ceil(log2 H) rounds that
 *                   send half of what is left: (H-1)/H of it in all. The G flows of a host share its NICs equally.
 */
#include "plan/train_plan_impl.h"

#include "base/normal.h"

#include <math.h>

#define OP "plan.simulate"

enum { MOST_RANKS = 1 << 16 };

typedef struct ranks {
    const kr_plan_job *job;
    double *compute, *thread; /* [ranks]: the clocks */
    double *factor;           /* [ranks]: of the compute time of this step */
    double *at, *before;      /* [ranks]: of a call: where each rank is in it, and before this round */
    double *spent;            /* [ranks]: compute seconds of all steps */
    double busy, wait;        /* of all ranks together */
} ranks;

/* ---- the network ---- */

static void exchange_inside(ranks *r, double bytes)
{
    const kr_plan_network *n = &r->job->network;
    for (int64_t host = 0; host < n->hosts; host++) {
        double *at = r->at + host * n->per_host, last = at[0];
        for (int64_t i = 1; i < n->per_host; i++) last = fmax(last, at[i]);
        for (int64_t i = 0; i < n->per_host; i++) at[i] = last + bytes * n->inside / r->job->options.link_bytes;
    }
}

/* One round: rank i sends `seconds` of data to the host `stride` after its own, and receives as much from the one before. */
static void exchange_round(ranks *r, int64_t stride, double seconds)
{
    const kr_plan_network *n = &r->job->network;
    for (int64_t i = 0; i < n->ranks; i++) r->before[i] = r->at[i];
    for (int64_t i = 0; i < n->ranks; i++) {
        const int64_t source = (i + (n->hosts - stride) * n->per_host) % n->ranks;
        r->at[i] = fmax(r->before[i], r->before[source]) + seconds;
    }
}

static void exchange_between(ranks *r, double bytes)
{
    const kr_plan_network *n = &r->job->network;
    const kr_plan_options *o = &r->job->options;
    const double latency = kr_plan_pieces(o, bytes) * o->latency;
    for (int64_t left = n->hosts; left > 1;) {
        const int64_t stride = (left + 1) / 2, sent = left - stride; /* blocks of 1 / H */
        exchange_round(r, stride % n->hosts, (double)sent / (double)n->hosts * bytes / o->nic_bytes + latency);
        left = stride;
    }
}

/* Every rank needs something of every other, so none ends before the last one has begun. */
static void exchange_at_once(ranks *r, double seconds)
{
    const int64_t count = r->job->network.ranks;
    double last = r->at[0];
    for (int64_t i = 1; i < count; i++) last = fmax(last, r->at[i]);
    for (int64_t i = 0; i < count; i++) r->at[i] = last + seconds;
}

static void scatter(ranks *r, double bytes)
{
    if (r->job->network.exchange != KR_PLAN_EXCHANGE_HOSTS) {
        exchange_at_once(r, kr_plan_exchange_seconds(r->job, bytes));
        return;
    }
    exchange_inside(r, bytes);
    exchange_between(r, bytes);
}

static void gather(ranks *r, double bytes)
{
    if (r->job->network.exchange != KR_PLAN_EXCHANGE_HOSTS) {
        exchange_at_once(r, kr_plan_exchange_seconds(r->job, bytes));
        return;
    }
    exchange_between(r, bytes);
    exchange_inside(r, bytes);
}

/* A call, posted when each rank's computation is where it is now; it scatters and gathers so many bytes. */
static void call(ranks *r, double scattered, double gathered)
{
    const int64_t count = r->job->network.ranks;
    if (count == 1 || scattered + gathered <= 0) return;
    double begun = 0, ended = 0;
    for (int64_t i = 0; i < count; i++) {
        r->at[i] = fmax(r->thread[i], r->compute[i]);
        begun += r->at[i];
    }
    if (scattered > 0) scatter(r, scattered);
    if (gathered > 0) gather(r, gathered);
    for (int64_t i = 0; i < count; i++) {
        r->thread[i] = r->at[i];
        ended += r->at[i];
    }
    r->busy += ended - begun;
    r->wait +=
        ended - begun -
        (double)count * (kr_plan_exchange_seconds(r->job, scattered) + kr_plan_exchange_seconds(r->job, gathered));
}

/* ---- a step ---- */

static void compute(ranks *r, double seconds)
{
    for (int64_t i = 0; i < r->job->network.ranks; i++) {
        r->compute[i] += seconds * r->factor[i];
        r->spent[i] += seconds * r->factor[i];
    }
}

static void wait_for_thread(ranks *r)
{
    for (int64_t i = 0; i < r->job->network.ranks; i++) r->compute[i] = fmax(r->compute[i], r->thread[i]);
}

/* One bucket of new weights, as soon as the threads are free: they were posted when the optimizer was done. */
static void gather_bucket(ranks *r, double bytes)
{
    const int64_t count = r->job->network.ranks;
    double begun = 0, ended = 0;
    for (int64_t i = 0; i < count; i++) begun += r->at[i] = r->thread[i];
    gather(r, bytes);
    for (int64_t i = 0; i < count; i++) ended += r->thread[i] = r->at[i];
    r->busy += ended - begun;
    r->wait += ended - begun - (double)count * kr_plan_exchange_seconds(r->job, bytes);
}

/* The weights of buckets from *next down that the forward pass first uses in this stage, or in one before. */
static void gather_weights(ranks *r, int64_t stage, int64_t *next)
{
    const kr_plan_bucket *buckets = r->job->buckets;
    bool has_any = false;
    for (; *next >= 0 && buckets[*next].stage >= stage; (*next)--) {
        if (buckets[*next].weights <= 0) continue;
        gather_bucket(r, buckets[*next].weights);
        has_any = true;
    }
    if (has_any) wait_for_thread(r);
}

static void forward(ranks *r, bool gathers)
{
    const kr_plan_job *job = r->job;
    const int64_t layers = job->model.n_virtual;
    int64_t next = gathers && job->network.ranks > 1 ? job->n_buckets - 1 : -1;
    gather_weights(r, layers + 1, &next);
    compute(r, job->input);
    for (int64_t v = 0; v < layers; v++) {
        gather_weights(r, layers - v, &next);
        compute(r, job->layer);
    }
    gather_weights(r, 0, &next);
    compute(r, job->head);
}

static void post(ranks *r, int64_t stage, int64_t *next)
{
    const kr_plan_job *job = r->job;
    for (; *next < job->n_buckets && job->buckets[*next].stage <= stage; (*next)++)
        call(r, job->buckets[*next].scatter, job->buckets[*next].gather);
}

static void backward(ranks *r, bool posts)
{
    const kr_plan_job *job = r->job;
    const int64_t layers = job->model.n_virtual;
    int64_t next = posts ? 0 : job->n_buckets;
    post(r, 0, &next);
    for (int64_t stage = 1; stage <= layers; stage++) {
        compute(r, (layers - stage < job->options.recompute ? 3 : 2) * job->layer);
        post(r, stage, &next);
    }
    compute(r, 2 * job->input);
    post(r, layers + 1, &next);
}

/* Squares of the gradients' norm: messages without a size worth counting. */
static void agree_on_norm(ranks *r)
{
    const kr_plan_network *n = &r->job->network;
    for (int64_t i = 0; i < n->ranks; i++) r->at[i] = fmax(r->thread[i], r->compute[i]);
    if (n->ranks > 1) exchange_at_once(r, n->norm);
    for (int64_t i = 0; i < n->ranks; i++) r->thread[i] = r->at[i];
    wait_for_thread(r);
}

static void set_factors(ranks *r, int64_t step)
{
    const kr_plan_options *o = &r->job->options;
    for (int64_t i = 0; i < o->ranks; i++) {
        const kr_philox_block counter = { { (uint32_t)i, (uint32_t)step, 0, 0 } };
        double z[2];
        const kr_philox_block block = kr_philox(counter, (uint32_t)o->seed, (uint32_t)(o->seed >> 32));
        kr_normals_f64(&block, z);
        r->factor[i] = fmax(0, 1 + o->jitter * z[0]);
    }
    for (int64_t i = 0; i < o->n_slow; i++) r->factor[o->slow_ranks[i]] *= o->slow_factors[i];
}

static void run_step(ranks *r, int64_t step)
{
    const kr_plan_job *job = r->job;
    const bool is_sharded = job->options.shards != KR_PLAN_SHARDS_NONE;
    set_factors(r, step);
    for (int64_t k = 0; k < job->per_rank; k++) {
        forward(r, is_sharded && job->options.gather_ahead && step > 0 && k == 0);
        backward(r, k == job->per_rank - 1);
    }
    wait_for_thread(r);
    if (is_sharded) agree_on_norm(r);
    for (int64_t i = 0; i < job->network.ranks; i++) r->thread[i] = r->compute[i];
    int64_t next = is_sharded && !job->options.gather_ahead && job->network.ranks > 1 ? job->n_buckets - 1 : -1;
    gather_weights(r, 0, &next);
}

/* ---- the whole ---- */

static double latest(const ranks *r)
{
    double last = 0;
    for (int64_t i = 0; i < r->job->network.ranks; i++) last = fmax(last, r->compute[i]);
    return last;
}

static void summarise(const ranks *r, double begin, kr_plan_simulation *s)
{
    const kr_plan_job *job = r->job;
    const int64_t count = job->network.ranks, steps = job->options.steps;
    const double k = (double)job->per_rank, all = (double)count * (double)(steps - 1);
    const double useful = k * (job->micro - (double)job->options.recompute * job->layer);
    *s = (kr_plan_simulation){ .step = (latest(r) - begin) / (double)(steps - 1),
                               .communication = r->busy / all,
                               .wait = r->wait / all };
    for (int64_t i = 0; i < count; i++) {
        const double spent = r->spent[i] / (double)(steps - 1);
        s->compute += spent / (double)count;
        if (spent > s->slowest) s->slowest_rank = i;
        s->slowest = fmax(s->slowest, spent);
    }
    s->exposed = s->step - k * job->micro;
    s->efficiency = useful / s->step;
}

static bool simulate(const kr_plan_job *job, kr_plan_simulation *s)
{
    enum { ARRAYS = 6 };
    const int64_t count = job->network.ranks;
    kr_memory *memory = &job->ctx->memory;
    double *array = kr_memory_alloc_zeroed(memory, (size_t)count * ARRAYS * sizeof *array);
    if (!kr_require(job->ctx, array != NULL, KR_ERR_NOMEM, OP ": no memory for %lld ranks", (long long)count))
        return false;
    ranks r = { .job = job,
                .compute = array,
                .thread = array + count,
                .factor = array + 2 * count,
                .before = array + 3 * count,
                .at = array + 4 * count,
                .spent = array + 5 * count };
    double begin = 0;
    for (int64_t step = 0; step < job->options.steps; step++) {
        run_step(&r, step);
        if (step) continue;
        begin = latest(&r); /* the first step has no weights to wait for */
        r.busy = r.wait = 0;
        for (int64_t i = 0; i < count; i++) r.spent[i] = 0;
    }
    summarise(&r, begin, s);
    kr_memory_free(memory, array, (size_t)count * ARRAYS * sizeof *array);
    return true;
}

kr_status kr_plan_simulate(kr_ctx *ctx, const kr_model_config *config, const kr_plan_options *options,
                           kr_plan_simulation *simulation)
{
    kr_plan_job job;
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (!kr_require(ctx, simulation != NULL, KR_ERR_ARG, OP ": simulation is NULL")) return kr_ctx_status(ctx);
    *simulation = (kr_plan_simulation){ .step = 0 };
    if (kr_plan_begin(ctx, OP, config, options, &job) &&
        kr_require(ctx, job.options.ranks <= MOST_RANKS, KR_ERR_ARG,
                   OP ": ranks = %lld, but must be at most %d; a plan without a simulation takes more",
                   (long long)job.options.ranks, MOST_RANKS))
        simulate(&job, simulation);
    kr_plan_end(&job);
    return kr_ctx_status(ctx);
}
