/* optimizer_step.c - one step: the norm of all gradients, clipping, and the update of each part.
 *
 * All operations that can fail come before the first update: the updates allocate no memory.
 */
#include "train/optimizer_impl.h"

#include "device/device.h"

#include <math.h>

#define OP "optimizer.step"

/* Squares of larger gradients are not finite in f32. */
static const double most_in_f32 = 1e18;

/* Values that all parts of a step share. */
typedef struct stepping {
    kr_optimizer *opt;
    double lr, scale;
    int64_t listed; /* in opt->adamw, of the type `real` */
    int real;
} stepping;

/* ---- the norm ---- */

size_t kr_squares_work(kr_ctx *ctx, kr_dtype dtype, int64_t n)
{
    kr_squares_args args = { .n = n, .dtype = dtype };
    return KR_SCRATCH_OF(ctx, squares, &args);
}

static void find_squares(kr_ctx *ctx, kr_dtype dtype, const void *x, int64_t n, void *work, double *sum)
{
    kr_squares_args args = { .n = n, .dtype = dtype, .x = x, .sum = sum };
    KR_RUN_WITH(ctx, squares, &args, work);
}

double kr_squares_of(kr_ctx *ctx, kr_dtype dtype, const void *x, int64_t n, void *work)
{
    kr_result *result = kr_results(ctx);
    find_squares(ctx, dtype, x, n, work, &result->real);
    return kr_wait(ctx) ? result->real : (double)NAN;
}

/* The gradient of a slot, from the sums of several micro-batches or from the parameter. */
static void find_grad(const kr_optimizer *opt, int64_t i)
{
    kr_optimizer_slot *slot = &opt->slots[i];
    const kr_tensor *w = slot->row->tensor;
    slot->grad = NULL;
    if (!w->flags.requires_grad) return;
    if (opt->sums) {
        slot->grad_dtype = opt->sums->rows[i].dtype;
        if (opt->sums->rows[i].is_reached) slot->grad = kr_grad_sums_at(opt->sums, i);
    } else if (w->grad && !w->flags.grad_is_zero) {
        slot->grad_dtype = w->dtype;
        slot->grad = w->grad->data;
    }
}

/* Computes the sums of squares in the list. */
static void flush_squares(kr_optimizer *opt, int64_t *listed)
{
    const kr_result *results = kr_results(opt->ctx);
    kr_run_squares(opt->ctx, *listed, opt->squares, opt->work);
    kr_wait(opt->ctx);
    for (int64_t i = 0; i < *listed; i++) opt->squares_of[opt->asked[i]] = results[i].real;
    *listed = 0;
}

/* As many as fit into results are queued at once. */
static void list_squares(kr_optimizer *opt, int64_t *listed, const kr_optimizer_slot *slot, int64_t first,
                         int64_t count, int64_t number)
{
    if (*listed == opt->most_squares) flush_squares(opt, listed);
    opt->asked[*listed] = number;
    opt->squares[*listed] = (kr_squares_args){ .n = count,
                                               .dtype = slot->grad_dtype,
                                               .x = kr_kept_at(slot->grad, slot->grad_dtype, first),
                                               .sum = &kr_results(opt->ctx)[*listed].real };
    ++*listed;
}

/* The numbers of this rank's pieces. */
static void measure_pieces(kr_optimizer *opt)
{
    int64_t listed = 0;
    kr_piece_at at = KR_BEFORE_PIECES;
    for (const kr_optimizer_piece *piece; (piece = kr_optimizer_next_piece(opt, &at));) {
        const kr_optimizer_slot *slot = &opt->slots[at.slot];
        const int64_t step = slot->parts[at.part].npieces > 1 ? KR_SQUARES_BLOCK : piece->count;
        for (int64_t i = 0; i < piece->count; i += step) {
            const int64_t count = piece->count - i < step ? piece->count - i : step, number = piece->number + i / step;
            if (slot->grad) list_squares(opt, &listed, slot, piece->first + i, count, number);
            else opt->squares_of[number] = 0;
        }
    }
    flush_squares(opt, &listed);
}

