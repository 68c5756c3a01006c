/* nan_report.c - the origin of NaN and infinity: parameter, input, layer, op, row and token.
 *
 * The step is run again, batch by batch, with the residual stream after each layer kept. Forward, the first stream that
 * is not finite gives the layer, its first such element row and token, and one more run, with every op's result
 * checked, the op. Backward the same search is made in the streams' gradients, from the last layer to the first.
 */
#include "device/device.h"
#include "tape/tape_impl.h"
#include "train/trainer_ranks.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- texts ---- */

typedef struct text {
    char at[420];
    size_t length;
} text;

static void put(text *t, const char *format, ...) KR_PRINTF(2, 3);
static void put(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (t->length < sizeof t->at)
        t->length += (size_t)vsnprintf(t->at + t->length, sizeof t->at - t->length, format, args);
    va_end(args);
}

/* ---- values ---- */

/* The sign of a NaN has no meaning: it is cleared. */
static double shown(double x)
{
    return isnan(x) ? (double)NAN : x;
}

typedef struct range {
    double min, max; /* of those that are finite */
    int64_t n_finite, count;
    int64_t first; /* that is not; -1: all are */
    double bad;    /* the first */
} range;

/* Element `flat` in row-major order. */
static double element(const kr_tensor *x, int64_t flat)
{
    int64_t index[KR_MAX_RANK];
    for (int i = x->rank - 1; i >= 0; i--) {
        index[i] = flat % x->dims[i];
        flat /= x->dims[i];
    }
    return kr_tensor_at(x, index);
}

static void take(range *r, double value)
{
    if (isfinite(value)) {
        r->n_finite++;
        r->min = fmin(r->min, value);
        r->max = fmax(r->max, value);
    } else if (r->first < 0) {
        r->first = r->count;
        r->bad = shown(value);
    }
    r->count++;
}

static const range empty = { .min = (double)INFINITY, .max = -(double)INFINITY, .first = -1 };

static bool take_all(void *user, int64_t first, const double *values, int64_t count)
{
    (void)first;
    for (int64_t i = 0; i < count; i++) take(user, values[i]);
    return true;
}

static range range_of(const kr_tensor *x)
{
    range r = empty;
    kr_each_value(x, take_all, &r);
    return r;
}

/* *first: the first element that is not finite, or -1. False if that cannot be found out, and why is recorded. */
static bool find_first(const kr_tensor *x, int64_t *first)
{
    *first = -1;
    if (!x) return true;
    if (kr_tensor_is_row_major(x)) return kr_find_not_finite(x->ctx, x->dtype, x->data, kr_count_of(x), first);
    *first = range_of(x).first;
    return true;
}

static bool is_finite(const kr_tensor *x)
{
    int64_t first;
    return !find_first(x, &first) || first < 0;
}

static void put_range(text *t, const char *where, range r)
{
    put(t, "%s ", where);
    if (r.n_finite > 0) put(t, "from %g to %g", r.min, r.max);
    if (r.first >= 0)
        put(t, "%s%lld of %lld not finite", r.n_finite ? ", " : "", (long long)(r.count - r.n_finite),
            (long long)r.count);
}

/* "holds nan at [1, 2] (3 of 64 not finite, the others from -1 to 1)" */
static bool fail_of_values(kr_ctx *ctx, const char *what, const char *name, const kr_tensor *x, const char *remark)
{
    const range r = range_of(x);
    char index[KR_SHAPE_TEXT_BYTES];
    text t = { .length = 0 };
    put_range(&t, "", r);
    return kr_fail(ctx, KR_ERR_NUMERIC, "%s%s %s holds %g at %s (it is%s)%s", what, name, KR_TEXT_OF(x), r.bad,
                   kr_index_text(x, r.first, index, sizeof index), t.at, remark);
}

/* ---- a step, run again ---- */

typedef struct search {
    kr_trainer *t;
    kr_ctx *ctx;
    kr_loader_position at; /* of the batch */
    kr_random_position random;
    kr_batch batch;
    const kr_state *state;
    kr_tensor **streams; /* [count]; NULL: there are none */
    int64_t count;
} search;

