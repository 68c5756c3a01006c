/* train.h - training: steps, evaluations and checkpoints. A run can be stopped at any time and resumes bit-exactly.
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
 *   // continues from the newest checkpoint, if the folder has one
 *   if (kr_trainer_resume(trainer) != KR_OK || kr_trainer_run(trainer) != KR_OK)
 *       fprintf(stderr, "%s\n", kr_ctx_message(ctx));
 *   kr_trainer_destroy(trainer);
 *   kr_loader_destroy(loader);
 *   kr_source_destroy(source);
 *   kr_model_destroy(model);
 *
 * A folder holds the model as last saved (config.json, model.safetensors: a folder for kr_model_load),
 * checkpoints/step-N, each a model folder with the rest of the training state, and the link "best" to the checkpoint
 * with the lowest validation loss. Checkpoints are atomic: one is complete or absent, also when the process is killed
 * or the disk is full. With EMA weights (optimizer.ema_decay) model folders hold the EMA weights. One process at a time
 * may use a folder.
 *
 * Sections: Learning rates, optimizers, losses of networks, training runs. */
#ifndef KRAIT_TRAIN_H
#define KRAIT_TRAIN_H

#include <krait/comm.h>
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
 * A schedule is a plain struct; the learning rate is a function of the step alone.
 *
 *   kr_lr_schedule schedule;
 *   kr_lr_schedule_init(&schedule);
 *   schedule.max_lr = 3e-3;
 *   schedule.total_steps = 2000;              // cosine, with a warm-up of 100 steps, down to 3e-4
 *   for (int64_t step = 1; step <= 2000; step += 500) printf("%g\n", kr_lr_at(&schedule, step));
 *
 * There is no state between calls: a run resumed at step s continues with kr_lr_at(&schedule, s). */

/* With s the step, and warm, total, decay for warmup_steps, total_steps, decay_steps:
 *   s < warm:       start_lr + (max_lr - start_lr) s / warm           all kinds
 *   constant:       max_lr
 *   s >= total:     min_lr                                            all kinds except constant
 *   linear:         max_lr - (max_lr - min_lr) t,                     t = (s - warm) / (total - warm)
 *   cosine:         min_lr + (max_lr - min_lr) (1 + cos(pi t)) / 2    the same t
 *   stable decay:   max_lr until s = total - decay (or warm, if that is later), then by `shape`, t counted from there
 * A warm-up from 0 gives step 0 a rate of 0: count steps from 1. */
typedef enum kr_lr_kind {
    KR_LR_CONSTANT = 0,
    KR_LR_COSINE = 1,
    KR_LR_LINEAR = 2,
    KR_LR_STABLE_DECAY = 3 /* warm-up, constant, decay; the decay can start at any constant step */
} kr_lr_kind;

/* "constant", "cosine", "linear", "wsd"; "?" for an invalid value. */
KR_API_INLINE const char *kr_lr_kind_name(kr_lr_kind kind)
{
    return kr_enum_name(KR_ENUM_LR_KIND, (int)kind);
}

/* Shape of the stable decay: the remaining fraction of max_lr - min_lr, for t from 0 to 1. */
typedef enum kr_lr_shape {
    KR_LR_SHAPE_LINEAR = 0, /* 1 - t */
    KR_LR_SHAPE_COSINE = 1, /* (1 + cos(pi t)) / 2 */
    KR_LR_SHAPE_SQRT = 2    /* 1 - t^1/2 */
} kr_lr_shape;

/* A value derived from other fields. */
#define KR_AUTO (-1)

typedef struct kr_lr_schedule {
    size_t size;          /* set by kr_lr_schedule_init */
    kr_lr_kind kind;      /* KR_LR_COSINE */
    double max_lr;        /* 1e-3 */
    double min_lr;        /* KR_AUTO: max_lr / 10 */
    double start_lr;      /* 0: learning rate at the start of the warm-up */
    int64_t warmup_steps; /* KR_AUTO: total_steps / 20, at most 100 */
    /* 0; required by all kinds except constant. A trainer replaces 0 with its number of steps. */
    int64_t total_steps;
    int64_t decay_steps; /* KR_AUTO: total_steps / 5; for the stable decay */
    kr_lr_shape shape;   /* KR_LR_SHAPE_LINEAR; for the stable decay */
} kr_lr_schedule;
#define kr_lr_schedule_init(schedule) KR_STRUCT_INIT(LR_SCHEDULE, kr_lr_schedule, schedule)

