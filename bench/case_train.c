/* case_train.c - whole training steps of networks, and the optimizer's step alone; on the CPU, or on a device.
 *
 *   train/bytes, train/130m   a batch from memory, the loss fused with its head, all gradients, a step of AdamW after
 *                             clipping by norm. Useful FLOPs: three times those of the blocks (block_flops.h) and of the
 *                             head, compared with our GEMM of in_proj's shape. All other work counts as time only.
 *   train/adamw               its step must read w, g, m and v and write w, m and v: 28 bytes per element, vs. reads.
 *                             It also reads g for the norm, and zeroes it.
 *   cuda/train                the same steps on a device, b 8, s 2048, all queued; rounded to bf16 in products, and exact
 *   train/muon                its products, compared with our GEMM. A symmetric product counts half.
 */
#include "bench/bench_block.h"
#include "plan/block_flops.h"
#include "bench/bench_gpu.h"
#include "bench/bench_machine.h"

#include "nn/layers_impl.h"
#include "tape/tape_impl.h"

#include <krait/krait.h>

enum { STEP, ADAMW, MUON };
#define VARIANT(what, block) ((what)*BLOCK_VARIANTS + (block))
enum { LARGE_WIDTH = 768, LARGE_VOCAB = 50288, BYTES = 256, MUON_ROWS = 1024 /* of the GEMM compared with */ };
static const double adamw_bytes = 28;

typedef struct trainee {
    bench_gpu *gpu; /* NULL: on the CPU. First, for gpu_enter */
    kr_ctx *ctx;
    kr_network *net;
    kr_optimizer *optimizer;
    kr_tape *tape;
    int64_t nb, ns;
    int32_t *ids;
    double flops; /* of a forward pass */
} trainee;

static void check(const trainee *t)
{
    if (kr_ctx_failed(t->ctx)) bench_fail("%s", kr_ctx_message(t->ctx));
}

static void differentiate(trainee *t)
{
    kr_tape_reset(t->tape);
    kr_loss_call call;
    kr_loss_call_init(&call);
    kr_call how;
    kr_call_init(&how);
    call.call = &how;
    call.ids_bs = kr_view_data(t->tape, KR_DTYPE_I32, KR_SHAPE(t->nb, t->ns), NULL, t->ids);
    how.drop_state = true;
    kr_backward(t->tape, kr_network_loss(t->tape, t->net, &call).loss);
}

static void call_step(void *arg)
{
    trainee *t = arg;
    differentiate(t);
    kr_optimizer_step(t->optimizer, 1e-4, 1);
    check(t);
}

static void call_optimizer(void *arg)
{
    trainee *t = arg;
    const kr_params *params = kr_network_params(t->net);
    for (int64_t i = 0; i < kr_params_count(params); i++) kr_params_at(params, i)->tensor->flags.grad_is_zero = false;
    kr_optimizer_step(t->optimizer, 1e-4, 1);
    check(t);
}

/* ---- construction ---- */

typedef union any_config {
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
} any_config;

/* The layers' config; FLOPs of one layer. */
static double configure(kr_layers_config *layers, any_config *c, const int64_t size[4], int variant)
{
    kr_layers_config_init(layers);
    layers->n_layers = (int)size[3];
    if (variant == BLOCK_MAMBA1) {
        kr_mamba1_config_init(&c->mamba1);
        c->mamba1.d_model = size[2];
        layers->block = kr_mamba1_block(&c->mamba1);
        return kr_mamba1_flops(&c->mamba1, size[0], size[1]);
    }
    if (variant == BLOCK_MAMBA2) {
        kr_mamba2_config_init(&c->mamba2);
        c->mamba2.d_model = size[2];
        layers->block = kr_mamba2_block(&c->mamba2);
        return kr_mamba2_flops(&c->mamba2, size[0], size[1]);
    }
    kr_mamba3_config_init(&c->mamba3);
    c->mamba3.d_model = size[2];
    layers->block = kr_mamba3_block(&c->mamba3);
    return kr_mamba3_flops(&c->mamba3, size[0], size[1]);
}

