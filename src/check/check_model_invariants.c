/* check_model_invariants.c - invariants of a model without recorded results, on random tokens.
 *
 * A whole sequence, chunks and single tokens give the same logits, states and gradients, up to rounding; results are
 * the same bits for any number of threads, and independent of the other rows of the batch. On a device: a second run
 * gives the same bits, and a row is independent of others up to rounding, since products of other sizes are tiled
 * differently.
 */
#include "check/check_model.h"

#include "base/ctx_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 3 };

/* Parameters whose gradients are compared; with more they would take longer than anyone waits. */
static const int64_t most_elements = 50000000;

/* One tensor among the results. */
typedef struct section {
    char name[112];
    int64_t from, count;
    bool is_angle; /* equal modulo whole turns */
} section;

/* All numbers of a run, one tensor after another. */
typedef struct numbers {
    kr_ctx *ctx;
    int64_t nsections, count;
    section *sections;
    double *values;
} numbers;

typedef enum split_kind { AT_ONCE, IN_PIECES, BY_STEPS, ROW_ALONE } split_kind;

typedef struct invariants {
    check_tally *tally;
    const kr_check_options *options;
    kr_ctx *ctx; /* of the model */
    const kr_model *model;
    const kr_network *net;
    int64_t ns, width;
    bool has_gradients;
    int64_t *ids; /* [ROWS, ns] */
} invariants;

/* ---- numbers ---- */

static void numbers_free(numbers *n)
{
    check_free(n->sections);
    check_free(n->values);
    *n = (numbers){ 0 };
}

/* One more tensor, of so many elements; x NULL: zeros. False when out of memory. */
static bool take(numbers *n, const char *name, const kr_tensor *x, int64_t count, bool is_angle)
{
    section *sections = check_grow(n->ctx, n->sections, (size_t)(n->nsections + 1) * sizeof *sections);
    if (sections) n->sections = sections;
    double *values = check_grow(n->ctx, n->values, (size_t)(n->count + count + 1) * sizeof *values);
    if (values) n->values = values;
    if (!sections || !values) return false;
    memset(values + n->count, 0, (size_t)count * sizeof *values);
    if (x && kr_tensor_read(x, KR_DTYPE_F64, values + n->count, count) != KR_OK) return false;
    section *s = &n->sections[n->nsections++];
    snprintf(s->name, sizeof s->name, "%s", name);
    s->from = n->count;
    s->count = count;
    s->is_angle = is_angle;
    n->count += count;
    return true;
}

static bool take_states(const invariants *l, numbers *n, const kr_state *state)
{
    const kr_model_config *c = kr_model_config_of(l->model);
    const bool has_angles = c->family == KR_FAMILY_MAMBA3 && c->mamba3->rotation == KR_ROTATION_COMPLEX;
    for (int64_t slot = 0; slot < kr_state_slots(state); slot++) {
        const kr_cache *cache = kr_state_cache(state, slot);
        for (int i = 0; i < kr_cache_count(c->family); i++) {
            char name[64];
            const char *of = kr_cache_name(c->family, i);
            snprintf(name, sizeof name, "%s state of layer %" PRId64, of, slot);
            if (!take(n, name, cache->tensors[i], kr_tensor_count(cache->tensors[i]),
                      has_angles && !strcmp(of, "rotation")))
                return false;
        }
    }
    return true;
}

static bool take_gradients(const invariants *l, numbers *n)
{
    const kr_params *params = kr_network_params(l->net);
    for (int64_t i = 0; i < kr_params_count(params); i++) {
        char name[112];
        const kr_param_row *row = kr_params_at(params, i);
        snprintf(name, sizeof name, "gradient of %.80s", row->name);
        if (!take(n, name, kr_grad(row->tensor), kr_tensor_count(row->tensor), false)) return false;
    }
    return true;
}

/* ---- runs ---- */

/* How some rows are read: from row b on, part by part. */
typedef struct script {
    int64_t b, nb;
    int64_t nparts;
    const int64_t *parts; /* tokens of each; one token is a step */
    bool is_recorded;
} script;

/* The numbers of one part's logits into their place in [b s w]. */
static bool read_logits(const invariants *l, const kr_tensor *y, const script *k, int64_t from, int64_t ns,
                        double *logits)
{
    const int64_t count = k->nb * ns * l->width;
    double *part = check_alloc(l->ctx, (size_t)count * sizeof *part);
    const bool ok = part && kr_tensor_read(y, KR_DTYPE_F64, part, count) == KR_OK;
    for (int64_t b = 0; ok && b < k->nb; b++)
        memcpy(logits + (b * l->ns + from) * l->width, part + b * ns * l->width,
               (size_t)(ns * l->width) * sizeof *part);
    check_free(part);
    return ok;
}

