/* train_plan.c - a plan by formulas. With G ranks a host, H hosts, k micro-batches a rank:
 *
 *   exchange   half a sum of b bytes:
 *     direct     the larger of (G-1)/R b / link and G (H-1)/H b / nic, + latency + (R-1) overhead for each piece and call
 *     hosts      (G-1)/G b / link + (H-1)/H b / nic + rounds latency for each piece;   rounds = log2 H
 *     rings      the larger of the first two + the third
 *   exposed    max(last, sums - window): sums run one after another while the layers go backward, window; `last`, of the
 *              bucket with the embedding, cannot begin before that ends
 *   sharded    scatter as above, then the gather of the weights, which gather_ahead hides behind the next forward pass
 */
#include "plan/train_plan_impl.h"

#include <math.h>

enum { LOGITS_BYTES = 1 << 30 }; /* of the head's chunk on a GPU (ops/fused_head_loss.c) */

KR_DEFAULTS(kr_plan_options) = { .size = sizeof(kr_plan_options),
                                 .ranks = 8,
                                 .ranks_per_host = 8,
                                 .flops = 296e12,
                                 .link_bytes = 370e9,
                                 .nic_bytes = 45e9,
                                 .latency = 15e-6,
                                 .overhead = 1e-6,
                                 .tokens = 16384,
                                 .length = 2048,
                                 .bucket_bytes = 25 << 20,
                                 .reduce_dtype = KR_DTYPE_F32,
                                 .activation_scale = 1,
                                 .steps = 4,
                                 .seed = 1 };

/* ---- options ---- */

enum { MOST_RANKS = 1 << 20 };

static bool at_least(kr_ctx *ctx, const char *op, const char *name, int64_t value, int64_t least, int64_t most)
{
    return kr_require(ctx, value >= least && value <= most, KR_ERR_ARG, "%s: %s = %lld, but must be from %lld to %lld",
                      op, name, (long long)value, (long long)least, (long long)most);
}

static bool is_rate(kr_ctx *ctx, const char *op, const char *name, double value)
{
    return kr_require(ctx, value > 0 && isfinite(value), KR_ERR_ARG, "%s: %s = %g, but must be finite and above 0", op,
                      name, value);
}

static bool is_time(kr_ctx *ctx, const char *op, const char *name, double value)
{
    return kr_require(ctx, value >= 0 && isfinite(value), KR_ERR_ARG,
                      "%s: %s = %g, but must be finite and not negative", op, name, value);
}

static bool check_sizes(kr_ctx *ctx, const char *op, const kr_plan_options *o)
{
    const int64_t most = (int64_t)1 << 40;
    return at_least(ctx, op, "ranks", o->ranks, 1, MOST_RANKS) &&
           at_least(ctx, op, "ranks_per_host", o->ranks_per_host, 1, MOST_RANKS) &&
           at_least(ctx, op, "tokens", o->tokens, 1, most) && at_least(ctx, op, "length", o->length, 1, most) &&
           at_least(ctx, op, "micro_batches", o->micro_batches, 0, most) &&
           at_least(ctx, op, "bucket_bytes", o->bucket_bytes, 1, most) &&
           at_least(ctx, op, "lookup_rows", o->lookup_rows, 0, most) &&
           at_least(ctx, op, "recompute", o->recompute, KR_PLAN_ALL, most) &&
           kr_require(ctx, o->ranks <= o->ranks_per_host || o->ranks % o->ranks_per_host == 0, KR_ERR_ARG,
                      "%s: ranks = %lld is no multiple of ranks_per_host = %lld; use whole hosts", op,
                      (long long)o->ranks, (long long)o->ranks_per_host) &&
           kr_require(ctx, o->tokens % o->length == 0, KR_ERR_ARG,
                      "%s: length = %lld does not divide tokens = %lld; a micro-batch has whole rows", op,
                      (long long)o->length, (long long)o->tokens) &&
           kr_require(ctx, o->micro_batches % o->ranks == 0, KR_ERR_ARG,
                      "%s: ranks = %lld does not divide micro_batches = %lld; every rank has as many", op,
                      (long long)o->ranks, (long long)o->micro_batches);
}

