/* case_gemm.c - matrix products, M x K x N, compared with oneDNN's dnnl_sgemm and the machine's multiply-add peak.
 *
 * Large ones: weights stored [n k] (NT, a linear layer), 1 and n threads. Small ones, as inside the state space
 * kernels: cycling through 24 distinct operands, so that they are read from L2; one thread call by call, n threads as
 * one batch.
 */
#include "bench/bench.h"
#include "bench/bench_machine.h"
#include "bench/peer.h"

#include <math.h>
#include <string.h>

enum { NN, NT, TN };

enum { SMALL_SETS = 24 };

/* Consecutive products of one contender: ours, then the peer's view of them. */
typedef struct gemm_job {
    int count;
    void (*run)(const kr_matmul_args *);
    kr_matmul_args args[SMALL_SETS];
    peer_gemm peer[SMALL_SETS];
    float *c;
} gemm_job;

/* A and B, `count` of each, contiguous. */
typedef struct operands {
    int64_t nm, nk, nn, count;
    int layout;
    const float *a, *b;
} operands;

static void call_ours(void *arg)
{
    const gemm_job *job = arg;
    for (int i = 0; i < job->count; i++) job->run(&job->args[i]);
}

static void call_peer(void *arg)
{
    const gemm_job *job = arg;
    for (int i = 0; i < job->count; i++) peer_gemm_run(&job->peer[i]);
}

static operands make_operands(bench_env *env, const bench_case *self, int64_t count)
{
    operands o = {
        .nm = self->size[0], .nk = self->size[1], .nn = self->size[2], .count = count, .layout = self->variant
    };
    o.a = bench_floats(env, count * o.nm * o.nk, -0.5, 0.5);
    o.b = bench_floats(env, count * o.nk * o.nn, -0.5, 0.5);
    return o;
}

static kr_matmul_args matmul_of(const operands *o, int64_t item, float *c)
{
    const bool a_transposed = o->layout == TN, b_transposed = o->layout == NT;
    return (kr_matmul_args){ .nm = o->nm,
                             .nn = o->nn,
                             .nk = o->nk,
                             .a = { (float *)(uintptr_t)o->a + item * o->nm * o->nk, KR_DTYPE_F32,
                                    a_transposed ? 1 : o->nk, a_transposed ? o->nm : 1 },
                             .b = { (float *)(uintptr_t)o->b + item * o->nk * o->nn, KR_DTYPE_F32,
                                    b_transposed ? 1 : o->nn, b_transposed ? o->nk : 1 },
                             .c = { c + item * o->nm * o->nn, KR_DTYPE_F32, o->nn } };
}

static void give_scratch(bench_env *env, const kr_kernels *set, gemm_job *job)
{
    size_t bytes = 0;
    for (int i = 0; i < job->count; i++) {
        const size_t need = set->matmul[KR_REAL_F32].scratch ? set->matmul[KR_REAL_F32].scratch(&job->args[i]) : 0;
        if (need > bytes) bytes = need;
    }
    void *scratch = bench_bytes(env, bytes);
    for (int i = 0; i < job->count; i++) job->args[i].exec.scratch = scratch;
}

static gemm_job *ours(bench_env *env, const kr_kernels *set, const operands *o, int threads)
{
    gemm_job *job = bench_bytes(env, sizeof *job);
    memset(job, 0, sizeof *job);
    job->run = set->matmul[KR_REAL_F32].run;
    job->c = bench_floats(env, o->count * o->nm * o->nn, 0, 1);
    if (threads > 1 && o->count > 1) {
        kr_matmul_args batch = matmul_of(o, 0, job->c);
        batch.batch_rank = 1;
        batch.batch_dims[0] = o->count;
        batch.batch_a[0] = o->nm * o->nk;
        batch.batch_b[0] = o->nk * o->nn;
        batch.batch_c[0] = o->nm * o->nn;
        job->args[job->count++] = batch;
    } else {
        for (int64_t i = 0; i < o->count; i++) job->args[job->count++] = matmul_of(o, i, job->c);
    }
    for (int i = 0; i < job->count; i++) job->args[i].exec.pool = bench_pool(env, threads);
    give_scratch(env, set, job);
    return job;
}

