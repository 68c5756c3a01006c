/* layer.c - one virtual layer: norm, block, norm, MLP, and the update of the residual stream.
 *
 *   h1 = block(norm(x)),  h2 = mlp(norm2(x + h1)),  F = h1 + h2; h1 and h2 after dropout, if enabled
 *   standard      x <- x + F, or F where the residual is ignored
 *   multi-gate    fewer than n_stream streams: F becomes one more; else all are mixed with F. x <- pool of the streams
 */
#include "nn/layers_impl.h"

#include <string.h>

typedef struct kept {
    bool first, last; /* the layers whose residual is ignored */
} kept;

static kept ignored(const kr_layers *s, int64_t v)
{
    return (kept){ s->config.ignore_first_residual && v == 0, s->config.ignore_last_residual && v == s->nvirtual - 1 };
}

bool kr_layer_ignores_residual(const kr_layers *s, int64_t v)
{
    const kept k = ignored(s, v);
    return k.first || k.last;
}

int64_t kr_layer_streams(const kr_layers *s, int64_t v)
{
    if (!s->gates) return 0;
    int64_t n = 1;
    for (int64_t u = 0; u < v; u++) {
        const kept k = ignored(s, u);
        if (!k.first && !k.last && n < s->config.residual.n_stream) n++;
    }
    return n;
}

/* h1 [b c d] or [b d]. */
static kr_tensor *mix(kr_tape *tape, const kr_layer_job *job, const kr_layer_weights *l, kr_tensor *x,
                      const kr_cache *cache, kr_cache *after)
{
    const kr_block_kind *kind = job->layers->kind;
    /* the block's projection reads it, and nothing else */
    const bool is_whole = !job->reset_bs && !job->mask_bs1 && !kind->registered;
    kr_tensor *u = is_whole ? kr_norm_operand(tape, x, NULL, l->norm_d, &job->layers->norm)
                            : kr_rms_norm(tape, x, l->norm_d, &job->layers->norm);
    if (job->is_infinite) return kind->step_infinite(tape, l->block, u);
    const kr_block_input input = { .op = kind->name,
                                   .x_bsd = u,
                                   .cache = cache,
                                   .seq_start_bs = job->seq_start_bs,
                                   .mask_bs1 = job->mask_bs1,
                                   .path = job->path,
                                   .in_place = job->in_place,
                                   .seq = job->seq,
                                   .reset_bs = job->reset_bs };
    const kr_block_result out = job->reset_bs && !job->seq
                                    ? kr_block_run_reset(tape, kind, l->block, &input, job->reset_bs)
                                    : kind->forward(tape, l->block, &input);
    *after = out.cache;
    return out.y_bsd;
}

static void gate(kr_tape *tape, const kr_layer_job *job, kr_flow *flow, kr_tensor *f)
{
    const kr_layers *s = job->layers;
    const kept k = ignored(s, job->v);
    const int64_t at = s->config.residual.per_virtual_layer ? job->v : s->real[job->v];
    if (k.last) {
        flow->x = f;
        return;
    }
    if (k.first) {
        flow->streams[0] = flow->x = f;
        flow->nstreams = 1;
        return;
    }
    if (flow->nstreams < s->config.residual.n_stream) flow->streams[flow->nstreams++] = f;
    else kr_multi_gate_mix(tape, &s->gates[at], flow->nstreams, flow->streams, f);
    flow->x = kr_multi_gate_pool(tape, &s->gates[at], flow->nstreams, flow->streams);
}

/* A 16-bit stream stays 16-bit, though blocks and norms may compute in f32. */
static kr_tensor *narrow(kr_tape *tape, kr_tensor *x, kr_dtype stream)
{
    return kr_dtype_is_16bit(stream) ? kr_cast(tape, x, stream) : x;
}

static kr_tensor *drop(kr_tape *tape, const kr_layer_job *job, kr_tensor *h)
{
    return job->dropout > 0 ? kr_dropout(tape, h, job->dropout, NULL) : h;
}

