/* optimizer.c - making an optimizer: its options, the parts of the parameters, and one block for all that is kept. */
#include "train/optimizer_impl.h"

#include "base/names.h"
#include "base/sized.h"
#include "device/device.h"

#include <math.h>
#include <string.h>

enum { ARENA_BYTES = 8192, MUON_STEPS_MOST = 100 };

/* ---- options ---- */

KR_DEFAULTS(kr_optimizer_options) = { .size = sizeof(kr_optimizer_options),
                                      .kind = KR_OPTIMIZER_ADAMW,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .momentum = 0.9,
                                      .muon_momentum = 0.95,
                                      .use_muon_nesterov = true,
                                      .muon_steps = 5,
                                      .muon_coefficients = { 3.4445, -4.775, 2.0315 },
                                      .muon_ratio = KR_MUON_RATIO_MATCH_RMS,
                                      .muon_weight_decay = KR_SAME_DECAY,
                                      .clip_norm = 1 };

KR_NAMES(kr_optimizer_kind, "adamw", "sgd", "muon");

/* A number that is finite, at least 0, and below `below` (infinity: no upper bound). */
static bool check_number(kr_ctx *ctx, const char *name, double x, double below)
{
    if (isinf(below))
        return kr_require(ctx, isfinite(x) && x >= 0, KR_ERR_ARG,
                          "optimizer: %s = %g, but must be finite and not negative", name, x);
    return kr_require(ctx, x >= 0 && x < below, KR_ERR_ARG, "optimizer: %s = %g, but must be from 0 to below %g", name,
                      x, below);
}

static bool check_sgd(kr_ctx *ctx, const kr_optimizer_options *o)
{
    return check_number(ctx, "momentum", o->momentum, 1) &&
           kr_require(ctx, o->dampening >= 0 && o->dampening <= 1, KR_ERR_ARG,
                      "optimizer: dampening = %g, but must be from 0 to 1", o->dampening) &&
           kr_require(ctx, !o->use_nesterov || (o->momentum > 0 && o->dampening == 0), KR_ERR_ARG,
                      "optimizer: use_nesterov needs a momentum (%g) above 0 and a dampening (%g) of 0", o->momentum,
                      o->dampening);
}

static bool check_muon(kr_ctx *ctx, const kr_optimizer_options *o)
{
    const double *c = o->muon_coefficients;
    return check_number(ctx, "muon_momentum", o->muon_momentum, 1) &&
           kr_require(ctx, o->muon_steps >= 1 && o->muon_steps <= MUON_STEPS_MOST, KR_ERR_ARG,
                      "optimizer: muon_steps = %d, but must be from 1 to %d", o->muon_steps, MUON_STEPS_MOST) &&
           kr_require(ctx, isfinite(c[0]) && isfinite(c[1]) && isfinite(c[2]), KR_ERR_ARG,
                      "optimizer: muon_coefficients = %g, %g, %g, but must be finite", c[0], c[1], c[2]) &&
           kr_require(ctx, o->muon_ratio >= KR_MUON_RATIO_MATCH_RMS && o->muon_ratio <= KR_MUON_RATIO_PLAIN, KR_ERR_ARG,
                      "optimizer: muon_ratio = %d is not a kr_muon_ratio", (int)o->muon_ratio) &&
           (o->muon_weight_decay == KR_SAME_DECAY ||
            check_number(ctx, "muon_weight_decay", o->muon_weight_decay, (double)INFINITY)) &&
           kr_require(ctx, o->n_without == 0 || (o->n_without > 0 && o->without), KR_ERR_ARG,
                      "optimizer: n_without = %d, but `without` is NULL or the number is negative", o->n_without);
}

static bool check_options(kr_ctx *ctx, const kr_optimizer_options *o)
{
    return kr_require(ctx, o->kind >= KR_OPTIMIZER_ADAMW && o->kind <= KR_OPTIMIZER_MUON, KR_ERR_ARG,
                      "optimizer: kind = %d is not a kr_optimizer_kind", (int)o->kind) &&
           check_number(ctx, "beta1", o->beta1, 1) && check_number(ctx, "beta2", o->beta2, 1) &&
           kr_require(ctx, o->eps > 0 && isfinite(o->eps), KR_ERR_ARG,
                      "optimizer: eps = %g, but must be above 0 and finite", o->eps) &&
           check_number(ctx, "weight_decay", o->weight_decay, (double)INFINITY) && check_sgd(ctx, o) &&
           check_muon(ctx, o) && check_number(ctx, "clip_norm", o->clip_norm, (double)INFINITY) &&
           check_number(ctx, "clip_value", o->clip_value, (double)INFINITY) &&
           check_number(ctx, "ema_decay", o->ema_decay, 1);
}

