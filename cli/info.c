/* info.c - krait info: what this machine offers and what Krait makes of it. */
#include "cli/commands.h"

#include <krait/ctx.h>

#include <stdio.h>

static const cli_option options[] = { { 0 } };

static int run(int argc, char **argv)
{
    char text[512];
    int status = cli_parse(&cli_info, NULL, argc, argv);
    if (status >= 0) return status;

    printf("version            %s\n", kr_version());
    printf("cpu features       %s\n", kr_cpu_features_text(text, sizeof text));
    printf("instruction sets   %s\n", kr_isa_choices(text, sizeof text));

    kr_ctx *ctx = kr_ctx_create(NULL);
    status = kr_ctx_failed(ctx) ? CLI_FAILED : CLI_OK;
    if (status) {
        cli_complain(NULL, "%s", kr_ctx_message(ctx));
    } else {
        printf("in use             %s, threads %d\n", kr_ctx_isa(ctx), kr_ctx_threads(ctx));
    }
    kr_ctx_destroy(ctx);
    return status;
}

const cli_command cli_info = { "info", "what this machine offers and what Krait makes of it", options, run };