void kr_layer_run(kr_tape *tape, const kr_layer_job *job, kr_flow *flow, const kr_cache *cache, kr_cache *after)
{
    const kr_layers *s = job->layers;
    const kr_layer_weights *l = &s->layers[s->real[job->v]];
    const kept k = ignored(s, job->v);
    const kr_dtype dtype = kr_tensor_dtype(flow->x);
    const bool adds = !s->gates && !k.first && !k.last;
    kr_tensor *h1 = narrow(tape, drop(tape, job, mix(tape, job, l, flow->x, cache, after)), dtype), *h2 = NULL;
    kr_tensor *sum = adds || l->norm2_d ? narrow(tape, kr_add(tape, flow->x, h1), dtype) : h1; /* x + h1, if read */
    if (l->norm2_d) h2 = drop(tape, job, kr_mlp_run(tape, &l->mlp, kr_rms_norm(tape, sum, l->norm2_d, &s->norm)));
    kr_tensor *base = adds ? sum : h1;
    kr_tensor *f = h2 ? narrow(tape, kr_add(tape, base, h2), dtype) : base;
    if (s->gates) gate(tape, job, flow, f);
    else flow->x = f;
}

/* ---- a layer's tensors as one list: x, streams, cache ---- */

enum { LIST_MAX = 1 + KR_STREAMS_MAX + KR_CACHE_TENSORS };
_Static_assert(LIST_MAX <= KR_KEEP_MAX, "a layer's results fit a scope's list");

static int list_flow(kr_flow *flow, kr_tensor ***list)
{
    int n = 0;
    list[n++] = &flow->x;
    for (int64_t q = 0; q < flow->nstreams; q++) list[n++] = &flow->streams[q];
    return n;
}

static int list_cache(const kr_layers *s, kr_cache *cache, kr_tensor ***list)
{
    for (int i = 0; i < s->kind->ncache; i++) list[i] = &cache->tensors[i];
    return s->kind->ncache;
}

/* ---- unrecorded ---- */

static bool fits(const kr_tensor *destination, const kr_tensor *x)
{
    if (!destination || destination->dtype != x->dtype) return false;
    const kr_shape a = kr_tensor_shape(destination), b = kr_tensor_shape(x);
    return kr_shape_equal(&a, &b);
}

/* Copies new cache tensors into the old cache's memory; those of another shape stay as they are. */
static void overwrite_cache(kr_tape *tape, const kr_layers *s, const kr_cache *old, kr_cache *after)
{
    for (int i = 0; i < s->kind->ncache && !kr_ctx_failed(tape->ctx); i++) {
        kr_tensor *to = old->tensors[i], *from = after->tensors[i];
        if (!fits(to, from) || (to->data != from->data && !kr_assign(tape->ctx, to, from))) continue;
        after->tensors[i] = to;
    }
}

/* Results reuse the buffers of an earlier layer's results, so that memory does not grow with depth; without a buffer
 * that fits, the scope keeps the result, which becomes the buffer. Tensors that the layer returned unchanged are not
 * copied. */
