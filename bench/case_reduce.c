/* case_reduce.c - softmax over rows, sums over rows and over columns, compared with plain reads of as many bytes. */
#include "bench/bench.h"
#include "bench/bench_machine.h"

#include <string.h>

enum { SOFTMAX, SUM_LAST, SUM_FIRST };

typedef struct reduce_job {
    void (*softmax)(const kr_softmax_args *);
    void (*sum)(const kr_reduce_args *);
    kr_softmax_args softmax_args;
    kr_reduce_args sum_args;
} reduce_job;

static void call_softmax(void *arg)
{
    const reduce_job *job = arg;
    job->softmax(&job->softmax_args);
}

static void call_sum(void *arg)
{
    const reduce_job *job = arg;
    job->sum(&job->sum_args);
}

static reduce_job *make_job(bench_env *env, const kr_kernels *set, const bench_case *self, int threads)
{
    reduce_job *job = bench_bytes(env, sizeof *job);
    memset(job, 0, sizeof *job);
    const int64_t rows = self->size[0], columns = self->size[1];
    const bool last = self->variant == SUM_LAST;
    const float *x = bench_floats(env, rows * columns, -4, 4);
    float *y = bench_floats(env, self->variant == SOFTMAX ? rows * columns : last ? rows : columns, 0, 1);
    job->softmax = set->softmax[KR_REAL_F32].run;
    job->sum = set->sum[KR_REAL_F32].run;
    kr_softmax_args *s = &job->softmax_args;
    *s = (kr_softmax_args){ .no = rows, .nr = columns, .x = x, .y = y };
    kr_reduce_args *r = &job->sum_args;
    *r = (kr_reduce_args){ .no = last ? rows : 1, .nr = last ? columns : rows, .ni = last ? 1 : columns, .alpha = 1 };
    r->x = x;
    r->y = y;
    s->exec.pool = r->exec.pool = bench_pool(env, threads);
    s->exec.scratch = bench_bytes(env, set->softmax[KR_REAL_F32].scratch ? set->softmax[KR_REAL_F32].scratch(s) : 0);
    r->exec.scratch = bench_bytes(env, set->sum[KR_REAL_F32].scratch ? set->sum[KR_REAL_F32].scratch(r) : 0);
    return job;
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    const bool softmax = self->variant == SOFTMAX;
    const int64_t floats = self->size[0] * self->size[1] * (softmax ? 2 : 1);
    contender line[BENCH_CONTENDERS];
    read_job reads;
    int n = 0;
    char name[24];
    for (int i = 0; i < env->nsets; i++) {
        bench_enter(line, &n, softmax ? call_softmax : call_sum, make_job(env, &env->sets[i], self, threads),
                    4 * (double)floats, bench_name(name, "krait", env->sets[i].name));
    }
    contender *read = machine_enter_read(env, line, &n, &reads, bench_floats(env, floats, 0, 1), floats, 1, threads);
    for (int i = 0; i < env->nsets; i++) bench_compare(&line[i], read);
    bench_run(env, self, threads, "GB/s", line, n);
}

static void case_reduce(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

const bench_case bench_reduce_cases[] = {
    { "softmax/2048x1024", "over the last axis", case_reduce, { 2048, 1024 }, SOFTMAX },
    { "sum/last-2048x1536", "over the last axis", case_reduce, { 2048, 1536 }, SUM_LAST },
    { "sum/first-2048x1536", "over the first axis", case_reduce, { 2048, 1536 }, SUM_FIRST },
    { 0 },
};
