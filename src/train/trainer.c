/* trainer.c - making a training run: options, optimizer, schedule, carried states. */
#include "train/trainer_ranks.h"

#include "base/sized.h"
#include "comm/comm_impl.h"
#include "io/file.h"
#include "nn/layers_impl.h"
#include "nn/network_impl.h"
#include "train/checkpoint_file.h"
#include "train/optimizer_impl.h"

#include <math.h>

#define OP "trainer"
enum { ARENA_BYTES = 1024 };

/* ---- options ---- */

KR_DEFAULTS(kr_train_options) = { .size = sizeof(kr_train_options),
                                  .accumulate = 1,
                                  .eval_every = KR_AUTO,
                                  .eval_batches = 20,
                                  .save_every = KR_AUTO,
                                  .keep_last = 2,
                                  .keep_best = true,
                                  .huber_delta = 1,
                                  .quantile = 0.5 };

static bool at_least(kr_ctx *ctx, const char *name, int64_t value, int64_t least)
{
    return kr_require(ctx, value >= least, KR_ERR_ARG, OP ": %s = %lld, but must be at least %lld", name,
                      (long long)value, (long long)least);
}

static bool check_numbers(kr_ctx *ctx, const kr_train_options *o)
{
    return at_least(ctx, "steps", o->steps, 0) && at_least(ctx, "accumulate", o->accumulate, 1) &&
           at_least(ctx, "sequence_ranks", o->sequence_ranks, 0) &&
           kr_require(ctx, o->sequence_mode >= KR_SEQ_AUTO && o->sequence_mode <= KR_SEQ_SCAN, KR_ERR_ARG,
                      OP ": sequence_mode = %d is not a kr_seq_mode", (int)o->sequence_mode) &&
           at_least(ctx, "eval_every", o->eval_every, KR_AUTO) && at_least(ctx, "eval_batches", o->eval_batches, 0) &&
           at_least(ctx, "save_every", o->save_every, KR_AUTO) && at_least(ctx, "keep_last", o->keep_last, 0) &&
           at_least(ctx, "n_extra_files", o->n_extra_files, 0) &&
           kr_require(ctx, o->loss >= KR_LOSS_CROSS_ENTROPY && o->loss <= KR_LOSS_QUANTILE, KR_ERR_ARG,
                      OP ": loss = %d is not a kr_loss_kind", (int)o->loss) &&
           kr_require(ctx, o->label_smoothing >= 0 && o->label_smoothing <= 1, KR_ERR_ARG,
                      OP ": label_smoothing = %g, but must be from 0 to 1", o->label_smoothing) &&
           kr_require(ctx, o->huber_delta > 0, KR_ERR_ARG, OP ": huber_delta = %g, but must be above 0",
                      o->huber_delta) &&
           kr_require(ctx, o->quantile > 0 && o->quantile < 1, KR_ERR_ARG,
                      OP ": quantile = %g, but must be above 0 and below 1", o->quantile) &&
           kr_require(ctx, o->dropout >= 0 && o->dropout < 1, KR_ERR_ARG,
                      OP ": dropout = %g, but must be from 0 to below 1", o->dropout) &&
           kr_require(ctx, o->dropout == 0 || !o->loss_fn, KR_ERR_ARG,
                      OP ": dropout = %g, but loss_fn runs the model; set dropout in its kr_call", o->dropout) &&
           kr_require(ctx, o->n_extra_files == 0 || o->extra_files, KR_ERR_ARG,
                      OP ": n_extra_files = %d, but extra_files is NULL", o->n_extra_files) &&
           kr_require(ctx, !o->folder || *o->folder, KR_ERR_ARG, OP ": the folder's path is empty");
}

/* Checks of model, network and loader. */
static bool check_parts(kr_trainer *t)
{
    kr_ctx *ctx = t->ctx;
    const kr_train_options *o = &t->o;
    return kr_require(ctx, t->loader != NULL, KR_ERR_ARG, OP ": the loader is NULL") &&
           kr_require(ctx, t->loader->ctx == ctx && (!o->validation || o->validation->ctx == ctx), KR_ERR_STATE,
                      OP ": a loader belongs to another context") &&
           kr_require(ctx, (t->model != NULL) != (o->params != NULL), KR_ERR_ARG,
                      OP ": %s; give a model, or NULL and options.params",
                      t->model ? "model and options.params are both given" : "model and options.params are NULL") &&
           kr_require(ctx, !t->model || t->model->ctx == ctx, KR_ERR_STATE,
                      OP ": the model belongs to another context") &&
           kr_require(ctx, t->model || o->loss_fn, KR_ERR_ARG,
                      OP ": model is NULL, so options.loss_fn must compute the loss, but it is NULL") &&
           kr_require(ctx, t->model || !t->loader->options.carry, KR_ERR_ARG,
                      OP ": the loader carries states, but without a model there is no state to carry") &&
           kr_require(ctx, o->steps > 0 || t->loader->options.n_epochs > 0, KR_ERR_ARG,
                      OP
                      ": steps = 0 means \"until the data ends\", but the loader repeats; set steps, or its n_epochs");
}