bool kr_trainer_check_weights(const kr_trainer *t)
{
    for (int64_t i = 0; i < kr_params_count(t->params); i++) {
        const kr_param_row *row = kr_params_at(t->params, i);
        int64_t first;
        if (!find_first(row->tensor, &first)) return false;
        if (first >= 0)
            return fail_of_values(
                t->ctx, "parameter ", row->name, row->tensor,
                t->progress.step > 0 ? ": a step before this one was too large, or the value was written" : "");
    }
    return true;
}

/* x [b s ..] of the batch, whose element `first` is the first that matters and is not finite. */
static bool fail_of_input(const search *s, const char *name, const kr_tensor *x, int64_t first)
{
    const int64_t ns = kr_dim_of(x, 1), at = first / kr_dim_of(x, 2);
    text remark = { .length = 0 };
    put(&remark, ": row %lld, token %lld of batch %lld in epoch %lld", (long long)(at / ns), (long long)(at % ns),
        (long long)s->batch.step, (long long)s->batch.epoch);
    return fail_of_values(s->ctx, "the batch's ", name, x, remark.at);
}

static bool check_input(const search *s)
{
    const kr_batch *b = &s->batch;
    if (b->x_bsf && !is_finite(b->x_bsf)) return fail_of_input(s, "x_bsf", b->x_bsf, range_of(b->x_bsf).first);
    for (int64_t i = 0; b->targets_bso && i < kr_count_of(b->targets_bso); i++) {
        const int64_t width = kr_dim_of(b->targets_bso, 2);
        if (element(b->scored_bs, i / width) != 0 && !isfinite(element(b->targets_bso, i)))
            return fail_of_input(s, "targets_bso", b->targets_bso, i);
    }
    return true;
}

static void put_token(text *t, const kr_batch *b, const kr_tensor *stream, int64_t flat)
{
    enum { SHOWN = 4 };
    const int64_t nd = kr_dim_of(stream, -1), ns = kr_dim_of(stream, 1), at = flat / nd;
    const kr_tensor *input = b->ids_bs ? b->ids_bs : b->x_bsf;
    put(t, "row %lld, token %lld", (long long)(at / ns), (long long)(at % ns));
    if (kr_dim_of(input, 1) != ns) return; /* there are class tokens between the tokens */
    if (b->ids_bs) {
        put(t, " (id %.0f)", element(b->ids_bs, at));
        return;
    }
    const int64_t nf = kr_dim_of(input, 2);
    for (int64_t f = 0; f < nf && f < SHOWN; f++) put(t, "%s%g", f ? ", " : " (features ", element(input, at * nf + f));
    put(t, "%s", nf > SHOWN ? ", ...)" : ")");
}

/* "layer 3 (backbone.layers.1)": the position in the stack, and the layer that owns the weights. */
static void put_layer(text *t, const search *s, int64_t v)
{
    char key[32];
    snprintf(key, sizeof key, "layers.%lld.", (long long)s->t->net->layers->real[v]);
    put(t, "layer %lld", (long long)v);
    for (int64_t i = 0; i < kr_params_count(s->t->params); i++) {
        const char *name = kr_params_at(s->t->params, i)->name, *found = strstr(name, key);
        if (!found) continue;
        put(t, " (%.*s)", (int)(found - name + (long)strlen(key) - 1), name);
        return;
    }
}

/* ---- forward ---- */

/* The batch once more, each op's result looked at: which is the first that is not finite? */
static void put_op(text *t, search *s)
{
    kr_tape_reset(s->t->tape);
    kr_loader_return(s->t->loader, &s->at);
    kr_random_return(s->ctx, s->random);
    s->ctx->check_finite = true;
    if (kr_loader_next(s->t->tape, s->t->loader, &s->batch) == KR_OK)
        kr_trainer_loss(s->t, s->t->tape, &s->batch, s->state, NULL, NULL);
    s->ctx->check_finite = false;
    if (kr_ctx_failed(s->ctx)) {
        const char *message = kr_ctx_message(s->ctx), *layer = strstr(message, ", layer ");
        const char *op = layer ? strstr(layer, ": ") : NULL;
        put(t, "%s", op ? op + 2 : message);
    }
    kr_ctx_clear(s->ctx);
    kr_tape_reset(s->t->tape);
}

