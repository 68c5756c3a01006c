/* layers.c - a call through a stack: class tokens, horizon, residual stream, one layer after another. */
#include "nn/layers_impl.h"

#include "base/sized.h"
#include "nn/block_config.h"
#include "ops/autocast.h"
#include "ops/straight_through.h"
#include "ops/seq_parallel_impl.h"
#include "ops/sequences.h"

#include <string.h>

/* ---- entering a call ---- */

KR_DEFAULTS(kr_call) = { .size = sizeof(kr_call), .precision = KR_PRECISION_UNSET };

static bool check_state(kr_tape *tape, const char *op, const kr_state_layout *layout, const kr_state *state)
{
    kr_ctx *ctx = tape->ctx;
    return kr_require(ctx, state->ctx == ctx, KR_ERR_STATE, "%s: the state belongs to another context", op) &&
           kr_state_is_usable(op, state) &&
           kr_require(ctx, !state->tape || state->tape == tape, KR_ERR_STATE,
                      "%s: the state is on another tape; carry it over with kr_state_copy into one of kr_state_create",
                      op) &&
           kr_require(ctx, state->nslots != layout->nslots || kr_state_fits(state, layout), KR_ERR_ARG,
                      "%s: the state is of a stack of %s blocks, but these are %s", op, kr_state_family(state),
                      kr_state_layout_family(layout)) &&
           kr_require(ctx, state->nslots == layout->nslots, KR_ERR_ARG,
                      "%s: the state has %lld slots, but the stack has %lld virtual layers", op,
                      (long long)state->nslots, (long long)layout->nslots);
}

/* A state to be advanced is the one that the call begins from. */
static bool take_advance(kr_tape *tape, kr_run *run)
{
    kr_ctx *ctx = tape->ctx;
    const kr_state *own = run->call.advance;
    if (!own) return true;
    if (!kr_require(ctx, !run->call.state, KR_ERR_ARG, "%s: state and advance are both given; choose one", run->op) ||
        !kr_require(ctx, !run->call.drop_state, KR_ERR_ARG,
                    "%s: drop_state is set, but a state to advance is given; choose one", run->op) ||
        !kr_require(ctx, !own->tape, KR_ERR_ARG,
                    "%s: the state to advance is on a tape, where states do not change; give one of kr_state_create",
                    run->op) ||
        !kr_require(ctx, !tape->recording, KR_ERR_STATE,
                    "%s: a state to advance is given, but the call is recorded, and its backward pass reads the old "
                    "state; use a tape of KR_TAPE_NO_GRAD, or state and kr_state_copy",
                    run->op))
        return false;
    run->call.state = own;
    return true;
}

/* Mask of padding tokens: only 0 and 1 are valid, since other factors would be a mistake. */
static bool check_mask(kr_tape *tape, const kr_run *run, kr_tensor *x)
{
    kr_ctx *ctx = tape->ctx;
    kr_tensor *mask = run->call.mask_bs;
    kr_dims d;
    if (!mask) return true;
    if (!kr_require(ctx, run->mode == KR_RUN_FORWARD, KR_ERR_ARG,
                    "%s: mask is for forward; leave out the rows whose token is padding", run->op) ||
        !kr_bind(tape, run->op, &d, "mask:bs", mask) ||
        !kr_require(ctx, d.b == x->dims[0] && d.s == x->dims[1], KR_ERR_SHAPE,
                    "%s: mask %s must be [%lld, %lld]: a number for each token", run->op, KR_TEXT_OF(mask),
                    (long long)x->dims[0], (long long)x->dims[1]) ||
        !kr_require(ctx, mask->dtype == KR_DTYPE_I32 || mask->dtype == KR_DTYPE_I64, KR_ERR_DTYPE,
                    "%s: mask %s is %s, but must be i32 or i64", run->op, KR_TEXT_OF(mask), kr_dtype_name(mask->dtype)))
        return false;
    for (int64_t b = 0; b < d.b; b++)
        for (int64_t s = 0; s < d.s; s++) {
            const double is_read = kr_tensor_at(mask, (int64_t[]){ b, s });
            if (!kr_require(ctx, is_read == 0 || is_read == 1, KR_ERR_ARG,
                            "%s: mask [b %lld, s %lld] is %.0f, but must be 1, or 0 where the token is padding",
                            run->op, (long long)b, (long long)s, is_read))
                return false;
        }
    return true;
}

