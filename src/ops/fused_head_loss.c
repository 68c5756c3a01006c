/* fused_head_loss.c - the linear head of a network, fused with the cross-entropy of its logits.
 *
 *   hidden [.. d], weight [w d], bias [w], labels [..]:   loss = cross_entropy(hidden weight^T + bias, labels)
 *
 * Logits are computed for a chunk of rows and replaced by their gradient g in place; the products with g follow at
 * once: g_hidden = g weight, g_weight += g^T hidden, g_bias += column sums of g. So the forward pass computes the
 * gradients for an incoming gradient of 1, and the backward pass scales them. Where products round their operands to
 * bf16 (ops/autocast.h), hidden, weight and g are rounded once each.
 *   saved: g_hidden, g_weight, g_bias, if they are needed.   Where nothing is recorded none of them is made.
 * Rows that are not scored are left out of all products.
 */
#include "ops/loss_impl.h"

#define OP "head_cross_entropy"

enum {
    HIDDEN,
    WEIGHT,
    BIAS,
    NINPUTS,
    CHUNK_FLOATS = 1 << 22,       /* of logits at a time: that is 16 MiB ... */
    CHUNK_ROWS = 192,             /* ... or so many rows: each chunk reads the weight once, and its gradient twice */
    DEVICE_CHUNK_FLOATS = 1 << 28 /* the same on a GPU: 1 GiB, since it needs products of many rows */
};

typedef struct head_job {
    kr_tape *tape;
    kr_labels labels;
    double smoothing;
    kr_tensor *hidden_rd, *weight_vd, *bias_v; /* v: the columns that take part */
    kr_tensor *g[NINPUTS];                     /* [r d], [v d], [v]; NULL: not wanted */
    kr_tensor *operand_vd;                     /* the weight as products take it */
    kr_tensor *loss_q, *stats;                 /* of the scored rows */
    /* space for one chunk */
    kr_tensor *logits_cv, *rows_cd, *g_rows_cd, *g_bias_v;
    kr_tensor *g_cv; /* in bf16 or f16; NULL: g overwrites the logits */
} head_job;

/* ---- backward ---- */

static bool scale_in_place(kr_ctx *ctx, kr_tensor *x, double alpha)
{
    const kr_shape shape = kr_tensor_shape(x);
    kr_unary_args args = {
        .walk = kr_walk_over(&shape, 2, (const kr_tensor *[]){ x, x }), .x = x->data, .y = x->data, .alpha = alpha
    };
    return alpha == 1 || KR_RUN(ctx, scale[kr_real_of(x->dtype)], &args);
}

static void head_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *g_loss = kr_back_grad(back, 0);
    const double g = g_loss->flags.is_one ? 1 : kr_item(g_loss); /* 1 is known without synchronizing with a device */
    for (int i = 0; i < NINPUTS; i++) {
        kr_tensor *own = kr_back_saved(back, i);
        if (!own || !kr_back_wants(back, i)) continue;
        if (!scale_in_place(tape->ctx, own, g)) return;
        kr_back_accumulate(back, i, kr_store_as(tape, own, kr_back_in(back, i)->dtype));
    }
}

static const kr_rule head_rule = { .name = OP, .backward = head_backward };

/* ---- one chunk ---- */

static kr_tensor *part(const head_job *job, kr_tensor *x, int64_t from, int64_t count)
{
    return kr_slice(job->tape, x, 0, from, from + count);
}

static bool multiply(const head_job *job, kr_tensor *y, const kr_tensor *a, const kr_tensor *b, const kr_tensor *bias,
                     bool adds)
{
    return y && a && b && kr_run_matmul(job->tape->ctx, y, a, b, bias, adds);
}

/* x and y are moved by the numbers of the scored rows from `from` on. */
static kr_embedding_args moved(const head_job *job, const kr_tensor *x, kr_tensor *y, int64_t from, int64_t count)
{
    return (kr_embedding_args){ .no = count,
                                .nr = job->hidden_rd->dims[0],
                                .ni = job->hidden_rd->dims[1],
                                .x = kr_operand_of(x),
                                .y = kr_operand_of(y),
                                .id = job->labels.rows->data + from * (int64_t)sizeof(int64_t),
                                .id_dtype = KR_DTYPE_I64 };
}

/* The scored rows of hidden from `from` on; NULL after an error. */
static kr_tensor *hidden_rows(const head_job *job, int64_t from, int64_t count)
{
    if (!job->labels.rows) return part(job, job->hidden_rd, from, count);
    kr_tensor *y = part(job, job->rows_cd, 0, count);
    if (!y) return NULL;
    kr_embedding_args args = moved(job, job->hidden_rd, y, from, count);
    return KR_RUN(job->tape->ctx, embedding[kr_real_of(y->dtype)], &args) ? y : NULL;
}

