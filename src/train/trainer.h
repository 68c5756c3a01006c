/* trainer.h - internals of a training run. */
#ifndef KR_TRAIN_TRAINER_H
#define KR_TRAIN_TRAINER_H

#include "base/arena.h"
#include "base/sized.h"
#include "model/model_impl.h"
#include "data/loader.h"
#include "train/grad_sums.h"

#include <krait/train.h>

#include <string.h>

KR_DECLARE_DEFAULTS(kr_lr_schedule);

/* Of a micro-batch, or of a step. loss: the sum over scored positions. */
typedef struct kr_batch_result {
    int64_t scored, right, positions;
    double loss;
} kr_batch_result;

struct kr_trainer {
    kr_ctx *ctx;
    const kr_model *model; /* NULL: a table of parameters only */
    const kr_network *net; /* the same */
    kr_params *params;
    kr_loader *loader;
    kr_train_options o; /* its texts are in the arena; optimizer and schedule are NULL */
    kr_lr_schedule schedule;
    kr_arena arena;
    kr_tape *tape;      /* of steps; empty between them */
    kr_tape *eval_tape; /* NULL before the first evaluation */
    kr_optimizer *optimizer;
    kr_grad_sums sums;        /* of steps with several micro-batches */
    int pieces;               /* of each row */
    int64_t leaves;           /* of a step's sum of gradients: pieces * accumulate */
    kr_batch_result *results; /* [leaves], of the running step */

    /* With several pieces (train/trainer_pieces.c). */
    kr_seq_parallel *seq;
    kr_comm *row_comm; /* the ranks with the same rows; NULL: one rank, which has for the pieces behind the first ... */
    int n_more;
    kr_tape **piece_tapes;     /* [n_more] */
    kr_grad_sums *piece_sums;  /* [n_more] */
    kr_loss_out *piece_losses; /* [pieces] */

    kr_comm *comm; /* NULL: one rank */
    int rank, ranks;
    bool has_entered;
    int64_t posted;       /* buckets of the running step, of ... */
    int64_t ntickets;     /* ... these */
    int64_t posted_early; /* during the backward pass */
    kr_ticket *tickets;
    void *exchange; /* this rank's results, then those of all */
    size_t exchange_bytes;
    double comm_seconds, wait_seconds; /* of comm, before the running step */
    double began, compute_seconds;     /* of the running step: when it did, on the system's clock; of this rank */
    double *each_seconds;              /* [ranks]: compute_seconds of all */
    kr_train_ranks stats;              /* of the last step */
    char *carry_in;                    /* carried states: received bytes, and those to send behind them */
    size_t carry_bytes;                /* of one of the two */
    kr_ticket carry_ticket;
    bool has_taken, has_given; /* in the running step */
    kr_state *carried;         /* final states of the last step's rows; NULL: the loader carries no state */
    kr_state *moving;          /* the same within a step */
    kr_train_progress progress;
    int64_t saved_step;      /* that the folder has; -1: none of this run */
    int64_t placed_step;     /* that has a checkpoint; the same, or a save failed behind it */
    int64_t told_step;       /* that on_step knows of */
    bool has_taken_folder;   /* the folder belongs to this run: it had no checkpoint, or was resumed from */
    bool has_written_folder; /* files that are the same for all checkpoints are written */
};

/* Is it there, and its context without an error? */
static inline bool kr_trainer_ready(const kr_trainer *t)
{
    return t && !kr_ctx_failed(t->ctx);
}

/* ---- errors that wait while something is put back ---- */

typedef struct kr_held_error {
    kr_status status;
    char message[sizeof((kr_ctx *)0)->message];
} kr_held_error;

/* Takes the error, if there is one, out of the context, and puts it back, over any that came in between. */
static inline kr_held_error kr_hold_error(kr_ctx *ctx)
{
    kr_held_error held = { .status = ctx->status };
    memcpy(held.message, ctx->message, sizeof held.message);
    kr_ctx_clear(ctx);
    return held;
}

