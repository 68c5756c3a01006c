/* test_fork.c - the child of a fork: computing with a context of the parent is an error, destroying it works, and a context
 * of its own too. */
#define _GNU_SOURCE
#include "tests/embedding/shared_model.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

/* No search for leaks in a child: what threads of the parent hold is in no thread there. LeakSanitizer asks at exit. */
static bool is_child;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_child;
}

/* Runs fn(user) in a child: its result is the exit status. A child that hangs is ended after a minute. */
static int in_child(int (*fn)(void *user), void *user)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        is_child = true;
        _exit(fn(user));
    }
    if (child < 0) return -1;
    int status = 0;
    for (int i = 0; i < 6000; i++) {
        const pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return 2000;
}

/* KR_DEVICE is another until restore_device. */
static char kept_device[64];

static void set_device(const char *name)
{
    const char *before = getenv("KR_DEVICE");
    snprintf(kept_device, sizeof kept_device, "%s", before ? before : "");
    setenv("KR_DEVICE", name, 1);
}

static void restore_device(void)
{
    if (*kept_device) setenv("KR_DEVICE", kept_device, 1);
    else unsetenv("KR_DEVICE");
}

typedef struct parent {
    kr_ctx *ctx;
    kr_tape *tape;
    kr_tensor *x, *param;
    kr_model_config *config;
    kr_model *model;
    kr_optimizer *opt;
    kr_generation *generation;
} parent;

static parent make_parent(int threads)
{
    kr_ctx *ctx = kr_test_ctx(threads, NULL);
    parent p = { .ctx = ctx, .tape = kr_tape_create(ctx, KR_TAPE_GRAD) };
    p.x = kr_full(p.tape, KR_DTYPE_F32, KR_SHAPE(256, 256), 1);
    kr_matmul(p.tape, p.x, p.x); /* the workers have run */
    p.param = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(2));
    p.config = kr_model_config_create(ctx);
    kr_model_config_set_d_model(p.config, 8);
    p.config->layers->n_layers = 1;
    p.config->mamba2->state_rank = p.config->mamba2->per_head_dim = 4;
    p.config->network->vocab_size = 16;
    p.model = kr_model_create(ctx, p.config);
    p.opt = kr_optimizer_create(ctx, kr_network_params(kr_model_network(p.model)), NULL);
    p.generation = kr_generation_create(ctx, kr_model_network(p.model), NULL, NULL);
    kr_generation_feed(p.generation, (const int32_t[]){ 1, 2 }, 2);
    CHECK_OK(ctx);
    return p;
}

static void destroy_parent(parent *p)
{
    kr_generation_destroy(p->generation);
    kr_optimizer_destroy(p->opt);
    kr_model_destroy(p->model);
    kr_model_config_destroy(p->config);
    kr_param_destroy(p->param);
    kr_tape_destroy(p->tape);
    kr_ctx_destroy(p->ctx);
}

static const char rule[] =
    "ctx: created before fork, and its threads and devices belong to the parent; create a context in the "
    "child, which may only destroy what the parent created";

static int compute(void *user)
{
    parent *p = user;
    if (kr_ctx_failed(p->ctx)) return 1;
    if (kr_matmul(p->tape, p->x, p->x)) return 2;
    if (kr_ctx_status(p->ctx) != KR_ERR_STATE || strcmp(kr_ctx_message(p->ctx), rule) != 0) return 3;
    kr_ctx_clear(p->ctx);
    if (kr_network_state(kr_model_network(p->model), 1) || strcmp(kr_ctx_message(p->ctx), rule) != 0) return 12;
    kr_ctx_clear(p->ctx);
    if (kr_generation_next(p->generation) != KR_ERR_STATE || kr_optimizer_step(p->opt, 0.1, 1) != KR_ERR_STATE)
        return 4;
    if (kr_param_fill(p->param, 1) != KR_ERR_STATE || kr_tape_create(p->ctx, KR_TAPE_GRAD)) return 5;
    if (kr_tensor_dim(p->x, 0) != 256 || kr_ctx_threads(p->ctx) < 1) return 6; /* what only reads, reads */
    destroy_parent(p);
    return 0;
}

