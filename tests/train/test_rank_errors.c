/* test_rank_errors.c - an error of one rank is one of all: what it says, that nothing has changed, that the run continues. */
#define _GNU_SOURCE
#include "tests/train/running.h"

#include "comm/comm_impl.h"
#include "nn/params_impl.h"
#include "train/optimizer_impl.h"
#include "train/trainer.h"

#include <krait/experimental/testing.h>
#include <pthread.h>

enum { RANKS = 3, BEFORE = 2, STEPS = 5 };

typedef enum fault_kind {
    NO_FAULT,
    OTHER_WEIGHTS,
    OTHER_DATA,
    OTHER_OPTIONS,
    LOSS_IS_NAN,
    GRADIENT_IS_NAN,
    CALLER_FAILS,
    NO_MEMORY,
    SAVE_FAILS,
    STOPS
} fault_kind;

/* A rank, the fault, and the rank that has it. */
typedef struct faulty {
    fault_kind fault;
    int rank, at;
    int64_t nth; /* NO_MEMORY: the request that fails */
    char meet[300], run[300];
    bool is_on; /* the step with the fault runs */
    kr_ctx *ctx;
    kr_model *model;
    kr_status status;
    char message[700];
    bool has_changed; /* a failed step has left a trace */
    uint64_t hash;    /* of the weights at the end */
    int64_t step;
    pthread_t thread;
} faulty;

static bool has(const faulty *f, fault_kind kind)
{
    return f->fault == kind && f->rank == f->at;
}

static kr_loss_out loss_of(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state)
{
    const faulty *f = user;
    kr_loss_call call;
    kr_loss_call_init(&call);
    call.ids_bs = batch->ids_bs;
    call.labels = batch->labels_bs;
    (void)state;
    kr_loss_out out = kr_network_loss(tape, kr_model_network(f->model), &call);
    if (!f->is_on) return out;
    kr_tensor *zero = kr_sub(tape, out.loss, out.loss);
    if (has(f, LOSS_IS_NAN)) out.loss = kr_log(tape, kr_sub(tape, zero, kr_full(tape, KR_DTYPE_F32, KR_SCALAR, 1)));
    if (has(f, GRADIENT_IS_NAN)) out.loss = kr_add(tape, out.loss, kr_sqrt(tape, zero));
    if (has(f, CALLER_FAILS)) kr_ctx_fail(f->ctx, KR_ERR_UNSUPPORTED, "this batch is not for rank %d", f->rank);
    return out;
}

static bool stop_at_two(void *user, kr_trainer *trainer, const kr_train_progress *p)
{
    (void)trainer;
    return !(has(user, STOPS) && p->step == BEFORE);
}

static void keep_error(faulty *f)
{
    f->status = kr_ctx_status(f->ctx);
    snprintf(f->message, sizeof f->message, "%s", kr_ctx_message(f->ctx));
}

/* A step with the fault, and then the same step without it. */
static void step_with_fault(faulty *f, kr_trainer *t)
{
    for (int i = 0; i < BEFORE; i++)
        if (kr_trainer_step(t) != KR_OK) { /* another rank has lost the communicator in the step after it */
            keep_error(f);
            return;
        }
    const uint64_t hash = kr_params_values_hash(t->params);
    const kr_loader_position position = kr_loader_snapshot(t->loader);
    const uint64_t stream = f->ctx->stream;
    f->is_on = true;
    if (has(f, NO_MEMORY)) kr_ctx_fail_allocation(f->ctx, (size_t)f->nth);
    IGNORE(kr_trainer_step(t));
    if (has(f, NO_MEMORY)) kr_ctx_fail_allocation(f->ctx, 0);
    keep_error(f);
    f->is_on = false;
    if (f->status == KR_OK) return;
    const kr_loader_position after = kr_loader_snapshot(t->loader);
    f->has_changed = kr_params_values_hash(t->params) != hash || after.step != position.step ||
                     after.epoch != position.epoch || f->ctx->stream != stream || t->progress.step != BEFORE;
    kr_ctx_clear(f->ctx);
    while (kr_trainer_progress(t).step < STEPS && kr_trainer_step(t) == KR_OK) continue;
}

