/* case_gpu_ssd.c - the fused state space core on a device, forward, and forward and backward, at the shapes whose official
 * figures are published; and single tokens.
 *
 *   mamba2   B and C for one group, D, inclusive form
 *   mamba3   B and C for each head, strict form with both weights (the single pathway); mimo: rank 4
 *
 * krait/bf16: v, B, C, y and their gradients are bf16; krait/rounded: f32 tensors, whose products are rounded to bf16;
 * krait/exact: f32; krait/turned, of mamba3: B and C of one group with bias and angles, turned for each head into bf16 by the
 * kernel before, and their gradients back again, as in a network whose products are rounded: what the official kernel does.
 * Extra memory is results and scratch: y, all gradients, and what the kernels need. FLOPs are those of the
 * causal form with chunks of 64 (case_ssd.c).
 *
 *   step     one token: the state [b h p r] of f32 is read and written once, in place
 */
#include "bench/gpu.h"
#include "bench/ssd_flops.h"

#ifdef KR_HAVE_CUDA
#include "kernels/cuda/ssd_cuda.h"
#endif

enum { BACKWARD = 1, PER_HEAD = 2, STEP = 4, MIMO = 8 };
enum { HEAD_DIM = 64, CHUNK = 64, MIMO_RANK = 4 };
typedef enum way { HALVES, TURNED, ROUNDED, EXACT, WAYS } way;
static const char *const way_names[WAYS] = { "krait/bf16", "krait/turned", "krait/rounded", "krait/exact" };

typedef struct ssd_job {
    bench_gpu *gpu; /* first, for gpu_enter */
    void (*run)(const kr_ssd_args *);
    void (*run_bwd)(const kr_ssd_bwd_args *);
    kr_ssd_args args;
    kr_ssd_bwd_args bwd;
    kr_rotate_args turn[2]; /* of B and of C */
    kr_rotate_bwd_args turn_bwd[2];
    bool turns;
} ssd_job;

static void call_ssd(void *arg)
{
    const ssd_job *job = arg;
    const kr_kernels *k = job->gpu->kernels;
    for (int i = 0; job->turns && i < 2; i++) k->rotate[KR_REAL_F32].run(&job->turn[i]);
    job->run(&job->args);
    if (!job->run_bwd) return;
    job->run_bwd(&job->bwd);
    for (int i = 0; job->turns && i < 2; i++) k->rotate_bwd[KR_REAL_F32].run(&job->turn_bwd[i]);
}

/* ---- which kernels ---- */

static bool choose(ssd_job *job, way w, bool backward, size_t *scratch, size_t *bwd_scratch)
{
    const kr_kernels *k = job->gpu->kernels;
    job->run = k->ssd[KR_REAL_F32].run;
    job->run_bwd = backward ? k->ssd_bwd[KR_REAL_F32].run : NULL;
    size_t (*bytes)(const kr_ssd_args *) = k->ssd[KR_REAL_F32].scratch;
    size_t (*bwd_bytes)(const kr_ssd_bwd_args *) = k->ssd_bwd[KR_REAL_F32].scratch;
    if (w == HALVES) {
#ifdef KR_HAVE_CUDA
        job->run = kr_cuda_bf16_ssd;
        job->run_bwd = backward ? kr_cuda_bf16_ssd_bwd : NULL;
        bytes = kr_cuda_bf16_ssd_scratch;
        bwd_bytes = kr_cuda_bf16_ssd_bwd_scratch;
#else
        return false;
#endif
    }
    *scratch = bytes ? bytes(&job->args) : 0;
    *bwd_scratch = backward && bwd_bytes ? bwd_bytes(&job->bwd) : 0;
    return true;
}

static const char *note_of(const ssd_job *job, way w)
{
#ifdef KR_HAVE_CUDA
    return kr_cuda_ssd_way(&job->args, w == HALVES);
#else
    (void)job, (void)w;
    return NULL;
#endif
}

/* ---- operands ---- */