static void make_network(trainee *t, const bench_case *self)
{
    const int64_t vocab = self->size[2] == LARGE_WIDTH ? LARGE_VOCAB : BYTES;
    kr_layers_config layers;
    any_config block;
    const double flops = configure(&layers, &block, self->size, self->variant % BLOCK_VARIANTS);
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = vocab;
    t->net = kr_network_create(t->ctx, &config);
    /* the last token of a row has no next one */
    const double scored = (double)(t->nb * (t->ns - 1));
    t->flops = (double)layers.n_layers * flops + 2 * scored * (double)self->size[2] * (double)vocab;
    for (int64_t i = 0; i < t->nb * t->ns; i++) t->ids[i] = (int32_t)(i * 7919 % vocab);
}

static kr_ctx *open_context(const kr_kernels *set, int threads)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = threads;
    options.isa = set->name;
    options.device = "cpu";
    return kr_ctx_create(&options);
}

static trainee *make(bench_env *env, kr_ctx *ctx, const bench_case *self, int what)
{
    trainee *t = bench_bytes(env, sizeof *t);
    *t = (trainee){ .ctx = ctx, .nb = self->size[0], .ns = self->size[1] };
    t->ids = bench_bytes(env, (size_t)(t->nb * t->ns) * sizeof *t->ids);
    make_network(t, self);
    check(t);
    kr_optimizer_options optimizer;
    kr_optimizer_options_init(&optimizer);
    optimizer.kind = what == MUON ? KR_OPTIMIZER_MUON : KR_OPTIMIZER_ADAMW;
    optimizer.keep_grad = what == MUON; /* with gradients of 0 its matrices would decay to 0 */
    t->optimizer = kr_optimizer_create(t->ctx, kr_network_params(t->net), &optimizer);
    t->tape = kr_tape_create(t->ctx, KR_TAPE_GRAD);
    if (what != STEP) differentiate(t);
    check(t);
    return t;
}

static void drop(trainee *t)
{
    kr_tape_destroy(t->tape);
    kr_optimizer_destroy(t->optimizer);
    kr_network_destroy(t->net);
    if (t->gpu) gpu_close(t->gpu);
    else kr_ctx_destroy(t->ctx);
}

/* ---- the cases ---- */

/* Of a matrix with sides k <= n, five times: X X^T, half of k k n products, its square, half of k k k, and k k n. */
static double muon_flops(const kr_params *params)
{
    double flops = 0;
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_param_row *row = kr_params_at(params, i);
        for (int s = 0; s < row->n_segments; s++) {
            const int64_t rows = row->segments[s].rows, cols = kr_tensor_dim(row->tensor, 1);
            const double k = (double)(rows < cols ? rows : cols), n = (double)(rows < cols ? cols : rows);
            if (row->segments[s].use_muon) flops += 5 * (k * (k + 1) * n + k * k * (k + 1) + 2 * k * k * n);
        }
    }
    return flops;
}

static const contender *enter_gemm(bench_env *env, const kr_kernels *set, trainee *t, contender *line, int *n,
                                   int64_t rows)
{
    const kr_params *params = kr_network_params(t->net);
    const kr_tensor *w = kr_params_find(params, "backbone.layers.0.mixer.in_proj.weight")->tensor;
    return block_enter_product(env, line, n, set, t->ctx->pool, w, rows);
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    const int what = self->variant / BLOCK_VARIANTS;
    const kr_kernels *set = &env->sets[env->nsets - 1];
    trainee *t = make(env, open_context(set, threads), self, what);
    const kr_params *params = kr_network_params(t->net);
    contender line[BENCH_CONTENDERS];
    read_job reads;
    int n = 0;
    char name[24];
    const double work = what == STEP   ? 3 * t->flops
                        : what == MUON ? muon_flops(params)
                                       : adamw_bytes * (double)kr_params_elements(params);
    contender *mine =
        bench_enter(line, &n, what == STEP ? call_step : call_optimizer, t, work, bench_name(name, "krait", set->name));
    mine->compares_time = what != ADAMW;
    if (what == STEP) mine->tokens = (double)(t->nb * t->ns);
    if (what == ADAMW) {
        const kr_tensor *w = kr_params_find(params, "backbone.embedding.weight")->tensor;
        bench_compare(mine,
                      machine_enter_read(env, line, &n, &reads, kr_tensor_data(w), kr_tensor_count(w), 1, threads));
        reads.pool = t->ctx->pool;
    } else {
        bench_compare(mine, enter_gemm(env, set, t, line, &n, what == MUON ? MUON_ROWS : t->nb * t->ns));
    }
    bench_run(env, self, threads, what == ADAMW ? "GB/s" : "GFLOP/s", line, n);
    drop(t);
}

