/* mamba3_impl.h - internals of a Mamba-3 block: its parameters, and the pieces that forward and step_infinite share. */
#ifndef KR_NN_MAMBA3_IMPL_H
#define KR_NN_MAMBA3_IMPL_H

#include "nn/piece_scan.h"
#include "mixer/core.h"

struct kr_mamba3 {
    kr_block head;
    kr_mamba3_config config;
    int64_t ni, nh, nm;     /* d_inner, heads, rank (1 without is_mimo) */
    int64_t nrotations;     /* angles, or quaternions of a head, in projection and cache */
    int64_t nrotated;       /* effective rotations: nrotations, or 0 if the only one has no angles */
    int64_t n_in, nchannel; /* rows of in_proj; those of them for the rotation */
    kr_trapezoid_options steps;
    kr_norm_options norm; /* of the output */
    kr_tensor *dt_bias_h, *b_bias_hmr, *c_bias_hmr, *mimo_x_hmp, *mimo_z_hmp, *mimo_o_hmp, *d_h, *in_proj,
        *in_proj_bias, *b_gain_r, *c_gain_r, *norm_gain, *out_proj, *out_proj_bias, *learned_init_hpr;
};

/* create of kr_block_kind. */
void *kr_mamba3_declare(kr_ctx *ctx, kr_params *params, const void *config);

/* The parts of the input projection, before the rotation. autocasts: x may be cast to bf16. */
typedef struct kr_mamba3_tokens {
    int64_t nb, ns;
    kr_tensor *z_bsi, *x_bsi;
    kr_tensor *v_bsmhp;           /* x mimo_x */
    kr_tensor *b_bsmgr, *c_bsmgr; /* raw */
    kr_tensor *b_bsmhr, *c_bsmhr; /* after norm and bias, and rotated if tokens form sequences; not of project */
    kr_ssd_rotary_args rotary;    /* with angles: B and C by group after their norm, for the core to rotate; likewise */
    kr_tensor *rotation;          /* raw: [b s a], or [b s h j 3] */
    kr_trapezoid_out step;
} kr_mamba3_tokens;
kr_mamba3_tokens kr_mamba3_project(kr_tape *tape, const kr_mamba3 *m, kr_tensor *u_bsd, int64_t nb, int64_t ns,
                                   bool autocasts);

/* B or C after norm and bias: [b s m g r] -> [b s m h r]. */
kr_tensor *kr_mamba3_maps(kr_tape *tape, const kr_mamba3 *m, kr_tensor *raw_bsmgr, kr_tensor *gain_r,
                          kr_tensor *bias_hmr);

/* x [b s i] -> x mimo_x [b s m h p]. */
kr_tensor *kr_mamba3_values(kr_tape *tape, const kr_mamba3 *m, kr_tensor *x_bsi, int64_t nb, int64_t ns);

/* y + D V. */
kr_tensor *kr_mamba3_add_skip(kr_tape *tape, const kr_mamba3 *m, kr_tensor *y_bsmhp, kr_tensor *v_bsmhp);

/* Norm or none, gate, sum of the ranks, out_proj: y [b s m h p] -> [b s d]. */
kr_tensor *kr_mamba3_finish(kr_tape *tape, const kr_mamba3 *m, kr_tensor *y_bsmhp, const kr_mamba3_tokens *tokens);

/* Cached values of the token before the call; NULL without one: initial caches. */
typedef struct kr_mamba3_before {
    kr_tensor *state_qhpr, *v_qmhp, *k_qmhr;
} kr_mamba3_before;

/* First and last tokens of the sequences, as rows of [b s ..] seen as [b s, ..]; `first` NULL: every row is one. */
typedef struct kr_mamba3_spans {
    int64_t count, nb, ns;
    int64_t *first, *last;
} kr_mamba3_spans;
bool kr_mamba3_spans_of(kr_tape *tape, const kr_block_input *input, int64_t nb, int64_t ns, kr_mamba3_spans *spans);

/* x [b s ..] at the first or the last token of each sequence: [q ..]. */
kr_tensor *kr_mamba3_first(kr_tape *tape, const kr_mamba3_spans *spans, kr_tensor *x);
kr_tensor *kr_mamba3_last(kr_tape *tape, const kr_mamba3_spans *spans, kr_tensor *x);

/* The SSD core over rotated tokens, with D V in y, by either pathway. */
kr_ssd_out kr_mamba3_run(kr_tape *tape, const kr_mamba3 *m, const kr_block_input *input, kr_mamba3_pathway pathway,
                         const kr_mamba3_tokens *tokens, const kr_mamba3_before *before, const kr_mamba3_spans *spans);

/* ---- mamba3.c ---- */

typedef struct kr_mamba3_rotations {
    kr_tensor *each;  /* of each token: angles [b s h a], or quaternions [b s h j 4] */
    kr_tensor *final; /* of the last tokens */
} kr_mamba3_rotations;
kr_mamba3_rotations kr_mamba3_rotations_of(kr_tape *tape, const kr_mamba3 *m, const kr_mamba3_tokens *tokens,
                                           kr_tensor *initial, const kr_block_input *input);

/* B and C as the core takes them: rotated, or with core_rotates to be rotated there. */
void kr_mamba3_make_bc(kr_tape *tape, const kr_mamba3 *m, kr_mamba3_tokens *tokens, kr_tensor *rotation,
                       bool core_rotates);

/* B of the last token of each sequence, rotated: [q m h r]. */
kr_tensor *kr_mamba3_last_key(kr_tape *tape, const kr_mamba3 *m, const kr_mamba3_tokens *tokens,
                              const kr_mamba3_rotations *rotation, const kr_mamba3_spans *spans);

kr_mamba3_before kr_mamba3_before_of(kr_tape *tape, const kr_mamba3 *m, const kr_mamba3_cache *cache, int64_t count);

/* The cache before a piece (mamba3_scan.c), of each sequence, or of each row without resets; B, C and rotations of its
 * tokens, rotated from there. */
kr_mamba3_cache kr_mamba3_scan_cache(kr_tape *tape, const kr_mamba3 *m, const kr_piece *piece,
                                     kr_mamba3_pathway pathway, kr_mamba3_tokens *tokens, kr_mamba3_rotations *rotation,
                                     const kr_mamba3_spans *spans);

/* step_infinite of kr_block_kind. */
kr_tensor *kr_mamba3_infinite(kr_tape *tape, const void *block, kr_tensor *x_bd);

#endif