static bool check_choices(kr_ctx *ctx, const char *op, const kr_plan_options *o)
{
    return kr_require(ctx, o->reduce_dtype == KR_DTYPE_F32 || o->reduce_dtype == KR_DTYPE_BF16, KR_ERR_ARG,
                      "%s: reduce_dtype is %s, but must be f32 or bf16", op, kr_dtype_name(o->reduce_dtype)) &&
           kr_require(ctx, (unsigned)o->exchange <= KR_PLAN_EXCHANGE_RINGS, KR_ERR_ARG,
                      "%s: exchange = %d, but must be one of kr_plan_exchange", op, (int)o->exchange) &&
           kr_require(ctx, (unsigned)o->shards <= KR_PLAN_SHARDS_GRADIENTS, KR_ERR_ARG,
                      "%s: shards = %d, but must be one of kr_plan_shards", op, (int)o->shards);
}

static bool check_simulation(kr_ctx *ctx, const char *op, const kr_plan_options *o)
{
    if (!at_least(ctx, op, "steps", o->steps, 2, 1000) || !at_least(ctx, op, "n_slow", o->n_slow, 0, o->ranks) ||
        !kr_require(ctx, o->jitter >= 0 && o->jitter <= 0.5, KR_ERR_ARG, "%s: jitter = %g, but must be from 0 to 0.5",
                    op, o->jitter) ||
        !kr_require(ctx, !o->n_slow || (o->slow_ranks && o->slow_factors), KR_ERR_ARG,
                    "%s: n_slow = %lld, but slow_ranks or slow_factors is NULL", op, (long long)o->n_slow))
        return false;
    for (int64_t i = 0; i < o->n_slow; i++)
        if (!kr_require(ctx, o->slow_ranks[i] >= 0 && o->slow_ranks[i] < o->ranks, KR_ERR_ARG,
                        "%s: slow_ranks[%lld] = %lld, but must be from 0 to ranks - 1 = %lld", op, (long long)i,
                        (long long)o->slow_ranks[i], (long long)o->ranks - 1) ||
            !kr_require(ctx, o->slow_factors[i] > 0 && isfinite(o->slow_factors[i]), KR_ERR_ARG,
                        "%s: slow_factors[%lld] = %g, but must be finite and above 0", op, (long long)i,
                        o->slow_factors[i]))
            return false;
    return true;
}

static bool check_options(kr_ctx *ctx, const char *op, const kr_plan_options *o)
{
    return check_sizes(ctx, op, o) && is_rate(ctx, op, "flops", o->flops) &&
           is_rate(ctx, op, "link_bytes", o->link_bytes) && is_rate(ctx, op, "nic_bytes", o->nic_bytes) &&
           is_rate(ctx, op, "activation_scale", o->activation_scale) && is_time(ctx, op, "latency", o->latency) &&
           is_time(ctx, op, "overhead", o->overhead) && check_choices(ctx, op, o) && check_simulation(ctx, op, o);
}

/* ---- the network ---- */

/* Messages of a direct exchange leave one after another, and arrive together; each call compares what the ranks ask for by
 * as many messages, without a size worth counting. */
