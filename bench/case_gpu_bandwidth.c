/* case_gpu_bandwidth.c - memory-bound kernels of a device, compared with copies: bytes that must be read or written
 * once, over time. Tensors are larger than any cache.
 *
 *   norm    gated RMS norm of [t i]: x, z and y;  bwd: x, z, g_y, g_x, g_z          t = 16384, i = 1536
 *   conv    causal, 4 taps, with SiLU: x and y;   bwd: x, g_y, g_x                  t = 16384, i = 1792
 *   scan    Mamba-1's, gated, r = 16: x, dt, z and y; bwd: x, dt, z, g_y, g_x, g_dt, g_z   t = 16384, i = 1536
 *   loss    cross-entropy of [t w] and its gradient: x and g_x                      t = 4096, w = 50288
 *   adamw   w, g, m, v read, w, m, v written                                         128 M elements
 */
#include "bench/bench_gpu.h"

#include <math.h>

enum { NORM, NORM_BWD, CONV, CONV_BWD, SCAN, SCAN_BWD, LOSS, ADAMW, COPY };

typedef struct pass_job {
    bench_gpu *gpu; /* first, for gpu_enter */
    void (*run)(const void *args);
    union {
        kr_norm_args norm;
        kr_norm_bwd_args norm_bwd;
        kr_conv_args conv;
        kr_conv_bwd_args conv_bwd;
        kr_scan_args scan;
        kr_scan_bwd_args scan_bwd;
        kr_cross_entropy_args loss;
        kr_adamw_args adamw;
    } args;
    void (*call)(const struct pass_job *job);
} pass_job;

static void call_pass(void *arg)
{
    const pass_job *job = arg;
    job->call(job);
}

