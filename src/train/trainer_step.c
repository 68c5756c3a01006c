/* trainer_step.c - one step: the losses of its batches, accumulated gradients, the optimizer.
 *
 * Batch i of a step scores n_i positions with the mean loss L_i. The step is that of the mean over all of them,
 *   L = sum n_i L_i / sum n_i,   g = sum (n_i / n_0) g_i  n_0 / sum n_i,
 * with n_0 of the first batch that scores any: batches that score equally many are back-propagated from 1, as usual.
 */
#include "train/trainer.h"

#include "tape/tape_impl.h"
#include "train/optimizer_impl.h"

#include <math.h>

#define OP "trainer.step"

/* ---- the loss of a batch ---- */

static kr_loss_out loss_of_model(const kr_trainer *t, kr_tape *tape, const kr_batch *batch, const kr_state *state,
                                 kr_tensor **streams)
{
    const bool is_labelled = t->o.loss == KR_LOSS_CROSS_ENTROPY;
    kr_loss_call call;
    kr_loss_call_init(&call);
    if (!kr_require(t->ctx, is_labelled ? batch->labels_bs != NULL : batch->targets_bso != NULL, KR_ERR_ARG,
                    OP ": this kind of loss needs %s, which the loader's source does not have",
                    is_labelled ? "labels" : "targets"))
        return (kr_loss_out){ 0 };
    call.kind = t->o.loss;
    call.label_smoothing = t->o.label_smoothing;
    call.huber_delta = t->o.huber_delta;
    call.quantile = t->o.quantile;
    call.ids_bs = batch->ids_bs;
    call.x_bsf = batch->x_bsf;
    if (is_labelled) {
        call.labels = batch->labels_bs;
    } else {
        /* a number for each row of outputs; for each output of a row, the same */
        const kr_shape per_row = KR_SHAPE(kr_dim_of(batch->scored_bs, 0), kr_dim_of(batch->scored_bs, 1), 1);
        call.targets = batch->targets_bso;
        call.scored =
            t->o.loss == KR_LOSS_SOFT_CROSS_ENTROPY ? batch->scored_bs : kr_reshape(tape, batch->scored_bs, per_row);
    }
    kr_call how;
    kr_call_init(&how);
    how.state = state;
    how.reset_bs = batch->reset_bs;
    how.drop_state = !state;
    how.streams = streams;
    how.dropout = tape == t->tape ? t->o.dropout : 0; /* evaluations have a tape of their own */
    call.call = &how;
    return kr_network_loss(tape, t->net, &call);
}

/* A loss of the caller's, held against its contract. */
static bool check_loss(const kr_trainer *t, const kr_loss_out *out, const kr_state *state)
{
    kr_ctx *ctx = t->ctx;
    return !kr_ctx_failed(ctx) &&
           kr_require(ctx, out->loss != NULL && kr_count_of(out->loss) == 1, KR_ERR_ARG,
                      OP ": loss_fn did not return a loss of one element") &&
           kr_require(ctx, out->scores.scored >= 0, KR_ERR_ARG, OP ": loss_fn has scores.scored = %lld",
                      (long long)out->scores.scored) &&
           kr_require(ctx, out->scores.scored > 0 || kr_item(out->loss) == 0, KR_ERR_ARG,
                      OP ": loss_fn has scores.scored = 0, but a loss of %g; set it to the number of values that the "
                         "loss is the mean of",
                      kr_item(out->loss)) &&
           kr_require(ctx, !state || out->state != NULL, KR_ERR_ARG,
                      OP ": the loader carries states, but loss_fn returned no state");
}

kr_loss_out kr_trainer_loss(const kr_trainer *t, kr_tape *tape, const kr_batch *batch, const kr_state *state,
                            kr_tensor **streams)
{
    if (!t->o.loss_fn) return loss_of_model(t, tape, batch, state, streams);
    const kr_loss_out out = t->o.loss_fn(t->o.loss_user, tape, batch, state);
    return check_loss(t, &out, state) ? out : (kr_loss_out){ 0 };
}

/* ---- a step ---- */

/* Over the batches of a step. */
typedef struct sums {
    int64_t n_batches, n_positions, n_scored, n_right;
    int64_t n_first; /* scored in the first batch that scores any */
    double loss;     /* of all that is scored, added up */
} sums;

