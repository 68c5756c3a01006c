/* check_against.c - a model's numbers against those that another program recorded.
 *
 *   input_ids [b s]                 the tokens
 *   logits [b s w], logits_f64      the logits; hidden [b s d] the input of the head, hidden/l the residual
 *                                   stream after layer l, and behind the last layer's the same as hidden
 *   labels [b s], loss              mean over all positions of the cross-entropy with labels (-100: none); without
 *                                   labels the next token is the label, and the last position has none
 *   grad/PARAMETER                  of that loss
 *   step_logits [b s w]             token by token; final_conv_state/l, final_ssm_state/l the final state of layer l
 *   gen_ids [b t]                   the first tokens of input_ids, then the most probable token each time, but never one
 *                                   that ends a text
 *   padded_ids, padded_mask [b s], padded_logits [b s w]      0 in the mask: padding
 *
 * Any of them but input_ids may be missing. Other tensors are named, and not compared.
 */
#include "check/check_model.h"

#include "base/ctx_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IGNORED_LABEL = -100, MOST_LOGITS = 1 << 24 }; /* logits of one call at most, if a row of tokens allows it */

typedef struct id_matrix {
    int64_t nb, ns;
    int64_t *ids; /* NULL: there is none */
} id_matrix;

typedef struct against {
    check_tally *tally;
    const kr_check_options *options;
    kr_ctx *ctx;
    const kr_model *model;
    const kr_network *net;
    const kr_tensor_file *file;
    int64_t nlayers, width;
    id_matrix ids, labels, generated, padded, mask;
    int64_t nprompt;
    recorded_check *checks;
    int64_t nchecks;
    bool has[RECORDED_PARTS];
    double loss;
    kr_tensor **streams; /* space for one of each layer */
} against;

/* ---- tokens ---- */

/* An integer matrix [b s] with numbers from `least` to `most`, or -100 where allowed. True if it is fine or missing. */
static bool read_ids(against *a, const char *name, int64_t least, int64_t most, bool may_ignore, id_matrix *m)
{
    const kr_tensor_file_item *item = kr_tensor_file_find(a->file, name);
    const char *path = a->options->against;
    if (!item) return true;
    if (item->shape.rank != 2 || item->count == 0) {
        kr_fail(a->ctx, KR_ERR_FORMAT, "%s: %s has rank %d and %" PRId64 " elements, but must be [rows, tokens]", path,
                name, item->shape.rank, item->count);
        return false;
    }
    *m = (id_matrix){ item->shape.dims[0], item->shape.dims[1],
                      check_alloc(a->ctx, (size_t)item->count * sizeof(int64_t)) };
    if (!m->ids || kr_tensor_file_read(a->file, item, KR_DTYPE_I64, m->ids, item->count) != KR_OK) {
        kr_fail(a->ctx, KR_ERR_FORMAT, "%s: %s: %s", path, name, m->ids ? "cannot be read" : "out of memory");
        return false;
    }
    for (int64_t i = 0; i < item->count; i++)
        if ((m->ids[i] < least || m->ids[i] > most) && !(may_ignore && m->ids[i] == IGNORED_LABEL)) {
            kr_fail(a->ctx, KR_ERR_FORMAT,
                    "%s: %s [%" PRId64 ", %" PRId64 "] is %" PRId64 ", but must be from %" PRId64 " to %" PRId64, path,
                    name, i / m->ns, i % m->ns, m->ids[i], least, most);
            return false;
        }
    return true;
}

static bool has_shape_of(against *a, const id_matrix *m, const char *name, const id_matrix *of, const char *of_name)
{
    if (!m->ids || (m->nb == of->nb && m->ns == of->ns)) return true;
    kr_fail(a->ctx, KR_ERR_FORMAT, "%s: %s is [%" PRId64 ", %" PRId64 "], but %s is [%" PRId64 ", %" PRId64 "]",
            a->options->against, name, m->nb, m->ns, of_name, of->nb, of->ns);
    return false;
}

