/* case_conv.c - causal depthwise convolution of 4 taps + bias + SiLU, forward and backward, x [b s v], compared with
 * plain reads of as many bytes. Bytes: x and y; backward x, g_y and g_x. */
#include "bench/bench.h"
#include "bench/bench_machine.h"

#include <string.h>

enum { TAPS = 4 };

typedef struct conv_job {
    void (*run)(const kr_conv_args *);
    void (*run_bwd)(const kr_conv_bwd_args *);
    kr_conv_args args;
    kr_conv_bwd_args bwd;
} conv_job;

static void call_conv(void *arg)
{
    const conv_job *job = arg;
    job->run(&job->args);
}

static void call_conv_bwd(void *arg)
{
    const conv_job *job = arg;
    job->run_bwd(&job->bwd);
}

static void fill_forward(bench_env *env, conv_job *job, const kr_kernels *set, const int64_t *size)
{
    kr_conv_args *a = &job->args;
    a->nb = size[0];
    a->ns = size[1];
    a->nv = size[2];
    a->nk = TAPS;
    a->silu = true;
    kr_sequence *rows = bench_bytes(env, (size_t)a->nb * sizeof *rows);
    for (int64_t b = 0; b < a->nb; b++) rows[b] = (kr_sequence){ b, 0, a->ns };
    a->nq = a->nb;
    a->sequences = rows;
    a->x_batch = a->ns * a->nv;
    a->x = (kr_operand){ bench_floats(env, a->nb * a->ns * a->nv, -1, 1), KR_DTYPE_F32, a->nv };
    a->weight = bench_floats(env, a->nv * TAPS, -1, 1);
    a->bias = bench_floats(env, a->nv, -1, 1);
    a->y = (kr_operand){ bench_floats(env, a->nb * a->ns * a->nv, 0, 1), KR_DTYPE_F32, a->nv };
    a->exec.scratch = bench_bytes(env, set->conv[KR_REAL_F32].scratch ? set->conv[KR_REAL_F32].scratch(a) : 0);
    job->run = set->conv[KR_REAL_F32].run;
}

static void fill_backward(bench_env *env, conv_job *job, const kr_kernels *set)
{
    const kr_conv_args *a = &job->args;
    kr_conv_bwd_args *b = &job->bwd;
    *b = (kr_conv_bwd_args){ .nb = a->nb,
                             .ns = a->ns,
                             .nv = a->nv,
                             .nk = a->nk,
                             .nq = a->nq,
                             .x_batch = a->x_batch,
                             .sequences = a->sequences,
                             .x = a->x,
                             .weight = a->weight,
                             .bias = a->bias,
                             .silu = true,
                             .ng_y = 1,
                             .g_y = { a->y },
                             .from = { 0, a->nv } };
    b->exec.pool = a->exec.pool;
    b->g_x = (kr_operand){ bench_floats(env, a->nb * a->ns * a->nv, 0, 1), KR_DTYPE_F32, a->nv };
    b->g_weight = bench_floats(env, a->nv * TAPS, 0, 1);
    b->g_bias = bench_floats(env, a->nv, 0, 1);
    b->exec.scratch = bench_bytes(env, set->conv_bwd[KR_REAL_F32].scratch ? set->conv_bwd[KR_REAL_F32].scratch(b) : 0);
    job->run_bwd = set->conv_bwd[KR_REAL_F32].run;
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    const bool backward = self->variant != 0;
    const int64_t floats = self->size[0] * self->size[1] * self->size[2] * (backward ? 3 : 2);
    contender line[BENCH_CONTENDERS];
    read_job reads;
    int n = 0;
    char name[24];
    for (int i = 0; i < env->nsets; i++) {
        conv_job *job = bench_bytes(env, sizeof *job);
        memset(job, 0, sizeof *job);
        job->args.exec.pool = bench_pool(env, threads);
        fill_forward(env, job, &env->sets[i], self->size);
        if (backward) fill_backward(env, job, &env->sets[i]);
        bench_enter(line, &n, backward ? call_conv_bwd : call_conv, job, 4 * (double)floats,
                    bench_name(name, "krait", env->sets[i].name));
    }
    contender *read = machine_enter_read(env, line, &n, &reads, bench_floats(env, floats, 0, 1), floats, 1, threads);
    for (int i = 0; i < env->nsets; i++) bench_compare(&line[i], read);
    bench_run(env, self, threads, "GB/s", line, n);
}

static void case_conv(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

const bench_case bench_conv_cases[] = {
    { "conv/1x2048x1792", "convolution + SiLU", case_conv, { 1, 2048, 1792 }, 0 },
    { "conv/bwd-1x2048x1792", "its gradients", case_conv, { 1, 2048, 1792 }, 1 },
    { "conv/2x256x640", "convolution + SiLU", case_conv, { 2, 256, 640 }, 0 },
    { "conv/bwd-2x256x640", "its gradients", case_conv, { 2, 256, 640 }, 1 },
    { 0 },
};
