/* test_trainer_numeric.c - numbers that are not finite: where it began is told, and nothing has changed. */
#define _POSIX_C_SOURCE 200809L
#include "tests/train/running.h"

#include "train/trainer.h"

static kr_tensor *weight(const run *r, const char *name)
{
    return kr_params_find(kr_network_params(kr_model_network(r->model)), name)->tensor;
}

static void fill(kr_tensor *x, double value)
{
    CHECK(kr_param_fill(x, value) == KR_OK, "not filled");
}

/* The next step fails with words that hold `part`; weights, data and random stream are as before. */
static void check_step_fails(run *r, const char *part)
{
    const uint64_t hash = run_hash(r);
    const kr_loader_position position = kr_loader_snapshot(r->loader), *p = &position;
    const kr_train_progress before = kr_trainer_progress(r->trainer);
    const uint64_t stream = r->ctx->stream;
    CHECK(kr_trainer_step(r->trainer) != KR_OK, "a step that is not finite is made");
    CHECK_ERROR_HAS(r->ctx, KR_ERR_NUMERIC, part);
    const kr_loader_position after = kr_loader_snapshot(r->loader);
    CHECK(run_hash(r) == hash && after.step == p->step && after.epoch == p->epoch && r->ctx->stream == stream &&
              kr_trainer_progress(r->trainer).step == before.step,
          "a step that failed leaves a trace");
}

TEST(trainer_names_a_parameter_that_is_not_finite)
{
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5 });
    CHECK(kr_trainer_step(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    kr_tensor *w = weight(&r, "backbone.layers.1.mixer.in_proj.weight");
    const float old = ((float *)kr_test_copy(w))[20];
    kr_test_put(w, 20, NAN);
    check_step_fails(&r, "trainer.step: step 2: parameter backbone.layers.1.mixer.in_proj.weight [84, 16] holds nan at "
                         "[1, 4] (it is from -");
    kr_test_put(w, 20, (double)old);
    CHECK(kr_trainer_step(r.trainer) == KR_OK, "the run does not go on: %s", kr_ctx_message(r.ctx));
    run_end(&r);
}

TEST(trainer_names_the_layer_and_the_token)
{
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5, .accumulate = 2 });
    /* finite itself; what it makes is not, for tokens whose norm has the wrong sign */
    fill(weight(&r, "backbone.layers.1.mixer.in_proj.weight"), 3e38);
    check_step_fails(&r,
                     "trainer.step: step 1: batch 1 of 2: the loss is nan; it began in layer 1 (backbone.layers.1), "
                     "row 0, token 0 (id 111), in ");
    CHECK(kr_trainer_step(r.trainer) != KR_OK, "a step that is not finite is made");
    const char *message = kr_ctx_message(r.ctx);
    CHECK(strstr(message, "; the stream before the layer is from -") && strstr(message, "; after it ") &&
              strstr(message, " not finite"),
          "no ranges in: %s", message);
    kr_ctx_clear(r.ctx);
    run_end(&r);
}

TEST(trainer_names_what_is_behind_the_layers)
{
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA1, .steps = 5 });
    fill(weight(&r, "backbone.norm_f.weight"), 3e38);
    check_step_fails(&r, "it began after the last layer");
    run_end(&r);
}

/* Through the gain that undoes it, a large weight does no harm forward; backward it stands alone. */
TEST(trainer_names_where_a_gradient_began)
{
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5 });
    fill(weight(&r, "backbone.layers.1.mixer.norm.weight"), 2e-38);
    fill(weight(&r, "backbone.layers.1.mixer.out_proj.weight"), 3e38);
    fill(weight(&r, "backbone.norm_f.weight"), 1e4);
    check_step_fails(&r, "it began in the backward pass of layer 1 (backbone.layers.1), row 0, token 0 (id 111): the "
                         "stream's gradient after the layer is from -");
    CHECK(kr_trainer_step(r.trainer) != KR_OK, "a step that is not finite is made");
    CHECK(
        strstr(kr_ctx_message(r.ctx), "trainer.step: step 1: the loss is ") &&
            strstr(kr_ctx_message(r.ctx), ", but the gradient of backbone.layers.0.mixer.dt_bias [4] holds nan at [0]"),
        "%s", kr_ctx_message(r.ctx));
    kr_ctx_clear(r.ctx);
    run_end(&r);
}

/* ---- runs that explode ---- */

