/* checkpoint_read.c - resumes from the newest checkpoint of a folder.
 *
 * All files are read and checked against the run before it changes, except for the weights: the files of optimizer and
 * state can only be checked against the weights of the checkpoint. So the weights are loaded first, and the old ones
 * are kept until all checks pass.
 */
#include "train/checkpoint_file.h"

#include "base/device_memory.h"
#include "io/file.h"
#include "io/quote.h"
#include "tape/tape_impl.h"
#include "train/optimizer_impl.h"

#include <stdio.h>

#define OP "trainer.resume"
#define QUOTED(s) kr_quote_of((s), strlen(s)).text

typedef struct loading {
    kr_trainer *t;
    kr_ctx *ctx;
    kr_run_folder *folder;
    const char *step_path;
    int64_t step;           /* by its name */
    kr_tensor_file **files; /* training.safetensors, and the shares of ranks */
    int nfiles;
    kr_tensor_file *weights; /* of the model */
    kr_train_numbers numbers;
    kr_state *state;
    void *old; /* the weights before, one after another */
    size_t old_bytes;
} loading;

/* ---- numbers ---- */

static bool read_number(loading *l, const kr_train_number *row)
{
    const kr_tensor_file_item *item = kr_tensor_file_find(l->files[0], row->name);
    const kr_shape shape = row->count ? KR_SHAPE(row->count) : KR_SCALAR;
    return kr_require(l->ctx,
                      item && item->is_native && item->dtype == row->dtype && kr_shape_equal(&item->shape, &shape),
                      KR_ERR_FORMAT, "tensor '%s' is missing, or not %s %s", row->name, kr_dtype_name(row->dtype),
                      KR_TEXT_OF_SHAPE(&shape)) &&
           kr_tensor_file_read(l->files[0], item, row->dtype, (char *)&l->numbers + row->offset, item->count) == KR_OK;
}

static bool check_count(loading *l, const char *name, int64_t n, int64_t most)
{
    return kr_require(l->ctx, n >= 0 && n <= most, KR_ERR_FORMAT,
                      "tensor 'trainer.%s' holds %lld, but must be from 0 to %lld", name, (long long)n,
                      (long long)most);
}

static bool read_numbers(loading *l)
{
    const int64_t many = INT64_C(1) << 53;
    const char *format = kr_tensor_file_metadata(l->files[0], "format"),
               *version = kr_tensor_file_metadata(l->files[0], "version");
    if (!kr_require(l->ctx, format && strcmp(format, "krait.training") == 0, KR_ERR_FORMAT,
                    "not a training checkpoint of Krait: metadata 'format' is not 'krait.training'") ||
        !kr_require(l->ctx, version && strcmp(version, "1") == 0, KR_ERR_FORMAT,
                    "the checkpoint has version '%s' of the format, but this library reads version 1",
                    version ? QUOTED(version) : ""))
        return false;
    for (const kr_train_number *row = kr_train_number_rows; row->name; row++)
        if (!read_number(l, row)) return false;
    const kr_train_numbers *n = &l->numbers;
    return kr_require(l->ctx, n->step == l->step, KR_ERR_FORMAT, "its name says step %lld, but it is of step %lld",
                      (long long)l->step, (long long)n->step) &&
           check_count(l, "positions", n->positions, many) && check_count(l, "scores", n->scores[0], many) &&
           check_count(l, "scores", n->scores[1], n->scores[0]) && check_count(l, "eval_step", n->eval_step, n->step) &&
           check_count(l, "best_step", n->best_step, n->step);
}

/* ---- weights ---- */

