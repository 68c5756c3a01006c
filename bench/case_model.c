/* case_model.c - whole models of 130m shapes: single tokens compared with plain reads, and prompts with our GEMM; on a
 * device, tokens of a greedy generation, for one row and for many.
 *
 *   decode    one token, its state updated in place, weights packed. It must read every weight once, and read and write
 *             the state: its rate is those bytes per ns, compared with reads of as much memory.
 *   prefill   512 tokens of a prompt, the last one's logits: useful FLOPs, compared with our GEMM of in_proj's shape.
 *
 * Matrices in f32 and in bf16. The models are d 768 with a tied head of 50288 rows: Mamba-1 and Mamba-2 of 24 layers,
 * Mamba-3 of 12 with an MLP of 1536, as published by their authors.
 */
#include "bench/bench_block.h"
#include "plan/block_flops.h"
#include "bench/bench_gpu.h"
#include "bench/bench_machine.h"

#include "nn/layers_impl.h"

#include <krait/krait.h>

enum { DECODE, PREFILL };
enum { WIDTH = 768, VOCAB = 50288, PROMPT = 512, TYPES = 2 };
#define VARIANT(what, block) ((what)*BLOCK_VARIANTS + (block))

typedef struct model {
    bench_gpu *gpu; /* NULL: on the CPU. First, for gpu_enter */
    kr_generation *generation;
    kr_ctx *ctx;
    kr_network *net;
    kr_state *state;
    kr_tape *tape;
    int32_t ids[PROMPT];
    double flops; /* of a prompt */
} model;

static void check(const model *m)
{
    if (kr_ctx_failed(m->ctx)) bench_fail("%s", kr_ctx_message(m->ctx));
}

static void call_decode(void *arg)
{
    model *m = arg;
    kr_tape_reset(m->tape);
    kr_call call;
    kr_call_init(&call);
    call.advance = m->state;
    kr_network_step(m->tape, m->net, kr_from_data(m->tape, KR_DTYPE_I32, KR_SHAPE(1), m->ids), &call);
    check(m);
}

static void call_prefill(void *arg)
{
    model *m = arg;
    kr_tape_reset(m->tape);
    kr_call call;
    kr_call_init(&call);
    call.advance = m->state;
    call.last_logits_only = true;
    kr_network_forward(m->tape, m->net, kr_from_data(m->tape, KR_DTYPE_I32, KR_SHAPE(1, PROMPT), m->ids), &call);
    check(m);
}

/* ---- construction ---- */

typedef union any_config {
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
} any_config;

/* The layers' config; FLOPs of one layer for a prompt. */
static void configure(kr_layers_config *layers, any_config *c, int variant, kr_dtype dtype, double *flops)
{
    kr_layers_config_init(layers);
    layers->n_layers = 24;
    if (variant == BLOCK_MAMBA1) {
        kr_mamba1_config_init(&c->mamba1);
        c->mamba1.d_model = WIDTH;
        c->mamba1.dtype = dtype;
        layers->block = kr_mamba1_block(&c->mamba1);
        *flops = kr_mamba1_flops(&c->mamba1, 1, PROMPT);
    } else if (variant == BLOCK_MAMBA2) {
        kr_mamba2_config_init(&c->mamba2);
        c->mamba2.d_model = WIDTH;
        c->mamba2.dtype = dtype;
        layers->block = kr_mamba2_block(&c->mamba2);
        *flops = kr_mamba2_flops(&c->mamba2, 1, PROMPT);
    } else {
        kr_mamba3_config_init(&c->mamba3);
        c->mamba3.d_model = WIDTH;
        c->mamba3.dtype = dtype;
        layers->block = kr_mamba3_block(&c->mamba3);
        layers->n_layers = 12;
        layers->d_intermediate = 1536;
        *flops = kr_mamba3_flops(&c->mamba3, 1, PROMPT) + 6.0 * PROMPT * WIDTH * 1536;
    }
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

static model *make(bench_env *env, kr_ctx *ctx, int variant, kr_dtype dtype)
{
    model *m = bench_bytes(env, sizeof *m);
    *m = (model){ .ctx = ctx };
    kr_layers_config layers;
    any_config block;
    double flops;
    configure(&layers, &block, variant, dtype, &flops);
    kr_network_config config;
    kr_network_config_init(&config);
    config.layers = &layers;
    config.vocab_size = VOCAB;
    m->net = kr_network_create(m->ctx, &config);
    check(m);
    m->flops = (double)layers.n_layers * flops + 2.0 * WIDTH * VOCAB;
    m->state = kr_state_create(m->ctx, kr_network_layers(m->net), 1);
    m->tape = kr_tape_create(m->ctx, KR_TAPE_NO_GRAD);
    for (int i = 0; i < PROMPT; i++) m->ids[i] = i * 97 % VOCAB;
    check(m);
    return m;
}

static void drop(model *m)
{
    kr_tape_destroy(m->tape);
    kr_state_destroy(m->state);
    kr_generation_destroy(m->generation);
    kr_network_destroy(m->net);
    if (m->gpu) gpu_close(m->gpu);
    else kr_ctx_destroy(m->ctx);
}

/* Every parameter once, and the state read and written. */
static double least_bytes(const model *m)
{
    const kr_params *params = kr_network_params(m->net);
    double bytes = 2 * (double)kr_state_bytes(m->state);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        const kr_tensor *x = kr_params_at(params, i)->tensor;
        bytes += (double)kr_tensor_count(x) * (double)kr_dtype_bytes(kr_tensor_dtype(x));
    }
    return bytes;
}

