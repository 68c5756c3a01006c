/* cmd_check.c - krait check: proves on the user's own machine that Krait computes here what it should.
 *
 *   y_bsw = softmax(W2 silu(conv(silu(W1 rms_norm(x_bsd) + b1))) + b2);   loss = sum(y * target)
 *
 * Recorded results of every op family are compared with those of each instruction set (check_vectors.h). Three claims
 * are tried on that program and its gradients: in f64 they agree with central differences; every
 * instruction set agrees in f32 with the reference kernels; and one thread gives the same bits as many. On a device: its
 * kernels agree with the processor's reference, and a run gives the same bits again. Networks have claims of their own
 * (cmd_check.h). With --ops the cases of a file are computed instead, and compared with its results
 * (golden.h); with --model a model is checked, by itself or against recorded numbers (check_model.h).
 */
#include "cli/commands/cmd_check.h"
#include "cli/commands/check_model.h"
#include "cli/commands/check_vectors.h"
#include "cli/common/commands.h"
#include "cli/commands/golden.h"
#include "cli/common/cli_machine.h"

#include <krait/krait.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct check_values {
    int threads;
    const char *isa, *device;
    uint64_t seed;
    const char *ops, *model, *against;
    int dtype;
    double tolerance, grad_tolerance;
    int tokens;
    bool is_json, records;
    bool on_device; /* the device is not the processor */
} check_values;

static const cli_option options[] = {
    { "threads", 0, "N", CLI_INT, offsetof(check_values, threads), NULL, 1,
      "compare one thread with N (default: all CPUs, at least 2)" },
    { "isa", 0, "NAME", CLI_TEXT, offsetof(check_values, isa), NULL, 0,
      "only this instruction set (default: every one available)" },
    CLI_DEVICE_OPTION(offsetof(check_values, device)),
    { "seed", 0, "N", CLI_U64, offsetof(check_values, seed), "1", 0, "random seed of the operands" },
    { "ops", 0, "FILE", CLI_TEXT, offsetof(check_values, ops), NULL, 0,
      "run the cases of a safetensors file and compare with its results" },
    { "model", 0, "DIR", CLI_TEXT, offsetof(check_values, model), NULL, 0,
      "check this model: steps, chunks, batches and threads must agree" },
    { "against", 0, "FILE", CLI_TEXT, offsetof(check_values, against), NULL, 0,
      "... or compare logits, states, loss and gradients with a safetensors file" },
    { "dtype", 0, "f32|f64|bf16|f16", CLI_CHOICE, offsetof(check_values, dtype), "f32", 0,
      "type of the model's weights in memory" },
    { "tolerance", 0, "X", CLI_REAL, offsetof(check_values, tolerance), NULL, 0,
      "tolerance of values, relative to the tensor's maximum (default 5e-6 with --against)" },
    { "grad-tolerance", 0, "X", CLI_REAL, offsetof(check_values, grad_tolerance), NULL, 0,
      "tolerance of gradients (default 1e-4 with --against)" },
    { "tokens", 0, "N", CLI_INT, offsetof(check_values, tokens), "64", 8,
      "length of the random sequences for --model" },
    { "json", 0, NULL, CLI_FLAG, offsetof(check_values, is_json), NULL, 0, "print the report as one JSON object" },
    { "record", 0, NULL, CLI_FLAG, offsetof(check_values, records), NULL, 0,
      "print the recorded results of the built-in cases, computed here in f64, and exit" },
    { 0 },
};

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

kr_ctx *check_open(const check_setup *s)
{
    kr_ctx_options o;
    kr_ctx_options_init(&o);
    o.isa = s->isa;
    o.threads = s->threads;
    o.seed = s->seed;
    o.device = s->device;
    return kr_ctx_create(&o);
}

