/* test_tape_memory.c - exact figures of the tape's memory, and every constructor with its n-th allocation refused. */
#include "tests/harness.h"

#include "tape/tape_impl.h"

enum { V = 32 * 1024 }; /* bytes of a vector */

static kr_tensor *chain(kr_tape *t, kr_tensor *x, int length)
{
    for (int i = 0; i < length; i++) x = i % 3 == 0 ? kr_sin(t, x) : i % 3 == 1 ? kr_add(t, x, x) : kr_scale(t, x, 0.5);
    return x;
}

/* How much the backward pass of a chain adds on top of its forward tensors. */
static size_t extra_of_chain(int length, bool as_view)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *x = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(V / 4)));
    kr_tensor *y = as_view ? x : chain(t, x, length);
    for (int i = 0; as_view && i < length; i++) y = kr_flip(t, kr_reshape(t, y, KR_SHAPE(i % 2 ? 4 : V / 4, -1)), 0);
    const size_t forward = kr_tape_bytes(t);
    CHECK(kr_tape_peak_bytes(t) == forward, "nothing is released in the forward pass");
    kr_backward_from(t, 1, &y, NULL);
    CHECK_OK(ctx);
    CHECK(kr_tape_bytes(t) < forward + 2 * V, "only the leaf's gradient is left: %zu bytes",
          kr_tape_bytes(t) - forward);
    const size_t extra = kr_tape_peak_bytes(t) - forward;
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
    return extra;
}

TEST(gradients_of_a_chain_are_released)
{
    const size_t ten = extra_of_chain(12, false), many = extra_of_chain(120, false);
    CHECK(ten == many, "12 ops need %zu bytes on the way back, 120 need %zu", ten, many);
    CHECK(ten >= 2 * V && ten < 4 * V, "%zu bytes: a gradient in, a gradient out, one in between", ten);
    const size_t few = extra_of_chain(4, true), views = extra_of_chain(100, true);
    CHECK(views < few + V, "4 views need %zu bytes on the way back, 100 need %zu", few, views);
}

TEST(steps_use_the_same_memory)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(V / 4));
    size_t total = 0;
    for (int step = 0; step < 6; step++) {
        kr_tape_reset(t);
        CHECK(kr_tape_bytes(t) == 0, "an empty tape");
        kr_tensor *y = chain(t, kr_mul(t, w, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(V / 4))), 20);
        kr_backward_from(t, 1, &y, NULL);
        /* the first steps grow the blocks; then nothing more is asked of the allocator */
        if (step >= 3) CHECK(kr_ctx_memory(ctx).total_blocks == total, "step %d allocates", step);
        total = kr_ctx_memory(ctx).total_blocks;
    }
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_param_destroy(w);
    kr_ctx_destroy(ctx);
}

/* ---- the n-th allocation ---- */

typedef struct hook {
    size_t calls, fail_at;
    long live;
    bool refused;
} hook;

static void *hook_alloc(void *user, size_t bytes, size_t align)
{
    hook *h = user;
    if (++h->calls == h->fail_at) {
        h->refused = true;
        return NULL;
    }
    void *p = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (p) h->live++;
    return p;
}

static void hook_free(void *user, void *p)
{
    ((hook *)user)->live--;
    free(p);
}

static kr_tape *small_tape(kr_ctx *ctx)
{
    kr_tape *t = kr_tape_create(ctx, KR_TAPE_GRAD);
    if (!t) return NULL;
    t->heads.block_bytes = t->data.block_bytes = t->heap.chunk_bytes = ctx->scratch.block_bytes = KR_ALIGN;
    t->shared.block_bytes = t->device_heap.chunk_bytes = 4 * KR_ALIGN;
    return t;
}

static void body_params(kr_ctx *ctx)
{
    kr_tensor *a = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(3, 4)),
              *b = kr_param_create(ctx, KR_DTYPE_F16, KR_SCALAR);
    kr_param_normal(a, 0, 1);
    kr_param_fill(b, 2);
    kr_param_destroy(a);
    kr_param_destroy(b);
}

