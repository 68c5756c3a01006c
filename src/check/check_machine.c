/* check_machine.c - verifies Krait's results on this machine.
 *
 *   y_bsw = softmax(W2 silu(conv(silu(W1 rms_norm(x_bsd) + b1))) + b2);   loss = sum(y * target)
 *
 * Recorded results of every op family are compared with those of each instruction set (check_vectors.h). Three
 * properties are tested on that program and its gradients: in f64 they agree with central differences; every
 * instruction set agrees in f32 with the reference kernels; and one thread gives the same bits as many. On a device:
 * its kernels agree with the processor's reference, and a run gives the same bits again. Networks have their own
 * properties (check_impl.h).
 */
#include "check/check_impl.h"
#include "check/check_vectors.h"
#include "check/golden.h"

#include "base/ctx_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct sizes {
    int64_t nb, ns, nd, ni, nk, nw;
} sizes;

/* Gradients: few elements, two runs for each. Kernels: no size is a multiple of a vector. Threads: enough to share out.
 * */
static const sizes gradient_sizes = { 2, 5, 6, 9, 4, 7 };
static const sizes kernel_sizes = { 3, 37, 83, 157, 4, 101 };
static const sizes thread_sizes = { 4, 128, 192, 384, 4, 256 };

/* The operands, in the order of the flat array that holds them. */
enum { X_BSD, GAIN_D, W1_ID, B1_I, CONV_IK, CONV_I, W2_WI, B2_W, TARGET_BSW, NOPERANDS };
static const char *const gradient_names[] = { "g_x",         "g_gain", "g_W1", "g_b1",    "g_conv",
                                              "g_conv_bias", "g_W2",   "g_b2", "g_target" };

typedef struct layout {
    kr_shape shape[NOPERANDS];
    int64_t count[NOPERANDS], at[NOPERANDS];
    int64_t total; /* elements of all operands; y has as many as target */
} layout;

static layout layout_of(const sizes *n)
{
    layout l = { .shape = { [X_BSD] = KR_SHAPE(n->nb, n->ns, n->nd),
                            [GAIN_D] = KR_SHAPE(n->nd),
                            [W1_ID] = KR_SHAPE(n->ni, n->nd),
                            [B1_I] = KR_SHAPE(n->ni),
                            [CONV_IK] = KR_SHAPE(n->ni, n->nk),
                            [CONV_I] = KR_SHAPE(n->ni),
                            [W2_WI] = KR_SHAPE(n->nw, n->ni),
                            [B2_W] = KR_SHAPE(n->nw),
                            [TARGET_BSW] = KR_SHAPE(n->nb, n->ns, n->nw) } };
    for (int o = 0; o < NOPERANDS; o++) {
        l.count[o] = 1;
        for (int axis = 0; axis < l.shape[o].rank; axis++) l.count[o] *= l.shape[o].dims[axis];
        l.at[o] = l.total;
        l.total += l.count[o];
    }
    return l;
}

static kr_tensor *program(kr_tape *tape, kr_dtype dtype, const layout *l, const double *operands, kr_tensor **leaf,
                          kr_tensor **y)
{
    for (int o = 0; o < NOPERANDS; o++) {
        kr_tensor *given = kr_view_data(tape, KR_DTYPE_F64, l->shape[o], NULL, operands + l->at[o]);
        leaf[o] = kr_input(tape, kr_cast(tape, given, dtype));
    }
    kr_tensor *h_bsi =
        kr_silu(tape, kr_linear(tape, kr_rms_norm(tape, leaf[X_BSD], leaf[GAIN_D], NULL), leaf[W1_ID], leaf[B1_I]));
    h_bsi = kr_causal_conv(tape, h_bsi, leaf[CONV_IK], leaf[CONV_I], NULL, NULL, true).y_bsv;
    *y = kr_softmax(tape, kr_linear(tape, h_bsi, leaf[W2_WI], leaf[B2_W]), -1);
    return kr_sum(tape, kr_mul(tape, *y, leaf[TARGET_BSW]), KR_ALL_AXES, false);
}

