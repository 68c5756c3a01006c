/* recompute_plan.c - choice of the layers that are recomputed in the backward pass, so that the tape stays within a
 * memory budget.
 *
 * One layer is measured on a separate tape, for the current shapes. With n layers, m of them recorded, forward and
 * backward of the stack then need at most
 *   bytes in use + m recorded + (n - m) recomputed + n state_grad + backward
 * where backward includes the recomputed layer; with m = n there is none. The largest m that fits is used. Layers
 * differ by their streams and class tokens: the one with the most is measured for all.
 */
#include "device/device.h"
#include "nn/layers_impl.h"

#include <string.h>

/* ---- parameters, untouched ---- */

/* Gradients are set aside while a layer is measured, so that it is differentiated as it will be, to no effect. */
typedef struct aside {
    kr_tensor *grad;
    bool is_zero;
} aside;

static aside *set_gradients_aside(const kr_layers *s)
{
    const int64_t n = kr_params_count(s->params);
    aside *list = kr_memory_alloc(&s->ctx->memory, (size_t)n * sizeof *list);
    for (int64_t i = 0; list && i < n; i++) {
        kr_tensor *x = kr_params_at(s->params, i)->tensor;
        list[i] = (aside){ x->grad, x->flags.grad_is_zero };
        x->grad = NULL;
    }
    return list;
}

static void put_gradients_back(const kr_layers *s, aside *list)
{
    const int64_t n = kr_params_count(s->params);
    for (int64_t i = 0; i < n; i++) {
        kr_tensor *x = kr_params_at(s->params, i)->tensor;
        kr_param_drop_grad(x);
        x->grad = list[i].grad;
        x->flags.grad_is_zero = list[i].is_zero;
    }
    kr_memory_free(&s->ctx->memory, list, (size_t)n * sizeof *list);
}

/* ---- measuring ---- */

static kr_tensor *leaf(kr_tape *tape, kr_dtype dtype, kr_shape shape)
{
    return kr_input(tape, kr_zeros(tape, dtype, shape));
}

/* The same marks of tokens, on another tape. */
static kr_tensor *carried_over(kr_tape *tape, const kr_tensor *x)
{
    kr_tensor *y = x ? kr_new(tape, x->dtype, kr_tensor_shape(x)) : NULL;
    return y && kr_assign(tape->ctx, y, x) ? y : NULL;
}

/* Inputs of the measured layer: as many streams as there may be, and a state for each row or sequence. */
static void make_leaves(kr_tape *tape, const kr_layer_job *job, const kr_layer_load *load, int64_t nstates,
                        kr_flow *flow, kr_cache *cache)
{
    const kr_layers *s = job->layers;
    const kr_shape shape = KR_SHAPE(load->nb, load->ns, s->nd);
    *flow = (kr_flow){ .x = leaf(tape, load->dtype, shape), .nstreams = kr_layer_streams(s, job->v) };
    for (int64_t q = 0; q < flow->nstreams; q++) flow->streams[q] = leaf(tape, load->dtype, shape);
    if (!load->has_state) return;
    *cache = s->kind->initial_cache(tape, s->layers[s->real[job->v]].block, nstates);
    for (int i = 0; i < s->kind->ncache; i++) cache->tensors[i] = kr_input(tape, cache->tensors[i]);
}

/* Backward pass with gradients of 1 for all outputs of the layer. */
static void differentiate(kr_tape *tape, const kr_layer_job *job, const kr_flow *flow, const kr_cache *after)
{
    kr_tensor *results[1 + KR_STREAMS_MAX + KR_CACHE_TENSORS] = { flow->x };
    int n = 1;
    for (int64_t q = 0; q < flow->nstreams; q++) results[n++] = flow->streams[q];
    for (int i = 0; !job->drop_state && i < job->layers->kind->ncache; i++)
        if (kr_requires_grad(after->tensors[i])) results[n++] = after->tensors[i];
    kr_backward_from(tape, n, results, NULL);
}

/* Bytes in use after the backward pass, without the gradients that the layer below consumes. */
static size_t bytes_left(kr_tape *tape, const kr_flow *in)
{
    kr_tensor *const *streams = in->streams;
    for (int64_t q = -1; q < in->nstreams; q++) {
        kr_tensor *x = q < 0 ? in->x : streams[q];
        if (x && x->grad) kr_release(tape, x->grad);
        if (x) x->grad = NULL;
    }
    return kr_tape_bytes(tape);
}

static bool measure(kr_tape *tape, const kr_layer_job *job, const kr_layer_load *load, int64_t nstates,
                    kr_layer_costs *costs)
{
    kr_flow in, flow;
    kr_cache cache, after;
    make_leaves(tape, job, load, nstates, &in, &cache);
    const kr_cache *begins = load->has_state ? &cache : NULL;
    const size_t begin = kr_tape_bytes(tape);
    flow = in;
    kr_layer_run(tape, job, &flow, begins, &after);
    const size_t recorded = kr_tape_bytes(tape);
    flow = in;
    kr_layer_run_recomputed(tape, job, &flow, begins, &after);
    const size_t recomputed = kr_tape_bytes(tape);
    if (!kr_ctx_failed(tape->ctx)) differentiate(tape, job, &flow, &after);
    *costs = (kr_layer_costs){ .recorded = recorded - begin,
                               .recomputed = recomputed - recorded,
                               .backward = kr_tape_peak_bytes(tape) - recomputed,
                               .state_grad = bytes_left(tape, &in) - recomputed };
    return !kr_ctx_failed(tape->ctx);
}