/* Reads by the script. Logits go to `logits`, states to `own`; if recorded, *y is the logits on the tape, and nothing is
 * released in between. */
static bool read_parts(const invariants *l, kr_tape *tape, const script *k, double *logits, kr_state *own,
                       kr_tensor **y)
{
    kr_tensor **parts = check_alloc(l->ctx, ((size_t)k->nparts) * sizeof *parts);
    kr_call call;
    kr_call_init(&call);
    int64_t from = 0;
    bool ok = parts != NULL;
    for (int64_t i = 0; ok && i < k->nparts; i++) {
        const int64_t ns = k->parts[i];
        kr_tensor *id_bs = kr_view_data(tape, KR_DTYPE_I64, KR_SHAPE(k->nb, l->ns), NULL, l->ids + k->b * l->ns);
        kr_tensor *part = kr_slice(tape, id_bs, 1, from, from + ns);
        const kr_network_out out = ns == 1
                                       ? kr_network_step(tape, l->net, kr_reshape(tape, part, KR_SHAPE(k->nb)), &call)
                                       : kr_network_forward(tape, l->net, part, &call);
        parts[i] = kr_reshape(tape, out.y, KR_SHAPE(k->nb, ns, l->width));
        ok = parts[i] && read_logits(l, parts[i], k, from, ns, logits) && kr_state_copy(own, out.state) == KR_OK;
        call.state = k->is_recorded ? out.state : own;
        if (!k->is_recorded) kr_tape_reset(tape);
        from += ns;
    }
    if (ok && k->is_recorded) *y = kr_concat(tape, 1, (int)k->nparts, parts);
    check_free(parts);
    return ok;
}

/* Mean cross-entropy of each token but the first, given those before it. */
static kr_tensor *loss_of(const invariants *l, kr_tape *tape, kr_tensor *logits)
{
    kr_tensor *id_bs = kr_view_data(tape, KR_DTYPE_I64, KR_SHAPE(ROWS, l->ns), NULL, l->ids);
    kr_tensor *next = kr_reshape(tape, kr_slice(tape, id_bs, 1, 1, l->ns), KR_SHAPE(ROWS, l->ns - 1, 1));
    kr_tensor *before = kr_slice(tape, logits, 1, 0, l->ns - 1);
    return kr_neg(tape, kr_mean(tape, kr_gather(tape, kr_log_softmax(tape, before, -1), 2, next), KR_ALL_AXES, false));
}

static bool run_script(const invariants *l, const script *k, numbers *n)
{
    kr_tape *tape = kr_tape_create(l->ctx, k->is_recorded ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD);
    kr_state *state = kr_state_create(l->ctx, kr_network_layers(l->net), k->nb);
    kr_tensor *y = NULL;
    bool ok = take(n, "logits", NULL, k->nb * l->ns * l->width, false) &&
              read_parts(l, tape, k, n->values, state, &y) && take_states(l, n, state);
    if (ok && k->is_recorded) {
        kr_params_zero_grad(kr_network_params(l->net));
        ok = kr_backward(tape, loss_of(l, tape, y)) == KR_OK && take_gradients(l, n);
    }
    if (!ok) kr_fail(l->ctx, KR_ERR_NOMEM, "out of memory for the results of a run");
    ok = !check_failed(l->tally, l->ctx) && ok;
    kr_state_destroy(state);
    kr_tape_destroy(tape);
    return ok;
}

/* The results of one split to read the tokens, `row` for ROW_ALONE. False after a reported error. */
static bool run(const invariants *l, split_kind split, int64_t row, numbers *n)
{
    enum { STEPS = 3 };
    const int64_t pieces[STEPS + 2] = { l->ns / 3, 1, 1, 1, l->ns - l->ns / 3 - STEPS };
    int64_t *steps = check_alloc(l->ctx, (size_t)l->ns * sizeof *steps);
    script k = { 0, ROWS, 1, &l->ns, l->has_gradients };
    for (int64_t s = 0; steps && s < l->ns; s++) steps[s] = 1;
    if (split == IN_PIECES) k = (script){ 0, ROWS, STEPS + 2, pieces, l->has_gradients };
    if (split == BY_STEPS) k = (script){ 0, ROWS, l->ns, steps, false };
    if (split == ROW_ALONE) k = (script){ row, 1, 1, &l->ns, false };
    n->ctx = l->ctx;
    const bool ok = steps && run_script(l, &k, n);
    check_free(steps);
    return ok;
}

/* ---- comparing ---- */

