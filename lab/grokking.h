/* grokking.h - modular addition by a small Mamba-2: the network and its data, the loss with its auxiliary terms, and
 * additional measurements.
 *
 * Letters: w symbols (the modulus), d width, r state_rank; others as in docs/notation.md.
 */
#ifndef KR_LAB_GROKKING_H
#define KR_LAB_GROKKING_H

#include "cli/common/cli_machine.h"
#include "lab/participation.h"

#include <krait/krait.h>

/* Matrices of the auxiliary terms. */
typedef enum grok_target { GROK_EMB = 0, GROK_EMB_HEAD = 1, GROK_BC = 2, GROK_ALL = 3 } grok_target;
#define GROK_TARGETS "emb|emb-head|bc|all"

typedef struct grok_values {
    const char *out, *resume, *eval, *from;
    bool force, is_quiet, is_json;

    int64_t p, k;
    double train_fraction;
    uint64_t seed, split_seed;

    int64_t d_model, expand, state_rank, n_layers;
    double embedding_std;

    int64_t steps, eval_every, save_every, step_offset;
    double lr, wd, stop_at; /* NaN: does not stop */
    double sgd;             /* momentum; NaN: AdamW */
    bool is_chunked, is_stepwise;

    double pr_lambda, l2_lambda, noise_lambda;
    int pr_target;
    int64_t sine_period, start_step;

    bool has_no_diagnostics, has_no_state_pr;
    cli_machine machine;
} grok_values;

/* The measured matrices: the embedding, the head, and of each layer five rows of this list. */
enum { GROK_LAYER_MATRICES = 5, GROK_MAX_LAYERS = 64, GROK_MAX_MATRICES = 2 + GROK_LAYER_MATRICES * GROK_MAX_LAYERS };
typedef enum grok_matrix_kind {
    GROK_EMBEDDING,
    GROK_HEAD,
    GROK_Z, /* rows of in_proj ... */
    GROK_X,
    GROK_B,
    GROK_C,
    GROK_OUT /* out_proj */
} grok_matrix_kind;

typedef struct grok_matrix {
    grok_matrix_kind kind;
    int64_t layer; /* -1: none */
    kr_tensor *weight;
    int64_t from, to; /* its rows */
} grok_matrix;

enum { GROK_STATE_ROWS = 2048 };

/* A network and its data. */
typedef struct grok {
    const grok_values *v;
    kr_ctx *ctx;
    kr_model *model;
    const kr_network *net;
    kr_source *sources[2]; /* by kr_data_part */
    kr_loader *loaders[2]; /* one batch each, with all rows */
    kr_loader *sample;     /* of the validation part, GROK_STATE_ROWS rows at a time */
    int n_matrices;
    grok_matrix matrices[GROK_MAX_MATRICES];

    const kr_trainer *trainer; /* for the current step; NULL: no auxiliary terms */
    double ce, auxiliary;      /* of the last training batch */
} grok;

/* ---- grokking_network.c ---- */

/* Creates the network of these options (with initial weights, or with those of the folder `from`) and all p^k rows, in
 * their two parts. False after an error of the context; a folder with another network is one. */
bool grok_open(grok *g, kr_ctx *ctx, const grok_values *v, const char *from);
void grok_close(grok *g);

/* A matrix on the tape: rows of its parameter. */
kr_tensor *grok_matrix_of(kr_tape *tape, const grok_matrix *matrix);
const char *grok_matrix_name(grok_matrix_kind kind);

/* Column s of ids [b k]. */
kr_tensor *grok_token(kr_tape *tape, kr_tensor *ids_bs, int64_t s);

/* ids [b k] -> the head's input after the last token, [b d]. */
kr_tensor *grok_hidden(kr_tape *tape, const grok *g, kr_tensor *ids_bs);

/* ---- grokking_loss.c ---- */

/* A kr_loss_fn whose user is a grok: cross-entropy at the last token and, if the tape records, the auxiliary terms. */
kr_loss_out grok_loss(void *user, kr_tape *tape, const kr_batch *batch, const kr_state *state);

/* The factor of the participation ratios in a step (from 1 on). */
double grok_pr_lambda(const grok_values *v, int64_t step);

/* The sum over target matrices of lambda PR(W) + l2 |W|^2 + noise <W, e>, e new normal samples; NULL: none, or after an
 * error. */
kr_tensor *grok_auxiliary(kr_tape *tape, const grok *g, int64_t step);

/* ---- grokking_measure.c ---- */

/* Of the weights: of each matrix, of the embedding's frequencies, and of each layer's B applied to each symbol,
 * embedding W_B^T, centred. NaN: of zeros. */
typedef struct grok_weight_ratios {
    double matrices[GROK_MAX_MATRICES]; /* in the order of grok.matrices */
    double frequencies;
    double b_symbols[GROK_MAX_LAYERS];
} grok_weight_ratios;

/* False after an error of the context, or an error message. */
bool grok_measure_weights(const grok *g, kr_tape *tape, grok_weight_ratios *ratios);

/* Of the states [p r] of a layer, which has one head, after each token (pooled) or the last one (final), as vectors of r
 * numbers for each row and channel; uncentred and centred. */
typedef struct grok_state_ratios {
    double pooled, pooled_centred, final, final_centred;
} grok_state_ratios;

/* Of each layer, n_layers of them, over the first GROK_STATE_ROWS rows of the validation part, which is shuffled. */
bool grok_measure_states(const grok *g, kr_tape *tape, grok_state_ratios *ratios);

/* ---- grokking_run.c and grokking_eval.c ---- */

/* Trains according to the options in a folder (NULL: nothing is saved), from its last checkpoint if there is one;
 * `given` is written to its task.json. Returns the exit status. */
int grok_train(const cli_command *command, const grok_values *v, const cli_given *given, const char *folder);

/* Reports accuracy and measurements of the network in a folder. Returns the exit status. */
int grok_evaluate(const grok_values *v, const char *folder);

#endif
