/* cmd_check.c - krait check: the library's check suite (<krait/experimental/check.h>) as a table, or as JSON. */
#include "cli/common/cli_machine.h"
#include "cli/common/commands.h"

#include <krait/experimental/check.h>

#include <math.h>
#include <stdio.h>

typedef struct check_values {
    int threads;
    const char *isa, *device;
    uint64_t seed;
    const char *ops, *model, *against;
    int dtype;
    double tolerance, grad_tolerance;
    int tokens;
    bool is_json, records;
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

/* ---- the report ---- */

/* A member `name` of a row: a text, ASCII, or null for NULL. */
static void print_json_text(const char *name, const char *text)
{
    const bool is_text = text != NULL;
    printf(", \"%s\": %s", name, is_text ? "\"" : "null");
    for (; text && *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '\n') printf("\\n");
        else if (c < ' ') printf("\\u%04x", c);
        else if (c > '~') putchar('?');
        else printf(c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    if (is_text) putchar('"');
}

/* JSON has no NaN. */
static void print_json_number(const char *name, double value)
{
    if (isfinite(value)) printf(", \"%s\": %.9g", name, value);
    else printf(", \"%s\": null", name);
}

static void print_json(void *user, const kr_check_result *r)
{
    static const char *const outcomes[] = { "passed", "failed", "skipped" };
    int64_t *count = user;
    if (r->outcome > KR_CHECK_SKIPPED) return; /* notes and headings */
    printf("%s\n    { \"outcome\": \"%s\"", (*count)++ ? "," : "", outcomes[r->outcome]);
    print_json_text("check", r->name);
    print_json_text("isa", r->isa);
    print_json_text("kernel", r->kernel);
    print_json_number("error", r->error);
    print_json_number("limit", r->limit);
    print_json_text("text", r->text);
    printf(" }");
}

/* What follows the rows; the message is that of a check that could not run. */
static void print_json_end(const kr_ctx *ctx, kr_status status, const kr_check_counts *counts)
{
    printf("\n  ], \"passed\": %lld, \"failed\": %lld, \"skipped\": %lld", (long long)counts->passed,
           (long long)counts->failed, (long long)counts->skipped);
    print_json_text("status", kr_status_name(status));
    print_json_text("message", status == KR_OK ? NULL : kr_ctx_message(ctx));
    printf(" }\n");
}

static void print_line(void *user, const kr_check_result *r)
{
    static const char *const outcomes[] = { "ok    ", "FAIL  ", "skip  ", "note  ", "      " };
    (void)user;
    if (!r->name && r->outcome == KR_CHECK_HEADING) printf("%s\n", r->text);
    else if (!r->name) printf("%s%s\n", outcomes[r->outcome], r->text);
    else printf("%s%-*s %s\n", outcomes[r->outcome], r->name_width, r->name, r->text);
}

/* ---- the command ---- */

static int check(const check_values *values)
{
    static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16,
                                       KR_DTYPE_F16 }; /* in the order of the option's words */
    const cli_machine machine = { .threads = 1, .device = "cpu", .precision = KR_PRECISION_UNSET };
    kr_ctx *ctx = values->model ? cli_open(&machine, values->seed) : cli_open_for_files(NULL, NULL);
    int64_t nlines = 0;
    kr_check_counts counts;
    kr_check_options o;
    kr_check_options_init(&o);
    o.kind = values->records ? KR_CHECK_RECORD
             : values->model ? KR_CHECK_MODEL
             : values->ops   ? KR_CHECK_OPS
                             : KR_CHECK_MACHINE;
    o.report = values->is_json ? print_json : print_line;
    o.user = &nlines;
    o.device = values->device;
    o.isa = values->isa;
    o.threads = values->threads;
    o.seed = values->seed;
    o.ops = values->ops;
    o.model = values->model;
    o.against = values->against;
    o.dtype = dtypes[values->dtype];
    o.tolerance = values->tolerance;
    o.grad_tolerance = values->grad_tolerance;
    o.tokens = values->tokens;
    if (values->is_json) printf("{ \"version\": \"%s\", \"checks\": [", kr_version());
    const kr_status status = kr_check_run(ctx, &o, &counts);
    const long long passed = counts.passed, failed = counts.failed, skipped = counts.skipped;
    if (values->is_json) print_json_end(ctx, status, &counts);
    else if (status == KR_OK && !values->records)
        printf(skipped ? "%lld passed, %lld failed, %lld skipped\n" : "%lld passed, %lld failed\n", passed, failed,
               skipped);
    cli_failed(ctx);
    kr_ctx_destroy(ctx);
    return status != KR_OK || failed ? CLI_FAILED : CLI_OK;
}

static int run(int argc, char **argv)
{
    check_values values = { .tolerance = -1, .grad_tolerance = -1 };
    int status = cli_parse(&cli_check, &values, argc, argv);
    if (status >= 0) return status;
    if ((values.against && !values.model) || (values.model && values.ops)) {
        cli_complain("see krait check --help", values.ops ? "check: --ops and --model are two checks; choose one"
                                                          : "check: --against needs --model DIR");
        return CLI_USAGE;
    }
    if (values.records && (values.model || values.ops || values.is_json)) {
        cli_complain("see krait check --help",
                     "check: --record prints the table of the built-in cases; it cannot be combined with --%s",
                     values.model ? "model"
                     : values.ops ? "ops"
                                  : "json");
        return CLI_USAGE;
    }
    return check(&values);
}

const cli_command cli_check = { .name = "check",
                                .summary =
                                    "verify kernels, networks or a model against references and recorded results",
                                .options = options,
                                .run = run };