/* Loads the trained values of a parameter: from training.safetensors, else from the model file. */
static bool read_weight(loading *l, int64_t i)
{
    enum { NAME_MOST = 512 };
    const kr_trainer *t = l->t;
    const kr_param_row *row = kr_params_at(t->params, i);
    const kr_dtype dtype = kr_tensor_dtype(row->tensor);
    const kr_shape shape = kr_tensor_shape(row->tensor);
    const int64_t count = kr_count_of(row->tensor);
    char name[NAME_MOST];
    snprintf(name, sizeof name, KR_WEIGHTS_PREFIX "%s", row->name);
    const kr_tensor_file_item *separate = kr_tensor_file_find(l->files[0], name);
    const char *model_name = t->model ? kr_layout_parameter(t->model->box->config.layout, row->name) : row->name;
    const kr_tensor_file_item *item = separate ? NULL : kr_tensor_file_find(l->weights, model_name);
    if (!kr_require(l->ctx, separate || item, KR_ERR_FORMAT,
                    "it belongs to another model: there is no tensor '%s' in it", model_name))
        return false;
    const kr_shape got = separate ? separate->shape : item->shape;
    if (!kr_require(l->ctx, kr_shape_equal(&got, &shape), KR_ERR_FORMAT,
                    "it belongs to another model: tensor '%s' is %s, but here it is %s", row->name,
                    KR_TEXT_OF_SHAPE(&got), KR_TEXT_OF_SHAPE(&shape)) ||
        !kr_require(l->ctx, (separate ? separate->is_native && separate->dtype == dtype : item->dtype == dtype),
                    KR_ERR_FORMAT, "it belongs to another model: tensor '%s' is %s, but here it is %s", row->name,
                    separate ? separate->type : item->type, kr_dtype_name(dtype)))
        return false;
    kr_wrote(row->tensor);
    return (separate ? kr_tensor_file_read(l->files[0], separate, dtype, kr_tensor_data(row->tensor), count)
                     : kr_tensor_file_read(l->weights, item, dtype, kr_tensor_data(row->tensor), count)) == KR_OK;
}

static size_t bytes_of(const kr_tensor *x)
{
    return kr_dtype_span(kr_tensor_dtype(x), kr_count_of(x));
}

static bool keep_old(loading *l)
{
    for (int64_t i = 0; i < kr_params_count(l->t->params); i++)
        l->old_bytes += bytes_of(kr_params_at(l->t->params, i)->tensor);
    l->old = kr_memory_alloc(&l->ctx->memory, l->old_bytes);
    if (!l->old) return kr_fail(l->ctx, KR_ERR_NOMEM, "no memory for a copy of %zu bytes of weights", l->old_bytes);
    char *at = l->old;
    for (int64_t i = 0; i < kr_params_count(l->t->params); i++) {
        const kr_tensor *w = kr_params_at(l->t->params, i)->tensor;
        if (!kr_fetch(l->ctx, at, kr_tensor_data(w), bytes_of(w))) return false;
        at += bytes_of(w);
    }
    return true;
}

static void return_old(loading *l)
{
    const char *at = l->old;
    for (int64_t i = 0; at && i < kr_params_count(l->t->params); i++) {
        kr_tensor *w = kr_params_at(l->t->params, i)->tensor;
        kr_wrote(w);
        kr_store(l->ctx, kr_tensor_data(w), at, bytes_of(w));
        at += bytes_of(w);
    }
}

static bool read_weights(loading *l)
{
    for (int64_t i = 0; i < kr_params_count(l->t->params); i++)
        if (!read_weight(l, i)) return false;
    return true;
}

/* ---- the model ---- */

static bool write_config(loading *l, const kr_model_config *config, char **text)
{
    size_t length;
    if (kr_model_config_format(l->ctx, config, KR_LAYOUT_AS_LOADED, NULL, 0, &length) != KR_OK) return false;
    *text = kr_arena_alloc(&l->folder->arena, length + 1);
    if (!*text) return kr_fail(l->ctx, KR_ERR_NOMEM, "no memory for a config of %zu bytes", length);
    return kr_model_config_format(l->ctx, config, KR_LAYOUT_AS_LOADED, *text, length + 1, &length) == KR_OK;
}

/* Isolates the first lines in which two texts differ. */
static void find_difference(char **a, char **b)
{
    size_t at = 0, line = 0;
    for (; (*a)[at] == (*b)[at] && (*a)[at]; at++)
        if ((*a)[at] == '\n') line = at + 1;
    *a += line;
    *b += line;
    (*a)[strcspn(*a, "\n")] = '\0';
    (*b)[strcspn(*b, "\n")] = '\0';
    *a += strspn(*a, " ");
    *b += strspn(*b, " ");
}

/* Models whose parameters are alike may still compute something else. */
static bool check_config(loading *l)
{
    if (!l->t->model) return true;
    kr_model_config *config = kr_model_config_load(l->ctx, l->step_path);
    char *stored = NULL, *own = NULL;
    bool same = config && write_config(l, config, &stored) && write_config(l, &l->t->model->box->config, &own);
    if (same && strcmp(stored, own) != 0) {
        find_difference(&stored, &own);
        same = kr_fail(l->ctx, KR_ERR_FORMAT,
                       "it belongs to another model: its " KR_CONFIG_FILE " has `%s`, but here it is `%s`",
                       QUOTED(stored), QUOTED(own));
    }
    kr_model_config_destroy(config);
    return same;
}