/* The prompt is the common prefix of generated and input_ids, in all rows, without at least one last token. */
static bool find_prompt(against *a)
{
    const id_matrix *g = &a->generated, *x = &a->ids;
    if (!g->ids) return true;
    if (g->nb != x->nb) {
        kr_fail(a->ctx, KR_ERR_FORMAT, "%s: gen_ids has %" PRId64 " rows, but input_ids has %" PRId64,
                a->options->against, g->nb, x->nb);
        return false;
    }
    a->nprompt = g->ns - 1 < x->ns ? g->ns - 1 : x->ns;
    for (int64_t b = 0; b < g->nb; b++)
        for (int64_t s = 0; s < a->nprompt; s++)
            if (g->ids[b * g->ns + s] != x->ids[b * x->ns + s]) a->nprompt = s;
    if (a->nprompt > 0) return true;
    kr_fail(a->ctx, KR_ERR_FORMAT, "%s: gen_ids does not begin with the tokens of input_ids", a->options->against);
    return false;
}

static bool read_inputs(against *a)
{
    const int64_t most = a->width - 1;
    if (!kr_tensor_file_find(a->file, "input_ids")) {
        return kr_fail(a->ctx, KR_ERR_FORMAT, "%s has no tensor input_ids; tests/golden/README.md describes such files",
                       a->options->against);
    }
    return read_ids(a, "input_ids", 0, most, false, &a->ids) && read_ids(a, "labels", 0, most, true, &a->labels) &&
           read_ids(a, "gen_ids", 0, most, false, &a->generated) &&
           read_ids(a, "padded_ids", 0, most, false, &a->padded) && read_ids(a, "padded_mask", 0, 1, false, &a->mask) &&
           has_shape_of(a, &a->labels, "labels", &a->ids, "input_ids") &&
           has_shape_of(a, &a->mask, "padded_mask", &a->padded, "padded_ids") && find_prompt(a);
}

/* ---- compared tensors ---- */

static recorded_check *add_check(against *a, const kr_tensor_file_item *item, recorded_part part)
{
    static const int lead[RECORDED_PARTS] = {
        [RECORDED_LOGITS] = 2,      [RECORDED_HIDDEN] = 2,   [RECORDED_STREAM] = 2,
        [RECORDED_STEP_LOGITS] = 2, [RECORDED_CONV] = 1,     [RECORDED_SSM] = 1,
        [RECORDED_STEP_CONV] = 1,   [RECORDED_STEP_SSM] = 1, [RECORDED_PADDED_LOGITS] = 2
    };
    const kr_check_options *o = a->options;
    const id_matrix *of = part == RECORDED_PADDED_LOGITS ? &a->padded : &a->ids;
    const double values = o->tolerance < 0 ? 5e-6 : o->tolerance,
                 grads = o->grad_tolerance < 0 ? 1e-4 : o->grad_tolerance;
    recorded_check *check = &a->checks[a->nchecks++];
    *check = recorded_begin(a->ctx, a->file, item, part, lead[part], of->nb, of->ns,
                            part == RECORDED_GENERATED  ? 0
                            : part == RECORDED_GRADIENT ? grads
                                                        : values);
    a->has[part] = true;
    return check;
}

/* The number behind a prefix: "hidden/12" -> 12; -1 for another name. */
static int64_t number_after(const char *name, const char *prefix)
{
    const size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || strlen(name + n) == 0 || strlen(name + n) > 6) return -1;
    return strspn(name + n, "0123456789") == strlen(name + n) ? strtol(name + n, NULL, 10) : -1;
}

/* The parameter of a gradient by either spelling; a tied head is the embedding. */
static const kr_param_row *find_param(const against *a, const char *name)
{
    const kr_params *params = kr_network_params(a->net);
    const kr_param_row *row = kr_params_find(params, name);
    if (!row && (!strcmp(name, "backbone.embeddings.weight") || !strcmp(name, "lm_head.weight")))
        row = kr_params_find(params, "backbone.embedding.weight");
    return row;
}

static void add_gradient(against *a, const kr_tensor_file_item *item, const char *name)
{
    recorded_check *check = add_check(a, item, RECORDED_GRADIENT);
    const kr_param_row *row = find_param(a, name);
    if (row) check->param = row->tensor;
    else recorded_trouble(check, "the model has no such parameter");
}

static void add_layer(against *a, const kr_tensor_file_item *item, recorded_part part, int64_t layer, int64_t most)
{
    recorded_check *check = add_check(a, item, part);
    check->layer = layer;
    if (layer > most) recorded_trouble(check, "the model has layers 0 to %" PRId64 " only", a->nlayers - 1);
}

static void add_states(against *a, const kr_tensor_file_item *item, int64_t layer, recorded_part whole,
                       recorded_part steps)
{
    add_layer(a, item, whole, layer, a->nlayers - 1);
    add_layer(a, item, steps, layer, a->nlayers - 1);
    a->checks[a->nchecks - 1].note = ", steps";
}

