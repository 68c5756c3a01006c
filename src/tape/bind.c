/* bind.c - the entry of an op: is the tape usable, do the operands belong to it, do their shapes agree? */
#include "tape/tape_impl.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

static bool belongs(kr_tape *tape, const char *op, const char *contract, int n, const kr_tensor *x)
{
    char name[32];
    kr_ctx *ctx = tape->ctx;
    if (!x)
        return kr_contract_is_optional(contract, n) ||
               kr_fail(ctx, KR_ERR_ARG, "%s: operand %s is NULL", op, kr_contract_name(contract, n, name, sizeof name));
    if (x->ctx != ctx && strcmp(kr_ctx_device(x->ctx), kr_ctx_device(ctx)) != 0)
        return kr_fail(
            ctx, KR_ERR_STATE,
            "%s: operand %s %s belongs to another context, on %s, but this tape's is on %s; carry it over by "
            "kr_tensor_read and kr_from_data",
            op, kr_contract_name(contract, n, name, sizeof name), KR_TEXT_OF(x), kr_ctx_device(x->ctx),
            kr_ctx_device(ctx));
    if (x->ctx != ctx)
        return kr_fail(ctx, KR_ERR_STATE, "%s: operand %s %s belongs to another context", op,
                       kr_contract_name(contract, n, name, sizeof name), KR_TEXT_OF(x));
    if (x->tape && x->tape != tape)
        return kr_fail(ctx, KR_ERR_STATE,
                       "%s: operand %s %s belongs to another tape; carry values over in a parameter or by kr_from_data",
                       op, kr_contract_name(contract, n, name, sizeof name), KR_TEXT_OF(x));
    return kr_list_read(tape, x);
}

bool kr_bind(kr_tape *tape, const char *op, kr_dims *d, const char *contract, ...)
{
    if (!kr_tape_ready(tape, op)) return false;
    const int count = kr_contract_count(contract);
    assert(count <= KR_CONTRACT_MAX);
    kr_tensor *operands[KR_CONTRACT_MAX];
    va_list list;
    va_start(list, contract);
    for (int n = 0; n < count; n++) operands[n] = va_arg(list, kr_tensor *);
    va_end(list);
    for (int n = 0; n < count; n++)
        if (!belongs(tape, op, contract, n, operands[n])) return false;
    return kr_contract_bind(tape->ctx, op, d, contract, operands);
}

bool kr_bind_any(kr_tape *tape, const char *op, const kr_tensor *x)
{
    return kr_tape_ready(tape, op) && belongs(tape, op, "x:..", 0, x);
}