TEST(trainer_keeps_the_last_good_checkpoint)
{
    begin_folder();
    run_setup setup = {
        .family = KR_FAMILY_MAMBA3, .steps = 200, .max_lr = 1e30, .save_every = 1, .folder = the_run()
    };
    run r = run_begin(&setup);
    CHECK(kr_trainer_run(r.trainer) == KR_ERR_NUMERIC, "a rate of 1e30 does no harm");
    CHECK(strstr(kr_ctx_message(r.ctx), "trainer."), "%s", kr_ctx_message(r.ctx));
    kr_ctx_clear(r.ctx);
    run_end(&r);
    CHECK(newest_step(the_run()) >= 1, "no checkpoint is left");
    r = run_begin(&setup);
    CHECK(kr_trainer_resume(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    CHECK(kr_trainer_check_weights(r.trainer), "%s", kr_ctx_message(r.ctx));
    run_end(&r);
    remove_tree(folder);
}

TEST(trainer_saves_no_weights_that_are_not_finite)
{
    begin_folder();
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5, .folder = the_run() });
    IGNORE(kr_trainer_step(r.trainer));
    kr_test_put(weight(&r, "backbone.layers.0.mixer.D"), 1, INFINITY);
    CHECK(kr_trainer_save(r.trainer) == KR_ERR_NUMERIC, "it is saved");
    CHECK_ERROR_HAS(r.ctx, KR_ERR_NUMERIC, "trainer.save: parameter backbone.layers.0.mixer.D [4] holds inf at [1]");
    CHECK(newest_step(the_run()) == -1, "there is a checkpoint");
    run_end(&r);
    remove_tree(folder);
}

/* ---- losses of the caller's ---- */

static kr_loss_out nan_loss(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state)
{
    const kr_model **model = user;
    kr_loss_call call;
    kr_loss_call_init(&call);
    kr_call how;
    kr_call_init(&how);
    call.call = &how;
    call.ids_bs = batch->ids_bs;
    call.labels = batch->labels_bs;
    how.state = state;
    kr_loss_out out = kr_network_loss(tape, kr_model_network(*model), &call);
    if (batch->step == 1) out.loss = kr_log(tape, kr_sub(tape, out.loss, kr_full(tape, KR_DTYPE_F32, KR_SCALAR, 1e3)));
    return out;
}

TEST(trainer_names_the_op_of_a_loss_fn)
{
    const kr_model *model = NULL;
    run r = run_begin(&(run_setup){ .family = KR_FAMILY_MAMBA2, .steps = 5, .loss_fn = nan_loss, .user = &model });
    model = r.model;
    CHECK(kr_trainer_step(r.trainer) == KR_OK, "%s", kr_ctx_message(r.ctx));
    check_step_fails(&r,
                     "trainer.step: step 2: the loss is nan; it is the loss of options.loss_fn, in log: output 0 [] "
                     "holds ");
    run_end(&r);
}

/* ---- features ---- */

/* A source of two numbers at each of 40 positions, of which one is infinite: files of such are refused. */
static bool read_numbers(const kr_source *source, int64_t from, int64_t count, const kr_positions *out)
{
    (void)source;
    for (int64_t i = 0; i < count; i++) {
        out->x[2 * i] = 0.1F * (float)(from + i);
        out->x[2 * i + 1] = from + i == 25 ? INFINITY : 0.5F;
    }
    return true;
}

static int64_t find_no_start(const kr_source *source, int64_t from, int64_t to)
{
    (void)source;
    return from == 0 ? 0 : to;
}

static void drop_nothing(kr_source *source)
{
    (void)source;
}

static const kr_source_kind numbers_kind = {
    .bytes = sizeof(kr_source), .read = read_numbers, .find_start = find_no_start, .deinit = drop_nothing
};

static kr_model *latent_model(kr_ctx *ctx)
{
    kr_model_config *config = kr_model_config_create(ctx);
    config->family = KR_FAMILY_MAMBA3;
    kr_model_config_set_d_model(config, 16);
    config->mamba3->state_rank = config->mamba3->per_head_dim = 8;
    config->layers->n_layers = 1;
    config->network->input_size = config->network->output_size = 2;
    kr_model *model = kr_model_create(ctx, config);
    kr_model_config_destroy(config);
    return model;
}

TEST(trainer_names_features_that_are_not_finite)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_source *source = kr_source_new(ctx, &numbers_kind);
    source->info = (kr_source_info){ .count = 40, .n_features = 2, .n_targets = 2, .predict_next = true };
    kr_loader_options reading;
    kr_loader_options_init(&reading);
    reading.batch = 2;
    reading.length = 8;
    reading.shuffle = false;
    kr_loader *loader = kr_loader_create(source, &reading);
    kr_model *model = latent_model(ctx);
    kr_train_options o;
    kr_train_options_init(&o);
    o.steps = 3;
    o.loss = KR_LOSS_MSE;
    kr_trainer *trainer = kr_trainer_create(ctx, model, loader, &o);
    CHECK(kr_trainer_step(trainer) == KR_OK && kr_trainer_progress(trainer).n_scored == 32, "%s", kr_ctx_message(ctx));
    CHECK(kr_trainer_step(trainer) != KR_OK, "a step that is not finite is made");
    CHECK_ERROR(ctx, KR_ERR_NUMERIC,
                "trainer.step: step 2: the batch's x_bsf [2, 8, 2] holds inf at [1, 1, 1] (it is from 0.5 to 3.1, 1 of "
                "32 not finite): row 1, token 1 of batch 1 in epoch 0");
    kr_trainer_destroy(trainer);
    kr_model_destroy(model);
    kr_loader_destroy(loader);
    kr_source_destroy(source);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
}
