/* ops_nn.h - the fused pieces of a Mamba block: projection, norms, gate, short convolution.
 *
 *   kr_norm_options norm;
 *   kr_norm_options_init(&norm);
 *   kr_tensor *y_bsi = kr_gated_norm(tape, x_bsi, z_bsi, gain_i, &norm);
 *   kr_conv_out conv = kr_causal_conv(tape, x_bsv, weight_vk, bias_v, NULL, NULL, true);
 */
#ifndef KRAIT_OPS_NN_H
#define KRAIT_OPS_NN_H

#include <krait/ops_shape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x [.. i], weight [o i], bias [o] or NULL -> x weight^T + bias [.. o]. */
KR_API kr_tensor *kr_linear(kr_tape *tape, kr_tensor *x, kr_tensor *weight, kr_tensor *bias);

typedef struct kr_norm_options {
    size_t size;           /* set by kr_norm_options_init */
    double eps;            /* 1e-5; added to the mean square */
    int64_t groups;        /* 1; the last axis is normed in that many equal parts */
    bool norm_before_gate; /* false: the gate is applied first */
} kr_norm_options;
#define kr_norm_options_init(options) KR_STRUCT_INIT(NORM_OPTIONS, kr_norm_options, options)

/* x [.. i], gain [i] or NULL: y = x / sqrt(mean_group(x^2) + eps) gain. NULL options are the defaults. */
KR_API kr_tensor *kr_rms_norm(kr_tape *tape, kr_tensor *x, kr_tensor *gain, const kr_norm_options *options);

/* x [.. i], gain and bias [i] or NULL: y = (x - mean) / sqrt(variance + eps) gain + bias, mean and variance (divided by
 * the
 * number of channels) of each group of the last axis. NULL options are the defaults; norm_before_gate must be false. */
KR_API kr_tensor *kr_layer_norm(kr_tape *tape, kr_tensor *x, kr_tensor *gain, kr_tensor *bias,
                                const kr_norm_options *options);

/* x, z [.. i]: rms_norm(x silu(z)), or rms_norm(x) silu(z) with norm_before_gate. */
KR_API kr_tensor *kr_gated_norm(kr_tape *tape, kr_tensor *x, kr_tensor *z, kr_tensor *gain,
                                const kr_norm_options *options);

/* x, z [..]: x silu(z). */
KR_API kr_tensor *kr_gate(kr_tape *tape, kr_tensor *x, kr_tensor *z);

#define KR_NEXT_STREAM UINT64_MAX

typedef struct kr_dropout_options {
    size_t size;     /* set by kr_dropout_options_init */
    uint64_t stream; /* KR_NEXT_STREAM: the context's next random stream; any other: this one, which is not used up */
    int64_t first;   /* 0: the number of x's first element, where x is a part of a larger tensor */
} kr_dropout_options;
#define kr_dropout_options_init(options) KR_STRUCT_INIT(DROPOUT_OPTIONS, kr_dropout_options, options)

/* x [..]: each element is set to 0 with probability p, in [0, 1), and divided by 1 - p otherwise; p = 0 gives x. Which ones
 * are 0 is a function of the context's seed, the stream and the element's row-major number, the same on every device and
 * for any number of threads; parts of a tensor with one stream and their own `first` give the mask of the whole. The
 * backward pass computes the mask again; so does kr_checkpoint. NULL options are the defaults. */
KR_API kr_tensor *kr_dropout(kr_tape *tape, kr_tensor *x, double p, const kr_dropout_options *options);

/* The marker of packed rows, i32 [batch length], from cumulative sequence lengths (i32 or i64 [q+1]), as variable-length
 * attention and mamba_ssm have them: 0, then where each sequence ends, in tokens of all rows one after another. They
 * increase up to batch length, and no sequence crosses from one row to the next. For all that takes a seq_start_bs. */
KR_API kr_tensor *kr_seq_start_from_cu_seqlens(kr_tape *tape, kr_tensor *cu_seqlens, int64_t batch, int64_t length);

typedef struct kr_conv_out {
    kr_tensor *y_bsv;
    kr_tensor *window_bvk; /* the last k inputs, newest last: what the next call continues from */
} kr_conv_out;

/* Causal depthwise convolution: y[b,s,v] = bias[v] + sum over j < k of weight[v,j] x[b, s-(k-1)+j, v], then SiLU if
 * asked. Inputs before the first come from window_bvk, or are 0 without one. weight [v k], bias [v] or NULL.
 * seq_start_bs (i32 or i64 [b s], or NULL) is not 0 where a new sequence begins inside a row; the first token of a row
 * always begins one. No tap reaches over it; windows, in and out, are then one for each sequence, [q v k], rows one
 * after another. */
KR_API kr_conv_out kr_causal_conv(kr_tape *tape, kr_tensor *x_bsv, kr_tensor *weight_vk, kr_tensor *bias_v,
                                  kr_tensor *window_bvk, kr_tensor *seq_start_bs, bool silu);

#ifdef __cplusplus
}
#endif
#endif
