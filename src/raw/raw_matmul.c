/* raw_matmul.c - the matrix product; a transposed operand is one with exchanged strides. */
#include "raw/raw_impl.h"

enum { A, B, BIAS, Y, NVIEWS };

static bool check(const raw_call *call)
{
    return kr_require(call->ctx, !call->x[BIAS] || !call->o.accumulate, KR_ERR_ARG,
                      "%s: accumulate is set, but with a bias products are not added", call->op);
}

static kr_matrix matrix_of(const kr_tensor *x)
{
    return (kr_matrix){ x->data, x->dtype, x->strides[0], x->strides[1] };
}

static bool run(raw_call *call)
{
    const kr_dims *d = &call->d;
    if (d->j == 0 || d->i == 0) return true;
    kr_matmul_args args = { .nm = d->j,
                            .nn = d->i,
                            .nk = d->k,
                            .a = matrix_of(call->x[A]),
                            .b = matrix_of(call->x[B]),
                            .c = kr_operand_of(call->x[Y]),
                            .bias = raw_data(call, BIAS),
                            .accumulate = call->o.accumulate };
    return RAW_RUN(call, matmul[call->real], &args);
}

static const raw_rule rules[NVIEWS] = {
    [A] = RAW_RULE(RAW_STRIDED, matmul_a), [B] = RAW_RULE(RAW_STRIDED, matmul_b), [Y] = RAW_RULE(RAW_ROWS, matmul_c)
};

const raw_about raw_matmul = { RAW_TEXTS("matmul", "a:jk b:ki bias:i?", "y:ji"),
                               .n_operands = Y,
                               .n_views = NVIEWS,
                               .options = RAW_ACCUMULATE,
                               .rules = rules,
                               .check = check,
                               .run = run };
