/* checkpoint_file.c - writes a checkpoint: into a hidden folder, which is synced to disk and then renamed. Weights that
 * are not finite are not saved, so that the last good ones remain. */
#include "train/checkpoint_file.h"

#include "io/file.h"
#include "io/folder.h"
#include "train/optimizer_impl.h"

#include <stdio.h>

#define OP "trainer.save"

#define NUMBER(name, field, dtype, count)                                                                              \
    {                                                                                                                  \
        "trainer." name, offsetof(kr_train_numbers, field), dtype, count                                               \
    }
const kr_train_number kr_train_number_rows[] = { NUMBER("step", step, KR_DTYPE_I64, 0),
                                                 NUMBER("positions", positions, KR_DTYPE_I64, 0),
                                                 NUMBER("loader", loader, KR_DTYPE_I64, 5),
                                                 NUMBER("random", random, KR_DTYPE_I64, 2),
                                                 NUMBER("scores", scores, KR_DTYPE_I64, 2),
                                                 NUMBER("eval_step", eval_step, KR_DTYPE_I64, 0),
                                                 NUMBER("best_step", best_step, KR_DTYPE_I64, 0),
                                                 NUMBER("last", last, KR_DTYPE_F64, 3),
                                                 NUMBER("eval", eval, KR_DTYPE_F64, 2),
                                                 NUMBER("best", best, KR_DTYPE_F64, 0),
                                                 { NULL, 0, KR_DTYPE_F64, 0 } };

/* ---- training.safetensors ---- */

static kr_train_numbers numbers_of(const kr_trainer *t)
{
    const kr_train_progress *p = &t->progress;
    const kr_loader_position at = kr_loader_snapshot(t->loader);
    return (kr_train_numbers){
        .step = p->step,
        .positions = p->n_positions,
        .loader = { (int64_t)at.seed, at.epoch, at.step, at.count, at.steps_per_epoch },
        .random = { (int64_t)t->ctx->seed, (int64_t)t->ctx->stream },
        .scores = { p->n_scored, p->n_right },
        .eval_step = p->eval_step,
        .best_step = p->best_step,
        .last = { p->loss, p->lr, p->grad_norm },
        .eval = { p->eval_loss, p->eval_accuracy },
        .best = p->best_loss,
    };
}

bool kr_weight_is_separate(const kr_trainer *t, int64_t i)
{
    const kr_tensor *w = kr_params_at(t->params, i)->tensor;
    return t->optimizer->options.ema_decay > 0 || (t->model && t->model->stored[i] != kr_tensor_dtype(w));
}

static bool add_weights(const kr_trainer *t, kr_tensor_writer *w, const char *prefix, bool only_separate)
{
    enum { NAME_MOST = 512 };
    for (int64_t i = 0; i < kr_params_count(t->params); i++) {
        const kr_param_row *row = kr_params_at(t->params, i);
        char name[NAME_MOST];
        if (only_separate && !kr_weight_is_separate(t, i)) continue;
        const int length = snprintf(name, sizeof name, "%s%s", prefix, row->name);
        if (!kr_require(t->ctx, length < NAME_MOST, KR_ERR_ARG, OP ": the name of %s is too long for a file",
                        row->name) ||
            kr_tensor_writer_add(w, name, kr_tensor_dtype(row->tensor), kr_tensor_shape(row->tensor),
                                 kr_tensor_data(row->tensor)) != KR_OK)
            return false;
    }
    return true;
}

static bool write_training(const kr_trainer *t, const char *path)
{
    const kr_train_numbers numbers = numbers_of(t);
    kr_tensor_writer *w = kr_tensor_writer_create(t->ctx);
    bool ok = w && kr_tensor_writer_add_metadata(w, "format", "krait.training") == KR_OK &&
              kr_tensor_writer_add_metadata(w, "version", "1") == KR_OK;
    for (const kr_train_number *row = kr_train_number_rows; ok && row->name; row++)
        ok = kr_tensor_writer_add(w, row->name, row->dtype, row->count ? KR_SHAPE(row->count) : KR_SCALAR,
                                  (const char *)&numbers + row->offset) == KR_OK;
    ok = ok && add_weights(t, w, KR_WEIGHTS_PREFIX, true) &&
         (t->ranks > 1 ? kr_optimizer_add_steps(t->optimizer, w) : kr_optimizer_snapshot(t->optimizer, w) == KR_OK) &&
         kr_tensor_writer_save(w, path, KR_CONTAINER_SAFETENSORS) == KR_OK;
    kr_tensor_writer_destroy(w);
    return ok;
}