/* The learning rate of a step; negative steps count as 0. 0 for NULL and for a struct whose size kr_lr_check
 * rejects. */
KR_API double kr_lr_at(const kr_lr_schedule *schedule, int64_t step);

/* Checks that the rates are finite and not negative, and that warm-up and decay fit into total_steps. */
KR_API kr_status kr_lr_check(kr_ctx *ctx, const kr_lr_schedule *schedule);

/* ==== Optimizers ====
 *
 * Optimizers update parameters from their gradients: AdamW, SGD with momentum, Muon.
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
 * Gradients of several backward passes add up: kr_optimizer_step(optimizer, lr, 1.0 / n) after n passes equals one step
 * with a batch n times as large. Frozen parameters and parameters without a gradient since the last zeroing are
 * skipped: neither they nor their optimizer state change.
 *
 * Parameters in bf16 or f16 are updated through an f32 master copy; the parameter is the copy rounded to nearest
 * even. */

typedef struct kr_optimizer kr_optimizer;

/* With g the gradient after scaling and clipping, t the number of steps of a parameter, from 1:
 *   AdamW   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
 *           w -= lr weight_decay w + lr (m / (1 - beta1^t)) / ((v / (1 - beta2^t))^1/2 + eps)
 *   SGD     g += weight_decay w;   u = g at first, then momentum u + (1 - dampening) g
 *           w -= lr u, or with nesterov lr (g + momentum u)
 *   Muon    u = muon_momentum u + g;   G = u, or with muon_nesterov g + muon_momentum u
 *           w -= lr decay w + lr ratio orthogonal(G)     for each segment [rows cols] of a fused weight by itself
 *           orthogonal: X = G / max(|G|, 1e-7), then muon_steps times
 *                       A = X X^T;   X = a X + (b A + c A A) X     (on the transpose where rows > cols)
 *           Segments not assigned to Muon by the table, and parameters without segments, are updated by AdamW.
 */
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

/* Scale factor of Muon's update for a matrix [rows cols] with `rows` outputs and `cols` inputs. */
typedef enum kr_muon_ratio {
    /* 0.2 max(rows, cols)^1/2: the RMS of AdamW's updates, so that both can use the same learning rate. */
    KR_MUON_RATIO_MATCH_RMS = 0,
    KR_MUON_RATIO_ORIGINAL = 1, /* max(1, rows / cols)^1/2 */
    /* max(1, cols / rows)^1/2: the original rule for weights stored as [in out]. */
    KR_MUON_RATIO_ORIGINAL_INPUTS = 2,
    KR_MUON_RATIO_PLAIN = 3 /* 1 */
} kr_muon_ratio;

#define KR_SAME_DECAY (-1.0)

typedef struct kr_optimizer_options {
    size_t size;            /* set by kr_optimizer_options_init */
    kr_optimizer_kind kind; /* KR_OPTIMIZER_ADAMW */

    double beta1, beta2; /* 0.9, 0.95 */
    double eps;          /* 1e-8, above 0 */
    double weight_decay; /* 0.1 */
    /* false: decay only parameters with has_decay in the table; norms, biases, A_log, D and dt_bias do not have it. */
    bool decay_all;
    bool is_cautious; /* false; AdamW: decay an element only where w and m have the same sign */

    double momentum, dampening; /* 0.9, 0: for SGD */
    bool use_nesterov;          /* false */

    double muon_momentum;        /* 0.95 */
    bool use_muon_nesterov;      /* true */
    int muon_steps;              /* 5 */
    double muon_coefficients[3]; /* 3.4445, -4.775, 2.0315: a, b, c */
    kr_muon_ratio muon_ratio;    /* KR_MUON_RATIO_MATCH_RMS */
    double muon_weight_decay;    /* KR_SAME_DECAY: as weight_decay */
    int n_without;               /* 0: names of segments that AdamW updates, whatever the table says */
    const char *const *without;

    double clip_norm;  /* 1: maximum norm of all gradients together; larger gradients are scaled down; 0: off */
    double clip_value; /* 0: off; maximum absolute value of an element, applied after clip_norm */
    double ema_decay;  /* 0: no EMA weights; otherwise ema += (1 - ema_decay) (w - ema) after each step */
    bool keep_grad;    /* false: a step zeroes the gradients it has used */
} kr_optimizer_options;
#define kr_optimizer_options_init(options) KR_STRUCT_INIT(OPTIMIZER_OPTIONS, kr_optimizer_options, options)

