/* decoder.c - decides how the steps of a network run, keeps them by rows and addresses, and holds what spans steps: deferred
 * updates, and samples that are queued ahead. */
#include "decode/decoder.h"

#include "base/hash.h"
#include "decode/step.h"

/* ---- making one ---- */

/* The network itself, on any device. */
static const char *network_fallback(const kr_network *net)
{
    if (net->is_custom) return "the network is custom";
    return net->has_class_tokens ? "the network has class tokens" : NULL;
}

static const char *fused_fallback(const kr_network *net)
{
    const char *why = kr_decode_stack_fallback(net->ctx, net->layers);
    if (!why && kr_dtype_is_16bit(net->embedding_wd->dtype) && !net->layers->config.residual_in_f32)
        why = "the residual stream is 16-bit, and that of decode kernels is f32";
    return why;
}

/* On the CPU steps run op by op. */
static void decide(kr_decoder *d)
{
    const kr_network *net = d->net;
    const kr_device *device = d->ctx->device;
    const bool on_device = kr_ctx_on_device(d->ctx);
    d->most_kept = on_device ? KR_DECODER_STEPS : KR_DECODER_STEPS_ON_CPU;
    d->fallback = network_fallback(net);
    if (!d->fallback && on_device) d->fallback = kr_decode_device_fallback(d->ctx);
    if (!d->fallback && on_device && net->layers->kind->has_varying_steps)
        d->fallback = "the steps of its blocks may vary (kr_block_kind_info.has_fixed_steps)";
    d->is_planned = !d->fallback;
    if (!d->is_planned || !on_device) return;
    d->fallback = fused_fallback(net);
    d->is_fused = !d->fallback;
    d->can_capture = device->vtable->capture_begin != NULL && !net->layers->kind->has_varying_steps;
}

kr_decoder *kr_decoder_create(const kr_network *net, int64_t max_rows)
{
    if (!net || kr_ctx_failed(net->ctx)) return NULL;
    kr_ctx *ctx = net->ctx;
    if (!kr_require(ctx, net->is_vocab, KR_ERR_ARG, "decode: the network takes features, but must take tokens") ||
        !kr_require(ctx, max_rows >= 1, KR_ERR_ARG, "decode: max_rows = %lld, but must be at least 1",
                    (long long)max_rows))
        return NULL;
    kr_decoder *d = kr_memory_alloc_zeroed(&ctx->memory, sizeof *d);
    if (!kr_require(ctx, d != NULL, KR_ERR_NOMEM, "decode: no memory for a decoder")) return NULL;
    *d = (kr_decoder){ .ctx = ctx, .net = net, .max_rows = max_rows };
    kr_lazy_init(&d->lazy, net->layers);
    decide(d);
    d->tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    if (d->tape) return d;
    kr_decoder_destroy(d);
    return NULL;
}

void kr_decoder_destroy(kr_decoder *d)
{
    if (!d) return;
    kr_wait(d->ctx);
    for (int i = 0; i < KR_DECODER_STEPS; i++) kr_decode_step_destroy(d->kept[i], d->ctx);
    kr_lazy_free(&d->lazy);
    kr_tape_destroy(d->tape);
    kr_memory_free(&d->ctx->memory, d, sizeof *d);
}

const char *kr_decoder_fallback(const kr_decoder *d)
{
    return d ? d->fallback : "there is no decoder";
}

/* ---- which step ---- */

/* 1 2 3 4 6 8 12 16 24 ...: the first that is not below n, and at most `most`. */
static int64_t bucket_of(int64_t n, int64_t most)
{
    int64_t bucket = 1;
    while (bucket < n && bucket <= most) {
        if (n <= bucket + bucket / 2) {
            bucket += bucket / 2;
            break;
        }
        bucket *= 2;
    }
    return bucket < most ? bucket : most;
}

/* Hash of what a step depends on; never 0. */
static uint64_t signature_of(const kr_decoder *d, const kr_state *state, int64_t nb, bool defers,
                             const kr_device_sampler *sampler)
{
    uint64_t hash = kr_hash_word((uint64_t)nb, (uint64_t)(uintptr_t)state);
    for (int64_t s = 0; s < state->nslots; s++)
        for (int i = 0; i < kr_slot_kind(state, s)->ncache; i++)
            hash = kr_hash_word(hash, (uint64_t)(uintptr_t)kr_tensor_data(state->slots[s].tensors[i]));
    if (defers) hash = kr_hash_word(hash, (uint64_t)(uintptr_t)d->lazy.records[0]->data);
    return (sampler ? kr_hash_word(hash, kr_device_sampler_signature(sampler)) : hash) | 1;
}

