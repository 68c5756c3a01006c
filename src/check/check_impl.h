/* check_impl.h - common code of the check suite: contexts, the report, memory. */
#ifndef KR_CHECK_CHECK_IMPL_H
#define KR_CHECK_CHECK_IMPL_H

#include <krait/experimental/check.h>
#include <krait/krait.h>

/* One call of kr_check_run. */
typedef struct check_tally {
    kr_ctx *ctx; /* the caller's: memory hooks, log, and the error if the checks cannot run */
    const kr_check_options *options;
    kr_check_counts counts;
    const char *isa; /* the instruction set being checked, for the report; NULL: none */
    int name_width;
    char trouble[300]; /* the error of a context that was tried; goes into the next line that reports a failure */
} check_tally;

typedef struct check_setup {
    const char *isa;
    int threads;
    kr_dtype dtype;
    uint64_t seed;
    const char *device; /* NULL: KR_DEVICE, else the processor */
    check_tally *tally;
    bool is_exact; /* exact precision, ignoring the environment; warnings go to the caller's log */
} check_setup;

kr_ctx *check_open(const check_setup *setup);

/* Did ctx fail? Its message is kept for the report then. */
bool check_failed(check_tally *tally, kr_ctx *ctx);

/* Records the failure of another context in the caller's; always false. */
bool check_give_up(check_tally *tally, const kr_ctx *ctx);

bool check_on_device(const kr_ctx *ctx);

/* One line of the report. A check that measures has an error and its limit; 0 for bits that must be the same. */
typedef struct check_measure {
    double error, limit;
} check_measure;
void check_report(check_tally *tally, bool ok, const char *what, const char *text, check_measure measure);
void check_report_kernel(check_tally *tally, const char *what, const char *text, const char *kernel,
                         check_measure measure);
void check_print(check_tally *tally, kr_check_outcome outcome, const char *what, const char *text);

/* Zeroed memory of a context; NULL if the allocation fails. check_grow keeps the contents, and p if it fails. */
void *check_alloc(kr_ctx *ctx, size_t bytes);
void *check_grow(kr_ctx *ctx, void *p, size_t bytes);
void check_free(void *p);

/* The largest |a - b| in units of the largest |b|; NaN if there is one in either. */
double check_distance(const double *a, const double *b, int64_t count);

/* The kinds of check; false if one could not run, after an error in the caller's context. */
bool check_machine(check_tally *tally);
bool check_ops(check_tally *tally);
bool check_model(check_tally *tally);

/* The default number of threads of a context, but at least two; 0 after an error. */
int check_threads_to_try(check_tally *tally);

/* A small network of each family on one instruction set, or on a device: chunked and token-by-token input give the
 * logits and gradients of the whole sequence; and one thread gives the same bits as many, or a second run as the
 * first. */
void check_networks(check_tally *tally, const check_setup *setup, const char *name);

#endif