static void run_to_the_end(faulty *f, kr_trainer *t)
{
    if (f->fault == SAVE_FAILS) {
        for (int i = 0; i < BEFORE; i++) IGNORE(kr_trainer_step(t));
        IGNORE(kr_trainer_save(t));
        keep_error(f);
        kr_ctx_clear(f->ctx);
    } else {
        IGNORE(kr_trainer_run(t));
        keep_error(f);
    }
}

static kr_trainer *trainer_of(faulty *f, kr_comm *comm, kr_loader *loader)
{
    kr_train_options o;
    kr_optimizer_options optimizer;
    kr_train_options_init(&o);
    kr_optimizer_options_init(&optimizer);
    if (has(f, OTHER_OPTIONS)) optimizer.beta2 = 0.999;
    o.steps = STEPS;
    o.accumulate = RANKS;
    o.loss_fn = loss_of;
    o.loss_user = f;
    o.on_step = stop_at_two;
    o.user = f;
    o.comm = comm;
    o.optimizer = &optimizer;
    o.folder = f->fault == SAVE_FAILS ? f->run : NULL;
    return kr_trainer_create(f->ctx, f->model, loader, &o);
}

static void *run_rank(void *arg)
{
    static const char text[] =
        "some text that is long enough for a few batches of a few rows, and then a little more of it";
    faulty *f = arg;
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    f->ctx = kr_ctx_create(&options);
    kr_ctx_seed(f->ctx, has(f, OTHER_WEIGHTS) ? 8 : 7);
    kr_comm_options how;
    kr_comm_options_init(&how);
    how.engine = "tcp";
    how.rank = f->rank;
    how.ranks = RANKS;
    how.meet = f->meet;
    how.timeout = 60;
    kr_comm *comm = kr_comm_create(f->ctx, &how);
    kr_tokenizer *tok = kr_tokenizer_bytes(f->ctx);
    char own[sizeof text];
    memcpy(own, text, sizeof text);
    if (has(f, OTHER_DATA)) own[sizeof text - 2] = 'X';
    kr_source *source = kr_source_string(f->ctx, own, sizeof text - 1, tok, NULL);
    kr_loader *loader = run_loader(source, false, KR_DATA_PART_TRAIN);
    f->model = run_model(f->ctx, KR_FAMILY_MAMBA2, KR_DTYPE_F32);
    kr_trainer *trainer = trainer_of(f, comm, loader);
    if (!trainer) keep_error(f);
    else if (f->fault == SAVE_FAILS || f->fault == STOPS) run_to_the_end(f, trainer);
    else step_with_fault(f, trainer);
    kr_ctx_clear(f->ctx);
    f->step = kr_trainer_progress(trainer).step;
    f->hash = kr_params_values_hash(kr_network_params(kr_model_network(f->model)));
    kr_trainer_destroy(trainer);
    kr_model_destroy(f->model);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    kr_tokenizer_destroy(tok);
    kr_comm_destroy(comm);
    kr_ctx_destroy(f->ctx);
    return NULL;
}

static void run_fault(fault_kind fault, int at, int64_t nth, faulty list[RANKS])
{
    begin_folder();
    for (int i = 0; i < RANKS; i++) {
        list[i] = (faulty){ .fault = fault, .rank = i, .at = at, .nth = nth };
        snprintf(list[i].meet, sizeof list[i].meet, "%s/meet", folder);
        snprintf(list[i].run, sizeof list[i].run, "%s%s", the_run(), has(&list[i], SAVE_FAILS) ? "/missing/run" : "");
        if (pthread_create(&list[i].thread, NULL, run_rank, &list[i]) != 0) exit(2);
    }
    for (int i = 0; i < RANKS; i++) pthread_join(list[i].thread, NULL);
}

/* All ranks have the status, and messages that hold `part`. */
static void check_fault(fault_kind fault, int at, kr_status status, const char *part)
{
    faulty list[RANKS];
    run_fault(fault, at, 0, list);
    for (int i = 0; i < RANKS; i++)
        CHECK(list[i].status == status && strstr(list[i].message, part),
              "rank %d, fault %d at rank %d: \"%s\", not \"%s\"", i, (int)fault, at, list[i].message, part);
    remove_tree(folder);
}

TEST(ranks_with_other_inputs)
{
    check_fault(OTHER_WEIGHTS, 1, KR_ERR_STATE, "trainer: rank 1 of 3 has another model or other weights than rank 0");
    check_fault(OTHER_DATA, 2, KR_ERR_STATE, "trainer: rank 2 of 3 has another data set than rank 0; give all ranks");
    check_fault(OTHER_OPTIONS, 1, KR_ERR_STATE, "trainer: rank 1 of 3 has other training options than rank 0");
}

