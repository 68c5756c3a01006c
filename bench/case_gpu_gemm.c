/* case_gpu_gemm.c - matrix products of a device at the shapes of projections, exact and rounded, compared with cuBLASLt
 * with bf16 operands: [m k] times a weight [n k]^T. */
#include "bench/bench_gpu.h"

#ifdef KR_HAVE_CUDA
#include "kernels/cuda/gemm/cublaslt.h"
#endif

typedef struct gemm_job {
    bench_gpu *gpu; /* first, for gpu_enter */
    kr_matmul_args args;
#ifdef KR_HAVE_CUDA
    kr_lt_product product;
    void *workspace;
#endif
} gemm_job;

static void call_gemm(void *arg)
{
    const gemm_job *job = arg;
    job->gpu->kernels->matmul[KR_REAL_F32].run(&job->args);
}

static gemm_job *make(bench_env *env, bench_gpu *gpu, const bench_case *self, kr_precision precision, bool bf16)
{
    gemm_job *job = bench_bytes(env, sizeof *job);
    const int64_t nm = self->size[0], nk = self->size[1], nn = self->size[2];
    const kr_dtype dtype = bf16 ? KR_DTYPE_BF16 : KR_DTYPE_F32;
    *job = (gemm_job){ .gpu = gpu, .args = { .exec = gpu_exec(gpu, precision), .nm = nm, .nn = nn, .nk = nk } };
    kr_matmul_args *a = &job->args;
    a->a = (kr_matrix){ gpu_rand(gpu, dtype, nm * nk, -1, 1), dtype, nk, 1 };
    a->b = (kr_matrix){ gpu_rand(gpu, dtype, nn * nk, -1, 1), dtype, 1, nk };
    a->c = (kr_operand){ gpu_result(gpu, dtype, nm * nn), dtype, nn };
    size_t (*scratch)(const kr_matmul_args *) = gpu->kernels->matmul[KR_REAL_F32].scratch;
    a->exec.scratch = gpu_scratch(gpu, scratch ? scratch(a) : 0);
    return job;
}

#ifdef KR_HAVE_CUDA
static void call_cublaslt(void *arg)
{
    const gemm_job *job = arg;
    if (!kr_cublaslt_run(&job->product, job->workspace, job->args.exec.stream))
        bench_fail("cuBLASLt refuses a product");
}

/* cuBLASLt directly, bf16 in and out; NULL if not available. */
static contender *enter_cublaslt(bench_env *env, bench_gpu *gpu, const bench_case *self, contender *line, int *n,
                                 double work)
{
    if (kr_cublaslt_problem()) return NULL;
    gemm_job *job = make(env, gpu, self, KR_PRECISION_BF16, true);
    const kr_matmul_args *a = &job->args;
    job->product = (kr_lt_product){ .nm = a->nm,
                                    .nn = a->nn,
                                    .nk = a->nk,
                                    .nbatch = 1,
                                    .a = { a->a.data, KR_LT_BF16, false, a->nk, 0 },
                                    .b = { a->b.data, KR_LT_BF16, true, a->nk, 0 },
                                    .c = { a->c.data, KR_LT_BF16, false, a->nn, 0 } };
    job->workspace = gpu_scratch(gpu, KR_LT_WORKSPACE);
    return gpu_enter(line, n, call_cublaslt, job, work, "cuBLASLt/bf16");
}
#else
static contender *enter_cublaslt(bench_env *env, bench_gpu *gpu, const bench_case *self, contender *line, int *n,
                                 double work)
{
    (void)env, (void)gpu, (void)self, (void)line, (void)n, (void)work;
    return NULL;
}
#endif

static void run_gemm(bench_env *env, const bench_case *self)
{
    static const kr_precision precisions[] = { KR_PRECISION_EXACT, KR_PRECISION_TF32, KR_PRECISION_BF16 };
    bench_gpu *gpu = gpu_open(env, KR_PRECISION_EXACT);
    contender line[BENCH_CONTENDERS];
    contender *mine[4];
    int n = 0, nmine = 3;
    char name[24];
    const double work = 2 * (double)self->size[0] * (double)self->size[1] * (double)self->size[2];
    for (int i = 0; i < nmine; i++)
        mine[i] = gpu_enter(line, &n, call_gemm, make(env, gpu, self, precisions[i], false), work,
                            bench_name(name, "krait", gpu_precision_name(precisions[i])));
    if (gpu_takes_halves(gpu))
        mine[nmine++] =
            gpu_enter(line, &n, call_gemm, make(env, gpu, self, KR_PRECISION_BF16, true), work, "krait/bf16-tensors");
    const contender *peer = gpu_takes_halves(gpu) ? enter_cublaslt(env, gpu, self, line, &n, work) : NULL;
    for (int i = 0; peer && i < nmine; i++) bench_compare(mine[i], peer);
    bench_run(env, self, 1, "GFLOP/s", line, n);
    gpu_close(gpu);
}

const bench_case bench_gpu_gemm_cases[] = {
    { "cuda/gemm/in", "in_proj of Mamba-2, d 768: 16384 x 768 x 3352", run_gemm, { 16384, 768, 3352 }, 0 },
    { "cuda/gemm/out", "out_proj: 16384 x 1536 x 768", run_gemm, { 16384, 1536, 768 }, 0 },
    { "cuda/gemm/wide", "in_proj of d 2560: 32768 x 2560 x 10576", run_gemm, { 32768, 2560, 10576 }, 0 },
    { "cuda/gemm/square", "8192 x 8192 x 8192", run_gemm, { 8192, 8192, 8192 }, 0 },
    { 0 },
};