bool check_complain_of(kr_ctx *ctx)
{
    if (kr_ctx_failed(ctx)) cli_complain(NULL, "check: %s", kr_ctx_message(ctx));
    return kr_ctx_failed(ctx);
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
    bool failed = check_complain_of(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    return !failed;
}

/* Random operands; matrices are scaled so that every layer keeps values of the order of 1. */
static bool draw_operands(uint64_t seed, const layout *l, double *operands)
{
    check_setup s = { "ref", 1, KR_DTYPE_F64, seed, "cpu" };
    kr_ctx *ctx = check_open(&s);
    kr_tape *tape = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
    for (int o = 0; o < NOPERANDS; o++) {
        kr_tensor *drawn = kr_randn(tape, KR_DTYPE_F64, l->shape[o]);
        if (o == W1_ID || o == W2_WI) drawn = kr_scale(tape, drawn, 1 / sqrt((double)l->shape[o].dims[1]));
        if (o == GAIN_D) drawn = kr_affine(tape, drawn, 0.1, 1.0);
        kr_tensor_read(drawn, KR_DTYPE_F64, operands + l->at[o], l->count[o]);
    }
    bool failed = check_complain_of(ctx);
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

static bool trial_init(trial *n, const sizes *of, uint64_t seed)
{
    n->l = layout_of(of);
    n->nresults = n->l.count[TARGET_BSW] + n->l.total;
    n->operands = calloc((size_t)(n->l.total + 2 * n->nresults), sizeof(double));
    if (!n->operands) {
        cli_complain(NULL, "check: out of memory");
        return false;
    }
    n->a = n->operands + n->l.total;
    n->b = n->a + n->nresults;
    return draw_operands(seed, &n->l, n->operands);
}

double check_distance(const double *a, const double *b, int64_t count)
{
    double worst = 0, scale = 0;
    for (int64_t e = 0; e < count; e++) {
        double apart = fabs(a[e] - b[e]);
        if (isnan(apart)) return apart;
        worst = fmax(worst, apart);
        scale = fmax(scale, fabs(b[e]));
    }
    return scale > 0 ? worst / scale : worst;
}

/* Of y and of each gradient by itself, the worst. */
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

/* A text without control characters as the inside of a JSON string. */
static void print_json_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        putchar((unsigned char)*text < ' ' ? ' ' : *text);
    }
}

void check_report(check_tally *t, bool ok, const char *what, const char *text)
{
    const bool is_first = t->passed + t->failed == 0;
    if (ok) t->passed++;
    else t->failed++;
    if (t->is_json) {
        printf("%s\n    { \"ok\": %s, \"check\": \"", is_first ? "" : ",", ok ? "true" : "false");
        print_json_text(what);
        printf("\", \"text\": \"");
        print_json_text(text);
        printf("\" }");
        return;
    }
    printf("%s  %-38s %s\n", ok ? "ok  " : "FAIL", what, text);
}

/* (loss(x + step) - loss(x - step)) / (2 step) for every element of every operand, where the gradients stand in n->a.
 * */
static bool central_differences(const check_setup *s, trial *n, double *g)
{
    const double step = 1e-5; /* truncation of the order of step^2, rounding of 1e-16 / step: both near 1e-10 */
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
    bool failed = check_complain_of(ctx);
    kr_tape_destroy(tape);
    kr_ctx_destroy(ctx);
    return !failed;
}

static void check_gradients(check_tally *t, const check_values *values)
{
    const double most = 1e-7; /* a thousand times the error of the differences, far below that of any wrong formula */
    check_setup s = { values->isa, 1, KR_DTYPE_F64, 0, values->device };
    trial n;
    bool ran = trial_init(&n, &gradient_sizes, values->seed) && run_backward(&s, &n.l, n.operands, n.a);
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
    check_report(t, worst <= most, "gradients, f64: central differences", text);
    free(n.operands);
}