/* ---- all of it ---- */

static bool read_state(loading *l)
{
    const char *path = kr_run_path(l->folder, l->step_path, KR_STATE_FILE);
    if (!path) return false;
    const bool is_there = kr_path_kind_of(path) == KR_PATH_FILE;
    if (!kr_require(l->ctx, is_there == (l->t->carried != NULL), KR_ERR_FORMAT,
                    "it was saved %s a carried state, but this run is one %s", is_there ? "with" : "without",
                    is_there ? "without" : "with"))
        return false;
    if (!is_there) return true;
    l->state = kr_state_load(l->ctx, l->t->net, path);
    return l->state && kr_require(l->ctx, kr_state_batch(l->state) == l->t->loader->options.batch, KR_ERR_FORMAT,
                                  "its state has %lld rows, but batches here have %lld",
                                  (long long)kr_state_batch(l->state), (long long)l->t->loader->options.batch);
}

static bool read_loader(loading *l)
{
    const int64_t *n = l->numbers.loader;
    const kr_loader_position position = {
        .seed = (uint64_t)n[0], .epoch = n[1], .step = n[2], .count = n[3], .steps_per_epoch = n[4]
    };
    return kr_loader_restore(l->t->loader, &position) == KR_OK;
}

/* training.safetensors, and the shares. */
static bool open_files(loading *l, int shares)
{
    const char *path = kr_run_path(l->folder, l->step_path, KR_TRAINING_FILE);
    l->files = kr_arena_alloc(&l->folder->arena, (size_t)(1 + shares) * sizeof(kr_tensor_file *));
    if (!l->files) kr_fail(l->ctx, KR_ERR_NOMEM, "no memory for a list of %d files", shares);
    if (!path || !l->files) return false;
    for (int i = 0; i <= shares; i++) {
        if (i > 0) path = kr_share_path(l->folder, l->step_path, i - 1, shares);
        if (!path || !(l->files[i] = kr_tensor_file_open(l->ctx, path))) return false;
        l->nfiles++;
    }
    return true;
}

/* Pieces of the optimizer are checked here and taken when all ranks have checked theirs. */
static bool read_optimizer(loading *l, bool takes)
{
    kr_optimizer *opt = l->t->optimizer;
    if (l->nfiles > 1 || opt->ranks > 1)
        return kr_optimizer_restore_pieces(opt, l->nfiles, (const kr_tensor_file *const *)l->files, takes);
    return takes || kr_optimizer_restore(opt, l->files[0]) == KR_OK;
}

static bool read_all(loading *l)
{
    int shares = 0;
    const kr_trainer *t = l->t;
    return kr_manifest_check(l->folder, l->step_path, t->rank, t->ranks, &shares) && open_files(l, shares) &&
           read_numbers(l) && check_config(l) && (l->weights = kr_tensor_file_open(l->ctx, l->step_path)) &&
           keep_old(l) && read_weights(l) && read_state(l) && read_loader(l) && read_optimizer(l, false);
}

static void take_numbers(kr_trainer *t, const kr_train_numbers *n)
{
    t->ctx->seed = (uint64_t)n->random[0];
    t->ctx->stream = (uint64_t)n->random[1];
    t->progress = (kr_train_progress){ .step = n->step,
                                       .n_positions = n->positions,
                                       .loss = n->last[0],
                                       .lr = n->last[1],
                                       .grad_norm = n->last[2],
                                       .n_scored = n->scores[0],
                                       .n_right = n->scores[1],
                                       .eval_step = n->eval_step,
                                       .eval_loss = n->eval[0],
                                       .eval_accuracy = n->eval[1],
                                       .best_step = n->best_step,
                                       .best_loss = n->best };
    t->placed_step = t->told_step = n->step;
    t->saved_step = -1; /* the process may have been killed between the checkpoint and the rest of the folder */
}

