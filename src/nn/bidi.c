/* bidi.c - a call through a stack that reads in both directions.
 *
 *   F = merge(block_s(norm_s(x)), flip(block_r(norm_r(flip(x)))))        flip reverses time
 *   merge         (a + b) / 2, or [a b] W^T + bias; F after dropout, if enabled
 *   standard      x <- x + F, or F where the residual is ignored
 *   multi-gate    fewer than n_stream streams: F becomes one more; else all are mixed with F. x <- pool of the streams
 */
#include "nn/bidi_impl.h"
#include "base/sized.h"
#include "nn/block_config.h"
#include "ops/autocast.h"

#include <stdio.h>

#define OP "bidi.forward"

KR_DEFAULTS(kr_bidi_call) = { .size = sizeof(kr_bidi_call), .precision = KR_PRECISION_UNSET };

/* State of a call while it passes through the pairs. */
typedef struct reading {
    kr_tape *tape;
    const kr_bidi *bidi;
    const kr_cache *begin; /* [nvirtual], or NULL: initial */
    double dropout;
    kr_cache *end;    /* [nvirtual] */
    kr_tensor *x;     /* [b s d]: input of the next pair */
    int64_t nstreams; /* multi-gate */
    kr_tensor **streams;
    kr_tensor *own_x, **own_streams; /* unrecorded calls: memory that the results of all pairs are moved to */
} reading;

/* ---- a pair ---- */

/* The output of virtual layer v for x, in the order of time. */
static kr_tensor *read_direction(reading *r, int64_t v)
{
    const kr_bidi *bidi = r->bidi;
    const kr_bidi_layer *l = &bidi->layers[bidi->real[v]];
    const bool is_reverse = v % 2 != 0;
    char op[64];
    snprintf(op, sizeof op, OP ": virtual layer %lld", (long long)v);
    kr_tensor *x = is_reverse ? kr_flip(r->tape, r->x, 1) : r->x;
    const kr_block_input input = { .op = op,
                                   .x_bsd = kr_rms_norm(r->tape, x, l->norm_d, &bidi->norm),
                                   .cache = r->begin ? &r->begin[v] : NULL,
                                   .path = bidi->kind->path(l->block) };
    const kr_block_result out = bidi->kind->forward(r->tape, l->block, &input);
    r->end[v] = out.cache;
    return is_reverse ? kr_flip(r->tape, out.y_bsd, 1) : out.y_bsd;
}

static kr_tensor *drop(reading *r, kr_tensor *x)
{
    return r->dropout > 0 ? kr_dropout(r->tape, x, r->dropout, NULL) : x;
}

static kr_tensor *merge(reading *r, int64_t real_pair, kr_tensor *a, kr_tensor *b)
{
    if (r->bidi->config.merge == KR_BIDI_MERGE_MEAN) return kr_scale(r->tape, kr_add(r->tape, a, b), 0.5);
    const kr_bidi_join *join = &r->bidi->joins[real_pair];
    return kr_linear(r->tape, kr_concat(r->tape, -1, 2, (kr_tensor *[]){ a, b }), join->weight, join->bias);
}

static void add_up(reading *r, int64_t pair, int64_t real_pair, kr_tensor *f)
{
    const kr_bidi_config *c = &r->bidi->config;
    const bool skips_first = c->ignore_first_residual && pair == 0;
    const bool skips_last = c->ignore_last_residual && pair == r->bidi->nvirtual / 2 - 1;
    if (!r->bidi->gates) {
        r->x = skips_first || skips_last ? f : kr_add(r->tape, r->x, f);
        return;
    }
    if (skips_last) {
        r->x = f;
        return;
    }
    if (skips_first) {
        r->streams[0] = r->x = f;
        return;
    }
    const kr_multi_gate *gate = &r->bidi->gates[c->residual.per_virtual_layer ? pair : real_pair];
    if (r->nstreams < c->residual.n_stream) r->streams[r->nstreams++] = f;
    else kr_multi_gate_mix(r->tape, gate, r->nstreams, r->streams, f);
    r->x = kr_multi_gate_pool(r->tape, gate, r->nstreams, r->streams);
}

static void run_pair(reading *r, int64_t pair)
{
    const int64_t real_pair = r->bidi->real[2 * pair] / 2;
    kr_tensor *a = read_direction(r, 2 * pair), *b = read_direction(r, 2 * pair + 1);
    kr_tensor *f = drop(r, merge(r, real_pair, a, b));
    add_up(r, pair, real_pair, f ? kr_cast(r->tape, f, r->x->dtype) : NULL);
}

/* ---- unrecorded calls: only a pair's results stay allocated ---- */

static bool move_to(kr_ctx *ctx, kr_tensor **x, kr_tensor *own)
{
    if (*x == own) return true;
    const bool ok = *x && kr_assign(ctx, own, *x);
    *x = own;
    return ok;
}

