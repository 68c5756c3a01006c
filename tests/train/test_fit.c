/* test_fit.c - a small network learns to follow a mean that forgets, with each optimizer and a schedule. */
#include "tests/harness.h"

enum { NB = 8, NS = 24, NSTEPS = 100 };

/* y[s] = 0.8 y[s-1] + 0.2 x[s] of random x: what one state can hold. */
static void draw(float *x_bs, float *y_bs)
{
    for (int b = 0; b < NB; b++) {
        float y = 0;
        for (int s = 0; s < NS; s++) {
            x_bs[b * NS + s] = (float)kr_test_uniform(-1, 1);
            y = 0.8F * y + 0.2F * x_bs[b * NS + s];
            y_bs[b * NS + s] = y;
        }
    }
}

static double fit(kr_optimizer_kind kind, double max_lr, double *first)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    kr_mamba2_config block;
    kr_mamba2_config_init(&block);
    block.d_model = 16;
    block.per_head_dim = 8;
    block.state_rank = 8;
    kr_layers_config stack;
    kr_layers_config_init(&stack);
    stack.block = kr_mamba2_block(&block);
    stack.n_layers = 1;
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &stack;
    config.input_size = config.output_size = 1;
    kr_network *net = kr_network_create(ctx, &config);
    kr_optimizer_options o;
    kr_optimizer_options_init(&o);
    o.kind = kind;
    o.clip_norm = 1;
    o.weight_decay = 1e-4;
    kr_optimizer *opt = kr_optimizer_create(ctx, kr_network_params(net), &o);
    kr_lr_schedule schedule;
    kr_lr_schedule_init(&schedule);
    schedule.kind = KR_LR_COSINE;
    schedule.max_lr = max_lr;
    schedule.warmup_steps = 5;
    schedule.total_steps = NSTEPS + 1;
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    double loss = 0;
    for (int step = 1; step <= NSTEPS; step++) {
        float x[NB * NS], y[NB * NS];
        draw(x, y);
        kr_tensor *x_bsf = kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(NB, NS, 1), x);
        kr_tensor *y_bso = kr_from_data(tape, KR_DTYPE_F32, KR_SHAPE(NB, NS, 1), y);
        kr_tensor *miss = kr_sub(tape, kr_network_forward(tape, net, x_bsf, NULL).y, y_bso);
        kr_tensor *mean = kr_mean(tape, kr_mul(tape, miss, miss), KR_ALL_AXES, false);
        kr_backward(tape, mean);
        loss = kr_item(mean);
        if (step == 1) *first = loss;
        kr_optimizer_step(opt, kr_lr_at(&schedule, step), 1);
        kr_tape_reset(tape);
    }
    CHECK_OK(ctx);
    kr_tape_destroy(tape);
    kr_optimizer_destroy(opt);
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
    return loss;
}

TEST(a_small_network_learns)
{
    static const struct {
        kr_optimizer_kind kind;
        double lr, most;
    } table[] = { { KR_OPTIMIZER_ADAMW, 0.02, 0.012 },
                  { KR_OPTIMIZER_SGD, 0.1, 0.037 },
                  { KR_OPTIMIZER_MUON, 0.02, 0.012 } };
    for (int i = 0; i < 3; i++) {
        double first, last = fit(table[i].kind, table[i].lr, &first);
        /* whoever always says 0 has the variance of y: 0.2^2 / (1 - 0.8^2) / 3 = 0.037 */
        CHECK(last < table[i].most && last < first / 2, "%s: the loss goes from %g to %g only",
              kr_optimizer_kind_name(table[i].kind), first, last);
        if (getenv("KR_TEST_VERBOSE")) printf("%s: %g to %g\n", kr_optimizer_kind_name(table[i].kind), first, last);
    }
}
