/* case_gpu_ssd.c - the fused state space core on a device, forward, and forward and backward, at the shapes whose
 * official figures are published; and single tokens.
 *
 *   mamba2   B and C for one group, D, inclusive form
 *   mamba3   B and C for each head, strict form with both weights (the single pathway); mimo: rank 4
 *
 * krait/bf16: v, B, C, y and their gradients are bf16, as in a network; krait/bf16-products: f32 tensors, whose
 * products are rounded to bf16; krait/exact: f32; krait/rotary, of mamba3: B and C of one group with bias and angles,
 * which the core rotates for each head, and their gradients back again, as in a network with bf16 products: like the
 * official kernel, by default half of the pairs; krait/rotary-all: every pair. Extra memory is results and scratch: y,
 * all gradients, and the kernels' scratch. FLOPs are those of the causal form with chunks of 64 (case_ssd.c).
 *
 *   step     one token: the state [b h p r] of f32 is read and written once, in place
 */
#include "bench/bench_gpu.h"
#include "bench/ssd_flops.h"

#ifdef KR_HAVE_CUDA
#include "kernels/cuda/ssd/ssd_cuda.h"
#endif

enum { BACKWARD = 1, PER_HEAD = 2, STEP = 4, MIMO = 8 };
enum { HEAD_DIM = 64, CHUNK = 64, MIMO_RANK = 4 };
typedef enum variant_kind { BF16, ROTATED, ALL_ROTATED, ROUNDED, EXACT, VARIANTS } variant_kind;
static const char *const path_names[VARIANTS] = { "krait/bf16", "krait/rotary", "krait/rotary-all",
                                                  "krait/bf16-products", "krait/exact" };

static bool is_rotated(variant_kind w)
{
    return w == ROTATED || w == ALL_ROTATED;
}

typedef struct ssd_job {
    bench_gpu *gpu; /* first, for gpu_enter */
    bool backward;
    kr_ssd_args args;
    kr_ssd_bwd_args bwd;
} ssd_job;

static void call_ssd(void *arg)
{
    const ssd_job *job = arg;
    const kr_kernels *k = job->gpu->kernels;
    k->ssd[KR_REAL_F32].run(&job->args);
    if (job->backward) k->ssd_bwd[KR_REAL_F32].run(&job->bwd);
}

/* Scratch of the core, forward and backward. */
static size_t scratch_of(const ssd_job *job, bool backward)
{
    const kr_kernels *k = job->gpu->kernels;
    const size_t forth = k->ssd[KR_REAL_F32].scratch ? k->ssd[KR_REAL_F32].scratch(&job->args) : 0;
    const size_t back = backward && k->ssd_bwd[KR_REAL_F32].scratch ? k->ssd_bwd[KR_REAL_F32].scratch(&job->bwd) : 0;
    return back > forth ? back : forth;
}

static const char *note_of(const ssd_job *job)
{
#ifdef KR_HAVE_CUDA
    return kr_cuda_ssd_path(&job->args);
#else
    (void)job;
    return NULL;
#endif
}

/* ---- operands ---- */

/* size = { b, s, h, r }. */
static void fill_forward(ssd_job *job, const bench_case *self, variant_kind w)
{
    kr_ssd_args *a = &job->args;
    bench_gpu *g = job->gpu;
    const bool per_head = self->variant & PER_HEAD;
    const kr_dtype dtype = w < ROUNDED ? KR_DTYPE_BF16 : KR_DTYPE_F32;
    a->exec = gpu_exec(g, w == EXACT ? KR_PRECISION_EXACT : KR_PRECISION_BF16);
    a->nb = a->nq = self->size[0];
    a->ns = self->size[1];
    a->nh = self->size[2];
    a->nr = self->size[3];
    a->np = HEAD_DIM;
    a->nm = self->variant & MIMO ? MIMO_RANK : 1;
    a->ng = per_head && !is_rotated(w) ? a->nh : 1;
    a->nl = CHUNK;
    kr_sequence *list = kr_tape_list(g->tape, (size_t)a->nq * sizeof *list);
    if (!list) bench_fail("no memory for a list of sequences");
    for (int64_t q = 0; q < a->nq; q++) list[q] = (kr_sequence){ q, 0, a->ns };
    a->sequences = list;
    const int64_t tokens = a->nb * a->ns, places = tokens * a->nm;
    const int64_t of_v = a->nm * a->nh * a->np, of_b = a->nm * a->ng * a->nr;
    a->v = (kr_operand){ gpu_rand(g, dtype, places * a->nh * a->np, -1, 1), dtype, of_v };
    a->b = (kr_operand){ gpu_rand(g, dtype, places * a->ng * a->nr, -1, 1), dtype, of_b };
    a->c = (kr_operand){ gpu_rand(g, dtype, places * a->ng * a->nr, -1, 1), dtype, of_b };
    a->da = gpu_rand(g, KR_DTYPE_F32, tokens * a->nh, -0.2, 0);
    a->w = gpu_rand(g, KR_DTYPE_F32, tokens * a->nh, 0, 0.2);
    a->diag_weight = per_head ? gpu_rand(g, KR_DTYPE_F32, tokens * a->nh, 0, 0.2) : NULL;
    a->d = gpu_rand(g, KR_DTYPE_F32, a->nh, 0, 1);
    if (self->variant & STEP) {
        a->initial = gpu_rand(g, KR_DTYPE_F32, a->nb * a->nh * a->np * a->nr, -1, 1);
        a->final = (void *)a->initial;
    }
    g->result_bytes = 0;
    a->y = (kr_operand){ gpu_result(g, dtype, places * a->nh * a->np), dtype, of_v };
}