static kr_plan_network network_of(const kr_plan_options *o)
{
    const int64_t g = o->ranks < o->ranks_per_host ? o->ranks : o->ranks_per_host, h = o->ranks / g;
    const double ranks = (double)o->ranks, per_host = (double)g, hosts = (double)h;
    kr_plan_network n = { .exchange = o->exchange, .ranks = o->ranks, .per_host = g, .hosts = h };
    while ((int64_t)1 << n.rounds < h) n.rounds++;
    n.inside = (per_host - 1) / per_host;
    n.between = (hosts - 1) / hosts;
    n.piece = (double)n.rounds * o->latency;
    n.norm = 2 * n.piece;
    if (o->exchange == KR_PLAN_EXCHANGE_DIRECT) {
        n.inside = (per_host - 1) / ranks;
        n.between *= per_host;
        n.piece = n.call = (h > 1 ? o->latency : 0) + (ranks - 1) * o->overhead;
        n.norm = n.call + n.piece;
    }
    return n;
}

double kr_plan_pieces(const kr_plan_options *o, double bytes)
{
    const double pieces = floor(bytes / (double)o->bucket_bytes + 0.5);
    return bytes <= 0 ? 0 : pieces < 1 ? 1 : pieces;
}

double kr_plan_exchange_seconds(const kr_plan_job *job, double bytes)
{
    const kr_plan_network *n = &job->network;
    const kr_plan_options *o = &job->options;
    const double inside = bytes * n->inside / o->link_bytes, between = bytes * n->between / o->nic_bytes;
    if (bytes <= 0) return 0;
    return (n->exchange == KR_PLAN_EXCHANGE_HOSTS ? inside + between : fmax(inside, between)) + n->call +
           kr_plan_pieces(o, bytes) * n->piece;
}

/* ---- buckets ---- */

/* Rows in their order; a row that would make a bucket larger than bucket_bytes begins a new one. */
static void put(kr_plan_job *job, kr_plan_bucket part, bool is_apart)
{
    kr_plan_bucket *last = job->n_buckets ? &job->buckets[job->n_buckets - 1] : NULL;
    if (!last || is_apart || last->scatter + part.scatter > (double)job->options.bucket_bytes) {
        job->buckets[job->n_buckets++] = part;
        return;
    }
    last->scatter += part.scatter;
    last->gather += part.gather;
    last->weights += part.weights;
    if (last->stage < part.stage) last->stage = part.stage;
}

/* Stable: buckets of one stage are summed in the order in which they were cut. */
static void sort_by_stage(kr_plan_job *job)
{
    for (int64_t i = 1; i < job->n_buckets; i++) {
        const kr_plan_bucket b = job->buckets[i];
        int64_t at = i;
        for (; at > 0 && job->buckets[at - 1].stage > b.stage; at--) job->buckets[at] = job->buckets[at - 1];
        job->buckets[at] = b;
    }
}

/* The gradient of a tied embedding is that of the head, and that of the look-ups, which concern few rows: if it is split,
 * the first half of its sum is done for each of them, the second half once. */
static void cut_buckets(kr_plan_job *job)
{
    const kr_plan_model *m = &job->model;
    const kr_plan_options *o = &job->options;
    const bool is_sharded = o->shards != KR_PLAN_SHARDS_NONE;
    const double element = o->reduce_dtype == KR_DTYPE_BF16 ? 2 : 4;
    bool was_split = false;
    for (int64_t i = 0; i < m->n_rows; i++) {
        const kr_plan_row *row = &m->rows[i];
        const bool is_split = row->is_table && o->split_embedding;
        const double part = is_split ? fmin(1, (double)o->lookup_rows / m->n_inputs) : 1,
                     bytes = element * row->elements;
        if (is_split) put(job, (kr_plan_bucket){ .scatter = bytes }, true);
        put(job,
            (kr_plan_bucket){
                .scatter = part * bytes, .gather = is_sharded ? 0 : bytes, .weights = row->bytes, .stage = row->stage },
            is_split || was_split);
        was_split = is_split;
    }
    sort_by_stage(job);
}

/* ---- a job ---- */