/* The input of the first layer: embeddings, or projected features. */
static void put_input(text *t, const search *s)
{
    const kr_batch *b = &s->batch;
    const kr_tensor *table_wd = s->t->net->embedding_wd;
    if (!b->ids_bs || !table_wd) {
        if (b->x_bsf) put_range(t, "; the features are", range_of(b->x_bsf));
        return;
    }
    range r = empty;
    const int64_t nd = kr_dim_of(table_wd, 1);
    for (int64_t i = 0; i < kr_count_of(b->ids_bs); i++)
        for (int64_t d = 0; d < nd; d++) take(&r, element(table_wd, (int64_t)element(b->ids_bs, i) * nd + d));
    put_range(t, "; the embeddings of the tokens are", r);
}

static bool explain_loss(search *s, double loss)
{
    int64_t v = 0;
    while (v < s->count && is_finite(s->streams[v])) v++;
    text where = { .length = 0 }, values = { .length = 0 }, op = { .length = 0 };
    if (v < s->count) {
        put(&where, "it began in ");
        put_layer(&where, s, v);
        put(&where, ", ");
        put_token(&where, &s->batch, s->streams[v], range_of(s->streams[v]).first);
        if (v > 0) put_range(&values, "; the stream before the layer is", range_of(s->streams[v - 1]));
        else put_input(&values, s);
        put_range(&values, "; after it", range_of(s->streams[v]));
    } else if (s->count > 0) {
        put(&where, "it began after the last layer");
        put_range(&values, "; the stream there is", range_of(s->streams[s->count - 1]));
    } else {
        put(&where, "it is the loss of options.loss_fn");
    }
    put_op(&op, s);
    return kr_fail(s->ctx, KR_ERR_NUMERIC, "the loss is %g; %s%s%s%s", shown(loss), where.at, op.length ? ", in " : "",
                   op.at, values.at);
}

/* ---- backward ---- */

static bool explain_gradient(search *s, const kr_param_row *row, double loss)
{
    text where = { .length = 0 };
    const kr_tensor *before = NULL, *behind = NULL; /* gradients of the streams around the layer */
    int64_t v = s->count - 1;
    for (; v >= 0; v--, behind = before) {
        before = kr_grad(s->streams[v]);
        if (!before || !is_finite(before)) break;
    }
    if (v >= 0 && before && v == s->count - 1) {
        put(&where, "; it began after the last layer, ");
        put_token(&where, &s->batch, before, range_of(before).first);
        put_range(&where, ": the stream's gradient there is", range_of(before));
    } else if (v >= 0 && before) {
        put(&where, "; it began in the backward pass of ");
        put_layer(&where, s, v + 1);
        put(&where, ", ");
        put_token(&where, &s->batch, before, range_of(before).first);
        put_range(&where, ": the stream's gradient after the layer is", range_of(behind));
        put_range(&where, "; before it", range_of(before));
    } else if (s->count > 0) {
        put(&where, "; the gradients of the stream between the layers are finite");
    }
    const kr_tensor *grad = kr_grad(row->tensor);
    const range r = range_of(grad);
    char index[KR_SHAPE_TEXT_BYTES];
    return kr_fail(s->ctx, KR_ERR_NUMERIC, "the loss is %g, but the gradient of %s %s holds %g at %s%s", loss,
                   row->name, KR_TEXT_OF(grad), r.bad, kr_index_text(grad, r.first, index, sizeof index), where.at);
}