/* From here on creation is collective: an error of one rank is one of all. */
static bool take_comm(kr_trainer *t)
{
    kr_comm *comm = t->o.comm;
    if (!comm) return true;
    if (!kr_require(t->ctx, comm->ctx == t->ctx, KR_ERR_STATE, OP ": the communicator belongs to another context"))
        return false;
    t->comm = comm;
    t->rank = kr_comm_rank(comm);
    t->ranks = kr_comm_size(comm);
    return true;
}

static bool check_ranks(kr_trainer *t)
{
    t->pieces = t->o.sequence_ranks > 1 ? t->o.sequence_ranks : 1;
    t->leaves = t->pieces * t->o.accumulate;
    const int n = t->ranks % t->pieces == 0 ? t->ranks / t->pieces : t->ranks; /* that a micro-batch is dealt to */
    return kr_require(t->ctx, t->o.accumulate % n == 0, KR_ERR_ARG,
                      OP ": accumulate = %lld micro-batches cannot be dealt to %d ranks; make it a multiple of %d",
                      (long long)t->o.accumulate, n, n);
}

static const char *copy_text(kr_trainer *t, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = kr_arena_alloc(&t->arena, bytes);
    if (copy) memcpy(copy, text, bytes);
    else kr_fail(t->ctx, KR_ERR_NOMEM, OP ": no memory for a path");
    return copy;
}

/* Extra files must not have the names of the model's files. */
static bool check_beside(kr_trainer *t, int i)
{
    static const char *const taken[] = { KR_MODEL_FILE, KR_CONFIG_FILE,   "generation_config.json", KR_TRAINING_FILE,
                                         KR_STATE_FILE, KR_MANIFEST_FILE, KR_CHECKPOINTS,           "best" };
    const char *path = t->o.extra_files[i];
    if (!kr_require(t->ctx, path, KR_ERR_ARG, OP ": extra_files[%d] is NULL", i)) return false;
    const char *name = path + kr_path_folder_length(path);
    bool is_free = *name && strncmp(name, KR_HIDDEN, sizeof KR_HIDDEN - 1) != 0;
    for (size_t k = 0; k < sizeof taken / sizeof *taken; k++) is_free = is_free && strcmp(name, taken[k]) != 0;
    for (int k = 0; k < i; k++)
        is_free = is_free && strcmp(name, t->o.extra_files[k] + kr_path_folder_length(t->o.extra_files[k])) != 0;
    return kr_require(t->ctx, is_free, KR_ERR_ARG, OP ": extra_files[%d] is %s, whose name is empty or a duplicate", i,
                      path);
}

static bool copy_paths(kr_trainer *t)
{
    kr_train_options *o = &t->o;
    if (o->folder && !(o->folder = copy_text(t, o->folder))) return false;
    const char **own = kr_arena_alloc(&t->arena, (size_t)(o->n_extra_files + 1) * sizeof *own);
    if (!own) return kr_fail(t->ctx, KR_ERR_NOMEM, OP ": no memory for a list of paths");
    for (int i = 0; i < o->n_extra_files; i++)
        if (!check_beside(t, i) || !(own[i] = copy_text(t, o->extra_files[i]))) return false;
    o->extra_files = own;
    return true;
}

/* All steps of the run: its own number, or until the loader's end. */
static int64_t count_steps(const kr_trainer *t)
{
    const int64_t batches = t->loader->options.n_epochs * t->loader->steps, n = t->o.accumulate;
    return t->o.steps > 0 ? t->o.steps : batches / n + (batches % n != 0);
}

static int64_t between(int64_t n, int64_t least, int64_t most)
{
    return n < least ? least : n > most ? most : n;
}

/* Replaces KR_AUTO with numbers. */
static void derive_intervals(kr_trainer *t)
{
    enum { LEAST = 25, MOST_SAVE = 1000 };
    const int64_t steps = count_steps(t);
    if (t->o.eval_every == KR_AUTO) t->o.eval_every = between(steps / 20, LEAST, INT64_MAX);
    if (t->o.save_every == KR_AUTO) t->o.save_every = between(steps / 10, LEAST, MOST_SAVE);
}

/* A schedule without an end ends with the run. */
static bool take_schedule(kr_trainer *t)
{
    kr_lr_schedule *s = &t->schedule;
    if (!KR_TAKE(t->ctx, OP, kr_lr_schedule, t->o.schedule, s)) return false;
    t->o.schedule = NULL;
    if (s->total_steps == 0) s->total_steps = count_steps(t);
    if (kr_lr_check(t->ctx, s) == KR_OK) return true;
    return kr_blame(t->ctx, OP);
}

