/* running.c - a small run to train. */
#define _POSIX_C_SOURCE 200809L
#include "tests/nn/own_kinds.h"
#include "tests/train/running.h"

#include "base/device_memory.h"
#include "base/hash.h"
#include "nn/params_impl.h"
#include "train/trainer.h"

#include "train/optimizer_impl.h"

/* 403 bytes: no multiple of a row or of a batch, so that epochs end within a few steps. */
static const char corpus[] =
    "The woods are lovely, dark and deep. A stack of layers reads a row of tokens, and leaves behind a state of the "
    "same size, however long the row was. To go on from a state is to go on from all that was read. A checkpoint holds "
    "the weights, what the optimizer remembers of them, the place in the data, and the random stream; a run that is "
    "killed and begun again ends with the same bits as one that was not.";

kr_model *run_model(kr_ctx *ctx, kr_family family, kr_dtype dtype)
{
    kr_model_config *config = kr_model_config_create(ctx);
    own_config own = { .label = "" };
    if (family >= KR_FAMILY_REGISTERED) {
        kr_block_config_init(ctx, family, &own, sizeof own);
        own.head.dtype = dtype;
        config->registered = &own;
    }
    config->family = family;
    kr_model_config_set_d_model(config, 16);
    config->mamba1->state_rank = 4;
    config->mamba2->state_rank = config->mamba3->state_rank = 8;
    config->mamba2->per_head_dim = config->mamba3->per_head_dim = 8;
    config->mamba1->dtype = config->mamba2->dtype = config->mamba3->dtype = dtype;
    config->layers->n_layers = 2;
    config->network->vocab_size = 256;
    kr_model *model = kr_model_create(ctx, config);
    kr_model_config_destroy(config);
    return model;
}

kr_loader *run_loader(kr_source *source, bool carry, kr_data_part part)
{
    kr_loader_options o;
    kr_loader_options_init(&o);
    o.batch = 3;
    o.length = 11;
    o.seed = 5;
    o.carry = carry;
    o.part = part;
    o.validation_fraction = 0.2;
    return kr_loader_create(source, &o);
}

static kr_ctx *context_on(const char *device)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = device;
    return kr_ctx_create(&options);
}

run run_prepare(const run_setup *s)
{
    run r = { .ctx = s->device ? context_on(s->device) : kr_test_ctx(s->threads ? s->threads : 1, NULL) };
    kr_ctx_seed(r.ctx, 7);
    r.tok = kr_tokenizer_bytes(r.ctx);
    r.source = kr_source_string(r.ctx, corpus, sizeof corpus - 1, r.tok, NULL);
    r.loader = run_loader(r.source, s->carry, KR_DATA_PART_TRAIN);
    r.validation = run_loader(r.source, s->carry, KR_DATA_PART_VALIDATION);
    r.model = run_model(r.ctx, s->family, s->dtype);
    kr_train_options *o = &r.options;
    kr_train_options_init(o);
    o->steps = s->steps;
    o->accumulate = s->accumulate ? s->accumulate : 1;
    kr_optimizer_options_init(&r.optimizer);
    r.optimizer.kind = s->kind;
    r.optimizer.clip_norm = 1;
    r.optimizer.ema_decay = s->has_ema ? 0.9 : 0;
    kr_lr_schedule_init(&r.schedule);
    r.schedule.kind = KR_LR_COSINE;
    r.schedule.max_lr = s->max_lr > 0 ? s->max_lr : 1e-2;
    r.schedule.warmup_steps = s->steps > 0 && s->steps < 4 ? s->steps - 1 : 3;
    o->loss_fn = s->loss_fn;
    o->dropout = s->dropout;
    o->loss_user = s->user;
    o->validation = s->has_validation ? r.validation : NULL;
    o->eval_every = s->eval_every;
    o->folder = s->folder;
    o->save_every = s->save_every;
    o->keep_last = s->keep_last ? s->keep_last < 0 ? 0 : s->keep_last : 2;
    o->on_step = s->on_step;
    o->user = s->user;
    return r;
}

kr_trainer *run_trainer(run *r, kr_model *model, kr_loader *loader)
{
    r->options.optimizer = &r->optimizer;
    r->options.schedule = &r->schedule;
    return kr_trainer_create(r->ctx, model, loader, &r->options);
}

run run_begin(const run_setup *setup)
{
    run r = run_prepare(setup);
    r.trainer = run_trainer(&r, r.model, r.loader);
    CHECK_OK(r.ctx);
    return r;
}

void run_end(run *r)
{
    CHECK_OK(r->ctx);
    kr_trainer_destroy(r->trainer);
    kr_model_destroy(r->model);
    kr_loader_destroy(r->validation);
    kr_loader_destroy(r->loader);
    kr_source_destroy(r->source);
    kr_tokenizer_destroy(r->tok);
    kr_ctx_destroy(r->ctx);
}

uint64_t run_hash(const run *r)
{
    const kr_optimizer *opt = kr_trainer_optimizer(r->trainer);
    uint64_t hash = kr_params_values_hash(opt->params);
    hash = kr_hash_at(opt->ctx, hash, opt->state, opt->state_bytes);
    hash = kr_hash_bytes(hash, opt->steps, (size_t)opt->count * sizeof *opt->steps);
    return kr_hash_word(hash, (uint64_t)opt->step);
}

void run_steps(run *r, int64_t n, double *losses)
{
    for (int64_t i = 0; i < n; i++) {
        CHECK(kr_trainer_step(r->trainer) == KR_OK, "step %lld is not made: %s", (long long)i, kr_ctx_message(r->ctx));
        losses[i] = kr_trainer_progress(r->trainer).loss;
    }
}

/* ---- files ---- */

int remove_tree(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char name[1024];
        struct stat info;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (lstat(name, &info) == 0 && S_ISDIR(info.st_mode)) {
            count += remove_tree(name);
        } else {
            remove(name);
            count++;
        }
    }
    if (dir) closedir(dir);
    rmdir(path);
    return count;
}

int64_t newest_step(const char *run_folder)
{
    char path[600];
    int64_t newest = -1;
    snprintf(path, sizeof path, "%s/checkpoints", run_folder);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        const int64_t step = strncmp(e->d_name, "step-", 5) == 0 ? strtoll(e->d_name + 5, NULL, 10) : -1;
        if (step > newest) newest = step;
    }
    if (dir) closedir(dir);
    return newest;
}
