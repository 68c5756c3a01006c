/* trainer_step.c - one step: the losses of its micro-batches, the sum of their gradients, the optimizer.
 *
 * Micro-batch m of a step scores n_m positions with the mean loss L_m. The step is that of the mean over all of them,
 *   L = sum n_m L_m / sum n_m,   g = sum (n_m / u) g_m  u / sum n_m,
 * with u = n_0 in a step of one micro-batch, and otherwise the positions of a full batch. Gradients are added as a binary
 * tree (train/grad_sums.h), losses in the order of m.
 */
#include "train/trainer_ranks.h"

#include "tape/tape_impl.h"
#include "train/optimizer_impl.h"

#include <math.h>

#define OP "trainer.step"

/* ---- the loss of a batch ---- */

static kr_loss_out loss_of_model(const kr_trainer *t, kr_tape *tape, const kr_batch *batch, const kr_state *state,
                                 kr_seq_parallel *seq, kr_tensor **streams)
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
    how.seq_parallel = seq;
    how.streams = streams;
    how.dropout = tape != t->eval_tape ? t->o.dropout : 0; /* evaluations have a tape of their own */
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
                            kr_seq_parallel *seq, kr_tensor **streams)
{
    if (!t->o.loss_fn) return loss_of_model(t, tape, batch, state, seq, streams);
    const kr_loss_out out = t->o.loss_fn(t->o.loss_user, tape, batch, state);
    return check_loss(t, &out, state) ? out : (kr_loss_out){ 0 };
}

/* ---- micro-batches ---- */

/* Streams of random numbers from one micro-batch to the next: more than one draws. */
static const uint64_t streams_per_batch = 1 << 20;

kr_step_start kr_step_start_of(const kr_trainer *t)
{
    return (kr_step_start){ kr_loader_snapshot(t->loader), kr_random_position_of(t->ctx), kr_loader_left(t->loader) };
}

bool kr_trainer_place(kr_trainer *t, const kr_step_start *start, int64_t leaf)
{
    const int64_t m = leaf < t->leaves ? leaf % t->o.accumulate : t->o.accumulate;
    const kr_loader_position at = kr_loader_after(start->loader, m < start->n_left ? m : start->n_left);
    kr_loader_return(t->loader, &at);
    if (t->leaves > 1)
        kr_random_return(t->ctx, (kr_random_position){ start->random.seed,
                                                       start->random.stream + (uint64_t)leaf * streams_per_batch });
    return m < start->n_left;
}

void kr_trainer_return(kr_trainer *t, const kr_step_start *start)
{
    kr_loader_return(t->loader, &start->loader);
    kr_random_return(t->ctx, start->random);
}

int64_t kr_trainer_unit(const kr_trainer *t, int64_t n_scored)
{
    const kr_loader_options *o = &t->loader->options;
    return t->leaves == 1 ? n_scored : o->batch * (o->length > 0 ? o->length : 1);
}

bool kr_trainer_back_propagate(const kr_trainer *t, kr_tape *tape, kr_tensor *loss, int64_t n_scored)
{
    const int64_t unit = kr_trainer_unit(t, n_scored);
    if (n_scored == unit) return kr_backward(tape, loss) == KR_OK;
    const double weight = (double)n_scored / (double)unit;
    kr_tensor *g_loss = kr_full(tape, kr_tensor_dtype(loss), kr_tensor_shape(loss), weight);
    return kr_backward_from(tape, 1, &loss, &g_loss) == KR_OK;
}

/* Of this rank. */
static bool is_last(const kr_trainer *t, int64_t leaf)
{
    return leaf == kr_rank_first(t, t->rank + 1, t->leaves) - 1;
}

bool kr_trainer_keep(kr_trainer *t, int64_t leaf, const kr_loss_out *out, const kr_batch *batch)
{
    if (!out->loss) return false;
    const double loss = kr_item(out->loss);
    if (!kr_require(t->ctx, isfinite(loss), KR_ERR_NUMERIC, OP ": the loss is %g", loss)) return false;
    const int64_t n = out->scores.scored;
    t->results[leaf] = (kr_batch_result){
        .scored = n, .right = out->scores.right, .positions = batch->n_positions, .loss = (double)n * loss
    };
    return true;
}

/* Loss and gradients of a leaf; nothing behind the loader's end. The pieces of a row all have a backward pass, since their
 * gradients pass from one to the next. */
static bool run_leaf(kr_trainer *t, const kr_step_start *start, int64_t leaf)
{
    kr_batch batch;
    const int64_t m = leaf % t->o.accumulate;
    const bool gives = t->carried && t->ranks > 1 && is_last(t, leaf);
    t->results[leaf] = (kr_batch_result){ 0 };
    kr_tape_reset(t->tape);
    const kr_state *state = m == 0 ? t->carried : t->moving;
    if (!kr_trainer_place(t, start, leaf)) {
        if (gives) kr_carry_give(t, state);
        return true;
    }
    if (kr_loader_next(t->tape, t->loader, &batch) != KR_OK ||
        (t->seq && !kr_pieces_cut(t, t->tape, &batch, (int)(leaf / t->o.accumulate))))
        return false;
    const kr_loss_out out = kr_trainer_loss(t, t->tape, &batch, state, t->seq, NULL);
    if (!kr_trainer_keep(t, leaf, &out, &batch)) return false;
    if (gives) kr_carry_give(t, out.state);
    if ((out.scores.scored > 0 || t->seq) && !kr_trainer_back_propagate(t, t->tape, out.loss, out.scores.scored))
        return false;
    if (t->moving && kr_state_copy(t->moving, out.state) != KR_OK) return false;
    return !t->moving || !t->seq || kr_carry_share(t);
}

