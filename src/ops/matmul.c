/* matmul.c - products of matrices, and batches of them.
 *
 *   y = a b + bias + c     a [.. m k], b [.. k n], bias [n], c [.. m n]; leading axes broadcast
 *   g_a = g b^T, g_b = a^T g (summed over broadcast batches), g_bias = column sums of g, g_c = g
 * Transposed operands are strides of the kernel, so neither direction copies an operand.
 */
#include "ops/ops_impl.h"

static int64_t batch_stride(const kr_tensor *x, int axis, int rank)
{
    const int own = axis - (rank - x->rank);
    return own < 0 || x->dims[own] == 1 ? 0 : x->strides[own];
}

/* Batches that share B and follow one another in A and C are more rows of one product. */
static void fold_batch(kr_matmul_args *args)
{
    while (args->batch_rank > 0) {
        const int i = args->batch_rank - 1;
        if (args->batch_b[i] != 0 || args->batch_a[i] != args->nm * args->a.row ||
            args->batch_c[i] != args->nm * args->c.row)
            return;
        args->nm *= args->batch_dims[i];
        args->batch_rank--;
    }
}

static kr_matrix matrix_of(const kr_tensor *x)
{
    return (kr_matrix){ x->data, x->dtype, x->strides[x->rank - 2], x->strides[x->rank - 1] };
}

kr_matmul_args kr_matmul_of(const kr_tensor *y, const kr_tensor *a, const kr_tensor *b, const kr_tensor *bias,
                            bool accumulate)
{
    kr_matmul_args args = { .nm = a->dims[a->rank - 2],
                            .nk = a->dims[a->rank - 1],
                            .nn = b->dims[b->rank - 1],
                            .a = matrix_of(a),
                            .b = matrix_of(b),
                            .c = { y->data, y->dtype, y->strides[y->rank - 2] },
                            .bias = bias ? bias->data : NULL,
                            .accumulate = accumulate };
    for (int axis = 0; axis < y->rank - 2; axis++) {
        if (y->dims[axis] == 1) continue;
        const int i = args.batch_rank++;
        args.batch_dims[i] = y->dims[axis];
        args.batch_a[i] = batch_stride(a, axis, y->rank);
        args.batch_b[i] = batch_stride(b, axis, y->rank);
        args.batch_c[i] = y->strides[axis];
    }
    fold_batch(&args);
    return args;
}

bool kr_run_matmul(kr_ctx *ctx, kr_tensor *y, const kr_tensor *a, const kr_tensor *b, const kr_tensor *bias,
                   bool accumulate)
{
    kr_matmul_args args = kr_matmul_of(y, a, b, bias, accumulate);
    return KR_RUN(ctx, matmul[kr_real_of(y->dtype)], &args);
}

/* Adds a b to the gradient of input i, directly if no sum over batches is needed. */
static void accumulate_product(kr_back *back, int i, kr_tensor *a, kr_tensor *b, const kr_shape *batch)
{
    kr_tape *tape = kr_back_tape(back);
    const kr_tensor *x = kr_back_in(back, i);
    kr_shape shape = *batch;
    shape.dims[shape.rank++] = x->dims[x->rank - 2];
    shape.dims[shape.rank++] = x->dims[x->rank - 1];
    const kr_shape own = kr_tensor_shape(x);
    if (!a || !b) return;
    if (kr_shape_equal(&own, &shape)) {
        bool is_new;
        kr_tensor *g = kr_back_into(back, i, &is_new);
        if (g) kr_run_matmul(tape->ctx, g, a, b, NULL, !is_new);
        return;
    }
    kr_tensor *g = kr_new(tape, x->dtype, shape);
    if (g && kr_run_matmul(tape->ctx, g, a, b, NULL, false)) kr_back_accumulate(back, i, kr_sum_to(tape, g, own));
}