static const kr_param_row *first_bad_gradient(const kr_trainer *t)
{
    for (int64_t i = 0; i < kr_params_count(t->params); i++) {
        const kr_param_row *row = kr_params_at(t->params, i);
        if (row->tensor->flags.requires_grad && !is_finite(kr_grad(row->tensor))) return row;
    }
    return NULL;
}

/* ---- all of it ---- */

/* One batch: true if it is fine. */
static bool search_batch(search *s, const kr_step_start *start, int64_t m)
{
    kr_trainer *t = s->t;
    kr_tape_reset(t->tape);
    if (!kr_trainer_place(t, start, m)) return true;
    s->at = kr_loader_snapshot(t->loader);
    s->random = kr_random_position_of(s->ctx);
    s->state = m == 0 ? t->carried : t->moving;
    if (t->ranks > 1 && t->carried && !t->seq && m == kr_rank_first(t, t->rank, t->o.accumulate) && !kr_carry_again(t))
        return false;
    if (kr_loader_next(t->tape, t->loader, &s->batch) != KR_OK || !check_input(s)) return false;
    const kr_loss_out out = kr_trainer_loss(t, t->tape, &s->batch, s->state, NULL, s->streams);
    if (!out.loss) return false;
    const double loss = kr_item(out.loss);
    const int64_t n = out.scores.scored;
    if (!isfinite(loss)) return explain_loss(s, loss);
    for (int64_t v = 0; v < s->count; v++)
        if (kr_requires_grad(s->streams[v])) kr_retain_grad(s->streams[v]);
    if (n > 0 && !kr_trainer_back_propagate(t, t->tape, out.loss, n)) return false;
    const kr_param_row *row = first_bad_gradient(t);
    if (row) return explain_gradient(s, row, loss);
    return !t->moving || kr_state_copy(t->moving, out.state) == KR_OK;
}

static void search_step(search *s)
{
    const kr_step_start start = kr_step_start_of(s->t);
    if (!kr_trainer_check_weights(s->t)) return;
    const kr_trainer *t = s->t; /* of rows in pieces, all of them */
    const int64_t first = kr_rank_first(t, t->rank, t->leaves) % t->o.accumulate;
    const int64_t end = first + (t->leaves / t->ranks < t->o.accumulate ? t->leaves / t->ranks : t->o.accumulate);
    for (int64_t m = first; m < end; m++) {
        if (search_batch(s, &start, m)) continue;
        if (s->t->o.accumulate > 1 && kr_ctx_failed(s->ctx))
            kr_blame(s->ctx, "batch %lld of %lld", (long long)m + 1, (long long)s->t->o.accumulate);
        return;
    }
}

/* Streams are recorded only if the trainer runs the network itself. */
static void allocate_streams(search *s)
{
    if (!s->t->net || s->t->o.loss_fn) return;
    s->count = s->t->net->layers->nvirtual;
    s->streams = kr_memory_alloc_zeroed(&s->ctx->memory, (size_t)s->count * sizeof(kr_tensor *));
    if (!s->streams) s->count = 0;
}

bool kr_trainer_diagnose(kr_trainer *t)
{
    kr_ctx *ctx = t->ctx;
    const kr_step_start start = kr_step_start_of(t);
    const kr_held_error first = kr_hold_error(ctx);
    search s = { .t = t, .ctx = ctx };
    const bool checks = ctx->check_finite;
    ctx->check_finite = false; /* which would stop at the first op, before layer and token are known */
    allocate_streams(&s);
    search_step(&s);
    ctx->check_finite = checks;
    const kr_held_error found = kr_hold_error(ctx);
    if (s.streams) kr_memory_free(&ctx->memory, s.streams, (size_t)s.count * sizeof(kr_tensor *));
    kr_trainer_return(t, &start);
    kr_params_zero_grad(t->params);
    kr_tape_reset(t->tape);
    kr_return_error(ctx, found.status == KR_ERR_NUMERIC ? &found : &first);
    if (found.status != KR_ERR_NUMERIC) return false;
    kr_blame(ctx, "trainer.step: step %lld", (long long)t->progress.step + 1);
    return true;
}
