/* step.c - one step: lay out, run, capture, launch.
 *
 * A captured step reads and writes its own tape, the state, the parameters and the sampler: only the ids are new each time.
 * Kernels read them in device memory: reading them from host memory would cost every CTA microseconds. The sampler stores
 * those of the next step there, and increments its counters: a step may be queued behind another before the host knows its
 * tokens.
 */
#include "decode/step.h"

#include <string.h>

#define OP "network.step"

/* ---- layout ---- */

static bool lay_out_ids(kr_decode_step *step)
{
    kr_tape *tape = step->tape;
    step->ids = kr_new(tape, KR_DTYPE_I32, KR_SHAPE(step->nb));
    if (!step->ids) return false;
    memset(step->ids->data, 0, (size_t)step->nb * sizeof(int32_t));
    step->device_ids = (int32_t *)(void *)step->ids->data;
    if (!kr_ctx_on_device(tape->ctx)) return true;
    const kr_tensor *buffer = kr_new(tape, KR_DTYPE_F32, KR_SHAPE(step->nb)); /* device memory, of the same size */
    if (buffer) step->device_ids = (int32_t *)(void *)buffer->data;
    return buffer != NULL;
}

/* The rows of a 16-bit table may be widened on the way, for an f32 stream. */
static bool lay_out_lookup(kr_decode_step *step, const kr_network *net)
{
    const kr_tensor *table = net->embedding_wd;
    const bool widens = kr_dtype_is_16bit(table->dtype) && net->layers->config.residual_in_f32;
    step->looked_up = kr_new(step->tape, widens ? KR_DTYPE_F32 : table->dtype, KR_SHAPE(step->nb, 1, table->dims[1]));
    if (!step->looked_up) return false;
    step->lookup = (kr_embedding_args){ .no = step->nb,
                                        .nr = table->dims[0],
                                        .ni = table->dims[1],
                                        .id = step->device_ids,
                                        .id_dtype = KR_DTYPE_I32,
                                        .x = { table->data, table->dtype, table->dims[1] },
                                        .y = { step->looked_up->data, step->looked_up->dtype, table->dims[1] } };
    return true;
}

static bool lay_out_plan(kr_decoder *d, kr_decode_step *step, const kr_state *state)
{
    const kr_layers *layers = d->net->layers;
    const bool is_f32 = step->looked_up->dtype == KR_DTYPE_F32;
    kr_tensor *stream = is_f32 ? step->looked_up : kr_new(step->tape, KR_DTYPE_F32, KR_SHAPE(step->nb, 1, layers->nd));
    if (!stream) return false;
    step->plan = (kr_decode_plan){ .layers = layers,
                                   .slots = state->slots,
                                   .nb = step->nb,
                                   .path = layers->kind->path(layers->layers[0].block),
                                   .x_bsd = stream,
                                   .stream_bsd = stream,
                                   .records = step->defers ? d->lazy.records : NULL,
                                   .lookup = is_f32 ? &step->lookup : NULL,
                                   .may_join = true };
    return kr_decode_plan_make(step->tape, &step->plan);
}

static bool has_f32_stream(const kr_network *net)
{
    const kr_dtype table = net->embedding_wd->dtype;
    return table == KR_DTYPE_F32 || (kr_dtype_is_16bit(table) && net->layers->config.residual_in_f32);
}

static bool lay_out(kr_decoder *d, kr_decode_step *step, const kr_state *state)
{
    const kr_network *net = d->net;
    kr_tape_reset(step->tape);
    if (!kr_tape_ready(step->tape, OP) || !lay_out_ids(step) || !lay_out_lookup(step, net) ||
        (step->is_fused && !lay_out_plan(d, step, state)))
        return false;
    if (kr_decode_head_is_fused(net) && has_f32_stream(net)) {
        step->fused_logits = kr_new(step->tape, KR_DTYPE_F32, KR_SHAPE(step->nb, net->nw));
        if (!step->fused_logits) return false;
    }
    step->mark = kr_tape_mark_now(step->tape);
    return true;
}

kr_decode_step *kr_decode_step_create(kr_decoder *d, kr_state *state, int64_t nb, bool is_fused, bool defers)
{
    kr_ctx *ctx = d->ctx;
    kr_decode_step *step = kr_memory_alloc_zeroed(&ctx->memory, sizeof *step);
    if (!kr_require(ctx, step != NULL, KR_ERR_NOMEM, "decode: no memory for a step")) return NULL;
    *step = (kr_decode_step){ .nb = nb, .is_fused = is_fused, .defers = defers };
    step->tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    if (step->tape && lay_out(d, step, state)) return step;
    kr_decode_step_destroy(step, ctx);
    return NULL;
}

void kr_decode_step_destroy(kr_decode_step *step, kr_ctx *ctx)
{
    if (!step) return;
    kr_graph_destroy(ctx, step->captured);
    kr_tape_destroy(step->tape);
    kr_memory_free(&ctx->memory, step, sizeof *step);
}

/* ---- running ---- */

