/* optimizer.h - moves the parameters of a table against their gradients: AdamW, SGD with momentum, Muon.
 *
 *   kr_optimizer_options options;
 *   kr_optimizer_options_init(&options);
 *   options.weight_decay = 0.05;
 *   kr_optimizer *optimizer = kr_optimizer_create(ctx, kr_network_params(net), &options);
 *   kr_tensor *logits = kr_network_forward(tape, net, id_bs, NULL).y;
 *   kr_backward(tape, kr_mean(tape, kr_mul(tape, logits, logits), KR_ALL_AXES, false));
 *   kr_optimizer_step(optimizer, 1e-3, 1);              // clips, steps, zeroes the gradients
 *   printf("gradient %g\n", kr_optimizer_grad_norm(optimizer));
 *   kr_optimizer_destroy(optimizer);
 *
 * Gradients of several backward passes add up; kr_optimizer_step(optimizer, lr, 1.0 / n) after n of them is the step of
 * one batch n times as large. Parameters that are frozen, or that no gradient has reached since theirs was zeroed, are
 * passed over: neither they nor what is remembered of them change.
 *
 * Of parameters in bf16 or f16 the optimizer keeps an f32 copy, which is what is stepped; the parameter is that copy,
 * rounded to nearest even.
 */
#ifndef KRAIT_OPTIMIZER_H
#define KRAIT_OPTIMIZER_H

#include <krait/params.h>
#include <krait/tensor_file.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_optimizer kr_optimizer;

/* With g the gradient after scaling and clipping, t a parameter's steps from 1 on:
 *   AdamW   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
 *           w -= lr weight_decay w + lr (m / (1 - beta1^t)) / ((v / (1 - beta2^t))^1/2 + eps)
 *   SGD     g += weight_decay w;   u = g at first, then momentum u + (1 - dampening) g
 *           w -= lr u, or with nesterov lr (g + momentum u)
 *   Muon    u = muon_momentum u + g;   G = u, or with muon_nesterov g + muon_momentum u
 *           w -= lr decay w + lr ratio orthogonal(G)     for each segment [rows cols] of a fused weight by itself
 *           orthogonal: X = G / max(|G|, 1e-7), then muon_steps times
 *                       A = X X^T;   X = a X + (b A + c A A) X     (on the transpose where rows > cols)
 *           Segments that the table does not give to Muon, and parameters without segments, are AdamW's. */
typedef enum kr_optimizer_kind {
    KR_OPTIMIZER_ADAMW = 0,
    KR_OPTIMIZER_SGD = 1,
    KR_OPTIMIZER_MUON = 2
} kr_optimizer_kind;

/* "adamw", "sgd", "muon"; "?" for an invalid value. */
KR_API_INLINE const char *kr_optimizer_kind_name(kr_optimizer_kind kind)
{
    return kr_enum_name(KR_ENUM_OPTIMIZER_KIND, (int)kind);
}

/* What Muon's step is multiplied with, for a matrix [rows cols] that makes `rows` outputs of `cols` inputs. */
typedef enum kr_muon_ratio {
    KR_MUON_RATIO_MATCH_RMS = 0,       /* 0.2 max(rows, cols)^1/2: steps as large as AdamW's, whose rate serves both */
    KR_MUON_RATIO_ORIGINAL = 1,        /* max(1, rows / cols)^1/2 */
    KR_MUON_RATIO_ORIGINAL_INPUTS = 2, /* max(1, cols / rows)^1/2: the same rule on weights that are kept as [in out] */
    KR_MUON_RATIO_PLAIN = 3            /* 1 */
} kr_muon_ratio;

#define KR_SAME_DECAY (-1.0)