/* ---- parts ---- */

static bool is_named(const kr_optimizer_options *o, const char *segment)
{
    for (int i = 0; i < o->n_without; i++)
        if (o->without[i] && strcmp(o->without[i], segment) == 0) return true;
    return false;
}

/* A name that nothing has is a mistake. */
static bool check_without(kr_ctx *ctx, const kr_params *params, const kr_optimizer_options *o)
{
    for (int i = 0; i < o->n_without; i++) {
        if (!kr_require(ctx, o->without[i] != NULL, KR_ERR_ARG, "optimizer: without[%d] is NULL", i)) return false;
        bool found = false;
        for (int64_t r = 0; !found && r < kr_params_count(params); r++) {
            const kr_param_row *row = kr_params_at(params, r);
            for (int s = 0; s < row->n_segments; s++)
                found = found || strcmp(row->segments[s].name, o->without[i]) == 0;
        }
        if (!kr_require(ctx, found, KR_ERR_ARG, "optimizer: without[%d] is '%s', but no parameter has such a segment",
                        i, o->without[i]))
            return false;
    }
    return true;
}

static bool add_segments(kr_optimizer *opt, kr_optimizer_slot *slot)
{
    const kr_param_row *row = slot->row;
    int64_t at = 0, cols = kr_dim_of(row->tensor, 1);
    for (int i = 0; i < row->n_segments; i++) at += row->segments[i].rows;
    if (!kr_require(
            opt->ctx, row->tensor->rank == 2 && at == row->tensor->dims[0], KR_ERR_SHAPE,
            "optimizer: %s %s has segments of %lld rows in all, but Muon updates matrices, and all of their rows",
            row->name, KR_TEXT_OF(row->tensor), (long long)at))
        return false;
    at = 0;
    for (int i = 0; i < row->n_segments; i++) {
        const kr_segment *segment = &row->segments[i];
        if (segment->rows * cols > 0)
            slot->parts[slot->nparts++] =
                (kr_optimizer_part){ .kind = segment->use_muon && !is_named(&opt->options, segment->name)
                                                 ? KR_OPTIMIZER_MUON
                                                 : KR_OPTIMIZER_ADAMW,
                                     .segment = segment,
                                     .first = at * cols,
                                     .count = segment->rows * cols,
                                     .shape = KR_SHAPE(segment->rows, cols) };
        at += segment->rows;
    }
    return true;
}

static bool add_slot(kr_optimizer *opt, const kr_param_row *row)
{
    kr_ctx *ctx = opt->ctx;
    kr_optimizer_slot *slot = &opt->slots[opt->count++];
    const bool has_segments = opt->options.kind == KR_OPTIMIZER_MUON && row->n_segments > 0;
    *slot =
        (kr_optimizer_slot){ .row = row, .dtype = row->tensor->dtype == KR_DTYPE_F64 ? KR_DTYPE_F64 : KR_DTYPE_F32 };
    if (!kr_require(ctx, row->tensor->ctx == ctx, KR_ERR_STATE, "optimizer: %s belongs to another context", row->name))
        return false;
    slot->parts = kr_arena_alloc(&opt->arena, (size_t)(has_segments ? row->n_segments : 1) * sizeof *slot->parts);
    if (!slot->parts) return kr_fail(ctx, KR_ERR_NOMEM, "optimizer: no memory for the parts of %s", row->name);
    if (has_segments) return add_segments(opt, slot);
    if (kr_count_of(row->tensor) > 0)
        slot->parts[slot->nparts++] =
            (kr_optimizer_part){ .kind = opt->options.kind == KR_OPTIMIZER_SGD ? KR_OPTIMIZER_SGD : KR_OPTIMIZER_ADAMW,
                                 .count = kr_count_of(row->tensor),
                                 .shape = kr_tensor_shape(row->tensor) };
    return true;
}

/* ---- memory ---- */

/* The next `count` numbers of the block; with none, they are only counted. */
static void *carve(kr_optimizer *opt, kr_dtype dtype, int64_t count)
{
    void *p = opt->state ? opt->state + opt->state_bytes : NULL;
    opt->state_bytes += (kr_dtype_span(dtype, count) + KR_ALIGN - 1) / KR_ALIGN * KR_ALIGN;
    return p;
}

/* A piece's part of what its slot keeps, whose pieces lie one after another. */
static void *carve_piece(const kr_optimizer_slot *slot, void *all, int64_t at)
{
    return all ? kr_kept_at(all, slot->dtype, at) : NULL;
}

static int64_t own_elements(const kr_optimizer *opt, const kr_optimizer_slot *slot)
{
    int64_t n = 0;
    for (int p = 0; p < slot->nparts; p++)
        for (int q = 0; q < slot->parts[p].npieces; q++)
            if (slot->parts[p].pieces[q].owner == opt->rank) n += slot->parts[p].pieces[q].count;
    return n;
}

