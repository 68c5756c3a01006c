/* test_two_threads.c - one context in two threads: an error that says so, never a wrong number; one after another: allowed. */
#define _POSIX_C_SOURCE 200809L
#include "tests/harness.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define RULE "ctx: used by two threads at once; create a context for each thread"

/* ---- the second thread while the first one is inside a call ---- */

static kr_ctx *ctx;
static kr_tape *tapes[2];
static const kr_network *net;
static atomic_int stage;

static void await(int which)
{
    while (atomic_load(&stage) < which) sched_yield();
}

static void *intrude(void *arg)
{
    (void)arg;
    await(1);
    kr_tensor *x = kr_zeros(tapes[1], KR_DTYPE_F32, KR_SHAPE(2));
    CHECK(!x, "a result while another thread uses the context");
    CHECK(kr_ctx_failed(ctx) && kr_ctx_status(ctx) == KR_ERR_STATE, "no error in the second thread");
    CHECK(strcmp(kr_ctx_message(ctx), RULE) == 0, "%s", kr_ctx_message(ctx));
    CHECK(kr_backward(tapes[1], NULL) == KR_ERR_STATE, "backward");
    CHECK(!kr_model_load(ctx, "nowhere", NULL) && !kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(2)), "objects");
    CHECK(!kr_network_state(net, 1), "a state of a const network");
    kr_tape_destroy(tapes[1]); /* refused, too */
    kr_ctx_clear(ctx);
    CHECK(kr_ctx_fail(ctx, KR_ERR_IO, "mine") == KR_ERR_STATE, "an error of its own");
    atomic_store(&stage, 2);
    return NULL;
}

static void wait_for_intruder(kr_back *back)
{
    atomic_store(&stage, 1);
    await(2);
    kr_tape *tape = kr_back_tape(back);
    kr_back_accumulate(back, 0, kr_scale(tape, kr_back_grad(back, 0), 3)); /* calls nest in one thread */
}

TEST(two_threads_in_one_context_are_an_error)
{
    static const kr_rule rule = { .name = "triple", .backward = wait_for_intruder };
    ctx = kr_test_ctx(2, NULL);
    tapes[0] = kr_tape_create(ctx, KR_TAPE_GRAD);
    tapes[1] = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_model_config *config = kr_model_config_create(ctx);
    kr_model_config_set_d_model(config, 8);
    config->layers->n_layers = 1;
    config->mamba2->state_rank = config->mamba2->per_head_dim = 4;
    config->network->vocab_size = 16;
    kr_model *model = kr_model_create(ctx, config);
    net = kr_model_network(model);
    for (int round = 0; round < 2; round++) {
        atomic_store(&stage, 0);
        kr_tape *t = tapes[0];
        kr_tensor *x = kr_input(t, kr_full(t, KR_DTYPE_F32, KR_SHAPE(1), 2)), *y = kr_scale(t, kr_detach(t, x), 3);
        kr_record(t, &(kr_record_args){ .rule = &rule, .n_in = 1, .in = &x, .n_out = 1, .out = &y });
        pthread_t thread;
        if (pthread_create(&thread, NULL, intrude, NULL) != 0) exit(2);
        CHECK(kr_backward(t, y) == KR_OK, "the first thread's call is not disturbed");
        pthread_join(thread, NULL);
        CHECK(kr_item(kr_grad(x)) == 3, "gradient %g", kr_item(kr_grad(x)));
        CHECK(!kr_neg(t, x), "then the error is for both");
        CHECK_ERROR(ctx, KR_ERR_STATE, RULE);
        CHECK(kr_neg(tapes[0], x) && kr_zeros(tapes[1], KR_DTYPE_F32, KR_SHAPE(2)), "no tape is invalid: %s",
              kr_ctx_message(ctx));
        kr_tape_reset(t);
    }
    kr_model_destroy(model);
    kr_model_config_destroy(config);
    kr_tape_destroy(tapes[0]);
    kr_tape_destroy(tapes[1]);
    kr_ctx_destroy(ctx);
}

/* ---- any interleaving ---- */

typedef struct racer {
    kr_tape *tape;
    kr_tensor *param;
    int wrong, right;
} racer;

static void *race(void *arg)
{
    racer *r = arg;
    for (int i = 0; i < (kr_test_quick() ? 300 : 2000); i++) {
        kr_tape_reset(r->tape);
        kr_tensor *x = kr_full(r->tape, KR_DTYPE_F32, KR_SHAPE(32, 32), 2);
        kr_tensor *y = kr_sum(r->tape, kr_matmul(r->tape, x, kr_mul(r->tape, x, r->param)), KR_ALL_AXES, false);
        float got;
        if (kr_backward(r->tape, y) != KR_OK || kr_tensor_read(y, KR_DTYPE_F32, &got, 1) != KR_OK) {
            kr_ctx_clear(ctx);
            continue;
        }
        r->right += got == 32 * 32 * 32 * 4;
        r->wrong += got != 32 * 32 * 32 * 4;
    }
    return NULL;
}

TEST(two_threads_in_one_context_never_get_wrong_numbers)
{
    pthread_t threads[2];
    racer racers[2];
    ctx = kr_test_ctx(2, NULL);
    for (int i = 0; i < 2; i++) {
        racers[i] =
            (racer){ kr_tape_create(ctx, KR_TAPE_GRAD), kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(32, 32)), 0, 0 };
        kr_param_fill(racers[i].param, 1);
    }
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, race, &racers[i]) != 0) exit(2);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    kr_ctx_clear(ctx);
    for (int i = 0; i < 2; i++) {
        CHECK(racers[i].wrong == 0, "%d wrong numbers, %d right ones", racers[i].wrong, racers[i].right);
        kr_param_destroy(racers[i].param);
        kr_tape_destroy(racers[i].tape);
    }
    CHECK_OK(ctx);
    const kr_memory_stats memory = kr_ctx_memory(ctx);
    CHECK(memory.live_blocks < 50, "%zu blocks are left", memory.live_blocks);
    kr_ctx_destroy(ctx);
}

/* ---- one after another ---- */

static void *compute(void *arg)
{
    kr_tensor *x = kr_full(arg, KR_DTYPE_F32, KR_SHAPE(8), 1);
    CHECK(kr_item(kr_sum(arg, x, KR_ALL_AXES, false)) == 8, "%s", kr_ctx_message(kr_tape_ctx(arg)));
    return NULL;
}

TEST(threads_may_hand_a_context_over)
{
    kr_ctx *own = kr_test_ctx(2, NULL);
    kr_tape *tape = kr_tape_create(own, KR_TAPE_GRAD);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, compute, tape) != 0) exit(2);
        pthread_join(thread, NULL);
        compute(tape);
    }
    CHECK_OK(own);
    kr_tape_destroy(tape);
    kr_ctx_destroy(own);
}