typedef struct kr_optimizer_options {
    size_t size;            /* set by kr_optimizer_options_init */
    kr_optimizer_kind kind; /* KR_OPTIMIZER_ADAMW */

    double beta1, beta2; /* 0.9, 0.95 */
    double eps;          /* 1e-8, above 0 */
    double weight_decay; /* 0.1 */
    bool decay_all;      /* false: only rows of the table that `has_decay`; norms, biases, A_log, D, dt_bias do not */
    bool is_cautious;    /* false; AdamW: elements decay only where w and m have the same sign */

    double momentum, dampening; /* 0.9, 0: of SGD */
    bool nesterov;              /* false */

    double muon_momentum;        /* 0.95 */
    bool muon_nesterov;          /* true */
    int muon_steps;              /* 5 */
    double muon_coefficients[3]; /* 3.4445, -4.775, 2.0315: a, b, c */
    kr_muon_ratio muon_ratio;    /* KR_MUON_RATIO_MATCH_RMS */
    double muon_weight_decay;    /* KR_SAME_DECAY: as weight_decay */
    int n_without;               /* 0: segments of these names are AdamW's too, whatever the table says */
    const char *const *without;

    double clip_norm;  /* 1; 0: no limit; of all gradients together: they are scaled down to it */
    double clip_value; /* 0: no limit; of each element, after that */
    double ema_decay;  /* 0: no averaged weights; otherwise ema += (1 - ema_decay) (w - ema) after each step */
    bool keep_grad;    /* false: a step zeroes the gradients that it took */
} kr_optimizer_options;
#define kr_optimizer_options_init(options) KR_STRUCT_INIT(OPTIMIZER_OPTIONS, kr_optimizer_options, options)

/* NULL options: all defaults. The table must outlive the optimizer, and its values should be there already: f32 copies
 * and averages begin as the parameters are now. NULL after an error. Destroy before the context; NULL is allowed. */
KR_API kr_optimizer *kr_optimizer_create(kr_ctx *ctx, kr_params *params, const kr_optimizer_options *options);
KR_API void kr_optimizer_destroy(kr_optimizer *optimizer);

/* One step with the sums of gradients, each multiplied by grad_scale. It asks for no memory. A gradient that is not
 * finite is an error that names parameter, element and value; after an error nothing has changed. */
KR_API kr_status kr_optimizer_step(kr_optimizer *optimizer, double lr, double grad_scale);

typedef struct kr_optimizer_stats {
    int64_t steps;    /* that were made */
    double grad_norm; /* of all gradients together in the last step, scaled, before clipping; of the last step that was
                           * tried, if it failed for its gradients */
    size_t bytes;     /* of what is remembered of the parameters: two numbers an element for AdamW, one for momentum and
                           * for Muon, one more for averages and for the f32 copy of a half */
    uint64_t reserved[5]; /* 0; for later versions */
} kr_optimizer_stats;

/* Statistics of an optimizer, and each by itself; 0 for NULL. */
KR_API kr_optimizer_stats kr_optimizer_stats_of(const kr_optimizer *optimizer);
KR_API_INLINE int64_t kr_optimizer_steps(const kr_optimizer *optimizer)
{
    return kr_optimizer_stats_of(optimizer).steps;
}
KR_API_INLINE double kr_optimizer_grad_norm(const kr_optimizer *optimizer)
{
    return kr_optimizer_stats_of(optimizer).grad_norm;
}
KR_API_INLINE size_t kr_optimizer_bytes(const kr_optimizer *optimizer)
{
    return kr_optimizer_stats_of(optimizer).bytes;
}

/* Puts the averaged weights into the parameters, for an evaluation, or the trained ones back. In between there is no
 * step and no save, and the parameters are not to be written. */
KR_API kr_status kr_optimizer_use_ema(kr_optimizer *optimizer, bool is_on);

/* After parameters were written by other means: f32 copies and averages begin anew from them. */
KR_API kr_status kr_optimizer_reread(kr_optimizer *optimizer);

/* Adds everything a later run needs to continue to the same bits: tensors "optimizer.*" and metadata "optimizer.*". The
 * tensors lie in the optimizer's memory: save the file before the next step. */
KR_API kr_status kr_optimizer_snapshot(const kr_optimizer *optimizer, kr_tensor_writer *writer);

/* Reads it back, into an optimizer of the same kind over a table of the same parameters with the same values. Every
 * tensor must be present, of the right type and shape, and no other may have a name that begins with "optimizer.".
 * After an
 * error nothing has changed. */
KR_API KR_MUST_CHECK kr_status kr_optimizer_restore(kr_optimizer *optimizer, const kr_tensor_file *file);

/* A line for each parameter (rank, name, shape, elements, decay, and whose it is: "adamw", "sgd" or "muon[z:64 x:64
 * dt:4*]", a star for segments that are AdamW's) and one of totals, into text as by snprintf: the length it needs,
 * without the final zero. */
KR_API size_t kr_optimizer_describe(const kr_optimizer *optimizer, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
