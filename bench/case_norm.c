/* case_norm.c - RMS norm, plain and gated (gate first), forward and backward, compared with plain reads of as many
 * bytes.
 *
 * Bytes are those that must move at least once: each operand and result of [rows channels].
 */
#include "bench/bench.h"
#include "bench/bench_machine.h"

#include <string.h>

enum { RMS, RMS_BWD, GATED, GATED_BWD };

typedef struct norm_job {
    void (*run)(const kr_norm_args *);
    void (*run_bwd)(const kr_norm_bwd_args *);
    kr_norm_args args;
    kr_norm_bwd_args bwd;
} norm_job;

static void call_norm(void *arg)
{
    const norm_job *job = arg;
    job->run(&job->args);
}

static void call_norm_bwd(void *arg)
{
    const norm_job *job = arg;
    job->run_bwd(&job->bwd);
}

/* Tensors of [rows channels] that are read or written. */
static int tensors_of(int variant)
{
    switch (variant) {
    case RMS: return 2;     /* x, y */
    case RMS_BWD: return 3; /* x, g_y, g_x */
    case GATED: return 3;   /* x, z, y */
    default: return 5;      /* x, z, g_y, g_x, g_z */
    }
}

static void fill_forward(bench_env *env, norm_job *job, const kr_kernels *set, int64_t no, int64_t ni, bool gated)
{
    kr_norm_args *a = &job->args;
    a->no = no;
    a->ni = ni;
    a->ng = 1;
    a->x = (kr_operand){ bench_floats(env, no * ni, -1, 1), KR_DTYPE_F32, ni };
    a->z = (kr_operand){ gated ? bench_floats(env, no * ni, -4, 4) : NULL, KR_DTYPE_F32, ni };
    a->gain = bench_floats(env, ni, 0.5, 1.5);
    a->y = (kr_operand){ bench_floats(env, no * ni, 0, 1), KR_DTYPE_F32, ni };
    a->q = bench_floats(env, no, 0, 1);
    a->eps = 1e-5;
    a->exec.scratch = bench_bytes(env, set->norm[KR_REAL_F32].scratch ? set->norm[KR_REAL_F32].scratch(a) : 0);
    job->run = set->norm[KR_REAL_F32].run;
}

static void fill_backward(bench_env *env, norm_job *job, const kr_kernels *set)
{
    const kr_norm_args *a = &job->args;
    kr_norm_bwd_args *b = &job->bwd;
    *b = (kr_norm_bwd_args){ .no = a->no, .ni = a->ni, .ng = 1, .x = a->x, .z = a->z, .gain = a->gain, .q = a->q };
    b->exec.pool = a->exec.pool;
    b->g_y = a->y;
    b->g_x = (kr_operand){ bench_floats(env, a->no * a->ni, 0, 1), KR_DTYPE_F32, a->ni };
    b->g_z = (kr_operand){ a->z.data ? bench_floats(env, a->no * a->ni, 0, 1) : NULL, KR_DTYPE_F32, a->ni };
    b->g_gain = bench_floats(env, a->ni, 0, 1);
    b->exec.scratch = bench_bytes(env, set->norm_bwd[KR_REAL_F32].scratch ? set->norm_bwd[KR_REAL_F32].scratch(b) : 0);
    job->run_bwd = set->norm_bwd[KR_REAL_F32].run;
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    const int64_t no = self->size[0], ni = self->size[1], floats = no * ni * tensors_of(self->variant);
    const bool gated = self->variant >= GATED, backward = self->variant == RMS_BWD || self->variant == GATED_BWD;
    contender line[BENCH_CONTENDERS];
    read_job reads;
    int n = 0;
    char name[24];
    for (int i = 0; i < env->nsets; i++) {
        norm_job *job = bench_bytes(env, sizeof *job);
        memset(job, 0, sizeof *job);
        job->args.exec.pool = bench_pool(env, threads);
        fill_forward(env, job, &env->sets[i], no, ni, gated);
        call_norm(job); /* the backward pass needs q */
        if (backward) fill_backward(env, job, &env->sets[i]);
        bench_enter(line, &n, backward ? call_norm_bwd : call_norm, job, 4 * (double)floats,
                    bench_name(name, "krait", env->sets[i].name));
    }
    contender *read = machine_enter_read(env, line, &n, &reads, bench_floats(env, floats, 0, 1), floats, 1, threads);
    for (int i = 0; i < env->nsets; i++) bench_compare(&line[i], read);
    bench_run(env, self, threads, "GB/s", line, n);
}

static void case_norm(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

const bench_case bench_norm_cases[] = {
    { "norm/rms-2048x1536", "RMS norm", case_norm, { 2048, 1536 }, RMS },
    { "norm/rms-bwd-2048x1536", "its gradients", case_norm, { 2048, 1536 }, RMS_BWD },
    { "norm/rms-256x512", "RMS norm", case_norm, { 256, 512 }, RMS },
    { "norm/rms-bwd-256x512", "its gradients", case_norm, { 256, 512 }, RMS_BWD },
    { "norm/gated-2048x1536", "gated RMS norm", case_norm, { 2048, 1536 }, GATED },
    { "norm/gated-bwd-2048x1536", "its gradients", case_norm, { 2048, 1536 }, GATED_BWD },
    { "norm/gated-256x512", "gated RMS norm", case_norm, { 256, 512 }, GATED },
    { "norm/gated-bwd-256x512", "its gradients", case_norm, { 256, 512 }, GATED_BWD },
    { 0 },
};