/* What this rank keeps of the optimizer. */
static bool write_share(const kr_trainer *t, const char *path)
{
    kr_tensor_writer *w = kr_tensor_writer_create(t->ctx);
    const bool ok = w && kr_tensor_writer_add_metadata(w, "format", "krait.training.share") == KR_OK &&
                    kr_optimizer_add_pieces(t->optimizer, w) &&
                    kr_tensor_writer_save(w, path, KR_CONTAINER_SAFETENSORS) == KR_OK;
    kr_tensor_writer_destroy(w);
    return ok;
}

/* ---- the model ---- */

static bool write_table(const kr_trainer *t, const char *path)
{
    kr_tensor_writer *w = kr_tensor_writer_create(t->ctx);
    const bool ok =
        w && add_weights(t, w, "", false) && kr_tensor_writer_save(w, path, KR_CONTAINER_SAFETENSORS) == KR_OK;
    kr_tensor_writer_destroy(w);
    return ok;
}

/* The weights for inference: the averaged ones, if there are any. Rank 0 writes them; the others give it their averages. */
static bool write_model(const kr_trainer *t, kr_run_folder *f, const char *step_path)
{
    const char *path = kr_run_path(f, step_path, KR_MODEL_FILE);
    const bool has_ema = t->optimizer->options.ema_decay > 0;
    if ((!path && t->ranks == 1) || (has_ema && kr_optimizer_use_ema(t->optimizer, true) != KR_OK)) return false;
    bool ok = path != NULL;
    if (ok && t->rank == 0) ok = t->model ? kr_model_save(t->model, step_path, NULL) == KR_OK : write_table(t, path);
    const kr_held_error held = kr_hold_error(t->ctx);
    if (has_ema) kr_optimizer_use_ema(t->optimizer, false);
    kr_return_error(t->ctx, &held);
    return ok && !kr_ctx_failed(t->ctx);
}

/* ---- a checkpoint ---- */

static bool copy_extra_files(const kr_trainer *t, kr_run_folder *f, const char *to)
{
    for (int i = 0; i < t->o.n_extra_files; i++) {
        const char *from = t->o.extra_files[i], *path = kr_run_path(f, to, from + kr_path_folder_length(from));
        if (!path || !kr_file_copy(f->ctx, from, path)) return false;
    }
    return true;
}

/* The files that a rank writes. */
static bool write_files(const kr_trainer *t, kr_run_folder *f, const char *step_path, kr_fingerprint *share)
{
    const char *training = kr_run_path(f, step_path, KR_TRAINING_FILE);
    const char *state = kr_run_path(f, step_path, KR_STATE_FILE);
    const char *own = kr_share_path(f, step_path, t->rank, t->ranks);
    if (!write_model(t, f, step_path) || !training || !state || !own) return false;
    if (t->ranks > 1 && (!write_share(t, own) || !kr_fingerprint_of(f->ctx, own, share))) return false;
    return t->rank > 0 ||
           (write_training(t, training) && (!t->carried || kr_state_save(t->carried, t->net, state) == KR_OK) &&
            copy_extra_files(t, f, step_path));
}

/* Of one rank: has it failed? Of several, collective: has one of them? */
static bool all_are_fine(const kr_trainer *t)
{
    return t->ranks > 1 ? kr_comm_agree(t->comm) == KR_OK : !kr_ctx_failed(t->ctx);
}

/* Removes an existing checkpoint of this name: an earlier run could not read it, or its save failed after the
 * rename. */
static bool put_in_place(const kr_trainer *t, kr_run_folder *f, const char *hidden)
{
    const char *path = kr_run_step_path(f, t->progress.step);
    const char *old = kr_run_path(f, f->checkpoints, KR_HIDDEN "old");
    if (!path || !old) return false;
    const bool has_old = kr_path_kind_of(path) != KR_PATH_NONE;
    return (!has_old || kr_path_move(f->ctx, path, old)) && kr_path_move(f->ctx, hidden, path) &&
           kr_folder_sync(f->ctx, f->checkpoints) && (!has_old || kr_path_remove(f->ctx, old));
}

/* Rank 0 completes the checkpoint when all files are on disk. */
static bool commit(const kr_trainer *t, kr_run_folder *f, const char *hidden, const kr_fingerprint *shares)
{
    return t->rank > 0 || (kr_manifest_write(f, hidden, t->ranks, shares) && kr_folder_sync(f->ctx, hidden) &&
                           put_in_place(t, f, hidden));
}

static void discard(const kr_trainer *t, kr_run_folder *f, const char *hidden)
{
    const kr_held_error held = kr_hold_error(f->ctx);
    if (hidden && t->rank == 0) kr_path_remove(f->ctx, hidden);
    kr_return_error(f->ctx, &held);
}