/* One tensor of the file; false if it is not known. */
static bool add_item(against *a, const kr_tensor_file_item *item)
{
    static const char *const inputs[] = { "input_ids", "labels", "padded_ids", "padded_mask" };
    const char *name = item->name;
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, inputs[i])) return true;
    const int64_t hidden = number_after(name, "hidden/"), conv = number_after(name, "final_conv_state/"),
                  ssm = number_after(name, "final_ssm_state/");
    if (!strcmp(name, "logits")) {
        add_check(a, item, RECORDED_LOGITS);
        if (kr_tensor_file_find(a->file, "step_logits")) return true;
        add_check(a, item, RECORDED_STEP_LOGITS)->note = ", steps"; /* one truth for both */
    } else if (!strcmp(name, "logits_f64")) add_check(a, item, RECORDED_LOGITS);
    else if (!strcmp(name, "hidden") || hidden == a->nlayers) add_check(a, item, RECORDED_HIDDEN);
    else if (hidden >= 0) add_layer(a, item, RECORDED_STREAM, hidden, a->nlayers);
    else if (!strcmp(name, "loss")) add_check(a, item, RECORDED_LOSS);
    else if (!strncmp(name, "grad/", 5)) add_gradient(a, item, name + 5);
    else if (!strcmp(name, "step_logits")) add_check(a, item, RECORDED_STEP_LOGITS);
    else if (conv >= 0) add_states(a, item, conv, RECORDED_CONV, RECORDED_STEP_CONV);
    else if (ssm >= 0) add_states(a, item, ssm, RECORDED_SSM, RECORDED_STEP_SSM);
    else if (!strcmp(name, "gen_ids")) add_check(a, item, RECORDED_GENERATED);
    else if (!strcmp(name, "padded_logits") && a->padded.ids) add_check(a, item, RECORDED_PADDED_LOGITS);
    else return false;
    return true;
}

static bool list_checks(against *a)
{
    const int64_t count = kr_tensor_file_count(a->file);
    a->checks = check_alloc(a->ctx, (2 * (size_t)count + 1) * sizeof *a->checks);
    a->streams = check_alloc(a->ctx, ((size_t)a->nlayers + 1) * sizeof *a->streams);
    if (!a->checks || !a->streams) {
        kr_fail(a->ctx, KR_ERR_NOMEM, "out of memory");
        return false;
    }
    for (int64_t i = 0; i < count; i++)
        if (!add_item(a, kr_tensor_file_at(a->file, i))) {
            const recorded_name name = recorded_shown(kr_tensor_file_at(a->file, i)->name);
            a->tally->name_width = 0;
            check_print(a->tally, KR_CHECK_SKIPPED, name.text,
                        "is not compared: files of this kind have no such tensor");
        }
    if (a->nchecks == 0) {
        return kr_fail(a->ctx, KR_ERR_FORMAT,
                       "%s has nothing that could be compared; tests/golden/README.md describes such files",
                       a->options->against);
    }
    return true;
}

/* ---- whole rows ---- */

/* A piece of the rows: nb rows from b on, ns tokens of each from s on. */
typedef struct piece {
    int64_t b, nb, s, ns;
} piece;

static kr_tensor *cut(kr_tape *tape, const id_matrix *m, const piece *p)
{
    kr_tensor *all = kr_view_data(tape, KR_DTYPE_I64, KR_SHAPE(m->nb, m->ns), NULL, m->ids);
    return kr_slice(tape, kr_slice(tape, all, 0, p->b, p->b + p->nb), 1, p->s, p->s + p->ns);
}

/* The position's label, or IGNORED_LABEL. */
static int64_t label_at(const against *a, int64_t b, int64_t s)
{
    if (a->labels.ids) return a->labels.ids[b * a->ids.ns + s];
    return s + 1 < a->ids.ns ? a->ids.ids[b * a->ids.ns + s + 1] : IGNORED_LABEL;
}

static int64_t count_labels(const against *a)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->ids.nb * a->ids.ns; i++) n += label_at(a, i / a->ids.ns, i % a->ids.ns) != IGNORED_LABEL;
    return n;
}

