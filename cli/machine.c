/* machine.c - contexts of subcommands, and the time. */
#define _POSIX_C_SOURCE 200809L
#include "cli/machine.h"

#include <stdio.h>
#include <time.h>

static void print_warning(void *user, kr_log_level level, const char *text)
{
    (void)user;
    if (level == KR_LOG_WARNING) fprintf(stderr, "krait: warning: %s\n", text);
}

static kr_ctx *open_context(const cli_machine *machine, uint64_t seed, kr_log_fn *log)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = machine->threads;
    options.isa = machine->isa;
    options.seed = seed;
    options.log = log;
    return kr_ctx_create(&options);
}

kr_ctx *cli_open(const cli_machine *machine, uint64_t seed)
{
    return open_context(machine, seed, print_warning);
}

kr_ctx *cli_open_quiet(const cli_machine *machine, uint64_t seed)
{
    return open_context(machine, seed, NULL);
}

bool cli_failed(kr_ctx *ctx)
{
    if (kr_ctx_failed(ctx)) cli_complain(NULL, "%s", kr_ctx_message(ctx));
    return kr_ctx_failed(ctx);
}

double cli_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