void kr_layer_run_released(kr_tape *tape, const kr_layer_job *job, kr_flow *flow, kr_flow *destinations,
                           const kr_cache *cache, kr_cache *after)
{
    const kr_arena_mark before = kr_arena_mark_now(&tape->data);
    const kr_scope scope = kr_no_grad_begin(tape);
    kr_layer_run(tape, job, flow, cache, after);
    kr_tensor **results[LIST_MAX], **own[LIST_MAX], **keep[LIST_MAX];
    const int n = list_flow(flow, results);
    destinations->nstreams = flow->nstreams;
    list_flow(destinations, own);
    int nkept = 0;
    for (int i = 0; i < n && !kr_ctx_failed(tape->ctx); i++) {
        kr_tensor *x = *results[i];
        if (!kr_arena_is_after(&tape->data, before, x->data)) continue;
        if (!fits(*own[i], x)) {
            own[nkept] = own[i];
            keep[nkept++] = results[i];
        } else if (kr_assign(tape->ctx, *own[i], x)) {
            *results[i] = *own[i];
        }
    }
    const int ndestinations = nkept;
    if (job->in_place && cache && !kr_ctx_failed(tape->ctx)) overwrite_cache(tape, job->layers, cache, after);
    if (!job->drop_state) nkept += list_cache(job->layers, after, keep + nkept);
    kr_no_grad_end(tape, scope, nkept, keep);
    for (int i = 0; i < ndestinations; i++) *own[i] = *keep[i];
}

/* ---- recomputed ---- */

/* Arguments of the second run, with the lifetime of the tape's step. */
typedef struct recipe {
    kr_layer_job job;
    int64_t nstreams; /* that go in */
    bool has_cache;
    kr_cache shape_of_cache; /* family and pathway; its tensors are inputs of the node */
    int64_t nstreams_after;
    bool is_stream; /* x is the first stream itself */
    kr_cache after; /* family and pathway, again */
} recipe;

static void run_again(kr_tape *tape, void *user, kr_tensor *const *in, kr_tensor **out)
{
    recipe *r = user;
    const kr_layers *s = r->job.layers;
    kr_flow flow = { .x = in[0], .nstreams = r->nstreams };
    for (int64_t q = 0; q < r->nstreams; q++) flow.streams[q] = in[1 + q];
    kr_cache cache = r->shape_of_cache;
    for (int i = 0; r->has_cache && i < s->kind->ncache; i++) cache.tensors[i] = in[1 + r->nstreams + i];
    kr_layer_run(tape, &r->job, &flow, r->has_cache ? &cache : NULL, &r->after);
    r->nstreams_after = flow.nstreams;
    r->is_stream = flow.nstreams && flow.x == flow.streams[0];
    kr_tensor **results[LIST_MAX];
    int n = list_flow(&flow, results);
    if (!r->job.drop_state) n += list_cache(s, &r->after, results + n);
    for (int i = 0; i < n; i++) out[i] = *results[i];
}

void kr_layer_run_recomputed(kr_tape *tape, const kr_layer_job *job, kr_flow *flow, const kr_cache *cache,
                             kr_cache *after)
{
    const kr_layers *s = job->layers;
    recipe *r = kr_arena_alloc(&tape->heads, sizeof *r);
    if (!r) {
        kr_fail(tape->ctx, KR_ERR_NOMEM, "%s: no memory for a recomputed layer", job->op);
        return;
    }
    *r = (recipe){ .job = *job, .nstreams = flow->nstreams, .has_cache = cache != NULL };
    if (cache) r->shape_of_cache = *cache;
    kr_tensor **slots[LIST_MAX], *in[LIST_MAX], *out[LIST_MAX];
    int n_in = list_flow(flow, slots);
    if (cache) n_in += list_cache(s, &r->shape_of_cache, slots + n_in);
    for (int i = 0; i < n_in; i++) in[i] = *slots[i];
    const int ncache = job->drop_state ? 0 : s->kind->ncache;
    const int n_out = 1 + (int)kr_layer_streams(s, job->v + 1) + ncache;
    if (kr_checkpoint(tape, run_again, r, n_in, in, n_out, out) != KR_OK) return;
    *flow = (kr_flow){ .x = out[0], .nstreams = r->nstreams_after };
    for (int64_t q = 0; q < flow->nstreams; q++) flow->streams[q] = out[1 + q];
    if (r->is_stream) flow->x = flow->streams[0]; /* one tensor, so that its gradients add up in the recorded order */
    *after = r->after;
    for (int i = 0; i < ncache; i++) after->tensors[i] = out[1 + flow->nstreams + i];
}