/* The leaves of this rank, added up. Sums of several ranks begin during the last one. */
static bool run_leaves(kr_trainer *t, const kr_step_start *start)
{
    const int64_t first = kr_rank_first(t, t->rank, t->leaves);
    if (t->carried && t->ranks > 1 && !kr_carry_take(t)) return false;
    for (int64_t leaf = first; leaf == first || !is_last(t, leaf - 1); leaf++) {
        const bool is_posted = t->ranks > 1 && is_last(t, leaf);
        if (!kr_grad_sums_open(&t->sums)) return false;
        if (is_posted) kr_ranks_post_at_fences(t, true);
        const bool is_run = run_leaf(t, start, leaf);
        if (is_posted) kr_ranks_post_at_fences(t, false);
        if (!is_run || (!is_posted && !kr_grad_sums_finish_all(&t->sums))) return false;
    }
    return true;
}

/* All pieces of all micro-batches, on one rank. */
static bool run_pieces(kr_trainer *t, const kr_step_start *start)
{
    for (int64_t m = 0; m < t->o.accumulate; m++)
        if (!kr_pieces_run_batch(t, start, m)) return false;
    return kr_pieces_add(t);
}

/* Losses and gradients of all leaves. */
static bool differentiate(kr_trainer *t, const kr_step_start *start)
{
    bool is_done = true;
    if (t->leaves == 1) {
        if (t->optimizer->options.keep_grad) kr_params_zero_grad(t->params);
        is_done = run_leaf(t, start, 0);
    } else {
        is_done = kr_grad_sums_begin(&t->sums, t->leaves / (t->ranks > 1 ? t->ranks : t->pieces)) && kr_pieces_begin(t);
        if (t->ranks > 1) is_done = kr_ranks_begin(t, is_done);
        if (!is_done) return false;
        is_done = t->n_more ? run_pieces(t, start) : run_leaves(t, start);
        if (t->ranks > 1) kr_ranks_note_computed(t);
        if (!is_done && t->row_comm) (void)kr_comm_barrier(t->comm); /* tells the ranks that wait for a state */
        if (t->ranks > 1) is_done = kr_ranks_sum(t);
    }
    kr_tape_reset(t->tape);
    kr_pieces_reset(t);
    kr_trainer_place(t, start, t->leaves);
    return is_done;
}

/* ---- a step ---- */

/* Over all leaves of a step, in their order. */
static kr_batch_result sum_of(const kr_trainer *t)
{
    kr_batch_result sum = { 0 };
    for (int64_t i = 0; i < t->leaves; i++) {
        const kr_batch_result *r = &t->results[i];
        sum.scored += r->scored;
        sum.right += r->right;
        sum.positions += r->positions;
        sum.loss += r->loss;
    }
    return sum;
}

/* Without scored positions there is no gradient: no weight changes, but the step counts. */
static bool move_weights(kr_trainer *t, int64_t n_scored, double lr)
{
    kr_optimizer *opt = t->optimizer;
    if (n_scored == 0) return true;
    if (t->leaves > 1) {
        kr_grad_sums_end(&t->sums, opt->options.keep_grad);
        opt->sums = &t->sums;
    }
    const kr_status status = kr_optimizer_step(opt, lr, (double)kr_trainer_unit(t, n_scored) / (double)n_scored);
    opt->sums = NULL;
    return status == KR_OK;
}

/* All as it was before the step, on all ranks; numbers that are not finite are searched for. */
static void undo(kr_trainer *t, const kr_step_start *start)
{
    const kr_held_error held = kr_hold_error(t->ctx);
    kr_trainer_return(t, start);
    kr_params_zero_grad(t->params);
    kr_tape_reset(t->tape);
    kr_pieces_reset(t);
    kr_return_error(t->ctx, &held);
    const bool has_found = t->ctx->status == KR_ERR_NUMERIC && kr_trainer_diagnose(t);
    if (t->ranks > 1) kr_ranks_tell(t, has_found);
}

static void note(kr_trainer *t, const kr_batch_result *sum, double lr)
{
    kr_train_progress *p = &t->progress;
    p->step++;
    p->n_positions += sum->positions;
    p->loss = sum->scored > 0 ? sum->loss / (double)sum->scored : 0;
    p->n_scored = sum->scored;
    p->n_right = sum->right;
    p->lr = lr;
    p->grad_norm = sum->scored > 0 ? kr_optimizer_grad_norm(t->optimizer) : 0;
    p->is_evaluated = p->is_saved = false;
}

kr_status kr_trainer_step(kr_trainer *t)
{
    if (!t) return KR_ERR_ARG;
    if (kr_trainer_ready(t) && kr_trainer_is_done(t)) return KR_END;
    if (!kr_trainer_enter(t)) return t->ctx->status;
    const kr_step_start start = kr_step_start_of(t);
    const double lr = kr_lr_at(&t->schedule, t->progress.step + 1);
    kr_batch_result sum = { 0 };
    bool is_done = differentiate(t, &start);
    if (is_done) {
        sum = sum_of(t);
        is_done = move_weights(t, sum.scored, lr) && (t->ranks == 1 || !t->carried || t->seq || kr_carry_share(t));
    }
    if (!is_done) {
        undo(t, &start);
        return t->ctx->status;
    }
    kr_state *spare = t->carried;
    t->carried = t->moving;
    t->moving = spare;
    note(t, &sum, lr);
    if (t->ranks > 1) kr_ranks_note_step(t);
    return KR_OK;
}