static void body_tensors(kr_ctx *ctx)
{
    kr_tape *t = small_tape(ctx);
    kr_tensor *x = kr_input(t, kr_randn(t, KR_DTYPE_F32, KR_SHAPE(5)));
    kr_tensor *y = kr_add(t, kr_rand(t, KR_DTYPE_F32, KR_SHAPE(5), 0, 1),
                          kr_from_data(t, KR_DTYPE_F32, KR_SHAPE(5), (const float[5]){ 1 }));
    kr_tensor *z = kr_view_data(t, KR_DTYPE_F32, KR_SHAPE(5), NULL, (const float[5]){ 1 });
    z = kr_retain_grad(
        kr_mul(t, kr_mul(t, x, y), kr_detach(t, kr_mul(t, z, kr_full(t, KR_DTYPE_F32, KR_SHAPE(5), 2)))));
    kr_backward(t, kr_sum(t, kr_mul(t, z, z), KR_ALL_AXES, false));
    CHECK(kr_ctx_failed(ctx) || (kr_grad(x) && kr_grad(z)), "gradients");
    kr_tape_reset(t);
    kr_zeros(t, KR_DTYPE_F64, KR_SHAPE(1000));
    kr_tape_destroy(t);
}

static void body_scopes(kr_ctx *ctx)
{
    kr_tape *t = small_tape(ctx);
    kr_tensor *x = kr_input(t, kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(40)));
    kr_scope outer = kr_no_grad_begin(t);
    kr_tensor *a = kr_exp(t, x);
    kr_scope inner = kr_no_grad_begin(t);
    kr_tensor *b = kr_exp(t, a), *view = kr_flip(t, kr_exp(t, b), 0), *part = kr_slice(t, x, 0, 0, 3);
    kr_no_grad_end(t, inner, KR_KEEP(&b, &view, &part));
    CHECK(kr_ctx_failed(ctx) ? !b && !view && !part : b && view && part, "kept, or NULL");
    kr_no_grad_end(t, outer, KR_KEEP(&view));
    CHECK(kr_ctx_failed(ctx) ? !view : view != NULL, "kept, or NULL");
    kr_tape_destroy(t);
}

static void checkpointed(kr_tape *t, void *user, kr_tensor *const *in, kr_tensor **out)
{
    out[0] = kr_mul(t, kr_softmax(t, in[0], -1), user);
    out[1] = kr_transpose(t, kr_silu(t, in[0]));
}

static void body_checkpoint(kr_ctx *ctx)
{
    kr_tape *t = small_tape(ctx);
    kr_tensor *w = kr_param_create(ctx, KR_DTYPE_BF16, KR_SHAPE(4));
    kr_tensor *x = kr_input(t, kr_zeros(t, KR_DTYPE_BF16, KR_SHAPE(3, 4))), *y[2];
    const bool ok = w && kr_checkpoint(t, checkpointed, w, 1, &x, 2, y) == KR_OK;
    CHECK(ok == !kr_ctx_failed(ctx), "false after an error");
    if (ok) kr_backward_from(t, 2, y, NULL);
    CHECK(kr_ctx_failed(ctx) || (kr_grad(w) && kr_grad(x)), "gradients");
    kr_tape_destroy(t);
    kr_param_destroy(w);
}

static void body_nothing(kr_ctx *ctx)
{
    (void)ctx;
}

TEST(every_constructor_starved)
{
    void (*const bodies[])(kr_ctx *) = { body_nothing, body_params, body_tensors, body_scopes, body_checkpoint };
    for (size_t b = 0; b < sizeof bodies / sizeof *bodies; b++) {
        size_t n = 0;
        bool passed = false;
        while (!passed && n < 500) {
            hook h = { .fail_at = ++n };
            kr_ctx_options o;
            kr_ctx_options_init(&o);
            o.threads = 2;
            o.allocator = (kr_allocator){ hook_alloc, hook_free, &h };
            kr_ctx *ctx = kr_ctx_create(&o);
            if (ctx && !kr_ctx_failed(ctx)) bodies[b](ctx);
            CHECK(kr_ctx_failed(ctx) == h.refused, "body %zu, allocation %zu: %s", b, n, kr_ctx_message(ctx));
            if (h.refused)
                CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "status %s: %s", kr_status_name(kr_ctx_status(ctx)),
                      kr_ctx_message(ctx));
            const kr_memory_stats stats = kr_ctx_memory(ctx);
            CHECK(!ctx || (long)stats.live_blocks == h.live, "%zu blocks counted, %ld alive", stats.live_blocks,
                  h.live);
            kr_ctx_destroy(ctx);
            CHECK(h.live == 0, "body %zu, allocation %zu: %ld blocks are left", b, n, h.live);
            passed = !h.refused;
        }
        CHECK(passed && n > 3, "body %zu: %zu failures", b, n);
    }
}