/* How a step of this state runs. */
typedef struct choice {
    bool is_fused, defers;
    int64_t nb;
} choice;

static choice choose(const kr_decoder *d, const kr_state *state, const kr_device_sampler *sampler)
{
    choice c = { .is_fused = d->is_fused && kr_decode_state_fits(d->net->layers, state), .nb = state->batch };
    int64_t most = kr_state_capacity(state);
    if (most > d->max_rows) most = d->max_rows;
    if (sampler && most > sampler->nrows) most = sampler->nrows;
    if (c.is_fused) c.nb = bucket_of(state->batch, most);
    c.defers = c.is_fused && kr_lazy_defers(d->net->layers, c.nb);
    return c;
}

static void move_to_front(kr_decoder *d, int at)
{
    kr_decode_step *step = d->kept[at];
    for (; at > 0; at--) d->kept[at] = d->kept[at - 1];
    d->kept[0] = step;
}

/* The kept step, which becomes the first; NULL: there is none. */
static kr_decode_step *find(kr_decoder *d, uint64_t signature)
{
    for (int i = 0; i < d->most_kept && d->kept[i]; i++)
        if (d->kept[i]->signature == signature) {
            move_to_front(d, i);
            return d->kept[0];
        }
    return NULL;
}

static kr_decode_step *find_or_make(kr_decoder *d, kr_state *state, const choice *c, uint64_t signature)
{
    kr_decode_step *step = find(d, signature);
    if (step) return step;
    step = kr_decode_step_create(d, state, c->nb, c->is_fused, c->defers);
    if (!step) return NULL;
    step->signature = signature;
    kr_decode_step_destroy(d->kept[d->most_kept - 1], d->ctx);
    d->kept[d->most_kept - 1] = step;
    move_to_front(d, d->most_kept - 1);
    d->n_planned++;
    return step;
}

/* A step that failed is not run again: its tape is invalid. */
static void drop_first(kr_decoder *d)
{
    kr_decode_step_destroy(d->kept[0], d->ctx);
    for (int i = 0; i + 1 < KR_DECODER_STEPS; i++) d->kept[i] = d->kept[i + 1];
    d->kept[KR_DECODER_STEPS - 1] = NULL;
}

/* ---- deferred updates ---- */

bool kr_decoder_flush(kr_decoder *d, const kr_state *state)
{
    return d->lazy.state != state || kr_lazy_flush(&d->lazy) || kr_blame(d->ctx, "decode");
}

void kr_decoder_forget(kr_decoder *d, const kr_state *state)
{
    if (d->lazy.state == state) kr_lazy_forget(&d->lazy);
}

/* Records for a step that defers; all updates are applied before one of another kind, or of another state. */
static bool prepare_records(kr_decoder *d, kr_state *state, bool defers)
{
    kr_lazy_state *lazy = &d->lazy;
    const bool continues = defers && lazy->state == state && lazy->capacity >= kr_state_capacity(state);
    if (!continues && !kr_lazy_flush(lazy)) return false;
    return continues || !defers || kr_lazy_open(lazy, state);
}

/* ---- steps ---- */

static bool check_step(const kr_decoder *d, const kr_state *state, const int32_t *ids)
{
    kr_ctx *ctx = d->ctx;
    const int64_t vocab = d->net->is_custom ? d->net->config.vocab_size : d->net->embedding_wd->dims[0];
    if (kr_ctx_failed(ctx) ||
        !kr_require(ctx, state && ids, KR_ERR_ARG, "decode: %s is NULL", state ? "ids" : "state") ||
        !kr_require(ctx, state->ctx == ctx && !state->tape, KR_ERR_STATE,
                    "decode: the state is on a tape, or belongs to another context") ||
        !kr_require(ctx, state->batch <= d->max_rows, KR_ERR_ARG,
                    "decode: the state has %lld rows, but the decoder was made for at most %lld",
                    (long long)state->batch, (long long)d->max_rows))
        return false;
    const kr_state_layout layout = kr_network_layout(d->net);
    if (!kr_require(ctx, kr_state_fits(state, &layout), KR_ERR_ARG, "decode: the state is of another network") ||
        !kr_state_is_usable("decode", state))
        return false;
    for (int64_t b = 0; b < state->batch; b++)
        if (!kr_require(ctx, ids[b] >= 0 && ids[b] < vocab, KR_ERR_ARG,
                        "decode: ids[%lld] = %d, but the network's tokens are from 0 to %lld", (long long)b,
                        (int)ids[b], (long long)vocab - 1))
            return false;
    return true;
}

