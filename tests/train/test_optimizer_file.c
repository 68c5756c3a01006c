/* test_optimizer_file.c - optimizers in files: a run that is resumed continues to the same bits, and what is not the same
 * optimizer's is refused with nothing changed. */
#define _POSIX_C_SOURCE 200809L

#include "tests/temp_folder.h"
#include "tests/train/optimizing.h"

#include "base/device_memory.h"
#include "base/hash.h"
#include "train/optimizer_impl.h"

typedef struct run {
    kr_ctx *ctx;
    kr_params *params;
    kr_optimizer *opt;
} run;

static void set(kr_optimizer_options *o, int kind)
{
    kr_optimizer_options_init(o);
    o->kind = (kr_optimizer_kind)kind;
    o->ema_decay = kind == KR_OPTIMIZER_SGD ? 0 : 0.9;
    o->dampening = 0.5;
    o->clip_norm = 5;
}

static run begin_run(int kind, kr_dtype dtype)
{
    run r = { .ctx = kr_test_ctx(1, NULL) };
    kr_optimizer_options o;
    set(&o, kind);
    r.params = optimizing_table(r.ctx, dtype);
    r.opt = kr_optimizer_create(r.ctx, r.params, &o);
    if (!r.opt) exit(2);
    return r;
}

static void end_run(run *r)
{
    CHECK_OK(r->ctx);
    kr_optimizer_destroy(r->opt);
    kr_params_destroy(r->params);
    kr_ctx_destroy(r->ctx);
}

/* Gradients by number of the step alone; the conv has none in every third. */
static void step(run *r, int number)
{
    for (int64_t i = 0; i < kr_params_count(r->params); i++) {
        kr_tensor *w = kr_params_at(r->params, i)->tensor;
        double g[288];
        for (int e = 0; e < 288; e++) g[e] = sin(1.7 * e + 3.1 * number + (double)i);
        if (i != 2 || number % 3) optimizing_give(r->ctx, w, g);
    }
    kr_optimizer_step(r->opt, 0.01 * (1 + number % 5), 0.5);
}

static void save(run *r, const char *path)
{
    kr_tensor_writer *writer = kr_tensor_writer_create(r->ctx);
    kr_optimizer_snapshot(r->opt, writer);
    IGNORE(kr_tensor_writer_save(writer, path, KR_CONTAINER_SAFETENSORS));
    kr_tensor_writer_destroy(writer);
    CHECK_OK(r->ctx);
}

static void copy_weights(const run *from, const run *to)
{
    for (int64_t i = 0; i < kr_params_count(from->params); i++) {
        const kr_tensor *w = kr_params_at(from->params, i)->tensor;
        kr_test_write(kr_params_at(to->params, i)->tensor, kr_test_copy(w));
    }
}

static void load(run *r, const char *path)
{
    kr_tensor_file *file = kr_tensor_file_open(r->ctx, path);
    IGNORE(kr_optimizer_restore(r->opt, file));
    kr_tensor_file_close(file);
}

/* What is kept, wherever it lies. */
static uint64_t state_hash(const kr_optimizer *opt)
{
    return kr_hash_at(opt->ctx, KR_HASH_BEGIN, opt->state, opt->state_bytes);
}

static bool same_state(const run *a, const run *b)
{
    return a->opt->state_bytes == b->opt->state_bytes && state_hash(a->opt) == state_hash(b->opt) &&
           a->opt->step == b->opt->step &&
           memcmp(a->opt->steps, b->opt->steps, (size_t)a->opt->count * sizeof *a->opt->steps) == 0;
}

/* 20 steps, and 10 + save + load + 10. */
TEST(optimizer_resumes_to_the_bit)
{
    begin_folder();
    for (int kind = KR_OPTIMIZER_ADAMW; kind <= KR_OPTIMIZER_MUON; kind++)
        for (int dtype = KR_DTYPE_F32; dtype <= KR_DTYPE_F16; dtype++) {
            run whole = begin_run(kind, (kr_dtype)dtype), first = begin_run(kind, (kr_dtype)dtype),
                second = begin_run(kind, (kr_dtype)dtype);
            for (int t = 0; t < 20; t++) step(&whole, t);
            for (int t = 0; t < 10; t++) step(&first, t);
            save(&first, in_folder("state"));
            copy_weights(&first, &second);
            load(&second, in_folder("state"));
            CHECK_OK(second.ctx);
            CHECK(same_state(&first, &second), "the state is not the same after loading");
            for (int t = 10; t < 20; t++) step(&second, t);
            CHECK(same_state(&whole, &second), "%s %s: the state is not the same after resuming",
                  kr_optimizer_kind_name((kr_optimizer_kind)kind), kr_dtype_name((kr_dtype)dtype));
            optimizing_same_weights(whole.params, second.params);
            end_run(&whole);
            end_run(&first);
            end_run(&second);
        }
    files_in_folder(true);
    rmdir(folder);
}