static bool check_dropout(kr_tape *tape, const kr_run *run)
{
    const double p = run->call.dropout;
    return kr_require(tape->ctx, p >= 0 && p < 1, KR_ERR_ARG, "%s: dropout = %g, but must be from 0 to below 1",
                      run->op, p) &&
           kr_require(tape->ctx, p == 0 || run->mode == KR_RUN_FORWARD, KR_ERR_ARG,
                      "%s: dropout = %g, but dropout is for forward", run->op, p);
}

/* call.cu_seqlens as call.seq_start_bs. */
static bool take_cu_seqlens(kr_tape *tape, kr_run *run, const kr_tensor *x)
{
    kr_call *call = &run->call;
    return !call->cu_seqlens ||
           (kr_require(tape->ctx, run->mode == KR_RUN_FORWARD, KR_ERR_ARG, "%s: cu_seqlens is for forward", run->op) &&
            kr_require(tape->ctx, !call->reset_bs, KR_ERR_ARG, "%s: cu_seqlens and reset are both given; choose one",
                       run->op) &&
            kr_cu_seqlens_take(tape, run->op, call->cu_seqlens, x->dims[0], x->dims[1], &call->seq_start_bs));
}

/* Of a piece of rows: what it cannot be combined with, and where its state comes from. Sequences that begin inside it are
 * resets, since that of the row before them may be one that began on another piece. */
static bool take_seq_parallel(kr_tape *tape, kr_run *run, bool has_class_tokens)
{
    kr_ctx *ctx = tape->ctx;
    kr_call *call = &run->call;
    const kr_seq_parallel *seq = call->seq_parallel;
    if (!seq) return true;
    if (!kr_require(ctx, seq->ctx == ctx, KR_ERR_STATE, "%s: seq_parallel belongs to another context", run->op) ||
        !kr_require(ctx, run->mode == KR_RUN_FORWARD, KR_ERR_ARG, "%s: seq_parallel is for forward", run->op) ||
        !kr_require(ctx, !has_class_tokens, KR_ERR_ARG,
                    "%s: seq_parallel is given, but class tokens cannot be combined with pieces of rows", run->op) ||
        !kr_require(ctx, !call->advance, KR_ERR_ARG,
                    "%s: seq_parallel is given, but a state to advance cannot be combined with pieces of rows; give "
                    "state",
                    run->op) ||
        !kr_require(ctx, !call->cu_seqlens, KR_ERR_ARG,
                    "%s: seq_parallel and cu_seqlens are both given; mark the sequences that begin in this piece in "
                    "seq_start",
                    run->op) ||
        !kr_require(ctx, !call->seq_start_bs || !call->reset_bs, KR_ERR_ARG,
                    "%s: seq_start and reset are both given; choose one", run->op))
        return false;
    if (call->seq_start_bs) call->reset_bs = call->seq_start_bs;
    call->seq_start_bs = NULL;
    if (!kr_seq_is_first(seq)) call->state = NULL;
    return true;
}