static bool look_up(kr_ctx *ctx, kr_decode_step *step)
{
    return step->looked_up->dtype == KR_DTYPE_F64 ? KR_RUN(ctx, embedding[KR_REAL_F64], &step->lookup)
                                                  : KR_RUN(ctx, embedding[KR_REAL_F32], &step->lookup);
}

/* Logits of the stack's output [b 1 d]. */
static kr_tensor *run_head(const kr_network *net, kr_decode_step *step, kr_tensor *x)
{
    kr_tape *tape = step->tape;
    if (step->fused_logits && x->dtype == KR_DTYPE_F32 && kr_tensor_is_row_major(x)) {
        step->head = kr_decode_head_args(net, x, step->fused_logits);
        return KR_RUN(tape->ctx, decode_linear[KR_REAL_F32], &step->head) ? step->fused_logits : NULL;
    }
    const kr_head head = kr_network_head(net);
    x = kr_reshape(tape, x, KR_SHAPE(step->nb, -1));
    if (net->norm_f_d) x = kr_rms_norm(tape, x, net->norm_f_d, &net->layers->norm);
    x = kr_linear(tape, x, head.weight_wd, head.bias_w);
    if (!x) kr_blame(tape->ctx, OP ", head");
    return x;
}

static kr_tensor *run_planned(const kr_network *net, kr_decode_step *step, kr_state *state)
{
    kr_ctx *ctx = net->ctx;
    const kr_decode_plan *plan = &step->plan;
    state->is_inconsistent = true; /* until all is queued */
    if (!plan->lookup && (!look_up(ctx, step) || !kr_assign(ctx, plan->stream_bsd, step->looked_up))) return NULL;
    if (!kr_decode_plan_run(step->tape, &step->plan)) return NULL;
    kr_tensor *logits = run_head(net, step, plan->stream_bsd);
    state->is_inconsistent = !logits;
    return logits;
}

static kr_tensor *run_on_tape(const kr_network *net, kr_decode_step *step, kr_state *state)
{
    kr_tape *tape = step->tape;
    kr_run run;
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    if (!look_up(tape->ctx, step) ||
        !kr_run_begin(tape, &run, OP, KR_RUN_STEP, kr_layers_layout(net->layers), &call, step->looked_up, false, false))
        return NULL;
    kr_tensor *y = kr_layers_run(tape, net->layers, step->looked_up, &run);
    kr_tensor *logits = y ? run_head(net, step, y) : NULL;
    return logits && kr_run_end(&run) ? logits : NULL;
}

/* Queues the kernels, with those of the sampler. */
static bool queue(const kr_network *net, kr_decode_step *step, kr_state *state, kr_device_sampler *sampler)
{
    if (!kr_tape_ready(step->tape, OP)) return false;
    step->logits = step->is_fused ? run_planned(net, step, state) : run_on_tape(net, step, state);
    return step->logits && (!sampler || kr_device_sampler_queue(sampler, step->logits, step->device_ids));
}

/* Memory of the last run is used again. */
static void begin_run(kr_decode_step *step)
{
    const kr_tape *tape = step->tape;
    kr_tape_release(step->tape, &step->mark, tape->shared.used > step->mark.shared.used);
}

/* Those of rows that are not in use are some token. */
static bool upload_ids(kr_decode_step *step, kr_ctx *ctx, const int32_t *ids, int64_t n)
{
    memcpy(step->ids->data, ids, (size_t)n * sizeof *ids);
    return (char *)step->device_ids == step->ids->data ||
           kr_store(ctx, step->device_ids, step->ids->data, (size_t)step->nb * sizeof *ids);
}

/* No allocation may happen during capture: the blocks that the run before it needed are still there. */
static bool capture(kr_decoder *d, kr_decode_step *step, kr_state *state, kr_device_sampler *sampler)
{
    kr_ctx *ctx = d->ctx;
    d->can_capture = false;
    begin_run(step);
    if (!kr_graph_capture_begin(ctx)) return false;
    const bool queued = queue(d->net, step, state, sampler);
    step->captured = kr_graph_capture_end(ctx);
    d->can_capture = queued && step->captured && !kr_ctx_failed(ctx);
    d->n_captured += d->can_capture;
    return d->can_capture;
}

kr_tensor *kr_decode_step_run(kr_decoder *d, kr_decode_step *step, kr_state *state, const int32_t *ids,
                              kr_device_sampler *sampler)
{
    kr_ctx *ctx = d->ctx;
    if (step->captured && !kr_graph_is_complete(ctx, step->captured)) {
        kr_graph_destroy(ctx, step->captured);
        step->captured = NULL;
    }
    if (!kr_wait(ctx) || !upload_ids(step, ctx, ids, state->batch)) return NULL;
    if (!step->captured && step->was_run && d->can_capture && !capture(d, step, state, sampler) && kr_ctx_failed(ctx))
        return NULL;
    if (step->captured) return kr_graph_launch(ctx, step->captured) ? step->logits : NULL;
    begin_run(step);
    step->was_run = true;
    return queue(d->net, step, state, sampler) ? step->logits : NULL;
}