/* Creates an optimizer. NULL options: all defaults. The table must outlive the optimizer, and the parameters should
 * have their initial values: f32 master copies and EMA weights start from the current values. NULL after an error.
 * Destroy before the context; NULL is allowed. */
KR_API kr_optimizer *kr_optimizer_create(kr_ctx *ctx, kr_params *params, const kr_optimizer_options *options);
KR_API void kr_optimizer_destroy(kr_optimizer *optimizer);

/* One step with the accumulated gradients, each multiplied by grad_scale. Allocates no memory. A gradient that is not
 * finite is an error that names parameter, element and value; after an error nothing has changed. */
KR_API kr_status kr_optimizer_step(kr_optimizer *optimizer, double lr, double grad_scale);

typedef struct kr_optimizer_stats {
    int64_t steps; /* steps done */
    /* Norm of all gradients in the last step, after scaling and before clipping. Also set by a step that failed because
     * of its gradients. */
    double grad_norm;
    /* Size of the optimizer state in bytes. Per element: two values for AdamW, one for SGD momentum or Muon, one more
     * for the EMA and one for an f32 master copy. */
    size_t bytes;
    uint64_t reserved[5]; /* 0; for later versions */
} kr_optimizer_stats;

/* Statistics of an optimizer; 0 for NULL. The functions below return one field each. */
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

/* true: swaps the EMA weights into the parameters, for an evaluation; false: restores the trained weights. While EMA
 * weights are in use, do not step, save or write parameters. */
KR_API kr_status kr_optimizer_use_ema(kr_optimizer *optimizer, bool is_on);

/* Call it after parameters were written by other means: f32 master copies and EMA weights restart from the current
 * values. */
KR_API kr_status kr_optimizer_reread(kr_optimizer *optimizer);

/* Adds the complete optimizer state, for a bit-exact resume: tensors "optimizer.*" and metadata "optimizer.*".
 *
 * Ownership: the writer keeps pointers to tensors in the optimizer's memory. Save the file before the next step and
 * before the optimizer is destroyed. */
KR_API kr_status kr_optimizer_snapshot(const kr_optimizer *optimizer, kr_tensor_writer *writer);

/* Restores a snapshot into an optimizer of the same kind, over a table of the same parameters with the same values.
 * Every tensor must be present with the right type and shape, and no other tensor may have a name that begins with
 * "optimizer.". After an error nothing has changed. */
KR_API KR_MUST_CHECK kr_status kr_optimizer_restore(kr_optimizer *optimizer, const kr_tensor_file *file);

/* Formats one line per parameter (rank, name, shape, elements, decay, and its optimizer: "adamw", "sgd" or "muon[z:64
 * x:64 dt:4*]", with a star for segments updated by AdamW) and one line of totals, as snprintf does: returns the length
 * needed, without the final zero. */
KR_API size_t kr_optimizer_describe(const kr_optimizer *optimizer, char *text, size_t bytes);

/* ==== Losses of networks ====
 *
 * A forward pass of a network and its loss.
 *
 *   kr_loss_call call;
 *   kr_loss_call_init(&call);
 *   call.ids_bs = id_bs;                                      // labels: the next token of the row
 *   kr_loss_out out = kr_network_loss(tape, net, &call);      // logits [b s w] never exist as a whole
 *   kr_backward(tape, out.loss);
 *   printf("%g, %lld of %lld right\n", kr_item(out.loss), (long long)out.scores.right, (long long)out.scores.scored);
 */

typedef struct kr_loss_call {
    size_t size; /* set by kr_loss_call_init */
    kr_loss_kind kind;

    kr_tensor *ids_bs; /* vocabulary networks: i32 or i64 */
    kr_tensor *x_bsf;  /* latent networks: features */

    /* Cross-entropy: i32 or i64, [b s'] for s' outputs, or [b] with last_logits_only. NULL, with ids: the label of each
     * token is the next token. Tokens without a next token are not scored: the last of a row, and those before a
     * seq_start, a reset or padding. */
    kr_tensor *labels;
    kr_tensor *targets; /* other kinds: the shape of the outputs */
    kr_tensor *scored;  /* mask of the loss; see its options. NULL: all positions */

    /* Options of the network call; NULL: all defaults. With last_logits_only only the last output of each row is
     * scored. skip_head is set according to the kind of loss. */
    const kr_call *call;

    /* See the options of the losses in <krait/ops.h>. */
    int64_t ignore_index;
    double label_smoothing;
    kr_reduction reduction;
    bool exclude_padding, has_probabilities, has_target_logits;
    double eps;
    double huber_delta, quantile; /* 1, 0.5 */
} kr_loss_call;
#define kr_loss_call_init(call) KR_STRUCT_INIT(LOSS_CALL, kr_loss_call, call)