/* y and all gradients into results (count[TARGET_BSW] + total elements). */
static bool run_backward(const check_setup *s, const layout *l, const double *operands, double *results)
{
    kr_tensor *leaf[NOPERANDS], *y;
    kr_ctx *ctx = check_open(s);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_GRAD);
    kr_tensor *loss = program(tape, s->dtype, l, operands, leaf, &y);
    kr_backward(tape, loss);
    kr_tensor_read(y, KR_DTYPE_F64, results, l->count[TARGET_BSW]);
    results += l->count[TARGET_BSW];
    for (int o = 0; o < NOPERANDS; o++) kr_tensor_read(kr_grad(leaf[o]), KR_DTYPE_F64, results + l->at[o], l->count[o]);
    bool failed = check_failed(s->tally, ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    return !failed;
}

/* Random operands; matrices are scaled so that every layer keeps values of the order of 1. */
static bool fill_operands(check_tally *t, const layout *l, double *operands)
{
    const check_setup setup = { "ref", 1, KR_DTYPE_F64, t->options->seed, "cpu", t, false }, *s = &setup;
    kr_ctx *ctx = check_open(s);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int o = 0; o < NOPERANDS; o++) {
        kr_tensor *values = kr_randn(tape, KR_DTYPE_F64, l->shape[o]);
        if (o == W1_ID || o == W2_WI) values = kr_scale(tape, values, 1 / sqrt((double)l->shape[o].dims[1]));
        if (o == GAIN_D) values = kr_affine(tape, values, 0.1, 1.0);
        kr_tensor_read(values, KR_DTYPE_F64, operands + l->at[o], l->count[o]);
    }
    bool failed = check_failed(s->tally, ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    return !failed;
}

/* The operands of one check and the results of two runs, in one allocation. */
typedef struct trial {
    layout l;
    int64_t nresults;
    double *operands, *a, *b;
} trial;

static bool trial_init(check_tally *t, trial *n, const sizes *of)
{
    n->l = layout_of(of);
    n->nresults = n->l.count[TARGET_BSW] + n->l.total;
    n->operands = check_alloc(t->ctx, (size_t)(n->l.total + 2 * n->nresults) * sizeof(double));
    if (!n->operands) return false;
    n->a = n->operands + n->l.total;
    n->b = n->a + n->nresults;
    return fill_operands(t, &n->l, n->operands);
}

double check_distance(const double *a, const double *b, int64_t count)
{
    double worst = 0, scale = 0;
    for (int64_t e = 0; e < count; e++) {
        double difference = fabs(a[e] - b[e]);
        if (isnan(difference)) return difference;
        worst = fmax(worst, difference);
        scale = fmax(scale, fabs(b[e]));
    }
    return scale > 0 ? worst / scale : worst;
}

/* The worst error of y and of each gradient. */
static double worst_distance(const trial *n, const char **where)
{
    int64_t ny = n->l.count[TARGET_BSW];
    double worst = check_distance(n->a, n->b, ny);
    *where = "y";
    for (int o = 0; o < NOPERANDS; o++) {
        int64_t at = ny + n->l.at[o];
        double here = check_distance(n->a + at, n->b + at, n->l.count[o]);
        if (here > worst || isnan(here)) {
            worst = here;
            *where = gradient_names[o];
        }
    }
    return worst;
}

/* (loss(x + step) - loss(x - step)) / (2 step) for every element of every operand, into the gradients of n->a.
 */
