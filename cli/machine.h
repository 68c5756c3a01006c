/* machine.h - what every subcommand that computes lets its user choose, and the context that comes of it.
 *
 *   typedef struct hello_values { cli_machine machine; } hello_values;
 *   static const cli_option options[] = { CLI_MACHINE_OPTIONS(hello_values, machine), { 0 } };
 *   ...
 *   kr_ctx *ctx = cli_open(&values.machine, 1);
 *   if (cli_failed(ctx)) ...
 */
#ifndef KR_CLI_MACHINE_H
#define KR_CLI_MACHINE_H

#include "cli/options.h"

#include <krait/ctx.h>

typedef struct cli_machine {
    int threads;
    const char *isa;
} cli_machine;

#define CLI_MACHINE_OPTIONS(values, field)                                                                             \
    { "threads", 0, "N", CLI_INT, offsetof(values, field.threads), NULL, 1, "threads (default all CPUs)" },            \
    {                                                                                                                  \
        "isa", 0, "NAME", CLI_TEXT, offsetof(values, field.isa), NULL, 0,                                              \
            "instruction set: ref, avx2, avx512 (default the best)"                                                    \
    }

/* Warnings of the library go to stderr, as "krait: warning: TEXT". */
kr_ctx *cli_open(const cli_machine *machine, uint64_t seed);

/* Without them, for tasks: that the official code cannot load their networks would be said with each checkpoint. */
kr_ctx *cli_open_quiet(const cli_machine *machine, uint64_t seed);

/* Says what went wrong in ctx, if anything did; true then. */
bool cli_failed(kr_ctx *ctx);

/* Seconds on a clock that only goes forward. */
double cli_seconds(void);

#endif