static void load(kr_trainer *t, kr_run_folder *f, const char *step_path, int64_t step)
{
    loading l = { .t = t, .ctx = t->ctx, .folder = f, .step_path = step_path, .step = step };
    const kr_loader_position position = kr_loader_snapshot(t->loader);
    bool is_read = read_all(&l);
    if (t->ranks > 1) is_read = kr_comm_agree(t->comm) == KR_OK;
    if (is_read && read_optimizer(&l, true)) {
        take_numbers(t, &l.numbers);
        if (l.state) {
            kr_state_destroy(t->carried);
            t->carried = l.state;
            l.state = NULL;
        }
    } else {
        return_old(&l);
        kr_loader_return(t->loader, &position);
        if (t->ctx->status != KR_ERR_IO) kr_blame(t->ctx, OP ": %s", step_path);
    }
    kr_memory_free(&t->ctx->memory, l.old, l.old_bytes);
    kr_state_destroy(l.state);
    kr_tensor_file_close(l.weights);
    while (l.nfiles > 0) kr_tensor_file_close(l.files[--l.nfiles]);
}

/* The newest complete checkpoint; incomplete ones are reported. NULL: there is none, or an error. */
static const char *find(kr_run_folder *f, int64_t *step)
{
    int64_t *steps, count;
    if (!kr_run_steps(f, &steps, &count)) return NULL;
    for (int64_t i = 0; i < count; i++) {
        const char *path = kr_run_step_path(f, *step = steps[i]);
        if (!path || kr_checkpoint_is_there(f, path)) return path;
        kr_note(f->ctx, KR_LOG_WARNING, "%s is incomplete and was skipped", path);
    }
    return NULL;
}

/* Updates the folder to the checkpoint's step; if that fails, it does not count as this run's last save. */
static void finish_folder(kr_trainer *t)
{
    if (kr_trainer_save(t) == KR_OK) {
        t->progress.is_saved = false;
        return;
    }
    kr_note(t->ctx, KR_LOG_WARNING, "%s", kr_ctx_message(t->ctx));
    kr_ctx_clear(t->ctx);
}

/* Of several ranks, collective: the checkpoint that rank 0 has found, for all; NULL: there is none, or an error. */
static const char *find_for_all(kr_trainer *t, kr_run_folder *f, bool is_open, int64_t *step)
{
    const char *path = NULL;
    *step = -1;
    if (is_open && t->rank == 0) {
        kr_run_clean(f);
        path = find(f, step);
        if (!path) *step = -1;
    }
    if (t->ranks == 1) return path;
    if (kr_comm_agree(t->comm) != KR_OK || kr_comm_broadcast(t->comm, 0, step, sizeof *step) != KR_OK || *step < 0)
        return NULL;
    return t->rank == 0 ? path : kr_run_step_path(f, *step);
}

kr_status kr_trainer_resume(kr_trainer *t)
{
    if (!t) return KR_ERR_ARG;
    if (!kr_trainer_ready(t) && t->ranks > 1) kr_comm_agree(t->comm); /* the others wait for this rank */
    if (!kr_trainer_ready(t)) return t->ctx->status;
    if (!kr_require(t->ctx, t->o.folder != NULL, KR_ERR_STATE,
                    OP ": options.folder is NULL: a resumed run needs a folder"))
        return t->ctx->status;
    kr_run_folder f;
    int64_t step;
    const bool is_open = kr_run_folder_open(&f, t->ctx, t->o.folder);
    const char *path = find_for_all(t, &f, is_open, &step);
    if (path) load(t, &f, path, step);
    t->has_taken_folder = !kr_ctx_failed(t->ctx);
    if (path && t->has_taken_folder) finish_folder(t);
    kr_run_folder_close(&f);
    return t->ctx->status;
}

bool kr_trainer_take_folder(kr_trainer *t)
{
    if (!t->o.folder || t->has_taken_folder) return true;
    kr_run_folder f;
    int64_t *steps, count;
    t->has_taken_folder = kr_run_folder_open(&f, t->ctx, t->o.folder) && kr_run_steps(&f, &steps, &count) &&
                          kr_require(t->ctx, count == 0, KR_ERR_STATE,
                                     "trainer: %s has checkpoints already, up to step %lld; call kr_trainer_resume to "
                                     "continue from there, or choose another folder",
                                     t->o.folder, (long long)steps[0]);
    kr_run_folder_close(&f);
    return t->has_taken_folder;
}

bool kr_trainer_enter(kr_trainer *t)
{
    const bool is_ready = kr_trainer_ready(t) && kr_trainer_take_folder(t);
    if (t->ranks == 1 || (is_ready && t->has_entered)) return is_ready;
    return t->has_entered = kr_comm_agree(t->comm) == KR_OK && is_ready;
}
