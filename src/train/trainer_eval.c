/* trainer_eval.c - the loss of other data; the training is not affected. */
#include "train/trainer.h"

#include "tape/tape_impl.h"
#include "train/optimizer_impl.h"

#include <math.h>

#define OP "trainer.evaluate"

/* Sums over the batches; loss is summed over the scored positions. */
static bool add_batch(kr_trainer *t, kr_loader *loader, kr_state *state, kr_evaluation *sum)
{
    kr_batch batch;
    kr_tape_reset(t->eval_tape);
    if (kr_loader_next(t->eval_tape, loader, &batch) != KR_OK) return false;
    const kr_loss_out out = kr_trainer_loss(t, t->eval_tape, &batch, state, NULL);
    if (!out.loss || (state && kr_state_copy(state, out.state) != KR_OK)) return false;
    sum->n_scored += out.scores.scored;
    sum->n_right += out.scores.right;
    sum->loss += (double)out.scores.scored * kr_item(out.loss);
    return true;
}

static void add_batches(kr_trainer *t, kr_loader *loader, int64_t max_batches, kr_evaluation *sum)
{
    kr_state *state = NULL;
    if (loader->options.carry && !(state = kr_state_create(t->ctx, kr_network_layers(t->net), loader->options.batch)))
        return;
    const int64_t count = max_batches > 0 && max_batches < loader->steps ? max_batches : loader->steps;
    for (int64_t i = 0; i < count && add_batch(t, loader, state, sum); i++) continue;
    kr_tape_reset(t->eval_tape);
    kr_state_destroy(state);
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
    if (!kr_trainer_ready(t) || !begin(t, loader, max_batches)) return none;
    const bool has_ema = t->optimizer->options.ema_decay > 0 && !t->optimizer->ema_is_in;
    const kr_random_position random = kr_random_position_of(t->ctx);
    const kr_loader_position position = kr_loader_snapshot(loader);
    kr_loader_position first = position;
    first.epoch = first.step = 0;
    kr_loader_return(loader, &first);
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
