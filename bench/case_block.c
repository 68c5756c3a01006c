/* case_block.c - whole blocks over sequences: forward, and forward with all gradients, compared with our GEMM.
 *
 * The work is the block's useful FLOPs (block_flops.h), so the ratio is time / (FLOPs / GEMM rate), with the rate of
 * the block's in_proj in the same rounds: 1 is a block that costs no more than its products.
 */
#include "bench/bench_block.h"
#include "bench/bench_gpu.h"

#include <krait/krait.h>

enum { FORWARD, TRAIN };
#define VARIANT(what, block) ((what)*BLOCK_VARIANTS + (block))

/* Medians of the default size, in ms, that the authors of the reference published for their CPU. */
static const double published[2][BLOCK_VARIANTS] = { { 71.8, 23.8, 23.9, 25.0, 122.6, 31.4, 30.6 },
                                                     { 6670, 80.9, 77.2, 80.0, 347, 115, 107 } };
enum { DEFAULT_WIDTH = 256 };

typedef struct block_job {
    bench_gpu *gpu; /* NULL: on the CPU. First, for gpu_enter */
    block_subject *subject;
    kr_tape *tape;
} block_job;

static kr_tensor *forward(const block_job *job)
{
    const block_subject *s = job->subject;
    const void *block = s->blocks[0];
    const kr_block_input input = { .op = "bench", .x_bsd = s->x, .path = s->kind->path(block) };
    kr_tape_reset(job->tape);
    return s->kind->forward(job->tape, block, &input).y_bsd;
}

static void call_forward(void *arg)
{
    const block_job *job = arg;
    forward(job);
    block_check(job->subject);
}

/* The gradients of mean(y^2) for x and all parameters, accumulated over calls. */
static void call_train(void *arg)
{
    const block_job *job = arg;
    kr_tensor *y = forward(job);
    kr_backward(job->tape, kr_mean(job->tape, kr_mul(job->tape, y, y), KR_ALL_AXES, false));
    block_check(job->subject);
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    const int what = self->variant / BLOCK_VARIANTS, variant = self->variant % BLOCK_VARIANTS;
    const kr_kernels *set = &env->sets[env->nsets - 1];
    const bool train = what == TRAIN;
    block_subject *subject = block_make(env, set, self, variant, threads, 1);
    block_job job = { NULL, subject, kr_tape_create(subject->ctx, train ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD) };
    contender line[BENCH_CONTENDERS];
    int n = 0;
    char name[24];
    contender *mine = bench_enter(line, &n, train ? call_train : call_forward, &job, (train ? 3 : 1) * subject->flops,
                                  bench_name(name, "krait", set->name));
    mine->compares_time = true;
    if (self->size[2] == DEFAULT_WIDTH) mine->published_ns = published[what][variant] * 1e6;
    bench_compare(mine, block_enter_gemm(env, line, &n, set, subject));
    bench_run(env, self, threads, "GFLOP/s", line, n);
    kr_tape_destroy(job.tape);
    block_drop(subject);
}

static void case_block(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

#define DEFAULT(name, block, rank)                                                                                     \
    { "block/forward/" name,                                                                                           \
      "b 2, s 256, d 256, r " #rank,                                                                                   \
      case_block,                                                                                                      \
      { 2, 256, 256, rank },                                                                                           \
      VARIANT(FORWARD, block) },                                                                                       \
    {                                                                                                                  \
        "block/train/" name, "its forward and backward", case_block, { 2, 256, 256, rank }, VARIANT(TRAIN, block)      \
    }
#define LARGE(name, block, rank)                                                                                       \
    { "block/forward/130m/" name,                                                                                      \
      "b 1, s 2048, d 768, r " #rank,                                                                                  \
      case_block,                                                                                                      \
      { 1, 2048, 768, rank },                                                                                          \
      VARIANT(FORWARD, block) },                                                                                       \
    {                                                                                                                  \
        "block/train/130m/" name, "its forward and backward", case_block, { 1, 2048, 768, rank },                      \
            VARIANT(TRAIN, block)                                                                                      \
    }

/* ---- on a device ---- */

static void case_gpu(bench_env *env, const bench_case *self)
{
    const bool train = self->variant / BLOCK_VARIANTS == TRAIN;
    bench_gpu *gpu = gpu_open(env, KR_PRECISION_BF16);
    block_subject *subject = block_make_in(env, gpu->ctx, self, self->variant % BLOCK_VARIANTS, 1);
    const size_t before = kr_ctx_device_memory(gpu->ctx).live_bytes;
    block_job job = { gpu, subject, kr_tape_create(gpu->ctx, train ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD) };
    contender line[BENCH_CONTENDERS];
    int n = 0;
    if (train) call_train(&job);
    else call_forward(&job);
    contender *mine =
        gpu_enter(line, &n, train ? call_train : call_forward, &job, (train ? 3 : 1) * subject->flops, "krait/bf16");
    mine->tokens = (double)(self->size[0] * self->size[1]);
    mine->extra_bytes = (double)(kr_ctx_device_memory(gpu->ctx).peak_bytes - before);
    bench_run(env, self, 1, "GFLOP/s", line, n);
    kr_tape_destroy(job.tape);
    block_drop(subject);
    gpu_close(gpu);
}

#define GPU(name, block, s, d)                                                                                         \
    { "cuda/block/" name, "b 8, s " #s ", d " #d, case_gpu, { 8, s, d, 128 }, VARIANT(FORWARD, block) },               \
    {                                                                                                                  \
        "cuda/block-train/" name, "its forward and backward", case_gpu, { 8, s, d, 128 }, VARIANT(TRAIN, block)        \
    }

/* clang-format off */
const bench_case bench_gpu_block_cases[] = {
    GPU("mamba2-d768", BLOCK_MAMBA2, 2048, 768),
    GPU("mamba2-d2560", BLOCK_MAMBA2, 4096, 2560),
    GPU("mamba3-d768", BLOCK_SISO, 2048, 768),
    GPU("mamba3-d2560", BLOCK_SISO, 4096, 2560),
    { 0 },
};

const bench_case bench_block_cases[] = {
    DEFAULT("mamba1", BLOCK_MAMBA1, 16),
    DEFAULT("mamba2", BLOCK_MAMBA2, 64),
    DEFAULT("mamba3/siso", BLOCK_SISO, 64),
    DEFAULT("mamba3/mimo-rank1", BLOCK_MIMO1, 64),
    DEFAULT("mamba3/mimo-rank4", BLOCK_MIMO4, 64),
    DEFAULT("mamba3/quaternion4d", BLOCK_QUATERNION, 64),
    DEFAULT("mamba3/siso-double-ssd", BLOCK_DOUBLE, 64),
    LARGE("mamba1", BLOCK_MAMBA1, 16),
    LARGE("mamba2", BLOCK_MAMBA2, 128),
    LARGE("mamba3/siso", BLOCK_SISO, 128),
    { 0 },
};
/* clang-format on */
