/* calls.c - the public calls of networks, stacks and layers: one token of each row on a device runs by a plan, everything else
 * op by op.
 *
 * The plan is made on the tape of the call. A decoder (decoder.h) makes it once for all steps.
 */
#include "decode/plan.h"

#include "device/device.h"
#include "ops/autocast.h"

#include <stddef.h>

/* Can a plan run this call, whose arguments have been checked? */
static bool takes(const kr_tape *tape, const kr_layers *s, const kr_tensor *x, const kr_run *run)
{
    const kr_call *call = &run->call;
    const bool is_f32 = x && (x->dtype == KR_DTYPE_F32 || (kr_dtype_is_16bit(x->dtype) && s->config.residual_in_f32));
    return kr_ctx_on_device(tape->ctx) && is_f32 && x->dims[1] == 1 && !tape->recording && !run->has_class_tokens &&
           call->state && !call->streams && !call->seq_start_bs && !call->reset_bs && !call->mask_bs &&
           call->dropout == 0 && !kr_decode_device_fallback(tape->ctx) && !kr_decode_stack_fallback(tape->ctx, s) &&
           kr_decode_state_fits(s, call->state);
}

/* The tensors that the step updates, as those of run->state: the caller's in place, or copies. */
static bool begin_state(kr_tape *tape, const kr_layers *s, kr_run *run)
{
    const kr_state *old = run->call.state;
    const bool in_place = run->call.advance != NULL;
    if (in_place) run->call.advance->is_inconsistent = true; /* until the call ends */
    for (int64_t v = 0; v < s->nvirtual; v++) {
        kr_cache *cache = &run->state->slots[v];
        *cache = old->slots[v];
        for (int i = 0; i < s->kind->ncache; i++) {
            kr_tensor *from = old->slots[v].tensors[i];
            if (in_place) kr_wrote(from);
            else if (!(cache->tensors[i] = kr_new(tape, from->dtype, kr_tensor_shape(from))) ||
                     !kr_assign(tape->ctx, cache->tensors[i], from))
                return false;
        }
    }
    return true;
}

static kr_tensor *run_plan(kr_tape *tape, const kr_layers *s, kr_tensor *x_bsd, kr_run *run)
{
    if (x_bsd->dtype != KR_DTYPE_F32) x_bsd = kr_cast(tape, x_bsd, KR_DTYPE_F32);
    x_bsd = kr_contiguous(tape, x_bsd);
    kr_tensor *stream = x_bsd ? kr_new(tape, KR_DTYPE_F32, kr_tensor_shape(x_bsd)) : NULL;
    kr_decode_plan plan = { .layers = s,
                            .slots = run->state->slots,
                            .nb = run->batch,
                            .path = run->call.path ? *run->call.path : s->kind->path(s->layers[0].block),
                            .x_bsd = x_bsd,
                            .stream_bsd = stream };
    if (stream && begin_state(tape, s, run) && kr_decode_plan_make(tape, &plan) && kr_decode_plan_run(tape, &plan))
        return stream;
    kr_blame(tape->ctx, "%s", run->op);
    return NULL;
}

static kr_tensor *run_stack(kr_tape *tape, const kr_layers *s, kr_tensor *x_bcd, kr_run *run)
{
    return takes(tape, s, x_bcd, run) ? run_plan(tape, s, x_bcd, run) : kr_layers_run(tape, s, x_bcd, run);
}

/* KR_PRECISION_UNSET also if the caller's struct has no such field. */
static kr_precision precision_of(const kr_call *call)
{
    const bool has_field = call && call->size >= offsetof(kr_call, precision) + sizeof call->precision;
    return has_field ? call->precision : KR_PRECISION_UNSET;
}

kr_network_out kr_network_call(kr_tape *tape, const kr_network *net, kr_call_kind kind, kr_tensor *x,
                               const kr_call *call)
{
    kr_ctx *ctx = tape ? tape->ctx : NULL;
    const kr_precision before = kr_precision_begin(ctx, precision_of(call));
    const kr_network_out out = kr_network_run_call(tape, net, kind, x, call, run_stack);
    kr_precision_end(ctx, before);
    return out;
}

kr_layers_out kr_layers_call(kr_tape *tape, const kr_layers *s, kr_call_kind kind, kr_tensor *x, const kr_call *call)
{
    kr_ctx *ctx = tape ? tape->ctx : NULL;
    const kr_precision before = kr_precision_begin(ctx, precision_of(call));
    const kr_layers_out out = kr_layers_run_call(tape, s, kind, x, call, run_stack);
    kr_precision_end(ctx, before);
    return out;
}

kr_block_out kr_layer_call(kr_tape *tape, const kr_layer *layer, kr_call_kind kind, kr_tensor *x,
                           const kr_block_call *call)
{
    return kr_layer_run_call(tape, layer, kind, x, call, run_stack);
}