TEST(optimizer_files_have_documented_names)
{
    static const char *const wanted[] = { "optimizer.step",
                                          "optimizer.steps",
                                          "optimizer.ema.norm.weight",
                                          "optimizer.m.norm.weight",
                                          "optimizer.v.norm.weight",
                                          "optimizer.master.embed.weight",
                                          "optimizer.ema.embed.weight",
                                          "optimizer.m.embed.weight",
                                          "optimizer.v.embed.weight",
                                          "optimizer.master.conv.weight",
                                          "optimizer.ema.conv.weight",
                                          "optimizer.m.conv.weight",
                                          "optimizer.v.conv.weight",
                                          "optimizer.master.in_proj.weight",
                                          "optimizer.ema.in_proj.weight",
                                          "optimizer.velocity.in_proj.weight:z",
                                          "optimizer.velocity.in_proj.weight:x",
                                          "optimizer.m.in_proj.weight:dt",
                                          "optimizer.v.in_proj.weight:dt",
                                          "optimizer.velocity.in_proj.weight:rotation",
                                          "optimizer.master.out_proj.weight",
                                          "optimizer.ema.out_proj.weight",
                                          "optimizer.velocity.out_proj.weight:out" };
    begin_folder();
    run r = begin_run(KR_OPTIMIZER_MUON, KR_DTYPE_BF16);
    step(&r, 1);
    save(&r, in_folder("state"));
    kr_tensor_file *file = kr_tensor_file_open(r.ctx, in_folder("state"));
    const int64_t count = sizeof wanted / sizeof *wanted;
    CHECK(kr_tensor_file_count(file) == count, "%lld tensors", (long long)kr_tensor_file_count(file));
    for (int64_t i = 0; i < count; i++) CHECK(kr_tensor_file_find(file, wanted[i]) != NULL, "%s is missing", wanted[i]);
    CHECK(strcmp(kr_tensor_file_metadata(file, "optimizer.kind"), "muon") == 0, "the kind");
    kr_tensor_file_close(file);
    end_run(&r);
    files_in_folder(true);
    rmdir(folder);
}

/* ---- errors ---- */

/* A copy of the file `state` as `changed`, with one thing different. */
typedef struct change {
    const char *leaves_out, *adds, *reshapes, *retypes, *spoils, *counts, *key, *value;
    double with;
} change;

static void write_changed(kr_ctx *ctx, const change *c)
{
    kr_tensor_file *file = kr_tensor_file_open(ctx, in_folder("state"));
    kr_tensor_writer *writer = kr_tensor_writer_create(ctx);
    static float spoiled[512];
    const char *key, *value;
    for (int64_t i = 0; kr_tensor_file_metadata_at(file, i, &key, &value) == KR_OK; i++)
        kr_tensor_writer_add_metadata(writer, key, c->key && strcmp(key, c->key) == 0 ? c->value : value);
    for (int64_t i = 0; i < kr_tensor_file_count(file); i++) {
        const kr_tensor_file_item *item = kr_tensor_file_at(file, i);
        if (c->leaves_out && strcmp(item->name, c->leaves_out) == 0) continue;
        kr_shape shape = item->shape;
        const void *data = item->data;
        if (c->reshapes && strcmp(item->name, c->reshapes) == 0) shape = KR_SHAPE(item->count);
        if (c->spoils && strcmp(item->name, c->spoils) == 0) {
            memcpy(spoiled, data, item->bytes);
            spoiled[item->count / 2] = (float)c->with;
            data = spoiled;
        }
        if (c->counts && strcmp(item->name, c->counts) == 0) {
            const int64_t count = (int64_t)c->with;
            memcpy(spoiled, data, item->bytes);
            memcpy((char *)spoiled + 8 * (item->count / 2), &count, sizeof count);
            data = spoiled;
        }
        kr_tensor_writer_add(writer, item->name,
                             c->retypes && strcmp(item->name, c->retypes) == 0 ? KR_DTYPE_I32 : item->dtype, shape,
                             data);
    }
    if (c->adds) kr_tensor_writer_add(writer, c->adds, KR_DTYPE_F32, KR_SHAPE(2), spoiled);
    IGNORE(kr_tensor_writer_save(writer, in_folder("changed"), KR_CONTAINER_SAFETENSORS));
    kr_tensor_writer_destroy(writer);
    kr_tensor_file_close(file);
    CHECK_OK(ctx);
}

static void refused(run *r, change c, const char *text)
{
    write_changed(r->ctx, &c);
    run before = begin_run((int)r->opt->options.kind, kr_tensor_dtype(kr_params_at(r->params, 1)->tensor));
    load(r, in_folder("changed"));
    CHECK_ERROR(r->ctx, KR_ERR_FORMAT, text);
    CHECK(same_state(r, &before), "changed by a file that was refused: %s", text);
    end_run(&before);
}

