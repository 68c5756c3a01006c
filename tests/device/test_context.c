/* test_context.c - what a context tells its log. */
#include "tests/harness.h"

typedef struct heard {
    int lines;
    kr_log_level level;
    char text[200];
} heard;

static void listen(void *user, kr_log_level level, const char *text)
{
    heard *h = user;
    h->lines++;
    h->level = level;
    snprintf(h->text, sizeof h->text, "%s", text);
}

TEST(log_tells_kernels_and_threads)
{
    heard h = { 0 };
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.isa = "ref";
    options.threads = 2;
    options.log = listen;
    options.log_user = &h;
    kr_ctx *ctx = kr_ctx_create(&options);
    CHECK_OK(ctx);
    char want[200];
    snprintf(want, sizeof want, "krait %s: ref kernels, threads 2", kr_version());
    CHECK(h.lines == 1 && h.level == KR_LOG_INFO && strcmp(h.text, want) == 0, "%d lines, the last: %s", h.lines,
          h.text);
    kr_ctx_destroy(ctx);
}