/* Logits to losses, and to their own gradients if any are wanted. */
static bool score(const head_job *job, kr_tensor *logits_cv, int64_t from, int64_t count, kr_tensor *g_cv)
{
    const int64_t nv = logits_cv->dims[1], bytes = (int64_t)kr_dtype_bytes(logits_cv->dtype);
    kr_cross_entropy_args args = {
        .no = count,
        .nr = nv,
        .nv = nv,
        .x = logits_cv->data,
        .label = (const int64_t *)(const void *)job->labels.of_r->data + from,
        .smoothing = job->smoothing,
        .alpha = job->labels.alpha,
        .loss = job->loss_q->data + from * bytes,
        .stats = job->stats->data + from * KR_ROW_STATS * bytes,
        .g_x = kr_operand_of(g_cv),
    };
    return KR_RUN(job->tape->ctx, cross_entropy[kr_real_of(logits_cv->dtype)], &args);
}

static bool accumulate_hidden(const head_job *job, kr_tensor *g_cv, int64_t from, int64_t count)
{
    if (!job->labels.rows) return multiply(job, part(job, job->g[HIDDEN], from, count), g_cv, job->operand_vd, NULL, 0);
    kr_tensor *g_cd = part(job, job->g_rows_cd, 0, count);
    if (!multiply(job, g_cd, g_cv, job->operand_vd, NULL, false)) return false;
    kr_embedding_args args = moved(job, g_cd, job->g[HIDDEN], from, count);
    return KR_RUN(job->tape->ctx, embedding_bwd[kr_real_of(g_cd->dtype)], &args);
}

static bool accumulate_bias(const head_job *job, const kr_tensor *g_cv, bool is_first)
{
    kr_ctx *ctx = job->tape->ctx;
    kr_tensor *y = is_first ? job->g[BIAS] : job->g_bias_v;
    kr_reduce_args args = {
        .no = 1, .nr = g_cv->dims[0], .ni = g_cv->dims[1], .x = g_cv->data, .y = y->data, .alpha = 1
    };
    return KR_RUN(ctx, sum[kr_real_of(y->dtype)], &args) && (is_first || kr_assign_sum(ctx, job->g[BIAS], y));
}

static bool run_chunk(const head_job *job, int64_t from, int64_t count)
{
    kr_tape *tape = job->tape;
    kr_tensor *hidden_cd = kr_autocast_operand(tape, hidden_rows(job, from, count), count);
    kr_tensor *logits_cv = part(job, job->logits_cv, 0, count), *g_cv = NULL;
    if (job->g[HIDDEN] || job->g[WEIGHT] || job->g[BIAS]) g_cv = job->g_cv ? part(job, job->g_cv, 0, count) : logits_cv;
    return multiply(job, logits_cv, hidden_cd, kr_transpose(tape, job->operand_vd), job->bias_v, false) &&
           score(job, logits_cv, from, count, g_cv) && (!job->g[HIDDEN] || accumulate_hidden(job, g_cv, from, count)) &&
           (!job->g[WEIGHT] || multiply(job, job->g[WEIGHT], kr_transpose(tape, g_cv), hidden_cd, NULL, from > 0)) &&
           (!job->g[BIAS] || accumulate_bias(job, g_cv, from == 0));
}

/* ---- all of them ---- */

/* Rows of a chunk, by sizes alone; all chunks are about as large. */
static int64_t chunk_rows(int64_t count, int64_t nv, int64_t floats)
{
    const int64_t most = floats / nv > CHUNK_ROWS ? floats / nv : CHUNK_ROWS;
    const int64_t chunks = (count + most - 1) / most;
    return chunks > 0 ? (count + chunks - 1) / chunks : 0;
}

static bool run_chunks(head_job *job)
{
    kr_tape *tape = job->tape;
    const kr_dtype dtype = job->hidden_rd->dtype;
    const int64_t count = job->labels.count, nv = job->weight_vd->dims[0], nd = job->weight_vd->dims[1];
    const int64_t rows = chunk_rows(count, nv, kr_ctx_on_device(tape->ctx) ? DEVICE_CHUNK_FLOATS : CHUNK_FLOATS);
    const bool has_products = job->g[HIDDEN] || job->g[WEIGHT];
    job->operand_vd = kr_autocast_operand(tape, job->weight_vd, rows);
    job->logits_cv = kr_new(tape, dtype, KR_SHAPE(rows, nv));
    if (has_products && !job->g[BIAS] && dtype == KR_DTYPE_F32 && kr_autocasts(tape->ctx) &&
        kr_accepts(tape->ctx, cross_entropy_g_x, KR_DTYPE_BF16))
        job->g_cv = kr_new(tape, KR_DTYPE_BF16, KR_SHAPE(rows, nv));
    if (job->labels.rows) job->rows_cd = kr_new(tape, dtype, KR_SHAPE(rows, nd));
    if (job->labels.rows && job->g[HIDDEN]) job->g_rows_cd = kr_new(tape, dtype, KR_SHAPE(rows, nd));
    if (job->g[BIAS] && rows < count) job->g_bias_v = kr_new(tape, dtype, KR_SHAPE(nv));
    bool ok = !kr_ctx_failed(tape->ctx);
    for (int64_t from = 0; ok && from < count; from += rows)
        ok = run_chunk(job, from, count - from < rows ? count - from : rows);
    return ok;
}