static void case_train(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

/* A step of these takes seconds: measured with all threads only. */
static void case_large(bench_env *env, const bench_case *self)
{
    run_width(env, self, env->threads);
}

/* Reports the device's peak memory, and the time of its optimizer separately. */
static void case_gpu(bench_env *env, const bench_case *self)
{
    static const kr_precision precisions[] = { KR_PRECISION_BF16, KR_PRECISION_EXACT };
    for (int i = 0; i < 2; i++) {
        contender line[BENCH_CONTENDERS];
        int n = 0;
        char name[24];
        bench_gpu *gpu = gpu_open(env, precisions[i]);
        trainee *t = make(env, gpu->ctx, self, STEP);
        t->gpu = gpu;
        call_step(t);
        bench_name(name, "krait", gpu_precision_name(precisions[i]));
        contender *mine = gpu_enter(line, &n, call_step, t, 3 * t->flops, name);
        mine->tokens = (double)(t->nb * t->ns);
        mine->extra_bytes = (double)kr_ctx_device_memory(t->ctx).peak_bytes;
        bench_run(env, self, 1, "GFLOP/s", line, n);
        drop(t);
    }
}

/* clang-format off */
const bench_case bench_gpu_train_cases[] = {
    { "cuda/train/130m/mamba1", "24 layers, b 8, s 2048, d 768", case_gpu, { 8, 2048, 768, 24 }, VARIANT(STEP, BLOCK_MAMBA1) },
    { "cuda/train/130m/mamba2", "24 layers, b 8, s 2048, d 768", case_gpu, { 8, 2048, 768, 24 }, VARIANT(STEP, BLOCK_MAMBA2) },
    { "cuda/train/130m/mamba3", "24 layers, b 8, s 2048, d 768", case_gpu, { 8, 2048, 768, 24 }, VARIANT(STEP, BLOCK_SISO) },
    { "cuda/train/bytes/mamba2", "4 layers, b 8, s 256, d 256", case_gpu, { 8, 256, 256, 4 }, VARIANT(STEP, BLOCK_MAMBA2) },
    { "cuda/train/bytes/mamba3", "4 layers, b 8, s 256, d 256", case_gpu, { 8, 256, 256, 4 }, VARIANT(STEP, BLOCK_SISO) },
    { 0 },
};

const bench_case bench_train_cases[] = {
    { "train/bytes/mamba2", "4 layers, b 8, s 256, d 256", case_train, { 8, 256, 256, 4 }, VARIANT(STEP, BLOCK_MAMBA2) },
    { "train/bytes/mamba3", "4 layers, b 8, s 256, d 256", case_train, { 8, 256, 256, 4 }, VARIANT(STEP, BLOCK_SISO) },
    { "train/130m/mamba2", "24 layers, b 1, s 1024, d 768", case_large, { 1, 1024, 768, 24 }, VARIANT(STEP, BLOCK_MAMBA2) },
    { "train/130m/mamba3", "24 layers, b 1, s 1024, d 768", case_large, { 1, 1024, 768, 24 }, VARIANT(STEP, BLOCK_SISO) },
    { "train/adamw/130m", "the step of 129 M elements alone", case_train, { 1, 16, 768, 24 }, VARIANT(ADAMW, BLOCK_MAMBA2) },
    { "train/muon/bytes", "the step of 4 layers, d 256, alone", case_train, { 1, 16, 256, 4 }, VARIANT(MUON, BLOCK_MAMBA2) },
    { "train/muon/130m", "the step of 24 layers, d 768, alone", case_large, { 1, 16, 768, 24 }, VARIANT(MUON, BLOCK_MAMBA2) },
    { 0 },
};
/* clang-format on */