static double section_distance(const section *s, const double *got, const double *want)
{
    const double two_pi = 6.283185307179586476925;
    double difference = 0, scale = 0;
    for (int64_t i = 0; i < s->count; i++) {
        double d = fabs(got[i] - want[i]);
        if (s->is_angle) d = fabs(d - two_pi * nearbyint(d / two_pi));
        if (isnan(d)) return NAN;
        difference = fmax(difference, d);
        scale = fmax(scale, fabs(want[i]));
    }
    return scale > 0 ? difference / scale : difference;
}

/* The worst section of those that both have; the first `got` ones. */
static void report_distance(check_tally *t, const char *what, const numbers *got, const numbers *want, double most)
{
    double worst = 0;
    const char *where = "logits";
    for (int64_t i = 0; i < got->nsections; i++) {
        const section *s = &got->sections[i];
        const double d = section_distance(s, got->values + s->from, want->values + s->from);
        if (!(d > worst) && !isnan(d)) continue;
        worst = d;
        where = s->name;
        if (isnan(d)) break;
    }
    char text[240];
    snprintf(text, sizeof text, "worst relative error %.1e in %s (at most %.1e)", worst, where, most);
    check_report(t, worst <= most, what, text, (check_measure){ worst, most });
}

/* Row `row` of all rows' results against the same row alone; ROWS rows in each tensor of the whole. The worst distance, or
 * with `bits` 0 for the same bits and infinity for others; NaN: they are not of one size. */
static double row_distance(const numbers *alone, const numbers *whole, int64_t row, bool bits, const char **where)
{
    double worst = 0;
    for (int64_t i = 0; i < alone->nsections; i++) {
        const section *a = &alone->sections[i], *w = &whole->sections[i];
        const double *of_whole = whole->values + w->from + row * a->count, *of_alone = alone->values + a->from;
        double d = NAN;
        if (w->count == ROWS * a->count && bits)
            d = memcmp(of_alone, of_whole, (size_t)a->count * sizeof *of_whole) == 0 ? 0 : INFINITY;
        else if (w->count == ROWS * a->count) d = section_distance(a, of_alone, of_whole);
        if (d <= worst) continue;
        worst = d;
        *where = a->name;
        if (isnan(d)) break;
    }
    return worst;
}

static double values_tolerance(const invariants *l);

static void check_rows(const invariants *l, check_tally *t, const numbers *whole)
{
    const bool on_device = check_on_device(l->ctx);
    const double most = on_device ? values_tolerance(l) : 0;
    const char *where = "logits";
    char text[240] = "did not run";
    double worst = 0;
    bool ok = true;
    for (int64_t row = 0; ok && row < ROWS; row++) {
        numbers alone = { 0 };
        ok = run(l, ROW_ALONE, row, &alone);
        const double d = ok ? row_distance(&alone, whole, row, !on_device, &where) : 0;
        if (ok && !(d <= most)) {
            snprintf(text, sizeof text, "%s in %.112s of row %" PRId64, on_device ? "other numbers" : "other bits",
                     where, row);
            ok = false;
        }
        worst = fmax(worst, d);
        numbers_free(&alone);
    }
    if (ok && on_device)
        snprintf(text, sizeof text, "worst relative error %.1e in %.112s (at most %.1e)", worst, where, most);
    else if (ok) snprintf(text, sizeof text, "the same bits, logits and states of %d rows", ROWS);
    check_report(t, ok, "batch: a row alone = among others", text, (check_measure){ worst, most });
}

/* The same results by another copy of the model in a context of one thread. */
static void check_one_thread(const invariants *l, check_tally *t, const numbers *whole)
{
    const kr_check_options *o = l->options;
    const check_setup setup = { o->isa, 1, o->dtype, o->seed, o->device, t, true };
    invariants one = *l;
    numbers n = { 0 };
    char what[64], text[240] = "did not run";
    one.ctx = check_open(&setup);
    kr_model *model = check_failed(t, one.ctx) ? NULL : check_model_load(t, one.ctx);
    if (!model) check_failed(t, one.ctx);
    one.model = model;
    one.net = kr_model_network(model);
    bool ok = model && run(&one, AT_ONCE, 0, &n);
    if (ok) {
        int64_t at = 0;
        ok = n.count == whole->count;
        while (ok && at < n.nsections &&
               !memcmp(n.values + n.sections[at].from, whole->values + n.sections[at].from,
                       (size_t)n.sections[at].count * sizeof *n.values))
            at++;
        ok = ok && at == n.nsections;
        if (ok)
            snprintf(text, sizeof text, "the same bits, logits, states%s", l->has_gradients ? " and gradients" : "");
        else snprintf(text, sizeof text, "other bits in %.112s", at < n.nsections ? n.sections[at].name : "all");
    }
    if (check_on_device(l->ctx)) snprintf(what, sizeof what, "run to run");
    else snprintf(what, sizeof what, "threads: 1 = %d", kr_ctx_threads(l->ctx));
    check_report(t, ok, what, text, (check_measure){ ok ? 0 : NAN, 0 });
    numbers_free(&n);
    kr_model_destroy(model);
    kr_ctx_destroy(one.ctx);
}