/* The step is undone on all ranks; without the fault it then gives what it gives without one. */
static void check_recovery(fault_kind fault, int at, kr_status status, const char *part)
{
    faulty plain[RANKS], list[RANKS];
    run_fault(NO_FAULT, 0, 0, plain);
    remove_tree(folder);
    run_fault(fault, at, 0, list);
    remove_tree(folder);
    for (int i = 0; i < RANKS; i++) {
        CHECK(list[i].status == status && strstr(list[i].message, part),
              "rank %d, fault %d at rank %d: \"%s\", not \"%s\"", i, (int)fault, at, list[i].message, part);
        CHECK(!list[i].has_changed, "rank %d, fault %d at rank %d: the step has left a trace", i, (int)fault, at);
        CHECK(list[i].step == STEPS && plain[i].status == KR_OK, "rank %d stops at step %lld", i,
              (long long)list[i].step);
        CHECK(list[i].hash == list[0].hash, "rank %d has other weights at the end", i);
    }
}

TEST(ranks_undo_steps_that_are_not_finite)
{
    for (int at = 0; at < RANKS; at++) {
        char part[64];
        snprintf(part, sizeof part, "rank %d of 3", at);
        check_recovery(LOSS_IS_NAN, at, KR_ERR_NUMERIC, part);
        check_recovery(LOSS_IS_NAN, at, KR_ERR_NUMERIC, "step 3: batch ");
        check_recovery(GRADIENT_IS_NAN, at, KR_ERR_NUMERIC, part);
        check_recovery(GRADIENT_IS_NAN, at, KR_ERR_NUMERIC, "but the gradient of backbone.");
    }
}

TEST(ranks_pass_on_errors_of_the_caller)
{
    for (int at = 0; at < RANKS; at++) {
        char part[64];
        snprintf(part, sizeof part, "this batch is not for rank %d", at);
        check_recovery(CALLER_FAILS, at, KR_ERR_UNSUPPORTED, part);
    }
}

TEST(ranks_without_memory)
{
    int failures = 0;
    const int64_t stride = kr_test_quick() ? 7 : 1;
    for (int64_t nth = 1; nth < 22; nth += stride) {
        faulty list[RANKS];
        run_fault(NO_MEMORY, 1, nth, list);
        remove_tree(folder);
        failures += list[1].status != KR_OK;
        for (int i = 0; i < RANKS; i++)
            CHECK((list[i].status == KR_OK) == (list[1].status == KR_OK),
                  "request %lld: rank %d has \"%s\", rank 1 \"%s\"", (long long)nth, i, list[i].message,
                  list[1].message);
        /* what the communicator needs may be missing: then it cannot be used any more, and no rank makes another step */
        bool is_lost = false;
        for (int i = 0; i < RANKS; i++) is_lost = is_lost || list[i].has_changed || list[i].step <= BEFORE;
        for (int i = 0; i < RANKS && list[1].status != KR_OK; i++)
            CHECK(is_lost ? list[i].step <= BEFORE : list[i].step == STEPS, "request %lld: rank %d is at step %lld",
                  (long long)nth, i, (long long)list[i].step);
    }
    CHECK(failures > 0, "no request has failed");
}

TEST(ranks_stop_together)
{
    faulty list[RANKS];
    run_fault(STOPS, 1, 0, list);
    remove_tree(folder);
    for (int i = 0; i < RANKS; i++)
        CHECK(list[i].status == KR_OK && list[i].step == BEFORE, "rank %d is at step %lld: %s", i,
              (long long)list[i].step, list[i].message);
}

/* Rank 2 cannot write its share: there is no checkpoint, and no temporary file. */
TEST(ranks_discard_a_checkpoint_together)
{
    faulty list[RANKS];
    run_fault(SAVE_FAILS, 2, 0, list);
    for (int i = 0; i < RANKS; i++)
        CHECK(list[i].status == KR_ERR_IO && strstr(list[i].message, "/missing/run/checkpoints"), "rank %d: %s", i,
              list[i].message);
    CHECK(newest_step(the_run()) == -1, "there is a checkpoint");
    CHECK(!is_there("run/checkpoints/.krait-new"), "a temporary folder is left");
    remove_tree(folder);
}