TEST(optimizer_load_is_strict)
{
    begin_folder();
    run saved = begin_run(KR_OPTIMIZER_ADAMW, KR_DTYPE_F32), r = begin_run(KR_OPTIMIZER_ADAMW, KR_DTYPE_F32);
    step(&saved, 1);
    save(&saved, in_folder("state"));
    refused(&r, (change){ .leaves_out = "optimizer.v.conv.weight" },
            "optimizer.restore: tensor 'optimizer.v.conv.weight' is missing");
    refused(&r, (change){ .leaves_out = "optimizer.step" }, "optimizer.restore: tensor 'optimizer.step' is missing");
    refused(&r, (change){ .adds = "optimizer.velocity.conv.weight" },
            "optimizer.restore: tensor 'optimizer.velocity.conv.weight' does not belong to this optimizer");
    refused(&r, (change){ .reshapes = "optimizer.m.embed.weight" },
            "optimizer.restore: tensor 'optimizer.m.embed.weight' is [35], but must be [7, 5]");
    refused(&r, (change){ .retypes = "optimizer.m.embed.weight" },
            "optimizer.restore: tensor 'optimizer.m.embed.weight' is of the type I32, but must be f32");
    refused(&r, (change){ .spoils = "optimizer.m.norm.weight", .with = (double)NAN },
            "optimizer.restore: tensor 'optimizer.m.norm.weight' holds nan as element 3, but must be finite");
    refused(&r, (change){ .spoils = "optimizer.v.norm.weight", .with = -1 },
            "optimizer.restore: tensor 'optimizer.v.norm.weight' holds -1 as element 3, but must be finite and not "
            "negative");
    refused(&r, (change){ .counts = "optimizer.steps", .with = -1 },
            "optimizer.restore: tensor 'optimizer.steps' holds -1 as element 2, but must be finite and not negative");
    refused(&r, (change){ .counts = "optimizer.step", .with = 0x1p60 },
            "optimizer.restore: tensor 'optimizer.step' holds 1.15292e+18 as element 0, too many steps");
    refused(&r, (change){ .key = "optimizer.kind", .value = "sgd" },
            "optimizer.restore: metadata 'optimizer.kind' is 'sgd', but must be 'adamw': the file has another kind of "
            "optimizer");
    refused(&r, (change){ .key = "optimizer.version", .value = "2" },
            "optimizer.restore: metadata 'optimizer.version' is '2', but must be '1': the file has no optimizer, or a "
            "newer one");
    write_changed(r.ctx, &(change){ .key = "optimizer.params", .value = "0123456789abcdef" });
    load(&r, in_folder("changed"));
    CHECK_ERROR_HAS(r.ctx, KR_ERR_FORMAT,
                    "optimizer.restore: metadata 'optimizer.params' is '0123456789abcdef', but must be '");
    write_changed(r.ctx, &(change){ .adds = "another.tensor" }); /* not the optimizer's affair */
    load(&r, in_folder("changed"));
    CHECK(same_state(&r, &saved), "a tensor of others is in the way");
    end_run(&saved);
    end_run(&r);
    files_in_folder(true);
    rmdir(folder);
}

/* The f32 copies belong to the weights that they were saved with. */
TEST(optimizer_load_wants_the_weights_of_its_copies)
{
    begin_folder();
    run saved = begin_run(KR_OPTIMIZER_SGD, KR_DTYPE_BF16), r = begin_run(KR_OPTIMIZER_SGD, KR_DTYPE_BF16);
    step(&saved, 1);
    save(&saved, in_folder("state"));
    load(&r, in_folder("state"));
    CHECK_ERROR_HAS(r.ctx, KR_ERR_FORMAT,
                    "which does not round to the parameter's value; load the weights that were saved");
    copy_weights(&saved, &r);
    load(&r, in_folder("state"));
    CHECK(same_state(&r, &saved), "the weights are right, the state is not");
    end_run(&saved);
    end_run(&r);
    files_in_folder(true);
    rmdir(folder);
}

TEST(optimizer_does_not_save_with_the_averages_in)
{
    run r = begin_run(KR_OPTIMIZER_ADAMW, KR_DTYPE_F32);
    step(&r, 1);
    kr_optimizer_use_ema(r.opt, true);
    kr_tensor_writer *writer = kr_tensor_writer_create(r.ctx);
    kr_optimizer_snapshot(r.opt, writer);
    CHECK_ERROR(r.ctx, KR_ERR_STATE,
                "optimizer.snapshot: the parameters hold the averaged weights; call kr_optimizer_use_ema(optimizer, "
                "false) first");
    kr_tensor_writer_destroy(writer);
    kr_optimizer_use_ema(r.opt, false);
    CHECK(kr_optimizer_snapshot(NULL, NULL) == KR_ERR_ARG && kr_optimizer_restore(NULL, NULL) == KR_ERR_ARG, "NULL");
    end_run(&r);
}