/* Gradients to be computed, if needed: saved[i] the whole, job->g[i] the columns of the softmax. Elements that no chunk
 * writes are 0. */
static bool make_gradients(head_job *job, kr_tensor *const *in, int64_t nv, kr_tensor **saved)
{
    kr_tape *tape = job->tape;
    for (int i = 0; i < NINPUTS; i++) {
        if (!tape->recording || !kr_requires_grad(in[i])) continue;
        saved[i] = kr_new(tape, in[HIDDEN]->dtype, kr_tensor_shape(in[i]));
        if (!saved[i]) return false;
        const bool is_written = i == HIDDEN ? !job->labels.rows : job->labels.count > 0 && saved[i]->dims[0] == nv;
        if (!is_written && !kr_assign_value(tape->ctx, saved[i], 0)) return false;
        job->g[i] = i == HIDDEN ? saved[i] : kr_slice(tape, saved[i], 0, 0, nv);
        if (!job->g[i]) return false;
    }
    return true;
}

/* The loss of in: hidden [r d], weight, bias. */
static kr_tensor *run(head_job *job, kr_tensor *const *in, int64_t nv, kr_scores *scores)
{
    kr_tape *tape = job->tape;
    const int64_t count = job->labels.count;
    job->hidden_rd = job->labels.rows ? kr_contiguous(tape, in[HIDDEN]) : in[HIDDEN];
    job->weight_vd = kr_slice(tape, in[WEIGHT], 0, 0, nv);
    job->bias_v = in[BIAS] ? kr_slice(tape, in[BIAS], 0, 0, nv) : NULL;
    if (kr_ctx_failed(tape->ctx)) return NULL;
    job->loss_q = kr_new(tape, in[HIDDEN]->dtype, KR_SHAPE(count));
    job->stats = kr_new(tape, in[HIDDEN]->dtype, KR_SHAPE(count, KR_ROW_STATS));
    if (!job->loss_q || !job->stats || !run_chunks(job)) return NULL;
    if (scores) *scores = (kr_scores){ .scored = count, .right = kr_count_right(job->stats, count) };
    return kr_loss_sum(tape, job->loss_q, job->labels.alpha);
}

kr_tensor *kr_head_cross_entropy(kr_tape *tape, kr_tensor *hidden, kr_tensor *weight, kr_tensor *bias,
                                 kr_tensor *labels, const kr_cross_entropy_options *options)
{
    kr_cross_entropy_options o;
    kr_dims d;
    kr_dtype result;
    head_job job = { .tape = tape };
    if (!kr_cross_entropy_take(tape, OP, &o, options) ||
        !kr_bind(tape, OP, &d, "hidden:..d weight:wd bias:w? labels:.. mask:..?", hidden, weight, bias, labels,
                 o.mask) ||
        !kr_cross_entropy_check(tape, OP, &o, "weight", weight, d.w) ||
        !KR_REALS_KEPT(tape, OP, "hidden weight bias", &result, KR_KEEPS(tape, matmul_b, weight) << WEIGHT, &hidden,
                       &weight, &bias) ||
        (bias && !(bias = kr_contiguous(tape, bias))) || !kr_labels_from(tape, OP, labels, &o, d.w, true, &job.labels))
        return NULL;
    job.smoothing = o.label_smoothing;
    const int64_t nv = kr_cross_entropy_columns(&o, d.w);
    kr_tensor *in[NINPUTS] = { kr_reshape(tape, hidden, KR_SHAPE(d.rows, d.d)), weight, bias };
    kr_tensor *saved[NINPUTS] = { NULL };
    if (!in[HIDDEN] || !make_gradients(&job, in, nv, saved)) return NULL;
    const kr_scope scope = kr_no_grad_begin(tape);
    kr_tensor *loss = run(&job, in, nv, o.scores);
    kr_no_grad_end(tape, scope, KR_KEEP(&loss));
    if (!loss) return NULL;
    const kr_record_args record = {
        .rule = &head_rule, .n_in = NINPUTS, .in = in, .n_out = 1, .out = &loss, .n_saved = NINPUTS, .saved = saved
    };
    return kr_record_node(tape, &record, false) ? loss : NULL;
}