static bool central_differences(const check_setup *s, trial *n, double *g)
{
    const double step = 1e-5; /* truncation of the order of step^2, rounding of 1e-16 / step: both about 1e-10 */
    kr_ctx *ctx = check_open(s);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int64_t e = 0; e < n->l.total && !kr_ctx_failed(ctx); e++) {
        double kept = n->operands[e], loss[2];
        for (int side = 0; side < 2; side++) {
            kr_tensor *leaf[NOPERANDS], *y;
            n->operands[e] = kept + (side ? -step : step);
            loss[side] = kr_item(program(tape, KR_DTYPE_F64, &n->l, n->operands, leaf, &y));
            kr_tape_reset(tape);
        }
        n->operands[e] = kept;
        g[e] = (loss[0] - loss[1]) / (2 * step);
    }
    bool failed = check_failed(s->tally, ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    return !failed;
}

static void check_gradients(check_tally *t)
{
    const double most =
        1e-7; /* a thousand times the error of the differences, much smaller than that of a wrong formula */
    check_setup s = { t->options->isa, 1, KR_DTYPE_F64, 0, t->options->device, t, false };
    trial n;
    bool ran = trial_init(t, &n, &gradient_sizes) && run_backward(&s, &n.l, n.operands, n.a);
    if (ran) {
        int64_t ny = n.l.count[TARGET_BSW];
        memcpy(n.b, n.a, (size_t)ny * sizeof(double));
        ran = central_differences(&s, &n, n.b + ny);
    }
    char text[120] = "did not run";
    double worst = NAN;
    if (ran) {
        const char *where;
        worst = worst_distance(&n, &where);
        snprintf(text, sizeof text, "worst relative error %.1e in %s (at most %.0e)", worst, where, most);
    }
    check_report(t, worst <= most, "gradients, f64: central differences", text, (check_measure){ worst, most });
    check_free(n.operands);
}

/* fast is named in the report. */
static void check_kernels(check_tally *t, const check_setup *fast, const char *name)
{
    const double most = 1e-5; /* some 100 roundings of f32 in a row; sums are as long as the sizes */
    const check_setup reference = { "ref", 1, KR_DTYPE_F32, 0, "cpu", t, false };
    trial n;
    char what[64], text[120] = "did not run";
    double worst = NAN;
    if (trial_init(t, &n, &kernel_sizes) && run_backward(fast, &n.l, n.operands, n.a) &&
        run_backward(&reference, &n.l, n.operands, n.b)) {
        const char *where;
        worst = worst_distance(&n, &where);
        snprintf(text, sizeof text, "worst relative error %.1e in %s (at most %.0e)", worst, where, most);
    }
    snprintf(what, sizeof what, "kernels, f32: %s = ref", name);
    check_report(t, worst <= most, what, text, (check_measure){ worst, most });
    check_free(n.operands);
}

/* One thread as many; where there is one, a run as another. */
static void check_threads(check_tally *t, const check_setup *many, const char *name)
{
    check_setup one = *many;
    one.threads = 1;
    trial n;
    char what[64], text[120] = "did not run";
    bool equal = false;
    double worst = NAN;
    if (trial_init(t, &n, &thread_sizes) && run_backward(&one, &n.l, n.operands, n.a) &&
        run_backward(many, &n.l, n.operands, n.b)) {
        const char *where;
        worst = worst_distance(&n, &where);
        equal = !memcmp(n.a, n.b, (size_t)n.nresults * sizeof(double));
        if (equal) snprintf(text, sizeof text, "the same bits");
        else snprintf(text, sizeof text, "bits differ, relative error %.1e in %s (must be 0)", worst, where);
    }
    if (many->threads > 1) snprintf(what, sizeof what, "threads, %s: 1 = %d", name, many->threads);
    else snprintf(what, sizeof what, "%s: run to run", name);
    check_report(t, equal, what, text, (check_measure){ worst, 0 });
    check_free(n.operands);
}

/* The instruction sets to try, best last. */
enum { MOST_ISAS = 8 };
typedef struct isa_list {
    int count;
    const char *name[MOST_ISAS];
    char text[128];
} isa_list;