/* ---- all of them ---- */

/* Rounding error of one layer; independent errors of layers add up by their squares. A 16-bit stream is rounded to its
 * type. */
static double values_tolerance(const invariants *l)
{
    const kr_dtype dtype = l->options->dtype;
    const bool is_16bit = dtype == KR_DTYPE_BF16 || dtype == KR_DTYPE_F16;
    const double depth = sqrt((double)kr_layers_virtual(kr_network_layers(l->net)));
    if (l->options->tolerance >= 0) return l->options->tolerance;
    if (is_16bit && !kr_model_config_of(l->model)->layers->residual_in_f32) return 1e-2 * depth;
    return depth * (dtype == KR_DTYPE_F64 ? 1e-12 : 1e-5);
}

/* Sums over all tokens; gradients of 16-bit weights are 16-bit. */
static double gradients_tolerance(const invariants *l)
{
    const kr_dtype dtype = l->options->dtype;
    if (l->options->grad_tolerance >= 0) return l->options->grad_tolerance;
    return 10 * values_tolerance(l) + (dtype == KR_DTYPE_BF16 || dtype == KR_DTYPE_F16 ? 2e-2 : 0);
}

static void compare_splits(const invariants *l, check_tally *t, const numbers *whole)
{
    const double values = values_tolerance(l), grads = gradients_tolerance(l);
    const char *const what[] = { [BY_STEPS] = "steps = forward", [IN_PIECES] = "pieces = forward" };
    for (int split = IN_PIECES; split <= BY_STEPS; split++) {
        numbers n = { 0 }, head;
        if (!run(l, (split_kind)split, 0, &n)) {
            check_report(t, false, what[split], "did not run", (check_measure){ NAN, values });
        } else {
            char text[80];
            int64_t nvalues = 0;
            while (nvalues < n.nsections && strncmp(n.sections[nvalues].name, "gradient", 8) != 0) nvalues++;
            head = n;
            head.nsections = nvalues;
            snprintf(text, sizeof text, "%s, logits and states", what[split]);
            report_distance(t, text, &head, whole, values);
            head.sections += nvalues;
            head.nsections = n.nsections - nvalues;
            snprintf(text, sizeof text, "%s, gradients", what[split]);
            if (head.nsections) report_distance(t, text, &head, whole, grads);
        }
        numbers_free(&n);
    }
}

static bool draw_ids(invariants *l)
{
    const int64_t vocab = kr_model_config_of(l->model)->network->vocab_size;
    uint64_t z = l->options->seed * 0x9E3779B97F4A7C15u + 1;
    l->ids = check_alloc(l->ctx, (size_t)(ROWS * l->ns) * sizeof *l->ids);
    for (int64_t i = 0; l->ids && i < ROWS * l->ns; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        l->ids[i] = (int64_t)((z >> 33) % (uint64_t)vocab);
    }
    return kr_require(l->ctx, l->ids != NULL, KR_ERR_NOMEM, "out of memory for %lld ids", (long long)(ROWS * l->ns));
}

bool check_model_invariants(check_tally *t, kr_ctx *ctx, const kr_model *model)
{
    const kr_network *net = kr_model_network(model);
    invariants l = { .tally = t,
                     .options = t->options,
                     .ctx = ctx,
                     .model = model,
                     .net = net,
                     .ns = t->options->tokens,
                     .width = kr_network_width(net),
                     .has_gradients = kr_params_elements(kr_network_params(net)) <= most_elements };
    numbers whole = { 0 };
    if (!draw_ids(&l)) return false;
    if (!l.has_gradients) {
        char text[100];
        snprintf(text, sizeof text, "gradients are not compared: there are more than %" PRId64 " M parameters",
                 most_elements / 1000000);
        check_print(t, KR_CHECK_NOTE, NULL, text);
    }
    const bool ran = run(&l, AT_ONCE, 0, &whole);
    if (ran) {
        compare_splits(&l, t, &whole);
        check_rows(&l, t, &whole);
        check_one_thread(&l, t, &whole);
    }
    numbers_free(&whole);
    check_free(l.ids);
    return ran;
}
