/* trainer_run.c - a run: steps, and after each the evaluation and the checkpoint that are due. */
#include "train/trainer_ranks.h"

#include <math.h>

static bool is_due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* Evaluations come before checkpoints, which store their results. */
static bool evaluate(kr_trainer *t, bool is_last)
{
    kr_train_progress *p = &t->progress;
    if (!t->o.validation || p->eval_step == p->step || !(is_last || is_due(p->step, t->o.eval_every))) return true;
    const kr_evaluation e = kr_trainer_evaluate(t, t->o.validation, t->o.eval_batches);
    if (kr_ctx_failed(t->ctx)) return false;
    const bool has_accuracy = t->o.loss == KR_LOSS_CROSS_ENTROPY && e.n_scored > 0;
    p->eval_step = p->step;
    p->eval_loss = e.loss;
    p->eval_accuracy = has_accuracy ? (double)e.n_right / (double)e.n_scored : (double)NAN;
    p->is_evaluated = true;
    if (!(e.loss < p->best_loss) && !(isnan(p->best_loss) && !isnan(e.loss))) return true;
    p->best_loss = e.loss;
    p->best_step = p->step;
    return true;
}

static bool save(kr_trainer *t, bool is_wanted)
{
    if (!is_wanted || !t->o.folder || t->saved_step == t->progress.step) return true;
    return kr_trainer_save(t) == KR_OK;
}

static bool save_if_due(kr_trainer *t, bool is_last)
{
    const kr_train_progress *p = &t->progress;
    const bool is_best = t->o.keep_best && p->is_evaluated && p->best_step == p->step;
    return save(t, is_last || is_best || is_due(p->step, t->o.save_every));
}

/* All work after a step; called again after an error, it does the rest. False ends the run. */
static bool finish_step(kr_trainer *t)
{
    const bool is_last = kr_trainer_is_done(t);
    if (t->progress.step == 0) return true;
    if (!evaluate(t, is_last) || !save_if_due(t, is_last)) return false;
    if (t->told_step == t->progress.step) return true;
    t->told_step = t->progress.step;
    const kr_train_progress p = kr_trainer_progress(t);
    bool stops = t->o.on_step && !t->o.on_step(t->o.user, t, &p);
    if (t->ranks > 1 && t->o.on_step) /* one rank stops all of them */
        stops = kr_comm_agree(t->comm) == KR_OK && kr_ranks_any(t, stops);
    if (!stops) return !kr_ctx_failed(t->ctx);
    save(t, !kr_ctx_failed(t->ctx));
    return false;
}

kr_status kr_trainer_run(kr_trainer *t)
{
    if (!t) return KR_ERR_ARG;
    if (!kr_trainer_enter(t)) return t->ctx->status;
    while (finish_step(t) && kr_trainer_step(t) == KR_OK) continue;
    return t->ctx->status;
}