/* size = { b, s, h, r }. */
static void fill_forward(ssd_job *job, const bench_case *self, way w)
{
    kr_ssd_args *a = &job->args;
    bench_gpu *g = job->gpu;
    const bool per_head = self->variant & PER_HEAD;
    const kr_dtype dtype = w == HALVES || w == TURNED ? KR_BF16 : KR_F32;
    a->exec = gpu_exec(g, w == ROUNDED || w == TURNED ? KR_PRECISION_BF16 : KR_PRECISION_EXACT);
    a->nb = a->nq = self->size[0];
    a->ns = self->size[1];
    a->nh = self->size[2];
    a->nr = self->size[3];
    a->np = HEAD_DIM;
    a->nm = self->variant & MIMO ? MIMO_RANK : 1;
    a->ng = per_head ? a->nh : 1;
    a->nl = CHUNK;
    kr_sequence *list = kr_tape_list(g->tape, (size_t)a->nq * sizeof *list);
    if (!list) bench_fail("no memory for a list of sequences");
    for (int64_t q = 0; q < a->nq; q++) list[q] = (kr_sequence){ q, 0, a->ns };
    a->sequences = list;
    const int64_t tokens = a->nb * a->ns, places = tokens * a->nm;
    a->v_stride = a->nm * a->nh * a->np;
    a->b_stride = a->c_stride = a->nm * a->ng * a->nr;
    a->v = gpu_rand(g, dtype, places * a->nh * a->np, -1, 1);
    if (w != TURNED) {
        a->b = gpu_rand(g, dtype, places * a->ng * a->nr, -1, 1);
        a->c = gpu_rand(g, dtype, places * a->ng * a->nr, -1, 1);
    }
    a->da = gpu_rand(g, KR_F32, tokens * a->nh, -0.2, 0);
    a->w = gpu_rand(g, KR_F32, tokens * a->nh, 0, 0.2);
    a->same = per_head ? gpu_rand(g, KR_F32, tokens * a->nh, 0, 0.2) : NULL;
    a->d = gpu_rand(g, KR_F32, a->nh, 0, 1);
    if (self->variant & STEP) {
        a->initial = gpu_rand(g, KR_F32, a->nb * a->nh * a->np * a->nr, -1, 1);
        a->final = (void *)a->initial;
    }
    g->result_bytes = 0;
    a->y = gpu_result(g, w == TURNED ? KR_F32 : dtype, places * a->nh * a->np);
}

static void fill_backward(ssd_job *job, way w)
{
    const kr_ssd_args *a = &job->args;
    kr_ssd_bwd_args *b = &job->bwd;
    bench_gpu *g = job->gpu;
    const kr_dtype dtype = w == HALVES ? KR_BF16 : KR_F32;
    const int64_t tokens = a->nb * a->ns, places = tokens * a->nm;
    *b = (kr_ssd_bwd_args){ .exec = a->exec, .nb = a->nb, .ns = a->ns, .nm = a->nm, .nh = a->nh, .np = a->np };
    b->ng = a->ng;
    b->nr = a->nr;
    b->nl = a->nl;
    b->nq = a->nq;
    b->sequences = a->sequences;
    b->v_stride = a->v_stride;
    b->b_stride = a->b_stride;
    b->c_stride = a->c_stride;
    b->v = a->v;
    b->b = a->b;
    b->c = a->c;
    b->da = a->da;
    b->w = a->w;
    b->same = a->same;
    b->d = a->d;
    b->g_y = gpu_rand(g, dtype, places * a->nh * a->np, -1, 1);
    b->g_v = gpu_result(g, dtype, places * a->nh * a->np);
    b->g_b = gpu_result(g, dtype, places * a->ng * a->nr);
    b->g_c = gpu_result(g, dtype, places * a->ng * a->nr);
    b->g_da = gpu_result(g, KR_F32, tokens * a->nh);
    b->g_w = gpu_result(g, KR_F32, tokens * a->nh);
    b->g_same = a->same ? gpu_result(g, KR_F32, tokens * a->nh) : NULL;
    b->g_d = gpu_result(g, KR_F32, a->nh);
}

