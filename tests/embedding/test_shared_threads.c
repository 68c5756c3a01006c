/* test_shared_threads.c - one model in several threads at once: each has a context and shares weights and tokenizer. */
#define _POSIX_C_SOURCE 200809L
#include "tests/embedding/shared_model.h"

#include <pthread.h>

enum { THREADS = 4 };

static kr_ctx *first_ctx;
static kr_text_model *first;
static shared_results want;
static pthread_barrier_t all_share, was_refused;

typedef struct worker {
    pthread_t thread;
    kr_text_model *from; /* another thread's may be its source, too */
    kr_text_model *own;
    int rounds, wrong;
} worker;

static void *run(void *arg)
{
    worker *w = arg;
    kr_ctx *ctx = kr_test_ctx(1 + (int)(w->rounds % 2), NULL);
    w->own = kr_text_model_share(ctx, w->from);
    CHECK(w->own != NULL, "%s", kr_ctx_message(ctx));
    pthread_barrier_wait(&all_share);
    for (int i = 0; i < w->rounds; i++) {
        if (i == 1) pthread_barrier_wait(&was_refused); /* until then it is shared */
        shared_results got;
        CHECK(compute_shared(ctx, w->own, &got), "%s", kr_ctx_message(ctx));
        w->wrong += memcmp(&got, &want, sizeof got) != 0;
    }
    kr_text_model_destroy(w->own);
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
    return NULL;
}

/* `packed`: its panels are shared, too. The first context computes while the others come, and leaves before they end. */
static void check_threads(bool packed)
{
    worker workers[THREADS];
    first_ctx = kr_test_ctx(2, NULL);
    begin_folder();
    save_shared_model(first_ctx);
    first = kr_text_model_open(first_ctx, in_folder("m"), NULL);
    CHECK(first != NULL, "%s", kr_ctx_message(first_ctx));
    kr_params *params = kr_network_params(kr_model_network(kr_text_model_model(first)));
    if (packed) CHECK(kr_params_pack(params) == KR_OK, "%s", kr_ctx_message(first_ctx));
    CHECK(compute_shared(first_ctx, first, &want), "%s", kr_ctx_message(first_ctx));
    CHECK(strcmp(want.text, shared_text) == 0 && want.n > 20, "%lld ids: %s", (long long)want.n, want.text);
    pthread_barrier_init(&all_share, NULL, THREADS + 1);
    pthread_barrier_init(&was_refused, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){ .from = first, .rounds = kr_test_quick() ? 3 + i : 10 + i };
        if (pthread_create(&workers[i].thread, NULL, run, &workers[i]) != 0) exit(2);
    }
    shared_results got;
    CHECK(compute_shared(first_ctx, first, &got), "%s", kr_ctx_message(first_ctx));
    CHECK(memcmp(&got, &want, sizeof got) == 0, "the first context's results change while others share");
    pthread_barrier_wait(&all_share);
    CHECK(kr_params_reset(params) == KR_ERR_STATE, "shared weights are written");
    CHECK_ERROR_HAS(first_ctx, KR_ERR_STATE, " are shared by ");
    pthread_barrier_wait(&was_refused);
    kr_text_model_destroy(first);
    CHECK_OK(first_ctx);
    kr_ctx_destroy(first_ctx);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        CHECK(workers[i].wrong == 0, "thread %d: %d of %d rounds are wrong", i, workers[i].wrong, workers[i].rounds);
    }
    pthread_barrier_destroy(&all_share);
    pthread_barrier_destroy(&was_refused);
    drop_shared_model();
    end_folder();
}

TEST(threads_share_one_model)
{
    check_threads(false);
}

TEST(threads_share_one_packed_model)
{
    check_threads(true);
}

/* Handles are made and destroyed from one another all the time: users are counted right in any interleaving. */
static void *come_and_go(void *arg)
{
    const kr_text_model *from = arg;
    for (int i = 0; i < (kr_test_quick() ? 20 : 100); i++) {
        kr_ctx *one = kr_test_ctx(1, NULL), *two = kr_test_ctx(1, NULL);
        kr_text_model *a = kr_text_model_share(one, from), *b = kr_text_model_share(two, a);
        CHECK(a && b, "%s%s", kr_ctx_message(one), kr_ctx_message(two));
        kr_text_model_destroy(i % 2 ? a : b);
        kr_text_model_destroy(i % 2 ? b : a);
        kr_ctx_destroy(one);
        kr_ctx_destroy(two);
    }
    return NULL;
}

TEST(threads_come_and_go_with_a_shared_model)
{
    pthread_t threads[THREADS];
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    begin_folder();
    save_shared_model(ctx);
    kr_text_model *lm = kr_text_model_open(ctx, in_folder("m"), NULL);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, come_and_go, lm) != 0) exit(2);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK(kr_params_reset(kr_network_params(kr_model_network(kr_text_model_model(lm)))) == KR_OK, "a single user: %s",
          kr_ctx_message(ctx));
    kr_text_model_destroy(lm);
    kr_ctx_destroy(ctx);
    drop_shared_model();
    end_folder();
}
