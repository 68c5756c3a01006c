/* grad_sums.h - gradients of a step with several micro-batches, added as a binary tree over their numbers.
 *
 * A micro-batch writes its gradients into a current buffer of all parameters. A binary counter adds the buffers: level k holds
 * the sum of 2^k adjacent micro-batches. For M = 2^k the sum is the balanced tree over 0 .. M-1; otherwise the sums that are
 * left in the counter are added from the largest down. There are log2(M) + 1 buffers.
 *
 * A parameter without a gradient in a micro-batch counts as one of zeros there, so that the sum is a function of the
 * gradients alone. 16-bit gradients are widened: sums are f32, or f64 for parameters of that type.
 *
 *   buffer of a type: [parameters in the reverse order of the table, then late ones], each at a multiple of KR_ALIGN bytes
 *   bucket: a range of a buffer, of whole parameters: the fewest that have KR_BUCKET_BYTES; late ones have buckets of their own
 * Gradients of the last layers are final first, those of late parameters, which a network uses before its first layer, at the
 * end of the backward pass. So buckets are finished in their order.
 */
#ifndef KR_TRAIN_GRAD_SUMS_H
#define KR_TRAIN_GRAD_SUMS_H

#include "base/ctx_impl.h"
#include "tape/tape_impl.h"

#include <krait/params.h>

enum { KR_BUCKET_BYTES = 25 << 20, KR_SUM_LEVELS = 40, KR_LATE_MOST = 8 };

typedef struct kr_grad_row {
    kr_tensor *param; /* NULL: frozen, with no place in the buffer */
    kr_dtype dtype;   /* of the sum */
    int64_t at;       /* its first element in the buffer of that type */
    bool is_reached;  /* a micro-batch has had a gradient for it */
} kr_grad_row;

typedef struct kr_grad_bucket {
    kr_dtype dtype;
    int64_t first, count; /* elements */
    int64_t from, end;    /* its rows: kr_grad_sums.order[from .. end) */
} kr_grad_bucket;

typedef struct kr_grad_sums {
    kr_ctx *ctx;
    kr_params *params;
    int64_t bucket_bytes;
    int64_t nrows;
    kr_grad_row *rows; /* in the order of the table */
    int64_t *order;    /* [nrows]: rows in the order of the buffers */
    int nlate;
    const kr_tensor *late[KR_LATE_MOST]; /* late parameters */
    int64_t nbuckets;
    kr_grad_bucket *buckets;
    int64_t elements[2]; /* of a buffer of f32, and of f64 */
    int nbuffers;
    void *buffers[KR_SUM_LEVELS + 1][2];
    int current;               /* number of the buffer that is written */
    int levels[KR_SUM_LEVELS]; /* of the counter: numbers of buffers; -1: empty */
    int64_t count, done;       /* micro-batches of the step; those added */
} kr_grad_sums;

/* bucket_bytes 0: KR_BUCKET_BYTES. Allocates nothing. */
void kr_grad_sums_init(kr_grad_sums *g, kr_ctx *ctx, kr_params *params, int64_t bucket_bytes);
void kr_grad_sums_deinit(kr_grad_sums *g);

/* Before the first step: the gradient of this parameter is final at the end of a backward pass. NULL is ignored. */
void kr_grad_sums_add_late(kr_grad_sums *g, const kr_tensor *param);

/* A step of `count` micro-batches; false without memory for its buffers. */
bool kr_grad_sums_begin(kr_grad_sums *g, int64_t count);

/* Before the backward pass of a micro-batch: parameters have their gradients in the current buffer, and none so far. */
bool kr_grad_sums_open(kr_grad_sums *g);

/* After it, or as soon as the gradients of a bucket are final: adds the bucket to the sums before it. */
bool kr_grad_sums_finish(kr_grad_sums *g, const kr_grad_bucket *bucket);

/* After all buckets of a micro-batch. */
void kr_grad_sums_close(kr_grad_sums *g);

/* All buckets of a micro-batch, and its close. */
bool kr_grad_sums_finish_all(kr_grad_sums *g);

/* After the last micro-batch: g += other, a sum of other gradients of the same parameters. */
bool kr_grad_sums_add(kr_grad_sums *g, const kr_grad_sums *other);

/* After the last micro-batch: the gradients of the parameters are the sums; without keep_grad 16-bit ones, which the sums do
 * not use any more, are zeroed. */
void kr_grad_sums_end(kr_grad_sums *g, bool keep_grad);

/* The sum of row i of the table, in its row's type. */
void *kr_grad_sums_at(const kr_grad_sums *g, int64_t i);
void *kr_grad_sums_bucket(const kr_grad_sums *g, const kr_grad_bucket *bucket);

#endif
