/* case_math.c - transcendental functions on data in L1, one thread, compared with glibc's libmvec and libm. */
#include "bench/bench.h"
#include "bench/peer.h"

#include <string.h>

enum { COUNT = 2048 }; /* x and y: half of a 32 KiB L1 */

typedef struct math_job {
    void (*run)(const kr_unary_args *);
    kr_unary_args args;
    peer_math_fn *peer;
    const float *x;
    float *y;
} math_job;

static void call_ours(void *arg)
{
    const math_job *job = arg;
    job->run(&job->args);
}

static void call_peer(void *arg)
{
    const math_job *job = arg;
    job->peer(job->x, job->y, COUNT);
}

/* Our kernel by its name in unary.def. */
static void (*unary_named(const kr_kernels *set, const char *name))(const kr_unary_args *)
{
#define KR_UNARY(kernel)                                                                                               \
    if (strcmp(name, #kernel) == 0) return set->kernel[KR_REAL_F32].run;
#include "kernels/unary.def"
#undef KR_UNARY
    return NULL;
}

static math_job *make_job(bench_env *env, const float *x)
{
    math_job *job = bench_bytes(env, sizeof *job);
    memset(job, 0, sizeof *job);
    job->x = x;
    job->y = bench_floats(env, COUNT, 0, 1);
    job->args.walk.rank = 1;
    job->args.walk.dims[0] = COUNT;
    job->args.walk.strides[0][0] = job->args.walk.strides[1][0] = 1;
    job->args.x = x;
    job->args.y = job->y;
    return job;
}

static contender *enter_peer(bench_env *env, contender *line, int *n, peer_math_fn *fn, const float *x,
                             const char *name)
{
    if (!fn) return NULL;
    math_job *job = make_job(env, x);
    job->peer = fn;
    return bench_enter(line, n, call_peer, job, COUNT, name);
}

static void case_math(bench_env *env, const bench_case *self)
{
    const char *function = strchr(self->name, '/') + 1;
    const float *x = bench_floats(env, COUNT, (double)self->size[0] / 100, (double)self->size[1] / 100);
    contender line[BENCH_CONTENDERS];
    int n = 0;
    char name[24];
    for (int i = 0; i < env->nsets; i++) {
        math_job *job = make_job(env, x);
        job->run = unary_named(&env->sets[i], function);
        if (!job->run) bench_fail("there is no kernel %s", function);
        bench_enter(line, &n, call_ours, job, COUNT, bench_name(name, "krait", env->sets[i].name));
    }
    for (int i = 0; i < env->nsets; i++) {
        const char *set = env->sets[i].name;
        contender *mvec = enter_peer(env, line, &n, peer_mvec(function, set), x, bench_name(name, "libmvec", set));
        if (mvec) bench_compare(&line[i], mvec);
    }
    contender *libm = enter_peer(env, line, &n, peer_libm(function), x, "libm");
    for (int i = 0; libm && i < env->nsets; i++) bench_compare(&line[i], libm);
    bench_run(env, self, 1, "elem/ns", line, n);
}

/* size: the range of x, in hundredths. */
const bench_case bench_math_cases[] = {
    { "math/exp", "x in [-20, 4]", case_math, { -2000, 400 }, 0 },
    { "math/silu", "x in [-20, 4]", case_math, { -2000, 400 }, 0 },
    { "math/softplus", "x in [-20, 4]", case_math, { -2000, 400 }, 0 },
    { "math/log", "x in [0.01, 100]", case_math, { 1, 10000 }, 0 },
    { "math/sin", "x in [-10, 10]", case_math, { -1000, 1000 }, 0 },
    { "math/tanh", "x in [-5, 5]", case_math, { -500, 500 }, 0 },
    { "math/sigmoid", "x in [-20, 4]", case_math, { -2000, 400 }, 0 },
    { 0 },
};