/* fast is named in the report. */
static void check_kernels(check_tally *t, const check_values *values, const check_setup *fast, const char *name)
{
    const double most = 1e-5; /* some 100 roundings of f32 in a row; sums are as long as the sizes */
    const check_setup reference = { "ref", 1, KR_DTYPE_F32, 0, "cpu" };
    trial n;
    char what[64], text[120] = "did not run";
    double worst = NAN;
    if (trial_init(&n, &kernel_sizes, values->seed) && run_backward(fast, &n.l, n.operands, n.a) &&
        run_backward(&reference, &n.l, n.operands, n.b)) {
        const char *where;
        worst = worst_distance(&n, &where);
        snprintf(text, sizeof text, "worst relative error %.1e in %s (at most %.0e)", worst, where, most);
    }
    snprintf(what, sizeof what, "kernels, f32: %s = ref", name);
    check_report(t, worst <= most, what, text);
    free(n.operands);
}

/* One thread as many; where there is one, a run as another. */
static void check_threads(check_tally *t, const check_values *values, const check_setup *many, const char *name)
{
    check_setup one = *many;
    one.threads = 1;
    trial n;
    char what[64], text[120] = "did not run";
    bool equal = false;
    if (trial_init(&n, &thread_sizes, values->seed) && run_backward(&one, &n.l, n.operands, n.a) &&
        run_backward(many, &n.l, n.operands, n.b)) {
        const char *where;
        double worst = worst_distance(&n, &where);
        equal = !memcmp(n.a, n.b, (size_t)n.nresults * sizeof(double));
        if (equal) snprintf(text, sizeof text, "the same bits");
        else snprintf(text, sizeof text, "bits differ, relative error %.1e in %s (must be 0)", worst, where);
    }
    if (many->threads > 1) snprintf(what, sizeof what, "threads, %s: 1 = %d", name, many->threads);
    else snprintf(what, sizeof what, "%s: once = again", name);
    check_report(t, equal, what, text);
    free(n.operands);
}

/* As many threads as a context takes by itself, but at least two; 0 after a complaint. */
static int threads_to_try(void)
{
    kr_ctx *ctx = check_open(&(check_setup){ .device = "cpu" });
    int threads = check_complain_of(ctx) ? 0 : kr_ctx_threads(ctx);
    kr_ctx_destroy(ctx);
    return threads == 1 ? 2 : threads;
}

/* The instruction sets to try, best last; false after a complaint. */
enum { MOST_ISAS = 8 };
typedef struct isa_list {
    int count;
    const char *name[MOST_ISAS];
    char text[128];
} isa_list;

static bool isas_to_try(const check_values *values, isa_list *isas)
{
    char known[160];
    isas->count = 0;
    snprintf(known, sizeof known, "this machine has: %s", kr_isa_choices(isas->text, sizeof isas->text));
    for (char *isa = strtok(isas->text, ", "); isa && isas->count < MOST_ISAS; isa = strtok(NULL, ", ")) {
        if (values->on_device && !values->isa && strcmp(isa, "ref") != 0)
            continue; /* the processor's part is small there */
        if (!values->isa || !strcmp(values->isa, isa)) isas->name[isas->count++] = isa;
    }
    if (!isas->count) cli_complain(known, "check: --isa is '%s', which this machine does not support", values->isa);
    return isas->count > 0;
}

static int check_ops(const check_values *values, const isa_list *isas)
{
    kr_ctx *ctx[MOST_ISAS] = { NULL };
    bool failed = false;
    for (int i = 0; i < isas->count; i++) {
        const check_setup s = { isas->name[i], values->threads, KR_DTYPE_F32, values->seed, values->device };
        ctx[i] = check_open(&s);
        failed = failed || check_complain_of(ctx[i]);
    }
    int status = failed ? CLI_FAILED : golden_check(values->ops, isas->count, ctx);
    for (int i = 0; i < isas->count; i++) kr_ctx_destroy(ctx[i]);
    return status;
}

static int run_model(const check_values *values)
{
    static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16,
                                       KR_DTYPE_F16 }; /* in the order of the option's words */
    const int threads = values->threads || values->against ? values->threads : threads_to_try();
    if (!threads && !values->against) return CLI_FAILED;
    const check_model_options o = { .model = values->model,
                                    .against = values->against,
                                    .isa = values->isa,
                                    .device = values->device,
                                    .threads = threads,
                                    .seed = values->seed,
                                    .dtype = dtypes[values->dtype],
                                    .tolerance = values->tolerance,
                                    .grad_tolerance = values->grad_tolerance,
                                    .tokens = values->tokens };
    return check_model(&o);
}