/* Sums of squares of each gradient and of all; the number of gradients. */
static int64_t measure(kr_optimizer *opt, double *squares)
{
    int64_t count = 0, number = 0;
    for (int64_t i = 0; i < opt->count; i++) find_grad(opt, i);
    measure_pieces(opt);
    if (opt->ranks > 1) kr_comm_gather_shares(opt->comm, opt->squares_of, opt->shares, opt->nshares, KR_DTYPE_F64);
    *squares = 0;
    for (int64_t i = 0; i < opt->count; i++) {
        kr_optimizer_slot *slot = &opt->slots[i];
        slot->squares = 0;
        for (int p = 0; p < slot->nparts; p++) {
            const kr_optimizer_part *part = &slot->parts[p];
            const int64_t n = part->npieces == 1 ? 1 : (part->count + KR_SQUARES_BLOCK - 1) / KR_SQUARES_BLOCK;
            double sum = 0;
            for (const int64_t end = number + n; number < end; number++) sum += opt->squares_of[number];
            slot->squares += sum;
        }
        count += slot->grad != NULL;
        *squares += slot->squares;
    }
    return count;
}

/* Names the first element that is not finite, if one of this rank's pieces has it; false if it does not, without an error. */
static bool blame_element(const kr_optimizer *opt)
{
    kr_piece_at at = KR_BEFORE_PIECES;
    for (const kr_optimizer_piece *piece; (piece = kr_optimizer_next_piece(opt, &at));) {
        const kr_optimizer_slot *slot = &opt->slots[at.slot];
        const kr_tensor *w = slot->row->tensor;
        const kr_dtype dtype = slot->grad_dtype;
        if (!slot->grad || isfinite(slot->squares)) continue;
        int64_t first = -1;
        if (!kr_find_not_finite(opt->ctx, dtype, kr_kept_at(slot->grad, dtype, piece->first), piece->count, &first))
            return true;
        if (first < 0) continue;
        first += piece->first;
        const kr_tensor bad = { .ctx = opt->ctx, .dtype = dtype, .data = kr_kept_at(slot->grad, dtype, first) };
        char index[KR_SHAPE_TEXT_BYTES];
        kr_fail(opt->ctx, KR_ERR_NUMERIC, OP ": the gradient of %s %s holds %g at %s; no parameter has changed",
                slot->row->name, KR_TEXT_OF(w), kr_item(&bad), kr_index_text(w, first, index, sizeof index));
        return true;
    }
    return false;
}

/* Always false. The rank that has the element tells the others. */
static bool blame_gradients(const kr_optimizer *opt)
{
    bool is_told = blame_element(opt);
    if (opt->ranks > 1) is_told = kr_comm_agree(opt->comm) != KR_OK;
    return is_told ? false
                   : kr_fail(opt->ctx, KR_ERR_NUMERIC,
                             OP ": the gradients are finite, but the sum of their squares is not; no parameter has "
                                "changed");
}

/* After scaling, squares must be finite in the type of the state. */
static bool check_sizes(const kr_optimizer *opt, double scale)
{
    const double clip = opt->options.clip_value;
    if (opt->options.kind == KR_OPTIMIZER_SGD || (clip > 0 && clip <= most_in_f32)) return true;
    for (int64_t i = 0; i < opt->count; i++) {
        const kr_optimizer_slot *slot = &opt->slots[i];
        const double norm = scale * sqrt(slot->squares);
        if (!kr_require(opt->ctx, !slot->grad || slot->dtype == KR_DTYPE_F64 || norm <= most_in_f32, KR_ERR_NUMERIC,
                        OP ": the gradient of %s has the norm %g, too large to be squared in f32; set "
                           "options.clip_norm; no parameter has changed",
                        slot->row->name, norm))
            return false;
    }
    return true;
}

/* The factor of all gradients: the caller's, reduced by clipping. */
static bool find_scale(kr_optimizer *opt, double grad_scale, double *scale)
{
    double squares;
    const int64_t count = measure(opt, &squares);
    const double clip = opt->options.clip_norm;
    if (kr_ctx_failed(opt->ctx) ||
        !kr_require(opt->ctx, count > 0, KR_ERR_STATE,
                    OP ": no gradient has reached any parameter that is not frozen; call kr_backward before"))
        return false;
    opt->grad_norm = grad_scale * sqrt(squares);
    if (!isfinite(opt->grad_norm)) return blame_gradients(opt);
    *scale = clip > 0 && opt->grad_norm > clip ? grad_scale * (clip / opt->grad_norm) : grad_scale;
    return check_sizes(opt, *scale);
}