static int destroy(void *user)
{
    destroy_parent(user);
    return 0;
}

static int create(void *user)
{
    parent own = make_parent(*(int *)user);
    kr_tensor *y = kr_mean(own.tape, kr_matmul(own.tape, own.x, own.x), KR_ALL_AXES, false);
    if (kr_item(y) != 256 || kr_generation_next(own.generation) != KR_OK || kr_ctx_failed(own.ctx)) return 1;
    destroy_parent(&own);
    return 0;
}

static int fork_again(void *user)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL); /* a context of the child is a parent's in the child's own child */
    parent *p = user, own = { .ctx = ctx, .tape = kr_tape_create(ctx, KR_TAPE_GRAD) };
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        if (kr_zeros(own.tape, KR_DTYPE_F32, KR_SHAPE(2)) || strcmp(kr_ctx_message(ctx), rule) != 0) _exit(1);
        destroy_parent(&own);
        destroy_parent(p);
        _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) return 2;
    if (!kr_zeros(own.tape, KR_DTYPE_F32, KR_SHAPE(2))) return 3;
    destroy_parent(&own);
    destroy_parent(p);
    return 0;
}

static void check_children(int threads)
{
    parent p = make_parent(threads);
    int got = in_child(compute, &p);
    CHECK(got == 0, "threads %d: the child that computes ended with %d", threads, got);
    got = in_child(destroy, &p);
    CHECK(got == 0, "threads %d: the child that destroys ended with %d", threads, got);
    got = in_child(create, &threads);
    CHECK(got == 0, "threads %d: the child with a context of its own ended with %d", threads, got);
    got = in_child(fork_again, &p);
    CHECK(got == 0, "threads %d: the child that forks ended with %d", threads, got);
    kr_tensor *y = kr_mean(p.tape, kr_matmul(p.tape, p.x, p.x), KR_ALL_AXES, false);
    CHECK(kr_item(y) == 256, "the parent computes on: %s", kr_ctx_message(p.ctx));
    destroy_parent(&p);
}

/* On the CPU, whatever KR_DEVICE says: a GPU cannot be used in the child of a process that has used it. */
TEST(a_forked_child_cannot_compute_but_destroy)
{
    set_device("cpu");
    check_children(1);
    check_children(2);
    check_children(4);
    restore_device();
}

/* ---- the way multiprocessing ends a child: exit, with handlers that destroy what the parent made ---- */

static parent leaving;

static void destroy_at_exit(void)
{
    destroy_parent(&leaving);
}

static int exit_with_handlers(void *user)
{
    leaving = *(parent *)user;
    if (atexit(destroy_at_exit) != 0) return 1;
    exit(0);
}

/* The same with a context of the child that has computed, and that is not destroyed. */
static int exit_after_computing(void *user)
{
    parent own = make_parent(4);
    const double mean = kr_item(kr_mean(own.tape, kr_matmul(own.tape, own.x, own.x), KR_ALL_AXES, false));
    return mean == 256 ? exit_with_handlers(user) : 2;
}

/* AddressSanitizer's allocator can be locked in a child that was forked while another thread allocates: with it the thread
 * does not compute during a fork. */
#ifdef __SANITIZE_ADDRESS__
enum { PAUSES = 1 };
#else
enum { PAUSES = 0 };
#endif

typedef struct computing {
    pthread_t thread;
    pthread_mutex_t round; /* PAUSES: held during a round, and while a child runs */
    atomic_bool ends;
    atomic_int rounds;
} computing;

