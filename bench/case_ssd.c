/* case_ssd.c - the fused state space core, forward and backward, compared with the FMA peak.
 *
 * FLOPs are the useful ones of the causal form: for a chunk of f = l m rows, per group f^2 r for C B^T; per head f^2 p
 * for W V and 4 f r p for reading and updating the state. The backward counts each product of its formulas once: 3 f^2
 * r per group, 2 f^2 p and 8 f r p per head; recomputed states are not useful work.
 */
#include "bench/bench.h"
#include "bench/bench_machine.h"
#include "bench/ssd_flops.h"

#include <krait/ssd.h>

#include <string.h>

enum { BACKWARD = 1, PER_HEAD = 2 }; /* variants: gradients; B and C for each head, strict form (Mamba-3 single) */
enum { HEAD_DIM = 64 };

typedef struct ssd_job {
    void (*run)(const kr_ssd_args *);
    void (*run_bwd)(const kr_ssd_bwd_args *);
    kr_ssd_args args;
    kr_ssd_bwd_args bwd;
    kr_sequence sequence;
} ssd_job;

static void call_ssd(void *arg)
{
    const ssd_job *job = arg;
    job->run(&job->args);
}

static void call_ssd_bwd(void *arg)
{
    const ssd_job *job = arg;
    job->run_bwd(&job->bwd);
}

/* One row: size = { s, h, r, m }. */
static void fill_forward(bench_env *env, ssd_job *job, const kr_kernels *set, const bench_case *self)
{
    kr_ssd_args *a = &job->args;
    const bool per_head = self->variant & PER_HEAD;
    a->nb = a->nq = 1;
    a->ns = self->size[0];
    a->nh = self->size[1];
    a->nr = self->size[2];
    a->nm = self->size[3];
    a->np = HEAD_DIM;
    a->ng = per_head ? a->nh : 1;
    a->nl = kr_ssd_optimal_chunk_len(a->nr, a->np);
    job->sequence = (kr_sequence){ 0, 0, a->ns };
    a->sequences = &job->sequence;
    const int64_t places = a->ns * a->nm;
    const int64_t of_v = a->nm * a->nh * a->np, of_b = a->nm * a->ng * a->nr;
    a->v = (kr_operand){ bench_floats(env, places * a->nh * a->np, -1, 1), KR_DTYPE_F32, of_v };
    a->b = (kr_operand){ bench_floats(env, places * a->ng * a->nr, -1, 1), KR_DTYPE_F32, of_b };
    a->c = (kr_operand){ bench_floats(env, places * a->ng * a->nr, -1, 1), KR_DTYPE_F32, of_b };
    a->da = bench_floats(env, a->ns * a->nh, -0.2, 0);
    a->w = bench_floats(env, a->ns * a->nh, 0, 0.2);
    a->diag_weight = per_head ? bench_floats(env, a->ns * a->nh, 0, 0.2) : NULL;
    a->carry = per_head ? bench_floats(env, a->ns * a->nh, 0, 0.2) : NULL;
    a->d = per_head ? NULL : bench_floats(env, a->nh, 0, 1);
    a->initial = bench_floats(env, a->nh * a->np * a->nr, -1, 1);
    a->y = (kr_operand){ bench_floats(env, places * a->nh * a->np, 0, 1), KR_DTYPE_F32, of_v };
    a->final = bench_floats(env, a->nh * a->np * a->nr, 0, 1);
    job->run = set->ssd[KR_REAL_F32].run;
    a->exec.scratch = bench_bytes(env, set->ssd[KR_REAL_F32].scratch ? set->ssd[KR_REAL_F32].scratch(a) : 0);
}