/* The number of initial and final states of the call: rows, or sequences. */
static bool count_states(kr_tape *tape, kr_run *run, kr_tensor *x, int64_t *count)
{
    kr_ctx *ctx = tape->ctx;
    const kr_call *call = &run->call;
    *count = run->batch;
    if (call->seq_start_bs) {
        kr_sequences sequences;
        if (!kr_require(ctx, !call->reset_bs, KR_ERR_ARG, "%s: seq_start and reset are both given; choose one",
                        run->op) ||
            !kr_require(ctx, run->mode == KR_RUN_FORWARD, KR_ERR_ARG, "%s: seq_start is for forward", run->op) ||
            !kr_sequences_from(tape, run->op, call->seq_start_bs, x->dims[0], x->dims[1], &sequences))
            return false;
        *count = sequences.count;
    }
    return !call->state ||
           kr_require(ctx, call->state->batch == *count, KR_ERR_SHAPE,
                      "%s: the state has %lld rows, but there are %lld %s", run->op, (long long)call->state->batch,
                      (long long)*count, call->seq_start_bs ? "sequences" : "rows in x");
}

static bool begin_class_tokens(kr_tape *tape, kr_run *run, kr_tensor *x, bool has_class_tokens,
                               bool has_length_class_tokens)
{
    const kr_cursors *old = run->call.state && run->call.state->cursors.is_on ? &run->call.state->cursors : NULL;
    kr_ctx *ctx = tape->ctx;
    run->cursors = run->state->cursors; /* offsets 0, and an array for the layers */
    if (old) {
        int64_t *layers = run->cursors.layers;
        memcpy(layers, old->layers, (size_t)run->state->nslots * sizeof *layers);
        run->cursors = *old;
        run->cursors.layers = layers;
    }
    run->has_class_tokens = has_class_tokens && (old || run->mode == KR_RUN_FORWARD);
    run->full_len = old ? old->full_len : x ? x->dims[1] : 0;
    if (!has_class_tokens) return true;
    return kr_require(ctx, !run->call.seq_start_bs && !run->call.reset_bs, KR_ERR_ARG,
                      "%s: %s is given, but class tokens cannot be combined with packed rows or resets", run->op,
                      run->call.reset_bs     ? "reset"
                      : run->call.cu_seqlens ? "cu_seqlens"
                                             : "seq_start") &&
           kr_require(ctx, !run->call.mask_bs, KR_ERR_ARG,
                      "%s: mask is given, but class tokens cannot be combined with padded rows", run->op) &&
           kr_require(ctx, run->has_class_tokens || !has_length_class_tokens, KR_ERR_STATE,
                      "%s: middle and end class tokens need the sequence's length; announce it with kr_state_announce",
                      run->op);
}

bool kr_run_begin(kr_tape *tape, kr_run *run, const char *op, kr_run_mode mode, kr_state_layout layout,
                  const kr_call *call, kr_tensor *x, bool has_class_tokens, bool has_length_class_tokens)
{
    *run = (kr_run){ .op = op, .mode = mode };
    if (!kr_tape_ready(tape, op) || !KR_TAKE(tape->ctx, op, kr_call, call, &run->call) ||
        !kr_precision_check(tape->ctx, op, run->call.precision) || !take_seq_parallel(tape, run, has_class_tokens) ||
        !take_advance(tape, run))
        return false;
    const kr_state *old = run->call.state;
    if (old && !check_state(tape, op, &layout, old)) return false;
    if (!kr_require(tape->ctx, x || old, KR_ERR_ARG, "%s: there is no state; give one with an announced length", op))
        return false;
    run->batch = x ? x->dims[0] : old->batch;
    int64_t nstates;
    if (!check_mask(tape, run, x) || !check_dropout(tape, run) || !take_cu_seqlens(tape, run, x) ||
        !count_states(tape, run, x, &nstates))
        return false;
    run->state = kr_state_new(tape, &layout, nstates);
    return run->state && begin_class_tokens(tape, run, x, has_class_tokens, has_length_class_tokens);
}

kr_state *kr_run_end(kr_run *run)
{
    if (run->call.drop_state) return NULL;
    if (run->cursors.is_on) run->state->cursors = run->cursors;
    else memset(run->cursors.layers, 0, (size_t)run->state->nslots * sizeof *run->cursors.layers);
    kr_state *own = run->call.advance;
    return !own ? run->state : kr_state_copy(own, run->state) == KR_OK ? own : NULL;
}