static void fill_backward(ssd_job *job, variant_kind w)
{
    const kr_ssd_args *a = &job->args;
    kr_ssd_bwd_args *b = &job->bwd;
    bench_gpu *g = job->gpu;
    const kr_dtype dtype = w < ROUNDED ? KR_DTYPE_BF16 : KR_DTYPE_F32;
    const kr_dtype bc_dtype =
        w == BF16 ? KR_DTYPE_BF16
                  : KR_DTYPE_F32; /* f32 for angles: the reason is in kernels/cuda/ssd/ssd_bwd_cuda.cu */
    const int64_t tokens = a->nb * a->ns, places = tokens * a->nm;
    *b = (kr_ssd_bwd_args){ .exec = a->exec, .nb = a->nb, .ns = a->ns, .nm = a->nm, .nh = a->nh, .np = a->np };
    b->ng = a->ng;
    b->nr = a->nr;
    b->nl = a->nl;
    b->nq = a->nq;
    b->sequences = a->sequences;
    b->v = a->v;
    b->b = a->b;
    b->c = a->c;
    b->da = a->da;
    b->w = a->w;
    b->diag_weight = a->diag_weight;
    b->d = a->d;
    b->g_y = (kr_operand){ gpu_rand(g, dtype, places * a->nh * a->np, -1, 1), dtype, a->v.row };
    b->g_v = (kr_operand){ gpu_result(g, dtype, places * a->nh * a->np), dtype, a->v.row };
    b->g_b = (kr_operand){ gpu_result(g, bc_dtype, places * a->ng * a->nr), bc_dtype, a->b.row };
    b->g_c = (kr_operand){ gpu_result(g, bc_dtype, places * a->ng * a->nr), bc_dtype, a->b.row };
    b->g_da = gpu_result(g, KR_DTYPE_F32, tokens * a->nh);
    b->g_w = gpu_result(g, KR_DTYPE_F32, tokens * a->nh);
    b->g_diag_weight = a->diag_weight ? gpu_result(g, KR_DTYPE_F32, tokens * a->nh) : NULL;
    b->g_d = gpu_result(g, KR_DTYPE_F32, a->nh);
}

/* B and C are of one group, and rotated for every head. */
static void fill_rotary(ssd_job *job, variant_kind w, bool backward)
{
    kr_ssd_args *a = &job->args;
    kr_ssd_bwd_args *b = &job->bwd;
    bench_gpu *g = job->gpu;
    a->na = b->na = w == ROTATED ? a->nr / 4 : a->nr / 2;
    const int64_t angles = a->nb * a->ns * a->nh * a->na, biases = a->nh * a->nm * a->nr;
    a->split_pairs = b->split_pairs = a->nm > 1;
    a->angle = b->angle = gpu_rand(g, KR_DTYPE_F32, angles, -3, 3);
    a->bias_b = b->bias_b = gpu_rand(g, KR_DTYPE_F32, biases, -1, 1);
    a->bias_c = b->bias_c = gpu_rand(g, KR_DTYPE_F32, biases, -1, 1);
    if (!backward) return;
    b->g_angle = gpu_result(g, KR_DTYPE_F32, angles);
    b->g_bias_b = gpu_result(g, KR_DTYPE_F32, biases);
    b->g_bias_c = gpu_result(g, KR_DTYPE_F32, biases);
}