static void run_pair_released(reading *r, int64_t pair)
{
    kr_ctx *ctx = r->tape->ctx;
    const kr_scope scope = kr_no_grad_begin(r->tape);
    run_pair(r, pair);
    bool ok = !kr_ctx_failed(ctx) && move_to(ctx, &r->x, r->own_x);
    for (int64_t q = 0; ok && q < r->nstreams; q++) ok = move_to(ctx, &r->streams[q], r->own_streams[q]);
    kr_tensor **keep[2 * KR_CACHE_TENSORS];
    int n = 0;
    for (int64_t v = 2 * pair; v < 2 * pair + 2; v++)
        for (int i = 0; i < r->bidi->kind->ncache; i++) keep[n++] = &r->end[v].tensors[i];
    kr_no_grad_end(r->tape, scope, n, keep);
}

/* ---- a call ---- */

/* x in the type that residuals are added up in, with the class tokens of a whole sequence. */
static kr_tensor *enter(kr_tape *tape, const kr_bidi *bidi, kr_tensor *x_bsd, const kr_dims *d)
{
    const kr_bidi_config *c = &bidi->config;
    kr_tensor *x = kr_cast(tape, x_bsd, kr_config_small_dtype(x_bsd->dtype));
    if (c->n_latents == 0) return x;
    kr_splice *plan = kr_arena_alloc(&tape->heads, (size_t)c->n_latents * sizeof *plan);
    if (!plan) {
        kr_fail(tape->ctx, KR_ERR_NOMEM, OP ": no memory for a plan of %d class tokens", c->n_latents);
        return NULL;
    }
    int64_t offset = 0;
    int nplan;
    if (!kr_class_tokens_plan(tape->ctx, OP, c->latents, c->n_latents, d->s, false, d->s, &offset, plan, &nplan))
        return NULL;
    return kr_class_tokens_splice(tape, x, d->b, bidi->latents_nd, plan, nplan);
}

static kr_tensor **new_list(kr_tape *tape, int64_t count)
{
    kr_tensor **list = kr_arena_alloc(&tape->heads, (size_t)count * sizeof *list);
    for (int64_t i = 0; list && i < count; i++) list[i] = NULL;
    return list;
}

/* The outputs of the call. */
static bool allocate(reading *r)
{
    kr_tape *tape = r->tape;
    const kr_bidi *bidi = r->bidi;
    const int64_t most = bidi->nvirtual / 2 + 1, wanted = bidi->gates ? bidi->config.residual.n_stream : 0;
    const int64_t nstreams = wanted < most ? wanted : most;
    r->end = kr_arena_alloc(&tape->heads, (size_t)bidi->nvirtual * sizeof *r->end);
    r->streams = new_list(tape, nstreams + 1);
    r->own_streams = new_list(tape, nstreams + 1);
    if (!r->end || !r->streams || !r->own_streams)
        return kr_fail(tape->ctx, KR_ERR_NOMEM, OP ": no memory for the lists of %lld layers",
                       (long long)bidi->nvirtual);
    r->nstreams = bidi->gates ? 1 : 0;
    r->streams[0] = r->x;
    if (tape->recording) return true;
    const kr_shape shape = kr_tensor_shape(r->x);
    r->own_x = kr_new(tape, r->x->dtype, shape);
    for (int64_t q = 0; q < nstreams; q++) r->own_streams[q] = kr_new(tape, r->x->dtype, shape);
    return !kr_ctx_failed(tape->ctx);
}

static kr_bidi_out run_forward(kr_tape *tape, const kr_bidi *bidi, kr_tensor *x_bsd, const kr_bidi_call *c)
{
    const kr_bidi_out none = { .y = NULL };
    kr_dims d;
    if (!kr_block_begin(tape, bidi->kind, bidi->layers[0].block, &(kr_block_input){ .op = OP, .x_bsd = x_bsd }, &d))
        return none;
    reading r = { .tape = tape, .bidi = bidi, .begin = c->caches, .dropout = c->dropout };
    r.x = drop(&r, enter(tape, bidi, x_bsd, &d));
    if (!r.x || !allocate(&r)) return none;
    for (int64_t pair = 0; pair < bidi->nvirtual / 2 && !kr_ctx_failed(tape->ctx); pair++)
        if (tape->recording) run_pair(&r, pair);
        else run_pair_released(&r, pair);
    return kr_ctx_failed(tape->ctx) ? none : (kr_bidi_out){ .y = r.x, .caches = r.end };
}

kr_bidi_out kr_bidi_forward(kr_tape *tape, const kr_bidi *bidi, kr_tensor *x_bsd, const kr_bidi_call *call)
{
    kr_bidi_call c;
    if (!kr_tape_ready(tape, OP) || !kr_require(tape->ctx, bidi != NULL, KR_ERR_ARG, OP ": the stack is NULL") ||
        !KR_TAKE(tape->ctx, OP, kr_bidi_call, call, &c) ||
        !kr_require(tape->ctx, c.dropout >= 0 && c.dropout < 1, KR_ERR_ARG,
                    OP ": dropout = %g, but must be from 0 to below 1", c.dropout) ||
        !kr_precision_check(tape->ctx, OP, c.precision))
        return (kr_bidi_out){ .y = NULL };
    const kr_precision before = kr_precision_begin(tape->ctx, c.precision);
    const kr_bidi_out out = run_forward(tape, bidi, x_bsd, &c);
    kr_precision_end(tape->ctx, before);
    return out;
}
