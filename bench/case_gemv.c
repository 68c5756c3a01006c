/* case_gemv.c - y = W x as in decoding, compared with plain reads of the same bytes.
 *
 * Hot: one W repeatedly, from the last-level cache if it fits. Cold: another one each time, from memory. W is [n k], as
 * in checkpoints; or [k n]; or packed by kr_params_pack: the same sums in the same order, without a transpose. Its
 * elements are f32, or bf16 widened in registers.
 */
#include "bench/bench.h"
#include "bench/bench_machine.h"

enum { COLD = 1, BY_K = 2, PACKED = 4, BF16 = 8 }; /* variants of a case */

typedef struct gemv_job {
    const kr_kernels *set;
    kr_matmul_args args;
    kr_panels_args packed;
    const char *w;
    int64_t bytes; /* of one W */
    int64_t count, at;
} gemv_job;

static void call_gemv(void *arg)
{
    gemv_job *job = arg;
    job->at = (job->at + 1) % job->count;
    job->args.b.data = (char *)(uintptr_t)job->w + job->at * job->bytes;
    job->set->matmul[KR_REAL_F32].run(&job->args);
}

static void call_packed(void *arg)
{
    gemv_job *job = arg;
    job->at = (job->at + 1) % job->count;
    job->packed.w.data = (char *)(uintptr_t)job->w + job->at * job->bytes;
    job->set->panels[KR_REAL_F32].run(&job->packed);
}

static int64_t bytes_of(const bench_case *self)
{
    return (self->variant & BF16 ? 2 : 4) * self->size[0] * self->size[1];
}

static gemv_job *ours(bench_env *env, const kr_kernels *set, const bench_case *self, const float *w, int64_t count,
                      int threads)
{
    gemv_job *job = bench_bytes(env, sizeof *job);
    const int64_t nk = self->size[0], nn = self->size[1];
    *job = (gemv_job){ .set = set, .w = (const char *)w, .bytes = bytes_of(self), .count = count };
    job->args = (kr_matmul_args){ .nm = 1, .nn = nn, .nk = nk };
    const kr_dtype dtype = self->variant & BF16 ? KR_DTYPE_BF16 : KR_DTYPE_F32;
    job->args.b = (kr_matrix){ (void *)(uintptr_t)w, dtype, 1, nk };
    if (self->variant & BY_K) {
        job->args.b.row = nn;
        job->args.b.column = 1;
    }
    job->args.exec.pool = bench_pool(env, threads);
    job->args.a = (kr_matrix){ bench_floats(env, nk, -1, 1), KR_DTYPE_F32, nk, 1 };
    job->args.c = (kr_operand){ bench_floats(env, nn, 0, 1), KR_DTYPE_F32, nn };
    size_t (*scratch)(const kr_matmul_args *) = set->matmul[KR_REAL_F32].scratch;
    job->args.exec.scratch = bench_bytes(env, scratch ? scratch(&job->args) : 0);
    job->packed = (kr_panels_args){ .exec = job->args.exec,
                                    .nm = 1,
                                    .nn = nn,
                                    .nk = nk,
                                    .x = { job->args.a.data, KR_DTYPE_F32, nk },
                                    .w = { NULL, dtype, nk },
                                    .y = job->args.c };
    return job;
}

static void run_width(bench_env *env, const bench_case *self, int threads, const float *w, int64_t count)
{
    const int64_t floats = bytes_of(self) / 4;
    contender line[BENCH_CONTENDERS];
    read_job reads;
    int n = 0;
    char name[24];
    for (int i = 0; i < env->nsets; i++) {
        gemv_job *job = ours(env, &env->sets[i], self, w, count, threads);
        void (*call)(void *) = self->variant & PACKED ? call_packed : call_gemv;
        bench_enter(line, &n, call, job, 4 * (double)floats, bench_name(name, "krait", env->sets[i].name));
    }
    contender *read = machine_enter_read(env, line, &n, &reads, w, floats, count, threads);
    for (int i = 0; i < env->nsets; i++) bench_compare(&line[i], read);
    bench_run(env, self, threads, "GB/s", line, n);
}

static void case_gemv(bench_env *env, const bench_case *self)
{
    const int64_t bytes = bytes_of(self);
    const int64_t least = (int64_t)256 << 20, most = (int64_t)1 << 30;
    int64_t cold = 4 * machine_last_cache();
    if (cold < least) cold = least;
    if (cold > most) cold = most;
    const int64_t count = self->variant & COLD ? cold / bytes + 1 : 1;
    const float *w = bench_floats(env, count * bytes / 4, -1, 1); /* two bf16 of any value are stored in one of these */
    run_width(env, self, 1, w, count);
    if (env->threads > 1) run_width(env, self, env->threads, w, count);
}

const bench_case bench_gemv_cases[] = {
    { "gemv/768x3352-hot", "one W, repeated", case_gemv, { 768, 3352 }, 0 },
    { "gemv/768x3352-cold", "W out of memory", case_gemv, { 768, 3352 }, COLD },
    { "gemv/768x3352-kn-hot", "one W [k n], repeated", case_gemv, { 768, 3352 }, BY_K },
    { "gemv/768x3352-kn-cold", "W [k n] out of memory", case_gemv, { 768, 3352 }, BY_K | COLD },
    /* whole panels */
    { "gemv/768x3328-packed-hot", "one packed W, repeated", case_gemv, { 768, 3328 }, PACKED },
    { "gemv/768x3328-packed-cold", "packed W out of memory", case_gemv, { 768, 3328 }, PACKED | COLD },
    { "gemv/768x3352-bf16-hot", "one W of bf16, repeated", case_gemv, { 768, 3352 }, BF16 },
    { "gemv/768x3352-bf16-cold", "W of bf16 out of memory", case_gemv, { 768, 3352 }, BF16 | COLD },
    { "gemv/768x3328-packed-bf16-hot", "one packed W of bf16", case_gemv, { 768, 3328 }, BF16 | PACKED },
    { "gemv/768x3328-packed-bf16-cold", "packed W of bf16", case_gemv, { 768, 3328 }, BF16 | PACKED | COLD },
    { 0 },
};