/* What a network uses before its first layer. */
static void add_late(kr_trainer *t)
{
    const kr_network *net = t->net;
    kr_grad_sums_add_late(&t->sums, net->embedding_wd);
    kr_grad_sums_add_late(&t->sums, net->in_proj);
    kr_grad_sums_add_late(&t->sums, net->in_proj_bias);
    kr_grad_sums_add_late(&t->sums, net->class_tokens_nf);
    kr_grad_sums_add_late(&t->sums, net->layers->latents_nd);
}

static bool make_results(kr_trainer *t)
{
    const size_t count = (size_t)t->leaves;
    if (count <= SIZE_MAX / sizeof *t->results) t->results = kr_arena_alloc(&t->arena, count * sizeof *t->results);
    return kr_require(t->ctx, t->results, KR_ERR_NOMEM, OP ": no memory for the losses of %zu batches a step", count);
}

static bool make_optimizer(kr_trainer *t)
{
    t->optimizer = kr_optimizer_create_shared(t->ctx, t->params, t->o.optimizer, t->comm);
    t->o.optimizer = NULL;
    return t->optimizer != NULL;
}

/* ---- life ---- */

static bool build(kr_trainer *t, const kr_train_options *options)
{
    kr_ctx *ctx = t->ctx;
    if (!KR_TAKE(ctx, OP, kr_train_options, options, &t->o) || !take_comm(t) || !check_numbers(ctx, &t->o) ||
        !check_parts(t) || !check_ranks(t) || !copy_paths(t) || !take_schedule(t))
        return false;
    derive_intervals(t);
    t->net = kr_model_network(t->model);
    t->params = t->model ? kr_network_params(t->net) : t->o.params;
    kr_grad_sums_init(&t->sums, ctx, t->params, 0);
    if (t->net && !t->net->is_custom) add_late(t);
    if (!kr_pieces_check(t) || !make_results(t)) return false;
    if (!(t->tape = kr_tape_create(ctx, KR_TAPE_GRAD)) || !make_optimizer(t)) return false;
    if (!t->loader->options.carry) return true;
    t->carried = kr_state_create(ctx, kr_network_layers(t->net), t->loader->options.batch);
    t->moving = kr_state_create(ctx, kr_network_layers(t->net), t->loader->options.batch);
    return t->carried && t->moving;
}

kr_trainer *kr_trainer_create(kr_ctx *ctx, kr_model *model, kr_loader *loader, const kr_train_options *options)
{
    if (kr_ctx_failed(ctx)) return NULL;
    kr_trainer *t = kr_memory_alloc_zeroed(&ctx->memory, sizeof *t);
    if (!kr_require(ctx, t, KR_ERR_NOMEM, OP ": no memory for a trainer")) return NULL;
    t->ctx = ctx;
    t->model = model;
    t->loader = loader;
    t->saved_step = t->placed_step = -1;
    const double none = (double)NAN;
    t->progress = (kr_train_progress){
        .loss = none, .lr = none, .grad_norm = none, .eval_loss = none, .eval_accuracy = none, .best_loss = none
    };
    kr_arena_init(&t->arena, &ctx->memory, ARENA_BYTES);
    t->ranks = t->pieces = 1;
    t->leaves = 1;
    bool is_made = build(t, options);
    if (t->ranks > 1) is_made = kr_ranks_meet(t, is_made);
    if (is_made && kr_pieces_create(t)) return t;
    kr_trainer_destroy(t);
    return NULL;
}

void kr_trainer_destroy(kr_trainer *t)
{
    if (!t) return;
    kr_memory *memory = &t->ctx->memory;
    kr_state_destroy(t->carried);
    kr_state_destroy(t->moving);
    kr_carry_free(t);
    kr_ranks_free(t);
    kr_pieces_destroy(t);
    kr_grad_sums_deinit(&t->sums);
    kr_optimizer_destroy(t->optimizer);
    kr_tape_destroy(t->eval_tape);
    kr_tape_destroy(t->tape);
    kr_arena_deinit(&t->arena);
    kr_memory_free(memory, t, sizeof *t);
}

/* ---- reading one ---- */

bool kr_trainer_is_done(const kr_trainer *t)
{
    return (t->o.steps > 0 && t->progress.step >= t->o.steps) || kr_loader_is_at_end(t->loader);
}

kr_train_progress kr_trainer_progress(const kr_trainer *t)
{
    if (!t) return (kr_train_progress){ 0 };
    kr_train_progress p = t->progress;
    p.epoch = kr_loader_epoch(t->loader);
    p.is_done = kr_trainer_is_done(t);
    return p;
}

kr_optimizer *kr_trainer_optimizer(const kr_trainer *t)
{
    return t ? t->optimizer : NULL;
}
