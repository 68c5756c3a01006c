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
 *
 * Sections: Learning rates, optimizers, losses of networks, training runs.
 */
#ifndef KRAIT_TRAIN_H
#define KRAIT_TRAIN_H

#include <krait/ctx.h>
#include <krait/data.h>
#include <krait/model.h>
#include <krait/ops.h>
#include <krait/params.h>
#include <krait/tensor_file.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Learning rates ====
 *
 * A schedule is a plain struct, and its rate a function of the step alone.
 *
 *   kr_lr_schedule schedule;
 *   kr_lr_schedule_init(&schedule);
 *   schedule.max_lr = 3e-3;
 *   schedule.total_steps = 2000;              // cosine, with a warm-up of 100 steps, down to 3e-4
 *   for (int64_t step = 1; step <= 2000; step += 500) printf("%g\n", kr_lr_at(&schedule, step));
 *
 * Nothing is remembered between calls, so a run that is resumed at step s continues with kr_lr_at(&schedule, s).
 */

/* With s the step, and warm, total, decay for warmup_steps, total_steps, decay_steps:
 *   s < warm:       start_lr + (max_lr - start_lr) s / warm           all kinds
 *   constant:       max_lr
 *   s >= total:     min_lr                                            all kinds but constant
 *   linear:         max_lr - (max_lr - min_lr) t,                     t = (s - warm) / (total - warm)
 *   cosine:         min_lr + (max_lr - min_lr) (1 + cos(pi t)) / 2    the same t
 *   stable decay:   max_lr until s = total - decay (or warm, if that is later), then by `shape`, t counted from there
 * A warm-up that begins at 0 gives no rate at all to step 0: count steps from 1. */
typedef enum kr_lr_kind {
    KR_LR_CONSTANT = 0,
    KR_LR_COSINE = 1,
    KR_LR_LINEAR = 2,
    KR_LR_STABLE_DECAY = 3 /* warm up, stay, decay: the decay can be begun from any point of the stable part */
} kr_lr_kind;

/* "constant", "cosine", "linear", "wsd"; "?" for an invalid value. */
KR_API_INLINE const char *kr_lr_kind_name(kr_lr_kind kind)
{
    return kr_enum_name(KR_ENUM_LR_KIND, (int)kind);
}

/* How a stable rate ends, t from 0 to 1: what is left of max_lr - min_lr. */
typedef enum kr_lr_shape {
    KR_LR_SHAPE_LINEAR = 0, /* 1 - t */
    KR_LR_SHAPE_COSINE = 1, /* (1 + cos(pi t)) / 2 */
    KR_LR_SHAPE_SQRT = 2    /* 1 - t^1/2 */
} kr_lr_shape;

/* A number that is derived from others. */
#define KR_AUTO (-1)

typedef struct kr_lr_schedule {
    size_t size;          /* set by kr_lr_schedule_init */
    kr_lr_kind kind;      /* KR_LR_COSINE */
    double max_lr;        /* 1e-3 */
    double min_lr;        /* KR_AUTO: max_lr / 10 */
    double start_lr;      /* 0: of the warm-up */
    int64_t warmup_steps; /* KR_AUTO: total_steps / 20, at most 100 */
    int64_t total_steps;  /* 0; all kinds but constant need it. A trainer puts its own steps in the place of 0 */
    int64_t decay_steps;  /* KR_AUTO: total_steps / 5; of the stable decay */
    kr_lr_shape shape;    /* KR_LR_SHAPE_LINEAR; of the stable decay */
} kr_lr_schedule;
#define kr_lr_schedule_init(schedule) KR_STRUCT_INIT(LR_SCHEDULE, kr_lr_schedule, schedule)

/* The rate of a step; negative steps count as 0. 0 for NULL, and for a schedule that kr_lr_check refuses for its size. */
KR_API double kr_lr_at(const kr_lr_schedule *schedule, int64_t step);

/* Is it a schedule: rates that are finite and not negative, spans that fit into each other? */
KR_API kr_status kr_lr_check(kr_ctx *ctx, const kr_lr_schedule *schedule);

/* ==== Optimizers ====
 *
 * Moves the parameters of a table against their gradients: AdamW, SGD with momentum, Muon.
 *
 *   kr_optimizer_options options;
 *   kr_optimizer_options_init(&options);
 *   options.weight_decay = 0.05;
 *   kr_optimizer *optimizer = kr_optimizer_create(ctx, kr_network_params(net), &options);
 *   kr_tensor *logits = kr_network_forward(tape, net, id_bs, NULL).y;
 *   kr_backward(tape, kr_mean(tape, kr_mul(tape, logits, logits), KR_ALL_AXES, false));
 *   kr_optimizer_step(optimizer, 1e-3, 1);              // clips, steps, zeroes the gradients
 *   printf("gradient %g\n", kr_optimizer_grad_norm(optimizer));
 *   kr_optimizer_destroy(optimizer);
 *
 * Gradients of several backward passes add up; kr_optimizer_step(optimizer, lr, 1.0 / n) after n of them is the step of
 * one batch n times as large. Parameters that are frozen, or that no gradient has reached since theirs was zeroed, are
 * passed over: neither they nor what is remembered of them change.
 *
 * Of parameters in bf16 or f16 the optimizer keeps an f32 copy, which is what is stepped; the parameter is that copy,
 * rounded to nearest even.
 */

