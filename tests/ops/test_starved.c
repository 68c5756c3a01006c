/* test_starved.c - every case with its n-th allocation refused, n = 1, 2, ... until it passes, forwards and backwards.
 *
 * The tape's arenas are told to ask for each piece by itself, so that every tensor, node and scratch is an allocation
 * that can be refused.
 */
#include "tests/memory.h"
#include "tests/ops/cases.h"

#include "tape/tape_impl.h"

static kr_tape *starved_tape(kr_ctx *ctx)
{
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    if (!tape) return NULL;
    tape->heads.block_bytes = tape->data.block_bytes = tape->heap.chunk_bytes = KR_ALIGN;
    tape->shared.block_bytes = tape->device_heap.chunk_bytes = 4 * KR_ALIGN;
    ctx->scratch.block_bytes = KR_ALIGN;
    return tape;
}

typedef struct starved {
    const kr_case *c;
    int n_in;
    const case_input *in;
    kr_dtype dtype;
    kr_tensor *param; /* one more operand that outlives the tape, so that its gradient is allocated too */
} starved;

static void run_once(kr_tape *tape, const starved *s)
{
    kr_tensor *x[CASE_MAX_IN], *y[CASE_MAX_OUT], *g_y[CASE_MAX_OUT];
    case_leaves(tape, s->dtype, s->n_in, s->in, x);
    for (int n = 0; n < s->n_in; n++) x[n] = kr_mul(tape, x[n], s->param);
    const int n_out = case_build(s->c, tape, x, y);
    case_seeds(tape, n_out, y, g_y);
    if (!kr_ctx_failed(tape->ctx)) kr_backward_from(tape, n_out, y, g_y);
}

static void starve(kr_ctx *ctx, const kr_case *c, kr_dtype dtype)
{
    case_input in[CASE_MAX_IN];
    starved s = { c, case_inputs_make(c, in), in, dtype, NULL };
    size_t n = 0;
    bool passed = false;
    const size_t idle = all_memory(ctx).live_blocks;
    while (!passed && n < 1000) {
        s.param = kr_param_create(ctx, dtype, KR_SCALAR);
        kr_param_fill(s.param, 1);
        kr_tape *tape = starved_tape(ctx);
        kr_ctx_fail_allocation(ctx, ++n);
        run_once(tape, &s);
        kr_ctx_fail_allocation(ctx, 0);
        passed = !kr_ctx_failed(ctx);
        if (!passed) {
            CHECK(kr_ctx_status(ctx) == KR_ERR_NOMEM, "%s, allocation %zu: status %s, %s", c->name, n,
                  kr_status_name(kr_ctx_status(ctx)), kr_ctx_message(ctx));
            kr_ctx_clear(ctx);
            kr_tape_reset(tape);
            run_once(tape, &s);
            CHECK(!kr_ctx_failed(ctx), "%s after allocation %zu was refused: %s", c->name, n, kr_ctx_message(ctx));
            kr_ctx_clear(ctx);
        }
        kr_tape_destroy(tape);
        kr_param_destroy(s.param);
        drop_scratch(ctx);
        CHECK(all_memory(ctx).live_blocks == idle, "%s, allocation %zu: %zu blocks are left", c->name, n,
              all_memory(ctx).live_blocks - idle);
    }
    CHECK(passed && n > 10, "%s: %s after %zu refused allocations", c->name, passed ? "passed" : "did not pass", n);
    case_inputs_free(s.n_in, in);
}

TEST(every_allocation_of_every_case)
{
    const char *isas[8];
    kr_ctx *ctx = kr_test_ctx(1, isas[case_isas(isas) - 1]);
    for (int i = 0; i < kr_ncases; i++) starve(ctx, &kr_cases[i], KR_DTYPE_F32);
    for (int i = 0; i < kr_ncases; i += kr_test_quick() ? 7 : 1) starve(ctx, &kr_cases[i], KR_DTYPE_BF16);
    kr_ctx_destroy(ctx);
}
