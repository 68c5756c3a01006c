/* own_device.c - a device from outside the library: memory, a queue, and one kernel. The library runs all other kernels on the
 * CPU and transfers their operands, so that a network trains on the device from the first day; the statistics tell which
 * kernel to write next.
 *
 * The "device" is a thread that executes a queue of jobs, and memory that only its jobs access: replace the two by calls of
 * your driver. The same source is a program, which registers the device and trains a block on it, and, compiled with
 * -DOWN_DEVICE_SHARED -shared -fPIC, a shared object for any program:
 *
 *   KR_BACKEND=./own_device.so krait train --data notes.txt --out run --device toy
 */
#define _POSIX_C_SOURCE 200809L
#include <krait/backend/kernels.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- the queue: jobs run in order, on a thread ---- */

enum { ARGS_BYTES = 1024 };

typedef struct job {
    struct job *next;
    void (*run)(void *args);
    _Alignas(16) char args[ARGS_BYTES]; /* a copy: the caller's are gone when the job runs */
} job;

typedef struct toy {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    job *first, *last;
    bool is_running, is_closing, has_failed; /* has_failed: a job could not be queued */
} toy;

static void *run_jobs(void *user)
{
    toy *t = user;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->first && !t->is_closing) pthread_cond_wait(&t->changed, &t->lock);
        if (!t->first) break;
        job *now = t->first;
        t->first = now->next;
        t->is_running = true;
        pthread_mutex_unlock(&t->lock);
        now->run(now->args);
        free(now);
        pthread_mutex_lock(&t->lock);
        t->is_running = false;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void queue(toy *t, void (*run)(void *args), const void *args, size_t bytes)
{
    job *j = bytes <= ARGS_BYTES ? malloc(sizeof *j) : NULL;
    pthread_mutex_lock(&t->lock);
    if (j) {
        j->next = NULL;
        j->run = run;
        memcpy(j->args, args, bytes);
        if (t->first) t->last->next = j;
        else t->first = j;
        t->last = j;
        pthread_cond_broadcast(&t->changed);
    } else {
        t->has_failed = true;
    }
    pthread_mutex_unlock(&t->lock);
}

/* ---- the functions of the device ---- */

static const char *toy_open(void *user, int number, void **handle, const char **name)
{
    (void)user;
    if (number != 0) return "there is one toy, toy:0";
    toy *t = calloc(1, sizeof *t);
    if (!t) return "no memory for a queue";
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    if (pthread_create(&t->thread, NULL, run_jobs, t) != 0) {
        free(t);
        return "the system refused a thread";
    }
    *handle = t;
    *name = "a queue on a thread";
    return NULL;
}

