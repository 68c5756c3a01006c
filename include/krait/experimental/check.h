/* check.h - self-test: verifies kernels, networks or a model on this machine against references and recorded results.
 *
 *   kr_check_options options;
 *   kr_check_options_init(&options);
 *   options.isa = "ref";
 *   kr_check_counts counts;
 *   if (kr_check_run(ctx, &options, &counts) == KR_OK && counts.failed == 0) puts("the reference kernels are right here");
 *
 * `krait check` is this function as a command.
 */
#ifndef KRAIT_EXPERIMENTAL_CHECK_H
#define KRAIT_EXPERIMENTAL_CHECK_H

#include <krait/ctx.h>
#include <krait/experimental/static_only.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_check_kind {
    /* Recorded results of every op family, gradients, threads and networks, on each instruction set. */
    KR_CHECK_MACHINE = 0,
    KR_CHECK_OPS = 1,   /* the cases of a safetensors file (tests/golden/README.md) */
    KR_CHECK_MODEL = 2, /* a model: with `against` compared with recorded numbers, else with itself */
    KR_CHECK_RECORD = 3 /* checks nothing: reports the results of the built-in cases, computed here in f64 */
} kr_check_kind;

typedef enum kr_check_outcome {
    KR_CHECK_PASSED = 0,
    KR_CHECK_FAILED = 1,
    KR_CHECK_SKIPPED = 2, /* not compared; text says why */
    KR_CHECK_NOTE = 3,    /* a remark; name is NULL */
    KR_CHECK_HEADING = 4  /* titles of the columns that follow in text, or what is checked (name is NULL) */
} kr_check_outcome;

/* One line of the report. Valid until the callback returns. */
typedef struct kr_check_result {
    kr_check_outcome outcome;
    const char *name;   /* what was checked */
    const char *text;   /* measured error and limit, or why it failed; may have several lines */
    const char *kernel; /* the kernels whose results are wrong; NULL if the check does not tell */
    const char *isa;    /* the instruction set or device that was checked; NULL if it is none in particular */
    int name_width;     /* width of the column of names, for tables */
    double error;       /* the worst relative error; NaN if none was measured, or if it is NaN */
    double limit;       /* the largest error that passes; 0: the same bits; NaN if the check has none */
} kr_check_result;
typedef void kr_check_fn(void *user, const kr_check_result *result);

typedef struct kr_check_options {
    size_t size;         /* set by kr_check_options_init */
    kr_check_kind kind;  /* KR_CHECK_MACHINE */
    kr_check_fn *report; /* NULL: only counts */
    void *user;
    const char *device;    /* as in kr_ctx_options */
    const char *isa;       /* NULL: every instruction set; KR_CHECK_MODEL: the best */
    int threads;           /* compared with one thread; 0: all CPUs, at least 2 */
    uint64_t seed;         /* 1; seed of random operands */
    const char *ops;       /* KR_CHECK_OPS: the file */
    const char *model;     /* KR_CHECK_MODEL: the folder */
    const char *against;   /* KR_CHECK_MODEL: a safetensors file of recorded numbers; NULL: none */
    kr_dtype dtype;        /* KR_DTYPE_F32; KR_CHECK_MODEL: of the weights in memory */
    double tolerance;      /* -1: the default; of values, relative to the tensor's maximum */
    double grad_tolerance; /* -1: the default; of gradients */
    int64_t tokens;        /* 64; KR_CHECK_MODEL: length of the random sequences */
} kr_check_options;
#define kr_check_options_init(options) KR_STRUCT_INIT(CHECK_OPTIONS, kr_check_options, options)

typedef struct kr_check_counts {
    int64_t passed, failed, skipped;
    int64_t reserved[5]; /* 0; for later versions */
} kr_check_counts;

/* Runs the checks and reports each. Opens its own contexts, with the memory hooks and the log of ctx; ctx only gets the
 * error if the checks cannot run: KR_ERR_ARG for options, else the status of what failed. KR_OK says that they ran, also if
 * some failed: see counts (NULL: not wanted). Blocks; the callback runs on the calling thread. */
KR_EXPERIMENTAL_API kr_status kr_check_run(kr_ctx *ctx, const kr_check_options *options, kr_check_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
