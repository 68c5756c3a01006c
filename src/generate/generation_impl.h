/* generation_impl.h - struct of a generation: the rows of a batch that continue one prompt. */
#ifndef KR_GENERATE_GENERATION_IMPL_H
#define KR_GENERATE_GENERATION_IMPL_H

#include "generate/batch_impl.h"

struct kr_generation {
    kr_ctx *ctx;
    kr_row_batch *batch; /* of these rows alone */
    kr_arena arena;      /* lists of the settings, and the arrays below */
    kr_row_settings settings;
    int64_t nrows;
    kr_row **rows; /* [nrows], row r with stream r: only the first before the first step, which forks it; then all */
    kr_generated *made; /* [nrows] */
    int64_t prompt_tokens, tokens;
    bool is_inconsistent; /* a call failed midway */
};

/* Row r of the generation: a new one, or one with the text of `from` and without a state. NULL after an error. */
kr_row *kr_generation_add_row(kr_generation *g, const char *op, int64_t r, kr_row *from);

/* The result of a row that has generated nothing since the last call. */
void kr_generation_clear_made(kr_generation *g, int64_t r);

/* Row r, or the one that it is still to be forked from. */
static inline kr_row *kr_generation_row_of(const kr_generation *g, int64_t r)
{
    return g->rows[r] ? g->rows[r] : g->rows[0];
}

#endif
