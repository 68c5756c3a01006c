/* optimizer_impl.h - struct of an optimizer: parameters, the parts of each, and their state.
 *
 * A part is a whole parameter, or with Muon the rows of one segment; its elements are adjacent. State is f32, or f64
 * for parameters of that type.
 */
#ifndef KR_TRAIN_OPTIMIZER_IMPL_H
#define KR_TRAIN_OPTIMIZER_IMPL_H

#include "base/arena.h"
#include "base/ctx_impl.h"
#include "kernels/args/optimizer_args.h"
#include "tape/tape_impl.h"
#include "tape/weights.h"
#include "train/grad_sums.h"

#include <krait/train.h>

typedef struct kr_optimizer_part {
    kr_optimizer_kind kind;    /* by which rule it is stepped */
    const kr_segment *segment; /* NULL: the whole parameter */
    int64_t first, count;      /* its elements; none is empty */
    kr_shape shape;
    void *m; /* AdamW */
    void *v;
    void *velocity; /* Muon; SGD with momentum */
} kr_optimizer_part;

typedef struct kr_optimizer_slot {
    const kr_param_row *row;
    kr_dtype dtype; /* of the numbers that are kept */
    int nparts;
    kr_optimizer_part *parts;
    void *master; /* [elements] of a 16-bit parameter; otherwise NULL */
    void *ema;    /* [elements], or NULL */
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
    kr_squares_args *squares; /* [count], of the running step */
    kr_adamw_args *adamw;     /* as many as there are parts */
};

/* The optimizer of a call, healthy: no error in its context. */
bool kr_optimizer_ready(const kr_optimizer *optimizer);

/* The weights that are stepped: the parameter, or its f32 copy. */
void *kr_slot_weights(const kr_optimizer_slot *slot);
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
