/* running.h - a small run to train: data, a model of any family, a trainer over a folder. For programs that define
 * _POSIX_C_SOURCE. */
#ifndef KR_TESTS_TRAIN_RUNNING_H
#define KR_TESTS_TRAIN_RUNNING_H

#include "tests/temp_folder.h"

/* What a test varies. */
typedef struct run_setup {
    kr_family family;
    kr_dtype dtype;     /* of the matrices; 0: f32 */
    int threads;        /* 0: 1 */
    const char *device; /* NULL: what KR_DEVICE says */
    bool carry, has_ema, has_validation;
    kr_optimizer_kind kind;
    int64_t accumulate; /* 0: 1 */
    int64_t steps, save_every, eval_every;
    int keep_last;      /* 0: 2; -1: all */
    const char *folder; /* NULL: nothing is saved */
    double max_lr;      /* 0: 1e-2 */
    double dropout;
    kr_loss_fn *loss_fn;
    kr_step_fn *on_step;
    void *user;
} run_setup;

typedef struct run {
    kr_ctx *ctx;
    kr_tokenizer *tok;
    kr_source *source;
    kr_loader *loader, *validation;
    kr_model *model;
    kr_train_options options; /* run_trainer lets them point at the next two */
    kr_optimizer_options optimizer;
    kr_lr_schedule schedule;
    kr_trainer *trainer;
} run;

kr_model *run_model(kr_ctx *ctx, kr_family family, kr_dtype dtype);
kr_loader *run_loader(kr_source *source, bool carry, kr_data_part part);

/* All of a run but its trainer, whose options are filled in; then the trainer too. */
run run_prepare(const run_setup *setup);
run run_begin(const run_setup *setup);
void run_end(run *r);

/* The trainer of r's options; NULL after an error. */
kr_trainer *run_trainer(run *r, kr_model *model, kr_loader *loader);

/* Weights and what the optimizer keeps of them, as one number; the losses of n steps. */
uint64_t run_hash(const run *r);
void run_steps(run *r, int64_t n, double *losses);

/* Removes all that is in a folder, at any depth, and the folder; how many files were there. */
int remove_tree(const char *path);

/* Where the test's folder has its run; stays. */
static inline const char *the_run(void)
{
    static char path[sizeof folder + 8];
    snprintf(path, sizeof path, "%s/run", folder);
    return path;
}

/* Is there something of that name in the test's folder? */
static inline bool is_there(const char *name)
{
    struct stat info;
    return stat(in_folder(name), &info) == 0;
}

int64_t newest_step(const char *run_folder); /* -1: none */

#endif
