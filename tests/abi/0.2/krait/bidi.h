/* bidi.h - stacks that read a sequence in both directions.
 *
 *   kr_mamba2_config mamba;
 *   kr_mamba2_config_init(&mamba);
 *   mamba.d_model = 256;
 *   kr_bidi_config config;
 *   kr_bidi_config_init(&config);
 *   config.block = kr_mamba2_block(&mamba);
 *   config.n_layers = 2;
 *   kr_bidi *bidi = kr_bidi_create(ctx, &config);
 *   kr_bidi_out out = kr_bidi_forward(tape, bidi, x_bsd, NULL);
 *   kr_bidi_destroy(bidi);
 *
 * Layers come in pairs: delta(x) = merge(block_s(norm_s(x)), flip(block_r(norm_r(flip(x))))). The residual is added to
 * a pair.
 */
#ifndef KRAIT_BIDI_H
#define KRAIT_BIDI_H

#include <krait/layers.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_bidi_merge {
    KR_BIDI_MERGE_MEAN = 0,      /* (a + b) / 2 */
    KR_BIDI_MERGE_CAT_LINEAR = 1 /* [a b] W^T + bias, for each pair of weights */
} kr_bidi_merge;

typedef struct kr_bidi_config {
    size_t size; /* set by kr_bidi_config_init */
    kr_block_config block;
    int64_t n_layers;               /* sets of weights; even */
    int64_t n_virtual;              /* 0: n_layers; how many are run; even */
    kr_bidi_schedule schedule;      /* KR_BIDI_SCHEDULE_STRIDED_CYCLIC */
    const int64_t *custom_schedule; /* KR_BIDI_SCHEDULE_CUSTOM: n_virtual numbers below n_layers */
    kr_bidi_merge merge;            /* KR_BIDI_MERGE_MEAN */
    double norm_eps;                /* 1e-5 */
    bool ignore_first_residual;     /* false; of the first pair */
    bool ignore_last_residual;      /* false; of the last one */
    kr_residual residual;           /* standard; the pair is the unit */
    int n_latents;                  /* learned rows spliced into the stack's input */
    const kr_class_token *latents;
} kr_bidi_config;
#define kr_bidi_config_init(config) KR_STRUCT_INIT(BIDI_CONFIG, kr_bidi_config, config)

typedef struct kr_bidi kr_bidi;

/* NULL after an error that names field, value and rule. The caller destroys the result before the context. */
KR_API kr_bidi *kr_bidi_create(kr_ctx *ctx, const kr_bidi_config *config);
KR_API void kr_bidi_destroy(kr_bidi *bidi);
KR_API kr_params *kr_bidi_params(const kr_bidi *bidi);

typedef struct kr_bidi_out {
    kr_tensor *y;
    kr_cache *caches;  /* [n_virtual], on the tape: what each direction's reading left behind */
    void *reserved[4]; /* NULL; for later versions */
} kr_bidi_out;

/* How a stack is to be run; NULL in its place: all defaults. */
typedef struct kr_bidi_call {
    size_t size;            /* set by kr_bidi_call_init */
    const kr_cache *caches; /* NULL: initial; [n_virtual] to begin from */
    /* Dropout with this probability, in [0, 1), of the stack's input and of what each pair adds to the residual stream
     * (kr_dropout). 0: none, as evaluation wants it. */
    double dropout;
} kr_bidi_call;
#define kr_bidi_call_init(call) KR_STRUCT_INIT(BIDI_CALL, kr_bidi_call, call)

/* x [b s d] -> y [b s' d], s' = s and the markers; half-precision inputs are added up in f32, which y is then. */
KR_API kr_bidi_out kr_bidi_forward(kr_tape *tape, const kr_bidi *bidi, kr_tensor *x_bsd, const kr_bidi_call *call);

#ifdef __cplusplus
}
#endif
#endif
