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

/* Parses the term at text; returns the rest of the contract, or NULL at its end. */
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

/* A contract that is being held against its operands. Every op begins with one, so it keeps no more than it needs: terms
 * for messages are read again. */
typedef struct binder {
    kr_ctx *ctx;
    const char *op, *contract;
    kr_tensor *const *operands;
    kr_dims *d;
    uint32_t letters;        /* bit mask of the letters that are bound */
    unsigned char first[26]; /* the operand that gave it */
    int lead;                /* the operand that bound the leading axes, -1: none yet */
} binder;

static bool bind_axis(binder *b, const term *t, int n, int axis, char letter)
{
    const kr_tensor *x = b->operands[n];
    const int64_t size = x->dims[axis];
    if (letter >= '0' && letter <= '9')
        return kr_require(b->ctx, size == letter - '0', KR_ERR_SHAPE, "%s: axis %d of %.*s %s is %lld, but must be %c",
                          b->op, axis, t->name_len, t->name, KR_TEXT_OF(x), (long long)size, letter);
    const int slot = letter - 'a';
    if (!(b->letters >> slot & 1)) {
        b->letters |= 1u << slot;
        b->first[slot] = (unsigned char)n;
        b->d->size[slot] = size;
        return true;
    }
    if (size == b->d->size[slot]) return true;
    const term first = nth_term(b->contract, b->first[slot]);
    return kr_fail(b->ctx, KR_ERR_SHAPE, "%s: axis %c of %.*s %s is %lld, but %.*s %s says %c = %lld", b->op, letter,
                   t->name_len, t->name, KR_TEXT_OF(x), (long long)size, first.name_len, first.name,
                   KR_TEXT_OF(b->operands[b->first[slot]]), letter, (long long)b->d->size[slot]);
}

static bool bind_lead(binder *b, const term *t, int n)
{
    const kr_tensor *x = b->operands[n];
    kr_shape lead = kr_tensor_shape(x);
    lead.rank -= t->naxes;
    if (b->lead < 0) {
        b->lead = n;
        b->d->lead = lead;
        b->d->rows = kr_shape_count(&lead);
        return true;
    }
    if (kr_shape_equal(&lead, &b->d->lead)) return true;
    const term first = nth_term(b->contract, b->lead);
    return kr_fail(b->ctx, KR_ERR_SHAPE, "%s: leading axes of %.*s %s are %s, but %.*s %s has %s", b->op, t->name_len,
                   t->name, KR_TEXT_OF(x), KR_TEXT_OF_SHAPE(&lead), first.name_len, first.name,
                   KR_TEXT_OF(b->operands[b->lead]), KR_TEXT_OF_SHAPE(&b->d->lead));
}

static bool bind_operand(binder *b, const term *t, int n)
{
    const kr_tensor *x = b->operands[n];
    const bool fits = t->has_lead ? x->rank >= t->naxes : x->rank == t->naxes;
    if (!kr_require(b->ctx, fits, KR_ERR_SHAPE, "%s: %.*s %s has rank %d, but must have %s%d (axes %s%.*s)", b->op,
                    t->name_len, t->name, KR_TEXT_OF(x), x->rank, t->has_lead ? "at least " : "", t->naxes,
                    t->has_lead ? ".." : "", t->naxes, t->axes) ||
        (t->has_lead && !bind_lead(b, t, n)))
        return false;
    for (int i = 0; i < t->naxes; i++)
        if (!bind_axis(b, t, n, x->rank - t->naxes + i, t->axes[i])) return false;
    return true;
}

bool kr_contract_bind(kr_ctx *ctx, const char *op, kr_dims *d, const char *contract, kr_tensor *const *operands)
{
    binder b;
    b.ctx = ctx;
    b.op = op;
    b.contract = contract;
    b.operands = operands;
    b.d = d;
    b.letters = 0;
    b.lead = -1;
    memset(d, 0, sizeof *d);
    d->rows = 1;
    term t;
    for (int n = 0; (contract = next_term(contract, &t)); n++)
        if (operands[n] && !bind_operand(&b, &t, n)) return false;
    return true;
}
