/* cli_machine.c - contexts of subcommands, and the time. */
#define _POSIX_C_SOURCE 200809L
#include "cli/common/cli_machine.h"

#include <krait/backend.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
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
    options.device = machine->device;
    options.precision = (kr_precision)machine->precision;
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

kr_ctx *cli_open_for_files(kr_log_fn *log, void *log_user)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    options.device = "cpu";
    options.log = log;
    options.log_user = log_user;
    return kr_ctx_create(&options);
}

bool cli_on_device(const kr_ctx *ctx)
{
    return strcmp(kr_ctx_device(ctx), "cpu") != 0;
}

cli_machine_name cli_machine_text(const kr_ctx *ctx)
{
    cli_machine_name name;
    if (cli_on_device(ctx)) snprintf(name.text, sizeof name.text, "%s", kr_ctx_device(ctx));
    else snprintf(name.text, sizeof name.text, "%s, threads %d", kr_ctx_isa(ctx), kr_ctx_threads(ctx));
    return name;
}

cli_machine_name cli_memory_text(const kr_ctx *ctx)
{
    cli_machine_name name;
    const double mib = 1 << 20;
    const int length = snprintf(name.text, sizeof name.text, "%.1f MiB", (double)kr_ctx_memory(ctx).peak_bytes / mib);
    if (cli_on_device(ctx))
        snprintf(name.text + length, sizeof name.text - (size_t)length, ", %.1f MiB of the device",
                 (double)kr_ctx_device_memory(ctx).peak_bytes / mib);
    return name;
}

size_t cli_peak_bytes(const kr_ctx *ctx)
{
    return kr_ctx_memory(ctx).peak_bytes + kr_ctx_device_memory(ctx).peak_bytes;
}

void cli_print_fallback(const kr_ctx *ctx)
{
    const kr_backend_stats stats = kr_ctx_backend_stats(ctx);
    if (stats.fallback_calls)
        fprintf(stderr, "%-12s %" PRIu64 " kernel calls ran on the CPU instead of %s, %.1f MiB transferred\n",
                "fallback", stats.fallback_calls, kr_ctx_device(ctx), (double)stats.fallback_bytes / 0x1p20);
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