typedef struct kr_loss_out {
    kr_tensor *loss;
    kr_tensor *y;      /* the outputs; NULL for cross-entropy, which does not store them */
    kr_state *state;   /* belongs to the tape; NULL with drop_state */
    kr_scores scores;  /* `right` is for cross-entropy only */
    void *reserved[4]; /* NULL; for later versions */
} kr_loss_out;

/* Runs the network and computes its loss; cross-entropy is fused with the LM head. */
KR_API kr_loss_out kr_network_loss(kr_tape *tape, const kr_network *net, const kr_loss_call *call);

/* ==== Training runs ==== */

typedef struct kr_trainer kr_trainer;

/* Progress of a run. */
typedef struct kr_train_progress {
    int64_t step;                    /* steps done, over all runs */
    int64_t epoch;                   /* epoch of the next batch */
    int64_t n_positions;             /* positions read in training, over all runs */
    double loss;                     /* of the last step: mean over scored positions; NaN before the first */
    int64_t n_scored, n_right;       /* of the last step; n_right is for cross-entropy only */
    double lr, grad_norm;            /* of the last step; the norm is before clipping */
    bool is_evaluated;               /* an evaluation followed the last step */
    int64_t eval_step;               /* step of the last evaluation; 0: none so far, and the next four are NaN or 0 */
    double eval_loss, eval_accuracy; /* accuracy: NaN unless options.loss is cross-entropy */
    double best_loss;
    int64_t best_step;
    bool is_saved;        /* a checkpoint followed the last step */
    bool is_done;         /* all steps are done */
    uint64_t reserved[4]; /* 0; for later versions */
} kr_train_progress;

/* Computes the mean loss of a batch over scores.scored positions. The tape records except in evaluations. `state`: the
 * state carried from the previous batch (loaders with `carry`; return the new state with the loss), or NULL. Must be
 * deterministic: the same batch, state and random stream give the same loss. */
typedef kr_loss_out kr_loss_fn(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state);

/* Called after each step, its evaluation and its checkpoint. Return false to stop the run; a checkpoint is saved first.
 * The callback may save, evaluate and query, but not step, run, resume or destroy. */
typedef bool kr_step_fn(void *user, kr_trainer *trainer, const kr_train_progress *progress);

typedef struct kr_train_options {
    size_t size;   /* set by kr_train_options_init */
    int64_t steps; /* 0: until the loader ends */
    /* 1: gradient accumulation: batches per step. Equals one batch with all their rows. The last step may have
     * fewer. */
    int64_t accumulate;
    const kr_optimizer_options *optimizer; /* NULL: all defaults; copied */
    /* NULL: all defaults; copied. The first step of the run is step 1 of the schedule; total_steps = 0 means all steps of
     * the run. */
    const kr_lr_schedule *schedule;

    kr_loss_kind loss; /* KR_LOSS_CROSS_ENTROPY uses the labels of a batch, other kinds the targets */
    double label_smoothing;
    kr_loss_fn *loss_fn; /* NULL: `loss` of the model */
    void *loss_user;

    kr_loader *validation; /* NULL: no evaluation */
    int64_t eval_every;    /* KR_AUTO: steps / 20, at least 25; 0: only after the last step */
    int64_t eval_batches;  /* 20; 0: a full epoch */

    const char *folder; /* NULL: save nothing; created if absent, but not its parent */
    int64_t save_every; /* KR_AUTO: steps / 10, from 25 to 1000; 0: only after the last step or when stopped */
    int keep_last;      /* 2: number of checkpoints kept besides the best; 0: all */
    bool keep_best;     /* true: a new lowest validation loss saves a checkpoint, which is kept */
    int n_extra_files;  /* 0: files copied into the folder and into each checkpoint under the same name, ... */
    const char *const *extra_files; /* ... such as tokenizer.json */

    kr_step_fn *on_step;
    void *user;

    kr_params *params; /* with model NULL: the parameters to train; loss_fn is required then */

    double huber_delta, quantile; /* 1, 0.5: for KR_LOSS_HUBER and KR_LOSS_QUANTILE */
    /* 0; dropout of the model in training steps, not in evaluations; see kr_call. Ignored with a loss_fn. */
    double dropout;

    /* NULL: this process alone. Otherwise the ranks of the communicator train one model: all of them create a trainer with the
     * same options, over the same data and equal weights, and make the same calls in the same order, which are collective.
     * accumulate must be a multiple of their number; each rank computes its share of the micro-batches and keeps its share
     * of the optimizer's state, which is what kr_optimizer_snapshot of its optimizer has. Must outlive the trainer. See
     * docs/distributed.md. */
    kr_comm *comm;
    /* 0, 1: rows are whole. P: each row is cut into P pieces at multiples of kr_network_grid, and P ranks compute one piece
     * each (<krait/seq_parallel.h>): rows may then be P times as long. The ranks are a multiple of P, and rank r has piece
     * r / (ranks / P); or one rank computes all pieces, with the same bits in KR_SEQ_EXACT. Evaluations have whole rows. An
     * error of one rank during a step then ends the run of all. */
    int sequence_ranks;
    kr_seq_mode sequence_mode; /* KR_SEQ_AUTO */
} kr_train_options;
#define kr_train_options_init(options) KR_STRUCT_INIT(TRAIN_OPTIONS, kr_train_options, options)