static void take_scratch(ssd_job *job, size_t bytes)
{
    void *scratch = gpu_scratch(job->gpu, bytes); /* one after the other */
    job->args.exec.scratch = job->bwd.exec.scratch = scratch;
}

/* One variant at a time: all together might not fit. */
static contender *enter(bench_env *env, bench_gpu *gpu, const bench_case *self, contender *line, int *n, variant_kind w)
{
    const bool backward = self->variant & BACKWARD;
    ssd_job *job = bench_bytes(env, sizeof *job);
    *job = (ssd_job){ .gpu = gpu, .backward = backward };
    fill_forward(job, self, w);
    if (backward) fill_backward(job, w);
    if (is_rotated(w)) fill_rotary(job, w, backward);
    take_scratch(job, scratch_of(job, backward));
    const kr_ssd_args *a = &job->args;
    double work = (double)a->nb * (ssd_flops(a, false) + (backward ? ssd_flops(a, true) : 0));
    if (self->variant & STEP) work = 8.0 * (double)(a->nb * a->nh * a->np * a->nr);
    contender *c = gpu_enter(line, n, call_ssd, job, work, path_names[w]);
    c->note = note_of(job);
    if (!(self->variant & STEP)) {
        c->extra_bytes = (double)gpu->result_bytes;
        c->tokens = (double)(a->nb * a->ns);
    }
    return c;
}

static void run_ssd(bench_env *env, const bench_case *self)
{
    const bool is_step = self->variant & STEP;
    for (int w = is_step ? EXACT : BF16; w <= EXACT; w++) {
        if (is_rotated((variant_kind)w) && !(self->variant & PER_HEAD)) continue;
        contender line[BENCH_CONTENDERS];
        int n = 0;
        bench_gpu *gpu = gpu_open(env, KR_PRECISION_EXACT);
        const bool fits = w >= ROUNDED || gpu_takes_halves(gpu);
        contender *mine = fits ? enter(env, gpu, self, line, &n, (variant_kind)w) : NULL;
        if (mine && is_step) bench_compare(mine, gpu_enter_copy(env, gpu, line, &n));
        if (mine) bench_run(env, self, 1, is_step ? "GB/s" : "GFLOP/s", line, n);
        gpu_close(gpu);
    }
}

#define CORE(name, what, b, s, h, variant)                                                                             \
    { "cuda/ssd/" name, what ", forward", run_ssd, { b, s, h, 128 }, variant },                                        \
    {                                                                                                                  \
        "cuda/ssd-train/" name, what ", forward and backward", run_ssd, { b, s, h, 128 }, (variant) | BACKWARD         \
    }

/* clang-format off */
const bench_case bench_gpu_ssd_cases[] = {
    CORE("mamba2-b8-s2048-h24", "b 8, s 2048, h 24, p 64, r 128, g 1", 8, 2048, 24, 0),
    CORE("mamba2-b8-s4096-h80", "b 8, s 4096, h 80", 8, 4096, 80, 0),
    CORE("mamba2-b1-s8192-h24", "b 1, s 8192, h 24", 1, 8192, 24, 0),
    CORE("mamba3-b8-s2048-h24", "SISO, b 8, s 2048, h 24", 8, 2048, 24, PER_HEAD),
    CORE("mamba3-b8-s4096-h80", "SISO, b 8, s 4096, h 80", 8, 4096, 80, PER_HEAD),
    CORE("mamba3-b1-s8192-h24", "SISO, b 1, s 8192, h 24", 1, 8192, 24, PER_HEAD),
    CORE("mimo4-b4-s2048-h24", "MIMO of rank 4, b 4, s 2048, h 24", 4, 2048, 24, PER_HEAD | MIMO),
    { "cuda/ssd-step/mamba2-b64-h24", "a token, b 64, h 24, p 64, r 128", run_ssd, { 64, 1, 24, 128 }, STEP },
    { "cuda/ssd-step/mamba2-b256-h80", "a token, b 256, h 80", run_ssd, { 256, 1, 80, 128 }, STEP },
    { "cuda/ssd-step/mamba3-b256-h80", "a token, b 256, h 80", run_ssd, { 256, 1, 80, 128 }, STEP | PER_HEAD },
    { 0 },
};
/* clang-format on */
