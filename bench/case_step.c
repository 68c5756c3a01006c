/* case_step.c - single tokens through whole blocks with packed weights, the cache of one step feeding the next,
 * compared with plain reads of the weights.
 *
 * A step must read every weight once, so its rate is bytes of weights per ns. One block repeatedly reads them from the
 * last-level cache if they fit; 24 blocks in parity, as in a network of that size, read them from memory.
 */
#include "bench/bench_block.h"
#include "bench/bench_machine.h"

enum { ONE, ALL };
#define VARIANT(what, block) ((what)*BLOCK_VARIANTS + (block))

/* Medians of the default size, in us, that the authors of the reference published for their CPU. */
static const double published[BLOCK_VARIANTS] = { 346, 296, 337, 362, 533, 366, 321 };
enum { DEFAULT_WIDTH = 256 };

/* Each block has two tapes: the cache of the last step is on one of them while the next step fills the other, so
 * nothing is copied. */
typedef struct step_job {
    block_subject *subject;
    int parity[BLOCK_COUNT_MAX];
    kr_tape *tapes[BLOCK_COUNT_MAX][2];
    kr_cache caches[BLOCK_COUNT_MAX];
} step_job;

/* The other tape's cache, borrowed by this one. */
static kr_cache borrow(kr_tape *tape, const block_subject *s, const kr_cache *cache)
{
    kr_cache lent = *cache;
    for (int i = 0; i < s->kind->ncache; i++) {
        const kr_tensor *x = cache->tensors[i];
        int64_t strides[KR_MAX_RANK];
        for (int axis = 0; axis < kr_tensor_rank(x); axis++) strides[axis] = kr_tensor_stride(x, axis);
        lent.tensors[i] = kr_view_data(tape, kr_tensor_dtype(x), kr_tensor_shape(x), strides, kr_tensor_data(x));
    }
    return lent;
}

/* A step of every block, one after another. */
static void call_steps(void *arg)
{
    step_job *job = arg;
    const block_subject *s = job->subject;
    for (int i = 0; i < s->count; i++) {
        kr_tape *tape = job->tapes[i][job->parity[i] ^= 1];
        kr_tape_reset(tape);
        const kr_cache before = borrow(tape, s, &job->caches[i]);
        job->caches[i] = kr_block_run_step(tape, s->kind, s->blocks[i], "bench", s->x, &before).cache;
    }
    block_check(s);
}

static step_job *make_job(bench_env *env, block_subject *s, int64_t batch)
{
    step_job *job = bench_bytes(env, sizeof *job);
    *job = (step_job){ .subject = s };
    for (int i = 0; i < s->count; i++) {
        for (int t = 0; t < 2; t++) job->tapes[i][t] = kr_tape_create(s->ctx, KR_TAPE_NO_GRAD);
        job->caches[i] = s->kind->initial_cache(job->tapes[i][0], s->blocks[i], batch);
    }
    block_check(s);
    return job;
}

static void drop_job(step_job *job)
{
    for (int i = 0; i < job->subject->count; i++)
        for (int t = 0; t < 2; t++) kr_tape_destroy(job->tapes[i][t]);
}

static void run_width(bench_env *env, const bench_case *self, int threads)
{
    const int what = self->variant / BLOCK_VARIANTS, variant = self->variant % BLOCK_VARIANTS;
    const int count = what == ALL ? BLOCK_COUNT_MAX : 1;
    const kr_kernels *set = &env->sets[env->nsets - 1];
    block_subject *subject = block_make(env, set, self, variant, threads, count);
    kr_params_pack(subject->params);
    step_job *job = make_job(env, subject, self->size[0]);
    contender line[BENCH_CONTENDERS];
    read_job reads;
    int n = 0;
    char name[24];
    contender *mine = bench_enter(line, &n, call_steps, job, 4.0 * (double)subject->weights * count,
                                  bench_name(name, "krait", set->name));
    if (self->size[2] == DEFAULT_WIDTH) mine->published_ns = published[variant] * 1e3;
    bench_compare(mine, machine_enter_read(env, line, &n, &reads, subject->floats, subject->weights, count, threads));
    reads.pool = subject->ctx->pool;
    bench_run(env, self, threads, "GB/s", line, n);
    drop_job(job);
    block_drop(subject);
}

static void case_step(bench_env *env, const bench_case *self)
{
    bench_each_width(env, self, run_width);
}

#define DEFAULT(name, block, rank)                                                                                     \
    {                                                                                                                  \
        "block/step/" name, "b 2, d 256, r " #rank, case_step, { 2, 0, 256, rank }, VARIANT(ONE, block)                \
    }
#define LARGE(name, block, rank)                                                                                       \
    {                                                                                                                  \
        "block/step/130m/" name, "b 1, d 768, r " #rank, case_step, { 1, 0, 768, rank }, VARIANT(ONE, block)           \
    }

/* clang-format off */
const bench_case bench_step_cases[] = {
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
    { "block/decode/130m", "24 Mamba-2 blocks in turn", case_step, { 1, 0, 768, 128 }, VARIANT(ALL, BLOCK_MAMBA2) },
    { 0 },
};
/* clang-format on */
