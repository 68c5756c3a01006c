/* cmd_check.h - what the parts of krait check share: how a context is opened, and the lines of the report. */
#ifndef KR_CLI_COMMANDS_CMD_CHECK_H
#define KR_CLI_COMMANDS_CMD_CHECK_H

#include <krait/krait.h>

typedef struct check_setup {
    const char *isa;
    int threads;
    kr_dtype dtype;
    uint64_t seed;
    const char *device; /* NULL: KR_DEVICE, else the processor */
} check_setup;

kr_ctx *check_open(const check_setup *setup);

/* Says what went wrong in ctx, if anything did; true then. */
bool check_complain_of(kr_ctx *ctx);

typedef struct check_tally {
    int passed, failed;
    bool is_json; /* the report is one JSON object */
} check_tally;

/* One line of the report, or one element of the JSON array "checks". */
void check_report(check_tally *tally, bool ok, const char *what, const char *text);

/* The largest |a - b| in units of the largest |b|; NaN if there is one in either. */
double check_distance(const double *a, const double *b, int64_t count);

/* A small network of each family on one instruction set, or on a device: read in pieces and single tokens it gives what
 * it gives read at once, logits and gradients; and one thread gives the same bits as many, or one run as another. */
void check_networks(check_tally *tally, const check_setup *setup, const char *name);

#endif