/* Another thread of the parent, whose workers compute all the time. */
static void *compute_on(void *user)
{
    computing *c = user;
    kr_ctx *ctx = kr_test_ctx(4, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    while (!atomic_load(&c->ends)) {
        if (PAUSES) pthread_mutex_lock(&c->round);
        kr_tape_reset(t);
        kr_tensor *x = kr_full(t, KR_DTYPE_F32, KR_SHAPE(128, 128), 1);
        CHECK(kr_item(kr_mean(t, kr_matmul(t, x, x), KR_ALL_AXES, false)) == 128, "%s", kr_ctx_message(ctx));
        atomic_fetch_add(&c->rounds, 1);
        if (PAUSES) pthread_mutex_unlock(&c->round);
    }
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
    return NULL;
}

TEST(a_forked_child_ends_by_exit)
{
    set_device("cpu");
    parent p = make_parent(4);
    computing c = { .ends = false, .round = PTHREAD_MUTEX_INITIALIZER };
    if (pthread_create(&c.thread, NULL, compute_on, &c) != 0) exit(2);
    while (atomic_load(&c.rounds) < 2) sched_yield();
    for (int i = 0; i < 6; i++) {
        if (PAUSES) pthread_mutex_lock(&c.round);
        const int got = in_child(i % 2 ? exit_after_computing : exit_with_handlers, &p);
        if (PAUSES) pthread_mutex_unlock(&c.round);
        CHECK(got == 0, "child %d ended with %d", i, got);
    }
    atomic_store(&c.ends, true);
    pthread_join(c.thread, NULL);
    kr_tensor *y = kr_mean(p.tape, kr_matmul(p.tape, p.x, p.x), KR_ALL_AXES, false);
    CHECK(kr_item(y) == 256, "the parent computes on: %s", kr_ctx_message(p.ctx));
    destroy_parent(&p);
    restore_device();
}

/* A device whose memory the child must not touch. */
TEST(a_forked_child_leaves_the_device_alone)
{
    set_device("mock:1");
    parent p = make_parent(2);
    const int got = in_child(compute, &p);
    CHECK(got == 0, "the child ended with %d", got);
    CHECK_OK(p.ctx);
    destroy_parent(&p);
    restore_device();
}

/* ---- a model of the parent ---- */

typedef struct loaded {
    kr_ctx *ctx;
    kr_text_model *lm;
    shared_results want;
} loaded;

/* The child has a context of its own over the weights of the parent, whose memory it has. */
static int share(void *user)
{
    loaded *l = user;
    shared_results got;
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    kr_text_model *own = kr_text_model_share(ctx, l->lm);
    if (!own) return 1;
    kr_text_model_destroy(l->lm);
    kr_ctx_destroy(l->ctx);
    if (!compute_shared(ctx, own, &got)) return 2;
    if (memcmp(&got, &l->want, sizeof got) != 0) return 3;
    kr_text_model_destroy(own);
    kr_ctx_destroy(ctx);
    return 0;
}

static int refuse(void *user)
{
    loaded *l = user;
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    if (kr_text_model_share(ctx, l->lm) || kr_ctx_status(ctx) != KR_ERR_STATE) return 1;
    return strstr(kr_ctx_message(ctx), "in the memory of a GPU, which belongs to the parent") ? 0 : 2;
}

static void check_shared_child(int (*fn)(void *user))
{
    loaded l = { .ctx = kr_test_ctx(2, NULL) };
    begin_folder();
    save_shared_model(l.ctx);
    l.lm = kr_text_model_open(l.ctx, in_folder("m"), NULL);
    CHECK(compute_shared(l.ctx, l.lm, &l.want), "%s", kr_ctx_message(l.ctx));
    const int result = in_child(fn, &l);
    CHECK(result == 0, "the child ended with %d", result);
    shared_results again;
    CHECK(compute_shared(l.ctx, l.lm, &again) && memcmp(&again, &l.want, sizeof again) == 0, "the parent's model");
    kr_text_model_destroy(l.lm);
    kr_ctx_destroy(l.ctx);
    drop_shared_model();
    end_folder();
}

TEST(a_forked_child_shares_the_model_of_its_parent)
{
    set_device("cpu");
    check_shared_child(share);
    restore_device();
    set_device("mock");
    check_shared_child(refuse);
    restore_device();
}