static bool write_checkpoint(const kr_trainer *t, kr_run_folder *f)
{
    const char *hidden = kr_run_path(f, f->checkpoints, KR_HIDDEN "new");
    kr_fingerprint *shares = kr_arena_alloc(&f->arena, (size_t)t->ranks * sizeof *shares), own = { 0 };
    if (!shares) kr_fail(f->ctx, KR_ERR_NOMEM, "no memory for the fingerprints of %d ranks", t->ranks);
    else if (hidden && t->rank == 0) kr_folder_make(f->ctx, hidden);
    if (!all_are_fine(t)) return false;
    write_files(t, f, hidden, &own);
    if (all_are_fine(t) && (t->ranks == 1 || kr_comm_gather(t->comm, &own, shares, sizeof own) == KR_OK)) {
        commit(t, f, hidden, shares);
        if (all_are_fine(t)) return true;
    }
    discard(t, f, hidden);
    return false;
}

/* ---- the folder around it ---- */

/* The model's small files are the same for the whole run; config.json is written last. */
static bool write_folder(kr_trainer *t, kr_run_folder *f)
{
    static const char *const small[] = { "generation_config.json", KR_CONFIG_FILE };
    const char *step_path = kr_run_step_path(f, t->progress.step);
    const char *from = step_path ? kr_run_path(f, step_path, KR_MODEL_FILE) : NULL;
    const char *to = kr_run_path(f, f->path, KR_MODEL_FILE), *spare = kr_run_path(f, f->path, KR_HIDDEN "model");
    if (!from || !to || !spare || !kr_file_share(f->ctx, from, to, spare)) return false;
    if (t->has_written_folder) return true;
    if (!copy_extra_files(t, f, f->path)) return false;
    for (int i = 0; i < 2; i++) {
        from = kr_run_path(f, step_path, small[i]);
        to = kr_run_path(f, f->path, small[i]);
        if (!from || !to || (kr_path_kind_of(from) == KR_PATH_FILE && !kr_file_copy(f->ctx, from, to))) return false;
    }
    return t->has_written_folder = true;
}

/* Also if it was the best before: the link of a killed process may be outdated. */
static bool link_best(const kr_trainer *t, kr_run_folder *f)
{
    const char *step_path = kr_run_step_path(f, t->progress.best_step);
    const char *path = kr_run_path(f, f->path, "best"), *spare = kr_run_path(f, f->path, KR_HIDDEN "best");
    if (!step_path || !path || !spare) return false;
    if (!t->o.keep_best || t->progress.best_step == 0 || kr_path_kind_of(step_path) != KR_PATH_FOLDER) return true;
    bool is_made = false;
    const char *target = step_path + strlen(f->path) + (f->path[strlen(f->path) - 1] != '/');
    if (!kr_path_link(f->ctx, target, path, spare, &is_made)) return false;
    if (!is_made)
        kr_note(f->ctx, KR_LOG_WARNING, "%s: symbolic links are not supported here; the best checkpoint is %s", path,
                target);
    return true;
}

/* Rank 0 alone changes what is around the checkpoint. */
static bool save(kr_trainer *t, kr_run_folder *f)
{
    const bool is_first = t->rank == 0;
    if (is_first && kr_folder_make(f->ctx, f->path) && kr_folder_make(f->ctx, f->checkpoints)) kr_run_clean(f);
    if (!all_are_fine(t) || (t->placed_step != t->progress.step && !write_checkpoint(t, f))) return false;
    t->placed_step = t->progress.step;
    if (is_first && write_folder(t, f) && link_best(t, f) && kr_folder_sync(f->ctx, f->path))
        kr_run_prune(f, t->o.keep_last, t->o.keep_best ? t->progress.best_step : 0);
    return all_are_fine(t);
}

kr_status kr_trainer_save(kr_trainer *t)
{
    if (!t) return KR_ERR_ARG;
    if (kr_trainer_ready(t) && !t->o.folder)
        kr_fail(t->ctx, KR_ERR_STATE, OP ": options.folder is NULL: checkpoints need a folder");
    if (!kr_trainer_enter(t)) return t->ctx->status;
    kr_run_folder f;
    if (kr_run_folder_open(&f, t->ctx, t->o.folder)) kr_trainer_check_weights(t);
    if (all_are_fine(t) && save(t, &f)) {
        t->saved_step = t->progress.step;
        t->progress.is_saved = true;
    } else if (t->ctx->status != KR_ERR_IO) {
        kr_blame(t->ctx, OP);
    }
    kr_run_folder_close(&f);
    return t->ctx->status;
}