/* The share that the piece's positions have in the loss. */
static kr_tensor *loss_of(against *a, kr_tape *tape, kr_tensor *logits, const piece *p)
{
    const int64_t count = p->nb * p->ns;
    int64_t *label = check_alloc(a->ctx, (size_t)count * sizeof *label);
    double *weight = check_alloc(a->ctx, (size_t)count * sizeof *weight);
    kr_tensor *loss = NULL;
    if (label && weight) {
        for (int64_t i = 0; i < count; i++) {
            label[i] = label_at(a, p->b + i / p->ns, p->s + i % p->ns);
            weight[i] = label[i] != IGNORED_LABEL;
            if (label[i] == IGNORED_LABEL) label[i] = 0;
        }
        const kr_shape shape = KR_SHAPE(p->nb, p->ns, 1);
        kr_tensor *right =
            kr_gather(tape, kr_log_softmax(tape, logits, -1), 2, kr_from_data(tape, KR_DTYPE_I64, shape, label));
        kr_tensor *weights = kr_cast(tape, kr_from_data(tape, KR_DTYPE_F64, shape, weight), kr_tensor_dtype(right));
        loss = kr_scale(tape, kr_sum(tape, kr_mul(tape, right, weights), KR_ALL_AXES, false),
                        -1.0 / fmax(1, (double)count_labels(a)));
    }
    check_free(label);
    check_free(weight);
    return loss;
}

static void compare_state(against *a, const kr_state *state, recorded_part conv, recorded_part ssm, int64_t row)
{
    for (int64_t i = 0; i < a->nchecks; i++) {
        recorded_check *check = &a->checks[i];
        if ((check->part != conv && check->part != ssm) || check->trouble[0]) continue;
        const kr_cache *cache = kr_state_cache(state, check->layer);
        const char *wanted = check->part == conv ? "conv" : "ssm";
        for (int k = 0; cache && k < kr_cache_count(cache->family); k++)
            if (!strcmp(kr_cache_name(cache->family, k), wanted)) recorded_compare(check, cache->tensors[k], row, 0);
    }
}

