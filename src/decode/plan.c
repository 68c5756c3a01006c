/* plan.c - makes a plan: asks whether fused kernels can run a stack, and describes its layers to them. */
#include "decode/plan.h"

#include "device/device.h"
#include "ops/ops_impl.h"

/* ---- questions ---- */

static const char *stream_fallback(const kr_layers *s)
{
    const kr_dtype dtype = kr_block_dtype(s->layers[0].block);
    if (dtype == KR_DTYPE_F64) return "its weights are f64, and decode kernels are f32";
    if (s->gates) return "multi-gate residuals have no decode kernel";
    return NULL;
}

const char *kr_decode_stack_fallback(const kr_ctx *ctx, const kr_layers *s)
{
    const kr_decode_family *family = kr_decode_family_of(s->kind);
    if (!family) return "its block has no decode kernels";
    const char *why = stream_fallback(s);
    for (int64_t i = 0; !why && i < s->config.n_layers; i++) {
        why = family->fallback(ctx, s->layers[i].block);
        if (!why && !kr_decode_is_f32(s->layers[i].norm_d)) why = "its decode kernels take f32 norms";
    }
    return why;
}

const char *kr_decode_device_fallback(const kr_ctx *ctx)
{
    if (!kr_ctx_on_device(ctx)) return "a processor runs op by op at the same speed";
    return ctx->check_finite ? "check_finite looks at the result of every op" : NULL;
}

bool kr_decode_state_fits(const kr_layers *s, const kr_state *state)
{
    for (int64_t v = 0; v < s->nvirtual; v++)
        for (int i = 0; i < s->kind->ncache; i++) {
            const kr_tensor *x = state->slots[v].tensors[i];
            if (!x || x->dtype != KR_DTYPE_F32 || !kr_tensor_is_row_major(x)) return false;
        }
    return true;
}

/* ---- description ---- */

static bool is_fused(const kr_decode_plan *plan, int64_t v)
{
    return !kr_layer_ignores_residual(plan->layers, v);
}

static bool describe(kr_tape *tape, kr_decode_plan *plan)
{
    const kr_layers *s = plan->layers;
    const kr_decode_family *family = kr_decode_family_of(s->kind);
    kr_decode_buffers buffers = { .row_bo = NULL };
    for (int64_t v = 0; v < s->nvirtual; v++) {
        const kr_layer_weights *l = &s->layers[s->real[v]];
        const kr_decode_request request = { .block = l->block,
                                            .norm_d = l->norm_d,
                                            .norm = &s->norm,
                                            .cache = &plan->slots[v],
                                            .nb = plan->nb,
                                            .x_bsd = v == 0 ? plan->x_bsd : plan->stream_bsd,
                                            .y_bsd = plan->stream_bsd,
                                            .records = plan->records ? plan->records[v] : NULL,
                                            .buffers = &buffers };
        if (is_fused(plan, v) && !family->describe(tape, &request, &plan->each[v])) return false;
    }
    return true;
}

/* Does the device run these layers as one kernel? */
static bool join_layers(kr_ctx *ctx, kr_decode_plan *plan)
{
    const kr_device_lists *lists = ctx->device->lists;
    const kr_layers *s = plan->layers;
    kr_exec exec = { .scratch = NULL };
    if (!lists || !lists->decode_layers || s->nvirtual < 2 || s->kind != &kr_mamba2_kind) return true;
    for (int64_t v = 0; v < s->nvirtual; v++)
        if (!is_fused(plan, v) || s->layers[s->real[v]].norm2_d) return true;
    plan->stack = (kr_decode_stack){ s->nvirtual, plan->each, kr_operand_of(plan->stream_bsd), plan->lookup };
    if (!kr_exec_set(ctx, &exec, true, "decode_layers")) return false;
    plan->stack_scratch = lists->decode_layers_scratch(&exec, &plan->stack);
    return true;
}