/* State that is restored if the step fails. */
typedef struct step_start {
    kr_loader_position loader;
    kr_random_position random;
} step_start;

bool kr_trainer_back_propagate(const kr_trainer *t, kr_tensor *loss, int64_t n_scored, int64_t n_first)
{
    if (n_scored == n_first) return kr_backward(t->tape, loss) == KR_OK;
    const double weight = (double)n_scored / (double)n_first;
    kr_tensor *g_loss = kr_full(t->tape, kr_tensor_dtype(loss), kr_tensor_shape(loss), weight);
    return kr_backward_from(t->tape, 1, &loss, &g_loss) == KR_OK;
}

/* Adds one batch's gradients; false at the loader's end, or after an error. */
static bool take_batch(kr_trainer *t, sums *s)
{
    kr_batch batch;
    kr_tape_reset(t->tape);
    if (kr_loader_next(t->tape, t->loader, &batch) != KR_OK) return false;
    const kr_state *state = s->n_batches == 0 ? t->carried : t->moving;
    const kr_loss_out out = kr_trainer_loss(t, t->tape, &batch, state, NULL);
    if (!out.loss) return false;
    const double loss = kr_item(out.loss);
    if (!kr_require(t->ctx, isfinite(loss), KR_ERR_NUMERIC, OP ": the loss is %g", loss)) return false;
    const int64_t n = out.scores.scored;
    if (n > 0 && s->n_first == 0) s->n_first = n;
    if (n > 0 && !kr_trainer_back_propagate(t, out.loss, n, s->n_first)) return false;
    if (t->moving && kr_state_copy(t->moving, out.state) != KR_OK) return false;
    s->n_batches++;
    s->n_positions += batch.n_positions;
    s->n_scored += n;
    s->n_right += out.scores.right;
    s->loss += (double)n * loss;
    return true;
}

/* Without scored positions there is no gradient: no weight changes, but the step counts. */
static bool move_weights(kr_trainer *t, const sums *s, double lr)
{
    return s->n_scored == 0 || kr_optimizer_step(t->optimizer, lr, (double)s->n_first / (double)s->n_scored) == KR_OK;
}

static void go_back(kr_trainer *t, const step_start *begin)
{
    const kr_held_error held = kr_hold_error(t->ctx);
    kr_loader_return(t->loader, &begin->loader);
    kr_random_return(t->ctx, begin->random);
    kr_params_zero_grad(t->params);
    kr_tape_reset(t->tape);
    kr_return_error(t->ctx, &held);
}

static void note(kr_trainer *t, const sums *s, double lr)
{
    kr_train_progress *p = &t->progress;
    p->step++;
    p->n_positions += s->n_positions;
    p->loss = s->n_scored > 0 ? s->loss / (double)s->n_scored : 0;
    p->n_scored = s->n_scored;
    p->n_right = s->n_right;
    p->lr = lr;
    p->grad_norm = s->n_scored > 0 ? kr_optimizer_grad_norm(t->optimizer) : 0;
    p->is_evaluated = p->is_saved = false;
}

kr_status kr_trainer_step(kr_trainer *t)
{
    if (!t) return KR_ERR_ARG;
    if (!kr_trainer_ready(t)) return t->ctx->status;
    if (kr_trainer_is_done(t)) return KR_END;
    if (!kr_trainer_take_folder(t)) return t->ctx->status;
    const step_start begin = { kr_loader_snapshot(t->loader), kr_random_position_of(t->ctx) };
    const double lr = kr_lr_at(&t->schedule, t->progress.step + 1);
    sums s = { 0 };
    if (t->optimizer->options.keep_grad) kr_params_zero_grad(t->params);
    while (s.n_batches < t->o.accumulate && take_batch(t, &s)) continue;
    if (kr_ctx_failed(t->ctx) || s.n_batches == 0 || !move_weights(t, &s, lr)) {
        go_back(t, &begin);
        if (t->ctx->status == KR_ERR_NUMERIC) kr_trainer_diagnose(t);
        return kr_ctx_failed(t->ctx) ? t->ctx->status : KR_END;
    }
    kr_tape_reset(t->tape);
    kr_state *spare = t->carried;
    t->carried = t->moving;
    t->moving = spare;
    note(t, &s, lr);
    return KR_OK;
}