typedef struct kr_optimizer kr_optimizer;

/* With g the gradient after scaling and clipping, t a parameter's steps from 1 on:
 *   AdamW   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
 *           w -= lr weight_decay w + lr (m / (1 - beta1^t)) / ((v / (1 - beta2^t))^1/2 + eps)
 *   SGD     g += weight_decay w;   u = g at first, then momentum u + (1 - dampening) g
 *           w -= lr u, or with nesterov lr (g + momentum u)
 *   Muon    u = muon_momentum u + g;   G = u, or with muon_nesterov g + muon_momentum u
 *           w -= lr decay w + lr ratio orthogonal(G)     for each segment [rows cols] of a fused weight by itself
 *           orthogonal: X = G / max(|G|, 1e-7), then muon_steps times
 *                       A = X X^T;   X = a X + (b A + c A A) X     (on the transpose where rows > cols)
 *           Segments that the table does not give to Muon, and parameters without segments, are AdamW's. */
typedef enum kr_optimizer_kind {
    KR_OPTIMIZER_ADAMW = 0,
    KR_OPTIMIZER_SGD = 1,
    KR_OPTIMIZER_MUON = 2
} kr_optimizer_kind;

/* "adamw", "sgd", "muon"; "?" for an invalid value. */
KR_API_INLINE const char *kr_optimizer_kind_name(kr_optimizer_kind kind)
{
    return kr_enum_name(KR_ENUM_OPTIMIZER_KIND, (int)kind);
}

/* What Muon's step is multiplied with, for a matrix [rows cols] that makes `rows` outputs of `cols` inputs. */
typedef enum kr_muon_ratio {
    KR_MUON_RATIO_MATCH_RMS = 0,       /* 0.2 max(rows, cols)^1/2: steps as large as AdamW's, whose rate serves both */
    KR_MUON_RATIO_ORIGINAL = 1,        /* max(1, rows / cols)^1/2 */
    KR_MUON_RATIO_ORIGINAL_INPUTS = 2, /* max(1, cols / rows)^1/2: the same rule on weights that are kept as [in out] */
    KR_MUON_RATIO_PLAIN = 3            /* 1 */
} kr_muon_ratio;

#define KR_SAME_DECAY (-1.0)

typedef struct kr_optimizer_options {
    size_t size;            /* set by kr_optimizer_options_init */
    kr_optimizer_kind kind; /* KR_OPTIMIZER_ADAMW */

    double beta1, beta2; /* 0.9, 0.95 */
    double eps;          /* 1e-8, above 0 */
    double weight_decay; /* 0.1 */
    bool decay_all;      /* false: only rows of the table that `has_decay`; norms, biases, A_log, D, dt_bias do not */
    bool is_cautious;    /* false; AdamW: elements decay only where w and m have the same sign */

    double momentum, dampening; /* 0.9, 0: of SGD */
    bool nesterov;              /* false */

    double muon_momentum;        /* 0.95 */
    bool muon_nesterov;          /* true */
    int muon_steps;              /* 5 */
    double muon_coefficients[3]; /* 3.4445, -4.775, 2.0315: a, b, c */
    kr_muon_ratio muon_ratio;    /* KR_MUON_RATIO_MATCH_RMS */
    double muon_weight_decay;    /* KR_SAME_DECAY: as weight_decay */
    int n_without;               /* 0: segments of these names are AdamW's too, whatever the table says */
    const char *const *without;

    double clip_norm;  /* 1; 0: no limit; of all gradients together: they are scaled down to it */
    double clip_value; /* 0: no limit; of each element, after that */
    double ema_decay;  /* 0: no averaged weights; otherwise ema += (1 - ema_decay) (w - ema) after each step */
    bool keep_grad;    /* false: a step zeroes the gradients that it took */
} kr_optimizer_options;
#define kr_optimizer_options_init(options) KR_STRUCT_INIT(OPTIMIZER_OPTIONS, kr_optimizer_options, options)

/* NULL options: all defaults. The table must outlive the optimizer, and its values should be there already: f32 copies
 * and averages begin as the parameters are now. NULL after an error. Destroy before the context; NULL is allowed. */
KR_API kr_optimizer *kr_optimizer_create(kr_ctx *ctx, kr_params *params, const kr_optimizer_options *options);
KR_API void kr_optimizer_destroy(kr_optimizer *optimizer);

/* One step with the sums of gradients, each multiplied by grad_scale. It asks for no memory. A gradient that is not
 * finite is an error that names parameter, element and value; after an error nothing has changed. */
KR_API kr_status kr_optimizer_step(kr_optimizer *optimizer, double lr, double grad_scale);