static void fill_backward(bench_env *env, ssd_job *job, const kr_kernels *set)
{
    const kr_ssd_args *a = &job->args;
    kr_ssd_bwd_args *b = &job->bwd;
    const int64_t places = a->ns * a->nm, state = a->nh * a->np * a->nr;
    *b = (kr_ssd_bwd_args){
        .nb = 1, .ns = a->ns, .nm = a->nm, .nh = a->nh, .np = a->np, .ng = a->ng, .nr = a->nr, .nl = a->nl
    };
    b->nq = 1;
    b->sequences = a->sequences;
    b->v = a->v;
    b->b = a->b;
    b->c = a->c;
    b->da = a->da;
    b->w = a->w;
    b->diag_weight = a->diag_weight;
    b->d = a->d;
    b->initial = a->initial;
    b->g_y = a->y;
    b->g_final = a->final;
    b->g_v = (kr_operand){ bench_floats(env, places * a->nh * a->np, 0, 1), KR_DTYPE_F32, a->v.row };
    b->g_b = (kr_operand){ bench_floats(env, places * a->ng * a->nr, 0, 1), KR_DTYPE_F32, a->b.row };
    b->g_c = (kr_operand){ bench_floats(env, places * a->ng * a->nr, 0, 1), KR_DTYPE_F32, a->b.row };
    b->g_da = bench_floats(env, a->ns * a->nh, 0, 1);
    b->g_w = bench_floats(env, a->ns * a->nh, 0, 1);
    b->g_diag_weight = a->diag_weight ? bench_floats(env, a->ns * a->nh, 0, 1) : NULL;
    b->g_d = a->d ? bench_floats(env, a->nh, 0, 1) : NULL;
    b->g_initial = bench_floats(env, state, 0, 1);
    b->exec.pool = a->exec.pool;
    job->run_bwd = set->ssd_bwd[KR_REAL_F32].run;
    b->exec.scratch = bench_bytes(env, set->ssd_bwd[KR_REAL_F32].scratch ? set->ssd_bwd[KR_REAL_F32].scratch(b) : 0);
}

double ssd_flops(const kr_ssd_args *a, bool backward)
{
    const double r = (double)a->nr, p = (double)a->np, h = (double)a->nh, g = (double)a->ng;
    double flops = 0;
    for (int64_t s = 0; s < a->ns; s += a->nl) {
        const double f = (double)((a->ns - s < a->nl ? a->ns - s : a->nl) * a->nm);
        flops += backward ? 3 * g * f * f * r + h * (2 * f * f * p + 8 * f * r * p)
                          : g * f * f * r + h * (f * f * p + 4 * f * r * p);
    }
    return flops;
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    const bool backward = self->variant & BACKWARD;
    contender line[BENCH_CONTENDERS];
    peak_job peaks[BENCH_SETS];
    int n = 0, npeaks = 0;
    char name[24];
    double work = 0;
    for (int i = 0; i < env->nsets; i++) {
        ssd_job *job = bench_bytes(env, sizeof *job);
        memset(job, 0, sizeof *job);
        job->args.exec.pool = bench_pool(env, threads);
        fill_forward(env, job, &env->sets[i], self);
        if (backward) fill_backward(env, job, &env->sets[i]);
        work = ssd_flops(&job->args, backward);
        bench_enter(line, &n, backward ? call_ssd_bwd : call_ssd, job, work,
                    bench_name(name, "krait", env->sets[i].name));
    }
    for (int i = 0; i < env->nsets; i++) {
        contender *peak = machine_enter_peak(env, line, &n, &peaks[npeaks], env->sets[i].name, threads);
        if (!peak) continue;
        npeaks++;
        bench_compare(&line[i], peak);
    }
    bench_run(env, self, threads, "GFLOP/s", line, n);
}

static void case_ssd(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

const bench_case bench_ssd_cases[] = {
    { "ssd/2048x24x128", "Mamba-2 core: s 2048, h 24, p 64, r 128, g 1", case_ssd, { 2048, 24, 128, 1 }, 0 },
    { "ssd/bwd-2048x24x128", "its gradients", case_ssd, { 2048, 24, 128, 1 }, BACKWARD },
    { "ssd/256x8x64", "Mamba-2 core: s 256, h 8, p 64, r 64, g 1", case_ssd, { 256, 8, 64, 1 }, 0 },
    { "ssd/bwd-256x8x64", "its gradients", case_ssd, { 256, 8, 64, 1 }, BACKWARD },
    { "ssd/mimo4-512x8x128",
      "Mamba-3 single core, rank 4: s 512, h 8, p 64, r 128",
      case_ssd,
      { 512, 8, 128, 4 },
      PER_HEAD },
    { "ssd/bwd-mimo4-512x8x128", "its gradients", case_ssd, { 512, 8, 128, 4 }, PER_HEAD | BACKWARD },
    { 0 },
};