/* ---- class tokens ---- */

bool kr_run_splice(kr_tape *tape, kr_run *run, const kr_class_token *class_tokens, int count, kr_tensor *table_nd,
                   int64_t *offset, kr_splice *plan, int *nplan, kr_tensor **x)
{
    *nplan = 0;
    if (!run->has_class_tokens) return true;
    const int64_t c = *x ? (*x)->dims[1] : 0;
    if (!kr_class_tokens_plan(tape->ctx, run->op, class_tokens, count, run->full_len, run->mode == KR_RUN_PRIME, c,
                              offset, plan, nplan))
        return false;
    run->full_len = kr_class_tokens_outputs(class_tokens, count, run->full_len);
    if (*nplan) *x = kr_class_tokens_splice(tape, *x, run->batch, table_nd, plan, *nplan);
    return !kr_ctx_failed(tape->ctx);
}

kr_splice *kr_run_plan(kr_tape *tape, const kr_run *run, int count)
{
    kr_splice *plan = kr_arena_alloc(&tape->heads, (size_t)(count + 1) * sizeof *plan);
    if (!plan) kr_fail(tape->ctx, KR_ERR_NOMEM, "%s: no memory for a plan of %d class tokens", run->op, count);
    return plan;
}

/* ---- the layers ---- */

/* State of a call while it passes from layer to layer. */
typedef struct passage {
    kr_run *run;
    kr_layer_job job;
    kr_flow flow;
    kr_flow destinations; /* of the results of unrecorded layers */
    int64_t cut;          /* virtual layers below it are not differentiated ... */
    kr_tensor *carry; /* ... gradients that arrive there pass to the stack's input, and to the rows of class tokens */
    int64_t recorded_from; /* virtual layers from cut to it are recomputed; -1: not chosen yet */
} passage;

/* 16-bit streams are accumulated in f32, if enabled. */
static kr_tensor *widen(kr_tape *tape, const kr_layers *s, kr_tensor *x)
{
    return x && s->config.residual_in_f32 && kr_dtype_is_16bit(x->dtype) ? kr_cast(tape, x, KR_DTYPE_F32) : x;
}

/* Inserts the rows of a layer's own class tokens into x and into all tensors aligned with it. */
static bool splice_flow(kr_tape *tape, passage *p, int64_t v)
{
    const kr_layers *s = p->job.layers;
    const kr_layer_weights *l = &s->layers[s->real[v]];
    kr_flow *flow = &p->flow;
    kr_run *run = p->run;
    if (!run->has_class_tokens) return true;
    kr_splice *plan = kr_run_plan(tape, run, l->nlatents);
    int nplan;
    if (!plan || !kr_run_splice(tape, run, l->latents, l->nlatents, l->latents_nd, &run->cursors.layers[v], plan,
                                &nplan, &flow->x))
        return false;
    if (nplan == 0) return true;
    flow->x = widen(tape, s, flow->x);
    for (int64_t q = 0; q < flow->nstreams; q++)
        flow->streams[q] =
            widen(tape, s, kr_class_tokens_splice(tape, flow->streams[q], run->batch, l->latents_nd, plan, nplan));
    if (v < p->cut)
        p->carry = widen(tape, s, kr_class_tokens_splice(tape, p->carry, run->batch, l->latents_nd, plan, nplan));
    return !kr_ctx_failed(tape->ctx);
}

static void pass_to_carry(kr_tape *tape, passage *p)
{
    kr_flow *flow = &p->flow;
    if (!flow->x || !p->carry) return;
    flow->x = kr_straight_through(tape, flow->x, p->carry);
    for (int64_t q = 0; q < flow->nstreams; q++)
        flow->streams[q] = kr_straight_through(tape, flow->streams[q], p->carry);
}

