/* optimizer_impl.h - struct of an optimizer: parameters, the parts of each, and their state.
 *
 * A part is a whole parameter, or with Muon the rows of one segment; its elements are adjacent. State is f32, or f64
 * for parameters of that type.
 *
 * With several ranks each part is dealt in pieces: one rank owns a piece, has its state and steps it (optimizer_pieces.c).
 * Matrices of Muon are one piece. The pieces of other parts begin at multiples of KR_SQUARES_BLOCK elements, so that the sum
 * of squares of a part is the sum over its blocks in order, whoever computes them.
 */
#ifndef KR_TRAIN_OPTIMIZER_IMPL_H
#define KR_TRAIN_OPTIMIZER_IMPL_H

#include "base/arena.h"
#include "base/ctx_impl.h"
#include "kernels/args/optimizer_args.h"
#include "tape/tape_impl.h"
#include "tape/weights.h"
#include "train/grad_sums.h"

#include <krait/comm.h>
#include <krait/train.h>

typedef struct kr_optimizer_piece {
    int64_t first, count; /* elements of the parameter */
    int owner;
    int64_t number; /* its first one of kr_optimizer.squares_of */
    void *m;        /* AdamW; this and the rest only of this rank's pieces */
    void *v;
    void *velocity; /* Muon; SGD with momentum */
    void *master;   /* f32 copy of a 16-bit parameter; otherwise NULL */
    void *ema;      /* or NULL */
} kr_optimizer_piece;

typedef struct kr_optimizer_part {
    kr_optimizer_kind kind;    /* by which rule it is stepped */
    const kr_segment *segment; /* NULL: the whole parameter */
    int64_t first, count;      /* its elements; none is empty */
    kr_shape shape;
    int npieces;
    kr_optimizer_piece *pieces; /* adjacent, in order */
} kr_optimizer_part;

typedef struct kr_optimizer_slot {
    const kr_param_row *row;
    kr_dtype dtype; /* of the numbers that are kept */
    int nparts;
    kr_optimizer_part *parts;
    void *master; /* of a 16-bit parameter: those of this rank's pieces, one after another; otherwise NULL */
    void *ema;    /* the same, or NULL */
    void *grad;   /* in the running step: the gradient, [elements] of grad_dtype; NULL: it has none */
    kr_dtype grad_dtype;
    double squares; /* of the gradient, in the running step */
} kr_optimizer_slot;

struct kr_optimizer {
    kr_ctx *ctx;
    kr_params *params;
    kr_optimizer_options options;
    kr_arena arena; /* slots, parts, steps, names of options.without */
    int64_t count;
    kr_optimizer_slot *slots; /* in the order of the table */
    int64_t nheld;            /* of the weights of their parameters: held as a writer, so that they are not shared */
    kr_weights **held;
    int64_t *steps; /* of each parameter */
    int64_t step;
    double grad_norm;
    bool ema_is_in;           /* the parameters hold the averages */
    const kr_grad_sums *sums; /* the gradients of a step; NULL: those of the parameters */
    char *state;              /* all that is kept of the parameters, in one block */
    size_t state_bytes;
    char *work; /* of a running step */
    size_t work_bytes;
    int64_t most_squares;     /* that are computed at once */
    kr_squares_args *squares; /* [most_squares], being computed, ... */
    int64_t *asked;           /* ... and which numbers they are */
    int64_t nnumbers;
    double *squares_of; /* [nnumbers]: sums of squares of pieces: one, or if its part has several one for each block */
    kr_adamw_args *adamw; /* as many as there are pieces */

    kr_comm *comm; /* of the ranks that own pieces; NULL: one rank */
    int rank, ranks;
    int64_t nshares;
    kr_comm_share *shares;   /* of squares_of */
    kr_comm_share *gathered; /* [pieces of all ranks], of weights that are being gathered */
};

/* kr_optimizer_create for the ranks of comm, all of which call it. comm NULL: one rank. Steps and kr_optimizer_use_ema are
 * collective, then, and all ranks have all weights after them. */
kr_optimizer *kr_optimizer_create_shared(kr_ctx *ctx, kr_params *params, const kr_optimizer_options *options,
                                         kr_comm *comm);

/* ---- optimizer_pieces.c ---- */

/* Deals the parts of all slots to the ranks. */
bool kr_optimizer_deal(kr_optimizer *optimizer);

/* Copies the weights of all pieces from their owners to the other ranks. */
bool kr_optimizer_gather(kr_optimizer *optimizer);

/* Pieces of this rank, in order: the slot, part and piece numbers of the last one. NULL after the last. */
typedef struct kr_piece_at {
    int64_t slot;
    int part, piece;
} kr_piece_at;
#define KR_BEFORE_PIECES                                                                                               \
    {                                                                                                                  \
        0, 0, -1                                                                                                       \
    }
kr_optimizer_piece *kr_optimizer_next_piece(const kr_optimizer *optimizer, kr_piece_at *at);

/* The pieces of row i of the table as shares, `at` added to their places, written to `shares` unless that is NULL; their
 * number. */
int64_t kr_optimizer_shares_of(const kr_optimizer *optimizer, int64_t row, int64_t at, kr_comm_share *shares);

/* ---- optimizer_file.c ---- */

/* What one rank of several writes: the first one the numbers of steps, each its pieces. */
bool kr_optimizer_add_steps(const kr_optimizer *optimizer, kr_tensor_writer *writer);
bool kr_optimizer_add_pieces(const kr_optimizer *optimizer, kr_tensor_writer *writer);

/* Reads this rank's pieces from files of any number of ranks; files[0] has the numbers of steps. takes: false only checks
 * them. */
bool kr_optimizer_restore_pieces(kr_optimizer *optimizer, int n, const kr_tensor_file *const *files, bool takes);

/* The optimizer of a call, healthy: no error in its context. */
bool kr_optimizer_ready(const kr_optimizer *optimizer);

/* The weights of a piece that are stepped: the parameter's, or their f32 copy. */
void *kr_piece_weights(const kr_optimizer_slot *slot, const kr_optimizer_piece *piece);
int64_t kr_slot_elements(const kr_optimizer_slot *slot);

/* An element of numbers that are kept. */
static inline void *kr_kept_at(void *numbers, kr_dtype dtype, int64_t at)
{
    return (char *)numbers + kr_dtype_offset(dtype, at);
}

/* y = x for n adjacent elements, converted; cannot fail. */
void kr_optimizer_convert(kr_ctx *ctx, kr_dtype y_dtype, void *y, kr_dtype x_dtype, const void *x, int64_t n);

/* The sum of squares of n adjacent elements, with `work` of kr_squares_work bytes. */
size_t kr_squares_work(kr_ctx *ctx, kr_dtype dtype, int64_t n);
double kr_squares_of(kr_ctx *ctx, kr_dtype dtype, const void *x, int64_t n, void *work);

/* ---- muon.c ---- */

typedef struct kr_muon {
    kr_ctx *ctx;
    kr_dtype dtype;
    int64_t rows, cols;
    int steps;
    const double *coefficients;
} kr_muon;

kr_muon kr_muon_of(const kr_optimizer *optimizer, const kr_optimizer_slot *slot, const kr_optimizer_part *part);

/* Bytes of work that orthogonalising takes, and the part of it where the matrix [rows cols] is put before and found
 * after. */
size_t kr_muon_work(const kr_muon *muon);
void *kr_muon_orthogonalise(const kr_muon *muon, char *work);

/* The learning-rate factor of a matrix. */
double kr_muon_ratio_of(kr_muon_ratio ratio, int64_t rows, int64_t cols);

#endif
