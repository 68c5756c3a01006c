/* checkpoint_file.h - a run's folder, and the contents of a checkpoint.
 *
 *   FOLDER/config.json, model.safetensors, ...   the model as it was last saved
 *   FOLDER/best -> checkpoints/step-00000400     the lowest validation loss
 *   FOLDER/checkpoints/step-00000500/
 *       config.json, model.safetensors, ...      a model folder: the averaged weights, if there are any
 *       training.safetensors                     optimizer, numbers below; weights that model.safetensors rounds or lacks
 *       training-00003-of-00008.safetensors      of 8 ranks: what rank 3 keeps of the optimizer
 *       state.safetensors                        carried states, if there are any
 *       checkpoint.json                          lengths and fingerprints of these files
 * Names that begin with ".krait-" are temporary: those of a killed process are removed.
 */
#ifndef KR_TRAIN_CHECKPOINT_FILE_H
#define KR_TRAIN_CHECKPOINT_FILE_H

#include "train/trainer.h"

#define KR_CHECKPOINTS "checkpoints"
#define KR_MODEL_FILE "model.safetensors"
#define KR_CONFIG_FILE "config.json"
#define KR_TRAINING_FILE "training.safetensors"
#define KR_STATE_FILE "state.safetensors"
#define KR_MANIFEST_FILE "checkpoint.json"
#define KR_HIDDEN ".krait-"
#define KR_WEIGHTS_PREFIX "weights."

/* A path, and the arena that it is in. */
typedef struct kr_run_folder {
    kr_ctx *ctx;
    kr_arena arena;
    const char *path, *checkpoints;
} kr_run_folder;

/* False with the context's error set; close in any case. */
bool kr_run_folder_open(kr_run_folder *f, kr_ctx *ctx, const char *path);
void kr_run_folder_close(kr_run_folder *f);

/* folder/name; NULL with the context's error set. */
const char *kr_run_path(kr_run_folder *f, const char *folder, const char *name);

/* "step-00000500" in the folder's checkpoints. */
const char *kr_run_step_path(kr_run_folder *f, int64_t step);

/* The steps that there are checkpoints of, the newest first, in the arena. False with the context's error set. */
bool kr_run_steps(kr_run_folder *f, int64_t **steps, int64_t *count);

/* Removes temporary files; a file that cannot be removed remains, with a warning. */
void kr_run_clean(kr_run_folder *f);

/* Removes all checkpoints but the last keep_last (0: all stay) and `best`, with a warning where that fails. */
void kr_run_prune(kr_run_folder *f, int keep_last, int64_t best);

/* ---- numbers ---- */

typedef struct kr_train_numbers {
    int64_t step, positions;
    int64_t loader[5]; /* kr_loader_position, in its order */
    int64_t random[2]; /* seed, stream */
    int64_t scores[2]; /* of the last step: scored, right */
    int64_t eval_step, best_step;
    double last[3]; /* of the last step: loss, lr, norm of the gradient */
    double eval[2]; /* loss, accuracy */
    double best;    /* loss */
} kr_train_numbers;

typedef struct kr_train_number {
    const char *name;
    size_t offset; /* in kr_train_numbers */
    kr_dtype dtype;
    int count; /* 0: a scalar */
} kr_train_number;

/* Ends with a name that is NULL. */
extern const kr_train_number kr_train_number_rows[];

/* ---- fingerprints of files ---- */

typedef struct kr_fingerprint {
    size_t bytes;
    char hash[17];
} kr_fingerprint;

bool kr_fingerprint_of(kr_ctx *ctx, const char *path, kr_fingerprint *print);

/* Is the checkpoint in `step_path` complete: is there a checkpoint.json? */
bool kr_checkpoint_is_there(kr_run_folder *f, const char *step_path);

/* Writes checkpoint.json, with the fingerprints of `ranks` shares (1: there are none). */
bool kr_manifest_write(kr_run_folder *f, const char *step_path, int ranks, const kr_fingerprint *shares);

/* Verifies the files against it: those whose number is `rank` modulo `ranks`. *shares: the number of shares, or 0. */
bool kr_manifest_check(kr_run_folder *f, const char *step_path, int rank, int ranks, int *shares);

/* The path of a rank's share. */
const char *kr_share_path(kr_run_folder *f, const char *step_path, int rank, int ranks);

/* Must this parameter be stored separately in training.safetensors, because model.safetensors does not have its exact
 * values? */
bool kr_weight_is_separate(const kr_trainer *t, int64_t i);

#endif
