/* trainer_eval.c - the loss of other data; the training is not affected. */
#include "train/trainer_ranks.h"

#include "tape/tape_impl.h"
#include "train/optimizer_impl.h"

#include <math.h>

#define OP "trainer.evaluate"

/* Streams of random numbers from one batch to the next. */
static const uint64_t streams_per_batch = 1 << 20;

typedef struct evaluating {
    kr_trainer *t;
    kr_loader *loader;
    kr_state *state;          /* NULL: nothing is carried */
    kr_loader_position first; /* of batch 0 */
    kr_random_position random;
    int64_t count;
    kr_batch_result *results; /* [count] */
} evaluating;

static bool run_batch(const evaluating *e, int64_t i)
{
    kr_trainer *t = e->t;
    kr_batch batch;
    const kr_loader_position at = kr_loader_after(e->first, i);
    kr_tape_reset(t->eval_tape);
    kr_loader_return(e->loader, &at);
    kr_random_return(t->ctx,
                     (kr_random_position){ e->random.seed, e->random.stream + (uint64_t)i * streams_per_batch });
    if (kr_loader_next(t->eval_tape, e->loader, &batch) != KR_OK) return false;
    const kr_loss_out out = kr_trainer_loss(t, t->eval_tape, &batch, e->state, NULL, NULL);
    if (!out.loss || (e->state && kr_state_copy(e->state, out.state) != KR_OK)) return false;
    e->results[i] = (kr_batch_result){ .scored = out.scores.scored,
                                       .right = out.scores.right,
                                       .loss = (double)out.scores.scored * kr_item(out.loss) };
    return true;
}

/* Batches are dealt to the ranks, unless each needs the state after the one before it. */
static void run_batches(const evaluating *e)
{
    kr_trainer *t = e->t;
    const bool is_dealt = t->ranks > 1 && !e->state;
    const int64_t first = is_dealt ? kr_rank_first(t, t->rank, e->count) : 0;
    const int64_t end = is_dealt ? kr_rank_first(t, t->rank + 1, e->count) : e->count;
    for (int64_t i = first; i < end && !kr_ctx_failed(t->ctx) && run_batch(e, i); i++) continue;
    kr_tape_reset(t->eval_tape);
    if (t->ranks > 1 && kr_comm_agree(t->comm) != KR_OK) return;
    if (is_dealt) kr_ranks_gather_results(t, e->results, e->count);
}

/* Sums in the order of the batches; loss is summed over the scored positions. */
static void add_batches(kr_trainer *t, kr_loader *loader, int64_t max_batches, kr_evaluation *sum)
{
    kr_memory *memory = &t->ctx->memory;
    evaluating e = { .t = t,
                     .loader = loader,
                     .first = kr_loader_snapshot(loader),
                     .random = kr_random_position_of(t->ctx),
                     .count = max_batches > 0 && max_batches < loader->steps ? max_batches : loader->steps };
    e.first.epoch = e.first.step = 0;
    e.results = kr_memory_alloc_zeroed(memory, (size_t)e.count * sizeof *e.results);
    if (!e.results) kr_fail(t->ctx, KR_ERR_NOMEM, OP ": no memory for %lld losses", (long long)e.count);
    else if (loader->options.carry) e.state = kr_state_create(t->ctx, kr_network_layers(t->net), loader->options.batch);
    if (!kr_ctx_failed(t->ctx) || t->ranks > 1) run_batches(&e);
    for (int64_t i = 0; e.results && i < e.count; i++) {
        sum->n_scored += e.results[i].scored;
        sum->n_right += e.results[i].right;
        sum->loss += e.results[i].loss;
    }
    kr_state_destroy(e.state);
    if (e.results) kr_memory_free(memory, e.results, (size_t)e.count * sizeof *e.results);
}

static bool begin(kr_trainer *t, const kr_loader *loader, int64_t max_batches)
{
    kr_ctx *ctx = t->ctx;
    if (!kr_require(ctx, loader != NULL, KR_ERR_ARG, OP ": the loader is NULL") ||
        !kr_require(ctx, loader->ctx == ctx, KR_ERR_STATE, OP ": the loader belongs to another context") ||
        !kr_require(ctx, max_batches >= 0, KR_ERR_ARG, OP ": max_batches = %lld must not be negative",
                    (long long)max_batches) ||
        !kr_require(ctx, !loader->options.carry || t->net, KR_ERR_ARG,
                    OP ": the loader carries states, but without a model there is no state to carry"))
        return false;
    return t->eval_tape || (t->eval_tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD)) != NULL;
}

kr_evaluation kr_trainer_evaluate(kr_trainer *t, kr_loader *loader, int64_t max_batches)
{
    const kr_evaluation none = { .loss = (double)NAN };
    if (!kr_trainer_ready(t) || !begin(t, loader, max_batches)) {
        if (t && t->ranks > 1) kr_comm_agree(t->comm); /* the others wait for this rank */
        return none;
    }
    const bool has_ema = t->optimizer->options.ema_decay > 0 && !t->optimizer->ema_is_in;
    const kr_random_position random = kr_random_position_of(t->ctx);
    const kr_loader_position position = kr_loader_snapshot(loader);
    kr_evaluation sum = { 0 };
    if (has_ema) kr_optimizer_use_ema(t->optimizer, true);
    add_batches(t, loader, max_batches, &sum);
    const kr_held_error held = kr_hold_error(t->ctx);
    if (has_ema) kr_optimizer_use_ema(t->optimizer, false);
    kr_loader_return(loader, &position);
    kr_random_return(t->ctx, random);
    kr_return_error(t->ctx, &held);
    if (kr_ctx_failed(t->ctx)) {
        kr_blame(t->ctx, OP);
        return none;
    }
    sum.loss = sum.n_scored > 0 ? sum.loss / (double)sum.n_scored : (double)NAN;
    return sum;
}