static void toy_close(void *handle)
{
    toy *t = handle;
    pthread_mutex_lock(&t->lock);
    t->is_closing = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static const char *toy_wait(void *handle)
{
    toy *t = handle;
    pthread_mutex_lock(&t->lock);
    while (t->first || t->is_running) pthread_cond_wait(&t->changed, &t->lock);
    const bool has_failed = t->has_failed;
    pthread_mutex_unlock(&t->lock);
    return has_failed ? "no memory for a job" : NULL;
}

static void *toy_alloc(void *handle, size_t bytes, size_t align)
{
    (void)handle;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void toy_free(void *handle, void *p)
{
    toy_wait(handle); /* a queued job may use it */
    free(p);
}

/* Both transfers are complete on return. */
static const char *toy_upload(void *handle, void *to, const void *host, size_t bytes)
{
    const char *why = toy_wait(handle);
    if (!why) memcpy(to, host, bytes);
    return why;
}

static const char *toy_download(void *handle, void *host, const void *from, size_t bytes)
{
    return toy_upload(handle, host, from, bytes);
}

typedef struct move {
    void *to;
    const void *from; /* NULL: zeros */
    size_t bytes;
} move;

static void run_move(void *args)
{
    const move *m = args;
    if (m->from) memmove(m->to, m->from, m->bytes);
    else memset(m->to, 0, m->bytes);
}

static const char *toy_copy(void *handle, void *to, const void *from, size_t bytes)
{
    queue(handle, run_move, &(move){ to, from, bytes }, sizeof(move));
    return NULL;
}

static const char *toy_zero(void *handle, void *p, size_t bytes)
{
    queue(handle, run_move, &(move){ p, NULL, bytes }, sizeof(move));
    return NULL;
}

/* The error of the last kernel. */
static const char *toy_check(void *handle)
{
    toy *t = handle;
    pthread_mutex_lock(&t->lock);
    const bool has_failed = t->has_failed;
    pthread_mutex_unlock(&t->lock);
    return has_failed ? "no memory for a job" : NULL;
}

static const kr_backend_device device = { .size = sizeof device,
                                          .open = toy_open,
                                          .close = toy_close,
                                          .alloc = toy_alloc,
                                          .free = toy_free,
                                          .upload = toy_upload,
                                          .download = toy_download,
                                          .copy = toy_copy,
                                          .zero = toy_zero,
                                          .wait = toy_wait,
                                          .check = toy_check };

/* ---- its kernel: y = x / (1 + e^-x), over any index space ---- */

static void run_silu(void *args)
{
    const kr_unary_args *a = args;
    const kr_walk *w = &a->walk;
    int64_t index[KR_MAX_RANK] = { 0 }, x_at = 0, y_at = 0, count = 1;
    for (int axis = 0; axis < w->rank; axis++) count *= w->dims[axis];
    for (; count > 0; count--) {
        const float x = ((const float *)a->x)[x_at];
        ((float *)a->y)[y_at] = x / (1 + expf(-x));
        for (int axis = w->rank - 1; axis >= 0; axis--) {
            y_at += w->strides[0][axis];
            x_at += w->strides[1][axis];
            if (++index[axis] < w->dims[axis]) break;
            y_at -= w->dims[axis] * w->strides[0][axis];
            x_at -= w->dims[axis] * w->strides[1][axis];
            index[axis] = 0;
        }
    }
}

/* The library calls this; exec.own is the handle of the device. */
static void queue_silu(const kr_unary_args *args)
{
    _Static_assert(sizeof *args <= ARGS_BYTES, "the arguments fit a job");
    queue(args->exec.own, run_silu, args, sizeof *args);
}

static const kr_kernels kernels = { .silu = { [KR_REAL_F32] = { .run = queue_silu } } };
static const kr_backend_info backend = { KR_BACKEND_HEAD, .name = "toy", .kernels = &kernels, .device = &device };

#ifdef OWN_DEVICE_SHARED

__attribute__((visibility("default"))) const kr_backend_info *krait_backend(const kr_backend_host *host);
const kr_backend_info *krait_backend(const kr_backend_host *host)
{
    (void)host;
    return &backend;
}

#else

#include <krait/krait.h>
#include <stdio.h>

/* The loss of the last step. */
static double train(kr_ctx *ctx)
{
    double loss = 0;
    kr_mamba2_config mamba;
    kr_mamba2_config_init(&mamba);
    mamba.d_model = 32;
    mamba.state_rank = 16;
    mamba.per_head_dim = 16;
    kr_mamba2 *block = kr_mamba2_create(ctx, &mamba);
    kr_optimizer *optimizer = kr_optimizer_create(ctx, kr_mamba2_params(block), NULL);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    for (int step = 0; step < 10 && !kr_ctx_failed(ctx); step++) {
        kr_tensor *x = kr_silu(tape, kr_randn(tape, KR_DTYPE_F32, KR_SHAPE(2, 24, 32)));
        kr_mamba2_out out = kr_mamba2_forward(tape, block, x, NULL, kr_mamba2_path(block));
        kr_tensor *mse = kr_mse(tape, out.y, x, NULL);
        kr_backward(tape, mse);
        if (kr_optimizer_step(optimizer, 1e-2, 1) != KR_OK) break;
        loss = kr_item(mse);
        kr_tape_reset(tape);
    }
    kr_tape_destroy(tape);
    kr_optimizer_destroy(optimizer);
    kr_mamba2_destroy(block);
    return loss;
}

static kr_ctx *create(const char *name)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = name;
    return kr_ctx_create(&options);
}

int main(void)
{
    kr_ctx *cpu = create("cpu");
    kr_ctx *ctx = kr_backend_register(cpu, &backend) == KR_OK ? create("toy") : NULL;
    const double want = train(cpu), got = train(ctx);
    const kr_backend_stats stats = kr_ctx_backend_stats(ctx);
    printf("device: %s; silu runs on %s, ssd on %s\n", kr_ctx_device(ctx), kr_ctx_kernel(ctx, "silu"),
           kr_ctx_kernel(ctx, "ssd"));
    printf("loss after 10 steps: %.5f, on the CPU %.5f\n", got, want);
    printf("fell back to the CPU: %llu calls, %.1f MiB transferred\n", (unsigned long long)stats.fallback_calls,
           (double)stats.fallback_bytes / 0x1p20);
    const bool failed = !ctx || kr_ctx_failed(cpu) || kr_ctx_failed(ctx) || !(fabs(got - want) < 1e-4 * want);
    if (kr_ctx_failed(cpu)) fprintf(stderr, "krait: %s\n", kr_ctx_message(cpu));
    if (kr_ctx_failed(ctx)) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    kr_ctx_destroy(ctx);
    kr_ctx_destroy(cpu);
    return failed;
}

#endif