static void set_times(kr_plan_job *job)
{
    const kr_plan_model *m = &job->model;
    const double per_flop = (double)job->options.tokens / job->options.flops;
    job->layer = m->layer_flops * per_flop;
    job->back = (double)(2 * m->n_virtual + job->options.recompute) * job->layer;
    job->head = 3 * m->head_flops * per_flop; /* with its gradients (ops/fused_head_loss.c) */
    job->input = m->input_flops * per_flop;
    job->micro = (double)m->n_virtual * job->layer + job->back + job->head + 3 * job->input;
}

bool kr_plan_begin(kr_ctx *ctx, const char *op, const kr_model_config *config, const kr_plan_options *options,
                   kr_plan_job *job)
{
    *job = (kr_plan_job){ .ctx = ctx };
    kr_arena_init(&job->model.arena, &ctx->memory, 1 << 14);
    kr_plan_options *o = &job->options;
    if (!KR_TAKE(ctx, op, kr_plan_options, options, o) || !check_options(ctx, op, o) ||
        !kr_plan_read_model(ctx, op, config, o->length, &job->model))
        return false;
    if (!o->micro_batches) o->micro_batches = o->ranks;
    if (o->recompute == KR_PLAN_ALL || o->recompute > job->model.n_virtual) o->recompute = job->model.n_virtual;
    job->per_rank = o->micro_batches / o->ranks;
    job->network = network_of(o);
    const double most = (double)job->network.per_host * (double)job->per_rank * (double)o->tokens;
    if (!o->lookup_rows) o->lookup_rows = (int64_t)fmin(most, job->model.n_inputs);
    job->buckets = kr_arena_alloc(&job->model.arena, (size_t)(job->model.n_rows + 2) * sizeof *job->buckets);
    if (!kr_require(ctx, job->buckets != NULL, KR_ERR_NOMEM, "%s: no memory for a list of buckets", op)) return false;
    cut_buckets(job);
    set_times(job);
    return true;
}

void kr_plan_end(kr_plan_job *job)
{
    kr_arena_deinit(&job->model.arena);
}

/* ---- the plan ---- */

static void add_sums(const kr_plan_job *job, kr_plan *plan)
{
    const kr_plan_model *m = &job->model;
    const kr_plan_network *n = &job->network;
    const bool is_sharded = job->options.shards != KR_PLAN_SHARDS_NONE;
    double weights = 0, first = 0,
           moved = 0; /* seconds, seconds of those that the next forward pass begins with; bytes */
    for (int64_t i = 0; i < job->n_buckets; i++) {
        const kr_plan_bucket *b = &job->buckets[i];
        const double sum = kr_plan_exchange_seconds(job, b->scatter) + kr_plan_exchange_seconds(job, b->gather);
        const double own = is_sharded ? kr_plan_exchange_seconds(job, b->weights) : 0;
        const bool is_last = b->stage > m->n_virtual;
        moved += b->scatter + b->gather + (is_sharded ? b->weights : 0);
        plan->sum_bytes += b->scatter;
        plan->sums += sum;
        plan->last += is_last ? sum : 0;
        weights += own;
        first += is_last ? own : 0;
    }
    plan->window = job->back + 2 * job->input;
    plan->exposed = fmax(plan->last, plan->sums - plan->window);
    if (is_sharded) { /* the norm of all gradients, then the weights */
        const double hidden = (double)m->n_virtual * job->layer + job->input;
        plan->exposed += n->norm;
        plan->exposed += job->options.gather_ahead ? fmax(first, weights - hidden) : weights;
    }
    plan->sums += weights;
    plan->link_traffic = moved * n->inside;
    plan->nic_traffic = moved * n->between;
}

/* Buffers of a rank that adds gradients of k micro-batches as a binary counter: sums of 1, 2, 4, ...; one is written. */
static double gradient_buffers(int64_t k)
{
    double buffers = 1;
    for (int64_t sum = 1; sum < k; sum *= 2) buffers++;
    return buffers;
}