/* ---- the cases ---- */

static const kr_dtype types[TYPES] = { KR_DTYPE_F32, KR_DTYPE_BF16 };

static void enter_decode(bench_env *env, model **models, contender *line, int *n, read_job *reads, int threads)
{
    contender *mine[TYPES];
    for (int i = 0; i < TYPES; i++) {
        model *m = models[i];
        kr_params_pack(kr_network_params(m->net));
        call_decode(m); /* allocates the state */
        char name[24];
        mine[i] =
            bench_enter(line, n, call_decode, m, least_bytes(m), bench_name(name, "krait", kr_dtype_name(types[i])));
        mine[i]->tokens = 1;
    }
    const kr_tensor *table = kr_params_find(kr_network_params(models[0]->net), "backbone.embedding.weight")->tensor;
    const contender *read =
        machine_enter_read(env, line, n, reads, kr_tensor_data(table), kr_tensor_count(table), 1, threads);
    reads->pool = models[0]->ctx->pool;
    for (int i = 0; i < TYPES; i++) bench_compare(mine[i], read);
}

static void enter_prefill(bench_env *env, const kr_kernels *set, model **models, contender *line, int *n)
{
    contender *mine[TYPES];
    for (int i = 0; i < TYPES; i++) {
        char name[24];
        mine[i] = bench_enter(line, n, call_prefill, models[i], models[i]->flops,
                              bench_name(name, "krait", kr_dtype_name(types[i])));
        mine[i]->tokens = PROMPT;
        mine[i]->compares_time = true;
    }
    const kr_params *params = kr_network_params(models[0]->net);
    const kr_tensor *w = kr_params_find(params, "backbone.layers.0.mixer.in_proj.weight")->tensor;
    const contender *gemm = block_enter_product(env, line, n, set, models[0]->ctx->pool, w, PROMPT);
    for (int i = 0; i < TYPES; i++) bench_compare(mine[i], gemm);
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    const int what = self->variant / BLOCK_VARIANTS, variant = self->variant % BLOCK_VARIANTS;
    const kr_kernels *set = &env->sets[env->nsets - 1];
    model *models[TYPES];
    contender line[BENCH_CONTENDERS];
    read_job reads;
    int n = 0;
    for (int i = 0; i < TYPES; i++) models[i] = make(env, open_context(set, threads), variant, types[i]);
    if (what == DECODE) enter_decode(env, models, line, &n, &reads, threads);
    else enter_prefill(env, set, models, line, &n);
    bench_run(env, self, threads, what == DECODE ? "GB/s" : "GFLOP/s", line, n);
    for (int i = 0; i < TYPES; i++) drop(models[i]);
}