static void lay_out_piece(kr_optimizer *opt, const kr_optimizer_slot *slot, kr_optimizer_kind kind,
                          kr_optimizer_piece *piece)
{
    if (kind == KR_OPTIMIZER_ADAMW) {
        piece->m = carve(opt, slot->dtype, piece->count);
        piece->v = carve(opt, slot->dtype, piece->count);
    } else if (kind == KR_OPTIMIZER_MUON || opt->options.momentum > 0) {
        piece->velocity = carve(opt, slot->dtype, piece->count);
    }
}

static void lay_out(kr_optimizer *opt)
{
    opt->state_bytes = 0;
    for (int64_t i = 0; i < opt->count; i++) {
        kr_optimizer_slot *slot = &opt->slots[i];
        const int64_t n = own_elements(opt, slot);
        int64_t at = 0;
        if (n > 0 && kr_dtype_is_16bit(slot->row->tensor->dtype)) slot->master = carve(opt, slot->dtype, n);
        if (n > 0 && opt->options.ema_decay > 0) slot->ema = carve(opt, slot->dtype, n);
        for (int p = 0; p < slot->nparts; p++)
            for (int q = 0; q < slot->parts[p].npieces; q++) {
                kr_optimizer_piece *piece = &slot->parts[p].pieces[q];
                if (piece->owner != opt->rank) continue;
                lay_out_piece(opt, slot, slot->parts[p].kind, piece);
                piece->master = carve_piece(slot, slot->master, at);
                piece->ema = carve_piece(slot, slot->ema, at);
                at += piece->count;
            }
    }
}

/* Scratch of the sums of squares, if they are all computed at once. */
static size_t squares_work(kr_optimizer *opt)
{
    size_t bytes = 0;
    kr_piece_at at = KR_BEFORE_PIECES;
    for (const kr_optimizer_piece *piece; (piece = kr_optimizer_next_piece(opt, &at));) {
        const kr_optimizer_slot *slot = &opt->slots[at.slot];
        kr_squares_args args = { .n = piece->count, .dtype = slot->row->tensor->dtype };
        const size_t own = kr_squares_work_of(opt->ctx, 1, &args);
        args.dtype = slot->dtype; /* sums of micro-batches are wider */
        const size_t wide = kr_squares_work_of(opt->ctx, 1, &args);
        bytes += own > wide ? own : wide;
        if (slot->parts[at.part].npieces == 1) continue;
        args.n = KR_SQUARES_BLOCK;
        const size_t blocks = (size_t)(piece->count / KR_SQUARES_BLOCK + 1) * kr_squares_work_of(opt->ctx, 1, &args);
        if (blocks > bytes) bytes = blocks;
    }
    return bytes;
}