static void matmul_backward(kr_back *back)
{
    kr_tape *tape = kr_back_tape(back);
    kr_tensor *a = kr_back_in(back, 0), *b = kr_back_in(back, 1), *g = kr_back_grad(back, 0);
    kr_shape batch = kr_tensor_shape(g);
    batch.rank -= 2;
    if (kr_back_wants(back, 0)) accumulate_product(back, 0, g, kr_transpose(tape, b), &batch);
    if (kr_back_wants(back, 1)) accumulate_product(back, 1, kr_transpose(tape, a), g, &batch);
    if (kr_back_wants(back, 2)) kr_back_accumulate(back, 2, kr_sum_to(tape, g, kr_tensor_shape(kr_back_in(back, 2))));
    if (kr_back_wants(back, 3)) kr_back_accumulate(back, 3, kr_sum_to(tape, g, kr_tensor_shape(kr_back_in(back, 3))));
}

static const kr_rule matmul_rule = { .name = "matmul", .backward = matmul_backward };

/* [.. m n] of the product, or a failure. */
static bool product_shape(kr_tape *tape, const kr_tensor *a, const kr_tensor *b, const kr_dims *da, const kr_dims *db,
                          kr_shape *shape)
{
    if (!kr_require(tape->ctx, da->k == db->k, KR_ERR_SHAPE, "matmul: axis k of b %s is %lld, but a %s says k = %lld",
                    KR_TEXT_OF(b), (long long)db->k, KR_TEXT_OF(a), (long long)da->k) ||
        !kr_broadcast(tape, "matmul", "leading axes of a", &da->lead, "of b", &db->lead, shape))
        return false;
    shape->dims[shape->rank++] = da->m;
    shape->dims[shape->rank++] = db->n;
    return true;
}

kr_tensor *kr_matmul_add(kr_tape *tape, kr_tensor *a, kr_tensor *b, kr_tensor *bias, kr_tensor *c)
{
    kr_dims da, db, dc;
    kr_dtype result;
    kr_shape shape;
    if (!kr_bind(tape, "matmul", &da, "a:..mk", a) || !kr_bind(tape, "matmul", &db, "b:..kn bias:n?", b, bias) ||
        !kr_bind(tape, "matmul", &dc, "c:..?", c) ||
        !KR_REALS(tape, "matmul", "a b bias c", &result, &a, &b, &bias, &c) ||
        !product_shape(tape, a, b, &da, &db, &shape) || (bias && !(bias = kr_contiguous(tape, bias))))
        return NULL;
    if (c) {
        const kr_shape c_shape = kr_tensor_shape(c);
        kr_shape both;
        if (!kr_broadcast(tape, "matmul", "c", &c_shape, "the product", &shape, &both) ||
            !kr_require(tape->ctx, kr_shape_equal(&both, &shape), KR_ERR_SHAPE,
                        "matmul: c %s does not repeat to the product %s", KR_TEXT_OF(c), KR_TEXT_OF_SHAPE(&shape)))
            return NULL;
    }
    kr_tensor *y = kr_new(tape, a->dtype, shape);
    if (!y || (c && !kr_assign(tape->ctx, y, c)) || !kr_run_matmul(tape->ctx, y, a, b, bias, c != NULL)) return NULL;
    return kr_store_as(tape, kr_recorded(tape, &matmul_rule, y, NULL, 0, KR_LIST(a, b, bias, c)), result);
}

kr_tensor *kr_outer(kr_tape *tape, kr_tensor *a, kr_tensor *b)
{
    kr_dims d;
    kr_dtype result;
    if (!kr_bind(tape, "outer", &d, "a:..m b:..n", a, b) || !KR_REALS(tape, "outer", "a b", &result, &a, &b))
        return NULL;
    if (!kr_require(tape->ctx, a->rank < KR_MAX_RANK, KR_ERR_SHAPE,
                    "outer: a %s has rank %d, and the result one more than %d", KR_TEXT_OF(a), a->rank, KR_MAX_RANK))
        return NULL;
    kr_shape column = d.lead, row = d.lead;
    column.dims[column.rank++] = d.m;
    column.dims[column.rank++] = 1;
    row.dims[row.rank++] = 1;
    row.dims[row.rank++] = d.n;
    return kr_store_as(tape, kr_mul(tape, kr_reshape(tape, a, column), kr_reshape(tape, b, row)), result);
}
