/* case_loss.c - the head of a language model with its cross-entropy, forward and backward: fused, and separate,
 * compared with our GEMM of the logits' shape.
 *
 * The useful work is that of three products, [rows d] x [d w] and its two gradients: 6 rows d w FLOPs. The ratio to the
 * GEMM's time for as much work is the overhead of the other operations.
 */
#include "bench/bench_block.h"

#include <krait/krait.h>

typedef struct head {
    kr_ctx *ctx;
    kr_tape *tape;
    kr_tensor *hidden, *weight; /* parameters, so that both gradients are computed */
    int64_t rows;
    int32_t *labels;
} head;

static void check(const head *h)
{
    if (kr_ctx_failed(h->ctx)) bench_fail("%s", kr_ctx_message(h->ctx));
}

static void differentiate(head *h, bool is_fused)
{
    kr_tape_reset(h->tape);
    kr_zero_grad(h->hidden);
    kr_zero_grad(h->weight);
    kr_tensor *labels = kr_view_data(h->tape, KR_DTYPE_I32, KR_SHAPE(h->rows), NULL, h->labels);
    kr_tensor *loss = is_fused
                          ? kr_head_cross_entropy(h->tape, h->hidden, h->weight, NULL, labels, NULL)
                          : kr_cross_entropy(h->tape, kr_linear(h->tape, h->hidden, h->weight, NULL), labels, NULL);
    kr_backward(h->tape, loss);
    check(h);
}

static void call_fused(void *arg)
{
    differentiate(arg, true);
}

static void call_separate(void *arg)
{
    differentiate(arg, false);
}

static head *make(bench_env *env, const kr_kernels *set, const bench_case *self, int threads)
{
    const int64_t rows = self->size[0], nd = self->size[1], nw = self->size[2];
    head *h = bench_bytes(env, sizeof *h);
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = threads;
    options.isa = set->name;
    *h = (head){ .ctx = kr_ctx_create(&options), .rows = rows };
    h->tape = kr_tape_create(h->ctx, KR_TAPE_GRAD);
    h->hidden = kr_param_create(h->ctx, KR_DTYPE_F32, KR_SHAPE(rows, nd));
    h->weight = kr_param_create(h->ctx, KR_DTYPE_F32, KR_SHAPE(nw, nd));
    kr_param_normal(h->hidden, 0, 1);
    kr_param_normal(h->weight, 0, 0.02);
    check(h);
    h->labels = bench_bytes(env, (size_t)rows * sizeof *h->labels);
    for (int64_t r = 0; r < rows; r++) h->labels[r] = (int32_t)(r * 7919 % nw);
    return h;
}

static void drop(head *h)
{
    kr_tape_destroy(h->tape);
    kr_param_destroy(h->hidden);
    kr_param_destroy(h->weight);
    kr_ctx_destroy(h->ctx);
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    const kr_kernels *set = &env->sets[env->nsets - 1];
    head *h = make(env, set, self, threads);
    const double flops = 6.0 * (double)self->size[0] * (double)self->size[1] * (double)self->size[2];
    contender line[BENCH_CONTENDERS];
    int n = 0;
    char name[24];
    contender *mine[2];
    mine[0] = bench_enter(line, &n, call_fused, h, flops, bench_name(name, "krait", set->name));
    mine[1] = bench_enter(line, &n, call_separate, h, flops, "separate");
    const contender *gemm = block_enter_product(env, line, &n, set, h->ctx->pool, h->weight, h->rows);
    for (int i = 0; i < 2; i++) {
        mine[i]->tokens = (double)h->rows;
        mine[i]->compares_time = true;
        bench_compare(mine[i], gemm);
    }
    bench_run(env, self, threads, "GFLOP/s", line, n);
    drop(h);
}

static void case_loss(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

const bench_case bench_loss_cases[] = {
    { "head_loss/2048x256x256", "of bytes: b 8, s 256, d 256", case_loss, { 2048, 256, 256 }, 0 },
    { "head_loss/1024x768x50288", "of a 130m model: b 1, s 1024, d 768", case_loss, { 1024, 768, 50288 }, 0 },
    { 0 },
};