static int64_t cut_of(kr_tape *tape, const kr_layers *s)
{
    const int64_t horizon = s->config.grad_horizon;
    return tape->recording && horizon != KR_NO_HORIZON && horizon < s->nvirtual ? s->nvirtual - horizon : 0;
}

/* The stream as the caller will see it: recorded ones stay on the tape; the buffers of others are reused by the next
 * layer. */
static void keep_stream(kr_tape *tape, passage *p)
{
    const kr_tensor *x = p->flow.x;
    kr_tensor **kept = &p->run->call.streams[p->job.v];
    *kept = p->flow.x;
    if (!x || (tape->recording && p->job.v >= p->cut)) return;
    *kept = kr_new(tape, x->dtype, kr_tensor_shape(x));
    if (*kept) kr_assign(tape->ctx, *kept, x);
}

/* A factor of 1 or 0 for each token, [b s 1], out of the caller's numbers; NULL without one. */
static kr_tensor *factors(kr_tape *tape, const kr_layers *s, kr_tensor *mask_bs)
{
    if (!mask_bs) return NULL;
    const kr_shape shape = KR_SHAPE(kr_dim_of(mask_bs, 0), kr_dim_of(mask_bs, 1), 1);
    return kr_reshape(tape, kr_cast(tape, mask_bs, kr_config_small_dtype(kr_block_dtype(s->layers[0].block))), shape);
}

static void keep_slot(kr_run *run, int64_t v, const kr_cache *after)
{
    if (!run->call.drop_state) run->state->slots[v] = *after;
}

/* The state before a piece, from the piece before it. */
static const kr_cache *take_cache(kr_tape *tape, const passage *p, bool is_recorded, kr_cache *cache)
{
    const kr_layer_job *job = &p->job;
    const kr_block_kind *kind = job->layers->kind;
    *cache = kind->initial_cache(tape, job->layers->layers[job->layers->real[job->v]].block, p->run->batch);
    kr_seq_take_state(tape, p->run->call.seq_parallel, job->op, is_recorded, kind->ncache, cache->tensors);
    return cache;
}

/* The state after a piece, for the next one, in the types of an initial cache. */
static void give_cache(kr_tape *tape, const passage *p, bool is_recorded, const kr_cache *after)
{
    const kr_layer_job *job = &p->job;
    const kr_block_kind *kind = job->layers->kind;
    kr_tensor *given[KR_CACHE_TENSORS];
    const kr_cache like = kind->initial_cache(tape, job->layers->layers[job->layers->real[job->v]].block, 1);
    for (int i = 0; i < kind->ncache; i++)
        given[i] = like.tensors[i] ? kr_cast(tape, after->tensors[i], like.tensors[i]->dtype) : NULL;
    kr_seq_give_state(tape, p->run->call.seq_parallel, job->op, is_recorded, kind->ncache, given);
}

static void run_layer(kr_tape *tape, passage *p)
{
    const kr_layer_job *job = &p->job;
    const kr_state *old = p->run->call.state;
    const kr_cache *cache = old && !kr_state_slot_is_initial(old, job->v) ? &old->slots[job->v] : NULL;
    kr_cache after = { .family = job->layers->kind->family }, taken;
    const kr_seq_parallel *seq = job->seq ? NULL : p->run->call.seq_parallel; /* that passes whole caches */
    if (job->in_place && cache) {
        p->run->call.advance->is_inconsistent = true; /* until all layers are done */
        for (int i = 0; i < job->layers->kind->ncache; i++)
            if (cache->tensors[i]) kr_wrote(cache->tensors[i]);
    }
    const bool is_recorded = tape->recording && job->v >= p->cut;
    if (seq && !kr_seq_is_first(seq)) cache = take_cache(tape, p, is_recorded, &taken);
    if (kr_ctx_failed(tape->ctx)) {
        kr_blame(tape->ctx, "%s, layer %lld", job->op, (long long)job->v);
        return;
    }
    if (is_recorded && p->recorded_from < 0) {
        p->recorded_from = kr_recompute_until(tape, job, &p->flow, p->run);
        if (p->recorded_from < 0) return;
    }
    if (!is_recorded) kr_layer_run_released(tape, job, &p->flow, &p->destinations, cache, &after);
    else if (job->v < p->recorded_from) kr_layer_run_recomputed(tape, job, &p->flow, cache, &after);
    else kr_layer_run(tape, job, &p->flow, cache, &after);
    if (seq && !kr_seq_is_last(seq)) give_cache(tape, p, is_recorded, &after);
    if (kr_ctx_failed(tape->ctx)) kr_blame(tape->ctx, "%s, layer %lld", job->op, (long long)job->v);
    else keep_slot(p->run, job->v, &after);
}

