/* class_tokens.c - positions of class tokens, which of them are due, and inserting their rows.
 *
 * A level of L tokens puts a class token before token 0 (start), L / 2 (middle), L (end: after the last) or `at` (custom).
 * In order of (position, kind, number in the list) the j-th class token is output min(position, L) + j of the level. Streaming
 * keeps only how many outputs the level has emitted: every class token below that has been emitted, all others are due.
 */
#include "nn/class_tokens.h"

#include "base/sized.h"
#include <krait/network.h>

#include <stdio.h>

enum { LONGEST_BITS = 62 };
#define LONGEST (INT64_C(1) << LONGEST_BITS) /* an unknown length: no position is beyond it */

/* ---- positions ---- */

static bool is_good(const kr_class_token *class_token)
{
    return class_token->kind >= KR_CLASS_TOKEN_START && class_token->kind <= KR_CLASS_TOKEN_CUSTOM &&
           (class_token->kind != KR_CLASS_TOKEN_CUSTOM || class_token->at >= 0);
}

static int64_t position_of(const kr_class_token *class_token, int64_t len)
{
    switch (class_token->kind) {
    case KR_CLASS_TOKEN_START: return 0;
    case KR_CLASS_TOKEN_MIDDLE: return len / 2;
    case KR_CLASS_TOKEN_END: return len;
    case KR_CLASS_TOKEN_CUSTOM: break;
    }
    return class_token->at;
}

static bool comes_before(const kr_class_token *class_tokens, int a, int b, int64_t len)
{
    const int64_t position_a = position_of(&class_tokens[a], len), position_b = position_of(&class_tokens[b], len);
    if (position_a != position_b) return position_a < position_b;
    return class_tokens[a].kind != class_tokens[b].kind ? class_tokens[a].kind < class_tokens[b].kind : a < b;
}

/* Position in the output of the `nth` class token in order. */
static int64_t output_of(const kr_class_token *class_token, int64_t nth, int64_t len)
{
    const int64_t position = position_of(class_token, len);
    return (position < len ? position : len) + nth;
}

int64_t kr_class_token_index(const kr_class_token *class_tokens, int count, int which, int64_t len)
{
    if (!class_tokens || which < 0 || which >= count || len < 0 || len > LONGEST) return -1;
    int64_t nth = 0;
    for (int i = 0; i < count; i++) {
        if (!is_good(&class_tokens[i])) return -1;
        nth += i != which && comes_before(class_tokens, i, which, len);
    }
    return output_of(&class_tokens[which], nth, len);
}

int64_t kr_class_tokens_outputs(const kr_class_token *class_tokens, int count, int64_t len)
{
    if (len == KR_LENGTH_UNKNOWN) return len;
    int64_t total = len;
    for (int i = 0; i < count; i++)
        total += position_of(&class_tokens[i], len) < len || class_tokens[i].kind == KR_CLASS_TOKEN_END;
    return total;
}

bool kr_class_token_check(kr_ctx *ctx, const char *op, const char *field, const kr_class_token *class_token)
{
    return kr_require(ctx, class_token->kind >= KR_CLASS_TOKEN_START && class_token->kind <= KR_CLASS_TOKEN_CUSTOM,
                      KR_ERR_ARG, "%s: %s.kind = %d is not one of start, middle, end, custom", op, field,
                      (int)class_token->kind) &&
           kr_require(ctx, is_good(class_token), KR_ERR_ARG,
                      "%s: %s.at = %lld, but a custom position must not be negative", op, field,
                      (long long)class_token->at) &&
           KR_RESERVED(ctx, op, field, class_token);
}

bool kr_class_tokens_check(kr_ctx *ctx, const char *op, const char *field, const kr_class_token *class_tokens,
                           int count)
{
    if (!kr_require(ctx, count >= 0, KR_ERR_ARG, "%s: n_%s = %d, but must not be negative", op, field, count) ||
        !kr_require(ctx, count == 0 || class_tokens, KR_ERR_ARG, "%s: n_%s = %d, but %s is NULL", op, field, count,
                    field))
        return false;
    for (int i = 0; i < count; i++) {
        char one[64];
        snprintf(one, sizeof one, "%s[%d]", field, i);
        if (!kr_class_token_check(ctx, op, one, &class_tokens[i])) return false;
    }
    return true;
}

/* ---- due class tokens ---- */