/* Scratch, and the call of the slot. */
#define READY(name, member)                                                                                            \
    static void call_##name(const pass_job *job)                                                                       \
    {                                                                                                                  \
        job->gpu->kernels->name[KR_REAL_F32].run(&job->args.member);                                                   \
    }                                                                                                                  \
    static void ready_##name(pass_job *job)                                                                            \
    {                                                                                                                  \
        const kr_kernels *k = job->gpu->kernels;                                                                       \
        if (!k->name[KR_REAL_F32].run) bench_fail("%s has no kernel %s", kr_ctx_device(job->gpu->ctx), #name);         \
        size_t bytes = k->name[KR_REAL_F32].scratch ? k->name[KR_REAL_F32].scratch(&job->args.member) : 0;             \
        job->args.member.exec.scratch = gpu_scratch(job->gpu, bytes);                                                  \
        job->call = call_##name;                                                                                       \
    }
READY(norm, norm)
READY(norm_bwd, norm_bwd)
READY(conv, conv)
READY(conv_bwd, conv_bwd)
READY(scan, scan)
READY(scan_bwd, scan_bwd)
READY(cross_entropy, loss)
READY(adamw, adamw)

static float *floats(bench_gpu *gpu, int64_t n)
{
    return gpu_rand(gpu, KR_DTYPE_F32, n, -1, 1);
}

static kr_operand rows_of(const void *data, int64_t row)
{
    return (kr_operand){ (void *)(uintptr_t)data, KR_DTYPE_F32, row };
}

/* Each fills in a job of size [rows width], and returns the bytes. */
static double fill_norm(pass_job *job, int64_t rows, int64_t width, bool backward)
{
    bench_gpu *g = job->gpu;
    const int64_t n = rows * width;
    const void *x = floats(g, n), *z = floats(g, n), *gain = floats(g, width);
    void *y = gpu_result(g, KR_DTYPE_F32, n), *q = floats(g, rows);
    const kr_exec exec = gpu_exec(g, KR_PRECISION_EXACT);
    if (!backward) {
        job->args.norm =
            (kr_norm_args){ .exec = exec, .no = rows, .ni = width, .ng = 1, .gain = gain, .q = q, .eps = 1e-5 };
        job->args.norm.x = rows_of(x, width);
        job->args.norm.z = rows_of(z, width);
        job->args.norm.y = rows_of(y, width);
        ready_norm(job);
        return 12.0 * (double)n;
    }
    job->args.norm_bwd = (kr_norm_bwd_args){ .exec = exec, .no = rows, .ni = width, .ng = 1, .gain = gain };
    job->args.norm_bwd.x = rows_of(x, width);
    job->args.norm_bwd.z = rows_of(z, width);
    job->args.norm_bwd.q = q;
    job->args.norm_bwd.g_y = rows_of(y, width);
    job->args.norm_bwd.g_x = rows_of(gpu_result(g, KR_DTYPE_F32, n), width);
    job->args.norm_bwd.g_z = rows_of(gpu_result(g, KR_DTYPE_F32, n), width);
    job->args.norm_bwd.g_gain = gpu_result(g, KR_DTYPE_F32, width);
    ready_norm_bwd(job);
    return 20.0 * (double)n;
}

/* One sequence for each row. */
static const kr_sequence *whole_rows(bench_gpu *g, int64_t nb, int64_t ns)
{
    kr_sequence *list = kr_tape_list(g->tape, (size_t)nb * sizeof *list);
    if (!list) bench_fail("no memory for a list of sequences");
    for (int64_t b = 0; b < nb; b++) list[b] = (kr_sequence){ b, 0, ns };
    return list;
}

static double fill_conv(pass_job *job, int64_t rows, int64_t width, bool backward)
{
    enum { ROWS = 8, TAPS = 4 };
    bench_gpu *g = job->gpu;
    const int64_t n = rows * width, ns = rows / ROWS;
    const kr_sequence *list = whole_rows(g, ROWS, ns);
    kr_conv_args a = {
        .exec = gpu_exec(g, KR_PRECISION_EXACT), .nb = ROWS, .ns = ns, .nv = width, .nk = TAPS, .nq = ROWS
    };
    a.x_batch = ns * width;
    a.sequences = list;
    a.x = rows_of(floats(g, n), width);
    a.weight = floats(g, width * TAPS);
    a.bias = floats(g, width);
    a.y = rows_of(gpu_result(g, KR_DTYPE_F32, n), width);
    a.silu = true;
    job->args.conv = a;
    if (!backward) {
        ready_conv(job);
        return 8.0 * (double)n;
    }
    kr_conv_bwd_args b = {
        .exec = a.exec, .nb = a.nb, .ns = a.ns, .nv = a.nv, .nk = a.nk, .nq = a.nq, .x_batch = a.x_batch
    };
    b.sequences = list;
    b.x = a.x;
    b.weight = a.weight;
    b.bias = a.bias;
    b.ng_y = 1;
    b.g_y[0] = a.y;
    b.from[1] = width;
    b.silu = true;
    b.g_x = rows_of(gpu_result(g, KR_DTYPE_F32, n), width);
    b.g_weight = gpu_result(g, KR_DTYPE_F32, width * TAPS);
    b.g_bias = gpu_result(g, KR_DTYPE_F32, width);
    job->args.conv_bwd = b;
    ready_conv_bwd(job);
    return 12.0 * (double)n;
}

static double fill_scan(pass_job *job, int64_t rows, int64_t width, bool backward)
{
    enum { ROWS = 8, STATES = 16 };
    bench_gpu *g = job->gpu;
    const int64_t n = rows * width;
    kr_scan_args a = {
        .exec = gpu_exec(g, KR_PRECISION_EXACT), .nb = ROWS, .ns = rows / ROWS, .ni = width, .ng = 1, .nr = STATES
    };
    a.nq = ROWS;
    a.sequences = whole_rows(g, a.nb, a.ns);
    a.x = rows_of(floats(g, n), width);
    a.dt = rows_of(gpu_rand(g, KR_DTYPE_F32, n, 0.001, 0.1), width);
    a.a = gpu_rand(g, KR_DTYPE_F32, width * STATES, -16, -1);
    a.b = rows_of(floats(g, rows * STATES), STATES);
    a.c = rows_of(floats(g, rows * STATES), STATES);
    a.d = floats(g, width);
    a.z = rows_of(floats(g, n), width);
    a.y = gpu_result(g, KR_DTYPE_F32, n);
    job->args.scan = a;
    if (!backward) {
        ready_scan(job);
        return 16.0 * (double)n;
    }
    kr_scan_bwd_args b = { .exec = a.exec, .nb = a.nb, .ns = a.ns, .ni = a.ni, .ng = a.ng, .nr = a.nr, .nq = a.nq };
    b.sequences = a.sequences;
    b.x = a.x, b.dt = a.dt, b.a = a.a, b.b = a.b, b.c = a.c, b.d = a.d, b.z = a.z, b.g_y = a.y;
    b.g_x = gpu_result(g, KR_DTYPE_F32, n), b.g_dt = gpu_result(g, KR_DTYPE_F32, n),
    b.g_z = gpu_result(g, KR_DTYPE_F32, n);
    b.g_a = gpu_result(g, KR_DTYPE_F32, width * STATES), b.g_d = gpu_result(g, KR_DTYPE_F32, width);
    b.g_b = gpu_result(g, KR_DTYPE_F32, rows * STATES), b.g_c = gpu_result(g, KR_DTYPE_F32, rows * STATES);
    job->args.scan_bwd = b;
    ready_scan_bwd(job);
    return 28.0 * (double)n;
}

static double fill_loss(pass_job *job, int64_t rows, int64_t width)
{
    bench_gpu *g = job->gpu;
    int64_t *labels = kr_tape_list(g->tape, (size_t)rows * sizeof *labels);
    if (!labels) bench_fail("no memory for labels");
    for (int64_t i = 0; i < rows; i++) labels[i] = i * 7919 % width;
    job->args.loss = (kr_cross_entropy_args){
        .exec = gpu_exec(g, KR_PRECISION_EXACT), .no = rows, .nr = width, .nv = width, .label = labels, .alpha = 1
    };
    job->args.loss.x = floats(g, rows * width);
    job->args.loss.loss = gpu_result(g, KR_DTYPE_F32, rows);
    job->args.loss.stats = gpu_result(g, KR_DTYPE_F32, rows * KR_ROW_STATS);
    job->args.loss.g_x = rows_of(gpu_result(g, KR_DTYPE_F32, rows * width), width);
    ready_cross_entropy(job);
    return 8.0 * (double)(rows * width);
}

static double fill_adamw(pass_job *job, int64_t n)
{
    bench_gpu *g = job->gpu;
    job->args.adamw = (kr_adamw_args){ .exec = gpu_exec(g, KR_PRECISION_EXACT), .n = n };
    kr_adamw_args *a = &job->args.adamw;
    a->grad.g = rows_of(gpu_rand(g, KR_DTYPE_F32, n, -1, 1), 0);
    a->grad.scale = 1;
    a->grad.clip = INFINITY;
    a->w = floats(g, n);
    a->m = gpu_rand(g, KR_DTYPE_F32, n, 0, 1);
    a->v = gpu_rand(g, KR_DTYPE_F32, n, 0, 1);
    a->beta1 = 0.9;
    a->beta2 = 0.95;
    a->eps = 1e-8;
    a->rate = 1e-9;
    a->root = 1;
    ready_adamw(job);
    return 28.0 * (double)n;
}

static void run_pass(bench_env *env, const bench_case *self)
{
    bench_gpu *gpu = gpu_open(env, KR_PRECISION_EXACT);
    contender line[BENCH_CONTENDERS];
    int n = 0;
    contender *mine = NULL;
    if (self->variant != COPY) {
        pass_job *job = bench_bytes(env, sizeof *job);
        *job = (pass_job){ .gpu = gpu };
        const int64_t rows = self->size[0], width = self->size[1];
        const bool backward = self->variant == NORM_BWD || self->variant == CONV_BWD || self->variant == SCAN_BWD;
        const double work = self->variant <= NORM_BWD   ? fill_norm(job, rows, width, backward)
                            : self->variant <= CONV_BWD ? fill_conv(job, rows, width, backward)
                            : self->variant <= SCAN_BWD ? fill_scan(job, rows, width, backward)
                            : self->variant == LOSS     ? fill_loss(job, rows, width)
                                                        : fill_adamw(job, rows);
        mine = gpu_enter(line, &n, call_pass, job, work, "krait");
    }
    const contender *copy = gpu_enter_copy(env, gpu, line, &n);
    if (mine) bench_compare(mine, copy);
    bench_run(env, self, 1, "GB/s", line, n);
    gpu_close(gpu);
}

/* clang-format off */
const bench_case bench_gpu_bandwidth_cases[] = {
    { "cuda/copy", "1 GiB from memory to memory", run_pass, { 0 }, COPY },
    { "cuda/norm", "gated RMS norm of 16384 x 1536", run_pass, { 16384, 1536 }, NORM },
    { "cuda/norm-bwd", "its gradients", run_pass, { 16384, 1536 }, NORM_BWD },
    { "cuda/conv", "4 taps and SiLU over 16384 x 1792", run_pass, { 16384, 1792 }, CONV },
    { "cuda/conv-bwd", "its gradients", run_pass, { 16384, 1792 }, CONV_BWD },
    { "cuda/scan", "Mamba-1's gated scan of 16384 x 1536, 16 states", run_pass, { 16384, 1536 }, SCAN },
    { "cuda/scan-bwd", "its gradients", run_pass, { 16384, 1536 }, SCAN_BWD },
    { "cuda/loss", "cross-entropy of 4096 x 50288, with its gradient", run_pass, { 4096, 50288 }, LOSS },
    { "cuda/adamw", "a step of 128 M elements", run_pass, { 128 << 20 }, ADAMW },
    { 0 },
};
/* clang-format on */
