/* case_scan.c - Mamba-1's selective scan, forward and backward, in exponentials per ns: one for each token, channel and
 * state. Compared with the exp kernel on data in the first-level cache. */
#include "bench/bench.h"

#include <string.h>

enum { EXP_FLOATS = 2048 };

typedef struct scan_job {
    void (*run)(const kr_scan_args *);
    void (*run_bwd)(const kr_scan_bwd_args *);
    kr_scan_args args;
    kr_scan_bwd_args bwd;
    kr_sequence sequence;
} scan_job;

static void call_scan(void *arg)
{
    const scan_job *job = arg;
    job->run(&job->args);
}

static void call_scan_bwd(void *arg)
{
    const scan_job *job = arg;
    job->run_bwd(&job->bwd);
}

typedef struct exp_job {
    void (*run)(const kr_unary_args *);
    kr_unary_args args;
} exp_job;

static void call_exp(void *arg)
{
    const exp_job *job = arg;
    job->run(&job->args);
}

/* size = { s, i, r } */
static void fill(bench_env *env, scan_job *job, const kr_kernels *set, const bench_case *self)
{
    kr_scan_args *a = &job->args;
    kr_scan_bwd_args *b = &job->bwd;
    a->nb = a->nq = a->ng = 1;
    a->ns = self->size[0];
    a->ni = self->size[1];
    a->nr = self->size[2];
    job->sequence = (kr_sequence){ 0, 0, a->ns };
    a->sequences = &job->sequence;
    a->x = (kr_operand){ bench_floats(env, a->ns * a->ni, -1, 1), KR_DTYPE_F32, a->ni };
    a->dt = (kr_operand){ bench_floats(env, a->ns * a->ni, 0, 0.1), KR_DTYPE_F32, a->ni };
    a->a = bench_floats(env, a->ni * a->nr, -16, -1);
    a->b = (kr_operand){ bench_floats(env, a->ns * a->nr, -1, 1), KR_DTYPE_F32, a->nr };
    a->c = (kr_operand){ bench_floats(env, a->ns * a->nr, -1, 1), KR_DTYPE_F32, a->nr };
    a->d = bench_floats(env, a->ni, 0, 1);
    a->z = (kr_operand){ bench_floats(env, a->ns * a->ni, -4, 4), KR_DTYPE_F32, a->ni };
    a->y = bench_floats(env, a->ns * a->ni, 0, 1);
    a->final = bench_floats(env, a->ni * a->nr, 0, 1);
    a->exec.scratch = bench_bytes(env, set->scan[KR_REAL_F32].scratch ? set->scan[KR_REAL_F32].scratch(a) : 0);
    job->run = set->scan[KR_REAL_F32].run;
    *b = (kr_scan_bwd_args){
        .exec.pool = a->exec.pool, .nb = 1, .ns = a->ns, .ni = a->ni, .ng = 1, .nr = a->nr, .nq = 1
    };
    b->sequences = &job->sequence;
    b->x = a->x;
    b->dt = a->dt;
    b->a = a->a;
    b->b = a->b;
    b->c = a->c;
    b->d = a->d;
    b->z = a->z;
    b->g_y = a->y;
    b->g_x = bench_floats(env, a->ns * a->ni, 0, 1);
    b->g_dt = bench_floats(env, a->ns * a->ni, 0, 1);
    b->g_z = bench_floats(env, a->ns * a->ni, 0, 1);
    b->g_a = bench_floats(env, a->ni * a->nr, 0, 1);
    b->g_b = bench_floats(env, a->ns * a->nr, 0, 1);
    b->g_c = bench_floats(env, a->ns * a->nr, 0, 1);
    b->g_d = bench_floats(env, a->ni, 0, 1);
    b->exec.scratch = bench_bytes(env, set->scan_bwd[KR_REAL_F32].scratch ? set->scan_bwd[KR_REAL_F32].scratch(b) : 0);
    job->run_bwd = set->scan_bwd[KR_REAL_F32].run;
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    const double work = (double)(self->size[0] * self->size[1] * self->size[2]);
    contender line[BENCH_CONTENDERS];
    int n = 0;
    char name[24];
    for (int i = 0; i < env->nsets; i++) {
        scan_job *job = bench_bytes(env, sizeof *job);
        memset(job, 0, sizeof *job);
        job->args.exec.pool = bench_pool(env, threads);
        fill(env, job, &env->sets[i], self);
        contender *ours = bench_enter(line, &n, self->variant ? call_scan_bwd : call_scan, job, work,
                                      bench_name(name, "krait", env->sets[i].name));
        if (self->variant)
            bench_compare(ours,
                          bench_enter(line, &n, call_scan, job, work, bench_name(name, "forward", env->sets[i].name)));
        if (threads > 1) continue;
        exp_job *exp = bench_bytes(env, sizeof *exp);
        memset(exp, 0, sizeof *exp);
        exp->run = env->sets[i].exp[KR_REAL_F32].run;
        exp->args.walk = (kr_walk){ .rank = 1, .dims = { EXP_FLOATS }, .strides = { { 1 }, { 1 } } };
        exp->args.x = bench_floats(env, EXP_FLOATS, -2, 0);
        exp->args.y = bench_floats(env, EXP_FLOATS, 0, 1);
        bench_compare(ours,
                      bench_enter(line, &n, call_exp, exp, EXP_FLOATS, bench_name(name, "exp", env->sets[i].name)));
    }
    bench_run(env, self, threads, "exp/ns", line, n);
}

static void case_scan(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

const bench_case bench_scan_cases[] = {
    { "scan/2048x1536x16", "Mamba-1's scan: s 2048, i 1536, r 16", case_scan, { 2048, 1536, 16 }, 0 },
    { "scan/bwd-2048x1536x16", "its gradients, compared with the forward", case_scan, { 2048, 1536, 16 }, 1 },
    { 0 },
};