static void begin_flow(const kr_layers *s, kr_tensor *x, kr_flow *flow)
{
    *flow = (kr_flow){ .x = x, .nstreams = s->gates ? 1 : 0 };
    flow->streams[0] = x;
}

/* All streams of a layer without tokens, so that the following layers see the right number. */
static void skip_layer(passage *p)
{
    const int64_t v = p->job.v;
    p->flow.nstreams = kr_layer_streams(p->job.layers, v + 1);
    for (int64_t q = 0; q < p->flow.nstreams; q++) p->flow.streams[q] = NULL;
    if (p->run->call.state) keep_slot(p->run, v, &p->run->call.state->slots[v]);
}

/* A scan exchanges inside the layers, also where they are recomputed: all ranks recompute the same ones. */
static bool blocks_scan(const kr_layers *s)
{
    return s->kind->scans_pieces && s->kind->scans_pieces(s->layers[0].block);
}

static bool can_scan(const kr_layers *s)
{
    return blocks_scan(s) && s->config.recompute != KR_RECOMPUTE_BUDGET;
}

/* Do the layers find the state before the piece by a scan? One rank that has all pieces has it already. */
static bool scans(const kr_layers *s, const kr_seq_parallel *seq)
{
    enum { EXACT_MOST = 4 };
    if (!seq || !seq->comm || seq->pieces == 1) return false;
    return seq->mode == KR_SEQ_SCAN || (seq->mode == KR_SEQ_AUTO && seq->pieces > EXACT_MOST && can_scan(s));
}

static bool check_scan(kr_tape *tape, const char *op, const kr_layers *s)
{
    return kr_require(tape->ctx, blocks_scan(s), KR_ERR_UNSUPPORTED,
                      "%s: seq_parallel has the mode scan, which these %s blocks do not have; use KR_SEQ_EXACT", op,
                      s->kind->name) &&
           kr_require(tape->ctx, can_scan(s), KR_ERR_UNSUPPORTED,
                      "%s: seq_parallel has the mode scan, in which all ranks must recompute the same layers, but "
                      "recompute_budget may choose others on each; use KR_SEQ_EXACT, or recompute all layers or none",
                      op);
}