static int check_processor(const check_values *values, const isa_list *isas, check_tally *t)
{
    const int threads = values->threads ? values->threads : threads_to_try();
    for (int i = 0; threads && i < isas->count; i++) {
        const char *isa = isas->name[i];
        const check_setup one = { isa, 1, KR_DTYPE_F32, values->seed, "cpu" },
                          many = { isa, threads, KR_DTYPE_F32, values->seed, "cpu" };
        check_vectors(t, &one, isa);
        if (strcmp(isa, "ref") != 0) check_kernels(t, values, &one, isa);
        check_threads(t, values, &many, isa);
        check_networks(t, &many, isa);
    }
    return threads;
}

/* The device's name up to its first space: "cuda:0". */
static void check_device(const check_values *values, check_tally *t)
{
    const check_setup s = { values->isa, 1, KR_DTYPE_F32, values->seed, values->device };
    kr_ctx *ctx = check_open(&s);
    char name[32];
    if (!t->is_json) printf("note  on %s\n", kr_ctx_device(ctx));
    snprintf(name, sizeof name, "%.*s", (int)strcspn(kr_ctx_device(ctx), " "), kr_ctx_device(ctx));
    kr_ctx_destroy(ctx);
    check_vectors(t, &s, name);
    check_kernels(t, values, &s, name);
    check_threads(t, values, &s, name);
    check_networks(t, &s, name);
}

static int check_machine(const check_values *values, const isa_list *isas)
{
    check_tally t = { .is_json = values->is_json };
    if (t.is_json) printf("{ \"version\": \"%s\", \"checks\": [", kr_version());
    check_gradients(&t, values);
    check_vectors(&t, &(check_setup){ "ref", 1, KR_DTYPE_F64, 0, "cpu" }, "ref in f64");
    if (values->on_device) check_device(values, &t);
    else if (!check_processor(values, isas, &t)) return CLI_FAILED;
    if (t.is_json) printf("\n  ], \"passed\": %d, \"failed\": %d }\n", t.passed, t.failed);
    else printf("%d passed, %d failed\n", t.passed, t.failed);
    return t.failed ? CLI_FAILED : CLI_OK;
}

/* Is it another device than the processor? *status is CLI_FAILED after a complaint that it cannot be had. */
static bool on_device(const char *device, int *status)
{
    kr_ctx *ctx = check_open(&(check_setup){ .threads = 1, .device = device });
    const bool is_device = cli_on_device(ctx);
    if (check_complain_of(ctx)) *status = CLI_FAILED;
    kr_ctx_destroy(ctx);
    return is_device;
}

static int run(int argc, char **argv)
{
    check_values values = { .tolerance = -1, .grad_tolerance = -1 };
    isa_list isas;
    int status = cli_parse(&cli_check, &values, argc, argv);
    if (status >= 0) return status;
    values.on_device = on_device(values.device, &status);
    if (status >= 0) return status;
    if (!isas_to_try(&values, &isas)) return CLI_USAGE;
    if ((values.against && !values.model) || (values.model && values.ops)) {
        cli_complain("see krait check --help", values.ops ? "check: --ops and --model are two checks; choose one"
                                                          : "check: --against needs --model DIR");
        return CLI_USAGE;
    }
    if ((values.is_json || values.records) && (values.model || values.ops)) {
        cli_complain("see krait check --help", "check: --%s applies to the check of this machine, not to --%s",
                     values.is_json ? "json" : "record", values.model ? "model" : "ops");
        return CLI_USAGE;
    }
    if (values.records) return check_vectors_record() ? CLI_OK : CLI_FAILED;
    if (values.model) return run_model(&values);
    if (values.ops) return check_ops(&values, &isas);
    return check_machine(&values, &isas);
}

const cli_command cli_check = { .name = "check",
                                .summary =
                                    "verify kernels, networks or a model against references and recorded results",
                                .options = options,
                                .run = run };