/* ---- the rules ---- */

static kr_taken_grad taken(const stepping *s, const kr_optimizer_slot *slot, const kr_optimizer_piece *piece)
{
    const kr_optimizer_options *o = &s->opt->options;
    return (kr_taken_grad){ .g = { kr_kept_at(slot->grad, slot->grad_dtype, piece->first), slot->grad_dtype, 0 },
                            .scale = s->scale,
                            .clip = o->clip_value > 0 ? o->clip_value : (double)INFINITY,
                            .clears = !o->keep_grad };
}

static double decay_of(const stepping *s, const kr_optimizer_slot *slot, double weight_decay)
{
    return slot->row->has_decay || s->opt->options.decay_all ? weight_decay : 0;
}

static kr_adamw_args adamw_of(const stepping *s, const kr_optimizer_slot *slot, const kr_optimizer_piece *piece,
                              int64_t t)
{
    const kr_optimizer_options *o = &s->opt->options;
    return (kr_adamw_args){ .n = piece->count,
                            .grad = taken(s, slot, piece),
                            .w = kr_piece_weights(slot, piece),
                            .m = piece->m,
                            .v = piece->v,
                            .beta1 = o->beta1,
                            .beta2 = o->beta2,
                            .eps = o->eps,
                            .rate = s->lr / (1 - pow(o->beta1, (double)t)),
                            .root = 1 / sqrt(1 - pow(o->beta2, (double)t)),
                            .decay = s->lr * decay_of(s, slot, o->weight_decay),
                            .cautious = o->is_cautious };
}

/* Runs the updates in the list, all of one type. */
static void step_listed(stepping *s)
{
    kr_run_adamw(s->opt->ctx, s->real, s->listed, s->opt->adamw);
    s->listed = 0;
}

static void list_adamw(stepping *s, const kr_optimizer_slot *slot, const kr_optimizer_piece *piece, int64_t t)
{
    const int real = kr_real_of(slot->dtype);
    if (real != s->real) step_listed(s);
    s->real = real;
    s->opt->adamw[s->listed++] = adamw_of(s, slot, piece, t);
}

static void step_sgd(const stepping *s, const kr_optimizer_slot *slot, const kr_optimizer_piece *piece, int64_t t)
{
    const kr_optimizer_options *o = &s->opt->options;
    kr_sgd_args args = { .n = piece->count,
                         .grad = taken(s, slot, piece),
                         .w = kr_piece_weights(slot, piece),
                         .velocity = piece->velocity,
                         .momentum = o->momentum,
                         .gain = 1 - o->dampening,
                         .penalty = decay_of(s, slot, o->weight_decay),
                         .rate = s->lr,
                         .is_first = t == 1,
                         .nesterov = o->use_nesterov };
    KR_RUN(s->opt->ctx, sgd[kr_real_of(slot->dtype)], &args);
}

static void step_muon(const stepping *s, const kr_optimizer_slot *slot, const kr_optimizer_part *part, int64_t t)
{
    const kr_optimizer_options *o = &s->opt->options;
    const kr_muon muon = kr_muon_of(s->opt, slot, part);
    const kr_optimizer_piece *piece = part->pieces;
    kr_sgd_args gather = { .n = piece->count,
                           .grad = taken(s, slot, piece),
                           .velocity = piece->velocity,
                           .direction = s->opt->work,
                           .momentum = o->muon_momentum,
                           .gain = 1,
                           .is_first = t == 1,
                           .nesterov = o->use_muon_nesterov };
    KR_RUN(s->opt->ctx, sgd[kr_real_of(slot->dtype)], &gather);
    const double decay = o->muon_weight_decay == KR_SAME_DECAY ? o->weight_decay : o->muon_weight_decay;
    kr_sgd_args apply = { .n = piece->count,
                          .grad = { .g = { kr_muon_orthogonalise(&muon, s->opt->work), slot->dtype, 0 },
                                    .scale = 1,
                                    .clip = (double)INFINITY },
                          .w = kr_piece_weights(slot, piece),
                          .rate = s->lr * kr_muon_ratio_of(o->muon_ratio, muon.rows, muon.cols),
                          .decay = s->lr * decay_of(s, slot, decay) };
    KR_RUN(s->opt->ctx, sgd[kr_real_of(slot->dtype)], &apply);
}

