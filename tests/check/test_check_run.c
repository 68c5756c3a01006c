/* test_check_run.c - kr_check_run as a program calls it: results by callback and as counts, errors, no memory left behind. */
#include "tests/harness.h"

#include <krait/experimental/check.h>

static const char golden[] = KR_SOURCE_DIR "/tests/golden/short.safetensors";

typedef struct seen {
    int passed, failed, others;
    bool has_ref; /* a result of the reference kernels */
    char last[200];
} seen;

static void see(void *user, const kr_check_result *r)
{
    seen *s = user;
    if (r->outcome == KR_CHECK_PASSED) s->passed++;
    else if (r->outcome == KR_CHECK_FAILED) s->failed++;
    else s->others++;
    if (r->isa && strcmp(r->isa, "ref") == 0) s->has_ref = true;
    CHECK(r->text && r->text[0], "a result without a text");
    snprintf(s->last, sizeof s->last, "%s: %s", r->name ? r->name : "", r->text);
}

static kr_check_options options_of(kr_check_kind kind, seen *s)
{
    kr_check_options o;
    kr_check_options_init(&o);
    o.kind = kind;
    o.isa = "ref";
    o.device = "cpu";
    o.threads = 2;
    o.report = see;
    o.user = s;
    return o;
}

TEST(check_of_the_machine)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    seen s = { 0 };
    const kr_check_options o = options_of(KR_CHECK_MACHINE, &s);
    kr_check_counts counts;
    CHECK(kr_check_run(ctx, &o, &counts) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(counts.failed == 0 && counts.passed == s.passed && s.passed >= 6 && s.has_ref, "%d passed, %d failed: %s",
          s.passed, s.failed, s.last);
    kr_ctx_destroy(ctx);
}

TEST(check_of_a_file)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    seen s = { 0 };
    kr_check_options o = options_of(KR_CHECK_OPS, &s);
    kr_check_counts counts;
    o.ops = golden;
    CHECK(kr_check_run(ctx, &o, &counts) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(counts.passed == s.passed && s.passed > 0 && s.failed == 0, "%d passed, %d failed", s.passed, s.failed);
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    size_t n = 1;
    for (; n < 100; n++) {
        s = (seen){ 0 };
        kr_ctx_fail_allocation(ctx, n);
        const kr_status status = kr_check_run(ctx, &o, NULL);
        kr_ctx_fail_allocation(ctx, 0);
        CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "allocation %zu: memory is left", n);
        if (status == KR_OK) break;
        CHECK(status == KR_ERR_NOMEM && s.passed == 0, "allocation %zu: %s", n, kr_ctx_message(ctx));
        kr_ctx_clear(ctx);
    }
    CHECK(n > 2 && n < 100, "%zu allocations", n);
    kr_ctx_destroy(ctx);
}

TEST(check_of_a_model)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    seen s = { 0 };
    kr_check_options o = options_of(KR_CHECK_MODEL, &s);
    kr_check_counts counts;
    o.model = KR_SOURCE_DIR "/tests/golden/hf_mamba2/g1_untied";
    CHECK(kr_check_run(ctx, &o, &counts) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(counts.failed == 0 && counts.passed == 5, "%lld passed, %lld failed: %s", (long long)counts.passed,
          (long long)counts.failed, s.last);
    o.tolerance = 1e-12;
    CHECK(kr_check_run(ctx, &o, &counts) == KR_OK && counts.failed > 0, "nothing fails within 1e-12");
    kr_ctx_destroy(ctx);
}

TEST(check_errors)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    seen s = { 0 };
    kr_check_options o = options_of(KR_CHECK_OPS, &s);
    CHECK(kr_check_run(NULL, NULL, NULL) == KR_ERR_NOMEM, "a NULL context");
    IGNORE(kr_check_run(ctx, &o, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "check: ops is NULL, but KR_CHECK_OPS needs a safetensors file");
    o.kind = KR_CHECK_MODEL;
    IGNORE(kr_check_run(ctx, &o, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "check: model is NULL, but KR_CHECK_MODEL needs a folder");
    o.kind = (kr_check_kind)9;
    IGNORE(kr_check_run(ctx, &o, NULL));
    CHECK_ERROR(ctx, KR_ERR_ARG, "check: kind 9 is not a kr_check_kind");
    o.kind = KR_CHECK_MACHINE;
    o.isa = "none";
    IGNORE(kr_check_run(ctx, &o, NULL));
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG,
                    "check: isa is 'none', which this machine does not support; this machine has: ref");
    o.isa = "ref";
    o.device = "none";
    IGNORE(kr_check_run(ctx, &o, NULL));
    CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "check: ctx: ");
    CHECK(s.passed + s.failed == 0, "something was checked");
    kr_ctx_destroy(ctx);
}