/* Steps write the state: ops that were recorded with its old contents cannot be run backwards any longer. */
static void note_writes(const kr_state *state)
{
    for (int64_t s = 0; s < state->nslots; s++)
        for (int i = 0; i < kr_slot_kind(state, s)->ncache; i++) kr_wrote(state->slots[s].tensors[i]);
}

/* A step of a network or a state for which no steps are kept. */
static kr_tensor *run_call(kr_decoder *d, kr_state *state, const int32_t *ids)
{
    kr_call call;
    kr_call_init(&call);
    call.advance = state;
    kr_tape_reset(d->tape);
    kr_tensor *x = kr_from_data(d->tape, KR_DTYPE_I32, KR_SHAPE(state->batch), ids);
    return kr_network_call(d->tape, d->net, KR_CALL_STEP, x, &call).y;
}

static bool is_planned(const kr_decoder *d, const kr_state *state)
{
    return d->is_planned && !state->cursors.is_on && !kr_state_is_initial(state);
}

/* Records an event after one more queued sample. */
static bool record_sample(kr_decoder *d)
{
    return kr_event(d->ctx, (int)(d->queued++ % KR_EVENTS));
}

/* The rows of the state among those of the step. */
static kr_tensor *rows_in_use(kr_decode_step *step, int64_t rows)
{
    if (rows == step->nb) return step->logits;
    step->in_use = *step->logits;
    step->in_use.dims[0] = rows;
    return &step->in_use;
}

kr_tensor *kr_decoder_step_and_sample(kr_decoder *d, kr_state *state, const int32_t *ids, kr_device_sampler *sampler)
{
    if (!d || !check_step(d, state, ids)) return NULL;
    d->logits = NULL;
    if (!is_planned(d, state)) return d->logits = run_call(d, state, ids);
    const choice c = choose(d, state, sampler);
    if (!prepare_records(d, state, c.defers)) return NULL;
    kr_decode_step *step = find_or_make(d, state, &c, signature_of(d, state, c.nb, c.defers, sampler));
    if (!step) return NULL;
    if (c.defers) kr_lazy_append(&d->lazy, c.nb);
    note_writes(state);
    if (!kr_decode_step_run(d, step, state, ids, sampler)) {
        drop_first(d);
        return NULL;
    }
    d->logits = rows_in_use(step, state->batch);
    return sampler && kr_device_sampler_reads(d->logits) && !record_sample(d) ? NULL : d->logits;
}

kr_tensor *kr_decoder_step(kr_decoder *d, kr_state *state, const int32_t *ids)
{
    return kr_decoder_step_and_sample(d, state, ids, NULL);
}

/* ---- sampling on the device ---- */

bool kr_decoder_samples(const kr_decoder *d, const kr_state *state)
{
    return d->can_capture && is_planned(d, state);
}

bool kr_decoder_run_ahead(kr_decoder *d, kr_state *state, kr_device_sampler *sampler)
{
    const choice c = choose(d, state, sampler);
    const kr_decode_step *step = d->kept[0];
    if (!step || !step->captured || !kr_device_sampler_reads(step->logits) ||
        (c.defers && (d->lazy.state != state || !d->lazy.records)) ||
        step->signature != signature_of(d, state, c.nb, c.defers, sampler) ||
        !kr_graph_is_complete(d->ctx, step->captured))
        return false;
    if (c.defers) kr_lazy_append(&d->lazy, c.nb);
    note_writes(state);
    return kr_graph_launch(d->ctx, step->captured) && record_sample(d);
}

bool kr_decoder_wait(kr_decoder *d)
{
    return kr_wait_event(d->ctx, (int)(d->taken++ % KR_EVENTS));
}

void kr_decoder_drop_samples(kr_decoder *d)
{
    kr_wait(d->ctx);
    d->taken = d->queued;
}

int64_t kr_decoder_launches(const kr_decoder *d)
{
    const kr_decode_step *step = d ? d->kept[0] : NULL;
    return step && step->captured ? kr_graph_launches(step->captured) : -1;
}