typedef struct kr_optimizer_stats {
    int64_t steps;    /* that were made */
    double grad_norm; /* of all gradients together in the last step, scaled, before clipping; of the last step that was
                           * tried, if it failed for its gradients */
    size_t bytes;     /* of what is remembered of the parameters: two numbers an element for AdamW, one for momentum and
                           * for Muon, one more for averages and for the f32 copy of a half */
    uint64_t reserved[5]; /* 0; for later versions */
} kr_optimizer_stats;

/* Statistics of an optimizer, and each by itself; 0 for NULL. */
KR_API kr_optimizer_stats kr_optimizer_stats_of(const kr_optimizer *optimizer);
KR_API_INLINE int64_t kr_optimizer_steps(const kr_optimizer *optimizer)
{
    return kr_optimizer_stats_of(optimizer).steps;
}
KR_API_INLINE double kr_optimizer_grad_norm(const kr_optimizer *optimizer)
{
    return kr_optimizer_stats_of(optimizer).grad_norm;
}
KR_API_INLINE size_t kr_optimizer_bytes(const kr_optimizer *optimizer)
{
    return kr_optimizer_stats_of(optimizer).bytes;
}

/* Puts the averaged weights into the parameters, for an evaluation, or the trained ones back. In between there is no
 * step and no save, and the parameters are not to be written. */
KR_API kr_status kr_optimizer_use_ema(kr_optimizer *optimizer, bool is_on);

/* After parameters were written by other means: f32 copies and averages begin anew from them. */
KR_API kr_status kr_optimizer_reread(kr_optimizer *optimizer);

/* Adds everything a later run needs to continue to the same bits: tensors "optimizer.*" and metadata "optimizer.*". The
 * tensors lie in the optimizer's memory: save the file before the next step. */
KR_API kr_status kr_optimizer_snapshot(const kr_optimizer *optimizer, kr_tensor_writer *writer);

/* Reads it back, into an optimizer of the same kind over a table of the same parameters with the same values. Every
 * tensor must be present, of the right type and shape, and no other may have a name that begins with "optimizer.".
 * After an
 * error nothing has changed. */
KR_API KR_MUST_CHECK kr_status kr_optimizer_restore(kr_optimizer *optimizer, const kr_tensor_file *file);

/* A line for each parameter (rank, name, shape, elements, decay, and whose it is: "adamw", "sgd" or "muon[z:64 x:64
 * dt:4*]", a star for segments that are AdamW's) and one of totals, into text as by snprintf: the length it needs,
 * without the final zero. */
KR_API size_t kr_optimizer_describe(const kr_optimizer *optimizer, char *text, size_t bytes);

/* ==== Losses of networks ====
 *
 * A network's forward pass, and the loss of what it gives.
 *
 *   kr_loss_call call;
 *   kr_loss_call_init(&call);
 *   call.ids_bs = id_bs;                                      // labels: the next token of each, inside its row
 *   kr_loss_out out = kr_network_loss(tape, net, &call);      // logits [b s w] never exist as a whole
 *   kr_backward(tape, out.loss);
 *   printf("%g, %lld of %lld right\n", kr_item(out.loss), (long long)out.scores.right, (long long)out.scores.scored);
 */

typedef struct kr_loss_call {
    size_t size; /* set by kr_loss_call_init */
    kr_loss_kind kind;

    kr_tensor *ids_bs; /* of a vocabulary network: i32 or i64 */
    kr_tensor *x_bsf;  /* of a latent network: features */

    /* Cross-entropy: i32 or i64, [b s'] for s' outputs, or [b] with last_logits_only. NULL, for ids: each token's label
     * is the
     * next one; tokens without a next are not scored: the last of a row, and those before seq_start, reset or padding. */
    kr_tensor *labels;
    kr_tensor *targets; /* the other kinds: of the outputs' shape */
    kr_tensor *scored;  /* the loss's mask; see its options. NULL: all */

    /* How the network is run; NULL: all defaults. With last_logits_only the loss is that of each row's last output;
     * skip_head is set by the kind of loss. */
    const kr_call *call;

    /* As in the options of the losses. */
    int64_t ignore_index;
    double label_smoothing;
    kr_reduction reduction;
    bool exclude_padding, from_probabilities, target_logits;
    double eps;
    double huber_delta, quantile; /* 1, 0.5 */
} kr_loss_call;
#define kr_loss_call_init(call) KR_STRUCT_INIT(LOSS_CALL, kr_loss_call, call)

typedef struct kr_loss_out {
    kr_tensor *loss;
    kr_tensor *y;      /* the outputs; NULL for cross-entropy, which makes them in passing */
    kr_state *state;   /* on the tape; NULL with drop_state */
    kr_scores scores;  /* right is of cross-entropy alone */
    void *reserved[4]; /* NULL; for later versions */
} kr_loss_out;

/* A network's forward, and the loss of what it gives; cross-entropy in one with the head. */
KR_API kr_loss_out kr_network_loss(kr_tape *tape, const kr_network *net, const kr_loss_call *call);

/* ==== Training runs ==== */

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
