/* cli_machine.h - common options of all commands that compute (device, threads, ...), and the context made from them.
 *
 *   typedef struct hello_values { cli_machine machine; } hello_values;
 *   static const cli_option options[] = { CLI_MACHINE_OPTIONS(hello_values, machine), { 0 } };
 *   ...
 *   kr_ctx *ctx = cli_open(&values.machine, 1);
 *   if (cli_failed(ctx)) ...
 */
#ifndef KR_CLI_COMMON_CLI_MACHINE_H
#define KR_CLI_COMMON_CLI_MACHINE_H

#include "cli/common/cli_options.h"

#include <krait/ctx.h>

typedef struct cli_machine {
    int threads;
    const char *isa;
    const char *device;
    int precision; /* kr_precision; -1, as options that are not given have it: KR_PRECISION_UNSET */
} cli_machine;

#define CLI_MACHINE_OPTIONS(values, field)                                                                             \
    { "threads", 0, "N", CLI_INT, offsetof(values, field.threads), NULL, 1, "number of threads (default: all CPUs)" }, \
        { "isa",                                                                                                       \
          0,                                                                                                           \
          "NAME",                                                                                                      \
          CLI_TEXT,                                                                                                    \
          offsetof(values, field.isa),                                                                                 \
          NULL,                                                                                                        \
          0,                                                                                                           \
          "instruction set: ref, avx2, avx512 (default: the best available)" },                                        \
        CLI_DEVICE_OPTION(offsetof(values, field.device)),                                                             \
    {                                                                                                                  \
        "precision", 0, "exact|tf32|bf16", CLI_CHOICE, offsetof(values, field.precision), NULL, 0,                     \
            "precision of matrix products on a GPU (default: KR_PRECISION, else exact)"                                \
    }

#define CLI_DEVICE_OPTION(at)                                                                                          \
    {                                                                                                                  \
        "device", 0, "NAME", CLI_TEXT, at, NULL, 0,                                                                    \
            "device: cpu, cuda, cuda:N (default: KR_DEVICE, else cpu; see krait info --devices)"                       \
    }

/* Warnings of the library go to stderr, as "krait: warning: TEXT". */
kr_ctx *cli_open(const cli_machine *machine, uint64_t seed);

/* Without them, for tasks: that the official code cannot load their networks would be said with each checkpoint. */
kr_ctx *cli_open_quiet(const cli_machine *machine, uint64_t seed);

/* A context of one CPU thread, for commands that only read and write files: no device is opened. */
kr_ctx *cli_open_for_files(kr_log_fn *log, void *log_user);

/* Are the context's floats on a device other than the processor? */
bool cli_on_device(const kr_ctx *ctx);

/* "avx512, threads 2", or "cuda:0 NVIDIA H200" on such a device. */
typedef struct cli_machine_name {
    char text[160];
} cli_machine_name;
cli_machine_name cli_machine_text(const kr_ctx *ctx);

/* Peak memory of the context, and of the device: "12.3 MiB", "12.3 MiB, 456.7 MiB of the device". */
cli_machine_name cli_memory_text(const kr_ctx *ctx);
size_t cli_peak_bytes(const kr_ctx *ctx); /* of both together */

/* Prints on stderr how many kernel calls the CPU ran because the device lacks the kernels; nothing if there were none. */
void cli_print_fallback(const kr_ctx *ctx);

/* Prints the error of ctx, if there is one; true then. */
bool cli_failed(kr_ctx *ctx);

/* Seconds on a clock that only goes forward. */
double cli_seconds(void);

#endif