bool kr_decode_plan_make(kr_tape *tape, kr_decode_plan *plan)
{
    const int64_t n = plan->layers->nvirtual;
    plan->each = kr_arena_alloc(&tape->heads, (size_t)n * sizeof *plan->each);
    if (!kr_require(tape->ctx, plan->each != NULL, KR_ERR_NOMEM, "decode: no memory for a plan of %lld layers",
                    (long long)n))
        return false;
    return describe(tape, plan) && (!plan->may_join || join_layers(tape->ctx, plan));
}

/* ---- running ---- */

static bool run_core(kr_ctx *ctx, kr_decode_layer *l)
{
    switch (l->kind) {
    case KR_DECODE_MAMBA1:
        return KR_RUN(ctx, decode_linear[KR_REAL_F32], &l->mamba1.x_proj) &&
               KR_RUN(ctx, decode_scan[KR_REAL_F32], &l->mamba1.core);
    case KR_DECODE_MAMBA2: return KR_RUN(ctx, decode_ssd[KR_REAL_F32], &l->mamba2.core);
    case KR_DECODE_MAMBA3: break;
    }
    return KR_RUN(ctx, decode_mamba3[KR_REAL_F32], &l->mamba3);
}

static bool run_fused(kr_ctx *ctx, kr_decode_layer *l)
{
    return KR_RUN(ctx, decode_linear[KR_REAL_F32], &l->in_proj) && run_core(ctx, l) &&
           KR_RUN(ctx, decode_linear[KR_REAL_F32], &l->out_proj);
}

/* stream <- stream + mlp(norm2(stream)) */
static bool run_mlp(kr_tape *tape, kr_decode_plan *plan, const kr_layer_weights *l)
{
    kr_tensor *x = plan->stream_bsd;
    const kr_scope scope = kr_no_grad_begin(tape);
    const kr_tensor *h = kr_mlp_run(tape, &l->mlp, kr_rms_norm(tape, x, l->norm2_d, &plan->layers->norm));
    const bool ok =
        h && (h->dtype == x->dtype ? kr_assign_sum(tape->ctx, x, h)
                                   : kr_assign(tape->ctx, x, kr_add(tape, x, kr_cast(tape, (kr_tensor *)h, x->dtype))));
    kr_no_grad_end(tape, scope, 0, NULL);
    return ok;
}

/* A whole layer op by op; its results go into the stream and the state. */
static bool run_on_tape(kr_tape *tape, kr_decode_plan *plan, int64_t v)
{
    const kr_layers *s = plan->layers;
    const kr_layer_job job = {
        .layers = s, .v = v, .op = "decode", .path = plan->path, .drop_state = true, .in_place = true
    };
    kr_flow flow = { .x = v == 0 ? (kr_tensor *)plan->x_bsd : plan->stream_bsd },
            destinations = { .x = plan->stream_bsd };
    kr_cache after;
    kr_layer_run_released(tape, &job, &flow, &destinations, &plan->slots[v], &after);
    return !kr_ctx_failed(tape->ctx);
}

static bool run_stack(kr_ctx *ctx, kr_decode_plan *plan)
{
    kr_exec exec;
    if (!kr_exec_set(ctx, &exec, true, "decode_layers") || !kr_exec_begin(ctx, &exec, plan->stack_scratch))
        return false;
    ctx->device->lists->decode_layers(&exec, &plan->stack);
    return kr_exec_end(ctx, "decode_layers");
}

bool kr_decode_plan_run(kr_tape *tape, kr_decode_plan *plan)
{
    kr_ctx *ctx = tape->ctx;
    const kr_layers *s = plan->layers;
    if (plan->stack_scratch > 0) return run_stack(ctx, plan);
    if (plan->lookup && !KR_RUN(ctx, embedding[KR_REAL_F32], plan->lookup)) return false;
    for (int64_t v = 0; v < s->nvirtual; v++) {
        const kr_layer_weights *l = &s->layers[s->real[v]];
        if (!is_fused(plan, v)) {
            if (!run_on_tape(tape, plan, v)) return false;
        } else if (!run_fused(ctx, &plan->each[v]) || (l->norm2_d && !run_mlp(tape, plan, l))) {
            return false;
        }
    }
    return true;
}
