/* loss.h - what is minimised: cross-entropy, alone or in one with the head that makes its logits, and its relatives.
 *
 *   kr_loss_call call;
 *   kr_loss_call_init(&call);
 *   call.ids_bs = id_bs;                                      // labels: the next token of each, inside its row
 *   kr_loss_out out = kr_network_loss(tape, net, &call);      // logits [b s w] never exist as a whole
 *   kr_backward(tape, out.loss);
 *   printf("%g, %lld of %lld right\n", kr_item(out.loss), (long long)out.scores.right, (long long)out.scores.scored);
 *
 * A loss is one number, f32, or f64 where its operands are; halves are computed in f32. It is the mean over what is
 * scored: labels that are neither ignored nor masked. Where nothing is scored it is 0, and so are its gradients. What is
 * not scored may be anything, NaN too.
 */
#ifndef KRAIT_LOSS_H
#define KRAIT_LOSS_H

#include <krait/network.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kr_reduction {
    KR_REDUCTION_MEAN = 0, /* over what is scored */
    KR_REDUCTION_SUM = 1
} kr_reduction;

/* How many labels were scored; how many of those are where the logits are largest (the first of equal ones). */
typedef struct kr_scores {
    int64_t scored, right;
    uint64_t reserved[4]; /* 0; for later versions */
} kr_scores;

/* ---- with labels: one class for each row of logits ---- */

typedef struct kr_cross_entropy_options {
    size_t size;            /* set by kr_cross_entropy_options_init */
    kr_tensor *mask;        /* i32 or i64, of the labels' shape: 0 where a label is not scored; NULL: all are */
    int64_t ignore_index;   /* -100: a label of this value is not scored */
    double label_smoothing; /* 0; up to 1: this part of the target is spread evenly over the classes */
    kr_reduction reduction;
    int64_t n_classes;    /* 0: w. Labels are below it; columns from there on are a vocabulary's padding ... */
    bool exclude_padding; /* ... and take part in the softmax, as in the official code, unless this is set */
    kr_scores *scores;    /* NULL, or where to count */
} kr_cross_entropy_options;
#define kr_cross_entropy_options_init(options) KR_STRUCT_INIT(CROSS_ENTROPY_OPTIONS, kr_cross_entropy_options, options)

/* logits [.. w], labels [..] (i32 or i64): -log softmax(logits)[label]. With smoothing q:
 * (1 - q) (-log p[label]) + q mean(-log p). NULL options are the defaults. A label that is none is an error. */
KR_API kr_tensor *kr_cross_entropy(kr_tape *tape, kr_tensor *logits, kr_tensor *labels,
                                   const kr_cross_entropy_options *options);

/* The same of logits = hidden weight^T + bias: hidden [.. d], weight [w d], bias [w] or NULL. Logits are made, used and
 * overwritten by some rows at a time; where the tape records, so are the gradients of hidden, weight and bias, which are
 * kept until the backward pass. Rows that are not scored cost nothing. A weight of halves is read where it lies. */
KR_API kr_tensor *kr_head_cross_entropy(kr_tape *tape, kr_tensor *hidden, kr_tensor *weight, kr_tensor *bias,
                                        kr_tensor *labels, const kr_cross_entropy_options *options);

/* Counts only, nothing is recorded. Of the options mask, ignore_index, n_classes and exclude_padding matter. Zeros after
 * an error. */
KR_API kr_scores kr_accuracy(kr_tape *tape, kr_tensor *logits, kr_tensor *labels,
                             const kr_cross_entropy_options *options);

/* ---- with targets: a number for each output ---- */

typedef struct kr_loss_options {
    size_t size; /* set by kr_loss_options_init */
    /* i32 or i64: 0 where an output is not scored; NULL: all are. It repeats to the outputs' shape; that of
     * kr_soft_cross_entropy has a number for each row, [..]. */
    kr_tensor *mask;
    kr_reduction reduction;
    bool from_probabilities; /* bce, soft_cross_entropy: outputs are probabilities; false: logits */
    bool target_logits;      /* soft_cross_entropy: targets are logits too, their softmax is taken */
    double eps;              /* added to probabilities before their logarithm; 0: 2^-23, in f64 2^-52 */
    int64_t *n_scored;       /* NULL, or where to put how many outputs, or rows, were scored */
    double huber_delta;      /* 1; huber_loss: from this distance on the loss is linear; > 0 */
    double quantile;         /* 0.5; quantile_loss: in (0, 1) */
} kr_loss_options;
#define kr_loss_options_init(options) KR_STRUCT_INIT(LOSS_OPTIONS, kr_loss_options, options)