/* Measures the layer with the most streams, on a separate tape. */
static bool measure_on_own_tape(const kr_layer_job *job, const kr_layer_load *load, int64_t nstates,
                                kr_layer_costs *costs)
{
    const kr_layers *s = job->layers;
    kr_layer_job typical = *job;
    typical.v = s->nvirtual - (s->config.ignore_last_residual && s->nvirtual > 1 ? 2 : 1);
    kr_tape *tape = kr_tape_create(s->ctx, KR_TAPE_GRAD);
    if (!tape) return false;
    typical.seq_start_bs = carried_over(tape, job->seq_start_bs);
    typical.reset_bs = carried_over(tape, job->reset_bs);
    typical.mask_bs1 = carried_over(tape, job->mask_bs1);
    aside *gradients = set_gradients_aside(s);
    const uint64_t stream = s->ctx->stream; /* masks of dropout do not depend on whether a layer was measured */
    const bool ok =
        kr_require(s->ctx, gradients != NULL, KR_ERR_NOMEM, "%s: no memory to set gradients aside", job->op) &&
        measure(tape, &typical, load, nstates, costs);
    s->ctx->stream = stream;
    if (gradients) put_gradients_back(s, gradients);
    kr_tape_destroy(tape);
    return ok;
}

/* ---- choosing ---- */

static bool is_same(const kr_layer_load *a, const kr_layer_load *b)
{
    return a->nb == b->nb && a->ns == b->ns && a->dtype == b->dtype && a->precision == b->precision &&
           a->path.algorithm == b->path.algorithm && a->path.chunk_len == b->path.chunk_len &&
           a->has_state == b->has_state && a->drop_state == b->drop_state && a->has_mask == b->has_mask &&
           a->has_dropout == b->has_dropout;
}

/* Held for two copies only, so that waiting is short. */
static void lock(kr_layer_measured *m)
{
    while (atomic_flag_test_and_set_explicit(&m->is_busy, memory_order_acquire)) continue;
}

static void unlock(kr_layer_measured *m)
{
    atomic_flag_clear_explicit(&m->is_busy, memory_order_release);
}

/* Measured when the load changes; with several sequences in a row each time, for it matters where they begin. */
static bool costs_of(const kr_layer_job *job, const kr_layer_load *load, int64_t nstates, kr_layer_costs *costs)
{
    kr_layer_measured *last = job->layers->measured;
    if (job->seq_start_bs || job->reset_bs) return measure_on_own_tape(job, load, nstates, costs);
    lock(last);
    const bool is_known = is_same(load, &last->load);
    if (is_known) *costs = last->costs;
    unlock(last);
    if (is_known) return true;
    if (!measure_on_own_tape(job, load, nstates, costs)) return false;
    lock(last);
    last->load = *load;
    last->costs = *costs;
    unlock(last);
    return true;
}

/* Rows that class tokens of layers from v on may add. */
static int64_t rows_to_come(const kr_layers *s, int64_t v)
{
    int64_t rows = 0;
    for (; v < s->nvirtual; v++) rows += s->layers[s->real[v]].nlatents;
    return rows;
}

/* Concatenating those rows with x and the streams, and the gradients of that. */
static size_t splice_bytes(const kr_layers *s, int64_t v, const kr_layer_load *load)
{
    size_t joins = 0;
    for (int64_t u = v; u < s->nvirtual; u++)
        if (s->layers[s->real[u]].nlatents) joins += 1 + (size_t)kr_layer_streams(s, u);
    return 2 * joins * (kr_dtype_span(load->dtype, load->nb * load->ns * s->nd) + 4 * KR_ALIGN);
}

int64_t kr_recompute_until(kr_tape *tape, const kr_layer_job *job, const kr_flow *flow, const kr_run *run)
{
    const kr_layers *s = job->layers;
    if (s->config.recompute == KR_RECOMPUTE_NONE) return job->v;
    if (s->config.recompute == KR_RECOMPUTE_ALL) return s->nvirtual;
    const kr_layer_load load = { .nb = flow->x->dims[0],
                                 .ns = flow->x->dims[1] + (run->has_class_tokens ? rows_to_come(s, job->v) : 0),
                                 .dtype = flow->x->dtype,
                                 .path = job->path,
                                 .precision = tape->ctx->device->precision,
                                 .has_state = run->call.state && !kr_state_is_initial(run->call.state),
                                 .drop_state = job->drop_state,
                                 .has_mask = job->mask_bs1 != NULL,
                                 .has_dropout = job->dropout > 0 };
    kr_layer_costs costs;
    if (!costs_of(job, &load, run->state->batch, &costs)) return -1;
    const size_t n = (size_t)(s->nvirtual - job->v), budget = s->config.recompute_budget;
    size_t fixed = kr_tape_bytes(tape) + n * costs.state_grad + costs.backward;
    if (run->has_class_tokens) fixed += splice_bytes(s, job->v, &load);
    const size_t all = fixed + (n - 1) * costs.recorded, least = fixed + n * costs.recomputed;
    if (all <= budget) return job->v; /* every layer is recorded, none is recomputed */
    if (!kr_require(tape->ctx, least <= budget, KR_ERR_ARG,
                    "%s: recompute_budget = %zu bytes, but x %s needs %zu at the least; raise it, or cut the batch or "
                    "the sequence",
                    job->op, budget, KR_TEXT_OF(flow->x), all < least ? all : least))
        return -1;
    const size_t more = costs.recorded > costs.recomputed ? costs.recorded - costs.recomputed : 0;
    const size_t fit = more ? (budget - least) / more : n;
    return s->nvirtual - (int64_t)(fit < n ? fit : n);
}