static void add_memory(const kr_plan_job *job, kr_plan *plan)
{
    const kr_plan_model *m = &job->model;
    const kr_plan_options *o = &job->options;
    const double ranks = (double)o->ranks, tokens = (double)o->tokens, layers = (double)m->n_virtual;
    const double buffers = gradient_buffers(job->per_rank), recomputed = (double)o->recompute;
    double largest = 0;
    for (int64_t i = 0; i < job->n_buckets; i++) largest = fmax(largest, job->buckets[i].scatter);
    plan->weight_bytes = m->weight_bytes;
    plan->gradient_bytes = buffers * 4 * m->elements; /* f32, also those of 16-bit weights */
    plan->optimizer_bytes = 8 * m->elements + 4 * m->short_elements;
    plan->buffer_bytes = fmin(4 * tokens * m->n_outputs, LOGITS_BYTES);
    if (o->ranks > 1) plan->buffer_bytes += fmin(largest, (double)o->bucket_bytes);
    if (o->shards != KR_PLAN_SHARDS_NONE) plan->optimizer_bytes /= ranks;
    if (o->shards == KR_PLAN_SHARDS_GRADIENTS && o->ranks > 1) {
        plan->gradient_bytes = (buffers - 1 + 1 / ranks) * 4 * m->elements;
        plan->buffer_bytes += largest; /* the bucket that is being made */
    }
    const double replayed = 1.5 * m->layer_bytes; /* a layer, recorded again, and gradients of a part of it */
    const double kept = m->stream_bytes * recomputed + m->layer_bytes * (layers - recomputed);
    plan->activation_bytes = o->activation_scale * tokens * (kept + (recomputed > 0 ? replayed : 0));
    plan->memory_bytes =
        plan->weight_bytes + plan->gradient_bytes + plan->optimizer_bytes + plan->buffer_bytes + plan->activation_bytes;
}

static void fill(const kr_plan_job *job, kr_plan *plan)
{
    const kr_plan_model *m = &job->model;
    const kr_plan_options *o = &job->options;
    const double k = (double)job->per_rank, forward = (double)m->n_virtual * m->layer_flops;
    const bool is_loose = o->ranks > 1 && (o->exchange == KR_PLAN_EXCHANGE_RINGS || o->reduce_dtype != KR_DTYPE_F32);
    *plan = (kr_plan){ .parameters = (int64_t)m->elements,
                       .micro_batches = o->micro_batches,
                       .buckets = job->n_buckets,
                       .layers = m->n_virtual,
                       .is_exact = kr_plan_is_exact(o->micro_batches, o->ranks) && !is_loose,
                       .token_flops = 3 * (forward + m->head_flops + m->input_flops),
                       .compute = k * job->micro };
    plan->flops = k * (double)o->tokens * (plan->token_flops + (double)o->recompute * m->layer_flops);
    if (o->ranks > 1) add_sums(job, plan);
    plan->step = plan->compute + plan->exposed;
    plan->efficiency = k * (double)o->tokens * plan->token_flops / o->flops / plan->step;
    plan->tokens_per_second = (double)o->micro_batches * (double)o->tokens / plan->step;
    add_memory(job, plan);
}

kr_status kr_plan_make(kr_ctx *ctx, const kr_model_config *config, const kr_plan_options *options, kr_plan *plan)
{
    static const char op[] = "plan.make";
    kr_plan_job job;
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (!kr_require(ctx, plan != NULL, KR_ERR_ARG, "%s: plan is NULL", op)) return kr_ctx_status(ctx);
    *plan = (kr_plan){ .parameters = 0 };
    if (kr_plan_begin(ctx, op, config, options, &job)) fill(&job, plan);
    kr_plan_end(&job);
    return kr_ctx_status(ctx);
}

bool kr_plan_is_exact(int64_t micro_batches, int64_t ranks)
{
    if (micro_batches < 1 || ranks < 1 || micro_batches % ranks) return false;
    const int64_t block = micro_batches / ranks;
    return ranks == 1 || (block & (block - 1)) == 0;
}
