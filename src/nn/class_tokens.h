/* class_tokens.h - when class tokens are due, and splicing their rows into a sequence. */
#ifndef KR_NN_CLASS_TOKENS_H
#define KR_NN_CLASS_TOKENS_H

#include "ops/ops_impl.h"

#include <krait/network.h>

/* Class token `token` goes before the at-th token of the chunk; at = its length: after the last. */
typedef struct kr_splice {
    int64_t at;
    int token;
} kr_splice;

/* The class token is good: its kind, a custom position not negative. `field` names it in messages. */
bool kr_class_token_check(kr_ctx *ctx, const char *op, const char *field, const kr_class_token *class_token);

/* The same for a list. */
bool kr_class_tokens_check(kr_ctx *ctx, const char *op, const char *field, const kr_class_token *class_tokens,
                           int count);

/* How many outputs a level has for a whole sequence of len tokens: the tokens, and the class tokens whose position exists.
 * KR_LENGTH_UNKNOWN is returned unchanged. */
int64_t kr_class_tokens_outputs(const kr_class_token *class_tokens, int count, int64_t len);

/* The class tokens due with the next c tokens of a level, into plan [count], *nplan of them in order of position; *offset,
 * the number of outputs that the level has emitted, is advanced. full_len: tokens of the whole sequence at this level,
 * or KR_LENGTH_UNKNOWN. primes: only class tokens before the next token. False after an error: the position of a class token
 * depends on an unknown length. */
bool kr_class_tokens_plan(kr_ctx *ctx, const char *op, const kr_class_token *class_tokens, int count, int64_t full_len,
                          bool primes, int64_t c, int64_t *offset, kr_splice *plan, int *nplan);

/* x [b c d] with the plan's rows of table [n d] between: [b c + nplan, d]. x NULL: c = 0. NULL with nothing to return
 * (c and nplan 0) or after an error. */
kr_tensor *kr_class_tokens_splice(kr_tape *tape, kr_tensor *x_bcd, int64_t batch, kr_tensor *table_nd,
                                  const kr_splice *plan, int nplan);

#endif
