/* case_paths.c - compares the three algorithms of the state space core, forward and backward through the tape. */
#include "bench/bench.h"

#include <krait/ssd.h>

typedef struct path_job {
    kr_ctx *ctx;
    kr_tape *tape;
    kr_tensor *params[7];
    kr_ssd_path path;
} path_job;

static void call_path(void *arg)
{
    path_job *job = arg;
    kr_tape_reset(job->tape);
    kr_tensor *const *p = job->params;
    const kr_mamba2_ssd_input in = { .x_bshp = p[0],
                                     .dt_bsh = p[1],
                                     .a_decay_h = p[2],
                                     .b_bsgr = p[3],
                                     .c_bsgr = p[4],
                                     .d_h = p[5],
                                     .initial_state_bhpr = p[6] };
    const kr_ssd_out out = kr_mamba2_ssd_run(job->tape, &in, job->path);
    kr_backward_from(job->tape, 2, (kr_tensor *[]){ out.y, out.final_state }, NULL);
    if (kr_ctx_failed(job->ctx)) bench_fail("%s", kr_ctx_message(job->ctx));
}

static path_job *make_job(bench_env *env, const bench_case *self, int threads, kr_ssd_algorithm algorithm)
{
    path_job *job = bench_bytes(env, sizeof *job);
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = threads;
    *job = (path_job){ .ctx = kr_ctx_create(&options), .path = { algorithm, 0 } };
    job->tape = kr_tape_create(job->ctx, KR_TAPE_GRAD);
    const int64_t ns = self->size[0], nh = self->size[1], nr = self->size[2], np = 64;
    const kr_shape shapes[7] = { KR_SHAPE(1, ns, nh, np), KR_SHAPE(1, ns, nh),    KR_SHAPE(nh),
                                 KR_SHAPE(1, ns, 1, nr),  KR_SHAPE(1, ns, 1, nr), KR_SHAPE(nh),
                                 KR_SHAPE(1, nh, np, nr) };
    for (int i = 0; i < 7; i++) {
        job->params[i] = kr_param_create(job->ctx, KR_DTYPE_F32, shapes[i]);
        if (i == 1) kr_param_uniform(job->params[i], 0.05, 0.3);
        else if (i == 2) kr_param_uniform(job->params[i], -1, -0.5);
        else kr_param_normal(job->params[i], 0, 1);
    }
    if (kr_ctx_failed(job->ctx)) bench_fail("%s", kr_ctx_message(job->ctx));
    return job;
}

static void drop_job(path_job *job)
{
    kr_tape_destroy(job->tape);
    for (int i = 0; i < 7; i++) kr_param_destroy(job->params[i]);
    kr_ctx_destroy(job->ctx);
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    static const char *const names[] = { "minimal", "serial", "recalculated" };
    contender line[BENCH_CONTENDERS];
    path_job *jobs[3];
    int n = 0;
    for (int a = KR_SSD_MINIMAL; a <= KR_SSD_SERIAL_RECALCULATED; a++) {
        jobs[a] = make_job(env, self, threads, (kr_ssd_algorithm)a);
        bench_enter(line, &n, call_path, jobs[a], (double)self->size[0] * 1e3, names[a]);
    }
    bench_compare(&line[2], &line[0]);
    bench_compare(&line[2], &line[1]);
    bench_run(env, self, threads, "Mtok/s", line, n);
    for (int a = 0; a < 3; a++) drop_job(jobs[a]);
}

static void case_paths(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

const bench_case bench_paths_cases[] = {
    { "paths/2048x24x128",
      "Minimal, Serial, SerialRecalculated: forward and backward",
      case_paths,
      { 2048, 24, 128 },
      0 },
    { "paths/256x8x64", "the same", case_paths, { 256, 8, 64 }, 0 },
    { 0 },
};