kr_tensor *kr_layers_run(kr_tape *tape, const kr_layers *s, kr_tensor *x, kr_run *run)
{
    const kr_layers_config *c = &s->config;
    kr_splice *plan = kr_run_plan(tape, run, c->n_latents);
    int nplan;
    if (!plan ||
        !kr_run_splice(tape, run, c->latents, c->n_latents, s->latents_nd, &run->cursors.stack, plan, &nplan, &x))
        return NULL;
    const kr_call *call = &run->call;
    kr_seq_parallel *seq = call->seq_parallel;
    const bool is_scanned = scans(s, seq);
    if (is_scanned && !check_scan(tape, run->op, s)) return NULL;
    x = widen(tape, s, x);
    if (call->dropout > 0 && x) x = kr_dropout(tape, x, call->dropout, NULL);
    passage p = { .run = run,
                  .job = { .layers = s,
                           .op = run->op,
                           .path = call->path ? *call->path : s->kind->path(s->layers[0].block),
                           .seq_start_bs = call->seq_start_bs,
                           .reset_bs = call->reset_bs,
                           .mask_bs1 = factors(tape, s, call->mask_bs),
                           .dropout = call->dropout,
                           .seq = is_scanned ? seq : NULL,
                           .drop_state = call->drop_state && (!seq || kr_seq_is_last(seq)),
                           .in_place = call->advance != NULL },
                  .cut = cut_of(tape, s),
                  .recorded_from = -1 };
    begin_flow(s, x, &p.flow);
    if (p.cut > 0) p.carry = x;
    for (int64_t v = 0; v < s->nvirtual && !kr_ctx_failed(tape->ctx); v++) {
        p.job.v = v;
        if (v == p.cut) pass_to_carry(tape, &p);
        kr_fence(tape);
        if (!splice_flow(tape, &p, v)) return NULL;
        if (p.flow.x) run_layer(tape, &p);
        else skip_layer(&p);
        if (call->streams && !kr_ctx_failed(tape->ctx)) keep_stream(tape, &p);
    }
    if (p.cut == s->nvirtual) pass_to_carry(tape, &p);
    if (kr_ctx_failed(tape->ctx) && seq) kr_seq_tell(seq);
    return kr_ctx_failed(tape->ctx) ? NULL : p.flow.x;
}

/* ---- the stack without a network ---- */

kr_tensor *kr_last_token(kr_tape *tape, kr_tensor *y)
{
    if (!y) return NULL;
    const int64_t nb = kr_dim_of(y, 0), nd = kr_dim_of(y, 2);
    if (kr_dim_of(y, 1) != 1) y = kr_slice(tape, y, 1, -1, kr_dim_of(y, 1));
    return kr_reshape(tape, y, KR_SHAPE(nb, nd));
}

bool kr_layers_take_type(kr_tape *tape, const char *op, const kr_layers *s, const kr_tensor *x)
{
    const kr_dtype own = kr_block_dtype(s->layers[0].block);
    return kr_require(tape->ctx, kr_dtype_is_float(x->dtype) && (x->dtype == KR_DTYPE_F64) == (own == KR_DTYPE_F64),
                      KR_ERR_DTYPE, "%s: x is %s, but the blocks are %s; cast x, or create them with that dtype", op,
                      kr_dtype_name(x->dtype), kr_dtype_name(own));
}

bool kr_layers_check_input(kr_tape *tape, const char *op, const kr_layers *s, kr_tensor *x)
{
    return kr_require(tape->ctx, kr_dim_of(x, -1) == s->nd, KR_ERR_SHAPE,
                      "%s: axis d of x %s is %lld, but the stack has d_model = %lld", op, KR_TEXT_OF(x),
                      (long long)kr_dim_of(x, -1), (long long)s->nd) &&
           kr_layers_take_type(tape, op, s, x);
}

static bool exists(kr_tape *tape, const char *op, const kr_layers *s)
{
    return kr_tape_ready(tape, op) && kr_require(tape->ctx, s != NULL, KR_ERR_ARG, "%s: the stack is NULL", op);
}

static kr_layers_out run_forward(kr_tape *tape, const kr_layers *s, kr_tensor *x, const kr_call *call,
                                 kr_stack_fn *run_stack)
{
    const char *op = "layers.forward";
    const kr_layers_out none = { .y = NULL };
    kr_dims d;
    kr_run run;
    if (!exists(tape, op, s) || !kr_bind(tape, op, &d, "x:bsd", x) || !kr_layers_check_input(tape, op, s, x) ||
        !kr_run_begin(tape, &run, op, KR_RUN_FORWARD, kr_layers_layout(s), call, x, s->has_class_tokens,
                      s->has_length_class_tokens))
        return none;
    kr_tensor *y = run_stack(tape, s, x, &run);
    return y ? (kr_layers_out){ .y = y, .state = kr_run_end(&run) } : none;
}

