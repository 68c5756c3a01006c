/* check_run.c - kr_check_run: chooses the kind of check, opens contexts, counts and reports. */
#include "check/check_impl.h"
#include "check/check_vectors.h"

#include "base/sized.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

KR_DEFAULTS(kr_check_options) = { .size = sizeof(kr_check_options),
                                  .kind = KR_CHECK_MACHINE,
                                  .seed = 1,
                                  .dtype = KR_DTYPE_F32,
                                  .tolerance = -1,
                                  .grad_tolerance = -1,
                                  .tokens = 64 };

/* ---- memory: blocks that know their size and where they came from ---- */

typedef union block {
    struct {
        kr_memory *memory;
        size_t bytes; /* with this header */
    } of;
    char align[64];
} block;

void *check_alloc(kr_ctx *ctx, size_t bytes)
{
    if (!ctx || bytes > SIZE_MAX - sizeof(block)) return NULL;
    block *b = kr_memory_alloc_zeroed(&ctx->memory, bytes + sizeof *b);
    if (!b) return NULL;
    b->of.memory = &ctx->memory;
    b->of.bytes = bytes + sizeof *b;
    return b + 1;
}

void *check_grow(kr_ctx *ctx, void *p, size_t bytes)
{
    char *grown = check_alloc(ctx, bytes);
    if (!grown || !p) return grown;
    const size_t old = ((block *)p - 1)->of.bytes - sizeof(block);
    memcpy(grown, p, old < bytes ? old : bytes);
    check_free(p);
    return grown;
}

void check_free(void *p)
{
    if (!p) return;
    block *b = (block *)p - 1;
    kr_memory_free(b->of.memory, b, b->of.bytes);
}

/* ---- contexts ---- */

kr_ctx *check_open(const check_setup *s)
{
    const kr_ctx *of = s->tally->ctx;
    kr_ctx_options o;
    kr_ctx_options_init(&o);
    o.isa = s->isa;
    o.threads = s->threads;
    o.seed = s->seed;
    o.device = s->device;
    o.allocator = of->memory.hooks;
    if (s->is_exact) {
        o.precision = KR_PRECISION_EXACT;
        o.log = of->log;
        o.log_user = of->log_user;
    }
    return kr_ctx_create(&o);
}

bool check_failed(check_tally *t, kr_ctx *ctx)
{
    if (!kr_ctx_failed(ctx)) return false;
    if (!t->trouble[0])
        snprintf(t->trouble, sizeof t->trouble, "%.*s", (int)sizeof t->trouble - 1, kr_ctx_message(ctx));
    return true;
}

bool check_give_up(check_tally *t, const kr_ctx *ctx)
{
    return kr_fail(t->ctx, kr_ctx_status(ctx), "%s", kr_ctx_message(ctx));
}

bool check_on_device(const kr_ctx *ctx)
{
    return strcmp(kr_ctx_device(ctx), "cpu") != 0;
}

int check_threads_to_try(check_tally *t)
{
    kr_ctx *ctx = check_open(&(check_setup){ .device = "cpu", .tally = t });
    const int threads = kr_ctx_failed(ctx) ? 0 : kr_ctx_threads(ctx);
    if (!threads) check_give_up(t, ctx);
    kr_ctx_destroy(ctx);
    return threads == 1 ? 2 : threads;
}

/* ---- the report ---- */

static void report(check_tally *t, kr_check_outcome outcome, const char *what, const char *text, const char *kernel,
                   check_measure measure)
{
    const kr_check_result r = { .outcome = outcome,
                                .name = what,
                                .text = text,
                                .kernel = kernel,
                                .isa = t->isa,
                                .name_width = t->name_width,
                                .error = measure.error,
                                .limit = measure.limit };
    if (outcome == KR_CHECK_PASSED) t->counts.passed++;
    if (outcome == KR_CHECK_FAILED) t->counts.failed++;
    if (outcome == KR_CHECK_SKIPPED) t->counts.skipped++;
    if (t->options->report) t->options->report(t->options->user, &r);
}

void check_print(check_tally *t, kr_check_outcome outcome, const char *what, const char *text)
{
    report(t, outcome, what, text, NULL, (check_measure){ NAN, NAN });
}

void check_report(check_tally *t, bool ok, const char *what, const char *text, check_measure measure)
{
    char with_trouble[700];
    if (!ok && t->trouble[0]) {
        snprintf(with_trouble, sizeof with_trouble, "%.380s: %s", text, t->trouble);
        text = with_trouble;
    }
    report(t, ok ? KR_CHECK_PASSED : KR_CHECK_FAILED, what, text, NULL, measure);
    t->trouble[0] = '\0';
}

void check_report_kernel(check_tally *t, const char *what, const char *text, const char *kernel, check_measure measure)
{
    report(t, KR_CHECK_FAILED, what, text, kernel, measure);
}

/* ---- the call ---- */

static bool options_are_right(kr_ctx *ctx, const kr_check_options *o)
{
    const bool of_model = o->kind == KR_CHECK_MODEL;
    return kr_require(ctx, o->kind >= KR_CHECK_MACHINE && o->kind <= KR_CHECK_RECORD, KR_ERR_ARG,
                      "kind %d is not a kr_check_kind", (int)o->kind) &&
           kr_require(ctx, o->kind != KR_CHECK_OPS || o->ops, KR_ERR_ARG,
                      "ops is NULL, but KR_CHECK_OPS needs a safetensors file") &&
           kr_require(ctx, !of_model || o->model, KR_ERR_ARG, "model is NULL, but KR_CHECK_MODEL needs a folder") &&
           kr_require(ctx, !of_model || o->tokens >= 8, KR_ERR_ARG, "tokens = %lld, but must be at least 8",
                      (long long)o->tokens) &&
           kr_require(ctx, o->threads >= 0, KR_ERR_ARG, "threads = %d, but must not be negative", o->threads);
}

kr_status kr_check_run(kr_ctx *ctx, const kr_check_options *options, kr_check_counts *counts)
{
    kr_check_options own;
    check_tally tally = { .ctx = ctx, .options = &own, .name_width = 38 };
    if (counts) *counts = tally.counts;
    if (kr_ctx_failed(ctx)) return kr_ctx_status(ctx);
    if (!KR_TAKE(ctx, "check", kr_check_options, options, &own)) return kr_ctx_status(ctx);
    if (options_are_right(ctx, &own)) {
        switch (own.kind) {
        case KR_CHECK_MACHINE: check_machine(&tally); break;
        case KR_CHECK_OPS: check_ops(&tally); break;
        case KR_CHECK_MODEL: check_model(&tally); break;
        case KR_CHECK_RECORD: check_vectors_record(&tally); break;
        }
    }
    kr_blame(ctx, "check");
    if (counts) *counts = tally.counts;
    return kr_ctx_status(ctx);
}