/* B and C as they come before their rotation, whose results the core reads. */
static size_t fill_turns(ssd_job *job, bool backward)
{
    kr_ssd_args *a = &job->args;
    bench_gpu *g = job->gpu;
    const int64_t tokens = a->nb * a->ns, na = a->nr / 2;
    const void *angle = gpu_rand(g, KR_F32, tokens * a->nh * na, -3, 3);
    void *g_angle = backward ? gpu_result(g, KR_F32, tokens * a->nh * na) : NULL;
    size_t most = 0;
    for (int i = 0; i < 2; i++) {
        kr_rotate_args r = { .exec = a->exec, .no = tokens, .nm = a->nm, .nh = a->nh, .ng = 1, .nr = a->nr, .na = na };
        r.x = gpu_rand(g, KR_F32, tokens * a->nm * a->nr, -1, 1);
        r.bias = gpu_rand(g, KR_F32, a->nh * a->nm * a->nr, -1, 1);
        r.angle = angle;
        r.y = gpu_result(g, KR_BF16, tokens * a->nm * a->nh * a->nr);
        r.y_half = KR_HALF_BF16;
        job->turn[i] = r;
        kr_rotate_bwd_args b = { .exec = a->exec, .no = r.no, .nm = r.nm, .nh = r.nh, .ng = 1, .nr = r.nr, .na = na };
        b.x = r.x;
        b.bias = r.bias;
        b.angle = angle;
        b.g_y = i == 0 ? job->bwd.g_b : job->bwd.g_c;
        b.g_x = backward ? gpu_result(g, KR_F32, tokens * a->nm * a->nr) : NULL;
        b.g_bias = backward ? gpu_result(g, KR_F32, a->nh * a->nm * a->nr) : NULL;
        b.g_angle = g_angle;
        b.adds = i == 1;
        job->turn_bwd[i] = b;
        const kr_kernels *k = g->kernels;
        const size_t forth = k->rotate[KR_REAL_F32].scratch ? k->rotate[KR_REAL_F32].scratch(&r) : 0;
        const size_t back = backward && k->rotate_bwd[KR_REAL_F32].scratch ? k->rotate_bwd[KR_REAL_F32].scratch(&b) : 0;
        most = forth > most ? forth : most;
        most = back > most ? back : most;
    }
    a->b = job->bwd.b = job->turn[0].y;
    a->c = job->bwd.c = job->turn[1].y;
    a->v_half = a->b_half = a->c_half = KR_HALF_BF16;
    job->bwd.v_half = job->bwd.b_half = job->bwd.c_half = KR_HALF_BF16;
    job->turns = true;
    return most;
}

static void take_scratch(ssd_job *job, size_t bytes)
{
    void *scratch = gpu_scratch(job->gpu, bytes); /* one after the other */
    job->args.exec.scratch = job->bwd.exec.scratch = scratch;
    for (int i = 0; i < 2; i++) job->turn[i].exec.scratch = job->turn_bwd[i].exec.scratch = scratch;
}

/* One way at a time: all at once might not fit. */
static contender *enter(bench_env *env, bench_gpu *gpu, const bench_case *self, contender *line, int *n, way w)
{
    const bool backward = self->variant & BACKWARD;
    ssd_job *job = bench_bytes(env, sizeof *job);
    *job = (ssd_job){ .gpu = gpu };
    size_t scratch = 0, bwd_scratch = 0, turn_scratch = 0;
    fill_forward(job, self, w);
    if (backward) fill_backward(job, w);
    if (w == TURNED) turn_scratch = fill_turns(job, backward);
    if (!choose(job, w, backward, &scratch, &bwd_scratch)) return NULL;
    if (bwd_scratch > scratch) scratch = bwd_scratch;
    take_scratch(job, turn_scratch > scratch ? turn_scratch : scratch);
    const kr_ssd_args *a = &job->args;
    double work = (double)a->nb * (ssd_flops(a, false) + (backward ? ssd_flops(a, true) : 0));
    if (self->variant & STEP) work = 8.0 * (double)(a->nb * a->nh * a->np * a->nr);
    contender *c = gpu_enter(line, n, call_ssd, job, work, way_names[w]);
    c->note = note_of(job, w);
    if (!(self->variant & STEP)) {
        c->extra_bytes = (double)gpu->result_bytes;
        c->tokens = (double)(a->nb * a->ns);
    }
    return c;
}

static void run_ssd(bench_env *env, const bench_case *self)
{
    const bool is_step = self->variant & STEP;
    for (int w = is_step ? EXACT : HALVES; w <= EXACT; w++) {
        if (w == TURNED && !(self->variant & PER_HEAD)) continue;
        contender line[BENCH_CONTENDERS];
        int n = 0;
        bench_gpu *gpu = gpu_open(env, KR_PRECISION_EXACT);
        const bool fits = w > TURNED || gpu_takes_halves(gpu);
        contender *mine = fits ? enter(env, gpu, self, line, &n, (way)w) : NULL;
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