static gemm_job *peers(bench_env *env, const operands *o)
{
    gemm_job *job = bench_bytes(env, sizeof *job);
    memset(job, 0, sizeof *job);
    job->c = bench_floats(env, o->count * o->nm * o->nn, 0, 1);
    for (int64_t i = 0; i < o->count; i++) {
        const kr_matmul_args m = matmul_of(o, i, job->c);
        job->peer[job->count++] = (peer_gemm){ .a_transposed = o->layout == TN,
                                               .b_transposed = o->layout == NT,
                                               .nm = o->nm,
                                               .nn = o->nn,
                                               .nk = o->nk,
                                               .a = m.a.data,
                                               .b = m.b.data,
                                               .c = m.c.data };
    }
    return job;
}

/* Results must agree before they are timed. */
static void check_same(const operands *o, const gemm_job *a, const gemm_job *b, const char *name)
{
    double worst = 0;
    for (int64_t i = 0; i < o->count * o->nm * o->nn; i++) {
        const double difference = fabs((double)a->c[i] - (double)b->c[i]);
        if (!(difference <= worst)) worst = difference;
    }
    if (!(worst <= 1e-6 * (double)o->nk)) bench_fail("%s and oneDNN differ by %g", name, worst);
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    const operands o = make_operands(env, self, self->size[3]);
    const double flop = 2.0 * (double)(o.nm * o.nk * o.nn * o.count);
    contender line[BENCH_CONTENDERS], *mine[BENCH_SETS];
    gemm_job *jobs[BENCH_SETS], *peer_job = NULL;
    peak_job peaks[BENCH_SETS];
    int n = 0;
    char name[24];
    for (int i = 0; i < env->nsets; i++) {
        jobs[i] = ours(env, &env->sets[i], &o, threads);
        mine[i] = bench_enter(line, &n, call_ours, jobs[i], flop, bench_name(name, "krait", env->sets[i].name));
    }
    contender *peer = NULL;
    if ((o.count == 1 || threads == 1) && peer_gemm_threads(threads)) {
        peer_job = peers(env, &o);
        peer = bench_enter(line, &n, call_peer, peer_job, flop, "oneDNN");
        peer->lingers = threads > 1;
    }
    for (int i = 0; i < env->nsets; i++) {
        contender *peak = machine_enter_peak(env, line, &n, &peaks[i], env->sets[i].name, threads);
        if (peak) peak->hidden = true;
        if (peer) bench_compare(mine[i], peer);
        if (peak) bench_compare(mine[i], peak);
        if (peak && peer && i + 1 == env->nsets) bench_compare(peer, peak);
        if (i > 0 && i + 1 == env->nsets) bench_compare(mine[i], mine[0]);
    }
    bench_run(env, self, threads, "GFLOP/s", line, n);
    for (int i = 0; peer && i < env->nsets; i++) check_same(&o, jobs[i], peer_job, mine[i]->name);
}

static void case_gemm(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

#define LARGE(m, k, n)                                                                                                 \
    {                                                                                                                  \
        "gemm/" #m "x" #k "x" #n, "NT, as a linear layer", case_gemm, { m, k, n, 1 }, NT                               \
    }
#define SMALL(m, k, n, layout, what)                                                                                   \
    {                                                                                                                  \
        "gemm/" #m "x" #k "x" #n "-" what, "24 of them in turn, from L2", case_gemm, { m, k, n, SMALL_SETS }, layout   \
    }

const bench_case bench_gemm_cases[] = {
    LARGE(512, 256, 1164),         LARGE(512, 512, 256),
    LARGE(2048, 768, 3352),        LARGE(2048, 1536, 768),
    SMALL(64, 64, 64, NN, "nn"),   SMALL(64, 64, 64, NT, "nt"),
    SMALL(64, 64, 64, TN, "tn"),   SMALL(64, 128, 64, NN, "nn"),
    SMALL(64, 128, 64, NT, "nt"),  SMALL(64, 128, 64, TN, "tn"),
    SMALL(128, 64, 128, NN, "nn"), SMALL(128, 64, 128, NT, "nt"),
    SMALL(128, 64, 128, TN, "tn"), { 0 },
};