static kr_layers_out run_step(kr_tape *tape, const kr_layers *s, kr_tensor *x, const kr_call *call,
                              kr_stack_fn *run_stack)
{
    const char *op = "layers.step";
    const kr_layers_out none = { .y = NULL };
    kr_dims d;
    kr_run run;
    if (!exists(tape, op, s) || !kr_bind(tape, op, &d, "x:bd", x) || !kr_layers_check_input(tape, op, s, x))
        return none;
    kr_tensor *x_bsd = kr_reshape(tape, x, KR_SHAPE(d.b, 1, d.d));
    if (!kr_run_begin(tape, &run, op, KR_RUN_STEP, kr_layers_layout(s), call, x_bsd, s->has_class_tokens,
                      s->has_length_class_tokens))
        return none;
    kr_tensor *y = kr_last_token(tape, run_stack(tape, s, x_bsd, &run));
    return y ? (kr_layers_out){ .y = y, .state = kr_run_end(&run) } : none;
}

static kr_layers_out run_prime(kr_tape *tape, const kr_layers *s, const kr_call *call)
{
    const char *op = "layers.prime";
    const kr_layers_out none = { .y = NULL };
    kr_run run;
    if (!exists(tape, op, s) || !kr_run_begin(tape, &run, op, KR_RUN_PRIME, kr_layers_layout(s), call, NULL,
                                              s->has_class_tokens, s->has_length_class_tokens))
        return none;
    kr_tensor *y = kr_last_token(tape, kr_layers_run(tape, s, NULL, &run));
    return kr_ctx_failed(tape->ctx) ? none : (kr_layers_out){ .y = y, .state = kr_run_end(&run) };
}

bool kr_call_is_absent(kr_ctx *ctx, const char *op, const kr_call *call)
{
    return kr_require(ctx, !call, KR_ERR_ARG, "%s: call is given, but there are no options: pass NULL", op);
}

static kr_tensor *run_infinite(kr_tape *tape, const kr_layers *s, kr_tensor *x, const kr_call *call)
{
    const char *op = "layers.step_infinite";
    return exists(tape, op, s) && kr_call_is_absent(tape->ctx, op, call) ? kr_layers_run_infinite(tape, op, s, x)
                                                                         : NULL;
}

kr_layers_out kr_layers_run_call(kr_tape *tape, const kr_layers *s, kr_call_kind kind, kr_tensor *x,
                                 const kr_call *call, kr_stack_fn *run_stack)
{
    switch (kind) {
    case KR_CALL_FORWARD: return run_forward(tape, s, x, call, run_stack);
    case KR_CALL_STEP: return run_step(tape, s, x, call, run_stack);
    case KR_CALL_PRIME: return run_prime(tape, s, call);
    case KR_CALL_STEP_INFINITE: return (kr_layers_out){ .y = run_infinite(tape, s, x, call) };
    }
    if (tape) kr_fail(tape->ctx, KR_ERR_ARG, "layers: %d is not a kr_call_kind", (int)kind);
    return (kr_layers_out){ .y = NULL };
}

kr_tensor *kr_layers_run_infinite(kr_tape *tape, const char *op, const kr_layers *s, kr_tensor *x)
{
    kr_dims d;
    if (!kr_bind(tape, op, &d, "x:bd", x) || !kr_layers_check_input(tape, op, s, x)) return NULL;
    kr_flow flow;
    begin_flow(s, widen(tape, s, x), &flow);
    kr_layer_job job = { .layers = s, .op = op, .is_infinite = true };
    for (job.v = 0; job.v < s->nvirtual && !kr_ctx_failed(tape->ctx); job.v++) {
        kr_cache none;
        kr_layer_run(tape, &job, &flow, NULL, &none);
        if (kr_ctx_failed(tape->ctx)) kr_blame(tape->ctx, "%s, layer %lld", op, (long long)job.v);
    }
    return kr_ctx_failed(tape->ctx) ? NULL : flow.x;
}