kr_muon kr_muon_of(const kr_optimizer *opt, const kr_optimizer_slot *slot, const kr_optimizer_part *part)
{
    return (kr_muon){ .ctx = opt->ctx,
                      .dtype = slot->dtype,
                      .rows = part->shape.dims[0],
                      .cols = part->shape.dims[1],
                      .steps = opt->options.muon_steps,
                      .coefficients = opt->options.muon_coefficients };
}

/* ---- a step ---- */

static void step_piece(stepping *s, const kr_piece_at *at, const kr_optimizer_piece *piece)
{
    const kr_optimizer_slot *slot = &s->opt->slots[at->slot];
    const kr_optimizer_part *part = &slot->parts[at->part];
    const int64_t t = s->opt->steps[at->slot];
    switch (part->kind) {
    case KR_OPTIMIZER_SGD: step_sgd(s, slot, piece, t); break;
    case KR_OPTIMIZER_MUON: step_muon(s, slot, part, t); break;
    default: list_adamw(s, slot, piece, t); break;
    }
}

/* Updates the pieces of this rank: all of them, before parameters of 16 bits are rounded. */
static void step_pieces(stepping *s)
{
    const kr_optimizer *opt = s->opt;
    const double ema_step = 1 - opt->options.ema_decay;
    kr_piece_at at = KR_BEFORE_PIECES;
    for (const kr_optimizer_piece *piece; (piece = kr_optimizer_next_piece(opt, &at));)
        if (opt->slots[at.slot].grad) step_piece(s, &at, piece);
    step_listed(s);
    at = (kr_piece_at)KR_BEFORE_PIECES;
    for (const kr_optimizer_piece *piece; (piece = kr_optimizer_next_piece(opt, &at));) {
        const kr_optimizer_slot *slot = &opt->slots[at.slot];
        const kr_tensor *w = slot->row->tensor;
        if (slot->grad && piece->master)
            kr_optimizer_convert(opt->ctx, w->dtype, kr_kept_at(w->data, w->dtype, piece->first), slot->dtype,
                                 piece->master, piece->count);
        kr_lerp_args args = { .n = piece->count, .x = kr_piece_weights(slot, piece), .y = piece->ema, .c = ema_step };
        if (piece->ema) KR_RUN(opt->ctx, lerp[kr_real_of(slot->dtype)], &args);
    }
}

static bool check_call(const kr_optimizer *opt, double lr, double grad_scale)
{
    return kr_require(
               opt->ctx, !opt->ema_is_in, KR_ERR_STATE,
               OP ": the parameters hold the averaged weights; call kr_optimizer_use_ema(optimizer, false) first") &&
           kr_require(opt->ctx, isfinite(lr) && lr >= 0, KR_ERR_ARG,
                      OP ": lr = %g, but a learning rate is finite and not negative", lr) &&
           kr_require(opt->ctx, isfinite(grad_scale) && grad_scale > 0, KR_ERR_ARG,
                      OP ": grad_scale = %g, but must be above 0 and finite", grad_scale);
}

kr_status kr_optimizer_step(kr_optimizer *opt, double lr, double grad_scale)
{
    if (!opt) return KR_ERR_ARG;
    stepping s = { .opt = opt, .lr = lr };
    if (!kr_optimizer_ready(opt) || !check_call(opt, lr, grad_scale) || !find_scale(opt, grad_scale, &s.scale))
        return opt->ctx->status;
    for (int64_t i = 0; i < opt->count; i++)
        if (opt->slots[i].grad) {
            kr_wrote(opt->slots[i].row->tensor);
            opt->steps[i]++;
        }
    step_pieces(&s);
    for (int64_t i = 0; i < opt->count; i++)
        if (opt->slots[i].grad && !opt->options.keep_grad) kr_param_grad_is_zero(opt->slots[i].row->tensor);
    opt->step++;
    kr_optimizer_gather(opt);
    return opt->ctx->status;
}