static void case_model(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

/* A second context over the weights of a model: opened, shared and destroyed. */
static void call_share(void *arg)
{
    const model *m = arg;
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = "cpu";
    kr_ctx *ctx = kr_ctx_create(&options);
    kr_network *net = kr_network_share(ctx, m->net);
    if (!net) bench_fail("%s", kr_ctx_message(ctx));
    kr_network_destroy(net);
    kr_ctx_destroy(ctx);
}

static void case_share(bench_env *env, const bench_case *self)
{
    model *m = make(env, open_context(&env->sets[env->nsets - 1], 1), self->variant, KR_DTYPE_F32);
    contender line[BENCH_CONTENDERS];
    int n = 0;
    bench_enter(line, &n, call_share, m, 1e9, "krait");
    bench_run(env, self, 1, "contexts/s", line, n);
    drop(m);
}

/* ---- on a device ---- */

static void call_generate(void *arg)
{
    model *m = arg;
    if (kr_generation_next(m->generation) != KR_OK) bench_fail("%s", kr_ctx_message(m->ctx));
}

/* size = { rows }. */
static void case_gpu(bench_env *env, const bench_case *self)
{
    for (int i = 0; i < TYPES; i++) {
        bench_gpu *gpu = gpu_open(env, types[i] == KR_DTYPE_BF16 ? KR_PRECISION_BF16 : KR_PRECISION_EXACT);
        model *m = make(env, gpu->ctx, self->variant, types[i]);
        m->gpu = gpu;
        kr_generate_options options;
        kr_generate_options_init(&options);
        kr_sampler_options greedy;
        kr_sampler_options_init(&greedy);
        greedy.temperature = 0;
        options.sampler = &greedy;
        options.max_tokens = -1;
        options.n_samples = self->size[0];
        m->generation = kr_generation_create(m->ctx, m->net, NULL, &options);
        kr_generation_feed(m->generation, m->ids, PROMPT);
        check(m);
        contender line[BENCH_CONTENDERS];
        int n = 0;
        char name[24];
        const double rows = (double)self->size[0], state = 2 * (double)kr_state_bytes(m->state);
        bench_name(name, "krait", kr_dtype_name(types[i]));
        contender *mine = gpu_enter(line, &n, call_generate, m, least_bytes(m) + (rows - 1) * state, name);
        mine->tokens = rows;
        mine->sample_ns = 30e6; /* tokens of a generation are dependent: a long sample hides start and end */
        bench_compare(mine, gpu_enter_copy(env, gpu, line, &n));
        bench_run(env, self, 1, "GB/s", line, n);
        drop(m);
    }
}

#define MODEL(name, block, what)                                                                                       \
    { "model/decode/" name, what ", a token", case_model, { 0 }, VARIANT(DECODE, block) },                             \
    {                                                                                                                  \
        "model/prefill/" name, what ", 512 tokens", case_model, { 0 }, VARIANT(PREFILL, block)                         \
    }

/* clang-format off */
const bench_case bench_gpu_model_cases[] = {
    { "cuda/decode/mamba2-130m-b1", "24 layers, f32 and bf16, a row", case_gpu, { 1 }, BLOCK_MAMBA2 },
    { "cuda/decode/mamba2-130m-b64", "64 rows", case_gpu, { 64 }, BLOCK_MAMBA2 },
    { "cuda/decode/mamba3-siso-b1", "12 layers with MLPs, a row", case_gpu, { 1 }, BLOCK_SISO },
    { "cuda/decode/mamba3-siso-b64", "64 rows", case_gpu, { 64 }, BLOCK_SISO },
    { "cuda/decode/mamba1-130m-b1", "24 layers, a row", case_gpu, { 1 }, BLOCK_MAMBA1 },
    { 0 },
};

const bench_case bench_model_cases[] = {
    MODEL("mamba1-130m", BLOCK_MAMBA1, "24 layers, f32 and bf16"),
    MODEL("mamba2-130m", BLOCK_MAMBA2, "24 layers, f32 and bf16"),
    MODEL("mamba3-siso", BLOCK_SISO, "12 layers with MLPs, f32 and bf16"),
    { "model/share/mamba2-130m", "24 layers, another context over the same weights", case_share, { 0 }, BLOCK_MAMBA2 },
    { 0 },
};
/* clang-format on */