/* Logits, hidden states and streams of a piece. */
static void compare_outputs(against *a, const kr_network_out *out, const piece *p)
{
    for (int64_t i = 0; i < a->nchecks; i++) {
        recorded_check *check = &a->checks[i];
        const kr_tensor *got = check->part == RECORDED_LOGITS                                ? out->y
                               : check->part == RECORDED_HIDDEN                              ? out->hidden
                               : check->part == RECORDED_STREAM && check->layer < a->nlayers ? a->streams[check->layer]
                                                                                             : NULL;
        if (got) recorded_compare(check, got, p->b, p->s);
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* As many rows as a call takes, and of a row as many tokens: all, where gradients flow through them. */
static piece first_piece(const against *a, const id_matrix *m, bool has_gradients)
{
    const int64_t most = MOST_LOGITS / a->width > 0 ? MOST_LOGITS / a->width : 1;
    const int64_t ns = has_gradients ? m->ns : least(m->ns, most);
    return (piece){ 0, least(m->nb, most / ns > 0 ? most / ns : 1), 0, ns };
}

/* One call over a piece of input_ids; the state is read and written. */
static void read_piece(against *a, kr_tape *tape, const piece *p, kr_state *state)
{
    kr_call call;
    kr_call_init(&call);
    call.state = p->s > 0 ? state : NULL;
    if (a->has[RECORDED_STREAM]) call.streams = a->streams;
    const kr_network_out out = kr_network_forward(tape, a->net, cut(tape, &a->ids, p), &call);
    if (kr_ctx_failed(a->ctx)) return;
    compare_outputs(a, &out, p);
    if (a->has[RECORDED_LOSS] || a->has[RECORDED_GRADIENT]) {
        kr_tensor *loss = loss_of(a, tape, out.y, p);
        a->loss += kr_item(loss);
        if (a->has[RECORDED_GRADIENT]) kr_backward(tape, loss);
    }
    kr_state_copy(state, out.state);
}

static bool read_whole(against *a)
{
    const bool has_gradients = a->has[RECORDED_GRADIENT];
    kr_tape *tape = kr_tape_create(a->ctx, has_gradients ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD);
    piece p = first_piece(a, &a->ids, has_gradients);
    const int64_t rows = p.nb, tokens = p.ns;
    kr_params_zero_grad(kr_network_params(a->net));
    for (p.b = 0; p.b < a->ids.nb && !kr_ctx_failed(a->ctx); p.b += rows) {
        p.nb = least(rows, a->ids.nb - p.b);
        kr_state *state = kr_state_create(a->ctx, kr_network_layers(a->net), p.nb);
        for (p.s = 0; p.s < a->ids.ns && !kr_ctx_failed(a->ctx); p.s += tokens) {
            p.ns = least(tokens, a->ids.ns - p.s);
            read_piece(a, tape, &p, state);
            kr_tape_reset(tape);
        }
        if (!kr_ctx_failed(a->ctx)) compare_state(a, state, RECORDED_CONV, RECORDED_SSM, p.b);
        kr_state_destroy(state);
    }
    kr_tape_destroy(tape);
    return !kr_ctx_failed(a->ctx);
}

/* The results of all pieces together. */
static void compare_sums(against *a)
{
    for (int64_t i = 0; i < a->nchecks; i++) {
        recorded_check *check = &a->checks[i];
        if (check->part == RECORDED_LOSS && check->item->count != 1)
            recorded_trouble(check, "has %" PRId64 " elements, but must have one", check->item->count);
        if (check->trouble[0]) continue;
        if (check->part == RECORDED_LOSS) recorded_compare_value(check, 0, a->loss);
        if (check->part != RECORDED_GRADIENT) continue;
        if (kr_grad(check->param)) recorded_compare(check, kr_grad(check->param), 0, 0);
        else recorded_trouble(check, "no gradient reached it");
    }
}

/* ---- padded rows ---- */

static bool read_padded(against *a)
{
    if (!a->has[RECORDED_PADDED_LOGITS]) return true;
    kr_tape *tape = kr_tape_create(a->ctx, KR_TAPE_NO_GRAD);
    piece p = first_piece(a, &a->padded, true);
    const int64_t rows = p.nb;
    for (; p.b < a->padded.nb && !kr_ctx_failed(a->ctx); p.b += rows) {
        p.nb = least(rows, a->padded.nb - p.b);
        kr_call call;
        kr_call_init(&call);
        call.drop_state = true;
        if (a->mask.ids) call.mask_bs = cut(tape, &a->mask, &p);
        const kr_tensor *y = kr_network_forward(tape, a->net, cut(tape, &a->padded, &p), &call).y;
        for (int64_t i = 0; i < a->nchecks; i++)
            if (a->checks[i].part == RECORDED_PADDED_LOGITS) recorded_compare(&a->checks[i], y, p.b, 0);
        kr_tape_reset(tape);
    }
    kr_tape_destroy(tape);
    return !kr_ctx_failed(a->ctx);
}

/* ---- token by token ---- */

static bool read_steps(against *a)
{
    if (!a->has[RECORDED_STEP_LOGITS] && !a->has[RECORDED_STEP_CONV] && !a->has[RECORDED_STEP_SSM]) return true;
    kr_tape *tape = kr_tape_create(a->ctx, KR_TAPE_NO_GRAD);
    kr_state *state = kr_state_create(a->ctx, kr_network_layers(a->net), a->ids.nb);
    kr_call call;
    kr_call_init(&call);
    call.state = state;
    for (int64_t s = 0; s < a->ids.ns && !kr_ctx_failed(a->ctx); s++) {
        const piece p = { 0, a->ids.nb, s, 1 };
        kr_tensor *id_b = kr_reshape(tape, cut(tape, &a->ids, &p), KR_SHAPE(a->ids.nb));
        const kr_network_out out = kr_network_step(tape, a->net, id_b, &call);
        const kr_tensor *y = kr_reshape(tape, out.y, KR_SHAPE(a->ids.nb, 1, a->width));
        for (int64_t i = 0; i < a->nchecks; i++)
            if (a->checks[i].part == RECORDED_STEP_LOGITS) recorded_compare(&a->checks[i], y, 0, s);
        kr_state_copy(state, out.state);
        kr_tape_reset(tape);
    }
    if (!kr_ctx_failed(a->ctx)) compare_state(a, state, RECORDED_STEP_CONV, RECORDED_STEP_SSM, 0);
    kr_state_destroy(state);
    kr_tape_destroy(tape);
    return !kr_ctx_failed(a->ctx);
}

/* ---- generation ---- */

static bool ends_a_text(const kr_model_config *c, int64_t id)
{
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return true;
    return false;
}

/* The most probable token of a row, the first of equals, without EOS tokens. */
static int64_t choose(const against *a, const double *logits)
{
    const kr_model_config *c = kr_model_config_of(a->model);
    int64_t best = -1;
    for (int64_t w = 0; w < least(a->width, c->network->vocab_size); w++)
        if (!ends_a_text(c, w) && (best < 0 || logits[w] > logits[best])) best = w;
    return best;
}

static void compare_choices(against *a, recorded_check *check, const double *logits, int64_t s)
{
    const id_matrix *g = &a->generated;
    for (int64_t b = 0; b < g->nb; b++) {
        const int64_t got = choose(a, logits + b * a->width), want = g->ids[b * g->ns + s];
        check->seen++;
        if (got == want) continue;
        check->difference++;
        if (check->difference > 1) continue;
        check->at = b * g->ns + s;
        check->got = (double)got;
        check->want = (double)want;
    }
}

/* Each token follows the recorded ones before it, so that one that differs is one, and not all behind it. */
static bool generate(against *a, recorded_check *check, double *logits)
{
    const id_matrix *g = &a->generated;
    kr_tape *tape = kr_tape_create(a->ctx, KR_TAPE_NO_GRAD);
    kr_state *state = kr_state_create(a->ctx, kr_network_layers(a->net), g->nb);
    kr_call call;
    kr_call_init(&call);
    call.last_logits_only = true;
    for (int64_t s = a->nprompt; s < g->ns && !kr_ctx_failed(a->ctx); s++) {
        const bool is_prompt = s == a->nprompt;
        const piece p = is_prompt ? (piece){ 0, g->nb, 0, s } : (piece){ 0, g->nb, s - 1, 1 };
        kr_tensor *ids = cut(tape, g, &p);
        call.state = is_prompt ? NULL : state;
        const kr_network_out out = is_prompt
                                       ? kr_network_forward(tape, a->net, ids, &call)
                                       : kr_network_step(tape, a->net, kr_reshape(tape, ids, KR_SHAPE(g->nb)), &call);
        if (kr_tensor_read(out.y, KR_DTYPE_F64, logits, g->nb * a->width) == KR_OK)
            compare_choices(a, check, logits, s);
        kr_state_copy(state, out.state);
        kr_tape_reset(tape);
    }
    check->seen += g->nb * a->nprompt;
    kr_state_destroy(state);
    kr_tape_destroy(tape);
    return !kr_ctx_failed(a->ctx);
}

static bool read_generated(against *a)
{
    bool ok = true;
    double *logits = check_alloc(a->ctx, (size_t)(a->ids.nb * a->width) * sizeof *logits);
    for (int64_t i = 0; logits && ok && i < a->nchecks; i++)
        if (a->checks[i].part == RECORDED_GENERATED) {
            a->checks[i].at = a->nprompt; /* the first that is compared, unless another differs */
            a->checks[i].got = a->checks[i].want = (double)a->generated.ids[a->nprompt];
            a->checks[i].note = ", that differ";
            ok = generate(a, &a->checks[i], logits);
        }
    if (!logits) kr_fail(a->ctx, KR_ERR_NOMEM, "out of memory");
    check_free(logits);
    return ok && logits;
}

/* ---- all of it ---- */

static bool compare_all(against *a)
{
    if (!read_inputs(a) || !list_checks(a)) return false;
    if (!read_whole(a) || !read_padded(a) || !read_steps(a) || !read_generated(a)) return false;
    compare_sums(a);
    recorded_report(a->checks, a->nchecks, a->tally);
    return true;
}

bool check_against(check_tally *tally, kr_ctx *ctx, const kr_model *model)
{
    kr_tensor_file *file = kr_tensor_file_open(ctx, tally->options->against);
    if (!file) return false;
    const kr_network *net = kr_model_network(model);
    against a = { .tally = tally,
                  .options = tally->options,
                  .ctx = ctx,
                  .model = model,
                  .net = net,
                  .file = file,
                  .nlayers = kr_layers_virtual(kr_network_layers(net)),
                  .width = kr_network_width(net) };
    const bool ok = compare_all(&a);
    for (int64_t i = 0; i < a.nchecks; i++) recorded_end(&a.checks[i]);
    id_matrix *const inputs[] = { &a.ids, &a.labels, &a.generated, &a.padded, &a.mask };
    for (int i = 0; i < 5; i++) check_free(inputs[i]->ids);
    check_free(a.checks);
    check_free(a.streams);
    kr_tensor_file_close(file);
    return ok;
}