typedef enum kr_loss_kind {
    KR_LOSS_CROSS_ENTROPY = 0,
    KR_LOSS_SOFT_CROSS_ENTROPY = 1,
    KR_LOSS_BCE = 2,
    KR_LOSS_MSE = 3,
    KR_LOSS_L1 = 4,
    KR_LOSS_HUBER = 5,
    KR_LOSS_QUANTILE = 6
} kr_loss_kind;
/* All of outputs and targets of one shape, with gradients for both. NULL options are the defaults.
 *   soft_cross_entropy  [.. w]: mean over rows of -sum over w of t log p;  p = softmax(y), or y + eps
 *   bce                 mean of -t log p - (1 - t) log(1 - p);  p = sigmoid(y), or y with eps added to p and to 1 - p
 *   mse                 mean of (y - t)^2
 *   l1_loss             mean of |y - t|
 *   huber_loss          mean of (y - t)^2 / 2 where |y - t| <= delta, else delta (|y - t| - delta / 2)
 *   quantile_loss       mean of q (t - y) where y < t, else (1 - q) (y - t): the pinball loss
 * The gradient of l1_loss is 0 where y = t, that of quantile_loss 1/2 - q. KR_LOSS_CROSS_ENTROPY is an error: it has labels. */
KR_API kr_tensor *kr_target_loss(kr_tape *tape, kr_loss_kind kind, kr_tensor *outputs, kr_tensor *targets,
                                 const kr_loss_options *options);
KR_API_INLINE kr_tensor *kr_soft_cross_entropy(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets,
                                               const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_SOFT_CROSS_ENTROPY, outputs, targets, options);
}
KR_API_INLINE kr_tensor *kr_bce(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets, const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_BCE, outputs, targets, options);
}
KR_API_INLINE kr_tensor *kr_mse(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets, const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_MSE, outputs, targets, options);
}
KR_API_INLINE kr_tensor *kr_l1_loss(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets,
                                    const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_L1, outputs, targets, options);
}
KR_API_INLINE kr_tensor *kr_huber_loss(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets,
                                       const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_HUBER, outputs, targets, options);
}
KR_API_INLINE kr_tensor *kr_quantile_loss(kr_tape *tape, kr_tensor *outputs, kr_tensor *targets,
                                          const kr_loss_options *options)
{
    return kr_target_loss(tape, KR_LOSS_QUANTILE, outputs, targets, options);
}

/* ---- of a network ---- */

typedef struct kr_loss_call {
    size_t size; /* set by kr_loss_call_init */
    kr_loss_kind kind;

    kr_tensor *ids_bs; /* of a vocabulary network: i32 or i64 */
    kr_tensor *x_bsf;  /* of a latent network: features */

    /* Cross-entropy: i32 or i64, [b s'] for s' outputs, or [b] with last_logits_only. NULL, for ids: each token's label
     * is the
     * next one; tokens without a next are not scored: the last of a row, and those before seq_start, reset or padding. */
    kr_tensor *labels;
    kr_tensor *targets; /* the other kinds: of the outputs' shape */
    kr_tensor *scored;  /* the loss's mask; see its options. NULL: all */

    /* How the network is run; NULL: all defaults. With last_logits_only the loss is that of each row's last output;
     * skip_head is set by the kind of loss. */
    const kr_call *call;

    /* As in the options of the losses. */
    int64_t ignore_index;
    double label_smoothing;
    kr_reduction reduction;
    bool exclude_padding, from_probabilities, target_logits;
    double eps;
    double huber_delta, quantile; /* 1, 0.5 */
} kr_loss_call;
#define kr_loss_call_init(call) KR_STRUCT_INIT(LOSS_CALL, kr_loss_call, call)

typedef struct kr_loss_out {
    kr_tensor *loss;
    kr_tensor *y;      /* the outputs; NULL for cross-entropy, which makes them in passing */
    kr_state *state;   /* on the tape; NULL with drop_state */
    kr_scores scores;  /* right is of cross-entropy alone */
    void *reserved[4]; /* NULL; for later versions */
} kr_loss_out;

/* A network's forward, and the loss of what it gives; cross-entropy in one with the head. */
KR_API kr_loss_out kr_network_loss(kr_tape *tape, const kr_network *net, const kr_loss_call *call);

#ifdef __cplusplus
}
#endif
#endif