/* Creates a trainer. model may be NULL (see params). NULL after an error.
 *
 * Ownership: the caller owns the result and destroys it before the context. The trainer keeps references to model,
 * loader and the options validation, params, loss_user and user, which must outlive it. optimizer, schedule and all
 * texts are copied. */
KR_API kr_trainer *kr_trainer_create(kr_ctx *ctx, kr_model *model, kr_loader *loader, const kr_train_options *options);

/* Destroys a trainer; the last checkpoint stays. NULL is allowed. */
KR_API void kr_trainer_destroy(kr_trainer *trainer);

/* Resumes from the newest checkpoint of the folder: weights, optimizer, random stream, position in the data, carried
 * state, step, best loss. Without a checkpoint it does nothing. It fails with a reason if the checkpoint belongs to
 * another model, optimizer or data set, or is damaged (the error names the file and the remedy); then nothing has
 * changed. If the folder has checkpoints you must resume; starting over in it is an error. */
KR_API KR_MUST_CHECK kr_status kr_trainer_resume(kr_trainer *trainer);

/* Trains until all steps are done or on_step returns false, with evaluations and checkpoints at their intervals. A loss
 * or gradient that is not finite is an error that names its origin (layer, op, row and token) and the values before it;
 * the weights are those before the step, and the last checkpoint is kept, because weights that are not finite are never
 * saved. After any error the trainer is in the state before the failed operation. Remedy the cause, call kr_ctx_clear,
 * and run continues. */
KR_API KR_MUST_CHECK kr_status kr_trainer_run(kr_trainer *trainer);

/* One training step, and one checkpoint. step returns KR_END when all steps are done. If a batch has no scored
 * positions the loss is 0 and no weight changes. */
KR_API KR_MUST_CHECK kr_status kr_trainer_step(kr_trainer *trainer);
KR_API KR_MUST_CHECK kr_status kr_trainer_save(kr_trainer *trainer);

typedef struct kr_evaluation {
    double loss; /* mean over scored positions; NaN if there are none, and after an error */
    int64_t n_scored, n_right;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_evaluation;

/* Evaluates at most max_batches batches (0: an epoch) from the start of the loader, with EMA weights if there are any.
 * Loader, random stream and training state do not change. */
KR_API kr_evaluation kr_trainer_evaluate(kr_trainer *trainer, kr_loader *loader, int64_t max_batches);

/* The progress of the run, and the optimizer, which belongs to the trainer. */
KR_API kr_train_progress kr_trainer_progress(const kr_trainer *trainer);
KR_API kr_optimizer *kr_trainer_optimizer(const kr_trainer *trainer);

/* Ranks and times of the last step, the same on all ranks but for the times of communication. */
typedef struct kr_train_ranks {
    int rank, ranks;        /* 0 and 1 without a communicator; all times are 0 then */
    double compute_seconds; /* of this rank's micro-batches, without what it waited for */
    double comm_seconds;    /* that the communicator was busy, also while this rank computed */
    double exposed_seconds; /* that this rank waited for it */
    int slowest_rank;       /* the one with the most compute_seconds ... */
    int slow_steps;         /* ... and how many steps it has now been 1.3 times over the median, without a break */
    double slowest_seconds; /* its compute_seconds */
    uint64_t reserved[4];   /* 0; for later versions */
} kr_train_ranks;
KR_API kr_train_ranks kr_trainer_ranks_of(const kr_trainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
