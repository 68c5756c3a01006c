/* test_raw_memory.c - what raw ops allocate: nothing with the caller's work memory; and threads that share memory. */
#define _POSIX_C_SOURCE 200809L
#include "tests/memory.h"
#include "tests/raw/raw_case.h"

#include <pthread.h>

enum { NB = 3, NS = 40, NH = 4, NP = 16, NR = 8, VIEWS = 14, Y = 12, FINAL = 13 };

/* Views of an SSD core on a tape's memory. */
static void views_on(kr_tape *t, kr_view *views)
{
    const kr_shape shapes[4] = { KR_SHAPE(NB, NS, 1, NH, NP), KR_SHAPE(NB, NS, 1, 1, NR), KR_SHAPE(NB, NS, 1, 1, NR),
                                 KR_SHAPE(NB, NS, NH) };
    memset(views, 0, VIEWS * sizeof *views);
    for (int i = 0; i < 4; i++) {
        kr_tensor *x = kr_rand(t, KR_DTYPE_F32, shapes[i], -0.5, 0);
        views[i] = kr_view_contiguous(KR_DTYPE_F32, shapes[i], kr_tensor_data(x));
    }
    kr_tensor *y = kr_zeros(t, KR_DTYPE_F32, shapes[0]), *final = kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(NB, NH, NP, NR));
    views[Y] = kr_view_contiguous(KR_DTYPE_F32, shapes[0], kr_tensor_data(y));
    views[FINAL] = kr_view_contiguous(KR_DTYPE_F32, KR_SHAPE(NB, NH, NP, NR), kr_tensor_data(final));
}

TEST(raw_runs_with_work_memory_allocate_nothing)
{
    kr_ctx *ctx = kr_test_ctx(2, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_view views[VIEWS];
    kr_raw_options options;
    views_on(t, views);
    kr_raw_options_init(&options);
    options.work_bytes = kr_raw_work(ctx, KR_RAW_SSD, VIEWS, views, &options);
    options.work = kr_tensor_data(kr_zeros(t, KR_DTYPE_F32, KR_SHAPE((int64_t)options.work_bytes / 4 + 16)));
    const size_t before = all_memory(ctx).total_blocks, pinned = kr_ctx_pinned_memory(ctx).total_blocks;
    for (int i = 0; i < 3; i++) {
        kr_ctx_fail_allocation(ctx, 1); /* the next allocation fails: there is none */
        CHECK(kr_raw_run(ctx, KR_RAW_SSD, VIEWS, views, &options) == KR_OK, "%s", kr_ctx_message(ctx));
    }
    kr_ctx_fail_allocation(ctx, 0);
    CHECK(all_memory(ctx).total_blocks == before, "%zu allocations", all_memory(ctx).total_blocks - before);
    CHECK(kr_ctx_pinned_memory(ctx).total_blocks == pinned, "pinned allocations");
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* Without work memory each allocation may fail: an error, and the next call runs. */
TEST(raw_runs_survive_each_failing_allocation)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_view views[VIEWS];
    views_on(t, views);
    CHECK_OK(ctx);
    int failed = 0;
    for (size_t n = 1; n < 20; n++) {
        drop_scratch(ctx);
        kr_ctx_fail_allocation(ctx, n);
        if (kr_raw_run(ctx, KR_RAW_SSD, VIEWS, views, NULL) == KR_OK) break;
        CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s", kr_ctx_message(ctx));
        CHECK(strncmp(kr_ctx_message(ctx), "raw ssd: no memory for ", 23) == 0, "%s", kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
        failed++;
    }
    kr_ctx_fail_allocation(ctx, 0);
    CHECK(failed >= 2, "%d allocations failed, but the list and the scratch are two", failed);
    CHECK(kr_raw_run(ctx, KR_RAW_SSD, VIEWS, views, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* The list of a length is made once, for any number of rows up to its capacity. */
TEST(raw_rows_have_one_list_for_a_length)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_view views[VIEWS];
    views_on(t, views);
    CHECK(kr_raw_run(ctx, KR_RAW_SSD, VIEWS, views, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    const size_t blocks = kr_ctx_memory(ctx).live_blocks, pinned = kr_ctx_pinned_memory(ctx).live_blocks;
    for (int rows = NB; rows >= 1; rows--) {
        for (int n = 0; n < VIEWS; n++)
            if (views[n].data) views[n].dims[0] = rows;
        CHECK(kr_raw_run(ctx, KR_RAW_SSD, VIEWS, views, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    }
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks && kr_ctx_pinned_memory(ctx).live_blocks == pinned, "another list");
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* ---- threads ---- */

typedef struct reader {
    const kr_view *views; /* its operands are everyone's, its results its own */
    float *y, *final;
    bool ok;
} reader;

static void *read_shared(void *arg)
{
    reader *r = arg;
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 2;
    options.device = "cpu";
    kr_ctx *ctx = kr_ctx_create(&options);
    kr_view views[VIEWS];
    memcpy(views, r->views, sizeof views);
    views[Y].data = r->y;
    views[FINAL].data = r->final;
    for (int i = 0; i < 20; i++) r->ok = kr_raw_run(ctx, KR_RAW_SSD, VIEWS, views, NULL) == KR_OK;
    kr_ctx_destroy(ctx);
    return NULL;
}

TEST(raw_threads_share_operands)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    if (kr_test_on_device(ctx)) {
        kr_ctx_destroy(ctx);
        SKIP("of memory that the host has");
    }
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    kr_view views[VIEWS];
    views_on(t, views);
    static float y[2][NB * NS * NH * NP], final[2][NB * NH * NP * NR];
    reader readers[2] = { { views, y[0], final[0], false }, { views, y[1], final[1], false } };
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, read_shared, &readers[i]) != 0) exit(2);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    CHECK(readers[0].ok && readers[1].ok, "a call failed");
    CHECK(kr_raw_run(ctx, KR_RAW_SSD, VIEWS, views, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    for (int i = 0; i < 2; i++) {
        CHECK(memcmp(y[i], views[Y].data, sizeof y[i]) == 0, "y of thread %d", i);
        CHECK(memcmp(final[i], views[FINAL].data, sizeof final[i]) == 0, "final of thread %d", i);
    }
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}