static inline void kr_return_error(kr_ctx *ctx, const kr_held_error *held)
{
    if (held->status == KR_OK) return;
    ctx->status = held->status;
    memcpy(ctx->message, held->message, sizeof held->message);
}

/* ---- common code of steps and evaluations ---- */

/* The context's random stream. */
typedef struct kr_random_position {
    uint64_t seed, stream;
} kr_random_position;

static inline kr_random_position kr_random_position_of(const kr_ctx *ctx)
{
    return (kr_random_position){ ctx->seed, ctx->stream };
}

static inline void kr_random_return(kr_ctx *ctx, kr_random_position position)
{
    ctx->seed = position.seed;
    ctx->stream = position.stream;
}

/* Position of a loader; cannot fail, unlike kr_loader_restore. */
static inline void kr_loader_return(kr_loader *loader, const kr_loader_position *position)
{
    loader->options.seed = position->seed;
    loader->epoch = position->epoch;
    loader->step = position->step;
}

static inline bool kr_loader_is_at_end(const kr_loader *loader)
{
    return loader->options.n_epochs > 0 && loader->epoch >= loader->options.n_epochs;
}

/* The loss of a batch by the run's options. Its number of scored positions is checked: loss NULL after an error.
 * seq: NULL, or of the piece that the batch is; streams: NULL, or as in kr_call; ignored with a loss_fn. */
kr_loss_out kr_trainer_loss(const kr_trainer *t, kr_tape *tape, const kr_batch *batch, const kr_state *state,
                            kr_seq_parallel *seq, kr_tensor **streams);

/* Notes the loss of a leaf; false if there is none, or if it is not finite. */
bool kr_trainer_keep(kr_trainer *t, int64_t leaf, const kr_loss_out *out, const kr_batch *batch);

/* A step's micro-batches have numbers m from 0. Which rows one has, and its random numbers, follow from the state at the
 * beginning of the step and from m alone. */
typedef struct kr_step_start {
    kr_loader_position loader;
    kr_random_position random;
    int64_t n_left; /* batches until the loader's end; INT64_MAX: it repeats */
} kr_step_start;

kr_step_start kr_step_start_of(const kr_trainer *t);

/* Before a leaf: piece p of micro-batch m has number p * accumulate + m; leaf = leaves: after the step. False if the loader has
 * ended before it. */
bool kr_trainer_place(kr_trainer *t, const kr_step_start *start, int64_t leaf);

/* Back to the state before the step. */
void kr_trainer_return(kr_trainer *t, const kr_step_start *start);

/* The number of scored positions whose gradient has the weight 1 in a step's sum. A step of one micro-batch takes those that
 * the micro-batch has; otherwise it is a constant, so that no micro-batch has to know the others. */
int64_t kr_trainer_unit(const kr_trainer *t, int64_t n_scored);

/* Back-propagates a leaf's loss, which scores n_scored positions. */
bool kr_trainer_back_propagate(const kr_trainer *t, kr_tape *tape, kr_tensor *loss, int64_t n_scored);

/* ---- NaN and infinity ---- */

/* Repeats a step that was not finite to find the origin of NaN or infinity, and replaces the context's error with that.
 * Weights, data position and random stream are those before the step, also afterwards. True if the origin was found. */
bool kr_trainer_diagnose(kr_trainer *t);

/* Fails if a parameter is not finite. */
bool kr_trainer_check_weights(const kr_trainer *t);

/* ---- checkpoints ---- */

/* Fails if the folder has checkpoints and none was resumed from. */
bool kr_trainer_take_folder(kr_trainer *t);

/* At the beginning of a call: is its context without an error, and the folder the run's? Of several ranks, collective at the
 * first call, and then on a rank that is not ready, for which the others wait in their own calls. */
bool kr_trainer_enter(kr_trainer *t);

/* Are all steps done? */
bool kr_trainer_is_done(const kr_trainer *t);

#endif
