/* log.h - a context whose warnings are kept. */
#ifndef KR_TESTS_MODEL_LOG_H
#define KR_TESTS_MODEL_LOG_H

#include "tests/harness.h"

static char logged[4096]; /* lines */
static int nlogged;
static size_t blocks_at_begin;

static inline void forget_log(void)
{
    logged[0] = '\0';
    nlogged = 0;
}

static inline void keep_line(void *user, kr_log_level level, const char *text)
{
    (void)user;
    if (level != KR_LOG_WARNING) return;
    nlogged++;
    const size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "%s\n", text);
}

static inline kr_ctx *logging_ctx(void)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.log = keep_line;
    options.seed = kr_test_seed();
    kr_ctx *made = kr_ctx_create(&options);
    forget_log();
    blocks_at_begin = kr_ctx_memory(made).live_blocks;
    return made;
}

#endif
