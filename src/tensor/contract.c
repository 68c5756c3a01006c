/* contract.c - reads a shape contract and holds operands against it. */
#include "tensor/contract.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* One operand of a contract: "name:..ab?". */
typedef struct term {
    const char *name, *axes;
    int name_len, naxes; /* letters and digits, ".." not counted */
    bool has_lead, optional;
} term;

/* Parses the term at text; returns what follows it, or NULL at the end of the contract. */
static const char *next_term(const char *text, term *t)
{
    while (*text == ' ') text++;
    if (!*text) return NULL;
    *t = (term){ .name = text };
    while (*text != ':') {
        assert(*text && "a contract's operand is name:axes");
        text++;
    }
    t->name_len = (int)(text++ - t->name);
    if (text[0] == '.' && text[1] == '.') {
        t->has_lead = true;
        text += 2;
    }
    t->axes = text;
    while (*text && *text != ' ' && *text != '?') text++;
    t->naxes = (int)(text - t->axes);
    if (*text == '?') {
        t->optional = true;
        text++;
    }
    return text;
}

int kr_contract_count(const char *contract)
{
    term t;
    int count = 0;
    while ((contract = next_term(contract, &t))) count++;
    return count;
}

static term nth_term(const char *contract, int n)
{
    term t = { 0 };
    for (int i = 0; i <= n && contract; i++) contract = next_term(contract, &t);
    return t;
}

const char *kr_contract_name(const char *contract, int n, char *text, size_t bytes)
{
    term t = nth_term(contract, n);
    snprintf(text, bytes, "%.*s", t.name_len, t.name);
    return text;
}

bool kr_contract_is_optional(const char *contract, int n)
{
    return nth_term(contract, n).optional;
}

/* Where a size was first seen, for the message. */
typedef struct binding {
    term first;
    const kr_tensor *operand;
} binding;

static bool bind_axis(kr_ctx *ctx, const char *op, kr_dims *d, binding *seen, const term *t, const kr_tensor *x,
                      int axis, char letter)
{
    const int64_t size = x->dims[axis];
    if (letter >= '0' && letter <= '9')
        return kr_require(ctx, size == letter - '0', KR_ERR_SHAPE, "%s: axis %d of %.*s %s is %lld, but must be %c", op,
                          axis, t->name_len, t->name, KR_TEXT_OF(x), (long long)size, letter);
    const int slot = letter - 'a';
    if (!seen[slot].operand) {
        seen[slot] = (binding){ *t, x };
        d->size[slot] = size;
        return true;
    }
    const term *first = &seen[slot].first;
    return kr_require(ctx, size == d->size[slot], KR_ERR_SHAPE,
                      "%s: axis %c of %.*s %s is %lld, but %.*s %s says %c = %lld", op, letter, t->name_len, t->name,
                      KR_TEXT_OF(x), (long long)size, first->name_len, first->name, KR_TEXT_OF(seen[slot].operand),
                      letter, (long long)d->size[slot]);
}

static bool bind_lead(kr_ctx *ctx, const char *op, kr_dims *d, binding *seen, const term *t, const kr_tensor *x)
{
    kr_shape lead = kr_tensor_shape(x);
    lead.rank -= t->naxes;
    if (!seen->operand) {
        *seen = (binding){ *t, x };
        d->lead = lead;
        d->rows = kr_shape_count(&lead);
        return true;
    }
    return kr_require(ctx, kr_shape_equal(&lead, &d->lead), KR_ERR_SHAPE,
                      "%s: leading axes of %.*s %s are %s, but %.*s %s has %s", op, t->name_len, t->name, KR_TEXT_OF(x),
                      KR_TEXT_OF_SHAPE(&lead), seen->first.name_len, seen->first.name, KR_TEXT_OF(seen->operand),
                      KR_TEXT_OF_SHAPE(&d->lead));
}

bool kr_contract_bind(kr_ctx *ctx, const char *op, kr_dims *d, const char *contract, kr_tensor *const *operands)
{
    binding seen[26] = { { { 0 }, NULL } }, lead = { { 0 }, NULL };
    memset(d, 0, sizeof *d);
    d->rows = 1;
    term t;
    for (int n = 0; (contract = next_term(contract, &t)); n++) {
        const kr_tensor *x = operands[n];
        if (!x) continue;
        const bool fits = t.has_lead ? x->rank >= t.naxes : x->rank == t.naxes;
        if (!kr_require(ctx, fits, KR_ERR_SHAPE, "%s: %.*s %s has rank %d, but must have %s%d (axes %s%.*s)", op,
                        t.name_len, t.name, KR_TEXT_OF(x), x->rank, t.has_lead ? "at least " : "", t.naxes,
                        t.has_lead ? ".." : "", t.naxes, t.axes))
            return false;
        const int first = x->rank - t.naxes;
        if (t.has_lead && !bind_lead(ctx, op, d, &lead, &t, x)) return false;
        for (int i = 0; i < t.naxes; i++)
            if (!bind_axis(ctx, op, d, seen, &t, x, first + i, t.axes[i])) return false;
    }
    return true;
}