static bool check_length(kr_ctx *ctx, const char *op, const kr_class_token *class_tokens, int count, int64_t full_len)
{
    for (int i = 0; full_len == KR_LENGTH_UNKNOWN && i < count; i++)
        if (class_tokens[i].kind == KR_CLASS_TOKEN_MIDDLE || class_tokens[i].kind == KR_CLASS_TOKEN_END)
            return kr_fail(
                ctx, KR_ERR_STATE,
                "%s: a middle or end class token needs the sequence's length; announce it with kr_state_announce", op);
    return kr_require(ctx, full_len >= KR_LENGTH_UNKNOWN && full_len <= LONGEST, KR_ERR_ARG,
                      "%s: the sequence's length = %lld, but must be from 0 to 2^%d", op, (long long)full_len,
                      LONGEST_BITS);
}

/* All class tokens in order, each with the output that it is. */
static void put_in_order(const kr_class_token *class_tokens, int count, int64_t len, kr_splice *all)
{
    for (int i = 0; i < count; i++) {
        int j = i;
        for (; j > 0 && comes_before(class_tokens, i, all[j - 1].token, len); j--) all[j] = all[j - 1];
        all[j].token = i;
    }
    for (int j = 0; j < count; j++) all[j].at = output_of(&class_tokens[all[j].token], j, len);
}

bool kr_class_tokens_plan(kr_ctx *ctx, const char *op, const kr_class_token *class_tokens, int count, int64_t full_len,
                          bool primes, int64_t c, int64_t *offset, kr_splice *plan, int *nplan)
{
    *nplan = 0;
    if (count == 0) {
        *offset += c;
        return true;
    }
    if (!check_length(ctx, op, class_tokens, count, full_len)) return false;
    put_in_order(class_tokens, count, full_len == KR_LENGTH_UNKNOWN ? LONGEST : full_len, plan);

    const int64_t start = *offset;
    int nth = 0;
    while (nth < count && plan[nth].at < start) nth++;
    const bool is_whole = full_len == start - nth + c; /* these tokens complete the sequence of this level */
    int64_t out = start, at = 0;
    for (; nth < count; nth++) {
        const kr_splice next = plan[nth];
        const bool is_end = class_tokens[next.token].kind == KR_CLASS_TOKEN_END;
        const int64_t before = at + (next.at - out); /* tokens of the chunk before it */
        /* after the last token: the end class token closes the sequence, priming emits the class tokens before the next token */
        const bool may_trail = primes ? !is_whole && !is_end : is_whole && is_end;
        if (before > c || (before == c && !may_trail)) break;
        at = before;
        out = next.at + 1;
        plan[(*nplan)++] = (kr_splice){ at, next.token };
    }
    *offset = out + (c - at);
    return true;
}

/* ---- splicing ---- */

/* The plan cuts x into nplan + 1 pieces, some empty, with one row inserted between each two. */
static int list_pieces(kr_tape *tape, kr_tensor *x_bcd, int64_t batch, kr_tensor *table_nd, const kr_splice *plan,
                       int nplan, kr_tensor **pieces)
{
    const int64_t c = x_bcd ? kr_dim_of(x_bcd, 1) : 0, nd = kr_dim_of(table_nd, 1);
    int n = 0;
    int64_t from = 0;
    for (int i = 0; i <= nplan; i++) {
        const int64_t to = i < nplan ? plan[i].at : c;
        if (to > from) pieces[n++] = kr_slice(tape, x_bcd, 1, from, to);
        from = to;
        if (i == nplan) break;
        kr_tensor *row = kr_slice(tape, table_nd, 0, plan[i].token, plan[i].token + 1);
        if (x_bcd) row = kr_cast(tape, row, x_bcd->dtype);
        pieces[n++] = kr_expand(tape, row, KR_SHAPE(batch, 1, nd));
    }
    return n;
}

kr_tensor *kr_class_tokens_splice(kr_tape *tape, kr_tensor *x_bcd, int64_t batch, kr_tensor *table_nd,
                                  const kr_splice *plan, int nplan)
{
    kr_dims d;
    if (nplan == 0) return x_bcd;
    if (!kr_bind(tape, "class_tokens", &d, "table:nd x:bcd?", table_nd, x_bcd)) return NULL;
    kr_tensor **pieces = kr_arena_alloc(&tape->heads, (2 * (size_t)nplan + 1) * sizeof *pieces);
    if (!pieces) {
        kr_fail(tape->ctx, KR_ERR_NOMEM, "class_tokens: no memory for a list of %d class tokens", nplan);
        return NULL;
    }
    const int n = list_pieces(tape, x_bcd, batch, table_nd, plan, nplan, pieces);
    return kr_ctx_failed(tape->ctx) ? NULL : kr_concat(tape, 1, n, pieces);
}
