/* train.h - a training run: steps, evaluations and checkpoints, stopped at any moment and resumed to the same bits.
 *
 *   kr_model_config *config = kr_model_config_create(ctx);
 *   kr_model_config_set_d_model(config, 64);
 *   config->network->vocab_size = 256;
 *   config->layers->n_layers = 2;
 *   kr_model *model = kr_model_create(ctx, config);                    // or kr_model_load
 *   kr_model_config_destroy(config);
 *   kr_source *source = kr_source_string(ctx, "to be, or not to be: that is", 28, tok, NULL);
 *   kr_loader_options reading;
 *   kr_loader_options_init(&reading);
 *   reading.length = 8;
 *   kr_loader *loader = kr_loader_create(source, &reading);
 *   kr_train_options options;
 *   kr_train_options_init(&options);
 *   options.steps = 20;
 *   options.folder = "run";
 *   kr_trainer *trainer = kr_trainer_create(ctx, model, loader, &options);
 *   // from the newest checkpoint, if the folder has one; "run" then holds the model, and the checkpoint to continue from
 *   if (kr_trainer_resume(trainer) != KR_OK || kr_trainer_run(trainer) != KR_OK)
 *       fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_trainer_destroy(trainer);
 *   kr_loader_destroy(loader);
 *   kr_source_destroy(source);
 *   kr_model_destroy(model);
 *
 * A folder holds the model as it was last saved (config.json, model.safetensors: a folder for kr_model_load),
 * checkpoints/step-N, each a model folder with what else a run needs, and the link "best" to the checkpoint of the lowest
 * validation loss. A checkpoint is there as a whole or not at all, also when the process is killed or the disk is full.
 * With averaged weights (optimizer.ema_decay) those are what model folders hold. One process at a time has a folder.
 */
#ifndef KRAIT_TRAIN_H
#define KRAIT_TRAIN_H

#include <krait/data.h>
#include <krait/loss.h>
#include <krait/lr.h>
#include <krait/model.h>
#include <krait/optimizer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_trainer kr_trainer;