/* False after an error: there is none. */
static bool isas_to_try(check_tally *t, bool on_device, isa_list *isas)
{
    const char *wanted = t->options->isa;
    char known[128];
    isas->count = 0;
    snprintf(known, sizeof known, "%s", kr_isa_choices(isas->text, sizeof isas->text));
    for (char *isa = isas->text; *isa && isas->count < MOST_ISAS;) {
        const size_t length = strcspn(isa, ", ");
        char *next = isa + length + strspn(isa + length, ", ");
        isa[length] = '\0';
        const bool is_extra = on_device && !wanted && strcmp(isa, "ref") != 0; /* the processor's part is small there */
        if (!is_extra && (!wanted || !strcmp(wanted, isa))) isas->name[isas->count++] = isa;
        isa = next;
    }
    return kr_require(t->ctx, isas->count > 0, KR_ERR_ARG,
                      "isa is '%s', which this machine does not support; this machine has: %s", wanted, known);
}

/* Is it another device than the processor? False after an error: it cannot be opened. */
static bool find_device(check_tally *t, bool *on_device)
{
    kr_ctx *ctx = check_open(&(check_setup){ .threads = 1, .device = t->options->device, .tally = t });
    *on_device = check_on_device(ctx);
    const bool ok = !kr_ctx_failed(ctx) || check_give_up(t, ctx);
    kr_ctx_destroy(ctx);
    return ok;
}

bool check_ops(check_tally *t)
{
    const kr_check_options *o = t->options;
    kr_ctx *ctx[MOST_ISAS] = { NULL };
    isa_list isas;
    bool on_device, ok = find_device(t, &on_device) && isas_to_try(t, on_device, &isas);
    for (int i = 0; ok && i < isas.count; i++) {
        const check_setup s = { isas.name[i], o->threads, KR_DTYPE_F32, o->seed, o->device, t, false };
        ctx[i] = check_open(&s);
        ok = !kr_ctx_failed(ctx[i]) || check_give_up(t, ctx[i]);
    }
    ok = ok && golden_check(t, isas.count, ctx);
    for (int i = 0; i < MOST_ISAS; i++) kr_ctx_destroy(ctx[i]);
    return ok;
}

static bool check_processor(check_tally *t, const isa_list *isas)
{
    const kr_check_options *o = t->options;
    const int threads = o->threads ? o->threads : check_threads_to_try(t);
    for (int i = 0; threads && i < isas->count; i++) {
        const char *isa = isas->name[i];
        const check_setup one = { isa, 1, KR_DTYPE_F32, o->seed, "cpu", t, false },
                          many = { isa, threads, KR_DTYPE_F32, o->seed, "cpu", t, false };
        t->isa = isa;
        check_vectors(t, &one, isa);
        if (strcmp(isa, "ref") != 0) check_kernels(t, &one, isa);
        check_threads(t, &many, isa);
        check_networks(t, &many, isa);
    }
    return threads > 0;
}

static void check_device(check_tally *t)
{
    const check_setup s = { t->options->isa, 1, KR_DTYPE_F32, t->options->seed, t->options->device, t, false };
    kr_ctx *ctx = check_open(&s);
    char name[32], text[200]; /* the device's name up to its first space: "cuda:0" */
    snprintf(text, sizeof text, "on %.190s", kr_ctx_device(ctx));
    snprintf(name, sizeof name, "%.*s", (int)strcspn(kr_ctx_device(ctx), " "), kr_ctx_device(ctx));
    kr_ctx_destroy(ctx);
    check_print(t, KR_CHECK_NOTE, NULL, text);
    t->isa = name;
    check_vectors(t, &s, name);
    check_kernels(t, &s, name);
    check_threads(t, &s, name);
    check_networks(t, &s, name);
    t->isa = NULL;
}

bool check_machine(check_tally *t)
{
    isa_list isas;
    bool on_device;
    if (!find_device(t, &on_device) || !isas_to_try(t, on_device, &isas)) return false;
    check_gradients(t);
    check_vectors(t, &(check_setup){ "ref", 1, KR_DTYPE_F64, 0, "cpu", t, false }, "ref in f64");
    if (!on_device) return check_processor(t, &isas);
    check_device(t);
    return true;
}