static size_t work_of(kr_optimizer *opt)
{
    size_t most = squares_work(opt);
    kr_piece_at at = KR_BEFORE_PIECES;
    while (kr_optimizer_next_piece(opt, &at)) {
        const kr_optimizer_slot *slot = &opt->slots[at.slot];
        const kr_optimizer_part *part = &slot->parts[at.part];
        if (part->kind != KR_OPTIMIZER_MUON) continue;
        const kr_muon muon = kr_muon_of(opt, slot, part);
        const size_t bytes = kr_muon_work(&muon);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Kernel arguments of a step. */
static bool make_lists(kr_optimizer *opt)
{
    int64_t npieces = 0;
    kr_piece_at at = KR_BEFORE_PIECES;
    while (kr_optimizer_next_piece(opt, &at)) npieces++;
    opt->most_squares = opt->nnumbers < KR_RESULTS ? opt->nnumbers : KR_RESULTS;
    opt->squares = kr_arena_alloc(&opt->arena, (size_t)opt->most_squares * sizeof *opt->squares);
    opt->asked = kr_arena_alloc(&opt->arena, (size_t)opt->most_squares * sizeof *opt->asked);
    opt->adamw = kr_arena_alloc(&opt->arena, (size_t)(npieces + 1) * sizeof *opt->adamw);
    return kr_require(opt->ctx, opt->squares && opt->asked && opt->adamw, KR_ERR_NOMEM,
                      "optimizer: no memory for %lld parameters", (long long)opt->count);
}

static bool allocate(kr_optimizer *opt)
{
    lay_out(opt);
    if (!make_lists(opt)) return false;
    opt->work_bytes = work_of(opt);
    opt->state = kr_memory_alloc_zeroed(kr_float_memory(opt->ctx), opt->state_bytes);
    if (!opt->state)
        return kr_fail(opt->ctx, KR_ERR_NOMEM, "optimizer: no memory for %zu bytes of %s state", opt->state_bytes,
                       kr_optimizer_kind_name(opt->options.kind));
    lay_out(opt);
    opt->work = kr_memory_alloc(kr_float_memory(opt->ctx), opt->work_bytes);
    if (!opt->work)
        return kr_fail(opt->ctx, KR_ERR_NOMEM, "optimizer: no memory for %zu bytes of scratch for a step",
                       opt->work_bytes);
    return true;
}

/* ---- */

/* Until the optimizer is destroyed, maybe after the parameter. */
static bool hold(kr_optimizer *opt, const kr_tensor *param)
{
    if (!kr_weights_begin_write(param, "optimizer")) return false;
    if (param->storage->weights) opt->held[opt->nheld++] = param->storage->weights;
    return true;
}

static bool build(kr_optimizer *opt, kr_params *params)
{
    const int64_t count = kr_params_count(params);
    if (!check_options(opt->ctx, &opt->options) ||
        !kr_require(opt->ctx, count > 0, KR_ERR_ARG, "optimizer: the parameter table has no rows") ||
        !check_without(opt->ctx, params, &opt->options))
        return false;
    opt->slots = kr_arena_alloc(&opt->arena, (size_t)count * sizeof *opt->slots);
    opt->steps = kr_arena_alloc(&opt->arena, (size_t)count * sizeof *opt->steps);
    opt->held = kr_arena_alloc(&opt->arena, (size_t)count * sizeof *opt->held);
    if (!opt->slots || !opt->steps || !opt->held)
        return kr_fail(opt->ctx, KR_ERR_NOMEM, "optimizer: no memory for %lld parameters", (long long)count);
    memset(opt->steps, 0, (size_t)count * sizeof *opt->steps);
    for (int64_t i = 0; i < count; i++)
        if (!add_slot(opt, kr_params_at(params, i)) || !hold(opt, kr_params_at(params, i)->tensor)) return false;
    return kr_optimizer_deal(opt) && allocate(opt) && kr_optimizer_reread(opt) == KR_OK;
}

kr_optimizer *kr_optimizer_create(kr_ctx *ctx, kr_params *params, const kr_optimizer_options *options)
{
    return kr_optimizer_create_shared(ctx, params, options, NULL);
}

kr_optimizer *kr_optimizer_create_shared(kr_ctx *ctx, kr_params *params, const kr_optimizer_options *options,
                                         kr_comm *comm)
{
    if (kr_ctx_failed(ctx)) return NULL;
    kr_optimizer *opt = kr_memory_alloc_zeroed(&ctx->memory, sizeof *opt);
    if (!opt) {
        kr_fail(ctx, KR_ERR_NOMEM, "optimizer: no memory for an optimizer");
        return NULL;
    }
    opt->ctx = ctx;
    opt->params = params;
    opt->comm = comm;
    opt->rank = kr_comm_rank(comm);
    opt->ranks = kr_comm_size(comm);
    kr_arena_init(&opt->arena, &ctx->memory, ARENA_BYTES);
    if (!KR_TAKE(ctx, "optimizer", kr_optimizer_options, options, &opt->options) || !build(opt, params)) {
        kr_optimizer_destroy(opt);
        return NULL;
    }
    opt->options.without = NULL; /* the caller's, and done with */
    return opt;
}

void kr_optimizer_destroy(kr_optimizer *opt)
{
    if (!opt) return;
    kr_memory *memory = &opt->ctx->memory, *floats = kr_float_memory(opt->ctx);
    while (opt->nheld > 0) kr_weights_release(opt->held[--opt->nheld], opt->ctx);
    if (opt->state) kr_memory_free(floats, opt->state, opt->state_bytes);
    if (opt->work) kr_memory_free(floats, opt->work, opt->work_bytes);
    kr_arena_deinit(&opt->arena);
    kr_memory_free(memory, opt, sizeof *opt);
}

bool kr_optimizer_ready(const kr_optimizer *opt)
{
    return opt && !kr_ctx_failed(opt->ctx);
}

kr_optimizer_stats kr_optimizer_stats_of(const kr_optimizer *opt)
{
    if (!opt) return (kr_optimizer_stats){ 0 };
    return (kr_optimizer_stats){ .steps = opt->step, .grad_norm = opt->grad_norm, .bytes = opt->state_bytes };
}

void *kr_piece_weights(const kr_optimizer_slot *slot, const kr_optimizer_piece *piece)
{
    return piece->master ? piece->master : kr_kept_at(slot->row->tensor->data, slot->dtype, piece->first);
}

int64_t kr_slot_elements(const kr_optimizer_slot *slot)
{
    return kr_count_of(slot->row->tensor);
}
