/* bench_block.c - the measured configurations, and their blocks.
 *
 * Values that determine the work are those of the benchmarks we compare with: expand 2, heads of 64, one group, the
 * whole state rotated (rope_fraction 1), rotation_range 2, softplus for the decay, no norm before Mamba-3's gate. The
 * algorithm and its chunk length are our defaults.
 */
#include "bench/bench_block.h"

#include "plan/block_flops.h"

typedef union block_config {
    kr_mamba1_config mamba1;
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
} block_config;

static void configure_mamba3(kr_mamba3_config *c, int variant)
{
    kr_mamba3_config_init(c);
    c->rope_fraction = 1;
    c->rotation_range = 2;
    c->a_activation = KR_A_ACTIVATION_SOFTPLUS;
    c->is_mimo = variant == BLOCK_MIMO1 || variant == BLOCK_MIMO4;
    c->mimo_rank = variant == BLOCK_MIMO4 ? 4 : 1;
    if (variant == BLOCK_QUATERNION) c->rotation = KR_ROTATION_QUATERNION;
    if (variant == BLOCK_DOUBLE) c->pathway = KR_MAMBA3_PATHWAY_DOUBLE;
}

/* The kind; the config; the FLOPs of a forward pass. */
static const kr_block_kind *configure(block_config *c, const int64_t size[4], int variant, double *flops)
{
    const int64_t nb = size[0], ns = size[1], nd = size[2], nr = size[3];
    if (variant == BLOCK_MAMBA1) {
        kr_mamba1_config_init(&c->mamba1);
        c->mamba1.d_model = nd;
        c->mamba1.state_rank = nr;
        *flops = kr_mamba1_flops(&c->mamba1, nb, ns);
        return &kr_mamba1_kind;
    }
    if (variant == BLOCK_MAMBA2) {
        kr_mamba2_config_init(&c->mamba2);
        c->mamba2.d_model = nd;
        c->mamba2.state_rank = nr;
        *flops = kr_mamba2_flops(&c->mamba2, nb, ns);
        return &kr_mamba2_kind;
    }
    configure_mamba3(&c->mamba3, variant);
    c->mamba3.d_model = nd;
    c->mamba3.state_rank = nr;
    *flops = kr_mamba3_flops(&c->mamba3, nb, ns);
    return &kr_mamba3_kind;
}

void block_check(const block_subject *subject)
{
    if (kr_ctx_failed(subject->ctx)) bench_fail("%s", kr_ctx_message(subject->ctx));
}

block_subject *block_make(bench_env *env, const kr_kernels *set, const bench_case *self, int variant, int threads,
                          int count)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = threads;
    options.isa = set->name;
    options.device = "cpu";
    block_subject *s = block_make_in(env, kr_ctx_create(&options), self, variant, count);
    s->keeps_ctx = false;
    return s;
}

block_subject *block_make_in(bench_env *env, kr_ctx *ctx, const bench_case *self, int variant, int count)
{
    block_subject *s = bench_bytes(env, sizeof *s);
    *s = (block_subject){ .ctx = ctx, .keeps_ctx = true, .count = count };
    block_config config;
    s->kind = configure(&config, self->size, variant, &s->flops);
    s->params = kr_params_create(s->ctx);
    block_check(s);
    for (int i = 0; i < count; i++) {
        const size_t outer = kr_params_enter(s->params, "%d.", i);
        s->blocks[i] = s->kind->create(s->ctx, s->params, &config);
        kr_params_leave(s->params, outer);
        block_check(s);
    }
    kr_params_seal(s->params);
    const int64_t nb = self->size[0], ns = self->size[1], nd = self->size[2];
    s->x = kr_param_create(s->ctx, KR_DTYPE_F32, ns ? KR_SHAPE(nb, ns, nd) : KR_SHAPE(nb, nd));
    kr_param_normal(s->x, 0, 1);
    block_check(s);
    s->weights = kr_params_elements(s->params) / count;
    s->floats = kr_tensor_data(kr_params_at(s->params, 0)->tensor);
    return s;
}

void block_drop(block_subject *s)
{
    kr_param_destroy(s->x);
    kr_params_destroy(s->params);
    for (int i = 0; i < s->count; i++) kr_block_free(s->blocks[i]);
    if (!s->keeps_ctx) kr_ctx_destroy(s->ctx);
}

typedef struct gemm_job {
    void (*run)(const kr_matmul_args *);
    kr_matmul_args args;
} gemm_job;

static void call_gemm(void *arg)
{
    const gemm_job *job = arg;
    job->run(&job->args);
}

contender *block_enter_product(bench_env *env, contender *line, int *n, const kr_kernels *set, kr_pool *pool,
                               const kr_tensor *w, int64_t nm)
{
    gemm_job *job = bench_bytes(env, sizeof *job);
    const int64_t nn = kr_tensor_dim(w, 0), nk = kr_tensor_dim(w, 1);
    *job = (gemm_job){ .run = set->matmul[KR_REAL_F32].run,
                       .args = { .nm = nm,
                                 .nn = nn,
                                 .nk = nk,
                                 .a = { bench_floats(env, nm * nk, -1, 1), KR_DTYPE_F32, nk, 1 },
                                 .b = { w->data, KR_DTYPE_F32, 1, nk },
                                 .c = { bench_floats(env, nm * nn, 0, 1), KR_DTYPE_F32, nn } } };
    job->args.exec.pool = pool;
    size_t (*scratch)(const kr_matmul_args *) = set->matmul[KR_REAL_F32].scratch;
    job->args.exec.scratch = bench_bytes(env, scratch ? scratch(&job->args) : 0);
    char name[24];
    const double flop = 2 * (double)nm * (double)nn * (double)nk;
    return bench_enter(line, n, call_gemm, job, flop, bench_name(name, "gemm", set->name));
}

contender *block_enter_gemm(bench_env *env, contender *line, int *n, const kr_kernels *set, const block_subject *s)
{
    const kr_tensor *w = kr_params_find(s->params, "0.in_proj.weight")->tensor;
    return block_enter_product(env, line, n, set, s->ctx->pool, w, kr_tensor_count(s->x) / kr_tensor_dim(w, 1));
}