/* Where a run is. */
typedef struct kr_train_progress {
    int64_t step;                    /* steps made, in all runs together */
    int64_t epoch;                   /* of the batch that comes next */
    int64_t n_positions;             /* that were read in training, in all runs together */
    double loss;                     /* of the last step, the mean over what was scored; NaN before the first */
    int64_t n_scored, n_right;       /* of the last step; right is of cross-entropy alone */
    double lr, grad_norm;            /* of the last step; the norm is that before clipping */
    bool is_evaluated;               /* the last step was followed by an evaluation */
    int64_t eval_step;               /* of the last evaluation; 0: there was none, and the next four are NaN or 0 */
    double eval_loss, eval_accuracy; /* accuracy: NaN unless options.loss is cross-entropy */
    double best_loss;
    int64_t best_step;
    bool is_saved;        /* the last step was followed by a checkpoint */
    bool is_done;         /* all steps were made */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_train_progress;

/* The loss of a batch on the tape, which records but in evaluations: the mean over scores.scored things. `state` is what
 * the rows before left behind (loaders with `carry`; then the loss comes with the state after), or NULL. The same
 * batch, state and random stream must give the same loss. */
typedef kr_loss_out kr_loss_fn(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state);

/* Called after each step, its evaluation and its checkpoint. False: the run stops here, after a checkpoint. It may save,
 * evaluate and ask, but not step, run, resume or destroy. */
typedef bool kr_step_fn(void *user, kr_trainer *trainer, const kr_train_progress *progress);

typedef struct kr_train_options {
    size_t size;        /* set by kr_train_options_init */
    int64_t steps;      /* 0: until the loader's end */
    int64_t accumulate; /* 1: batches to a step, which is that of one batch with all their rows; at the
                                     * loader's end, what is left */
    const kr_optimizer_options *optimizer; /* NULL: its defaults; copied */
    const kr_lr_schedule
        *schedule; /* NULL: its defaults; total_steps 0: all steps. The first step is its step 1; copied */

    kr_loss_kind loss; /* KR_LOSS_CROSS_ENTROPY: with the batches' labels; the others with their targets */
    double label_smoothing;
    kr_loss_fn *loss_fn; /* NULL: that of the model by `loss` */
    void *loss_user;

    kr_loader *validation; /* NULL: no evaluation */
    int64_t eval_every;    /* KR_AUTO: a twentieth of the steps, at least 25; 0: after the last step only */
    int64_t eval_batches;  /* 20; 0: all of an epoch */

    const char *folder; /* NULL: nothing is saved; made if there is none, in one that exists */
    int64_t save_every; /* KR_AUTO: a tenth of the steps, from 25 to 1000; 0: after the last, or when stopped, only */
    int keep_last;      /* 2: checkpoints, 0: all; older ones are removed, but for the best */
    bool keep_best;     /* true: the lowest validation loss so far makes a checkpoint, which stays */
    int n_extra_files;  /* 0: files that are put into the folder and into each checkpoint under their own names, */
    const char *const *extra_files; /* such as tokenizer.json */

    kr_step_fn *on_step;
    void *user;

    kr_params *params; /* with model NULL: what is trained; loss_fn is needed then */

    double huber_delta, quantile; /* 1, 0.5: of KR_LOSS_HUBER and KR_LOSS_QUANTILE */
    double dropout;               /* 0; of the model in steps, not in evaluations; see kr_call. A loss_fn has its own */
} kr_train_options;
#define kr_train_options_init(options) KR_STRUCT_INIT(TRAIN_OPTIONS, kr_train_options, options)

/* Model (or NULL: see params) and loaders stay the caller's and must outlive the trainer. NULL after an error. */
KR_API kr_trainer *kr_trainer_create(kr_ctx *ctx, kr_model *model, kr_loader *loader, const kr_train_options *options);
KR_API void kr_trainer_destroy(kr_trainer *trainer);

/* Resumes from the newest checkpoint of the folder: weights, optimizer, random stream, place in the data, carried state,
 * step, best loss. Without one nothing happens. One of another model, optimizer or data is refused by name, one that was
 * damaged with the file's name and what to do, and nothing has changed. A folder that has checkpoints is resumed from, or
 * neither trained nor saved in. */
KR_API KR_MUST_CHECK kr_status kr_trainer_resume(kr_trainer *trainer);

/* Steps until all are made or on_step says so, with evaluations and checkpoints where they are due. A loss or gradient
 * that is not finite is an error that tells where it began: layer, op, row and token, and what values came before; the
 * weights are those before the step, and the last checkpoint stays: weights that are not finite are not saved. After any
 * error the run is as it was before what failed; when that is remedied, and kr_ctx_clear was called, run continues. */
KR_API KR_MUST_CHECK kr_status kr_trainer_run(kr_trainer *trainer);

/* The pieces of run: one step (KR_OK; KR_END when all steps are made; or an error), and a checkpoint. A step that scores
 * nothing is made, with a loss of 0, and moves no weight. */
KR_API KR_MUST_CHECK kr_status kr_trainer_step(kr_trainer *trainer);
KR_API KR_MUST_CHECK kr_status kr_trainer_save(kr_trainer *trainer);

typedef struct kr_evaluation {
    double loss; /* the mean over what was scored; NaN where nothing was, and after an error */
    int64_t n_scored, n_right;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_evaluation;

/* From the loader's first batch on, at most max_batches (0: an epoch); with averaged weights if there are any. Loader,
 * random stream and training stay as they are. */
KR_API kr_evaluation kr_trainer_evaluate(kr_trainer *trainer, kr_loader *loader, int64_t max_batches);

/* Where the training stands, and its optimizer, which belongs to the trainer. */
KR_API kr_train_progress kr_trainer_progress(const kr_trainer *trainer);
KR_API kr_optimizer *kr_trainer_optimizer(const kr_trainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
